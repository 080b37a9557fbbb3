"""`hightide partition elect`: elect leaders of partitions.

A *preferred* election returns the leadership to the first replica of the assignment, and loses
nothing.  An *unclean* election is for a partition without a leader: it chooses a replica that may
lack records, and records that only other replicas have are lost.  So the command asks first.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import typer

from hightide.cli import render
from hightide.cli.names import named, topic_option, topics_of
from hightide.cli.options import (
    LOCALHOST,
    Bootstrap,
    DryRun,
    Failed,
    OutputOption,
    ask,
    wrong_usage,
)
from hightide.cli.partition.rows import chosen
from hightide.cli.render import Output
from hightide.client.admin import Admin
from hightide.client.model.replicas import PartitionReplicas
from hightide.core.controller.controller import ElectionKind
from hightide.core.controller.leader_election import (
    NO_LOG,
    LogEnd,
    RecoveryStrategy,
    longest_log,
)
from hightide.core.partition.state import NO_BROKER
from hightide.wire.errors import ErrorCode, KafkaError

NOT_NEEDED = "not needed"


@dataclass(frozen=True, slots=True)
class ElectionRow:
    topic: str
    partition: int
    was: int | None
    leader: int | None
    result: str


@dataclass(frozen=True, slots=True)
class ExpectedElection:
    """The likely result of an election, from what is known before it."""

    leader: int | None
    """The replica that would lead; None if none would be elected."""
    sentence: str


def elect(
    topic: Annotated[
        list[str] | None,
        topic_option("Default: all partitions."),
    ] = None,
    preferred: Annotated[
        bool,
        typer.Option(
            "--preferred/--unclean",
            help="The first replica of the assignment; or, for a partition without a leader, any"
            " live replica, even if records are lost.",
        ),
    ] = True,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask for confirmation of --unclean.")
    ] = False,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = LOCALHOST,
    output: OutputOption = Output.TABLE,
) -> None:
    """Elect leaders: return the leadership to preferred replicas, or end an outage."""
    names = named(topic)
    kind = ElectionKind.PREFERRED if preferred else ElectionKind.UNCLEAN

    async def prepare(admin: Admin) -> list[PartitionReplicas]:
        topics = topics_of(names) or None
        found = (await admin.replicas.describe(topics)).partitions
        return chosen(found, names) if names else found

    before = ask(bootstrap, prepare)
    # Named partitions are always shown; of all partitions, only those that need an election.
    expected = [(partition, expected_election(kind, partition)) for partition in before]
    due = [
        (partition, result)
        for partition, result in expected
        if names or result.sentence != NOT_NEEDED
    ]
    if not due:
        render.say("No partition needs such an election.")
    if dry_run or not due:
        rows = [
            ElectionRow(
                partition.topic,
                partition.partition,
                _known(partition.leader),
                result.leader,
                result.sentence,
            )
            for partition, result in due
        ]
        render.show(rows, output)
        return
    if kind is ElectionKind.UNCLEAN and not yes:
        confirm(due)
    partitions = [partition for partition, _ in due]
    rows, failures = ask(bootstrap, lambda admin: _elect(admin, kind, partitions))
    render.show(rows, output)
    if failures:
        raise Failed(f"{failures} of {len(rows)} partitions elected no leader.")


async def _elect(
    admin: Admin, kind: ElectionKind, partitions: list[PartitionReplicas]
) -> tuple[list[ElectionRow], int]:
    """The result of each partition, and how many failed."""
    refusals = await admin.replicas.elect_leaders(
        kind, [(partition.topic, partition.partition) for partition in partitions]
    )
    names = list(dict.fromkeys(partition.topic for partition in partitions))
    leaders = {
        (topic.name, partition.partition): partition.leader
        for topic in await admin.topics.describe(names)
        for partition in topic.partitions
    }
    rows, failures = [], 0
    for before in partitions:
        key = before.topic, before.partition
        refusal = refusals.get(key)
        failures += refusal is not None and refusal.code != ErrorCode.ELECTION_NOT_NEEDED
        leader = leaders.get(key, NO_BROKER)
        rows.append(ElectionRow(*key, _known(before.leader), _known(leader), _result(refusal)))
    return rows, failures


def expected_election(kind: ElectionKind, partition: PartitionReplicas) -> ExpectedElection:
    """The replica that would be elected, by the rules of `core/controller/leader_election.py`."""
    state = partition.state
    if kind is ElectionKind.UNCLEAN:
        if not partition.is_offline:
            return ExpectedElection(partition.leader, NOT_NEEDED)
        live = dict.fromkeys(partition.live, 0)
        ends = {
            replica: LogEnd(
                partition.reports[replica].last_epoch, partition.reports[replica].end_offset
            )
            if replica in partition.reports
            else NO_LOG
            for replica in state.replicas
        }
        offline = replace(state, leader=NO_BROKER, isr=())
        leader = longest_log(offline, live, RecoveryStrategy.AGGRESSIVE, ends)
        if leader == NO_BROKER:
            return ExpectedElection(None, "none of its replicas is alive")
        return ExpectedElection(leader, f"would be elected{_loss(partition, leader)}")
    first = state.replicas[0]
    if partition.leader == first:
        return ExpectedElection(first, NOT_NEEDED)
    if first not in partition.live:
        return ExpectedElection(None, f"broker {first}, the preferred one, is not alive")
    if first not in state.isr:
        return ExpectedElection(None, f"replica {first}, the preferred one, is not in sync")
    return ExpectedElection(first, "would be elected")


def _loss(partition: PartitionReplicas, leader: int) -> str:
    """What other replicas are known to have that the new leader lacks."""
    report = partition.reports.get(leader)
    if report is None:
        return ""
    unknown = [other for other in partition.state.replicas if other not in partition.reports]
    text = f" with records up to {report.end_offset}"
    best = max(partition.reports.values(), key=lambda other: other.end_offset)
    if best.end_offset > report.end_offset:
        text += f"; replica {best.broker} has records up to {best.end_offset}"
    if unknown:
        text += f"; replicas {render.cell(unknown)} did not report theirs"
    return text


def confirm(due: Sequence[tuple[PartitionReplicas, ExpectedElection]]) -> None:
    """Ask for confirmation of an election that can lose records."""
    for partition, result in due:
        leader = "no replica:" if result.leader is None else f"replica {result.leader}"
        render.say(f"{partition.name}: {leader} {result.sentence}")
    if not sys.stdin.isatty():
        wrong_usage("an unclean election can lose records; without a terminal it needs --yes")
    if not typer.confirm("Records that only other replicas have will be lost. Elect?", err=True):
        raise Failed("No leader was elected.")


def _result(refusal: KafkaError | None) -> str:
    if refusal is None:
        return "elected"
    if refusal.code == ErrorCode.ELECTION_NOT_NEEDED:
        return NOT_NEEDED
    return f"{refusal.detail.removesuffix('.')} ({refusal.code.name})"


def _known(leader: int) -> int | None:
    return None if leader == NO_BROKER else leader
