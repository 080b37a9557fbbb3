"""The types of an Avro schema in Spark and in Arrow.

Logical types of time are read as integers and passed to Arrow with their unit: that makes no object
per value and loses no microsecond. Spark needs microseconds, which is a cast of a whole column.

    timestamp-millis, -micros, -nanos   TIMESTAMP       local-timestamp-…   TIMESTAMP_NTZ
    date                                DATE            decimal             DECIMAL
    time-millis, time-micros            INT, BIGINT     uuid                STRING
    fixed, bytes                        BINARY          enum                STRING
    union with null                     nullable        int | long, float | double   the wider
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from hightide.spark.formats.value_schema import BadSchema

# Logical types that are read as their underlying type: those of time because Arrow knows their
# unit, the others because Spark has no better type.
TIMES = {
    "timestamp-millis": pa.timestamp("ms", "UTC"),
    "timestamp-micros": pa.timestamp("us", "UTC"),
    "timestamp-nanos": pa.timestamp("ns", "UTC"),
    "local-timestamp-millis": pa.timestamp("ms"),
    "local-timestamp-micros": pa.timestamp("us"),
    "local-timestamp-nanos": pa.timestamp("ns"),
    "date": pa.date32(),
}
UNUSED = ("uuid", "time-millis", "time-micros", "duration")


@dataclass(frozen=True, slots=True)
class Kind:
    """A type in Spark, and the Arrow type of the decoder's values."""

    spark: DataType
    arrow: pa.DataType
    is_nullable: bool = False


PRIMITIVE = {
    "null": Kind(NullType(), pa.null(), True),
    "boolean": Kind(BooleanType(), pa.bool_()),
    "int": Kind(IntegerType(), pa.int32()),
    "long": Kind(LongType(), pa.int64()),
    "float": Kind(FloatType(), pa.float32()),
    "double": Kind(DoubleType(), pa.float64()),
    "bytes": Kind(BinaryType(), pa.binary()),
    "string": Kind(StringType(), pa.string()),
}
# Pairs that a union may have, because one type holds the other.
WIDER = [({"int", "long"}, "long"), ({"float", "double"}, "double")]


def read_schema(given: Any) -> Any:
    """Return an Avro schema as Python data, from a dict, JSON text, or an .avsc file."""
    if isinstance(given, dict | list):
        return given
    text = str(given)
    if isinstance(given, Path) or not text.lstrip().startswith(("{", "[", '"')):
        if text in PRIMITIVE:
            return text
        try:
            text = Path(text).read_text("utf-8")
        except OSError as error:
            raise BadSchema(f"The Avro schema {given} cannot be read: {error.strerror}.") from None
    try:
        return json.loads(text)
    except ValueError as error:
        raise BadSchema(f"The Avro schema is not JSON: {error}.") from None


def kind_of(parsed: Any) -> Kind:
    """Return the type of a schema that fastavro has parsed, with full names."""
    return _kind(parsed, {}, ())


def without_logical(schema: Any, names: frozenset[str]) -> Any:
    """Return the schema with some logical types replaced by their underlying types."""
    match schema:
        case list():
            return [without_logical(branch, names) for branch in schema]
        case dict():
            return {
                key: without_logical(inner, names) if key in ("type", "items", "values") else inner
                for key, inner in schema.items()
                if not (key == "logicalType" and inner in names)
            } | (
                {"fields": [without_logical(field, names) for field in schema["fields"]]}
                if "fields" in schema
                else {}
            )
    return schema


def _kind(schema: Any, named: dict[str, Any], inside: tuple[str, ...]) -> Kind:
    match schema:
        case str() if schema in PRIMITIVE:
            return PRIMITIVE[schema]
        case str():
            return _named(schema, named, inside)
        case list():
            return _union(schema, named, inside)
        case {"type": "record" | "error"}:
            named[schema["name"]] = schema
            return _record(schema, named, inside)
        case {"type": "enum"}:
            named[schema["name"]] = schema
            return PRIMITIVE["string"]
        case {"type": "fixed"}:
            named[schema["name"]] = schema
            return _logical(schema) or PRIMITIVE["bytes"]
        case {"type": "array", "items": items}:
            kind = _kind(items, named, inside)
            return Kind(ArrayType(kind.spark, kind.is_nullable), pa.list_(kind.arrow))
        case {"type": "map", "values": values}:
            kind = _kind(values, named, inside)
            spark = MapType(StringType(), kind.spark, kind.is_nullable)
            return Kind(spark, pa.map_(pa.string(), kind.arrow))
        case {"type": inner}:
            return _logical(schema) or _kind(inner, named, inside)
    raise BadSchema(f"{schema} is not an Avro type.")


def _named(name: str, named: dict[str, Any], inside: tuple[str, ...]) -> Kind:
    if name in inside:
        raise BadSchema(f"The Avro record {name} contains itself; Spark has no recursive types.")
    if name not in named:
        raise BadSchema(f"The Avro type {name} is not defined.")
    return _kind(named[name], named, inside)


def _record(schema: dict[str, Any], named: dict[str, Any], inside: tuple[str, ...]) -> Kind:
    if not schema.get("fields"):
        raise BadSchema(f"The Avro record {schema['name']} has no fields.")
    inside = (*inside, schema["name"])
    kinds = {field["name"]: _kind(field["type"], named, inside) for field in schema["fields"]}
    return Kind(
        StructType([StructField(name, it.spark, it.is_nullable) for name, it in kinds.items()]),
        pa.struct([(name, it.arrow) for name, it in kinds.items()]),
    )


def _union(schema: list[Any], named: dict[str, Any], inside: tuple[str, ...]) -> Kind:
    rest = [branch for branch in schema if branch != "null"]
    is_nullable = len(rest) < len(schema)
    for pair, wider in WIDER:
        if all(isinstance(branch, str) and branch in pair for branch in rest) and len(rest) > 1:
            rest = [wider]
    if not rest:
        return PRIMITIVE["null"]
    if len(rest) > 1:
        raise BadSchema(
            f"The Avro union {json.dumps(schema)} has several types besides null; a column has one."
        )
    kind = _kind(rest[0], named, inside)
    return Kind(kind.spark, kind.arrow, is_nullable or kind.is_nullable)


def _logical(schema: dict[str, Any]) -> Kind | None:
    name = schema.get("logicalType")
    if name == "decimal" and schema["type"] in ("bytes", "fixed"):
        precision, scale = int(schema["precision"]), int(schema.get("scale", 0))
        if precision > 38:
            raise BadSchema(f"An Avro decimal has {precision} digits; Spark allows 38.")
        return Kind(DecimalType(precision, scale), pa.decimal128(precision, scale))
    if name not in TIMES or schema["type"] != ("int" if name == "date" else "long"):
        return None
    if name == "date":
        return Kind(DateType(), TIMES[name])
    spark = TimestampNTZType() if name.startswith("local-") else TimestampType()
    return Kind(spark, TIMES[name])
