"""`python -m examples.demo`: three brokers, traffic and a pipeline, and a broker killed on demand.

The brokers are those of `hightide up`, with its options. In a terminal the demo draws a live view;
otherwise it prints a line for each event, and one every few seconds.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hightide.cli import up
from hightide.cli.local_cluster import LocalCluster
from hightide.process import ServiceFailed, join_parent

if TYPE_CHECKING:
    from examples.demo.console import DemoConsole
    from examples.demo.demo import Demo
    from examples.demo.snapshot import Event, Snapshot
    from examples.demo.view import Screen

app = typer.Typer(
    help="Run three brokers, traffic and a pipeline, and kill a broker.\n\n"
    "Keys: k kills a broker, r restarts it, c shows the console, q quits. "
    "`python -m examples.demo kill` kills one from another terminal.",
    invoke_without_command=True,
    pretty_exceptions_enable=False,
)

BROKERS = 3
DATA = Path(".hightide") / "demo"
# A failover that takes seconds, and internal topics of a size for three brokers.
SETTINGS = (
    "zookeeper.session.timeout.ms=6000",
    "offsets.topic.num.partitions=6",
    "transaction.state.log.num.partitions=6",
)
TICK_S = 0.25
LINE_EVERY_S = 5.0
DRAIN_S = 120.0

Data = Annotated[
    Path, typer.Option("--data", metavar="DIR", help="Where data and logs are kept between runs.")
]


@app.callback()
def demo(
    context: typer.Context,
    port: Annotated[
        int, typer.Option(help="Port of the first broker, the others count up; 0 picks free ones.")
    ] = 9092,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    zookeeper_port: Annotated[
        int | None,
        typer.Option(
            "--zookeeper-port",
            "--coordinator-port",
            metavar="PORT",
            help="Port of the embedded ZooKeeper.",
        ),
    ] = None,
    data: Data = DATA,
    memory: Annotated[
        bool, typer.Option("--memory", help="Keep the brokers' data in memory only.")
    ] = False,
    console_port: Annotated[
        int | None,
        typer.Option(
            metavar="PORT",
            help="Port of the console; 0 picks a free one. Default: 8088 or the next that is free.",
        ),
    ] = None,
    no_console: Annotated[bool, typer.Option("--no-console", help="Start no console.")] = False,
    override: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A broker setting, by Kafka's name; repeatable."),
    ] = None,
    rate: Annotated[
        float, typer.Option(min=0.1, metavar="N", help="Orders per second, with 3 clicks each.")
    ] = 50.0,
    duration: Annotated[
        float | None,
        typer.Option(min=1, metavar="SECONDS", help="Stop this long after the first results."),
    ] = None,
    no_pipeline: Annotated[
        bool, typer.Option("--no-pipeline", help="Only brokers and traffic, without Spark.")
    ] = False,
) -> None:
    """Start the brokers and everything else, and show it until a key, a signal or --duration."""
    if context.invoked_subcommand is not None:
        return
    # The user's overrides come last, so they win.
    argv = ["--brokers", str(BROKERS), "--port", str(port), "--host", host]
    argv += ["--memory"] if memory else []
    if zookeeper_port is not None:
        argv += ["--zookeeper-port", str(zookeeper_port)]
    argv += ["--no-console"] if no_console else []
    if console_port is not None:
        argv += ["--console-port", str(console_port)]
    for setting in (*SETTINGS, *(override or ())):
        argv += ["--override", setting]
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    with contextlib.ExitStack() as stack:
        folder = data
        if memory:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hightide-")))
        options = up.parse(argv)
        cluster = up.local_cluster(options, folder)
        stack.callback(cluster.stop)
        try:
            at = up.console_port(options)
        except ServiceFailed as error:
            raise typer.Exit(_fail(error)) from None
        code = _run(cluster, at, folder, data, rate, duration, no_pipeline, stop)
    raise typer.Exit(code)


def _run(
    cluster: LocalCluster,
    console_port: int,
    folder: Path,
    data: Path,
    rate: float,
    duration: float | None,
    no_pipeline: bool,
    stop: threading.Event,
) -> int:
    """Start everything, show it, stop everything but the brokers; return the exit code."""
    try:
        cluster.start()
        bootstrap = ",".join(broker.address for broker in cluster.brokers)
        _print_line(f"bootstrap: {bootstrap}")
        # Imported late, because the brokers serve while this loads.
        from examples.demo.console import DemoConsole
        from examples.demo.demo import Demo
        from examples.demo.local_cluster import KillableBrokers
        from examples.demo.pipeline import PipelineProcess, missing_requirement

        reason = "--no-pipeline was given." if no_pipeline else missing_requirement()
        is_live = sys.stdout.isatty()
        running = Demo(
            bootstrap,
            data,
            rate=rate,
            listen=_ignore if is_live else _print_event,
            pipeline=None if reason else PipelineProcess(bootstrap, folder),
            no_pipeline_reason=reason,
        )
        killable = KillableBrokers(
            cluster.brokers,
            cluster.zookeeper,
            running.events.add,
            keeps_data=cluster.keeps_data,
        )
        console = DemoConsole(
            console_port,
            [broker.address for broker in cluster.brokers],
            folder,
            killable,
            lambda: running.cluster,
            running.events.add if is_live else _print_line,
        )
        try:
            console.start()
            running.start(killable)
            return _show(running, console, duration, stop, is_live=is_live)
        finally:
            console.close()
            running.stop()
    except ServiceFailed as error:
        return _fail(error)


def _show(
    running: Demo,
    console: DemoConsole,
    duration: float | None,
    stop: threading.Event,
    *,
    is_live: bool,
) -> int:
    """Show the demo until a key, a signal or the duration ends it; return the exit code."""
    from examples.demo.snapshot import verdict

    is_drained = False
    with _screen() if is_live else contextlib.nullcontext(_Lines()) as screen, _keys() as key:
        while not stop.is_set() and not running.is_over(duration):
            running.tick()
            snapshot = replace(running.snapshot(), console=console.url)
            screen.draw(snapshot)
            console.publish(snapshot)
            pressed = key(TICK_S, stop)
            if pressed == "c":
                console.open_browser()
            if not running.press(pressed):
                break
        if duration is not None and not stop.is_set():
            is_drained = running.drain(DRAIN_S, stop) or not stop.is_set()
    _print_line(verdict(running.check, is_drained=is_drained))
    return 0 if running.check.is_complete or not is_drained else 1


class _Lines:
    """Prints a snapshot as a line every few seconds, where there is no terminal."""

    def __init__(self) -> None:
        self._next = time.monotonic() + LINE_EVERY_S

    def draw(self, snapshot: Snapshot) -> None:
        if time.monotonic() >= self._next:
            from examples.demo.snapshot import line

            self._next += LINE_EVERY_S
            _print_line(f"{time.strftime('%H:%M:%S')} {line(snapshot)}")


def _screen() -> Screen:
    from examples.demo.view import Screen

    return Screen()


def _print_line(text: str) -> None:
    # One write: several threads print, and `print` writes the end of a line separately.
    print(f"{text}\n", end="", flush=True)


def _print_event(event: Event) -> None:
    _print_line(f"{event.at} * {event.sentence}")


def _ignore(_: Event) -> None:
    pass


@contextlib.contextmanager
def _keys() -> Iterator[Callable[[float, threading.Event], str]]:
    """Yield a function that waits for a key, or only waits if stdin is no terminal."""
    if not sys.stdin.isatty():

        def no_key(seconds: float, stop: threading.Event) -> str:
            stop.wait(seconds)
            return ""

        yield no_key
        return

    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)

    def read_key(seconds: float, _stop: threading.Event) -> str:
        ready, _, _ = select.select([sys.stdin], [], [], seconds)
        return os.read(sys.stdin.fileno(), 1).decode(errors="replace") if ready else ""

    try:
        tty.setcbreak(sys.stdin)
        yield read_key
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


@app.command()
def kill(
    broker: Annotated[
        int | None, typer.Argument(metavar="[BROKER]", help="Default: the one that leads most.")
    ] = None,
    data: Data = DATA,
) -> None:
    """Kill a broker of the demo that runs in another terminal."""
    _send(data, "kill", *([] if broker is None else [str(broker)]))


@app.command()
def restart(data: Data = DATA) -> None:
    """Restart the killed broker at once."""
    _send(data, "restart")


def _send(data: Path, *words: str) -> None:
    from examples.demo.control import NoDemo, send_command

    try:
        print(send_command(data, *words))
    except NoDemo as error:
        raise typer.Exit(_fail(error)) from None


def _fail(error: Exception) -> int:
    print(f"demo: {error}", file=sys.stderr)
    return 1


@app.command(hidden=True)
def pipeline(
    bootstrap: Annotated[str, typer.Option()], data: Annotated[Path, typer.Option()]
) -> None:
    """Run the pipeline, as the demo starts it."""
    from examples.demo.pipeline import run

    join_parent()
    raise typer.Exit(run(bootstrap, data))


if __name__ == "__main__":
    app(prog_name="python -m examples.demo")
