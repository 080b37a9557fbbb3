"""Rows as the key, value and headers of records.

Columns that describe the record go there instead of into the value: `_key`, `_headers`, `_topic`
and `_partition`. `_meta`, the origin of a row, is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql.types import BinaryType, DataType, StringType, StructType

from hightide.spark.formats.bad_records import HEADERS_TYPE, KEY, META
from hightide.spark.formats.json_format import WRITTEN, JsonSchema
from hightide.spark.formats.value_schema import BadSchema, Schema, relaxed

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

RECORD_COLUMNS = {"_headers": HEADERS_TYPE, "_topic": "string", "_partition": "int"}


def encoded(
    rows: DataFrame,
    schema: Schema | None = None,
    *,
    key: str | Sequence[str] | Column | None = None,
) -> DataFrame:
    """Return the rows as records: value, and optionally key, headers, topic and partition.

    One column as key is written as text (bytes stay bytes), several as a JSON object. Without
    `key`, rows that still have `_key` keep it.
    """
    from pyspark.sql import functions as F

    names = [name for name in rows.columns if name not in {KEY, META, *RECORD_COLUMNS}]
    if schema is None:
        schema = JsonSchema(StructType([rows.schema[name] for name in names]))
        row = F.struct(*(_quoted(name) for name in names))
    else:
        row = _fitted(rows, schema)
    columns = [schema.encode(row).alias("value")]
    made = _key(rows, key)
    if made is not None:
        columns.insert(0, made.alias("key"))
    for name, kind in RECORD_COLUMNS.items():
        if name in rows.columns:
            columns.append(F.col(name).cast(kind).alias(name.removeprefix("_")))
    return rows.select(*columns)


def _key(rows: DataFrame, key: str | Sequence[str] | Column | None) -> Column | None:
    from pyspark.sql import functions as F

    if key is None:
        return _as_key(F.col(KEY), rows.schema[KEY].dataType) if KEY in rows.columns else None
    if isinstance(key, str):
        _check_there(rows, [key])
        return _as_key(_quoted(key), rows.schema[key].dataType)
    if isinstance(key, Sequence):
        _check_there(rows, key)
        return F.to_json(F.struct(*(_quoted(name) for name in key)), WRITTEN).cast("binary")
    return _as_key(key, rows.select(key).schema[0].dataType)


def _as_key(column: Column, kind: DataType) -> Column:
    from pyspark.sql import functions as F

    if isinstance(kind, BinaryType):
        return column
    if isinstance(kind, StringType):
        return column.cast("binary")
    if isinstance(kind, StructType):
        return F.to_json(column, WRITTEN).cast("binary")
    return column.cast("string").cast("binary")


def _check_there(rows: DataFrame, names: Sequence[str]) -> None:
    absent = [name for name in names if name not in rows.columns]
    if absent:
        raise BadSchema(
            f"The key column {', '.join(absent)} is missing; the columns are"
            f" {', '.join(rows.columns)}."
        )


def _fitted(rows: DataFrame, schema: Schema) -> Column:
    """Return the rows as a struct of the schema's type; missing nullable columns are null."""
    from pyspark.sql import functions as F

    made = []
    # Spark refuses to cast a nullable type to one that is not, even if there are no nulls.
    types = {field.name: field.dataType for field in relaxed(schema.type).fields}
    for field in schema.type.fields:
        if field.name in rows.columns:
            made.append(_quoted(field.name).cast(types[field.name]).alias(field.name))
        elif field.nullable:
            made.append(F.lit(None).cast(types[field.name]).alias(field.name))
        else:
            raise BadSchema(
                f"The {schema.format} schema needs the column {field.name}; the columns are"
                f" {', '.join(rows.columns)}."
            )
    return F.struct(*made)


def _quoted(name: str) -> Column:
    """Return a column whose name may contain dots."""
    from pyspark.sql import functions as F

    return F.col(f"`{name.replace('`', '``')}`")
