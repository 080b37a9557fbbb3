"""Start the queries of an app, wait for them, and stop them between two micro-batches.

Topics that an app writes to are created if they are missing; topics that it reads must exist.

`StreamingQuery.stop` interrupts a micro-batch. Nothing is lost, because the batch is repeated at
the next start, but work is, and Spark prints pages about it. So each batch passes a gate before it
is written. When the gate is closed, the current batch is finished, and the next one waits at the
gate until Spark interrupts it there. The gates open when all queries have started, because queries
that work slow down the start of the others.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from hightide.spark.blocking_client import shared_client
from hightide.spark.explain import in_words
from hightide.spark.source.progress import GroupProgress, commit_progress, offsets_of
from hightide.spark.source.source_options import client_properties
from hightide.spark.streams.errors import StreamsError, listed
from hightide.spark.streams.output import Write, topic_writer, writer
from hightide.spark.streams.query import BROKER_DECIDES, MEMORY, TOPIC
from hightide.spark.streams.query_metrics import QueryMetrics
from hightide.spark.streams.query_plan import Plan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryListener
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from hightide.spark.streams.app import App
    from hightide.spark.streams.topic import Topic

DEAD_LETTERS = "-dead-letters"
# The status messages of a query before its sources are ready.
NOT_YET = ("Initializing", "Getting offsets")
TOO_SLOW = "Python worker failed to connect back"
ATTEMPTS = 5
SOURCES_S = 60.0
Say = Callable[[str], None]
LOOK_S = 0.05
TURN_S = 0.5
FOREVER_MS = 1 << 40
# Spark recognises an interruption inside a Python function by exactly this text, and then does not
# report a failure. In the whole trace it would not find the text: the trace is too long.
INTERRUPTED = (
    "py4j.protocol.Py4JJavaError: An error occurred while calling z:java.lang.Thread.sleep.\n"
    ": java.lang.InterruptedException"
)


def start(app: App, plans: Sequence[Plan], *, once: bool, say: Say) -> RunningQueries:
    """Start the queries of these plans, or none of them."""
    with_dead_letters = dead_letter_topics(app, plans)
    prepare_topics(app, plans, with_dead_letters, say)
    quieten(app)
    running = RunningQueries(app.spark)
    starts = {plan.query.name: partial(_start_query, app, plan, once) for plan in plans}
    for topic in with_dead_letters:
        starts[topic.name + DEAD_LETTERS] = partial(_start_dead_letters, app, topic, once)
    try:
        for name, begin in starts.items():
            gate = running.gates[name] = Gate()
            query = started(partial(begin, gate))
            running.add(name, query, app.client_options(), app.group(name))
    except Exception as error:
        running.stop()
        if isinstance(error, StreamsError):
            raise
        raise StreamsError(f"App {app.name} cannot start: {in_words(error)}") from None
    for gate in running.gates.values():
        gate.open()
    return running


def started(begin: Callable[[], StreamingQuery]) -> StreamingQuery:
    """Start a query and wait until it has its sources.

    Each source is a process that Spark waits ten seconds for. On a busy machine that can be too
    short, and trying again is safe, because the query has done nothing yet.
    """
    for _ in range(ATTEMPTS):
        query = begin()
        deadline = time.monotonic() + SOURCES_S
        while query.isActive and query.status["message"].startswith(NOT_YET):
            if time.monotonic() > deadline:  # No broker answers; the query retries.
                return query
            time.sleep(LOOK_S)
        error = None if query.isActive else query.exception()
        if error is None or TOO_SLOW not in str(error):
            break
    return query


def dead_letter_topics(app: App, plans: Sequence[Plan]) -> list[Topic]:
    """Return the topics with a dead-letter topic that these plans read."""
    read = {topic for plan in plans for topic, _ in plan.reads}
    return [
        topic
        for name, topic in app.topics.items()
        if name in read and topic.on_error.action == "dlq"
    ]


# -- topics ----------------------------------------------------------------------------------


def prepare_topics(
    app: App, plans: Sequence[Plan], with_dead_letters: Sequence[Topic], say: Say
) -> None:
    """Create the topics that the app writes to; raise if one that it reads is missing."""
    wanted: dict[str, tuple[int, int]] = {
        topic.on_error.topic: (BROKER_DECIDES, BROKER_DECIDES)
        for topic in with_dead_letters
        if topic.on_error.topic is not None
    }
    for plan in plans:
        if plan.query.to.kind == TOPIC:
            wanted[plan.query.to.place] = (plan.query.partitions, plan.query.replication)
    read = {topic for plan in plans for topic, _ in plan.reads}
    try:
        client = shared_client(client_properties(app.client_options()))
        existing = client.topics()
        for name, (partitions, replication) in wanted.items():
            if name not in existing and client.create_topic(name, partitions, replication):
                say(f"Created topic {name}.")
    except Exception as error:
        raise StreamsError(
            f"App {app.name} cannot prepare its topics at {app.brokers}: {error}"
        ) from None
    missing = sorted(read - existing.keys() - wanted.keys())
    if missing:
        raise StreamsError(
            f"App {app.name} reads {listed(missing)}, which {app.brokers} does not have: create it "
            f"with `hightide topic create {missing[0]}`. Topics: {listed(sorted(existing))}."
        )


# -- queries ---------------------------------------------------------------------------------


def _start_query(app: App, plan: Plan, once: bool, gate: Gate) -> StreamingQuery:
    query = plan.query
    if query.to.kind == MEMORY:
        # Spark's memory sink loses its rows when it ends, so its progress must not be kept either.
        name = query.to.place or query.name
        stream = plan.rows.drop("_meta").writeStream.format("memory").queryName(name)
        return _triggered(stream.outputMode(query.mode), query.every, once).start()
    write = gate.guard(writer(app, query))
    stream = _writing(app, query.name, plan.rows, write).outputMode(query.mode)
    return _triggered(stream, query.every, once).start()


def _start_dead_letters(app: App, topic: Topic, once: bool, gate: Gate) -> StreamingQuery:
    assert topic.on_error.topic is not None
    name = topic.name + DEAD_LETTERS
    rows = topic.dead_letters(name).drop("topic")
    write = gate.guard(topic_writer(app, topic.on_error.topic, name))
    return _triggered(_writing(app, name, rows, write), "1 second", once).start()


def _writing(app: App, name: str, rows: DataFrame, write: Write) -> DataStreamWriter:
    from pyspark.sql import functions as F

    # Spark does not count the rows that a function writes, so `observe` counts them.
    counted = rows.observe("written", F.count(F.lit(1)).alias("rows"))
    return (
        counted.writeStream.queryName(app.group(name))
        .option("checkpointLocation", f"{app.place(name)}/checkpoint")
        .foreachBatch(write)
    )


def _triggered(stream: DataStreamWriter, every: str, once: bool) -> DataStreamWriter:
    return stream.trigger(availableNow=True) if once else stream.trigger(processingTime=every)


def quieten(app: App) -> None:
    """Silence the loggers of Spark that repeat failures, which `RunningQueries` reports."""
    jvm: Any = app.spark._jvm
    logging = jvm.org.apache.logging.log4j
    for name in (
        "org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution",
        "org.apache.spark.sql.execution.streaming.runtime.StreamingQueryListenerBus",
        "org.apache.spark.sql.execution.datasources.v2",
        "org.apache.spark.util.Utils",
        "org.apache.spark.executor.Executor",
        "org.apache.spark.scheduler.TaskSetManager",
    ):
        logging.core.config.Configurator.setLevel(name, logging.Level.OFF)


class Interrupted(Exception):
    """The query was stopped while its next batch waited at the gate."""


class Gate:
    """Lets micro-batches through while it is open."""

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
        """Wait in the thread of the query, where stopping the query interrupts it."""
        self._held.set()
        jvm: Any = spark._jvm
        try:
            jvm.java.lang.Thread.sleep(FOREVER_MS)
        except Exception:
            raise Interrupted(INTERRUPTED) from None


class RunningQueries:
    """The running queries of an app; made by `App.start`."""

    def __init__(self, spark: SparkSession) -> None:
        self.queries: dict[str, StreamingQuery] = {}
        self.gates: dict[str, Gate] = {}
        self._spark = spark
        self._lags: dict[str, tuple[GroupProgress, StreamingQueryListener]] = {}
        self._metrics: QueryMetrics | None = None

    def add(self, name: str, query: StreamingQuery, options: Mapping[str, str], group: str) -> None:
        """Add a query; commit its progress to a group, and push its figures, as batches end."""
        if not self.queries:
            self._metrics = QueryMetrics.start(self._spark, client_properties(options))
        if self._metrics is not None:
            self._metrics.watch(name, query, group)
        self.queries[name] = query
        self._lags[name] = (
            GroupProgress(client_properties(options), group),
            commit_progress(self._spark, options, group, query.name),
        )

    @property
    def is_active(self) -> bool:
        return any(query.isActive for query in self.queries.values())

    def wait(self, timeout: float | None = None) -> bool:
        """Wait; return whether all queries have ended. If one fails, stop the others and raise."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            self._check()
            active = [query for query in self.queries.values() if query.isActive]
            if not active:
                self._check()
                self._finish_progress()
                return True
            left = TURN_S if deadline is None else min(TURN_S, deadline - time.monotonic())
            if left <= 0:
                return False
            self._until_one_ends(active, left)

    def stop(self, grace_s: float = 30) -> None:
        """Stop all queries, each after its current micro-batch if that ends in time."""
        for gate in self.gates.values():
            gate.close()
        deadline = time.monotonic() + grace_s
        while any(map(self._is_busy, self.queries)) and time.monotonic() < deadline:
            time.sleep(LOOK_S)
        for query in self.queries.values():
            query.stop()
        self._finish_progress()

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
        """Wait a while for one query to end; Spark can only wait for one given query or all."""
        deadline = time.monotonic() + seconds
        while all(query.isActive for query in active) and time.monotonic() < deadline:
            time.sleep(LOOK_S)

    def _finish_progress(self) -> None:
        """Commit the final progress of the queries: Spark informs its listeners too late."""
        for name, (progress, listener) in self._lags.items():
            self._spark.streams.removeListener(listener)
            last = self.queries[name].lastProgress
            ends: dict[tuple[str, int], int] = {}
            for source in last.sources if last is not None else ():
                ends |= offsets_of(source.endOffset)
            progress.reached(ends)
        self._lags.clear()
        if self._metrics is not None:
            self._metrics.stop(self._spark, self.queries.values())
            self._metrics = None


@contextmanager
def stop_signals() -> Iterator[threading.Event]:
    """Yield an event that is set on SIGINT or SIGTERM.

    PySpark's own handler of Ctrl-C cancels what runs; here the current micro-batch is finished.
    """
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop  # Only the main thread gets signals.
        return
    kinds = (signal.SIGINT, signal.SIGTERM)
    before = {kind: signal.signal(kind, lambda *_: stop.set()) for kind in kinds}
    try:
        yield stop
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)
