"""Values that are not parsed: `text` and `raw`, each one column named `value`.

Log lines are text. Every value is valid, so there are no bad records.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from pyspark.sql.types import BinaryType, DataType, StringType, StructField, StructType

from hightide.spark.formats.value_schema import ERROR, VALUE, Schema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


@dataclass(frozen=True)
class PlainSchema(Schema):
    """Bytes unchanged; subclasses choose another type."""

    kind: ClassVar[DataType] = BinaryType()
    format = "raw"

    @property
    def type(self) -> StructType:
        return StructType([StructField("value", self.kind)])

    def decode(self, rows: DataFrame, *, with_reasons: bool = True) -> DataFrame:  # noqa: ARG002
        from pyspark.sql import functions as F

        value = F.when(
            F.col("value").isNotNull(), F.struct(F.col("value").cast(self.kind).alias("value"))
        )
        return rows.withColumns({VALUE: value, ERROR: F.lit(None).cast("string")})

    def encode(self, row: Column) -> Column:
        return row.getField("value").cast("binary")


@dataclass(frozen=True)
class TextSchema(PlainSchema):
    """Bytes as text."""

    kind = StringType()
    format = "text"
