"""How a table's columns follow what comes in.

Columns are added and types are widened; anything else stops with a sentence.  A column that no
longer comes is kept and filled with null.  Only whole columns change: a struct with another field
in it is another type.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StructField,
    StructType,
)

from hightide.spark.tables.target import TableError

WHOLE: Sequence[type[DataType]] = (ByteType, ShortType, IntegerType, LongType)


@dataclass(frozen=True, slots=True)
class Evolution:
    """What a table's schema becomes, and which columns made it so."""

    schema: StructType
    added: tuple[str, ...] = ()
    widened: tuple[str, ...] = ()


def evolve(table: StructType, incoming: StructType, fixed: Collection[str] = ()) -> Evolution:
    """A table's columns after rows of another schema have come; `fixed` ones keep their type."""
    arriving = {each.name: each.dataType for each in incoming.fields}
    by_case = {each.name.lower(): each.name for each in table.fields}
    fields, added, widened = [], [], []
    for each in table.fields:
        kind = wider(each.dataType, arriving.get(each.name, each.dataType))
        if kind is None or (kind != each.dataType and each.name in fixed):
            raise TableError(
                f"Column {each.name} is {each.dataType.simpleString()} in the table and"
                f" {arriving[each.name].simpleString()} in what comes now, which does not fit."
            )
        if kind != each.dataType:
            widened.append(each.name)
        fields.append(StructField(each.name, kind))
    for name, kind in arriving.items():
        known = by_case.get(name.lower())
        if known is None:
            added.append(name)
            fields.append(StructField(name, kind))
        elif known != name:
            raise TableError(f"Columns {known} and {name} differ only in upper and lower case.")
    return Evolution(StructType(fields), tuple(added), tuple(widened))


def wider(table: DataType, incoming: DataType) -> DataType | None:
    """The type that holds the values of both; None if there is none."""
    table, incoming = as_nullable(table), as_nullable(incoming)
    if table == incoming or isinstance(incoming, NullType):
        return table
    if type(table) in WHOLE and type(incoming) in WHOLE:
        return max(table, incoming, key=lambda each: WHOLE.index(type(each)))
    if isinstance(table, FloatType | DoubleType) and isinstance(incoming, FloatType | DoubleType):
        return DoubleType()
    # A number that was whole so far: JSON does not tell a whole number from one with a fraction.
    if type(table) in WHOLE and isinstance(incoming, DoubleType):
        return incoming
    if isinstance(table, DoubleType) and type(incoming) in WHOLE:
        return table
    if isinstance(table, DecimalType) and isinstance(incoming, DecimalType):
        scale = max(table.scale, incoming.scale)
        whole = max(table.precision - table.scale, incoming.precision - incoming.scale)
        return DecimalType(whole + scale, scale) if whole + scale <= 38 else None
    return None


def as_nullable(kind: DataType) -> DataType:
    """The same type with null allowed everywhere, as all of a table's columns have it."""
    match kind:
        case ArrayType():
            return ArrayType(as_nullable(kind.elementType))
        case MapType():
            return MapType(as_nullable(kind.keyType), as_nullable(kind.valueType))
        case StructType():
            return nullable(kind)
    return kind


def nullable(schema: StructType) -> StructType:
    return StructType(
        [StructField(each.name, as_nullable(each.dataType)) for each in schema.fields]
    )
