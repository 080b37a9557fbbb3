"""Few large files instead of many small ones, while the table is being written and read.

Each batch leaves a file, and a thousand files are slow to open.  Files of about one size are
joined when there are enough of them, so a row is copied once for each size that its file grows to
and not with each batch.  The joining is done by the driver, in a thread, and the change is
refused if one of the files has gone meanwhile; nothing is lost, and the next round looks again.

A table with a key needs none of this: writing a batch replaces the files it touches.
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
# So many files of one size are joined, and sizes are of one kind within this factor.
FEWEST = 8


def plan(
    files: Iterable[DataFile], *, target_bytes: int = TARGET_BYTES, fewest: int = FEWEST
) -> list[list[DataFile]]:
    """Groups of files to be joined, each of one partition."""
    groups: dict[tuple[tuple[tuple[str, str | None], ...], int], list[DataFile]] = {}
    for file in files:
        if file.bucket is None and file.size_bytes < target_bytes // 2:
            partition = tuple(sorted(file.partition.items()))
            groups.setdefault((partition, _size_class(file.size_bytes, fewest)), []).append(file)
    found = []
    for group in groups.values():
        found += [part for part in _cut(group, target_bytes) if len(part) >= max(fewest, 2)]
    return found


def _size_class(size_bytes: int, factor: int) -> int:
    """Files of one class are of about one size; everything is one class if two files are enough."""
    if factor <= 2:
        return 0
    found = 0
    while size_bytes >= factor:
        size_bytes //= factor
        found += 1
    return found


def _cut(group: Sequence[DataFile], target_bytes: int) -> list[list[DataFile]]:
    """Neighbours together, up to the size that a file should have."""
    parts: list[list[DataFile]] = [[]]
    filled = 0
    for file in group:
        if filled + file.size_bytes > target_bytes and parts[-1]:
            parts.append([])
            filled = 0
        parts[-1].append(file)
        filled += file.size_bytes
    return parts


def join(store: TableStore, group: Sequence[DataFile]) -> NewFile:
    """The rows of some files in one, written where no reader sees it yet."""
    import pyarrow as pa
    import pyarrow.dataset as ds
    import pyarrow.parquet as pq

    paths = [store.locate(file) for file in group]
    schemas = [pq.read_schema(path).remove_metadata() for path in paths]
    schema = pa.unify_schemas(schemas, promote_options="permissive")
    store.workspace.mkdir(parents=True, exist_ok=True)
    name = f"joined-{uuid.uuid4().hex[:12]}.parquet"
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
    """The partition's folder: that of the files that are joined."""
    return str(path.parent.relative_to(store.base())).removeprefix(".")


def compact(store: TableStore, *, target_bytes: int = TARGET_BYTES, fewest: int = 2) -> int:
    """Join a table's small files; how many there are less."""
    found = store.snapshot()
    fewer = 0
    for group in plan(found.files if found else (), target_bytes=target_bytes, fewest=fewest):
        joined = join(store, group)
        try:
            removed = frozenset(file.path for file in group)
            store.commit(Change(add=(joined,), remove=removed, is_rearranged=True))
            fewer += len(group) - 1
        except Conflict:
            # The table was overwritten meanwhile, so there is nothing to join any more.
            joined.staged.unlink(missing_ok=True)
    return fewer


class Background:
    """Compaction beside the writing of batches, one at a time."""

    def __init__(self, store: TableStore, *, fewest: int = FEWEST) -> None:
        self.store = store
        self.fewest = fewest
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="compaction")
        self._running: Future[int] | None = None

    def consider(self, files: Iterable[DataFile]) -> None:
        """Begin if it is worth it and nothing is running."""
        if self._running is not None and not self._running.done():
            return
        self.settle()
        if plan(files, fewest=self.fewest):
            self._running = self._pool.submit(compact, self.store, fewest=self.fewest)

    def settle(self) -> None:
        """Wait for what is running.  A failure costs space and not rows, so it is only told."""
        running, self._running = self._running, None
        if running is not None and (error := running.exception()) is not None:
            log.warning("Small files of a table could not be joined: %s", error)
