"""`hightide group reset`: set the committed offsets of a group.

Coordinators accept such commits only while the group has no members: members would continue from
their positions, and overwrite the commits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated

import typer

from hightide.cli import completion, position, render
from hightide.cli.group.rows import refuse_members
from hightide.cli.moment import now_ms
from hightide.cli.names import Names, existing, named, topic_option
from hightide.cli.options import (
    LOCALHOST,
    Bootstrap,
    DryRun,
    Failed,
    OutputOption,
    ask,
    wrong_usage,
)
from hightide.cli.position import Position
from hightide.cli.render import Output
from hightide.client.admin import Admin
from hightide.client.model.cluster import Extent, Partition
from hightide.client.model.groups import Commit
from hightide.wire.errors import ErrorCode, KafkaError

EARLIEST_MS = 100_000_000_000
"""A smaller number of milliseconds is before 1973, and is probably meant as seconds."""


@dataclass(frozen=True, slots=True)
class Shift:
    """This many offsets forward from the commit, or back."""

    count: int


Target = Position | Shift


@dataclass(frozen=True, slots=True)
class ResetRow:
    topic: str
    partition: int
    before: int | None
    after: int
    moved: int | None
    result: str


def reset(
    group: Annotated[str, typer.Argument(metavar="GROUP", autocompletion=completion.groups)],
    topic: Annotated[
        list[str] | None,
        topic_option(
            "Only these partitions, e.g. orders or orders/0,2; repeatable. Default: all "
            "partitions with a commit of the group."
        ),
    ] = None,
    to_time: Annotated[
        str | None,
        typer.Option(
            "--to-time",
            metavar="TIME",
            help="The first record at or after a time: 2026-11-15T10:00:00Z, 10:00 (today), "
            "15m (ago), or milliseconds since 1970.",
        ),
    ] = None,
    to_offset: Annotated[
        int | None, typer.Option("--to-offset", min=0, help="This offset of each partition.")
    ] = None,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="The oldest record.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="Only new records.")] = False,
    shift: Annotated[
        int | None, typer.Option("--shift", metavar="±N", help="N offsets forward, or back.")
    ] = None,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = LOCALHOST,
    output: OutputOption = Output.TABLE,
) -> None:
    """Set the offsets of a group without members; its consumers continue from there.

    A position outside of a partition becomes its beginning or its end. With --topic, a group that
    does not exist yet can be given offsets too.
    """
    wanted = target(to_time, to_offset, to_earliest, to_latest, shift)
    names = named(topic)

    async def run(admin: Admin) -> tuple[list[ResetRow], int]:
        rows = await _plan(admin, group, names, wanted)
        return (rows, 0) if dry_run else await _commit(admin, group, rows)

    rows, failures = ask(bootstrap, run)
    if not rows:
        render.say(f"Group {group!r} has no commits; name the topics with --topic.")
    render.show(rows, output)
    if failures:
        raise Failed(f"{failures} of {len(rows)} offsets were not set.")


def target(
    to_time: str | None,
    to_offset: int | None,
    to_earliest: bool,
    to_latest: bool,
    shift: int | None,
) -> Target:
    """The target of the options; exactly one of them must be given."""
    found: list[Target] = []
    if to_time is not None:
        found.append(moment(to_time, now_ms()))
    if to_offset is not None:
        found.append(position.Offset(to_offset))
    if to_earliest:
        found.append(position.Beginning())
    if to_latest:
        found.append(position.End())
    if shift is not None:
        found.append(Shift(shift))
    if len(found) != 1:
        wrong_usage(
            "give one of --to-time, --to-offset, --to-earliest, --to-latest and --shift, "
            f"not {len(found)}"
        )
    return found[0]


def moment(text: str, now_ms: int) -> position.Time:
    """Parse a time of `--to-time`, where a number is milliseconds and not an offset."""
    if text.isdecimal():
        if int(text) < EARLIEST_MS:
            wrong_usage(f"{text} is a time shortly after 1970; give milliseconds, not seconds")
        return position.Time(int(text))
    try:
        found = position.parse(text, now_ms)
    except ValueError:
        found = position.End()
    if not isinstance(found, position.Time):
        wrong_usage(
            f"{text!r} is not a time: use 2026-11-15T10:00:00Z, 10:00, 15m for 15 minutes ago, "
            "or milliseconds since 1970"
        )
    return found


async def _plan(admin: Admin, group: str, names: Names, wanted: Target) -> list[ResetRow]:
    """The current and the new offset of each partition."""
    try:
        refuse_members(await admin.groups.describe(group), "reset")
    except KafkaError as error:
        if error.code != ErrorCode.GROUP_ID_NOT_FOUND or not names:
            raise
    commits = await admin.groups.committed(group, stable=True)
    partitions = await existing(admin, names) if names else sorted(commits)
    extents = await admin.records.extents(partitions)
    for topic, index in partitions:
        if (topic, index) not in extents:
            render.say(f"{topic}/{index} is skipped: it does not exist, or has no leader.")
    times: dict[Partition, int | None] = {}
    if isinstance(wanted, position.Time):
        found = await admin.records.offsets(dict.fromkeys(extents, wanted.timestamp_ms))
        times = {key: at.offset if at.offset >= 0 else None for key, at in found.items()}
    return [
        planned(partition, commits, extents[partition], wanted, times.get(partition))
        for partition in partitions
        if partition in extents
    ]


def planned(
    partition: Partition,
    commits: Mapping[Partition, Commit],
    extent: Extent,
    wanted: Target,
    at_time: int | None = None,
) -> ResetRow:
    """The new offset of one partition, inside of its log."""
    topic, index = partition
    commit = commits.get(partition)
    before = None if commit is None else commit.offset
    if isinstance(wanted, Shift):
        if before is None:
            raise Failed(
                f"{topic}/{index} cannot be shifted: the group has no commit there. "
                "Use --to-earliest, --to-latest, --to-offset or --to-time."
            )
        wanted = position.Offset(before + wanted.count)
    after = position.first_offset(wanted, extent.start_offset, extent.end_offset, at_time)
    if isinstance(wanted, position.Offset) and wanted.offset != after:
        where = "end" if wanted.offset > after else "beginning"
        render.say(
            f"{topic}/{index} has offsets {extent.start_offset} to {extent.end_offset}: offset "
            f"{wanted.offset} becomes its {where}, {after}."
        )
    moved = None if before is None else after - before
    return ResetRow(topic, index, before, after, moved, "would be reset")


async def _commit(admin: Admin, group: str, rows: list[ResetRow]) -> tuple[list[ResetRow], int]:
    """Commit the new offsets; return the results, and how many failed."""
    if not rows:
        return [], 0
    refusals = await admin.groups.commit(
        group, {(row.topic, row.partition): row.after for row in rows}
    )
    if any(refusal and refusal.code in HAS_MEMBERS for refusal in refusals.values()):
        raise Failed(f"A member has just joined {group!r}; the offsets were not set.")
    done = [replace(row, result=_result(refusals.get((row.topic, row.partition)))) for row in rows]
    return done, sum(refusal is not None for refusal in refusals.values())


HAS_MEMBERS = {
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.STALE_MEMBER_EPOCH,
}


def _result(refusal: KafkaError | None) -> str:
    if refusal is None:
        return "reset"
    return f"{refusal.detail.removesuffix('.')} ({refusal.code.name})"
