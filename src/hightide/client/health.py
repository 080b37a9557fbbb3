"""What is wrong with a cluster, one plain sentence each, the worst first.

A partition is named once, for the worst that is wrong with it; a replica that lost committed
records is named besides.  A partition that is being moved is not unhealthy: the
replicas that the move adds are not missed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from hightide.client.replicas import PartitionReplicas, ReplicasDescription
from hightide.core.partition.state import NOBODY


class Trouble(Enum):
    """Kinds of problems, the worst first."""

    NO_CONTROLLER = "no controller"
    OFFLINE = "offline"
    LOST_RECORDS = "lost records"
    UNDER_MIN_ISR = "under min ISR"
    BROKER_NOT_ALIVE = "broker not alive"
    BROKER_SILENT = "broker silent"
    UNDER_REPLICATED = "under-replicated"


@dataclass(frozen=True, slots=True)
class Problem:
    kind: Trouble
    sentence: str
    topic: str | None = None
    partition: int | None = None
    broker: int | None = None


def problems(found: ReplicasDescription, min_isr: Mapping[str, int]) -> list[Problem]:
    """Everything that is wrong; `min_isr` is what each topic needs in sync."""
    listed = [*_of_the_cluster(found)]
    for each in found.partitions:
        listed += _of_partition(each, min_isr.get(each.topic, 1))
    order = {kind: nth for nth, kind in enumerate(Trouble)}
    return sorted(listed, key=lambda problem: order[problem.kind])


def _of_the_cluster(found: ReplicasDescription) -> Iterator[Problem]:
    if found.controller not in found.live:
        yield Problem(
            Trouble.NO_CONTROLLER,
            "The cluster has no controller: no leader is elected and no topic is made now.",
        )
    assigned = Counter(
        broker for partition in found.partitions for broker in partition.state.replicas
    )
    for broker in sorted(assigned.keys() - found.live):
        yield Problem(
            Trouble.BROKER_NOT_ALIVE,
            f"Broker {broker} is not alive, and holds {counted(assigned[broker], 'replica')}.",
            broker=broker,
        )
    for broker, why in sorted(found.silent.items()):
        yield Problem(
            Trouble.BROKER_SILENT,
            f"Broker {broker} is registered, but cannot be asked. {why}",
            broker=broker,
        )


def _of_partition(each: PartitionReplicas, min_isr: int) -> Iterator[Problem]:
    state = each.state
    worst = None
    if each.is_offline:
        worst = Trouble.OFFLINE, f"{each.name} is offline: nobody leads it. {_hope(each)}"
    elif each.is_under_min_isr(min_isr):
        worst = (
            Trouble.UNDER_MIN_ISR,
            (
                f"{each.name} has {counted(len(state.isr), 'replica')} in sync and needs"
                f" {min(min_isr, len(state.replicas))}: writes with acks=all are refused."
            ),
        )
    elif each.missing:
        worst = (
            Trouble.UNDER_REPLICATED,
            (f"{each.name} is under-replicated: {'; '.join(_missing(each))}."),
        )
    if worst is not None:
        yield Problem(*worst, topic=each.topic, partition=each.partition)
    for report in each.losses:
        yield Problem(
            Trouble.LOST_RECORDS,
            f"Replica {report.broker} of {each.name} lost {report.lost_records} committed records"
            " that its leader did not have; the log of the broker names the offsets.",
            each.topic,
            each.partition,
            report.broker,
        )


def _hope(each: PartitionReplicas) -> str:
    """Who brings an offline partition back."""
    state = each.state
    whole = state.isr or state.elr
    if not whole and state.last_known_leader != NOBODY:
        whole = (state.last_known_leader,)
    if not whole:
        return "No replica is known to have all of it; an unclean election can take one."
    waiting = f"broker {whole[0]}" if len(whole) == 1 else f"one of brokers {listed(whole)}"
    return f"It waits for {waiting}."


def _missing(each: PartitionReplicas) -> Iterator[str]:
    for status in each.statuses():
        if status.broker in each.missing:
            yield f"replica {status.broker}: {status.why}"


def listed(brokers: Iterable[int]) -> str:
    return ",".join(map(str, brokers))


def counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
