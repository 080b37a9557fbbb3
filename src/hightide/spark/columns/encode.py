"""Arrow rows → record batches: what a Kafka producer would have made of them.

Rows become records in one kernel call for each batch, which stops where the next record would make
the batch too large.  The size is taken before compression, so a batch is never larger than `max_bytes`
on its way; a batch that compression would make larger goes uncompressed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hightide.spark.columns import kernels
from hightide.spark.columns.reading import ABSENT, Items, items
from hightide.wire.batch import (
    ATTRIBUTES_AT,
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD,
    MAGIC,
    NO_TIMESTAMP,
    TRANSACTIONAL_FLAG,
)
from hightide.wire.compression import Codec, compress
from hightide.wire.crc import crc32c

MAX_BYTES = 1 << 20
CODECS = {codec.name.lower(): codec for codec in Codec}
_MILLIS = pa.timestamp("ms")


class Producer(NamedTuple):
    """What a batch says about who wrote it."""

    producer_id: int
    epoch: int
    base_sequence: int
    is_transactional: bool


class _Rows(NamedTuple):
    """The columns of a batch of rows as the kernel reads them."""

    timestamps: np.ndarray[Any, np.dtype[np.int64]]
    key: Items
    value: Items
    header_ends: np.ndarray[Any, np.dtype[np.int64]]
    header_key: Items
    header_value: Items


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
    """Record batches and how many records each holds; sequences go on from `base_sequence`.

    Columns: `value`, and where they are there `key`, `headers` (a list of structs of key and value)
    and `timestamp` (a time, or milliseconds).  A null key or value is Kafka's null, a record without a
    time gets `now_ms`.  ValueError for columns of other types and for headers without a key.
    """
    if codec not in CODECS:
        raise ValueError(f"{codec!r} is no codec; these are: {', '.join(CODECS)}")
    parts = rows.to_batches() if isinstance(rows, pa.Table) else [rows]
    out = np.empty(max_bytes + 64, np.uint8)
    for part in parts:
        read = _read(part, now_ms)
        first = 0
        while first < part.num_rows:
            row, end, largest, out = _fill(read, first, out, max_bytes)
            producer = Producer(producer_id, producer_epoch, base_sequence, is_transactional)
            base_timestamp = int(read.timestamps[first])
            yield (
                _seal(out, end, CODECS[codec], producer, row - first, base_timestamp, largest),
                row - first,
            )
            if base_sequence >= 0:
                base_sequence = following(base_sequence, row - first)
            first = row


def following(sequence: int, count: int) -> int:
    """The sequence number after `count` records; after the largest comes 0."""
    return (sequence + count) % 2**31


def _fill(
    read: _Rows, first: int, out: np.ndarray[Any, Any], max_bytes: int
) -> tuple[int, int, int, np.ndarray[Any, Any]]:
    """The first row that is not in the batch, where its bytes end, its largest time, its buffer."""
    told = np.zeros(2, np.int64)
    while True:
        row = kernels.encode(
            out,
            HEADER_BYTES,
            max_bytes,
            first,
            told,
            read.timestamps,
            *read.key,
            *read.value,
            read.header_ends,
            read.header_key.ends,
            read.header_key.data,
            *read.header_value,
        )
        if row > first:
            return int(row), int(told[0]), int(told[1]), out
        out = np.empty(int(told[0]), np.uint8)


def _seal(
    out: np.ndarray[Any, Any],
    end: int,
    codec: Codec,
    producer: Producer,
    count: int,
    base_timestamp: int,
    largest: int,
) -> bytes:
    """The batch whose records lie in `out`: header, compression, checksum."""
    view = memoryview(out)[:end]
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
        codec | producer.is_transactional * TRANSACTIONAL_FLAG,
        count - 1,
        base_timestamp,
        largest,
        producer.producer_id,
        producer.epoch,
        producer.base_sequence,
        count,
    ]
    HEADER.pack_into(view, 0, *fields)
    fields[4] = crc32c(view[ATTRIBUTES_AT:])
    HEADER.pack_into(view, 0, *fields)
    return bytes(view)


def _read(rows: pa.RecordBatch, now_ms: int) -> _Rows:
    names = rows.schema.names
    key = items(rows.column("key"), "key") if "key" in names else ABSENT
    value = items(rows.column("value"), "value") if "value" in names else ABSENT
    timestamps = _timestamps(rows, now_ms)
    if "headers" not in names or pa.types.is_null(rows.column("headers").type):
        return _Rows(timestamps, key, value, ABSENT.ends, ABSENT, ABSENT)
    return _Rows(timestamps, key, value, *_headers(rows.column("headers")))


def _timestamps(rows: pa.RecordBatch, now_ms: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    if "timestamp" not in rows.schema.names:
        return np.full(rows.num_rows, now_ms, np.int64)
    column = rows.column("timestamp")
    kind = column.type
    if pa.types.is_timestamp(kind):
        # Down to the whole millisecond, also before 1970.
        units = {"s": (1000, 1), "ms": (1, 1), "us": (1, 1000), "ns": (1, 1_000_000)}
        times, parts = units[kind.unit]
        millis = column.view(pa.int64()).fill_null(now_ms * parts // times).to_numpy()
        millis = millis * times // parts
    elif pa.types.is_integer(kind) or pa.types.is_null(kind):
        millis = column.cast(pa.int64()).fill_null(now_ms).to_numpy()
    else:
        raise ValueError(f"the column timestamp is {kind}; it must be a time or milliseconds")
    if len(millis) and millis.min() < NO_TIMESTAMP:
        raise ValueError(f"the timestamp {millis.min()} lies before 1970, which Kafka cannot store")
    return np.ascontiguousarray(millis, np.int64)


def _headers(column: pa.Array) -> tuple[np.ndarray[Any, np.dtype[np.int64]], Items, Items]:
    """Where each row's headers end, their keys and their values."""
    kind = column.type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or {
        "key",
        "value",
    } - {field.name for field in _fields(kind.value_type)}:
        raise ValueError(f"the column headers is {kind}; it must be a list of key and value")
    column = pc.if_else(column.is_valid(), column, pa.scalar([], kind)) if column.null_count else column
    entries = column.values
    by_name = dict(
        zip([field.name for field in _fields(kind.value_type)], entries.flatten(), strict=True)
    )
    used = by_name["key"].slice(
        column.offsets[0].as_py(), column.offsets[-1].as_py() - column.offsets[0].as_py()
    )
    if used.null_count:
        raise ValueError("a header has no key")
    ends = column.offsets.to_numpy().astype(np.int64)
    return ends, items(by_name["key"], "headers.key"), items(by_name["value"], "headers.value")


def _fields(kind: pa.DataType) -> list[pa.Field]:
    return list(kind) if pa.types.is_struct(kind) else []
