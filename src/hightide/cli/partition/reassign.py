"""`hightide partition reassign`: move replicas to other brokers.

--to, --file       start; the controller adds replicas first, and removes others at the end
--cancel           return to the replicas from before
--list             show reassignments in progress, and how much is left to copy
--wait             wait for the end
--throttle         limit the traffic; the limit is removed at the end of --wait
--remove-throttle  remove all limits
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from hightide.cli import completion, render
from hightide.cli.names import METAVAR, Names, named, topics_of
from hightide.cli.options import (
    LOCALHOST,
    Bootstrap,
    DryRun,
    Failed,
    OutputOption,
    ask,
    wrong_usage,
)
from hightide.cli.partition.plan import Plan, parse_brokers, parse_plan
from hightide.cli.partition.reassignment import (
    ChangeRow,
    ReassignmentRun,
    cancel_reassignments,
    in_progress,
)
from hightide.cli.render import Output
from hightide.client.admin.throttle import remove_throttle


@dataclass(frozen=True, slots=True)
class ThrottleRow:
    topic: str
    result: str


def reassign(
    partitions: Annotated[
        list[str] | None, typer.Argument(metavar=METAVAR, autocompletion=completion.partitions)
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="1,2,3",
            help="The new replicas of each partition. The first is the preferred leader of a single"
            " partition; for a whole topic the brokers take turns.",
        ),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file", exists=True, dir_okay=False, help="A plan in Kafka's reassignment JSON."
        ),
    ] = None,
    throttle: Annotated[
        int | None,
        typer.Option(
            "--throttle",
            min=1,
            metavar="BYTES_PER_S",
            help="Limit for each broker, each way; also for reassignments in progress.",
        ),
    ] = None,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Cancel, and return to the old replicas.")
    ] = False,
    list_: Annotated[bool, typer.Option("--list", help="Show reassignments in progress.")] = False,
    remove_throttles: Annotated[
        bool,
        typer.Option(
            "--remove-throttle", help="Remove all limits of the topics and of all brokers."
        ),
    ] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the end.")] = False,
    timeout: Annotated[
        float | None,
        typer.Option("--timeout", min=0, metavar="SECONDS", help="How long to --wait."),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(
            "--save", help="First write the current assignment to this file, as a plan to go back."
        ),
    ] = None,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = LOCALHOST,
    output: OutputOption = Output.TABLE,
) -> None:
    """Move partitions to other brokers, or change their replication factor."""
    names = named(partitions)
    targets = brokers_of(to)
    plan = plan_of(file)
    check_usage(names, targets, plan, cancel, list_, remove_throttles, throttle, wait)
    if list_:
        rows = ask(bootstrap, lambda admin: in_progress(admin, names))
        if not rows:
            render.say("No reassignment is in progress.")
        render.show(rows, output)
    elif remove_throttles:
        topics = topics_of(names) or None
        limited = ask(bootstrap, lambda admin: remove_throttle(admin, topics))
        render.show([ThrottleRow(topic, "unlimited") for topic in limited], output)
    elif cancel:
        finish(
            ask(bootstrap, lambda admin: cancel_reassignments(admin, names, plan, dry_run)), output
        )
    else:
        run = ReassignmentRun(names, targets, plan, throttle, save, dry_run, wait)
        finish(ask(bootstrap, run.start), output, only_failures=wait)
        if wait and not dry_run:
            ask(bootstrap, lambda admin: run.wait(admin, timeout))
            render.show(run.done(), output)


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
    """Refuse contradictory options before the cluster is asked anything."""
    actions = [
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
    if len(actions) > 1:
        wrong_usage(f"{actions[0]} and {actions[1]} cannot be combined")
    if not actions and throttle is None and not wait:
        wrong_usage("nothing to do: give --to, --file, --cancel, --list or --wait")
    if targets is not None and not names:
        wrong_usage("--to needs a TOPIC or TOPIC/PARTITION to move")
    if plan is not None and names:
        wrong_usage("a plan names its partitions; do not give TOPIC with --file")
    if cancel and not names and plan is None:
        wrong_usage("--cancel needs a TOPIC, a TOPIC/PARTITION or a --file")
    if throttle is not None and (cancel or list_ or remove_throttles):
        wrong_usage(f"--throttle cannot be combined with {actions[0]}")


def brokers_of(text: str | None) -> tuple[int, ...] | None:
    try:
        return None if text is None else parse_brokers(text)
    except ValueError as error:
        wrong_usage(str(error))


def plan_of(file: Path | None) -> Plan | None:
    if file is None:
        return None
    try:
        return parse_plan(file.read_text("utf-8"))
    except ValueError as error:
        wrong_usage(f"{file} is not a plan: {error}")


SUCCEEDED = {"moving", "there already", "done", "cancelled", "would be moved", "would be cancelled"}


def finish(rows: list[ChangeRow], output: Output, only_failures: bool = False) -> None:
    """Show the results; a refused partition makes the command fail."""
    failed = [row for row in rows if row.result not in SUCCEEDED]
    if failed or not only_failures:
        render.show(rows, output)
    if failed:
        raise Failed(f"{len(failed)} of {len(rows)} partitions were refused.")
