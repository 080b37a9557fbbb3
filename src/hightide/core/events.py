"""Events: what has happened on a broker, as data.

An event is declared next to the machine that causes it, as a frozen dataclass: its fields are the
facts, and `str(event)` is the sentence that people read.  The broker keeps the newest events of
each kind (`EventRing`) and gives each a sequence number and two times: the time of day, and a
monotonic time for durations.

    machine ─▶ event ─▶ ring ─▶ DescribeEvents ─▶ `hightide events`
                    └─▶ log: the sentence, or JSON with all fields
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, fields
from enum import Enum
from heapq import merge
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple


class Severity(Enum):
    """How much attention an event needs; the values are the names of log levels."""

    DEBUG = "debug"
    """Too frequent for the log: it is in the ring only."""
    INFO = "info"
    WARNING = "warning"
    """Something works with less safety than it should."""
    ERROR = "error"
    """Something does not work, or records are lost."""


SEVERITIES = tuple(Severity)
"""From the least to the most; DescribeEvents has their indexes."""

KINDS: dict[str, type[Event]] = {}
"""All kinds of events whose modules are imported, by name."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that has happened.  Subclasses add fields and the sentence.

    The name of a kind is the name of its class in lower case: `LeaderElected`, `leader_elected`.
    """

    kind: ClassVar[str]
    severity: ClassVar[Severity] = Severity.INFO

    def __init_subclass__(cls) -> None:
        cls.kind = re.sub("(?<=.)(?=[A-Z])", "_", cls.__name__).lower()
        KINDS[cls.kind] = cls

    def __str__(self) -> str:
        """Return the sentence."""
        raise NotImplementedError

    @property
    def level(self) -> Severity:
        """The severity of this event; a kind may decide by its fields."""
        return self.severity

    @property
    def place(self) -> tuple[str | None, int | None]:
        """The topic, and the partition, that this event is about."""
        return getattr(self, "topic", None), getattr(self, "partition", None)

    def data(self) -> dict[str, Any]:
        """Return the fields, as JSON values."""
        return {part.name: _plain(getattr(self, part.name)) for part in fields(self)}


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.name.lower()
    return list(value) if isinstance(value, tuple | frozenset) else value


def partition_name(topic: str, partition: int) -> str:
    return f"{topic}/{partition}"


def brokers(ids: Iterable[int]) -> str:
    """Name brokers in a sentence: "broker 2", "brokers 1 and 3", "no broker"."""
    names = [str(broker_id) for broker_id in ids]
    if len(names) <= 1:
        return f"broker {names[0]}" if names else "no broker"
    return f"brokers {', '.join(names[:-1])} and {names[-1]}"


class Recorded(NamedTuple):
    """An event that has been recorded."""

    sequence: int
    """Counts the events of one broker process, from 1."""
    time_ms: int
    """The time of day."""
    monotonic_ms: int
    event: Event


class EventRing:
    """The newest events of each kind.

    Each kind has a ring of its own, so that thousands of role changes do not push out the one
    change of the controller that explains them.
    """

    def __init__(self, kept_per_kind: int) -> None:
        self._kept = kept_per_kind
        self._rings: dict[str, deque[Recorded]] = {}
        self.counts: Counter[str] = Counter()
        """How many events of each kind have been recorded, kept or not."""
        self.last_sequence = 0
        self._dropped: dict[str, int] = {}

    def add(self, event: Event, time_ms: int, monotonic_ms: int) -> Recorded:
        self.last_sequence += 1
        self.counts[event.kind] += 1
        recorded = Recorded(self.last_sequence, time_ms, monotonic_ms, event)
        ring = self._rings.get(event.kind)
        if ring is None:
            ring = self._rings[event.kind] = deque()
        ring.append(recorded)
        if len(ring) > self._kept:
            self._dropped[event.kind] = ring.popleft().sequence
        return recorded

    def dropped_sequence(self, kinds: Collection[str] = ()) -> int:
        """Return the newest event, of these kinds or of all, that is not kept any more."""
        return max((self._dropped.get(kind, 0) for kind in kinds or self._dropped), default=0)

    def after(self, sequence: int, kinds: Collection[str] = ()) -> Iterator[Recorded]:
        """Return what is kept after a sequence number, of these kinds or of all, oldest first.

        The iterator has a copy: the ring may change meanwhile.
        """
        rings = ([*ring] for ring in self._of(kinds))
        return merge(*(ring[bisect_right(ring, sequence, key=_sequence) :] for ring in rings))

    def newest(self, kinds: Collection[str] = ()) -> Iterator[Recorded]:
        """Return what is kept, of these kinds or of all, newest first; also from a copy."""
        return merge(*([*ring][::-1] for ring in self._of(kinds)), reverse=True)

    def _of(self, kinds: Collection[str]) -> list[deque[Recorded]]:
        return [ring for kind, ring in self._rings.items() if not kinds or kind in kinds]


_sequence = attrgetter("sequence")
