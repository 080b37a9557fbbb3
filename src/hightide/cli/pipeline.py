"""`hightide pipeline …`: run the apps of `hightide.spark.streams`, and show their status.

Spark is imported only inside the commands that need it: `list` and `status` read files that a
running app writes, and answer at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hightide.cli import pipeline_rows, render
from hightide.cli.broken_pipe import ReaderGone
from hightide.cli.extra import require_spark
from hightide.cli.options import DryRun, Failed, OutputOption, Yes, confirm, pairs, wrong_usage
from hightide.cli.render import Output
from hightide.cli.watch import Interval, Watch
from hightide.client.broker_connection import ConnectionFailed
from hightide.wire.errors import KafkaError

if TYPE_CHECKING:
    from hightide.spark.pipelines.status import AppStatus
    from hightide.spark.streams import App

app = typer.Typer(
    no_args_is_help=True,
    help="Run apps on Spark that read topics and write topics and tables, and show their status.",
)

UNHEALTHY = 3

File = Annotated[
    Path,
    typer.Argument(
        metavar="APP.py|APP.yaml", exists=True, dir_okay=False, help="The file of the app."
    ),
]
Bootstrap = Annotated[
    str | None,
    typer.Option(
        "--bootstrap",
        "-b",
        envvar="HIGHTIDE_BOOTSTRAP",
        metavar="HOST:PORT",
        help="A broker of the cluster. Default: the app's.",
    ),
]
Master = Annotated[
    str | None,
    typer.Option(
        "--master",
        envvar="HIGHTIDE_MASTER",
        metavar="URL",
        help="Where Spark runs: local[2], spark://HOST:PORT. Default: the app's, or local.",
    ),
]
StateOption = Annotated[
    str | None,
    typer.Option(
        "--state",
        envvar="HIGHTIDE_STATE",
        metavar="DIR",
        help="Where progress and state are kept. Default: the app's, or ./.hightide/pipelines.",
    ),
]
Conf = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="NAME=VALUE", help="A setting of Spark's; repeatable."),
]
Only = Annotated[
    list[str] | None, typer.Option("--only", metavar="QUERY", help="Only this query; repeatable.")
]
Trace = Annotated[bool, typer.Option("--trace", help="On an error, print the whole trace.")]


def load(
    file: Path, bootstrap: str | None, master: str | None, state: str | None, conf: Any
) -> App:
    """Load the app of a file, with the settings of the command line."""
    require_spark()
    from hightide.spark.pipelines.app_loader import LoadError
    from hightide.spark.pipelines.app_loader import load as load_file

    settings = pairs(conf, "setting of Spark")
    try:
        found = load_file(file)
    except LoadError as error:
        raise Failed(str(error)) from None
    found.configure(brokers=bootstrap, master=master, state=state, settings=settings)
    if "://" not in found.state:
        # Spark's processes may have another working directory.
        found.configure(state=Path(found.state).absolute())
    return found


def check_names(found: App, only: list[str] | None) -> list[str]:
    for name in only or ():
        if name not in found.queries:
            wrong_usage(f"there is no query {name!r}; expected one of {', '.join(found.queries)}")
    return list(only or ())


@contextlib.contextmanager
def explained(found: App, file: Path, *, trace: bool) -> Iterator[None]:
    """Explain an error in a few lines, and log the whole trace."""
    from hightide.spark import explain
    from hightide.spark.pipelines import logs
    from hightide.spark.pipelines.app_runner import RunFailed, folder_of
    from hightide.spark.pipelines.status import AlreadyRunning
    from hightide.spark.session import NoJava
    from hightide.spark.streams import StreamsError

    try:
        yield
    except (AlreadyRunning, NoJava) as error:
        raise Failed(str(error)) from None
    except RunFailed as error:
        text, whole, log = str(error), error.trace, error.log
    except (Failed, ReaderGone, typer.Exit, typer.BadParameter):
        raise
    except Exception as error:
        whole = getattr(error, "whole", None) or explain.full(error)
        is_ours = isinstance(error, StreamsError | ConnectionFailed)
        text = str(error) if is_ours else str(explain.explain(error, file))
        log = logs.keep(folder_of(found), whole)
    else:
        return
    if trace:
        render.say(whole.rstrip())
    raise Failed(f"{text}\nThe whole trace is in {log}." if not trace else text)


@app.command()
def run(
    file: File,
    master: Master = None,
    once: Annotated[
        bool, typer.Option("--once", help="Process what is there now, and end.")
    ] = False,
    only: Only = None,
    reset: Annotated[
        bool, typer.Option("--reset", help="First delete progress and state: start over.")
    ] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    state: StateOption = None,
    bootstrap: Bootstrap = None,
    conf: Conf = None,
    grace: Annotated[
        float,
        typer.Option(
            "--grace", min=0, metavar="SECONDS", help="How long micro-batches may take to finish."
        ),
    ] = 30.0,
    trace: Trace = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Run an app until Ctrl-C, with its progress on stderr.

    Ctrl-C or SIGTERM lets the current micro-batches finish; a second one stops at once. -o json
    prints the status as JSON lines on stdout.
    """
    found = load(file, bootstrap, master, state, conf)
    names = check_names(found, only)
    if dry_run and not reset:
        wrong_usage(
            "--dry-run needs --reset; `hightide pipeline plan` shows an app without running it"
        )
    with explained(found, file, trace=trace):
        if reset:
            _reset(found, names, yes=yes, dry_run=dry_run)
        if not dry_run:
            _run(found, file, names, once=once, grace=grace, output=output)


def _run(
    found: App, file: Path, only: list[str], *, once: bool, grace: float, output: Output
) -> None:
    from hightide.spark.pipelines import app_runner, display

    with contextlib.ExitStack() as stack:
        if output is Output.JSON:
            show: Callable[[AppStatus], None] = _json_lines()
        elif sys.stderr.isatty():
            show = stack.enter_context(display.live())
        else:
            show = display.lines(render.say)
        app_runner.run(found, file, once=once, only=only, grace_s=grace, show=show, say=render.say)


def _json_lines() -> Callable[[AppStatus], None]:
    last: list[AppStatus] = []

    def show(status: AppStatus) -> None:
        if last != [status]:
            last[:] = [status]
            render.write(render.json_line(render.plain(status)))

    return show


def _reset(found: App, only: list[str], *, yes: bool, dry_run: bool) -> None:
    from hightide.spark.pipelines import checkpoint_reset
    from hightide.spark.pipelines.app_runner import folder_of
    from hightide.spark.pipelines.status import app_lock

    try:
        with app_lock(folder_of(found), found.name):
            progress = checkpoint_reset.stored_progress(found, only)
            for entry in progress:
                render.say(f"{entry.query}: {entry.kind} {entry.name} {entry.result}")
            if not progress:
                render.say(f"App {found.name} has no stored progress.")
            elif not dry_run:
                confirm(f"Delete the progress and state of {found.name}?", yes=yes)
                checkpoint_reset.delete(found, progress)
                render.say("Deleted. Topics and tables that were written are kept.")
    except checkpoint_reset.ResetFailed as error:
        raise Failed(str(error)) from None


@app.command()
def plan(
    file: File,
    master: Master = None,
    only: Only = None,
    logical: Annotated[
        bool, typer.Option("--logical", help="Also show Spark's logical plan.")
    ] = False,
    state: StateOption = None,
    bootstrap: Bootstrap = None,
    conf: Conf = None,
    trace: Trace = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show what an app would do: what it reads and writes, and with which columns.

    Finds unknown columns, impossible output modes and other mistakes. Asks no broker.
    """
    found = load(file, bootstrap, master, state, conf)
    names = check_names(found, only)
    with explained(found, file, trace=trace):
        _start_spark(found, file)
        rows = [pipeline_rows.planned(plan) for plan in found.plan(names)]
    if output is Output.JSON:
        render.show(rows, output)
    else:
        render.write("\n".join(pipeline_rows.plan_page(row, logical=logical) for row in rows))


@app.command("test")
def try_(
    file: File,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="TEST", help="Default: all of them.")
    ] = None,
    conf: Conf = None,
    trace: Trace = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Run the tests of an app: its functions test_…, or the tests of its YAML.

    A test gives rows to a query and checks the result; no broker is asked.
    """
    found = load(file, None, "local[1]", None, conf)
    if not found.tests:
        raise Failed(f"{file} has no tests: functions test_… in Python, tests: in YAML.")
    for name in names or ():
        if name not in found.tests:
            wrong_usage(f"there is no test {name!r}; expected one of {', '.join(found.tests)}")
    with explained(found, file, trace=trace):
        _start_spark(found, file)
        rows = [
            pipeline_rows.run_test(name, found.tests[name], file) for name in names or found.tests
        ]
    render.show(rows, output, ("test", "result", "seconds"))
    for row in rows:
        if row.error and output is not Output.JSON:
            render.say(f"\n{row.test}: {row.error}")
    wrong = sum(row.result != "passed" for row in rows)
    if wrong:
        raise Failed(f"{wrong} of {len(rows)} tests failed.")


def _start_spark(found: App, file: Path) -> None:
    from hightide.spark.pipelines import app_runner

    app_runner.prepare(found, file, is_short=True)
    app_runner.start_spark(found)


def _state(given: str | None) -> Path:
    from hightide.spark.pipelines.app_runner import state_folder

    return state_folder(given)


@app.command("list")
def list_(state: StateOption = None, output: OutputOption = Output.TABLE) -> None:
    """List the apps that have run with a state folder, and their state."""
    from hightide.spark.pipelines.status import known

    rows = [pipeline_rows.app_row(status) for status in known(_state(state))]
    if not rows:
        render.say(f"No app has run with its state in {_state(state)}.")
    render.show(rows, output)


@app.command()
def status(
    name: Annotated[str | None, typer.Argument(metavar="[APP]", help="Default: all.")] = None,
    state: StateOption = None,
    watch: Watch = False,
    interval: Interval = 2.0,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show the status of apps and their queries: rates, lag, batch time, watermark, state.

    The lag is asked of the brokers, the rest is what the app last wrote. Exit code 3 if an app that
    was named has failed or died.
    """
    from hightide.spark.pipelines.status import State, known

    async def look() -> list[AppStatus]:
        while True:
            found = [status for status in known(_state(state)) if name in (None, status.app)]
            if not found and not watch:
                never = f"App {name!r} has never" if name else "No app has"
                raise Failed(f"{never} run with its state in {_state(state)}.")
            _show_status([await _with_lag(status) for status in found], output, watch=watch)
            if not watch:
                return found
            await asyncio.sleep(interval)

    try:
        found = asyncio.run(look())
    except KeyboardInterrupt:
        return
    if name and any(status.state in (State.FAILED, State.DIED) for status in found):
        raise typer.Exit(UNHEALTHY)


async def _with_lag(found: AppStatus) -> AppStatus:
    from hightide.spark.pipelines.current_lag import refresh

    try:
        return await refresh(found)
    except (ConnectionFailed, KafkaError, OSError) as error:
        render.say(f"The lag of {found.app} is that of its last micro-batch: {error}")
    return found


def _show_status(found: list[AppStatus], output: Output, *, watch: bool) -> None:
    if output is Output.JSON:
        if watch:
            render.write(render.json_line(render.plain(found)))
        else:
            render.show(found, output)
        return
    text = "\n".join(pipeline_rows.status_page(status, int(time.time() * 1000)) for status in found)
    (render.write_page if watch else render.write)(text)
