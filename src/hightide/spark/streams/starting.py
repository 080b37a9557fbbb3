"""From plans to running queries: topics that are missing, dead letters, checkpoints, triggers.

What an app writes to is made if it is missing, and said; what it reads has to be there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from hightide.spark.blocking_client import brokers
from hightide.spark.explain import in_words
from hightide.spark.source.options import client_properties
from hightide.spark.streams.errors import StreamsError, listed
from hightide.spark.streams.output import Write, topic_writer, writer
from hightide.spark.streams.planning import Plan
from hightide.spark.streams.query import BROKER_DECIDES
from hightide.spark.streams.running import LOOK_S, Gate, Running
from hightide.spark.streams.target import MEMORY, TOPIC

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from hightide.spark.streams.app import App
    from hightide.spark.streams.topic import Topic

DEAD_LETTERS = "-dead-letters"
# What a query says of itself before its sources are there.
NOT_YET = ("Initializing", "Getting offsets")
TOO_SLOW = "Python worker failed to connect back"
ATTEMPTS = 5
PATIENCE_S = 60.0
Say = Callable[[str], None]


def start(app: App, plans: Sequence[Plan], *, once: bool, say: Say) -> Running:
    """Start the queries of these plans, or none of them."""
    dying = dead_letter_topics(app, plans)
    prepare_topics(app, plans, dying, say)
    quieten(app)
    running = Running(app.spark)
    starts = {each.query.name: partial(_start_query, app, each, once) for each in plans}
    for topic in dying:
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
    """A query that has its sources.

    Each source is a process that Spark waits ten seconds for, and no longer.  On a busy machine
    that can be too short, and nothing has happened yet that would speak against trying again.
    """
    for _ in range(ATTEMPTS):
        query = begin()
        deadline = time.monotonic() + PATIENCE_S
        while query.isActive and query.status["message"].startswith(NOT_YET):
            if time.monotonic() > deadline:  # Brokers are away; whoever waits for the query waits.
                return query
            time.sleep(LOOK_S)
        error = None if query.isActive else query.exception()
        if error is None or TOO_SLOW not in str(error):
            break
    return query


def dead_letter_topics(app: App, plans: Sequence[Plan]) -> list[Topic]:
    """Topics with a dead-letter topic that these plans read, however they do."""
    read = {topic for each in plans for topic, _ in each.reads}
    return [
        topic
        for name, topic in app.topics.items()
        if name in read and topic.on_error.action == "dlq"
    ]


# -- topics ----------------------------------------------------------------------------------


def prepare_topics(app: App, plans: Sequence[Plan], dying: Sequence[Topic], say: Say) -> None:
    """Make what the app writes to, if it is missing; what it reads has to be there."""
    wanted: dict[str, tuple[int, int]] = {
        topic.on_error.topic: (BROKER_DECIDES, BROKER_DECIDES)
        for topic in dying
        if topic.on_error.topic is not None
    }
    for each in plans:
        if each.query.to.kind == TOPIC:
            wanted[each.query.to.place] = (each.query.partitions, each.query.replication)
    read = {topic for each in plans for topic, _ in each.reads}
    try:
        client = brokers(client_properties(app.client_options()))
        there = client.topics()
        for name, (partitions, replication) in wanted.items():
            if name not in there and client.create_topic(name, partitions, replication):
                say(f"Topic {name} was not there and has been created.")
    except Exception as error:
        raise StreamsError(
            f"The brokers at {app.brokers} do not do what app {app.name} needs: {error}"
        ) from None
    missing = sorted(read - there.keys() - wanted.keys())
    if missing:
        raise StreamsError(
            f"App {app.name} reads {listed(missing)}, which {app.brokers} does not have: create it "
            f"with `hightide topic create {missing[0]}`. There is: {listed(sorted(there))}."
        )


# -- queries ---------------------------------------------------------------------------------


def _start_query(app: App, plan: Plan, once: bool, gate: Gate) -> StreamingQuery:
    query = plan.query
    if query.to.kind == MEMORY:
        # Spark's own sink, which forgets all when it ends, and so must its progress.
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

    # Spark does not know how many rows leave through a function, so they are counted on the way.
    counted = rows.observe("written", F.count(F.lit(1)).alias("rows"))
    return (
        counted.writeStream.queryName(app.group(name))
        .option("checkpointLocation", f"{app.place(name)}/checkpoint")
        .foreachBatch(write)
    )


def _triggered(stream: DataStreamWriter, every: str, once: bool) -> DataStreamWriter:
    return stream.trigger(availableNow=True) if once else stream.trigger(processingTime=every)


def quieten(app: App) -> None:
    """A failure is told in words, by whoever waits for the queries; Spark need not print it too."""
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
