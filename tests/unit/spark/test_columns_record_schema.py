"""The schema is the one that Spark's own validation expects."""

from __future__ import annotations

from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

from hightide.spark.columns.record_schema import COLUMNS, arrow_schema, ddl


def test_the_arrow_schema_is_what_spark_makes_of_its_kafka_source() -> None:
    header = StructType().add("key", StringType()).add("value", BinaryType())
    expected = (
        StructType()
        .add("key", BinaryType())
        .add("value", BinaryType())
        .add("topic", StringType())
        .add("partition", IntegerType())
        .add("offset", LongType())
        .add("timestamp", TimestampType())
        .add("timestampType", IntegerType())
        .add("headers", ArrayType(header))
    )
    assert to_arrow_schema(expected, timezone="UTC").equals(arrow_schema(headers=True))


def test_columns_come_in_the_order_of_spark_whatever_was_asked_for() -> None:
    assert arrow_schema(columns=["offset", "value"]).names == ["value", "offset"]
    assert arrow_schema().names == list(COLUMNS)
    assert ddl(columns=["offset", "headers"]) == (
        "offset BIGINT, headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
    )
