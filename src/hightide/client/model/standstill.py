"""Why something stands still, in one sentence for each cause, and what to do next.

    one partition ──▶ high_watermark   why it does not move, and which replica holds it back
    a topic ────────▶ waits            why a producer or a consumer waits
    a group ────────▶ group_waits, coordinator_waits

All of them judge what the brokers report, and ask nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from hightide.client.model.diagnosis import NextStep, failure, names, sentence
from hightide.client.model.groups import GroupDescription
from hightide.client.model.health import awaited, counted, listed
from hightide.client.model.replicas import PartitionReplicas, ReplicaReport, ReplicasDescription
from hightide.core.partition.follower_progress import Progress
from hightide.core.partition.state import effective_min_isr

SLOW_MS = 2_000
"""A lag that is older than this is not one that comes and goes."""
REBALANCES = {"PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling"}


@dataclass(frozen=True, slots=True)
class Finding:
    """Why something stands still or waits."""

    key: tuple[object, ...]
    """The same for the same cause, whatever else the sentence says."""
    sentence: str
    next: NextStep | None = None
    replica: int | None = None
    """The replica that it waits for, if there is one."""


# -- the high watermark ----------------------------------------------------------------------------


def high_watermark(
    partition: PartitionReplicas, min_isr: int, *, is_local: bool = False
) -> Finding | None:
    """Why the high watermark is not at the log end, or cannot move; None if it moves."""
    name = partition.name
    if partition.is_offline:
        return Finding(
            ("offline",),
            f"The high watermark stands still: {name} has no leader{_because(partition)}.",
            _start_or_look(awaited(partition), partition, is_local),
            awaited(partition)[0] if len(awaited(partition)) == 1 else None,
        )
    leader = partition.leader
    if leader in partition.silent:
        return Finding(
            ("silent", leader),
            f"It is unknown whether the high watermark moves: broker {leader}, the leader, does not"
            " answer.",
            NextStep("hightide cluster health"),
            leader,
        )
    report = partition.leader_report
    mark = f", {report.high_watermark}," if report else ""
    if report and report.failure:
        return Finding(
            ("failed", leader),
            f"The high watermark{mark} stands still, because the leader's log is"
            f" {sentence(report.failure)}",
            NextStep(f"hightide cluster logdirs --broker {leader}"),
            leader,
        )
    if partition.is_under_min_isr(min_isr):
        needed = effective_min_isr(min_isr, partition.state.replicas)
        return Finding(
            ("min isr",),
            f"The high watermark{mark} stands still, because {len(partition.state.isr)} of the"
            f" {needed} replicas that min.insync.replicas needs"
            f" {'is' if len(partition.state.isr) == 1 else 'are'} in sync;"
            f" {_out_of_sync(partition)}.",
            _start_or_look(partition.missing, partition, is_local),
            partition.missing[0] if len(partition.missing) == 1 else None,
        )
    if report is None or report.high_watermark >= report.end_offset:
        return None
    return _held_back(partition, report)


def _held_back(partition: PartitionReplicas, report: ReplicaReport) -> Finding | None:
    slowest = _slowest(partition, report)
    if slowest is None:
        return None  # it has moved since the reports
    broker = slowest.replica
    role = " of the ISR" if broker in partition.state.isr else ", which joins the ISR,"
    lag = _lag(slowest)
    if not _is_slow(slowest):
        return Finding(
            ("behind", broker),
            f"The high watermark, {report.high_watermark}, moves: replica {broker}{role} is {lag}.",
            NextStep(f"hightide partition show {partition.name} --watch"),
            broker,
        )
    silent = ", and its broker does not answer" if broker in partition.silent else ""
    return Finding(
        ("behind", broker),
        f"The high watermark, {report.high_watermark}, stands still, because replica {broker}"
        f"{role} is {lag}{silent}.",
        NextStep(
            "hightide cluster health",
            "The replica leaves the ISR after replica.lag.time.max.ms, and the high watermark moves"
            " on.",
        ),
        broker,
    )


def _slowest(partition: PartitionReplicas, report: ReplicaReport) -> Progress | None:
    """The member of the maximal ISR that has the least, unless it has everything."""
    members = set(report.maximal_isr or partition.state.isr) - {report.broker}
    found = [progress for broker, progress in report.progress.items() if broker in members]
    slowest = min(found, key=_end, default=None)
    return None if slowest is None or _end(slowest) >= report.end_offset else slowest


def _end(progress: Progress) -> int:
    return -1 if progress.end_offset is None else progress.end_offset


def _is_slow(progress: Progress) -> bool:
    return progress.lag_ms is None or progress.lag_ms >= SLOW_MS


def _lag(progress: Progress) -> str:
    if progress.lag_records is None:
        return "behind and has not fetched in this leader epoch"
    ms = "" if progress.lag_ms is None else f" and {progress.lag_ms} ms"
    return f"{counted(progress.lag_records, 'record')}{ms} behind"


def _because(partition: PartitionReplicas) -> str:
    """`, because broker 2 is not alive`, for a partition without a leader."""
    if not awaited(partition):
        return ", and no replica is known to have all records"
    return _are_dead([broker for broker in awaited(partition) if broker not in partition.live])


def _are_dead(brokers: Sequence[int]) -> str:
    if not brokers:
        return ""
    which = f"broker {brokers[0]} is" if len(brokers) == 1 else f"brokers {listed(brokers)} are"
    return f", because {which} not alive"


def _out_of_sync(partition: PartitionReplicas) -> str:
    found = [
        f"replica {status.replica} ({status.why})"
        for status in partition.statuses()
        if status.replica in partition.missing
    ]
    return f"out of sync: {', '.join(found)}" if found else "the others are being added"


def _start_or_look(
    brokers: Sequence[int], partition: PartitionReplicas, is_local: bool
) -> NextStep:
    """Start the first broker that is not alive; `cluster health` knows more of others."""
    dead = [broker for broker in brokers if broker not in partition.live]
    if dead and is_local:
        return NextStep(f"hightide broker restart {dead[0]}")
    if partition.is_offline and not awaited(partition):
        return NextStep(
            f"hightide partition elect --topic {partition.name} --unclean --dry-run",
            "It shows which replica an unclean election would choose, with which records.",
        )
    return NextStep("hightide cluster health")


# -- waiting clients -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Client:
    """A producer or consumer that waits, and the partitions that it uses; none means all."""

    topic: str
    partitions: Collection[int] = ()
    is_producer: bool = False
    waits_for_all: bool = True
    """Whether a producer sends with acks=all."""
    is_at_end: bool = False
    """Whether a consumer has reached the end of its partitions without a record."""
    skips_old: bool = False
    """Whether a consumer began at the end."""


def waits(
    client: Client, cluster: ReplicasDescription, min_isr: Mapping[str, int]
) -> list[Finding]:
    """Why a client waits, each cause once; empty if nothing is wrong."""
    used = [
        partition
        for partition in cluster.partitions
        if partition.topic == client.topic
        and (not client.partitions or partition.partition in client.partitions)
    ]
    reasons: dict[tuple[object, ...], tuple[_Reason, list[PartitionReplicas]]] = {}
    for partition in used:
        reason = _reason(client, partition, min_isr.get(partition.topic, 1))
        if reason is not None:
            reasons.setdefault(reason.key, (reason, []))[1].append(partition)
    found = [
        Finding(
            key,
            f"{reason.before} {names(partitions)}{reason.after}",
            NextStep("hightide cluster health"),
        )
        for key, (reason, partitions) in reasons.items()
    ]
    if not found and client.is_at_end:
        found.append(
            Finding(
                ("end",),
                f"Nothing is new in {client.topic}: this is the end of the log.",
                NextStep(
                    f"hightide consume {client.topic} --from beginning",
                    "It prints the records that are there.",
                )
                if client.skips_old
                else None,
            )
        )
    return found


@dataclass(frozen=True, slots=True)
class _Reason:
    """A reason that several partitions may have; their names stand between its parts."""

    key: tuple[object, ...]
    before: str
    after: str


def _reason(client: Client, partition: PartitionReplicas, min_isr: int) -> _Reason | None:
    leader, report = partition.leader, partition.leader_report
    if partition.is_offline:
        because = _because(partition)
        return _Reason(("offline", because), "There is no leader for", f"{because}.")
    if leader in partition.silent:
        after = f": broker {leader} does not answer."
        return _Reason(("silent", leader), "There is no answer from the leader of", after)
    if report and report.failure and client.is_producer:
        after = f" on broker {leader}: the log is {failure(report)[0]}."
        return _Reason(("failed", leader), "Nothing can be written to the leader of", after)
    if client.is_producer and not client.waits_for_all:
        return None
    has_uncommitted = report is not None and report.high_watermark < report.end_offset
    if partition.is_under_min_isr(min_isr) and (client.is_producer or has_uncommitted):
        return _too_few(client, partition, min_isr)
    slowest = _slowest(partition, report) if report and has_uncommitted else None
    if slowest is not None and _is_slow(slowest):
        after = f": replica {slowest.replica} is {_lag(slowest)}."
        return _Reason(("behind", slowest.replica), "The high watermark stands still in", after)
    return None


def _too_few(client: Client, partition: PartitionReplicas, min_isr: int) -> _Reason:
    in_sync = len(partition.state.isr)
    needed = effective_min_isr(min_isr, partition.state.replicas)
    dead = [broker for broker in partition.missing if broker not in partition.live]
    effect = (
        "writes with acks=all are refused and tried again"
        if client.is_producer
        else "new records are not committed, so consumers do not get them"
    )
    after = (
        f": {in_sync} of the {needed} that min.insync.replicas needs{_are_dead(dead)}; {effect}."
    )
    return _Reason(("min isr", in_sync, *dead), "Too few replicas are in sync in", after)


def unreachable(addresses: str) -> Finding:
    return Finding(
        ("unreachable",),
        f"No broker answers at {addresses}.",
        NextStep("hightide doctor"),
    )


def group_waits(group: GroupDescription) -> list[Finding]:
    """Why a member of a group has no partitions."""
    if group.state not in REBALANCES:
        return []
    members = counted(len(group.members), "member")
    why = f": {group.last_rebalance.reason}" if group.last_rebalance else ""
    return [
        Finding(
            ("rebalance", group.group),
            f"Group {group.group} is rebalancing ({group.state}, {members}){why}.",
            NextStep(f"hightide group describe {group.group}"),
        )
    ]


def coordinator_waits(group: str, offsets: Iterable[PartitionReplicas]) -> Finding:
    """Why the coordinator of a group is not available; `offsets` is __consumer_offsets."""
    offline = [partition for partition in offsets if partition.is_offline]
    because = ""
    if offline:
        dead = {id_ for one in offline for id_ in awaited(one) if id_ not in one.live}
        because = (
            f": {counted(len(offline), 'partition')} of __consumer_offsets without a leader"
            f"{_are_dead(sorted(dead))}"
        )
    return Finding(
        ("coordinator", group),
        f"The coordinator of group {group} is not available{because}.",
        NextStep("hightide cluster health"),
    )
