"""What is in a table, and the one step in which that changes.

A table of any kind is a set of immutable Parquet files, and beside it a record of how far each
writer has come.  A `Change` takes files out, puts files in and moves one writer's mark, and a
ledger carries it out as a whole or not at all.  All that makes a batch count exactly once is
here: the rows and the number of the batch become visible in the same step, and `judge` recognises
a batch that comes again.

The three kinds differ only in how that step is made: a link that is swapped (Parquet), a file of
the transaction log (Delta), a pointer in a catalog (Iceberg).
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
    """How rows are spread over files; decided when a table is made, and never changed."""

    key: tuple[str, ...] = ()
    partition_by: tuple[str, ...] = ()
    # The column from which the partition `day` is derived; None when it is a column like any other.
    time: str | None = None
    # A table with a key keeps each key in one of so many files, by its hash.
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

    A run is the life of one checkpoint.  A new checkpoint counts its batches from nought again.
    """

    run: str
    batch: int


@dataclass(frozen=True, slots=True)
class DataFile:
    """One file that is in a table."""

    path: str
    size_bytes: int
    rows: int
    # By the name of the partition column, as text; None is null.
    partition: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def bucket(self) -> int | None:
        return bucket_of(self.path)


@dataclass(frozen=True, slots=True)
class NewFile:
    """One file that is written, and not yet in a table."""

    staged: Path
    name: str
    size_bytes: int
    rows: int
    # With the escaped text that is a folder's name in the manner of Hive.
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
    # The same rows in other files: what follows a table's changes need not look at it.
    is_rearranged: bool = False


class Conflict(Exception):
    """Files that a change wanted to replace are no longer in the table."""


class TableStore(Protocol):
    """A table as its writer sees it."""

    # Where files are before they belong to the table: on its file system, out of readers' sight.
    workspace: Path
    # Whether partition columns are in the files also, and not only in the names of folders.
    keeps_partition_columns: bool

    def snapshot(self) -> Snapshot | None: ...

    def create(self, schema: StructType, layout: Layout) -> Snapshot: ...

    def commit(self, change: Change) -> None: ...

    def must_rewrite(self, evolution: Evolution) -> bool:
        """Whether files of the schema before cannot stay beside files of the next one."""

    def locate(self, file: DataFile) -> Path: ...

    def base(self) -> Path:
        """The folder in which partitions are folders."""

    def forget(self, prefix: str) -> None:
        """Remove files with this in their names that a crash left behind."""

    def clean(self) -> None:
        """Remove what is kept of earlier versions, as far as it is old enough."""

    def drop(self) -> None: ...


def judge(mark: Mark | None, run: str, batch: int, *, is_repeatable: bool) -> bool:
    """Whether a batch is new.  False: it is in the table already, and must not be written again.

    Spark repeats at most the last batch it began.  A number below that means that the checkpoint is
    not the one the table was written with, so what the batch holds is not known to be in the table.
    A table that is overwritten or updated by key takes it all the same: it converges.
    """
    if mark is None or (mark.run == run and batch > mark.batch):
        return True
    if mark.run == run and batch == mark.batch:
        return False
    if is_repeatable:
        return True
    was = "a new checkpoint" if mark.run != run else f"an older checkpoint (batch {batch})"
    raise TableError(
        f"The table has the batches up to {mark.batch} of this writer, and now it comes with {was}."
        " Rows would be written twice. Drop the table to fill it anew, bring back the checkpoint it"
        " was written with, or write under another name to add to it."
    )


def bucket_of(path: str) -> int | None:
    """The bucket of keys in a file, which its name says; None for a file of another's making."""
    name = path.rsplit("/", 1)[-1]
    digits = name[1:5]
    return int(digits) if name[:1] == "b" and name[5:6] == "-" and digits.isdecimal() else None


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Only one change of a table at a time, among threads and processes of this machine."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
