"""A Delta table through `deltalake`: executors write Parquet, the driver the transaction log.

Each commit carries the writer's name and the batch number as an application transaction, as the
Delta protocol provides, so a repeated batch is recognised from the log itself. The application's
name contains the run, because Delta keeps one number for each application and a new checkpoint
counts from 0. The table's properties say which run is the writer's last.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake import Schema as DeltaSchema
from deltalake.transaction import AddAction, CommitProperties, RemoveAction, Transaction
from pyspark.sql.types import StructType

from hightide.spark.tables.schema_evolution import Evolution
from hightide.spark.tables.table_store import (
    Change,
    Conflict,
    DataFile,
    Layout,
    Mark,
    NewFile,
    Snapshot,
    locked,
)

LAYOUT = "hightide.layout"
RUN = "hightide.run."
# Longer texts are not worth their space in the statistics.
MAX_STATISTIC_LENGTH = 64


class DeltaStore:
    """The transaction log of one Delta table."""

    keeps_partition_columns = False

    def __init__(self, path: Path) -> None:
        self.path = path
        # Delta ignores folders whose names start with an underscore.
        self.workspace = path / "_hightide"

    def base(self) -> Path:
        return self.path

    def locate(self, file: DataFile) -> Path:
        return self.path / file.path

    def snapshot(self) -> Snapshot | None:
        if not DeltaTable.is_deltatable(str(self.path)):
            return None
        table = DeltaTable(str(self.path))
        settings = table.metadata().configuration
        runs = {
            name.removeprefix(RUN): run for name, run in settings.items() if name.startswith(RUN)
        }
        marks = {}
        for writer, run in runs.items():
            batch = table.transaction_version(_application(writer, run))
            if batch is not None:
                marks[writer] = Mark(run, batch)
        partitions = table.metadata().partition_columns
        stored = settings.get(LAYOUT)
        return Snapshot(
            schema=StructType.fromJson(json.loads(table.schema().to_json())),
            layout=Layout.of(json.loads(stored)) if stored else Layout((), tuple(partitions)),
            files=tuple(_files(table, partitions)),
            marks=marks,
            version=table.version(),
        )

    def create(self, schema: StructType, layout: Layout) -> Snapshot:
        self.path.mkdir(parents=True, exist_ok=True)
        DeltaTable.create(
            str(self.path),
            schema=_delta_schema(schema),
            mode="ignore",
            partition_by=list(layout.partition_by),
            configuration={LAYOUT: json.dumps(layout.plain())},
            raise_if_key_not_exists=False,
        )
        made = self.snapshot()
        assert made is not None
        return made

    def commit(self, change: Change) -> None:
        with locked(self.workspace / "lock"):
            table = DeltaTable(str(self.path))
            partitions = table.metadata().partition_columns
            files = {file.path: file for file in _files(table, partitions)}
            if not change.remove <= files.keys():
                raise Conflict(f"{self.path} was changed by another writer")
            self._announce(table, change)
            is_all = change.remove == files.keys()
            schema = table.schema() if change.schema is None else _delta_schema(change.schema)
            # A type can change only if no file of the old type stays.
            mode = "overwrite" if is_all and not change.is_rearranged else "append"
            now_ms = int(time.time() * 1000)
            actions: list[AddAction | RemoveAction] = [
                self._added(file, now_ms, is_new=not change.is_rearranged) for file in change.add
            ]
            if mode == "append":
                actions += [
                    RemoveAction(
                        name,
                        not change.is_rearranged,
                        now_ms,
                        files[name].size_bytes,
                        dict(files[name].partition),
                    )
                    for name in sorted(change.remove)
                ]
            DeltaTable(str(self.path)).create_write_transaction(
                actions, mode, schema, partitions, commit_properties=_properties(change)
            )

    def must_rewrite(self, evolution: Evolution) -> bool:
        """The log holds the columns, with one type for each."""
        return bool(evolution.widened)

    def forget(self, prefix: str) -> None:
        """Delete files that a crash left behind before they were in the log."""
        known = {file.path for file in (self.snapshot() or _EMPTY).files}
        for path in self.path.rglob(f"*{prefix}*.parquet"):
            if str(path.relative_to(self.path)) not in known:
                path.unlink()

    def clean(self) -> None:
        """Delete the files that left the table longer ago than its retention."""
        if DeltaTable.is_deltatable(str(self.path)):
            DeltaTable(str(self.path)).vacuum(dry_run=False)

    def drop(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)

    def _announce(self, table: DeltaTable, change: Change) -> None:
        """Commit new columns and a writer's new run, each on its own; both may be repeated."""
        known = {field.name for field in table.schema().fields}
        fields = [] if change.schema is None else _delta_schema(change.schema).fields
        if missing := [field for field in fields if field.name not in known]:
            table.alter.add_columns(missing)
        if change.mark is not None:
            run = {f"{RUN}{change.writer}": change.mark.run}
            if not run.items() <= table.metadata().configuration.items():
                DeltaTable(str(self.path)).alter.set_table_properties(
                    run, raise_if_not_exists=False
                )

    def _added(self, file: NewFile, now_ms: int, *, is_new: bool) -> AddAction:
        goal = self.path / file.folder / file.name
        goal.parent.mkdir(parents=True, exist_ok=True)
        file.staged.rename(goal)
        return AddAction(
            path=str(Path(file.folder) / file.name),
            size=file.size_bytes,
            partition_values=file.partition,
            modification_time=now_ms,
            data_change=is_new,
            stats=statistics(pq.read_metadata(goal)),
        )


_EMPTY = Snapshot(StructType(), Layout(), (), {}, -1)


def _application(writer: str, run: str) -> str:
    return f"{writer}/{run}"


def _properties(change: Change) -> CommitProperties:
    if change.mark is None:
        return CommitProperties()
    application = _application(change.writer, change.mark.run)
    return CommitProperties(app_transactions=[Transaction(application, change.mark.batch)])


def _delta_schema(schema: StructType) -> Any:
    return DeltaSchema.from_json(schema.json())


def _files(table: DeltaTable, partitions: list[str]) -> list[DataFile]:
    import pyarrow as pa

    found = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    return [
        DataFile(
            action["path"],
            action["size_bytes"],
            action["num_records"] or 0,
            {name: _text(action[f"partition.{name}"]) for name in partitions},
        )
        for action in found
    ]


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def statistics(footer: Any) -> str:
    """Return Delta's statistics of a file, from the file's footer; readers use them to skip files.

    A column whose range is not exact is left out, which Delta allows.
    """
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    unknown: set[str] = set()
    for group in range(footer.num_row_groups):
        for at in range(footer.num_columns):
            column = footer.row_group(group).column(at)
            name, found = column.path_in_schema, column.statistics
            if "." in name or found is None:
                unknown.add(name)
                continue
            nulls[name] = nulls.get(name, 0) + (found.null_count or 0)
            if found.has_min_max and _is_exact(found.min) and _is_exact(found.max):
                low[name] = min(low.get(name, found.min), found.min)
                high[name] = max(high.get(name, found.max), found.max)
            elif found.null_count != column.num_values:
                unknown.add(name)
    return json.dumps(
        {
            "numRecords": footer.num_rows,
            "minValues": {key: _plain(low[key]) for key in low if key not in unknown},
            "maxValues": {key: _plain(high[key]) for key in high if key not in unknown},
            "nullCount": {key: count for key, count in nulls.items() if key not in unknown},
        }
    )


def _is_exact(value: Any) -> bool:
    match value:
        case bool() | bytes():
            return False
        case str():
            return len(value) <= MAX_STATISTIC_LENGTH
        case float():
            return math.isfinite(value)
    return isinstance(value, int | date)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat(timespec="microseconds").replace("+00:00", "Z")
    return value.isoformat() if isinstance(value, date) else value
