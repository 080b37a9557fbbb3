"""Run an app: check its queries twice per second, write its status, show it, and stop it in order.

The first SIGINT or SIGTERM lets each query finish its micro-batch, within a time limit. The second
ends the process at once. Either way no record is lost or duplicated; the difference is how much is
computed again at the next start.
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
GRACE_S = 30.0
HEARTBEAT_MS = 5_000
DEFAULT_STATE = Path(".hightide") / "pipelines"
SHOW_CURSOR = b"\x1b[?25h"
JAVA_OPTIONS = "spark.driver.extraJavaOptions"

SHORT_RUN = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"

Show = Callable[[AppStatus], None]
Say = Callable[[str], None]


class RunFailed(Exception):
    """The app has failed; the text is for the user, and `trace` is the whole trace."""

    def __init__(self, text: str, trace: str, log: Path) -> None:
        super().__init__(text)
        self.trace = trace
        self.log = log


def state_folder(state: str | None) -> Path:
    """Return the folder of all apps. If the state is on a cluster's file system, logs and status
    are here.
    """
    return DEFAULT_STATE if state is None or "://" in state else Path(state)


def folder_of(app: App) -> Path:
    """Return this machine's folder of an app."""
    return state_folder(app.state) / app.name


def prepare(app: App, file: Path, *, is_short: bool = False) -> None:
    """Set Spark's log files and the path of the app's code; the app's own settings win.

    A short run is faster if Java does not optimise for a long one.
    """
    folder = folder_of(app)
    defaults = {"spark.sql.streaming.stopTimeout": "20s", **logs.settings(folder)}
    defaults |= app_archive.settings(app.master, file, folder)
    own = app.settings.pop(JAVA_OPTIONS, SHORT_RUN if is_short else "")
    defaults[JAVA_OPTIONS] = f"{defaults[JAVA_OPTIONS]} {own}".rstrip()
    app.configure(settings=defaults | app.settings)


def start_spark(app: App) -> None:
    """Start the session of an app with its output kept off the terminal."""
    with logs.muted(folder_of(app)):
        app.spark.sparkContext.setLogLevel(logs.LEVEL)


class Signals:
    """Counts the requests to stop this process."""

    def __init__(self, at_once: Callable[[], None]) -> None:
        self.requested = threading.Event()
        self._at_once = at_once
        self._before: dict[int, Any] = {}

    def listen(self) -> None:
        """Install the handlers; called again after Spark has installed its own for SIGINT."""
        for number in (signal.SIGINT, signal.SIGTERM):
            before = signal.signal(number, self._on_signal)
            self._before.setdefault(number, before)

    def restore(self) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        if self.requested.is_set():
            self._at_once()
            if os.isatty(2):
                os.write(2, SHOW_CURSOR)
            # Spark's Java process ends when this one is gone.
            os._exit(128 + number)
        self.requested.set()


class StatusKeeper:
    """The status of a running app: keeps it, writes it and shows it."""

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

    def update(self, *, force: bool = True, **changes: Any) -> None:
        """Update the status; write it if it changed or the last write is too old."""
        after = dataclasses.replace(self.status, **changes)
        now = now_ms()
        if force or after != self.status or now - self.status.updated_ms > HEARTBEAT_MS:
            self.status = dataclasses.replace(after, updated_ms=now)
            status.write(self._folder, self.status)
        self._show(self.status)

    def refresh(self, running: RunningQueries) -> None:
        """Update the status of every query."""
        known = {query.name: query for query in self.status.queries}
        queries = tuple(
            self._updated(known.get(name) or self._new(name), query)
            for name, query in running.queries.items()
        )
        self.update(force=False, queries=queries)

    def _new(self, name: str) -> QueryStatus:
        declared = self._app.queries.get(name)
        return QueryStatus(name, str(declared.to) if declared else "dead letters")

    @staticmethod
    def _updated(known: QueryStatus, query: StreamingQuery) -> QueryStatus:
        for progress in _reports(query, known.batch):
            known = status.advanced(known, progress)
        return known

    def end(self, state: State) -> None:
        """Set the final state of the app and all queries."""
        queries = tuple(dataclasses.replace(query, state=state) for query in self.status.queries)
        self.update(state=state, queries=queries)

    def fail(self, error: str, failed: Collection[str]) -> None:
        """Set some queries to failed, and the others to stopped."""
        queries = tuple(
            dataclasses.replace(query, state=State.FAILED, error=error)
            if query.name in failed
            else dataclasses.replace(query, state=State.STOPPED)
            for query in self.status.queries
        )
        self.update(state=State.FAILED, queries=queries, error=error)


def now_ms() -> int:
    return int(time.time() * 1000)


def _reports(query: StreamingQuery, seen: int | None) -> Iterator[dict[str, Any]]:
    """Yield the progress reports since the one of batch `seen`, usually one."""
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
    grace_s: float = GRACE_S,
    show: Show,
    say: Say,
) -> AppStatus:
    """Run an app until it ends, fails or is asked to stop."""
    keeper = StatusKeeper(app, file, show)
    with status.app_lock(folder_of(app), app.name), _stoppable(keeper) as signals:
        keeper.update()
        running: RunningQueries | None = None
        try:
            prepare(app, file)
            start_spark(app)
            signals.listen()
            if not signals.requested.is_set():
                running = app.start(once=once, only=only, say=say)
                _follow(running, keeper, signals, grace_s, say)
        except NoJava as error:
            keeper.fail(str(error), ())
            raise
        except Exception as error:
            raise _failed(error, app, file, running, keeper) from error
        keeper.end(State.STOPPED if signals.requested.is_set() else State.FINISHED)
    return keeper.status


@contextmanager
def _stoppable(keeper: StatusKeeper) -> Iterator[Signals]:
    signals = Signals(at_once=lambda: keeper.end(State.STOPPED))
    signals.listen()
    try:
        yield signals
    finally:
        signals.restore()


def _follow(
    running: RunningQueries, keeper: StatusKeeper, signals: Signals, grace_s: float, say: Say
) -> None:
    keeper.update(state=State.RUNNING)
    while True:
        ended = running.wait(LOOK_S)
        keeper.refresh(running)
        if ended:
            return
        if signals.requested.is_set():
            say("Stopping after the current micro-batches; press Ctrl-C again to stop at once.")
            keeper.update(state=State.STOPPING)
            running.stop(grace_s)
            keeper.refresh(running)
            return


def _failed(
    error: Exception, app: App, file: Path, running: RunningQueries | None, keeper: StatusKeeper
) -> RunFailed:
    """Log a failure, and return the exception for the user."""
    from hightide.spark.streams import StreamsError

    trace = getattr(error, "whole", None) or explain.full(error)
    text = str(error) if isinstance(error, StreamsError) else str(explain.explain(error, file))
    log = logs.keep(folder_of(app), trace)
    failed: list[str] = []
    # If Spark itself has died, it cannot be asked.
    with suppress(Exception):
        if running is not None:
            keeper.refresh(running)
            failed = [name for name, query in running.queries.items() if query.exception()]
    keeper.fail(text, failed)
    return RunFailed(text, trace, log)
