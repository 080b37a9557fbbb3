"""Record batches from a broker → Arrow batches with the columns of Spark's source.

A fetch response is walked batch by batch: header, checksum, transaction. Runs of batches are then
appended to Arrow buffers. An Arrow batch is emitted when the buffers hold enough, across record
batches and responses, because a small Arrow batch costs Spark as much as a large one.

Records are left out as a Kafka consumer leaves them out: control batches always, and with `aborted`
the batches of a producer between the first offset of its aborted transaction and the marker that
ends it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Protocol

import pyarrow as pa

from hightide.spark.columns import kernels, record_schema, without_numba
from hightide.spark.columns.arrow_buffers import CompiledBuffers, Run, corrupt_batch
from hightide.wire.batch import (
    ATTRIBUTES_AT,
    CODEC_MASK,
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD,
    MAGIC,
    BatchHeader,
    records,
)
from hightide.wire.control import ControlType, control_type
from hightide.wire.crc import crc32c
from hightide.wire.errors import Corrupt

BATCH_ROWS = 10_000
BATCH_BYTES = 4 << 20

_MAGIC_AT = 16
_LENGTH = Struct(">8xi")
_LARGEST_BASE = 2**63 - 2**32


class RowBuffers(Protocol):
    """Rows that are collected for an Arrow batch."""

    rows: int
    bytes: int

    def append(self, view: memoryview, run: Run, first: int, stop: int) -> None:
        """Append the records with first <= offset < stop; raise Corrupt if a batch is damaged."""

    def take(self) -> list[pa.Array]:
        """Return the columns of all rows so far, and start empty again."""


class Decoder:
    """Decodes the records of one partition to Arrow batches; not usable after Corrupt."""

    def __init__(
        self,
        topic: str,
        partition: int,
        *,
        headers: bool = False,
        columns: Sequence[str] | None = None,
        batch_rows: int = BATCH_ROWS,
        batch_bytes: int = BATCH_BYTES,
    ) -> None:
        self.schema = record_schema.arrow_schema(headers=headers, columns=columns)
        self.next_offset = 0
        """Where to fetch next: the offset after the last whole batch."""
        self._where = f"{topic}-{partition}"
        self._batch_rows = batch_rows
        self._batch_bytes = batch_bytes
        self._filling: RowBuffers
        if kernels.is_compiled:
            self._filling = CompiledBuffers(topic, partition, self.schema)
        else:
            self._filling = without_numba.PythonBuffers(topic, partition, self.schema)

    def feed(
        self,
        data: memoryview,
        start: int,
        end: int,
        aborted: Sequence[tuple[int, int]] | None,
    ) -> Iterator[pa.RecordBatch]:
        """Decode the records with start <= offset < end of one fetch response; yield full Arrow
        batches.

        The last record batch may be cut off; it is left for the next fetch. `aborted` are the
        response's pairs of producer id and first offset, or None to read uncommitted records too.
        """
        self.next_offset = start
        transactions = None if aborted is None else _Aborted(aborted)
        view = memoryview(data).cast("B")
        filled = self._filling
        try:
            batches = self._wanted(view, start, end, transactions)
            for run in _runs(batches, self._batch_rows, self._batch_bytes):
                filled.append(view, run, start, end)
                if filled.rows >= self._batch_rows or filled.bytes >= self._batch_bytes:
                    yield from self.flush()
        except Corrupt as damage:
            raise Corrupt(f"{self._where}: {damage}") from None

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Yield the remaining rows; a very large batch comes in slices, without a copy."""
        if not self._filling.rows:
            return
        whole = pa.RecordBatch.from_arrays(self._filling.take(), schema=self.schema)
        if whole.num_rows <= 2 * self._batch_rows:
            yield whole
            return
        for at in range(0, whole.num_rows, self._batch_rows):
            yield whole.slice(at, self._batch_rows)

    def _wanted(
        self, view: memoryview, start: int, end: int, transactions: _Aborted | None
    ) -> Iterator[tuple[int, BatchHeader]]:
        """Yield the batches whose records count, checked, and advance `next_offset`."""
        for at, header in _batches(view):
            if header.base_offset >= end:
                self.next_offset = max(self.next_offset, header.base_offset)
                return
            last_offset = header.last_offset
            if last_offset < start:
                continue
            _check(view, at, header)
            self.next_offset = max(self.next_offset, last_offset + 1)
            is_aborted = transactions is not None and transactions.cover(view, at, header)
            if not is_aborted and not header.is_control:
                yield at, header


def _batches(view: memoryview) -> Iterator[tuple[int, BatchHeader]]:
    """Yield position and header of each whole batch; raise Corrupt for old message formats."""
    at = 0
    end = len(view)
    while end - at > _MAGIC_AT:
        if view[at + _MAGIC_AT] != MAGIC:
            raise Corrupt(
                f"there are records of message format {view[at + _MAGIC_AT]}; only format {MAGIC} "
                "(Kafka 0.11 and later) is supported"
            )
        (length,) = _LENGTH.unpack_from(view, at)
        after = at + LOG_OVERHEAD + length
        if after < at + HEADER_BYTES:
            raise Corrupt(f"there is a batch with the invalid length {length}")
        if after > end:
            return
        yield at, BatchHeader._make(HEADER.unpack_from(view, at))
        at = after


def _runs(
    batches: Iterator[tuple[int, BatchHeader]], max_rows: int, max_bytes: int
) -> Iterator[Run]:
    """Group uncompressed batches, so that one call decodes many; compressed ones stay alone."""
    run: list[tuple[int, BatchHeader]] = []
    rows = size = 0
    for at, header in batches:
        is_compressed = header.attributes & CODEC_MASK
        if is_compressed and run:
            yield run
            run, rows, size = [], 0, 0
        run.append((at, header))
        rows += header.record_count
        size += header.batch_length
        if is_compressed or rows >= max_rows or size >= max_bytes:
            yield run
            run, rows, size = [], 0, 0
    if run:
        yield run


def _check(view: memoryview, at: int, header: BatchHeader) -> None:
    crc = crc32c(view[at + ATTRIBUTES_AT : at + header.size])
    if crc != header.crc:
        raise corrupt_batch(header, f"it has CRC {crc:#010x} but claims {header.crc:#010x}")
    if header.last_offset_delta < 0 or not 0 <= header.base_offset <= _LARGEST_BASE:
        raise corrupt_batch(header, f"its last offset delta is {header.last_offset_delta}")


class _Aborted:
    """Which batches of one fetch response belong to aborted transactions.

    A producer id is in its aborted transaction from the transaction's first offset until the
    producer's abort marker; the list of a response is complete for that response.
    """

    def __init__(self, pairs: Sequence[tuple[int, int]]) -> None:
        # Sorted so that pop() returns the next transaction.
        self._upcoming = sorted(((first, producer) for producer, first in pairs), reverse=True)
        self._open: set[int] = set()

    def cover(self, view: memoryview, at: int, header: BatchHeader) -> bool:
        while self._upcoming and self._upcoming[-1][0] <= header.last_offset:
            self._open.add(self._upcoming.pop()[1])
        if header.producer_id not in self._open:
            return False
        if header.is_control:
            if _is_abort(view, at, header):
                self._open.discard(header.producer_id)
            return True
        return header.is_transactional


def _is_abort(view: memoryview, at: int, header: BatchHeader) -> bool:
    try:
        marker = next(records(view, at), None)
        return marker is not None and control_type(marker) == ControlType.ABORT
    except Corrupt as damage:
        raise corrupt_batch(header, damage) from None
