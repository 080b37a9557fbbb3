"""What every format has: a Spark type, a way in and a way out.

A schema is a small value that can be pickled, because decoders travel to executors.  Decoding gives
two columns, the value and an error: a record is good, or it is bad for a reason in words, and what
happens to the bad ones is decided elsewhere (`bad_records`).  Spark itself is touched only in
`decode` and `encode`, so schemas are made and looked at without a session.
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
        """The columns.  A field that is not nullable has to be there in every record."""

    @abstractmethod
    def decode(self, rows: DataFrame, *, with_reasons: bool = True) -> DataFrame:
        """The rows with the columns VALUE, a struct of `type`, and ERROR, made from the bytes in
        the column `value`.  Null bytes are a deletion and not bad: VALUE and ERROR are null.

        Without reasons, ERROR may be any text: Spark plans every micro-batch anew, and a reason in
        words is a long expression.
        """

    @abstractmethod
    def encode(self, row: Column) -> Column:
        """From a struct of `type` to bytes."""


def once(expression: Column) -> Column:
    """The same, but Spark will not compute it a second time for a filter on its result.

    Spark copies what a filter looks at below the projection that made it, unless that projection is
    not deterministic; parsing every record twice is what it would cost.
    """
    from pyspark.sql import functions as F

    return F.when(F.spark_partition_id() >= 0, expression)


def relaxed(struct: StructType, *more: StructField) -> StructType:
    """The same with everything nullable: what a reader shall look for in records that may be bad.
    Spark would take a field that is not nullable at its word."""

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
