"""From the records of a topic to the rows of its table.

A row has the columns of the value and four more that say where it is from: `_key` (bytes, as they
are), `_partition`, `_offset` and `_timestamp`.  With a key, a record without a value deletes.  Then
the record's key has to say which row: as bytes if the table's key is `_key`, as text if it is one
column, as a JSON object if it is several, which is how `streams` writes keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.types import NullType, StringType, StructField, StructType, TimestampType

from hightide.spark.formats import (
    BadSchema,
    Schema,
    avro,
    decoded,
    json,
    protobuf,
    schema_of,
)
from hightide.spark.tables.schema_evolution import evolve, nullable
from hightide.spark.tables.table_target import TableError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

KEY = "_key"
ORIGIN = {"partition": "int", "offset": "bigint", "timestamp": "timestamp"}
METADATA = (KEY, *(f"_{name}" for name in ORIGIN))
DELETED = "_deleted"
# What Spark calls the column of texts that are no JSON.
CORRUPT = "_corrupt_record"


@dataclass(frozen=True, slots=True)
class Records:
    """How a topic's records are read.  Without a schema, each batch of JSON says its own."""

    schema: Schema | None
    key: tuple[str, ...] = ()
    time: str | None = None
    on_error: str = "fail"

    def schema_of(self, raw: DataFrame, known: StructType | None) -> Schema | None:
        """What the values of a batch are; `known` is what the table has so far.

        None if nobody knows yet: there is no table, and no record that has a field.
        """
        if self.schema is not None:
            return self.schema
        fields = self._inferred(raw, known)
        return json(fields) if known is not None or fields.names else None

    def rows(self, raw: DataFrame, schema: Schema) -> DataFrame:
        """The rows of a batch of records."""
        if clash := {*schema.type.names} & {*METADATA, DELETED}:
            raise TableError(f"The value has a field {min(clash)}; the name is taken here.")
        found, _ = decoded(raw, schema, on_error=_kept(self.on_error), key="binary")
        rows = found.select(*_quoted(schema.type.names), KEY, *_origin("_meta."))
        if not self.key:
            return rows
        return latest(self._with_deletions(rows, raw), self.key)

    def _inferred(self, raw: DataFrame, known: StructType | None) -> StructType:
        """The fields of a batch's JSON, as wide as those that the table has."""
        from pyspark.sql import functions as F

        texts = raw.where(F.col("value").isNotNull()).select(F.col("value").cast("string"))
        found = raw.sparkSession.read.json(texts).schema
        return merged(found, known, self.time, self.key)

    def _with_deletions(self, rows: DataFrame, raw: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        gone = raw.where(F.col("value").isNull())
        if missing := [name for name in self.key if name not in rows.columns]:
            raise TableError(f"The key {missing[0]} is no column: {', '.join(rows.columns)} are.")
        keys = _keys(self.key, rows.schema)
        columns: list[Column] = [
            keys[field.name].alias(field.name)
            if field.name in keys
            else F.lit(None).cast(field.dataType).alias(field.name)
            for field in rows.schema.fields
            if field.name not in METADATA
        ]
        deletions = gone.select(*columns, F.col("key").alias(KEY), *_origin(""))
        return rows.withColumn(DELETED, F.lit(False)).unionByName(
            deletions.withColumn(DELETED, F.lit(True))
        )


def merged(
    found: StructType, known: StructType | None, time: str | None = None, key: Sequence[str] = ()
) -> StructType:
    """The fields to look for in a batch: those that are in it, with the types of the table.

    A field that is text in the table takes anything, as text.  The event time is a time.  The key
    is always looked for, because deletions need its type.
    """
    before = known.fields if known else []
    types = {field.name: field.dataType for field in before}
    fields = []
    for field in nullable(found).fields:
        kind = field.dataType
        if field.name == CORRUPT or (isinstance(kind, NullType) and field.name not in types):
            continue
        if isinstance(types.get(field.name), StringType) or isinstance(kind, NullType):
            kind = types[field.name]
        elif field.name == time and isinstance(kind, StringType):
            kind = TimestampType()
        fields.append(StructField(field.name, kind))
    names = {*(field.name for field in fields), *key} - {*METADATA}
    here = [field for field in before if field.name in names]
    return evolve(StructType(here), StructType(fields)).schema


def latest(rows: DataFrame, key: Sequence[str]) -> DataFrame:
    """The last row of each key: by offset within a partition, by time between partitions."""
    from pyspark.sql import functions as F

    row = F.struct(*(F.col(f"`{name}`") for name in rows.columns))
    parts = rows.groupBy(*key, F.col("_partition").alias("__partition")).agg(
        F.max_by(row, "_offset").alias("__row")
    )
    place = F.struct(F.col("__row._timestamp"), F.col("__partition"))
    return parts.groupBy(*key).agg(F.max_by("__row", place).alias("__row")).select("__row.*")


def _keys(key: Sequence[str], schema: StructType) -> dict[str, Column]:
    """The key's columns as a deletion has them, from its record's key."""
    from pyspark.sql import functions as F

    names = [name for name in key if name != KEY]
    text = F.col("key").cast("string")
    if len(names) == 1 and len(key) == 1:
        found = {names[0]: text.try_cast(schema[names[0]].dataType)}
    else:
        parsed = F.from_json(text, StructType([schema[name] for name in names]))
        found = {name: parsed.getField(name) for name in names}
    words = F.concat(
        F.lit("A record without a value deletes a row, and its key should say which, by "),
        F.lit(", ".join(names)),
        F.lit(", but it is: "),
        F.coalesce(text, F.lit("null")),
        F.lit(". A table with the key _key takes every key."),
    )
    return {
        name: F.coalesce(value, F.raise_error(words).cast(schema[name].dataType))
        for name, value in found.items()
    }


def _origin(prefix: str) -> list[Column]:
    from pyspark.sql import functions as F

    return [F.col(f"{prefix}{name}").cast(kind).alias(f"_{name}") for name, kind in ORIGIN.items()]


def _quoted(names: Sequence[str]) -> list[Column]:
    from pyspark.sql import functions as F

    return [F.col(f"`{name}`") for name in names]


def _kept(on_error: str) -> str:
    """Dead letters are written apart; to the table they are records to be skipped."""
    return "skip" if on_error.startswith("dlq:") else on_error


def schema_for(format: str, schema: str | None) -> Schema | None:
    """What `--format` and `--schema` mean; None: each batch of JSON says its own."""
    if format == "json" and schema in (None, "infer"):
        return None
    try:
        return _schema_for(format, schema)
    except BadSchema as error:
        raise TableError(str(error)) from None


def _schema_for(format: str, schema: str | None) -> Schema:
    match format:
        case "json":
            return schema_of(schema)
        case "text" | "raw":
            return schema_of(format)
        case "avro" | "protobuf":
            return _binary(format, schema)
    raise TableError(f"{format!r} is no format; there are json, text, raw, avro and protobuf")


def _binary(format: str, schema: str | None) -> Schema:
    if schema is None:
        raise TableError(f"Values in {format} need --schema: the file that describes them.")
    if format == "avro":
        return avro(schema)
    path, mark, message = schema.partition("#")
    if not mark:
        raise TableError("Protobuf needs --schema FILE#MESSAGE, such as shop.desc#shop.Order")
    return protobuf(path, message)
