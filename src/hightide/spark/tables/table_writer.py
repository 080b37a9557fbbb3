"""Micro-batches into a table, each exactly once: a function for `foreachBatch`.

Executors stage the files of a batch, and one commit of the store adds its rows together with the
batch number. A crash before the commit leaves unreferenced files; after it, Spark repeats the batch
and it is recognised. Then the plan is run all the same, into nothing: a stateful query keeps its
state only if its rows are computed.

`append` adds rows. With a key, the newest row of each key replaces the one before: a table keeps
each key in one of its buckets, and a batch rewrites the buckets of its keys. `complete` replaces
everything.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Literal

from hightide.spark.tables.compaction import MIN_FILES, Background
from hightide.spark.tables.schema_evolution import Evolution, conform, evolve, nullable
from hightide.spark.tables.staged_files import BUCKET, StagedFiles, bucket
from hightide.spark.tables.table_access import open_table, read_files
from hightide.spark.tables.table_store import Change, Layout, Mark, Snapshot, TableStore, judge
from hightide.spark.tables.table_target import Kind, TableError, Target, parse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

Mode = Literal["append", "update", "complete"]
# The default time column of a row: the timestamp of its record.
TIME = "_timestamp"
TIMES = ("timestamp", "timestamp_ntz", "date")
NAME = re.compile(r"[A-Za-z0-9._-]+")


def writer(
    target: str | Target,
    *,
    key: str | Sequence[str] | None = None,
    partition_by: str | Sequence[str] | None = None,
    name: str | None = None,
    mode: Mode = "append",
    time: str | None = None,
    deletes: str | None = None,
    order: Sequence[str] = (),
    buckets: int = 16,
    compact_at: int = MIN_FILES,
) -> TableWriter:
    """Return a function for `foreachBatch` that writes each batch once.

    `name` identifies the writer: with one name and one checkpoint, no batch is written twice.
    `time` is the column of the day in `partition_by="day"`. `deletes` is a column that is true for
    rows that delete their key. Of rows with one key in one batch, the last by `order` counts.
    """
    where = parse(target) if isinstance(target, str) else target
    called = name or where.path.name
    if not NAME.fullmatch(called):
        raise TableError(
            f"{called!r} is not a valid name; use letters, digits, dots, hyphens, underscores"
        )
    keys = _names(key)
    if mode == "update" and not keys:
        raise TableError(
            f"A query in update mode writes a row again when it changes; {where} needs a key to"
            " find it."
        )
    layout = Layout(keys, _names(partition_by), time, buckets)
    if where.kind is Kind.PARQUET and (hidden := [n for n in layout.partition_by if n[:1] in "_."]):
        raise TableError(f"Readers of Parquet skip folders like {hidden[0]}=…; rename the column.")
    return TableWriter(where, called, layout, mode, deletes, tuple(order), compact_at)


def _names(given: str | Sequence[str] | None) -> tuple[str, ...]:
    if isinstance(given, str):
        given = [name.strip() for name in given.split(",")]
    return tuple(given or ())


class TableWriter:
    """One table as one query writes it."""

    def __init__(
        self,
        target: Target,
        name: str,
        layout: Layout,
        mode: Mode,
        deletes: str | None,
        order: tuple[str, ...],
        compact_at: int,
    ) -> None:
        self.target = target
        self.name = name
        self.layout = layout
        self.mode = mode
        self.deletes = deletes
        self.order = order
        self.store: TableStore = open_table(target)
        self.background = Background(self.store, min_files=compact_at)
        self._is_clean = False

    def __call__(self, frame: DataFrame, batch: int) -> None:
        run = frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId") or ""
        found = self.store.snapshot()
        is_repeatable = bool(self.layout.key) or self.mode == "complete"
        mark = found.marks.get(self.name) if found else None
        if not judge(mark, run, batch, is_repeatable=is_repeatable):
            frame.write.format("noop").mode("overwrite").save()
            return
        prefix = f"{self.name}-{batch:010d}"
        if not self._is_clean:
            self.store.forget(prefix)
        self._is_clean = False
        with StagedFiles(self.store, self.layout, prefix) as stage:
            self._write(frame, found, stage, Mark(run, batch))
        self._is_clean = True
        if after := self.store.snapshot():
            self.background.consider(after.files)

    def wait(self) -> None:
        """Wait until no compaction is running."""
        self.background.wait()

    def _write(
        self, frame: DataFrame, found: Snapshot | None, stage: StagedFiles, mark: Mark
    ) -> None:
        rows, layout = self._prepared(frame)
        stage.layout = layout
        incoming = self._schema(rows)
        now = found or self.store.create(incoming, layout)
        if now.layout != layout:
            raise TableError(
                f"{self.target} was created with {now.layout.plain()} and cannot be written with"
                f" {layout.plain()}; drop it to create it again."
            )
        evolution = evolve(now.schema, incoming, {*layout.key, *layout.partition_by})
        if self.mode == "complete":
            staged = stage.write(conform(rows, evolution.schema))
            removed = frozenset(file.path for file in now.files)
            change = Change(tuple(staged), removed)
        elif layout.key:
            change = self._upserted(rows, now, evolution, stage)
        else:
            change = self._appended(rows, now, evolution, stage)
        schema = evolution.schema if evolution.added or evolution.widened else None
        if change.add or change.remove or schema is not None or self.mode == "complete":
            self.store.commit(Change(change.add, change.remove, schema, self.name, mark))

    def _prepared(self, frame: DataFrame) -> tuple[DataFrame, Layout]:
        """Return the rows with the column `day` if the table has one, and the layout."""
        from pyspark.sql import functions as F

        layout = self.layout
        if missing := [column for column in layout.key if column not in frame.columns]:
            raise TableError(
                f"The key {missing[0]} is not a column; the columns are {', '.join(frame.columns)}"
            )
        derived = "day" in layout.partition_by and "day" not in frame.columns
        time = layout.time or TIME
        absent = [
            column
            for column in layout.partition_by
            if column not in frame.columns and column != "day"
        ]
        if derived and time not in frame.columns:
            absent = [time]
        if absent:
            raise TableError(
                f"Rows cannot be partitioned by {', '.join(layout.partition_by)}: there is no"
                f" column {absent[0]}; the columns are {', '.join(frame.columns)}"
            )
        if derived and (kind := frame.schema[time].dataType.typeName()) not in TIMES:
            raise TableError(f"The day is taken from {time}, which is a {kind}, not a timestamp.")
        layout = Layout(layout.key, layout.partition_by, time if derived else None, layout.buckets)
        if derived and not self.store.keeps_partition_columns:
            frame = frame.withColumn("day", F.to_date(time))
        return frame, layout

    def _schema(self, rows: DataFrame) -> StructType:
        schema = rows.drop(self.deletes).schema if self.deletes else rows.schema
        unknown = [field.name for field in schema.fields if field.dataType.typeName() == "void"]
        if unknown:
            raise TableError(f"Column {unknown[0]} has only nulls and no type; cast it to a type.")
        return nullable(schema)

    def _appended(
        self, rows: DataFrame, now: Snapshot, evolution: Evolution, stage: StagedFiles
    ) -> Change:
        staged = stage.write(conform(rows, evolution.schema))
        if not (now.files and self.store.must_rewrite(evolution)):
            return Change(tuple(staged))
        old = read_files(rows.sparkSession, self.store, now.schema, now.files)
        staged += stage.write(conform(old, evolution.schema))
        return Change(tuple(staged), frozenset(file.path for file in now.files))

    def _upserted(
        self, rows: DataFrame, now: Snapshot, evolution: Evolution, stage: StagedFiles
    ) -> Change:
        """Rewrite the touched buckets: rows without the changed keys, and the changed rows."""
        from pyspark.sql import functions as F

        spark = rows.sparkSession
        changed = self._latest(rows, evolution.schema).withColumn(BUCKET, bucket(self.layout))
        where = stage.folder / "changed"
        changed.write.partitionBy(BUCKET).parquet(str(where))
        touched = {int(path.name.partition("=")[2]) for path in where.glob(f"{BUCKET}=*")}
        if not touched:
            return Change()
        everything = self.store.must_rewrite(evolution)
        files = [
            file
            for file in now.files
            if everything or file.bucket is None or file.bucket in touched
        ]
        changes = spark.read.schema(changed.schema).parquet(str(where)).drop(BUCKET)
        old = conform(read_files(spark, self.store, now.schema, files), evolution.schema)
        same_key = reduce(and_, (old[name].eqNullSafe(changes[name]) for name in self.layout.key))
        kept = old.join(changes.select(*self.layout.key), same_key, "left_anti")
        if self.deletes:
            changes = changes.where(~F.coalesce(F.col(self.deletes), F.lit(False))).drop(
                self.deletes
            )
        staged = stage.write(kept.unionByName(changes))
        return Change(tuple(staged), frozenset(file.path for file in files))

    def _latest(self, rows: DataFrame, schema: StructType) -> DataFrame:
        """Return the last row of each key."""
        from pyspark.sql import functions as F

        extra = [self.deletes] if self.deletes else []
        fitted = conform(rows, schema, extra)
        if not self.order:
            return fitted.dropDuplicates(list(self.layout.key))
        row, place = F.struct(*fitted.columns), F.struct(*self.order)
        found = fitted.groupBy(*self.layout.key).agg(F.max_by(row, place).alias("__row"))
        return found.select("__row.*")
