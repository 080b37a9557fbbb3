"""The assignments, records and commits of a group's members, checked against Kafka's guarantees.

Members note every event when it happens, in threads or in separate processes; they share the
machine's clock.  At the end, `GroupHistory.checked` checks the events, and `check_group_log` checks
the records that the coordinator wrote to `__consumer_offsets`.

    unseen                  a record that was delivered to no member
    gap                     an owner got an offset, but not the one before
    repeat                  an owner got an offset again, or one before
    skip                    an owner began behind every committed offset
    went-back               an owner began before a committed offset
    two-owners              two members got records of one partition in one generation
    overlap                 a member got a partition before another had revoked it
    old-generation          a commit was accepted after a member read in a later generation
    generation-went-back    of a member, or in the log
    commit-went-back        in the log
    shared-twice            a generation in the log gives a partition to two members
    error                   a member got an error that it could not recover from
"""

from __future__ import annotations

import struct
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from hightide.log.dump import DumpedBatch, dump
from hightide.wire.records.consumer_offsets import (
    GroupMetadataKey,
    OffsetCommitKey,
    decode,
)

Partition = tuple[str, int]
UNKNOWN = -1


class Event(NamedTuple):
    at_s: float
    member: str
    kind: str
    """assigned, revoked, lost, delivered, committing, committed, refused, error or ended"""
    generation: int
    """-1 if unknown"""
    offsets: dict[Partition, Any]
    """first and last of delivered records, the offset of a commit, empty for an assignment"""
    begun_s: float = 0.0
    text: str = ""


class Anomaly(NamedTuple):
    kind: str
    partition: Partition | None
    detail: str


class AnomaliesFound(AssertionError):
    """A history that a correct group cannot have."""


@dataclass(slots=True)
class Ownership:
    """The ownership of a partition by a member, from one change to the next."""

    member: str
    partition: Partition
    begun_s: float
    generation: int
    """The generation of the assignment; -1 if unknown."""
    ended_s: float = float("inf")
    end: str = ""
    end_generation: int = UNKNOWN
    reads: list[tuple[int, int]] = field(default_factory=list)
    first_read_s: float = float("inf")


class GroupHistory:
    """Events that many threads note, and one thread checks at the end."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.events: list[Event] = []
        self.is_strict: dict[str, bool] = {}
        """Whether the client reports lost partitions separately from revoked ones."""

    def note(self, event: Event) -> None:
        with self._lock:
            self.events.append(event)

    # -- conditions to wait for ------------------------------------------------------------

    def seen(self, partition: Partition) -> set[int]:
        found: set[int] = set()
        for event in list(self.events):
            if event.kind == "delivered" and partition in event.offsets:
                first, last = event.offsets[partition]
                found.update(range(first, last + 1))
        return found

    def missing(self, ends: Mapping[Partition, int]) -> dict[Partition, list[int]]:
        found = {place: sorted(set(range(end)) - self.seen(place)) for place, end in ends.items()}
        return {place: offsets for place, offsets in found.items() if offsets}

    def owned(self) -> dict[str, set[Partition]]:
        """Return the current assignment of each member, by its own events."""
        found: dict[str, set[Partition]] = {}
        for event in list(self.events):
            mine = found.setdefault(event.member, set())
            if event.kind == "assigned":
                mine.update(event.offsets)
            elif event.kind in ("revoked", "lost"):
                mine.difference_update(event.offsets)
            elif event.kind == "ended":
                found.pop(event.member)
        return found

    def committed(self) -> dict[Partition, int]:
        """Return the highest acknowledged commit of each partition."""
        found: dict[Partition, int] = defaultdict(int)
        for event in list(self.events):
            if event.kind == "committed":
                for place, offset in event.offsets.items():
                    found[place] = max(found[place], offset)
        return dict(found)

    # -- checks ----------------------------------------------------------------------------

    def checked(self, ends: Mapping[Partition, int]) -> None:
        raise_if_any(self.anomalies(ends))

    def anomalies(self, ends: Mapping[Partition, int]) -> list[Anomaly]:
        events = sorted(self.events, key=lambda at_: at_.at_s)
        owned = list(ownerships(events))
        found = [
            Anomaly("unseen", place, f"{len(offsets)} from {offsets[0]} on")
            for place, offsets in self.missing(ends).items()
        ]
        found += [
            Anomaly("error", None, f"{event.member}: {event.text}")
            for event in events
            if event.kind == "error"
        ]
        found += _order(owned)
        found += _beginnings(events, owned)
        found += _two_owners(events)
        found += self._overlaps(owned)
        return found + _old_generations(events)

    def _overlaps(self, owned: list[Ownership]) -> list[Anomaly]:
        found = []
        for one in owned:
            if one.end != "revoked" or not self.is_strict.get(one.member, True):
                continue
            found += [
                Anomaly(
                    "overlap",
                    one.partition,
                    f"{one.member} had it until {one.ended_s:.3f}, {other.member} from "
                    f"{other.begun_s:.3f} on",
                )
                for other in owned
                if other.partition == one.partition
                and other.member != one.member
                and one.begun_s < other.begun_s < one.ended_s
                # The leader of a cooperative group may move a partition between members in one
                # step if the old owner's claim was of an older generation (KIP-792): both learn of
                # it in the same generation, in either order.
                and (other.generation == UNKNOWN or other.generation != one.end_generation)
            ]
        return found


def raise_if_any(found: list[Anomaly]) -> None:
    if found:
        shown = "\n".join(f"  {kind} in {where}: {text}" for kind, where, text in found[:40])
        raise AnomaliesFound(f"{len(found)} anomalies:\n{shown}")


def ownerships(events: Iterable[Event]) -> Iterator[Ownership]:
    open_now: dict[tuple[str, Partition], Ownership] = {}
    for event in events:
        if event.kind == "assigned":
            for place in event.offsets:
                open_now[event.member, place] = Ownership(
                    event.member, place, event.at_s, event.generation
                )
        elif event.kind == "delivered":
            for place, read in event.offsets.items():
                key = event.member, place
                # Records in flight during the revocation count for no member.
                if key in open_now:
                    mine = open_now[key]
                    mine.reads.append(read)
                    mine.first_read_s = min(mine.first_read_s, event.at_s)
        elif event.kind in ("revoked", "lost", "ended"):
            for key in list(open_now):
                if key[0] == event.member and (event.kind == "ended" or key[1] in event.offsets):
                    ended = open_now.pop(key)
                    ended.ended_s, ended.end = event.at_s, event.kind
                    ended.end_generation = event.generation
                    yield ended
    yield from open_now.values()


def _order(owned: Iterable[Ownership]) -> list[Anomaly]:
    found = []
    for partition in owned:
        for (_, before), (after, _) in zip(partition.reads, partition.reads[1:], strict=False):
            if after != before + 1:
                kind = "gap" if after > before + 1 else "repeat"
                text = f"{partition.member} was given {after} after {before}"
                found.append(Anomaly(kind, partition.partition, text))
    return found


def _beginnings(events: list[Event], owned: Iterable[Ownership]) -> list[Anomaly]:
    found = []
    for partition in owned:
        if not partition.reads:
            continue
        first = partition.reads[0][0]
        asked = max(
            (
                event.offsets[partition.partition]
                for event in events
                if event.kind == "committing"
                and partition.partition in event.offsets
                and event.at_s < partition.first_read_s
            ),
            default=0,
        )
        done = max(
            (
                event.offsets[partition.partition]
                for event in events
                if event.kind == "committed"
                and partition.partition in event.offsets
                and event.at_s < partition.begun_s
            ),
            default=0,
        )
        if first > asked:
            text = f"{partition.member} began at {first}, and no member committed more than {asked}"
            found.append(Anomaly("skip", partition.partition, text))
        if first < done:
            text = f"{partition.member} began at {first}, and {done} had been committed"
            found.append(Anomaly("went-back", partition.partition, text))
    return found


def _two_owners(events: Iterable[Event]) -> list[Anomaly]:
    readers: dict[tuple[int, Partition], set[str]] = defaultdict(set)
    last: dict[str, int] = {}
    found = []
    for event in events:
        if event.kind != "delivered" or event.generation == UNKNOWN:
            continue
        for place in event.offsets:
            readers[event.generation, place].add(event.member)
        if event.generation < last.get(event.member, 0):
            text = f"{event.member} was in {last[event.member]} and is in {event.generation}"
            found.append(Anomaly("generation-went-back", None, text))
        last[event.member] = event.generation
    for (generation, place), members in readers.items():
        if len(members) > 1:
            text = f"generation {generation}: {sorted(members)}"
            found.append(Anomaly("two-owners", place, text))
    return found


def _old_generations(events: Iterable[Event]) -> list[Anomaly]:
    found = []
    newest: list[tuple[float, int]] = []
    for event in events:
        if event.kind == "delivered" and event.generation != UNKNOWN:
            newest.append((event.at_s, max(event.generation, newest[-1][1] if newest else 0)))
        if event.kind == "committed" and event.generation != UNKNOWN:
            known = max((gen for at_s, gen in newest if at_s < event.begun_s), default=0)
            if event.generation < known:
                text = f"{event.member} committed in {event.generation}, and {known} was known"
                found.append(Anomaly("old-generation", None, text))
    return found


# -- the log of the coordinator ----------------------------------------------------------------


class Written(NamedTuple):
    """A record of `__consumer_offsets`: its key, and its value or None."""

    key: Any
    value: Any


def written_for(folder: Path, group: str) -> list[Written]:
    """Return the records of a group in a broker's replicas of `__consumer_offsets`, in order."""
    found = []
    for partition in sorted(folder.glob("__consumer_offsets-*")):
        for segment in sorted(partition.glob("*.log")):
            for item in dump(segment):
                assert isinstance(item, DumpedBatch), item
                if item.header.is_control:
                    continue
                for record in item.records():
                    decoded = decode(record.key, record.value)
                    if decoded is not None and decoded.key.group == group:
                        found.append(Written(*decoded))
    return found


def shared_out(assignment: bytes) -> set[Partition]:
    """Return the partitions in an assignment of the consumer protocol."""
    found: set[Partition] = set()
    if not assignment:
        return found
    _, topics = struct.unpack_from(">hi", assignment)
    at = 6
    for _ in range(topics):
        (size,) = struct.unpack_from(">h", assignment, at)
        name = assignment[at + 2 : at + 2 + size].decode()
        at += 2 + size
        (count,) = struct.unpack_from(">i", assignment, at)
        found |= {(name, index) for index in struct.unpack_from(f">{count}i", assignment, at + 4)}
        at += 4 + 4 * count
    return found


def check_group_log(
    records: Iterable[Written], wanted: Iterable[Partition] = (), *, may_go_back: bool = False
) -> int:
    """Raise AnomaliesFound if a generation or offset went back; return the last generation."""
    found = []
    generation, offsets = 0, {}
    for key, value in records:
        if isinstance(key, GroupMetadataKey) and value is not None:
            if value.generation < generation:
                text = f"{generation} is followed by {value.generation}"
                found.append(Anomaly("generation-went-back", None, text))
            generation = value.generation
            found += _shared(value, set(wanted))
        elif isinstance(key, OffsetCommitKey) and value is not None:
            place = key.topic, key.partition
            if value.offset < offsets.get(place, 0) and not may_go_back:
                text = f"{offsets[place]} is followed by {value.offset}"
                found.append(Anomaly("commit-went-back", place, text))
            offsets[place] = value.offset
    raise_if_any(found)
    return generation


def _shared(value: Any, wanted: set[Partition]) -> list[Anomaly]:
    owners: dict[Partition, list[str]] = defaultdict(list)
    for member in value.members:
        for place in shared_out(member.assignment):
            owners[place].append(member.member_id)
    return [
        Anomaly("shared-twice", place, f"generation {value.generation}: {members}")
        for place, members in owners.items()
        if len(members) > 1 or (wanted and place not in wanted)
    ]


def now_s() -> float:
    """Return the machine's clock, which all processes share."""
    return time.monotonic()
