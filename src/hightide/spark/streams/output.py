"""The rows of a query to their target: one function of a micro-batch for each kind of target.

`foreachBatch` calls all of them: it supports every output mode, and it gets the number of the batch
before anything is written, which exactly-once needs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from hightide.spark.formats import BadSchema, Schema, encoded
from hightide.spark.sink import exactly_once
from hightide.spark.streams.errors import StreamsError, listed, unknown
from hightide.spark.streams.query import EXACTLY_ONCE, MEMORY, PRINT, TOPIC, Query
from hightide.spark.streams.topic import KEY, META, RECORD_TIME

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from hightide.spark.streams.app import App

Write = Callable[["DataFrame", int], None]
PARTITION = "_partition"
# A common partition column of tables, derived from the event time if rows lack it.
DAY = "day"
# How many rows of a batch are printed.
SHOWN = 20


def results(rows: DataFrame, query: Query) -> DataFrame:
    """Return a query's rows without the internal columns."""
    rows = rows.drop(RECORD_TIME)
    if query.to.kind != TOPIC:
        return rows.drop(META) if KEY in query.keys else rows.drop(META, KEY)
    if rows.columns.count(KEY) > 1:  # Two streams were joined: the result has neither key.
        rows = rows.drop(KEY)
    if query.partition is not None:
        rows = rows.withColumnRenamed(query.partition, PARTITION)
    return rows.drop(META)


def records(rows: DataFrame, query: Query, schema: Schema | None) -> DataFrame:
    """Return the rows as records of a topic."""
    try:
        return encoded(results(rows, query), schema, key=query.key)
    except BadSchema as error:
        raise StreamsError(f"Query {query.name}: {error}") from None


def check(app: App, rows: DataFrame, query: Query) -> None:
    """Check that the rows can be written to their target."""
    columns = [column for column in rows.columns if column not in (KEY, META, RECORD_TIME)]
    for column in (*query.keys, *query.partition_by, *filter(None, [query.partition])):
        is_derived = column == DAY and event_time(app, columns) is not None
        if column not in rows.columns and not is_derived:
            raise unknown(f"column of query {query.name}", column, columns)
    twice = sorted({column for column in columns if columns.count(column) > 1})
    if twice:
        raise StreamsError(
            f"Query {query.name} has two columns named {listed(twice)}: "
            "select or rename one of them."
        )
    if not columns:
        raise StreamsError(
            f"Query {query.name} has only the columns of the record itself; select a value."
        )
    if query.partition is not None:
        kind = rows.schema[query.partition].dataType.simpleString()
        if kind not in ("tinyint", "smallint", "int", "bigint"):
            raise StreamsError(
                f"partition= of query {query.name} names {query.partition}, which is a {kind}; "
                "it must be a partition number."
            )
    if query.to.kind == TOPIC:
        records(rows, query, app.schema_for(query.to.place))
    elif query.to.is_table:
        table_writer(app, query, columns)


def writer(app: App, query: Query) -> Write:
    """Return the function that writes a micro-batch of a query."""
    match query.to.kind:
        case kind if kind == TOPIC:
            return to_topic(app, query)
        case kind if kind == PRINT:
            return to_terminal(query)
        case kind if kind == MEMORY:
            raise AssertionError("tables in memory are Spark's own")
    return to_table(app, query)


def to_topic(app: App, query: Query) -> Write:
    schema = app.schema_for(query.to.place)
    into = topic_writer(
        app, query.to.place, query.name, is_exactly_once=query.guarantee == EXACTLY_ONCE
    )

    def write(batch: DataFrame, number: int) -> None:
        into(records(batch, query, schema), number)

    return write


def topic_writer(app: App, topic: str, query: str, *, is_exactly_once: bool = True) -> Write:
    """Return the function that writes records to a topic."""
    if is_exactly_once:
        return exactly_once(topic, options=app.client_options(), name=app.group(query))
    options = app.client_options() | {"topic": topic}

    def write(records: DataFrame, _: int) -> None:
        records.write.format("hightide").options(**options).mode("append").save()

    return write


def to_table(app: App, query: Query) -> Write:
    def write(batch: DataFrame, number: int) -> None:
        if not into:
            into.append(table_writer(app, query, batch.columns))
        rows = newest(batch, query.keys) if batch.columns.count(META) == 1 else batch
        into[0](results(rows, query), number)

    into: list[Write] = []
    return write


def newest(rows: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Keep the last record of each key in a batch, because a table has one row for each key."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    if not keys:
        return rows
    where = F.col(META)
    order = [where.getField(field).desc() for field in ("timestamp", "partition", "offset")]
    place = F.row_number().over(Window.partitionBy(*(f"`{key}`" for key in keys)).orderBy(*order))
    return rows.withColumn("_place", place).where("_place = 1").drop("_place")


def table_writer(app: App, query: Query, columns: Sequence[str]) -> Write:
    """Return the function that writes rows to a table; raise if its declaration is wrong."""
    from hightide.spark import tables

    try:
        return tables.writer(
            str(query.to),
            name=app.group(query.name),
            key=query.keys or None,
            partition_by=query.partition_by or None,
            mode=query.mode,
            time=event_time(app, columns),
        )
    except tables.TableError as error:
        raise StreamsError(f"Query {query.name}: {error}") from None


def event_time(app: App, columns: Sequence[str]) -> str | None:
    """Return the column whose days a table can be partitioned by."""
    times = (topic.time for topic in app.topics.values())
    return next((time for time in times if time in columns), None)


def to_terminal(query: Query) -> Write:
    from pyspark.sql import functions as F

    def write(batch: DataFrame, number: int) -> None:
        rows = results(batch, query)
        text = rows.select(
            F.to_json(F.struct(*(f"`{column}`" for column in rows.columns))).alias("row")
        )
        # A few rows would do, but Spark keeps a query's state only if all rows are computed.
        text.persist().count()
        found = text.limit(SHOWN + 1).collect()
        text.unpersist()
        for row in found[:SHOWN]:
            print(f"{query.name}\t{row['row']}", flush=True)
        if len(found) > SHOWN:
            print(f"{query.name}\t… and more in batch {number}", flush=True)

    return write
