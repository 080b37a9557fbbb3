"""Arrow columns of bytes as the kernels read them: ends, bytes and which items are there.

Whatever Spark or a caller calls text or binary, with 32-bit or 64-bit offsets, sliced or not, comes out
in one shape, so that one compiled kernel suits all.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

_NOTHING = np.empty(0, np.uint8)
_NOTHING.flags.writeable = False
_NO_ENDS = np.empty(0, np.int64)


class Items(NamedTuple):
    """The item i is data[ends[i] : ends[i + 1]]; it is null if `valid` has items and a 0 at i."""

    valid: np.ndarray[Any, np.dtype[np.uint8]]
    ends: np.ndarray[Any, np.dtype[np.int64]]
    data: np.ndarray[Any, np.dtype[np.uint8]]


ABSENT = Items(_NOTHING, _NO_ENDS, _NOTHING)


def items(column: pa.Array, name: str) -> Items:
    """ValueError if the column holds neither text nor bytes."""
    kind = column.type
    if pa.types.is_null(kind):
        return ABSENT
    if not (pa.types.is_large_binary(kind) or pa.types.is_large_string(kind)):
        if not (pa.types.is_binary(kind) or pa.types.is_string(kind)):
            raise ValueError(f"the column {name} is {kind}; it must be text or bytes")
    wide = pa.types.is_large_binary(kind) or pa.types.is_large_string(kind)
    _, offsets, data = column.buffers()
    dtype = np.int64 if wide else np.int32
    if len(column):
        ends = np.frombuffer(offsets, dtype)[column.offset : column.offset + len(column) + 1]
    else:
        ends = np.zeros(1, dtype)
    return Items(valid(column), ends.astype(np.int64), _frozen(data))


def valid(column: pa.Array) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """A byte for each item, 0 for a null; no bytes at all if there is none."""
    if not column.null_count:
        return _NOTHING
    known = column.is_valid().to_numpy(zero_copy_only=False).astype(np.uint8)
    known.flags.writeable = False
    return known


def _frozen(buffer: pa.Buffer | None) -> np.ndarray[Any, np.dtype[np.uint8]]:
    if buffer is None or buffer.size == 0:
        return _NOTHING
    array = np.frombuffer(buffer, np.uint8)
    array.flags.writeable = False
    return array
