"""`hightide group offset-delete`: delete some of the committed offsets of a group.

Coordinators refuse to delete commits of topics that a member subscribes to.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated

import typer

from hightide.cli import completion, render
from hightide.cli.names import Names, PartitionNames, named
from hightide.cli.options import (
    LOCALHOST,
    Bootstrap,
    DryRun,
    Failed,
    OutputOption,
    Yes,
    ask,
    confirm,
)
from hightide.cli.render import Output, counted
from hightide.client.admin import Admin
from hightide.client.model.cluster import Partition
from hightide.wire.errors import ErrorCode

WOULD_BE = "would be deleted"


@dataclass(frozen=True, slots=True)
class OffsetRow:
    topic: str
    partition: int
    offset: int
    result: str


def offset_delete(
    group: Annotated[str, typer.Argument(metavar="GROUP", autocompletion=completion.groups)],
    partitions: PartitionNames,
    yes: Yes = False,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = LOCALHOST,
    output: OutputOption = Output.TABLE,
) -> None:
    """Delete the committed offsets of a group in some topics or partitions.

    A consumer of the group starts there again as if it had never committed. Offsets of topics that
    a member subscribes to cannot be deleted.
    """
    names = named(partitions)

    async def prepare(admin: Admin) -> list[OffsetRow]:
        await admin.groups.describe(group)
        commits = await admin.groups.committed(group)
        found = [
            OffsetRow(*partition, commits[partition].offset, WOULD_BE)
            for partition in of_names(group, commits, names)
        ]
        return found

    async def run(admin: Admin) -> list[OffsetRow]:
        wanted = [(row.topic, row.partition) for row in before]
        refused = await admin.groups.delete_offsets(group, wanted)
        return [replace(row, result=_result(refused[row.topic, row.partition])) for row in before]

    before = ask(bootstrap, prepare)
    if dry_run:
        render.show(before, output)
        return
    confirm(f"Delete {counted(len(before), 'committed offset')} of {group}?", yes=yes)
    rows = ask(bootstrap, run)
    render.show(rows, output)
    kept = sum(row.result != "deleted" for row in rows)
    if kept:
        raise Failed(f"{kept} of {len(rows)} offsets were not deleted.")


def of_names(group: str, commits: Iterable[Partition], names: Names) -> list[Partition]:
    """The partitions with commits that are named; a name without any fails."""
    found: set[Partition] = set()
    for topic, index in names:
        matching = {key for key in commits if key[0] == topic and index in (None, key[1])}
        if not matching:
            name = topic if index is None else f"{topic}/{index}"
            raise Failed(f"Group {group!r} has no committed offset in {name}.")
        found |= matching
    return sorted(found)


def _result(refusal: ErrorCode | None) -> str:
    if refusal is None:
        return "deleted"
    if refusal == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC:
        return "a member subscribes to the topic"
    return refusal.name
