"""What happens at the controller, as events.

    elected ─▶ ControllerElected                       resigned, replaced ─▶ ControllerResigned
    a broker dies ─▶ BrokersChanged ─▶ LeadersElected ─▶ StatePublished ─▶ FirstWrite, at the leader
    PartitionChange, cause ─▶ LeaderElected, PartitionOffline, IsrShrunk, IsrGrown, …

An ISR that its leader proposed has no event here: the leader knows who is late, and by how much.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from hightide.core.controller.cluster_state import Topic
from hightide.core.controller.controller import PartitionChange
from hightide.core.controller.leader_election import RecoveryStrategy
from hightide.core.events import Event, Severity, brokers, partition_name
from hightide.core.partition.isr import IsrGrown, IsrShrunk
from hightide.core.partition.state import NO_BROKER, PartitionState


@dataclass(frozen=True, slots=True)
class ControllerElected(Event):
    """A broker knows of a new controller: itself, or another broker."""

    controller: int
    epoch: int
    is_here: bool
    previous_controller: int
    """The one that this broker knew before; -1 if none."""

    def __str__(self) -> str:
        who = "this broker" if self.is_here else f"broker {self.controller}"
        previous = self.previous_controller
        after = "" if previous == NO_BROKER else f", after broker {previous}"
        return f"{who} is the controller, in epoch {self.epoch}{after}"


@dataclass(frozen=True, slots=True)
class ControllerResigned(Event):
    """This broker was the controller and is not any more."""

    severity: ClassVar[Severity] = Severity.WARNING
    epoch: int
    why: str

    def __str__(self) -> str:
        return f"this broker is no longer the controller, in epoch {self.epoch}: {self.why}"


@dataclass(frozen=True, slots=True)
class BrokersChanged(Event):
    """The controller has seen that brokers are gone, or that they are up: a failover begins."""

    gone: tuple[int, ...]
    up: tuple[int, ...]
    up_epochs: tuple[int, ...]
    """The broker epochs of the brokers that are up."""
    live: tuple[int, ...]

    @property
    def level(self) -> Severity:
        return Severity.WARNING if self.gone else Severity.INFO

    def __str__(self) -> str:
        return f"{self.cause}; live are {brokers(self.live)}"

    @property
    def cause(self) -> str:
        """What has changed, as the cause of what follows."""
        texts = [f"broker {broker} is gone" for broker in self.gone]
        texts += [
            f"broker {broker} is up (broker epoch {epoch})"
            for broker, epoch in zip(self.up, self.up_epochs, strict=True)
        ]
        return ", ".join(texts)


def brokers_found(topics: Iterable[Topic], live: Collection[int]) -> BrokersChanged | None:
    """Return what a new controller finds out at once: brokers are gone that lead or are in sync.

    The controller before did not see it: it was one of them, or it has resigned.
    """
    members = {
        member
        for topic in topics
        for state in topic.partitions.values()
        for member in (state.leader, *state.isr)
    }
    gone = tuple(sorted(members - {NO_BROKER, *live}))
    return BrokersChanged(gone, (), (), tuple(sorted(live))) if gone else None


@dataclass(frozen=True, slots=True)
class LeadersElected(Event):
    """The elections that follow from a cause are written to ZooKeeper."""

    why: str
    new_leaders: int
    without_leader: int
    shrunk_isrs: int
    other_changes: int
    took_ms: int

    def __str__(self) -> str:
        counts = (
            (self.new_leaders, "new leader", "new leaders"),
            (self.without_leader, "partition without a leader", "partitions without a leader"),
            (self.shrunk_isrs, "ISR shrunk", "ISRs shrunk"),
            (self.other_changes, "other change", "other changes"),
        )
        texts = [f"{count} {one if count == 1 else many}" for count, one, many in counts if count]
        return f"{self.why}: {', '.join(texts) or 'no partition changes'} ({self.took_ms} ms)"


def leaders_elected(plan: Iterable[PartitionChange], why: str, took_ms: int) -> LeadersElected:
    """Count what a plan has changed."""
    leaders = leaderless = shrunk = others = 0
    for change in plan:
        before, after = change.before, change.after
        leader = NO_BROKER if before is None else before.leader
        is_shrunk = before is not None and set(after.isr) < set(before.isr)
        shrunk += is_shrunk
        if after.leader != leader:
            leaders += after.leader != NO_BROKER
            leaderless += after.leader == NO_BROKER
        elif not is_shrunk:
            others += 1
    return LeadersElected(why, leaders, leaderless, shrunk, others, took_ms)


@dataclass(frozen=True, slots=True)
class StatePublished(Event):
    """All live brokers have the elections that follow from a cause."""

    why: str
    took_ms: int
    is_complete: bool

    def __str__(self) -> str:
        what = "all live brokers know" if self.is_complete else "not all live brokers know yet"
        return f"{self.why}: {what} ({self.took_ms} ms)"


@dataclass(frozen=True, slots=True)
class TopicCreated(Event):
    """A topic was created."""

    topic: str
    topic_id: str
    partitions: int

    def __str__(self) -> str:
        count = "1 partition" if self.partitions == 1 else f"{self.partitions} partitions"
        return f"created topic {self.topic} with {count}"


@dataclass(frozen=True, slots=True)
class PartitionsAdded(Event):
    """A topic has more partitions."""

    topic: str
    before: int
    partitions: int

    def __str__(self) -> str:
        return f"topic {self.topic} now has {self.partitions} partitions"


@dataclass(frozen=True, slots=True)
class TopicDeleted(Event):
    """A topic was deleted."""

    topic: str

    def __str__(self) -> str:
        return f"topic {self.topic} is deleted"


@dataclass(frozen=True, slots=True)
class LeaderElected(Event):
    """A replica leads a partition that another one led, or none."""

    topic: str
    partition: int
    leader: int
    previous_leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    why: str

    @property
    def level(self) -> Severity:
        """The first leader of a new partition is nothing to read about."""
        return Severity.DEBUG if self.leader_epoch == 0 else Severity.INFO

    def __str__(self) -> str:
        before = "" if self.previous_leader == NO_BROKER else f" after {self.previous_leader}"
        return (
            f"{partition_name(self.topic, self.partition)}: broker {self.leader} leads{before} in"
            f" leader epoch {self.leader_epoch}, in sync: {brokers(self.isr)}: {self.why}"
        )


@dataclass(frozen=True, slots=True)
class UncleanLeaderElected(Event):
    """A leader was elected that may lack committed records."""

    severity: ClassVar[Severity] = Severity.ERROR
    topic: str
    partition: int
    leader: int
    leader_epoch: int
    elr: tuple[int, ...]
    last_known_elr: tuple[int, ...]
    last_known_leader: int

    def __str__(self) -> str:
        return (
            f"UNCLEAN ELECTION: broker {self.leader} leads"
            f" {partition_name(self.topic, self.partition)} in leader epoch {self.leader_epoch} and"
            f" may lack committed records; the ELR was {list(self.elr)}, the last known ELR"
            f" {list(self.last_known_elr)}, the last leader {self.last_known_leader}"
        )


@dataclass(frozen=True, slots=True)
class PartitionRecovered(Event):
    """All members of the last ISR answered, and the one with the longest log leads."""

    severity: ClassVar[Severity] = Severity.WARNING
    topic: str
    partition: int
    leader: int
    leader_epoch: int
    last_known_elr: tuple[int, ...]

    def __str__(self) -> str:
        return (
            f"{partition_name(self.topic, self.partition)} is recovered: all members of its last"
            f" ISR and ELR, {list(self.last_known_elr)}, may have lost records; broker"
            f" {self.leader} leads in leader epoch {self.leader_epoch}, because its log is the"
            " longest"
        )


@dataclass(frozen=True, slots=True)
class PartitionOffline(Event):
    """A partition has no leader any more."""

    severity: ClassVar[Severity] = Severity.ERROR
    topic: str
    partition: int
    last_leader: int
    elr: tuple[int, ...]
    """These can lead when their brokers are back."""
    why: str

    def __str__(self) -> str:
        hope = f"; {brokers(self.elr)} can lead again" if self.elr else ""
        return (
            f"{partition_name(self.topic, self.partition)} has no leader, the last was broker"
            f" {self.last_leader}: {self.why}{hope}"
        )


@dataclass(frozen=True, slots=True)
class ReplicasReassigned(Event):
    """A reassignment has begun, or it has ended."""

    topic: str
    partition: int
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]

    def __str__(self) -> str:
        name = partition_name(self.topic, self.partition)
        if not self.adding and not self.removing:
            return f"{name}: its replicas are on {brokers(self.replicas)} now"
        return f"{name}: replicas move to {brokers(self.adding)} from {brokers(self.removing)}"


def events_of(
    change: PartitionChange, why: str, strategy: RecoveryStrategy, *, is_proposed: bool = False
) -> Iterator[Event]:
    """Return what a written change means; `is_proposed`: its leader asked for this ISR."""
    before, after = change.before, change.after
    where = (change.topic, change.index)
    if before is None:
        yield LeaderElected(*where, after.leader, NO_BROKER, after.leader_epoch, after.isr, why)
        return
    # With a single replica there is no other candidate, so this is no unclean election.
    if after.recovery_epoch > before.recovery_epoch and len(after.replicas) > 1:
        yield _recovery(change.topic, change.index, before, after, strategy)
    elif after.leader == NO_BROKER != before.leader:
        yield PartitionOffline(*where, before.leader, after.elr, why)
    if after.leader not in (before.leader, NO_BROKER):
        last = before.leader if before.leader != NO_BROKER else before.last_known_leader
        yield LeaderElected(*where, after.leader, last, after.leader_epoch, after.isr, why)
    if not is_proposed:
        removed = tuple(member for member in before.isr if member not in after.isr)
        added = tuple(member for member in after.isr if member not in before.isr)
        if removed:
            yield IsrShrunk(*where, removed, after.isr, after.leader, why)
        if added and before.isr:
            yield IsrGrown(*where, added, after.isr, after.leader, why)
    if change.changes_assignment:
        yield ReplicasReassigned(*where, after.replicas, after.adding, after.removing)


def _recovery(
    topic: str,
    index: int,
    before: PartitionState,
    after: PartitionState,
    strategy: RecoveryStrategy,
) -> Event:
    leader, epoch, members = after.leader, after.leader_epoch, before.last_known_elr
    if strategy is RecoveryStrategy.BALANCED and leader in members:
        return PartitionRecovered(topic, index, leader, epoch, members)
    return UncleanLeaderElected(
        topic, index, leader, epoch, before.elr, members, before.last_known_leader
    )
