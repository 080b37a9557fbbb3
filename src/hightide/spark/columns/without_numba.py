"""Decoding, encoding and partitioning without numba.

Uncompiled, the kernels process some ten thousand records per second. The decoder and the builder of
`hightide.wire.batch` process half a million. numpy could not do better: where a record begins is
known only when the one before it has been read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from hightide.spark.columns.arrow_buffers import Constant, Run, corrupt_batch
from hightide.spark.columns.arrow_input import Items, Rows
from hightide.wire.batch import HEADER_BYTES, Headers, Record, build, records
from hightide.wire.compression import Codec
from hightide.wire.errors import Corrupt

_MICROS = 1000
_MAX_MILLIS = (2**63 - 1) // _MICROS
_MAX_NUMBERS_BYTES = 32
"""The maximum size of the lengths, deltas and counts of a record."""

_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_MASK = 0xFFFFFFFF


class PythonBuffers:
    """Collects the records of `hightide.wire.batch` in lists."""

    def __init__(self, topic: str, partition: int, schema: pa.Schema) -> None:
        self.rows = 0
        self.bytes = 0
        self._schema = schema
        self._topic = Constant(topic, pa.string())
        self._partition = Constant(partition, pa.int32())
        self._types: list[int] = []
        self._records: list[Record] = []

    def append(self, view: memoryview, run: Run, first: int, stop: int) -> None:
        for at, header in run:
            try:
                read = [record for record in records(view, at) if first <= record.offset < stop]
            except Corrupt as damage:
                raise corrupt_batch(header, damage) from None
            self._records += read
            self._types += [int(header.is_log_append_time)] * len(read)
            self.rows += len(read)
            self.bytes += header.size

    def take(self) -> list[pa.Array]:
        columns = [self._column(field.name, field.type) for field in self._schema]
        self._records, self._types = [], []
        self.rows = self.bytes = 0
        return columns

    def _column(self, name: str, kind: pa.DataType) -> pa.Array:
        match name:
            case "key":
                return pa.array([record.key for record in self._records], kind)
            case "value":
                return pa.array([record.value for record in self._records], kind)
            case "topic":
                return self._topic.of(self.rows)
            case "partition":
                return self._partition.of(self.rows)
            case "offset":
                return pa.array([record.offset for record in self._records], kind)
            case "timestamp":
                return pa.array([_micros(record.timestamp) for record in self._records], kind)
            case "timestampType":
                return pa.array(self._types, kind)
        return pa.array([_header_entries(record) for record in self._records], kind)


def _micros(timestamp: int) -> int:
    return min(max(timestamp, -_MAX_MILLIS), _MAX_MILLIS) * _MICROS


def _header_entries(record: Record) -> list[dict[str, str | bytes | None]] | None:
    """Return the headers, or None if there are none, as Spark's Kafka source does."""
    if not record.headers:
        return None
    return [{"key": _readable(key), "value": value} for key, value in record.headers]


def _readable(key: str) -> str:
    return key.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def encoded(
    read: Rows, first: int, max_bytes: int, codec: Codec, **producer: Any
) -> tuple[int, bytes]:
    """Return the first row that is not in the batch, and the batch."""
    rows: list[tuple[int, int, bytes | None, bytes | None, Headers]] = []
    size = HEADER_BYTES
    for row in range(first, len(read.timestamps)):
        key, value = read.key.item(row), read.value.item(row)
        headers = tuple(_headers(read, row))
        size += _MAX_NUMBERS_BYTES + len(key or b"") + len(value or b"")
        size += sum(10 + len(name) + len(content or b"") for name, content in headers)
        if size > max_bytes and rows:
            break
        rows.append((row - first, int(read.timestamps[row]), key, value, headers))
    batch = build(rows, codec=codec, **producer)
    return first + len(rows), bytes(batch)


def _headers(read: Rows, row: int) -> Iterator[tuple[str, bytes | None]]:
    if not len(read.header_ends):
        return
    for index in range(read.header_ends[row], read.header_ends[row + 1]):
        key = read.header_key.item(index) or b""
        yield key.decode("utf-8", "surrogateescape"), read.header_value.item(index)


def murmur2(keys: Items, count: int, chosen: np.ndarray[Any, np.dtype[np.int32]]) -> None:
    """Set the partition of each key that is not null."""
    for row in range(len(chosen)):
        key = keys.item(row)
        if key is not None:
            chosen[row] = (_hash(key) & 0x7FFFFFFF) % count


def _hash(key: bytes) -> int:
    whole = len(key) // 4 * 4
    h = _SEED ^ len(key)
    for at in range(0, whole, 4):
        k = int.from_bytes(key[at : at + 4], "little") * _MULTIPLIER & _MASK
        k = (k ^ k >> 24) * _MULTIPLIER & _MASK
        h = (h * _MULTIPLIER & _MASK) ^ k
    if whole < len(key):
        h = (h ^ int.from_bytes(key[whole:], "little")) * _MULTIPLIER & _MASK
    h = (h ^ h >> 13) * _MULTIPLIER & _MASK
    return h ^ h >> 15
