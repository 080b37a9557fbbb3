"""A table as a folder of plain Parquet files, which any reader sees whole.

A folder cannot change several files at once, but a link to a folder can be swapped. So each version
of the table is a folder that never changes once it is visible, and the table's path is a link to
the current one:

    tables/clicks                  → .clicks.versions/0000000012
    tables/.clicks.versions/0000000012/_hightide.json   schema, layout, files, marks of writers
    tables/.clicks.versions/0000000012/day=2026-11-16/….parquet

A version has hard links to the files that it shares with the version before, so nothing is copied,
and a file is deleted with the last version that has it. Rows and the writer's mark are in the same
folder and become visible by the same rename. A crash leaves behind a folder without a link to it;
the next change deletes it.

A reader that resolves the link first (`os.path.realpath`) can read one version to the end, as long
as versions are kept.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

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

MANIFEST = "_hightide.json"
# How long a version stays readable after the next one.
KEEP_S = 300.0


class ParquetStore:
    """The versions of one table of plain Parquet."""

    keeps_partition_columns = False

    def __init__(self, path: Path, keep_s: float = KEEP_S) -> None:
        self.path = path
        self.versions = path.parent / f".{path.name}.versions"
        self.workspace = self.versions / "staging"
        self.keep_s = keep_s

    def base(self) -> Path:
        """Return the folder of the current version."""
        return self.path.resolve()

    def locate(self, file: DataFile) -> Path:
        return self.base() / file.path

    def snapshot(self) -> Snapshot | None:
        if not self.path.is_symlink():
            if self.path.exists():
                raise TableError(f"{self.path} exists and is not a table of Hightide")
            return None
        found = json.loads((self.base() / MANIFEST).read_text("utf-8"))
        return Snapshot(
            schema=StructType.fromJson(found["schema"]),
            layout=Layout.of(found["layout"]),
            files=tuple(DataFile(**file) for file in found["files"]),
            marks={name: Mark(**mark) for name, mark in found["marks"].items()},
            version=found["version"],
        )

    def create(self, schema: StructType, layout: Layout) -> Snapshot:
        with locked(self.versions / "lock"):
            made = self.snapshot() or Snapshot(schema, layout, (), {}, 0)
            if not self.path.is_symlink():
                self._publish(made, None, ())
        return made

    def commit(self, change: Change) -> None:
        with locked(self.versions / "lock"):
            now = self.snapshot()
            assert now is not None, "a table is created before it is changed"
            if not change.remove <= {file.path for file in now.files}:
                raise Conflict(f"{self.path} was changed by another writer")
            marks = dict(now.marks)
            if change.mark is not None:
                marks[change.writer] = change.mark
            kept = [file for file in now.files if file.path not in change.remove]
            added = [
                DataFile(
                    str(Path(file.folder) / file.name), file.size_bytes, file.rows, file.partition
                )
                for file in change.add
            ]
            moved = [(new.staged, old.path) for new, old in zip(change.add, added, strict=True)]
            linked = [(self.base() / file.path, file.path) for file in kept]
            following = Snapshot(
                change.schema or now.schema,
                now.layout,
                tuple(kept + added),
                marks,
                now.version + 1,
            )
            self._publish(following, linked, moved)
            self._remove_old(following.version)

    def must_rewrite(self, evolution: Evolution) -> bool:
        """Always: only files hold a schema, and readers use the first one they see."""
        return bool(evolution.added or evolution.widened)

    def forget(self, prefix: str) -> None:
        """Do nothing: unpublished files are not in any version."""

    def clean(self) -> None:
        with locked(self.versions / "lock"):
            if now := self.snapshot():
                self._remove_old(now.version)

    def drop(self) -> None:
        """Delete the table and all of its versions."""
        with locked(self.versions / "lock"):
            self.path.unlink(missing_ok=True)
        shutil.rmtree(self.versions, ignore_errors=True)

    def _publish(
        self,
        made: Snapshot,
        linked: list[tuple[Path, str]] | None,
        moved: list[tuple[Path, str]] | tuple[()],
    ) -> None:
        """Build a version's folder, sync it, and point the table's path to it."""
        folder = self.versions / f"{made.version:010d}"
        shutil.rmtree(folder, ignore_errors=True)  # Left behind by a crash.
        folder.mkdir(parents=True)
        for source, name in linked or ():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            os.link(source, folder / name)
        for source, name in moved:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            _sync(source)
            source.rename(folder / name)
        manifest = {
            "version": made.version,
            "schema": made.schema.jsonValue(),
            "layout": made.layout.plain(),
            "marks": {name: asdict(mark) for name, mark in made.marks.items()},
            "files": [asdict(file) for file in made.files],
        }
        (folder / MANIFEST).write_text(json.dumps(manifest, indent=1), "utf-8")
        _sync(folder / MANIFEST)
        for synced in {folder, *(path.parent for path in map(folder.joinpath, _names(made)))}:
            _sync(synced)
        link = self.versions / "next"
        link.unlink(missing_ok=True)
        link.symlink_to(os.path.relpath(folder, self.path.parent))
        link.rename(self.path)
        _sync(self.path.parent)

    def _remove_old(self, current: int) -> None:
        """Delete the versions that no reader can still be reading."""
        numbers = sorted(int(path.name) for path in self.versions.glob("[0-9]*"))
        for number, following in pairwise(numbers):
            since = (self.versions / f"{following:010d}").stat().st_mtime
            if following <= current and time.time() - since >= self.keep_s:
                shutil.rmtree(self.versions / f"{number:010d}", ignore_errors=True)


def _names(made: Snapshot) -> list[str]:
    return [file.path for file in made.files]


def _sync(path: Path) -> None:
    """Write a file or a folder to disk before anything refers to it."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
