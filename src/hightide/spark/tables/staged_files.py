"""Files that Spark has written and that are not yet in a table.

Executors write Parquet into a folder that readers ignore, through Spark's own writer, which handles
failed and repeated tasks. The driver then lists the files, reads their footers, and gives them
their names in the table. Driver and executors must see the folder under the same path.
"""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from hightide.spark.tables.table_store import Layout, NewFile, TableStore

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

NULL = "__HIVE_DEFAULT_PARTITION__"
BUCKET = "__bucket"


class StagedFiles:
    """One folder of files that are being written; always deleted at the end."""

    def __init__(self, store: TableStore, layout: Layout, prefix: str) -> None:
        self.store = store
        self.layout = layout
        self.prefix = prefix
        self.folder = store.workspace / f"{prefix}-{uuid.uuid4().hex[:8]}"

    def __enter__(self) -> StagedFiles:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def write(self, frame: DataFrame) -> list[NewFile]:
        """Write rows as files of the table's layout."""
        from pyspark.sql import functions as F

        where = self.folder / uuid.uuid4().hex[:8]
        names = [f"__p{at}" for at in range(len(self.layout.partition_by))]
        values = [partition_value(self.layout, frame, name) for name in self.layout.partition_by]
        if self.layout.key:
            names.append(BUCKET)
            values.append(bucket(self.layout))
        spread = frame.withColumns(dict(zip(names, values, strict=True)))
        if not self.store.keeps_partition_columns:
            spread = spread.drop(*self.layout.partition_by)
        # One file per partition and bucket, instead of one per task: rebalance merges small parts.
        spread = spread.hint("rebalance", *(F.col(name) for name in names))
        spread.write.partitionBy(*names).parquet(str(where))
        named = [self._named(where, path, at) for at, path in enumerate(parquet_files(where))]
        return [file for file in named if file.rows]

    def _named(self, where: Path, path: Path, at: int) -> NewFile:
        import pyarrow.parquet as pq

        texts = [part.partition("=")[2] for part in path.relative_to(where).parent.parts]
        partition_by = self.layout.partition_by
        bucket = f"b{int(texts[-1]):04d}-" if self.layout.key else ""
        return NewFile(
            staged=path,
            name=f"{bucket}{self.prefix}-{at:05d}-{uuid.uuid4().hex[:8]}.parquet",
            size_bytes=path.stat().st_size,
            rows=pq.read_metadata(path).num_rows,
            partition={
                name: None if text == NULL else unquote(text)
                for name, text in zip(partition_by, texts, strict=False)
            },
            folder="/".join(
                f"{name}={text}" for name, text in zip(partition_by, texts, strict=False)
            ),
        )


def parquet_files(folder: Path) -> list[Path]:
    """Return the files of a folder that Spark wrote, without its own bookkeeping."""
    return sorted(path for path in folder.rglob("*.parquet") if not path.name.startswith("."))


def partition_value(layout: Layout, frame: DataFrame, name: str) -> Column:
    """Return the value that names a row's folder."""
    from pyspark.sql import functions as F

    if name not in frame.columns and layout.time is not None:
        return F.to_date(layout.time)
    return F.col(name)


def bucket(layout: Layout) -> Column:
    """Return the bucket of a row's key. It must never change for a key."""
    from pyspark.sql import functions as F

    hashed = F.xxhash64(*(F.col(name) for name in layout.key))
    return F.pmod(hashed, F.lit(layout.buckets)).cast("int")
