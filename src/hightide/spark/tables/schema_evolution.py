"""How a table's columns follow the incoming rows.

Columns are added and types are widened, also inside of structs; anything else is an error. A column
that no longer arrives is kept and filled with null.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

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

from hightide.spark.tables.table_target import TableError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

WHOLE: Sequence[type[DataType]] = (ByteType, ShortType, IntegerType, LongType)


@dataclass(frozen=True, slots=True)
class Evolution:
    """A table's next schema, and the columns that changed it."""

    schema: StructType
    added: tuple[str, ...] = ()
    widened: tuple[str, ...] = ()


def evolve(table: StructType, incoming: StructType, fixed: Collection[str] = ()) -> Evolution:
    """Return a table's schema after rows of another schema; `fixed` columns keep their type."""
    arriving = {field.name: field.dataType for field in incoming.fields}
    by_case = {field.name.lower(): field.name for field in table.fields}
    fields, added, widened = [], [], []
    for field in table.fields:
        kind = wider(field.dataType, arriving.get(field.name, field.dataType))
        if kind is None or (kind != field.dataType and field.name in fixed):
            raise TableError(
                f"Column {field.name} is {field.dataType.simpleString()} in the table and"
                f" {arriving[field.name].simpleString()} in the incoming rows, which does not fit."
            )
        if kind != field.dataType:
            widened.append(field.name)
        fields.append(StructField(field.name, kind))
    for name, kind in arriving.items():
        known = by_case.get(name.lower())
        if known is None:
            added.append(name)
            fields.append(StructField(name, kind))
        elif known != name:
            raise TableError(f"Columns {known} and {name} differ only in upper and lower case.")
    return Evolution(StructType(fields), tuple(added), tuple(widened))


def wider(table: DataType, incoming: DataType) -> DataType | None:
    """Return the type that holds the values of both; None if there is none."""
    table, incoming = as_nullable(table), as_nullable(incoming)
    if table == incoming or isinstance(incoming, NullType):
        return table
    if type(table) in WHOLE and type(incoming) in WHOLE:
        return max(table, incoming, key=lambda kind: WHOLE.index(type(kind)))
    if isinstance(table, FloatType | DoubleType) and isinstance(incoming, FloatType | DoubleType):
        return DoubleType()
    # The numbers were whole so far: JSON does not distinguish integers from fractions.
    if type(table) in WHOLE and isinstance(incoming, DoubleType):
        return incoming
    if isinstance(table, DoubleType) and type(incoming) in WHOLE:
        return table
    if isinstance(table, DecimalType) and isinstance(incoming, DecimalType):
        scale = max(table.scale, incoming.scale)
        whole = max(table.precision - table.scale, incoming.precision - incoming.scale)
        return DecimalType(whole + scale, scale) if whole + scale <= 38 else None
    return _wider_inside(table, incoming)


def _wider_inside(table: DataType, incoming: DataType) -> DataType | None:
    """The same for nested types: a struct may get more fields."""
    match table, incoming:
        case StructType(), StructType():
            try:
                return evolve(table, incoming).schema
            except TableError:
                return None
        case ArrayType(), ArrayType():
            element = wider(table.elementType, incoming.elementType)
            return None if element is None else ArrayType(element)
        case MapType(), MapType() if table.keyType == incoming.keyType:
            value = wider(table.valueType, incoming.valueType)
            return None if value is None else MapType(table.keyType, value)
    return None


def as_nullable(kind: DataType) -> DataType:
    """Return the type with null allowed everywhere, as in all columns of a table."""
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
        [StructField(field.name, as_nullable(field.dataType)) for field in schema.fields]
    )


def fitted(column: Column, found: DataType, wanted: DataType) -> Column:
    """Return a column in the wider type of the table."""
    from pyspark.sql import functions as F

    if as_nullable(found) == wanted:
        return column
    match found, wanted:
        case StructType(), StructType():
            types = {field.name: field.dataType for field in found.fields}
            inside = [
                fitted(column.getField(field.name), types[field.name], field.dataType)
                if field.name in types
                else F.lit(None).cast(field.dataType)
                for field in wanted.fields
            ]
            named = [one.alias(name) for one, name in zip(inside, wanted.names, strict=True)]
            return F.when(column.isNotNull(), F.struct(*named))
        case ArrayType(), ArrayType():
            return F.transform(column, lambda it: fitted(it, found.elementType, wanted.elementType))
        case MapType(), MapType():
            return F.transform_values(
                column, lambda _, it: fitted(it, found.valueType, wanted.valueType)
            )
    return column.cast(wanted)


def conform(rows: DataFrame, schema: StructType, extra: Sequence[str] = ()) -> DataFrame:
    """Return rows with exactly the columns of a table, in its order; missing ones are null."""
    from pyspark.sql import functions as F

    types = {field.name: field.dataType for field in rows.schema.fields}
    return rows.select(
        *(
            fitted(F.col(f"`{field.name}`"), types[field.name], field.dataType).alias(field.name)
            if field.name in types
            else F.lit(None).cast(field.dataType).alias(field.name)
            for field in schema.fields
        ),
        *extra,
    )
