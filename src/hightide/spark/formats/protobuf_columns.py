"""Protobuf messages as Arrow columns, and back.

Each field of a message type becomes a column that is built for all messages of a batch at once,
with nested and repeated messages flattened first: one message at a time would make a dict for each.

    int32, sint32, sfixed32   INT            int64, …            BIGINT
    uint32, fixed32           BIGINT         uint64, fixed64     DECIMAL(20,0)
    enum                      STRING         Timestamp           TIMESTAMP
    Duration                  INTERVAL DAY TO SECOND             wrappers   nullable
    Struct, Value, Any, …     STRING with JSON

A field with presence (`optional`, a message, a member of a oneof) is null if it is not set; any
other has its default, as always in Protobuf.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal
from itertools import accumulate, chain
from operator import attrgetter
from typing import Any

import pyarrow as pa
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from hightide.spark.formats.value_schema import BadSchema

MICROSECONDS = 1_000_000
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
JSON_LIKE = {f"google.protobuf.{name}" for name in ("Struct", "Value", "ListValue", "Any")}
WRAPPERS = {
    f"google.protobuf.{name}Value"
    for name in (
        "Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes",
    )
}  # fmt: skip
F = FieldDescriptor
INT = (IntegerType(), pa.int32())
LONG = (LongType(), pa.int64())
SCALARS: dict[int, tuple[DataType, pa.DataType]] = {
    F.TYPE_DOUBLE: (DoubleType(), pa.float64()),
    F.TYPE_FLOAT: (FloatType(), pa.float32()),
    F.TYPE_BOOL: (BooleanType(), pa.bool_()),
    F.TYPE_STRING: (StringType(), pa.string()),
    F.TYPE_BYTES: (BinaryType(), pa.binary()),
    F.TYPE_INT32: INT,
    F.TYPE_SINT32: INT,
    F.TYPE_SFIXED32: INT,
    F.TYPE_INT64: LONG,
    F.TYPE_SINT64: LONG,
    F.TYPE_SFIXED64: LONG,
    F.TYPE_UINT32: LONG,
    F.TYPE_FIXED32: LONG,
    F.TYPE_UINT64: (DecimalType(20, 0), pa.decimal128(20, 0)),
    F.TYPE_FIXED64: (DecimalType(20, 0), pa.decimal128(20, 0)),
}


@dataclass(frozen=True, slots=True)
class Values:
    """A kind of value: its Spark type, how many become an array, how one is encoded."""

    spark: DataType
    array: Callable[[list[Any]], pa.Array]
    encode: Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Column:
    """One field of a message type, for many messages at once."""

    name: str
    spark: DataType
    is_nullable: bool
    array: Callable[[list[Any]], pa.Array]
    encode: Callable[[Any], Any]


def columns_of(message: Descriptor, inside: tuple[str, ...] = ()) -> list[Column]:
    if message.full_name in inside:
        raise BadSchema(
            f"The message {message.full_name} contains itself; Spark has no recursive types."
        )
    if not message.fields:
        raise BadSchema(f"The message {message.full_name} has no fields.")
    return [_column(field, (*inside, message.full_name)) for field in message.fields]


def struct_of(columns: Iterable[Column]) -> StructType:
    return StructType(
        [StructField(column.name, column.spark, column.is_nullable) for column in columns]
    )


def array_of(columns: list[Column], messages: list[Any]) -> pa.Array:
    return pa.StructArray.from_arrays(
        [column.array(messages) for column in columns], names=[column.name for column in columns]
    )


def arguments_of(columns: list[Column], row: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a message, from a row."""
    return {
        column.name: column.encode(row[column.name])
        for column in columns
        if row.get(column.name) is not None
    }


def _column(field: FieldDescriptor, inside: tuple[str, ...]) -> Column:
    if _is_map(field):
        return _map(field, inside)
    values = _values(field, inside)
    get = attrgetter(field.name)
    if field.is_repeated:

        def repeated(messages: list[Any]) -> pa.Array:
            lists = list(map(get, messages))
            flat = values.array(list(chain.from_iterable(lists)))
            return pa.ListArray.from_arrays(_offsets(lists), flat)

        return Column(
            field.name,
            ArrayType(values.spark, False),
            False,
            repeated,
            lambda row: [values.encode(item) for item in row],
        )

    def always(messages: list[Any]) -> pa.Array:
        return values.array(list(map(get, messages)))

    array = _optional(field.name, values) if field.has_presence else always
    return Column(field.name, values.spark, field.has_presence, array, values.encode)


def _optional(name: str, values: Values) -> Callable[[list[Any]], pa.Array]:
    get = attrgetter(name)

    def array(messages: list[Any]) -> pa.Array:
        there = [message.HasField(name) for message in messages]
        found = values.array(
            [get(message) for message, has in zip(messages, there, strict=True) if has]
        )
        if len(found) == len(messages):
            return found
        positions = [
            at - 1 if has else None for at, has in zip(accumulate(there), there, strict=True)
        ]
        return found.take(pa.array(positions, pa.int64()))

    return array


def _map(field: FieldDescriptor, inside: tuple[str, ...]) -> Column:
    entry = field.message_type.fields_by_name
    keys, values = _values(entry["key"], inside), _values(entry["value"], inside)
    get = attrgetter(field.name)

    def array(messages: list[Any]) -> pa.Array:
        maps = list(map(get, messages))
        pairs = list(chain.from_iterable(entries.items() for entries in maps))
        return pa.MapArray.from_arrays(
            _offsets(maps),
            keys.array([key for key, _ in pairs]),
            values.array([value for _, value in pairs]),
        )

    def encode(row: Any) -> Any:
        return {keys.encode(key): values.encode(value) for key, value in dict(row).items()}

    return Column(field.name, MapType(keys.spark, values.spark, False), False, array, encode)


def _values(field: FieldDescriptor, inside: tuple[str, ...]) -> Values:
    if field.type == F.TYPE_ENUM:
        return _enum(field)
    if field.type in (F.TYPE_MESSAGE, F.TYPE_GROUP):
        return _message(field.message_type, inside)
    spark, arrow = SCALARS[field.type]
    if isinstance(spark, DecimalType):
        return Values(spark, lambda found: pa.array(map(Decimal, found), arrow), int)
    return Values(spark, lambda found: pa.array(found, arrow), _same)


def _enum(field: FieldDescriptor) -> Values:
    # An unknown number, from a newer writer, is kept as its digits.
    names = {value.number: value.name for value in field.enum_type.values}
    numbers = {value.name: value.number for value in field.enum_type.values}
    return Values(
        StringType(),
        lambda found: pa.array([names.get(value) or str(value) for value in found], pa.string()),
        lambda name: numbers[name] if name in numbers else int(name),
    )


def _message(message: Descriptor, inside: tuple[str, ...]) -> Values:
    name = message.full_name
    make = _maker(message)
    if name == "google.protobuf.Timestamp":
        since = pa.timestamp("us", "UTC")
        return Values(
            TimestampType(),
            lambda found: _moments(found, since),
            lambda moment: make(_seconds(moment.astimezone(datetime.UTC) - EPOCH)),
        )
    if name == "google.protobuf.Duration":
        return Values(
            DayTimeIntervalType(),
            lambda found: _moments(found, pa.duration("us")),
            lambda length: make(_duration(length)),
        )
    if name in WRAPPERS:
        inner = _values(message.fields_by_name["value"], inside)
        return Values(
            inner.spark,
            lambda found: inner.array([value.value for value in found]),
            lambda value: make({"value": inner.encode(value)}),
        )
    if name in JSON_LIKE:
        return Values(
            StringType(),
            lambda found: pa.array(
                [json_format.MessageToJson(value, indent=None) for value in found]
            ),
            lambda text: json_format.Parse(text, make({})),
        )
    columns = columns_of(message, inside)
    return Values(
        struct_of(columns),
        lambda found: array_of(columns, found),
        lambda row: make(arguments_of(columns, row)),
    )


def _maker(message: Descriptor) -> Callable[[dict[str, Any]], Any]:
    from google.protobuf.message_factory import GetMessageClass

    return lambda arguments: GetMessageClass(message)(**arguments)


def _moments(found: list[Any], kind: pa.DataType) -> pa.Array:
    return pa.array([value.seconds * MICROSECONDS + value.nanos // 1000 for value in found], kind)


def _seconds(length: datetime.timedelta) -> dict[str, int]:
    seconds, rest = divmod(length // datetime.timedelta(microseconds=1), MICROSECONDS)
    return {"seconds": seconds, "nanos": rest * 1000}


def _duration(length: datetime.timedelta) -> dict[str, int]:
    """Return the parts of a Duration, which both have its sign, unlike those of a Timestamp."""
    parts = _seconds(abs(length))
    return parts if length >= datetime.timedelta() else {key: -it for key, it in parts.items()}


def _offsets(lists: list[Any]) -> pa.Array:
    return pa.array(accumulate(map(len, lists), initial=0), pa.int32())


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def _same(value: Any) -> Any:
    return value
