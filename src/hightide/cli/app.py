"""The tree of commands, and what happens when one of them fails.

A failure is one sentence on stderr and exit code 1, never a traceback.  A wrong command line is
exit code 2.  `up`, `broker start` and `zookeeper start` are here for `--help` only: the entry point
runs them without loading this module, because they must start fast.

A module of commands is imported when one of its commands runs: importing all of them takes longer
than most commands do.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer

from hightide import __version__
from hightide.cli import broken_pipe
from hightide.cli.options import Failed, timeout_option
from hightide.cli.parameters import adapt, add_option
from hightide.cli.render import say, write
from hightide.client.broker_connection import ConnectionFailed
from hightide.wire.errors import Corrupt, KafkaError

RUN, CHANGE, RECORDS, PIPELINES = "Run", "Inspect and change", "Records", "Pipelines"


class Place(NamedTuple):
    """Where a command, or a group of commands, is declared."""

    panel: str
    module: str
    name: str = "app"
    hidden: bool = False


COMMANDS = {
    "up": Place(RUN, "hightide.cli.app", "up"),
    "broker": Place(RUN, "hightide.cli.broker"),
    "zookeeper": Place(RUN, "hightide.cli.zookeeper"),
    # Its name in earlier versions.
    "coordinator": Place(RUN, "hightide.cli.zookeeper", hidden=True),
    "console": Place(RUN, "hightide.cli.console", "console"),
    "doctor": Place(RUN, "hightide.cli.doctor", "doctor"),
    "generate": Place(RUN, "hightide.cli.generate.commands"),
    "topic": Place(CHANGE, "hightide.cli.topic"),
    "partition": Place(CHANGE, "hightide.cli.partition.commands"),
    "group": Place(CHANGE, "hightide.cli.group.commands"),
    "txn": Place(CHANGE, "hightide.cli.transaction"),
    "config": Place(CHANGE, "hightide.cli.config"),
    "cluster": Place(CHANGE, "hightide.cli.cluster"),
    "events": Place(CHANGE, "hightide.cli.events", "events"),
    "produce": Place(RECORDS, "hightide.cli.record.produce", "produce"),
    "consume": Place(RECORDS, "hightide.cli.record.consume", "consume"),
    "perf": Place(RECORDS, "hightide.cli.perf.commands"),
    "dump-log": Place(RECORDS, "hightide.cli.dump_log", "dump_log"),
    "ingest": Place(PIPELINES, "hightide.cli.ingest"),
    "pipeline": Place(PIPELINES, "hightide.cli.pipeline"),
    "table": Place(PIPELINES, "hightide.cli.table"),
}


def print_version(wanted: bool) -> None:
    if wanted:
        write(f"hightide {__version__}\n")
        raise typer.Exit


def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", "-V", callback=print_version, is_eager=True, help="Show the version."
        ),
    ] = False,
) -> None:
    """A Kafka-compatible broker, and a command line for any Kafka cluster."""


def up() -> None:
    """Start a local cluster and keep it running until Ctrl-C."""


def tree(words: Sequence[str] = ()) -> Any:
    """The tree of commands; only the branch that the words begin with, if they name one."""
    app = typer.Typer(
        name="hightide",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="markdown",
        context_settings={"help_option_names": ["--help", "-h"]},
        help="A Kafka-compatible broker, and a command line for any Kafka cluster.",
        epilog="Commands connect to --bootstrap, else to $HIGHTIDE_BOOTSTRAP, else to "
        "localhost:9092. Data goes to stdout, messages to stderr; -o json prints JSON. "
        "Exit codes: 0 done, 1 failed, 2 wrong usage, 3 unhealthy.",
    )
    app.callback()(root)
    for name in words[:1] if words and words[0] in COMMANDS else COMMANDS:
        place = COMMANDS[name]
        found = getattr(import_module(place.module), place.name)
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=name, rich_help_panel=place.panel, hidden=place.hidden)
        else:
            settings = {"allow_extra_args": True} if found is up else None
            app.command(name, rich_help_panel=place.panel, context_settings=settings)(found)
    command: Any = typer.main.get_command(app)
    for name, child in command.commands.items():
        if COMMANDS[name].panel in (CHANGE, RECORDS):
            add_option(child, timeout_option)
    adapt(command)
    return command


def typed(arguments: Sequence[str]) -> Sequence[str]:
    """The words after `hightide`: of the command line, or of the one that a shell completes."""
    line = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS")
    if "_HIGHTIDE_COMPLETE" not in os.environ or line is None:
        return arguments
    # The word before the cursor may still become the name of another command.
    words = line.split()[1:]
    return words if len(words) > 1 or line[-1:].isspace() else ()


def run(arguments: list[str]) -> int:
    """Run one command and return the exit code."""
    return broken_pipe.run(lambda: _run(arguments))


def _run(arguments: list[str]) -> int:
    try:
        tree(typed(arguments))(args=arguments, prog_name="hightide")
    except SystemExit as stopped:
        return stopped.code if isinstance(stopped.code, int) else 1
    except (Failed, ConnectionFailed, Corrupt, OSError) as error:
        say(f"hightide: {error}")
    except KafkaError as error:
        say(f"hightide: {error.detail.removesuffix('.')} ({error.code.name}).")
    return 1
