"""The loops over the bytes of records, compiled by numba if it is installed.

They are written so that numba can compile them and that they also run as plain Python:

* every number is an int64 and no step overflows, so both ways give the same result;
* every position is compared with the end of the array before a byte is read, because compiled code
  does not check indexes;
* damage is a return value. The caller then asks `hightide.wire.batch` for the reason in words.

Compilation happens on the first call and takes seconds; numba caches the result in a folder beside
this file or in the user's cache. If no such folder is writable, or its content cannot be read, the
kernel is compiled in memory: a cache must not make anything fail.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

try:
    import numba

    is_compiled = True
except ImportError:
    is_compiled = False

Bytes: TypeAlias = "np.ndarray[Any, np.dtype[np.uint8]]"
Ints: TypeAlias = "np.ndarray[Any, np.dtype[np.int32]]"
Longs: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"
Long: TypeAlias = "int | np.int64"

DAMAGED = -1
WHOLE = -1
"""Returned if no batch is damaged."""

# The columns of `plans`: a batch's position in the data, and fields of its header.
AT, END, COUNT, BASE_OFFSET, LAST_DELTA = 0, 1, 2, 3, 4
BASE_TIMESTAMP, MAX_TIMESTAMP, IS_APPEND_TIME = 5, 6, 7

MIN_RECORD_BYTES = 7
"""Length, attributes, two deltas, two lengths and the header count, at least one byte each."""

# How much a decoder has filled so far: indexes of the array `filled`.
ROWS, KEY_BYTES, VALUE_BYTES, KEY_NULLS, VALUE_NULLS = 0, 1, 2, 3, 4
HEADERS, HEADER_KEY_BYTES, HEADER_VALUE_BYTES, HEADER_VALUE_NULLS, BARE_ROWS = 5, 6, 7, 8, 9
FILLED = 10

# Which columns are copied: the bits of `wanted`.
WANT_KEY, WANT_VALUE, WANT_HEADERS = 1, 2, 4

_MAX = 2**63 - 1
_MIN = -(2**63)
_MAX_MICROS = _MAX // 1000


class Kernel:
    """A function that is compiled when first called; the plain function without numba."""

    __slots__ = ("_run", "plain")

    def __init__(self, function: Callable[..., Any]) -> None:
        self.plain = function
        self._run = self._first if is_compiled else function

    def __call__(self, *arguments: Any) -> Any:
        return self._run(*arguments)

    def _first(self, *arguments: Any) -> Any:
        # No kernel raises, so an exception of the first call comes from the cache: no folder for
        # it, a full disk, a file that another version left behind.
        try:
            run = numba.njit(nogil=True, cache=True)(self.plain)
            result = run(*arguments)
        except Exception:
            run = numba.njit(nogil=True)(self.plain)
            result = run(*arguments)
        self._run = run
        _spare_the_collector()
        return result


def _spare_the_collector() -> None:
    """In a Python worker of Spark, exclude the existing objects from garbage collection.

    A worker collects garbage after each task. numba alone brings 120,000 objects that live as long
    as the process, and scanning them takes longer than a small micro-batch.
    """
    if "pyspark.worker" in sys.modules:
        gc.collect()
        gc.freeze()


def _step(function: Callable[..., Any]) -> Callable[..., Any]:
    """A part of a kernel, compiled into it."""
    return numba.njit(function) if is_compiled else function


@_step
def _number(data: Bytes, at: Long, end: Long, bits: int) -> tuple[Long, Long]:
    """Return the unsigned varint at `at` and its end, or DAMAGED as the end."""
    value = np.int64(0)
    shift = 0
    while at < end:
        byte = np.int64(data[at])
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            left = bits - shift
            if left < 7 and byte >> left:
                return value, DAMAGED
            return value, at
        shift += 7
        if shift >= bits:
            return value, DAMAGED
    return value, DAMAGED


@_step
def _zigzag(n: Long) -> Long:
    return ((n >> 1) & _MAX) ^ -(n & 1)


@_step
def _copy(source: Bytes, at: Long, size: Long, target: Bytes, to: Long) -> None:
    # An unsigned index cannot count from the end of the array; only then does the compiler move
    # many bytes at a time.
    start, place = np.uint64(at), np.uint64(to)
    for i in range(np.uint64(size)):
        target[place + i] = source[start + i]


# hot path: one pass over each record's headers, which are checked even if they are not wanted.
@_step
def _headers(
    data: Bytes,
    at: Long,
    end: Long,
    count: Long,
    wanted: bool,
    filled: Longs,
    key_ends: Ints,
    key_bytes: Bytes,
    value_ends: Ints,
    value_bytes: Bytes,
    value_valid: Bytes,
) -> Long:
    """Return where the headers end, or DAMAGED."""
    for _ in range(count):
        n, at = _number(data, at, end, 32)
        if at < 0 or n & 1 or (n >> 1) > end - at:
            return DAMAGED
        key_at = at
        key_size = n >> 1
        at += key_size
        n, at = _number(data, at, end, 32)
        if at < 0 or (n & 1 and n != 1):
            return DAMAGED
        size = 0 if n == 1 else n >> 1
        if size > end - at:
            return DAMAGED
        if wanted:
            place = filled[HEADERS]
            _copy(data, key_at, key_size, key_bytes, filled[HEADER_KEY_BYTES])
            filled[HEADER_KEY_BYTES] += key_size
            key_ends[place + 1] = filled[HEADER_KEY_BYTES]
            _copy(data, at, size, value_bytes, filled[HEADER_VALUE_BYTES])
            filled[HEADER_VALUE_BYTES] += size
            value_ends[place + 1] = filled[HEADER_VALUE_BYTES]
            value_valid[place] = n != 1
            filled[HEADER_VALUE_NULLS] += n == 1
            filled[HEADERS] = place + 1
        at += size
    return at


# hot path: one pass over the bytes of batches, from varints straight into Arrow's buffers.
def _decode(
    data: Bytes,
    plans: Longs,
    first: int,
    stop: int,
    wanted: int,
    filled: Longs,
    offsets: Longs,
    timestamps: Longs,
    timestamp_types: Ints,
    key_valid: Bytes,
    key_ends: Ints,
    key_bytes: Bytes,
    value_valid: Bytes,
    value_ends: Ints,
    value_bytes: Bytes,
    headers_valid: Bytes,
    header_ends: Ints,
    header_key_ends: Ints,
    header_key_bytes: Bytes,
    header_value_ends: Ints,
    header_value_bytes: Bytes,
    header_value_valid: Bytes,
) -> int:
    """Append the records of all batches of `plans`; return the index of the first damaged one, or
    WHOLE.

    The caller has compared the plans with the length of `data` and has made room for everything
    that `data` can hold.
    """
    for place in range(len(plans)):
        at, size, count = plans[place, AT], plans[place, END], plans[place, COUNT]
        base_offset, last_delta = plans[place, BASE_OFFSET], plans[place, LAST_DELTA]
        base_timestamp, append_time = plans[place, BASE_TIMESTAMP], plans[place, MAX_TIMESTAMP]
        is_append_time = plans[place, IS_APPEND_TIME]
        row = filled[ROWS]
        key_to, value_to = filled[KEY_BYTES], filled[VALUE_BYTES]
        key_nulls, value_nulls, bare = np.int64(0), np.int64(0), np.int64(0)
        wants_key, wants_value = (wanted & WANT_KEY) != 0, (wanted & WANT_VALUE) != 0
        wants_headers = (wanted & WANT_HEADERS) != 0
        previous = np.int64(-1)
        for _ in range(count):
            n, at = _number(data, at, size, 32)
            if at < 0 or n & 1 or (n >> 1) > size - at:
                return place
            end = at + (n >> 1)

            # The attributes of a record are skipped: none is defined.
            n, at = _number(data, at + 1, end, 64)
            if at < 0:
                return place
            step = _zigzag(n)
            if is_append_time:
                timestamp = append_time
            elif (step >= 0 and base_timestamp > _MAX - step) or (
                step < 0 and base_timestamp < _MIN - step
            ):
                return place
            else:
                timestamp = base_timestamp + step

            n, at = _number(data, at, end, 32)
            delta = n >> 1
            if at < 0 or n & 1 or delta <= previous or delta > last_delta:
                return place
            previous = delta
            offset = base_offset + delta
            is_wanted = first <= offset < stop

            n, at = _number(data, at, end, 32)
            if at < 0 or (n & 1 and n != 1):
                return place
            length = 0 if n == 1 else n >> 1
            if length > end - at:
                return place
            if is_wanted and wants_key:
                _copy(data, at, length, key_bytes, key_to)
                key_to += length
                key_ends[row + 1] = key_to
                key_valid[row] = n != 1
                key_nulls += n == 1
            at += length

            n, at = _number(data, at, end, 32)
            if at < 0 or (n & 1 and n != 1):
                return place
            length = 0 if n == 1 else n >> 1
            if length > end - at:
                return place
            if is_wanted and wants_value:
                _copy(data, at, length, value_bytes, value_to)
                value_to += length
                value_ends[row + 1] = value_to
                value_valid[row] = n != 1
                value_nulls += n == 1
            at += length

            n, at = _number(data, at, end, 32)
            if at < 0 or n & 1 or (n >> 1) > (end - at) // 2:
                return place
            if n:
                at = _headers(
                    data,
                    at,
                    end,
                    n >> 1,
                    is_wanted and wants_headers,
                    filled,
                    header_key_ends,
                    header_key_bytes,
                    header_value_ends,
                    header_value_bytes,
                    header_value_valid,
                )
            if at != end:
                return place
            if is_wanted:
                if wants_headers:
                    header_ends[row + 1] = filled[HEADERS]
                    headers_valid[row] = n != 0
                    bare += n == 0
                offsets[row] = offset
                if timestamp > _MAX_MICROS:
                    timestamp = _MAX_MICROS
                elif timestamp < -_MAX_MICROS:
                    timestamp = -_MAX_MICROS
                timestamps[row] = timestamp * 1000
                timestamp_types[row] = is_append_time
                row += 1
        if at != size:
            return place
        filled[ROWS] = row
        filled[KEY_BYTES], filled[VALUE_BYTES] = key_to, value_to
        filled[KEY_NULLS] += key_nulls
        filled[VALUE_NULLS] += value_nulls
        filled[BARE_ROWS] += bare
    return WHOLE


decode = Kernel(_decode)


@_step
def _size(n: Long) -> int:
    """Return how many bytes the unsigned varint takes; the highest bit of `n` may be set."""
    size = 1
    n = (n >> 7) & (_MAX >> 6)
    while n:
        size += 1
        n >>= 7
    return size


@_step
def _put(out: Bytes, at: Long, n: Long) -> Long:
    """Write the unsigned varint and return its end."""
    while n & ~0x7F:
        out[at] = (n & 0x7F) | 0x80
        n = (n >> 7) & (_MAX >> 6)
        at += 1
    out[at] = n
    return at + 1


@_step
def _put_bytes(out: Bytes, at: Long, data: Bytes, start: Long, size: Long) -> Long:
    """Write a length, -1 for null, and that many bytes; return their end."""
    if size < 0:
        out[at] = 1
        return at + 1
    place: Long = _put(out, at, size << 1)
    _copy(data, start, size, out, place)
    return place + size


@_step
def _length(valid: Bytes, ends: Longs, row: Long) -> Any:
    """Return the length of an item, -1 for null; `valid` is empty if nothing is null."""
    if len(valid) and not valid[row]:
        return -1
    return ends[row + 1] - ends[row]


# hot path: one pass over the rows, from Arrow's buffers straight into varints.
def _encode(
    out: Bytes,
    at: int,
    limit: int,
    row: int,
    sizes: Longs,
    timestamps: Longs,
    key_valid: Bytes,
    key_ends: Longs,
    key_bytes: Bytes,
    value_valid: Bytes,
    value_ends: Longs,
    value_bytes: Bytes,
    header_ends: Longs,
    header_key_ends: Longs,
    header_key_bytes: Bytes,
    header_value_valid: Bytes,
    header_value_ends: Longs,
    header_value_bytes: Bytes,
) -> int:
    """Write the rows from `row` on as records of one batch; return the first row that is not in it.

    The batch ends before the record that would pass `limit`, but holds at least one record. If
    `out` is too small for that one, nothing is written and `sizes` says how large it must be;
    otherwise `sizes` holds the end of the records and the largest timestamp. An `ends` without
    items stands for a missing column.
    """
    first = row
    base = timestamps[row]
    largest = base
    rows = len(timestamps)
    while row < rows:
        timestamp = timestamps[row]
        step = timestamp - base
        step = (step << 1) ^ (step >> 63)
        delta = (row - first) << 1
        key_size = _length(key_valid, key_ends, row) if len(key_ends) else np.int64(-1)
        value_size = _length(value_valid, value_ends, row) if len(value_ends) else np.int64(-1)
        size = 1 + _size(step) + _size(delta)
        size += 1 if key_size < 0 else _size(key_size << 1) + key_size
        size += 1 if value_size < 0 else _size(value_size << 1) + value_size
        header = header_end = np.int64(0)
        if len(header_ends):
            header, header_end = header_ends[row], header_ends[row + 1]
        size += _size((header_end - header) << 1)
        for index in range(header, header_end):
            length = header_key_ends[index + 1] - header_key_ends[index]
            size += _size(length << 1) + length
            length = _length(header_value_valid, header_value_ends, index)
            size += 1 if length < 0 else _size(length << 1) + length

        after = at + _size(size << 1) + size
        if after > limit and row > first:
            break
        if after > len(out):
            sizes[0] = after
            return first
        at = _put(out, at, size << 1)
        out[at] = 0
        at = _put(out, at + 1, step)
        at = _put(out, at, delta)
        start = key_ends[row] if key_size > 0 else np.int64(0)
        at = _put_bytes(out, at, key_bytes, start, key_size)
        start = value_ends[row] if value_size > 0 else np.int64(0)
        at = _put_bytes(out, at, value_bytes, start, value_size)
        at = _put(out, at, (header_end - header) << 1)
        for index in range(header, header_end):
            start = header_key_ends[index]
            length = header_key_ends[index + 1] - start
            at = _put_bytes(out, at, header_key_bytes, start, length)
            length = _length(header_value_valid, header_value_ends, index)
            at = _put_bytes(out, at, header_value_bytes, header_value_ends[index], length)
        largest = max(largest, timestamp)
        row += 1
    sizes[0], sizes[1] = at, largest
    return row


@_step
def _times(n: Long) -> Long:
    """Multiply 32 bits of n by the multiplier of murmur2, in halves so that nothing overflows."""
    low = (n & 0xFFFF) * 0x5BD1E995
    high = ((n >> 16) * 0x5BD1E995) & 0xFFFF
    return (low + (high << 16)) & 0xFFFFFFFF


def _murmur2(valid: Bytes, ends: Longs, data: Bytes, count: int, out: Ints) -> None:
    """Set the partition of each key as Kafka's default partitioner does; -1 for null."""
    for row in range(len(out)):
        if len(valid) and not valid[row]:
            out[row] = -1
            continue
        at, end = ends[row], ends[row + 1]
        h = np.int64(0x9747B28C) ^ (end - at)
        while end - at >= 4:
            k = np.int64(data[at]) | np.int64(data[at + 1]) << 8
            k |= np.int64(data[at + 2]) << 16 | np.int64(data[at + 3]) << 24
            k = _times(k)
            k = _times(k ^ (k >> 24))
            h = _times(h) ^ k
            at += 4
        if at < end:
            for i in range(end - at):
                h ^= np.int64(data[at + i]) << (8 * i)
            h = _times(h)
        h = _times(h ^ (h >> 13))
        h ^= h >> 15
        out[row] = (h & 0x7FFFFFFF) % count


encode = Kernel(_encode)
murmur2 = Kernel(_murmur2)
