"""What the report of a failed test says about the brokers: their last events, and X-rays.

Brokers that run are asked.  A broker that has ended cannot be asked: if its log is JSON, its events
are read from there, else the report says where they are.

An X-ray is a file for each partition whose leader or ISR has changed: replicas at the failure, and
what events say of the time before.  It opens in a browser, from disk.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from hightide.client.model.events import EventFilter
from hightide.client.model.health import users_first
from hightide.client.xray.frames import TimedFrame, frame_of
from hightide.client.xray.page import page
from hightide.client.xray.replay import CHANGES, replayed
from hightide.client.xray.timeline import Timeline, event_json
from hightide.core.events import Severity
from hightide.process_log import escaped

if TYPE_CHECKING:
    from hightide.testing.cluster import Cluster

_READ = 1000
_MOST_XRAYS = 5
_ENDED = "has ended; its last events are the last lines of its log"

Line = tuple[datetime, str]


def event_ends(cluster: Cluster, count: int) -> str:
    """The last `count` events of each broker in the order of time, and what is missing."""
    missing: dict[int, str] = {}
    lines: list[Line] = []
    for broker_id in cluster.brokers:
        if not cluster.is_running(broker_id):
            found = [*_from_log(cluster.log(broker_id), broker_id)][-count:]
            lines += found
            missing[broker_id] = "has ended; these are from its log" if found else _ENDED
        elif cluster.is_paused(broker_id):
            missing[broker_id] = "is paused and cannot be asked for its events"
    if len(missing) < len(cluster.brokers):
        lines += _from_brokers(cluster, count, missing)
    notes = [f"-- broker {broker_id} {why}" for broker_id, why in sorted(missing.items())]
    return "\n".join([*(line for _, line in sorted(lines)), *notes])


def xray_files(cluster: Cluster, folder: Path | None = None) -> list[Path]:
    """Write X-rays of partitions that have changed, into a new folder by default."""
    found = cluster.found_events(EventFilter(brokers=cluster.responsive()), _READ)
    events = [event_json(event) for event in found.events]
    changed = dict.fromkeys(
        (event["data"]["topic"], event["data"]["partition"])
        for event in events
        if event["kind"] in CHANGES and event["data"].get("leader_epoch") != 0
    )
    if not changed:
        return []
    described, min_isr = cluster.replicas()
    partitions = [one for one in described.partitions if (one.topic, one.partition) in changed]
    partitions = users_first(partitions)[:_MOST_XRAYS]
    if partitions and folder is None:
        folder = Path(tempfile.mkdtemp(prefix="hightide-xray-"))
    now_ms = time.time_ns() // 1_000_000
    files = []
    for partition in partitions:
        assert folder is not None
        name = partition.topic, partition.partition
        now = frame_of(partition, min_isr.get(partition.topic, 1))
        about = Timeline(*name, [], events).events
        timeline = Timeline(*name, [*replayed(about, now), TimedFrame(now_ms, now)], about)
        from_ms = min(one.time_ms for one in timeline.frames)
        path = folder / f"xray-{partition.topic}-{partition.partition}.html"
        path.write_text(page(timeline, from_ms, now_ms + 1, {"title": "The end of a failed test"}))
        files.append(path)
    return files


def xray_ends(cluster: Cluster) -> str:
    """Where the X-rays are, for the report of a failed test; "" if nothing has changed."""
    try:
        return "\n".join(map(str, xray_files(cluster)))
    except Exception as error:
        # A report must not hide the failure that it is about, whatever state the brokers are in.
        return f"-- not written: {error or type(error).__name__}"


def _from_brokers(cluster: Cluster, count: int, missing: dict[int, str]) -> list[Line]:
    try:
        wanted = EventFilter(brokers=cluster.responsive(), severity=Severity.INFO)
        found = cluster.found_events(wanted, _READ)
    except Exception as error:
        # A report must not hide the failure that it is about, whatever state the brokers are in.
        why = f"did not report its events: {error or type(error).__name__}"
        missing.update({broker: why for broker in cluster.brokers if broker not in missing})
        return []
    missing.update(
        {broker: f"did not report its events: {why}" for broker, why in found.silent.items()}
    )
    by_broker: defaultdict[int, list[Line]] = defaultdict(list)
    for event in found.events:
        at = datetime.fromtimestamp(event.time_ms / 1000, UTC)
        line = _line(at, event.severity.name, event.broker, event.kind, event.text)
        by_broker[event.broker].append(line)
    return [line for lines in by_broker.values() for line in lines[-count:]]


def _from_log(text: str, broker_id: int) -> Iterator[Line]:
    """The events in a log of JSON."""
    for logged in text.splitlines():
        if not logged.startswith("{"):
            continue
        try:
            found = json.loads(logged)
            if "event" in found:
                at = datetime.fromisoformat(found["time"])
                yield _line(at, found["level"], broker_id, found["event"], found["message"])
        except (ValueError, KeyError, TypeError):
            continue  # the last line of a process that was killed may be cut


def _line(at: datetime, level: str, broker_id: int, kind: str, text: str) -> Line:
    time = at.astimezone().isoformat(timespec="milliseconds")
    return at, f"{time} {level:<7} [broker {broker_id}] {kind}: {escaped(text)}"
