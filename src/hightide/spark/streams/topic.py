"""A topic as DataFrames: a stream, a batch, or a table of the latest row of each key.

A DataFrame has the columns of the schema, `_key` with the record's key as text, and `_meta` with
the record's origin. Streams carry the topic's event time and the allowed lateness (Spark's
watermark). Everything else is PySpark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import TimestampNTZType, TimestampType

from hightide.spark.formats import BadSchema, OnError, Schema, decoded
from hightide.spark.streams.errors import StreamsError, unknown
from hightide.spark.streams.query_context import current_context

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from hightide.spark.streams.app import App

EARLIEST = "earliest"
LATEST = "latest"
# The event time of a topic whose values have none: the timestamp of the record.
RECORD_TIME = "_time"
KEY = "_key"
META = "_meta"

Moment = str | datetime


@dataclass(frozen=True, eq=False)
class Topic:
    """A declared topic; made by `App.topic`."""

    app: App = field(repr=False)
    name: str
    schema: Schema
    time: str | None = None
    late: str = "10 seconds"
    key: tuple[str, ...] = ()
    on_error: OnError = field(default_factory=lambda: OnError("fail"))
    start: Moment = EARLIEST
    options: Mapping[str, str] = field(default_factory=dict)

    def stream(self) -> DataFrame:
        """Return the records from `start` on, with a watermark if the topic has an event time."""
        context = current_context()
        if context.given is None:
            raw = self._raw_stream()
        else:
            raw = self._given(context.given)
        rows = self._rows(raw, self.on_error)
        if self.time is None:
            return rows
        context.times[self.name] = self.time
        return rows.withWatermark(self.time, self.late)

    def batch(self, start: Moment = EARLIEST, end: Moment = LATEST) -> DataFrame:
        """Return the records that are there now, between two moments."""
        return self._rows(self._raw_batch(start, end), self._quietly())

    def table(self, key: str | Sequence[str] | None = None) -> DataFrame:
        """Return the latest row of each key at the time of reading, without deleted keys.

        Joined to a stream, the table is read again with every micro-batch. A record without a value
        deletes the row whose key column, as text, is the record's key. A key that is not a column
        of the schema is the record's own key.
        """
        keys = (key,) if isinstance(key, str) else tuple(key or self.key)
        context = current_context()
        raw = self._given(context.given) if context.given is not None else self._live()
        rows = self._rows(raw, self._quietly(), tombstones=True)
        if len(keys) == 1 and keys[0] not in self._columns():
            return latest(rows, record_key(), self._columns()).withColumnRenamed(KEY, keys[0])
        for column in keys:
            if column not in self._columns():
                raise unknown(f"column of topic {self.name}", column, self._columns())
        if not keys:
            return latest(rows, record_key(), self._columns())
        return latest(rows, identity(keys), self._columns()).drop(KEY)

    def dead_letters(self, query: str) -> DataFrame:
        """Return the records that cannot be decoded, as a stream for the dead-letter topic."""
        raw = self._raw_stream()
        _, bad = decoded(raw, self.schema, on_error=self.on_error, app=self.app.name, query=query)
        assert bad is not None, "only topics with dlq: have dead letters"
        return bad

    def view(self) -> DataFrame:
        """Return what the topic means in SQL: a table if it has a key, else a stream."""
        return self.table() if self.key else self.stream()

    def check(self) -> None:
        """Check the schema, which needs Spark."""
        columns = self._columns()
        if self.time is not None and self.time != RECORD_TIME:
            if self.time not in columns:
                raise unknown(f"column for time= of topic {self.name}", self.time, columns)
            kind = self.schema.type[self.time].dataType
            if not isinstance(kind, TimestampType | TimestampNTZType):
                raise StreamsError(
                    f"The event time {self.time} of topic {self.name} is a {kind.simpleString()}; "
                    "it must be a timestamp (in a dataclass, a datetime)."
                )
        reserved = {KEY, META, RECORD_TIME} & set(columns)
        if reserved:
            raise StreamsError(
                f"The schema of topic {self.name} has a column {min(reserved)}, "
                "which Hightide uses for the record itself; rename it."
            )

    # -- reading -----------------------------------------------------------------------------

    def _raw_stream(self) -> DataFrame:
        options = position("starting", self.start) | self.app.source_options(self)
        return self._once(f"stream of {self.name}", self.app.spark.readStream, options)

    def _once(self, what: str, reader: Any, options: Mapping[str, str]) -> DataFrame:
        """Load a source once for all queries, because Spark starts a process to load it."""
        frames = self.app.frames
        if what not in frames:
            frames[what] = self._read(reader, options)
        return frames[what]

    def _raw_batch(self, start: Moment, end: Moment) -> DataFrame:
        given = current_context().given
        if given is not None:
            return self._given(given)
        options = position("starting", start) | position("ending", end)
        return self._read(self.app.spark.read, options | self.app.source_options(self))

    def _live(self) -> DataFrame:
        options = {"endingOffsets": "live"} | self.app.source_options(self)
        return self._once(f"table of {self.name}", self.app.spark.read, options)

    def _read(self, reader: Any, options: Mapping[str, str]) -> DataFrame:
        self.check()
        raw: DataFrame = reader.format("hightide").options(**options).load()
        return raw

    def _given(self, given: Mapping[str, DataFrame]) -> DataFrame:
        self.check()
        if self.name not in given:
            raise StreamsError(
                f"The query reads topic {self.name}, but the test has no rows for it: "
                f"pass {self.name}=[…], or {self.name}=[] for none."
            )
        return given[self.name]

    def _rows(self, raw: DataFrame, on_error: OnError, *, tombstones: bool = False) -> DataFrame:
        from pyspark.sql import functions as F

        rows, _ = decoded(
            raw,
            self.schema,
            on_error=on_error,
            app=self.app.name,
            query=current_context().query,
            tombstones="keep" if tombstones else "drop",
        )
        if self.time == RECORD_TIME:
            rows = rows.withColumn(RECORD_TIME, F.col(f"{META}.timestamp"))
        return rows

    def _quietly(self) -> OnError:
        """Skip bad records that the dead-letter query already writes."""
        return OnError("skip") if self.on_error.action == "dlq" else self.on_error

    def _columns(self) -> list[str]:
        try:
            return self.schema.type.names
        except BadSchema as error:
            raise StreamsError(f"Topic {self.name}: {error}") from error


def record_key() -> Column:
    from pyspark.sql import functions as F

    return F.col(KEY)


def identity(keys: Sequence[str]) -> Column:
    """Return a row's key as the sink writes it: one column as text, several as a JSON object."""
    from pyspark.sql import functions as F

    columns = [F.col(f"`{column}`") for column in keys]
    if len(columns) == 1:
        return F.coalesce(columns[0].cast("string"), F.col(KEY))
    present = reduce(and_, (column.isNotNull() for column in columns))
    return F.coalesce(F.when(present, F.to_json(F.struct(*columns))), F.col(KEY))


def latest(rows: DataFrame, key: Column, columns: Sequence[str]) -> DataFrame:
    """Return the last row of each key, unless it was deleted.

    Within a partition the offset decides. For a key that has been in two partitions, because
    partitions were added, the timestamp decides.
    """
    from pyspark.sql import functions as F

    row = F.struct(*(f"`{column}`" for column in (*columns, KEY)))
    where = F.col(META)
    by_partition = (
        rows.withColumn("_id", key)
        .where("_id IS NOT NULL")
        .groupBy("_id", where.getField("partition").alias("_partition"))
        .agg(
            F.max_by(row, where.getField("offset")).alias("_row"),
            F.max_by(where.getField("timestamp"), where.getField("offset")).alias("_at"),
        )
    )
    overall = by_partition.groupBy("_id").agg(
        F.max_by("_row", F.struct("_at", "_partition")).alias("_row")
    )
    present = [F.col("_row").getField(column).isNotNull() for column in columns]
    return overall.where(F.array_contains(F.array(*present), True)).select("_row.*")


def position(which: str, moment: Moment) -> dict[str, str]:
    """Return the options of the source for a moment: earliest, latest, offsets or a time."""
    if moment in (EARLIEST, LATEST):
        return {f"{which}Offsets": str(moment)}
    if isinstance(moment, str):
        if moment.lstrip().startswith(
            "{"
        ):  # Offsets of each partition, as Spark's source has them.
            return {f"{which}Offsets": moment}
        try:
            moment = datetime.fromisoformat(moment)
        except ValueError:
            raise StreamsError(
                f"{moment!r} is not a position: write earliest, latest or a time like "
                '"2026-01-31T12:00:00".'
            ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    at_ms = str(int(moment.timestamp() * 1000))
    if which == "starting":
        # After the last record, start at the end of the log.
        return {"startingTimestamp": at_ms, "startingOffsetsByTimestampStrategy": LATEST}
    return {f"{which}Timestamp": at_ms}
