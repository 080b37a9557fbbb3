"""The content of a table, and its atomic change.

A table of any kind is a set of immutable Parquet files, with a mark that says how far each writer
has come. A `Change` removes files, adds files and moves one writer's mark; a store commits it whole
or not at all. This is what makes a batch count exactly once: the rows and the batch number become
visible in the same step, and `judge` recognises a batch that is repeated.

The three kinds differ only in how they commit: by swapping a link (Parquet), by a file of the
transaction log (Delta), by a pointer in a catalog (Iceberg).
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from pyspark.sql.types import StructType

from hightide.spark.tables.schema_evolution import Evolution
from hightide.spark.tables.table_target import TableError


@dataclass(frozen=True, slots=True)
class Layout:
    """How rows are distributed over files; fixed when the table is created."""

    key: tuple[str, ...] = ()
    partition_by: tuple[str, ...] = ()
    # The column that the partition `day` is derived from; None if `day` is an ordinary column.
    time: str | None = None
    # A table with a key keeps each key in one of this many files, by its hash.
    buckets: int = 16

    def plain(self) -> dict[str, Any]:
        return {
            "key": list(self.key),
            "partition_by": list(self.partition_by),
            "time": self.time,
            "buckets": self.buckets,
        }

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Layout:
        return cls(
            tuple(found["key"]), tuple(found["partition_by"]), found["time"], found["buckets"]
        )


@dataclass(frozen=True, slots=True)
class Mark:
    """How far one writer has come: the last batch of its run that is in the table.

    A run lasts as long as one checkpoint. A new checkpoint counts its batches from 0 again.
    """

    run: str
    batch: int


@dataclass(frozen=True, slots=True)
class DataFile:
    """One file of a table."""

    path: str
    size_bytes: int
    rows: int
    # The values of the partition columns, as text; None is null.
    partition: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def bucket(self) -> int | None:
        return bucket_of(self.path)


@dataclass(frozen=True, slots=True)
class NewFile:
    """One file that is written and not yet in a table."""

    staged: Path
    name: str
    size_bytes: int
    rows: int
    # `folder` is the escaped path of the partition in Hive's style.
    partition: Mapping[str, str | None] = field(default_factory=dict)
    folder: str = ""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A table at one moment."""

    schema: StructType
    layout: Layout
    files: tuple[DataFile, ...]
    marks: Mapping[str, Mark]
    version: int


@dataclass(frozen=True, slots=True)
class Change:
    add: tuple[NewFile, ...] = ()
    remove: frozenset[str] = frozenset()
    schema: StructType | None = None
    writer: str = ""
    mark: Mark | None = None
    # The same rows in other files: readers of the table's changes can skip it.
    is_rearranged: bool = False


class Conflict(Exception):
    """Files that a change wanted to replace are no longer in the table."""


class TableStore(Protocol):
    """A table as its writer sees it."""

    # For files that are not in the table yet: on its file system, invisible to readers.
    workspace: Path
    # Whether partition columns are in the files too, and not only in the names of folders.
    keeps_partition_columns: bool

    def snapshot(self) -> Snapshot | None: ...

    def create(self, schema: StructType, layout: Layout) -> Snapshot: ...

    def commit(self, change: Change) -> None: ...

    def must_rewrite(self, evolution: Evolution) -> bool:
        """Return whether files of the old schema cannot stay beside files of the new one."""

    def locate(self, file: DataFile) -> Path: ...

    def base(self) -> Path:
        """Return the folder that contains the folders of the partitions."""

    def forget(self, prefix: str) -> None:
        """Delete files with this in their names that a crash left behind."""

    def clean(self) -> None:
        """Delete what is kept of earlier versions, if it is old enough."""

    def drop(self) -> None: ...


def judge(mark: Mark | None, run: str, batch: int, *, is_repeatable: bool) -> bool:
    """Return whether a batch is new. False: it is in the table already and must not be written
    again.

    Spark repeats at most the last batch it started. A lower number means that the checkpoint is not
    the one that the table was written with, so it is unknown whether the rows of the batch are in
    the table. A table that is overwritten or updated by key accepts it all the same, because it
    converges.
    """
    if mark is None or (mark.run == run and batch > mark.batch):
        return True
    if mark.run == run and batch == mark.batch:
        return False
    if is_repeatable:
        return True
    was = "a new checkpoint" if mark.run != run else f"an older checkpoint (batch {batch})"
    raise TableError(
        f"The table has this writer's batches up to {mark.batch}, but the writer has {was}."
        " Rows would be written twice. Drop the table to fill it again, restore the checkpoint it"
        " was written with, or write under another name to add to it."
    )


def bucket_of(path: str) -> int | None:
    """Return the bucket in a file's name; None for a file that Hightide did not write."""
    name = path.rsplit("/", 1)[-1]
    digits = name[1:5]
    return int(digits) if name[:1] == "b" and name[5:6] == "-" and digits.isdecimal() else None


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock, so that threads and processes of this machine change a table one at a time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
