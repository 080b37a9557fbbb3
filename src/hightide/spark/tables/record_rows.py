"""From the records of a topic to the rows of its table.

A row has the columns of the value and four more with its origin: `_key` (bytes), `_partition`,
`_offset` and `_timestamp`. If the table has a key, a record without a value deletes a row. The
record's key then says which row: as bytes if the table's key is `_key`, as text if it is one
column, as a JSON object if it is several, as `streams` writes keys.
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
# Spark's name of the column of texts that are not JSON.
CORRUPT = "_corrupt_record"


@dataclass(frozen=True, slots=True)
class Records:
    """How a topic's records are decoded. Without a schema, each batch of JSON has its own."""

    schema: Schema | None
    key: tuple[str, ...] = ()
    time: str | None = None
    on_error: str = "fail"

    def schema_of(self, raw: DataFrame, known: StructType | None) -> Schema | None:
        """Return the schema of a batch's values; `known` is the schema of the table.

        None if it is not known yet: there is no table, and no record with a field.
        """
        if self.schema is not None:
            return self.schema
        fields = self._inferred(raw, known)
        return json(fields) if known is not None or fields.names else None

    def rows(self, raw: DataFrame, schema: Schema) -> DataFrame:
        """Return the rows of a batch of records."""
        if clash := {*schema.type.names} & {*METADATA, DELETED}:
            raise TableError(
                f"The value has a field {min(clash)}, which is a column of every table; rename it."
            )
        found, _ = decoded(raw, schema, on_error=_kept(self.on_error), key="binary")
        rows = found.select(*_quoted(schema.type.names), KEY, *_origin("_meta."))
        if not self.key:
            return rows
        return latest(self._with_deletions(rows, raw), self.key)

    def _inferred(self, raw: DataFrame, known: StructType | None) -> StructType:
        """Return the fields of a batch's JSON, at least as wide as those of the table."""
        from pyspark.sql import functions as F

        texts = raw.where(F.col("value").isNotNull()).select(F.col("value").cast("string"))
        found = raw.sparkSession.read.json(texts).schema
        return merged(found, known, self.time, self.key)

    def _with_deletions(self, rows: DataFrame, raw: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        gone = raw.where(F.col("value").isNull())
        if missing := [name for name in self.key if name not in rows.columns]:
            raise TableError(
                f"The key {missing[0]} is not a column; the columns are {', '.join(rows.columns)}."
            )
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
    """Return the fields to look for in a batch: those that are in it, with the types of the table.

    A field that is text in the table accepts anything, as text. The event time is a timestamp. The
    key is always looked for, because deletions need its type.
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
    """Return the last row of each key: by offset within a partition, by time between partitions."""
    from pyspark.sql import functions as F

    row = F.struct(*(F.col(f"`{name}`") for name in rows.columns))
    parts = rows.groupBy(*key, F.col("_partition").alias("__partition")).agg(
        F.max_by(row, "_offset").alias("__row")
    )
    place = F.struct(F.col("__row._timestamp"), F.col("__partition"))
    return parts.groupBy(*key).agg(F.max_by("__row", place).alias("__row")).select("__row.*")


def _keys(key: Sequence[str], schema: StructType) -> dict[str, Column]:
    """Return the key columns of a deletion, from its record's key."""
    from pyspark.sql import functions as F

    names = [name for name in key if name != KEY]
    text = F.col("key").cast("string")
    if len(names) == 1 and len(key) == 1:
        found = {names[0]: text.try_cast(schema[names[0]].dataType)}
    else:
        parsed = F.from_json(text, StructType([schema[name] for name in names]))
        found = {name: parsed.getField(name) for name in names}
    words = F.concat(
        F.lit("A record without a value deletes the row with its key. The key must have "),
        F.lit(", ".join(names)),
        F.lit(", but is: "),
        F.coalesce(text, F.lit("null")),
        F.lit(". A table with --key _key accepts every key."),
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
    """Skip bad records that are written to a dead-letter topic."""
    return "skip" if on_error.startswith("dlq:") else on_error


def schema_for(format: str, schema: str | None) -> Schema | None:
    """Return what `--format` and `--schema` mean; None: infer it from each batch of JSON."""
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
    raise TableError(f"{format!r} is not a format; expected json, text, raw, avro or protobuf")


def _binary(format: str, schema: str | None) -> Schema:
    if schema is None:
        raise TableError(f"Values in {format} need --schema FILE.")
    if format == "avro":
        return avro(schema)
    path, mark, message = schema.partition("#")
    if not mark:
        raise TableError("Protobuf needs --schema FILE#MESSAGE, such as shop.desc#shop.Order")
    return protobuf(path, message)
