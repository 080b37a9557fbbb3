"""The queries of an app while they run: waiting for them, and stopping them between two batches.

`StreamingQuery.stop` cuts a micro-batch off in the middle.  Nothing is lost by that, because the
batch is repeated at the next start, but work is, and Spark prints pages about it.  So there is a
gate in front of each batch's write: when it is closed, the batch that is in it is finished, and the
next one waits at the gate until Spark interrupts it there.  It is opened when all queries have
started, because those that work make it hard for the others.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from hightide.spark.explain import in_words
from hightide.spark.source.options import client_properties
from hightide.spark.source.progress import GroupProgress, commit_progress, offsets_of
from hightide.spark.streams.errors import StreamsError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryListener
    from pyspark.sql.streaming.query import StreamingQuery

LOOK_S = 0.05
TURN_S = 0.5
FOREVER_MS = 1 << 40
# Spark knows an interruption inside a Python function by these words (and by no others), and then
# does not take it for a failure.  The report that it would get otherwise is too long for the
# search.
INTERRUPTED = (
    "py4j.protocol.Py4JJavaError: An error occurred while calling z:java.lang.Thread.sleep.\n"
    ": java.lang.InterruptedException"
)


class Interrupted(Exception):
    """The query was stopped while its next batch waited at the gate."""


class Gate:
    """Lets micro-batches through from when it is opened until it is closed."""

    def __init__(self) -> None:
        self._decided = threading.Event()
        self._closed = threading.Event()
        self._held = threading.Event()

    def open(self) -> None:
        self._decided.set()

    def close(self) -> None:
        self._closed.set()
        self._decided.set()

    @property
    def is_holding(self) -> bool:
        return self._held.is_set()

    def guard(self, write: Callable[[DataFrame, int], None]) -> Callable[[DataFrame, int], None]:
        def guarded(batch: DataFrame, number: int) -> None:
            self._decided.wait()
            if self._closed.is_set():
                self._hold(batch.sparkSession)
            write(batch, number)

        return guarded

    def _hold(self, spark: SparkSession) -> None:
        """Wait in the thread of the query, which stopping it interrupts."""
        self._held.set()
        jvm: Any = spark._jvm
        try:
            jvm.java.lang.Thread.sleep(FOREVER_MS)
        except Exception:
            raise Interrupted(INTERRUPTED) from None


class Running:
    """Made by `App.start`."""

    def __init__(self, spark: SparkSession) -> None:
        self.queries: dict[str, StreamingQuery] = {}
        self.gates: dict[str, Gate] = {}
        self._spark = spark
        self._lags: dict[str, tuple[GroupProgress, StreamingQueryListener]] = {}

    def add(self, name: str, query: StreamingQuery, options: Mapping[str, str], group: str) -> None:
        """Take a query in, and show its lag in a group as batches end."""
        self.queries[name] = query
        self._lags[name] = (
            GroupProgress(client_properties(options), group),
            commit_progress(self._spark, options, group, query.name),
        )

    @property
    def is_active(self) -> bool:
        return any(each.isActive for each in self.queries.values())

    def wait(self, timeout: float | None = None) -> bool:
        """Whether all queries have ended by themselves.  If one fails, the others are stopped."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            self._check()
            active = [each for each in self.queries.values() if each.isActive]
            if not active:
                self._check()
                self._forget()
                return True
            left = TURN_S if deadline is None else min(TURN_S, deadline - time.monotonic())
            if left <= 0:
                return False
            self._until_one_ends(active, left)

    def stop(self, patience: float = 30) -> None:
        """Stop all queries, each after the micro-batch that it is in if that does not take long."""
        for gate in self.gates.values():
            gate.close()
        deadline = time.monotonic() + patience
        while any(map(self._is_busy, self.queries)) and time.monotonic() < deadline:
            time.sleep(LOOK_S)
        for query in self.queries.values():
            query.stop()
        self._forget()

    def _is_busy(self, name: str) -> bool:
        query, gate = self.queries[name], self.gates.get(name)
        if not query.isActive or (gate is not None and gate.is_holding):
            return False
        return bool(query.status["isTriggerActive"])

    def _check(self) -> None:
        for name, query in self.queries.items():
            error = None if query.isActive else query.exception()
            if error is not None:
                self.stop()
                failed = StreamsError(f"Query {name} has failed: {in_words(error)}")
                failed.whole = str(error)
                raise failed from None

    @staticmethod
    def _until_one_ends(active: list[StreamingQuery], seconds: float) -> None:
        """Spark can wait for one query or for all that were ever started; so: for one, not long."""
        deadline = time.monotonic() + seconds
        while all(each.isActive for each in active) and time.monotonic() < deadline:
            time.sleep(LOOK_S)

    def _forget(self) -> None:
        """Spark tells its listeners later; how far a query has come at its end is said here."""
        for name, (progress, listener) in self._lags.items():
            self._spark.streams.removeListener(listener)
            last = self.queries[name].lastProgress
            ends: dict[tuple[str, int], int] = {}
            for source in last.sources if last is not None else ():
                ends |= offsets_of(source.endOffset)
            progress.reached(ends)
        self._lags.clear()


@contextmanager
def asked_to_stop() -> Iterator[threading.Event]:
    """Set when somebody presses Ctrl-C or ends the process kindly.

    PySpark's own answer to Ctrl-C is to cancel what runs; here it is finished.
    """
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked  # Only the main thread is told of signals.
        return
    kinds = (signal.SIGINT, signal.SIGTERM)
    before = {kind: signal.signal(kind, lambda *_: asked.set()) for kind in kinds}
    try:
        yield asked
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)
