"""The state of a partition's replicas, combined from the reports of all brokers.

    Metadata ───────────────────┐
    broker 1: its replicas ─────┼──▶ PartitionReplicas: the newest partition state, and for each
    broker 2: its replicas ─────┤    replica its offsets, lag, and why it is or is not in sync
    broker 3: (no answer) ──────┘

No broker knows everything.  A broker knows its own log.  A leader knows how far its followers are
and since when they are behind.  Brokers learn of a new partition state one after the other, so the
newest state in any report counts.  Clusters other than Hightide's report only what Metadata has;
then the rest is None.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum

from hightide.client.model.cluster import Partition, TopicDescription
from hightide.core.partition.follower_progress import Progress, Standing
from hightide.core.partition.state import NO_BROKER, PartitionState, effective_min_isr
from hightide.wire.types import NO_UUID


class Role(IntEnum):
    """What a replica does, numbered as in DescribeReplicas."""

    WAITING = 0
    LEADER = 1
    FOLLOWER = 2


@dataclass(frozen=True, slots=True)
class Reassignment:
    """A reassignment in progress: all replicas for now, those it adds, and those it removes."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]

    @property
    def target(self) -> tuple[int, ...]:
        return tuple(broker for broker in self.replicas if broker not in self.removing)


NO_REASSIGNMENT = Reassignment((), (), ())


@dataclass(frozen=True, slots=True)
class ReplicaReport:
    """One replica, as reported by the broker that holds it."""

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
    """The partition state that the broker acts upon; None if it has not received one yet."""
    is_waiting: bool = False
    """Whether a follower saw a newer leader epoch in a response, and waits for the state to it."""
    lost_records: int = 0
    """Committed records that a follower truncated because its leader did not have them."""
    failure: str = ""
    """Why its broker cannot serve the replica, because of its disk for example."""
    last_epoch: int = -1
    """The newest leader epoch in its log."""
    last_stable_offset: int | None = None
    """Up to where consumers of committed transactions read."""
    is_under_min_isr: bool = False
    maximal_isr: tuple[int, ...] = ()
    progress: Mapping[int, Progress] = field(default_factory=dict)
    """The progress of all replicas, as the leader sees it."""


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """One replica, as `hightide partition show` prints it; None means unknown."""

    replica: int
    role: Role | None
    in_sync: bool
    eligible: bool
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
    """A partition: its newest state, and the reports of the brokers that hold it."""

    topic: str
    partition: int
    state: PartitionState
    live: frozenset[int]
    reports: Mapping[int, ReplicaReport] = field(default_factory=dict)
    silent: frozenset[int] = frozenset()
    """Live brokers that did not answer."""
    is_internal: bool = False
    """Whether the topic is one of the brokers' own, such as __consumer_offsets."""

    @property
    def name(self) -> str:
        return f"{self.topic}/{self.partition}"

    @property
    def leader(self) -> int:
        """The leader if its broker is alive."""
        return self.state.leader if self.state.leader in self.live else NO_BROKER

    @property
    def is_offline(self) -> bool:
        return self.leader == NO_BROKER

    @property
    def missing(self) -> tuple[int, ...]:
        """Replicas out of sync, except those that a reassignment is adding."""
        return tuple(broker for broker in self.state.osr if broker not in self.state.adding)

    def is_under_min_isr(self, min_isr: int) -> bool:
        return len(self.state.isr) < effective_min_isr(min_isr, self.state.replicas)

    @property
    def leader_report(self) -> ReplicaReport | None:
        """The report of the current leader; that of a former leader is out of date."""
        report = self.reports.get(self.leader)
        if report is None or report.role is not Role.LEADER:
            return None
        return report if report.leader_epoch == self.state.leader_epoch else None

    @property
    def losses(self) -> list[ReplicaReport]:
        """The reports of replicas that lost committed records."""
        return [report for report in self.reports.values() if report.lost_records]

    @property
    def failures(self) -> list[ReplicaReport]:
        """The reports of replicas that their brokers cannot serve."""
        return [report for report in self.reports.values() if report.failure]

    def statuses(self) -> list[ReplicaStatus]:
        """Every assigned replica, in the order of the assignment."""
        return [self._status(broker) for broker in self.state.replicas]

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
            replica=broker,
            role=report.role if report else None,
            in_sync=broker in self.state.isr,
            eligible=broker in self.state.elr,
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
        reasons = [self._standing(broker, standing)]
        if report and report.failure:
            reasons.append(report.failure)
        if report and report.lost_records:
            reasons.append(f"LOST {report.lost_records} committed records that its leader lacked")
        if report and report.role is Role.LEADER and broker != self.state.leader:
            reasons.append(f"still acts as leader of epoch {report.leader_epoch}")
        if report and report.is_waiting:
            reasons.append("waits for a newer leader epoch")
        if broker in self.silent:
            reasons.append("its broker does not answer")
        if broker in self.state.elr:
            reasons.append("eligible to lead")
        if broker in self.state.adding:
            reasons.append("being added")
        if broker in self.state.removing:
            reasons.append("being removed")
        return "; ".join(reasons)

    def _standing(self, broker: int, standing: Standing | None) -> str:
        """What the leader reports, else what follows from the partition state."""
        if broker not in self.live:
            return Standing.NOT_ALIVE.value
        if standing is not None:
            return standing.value
        if broker == self.leader:
            return Standing.LEADER.value
        if broker in self.state.isr:
            return Standing.IN_SYNC.value
        return "out of sync" if self.leader != NO_BROKER else "no leader"


@dataclass(frozen=True, slots=True)
class ReplicasDescription:
    """The partitions that were asked about, and the brokers that did not report."""

    controller: int
    live: frozenset[int]
    partitions: list[PartitionReplicas]
    silent: Mapping[int, str] = field(default_factory=dict)
    """Live brokers that did not answer, each with the reason as a sentence."""
    others: frozenset[int] = frozenset()
    """Brokers that do not know DescribeReplicas: they are not Hightide's."""
    addresses: Mapping[int, str] = field(default_factory=dict)
    """Where live brokers listen, and where those listened that a live broker saw leave."""
    last_seen_ms: Mapping[int, int] = field(default_factory=dict)
    """When brokers that are not alive were last seen, as far as a live broker remembers."""


def combine_reports(
    topics: Iterable[TopicDescription],
    reports: Iterable[ReplicaReport],
    *,
    live: Collection[int],
    eligible: Mapping[Partition, tuple[int, ...]],
    silent: Collection[int] = (),
) -> list[PartitionReplicas]:
    """Combine Metadata and the brokers' reports by partition."""
    by_partition: dict[Partition, dict[int, ReplicaReport]] = {}
    for report in reports:
        by_partition.setdefault((report.topic, report.partition), {})[report.broker] = report
    found = []
    for topic in topics:
        for partition in topic.partitions:
            key = topic.name, partition.partition
            # A broker may not know yet that the topic was deleted and created again.
            current = {
                broker: report
                for broker, report in by_partition.get(key, {}).items()
                if NO_UUID in (topic.topic_id, report.topic_id) or topic.topic_id == report.topic_id
            }
            from_metadata = PartitionState(
                replicas=tuple(partition.replicas),
                leader=partition.leader,
                leader_epoch=partition.leader_epoch,
                isr=tuple(partition.isr),
                elr=eligible.get(key, ()),
                partition_epoch=-1,
            )
            found.append(
                PartitionReplicas(
                    topic=topic.name,
                    partition=partition.partition,
                    state=_newest(from_metadata, current.values()),
                    live=frozenset(live),
                    reports=current,
                    silent=frozenset(silent),
                    is_internal=topic.internal,
                )
            )
    return found


def _newest(from_metadata: PartitionState, reports: Iterable[ReplicaReport]) -> PartitionState:
    """The newest partition state of Metadata and all reports.

    Metadata has no partition epoch: within a leader epoch, a state that a broker reports counts.
    """
    states = [from_metadata, *(report.state for report in reports if report.state is not None)]
    return max(states, key=lambda state: (state.leader_epoch, state.partition_epoch))


def with_reassignments(
    partitions: Iterable[PartitionReplicas],
    reassignments: Mapping[Partition, Reassignment],
) -> list[PartitionReplicas]:
    """The partitions with the replicas that the controller is adding and removing."""
    found = []
    for partition in partitions:
        move = reassignments.get((partition.topic, partition.partition), NO_REASSIGNMENT)
        state = replace(partition.state, adding=move.adding, removing=move.removing)
        found.append(replace(partition, state=state))
    return found
