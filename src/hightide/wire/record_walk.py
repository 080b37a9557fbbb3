"""Checks the framing of a batch's records without decoding them.

A batch with a valid CRC may still hold anything: the CRC is the producer's. Every consumer that
reads such a batch fails, so a leader walks the records before it stores them, as Kafka does.

`walk` is compiled (`_record_walk.c`) where a compiler was found at installation, and takes about
10 ns for a record. Without one it is `walk_plain`, which returns the same and takes about 1 µs.
"""

from collections.abc import Callable
from enum import IntEnum

from hightide.wire.compression import Buffer

NO_TIMESTAMPS = 2**63 - 1
"""The lowest timestamp of records that have none."""

_MIN_I64 = -(2**63)
_MAX_I64 = 2**63 - 1


class Flaw(IntEnum):
    """What is wrong with the records of a batch. The compiled walk has the same numbers."""

    NONE = 0
    CUT_SHORT = 1
    BAD_NUMBER = 2
    RECORD_LENGTH = 3
    OFFSET_DELTA = 4
    KEY_LENGTH = 5
    VALUE_LENGTH = 6
    HEADER_COUNT = 7
    HEADER_KEY_LENGTH = 8
    HEADER_VALUE_LENGTH = 9
    RECORD_END = 10
    TRAILING_BYTES = 11
    TIMESTAMP = 12


REASONS = {
    Flaw.CUT_SHORT: "the records end too early",
    Flaw.BAD_NUMBER: "a variable-length number is too long",
    Flaw.RECORD_LENGTH: "a record has a negative length",
    Flaw.OFFSET_DELTA: "the offset deltas of the records are not 0, 1, 2 and so on",
    Flaw.KEY_LENGTH: "a key has a negative length",
    Flaw.VALUE_LENGTH: "a value has a negative length",
    Flaw.HEADER_COUNT: "a record has an impossible number of headers",
    Flaw.HEADER_KEY_LENGTH: "a header key has a negative length",
    Flaw.HEADER_VALUE_LENGTH: "a header value has a negative length",
    Flaw.RECORD_END: "the fields of a record do not end where its length says",
    Flaw.TRAILING_BYTES: "bytes follow the last record",
    Flaw.TIMESTAMP: "the timestamp of a record exceeds 64 bits",
}

Walked = tuple[int, int, int, int, int]
"""The flaw or 0, the position after `start` where the walk ended, the lowest timestamp apart from
-1 or NO_TIMESTAMPS, the highest timestamp or -1, and the number of records without a key."""

Walk = Callable[[Buffer, int, int, int, int], Walked]


class _Flawed(Exception):
    def __init__(self, flaw: Flaw, at: int) -> None:
        self.flaw = flaw
        self.at = at


def walk_plain(buffer: Buffer, start: int, end: int, count: int, base_timestamp: int) -> Walked:
    """Walk the `count` records in buffer[start:end]."""
    if not 0 <= start <= end <= len(buffer):
        raise ValueError("the records are not within the buffer")
    data = bytes(memoryview(buffer)[start:end])
    lowest, highest, without_key = NO_TIMESTAMPS, -1, 0
    at = 0
    size = end - start
    try:
        for index in range(count):
            n, at = _number(data, at, size, 32, Flaw.CUT_SHORT)
            if n & 1:
                raise _Flawed(Flaw.RECORD_LENGTH, at)
            stop = at + (n >> 1)
            if stop > size:
                raise _Flawed(Flaw.CUT_SHORT, at)
            if at >= stop:
                raise _Flawed(Flaw.RECORD_END, at)
            at += 1  # the attributes of a record: none is defined

            n, at = _number(data, at, stop, 64)
            timestamp = base_timestamp + ((n >> 1) ^ -(n & 1))
            if not _MIN_I64 <= timestamp <= _MAX_I64:
                raise _Flawed(Flaw.TIMESTAMP, at)
            highest = max(highest, timestamp)
            if timestamp < lowest and timestamp != -1:
                lowest = timestamp

            n, at = _number(data, at, stop, 32)
            if n != index << 1:
                raise _Flawed(Flaw.OFFSET_DELTA, at)

            n, at = _skip(data, at, stop, Flaw.KEY_LENGTH)
            if n == 1:
                without_key += 1
            _, at = _skip(data, at, stop, Flaw.VALUE_LENGTH)

            n, at = _number(data, at, stop, 32)
            if n & 1 or n >> 1 > (stop - at) // 2:
                raise _Flawed(Flaw.HEADER_COUNT, at)
            for _ in range(n >> 1):
                n, after = _skip(data, at, stop, Flaw.HEADER_KEY_LENGTH)
                if n == 1:
                    raise _Flawed(Flaw.HEADER_KEY_LENGTH, after)
                _, at = _skip(data, after, stop, Flaw.HEADER_VALUE_LENGTH)
            if at != stop:
                raise _Flawed(Flaw.RECORD_END, at)
    except _Flawed as flawed:
        return flawed.flaw, flawed.at, lowest, highest, without_key
    flaw = Flaw.NONE if at == size else Flaw.TRAILING_BYTES
    return flaw, at, lowest, highest, without_key


def _number(
    data: bytes, start: int, stop: int, bits: int, ends_early: Flaw = Flaw.RECORD_END
) -> tuple[int, int]:
    """Return a variable-length number and its end."""
    if start < stop and data[start] < 0x80:
        return data[start], start + 1
    value = shift = 0
    at = start
    while True:
        if shift >= bits:
            raise _Flawed(Flaw.BAD_NUMBER, start)
        if at >= stop:
            raise _Flawed(ends_early, start)
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if value >> bits:
            raise _Flawed(Flaw.BAD_NUMBER, start)
        if byte < 0x80:
            return value, at
        shift += 7


def _skip(data: bytes, at: int, stop: int, flaw: Flaw) -> tuple[int, int]:
    """Return the zigzag length of a field, which is 1 if the field is null, and the field's end."""
    n, at = _number(data, at, stop, 32)
    if n & 1:
        if n != 1:
            raise _Flawed(flaw, at)
        return n, at
    if stop - at < n >> 1:
        raise _Flawed(Flaw.RECORD_END, at)
    return n, at + (n >> 1)


walk: Walk = walk_plain
IS_COMPILED = False
try:
    from hightide.wire._record_walk import walk as _compiled

    walk = _compiled
    IS_COMPILED = True
except ImportError:
    pass
