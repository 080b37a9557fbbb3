"""`hightide demo`: brokers, a stream and a pipeline, and what becomes of them when one is killed.

The brokers are those of `hightide up`, with its options.  In a terminal there is a live view;
otherwise there are lines, one for each event and one every few seconds.
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
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hightide.cli import up
from hightide.cli.options import Failed
from hightide.process import ServiceFailed, stop_with_parent

if TYPE_CHECKING:
    from hightide.demo.scene import Event, Scene
    from hightide.demo.show import Demo
    from hightide.demo.view import Screen

app = typer.Typer(
    help="Show three brokers, a stream and a pipeline at work, and kill a broker.\n\n"
    "Keys: k kills a broker, r starts it again, q ends everything. `hightide demo kill` does it "
    "from another terminal.",
    invoke_without_command=True,
)

BROKERS = 3
DATA = Path(".hightide") / "demo"
# A failover that can be watched, and internal topics of a size for three brokers.
SETTINGS = (
    "zookeeper.session.timeout.ms=6000",
    "offsets.topic.num.partitions=6",
    "transaction.state.log.num.partitions=6",
)
TURN_S = 0.25
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
    coordinator_port: Annotated[
        int | None, typer.Option(metavar="PORT", help="Port of the coordinator.")
    ] = None,
    data: Data = DATA,
    memory: Annotated[
        bool, typer.Option("--memory", help="Keep the brokers' data in memory only.")
    ] = False,
    console_port: Annotated[
        int, typer.Option(metavar="PORT", help="Accepted; this version has no console.")
    ] = 8088,
    no_console: Annotated[
        bool, typer.Option("--no-console", help="Accepted; this version has no console.")
    ] = False,
    override: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A broker setting, by Kafka's name; repeatable."),
    ] = None,
    rate: Annotated[
        float, typer.Option(min=0.1, metavar="N", help="Orders per second; three clicks each.")
    ] = 50.0,
    duration: Annotated[
        float | None,
        typer.Option(
            min=1, metavar="SECONDS", help="End by itself so long after the first results."
        ),
    ] = None,
    no_pipeline: Annotated[
        bool, typer.Option("--no-pipeline", help="Only brokers and stream, without Spark.")
    ] = False,
) -> None:
    """Start the brokers, and show them with the rest until somebody or the clock ends it."""
    if context.invoked_subcommand is not None:
        return
    _ = console_port, no_console
    # What is given comes last, and so counts.
    argv = ["--brokers", str(BROKERS), "--port", str(port), "--host", host]
    argv += ["--memory"] if memory else []
    if coordinator_port is not None:
        argv += ["--coordinator-port", str(coordinator_port)]
    for each in (*SETTINGS, *(override or ())):
        argv += ["--override", each]
    asked = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: asked.set())
    with contextlib.ExitStack() as stack:
        place = data
        if memory:
            place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hightide-")))
        cluster = up.LocalCluster.of(up.parse(argv), place)
        stack.callback(cluster.stop)
        code = _show(cluster, place, data, rate, duration, no_pipeline, asked)
    raise typer.Exit(code)


def _show(
    cluster: up.LocalCluster,
    place: Path,
    data: Path,
    rate: float,
    duration: float | None,
    no_pipeline: bool,
    asked: threading.Event,
) -> int:
    """Start everything, show it, end everything but the brokers; the exit code."""
    # Loaded while nobody waits for it any more: the brokers serve before.
    try:
        cluster.start()
        bootstrap = ",".join(each.address for each in cluster.brokers)
        print(f"bootstrap: {bootstrap}", flush=True)
        from hightide.demo.pipeline import PipelineProcess, why_not
        from hightide.demo.show import Demo
        from hightide.demo.stage import Stage

        reason = "it was not wanted." if no_pipeline else why_not()
        is_live = sys.stdout.isatty()
        shown = Demo(
            bootstrap,
            data,
            rate=rate,
            listen=_ignore if is_live else _print_event,
            pipeline=None if reason else PipelineProcess(bootstrap, place),
            why_none=reason,
        )
        try:
            shown.start(
                Stage(
                    cluster.brokers,
                    cluster.coordinator,
                    shown.events.tell,
                    keeps_data=cluster.keeps_data,
                )
            )
            return _follow(shown, duration, asked, is_live=is_live)
        finally:
            shown.stop()
    except ServiceFailed as error:
        raise Failed(str(error)) from None


def _follow(shown: Demo, duration: float | None, asked: threading.Event, *, is_live: bool) -> int:
    """Show it until somebody or the clock ends it."""
    from hightide.demo.scene import verdict

    is_complete = False
    with _screen() if is_live else contextlib.nullcontext(_Lines()) as screen, _keys() as key:
        while not asked.is_set() and not shown.is_over(duration):
            shown.turn()
            screen.draw(shown.scene())
            if not shown.key(key(TURN_S, asked)):
                break
        if duration is not None and not asked.is_set():
            is_complete = shown.drain(DRAIN_S, asked) or not asked.is_set()
    print(verdict(shown.ledger, is_complete=is_complete), flush=True)
    return 0 if shown.ledger.is_settled or not is_complete else 1


class _Lines:
    """What is shown where there is no terminal."""

    def __init__(self) -> None:
        self._next = time.monotonic() + LINE_EVERY_S

    def draw(self, scene: Scene) -> None:
        if time.monotonic() >= self._next:
            from hightide.demo.scene import line

            self._next += LINE_EVERY_S
            print(f"{time.strftime('%H:%M:%S')} {line(scene)}", flush=True)


def _screen() -> Screen:
    from hightide.demo.view import Screen

    return Screen()


def _print_event(event: Event) -> None:
    print(f"{event.at} * {event.sentence}", flush=True)


def _ignore(_: Event) -> None:
    pass


@contextlib.contextmanager
def _keys() -> Iterator[Callable[[float, threading.Event], str]]:
    """A function that waits a while for a key, if there is a keyboard."""
    if not sys.stdin.isatty():

        def nothing(seconds: float, asked: threading.Event) -> str:
            asked.wait(seconds)
            return ""

        yield nothing
        return

    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)

    def pressed(seconds: float, _asked: threading.Event) -> str:
        ready, _, _ = select.select([sys.stdin], [], [], seconds)
        return os.read(sys.stdin.fileno(), 1).decode(errors="replace") if ready else ""

    try:
        tty.setcbreak(sys.stdin)
        yield pressed
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


@app.command()
def kill(
    broker: Annotated[
        int | None, typer.Argument(metavar="[BROKER]", help="Default: the one that leads most.")
    ] = None,
    data: Data = DATA,
) -> None:
    """Kill a broker of the demonstration that runs in another terminal."""
    _tell(data, "kill", *([] if broker is None else [str(broker)]))


@app.command()
def restart(data: Data = DATA) -> None:
    """Start the killed broker again without waiting for the demonstration to do it."""
    _tell(data, "restart")


def _tell(data: Path, *words: str) -> None:
    from hightide.demo.control import NoDemo, tell

    try:
        print(tell(data, *words))
    except NoDemo as error:
        raise Failed(str(error)) from None


@app.command(hidden=True)
def pipeline(
    bootstrap: Annotated[str, typer.Option()], data: Annotated[Path, typer.Option()]
) -> None:
    """The pipeline, as the demonstration starts it."""
    from hightide.demo.pipeline import run

    stop_with_parent()
    raise typer.Exit(run(bootstrap, data))
