"""Open a table, and read it as a DataFrame without the jars that Spark needs for Delta or Iceberg.

The store says which files are in the table, and Spark reads them as Parquet on its executors.
`deltalake` and `pyiceberg` are imported only when they are used.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from hightide.spark.tables.table_store import DataFile, TableStore
from hightide.spark.tables.table_target import Kind, TableError, Target, parse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def read(spark: SparkSession, target: str | Target) -> DataFrame:
    """Return all rows of a table as it is now."""
    store = open_table(target)
    found = store.snapshot()
    if found is None:
        raise TableError(
            f"There is no table at {parse(target) if isinstance(target, str) else target}."
        )
    return read_files(spark, store, found.schema, found.files)


def read_files(
    spark: SparkSession, store: TableStore, schema: StructType, files: Iterable[DataFile]
) -> DataFrame:
    """Return the rows of some of a table's files."""
    paths = [str(store.locate(file)) for file in files]
    if not paths:
        return spark.createDataFrame([], schema)
    reader = spark.read.schema(schema)
    if not store.keeps_partition_columns:
        reader = reader.option("basePath", str(store.base()))
    return reader.parquet(*paths)


def open_table(target: str | Target) -> TableStore:
    """Return the store of a table, by its kind."""
    found = parse(target) if isinstance(target, str) else target
    match found.kind:
        case Kind.PARQUET:
            from hightide.spark.tables.parquet import ParquetStore

            return ParquetStore(found.path)
        case Kind.DELTA:
            from hightide.spark.tables.delta import DeltaStore

            return DeltaStore(found.path)
        case Kind.ICEBERG:
            from hightide.spark.tables.iceberg import IcebergStore

            return IcebergStore(found.path)
