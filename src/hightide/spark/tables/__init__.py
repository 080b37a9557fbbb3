"""Topics as tables: plain Parquet, Delta and Iceberg, without a jar, each batch exactly once.

    parse("delta:./tables/big")              where a table is and of which kind
    writer("delta:./tables/big", key="id")   a function for `foreachBatch`
    read(spark, "delta:./tables/big")        the table as a DataFrame
    ledger_of("delta:./tables/big")          what is in it, and the way to change or drop it

`ledger` has the idea: a table is a set of files and the marks of its writers, and both change in
one step.  `parquet`, `delta` and `iceberg` are three ways to make that step.
"""

from hightide.spark.tables.kinds import ledger_of
from hightide.spark.tables.reading import read
from hightide.spark.tables.target import Kind, TableError, Target, is_table, parse
from hightide.spark.tables.writer import TableWriter, writer

__all__ = [
    "Kind",
    "TableError",
    "TableWriter",
    "Target",
    "is_table",
    "ledger_of",
    "parse",
    "read",
    "writer",
]
