"""What happened to a partition: ribbons, failovers by phase, and truncations.

Frames say what a look saw, and events say when and why it happened: a failover is shorter than the
time between two looks.  Event times are of the brokers' clocks, and frame times of the
observer's clock; on different machines they differ as much as the clocks do.

Events are JSON values, as `hightide events -o json` prints them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import zip_longest
from typing import Any

from hightide.client.model.events import BrokerEvent
from hightide.client.xray.frames import PartitionFrame, ReplicaFrame, TimedFrame
from hightide.core.partition.state import NO_BROKER

Event = Mapping[str, Any]
Json = dict[str, Any]

ELECTIONS = ("leader_elected", "unclean_leader_elected", "partition_recovered")
BEFORE_MS = 120_000
"""The loss of a leader is not searched further back than this before its successor's election."""
AFTER_MS = 60_000
"""The same for what follows an election at once: the publication."""


class Timeline:
    """The frames of one partition, oldest first, and the events of the cluster.

    `away` says from when to when the cluster was not seen.
    """

    def __init__(
        self,
        topic: str,
        partition: int,
        frames: Sequence[TimedFrame],
        events: Iterable[Event],
        away: Sequence[tuple[int, int]] = (),
    ) -> None:
        self.topic, self.partition = topic, partition
        self.frames, self.away = frames, away
        self.events = sorted(filter(self._is_about, events), key=lambda event: event["time_ms"])
        """Those about this partition, and those about no topic."""
        self._by_kind: dict[str, list[Event]] = {}
        for event in self.events:
            self._by_kind.setdefault(event["kind"], []).append(event)

    def to_json(self, from_ms: int, to_ms: int) -> Json:
        """Everything of a range, as the X-ray page reads it; frames as they are."""
        return {
            "topic": self.topic,
            "partition": self.partition,
            "from_ms": from_ms,
            "to_ms": to_ms,
            "frames": [
                {"time_ms": timed.time_ms, **timed.frame.to_json()} for timed in self.frames
            ],
            "ribbons": self.ribbons(from_ms, to_ms),
            "failovers": [
                one for one in self.failovers() if _is_within(_times(one), from_ms, to_ms)
            ],
            "truncations": [
                one for one in self.truncations() if from_ms <= one["time_ms"] <= to_ms
            ],
        }

    # -- ribbons ---------------------------------------------------------------------------

    def ribbons(self, from_ms: int, to_ms: int) -> list[Json]:
        """Spans of time in which a replica was in one state, for each broker."""
        spans: dict[int, list[Json]] = {}
        for timed, following in zip_longest(self.frames, self.frames[1:]):
            end_ms = to_ms if following is None else following.time_ms
            begin_ms, end_ms = max(timed.time_ms, from_ms), min(end_ms, to_ms)
            if begin_ms >= end_ms:
                continue
            for replica in timed.frame.replicas:
                found = spans.setdefault(replica.broker, [])
                _append(found, begin_ms, end_ms, state(replica, timed.frame))
        return [
            {"broker": broker, "spans": _with_away(found, self.away)}
            for broker, found in sorted(spans.items())
        ]

    # -- failovers -------------------------------------------------------------------------

    def failovers(self) -> list[Json]:
        """Each change of the leader with its phases, oldest first."""
        found: list[Json] = []
        elections = [event for event in self._of(*ELECTIONS) if event["data"]["leader_epoch"] > 0]
        seen: set[int] = set()
        for election in elections:
            epoch = election["data"]["leader_epoch"]
            before = self._leader_before(election)
            if epoch in seen or before == election["data"]["leader"]:
                continue
            seen.add(epoch)
            found.append(self._failover(election, before))
        known = {one["epoch_to"] for one in found}
        found += [one for one in self._seen_failovers() if one["epoch_to"] not in known]
        return sorted(found, key=lambda one: one["phases"][0]["time_ms"])

    def _leader_before(self, election: Event) -> int:
        data = election["data"]
        before = data.get("previous_leader", data.get("last_known_leader", NO_BROKER))
        if before != NO_BROKER:
            return int(before)
        offline = self._last("partition_offline", election["time_ms"])
        return int(offline["data"]["last_leader"]) if offline else NO_BROKER

    def _failover(self, election: Event, before: int) -> Json:
        data, elected_ms = election["data"], election["time_ms"]
        epoch, leader = data["leader_epoch"], data["leader"]
        detected = self._last(
            "brokers_changed", elected_ms, lambda event: before in event["data"]["gone"]
        )
        if detected is not None and self._was_back(before, detected["time_ms"], elected_ms):
            detected = None
        took_over = self._first(
            "role_changed",
            0,
            lambda event: (
                event["broker_id"] == leader
                and event["data"]["leader_epoch"] == epoch
                and event["data"]["role"] == "leads"
            ),
        )
        published = self._first(
            "state_published",
            elected_ms,
            lambda event: event["broker_id"] == election["broker_id"],
            elected_ms + AFTER_MS,
        )
        first_write = self._first(
            "first_write", 0, lambda event: event["data"]["leader_epoch"] == epoch
        )
        back = self._first(
            "brokers_changed", elected_ms, lambda event: before in event["data"]["up"]
        )
        in_sync = self._first(
            "isr_grown", elected_ms, lambda event: before in event["data"]["added"]
        )
        phases = [
            {"name": name, "time_ms": event["time_ms"], "text": event["message"]}
            for name, event in (
                ("detected", detected),
                ("elected", election),
                ("published", published or took_over),
                ("first_write", first_write),
                ("back", back),
                ("in_sync", in_sync),
            )
            if event is not None
        ]
        lost_ms = self._lost_ms(before, epoch, detected or election)
        serving = took_over or published or election
        return {
            "epoch_from": self._epoch_before(epoch),
            "epoch_to": epoch,
            "from": before,
            "to": leader,
            "why": data.get("why", election["message"]),
            "unclean": election["kind"] == "unclean_leader_elected",
            "phases": phases,
            "lost_ms": lost_ms,
            "leaderless_ms": max(0, serving["time_ms"] - lost_ms),
            "no_writes_ms": max(0, first_write["time_ms"] - lost_ms) if first_write else None,
        }

    def _was_back(self, broker: int, gone_ms: int, until_ms: int) -> bool:
        back = self._first(
            "brokers_changed", gone_ms, lambda event: broker in event["data"]["up"], until_ms
        )
        # An election that a returned broker makes possible happens with its return.
        return back is not None and not self._last("partition_offline", until_ms)

    def _epoch_before(self, epoch: int) -> int:
        epochs = [
            timed.frame.leader_epoch
            for timed in self.frames
            if timed.frame.leader_epoch < epoch and timed.frame.leader != NO_BROKER
        ]
        return max(epochs, default=epoch - 1)

    def _lost_ms(self, leader: int, epoch: int, noticed: Event) -> int:
        """When the old leader stopped to serve: as a look saw it, or as the event says."""
        lost_ms = int(noticed["time_ms"])
        served = False
        for timed in self.frames:
            if timed.time_ms > lost_ms:
                break
            if timed.frame.leader_epoch >= epoch:
                break
            serves = any(
                one.broker == leader and one.role == "leader" and one.alive and not one.silent
                for one in timed.frame.replicas
            )
            if served and not serves:
                return timed.time_ms
            served = serves
        return lost_ms

    def _seen_failovers(self) -> Iterable[Json]:
        """Changes of the leader in the frames, for which there are no events."""
        before: TimedFrame | None = None
        lost_ms: int | None = None
        for timed in self.frames:
            leader = timed.frame.leader
            if leader == NO_BROKER:
                lost_ms = timed.time_ms if lost_ms is None else lost_ms
                continue
            if before is not None and leader != before.frame.leader:
                noticed_ms = timed.time_ms if lost_ms is None else lost_ms
                phases = [
                    {"name": name, "time_ms": time_ms, "text": text}
                    for name, time_ms, text in (
                        ("detected", lost_ms, f"broker {before.frame.leader} does not lead"),
                        ("elected", timed.time_ms, f"broker {leader} leads, as a look saw it"),
                    )
                    if time_ms is not None
                ]
                yield {
                    "epoch_from": before.frame.leader_epoch,
                    "epoch_to": timed.frame.leader_epoch,
                    "from": before.frame.leader,
                    "to": leader,
                    "why": "",
                    "unclean": False,
                    "phases": phases,
                    "lost_ms": noticed_ms,
                    "leaderless_ms": timed.time_ms - noticed_ms,
                    "no_writes_ms": None,
                }
            before, lost_ms = timed, None

    # -- truncations -----------------------------------------------------------------------

    def truncations(self) -> list[Json]:
        """What replicas cut off their logs, and why; `from` and `to` are log ends."""
        lost = self._of("records_lost")
        found = []
        for event in self._of("log_truncated"):
            data = event["data"]
            count = max(0, data["before"] - data["end_offset"])
            if not count:
                continue
            same = [
                one
                for one in lost
                if one["broker_id"] == event["broker_id"]
                and one["data"]["leader_epoch"] == data["leader_epoch"]
            ]
            found.append(
                {
                    "broker": event["broker_id"],
                    "from": data["before"],
                    "to": data["end_offset"],
                    "count": count,
                    "epoch": data["last_epoch"],
                    "high_watermark": data["high_watermark"],
                    "committed_lost": sum(one["data"]["count"] for one in same),
                    "why": _why_cut(data, same),
                    "time_ms": event["time_ms"],
                }
            )
        return found

    # -- events ----------------------------------------------------------------------------

    def _is_about(self, event: Event) -> bool:
        data = event["data"]
        if "topic" not in data:
            return True
        return bool(data["topic"] == self.topic and data.get("partition") == self.partition)

    def _of(self, *kinds: str) -> list[Event]:
        found = [event for kind in kinds for event in self._by_kind.get(kind, ())]
        return sorted(found, key=lambda event: event["time_ms"])

    def _first(
        self, kind: str, from_ms: int, fits: Any = None, to_ms: int | None = None
    ) -> Event | None:
        for event in self._of(kind):
            if event["time_ms"] < from_ms or (to_ms is not None and event["time_ms"] > to_ms):
                continue
            if fits is None or fits(event):
                return event
        return None

    def _last(self, kind: str, to_ms: int, fits: Any = None) -> Event | None:
        for event in reversed(self._of(kind)):
            if to_ms - BEFORE_MS <= event["time_ms"] <= to_ms and (fits is None or fits(event)):
                return event
        return None


def event_json(event: BrokerEvent) -> dict[str, Any]:
    """An event as `hightide events -o json` prints it."""
    at = datetime.fromtimestamp(event.time_ms / 1000).astimezone()
    return {
        "time": at.isoformat(timespec="milliseconds"),
        "time_ms": event.time_ms,
        "monotonic_ms": event.monotonic_ms,
        "broker_id": event.broker,
        "start_id": event.start_id,
        "sequence": event.sequence,
        "kind": event.kind,
        "level": event.severity.name,
        "message": event.text,
        "data": dict(event.data),
    }


def state(replica: ReplicaFrame, frame: PartitionFrame) -> str:
    """The state of a replica, as a ribbon shows it."""
    if replica.alive and replica.silent:
        return "silent"
    if replica.eligible:
        return "eligible"
    if not replica.alive:
        return "gone"
    if replica.broker == frame.leader:
        return "leads"
    return "in_sync" if replica.in_sync else "out"


def _append(spans: list[Json], from_ms: int, to_ms: int, state_: str) -> None:
    if spans and spans[-1]["state"] == state_ and spans[-1]["to_ms"] == from_ms:
        spans[-1]["to_ms"] = to_ms
    else:
        spans.append({"from_ms": from_ms, "to_ms": to_ms, "state": state_})


def _with_away(spans: list[Json], away: Sequence[tuple[int, int]]) -> list[Json]:
    """The spans, silent where the cluster was not seen."""
    for away_from_ms, away_to_ms in away:
        cut: list[Json] = []
        for span in spans:
            from_ms, to_ms = span["from_ms"], span["to_ms"]
            hidden_ms = max(from_ms, away_from_ms), min(to_ms, away_to_ms)
            if hidden_ms[0] >= hidden_ms[1]:
                _append(cut, from_ms, to_ms, span["state"])
                continue
            parts = (
                (from_ms, hidden_ms[0], span["state"]),
                (*hidden_ms, "silent"),
                (hidden_ms[1], to_ms, span["state"]),
            )
            for begin_ms, end_ms, state_ in parts:
                if begin_ms < end_ms:
                    _append(cut, begin_ms, end_ms, state_)
        spans = cut
    return spans


def _why_cut(data: Mapping[str, Any], lost: Sequence[Event]) -> str:
    if lost:
        return str(lost[0]["message"])
    leader = f"broker {data['leader']}, the leader in epoch {data['leader_epoch']},"
    if data["is_restart"]:
        return f"Nothing of it is in the log of {leader} so the replica begins again."
    if data["may_be_committed"]:
        return (
            f"Some of it may have been committed: the log of {leader} does not have it, and a"
            " leader was elected that was not known to have all committed records."
        )
    if data["high_watermark"] <= data["end_offset"]:
        return f"Never committed: {leader} is from the ISR, has all that was, and does not have it."
    return f"The log of {leader} does not have it."


def _times(failover: Json) -> list[int]:
    return [phase["time_ms"] for phase in failover["phases"]]


def _is_within(times_ms: Sequence[int], from_ms: int, to_ms: int) -> bool:
    return any(from_ms <= time_ms <= to_ms for time_ms in times_ms)
