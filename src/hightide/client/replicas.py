"""How the replicas of a partition stand, put together from what each broker says of its own.

    Metadata ──────────────────┐
    broker 1: what it holds ───┼──▶ PartitionReplicas: the newest decision, and each replica's
    broker 2: what it holds ───┤    offsets, lag, and in words whether it is in sync or why not
    broker 3: (no answer) ─────┘

Nobody knows it all.  A broker knows its own log; a leader knows how far its followers are and since
when they are behind; and brokers hear of decisions one after the other, so the newest that anybody
has heard of counts.  Other clusters than Hightide's tell only what Metadata has; then the rest is
None.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum

from hightide.client.model import TopicDescription
from hightide.core.partition.follower_progress import Progress, Standing
from hightide.core.partition.state import NOBODY, PartitionState, effective_min_isr
from hightide.wire.types import NO_UUID

Partition = tuple[str, int]


class Role(IntEnum):
    """Numbered as in DescribeReplicas."""

    WAITS = 0
    LEADS = 1
    FOLLOWS = 2


@dataclass(frozen=True, slots=True)
class ReplicaReport:
    """One replica, by the word of the broker that holds it."""

    broker: int
    topic: str
    topic_id: uuid.UUID
    partition: int
    role: Role
    leader_epoch: int
    log_start_offset: int
    high_watermark: int
    end_offset: int
    size_bytes: int
    state: PartitionState | None
    """The decision it acts upon; None if it has heard of none yet."""
    is_waiting: bool = False
    """A follower that was told of a newer leader epoch, and has not heard of it yet."""
    lost_records: int = 0
    """Committed records that a follower truncated because its leader did not have them."""
    is_under_min_isr: bool = False
    maximal_isr: tuple[int, ...] = ()
    progress: Mapping[int, Progress] = field(default_factory=dict)
    """What a leader knows of all replicas."""


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """One replica for people, as far as anybody could tell; None is not known."""

    broker: int
    role: Role | None
    is_in_sync: bool
    is_eligible: bool
    log_start_offset: int | None
    high_watermark: int | None
    end_offset: int | None
    lag_records: int | None
    lag_ms: int | None
    size_bytes: int | None
    lost_records: int | None
    why: str


@dataclass(frozen=True, slots=True)
class PartitionReplicas:
    """A partition: what was decided about it, and what those who hold it say."""

    topic: str
    partition: int
    state: PartitionState
    live: frozenset[int]
    reports: Mapping[int, ReplicaReport] = field(default_factory=dict)
    silent: frozenset[int] = frozenset()
    """Live brokers that were asked and did not answer."""

    @property
    def name(self) -> str:
        return f"{self.topic}/{self.partition}"

    @property
    def leader(self) -> int:
        """Who can be asked as the leader: one that is not alive cannot."""
        return self.state.leader if self.state.leader in self.live else NOBODY

    @property
    def is_offline(self) -> bool:
        return self.leader == NOBODY

    @property
    def missing(self) -> tuple[int, ...]:
        """Replicas out of sync, but for those that a reassignment is still filling."""
        return tuple(each for each in self.state.osr if each not in self.state.adding)

    def is_under_min_isr(self, min_isr: int) -> bool:
        return len(self.state.isr) < effective_min_isr(min_isr, self.state.replicas)

    @property
    def leader_report(self) -> ReplicaReport | None:
        """The word of the leader; what a former one says is about the past."""
        report = self.reports.get(self.leader)
        if report is None or report.role is not Role.LEADS:
            return None
        return report if report.leader_epoch == self.state.leader_epoch else None

    @property
    def losses(self) -> list[ReplicaReport]:
        """The reports of replicas that lost committed records."""
        return [report for report in self.reports.values() if report.lost_records]

    def statuses(self) -> list[ReplicaStatus]:
        """Every assigned replica, in the order of the assignment."""
        return [self._status(each) for each in self.state.replicas]

    def _status(self, broker: int) -> ReplicaStatus:
        report, leader = self.reports.get(broker), self.leader_report
        progress = leader.progress.get(broker) if leader else None
        end_offset = report.end_offset if report else None
        if end_offset is None and progress:
            end_offset = progress.end_offset
        lag_records = progress.lag_records if progress else None
        if lag_records is None and leader and end_offset is not None:
            lag_records = max(0, leader.end_offset - end_offset)
        return ReplicaStatus(
            broker=broker,
            role=report.role if report else None,
            is_in_sync=broker in self.state.isr,
            is_eligible=broker in self.state.elr,
            log_start_offset=report.log_start_offset if report else None,
            high_watermark=report.high_watermark if report else None,
            end_offset=end_offset,
            lag_records=lag_records,
            lag_ms=progress.lag_ms if progress else None,
            size_bytes=report.size_bytes if report else None,
            lost_records=report.lost_records if report else None,
            why=self._why(broker, report, progress.standing if progress else None),
        )

    def _why(self, broker: int, report: ReplicaReport | None, standing: Standing | None) -> str:
        said = [self._standing(broker, standing)]
        if report and report.lost_records:
            said.append(f"LOST {report.lost_records} committed records that its leader lacked")
        if report and report.role is Role.LEADS and broker != self.state.leader:
            said.append(f"believes that it leads, in epoch {report.leader_epoch}")
        if report and report.is_waiting:
            said.append("waits for a newer leader epoch")
        if broker in self.silent:
            said.append("its broker does not answer")
        if broker in self.state.elr:
            said.append("eligible to lead")
        if broker in self.state.adding:
            said.append("being added")
        if broker in self.state.removing:
            said.append("being removed")
        return "; ".join(said)

    def _standing(self, broker: int, standing: Standing | None) -> str:
        """The leader's word where there is one, else what follows from the decision."""
        if broker not in self.live:
            return Standing.NOT_ALIVE.value
        if standing is not None:
            return standing.value
        if broker == self.leader:
            return Standing.LEADER.value
        if broker in self.state.isr:
            return Standing.IN_SYNC.value
        return "out of sync" if self.leader != NOBODY else "nobody leads"


@dataclass(frozen=True, slots=True)
class ReplicasDescription:
    """The partitions that were asked about, and who could not tell of theirs."""

    controller: int
    live: frozenset[int]
    partitions: list[PartitionReplicas]
    silent: Mapping[int, str] = field(default_factory=dict)
    """Live brokers that did not answer, each with a sentence that says why."""
    others: frozenset[int] = frozenset()
    """Brokers that do not know the question: they are not Hightide's."""


def put_together(
    topics: Iterable[TopicDescription],
    reports: Iterable[ReplicaReport],
    *,
    live: Collection[int],
    eligible: Mapping[Partition, tuple[int, ...]],
    silent: Collection[int] = (),
) -> list[PartitionReplicas]:
    """What Metadata and the brokers say, by partition."""
    by_partition: dict[Partition, dict[int, ReplicaReport]] = {}
    for report in reports:
        by_partition.setdefault((report.topic, report.partition), {})[report.broker] = report
    found = []
    for topic in topics:
        for each in topic.partitions:
            key = topic.name, each.partition
            # A broker may not have heard yet that the topic was deleted and made anew.
            said = {
                broker: report
                for broker, report in by_partition.get(key, {}).items()
                if NO_UUID in (topic.topic_id, report.topic_id) or topic.topic_id == report.topic_id
            }
            told = PartitionState(
                replicas=tuple(each.replicas),
                leader=each.leader,
                leader_epoch=each.leader_epoch,
                isr=tuple(each.isr),
                elr=eligible.get(key, ()),
                partition_epoch=-1,
            )
            found.append(
                PartitionReplicas(
                    topic=topic.name,
                    partition=each.partition,
                    state=_newest(told, said.values()),
                    live=frozenset(live),
                    reports=said,
                    silent=frozenset(silent),
                )
            )
    return found


def _newest(told: PartitionState, reports: Iterable[ReplicaReport]) -> PartitionState:
    """The newest decision anybody has heard of.  Metadata's has no partition epoch: of two in the
    same leader epoch, the one that a broker acts upon counts."""
    states = [told, *(each.state for each in reports if each.state is not None)]
    return max(states, key=lambda state: (state.leader_epoch, state.partition_epoch))


def with_moves(
    partitions: Iterable[PartitionReplicas],
    moves: Mapping[Partition, tuple[tuple[int, ...], tuple[int, ...]]],
) -> list[PartitionReplicas]:
    """The partitions with what the controller says is being added and removed."""
    found = []
    for each in partitions:
        adding, removing = moves.get((each.topic, each.partition), ((), ()))
        state = replace(each.state, adding=adding, removing=removing)
        found.append(replace(each, state=state))
    return found
