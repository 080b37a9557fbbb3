"""The Arrow buffers that a decoder fills with one kernel call for each record batch.

The buffers come from Arrow's own memory pool, which hands out again what Spark's worker has sent
away, so that filling them costs few page faults.  How large they became last time is how large they
are made the next time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from hightide.spark.columns import kernels
from hightide.spark.columns.schema import HEADER_TYPE, HEADERS_TYPE
from hightide.wire.batch import HEADER_BYTES, BatchHeader, records
from hightide.wire.compression import Codec, decompress
from hightide.wire.errors import Corrupt


class Constant:
    """A column that is the same in every row: slices of one array."""

    def __init__(self, value: str | int, kind: pa.DataType) -> None:
        self._scalar = pa.scalar(value, kind)
        self._array = pa.repeat(self._scalar, 0)

    def of(self, rows: int) -> pa.Array:
        if rows > len(self._array):
            self._array = pa.repeat(self._scalar, rows + rows // 4)
        return self._array.slice(0, rows)


class TimestampTypes:
    """0 for the producer's time, 1 for the time of appending; nearly always one of them only."""

    def __init__(self) -> None:
        self._runs: list[tuple[int, int]] = []
        self._constants = (Constant(0, pa.int32()), Constant(1, pa.int32()))

    def append(self, kind: int, rows: int) -> None:
        self._runs.append((kind, rows))

    def take(self) -> pa.Array:
        runs, self._runs = self._runs, []
        kinds, counts = zip(*runs, strict=True)
        if len(set(kinds)) == 1:
            return self._constants[kinds[0]].of(sum(counts))
        return pa.array(np.repeat(np.array(kinds, np.int32), counts))


# The arrays of a native filling in the order in which the kernel takes them: the type of their
# items, which count of `filled` their length follows, and how many items they have besides.
_ARRAYS: tuple[tuple[str, type[np.generic], int, int], ...] = (
    ("offset", np.int64, kernels.ROWS, 0),
    ("timestamp", np.int64, kernels.ROWS, 0),
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
_SIZES = (
    kernels.ROWS,
    kernels.KEY_BYTES,
    kernels.VALUE_BYTES,
    kernels.HEADERS,
    kernels.HEADER_KEY_BYTES,
    kernels.HEADER_VALUE_BYTES,
)


class NativeFilling:
    """Arrow's buffers, filled by the kernel."""

    def __init__(self, topic: str, partition: int, schema: pa.Schema) -> None:
        self.rows = 0
        self.bytes = 0
        self._names = tuple(schema.names)
        self._topic = Constant(topic, pa.string())
        self._partition = Constant(partition, pa.int32())
        self._types = TimestampTypes()
        self._wanted = (
            kernels.WANT_KEY * ("key" in self._names)
            | kernels.WANT_VALUE * ("value" in self._names)
            | kernels.WANT_HEADERS * ("headers" in self._names)
        )
        self._room = dict.fromkeys(_SIZES, 0)
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

    def _make_room(self, needed: dict[int, int]) -> None:
        for size, items in needed.items():
            if items <= self._room[size]:
                continue
            self._room[size] = room = max(items, 2 * self._room[size])
            for place, (_, dtype, follows, more) in enumerate(_ARRAYS):
                if follows == size:
                    buffer, array = _allocate(dtype, room + more)
                    used = self._counts[size] + more
                    array[:used] = self._arrays[place][:used]
                    self._buffers[place], self._arrays[place] = buffer, array

    def append(self, view: memoryview, at: int, header: BatchHeader, first: int, stop: int) -> None:
        data = _payload(view, at, header)
        most_rows = len(data) // kernels.MIN_RECORD_BYTES
        if not 0 <= header.record_count <= most_rows:
            raise _damage(view, at)
        counts, wanted, size = self._counts, self._wanted, len(data)
        needed = {kernels.ROWS: counts[kernels.ROWS] + header.record_count}
        if wanted & kernels.WANT_KEY:
            needed[kernels.KEY_BYTES] = counts[kernels.KEY_BYTES] + size
        if wanted & kernels.WANT_VALUE:
            needed[kernels.VALUE_BYTES] = counts[kernels.VALUE_BYTES] + size
        if wanted & kernels.WANT_HEADERS:
            needed[kernels.HEADERS] = counts[kernels.HEADERS] + size // 2
            needed[kernels.HEADER_KEY_BYTES] = counts[kernels.HEADER_KEY_BYTES] + size
            needed[kernels.HEADER_VALUE_BYTES] = counts[kernels.HEADER_VALUE_BYTES] + size
        self._make_room(needed)
        is_append_time = header.is_log_append_time
        told = kernels.decode(
            data,
            header.record_count,
            header.base_offset,
            header.last_offset_delta,
            header.base_timestamp,
            header.max_timestamp,
            is_append_time,
            first,
            stop,
            wanted,
            self._filled,
            *self._arrays,
        )
        if told == kernels.DAMAGED:
            raise _damage(view, at)
        self._counts = counts = self._filled.tolist()
        self._types.append(int(is_append_time), counts[kernels.ROWS] - self.rows)
        self.rows = counts[kernels.ROWS]
        self.bytes = (
            counts[kernels.KEY_BYTES]
            + counts[kernels.VALUE_BYTES]
            + counts[kernels.HEADER_KEY_BYTES]
            + counts[kernels.HEADER_VALUE_BYTES]
        )

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
                return _fixed(pa.int64(), self.rows, self._buffer("offset"))
            case "timestamp":
                return _fixed(pa.timestamp("us", tz="UTC"), self.rows, self._buffer("timestamp"))
            case "timestampType":
                return self._types.take()
        return self._headers()

    def _headers(self) -> pa.Array:
        count = self._counts[kernels.HEADERS]
        keys = self._binary(pa.string(), "header_key", count, 0)
        if self._has_high_bytes("header_key_bytes", self._counts[kernels.HEADER_KEY_BYTES]):
            keys = _as_text(keys)
        nulls = self._counts[kernels.HEADER_VALUE_NULLS]
        values = self._binary(pa.binary(), "header_value", count, nulls)
        entries = pa.Array.from_buffers(HEADER_TYPE, count, [None], 0, 0, [keys, values])
        bare = self._counts[kernels.BARE_ROWS]
        validity = self._validity("headers_valid", self.rows) if bare else None
        ends = self._buffer("header_ends")
        return pa.Array.from_buffers(HEADERS_TYPE, self.rows, [validity, ends], bare, 0, [entries])

    def _binary(self, kind: pa.DataType, name: str, items: int, nulls: int) -> pa.Array:
        validity = self._validity(f"{name}_valid", items) if nulls else None
        buffers = [validity, self._buffer(f"{name}_ends"), self._buffer(f"{name}_bytes")]
        return pa.Array.from_buffers(kind, items, buffers, nulls)

    def _validity(self, name: str, items: int) -> pa.Buffer:
        bits = np.packbits(self._arrays[_PLACE[name]][:items], bitorder="little")
        return pa.py_buffer(bits)

    def _buffer(self, name: str) -> pa.Buffer:
        return self._buffers[_PLACE[name]]

    def _has_high_bytes(self, name: str, size: int) -> bool:
        return bool((self._arrays[_PLACE[name]][:size] & 0x80).any())


def _as_text(keys: pa.Array) -> pa.Array:
    """Keys of headers are text only by convention; what is not becomes a question mark."""
    raw = keys.view(pa.binary()).to_pylist()
    return pa.array([each.decode("utf-8", "replace") for each in raw], pa.string())


def _fixed(kind: pa.DataType, rows: int, buffer: pa.Buffer) -> pa.Array:
    return pa.Array.from_buffers(kind, rows, [None, buffer], 0)


def _allocate(dtype: type[np.generic], items: int) -> tuple[pa.Buffer, np.ndarray[Any, Any]]:
    # numpy makes no array of an empty buffer.
    buffer = pa.allocate_buffer(max(1, items) * np.dtype(dtype).itemsize)
    return buffer, np.frombuffer(buffer, dtype)


def _payload(view: memoryview, at: int, header: BatchHeader) -> np.ndarray[Any, Any]:
    """The records part of a batch, uncompressed, as an array that nobody may write to."""
    packed = view[at + HEADER_BYTES : at + header.size]
    codec = header.codec
    if codec is not Codec.NONE and (packed or header.record_count):
        packed = memoryview(decompress(codec, packed))
    data = np.frombuffer(packed, np.uint8) if packed else np.empty(0, np.uint8)
    # Numba compiles once more for arrays that may be written to.
    data.flags.writeable = False
    return data


def _damage(view: memoryview, at: int) -> Corrupt:
    """The reason in words, which the plain decoder gives."""
    try:
        for _ in records(view, at):
            pass
    except Corrupt as damage:
        return damage
    return Corrupt("its records are damaged")
