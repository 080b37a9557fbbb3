"""Record batches as they come from a broker → Arrow batches, with the columns of Spark's source.

A fetch answer is walked batch by batch: header, checksum, transaction.  Runs of batches are then
appended to the Arrow buffers that are being filled.  An Arrow batch is handed out when these hold
enough, over the borders of record batches and of answers, because a small one costs Spark as much
as a large one.

Which records are left out is what a Kafka consumer leaves out: control batches always, and with
`aborted` the batches of a producer between the first offset of its aborted transaction and the
marker that ends it.
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
    """Rows on their way into an Arrow batch."""

    rows: int
    bytes: int

    def append(self, view: memoryview, run: Run, first: int, stop: int) -> None:
        """Take the records with first <= offset < stop; Corrupt if a batch is damaged."""

    def take(self) -> list[pa.Array]:
        """The columns of all rows so far, which are then none again."""


class Decoder:
    """The records of one partition as Arrow batches; after Corrupt it is of no more use."""

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
        """Where to fetch on: the offset after the last whole batch that was seen."""
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
        """The records with start <= offset < end of one fetch answer, as far as they fill a batch.

        The last record batch may be cut off and is then left for the next fetch.  `aborted` are the
        answer's pairs of producer id and first offset, or None to read what is uncommitted too.
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
        """What is left; a very large record batch is handed out in slices, which copy nothing."""
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
        """The batches whose records count, checked; `next_offset` goes on with them."""
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
    """Position and header of each whole batch; old formats are told from a cut-off batch."""
    at = 0
    end = len(view)
    while end - at > _MAGIC_AT:
        if view[at + _MAGIC_AT] != MAGIC:
            raise Corrupt(
                f"there are records in format {view[at + _MAGIC_AT]}; only format {MAGIC}, that of "
                "Kafka 0.11 and later, is read"
            )
        (length,) = _LENGTH.unpack_from(view, at)
        after = at + LOG_OVERHEAD + length
        if after < at + HEADER_BYTES:
            raise Corrupt(f"there is a batch of impossible length {length}")
        if after > end:
            return
        yield at, BatchHeader._make(HEADER.unpack_from(view, at))
        at = after


def _runs(
    batches: Iterator[tuple[int, BatchHeader]], most_rows: int, most_bytes: int
) -> Iterator[Run]:
    """Uncompressed batches together, so that one call decodes many; compressed ones alone."""
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
        if is_compressed or rows >= most_rows or size >= most_bytes:
            yield run
            run, rows, size = [], 0, 0
    if run:
        yield run


def _check(view: memoryview, at: int, header: BatchHeader) -> None:
    crc = crc32c(view[at + ATTRIBUTES_AT : at + header.size])
    if crc != header.crc:
        raise corrupt_batch(header, f"it has CRC {crc:#010x} but claims {header.crc:#010x}")
    if header.last_offset_delta < 0 or not 0 <= header.base_offset <= _LARGEST_BASE:
        raise corrupt_batch(
            header, f"it claims to end {header.last_offset_delta} offsets further on"
        )


class _Aborted:
    """Which batches of one fetch answer belong to aborted transactions.

    A producer's id is under its aborted transaction from that one's first offset until an abort
    marker of the same producer; the answer's list is complete for the answer.
    """

    def __init__(self, pairs: Sequence[tuple[int, int]]) -> None:
        # The next to begin is at the end, to be popped.
        self._to_come = sorted(((first, producer) for producer, first in pairs), reverse=True)
        self._open: set[int] = set()

    def cover(self, view: memoryview, at: int, header: BatchHeader) -> bool:
        while self._to_come and self._to_come[-1][0] <= header.last_offset:
            self._open.add(self._to_come.pop()[1])
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
