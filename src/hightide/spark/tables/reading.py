"""A table as a DataFrame, without the jars that Spark would need to read Delta or Iceberg itself.

The ledger says which files are in the table, and Spark reads them as Parquet on its executors.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from hightide.spark.tables.kinds import ledger_of
from hightide.spark.tables.ledger import DataFile, Ledger
from hightide.spark.tables.target import TableError, Target, parse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def read(spark: SparkSession, target: str | Target) -> DataFrame:
    """All rows of a table as it is now."""
    ledger = ledger_of(target)
    found = ledger.snapshot()
    if found is None:
        raise TableError(
            f"There is no table at {parse(target) if isinstance(target, str) else target}."
        )
    return read_files(spark, ledger, found.schema, found.files)


def read_files(
    spark: SparkSession, ledger: Ledger, schema: StructType, files: Iterable[DataFile]
) -> DataFrame:
    """The rows of some of a table's files."""
    paths = [str(ledger.locate(each)) for each in files]
    if not paths:
        return spark.createDataFrame([], schema)
    reader = spark.read.schema(schema)
    if not ledger.keeps_partition_columns:
        reader = reader.option("basePath", str(ledger.base()))
    return reader.parquet(*paths)
