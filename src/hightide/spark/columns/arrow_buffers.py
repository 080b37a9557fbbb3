"""The Arrow buffers that a decoder fills, with one kernel call for several record batches.

The buffers come from Arrow's memory pool, which reuses what Spark's worker has sent, so filling
them costs few page faults. Their sizes start at those of the last time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from hightide.spark.columns import kernels
from hightide.spark.columns.record_schema import HEADER_TYPE, HEADERS_TYPE
from hightide.wire.batch import HEADER_BYTES, BatchHeader, records
from hightide.wire.compression import Codec, decompress
from hightide.wire.errors import Corrupt

Run: TypeAlias = Sequence[tuple[int, BatchHeader]]
"""Positions and headers of batches of one response: uncompressed ones, or one compressed."""

# The arrays in the order of the kernel's parameters: their item type, the count of `filled` that
# gives their length, and how many more items they have.
_ARRAYS: tuple[tuple[str, type[np.generic], int, int], ...] = (
    ("offset", np.int64, kernels.ROWS, 0),
    ("timestamp", np.int64, kernels.ROWS, 0),
    ("timestamp_type", np.int32, kernels.ROWS, 0),
    ("key_valid", np.uint8, kernels.ROWS, 0),
    ("key_ends", np.int32, kernels.ROWS, 1),
    ("key_bytes", np.uint8, kernels.KEY_BYTES, 0),
    ("value_valid", np.uint8, kernels.ROWS, 0),
    ("value_ends", np.int32, kernels.ROWS, 1),
    ("value_bytes", np.uint8, kernels.VALUE_BYTES, 0),
    ("headers_valid", np.uint8, kernels.ROWS, 0),
    ("header_ends", np.int32, kernels.ROWS, 1),
    ("header_key_ends", np.int32, kernels.HEADERS, 1),
    ("header_key_bytes", np.uint8, kernels.HEADER_KEY_BYTES, 0),
    ("header_value_ends", np.int32, kernels.HEADERS, 1),
    ("header_value_bytes", np.uint8, kernels.HEADER_VALUE_BYTES, 0),
    ("header_value_valid", np.uint8, kernels.HEADERS, 0),
)
_PLACE = {name: place for place, (name, *_) in enumerate(_ARRAYS)}
_BYTES = (
    kernels.KEY_BYTES,
    kernels.VALUE_BYTES,
    kernels.HEADER_KEY_BYTES,
    kernels.HEADER_VALUE_BYTES,
)
_MAX_COLUMN_BYTES = 2**31 - 1
"""The limit of Arrow's 32-bit offsets."""


class Constant:
    """A column with the same value in every row: slices of one array."""

    def __init__(self, value: str | int, kind: pa.DataType) -> None:
        self._scalar = pa.scalar(value, kind)
        self._array = pa.repeat(self._scalar, 0)

    def of(self, rows: int) -> pa.Array:
        if rows > len(self._array):
            self._array = pa.repeat(self._scalar, rows + rows // 4)
        return self._array.slice(0, rows)


class CompiledBuffers:
    """Arrow buffers, filled by the compiled kernel."""

    def __init__(self, topic: str, partition: int, schema: pa.Schema) -> None:
        self.rows = 0
        self.bytes = 0
        self._names = tuple(schema.names)
        self._topic = Constant(topic, pa.string())
        self._partition = Constant(partition, pa.int32())
        self._wanted = (
            kernels.WANT_KEY * ("key" in self._names)
            | kernels.WANT_VALUE * ("value" in self._names)
            | kernels.WANT_HEADERS * ("headers" in self._names)
        )
        self._room = dict.fromkeys((kernels.ROWS, kernels.HEADERS, *_BYTES), 0)
        self._begin()

    def _begin(self) -> None:
        self.rows = self.bytes = 0
        self._filled = np.zeros(kernels.FILLED, np.int64)
        self._counts = [0] * kernels.FILLED
        self._buffers: list[pa.Buffer] = []
        self._arrays: list[np.ndarray[Any, Any]] = []
        for _, dtype, size, more in _ARRAYS:
            buffer, array = _allocate(dtype, self._room[size] + more)
            array[:more] = 0
            self._buffers.append(buffer)
            self._arrays.append(array)

    def append(self, view: memoryview, run: Run, first: int, stop: int) -> None:
        at, header = run[0]
        if header.codec is Codec.NONE:
            data = _read_only(view)
            plans = [_plan(at + HEADER_BYTES, at + header.size, header) for at, header in run]
        else:
            data = _read_only(_unpacked(view, at, header))
            plans = [_plan(0, len(data), header)]
        if None in plans:
            raise _damage(view, *run[plans.index(None)])
        numbers = np.array(plans, np.int64)
        size = int((numbers[:, kernels.END] - numbers[:, kernels.AT]).sum())
        if size > _MAX_COLUMN_BYTES - self.bytes:
            raise corrupt_batch(header, f"with {size} bytes it is too large for a column")
        self._make_room(int(numbers[:, kernels.COUNT].sum()), size)
        place = kernels.decode(
            data, numbers, first, stop, self._wanted, self._filled, *self._arrays
        )
        if place != kernels.WHOLE:
            raise _damage(view, *run[place])
        self._counts = counts = self._filled.tolist()
        self.rows = counts[kernels.ROWS]
        self.bytes = sum(counts[name] for name in _BYTES)

    def _make_room(self, rows: int, size: int) -> None:
        """Make room for more rows; all of the `size` bytes may be keys, values or headers."""
        more = {kernels.ROWS: rows}
        if self._wanted & kernels.WANT_KEY:
            more[kernels.KEY_BYTES] = size
        if self._wanted & kernels.WANT_VALUE:
            more[kernels.VALUE_BYTES] = size
        if self._wanted & kernels.WANT_HEADERS:
            more[kernels.HEADERS] = size // 2
            more[kernels.HEADER_KEY_BYTES] = more[kernels.HEADER_VALUE_BYTES] = size
        for count, items in more.items():
            needed = self._counts[count] + items
            if needed > self._room[count]:
                self._room[count] = max(needed, 2 * self._room[count])
                self._widen(count)

    def _widen(self, count: int) -> None:
        for place, (_, dtype, follows, more) in enumerate(_ARRAYS):
            if follows == count:
                buffer, array = _allocate(dtype, self._room[count] + more)
                used = self._counts[count] + more
                array[:used] = self._arrays[place][:used]
                self._buffers[place], self._arrays[place] = buffer, array

    def take(self) -> list[pa.Array]:
        columns = [self._column(name) for name in self._names]
        self._begin()
        return columns

    def _column(self, name: str) -> pa.Array:
        nulls = self._counts
        match name:
            case "key":
                return self._binary(pa.binary(), "key", self.rows, nulls[kernels.KEY_NULLS])
            case "value":
                return self._binary(pa.binary(), "value", self.rows, nulls[kernels.VALUE_NULLS])
            case "topic":
                return self._topic.of(self.rows)
            case "partition":
                return self._partition.of(self.rows)
            case "offset":
                return self._fixed(pa.int64(), "offset")
            case "timestamp":
                return self._fixed(pa.timestamp("us", tz="UTC"), "timestamp")
            case "timestampType":
                return self._fixed(pa.int32(), "timestamp_type")
        return self._headers()

    def _headers(self) -> pa.Array:
        count = self._counts[kernels.HEADERS]
        keys = self._binary(pa.string(), "header_key", count, 0)
        used = self._arrays[_PLACE["header_key_bytes"]][: self._counts[kernels.HEADER_KEY_BYTES]]
        if (used & 0x80).any():
            keys = _as_text(keys)
        nulls = self._counts[kernels.HEADER_VALUE_NULLS]
        values = self._binary(pa.binary(), "header_value", count, nulls)
        entries = pa.Array.from_buffers(HEADER_TYPE, count, [None], 0, 0, [keys, values])
        bare = self._counts[kernels.BARE_ROWS]
        validity = self._validity("headers", self.rows) if bare else None
        buffers = [validity, self._buffer("header_ends")]
        return pa.Array.from_buffers(HEADERS_TYPE, self.rows, buffers, bare, 0, [entries])

    def _binary(self, kind: pa.DataType, name: str, items: int, nulls: int) -> pa.Array:
        validity = self._validity(name, items) if nulls else None
        buffers = [validity, self._buffer(f"{name}_ends"), self._buffer(f"{name}_bytes")]
        return pa.Array.from_buffers(kind, items, buffers, nulls)

    def _fixed(self, kind: pa.DataType, name: str) -> pa.Array:
        return pa.Array.from_buffers(kind, self.rows, [None, self._buffer(name)], 0)

    def _validity(self, name: str, items: int) -> pa.Buffer:
        known = self._arrays[_PLACE[f"{name}_valid"]][:items]
        return pa.py_buffer(np.packbits(known, bitorder="little"))

    def _buffer(self, name: str) -> pa.Buffer:
        return self._buffers[_PLACE[name]]


def _as_text(keys: pa.Array) -> pa.Array:
    """Decode header keys, which are text only by convention; invalid bytes become U+FFFD."""
    raw = keys.view(pa.binary()).to_pylist()
    return pa.array([entry.decode("utf-8", "replace") for entry in raw], pa.string())


def _allocate(dtype: type[np.generic], items: int) -> tuple[pa.Buffer, np.ndarray[Any, Any]]:
    # numpy cannot make an array of an empty buffer.
    buffer = pa.allocate_buffer(max(1, items) * np.dtype(dtype).itemsize)
    return buffer, np.frombuffer(buffer, dtype)


def _read_only(data: memoryview) -> np.ndarray[Any, Any]:
    """Return an array that cannot be written to: numba compiles again for a writable one."""
    array = np.frombuffer(data, np.uint8) if data else np.empty(0, np.uint8)
    array.flags.writeable = False
    return array


def _unpacked(view: memoryview, at: int, header: BatchHeader) -> memoryview:
    packed = view[at + HEADER_BYTES : at + header.size]
    if not packed and not header.record_count:
        return packed
    try:
        return memoryview(decompress(header.codec, packed))
    except Corrupt as damage:
        raise corrupt_batch(header, damage) from None


def _plan(at: int, end: int, header: BatchHeader) -> tuple[int, ...] | None:
    """Return what the kernel must know of a batch; None if its record count is impossible."""
    count = header.record_count
    if not 0 <= count <= (end - at) // kernels.MIN_RECORD_BYTES:
        return None
    return (
        at,
        end,
        count,
        header.base_offset,
        header.last_offset_delta,
        header.base_timestamp,
        header.max_timestamp,
        header.is_log_append_time,
    )


def _damage(view: memoryview, at: int, header: BatchHeader) -> Corrupt:
    """Return the reason in words, which the plain decoder finds."""
    try:
        for _ in records(view, at):
            pass
    except Corrupt as damage:
        return corrupt_batch(header, damage)
    return corrupt_batch(header, "its records are damaged")


def corrupt_batch(header: BatchHeader, damage: Corrupt | str) -> Corrupt:
    return Corrupt(f"the batch at offset {header.base_offset}: {damage}")
