"""`hightide group …`: consumer groups, their members, and how far they are behind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import typer

from hightide.cli import completion, render
from hightide.cli.group import offset_delete, reset
from hightide.cli.group.rows import (
    LagDetails,
    group_details,
    group_page,
    lag_details,
    lag_page,
    refuse_members,
)
from hightide.cli.moment import now_ms
from hightide.cli.names import Names, named, topic_option
from hightide.cli.options import (
    LOCALHOST,
    Bootstrap,
    DryRun,
    Failed,
    OutputOption,
    Yes,
    ask,
    confirm,
    spelt,
    warn_about_silent,
)
from hightide.cli.render import Output, counted
from hightide.cli.watch import Interval, Watch, look
from hightide.client.admin import Admin
from hightide.client.model.groups import GroupDescription, GroupLag, GroupsListing
from hightide.wire.errors import ErrorCode, KafkaError

app = typer.Typer(
    no_args_is_help=True,
    help="Inspect consumer groups and their lag, reset their offsets, and delete them.",
)
app.command()(reset.reset)
app.command("offset-delete")(offset_delete.offset_delete)

STATES = (
    *("Empty", "PreparingRebalance", "CompletingRebalance", "Stable", "Dead"),
    *("Assigning", "Reconciling"),
)
TYPES = ("Classic", "Consumer", "Share", "Streams")
WOULD_BE = "would be deleted"

Groups = Annotated[list[str], typer.Argument(metavar="GROUP", autocompletion=completion.groups)]
Topics = Annotated[
    list[str] | None,
    topic_option("Only these partitions; repeatable."),
]


@dataclass(frozen=True, slots=True)
class DeleteRow:
    group: str
    result: str
    partitions: int


@app.command("list")
def list_(
    state: Annotated[
        list[str] | None,
        typer.Option(
            "--state", help="Only groups in this state, e.g. Stable or Empty; repeatable."
        ),
    ] = None,
    type_: Annotated[
        list[str] | None,
        typer.Option("--type", help="Only groups of this type: Classic or Consumer; repeatable."),
    ] = None,
    bootstrap: Bootstrap = LOCALHOST,
    output: OutputOption = Output.TABLE,
) -> None:
    """List groups, and the brokers that coordinate them."""

    states = [spelt(text, STATES, "group state") for text in state or ()]
    types = [spelt(text, TYPES, "group type") for text in type_ or ()]

    async def run(admin: Admin) -> GroupsListing:
        return await admin.groups.list(states, types)

    found = ask(bootstrap, run)
    warn_about_silent(found.silent, "groups")
    if not found.groups:
        render.say("There are no such groups." if state or type_ else "There are no groups.")
    render.show(found.groups, output)


@app.command()
def describe(
    groups: Groups, bootstrap: Bootstrap = LOCALHOST, output: OutputOption = Output.TABLE
) -> None:
    """Show a group's state, its members, their assignments, and why it last rebalanced."""

    async def run(admin: Admin) -> list[GroupDescription]:
        return [await admin.groups.describe(group) for group in groups]

    found = ask(bootstrap, run)
    if output is Output.JSON:
        render.show([group_details(group) for group in found], output)
        return
    render.write("\n".join(group_page(group, now_ms()) for group in found))


@app.command()
def lag(
    groups: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="GROUP", autocompletion=completion.groups, help="Default: all groups."
        ),
    ] = None,
    topic: Topics = None,
    watch: Watch = False,
    interval: Interval = 1.0,
    bootstrap: Bootstrap = LOCALHOST,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show how far each group is behind, in records and seconds.

    LAG-S is the age of the oldest record that the group has not consumed, by the record's
    timestamp; it is 0 if there is none. LAST-COMMIT is how long ago the group committed in the
    partition. With --watch and -o json each repetition is one line.
    """

    names = named(topic)

    async def once(admin: Admin) -> None:
        found = [only_named(lag, names) for lag in await _lags(admin, groups)]
        print_lags([lag_details(lag, now_ms()) for lag in found], output, watch)

    look(bootstrap, once, watch=watch, interval=interval)


async def _lags(admin: Admin, groups: Sequence[str] | None) -> list[GroupLag]:
    if groups:
        return [await admin.groups.lag(group) for group in groups]
    listed = await admin.groups.list()
    warn_about_silent(listed.silent, "groups")
    found = []
    for listing in listed.groups:
        try:
            found.append(await admin.groups.lag(listing.group))
        except KafkaError as error:
            # The group was deleted after it was listed.
            if error.code != ErrorCode.GROUP_ID_NOT_FOUND:
                raise
    return found


def only_named(found: GroupLag, names: Names) -> GroupLag:
    wanted = [
        lag
        for lag in found.partitions
        if not names or (lag.topic, None) in names or (lag.topic, lag.partition) in names
    ]
    return replace(found, partitions=wanted)


def print_lags(found: list[LagDetails], output: Output, watch: bool) -> None:
    if output is Output.JSON:
        if watch:
            render.write(render.json_line(render.plain(found)))
        else:
            render.show(found, output)
        return
    if not found:
        render.say("There are no groups.")
    text = "\n".join(map(lag_page, found))
    (render.write_page if watch else render.write)(text)


@app.command()
def delete(
    groups: Groups,
    if_exists: Annotated[
        bool, typer.Option("--if-exists", help="Do not fail if the group does not exist.")
    ] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = LOCALHOST,
    output: OutputOption = Output.TABLE,
) -> None:
    """Delete groups without members, and their committed offsets.

    If one of several groups does not exist or has members, none is deleted.
    """

    async def prepare(admin: Admin) -> list[DeleteRow]:
        return [await _deletable(admin, group, if_exists) for group in dict.fromkeys(groups)]

    async def run(admin: Admin) -> list[DeleteRow]:
        return [await _delete(admin, row) for row in before]

    before = ask(bootstrap, prepare)
    due = [row for row in before if row.result == WOULD_BE]
    if due and not dry_run:
        partitions = counted(sum(row.partitions for row in due), "partition")
        names = ", ".join(row.group for row in due)
        confirm(f"Delete {names}, and the committed offsets of {partitions}?", yes=yes)
    render.show(before if dry_run else ask(bootstrap, run), output)


async def _deletable(admin: Admin, name: str, if_exists: bool) -> DeleteRow:
    """What a deletion of this group would do; a group with members is refused."""
    try:
        group = await admin.groups.describe(name)
    except KafkaError as error:
        if not (if_exists and error.code == ErrorCode.GROUP_ID_NOT_FOUND):
            raise
        return DeleteRow(name, "does not exist", 0)
    refuse_members(group, "deleted")
    return DeleteRow(name, WOULD_BE, len(await admin.groups.committed(name)))


async def _delete(admin: Admin, row: DeleteRow) -> DeleteRow:
    if row.result != WOULD_BE:
        return row
    try:
        await admin.groups.delete(row.group)
    except KafkaError as error:
        if error.code != ErrorCode.NON_EMPTY_GROUP:
            raise
        raise Failed(
            f"A member has just joined {row.group!r}; the group was not deleted."
        ) from None
    return replace(row, result="deleted")
