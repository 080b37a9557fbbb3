"""The in-sync replicas (ISR): which followers the leader proposes to add, and which to remove.

    fetched ─▶ may_join ───────┐
                               ├─▶ Proposal ─▶ the controller decides (AlterPartition)
    tick ────▶ not caught up ──┘

**A follower joins only if it cannot lack a committed record.**  A new leader's high watermark is
normally stale, but every committed record lies below the end that the leader's log had when the
leader epoch began: the epoch start offset.  A follower joins when it has reached both offsets, by a
fetch of its present broker epoch in this leader epoch, and its broker is alive and not shutting
down.  It joins only at the moment of a fetch: a follower that merely stood at the right offset once
would join and leave for ever.  It must also have deleted the records before the leader's log start:
these could not be compared, and may never have been committed.

**A slow member leaves.**  The leader proposes to remove a member that has not been caught up for
`replica.lag.time.max.ms` (`follower_progress.py`).  The time counts from when the replica became a
member.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import ClassVar

from hightide.core.events import Event, Severity, brokers, partition_name
from hightide.core.partition.follower_progress import Progress, RemoteReplica


@dataclass(frozen=True, slots=True)
class Proposal:
    """The ISR that the leader asks the controller for."""

    isr: tuple[int, ...]
    """In the order of the assignment."""
    broker_epochs: dict[int, int]
    """The broker epoch of each member's fetches; -1 for a member that has not fetched, which then
    is a present member, not a new one."""
    leader_epoch: int
    partition_epoch: int
    """The decision it builds upon; any newer one voids the proposal."""


@dataclass(frozen=True, slots=True)
class IsrShrunk(Event):
    """Replicas have left the ISR."""

    severity: ClassVar[Severity] = Severity.WARNING
    topic: str
    partition: int
    removed: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    why: str

    def __str__(self) -> str:
        name = partition_name(self.topic, self.partition)
        verb = "leaves" if len(self.removed) == 1 else "leave"
        left = f"which leaves {brokers(self.isr)}" if self.isr else "which is empty now"
        return f"{name}: {brokers(self.removed)} {verb} the ISR, {left}: {self.why}"


@dataclass(frozen=True, slots=True)
class IsrGrown(Event):
    """Replicas have joined the ISR."""

    topic: str
    partition: int
    added: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    why: str

    def __str__(self) -> str:
        name = partition_name(self.topic, self.partition)
        verb = "joins" if len(self.added) == 1 else "join"
        return f"{name}: {brokers(self.added)} {verb} the ISR, now {brokers(self.isr)}: {self.why}"


def isr_event(
    topic: str,
    partition: int,
    before: tuple[int, ...],
    after: tuple[int, ...],
    leader: int,
    progress: Mapping[int, Progress],
) -> Event | None:
    """Return the event of an ISR that its leader proposed."""
    removed = tuple(member for member in before if member not in after)
    added = tuple(member for member in after if member not in before)
    if removed:
        why = "; ".join(f"replica {member} {progress[member].lag}" for member in removed)
        return IsrShrunk(topic, partition, removed, after, leader, why)
    return IsrGrown(topic, partition, added, after, leader, "caught up") if added else None


class IsrRules:
    """The rules for members of the ISR, by the live brokers and `replica.lag.time.max.ms`."""

    __slots__ = ("lag_ms", "live", "shutting_down")

    def __init__(self, live: Mapping[int, int], shutting_down: Set[int], lag_ms: int) -> None:
        self.lag_ms = lag_ms
        self.brokers_changed(live, shutting_down)

    def brokers_changed(self, live: Mapping[int, int], shutting_down: Set[int]) -> None:
        """Take the broker epochs of the live brokers, and the ids of those shutting down."""
        self.live = dict(live)
        self.shutting_down = frozenset(shutting_down)

    def is_caught_up(self, follower: RemoteReplica, leader_end_offset: int, now_ms: int) -> bool:
        """Return whether the follower may stay, or become, a member as far as time goes."""
        return follower.is_caught_up(leader_end_offset, now_ms, self.lag_ms)

    def is_eligible(self, follower: RemoteReplica) -> bool:
        """Return whether the controller would accept the follower as a new member."""
        return (
            self.live.get(follower.id) == follower.broker_epoch
            and follower.id not in self.shutting_down
        )

    def may_join(
        self, follower: RemoteReplica, high_watermark: int, epoch_start_offset: int
    ) -> bool:
        """Return whether the follower has every committed record and is eligible."""
        return (
            follower.end_offset >= high_watermark
            and follower.end_offset >= epoch_start_offset
            and follower.log_start_offset >= follower.compared_from_offset
            and self.is_eligible(follower)
        )
