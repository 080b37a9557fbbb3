"""`hightide partition reassign`: move replicas to other brokers, and see that they arrive.

--to, --file      begin to move; the controller adds replicas, and removes others at the end
--cancel          go back to where they were
--list            what is on its way, and how much is left to copy
--wait            stay until it is done
--throttle        limit the traffic of it; taken away again at the end of --wait
--remove-throttle take all limits away
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from hightide.cli import render
from hightide.cli.moves import Journey, MoveRow, Names, call_off, ongoing
from hightide.cli.options import LOCALHOST, Bootstrap, DryRun, Failed, OutputOption, ask, misused
from hightide.cli.partition_rows import named
from hightide.cli.plan import Plan, parse_brokers, parse_plan
from hightide.cli.render import Output
from hightide.cli.replication_throttle import remove_throttle


@dataclass(frozen=True, slots=True)
class ThrottleRow:
    topic: str
    result: str


def reassign(
    partitions: Annotated[list[str] | None, typer.Argument(metavar="TOPIC[/PARTITION]")] = None,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="1,2,3",
            help="The brokers that shall hold each partition. For one partition the first is the"
            " preferred leader; for a topic they take turns.",
        ),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", dir_okay=False, help="A plan in Kafka's reassignment JSON."),
    ] = None,
    throttle: Annotated[
        int | None,
        typer.Option(
            "--throttle",
            min=1,
            metavar="BYTES_PER_S",
            help="What each broker may send and take for it; also of moves that are under way.",
        ),
    ] = None,
    cancel: Annotated[bool, typer.Option("--cancel", help="Stop moving and go back.")] = False,
    list_: Annotated[bool, typer.Option("--list", help="Show what is being moved.")] = False,
    remove_throttles: Annotated[
        bool,
        typer.Option("--remove-throttle", help="Take all limits from the topics and all brokers."),
    ] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Stay until it is done.")] = False,
    timeout: Annotated[
        float | None, typer.Option("--timeout", min=0, metavar="SECONDS", help="With --wait.")
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(
            "--save", help="First write the present assignment here: a plan that leads back."
        ),
    ] = None,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = LOCALHOST,
    output: OutputOption = Output.TABLE,
) -> None:
    """Move partitions to other brokers, or change how many replicas they have."""
    names = [named(text) for text in partitions or ()]
    targets = brokers_of(to)
    plan = plan_of(file)
    check_usage(names, targets, plan, cancel, list_, remove_throttles, throttle, wait)
    if list_:
        rows = ask(bootstrap, lambda admin: ongoing(admin, names))
        if not rows:
            render.say("Nothing is being moved.")
        render.show(rows, output)
    elif remove_throttles:
        topics = list(dict.fromkeys(topic for topic, _ in names)) or None
        limited = ask(bootstrap, lambda admin: remove_throttle(admin, topics))
        render.show([ThrottleRow(topic, "unlimited") for topic in limited], output)
    elif cancel:
        finish(ask(bootstrap, lambda admin: call_off(admin, names, plan, dry_run)), output)
    else:
        journey = Journey(names, targets, plan, throttle, save, dry_run, wait)
        finish(ask(bootstrap, journey.begin), output, only_failures=wait)
        if wait and not dry_run:
            ask(bootstrap, lambda admin: journey.arrive(admin, timeout))
            render.show(journey.done(), output)


def check_usage(
    names: Names,
    targets: tuple[int, ...] | None,
    plan: Plan | None,
    cancel: bool,
    list_: bool,
    remove_throttles: bool,
    throttle: int | None,
    wait: bool,
) -> None:
    """Refuse what contradicts itself before anything is asked of a cluster."""
    given = [
        name
        for name, is_given in (
            ("--to", targets is not None),
            ("--file", plan is not None and not cancel),
            ("--cancel", cancel),
            ("--list", list_),
            ("--remove-throttle", remove_throttles),
        )
        if is_given
    ]
    if len(given) > 1:
        misused(f"{given[0]} and {given[1]} do not go together")
    if not given and throttle is None and not wait:
        misused("nothing to do: give --to, --file, --cancel, --list or --wait")
    if targets is not None and not names:
        misused("--to needs a TOPIC or TOPIC/PARTITION to move")
    if plan is not None and names:
        misused("a plan names its own partitions; leave TOPIC away")
    if cancel and not names and plan is None:
        misused("--cancel needs a TOPIC, a TOPIC/PARTITION or a --file")
    if throttle is not None and (cancel or list_ or remove_throttles):
        misused(f"--throttle does not go with {given[0]}")


def brokers_of(text: str | None) -> tuple[int, ...] | None:
    try:
        return None if text is None else parse_brokers(text)
    except ValueError as error:
        misused(str(error))


def plan_of(file: Path | None) -> Plan | None:
    if file is None:
        return None
    try:
        return parse_plan(file.read_text("utf-8"))
    except ValueError as error:
        misused(f"{file} is no plan: {error}")


FINE = {"moving", "there already", "done", "cancelled", "would be moved", "would be cancelled"}


def finish(rows: list[MoveRow], output: Output, only_failures: bool = False) -> None:
    """Show what became of it; a part that was refused makes the command fail."""
    failed = [row for row in rows if row.result not in FINE]
    if failed or not only_failures:
        render.show(rows, output)
    if failed:
        raise Failed(f"{len(failed)} of {len(rows)} partitions were refused.")
