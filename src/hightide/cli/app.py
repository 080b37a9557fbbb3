"""The tree of commands, and what happens when one of them fails.

A failure is one sentence on stderr and exit code 1, never a traceback.  A wrong command line is
exit code 2.  `up`, `broker start` and `zookeeper start` are here for `--help` only: the entry point
runs them without loading this module, because they must start fast.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from hightide import __version__
from hightide.cli import (
    cluster,
    config,
    doctor,
    dump_log,
    ingest,
    pipeline,
    table,
    topic,
    transaction,
    zookeeper,
)
from hightide.cli.group import commands as group
from hightide.cli.options import Failed
from hightide.cli.partition import commands as partition
from hightide.cli.perf import commands as perf
from hightide.cli.record.consume import consume
from hightide.cli.record.produce import produce
from hightide.cli.render import say, write
from hightide.client.broker_connection import ConnectionFailed
from hightide.wire.errors import Corrupt, KafkaError

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


def print_version(wanted: bool) -> None:
    if wanted:
        write(f"hightide {__version__}\n")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", "-V", callback=print_version, is_eager=True, help="Show the version."
        ),
    ] = False,
) -> None:
    """A Kafka-compatible broker, and a command line for any Kafka cluster."""


@app.command(rich_help_panel="Run", context_settings={"allow_extra_args": True})
def up() -> None:
    """Start a local cluster and keep it running until Ctrl-C."""


broker = typer.Typer(no_args_is_help=True, help="Run one broker.")


@broker.command(context_settings={"allow_extra_args": True})
def start() -> None:
    """Run one broker with a properties file and overrides."""


@broker.callback()
def broker_group() -> None:
    """Run one broker."""


app.add_typer(broker, name="broker", rich_help_panel="Run")
app.add_typer(zookeeper.app, name="zookeeper", rich_help_panel="Run")
app.add_typer(zookeeper.app, name="coordinator", hidden=True)  # its name in earlier versions
app.command(rich_help_panel="Run")(doctor.doctor)
app.add_typer(topic.app, name="topic", rich_help_panel="Inspect and change")
app.add_typer(partition.app, name="partition", rich_help_panel="Inspect and change")
app.add_typer(group.app, name="group", rich_help_panel="Inspect and change")
app.add_typer(transaction.app, name="txn", rich_help_panel="Inspect and change")
app.add_typer(config.app, name="config", rich_help_panel="Inspect and change")
app.add_typer(cluster.app, name="cluster", rich_help_panel="Inspect and change")
app.command(rich_help_panel="Records")(produce)
app.command(rich_help_panel="Records")(consume)
app.add_typer(perf.app, name="perf", rich_help_panel="Records")
app.command("dump-log", rich_help_panel="Records")(dump_log.dump_log)
app.add_typer(ingest.app, name="ingest", rich_help_panel="Pipelines")
app.add_typer(pipeline.app, name="pipeline", rich_help_panel="Pipelines")
app.add_typer(table.app, name="table", rich_help_panel="Pipelines")


def run(arguments: list[str]) -> int:
    """Run one command and return the exit code."""
    try:
        app(args=arguments, prog_name="hightide")
    except SystemExit as stopped:
        return stopped.code if isinstance(stopped.code, int) else 1
    except (Failed, ConnectionFailed, Corrupt, OSError) as error:
        say(f"hightide: {error}")
    except KafkaError as error:
        say(f"hightide: {error.detail.removesuffix('.')} ({error.code.name}).")
    except BrokenPipeError:
        # The reader of the output has closed the pipe, as `head` does. That is no failure, but
        # Python would report it when it flushes stdout at exit.
        sys.stdout = None
    return 1
