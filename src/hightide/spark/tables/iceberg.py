"""An Iceberg table through `pyiceberg`: executors write Parquet, the driver commits the metadata.

The catalog is a SQLite file beside the table, so all tables of one folder are in one catalog, in
the namespace `default`. A commit adds and removes files and sets the property with the writer's
mark, and the catalog's pointer moves once for all of it. The mark is a property and not only in the
snapshot's summary, because snapshots expire.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError, ValidationError
from pyiceberg.io.pyarrow import parquet_file_to_data_file, schema_to_pyarrow
from pyiceberg.table import Table, TableProperties, Transaction
from pyiceberg.transforms import DayTransform, IdentityTransform
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from hightide.spark.tables.schema_evolution import Evolution
from hightide.spark.tables.table_store import (
    Change,
    Conflict,
    DataFile,
    Layout,
    Mark,
    Snapshot,
    locked,
)
from hightide.spark.tables.table_target import TableError

NAMESPACE = "default"
CATALOG_FILE = "iceberg.db"
LAYOUT = "hightide.layout"
MARK = "hightide.mark."
KEEP = timedelta(days=7)


class IcebergStore:
    """One table of the catalog beside it."""

    keeps_partition_columns = True

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = f"{NAMESPACE}.{path.name}"
        self.workspace = path / "_hightide"

    def base(self) -> Path:
        return self.path / "data"

    def locate(self, file: DataFile) -> Path:
        return Path(file.path.removeprefix("file://"))

    def table(self) -> Table | None:
        """Return the table as it is now; None if there is none."""
        if not (self.path.parent / CATALOG_FILE).exists():
            return None
        try:
            return catalog(self.path.parent).load_table(self.name)
        except NoSuchTableError:
            return None

    def snapshot(self) -> Snapshot | None:
        table = self.table()
        if table is None:
            return None
        stored = table.properties.get(LAYOUT)
        return Snapshot(
            schema=from_arrow_schema(schema_to_pyarrow(table.schema(), include_field_ids=False)),
            layout=Layout.of(json.loads(stored)) if stored else Layout(),
            files=tuple(_data_file(task.file, table) for task in table.scan().plan_files()),
            marks=_marks(table.properties),
            version=getattr(table.metadata, "last_sequence_number", 0),
        )

    def create(self, schema: StructType, layout: Layout) -> Snapshot:
        with locked(self.workspace / "lock"):
            if self.table() is None:
                self._create(schema, layout)
        made = self.snapshot()
        assert made is not None
        return made

    def _create(self, schema: StructType, layout: Layout) -> None:
        here = catalog(self.path.parent)
        here.create_namespace_if_not_exists(NAMESPACE)
        with here.create_table_transaction(
            self.name,
            schema=_arrow_schema(schema),
            location=f"file://{self.path}",
            properties={LAYOUT: json.dumps(layout.plain())},
        ) as transaction:
            if layout.partition_by:
                with transaction.update_spec() as spec:
                    for name in layout.partition_by:
                        if layout.time is not None and name == "day":
                            spec.add_field(layout.time, DayTransform(), name)
                        else:
                            spec.add_field(name, IdentityTransform(), name)

    def commit(self, change: Change) -> None:
        with locked(self.workspace / "lock"):
            table = self.table()
            assert table is not None, "a table is created before it is changed"
            files = {task.file.file_path: task.file for task in table.scan().plan_files()}
            if not change.remove <= files.keys():
                raise Conflict(f"{self.path} was changed by another writer")
            added = []
            for file in change.add:
                goal = self.base() / file.folder / file.name
                goal.parent.mkdir(parents=True, exist_ok=True)
                file.staged.rename(goal)
                added.append(f"file://{goal}")
            transaction = table.transaction()
            if change.schema is not None:
                _evolve(transaction, change.schema)
            transaction.set_properties(_properties(transaction, change))
            removed = [files[name] for name in sorted(change.remove)]
            if added or removed:
                summary = _summary(change)
                step = transaction.update_snapshot(snapshot_properties=summary)
                with step.overwrite() if removed else step.fast_append() as files_of:
                    for gone in removed:
                        files_of.delete_data_file(gone)
                    for name in added:
                        files_of.append_data_file(
                            parquet_file_to_data_file(table.io, transaction.table_metadata, name)
                        )
            committed = transaction.commit_transaction()
            self._hint(committed)

    def must_rewrite(self, evolution: Evolution) -> bool:  # noqa: ARG002
        """Never: Iceberg reads files of every schema that a table has had."""
        return False

    def forget(self, prefix: str) -> None:
        """Delete files that a crash left behind before they were in a snapshot."""
        found = self.snapshot()
        known = {self.locate(file) for file in found.files} if found else set()
        for path in self.base().rglob(f"*{prefix}*.parquet"):
            if path not in known:
                path.unlink()

    def clean(self) -> None:
        """Expire old snapshots. Their files stay, because pyiceberg deletes none."""
        table = self.table()
        if table is not None:
            table.maintenance.expire_snapshots().older_than(datetime.now(UTC) - KEEP).commit()

    def drop(self) -> None:
        if self.table() is not None:
            catalog(self.path.parent).drop_table(self.name)
        shutil.rmtree(self.path, ignore_errors=True)

    def _hint(self, table: Table) -> None:
        """Write the hint for readers without a catalog; until then they read the version before."""
        folder = self.path / "metadata"
        fresh = folder / "version-hint.next"
        fresh.write_text(Path(table.metadata_location).name, "utf-8")
        fresh.rename(folder / "version-hint.text")


def catalog(folder: Path) -> Catalog:
    """Return the catalog of the tables of one folder."""
    return SqlCatalog(
        "hightide", uri=f"sqlite:///{folder / CATALOG_FILE}", warehouse=f"file://{folder}"
    )


def _arrow_schema(schema: StructType) -> Any:
    return to_arrow_schema(schema, timezone="UTC")


def _evolve(transaction: Transaction, schema: StructType) -> None:
    try:
        with transaction.update_schema() as update:
            update.union_by_name(_arrow_schema(schema))
    except (ValidationError, ValueError) as error:
        reason = str(error).strip().splitlines()[-1]
        raise TableError(
            f"Iceberg cannot change a column like this: {reason}."
            " Set the schema when the table is created."
        ) from error


def _properties(transaction: Transaction, change: Change) -> dict[str, str]:
    """Return the mark, and the name mapping by which files without field ids are read."""
    mapping = transaction.table_metadata.schema().name_mapping.model_dump_json()
    found = {TableProperties.DEFAULT_NAME_MAPPING: mapping}
    if change.mark is not None:
        found[MARK + change.writer] = json.dumps([change.mark.run, change.mark.batch])
    return found


def _summary(change: Change) -> dict[str, str]:
    if change.mark is None:
        return {}
    return {"hightide.writer": change.writer, "hightide.batch": str(change.mark.batch)}


def _marks(properties: Mapping[str, str]) -> dict[str, Mark]:
    return {
        name.removeprefix(MARK): Mark(*json.loads(value))
        for name, value in properties.items()
        if name.startswith(MARK)
    }


def _data_file(file: Any, table: Table) -> DataFile:
    fields = table.spec().fields
    values = [file.partition[at] for at in range(len(fields))]
    return DataFile(
        file.file_path,
        file.file_size_in_bytes,
        file.record_count,
        {
            field.name: None if value is None else str(value)
            for field, value in zip(fields, values, strict=True)
        },
    )
