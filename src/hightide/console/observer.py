"""The one task that looks at the cluster, for all browsers.

    every second          everything; what has not changed is skipped            → overview
    20 times a second     the topics that a browser shows                         → topic frames
    every half second     events of all brokers                                  → events
    every ten seconds     disks, min.insync.replicas

A look that costs much is followed by a longer pause, so that the observer keeps to its share of a
core whatever the size of the cluster.  A cluster that is away is looked for every second.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from hightide.client.admin import Admin
from hightide.client.admin.events import MOST_EVENTS
from hightide.client.broker_connection import ConnectionFailed
from hightide.client.model.cluster import Partition
from hightide.client.model.replicas import PartitionReplicas, ReplicasDescription
from hightide.client.security import PLAINTEXT, Security
from hightide.client.xray.frames import PartitionFrame, foreign_frame, frame_of
from hightide.client.xray.looks import Looks
from hightide.client.xray.timeline import Timeline, event_json
from hightide.console import summary
from hightide.console.foreign import ForeignLooks
from hightide.console.history import History
from hightide.console.subscribers import Message, Subscribers
from hightide.wire.errors import KafkaError
from hightide.wire.messages.cluster import DescribeLogDirsRequest

log = logging.getLogger(__name__)

EVERY_S = 1.0
WATCHED_EVERY_S = 0.05
EVENTS_EVERY_S = 0.5
SLOW_EVERY_S = 10.0
CLUSTER_SHARE, WATCHED_SHARE = 0.06, 0.04
"""The most of a core that looks take: at the cluster, and besides at what is watched."""
LONGEST_PAUSE_S = 10.0
TOPIC_AGAIN_MS = 1_000
"""A topic frame without changes is sent so often."""
CONNECT_MS = 2_000
EVENT_ANSWER_S = 0.5
KEPT_EVENTS = 5_000
FIRST_EVENTS = 100
SLOW_ANSWER_S = 3.0

_EXPECTED = (ConnectionFailed, KafkaError, TimeoutError, OSError)


class Frame:
    """The newest look at the whole cluster."""

    def __init__(
        self, overview: dict[str, Any], cluster: ReplicasDescription, min_isr: dict[str, int]
    ) -> None:
        self.overview = overview
        self.cluster = cluster
        self.min_isr = min_isr

    @property
    def time_ms(self) -> int:
        return int(self.overview["time_ms"])


class Observer:
    """Looks at a cluster from `start` to `stop`; an async context manager."""

    def __init__(
        self,
        bootstrap: str,
        *,
        security: Security = PLAINTEXT,
        title: str = "",
        is_local: bool = False,
    ) -> None:
        self.bootstrap, self.title = bootstrap, title
        self.frame: Frame | None = None
        self.history = History()
        self.events: deque[dict[str, Any]] = deque(maxlen=KEPT_EVENTS)
        """The newest events, oldest first, as `hightide events -o json` prints them."""
        self._security = security
        # Long requests of other pages must not delay the looks, so these have their connections.
        self._admin, self._event_admin = self.connect(), self.connect()
        self._is_local = is_local
        self._looks = Looks(self._admin)
        self._foreign = ForeignLooks(self._admin)
        self._subscribers = Subscribers()
        self._watched: Counter[str] = Counter()
        self._watching = asyncio.Event()
        self._sent_ms: dict[str, int] = {}
        self._rows: dict[Partition, dict[str, Any]] = {}
        self._rates = summary.Rates()
        self._min_isr: dict[str, int] = {}
        self._disks: dict[int, summary.Disk] = {}
        self._away, self._away_since_ms = "", 0
        self._there = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    # -- use -------------------------------------------------------------------------------

    def start(self) -> None:
        assert self._task is None, "the observer is started once"
        self._task = asyncio.create_task(self._run(), name="observer")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None
        self._looks.stop()
        self._admin.close()
        self._event_admin.close()

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    def connect(self) -> Admin:
        """A client with connections of its own; the caller closes it."""
        return Admin(
            self.bootstrap,
            client_id="hightide-console",
            connect_timeout_ms=CONNECT_MS,
            security=self._security,
        )

    def timeline(
        self, key: Partition, from_ms: int, to_ms: int, most: int | None = None
    ) -> Timeline:
        """The frames of a range, at most so many by time, and all events that are kept."""
        frames = self.history.frames(key, from_ms, to_ms, most)
        return Timeline(*key, frames, list(self.events), list(self.history.away))

    @property
    def overview(self) -> dict[str, Any]:
        """The newest summary; before the first look, a sentence that says so."""
        if self.frame is not None:
            return self.frame.overview
        why = self._away or "This is the first look."
        return self._overview(_now_ms()) | {"sentence": summary.away(self.bootstrap, why)}

    @contextmanager
    def watch(self, topic: str) -> Iterator[None]:
        """Look at this topic many times a second."""
        self._watched[topic] += 1
        self._watching.set()
        try:
            yield
        finally:
            self._watched[topic] -= 1
            if not self._watched[topic]:
                del self._watched[topic]
                self._sent_ms.pop(topic, None)

    async def messages(self, topic: str | None = None) -> AsyncGenerator[Message]:
        """The messages for one browser; a message has its JSON in `text`."""
        with contextlib.ExitStack() as stack:
            subscriber = stack.enter_context(self._subscribers.added(topic))
            subscriber.put(Message(self.overview))
            if self.events:
                subscriber.put_events([*self.events][-FIRST_EVENTS:])
            if topic is not None:
                stack.enter_context(self.watch(topic))
                self._sent_ms.pop(topic, None)
            while True:
                for message in await subscriber.take():
                    yield message

    async def subscribe(self, topic: str | None = None) -> AsyncGenerator[dict[str, Any]]:
        """The same as values."""
        async for message in self.messages(topic):
            yield message.data

    def partition_frame(self, key: Partition) -> PartitionFrame | None:
        """The newest frame of a partition."""
        partition = self._looks.partitions.get(key)
        return None if partition is None else self._frame(partition)

    # -- loops -----------------------------------------------------------------------------

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._repeat(self._look, EVERY_S, CLUSTER_SHARE))
            group.create_task(self._watch_topics())
            group.create_task(self._repeat(self._read_events(), EVENTS_EVERY_S, CLUSTER_SHARE))
            group.create_task(self._repeat(self._look_slowly, SLOW_EVERY_S, CLUSTER_SHARE))

    async def _repeat(
        self, look: Callable[[], Awaitable[None]], every_s: float, share: float
    ) -> None:
        while True:
            await self._paced(look, every_s, share)

    async def _paced(
        self, look: Callable[[], Awaitable[None]], every_s: float, share: float
    ) -> None:
        """Look, and pause: for the rest of the period, or longer if the look cost much."""
        began_s, cpu_s = time.monotonic(), time.thread_time()
        try:
            await look()
        except _EXPECTED as error:
            log.debug("a look failed: %s", error)
        except Exception:
            log.exception("a look failed")
        took_s, cost_s = time.monotonic() - began_s, time.thread_time() - cpu_s
        pause_s = max(every_s, cost_s / share) - took_s
        await asyncio.sleep(min(max(pause_s, every_s / 10), LONGEST_PAUSE_S))

    async def _watch_topics(self) -> None:
        while True:
            if not self._watched:
                self._watching.clear()
                await self._watching.wait()
            await self._paced(self._look_at_topics, WATCHED_EVERY_S, WATCHED_SHARE)

    # -- the whole cluster -----------------------------------------------------------------

    async def _look(self) -> None:
        try:
            changed = await self._looks.look()
        except _EXPECTED as error:
            self._is_away(str(error))
            return
        if self._away:
            self._away = ""
            changed |= self._looks.partitions.keys()
        changed |= await self._look_at_foreign(self._looks.partitions)
        self._take(changed)
        if any(key[0] not in self._min_isr for key in changed & self._looks.partitions.keys()):
            await self._read_min_isr()
            self._take(self._looks.partitions.keys())
        now_ms = _now_ms()
        self._summarize(now_ms)
        self.history.trim(now_ms)

    async def _look_at_foreign(self, wanted: Iterable[Partition]) -> set[Partition]:
        if not self._looks.foreign:
            return set()
        partitions = [
            self._looks.partitions[key] for key in wanted if key in self._looks.partitions
        ]
        return await self._foreign.look(partitions, self._looks.foreign)

    def _take(self, changed: Iterable[Partition]) -> None:
        """Keep the frames and the rows of partitions that have changed."""
        now_ms = _now_ms()
        for key in list(changed):
            partition = self._looks.partitions.get(key)
            self._rates.take(key, partition)
            if partition is None:
                self._rows.pop(key, None)
                self.history.forget([key])
                continue
            frame = self._frame(partition)
            self.history.add(now_ms, key[0], frame)
            foreign = self._foreign.offsets(key) if self._looks.foreign else None
            offsets = (foreign.high_watermark, foreign.high_watermark) if foreign else None
            if offsets is not None and not partition.is_internal:
                size = self._foreign.sizes.get((partition.leader, key), 0)
                self._rates.appended(key, offsets[1], size)
            self._rows[key] = summary.partition_row(
                partition, self._min_isr.get(key[0], 1), offsets
            )

    def _frame(self, partition: PartitionReplicas) -> PartitionFrame:
        min_isr = self._min_isr.get(partition.topic, 1)
        if not self._looks.foreign:
            return frame_of(partition, min_isr)
        key = partition.topic, partition.partition
        return foreign_frame(
            partition, min_isr, self._foreign.offsets(key), self._foreign.lags(key)
        )

    def _summarize(self, now_ms: int) -> None:
        looks, cluster = self._looks, self._looks.description()
        self._rates.looked(now_ms)
        versions = {broker: one.version for broker, one in looks.reporters.items()}
        overview = self._overview(now_ms) | {
            "cluster_id": looks.cluster_id,
            "controller": looks.controller,
            "is_foreign": bool(looks.foreign),
            "sentence": summary.sentence_of(
                cluster, self._min_isr, self.bootstrap, is_local=self._is_local, now_ms=now_ms
            ),
            "brokers": summary.broker_rows(
                looks.nodes, cluster, self._rows, versions, self._disks, self._foreign.sizes
            ),
            "partitions": [self._rows[key] for key in sorted(self._rows)],
            "totals": summary.totals(self._rows, self._rates),
        }
        self.frame = Frame(overview, cluster, dict(self._min_isr))
        self._there.set()
        self._subscribers.publish(overview)

    def _is_away(self, why: str) -> None:
        """The whole cluster cannot be reached: say so, and show what was known as off."""
        now_ms = _now_ms()
        if not self._away:
            self._away_since_ms = now_ms
        self._away = why
        self._there.clear()
        self.history.was_away(self._away_since_ms, now_ms)
        known = self.frame.overview if self.frame is not None else {}
        overview = self._overview(now_ms) | {
            "cluster_id": known.get("cluster_id"),
            "is_foreign": known.get("is_foreign", False),
            "sentence": summary.away(self.bootstrap, why),
            "brokers": [
                {**row, "alive": False, "controller": False} for row in known.get("brokers", ())
            ],
            "partitions": [{**row, "level": "off"} for row in known.get("partitions", ())],
            "totals": {**self._overview(0)["totals"], "offline": len(self._rows)},
        }
        cluster = self.frame.cluster if self.frame else self._looks.description()
        self.frame = Frame(overview, cluster, dict(self._min_isr))
        self._subscribers.publish(overview)

    def _overview(self, time_ms: int) -> dict[str, Any]:
        """An overview that knows nothing yet."""
        nothing = ("messages_in_s", "bytes_in_s", "under_replicated", "under_min_isr", "offline")
        return {
            "type": "overview",
            "time_ms": time_ms,
            "cluster_id": None,
            "controller": -1,
            "is_foreign": False,
            "title": self.title,
            "sentence": summary.away(self.bootstrap, self._away or "This is the first look."),
            "brokers": [],
            "partitions": [],
            "totals": dict.fromkeys(nothing),
        }

    # -- watched topics --------------------------------------------------------------------

    async def _look_at_topics(self) -> None:
        names = sorted(self._watched)
        if self._away or self.frame is None:
            await asyncio.sleep(EVERY_S / 5)
            return
        changed = await self._looks.look_at(names)
        watched = [key for key in self._looks.partitions if key[0] in self._watched]
        changed |= await self._look_at_foreign(watched)
        self._take(changed)
        now_ms = _now_ms()
        moved = {key[0] for key in changed}
        for name in names:
            is_due = now_ms - self._sent_ms.get(name, 0) >= TOPIC_AGAIN_MS
            if name in moved or is_due:
                self._sent_ms[name] = now_ms
                self._subscribers.publish(self.topic_frame(name, now_ms), name)

    def topic_frame(self, name: str, now_ms: int | None = None) -> dict[str, Any]:
        """The newest frame of a topic; without partitions if there is no such topic."""
        keys = sorted(key for key in self._looks.partitions if key[0] == name)
        return {
            "type": "topic",
            "topic": name,
            "time_ms": _now_ms() if now_ms is None else now_ms,
            "min_isr": self._min_isr.get(name, 1),
            "is_foreign": bool(self._looks.foreign),
            "partitions": [self._frame(self._looks.partitions[key]).to_json() for key in keys],
        }

    # -- events, disks, configs ------------------------------------------------------------

    def _read_events(self) -> Callable[[], Awaitable[None]]:
        reader = self._event_admin.events.reader(answer_s=EVENT_ANSWER_S)
        is_first = True

        async def read() -> None:
            nonlocal is_first
            if self._looks.foreign:
                return
            found = await (reader.newest(MOST_EVENTS) if is_first else reader.newer())
            was_first, is_first = is_first, False
            events = [event_json(event) for event in found.events]
            if events:
                self.events += events
                self._subscribers.publish_events(events[-FIRST_EVENTS:] if was_first else events)

        return read

    async def _look_slowly(self) -> None:
        await self._there.wait()
        await self._read_min_isr()
        await self._read_disks()
        offline = {key[0] for key, one in self._looks.partitions.items() if one.is_offline}
        if offline or self._looks.foreign:
            names = sorted(offline) or sorted(self._looks.topics)
            async with asyncio.timeout(SLOW_ANSWER_S):
                self._looks.eligible = await self._admin.replicas.eligible(names)

    async def _read_min_isr(self) -> None:
        names = sorted(self._looks.topics)
        # Who may not read configs sees the rest; one replica in sync then counts as enough.
        found = {name: self._min_isr.get(name, 1) for name in names}
        with contextlib.suppress(*_EXPECTED):
            async with asyncio.timeout(SLOW_ANSWER_S):
                found |= await self._admin.configs.min_insync_replicas(names)
        if found != self._min_isr:
            changed = {name for name in found if found[name] != self._min_isr.get(name)}
            self._min_isr = found
            self._looks.touch(key for key in self._looks.partitions if key[0] in changed)

    async def _read_disks(self) -> None:
        # Sizes are in the replicas' reports, so this names no topic.
        for broker in list(self._looks.nodes):
            if broker in self._looks.silent:
                continue
            with contextlib.suppress(*_EXPECTED):
                async with asyncio.timeout(SLOW_ANSWER_S):
                    connection = await self._admin.router.broker(broker)
                    answer = await connection.send(DescribeLogDirsRequest(topics=[]))
                totals = [one.total_bytes for one in answer.results if one.total_bytes >= 0]
                free = [one.usable_bytes for one in answer.results if one.usable_bytes >= 0]
                self._disks[broker] = summary.Disk(
                    sum(totals) if totals else None, sum(free) if free else None
                )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
