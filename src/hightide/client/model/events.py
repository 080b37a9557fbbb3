"""Events of a cluster's brokers: what they are, which are wanted, and what was found."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hightide.core.events import Severity


@dataclass(frozen=True, slots=True)
class BrokerEvent:
    """Something that has happened on a broker."""

    time_ms: int
    """The time of day, by the broker's clock."""
    monotonic_ms: int
    """A clock of the broker's machine that is never set, for durations."""
    broker: int
    start_id: str
    """Names the start of the broker."""
    sequence: int
    """Counts the events since that start, from 1."""
    kind: str
    severity: Severity
    text: str
    data: Mapping[str, Any]
    """The facts of this kind."""

    @property
    def order(self) -> tuple[int, int, int]:
        """Events of different brokers are in the order of the time of day."""
        return self.time_ms, self.broker, self.sequence


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Which events are wanted; what is empty stands for all."""

    brokers: Collection[int] = ()
    kinds: Sequence[str] = ()
    topics: Sequence[tuple[str, int | None]] = ()
    """Topics, with a partition or with None for all of them."""
    severity: Severity = Severity.DEBUG
    """The least severity."""


@dataclass(slots=True)
class FoundEvents:
    """The events that brokers returned, and what is missing."""

    events: list[BrokerEvent] = field(default_factory=list)
    """In the order of time."""
    answered: set[int] = field(default_factory=set)
    silent: dict[int, str] = field(default_factory=dict)
    """Brokers that did not answer, or that are gone, and why."""
    foreign: set[int] = field(default_factory=set)
    """Brokers that keep no events: they are not Hightide's."""
    restarted: set[int] = field(default_factory=set)
    """Brokers that have restarted since the request before."""
    missed: set[int] = field(default_factory=set)
    """Brokers that dropped events before they were asked for them."""
