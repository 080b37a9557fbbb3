"""From plans to running queries: topics that are missing, dead letters, checkpoints, triggers.

What an app writes to is made if it is missing, and said; what it reads has to be there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from hightide.spark.brokers import brokers
from hightide.spark.source.options import client_properties
from hightide.spark.streams.errors import StreamsError, listed
from hightide.spark.streams.output import Write, topic_writer, writer
from hightide.spark.streams.planning import Plan
from hightide.spark.streams.query import BROKER_DECIDES
from hightide.spark.streams.running import Gate, Running
from hightide.spark.streams.target import MEMORY, TOPIC
from hightide.spark.words import in_words

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from hightide.spark.streams.app import App
    from hightide.spark.streams.topic import Topic

DEAD_LETTERS = "-dead-letters"
Say = Callable[[str], None]


def start(app: App, plans: Sequence[Plan], *, once: bool, say: Say) -> Running:
    """Start the queries of these plans, or none of them."""
    dying = dead_letter_topics(app, plans)
    prepare_topics(app, plans, dying, say)
    quieten(app)
    running = Running(app.spark)
    options = app.client_options()
    try:
        for each in plans:
            name = each.query.name
            query = _start_query(app, each, once, running.gates)
            running.add(name, query, options, app.group(name))
        for topic in dying:
            name = topic.name + DEAD_LETTERS
            query = _start_dead_letters(app, topic, name, once, running.gates)
            running.add(name, query, options, app.group(name))
    except Exception as error:
        running.stop()
        if isinstance(error, StreamsError):
            raise
        raise StreamsError(f"App {app.name} cannot start: {in_words(error)}") from None
    return running


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
        ) from error
    missing = sorted(read - there.keys() - wanted.keys())
    if missing:
        raise StreamsError(
            f"App {app.name} reads {listed(missing)}, which {app.brokers} does not have: create it "
            f"with `hightide topic create {missing[0]}`. There is: {listed(sorted(there))}."
        )


# -- queries ---------------------------------------------------------------------------------


def _start_query(app: App, plan: Plan, once: bool, gates: dict[str, Gate]) -> StreamingQuery:
    query = plan.query
    if query.to.kind == MEMORY:
        # Spark's own sink, which forgets all when it ends, and so must its progress.
        name = query.to.place or query.name
        stream = plan.rows.drop("_meta").writeStream.format("memory").queryName(name)
        return _triggered(stream.outputMode(query.mode), query.every, once).start()
    return _start_writing(
        app, query.name, plan.rows, writer(app, query), query.mode, query.every, once, gates
    )


def _start_dead_letters(
    app: App, topic: Topic, name: str, once: bool, gates: dict[str, Gate]
) -> StreamingQuery:
    assert topic.on_error.topic is not None
    rows = topic.dead_letters(name).drop("topic")
    write = topic_writer(app, topic.on_error.topic, name)
    return _start_writing(app, name, rows, write, "append", "1 second", once, gates)


def _start_writing(
    app: App,
    name: str,
    rows: DataFrame,
    write: Write,
    mode: str,
    every: str,
    once: bool,
    gates: dict[str, Gate],
) -> StreamingQuery:
    from pyspark.sql import functions as F

    gate = gates[name] = Gate()
    # Spark does not know how many rows leave through a function, so they are counted on the way.
    counted = rows.observe("written", F.count(F.lit(1)).alias("rows"))
    stream = (
        counted.writeStream.queryName(app.group(name))
        .outputMode(mode)
        .option("checkpointLocation", f"{app.place(name)}/checkpoint")
        .foreachBatch(gate.guard(write))
    )
    return _triggered(stream, every, once).start()


def _triggered(stream: DataStreamWriter, every: str, once: bool) -> DataStreamWriter:
    return stream.trigger(availableNow=True) if once else stream.trigger(processingTime=every)


def quieten(app: App) -> None:
    """A failure is told in words, by whoever waits for the queries; Spark need not print it too."""
    jvm: Any = app.spark._jvm
    logging = jvm.org.apache.logging.log4j
    for name in (
        "org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution",
        "org.apache.spark.sql.execution.datasources.v2",
        "org.apache.spark.util.Utils",
        "org.apache.spark.executor.Executor",
        "org.apache.spark.scheduler.TaskSetManager",
    ):
        logging.core.config.Configurator.setLevel(name, logging.Level.OFF)
