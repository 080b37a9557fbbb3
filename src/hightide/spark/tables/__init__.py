"""Topics as tables: plain Parquet, Delta and Iceberg, without a jar, each batch exactly once.

    parse("delta:./tables/big")              the kind and the path of a table
    writer("delta:./tables/big", key="id")   a function for `foreachBatch`
    read(spark, "delta:./tables/big")        the table as a DataFrame
    open_table("delta:./tables/big")         its files and marks, and how to change or drop it

`table_store` has the idea: a table is a set of files and the marks of its writers, and both change
atomically. `parquet`, `delta` and `iceberg` are three implementations of that.
"""

from hightide.spark.tables.table_access import open_table, read
from hightide.spark.tables.table_target import Kind, TableError, Target, is_table, parse
from hightide.spark.tables.table_writer import TableWriter, writer

__all__ = [
    "Kind",
    "TableError",
    "TableWriter",
    "Target",
    "is_table",
    "open_table",
    "parse",
    "read",
    "writer",
]
