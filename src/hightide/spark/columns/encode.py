"""Arrow rows → record batches, as a Kafka producer would make them.

One kernel call makes one batch and stops where the next record would make it too large. The size is
measured before compression, so no batch is larger than `max_bytes`, unless it is one record; a
batch that compression would make larger stays uncompressed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from hightide.spark.columns import kernels, without_numba
from hightide.spark.columns.arrow_input import Rows, read_rows
from hightide.wire.batch import (
    ATTRIBUTES_AT,
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD,
    MAGIC,
    TRANSACTIONAL_FLAG,
)
from hightide.wire.compression import Codec, compress
from hightide.wire.crc import crc32c

MAX_BYTES = 1 << 20
CODECS = {codec.name.lower(): codec for codec in Codec}

_CRC_FIELD = 4
_SEQUENCES = 2**31


class _Producer(NamedTuple):
    """The producer fields of a batch; the names are those of `hightide.wire.batch.build`."""

    producer_id: int
    producer_epoch: int
    base_sequence: int
    transactional: bool

    def after(self, count: int) -> _Producer:
        return self._replace(base_sequence=following(self.base_sequence, count))


def following(sequence: int, count: int) -> int:
    """Return the sequence number `count` records later; it wraps to 0, and -1 stays -1."""
    return sequence if sequence < 0 else (sequence + count) % _SEQUENCES


def encode(
    rows: pa.RecordBatch | pa.Table,
    *,
    codec: str = "none",
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    is_transactional: bool = False,
    now_ms: int,
    max_bytes: int = MAX_BYTES,
) -> Iterator[tuple[bytes, int]]:
    """Yield record batches with their record counts; sequences continue from `base_sequence`.

    Columns: `value`, and optionally `key`, `headers` (a list of structs of key and value) and
    `timestamp` (a timestamp, or milliseconds). A null key or value is Kafka's null; a record
    without a timestamp gets `now_ms`. Raises ValueError for other columns and for headers without a
    key.
    """
    if codec not in CODECS:
        raise ValueError(f"{codec!r} is not a codec; expected one of {', '.join(CODECS)}")
    producer = _Producer(producer_id, producer_epoch, base_sequence, is_transactional)
    writer = _Writer(CODECS[codec], max_bytes)
    for part in rows.to_batches() if isinstance(rows, pa.Table) else [rows]:
        read = read_rows(part, now_ms)
        first = 0
        while first < part.num_rows:
            after, batch = writer.write(read, first, producer)
            yield batch, after - first
            producer = producer.after(after - first)
            first = after


class _Writer:
    """Makes batches in one buffer, which grows to the largest record."""

    def __init__(self, codec: Codec, max_bytes: int) -> None:
        self._codec = codec
        self._max_bytes = max_bytes
        self._buffer = np.empty(max(max_bytes, HEADER_BYTES), np.uint8)

    def write(self, read: Rows, first: int, producer: _Producer) -> tuple[int, bytes]:
        """Return the first row that is not in the batch, and the batch."""
        if not kernels.is_compiled:
            fields = producer._asdict()
            return without_numba.encoded(read, first, self._max_bytes, self._codec, **fields)
        sizes = np.zeros(2, np.int64)
        while (after := self._fill(read, first, sizes)) == first:
            self._buffer = np.empty(int(sizes[0]), np.uint8)
        end, largest = sizes.tolist()
        times = int(read.timestamps[first]), largest
        return after, self._seal(end, after - first, times, producer)

    def _fill(self, read: Rows, first: int, sizes: np.ndarray[Any, Any]) -> int:
        after: int = kernels.encode(
            self._buffer,
            HEADER_BYTES,
            self._max_bytes,
            first,
            sizes,
            read.timestamps,
            *read.key,
            *read.value,
            read.header_ends,
            read.header_key.ends,
            read.header_key.data,
            *read.header_value,
        )
        return after

    def _seal(self, end: int, count: int, times: tuple[int, int], producer: _Producer) -> bytes:
        view = memoryview(self._buffer.data)[:end]
        codec = self._codec
        if codec is not Codec.NONE:
            packed = compress(codec, view[HEADER_BYTES:])
            if len(packed) < end - HEADER_BYTES:
                view = memoryview(bytearray(HEADER_BYTES + len(packed)))
                view[HEADER_BYTES:] = packed
            else:
                codec = Codec.NONE
        fields = [
            0,
            len(view) - LOG_OVERHEAD,
            -1,
            MAGIC,
            0,
            codec | producer.transactional * TRANSACTIONAL_FLAG,
            count - 1,
            *times,
            *producer[:3],
            count,
        ]
        HEADER.pack_into(view, 0, *fields)
        fields[_CRC_FIELD] = crc32c(view[ATTRIBUTES_AT:])
        HEADER.pack_into(view, 0, *fields)
        return bytes(view)
