"""Rows → partitions → record batches. This runs on executors, where the rows are.

A key goes to the partition that Kafka's default partitioner chooses, so all producers of a topic
agree. Rows without a key go anywhere: they are cut into as many runs as there are partitions,
because long runs make large batches. Where the first run goes depends on the task and on how many
rows it has seen, so a repeated task sends the same rows to the same partitions.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hightide.spark.sink.rows import Unwritable

ROUND_BYTES = 8 << 20
"""How many bytes of rows are sorted by partition at once: more bytes, larger batches."""
MIN_RUN = 512
NO_KEY = -1
Partitions = np.ndarray[Any, np.dtype[np.int32]]


class EncodedBatch(NamedTuple):
    """A record batch that is not written yet and has no producer."""

    topic: str
    partition: int
    records: int
    batch: bytes


@dataclass(frozen=True, slots=True)
class Routes:
    """Where rows may go, and how they are encoded."""

    partitions: Mapping[str, int]
    """The partition count of each topic."""
    topic: str | None = None
    """The topic of all rows; without it, rows have a column `topic`."""
    codec: str = "none"
    max_bytes: int = 1 << 20
    is_transactional: bool = False


def encoded(
    rows: Iterable[pa.RecordBatch], routes: Routes, task: int = 0, round_bytes: int = ROUND_BYTES
) -> Iterator[EncodedBatch]:
    """Yield the record batches of the rows; within a partition, in the order of the rows."""
    seen = 0
    for table in rounds(rows, round_bytes):
        for topic, of_topic in by_topic(table, routes):
            count = routes.partitions[topic]
            chosen = choose(of_topic, topic, count, task + seen)
            for partition, part in by_partition(of_topic, chosen):
                for batch, records in _encode(part, routes):
                    yield EncodedBatch(topic, partition, records, batch)
        seen += table.num_rows


def rounds(rows: Iterable[pa.RecordBatch], round_bytes: int) -> Iterator[pa.Table]:
    """Yield the rows in tables of about `round_bytes` bytes."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    for row in rows:
        if row.num_rows:
            waiting.append(row)
            size += row.nbytes
        if size >= round_bytes:
            yield pa.Table.from_batches(waiting).combine_chunks()
            waiting, size = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting).combine_chunks()


def by_topic(table: pa.Table, routes: Routes) -> Iterator[tuple[str, pa.Table]]:
    if routes.topic is not None:
        yield routes.topic, table
        return
    names = table.column("topic")
    if names.null_count:
        raise Unwritable("A row has no topic: its column topic is null.")
    for topic in sorted(names.unique().to_pylist()):
        if topic not in routes.partitions:
            raise Unwritable(
                f"A row goes to topic {topic!r}, which does not exist. Create it first."
            )
        whole = pc.all(pc.equal(names, topic)).as_py()
        yield topic, table if whole else table.filter(pc.equal(names, topic))


def choose(table: pa.Table, topic: str, count: int, start: int) -> Partitions:
    """Return the partition of each row."""
    # Imported late, because drivers import this module too, and the kernels load slowly.
    from hightide.spark.columns.partitioner import partitions_of

    if "key" in table.schema.names:
        chosen = partitions_of(_whole(table.column("key")), count)
    else:
        chosen = np.full(table.num_rows, NO_KEY, np.int32)
    if "partition" in table.schema.names:
        asked = _whole(table.column("partition"))
        wanted = asked.fill_null(NO_KEY).to_numpy(zero_copy_only=False)
        wrong = asked.is_valid().to_numpy(zero_copy_only=False) & ((wanted < 0) | (wanted >= count))
        if wrong.any():
            raise Unwritable(
                f"A row goes to partition {wanted[wrong][0]} of {topic!r}, which has the "
                f"partitions 0 to {count - 1}."
            )
        chosen = np.where(wanted >= 0, wanted, chosen).astype(np.int32)
    anywhere = np.flatnonzero(chosen == NO_KEY)
    chosen[anywhere] = spread(len(anywhere), count, start)
    return chosen


def spread(rows: int, count: int, start: int) -> Partitions:
    """Return partitions for rows that may go anywhere: runs of equal length, but no short ones."""
    length = max(-(-rows // count), MIN_RUN)
    return ((np.arange(rows) // length + start) % count).astype(np.int32)


def by_partition(table: pa.Table, chosen: Partitions) -> Iterator[tuple[int, pa.Table]]:
    """Yield the rows of each partition, in their order."""
    if not len(chosen):
        return
    if (chosen == chosen[0]).all():
        yield int(chosen[0]), table
        return
    order = np.argsort(chosen, kind="stable")
    # The columns that chose the partition are not needed any more.
    wanted = [name for name in table.schema.names if name not in ("topic", "partition")]
    sorted_rows = table.select(wanted).take(pa.array(order)).combine_chunks()
    found = chosen[order]
    starts = np.flatnonzero(np.r_[True, found[1:] != found[:-1]])
    for start, end in zip(starts, [*starts[1:], len(found)], strict=True):
        yield int(found[start]), sorted_rows.slice(start, end - start)


def _encode(part: pa.Table, routes: Routes) -> Iterator[tuple[bytes, int]]:
    from hightide.spark.columns.encode import encode

    try:
        yield from encode(
            part,
            codec=routes.codec,
            is_transactional=routes.is_transactional,
            now_ms=int(time.time() * 1000),
            max_bytes=routes.max_bytes,
        )
    except ValueError as error:
        raise Unwritable(f"Rows cannot be encoded as records: {error}.") from None


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)
