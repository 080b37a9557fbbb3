"""Rows → partitions → record batches.  This runs on executors, where the rows are.

A key goes where Kafka's default partitioner sends it, so that all who write to a topic agree.  Rows
without a key go anywhere: they are cut into as many runs as there are partitions, because long runs
make large batches.  Where the first run goes depends on the task and on how many rows it has seen,
so the same rows go the same way again.
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
"""How many bytes of rows are sorted by partition together: more make larger batches."""
LEAST_RUN = 512
NO_KEY = -1
Partitions = np.ndarray[Any, np.dtype[np.int32]]


class EncodedBatch(NamedTuple):
    """A record batch on its way; who wrote it is not in it yet."""

    topic: str
    partition: int
    records: int
    batch: bytes


@dataclass(frozen=True, slots=True)
class Routes:
    """Where rows may go, and how they are written down."""

    partitions: Mapping[str, int]
    """How many each topic has."""
    topic: str | None = None
    """The one that all rows go to; without it they say it themselves."""
    codec: str = "none"
    max_bytes: int = 1 << 20
    is_transactional: bool = False


def encoded(
    rows: Iterable[pa.RecordBatch], routes: Routes, task: int = 0, round_bytes: int = ROUND_BYTES
) -> Iterator[EncodedBatch]:
    """The record batches that rows become; those of one partition in the order of the rows."""
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
    """The rows in portions of about so many bytes."""
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
            raise Unwritable(f"There is no topic {topic!r}, where a row is to go. Create it first.")
        whole = pc.all(pc.equal(names, topic)).as_py()
        yield topic, table if whole else table.filter(pc.equal(names, topic))


def choose(table: pa.Table, topic: str, count: int, start: int) -> Partitions:
    """The partition of each row."""
    # Here and below, because drivers import this too, and compiled kernels take long to import.
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
                f"A row is to go to partition {wanted[wrong][0]} of {topic!r}, which has "
                f"{count}: 0 to {count - 1}."
            )
        chosen = np.where(wanted >= 0, wanted, chosen).astype(np.int32)
    anywhere = np.flatnonzero(chosen == NO_KEY)
    chosen[anywhere] = spread(len(anywhere), count, start)
    return chosen


def spread(rows: int, count: int, start: int) -> Partitions:
    """Partitions for rows that may go anywhere: runs of equal length, but no short ones."""
    length = max(-(-rows // count), LEAST_RUN)
    return ((np.arange(rows) // length + start) % count).astype(np.int32)


def by_partition(table: pa.Table, chosen: Partitions) -> Iterator[tuple[int, pa.Table]]:
    """The rows of each partition, in their order."""
    if not len(chosen):
        return
    if (chosen == chosen[0]).all():
        yield int(chosen[0]), table
        return
    order = np.argsort(chosen, kind="stable")
    # Without the columns that have said what they had to say.
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
        raise Unwritable(f"Rows cannot be made records: {error}.") from None


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)
