"""Decode records, and handle those that cannot be decoded.

`fail` stops the query at the first bad record and says where it is and what is wrong; `skip` leaves
bad records out; `dlq:TOPIC` leaves them out and returns them as dead letters: the same key, value
and headers, with more headers about the error.

    hightide.error              what is wrong
    hightide.source.topic       where the record was
    hightide.source.partition
    hightide.source.offset
    hightide.source.timestamp   in milliseconds since 1970
    hightide.app                which app and query could not decode it
    hightide.query

All of them are text. Dead letters are written by a separate query that reads the same topic:
whether a record is bad depends on the record alone, so both queries agree on it, and each of them
is exactly-once by itself. One query for both would need one output mode for both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from hightide.spark.formats.value_schema import ERROR, VALUE, BadSchema, Schema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

KEY = "_key"
META = "_meta"
HEADERS_TYPE = "array<struct<key:string,value:binary>>"
ORIGIN = ("topic", "partition", "offset", "timestamp")


@dataclass(frozen=True, slots=True)
class OnError:
    """What `on_error` says: `fail`, `skip` or `dlq:TOPIC`."""

    action: Literal["fail", "skip", "dlq"]
    topic: str | None = None

    @classmethod
    def parse(cls, given: str | OnError) -> OnError:
        if isinstance(given, OnError):
            return given
        action, colon, topic = given.partition(":")
        if action == "dlq" and topic:
            return cls("dlq", topic)
        if not colon and action == "fail":
            return cls("fail")
        if not colon and action == "skip":
            return cls("skip")
        raise BadSchema(f"on_error is {given!r}; expected fail, skip or dlq:TOPIC.")


def decoded(
    raw: DataFrame,
    schema: Schema,
    *,
    on_error: str | OnError = "fail",
    app: str = "",
    query: str = "",
    key: Literal["string", "binary"] = "string",
    tombstones: Literal["drop", "keep"] = "drop",
) -> tuple[DataFrame, DataFrame | None]:
    """Return the good rows, and the dead letters if `on_error` is `dlq:TOPIC`.

    Rows have the schema's columns, `_key`, and `_meta` with topic, partition, offset, timestamp and
    headers. A record without a value is a deletion: it is dropped, or kept with null in all of the
    schema's columns.
    """
    from pyspark.sql import functions as F

    chosen = OnError.parse(on_error)
    rows = raw if tombstones == "keep" else raw.where(F.col("value").isNotNull())
    rows = schema.decode(rows, with_reasons=chosen.action == "fail")
    is_good = F.col(ERROR).isNull()
    if chosen.action == "fail":
        is_good = F.when(is_good, F.lit(True)).otherwise(_raised(schema).cast("boolean"))
    good = rows.where(is_good).select(
        *(F.col(VALUE).getField(name).alias(name) for name in schema.type.names),
        F.col("key").cast(key).alias(KEY),
        F.struct(*ORIGIN, _headers(raw).alias("headers")).alias(META),
    )
    if chosen.topic is None:
        return good, None
    return good, bad_rows(raw, schema, to=chosen.topic, app=app, query=query)


def bad_rows(
    raw: DataFrame, schema: Schema, *, to: str, app: str = "", query: str = ""
) -> DataFrame:
    """Return dead letters as records: topic, key, value and headers."""
    from pyspark.sql import functions as F

    rows = schema.decode(raw.where(F.col("value").isNotNull()))
    milliseconds = F.unix_millis(F.col("timestamp"))
    details: dict[str, Column] = {
        "hightide.error": F.col(ERROR),
        "hightide.source.topic": F.col("topic"),
        "hightide.source.partition": F.col("partition"),
        "hightide.source.offset": F.col("offset"),
        "hightide.source.timestamp": milliseconds,
        "hightide.app": F.lit(app),
        "hightide.query": F.lit(query),
    }
    more = F.array(
        *(
            F.struct(F.lit(name).alias("key"), value.cast("string").cast("binary").alias("value"))
            for name, value in details.items()
        )
    ).cast(HEADERS_TYPE)
    headers = F.concat(F.coalesce(_headers(raw), F.array().cast(HEADERS_TYPE)), more)
    return rows.where(F.col(ERROR).isNotNull()).select(
        F.lit(to).alias("topic"), "key", "value", headers.alias("headers")
    )


def _headers(raw: DataFrame) -> Column:
    """Return a record's headers; the source has them only with includeHeaders."""
    from pyspark.sql import functions as F

    here = F.col("headers") if "headers" in raw.columns else F.lit(None)
    return here.cast(HEADERS_TYPE)


def _raised(schema: Schema) -> Column:
    from pyspark.sql import functions as F

    words = F.concat(
        F.lit("The record at offset "),
        F.col("offset").cast("string"),
        F.lit(" of "),
        F.col("topic"),
        F.lit("-"),
        F.col("partition").cast("string"),
        F.lit(f" cannot be decoded as {schema.format}: "),
        F.col(ERROR),
        F.lit(". (on_error='skip' leaves it out, 'dlq:TOPIC' writes it to a topic.)"),
    )
    return F.raise_error(words)
