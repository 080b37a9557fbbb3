"""What every format has: a Spark type, a decoder and an encoder.

A schema is a small value that can be pickled, because decoders are sent to executors. Decoding
gives two columns, the value and an error: a record is good, or bad for a reason, and `bad_records`
decides what happens to bad ones. Only `decode` and `encode` need Spark, so schemas can be made and
inspected without a session.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

VALUE = "_hightide_value"
ERROR = "_hightide_error"


class BadSchema(ValueError):
    """A schema that cannot be used; the text says which part of it and why."""


class Schema(ABC):
    """How the values of a topic become columns, and columns become values."""

    format: ClassVar[str]

    @property
    @abstractmethod
    def type(self) -> StructType:
        """The columns. A field that is not nullable is required in every record."""

    @abstractmethod
    def decode(self, rows: DataFrame, *, with_reasons: bool = True) -> DataFrame:
        """Return the rows with the columns VALUE, a struct of `type`, and ERROR.

        They are made from the bytes of the column `value`. Null bytes are a deletion and not bad:
        VALUE and ERROR are null. Without reasons, ERROR may be any text: Spark plans every
        micro-batch again, and a reason is a long expression.
        """

    @abstractmethod
    def encode(self, row: Column) -> Column:
        """Return a struct of `type` as bytes."""


def once(expression: Column) -> Column:
    """Return the expression so that Spark does not compute it again for a filter on its result.

    Spark copies the input of a filter below the projection that made it, unless that projection is
    not deterministic; it would parse every record twice.
    """
    from pyspark.sql import functions as F

    return F.when(F.spark_partition_id() >= 0, expression)


def relaxed(struct: StructType, *more: StructField) -> StructType:
    """Return the struct with everything nullable, for records that may be bad.

    Spark would assume that a field that is not nullable is there.
    """

    def within(kind: DataType) -> DataType:
        match kind:
            case StructType():
                return relaxed(kind)
            case ArrayType():
                return ArrayType(within(kind.elementType), True)
            case MapType():
                return MapType(kind.keyType, within(kind.valueType), True)
        return kind

    fields = (StructField(field.name, within(field.dataType), True) for field in struct.fields)
    return StructType([*fields, *more])
