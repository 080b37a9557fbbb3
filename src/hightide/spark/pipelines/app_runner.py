"""An app while it runs: looked at twice a second, written down, shown, and stopped in order.

The first SIGINT or SIGTERM asks: each query finishes the micro-batch that it is in, within a time.
The second one does not: the process ends where it stands.  Either way nothing is lost or doubled;
what differs is how much is done again at the next start.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from hightide.spark import explain
from hightide.spark.pipelines import app_archive, logs, status
from hightide.spark.pipelines.status import AppStatus, QueryStatus, State
from hightide.spark.session import NoJava

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from hightide.spark.streams import App, RunningQueries

LOOK_S = 0.5
PATIENCE_S = 30.0
HEARTBEAT_MS = 5_000
DEFAULT_STATE = Path(".hightide") / "pipelines"
SHOW_CURSOR = b"\x1b[?25h"
JAVA_OPTIONS = "spark.driver.extraJavaOptions"

SHORT_LIFE = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"

Show = Callable[[AppStatus], None]
Say = Callable[[str], None]


class RunFailed(Exception):
    """The app has failed; the text is for a person, and `trace` is all that is known."""

    def __init__(self, text: str, trace: str, log: Path) -> None:
        super().__init__(text)
        self.trace = trace
        self.log = log


def state_folder(state: str | None) -> Path:
    """The folder of all apps.  State on a cluster's file system leaves logs and status here."""
    return DEFAULT_STATE if state is None or "://" in state else Path(state)


def folder_of(app: App) -> Path:
    """Where this machine keeps what concerns an app."""
    return state_folder(app.state) / app.name


def prepare(app: App, file: Path, *, is_short: bool = False) -> None:
    """Tell Spark where to log and where the app's code is; what the app says itself comes first.

    A run that is over in seconds is better off if Java does not prepare for a long life.
    """
    folder = folder_of(app)
    defaults = {"spark.sql.streaming.stopTimeout": "20s", **logs.settings(folder)}
    defaults |= app_archive.settings(app.master, file, folder)
    own = app.settings.pop(JAVA_OPTIONS, SHORT_LIFE if is_short else "")
    defaults[JAVA_OPTIONS] = f"{defaults[JAVA_OPTIONS]} {own}".rstrip()
    app.configure(settings=defaults | app.settings)


def start_spark(app: App) -> None:
    """Start the session of an app with its noise kept off the terminal."""
    with logs.muted(folder_of(app)):
        app.spark.sparkContext.setLogLevel(logs.LEVEL)


class Signals:
    """How often somebody has asked this process to stop."""

    def __init__(self, at_once: Callable[[], None]) -> None:
        self.asked = threading.Event()
        self._at_once = at_once
        self._before: dict[int, Any] = {}

    def listen(self) -> None:
        """Take the signals; again after Spark has started, which takes SIGINT for itself."""
        for number in (signal.SIGINT, signal.SIGTERM):
            before = signal.signal(number, self._heard)
            self._before.setdefault(number, before)

    def restore(self) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _heard(self, number: int, _: FrameType | None) -> None:
        if self.asked.is_set():
            self._at_once()
            if os.isatty(2):
                os.write(2, SHOW_CURSOR)
            # Spark's own process ends when it sees that this one is gone.
            os._exit(128 + number)
        self.asked.set()


class Watch:
    """What is known of a running app, and everybody who wants to know it."""

    def __init__(self, app: App, file: Path, show: Show) -> None:
        self._folder = folder_of(app)
        self._app = app
        self._show = show
        now = now_ms()
        self.status = AppStatus(
            app=app.name,
            file=str(file),
            brokers=app.brokers,
            master=app.master,
            pid=os.getpid(),
            state=State.STARTING,
            started_ms=now,
            updated_ms=now,
        )

    def tell(self, *, force: bool = True, **changes: Any) -> None:
        """Note changes, and pass them on if there are any or it is time for a sign of life."""
        after = dataclasses.replace(self.status, **changes)
        now = now_ms()
        if force or after != self.status or now - self.status.updated_ms > HEARTBEAT_MS:
            self.status = dataclasses.replace(after, updated_ms=now)
            status.write(self._folder, self.status)
        self._show(self.status)

    def look(self, running: RunningQueries) -> None:
        """Ask every query how it is doing."""
        known = {query.name: query for query in self.status.queries}
        queries = tuple(
            self._looked_at(known.get(name) or self._new(name), query)
            for name, query in running.queries.items()
        )
        self.tell(force=False, queries=queries)

    def _new(self, name: str) -> QueryStatus:
        declared = self._app.queries.get(name)
        return QueryStatus(name, str(declared.to) if declared else "dead letters")

    @staticmethod
    def _looked_at(known: QueryStatus, query: StreamingQuery) -> QueryStatus:
        for progress in _reports(query, known.batch):
            known = status.advanced(known, progress)
        return known

    def end(self, state: State) -> None:
        """Note how it ended: the same for all queries."""
        queries = tuple(dataclasses.replace(query, state=state) for query in self.status.queries)
        self.tell(state=state, queries=queries)

    def fail(self, error: str, failed: Collection[str]) -> None:
        """Note that some queries have failed, and that the others were stopped."""
        queries = tuple(
            dataclasses.replace(query, state=State.FAILED, error=error)
            if query.name in failed
            else dataclasses.replace(query, state=State.STOPPED)
            for query in self.status.queries
        )
        self.tell(state=State.FAILED, queries=queries, error=error)


def now_ms() -> int:
    return int(time.time() * 1000)


def _reports(query: StreamingQuery, seen: int | None) -> Iterator[dict[str, Any]]:
    """The progress reports since the one of batch `seen`, of which there is mostly one."""
    last = query.lastProgress
    if last is None:
        return
    if seen is None or last.batchId > seen + 1:
        for progress in query.recentProgress:
            yield json.loads(progress.json)
    else:
        yield json.loads(last.json)


def run(
    app: App,
    file: Path,
    *,
    once: bool = False,
    only: Sequence[str] = (),
    patience_s: float = PATIENCE_S,
    show: Show,
    say: Say,
) -> AppStatus:
    """Run an app until it ends, fails or is asked to stop."""
    watch = Watch(app, file, show)
    with status.app_lock(folder_of(app), app.name), _stoppable(watch) as signals:
        watch.tell()
        running: RunningQueries | None = None
        try:
            prepare(app, file)
            start_spark(app)
            signals.listen()
            if not signals.asked.is_set():
                running = app.start(once=once, only=only, say=say)
                _follow(running, watch, signals, patience_s, say)
        except NoJava as error:
            watch.fail(str(error), ())
            raise
        except Exception as error:
            raise _failed(error, app, file, running, watch) from error
        watch.end(State.STOPPED if signals.asked.is_set() else State.FINISHED)
    return watch.status


@contextmanager
def _stoppable(watch: Watch) -> Iterator[Signals]:
    signals = Signals(at_once=lambda: watch.end(State.STOPPED))
    signals.listen()
    try:
        yield signals
    finally:
        signals.restore()


def _follow(
    running: RunningQueries, watch: Watch, signals: Signals, patience_s: float, say: Say
) -> None:
    watch.tell(state=State.RUNNING)
    while True:
        ended = running.wait(LOOK_S)
        watch.look(running)
        if ended:
            return
        if signals.asked.is_set():
            say("Stopping after the micro-batches that are under way; once more stops at once.")
            watch.tell(state=State.STOPPING)
            running.stop(patience_s)
            watch.look(running)
            return


def _failed(
    error: Exception, app: App, file: Path, running: RunningQueries | None, watch: Watch
) -> RunFailed:
    """Write down everything about a failure, and make of it what people are told."""
    from hightide.spark.streams import StreamsError

    trace = getattr(error, "whole", None) or explain.full(error)
    text = str(error) if isinstance(error, StreamsError) else str(explain.explain(error, file))
    log = logs.keep(folder_of(app), trace)
    failed: list[str] = []
    # Spark may be the one that is gone, and then nothing more is to be had from it.
    with suppress(Exception):
        if running is not None:
            watch.look(running)
            failed = [name for name, query in running.queries.items() if query.exception()]
    watch.fail(text, failed)
    return RunFailed(text, trace, log)
