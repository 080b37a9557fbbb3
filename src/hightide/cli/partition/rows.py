"""The rows and pages of `hightide partition`, made from the brokers' reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hightide.cli import next_step, render
from hightide.cli.names import Names
from hightide.cli.options import LOCALHOST
from hightide.cli.partition.replica_bars import LEGEND, bars
from hightide.client.model.diagnosis import NextStep
from hightide.client.model.replicas import PartitionReplicas, ReplicaStatus
from hightide.client.model.standstill import high_watermark
from hightide.wire.errors import ErrorCode, KafkaError

REPLICA_COLUMNS = {
    "replica": "replica",
    "role": "role",
    "in_sync": "in-sync",
    "log_start_offset": "start",
    "high_watermark": "hw",
    "end_offset": "leo",
    "lag_records": "lag",
    "lag_ms": "lag-ms",
    "why": "why",
}


@dataclass(frozen=True, slots=True)
class PartitionRow:
    topic: str
    partition: int
    leader: int | None
    leader_epoch: int
    replicas: list[int]
    isr: list[int]
    osr: list[int]
    elr: list[int]
    min_isr: int
    status: list[str]


@dataclass(frozen=True, slots=True)
class PartitionDetails:
    topic: str
    partition: int
    leader: int | None
    leader_epoch: int
    partition_epoch: int | None
    replicas: list[int]
    isr: list[int]
    osr: list[int]
    elr: list[int]
    maximal_isr: list[int] | None
    min_isr: int
    under_min_isr: bool
    last_known_leader: int | None
    adding: list[int]
    removing: list[int]
    recovering: bool
    high_watermark: int | None
    """As the leader reports it."""
    high_watermark_waits: str | None
    """Why the high watermark is not at the log end, or cannot move; None if it moves."""
    held_back_by: int | None
    """The replica that the high watermark waits for."""
    next: NextStep | None
    replica_states: list[ReplicaStatus]


def chosen(partitions: list[PartitionReplicas], names: Names) -> list[PartitionReplicas]:
    """The named partitions, in the order of the topics; one that does not exist raises."""
    known = {(partition.topic, partition.partition) for partition in partitions}
    for topic, index in names:
        if index is not None and (topic, index) not in known:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic {topic!r} has no partition {index}."
            )
    wanted = set(names)
    return [
        partition
        for partition in partitions
        if (partition.topic, None) in wanted or (partition.topic, partition.partition) in wanted
    ]


def status(partition: PartitionReplicas, min_isr: int) -> list[str]:
    """The status of a partition in words that can be searched for."""
    state = partition.state
    words = {
        "offline": partition.is_offline,
        "under-min-isr": partition.is_under_min_isr(min_isr),
        "under-replicated": bool(partition.missing),
        "lost-records": bool(partition.losses),
        "replica-failed": bool(partition.failures),
        "recovering": state.is_recovering,
        "reassigning": state.is_reassigning,
        "not-preferred": not partition.is_offline and partition.leader != state.replicas[0],
    }
    return [word for word, applies in words.items() if applies] or ["ok"]


def partition_row(partition: PartitionReplicas, min_isr: Mapping[str, int]) -> PartitionRow:
    state, needed = partition.state, min_isr.get(partition.topic, 1)
    return PartitionRow(
        topic=partition.topic,
        partition=partition.partition,
        leader=None if partition.is_offline else partition.leader,
        leader_epoch=state.leader_epoch,
        replicas=list(state.replicas),
        isr=list(state.isr),
        osr=list(state.osr),
        elr=list(state.elr),
        min_isr=needed,
        status=status(partition, needed),
    )


def partition_details(
    partition: PartitionReplicas, min_isr: Mapping[str, int], bootstrap: str = LOCALHOST
) -> PartitionDetails:
    state, needed = partition.state, min_isr.get(partition.topic, 1)
    leader = partition.leader_report
    why = high_watermark(partition, needed)
    if why is not None and partition.missing and next_step.is_local(bootstrap):
        why = high_watermark(partition, needed, is_local=True)
    return PartitionDetails(
        topic=partition.topic,
        partition=partition.partition,
        leader=None if partition.is_offline else partition.leader,
        leader_epoch=state.leader_epoch,
        partition_epoch=state.partition_epoch if state.partition_epoch >= 0 else None,
        replicas=list(state.replicas),
        isr=list(state.isr),
        osr=list(state.osr),
        elr=list(state.elr),
        maximal_isr=list(leader.maximal_isr) if leader else None,
        min_isr=needed,
        under_min_isr=partition.is_under_min_isr(needed),
        last_known_leader=state.last_known_leader if state.last_known_leader >= 0 else None,
        adding=list(state.adding),
        removing=list(state.removing),
        recovering=state.is_recovering,
        high_watermark=leader.high_watermark if leader else None,
        high_watermark_waits=why.sentence if why else None,
        held_back_by=why.replica if why else None,
        next=next_step.here(why.next, bootstrap) if why and why.next else None,
        replica_states=partition.statuses(),
    )


def page(
    partition: PartitionReplicas, min_isr: Mapping[str, int], bootstrap: str = LOCALHOST
) -> str:
    """A partition for people: its state, a table of replicas, and bars of their offsets."""
    details = partition_details(partition, min_isr, bootstrap)
    lines = [
        (partition.name, ""),
        ("leader", _leader(details)),
        ("AR", render.cell(details.replicas)),
        ("ISR", _isr(details)),
        ("OSR", render.cell(details.osr)),
        ("ELR", render.cell(details.elr)),
        ("min ISR", str(details.min_isr)),
    ]
    if partition.state.is_reassigning:
        adding, removing = render.cell(details.adding), render.cell(details.removing)
        lines.append(("moving", f"adds {adding}, then removes {removing}"))
    text = "".join(f"{name:<8}  {value}".rstrip() + "\n" for name, value in lines)
    text += "\n" + render.table(details.replica_states, headings=REPLICA_COLUMNS)
    drawn = bars(partition.statuses())
    if drawn:
        text += "\n" + "\n".join([*drawn, LEGEND]) + "\n"
    if details.high_watermark_waits:
        text += f"\n{details.high_watermark_waits}\n"
        text += f"{next_step.line(details.next)}\n" if details.next else ""
    return text + "".join("\n" + warning(partition, report.broker) for report in partition.losses)


def warning(partition: PartitionReplicas, broker: int) -> str:
    """A warning about a replica that lost committed records."""
    return (
        f"!!! Replica {broker} of {partition.name} has LOST committed records.\n"
        "!!! Its leader did not have them, and the replica truncated its log to the leader's.\n"
        '!!! docs/guide/replication.md, "A replica that lost committed records", says what to do.\n'
    )


def _leader(details: PartitionDetails) -> str:
    text = "none" if details.leader is None else str(details.leader)
    text += f" (epoch {details.leader_epoch})"
    if details.leader is None and details.last_known_leader is not None:
        text += f", last known {details.last_known_leader}"
    if details.recovering:
        text += ", recovering: elected although it may lack committed records"
    return text


def _isr(details: PartitionDetails) -> str:
    text = render.cell(details.isr)
    if details.under_min_isr:
        text += "  too few: nothing is committed, writes with acks=all are refused"
    joining = set(details.maximal_isr or ()) - set(details.isr)
    if joining:
        text += f"  joining: {render.cell(sorted(joining))}"
    return text
