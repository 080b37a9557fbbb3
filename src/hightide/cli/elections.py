"""`hightide partition elect`: have partitions led by the replica that shall lead them.

A *preferred* election hands the leadership back to the first replica of the assignment, and loses
nothing.  An *unclean* one is for a partition that nobody leads: it takes a replica that may lack
something, and what only the others have is lost for good.  So that asks first.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from hightide.cli import render
from hightide.cli.options import LOCALHOST, Bootstrap, DryRun, Failed, OutputOption, ask, misused
from hightide.cli.partition_rows import chosen, named
from hightide.cli.render import Output
from hightide.client.admin import Admin
from hightide.client.model.replicas import PartitionReplicas
from hightide.core.controller.controller import ElectionKind
from hightide.core.controller.leader_election import first_live
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
class Prospect:
    """What an election would do, as far as it can be told beforehand."""

    leader: int | None
    """Who would lead; None if nobody would be elected."""
    sentence: str


def elect(
    topic: Annotated[
        list[str] | None,
        typer.Option("--topic", "-t", metavar="TOPIC[/PARTITION]", help="Default: all partitions."),
    ] = None,
    preferred: Annotated[
        bool,
        typer.Option(
            "--preferred/--unclean",
            help="The first replica of the assignment, or, where nobody leads, any that is alive"
            " even if records are lost by it.",
        ),
    ] = True,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before --unclean.")] = False,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = LOCALHOST,
    output: OutputOption = Output.TABLE,
) -> None:
    """Elect leaders: give the leadership back to the preferred replicas, or end an outage."""
    names = [named(text) for text in topic or ()]
    kind = ElectionKind.PREFERRED if preferred else ElectionKind.UNCLEAN

    async def prepare(admin: Admin) -> list[PartitionReplicas]:
        topics = list(dict.fromkeys(each for each, _ in names)) or None
        found = (await admin.replicas.describe(topics)).partitions
        return chosen(found, names) if names else found

    before = ask(bootstrap, prepare)
    # What is named is answered for; of all partitions only those that have something to do.
    prospects = [(each, prospect(kind, each)) for each in before]
    due = [(each, what) for each, what in prospects if names or what.sentence != NOT_NEEDED]
    if not due:
        render.say("No partition needs such an election.")
    if dry_run or not due:
        rows = [
            ElectionRow(each.topic, each.partition, _told(each.leader), what.leader, what.sentence)
            for each, what in due
        ]
        render.show(rows, output)
        return
    if kind is ElectionKind.UNCLEAN and not yes:
        confirm(due)
    rows, failures = ask(bootstrap, lambda admin: _elect(admin, kind, [each for each, _ in due]))
    render.show(rows, output)
    if failures:
        raise Failed(f"{failures} of {len(rows)} partitions elected nobody.")


async def _elect(
    admin: Admin, kind: ElectionKind, partitions: list[PartitionReplicas]
) -> tuple[list[ElectionRow], int]:
    """What became of each, and how many failed."""
    refusals = await admin.replicas.elect_leaders(
        kind, [(each.topic, each.partition) for each in partitions]
    )
    topics = await admin.topics.describe(list(dict.fromkeys(each.topic for each in partitions)))
    leaders = {
        (topic.name, each.partition): each.leader for topic in topics for each in topic.partitions
    }
    rows, failures = [], 0
    for each in partitions:
        key = each.topic, each.partition
        refusal = refusals.get(key)
        failures += refusal is not None and refusal.code != ErrorCode.ELECTION_NOT_NEEDED
        leader = leaders.get(key, NO_BROKER)
        rows.append(ElectionRow(*key, _told(each.leader), _told(leader), _result(refusal)))
    return rows, failures


def prospect(kind: ElectionKind, each: PartitionReplicas) -> Prospect:
    """Who would be elected, by the rules of `core/controller/leader_election.py`."""
    state = each.state
    if kind is ElectionKind.UNCLEAN:
        if not each.is_offline:
            return Prospect(each.leader, NOT_NEEDED)
        leader = first_live(state.replicas, state.replicas, dict.fromkeys(each.live, 0))
        if leader == NO_BROKER:
            return Prospect(None, "none of its replicas is alive")
        return Prospect(leader, f"would be elected{_loss(each, leader)}")
    first = state.replicas[0]
    if each.leader == first:
        return Prospect(first, NOT_NEEDED)
    if first not in each.live:
        return Prospect(None, f"broker {first}, which is preferred, is not alive")
    if first not in state.isr:
        return Prospect(None, f"replica {first}, which is preferred, is not in sync")
    return Prospect(first, "would be elected")


def _loss(each: PartitionReplicas, leader: int) -> str:
    """What is known of what others have more."""
    report = each.reports.get(leader)
    if report is None:
        return ""
    others = [other for other in each.state.replicas if other not in each.reports]
    said = f" with records up to {report.end_offset}"
    best = max(each.reports.values(), key=lambda other: other.end_offset)
    if best.end_offset > report.end_offset:
        said += f"; replica {best.broker} has them up to {best.end_offset}"
    if others:
        said += f"; what {render.cell(others)} may have more cannot be told"
    return said


def confirm(due: Sequence[tuple[PartitionReplicas, Prospect]]) -> None:
    """Let a person decide about losing records."""
    for each, what in due:
        who = "nobody" if what.leader is None else f"replica {what.leader}"
        render.say(f"{each.name}: {who} {what.sentence}")
    if not sys.stdin.isatty():
        misused("an unclean election can lose records; without a terminal to ask at, give --yes")
    if not typer.confirm("Records that others have more are lost for good. Elect?", err=True):
        raise Failed("Nobody was elected.")


def _result(refusal: KafkaError | None) -> str:
    if refusal is None:
        return "elected"
    if refusal.code == ErrorCode.ELECTION_NOT_NEEDED:
        return NOT_NEEDED
    return f"{refusal.detail.removesuffix('.')} ({refusal.code.name})"


def _told(leader: int) -> int | None:
    return None if leader == NO_BROKER else leader
