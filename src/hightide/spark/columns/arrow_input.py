"""Arrow columns as the kernels read them: offsets, bytes and validity.

Text and binary columns with 32-bit or 64-bit offsets, sliced or not, get one form, so that one
compiled kernel fits all.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hightide.wire.batch import NO_TIMESTAMP

Bytes: TypeAlias = "np.ndarray[Any, np.dtype[np.uint8]]"
Longs: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"

_NO_BYTES = np.empty(0, np.uint8)
_NO_BYTES.flags.writeable = False
_NO_ENDS = np.empty(0, np.int64)

_MILLIS = {"s": (1000, 1), "ms": (1, 1), "us": (1, 1000), "ns": (1, 1_000_000)}
"""The factor and the divisor that turn a unit of time into milliseconds."""


class Items(NamedTuple):
    """Item i is data[ends[i] : ends[i + 1]]; it is null if `valid` is not empty and 0 at i.

    A missing column has no ends.
    """

    valid: Bytes
    ends: Longs
    data: Bytes

    def item(self, index: int) -> bytes | None:
        if not len(self.ends) or (len(self.valid) and not self.valid[index]):
            return None
        return self.data[self.ends[index] : self.ends[index + 1]].tobytes()


ABSENT = Items(_NO_BYTES, _NO_ENDS, _NO_BYTES)


class Rows(NamedTuple):
    """The parts of records; row i has the headers from header_ends[i] to header_ends[i + 1]."""

    timestamps: Longs
    key: Items
    value: Items
    header_ends: Longs
    header_key: Items
    header_value: Items


def read_rows(batch: pa.RecordBatch, now_ms: int) -> Rows:
    """Return the columns of a batch; raise ValueError if a column has a wrong type."""
    names = batch.schema.names
    key = items(batch.column("key"), "key") if "key" in names else ABSENT
    value = items(batch.column("value"), "value") if "value" in names else ABSENT
    headers = _NO_ENDS, ABSENT, ABSENT
    if "headers" in names and not pa.types.is_null(batch.column("headers").type):
        headers = _headers(batch.column("headers"))
    return Rows(_timestamps(batch, now_ms), key, value, *headers)


def items(column: pa.Array, name: str) -> Items:
    """Return a column; raise ValueError if it holds neither text nor bytes."""
    kind = column.type
    if pa.types.is_null(kind):
        return ABSENT
    is_wide = pa.types.is_large_binary(kind) or pa.types.is_large_string(kind)
    if not (is_wide or pa.types.is_binary(kind) or pa.types.is_string(kind)):
        raise ValueError(f"the column {name} is {kind}; it must be text or bytes")
    ends = np.zeros(1, np.int64)
    _, offsets, data = column.buffers()
    if len(column):
        every = np.frombuffer(offsets, np.int64 if is_wide else np.int32)
        ends = every[column.offset : column.offset + len(column) + 1].astype(np.int64)
    return Items(_valid(column), ends, _read_only(data))


def _valid(column: pa.Array) -> Bytes:
    if not column.null_count:
        return _NO_BYTES
    known: Bytes = column.is_valid().to_numpy(zero_copy_only=False).astype(np.uint8)
    known.flags.writeable = False
    return known


def _read_only(buffer: pa.Buffer | None) -> Bytes:
    """Return an array that cannot be written to: numba compiles again for a writable one."""
    if buffer is None or buffer.size == 0:
        return _NO_BYTES
    array = np.frombuffer(buffer, np.uint8)
    array.flags.writeable = False
    return array


def _timestamps(batch: pa.RecordBatch, now_ms: int) -> Longs:
    """Return milliseconds; `now_ms` where there is no timestamp."""
    if "timestamp" not in batch.schema.names:
        return np.full(batch.num_rows, now_ms, np.int64)
    column = batch.column("timestamp")
    kind = column.type
    if pa.types.is_timestamp(kind):
        times, parts = _MILLIS[kind.unit]
        # numpy rounds down, so that -1 µs stays before 1970.
        known = column.cast(pa.int64()).fill_null(0).to_numpy() * times // parts
        millis = np.where(column.is_valid().to_numpy(zero_copy_only=False), known, now_ms)
    elif pa.types.is_integer(kind) or pa.types.is_null(kind):
        millis = column.cast(pa.int64()).fill_null(now_ms).to_numpy()
    else:
        raise ValueError(f"the column timestamp is {kind}; it must be a timestamp or milliseconds")
    if len(millis) and millis.min() < NO_TIMESTAMP:
        raise ValueError(
            f"the timestamp {millis.min()} ms is before 1970, which Kafka does not allow"
        )
    return np.ascontiguousarray(millis, np.int64)


def _headers(column: pa.Array) -> tuple[Longs, Items, Items]:
    kind = column.type
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    is_suitable = is_list and pa.types.is_struct(kind.value_type)
    names = [field.name for field in kind.value_type] if is_suitable else []
    if not {"key", "value"} <= set(names):
        raise ValueError(f"the column headers is {kind}; it must be a list of key and value")
    if column.null_count:
        column = pc.if_else(column.is_valid(), column, pa.scalar([], kind))
    ends: Longs = column.offsets.to_numpy().astype(np.int64)
    entries = dict(zip(names, column.values.flatten(), strict=True))
    first = int(ends[0]) if len(ends) else 0
    used = int(ends[-1]) - first if len(ends) else 0
    if entries["key"].slice(first, used).null_count:
        raise ValueError("a header has no key")
    return ends, items(entries["key"], "headers.key"), items(entries["value"], "headers.value")
