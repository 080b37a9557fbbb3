"""What `hightide partition` shows, as rows: made from what brokers said, before it is printed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hightide.cli import render
from hightide.cli.options import misused
from hightide.cli.replica_bars import LEGEND, picture
from hightide.client.model.replicas import PartitionReplicas, ReplicaStatus
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
class ReplicaRow:
    replica: int
    role: str | None
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
    replica_states: list[ReplicaRow]


ROLES = {0: "waits", 1: "leader", 2: "follower"}


def named(text: str) -> tuple[str, int | None]:
    """`TOPIC` or `TOPIC/PARTITION`."""
    topic, slash, index = text.partition("/")
    if not topic or (slash and not index.isdecimal()):
        misused(f"{text!r} is no partition; it should be TOPIC or TOPIC/NUMBER")
    return topic, int(index) if slash else None


def chosen(
    partitions: list[PartitionReplicas], names: list[tuple[str, int | None]]
) -> list[PartitionReplicas]:
    """Those that are named, in the order of the topics; one that does not exist is refused."""
    known = {(each.topic, each.partition) for each in partitions}
    for topic, index in names:
        if index is not None and (topic, index) not in known:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic {topic!r} has no partition {index}."
            )
    wanted = set(names)
    return [
        each
        for each in partitions
        if (each.topic, None) in wanted or (each.topic, each.partition) in wanted
    ]


def status(each: PartitionReplicas, min_isr: int) -> list[str]:
    """Everything that is to be said of a partition, in words that can be looked for."""
    said = {
        "offline": each.is_offline,
        "under-min-isr": each.is_under_min_isr(min_isr),
        "under-replicated": bool(each.missing),
        "lost-records": bool(each.losses),
        "recovering": each.state.is_recovering,
        "reassigning": each.state.is_reassigning,
        "not-preferred": not each.is_offline and each.leader != each.state.replicas[0],
    }
    return [word for word, is_so in said.items() if is_so] or ["ok"]


def partition_row(each: PartitionReplicas, min_isr: Mapping[str, int]) -> PartitionRow:
    state, needed = each.state, min_isr.get(each.topic, 1)
    return PartitionRow(
        topic=each.topic,
        partition=each.partition,
        leader=None if each.is_offline else each.leader,
        leader_epoch=state.leader_epoch,
        replicas=list(state.replicas),
        isr=list(state.isr),
        osr=list(state.osr),
        elr=list(state.elr),
        min_isr=needed,
        status=status(each, needed),
    )


def partition_details(each: PartitionReplicas, min_isr: Mapping[str, int]) -> PartitionDetails:
    state, needed = each.state, min_isr.get(each.topic, 1)
    leader = each.leader_report
    return PartitionDetails(
        topic=each.topic,
        partition=each.partition,
        leader=None if each.is_offline else each.leader,
        leader_epoch=state.leader_epoch,
        partition_epoch=state.partition_epoch if state.partition_epoch >= 0 else None,
        replicas=list(state.replicas),
        isr=list(state.isr),
        osr=list(state.osr),
        elr=list(state.elr),
        maximal_isr=list(leader.maximal_isr) if leader else None,
        min_isr=needed,
        under_min_isr=each.is_under_min_isr(needed),
        last_known_leader=state.last_known_leader if state.last_known_leader >= 0 else None,
        adding=list(state.adding),
        removing=list(state.removing),
        recovering=state.is_recovering,
        replica_states=[replica_row(status) for status in each.statuses()],
    )


def replica_row(status: ReplicaStatus) -> ReplicaRow:
    return ReplicaRow(
        replica=status.broker,
        role=None if status.role is None else ROLES[status.role],
        in_sync=status.is_in_sync,
        eligible=status.is_eligible,
        log_start_offset=status.log_start_offset,
        high_watermark=status.high_watermark,
        end_offset=status.end_offset,
        lag_records=status.lag_records,
        lag_ms=status.lag_ms,
        size_bytes=status.size_bytes,
        lost_records=status.lost_records,
        why=status.why,
    )


def page(each: PartitionReplicas, min_isr: Mapping[str, int]) -> str:
    """A partition as a person looks at it: the decision, the replicas, and a picture of them."""
    details = partition_details(each, min_isr)
    lines = [
        (each.name, ""),
        ("leader", _leader(details)),
        ("AR", render.cell(details.replicas)),
        ("ISR", _isr(details)),
        ("OSR", render.cell(details.osr)),
        ("ELR", render.cell(details.elr)),
        ("min ISR", str(details.min_isr)),
    ]
    if each.state.is_reassigning:
        adding, removing = render.cell(details.adding), render.cell(details.removing)
        lines.append(("moving", f"adds {adding}, then removes {removing}"))
    text = "".join(f"{name:<8}  {value}".rstrip() + "\n" for name, value in lines)
    text += "\n" + render.table(details.replica_states, headings=REPLICA_COLUMNS)
    bars = picture(each.statuses())
    if bars:
        text += "\n" + "\n".join([*bars, LEGEND]) + "\n"
    return text + "".join("\n" + warning(each, report.broker) for report in each.losses)


def warning(each: PartitionReplicas, broker: int) -> str:
    """A warning about a replica that lost committed records."""
    return (
        f"!!! Replica {broker} of {each.name} has LOST committed records.\n"
        "!!! Its leader did not have them, and the replica truncated its log to the leader's.\n"
        '!!! docs/guide/replication.md, "A replica that lost committed records", says what to do.\n'
    )


def _leader(details: PartitionDetails) -> str:
    said = "nobody" if details.leader is None else str(details.leader)
    said += f" (epoch {details.leader_epoch})"
    if details.leader is None and details.last_known_leader is not None:
        said += f", last known {details.last_known_leader}"
    if details.recovering:
        said += ", recovering: elected without being known to have everything"
    return said


def _isr(details: PartitionDetails) -> str:
    said = render.cell(details.isr)
    if details.under_min_isr:
        said += "  too few: nothing is committed, writes with acks=all are refused"
    joining = set(details.maximal_isr or ()) - set(details.isr)
    if joining:
        said += f"  joining: {render.cell(sorted(joining))}"
    return said
