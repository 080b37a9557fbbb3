"""What is wrong with a cluster: one sentence per problem, the worst first.

Among problems of a kind, those of users' topics come before those of internal topics.
A partition is listed once, with its worst problem.  A replica that lost committed records, or that
its broker cannot serve because of its disk, is listed in addition.  A partition that is being
reassigned is healthy: the replicas that the reassignment adds do not count as missing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from hightide.client.model.replicas import PartitionReplicas, ReplicasDescription
from hightide.core.partition.state import NO_BROKER


class ProblemKind(Enum):
    """Kinds of problems, the worst first."""

    NO_CONTROLLER = "no controller"
    OFFLINE = "offline"
    LOST_RECORDS = "lost records"
    UNDER_MIN_ISR = "under min ISR"
    REPLICA_FAILED = "failed"
    BROKER_NOT_ALIVE = "broker not alive"
    BROKER_SILENT = "broker silent"
    UNDER_REPLICATED = "under-replicated"


@dataclass(frozen=True, slots=True)
class Problem:
    kind: ProblemKind
    topic: str | None
    partition: int | None
    broker: int | None
    problem: str
    """What is wrong, as a sentence."""


def problems(cluster: ReplicasDescription, min_isr: Mapping[str, int]) -> list[Problem]:
    """All problems; `min_isr` is min.insync.replicas by topic."""
    found = [*_cluster_problems(cluster)]
    for partition in users_first(cluster.partitions):
        found += _partition_problems(partition, min_isr.get(partition.topic, 1))
    order = {kind: nth for nth, kind in enumerate(ProblemKind)}
    return sorted(found, key=lambda problem: order[problem.kind])


def users_first(partitions: Iterable[PartitionReplicas]) -> list[PartitionReplicas]:
    return sorted(partitions, key=lambda partition: partition.is_internal)


def _cluster_problems(cluster: ReplicasDescription) -> Iterator[Problem]:
    if cluster.controller not in cluster.live:
        sentence = "The cluster has no controller: no leader can be elected and no topic created."
        yield Problem(ProblemKind.NO_CONTROLLER, None, None, None, sentence)
    assigned = Counter(
        broker for partition in cluster.partitions for broker in partition.state.replicas
    )
    for broker in sorted(assigned.keys() - cluster.live):
        sentence = f"Broker {broker} is not alive and holds {counted(assigned[broker], 'replica')}."
        yield Problem(ProblemKind.BROKER_NOT_ALIVE, None, None, broker, sentence)
    for broker, why in sorted(cluster.silent.items()):
        sentence = f"Broker {broker} is registered but does not answer. {why}"
        yield Problem(ProblemKind.BROKER_SILENT, None, None, broker, sentence)


def _partition_problems(partition: PartitionReplicas, min_isr: int) -> Iterator[Problem]:
    state = partition.state
    worst = None
    if partition.is_offline:
        worst = (
            ProblemKind.OFFLINE,
            f"{partition.name} is offline: it has no leader. {_remedy(partition)}",
        )
    elif partition.is_under_min_isr(min_isr):
        worst = (
            ProblemKind.UNDER_MIN_ISR,
            (
                f"{partition.name} has {counted(len(state.isr), 'replica')} in sync and needs"
                f" {min(min_isr, len(state.replicas))}: writes with acks=all are refused."
            ),
        )
    elif partition.missing:
        worst = (
            ProblemKind.UNDER_REPLICATED,
            f"{partition.name} is under-replicated: {'; '.join(_missing(partition))}.",
        )
    if worst is not None:
        kind, sentence = worst
        yield Problem(kind, partition.topic, partition.partition, None, sentence)
    for report in partition.failures:
        sentence = f"Replica {report.broker} of {partition.name} is {report.failure}."
        yield Problem(
            ProblemKind.REPLICA_FAILED,
            partition.topic,
            partition.partition,
            report.broker,
            sentence,
        )
    for report in partition.losses:
        sentence = (
            f"Replica {report.broker} of {partition.name} lost {report.lost_records} committed"
            " records that its leader did not have; the log of the broker names the offsets."
        )
        yield Problem(
            ProblemKind.LOST_RECORDS,
            partition.topic,
            partition.partition,
            report.broker,
            sentence,
        )


def awaited(partition: PartitionReplicas) -> tuple[int, ...]:
    """The brokers that an offline partition waits for: one of them, or the logs of all."""
    state = partition.state
    found = state.isr or state.elr or state.last_known_elr
    if not found and state.last_known_leader != NO_BROKER:
        found = (state.last_known_leader,)
    return found


def _remedy(partition: PartitionReplicas) -> str:
    """Which broker brings an offline partition back."""
    state, whole = partition.state, awaited(partition)
    if not (state.isr or state.elr) and state.last_known_elr:
        return (
            f"It waits for the logs of brokers {listed(whole)}, of which the longest is elected;"
            " an unclean election does not wait."
        )
    if not whole:
        return "No replica is known to have all records; an unclean election can choose one."
    waiting = f"broker {whole[0]}" if len(whole) == 1 else f"one of brokers {listed(whole)}"
    return f"It waits for {waiting}."


def _missing(partition: PartitionReplicas) -> Iterator[str]:
    for status in partition.statuses():
        if status.replica in partition.missing:
            yield f"replica {status.replica}: {status.why}"


def listed(brokers: Iterable[int]) -> str:
    return ",".join(map(str, brokers))


def counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
