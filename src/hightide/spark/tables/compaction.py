"""Few large files instead of many small ones, while the table is written and read.

Each batch adds a file, and a thousand files are slow to open. Files of about one size are merged
when there are enough of them, so a row is copied once for each size class and not with each batch.
A thread of the driver merges; its change is refused if one of the files is gone meanwhile. Nothing
is lost then, and the next round tries again.

A table with a key needs no compaction: writing a batch replaces the files it touches.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from hightide.spark.tables.table_store import Change, Conflict, DataFile, NewFile, TableStore

log = logging.getLogger(__name__)

TARGET_BYTES = 128 << 20
# How many files of one size class are merged; sizes within this factor are one class.
MIN_FILES = 8


def plan(
    files: Iterable[DataFile], *, target_bytes: int = TARGET_BYTES, min_files: int = MIN_FILES
) -> list[list[DataFile]]:
    """Return groups of files to merge, each of one partition."""
    groups: dict[tuple[tuple[tuple[str, str | None], ...], int], list[DataFile]] = {}
    for file in files:
        if file.bucket is None and file.size_bytes < target_bytes // 2:
            partition = tuple(sorted(file.partition.items()))
            groups.setdefault((partition, _size_class(file.size_bytes, min_files)), []).append(file)
    found = []
    for group in groups.values():
        found += [part for part in _cut(group, target_bytes) if len(part) >= max(min_files, 2)]
    return found


def _size_class(size_bytes: int, factor: int) -> int:
    """Return the class of a file size; all files are in one class if two files are enough."""
    if factor <= 2:
        return 0
    found = 0
    while size_bytes >= factor:
        size_bytes //= factor
        found += 1
    return found


def _cut(group: Sequence[DataFile], target_bytes: int) -> list[list[DataFile]]:
    """Split a group into neighbours of at most the target size."""
    parts: list[list[DataFile]] = [[]]
    filled = 0
    for file in group:
        if filled + file.size_bytes > target_bytes and parts[-1]:
            parts.append([])
            filled = 0
        parts[-1].append(file)
        filled += file.size_bytes
    return parts


def merge(store: TableStore, group: Sequence[DataFile]) -> NewFile:
    """Write the rows of some files into one, where no reader sees it yet."""
    import pyarrow as pa
    import pyarrow.dataset as ds
    import pyarrow.parquet as pq

    paths = [store.locate(file) for file in group]
    schemas = [pq.read_schema(path).remove_metadata() for path in paths]
    schema = pa.unify_schemas(schemas, promote_options="permissive")
    store.workspace.mkdir(parents=True, exist_ok=True)
    name = f"merged-{uuid.uuid4().hex[:12]}.parquet"
    goal = store.workspace / name
    rows = 0
    with pq.ParquetWriter(goal, schema, compression="zstd") as writer:
        for batch in ds.dataset([str(path) for path in paths], schema=schema).to_batches():
            writer.write_batch(batch)
            rows += batch.num_rows
    assert rows == sum(file.rows for file in group)
    return NewFile(
        goal, name, goal.stat().st_size, rows, group[0].partition, _folder(store, paths[0])
    )


def _folder(store: TableStore, path: Path) -> str:
    """Return the partition's folder, which is that of the merged files."""
    return str(path.parent.relative_to(store.base())).removeprefix(".")


def compact(store: TableStore, *, target_bytes: int = TARGET_BYTES, min_files: int = 2) -> int:
    """Merge a table's small files, and return how many files fewer there are."""
    found = store.snapshot()
    fewer = 0
    for group in plan(found.files if found else (), target_bytes=target_bytes, min_files=min_files):
        merged = merge(store, group)
        try:
            removed = frozenset(file.path for file in group)
            store.commit(Change(add=(merged,), remove=removed, is_rearranged=True))
            fewer += len(group) - 1
        except Conflict:
            # The table was overwritten meanwhile, so there is nothing to merge any more.
            merged.staged.unlink(missing_ok=True)
    return fewer


class Background:
    """Compaction in a thread beside the writing of batches, one at a time."""

    def __init__(self, store: TableStore, *, min_files: int = MIN_FILES) -> None:
        self.store = store
        self.min_files = min_files
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="compaction")
        self._running: Future[int] | None = None

    def consider(self, files: Iterable[DataFile]) -> None:
        """Start a compaction if it is worthwhile and none is running."""
        if self._running is not None and not self._running.done():
            return
        self.wait()
        if plan(files, min_files=self.min_files):
            self._running = self._pool.submit(compact, self.store, min_files=self.min_files)

    def wait(self) -> None:
        """Wait for a running compaction. A failure costs no rows, so it is only logged."""
        running, self._running = self._running, None
        if running is not None and (error := running.exception()) is not None:
            log.warning("Small files of a table could not be merged: %s", error)
