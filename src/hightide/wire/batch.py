"""Record batches, format 2: what producers send, logs store and consumers receive.

A batch is a header of 61 bytes and its records, which may be compressed together:

    base offset 8 | batch length 4 | leader epoch 4 | magic 1 | CRC-32C 4 | attributes 2
    last offset delta 4 | base timestamp 8 | max timestamp 8
    producer id 8 | producer epoch 2 | base sequence 4 | record count 4 | records

Batch length and CRC cover the bytes after them. Base offset and leader epoch come before the part
that the CRC covers, so a leader stamps both without computing the CRC again.

There are three levels of reading: `batches` walks headers, `check` verifies the CRC of a batch, and
`records` decodes its records. All three are total: any bytes give a result or raise Corrupt.
`records` does not verify the CRC, because most callers have already called `check`.
"""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from struct import Struct
from typing import NamedTuple, TypeAlias

from hightide.wire.compression import MAX_INFLATED_BYTES, Buffer, Codec, compress, decompress
from hightide.wire.crc import crc32c
from hightide.wire.errors import Corrupt
from hightide.wire.varint import decode_signed, decode_unsigned, encode_signed

HEADER = Struct(">qiibIhiqqqhii")
HEADER_BYTES = HEADER.size
LOG_OVERHEAD = 12
"""Base offset and length: the bytes that tell how long a batch is."""
MAGIC = 2

CRC_AT = 17
ATTRIBUTES_AT = 21
"""The position of the attributes, where the part that the CRC covers begins."""

CODEC_MASK = 0x07
LOG_APPEND_TIME_FLAG = 0x08
TRANSACTIONAL_FLAG = 0x10
CONTROL_FLAG = 0x20
DELETE_HORIZON_FLAG = 0x40

NO_TIMESTAMP = -1

_CODECS = tuple(Codec)
_FRONT = Struct(">qiibI")
_CHECKED_PART = Struct(">hiqqqhii")
_MIN_BATCH_LENGTH = HEADER_BYTES - LOG_OVERHEAD
_MIN_HEADER_ENTRY_BYTES = 2
_MAX_I32 = 2**31 - 1
_MIN_I64 = -(2**63)
_MAX_I64 = 2**63 - 1

Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]


class BatchHeader(NamedTuple):
    """The fields of a batch header."""

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """The size of the batch in bytes, header included."""
        return LOG_OVERHEAD + self.batch_length

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def codec(self) -> Codec:
        number = self.attributes & CODEC_MASK
        if number >= len(_CODECS):
            raise Corrupt(f"the batch has the unknown codec {number}")
        return _CODECS[number]

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL_FLAG != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL_FLAG != 0

    @property
    def is_log_append_time(self) -> bool:
        return self.attributes & LOG_APPEND_TIME_FLAG != 0

    @property
    def delete_horizon_ms(self) -> int | None:
        """When compaction may drop the tombstones; stored in place of the base timestamp."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON_FLAG else None


class Record(NamedTuple):
    """One record with its absolute offset and timestamp.

    Header keys are text by convention only. Bytes that are not UTF-8 survive decoding and encoding
    as lone surrogates, because compaction must not change the records that it keeps.
    """

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


def read_header(buf: Buffer, at: int = 0) -> BatchHeader:
    """Return the header at `at` without checks; raise Corrupt if there are too few bytes."""
    if len(buf) - at < HEADER_BYTES or at < 0:
        raise Corrupt(f"{max(0, len(buf) - at)} bytes cannot hold a batch header of {HEADER_BYTES}")
    return BatchHeader._make(HEADER.unpack_from(buf, at))


def check(buf: Buffer, at: int, end: int, *, stored: bool = False) -> BatchHeader:
    """Return the header of the batch at `at`; raise Corrupt unless the batch is intact.

    A batch from a producer has one record for each offset. With `stored`, gaps that compaction
    leaves are allowed too, down to a batch without records.
    """
    if end - at < HEADER_BYTES or end > len(buf):
        raise Corrupt(f"{end - at} bytes cannot hold a batch header of {HEADER_BYTES} bytes")
    header = BatchHeader._make(HEADER.unpack_from(buf, at))
    size = LOG_OVERHEAD + header.batch_length
    if header.magic != MAGIC:
        raise Corrupt(f"the batch has magic {header.magic} instead of {MAGIC}")
    if not HEADER_BYTES <= size <= end - at:
        raise Corrupt(f"the batch has {size} bytes by its header, but only {end - at} are left")
    crc = crc32c(memoryview(buf)[at + ATTRIBUTES_AT : at + size])
    if crc != header.crc:
        raise Corrupt(
            f"the CRC of the batch is {crc:#010x}, but its header says {header.crc:#010x}"
        )
    if header.attributes & CODEC_MASK >= len(_CODECS):
        raise Corrupt(f"the batch has the unknown codec {header.attributes & CODEC_MASK}")
    offsets = header.last_offset_delta + 1
    if header.record_count != offsets or offsets < 1:
        count = header.record_count
        if offsets < 1 or not stored or not 0 <= count <= offsets:
            raise Corrupt(f"the batch header says {count} records for {offsets} offsets")
    return header


def batches(buf: Buffer) -> Iterator[tuple[int, BatchHeader]]:
    """Yield position and header of each complete batch, without checking CRCs. An incomplete last
    batch ends the walk."""
    at = 0
    end = len(buf)
    while end - at >= HEADER_BYTES:
        header = BatchHeader._make(HEADER.unpack_from(buf, at))
        if header.magic != MAGIC:
            raise Corrupt(f"the batch at byte {at} has magic {header.magic} instead of {MAGIC}")
        if header.batch_length < _MIN_BATCH_LENGTH:
            raise Corrupt(f"the batch at byte {at} has the impossible length {header.batch_length}")
        after = at + LOG_OVERHEAD + header.batch_length
        if after > end:
            return
        yield at, header
        at = after


def payload(buf: Buffer, at: int = 0, limit: int = MAX_INFLATED_BYTES) -> tuple[BatchHeader, bytes]:
    """Return the header and the decompressed records of the batch at `at`."""
    header = read_header(buf, at)
    if header.magic != MAGIC:
        raise Corrupt(f"the batch has magic {header.magic} instead of {MAGIC}")
    if not HEADER_BYTES <= header.size <= len(buf) - at:
        left = len(buf) - at
        raise Corrupt(f"the batch has {header.size} bytes by its header, but only {left} are left")
    packed = memoryview(buf)[at + HEADER_BYTES : at + header.size]
    codec = header.codec
    if codec is Codec.NONE or (not packed and header.record_count == 0):
        return header, bytes(packed)
    return header, decompress(codec, packed, limit)


def records(buf: Buffer, at: int = 0, limit: int = MAX_INFLATED_BYTES) -> Iterator[Record]:
    """Yield the records of the batch at `at`. Corrupt may be raised after some records."""
    header, data = payload(buf, at, limit)
    if header.record_count < 0:
        raise Corrupt(f"the batch header says {header.record_count} records")
    if header.last_offset > _MAX_I64:
        raise Corrupt(f"the last offset of the batch at {header.base_offset} exceeds 64 bits")
    append_time = header.max_timestamp if header.is_log_append_time else None
    return _decode_records(
        data,
        header.record_count,
        header.base_offset,
        header.last_offset_delta,
        header.base_timestamp,
        append_time,
    )


# One long function: a call for each number of a record would halve the speed. Numbers of one and
# two bytes are decoded inline. Two facts replace most bounds checks: an index past the end raises
# IndexError, and a record must end exactly where its length says.
def _decode_records(
    data: bytes,
    count: int,
    base_offset: int,
    last_offset_delta: int,
    base_timestamp: int,
    append_time: int | None,
) -> Iterator[Record]:
    new = tuple.__new__
    previous = -1
    at = 0
    try:
        for _ in range(count):
            n = data[at]
            at += 1
            if n > 0x7F:
                m = data[at]
                if m > 0x7F:
                    n, at = decode_unsigned(data, at - 1, 32)
                else:
                    n = n & 0x7F | m << 7
                    at += 1
            if n & 1:
                raise Corrupt(f"a record has the length {~(n >> 1)}")
            end = at + (n >> 1)

            # Skip the attributes of the record: none is defined.
            n = data[at + 1]
            at += 2
            if n > 0x7F:
                n, at = decode_unsigned(data, at - 1, 64)
            timestamp = base_timestamp + (~(n >> 1) if n & 1 else n >> 1)
            if append_time is not None:
                timestamp = append_time
            elif not _MIN_I64 <= timestamp <= _MAX_I64:
                raise Corrupt(f"the timestamp {timestamp} of a record exceeds 64 bits")

            n = data[at]
            at += 1
            if n > 0x7F:
                m = data[at]
                if m > 0x7F:
                    n, at = decode_unsigned(data, at - 1, 32)
                else:
                    n = n & 0x7F | m << 7
                    at += 1
            delta = n >> 1
            if n & 1 or not previous < delta <= last_offset_delta:
                delta = ~delta if n & 1 else delta
                raise Corrupt(
                    f"offset delta {delta} follows {previous}; the last one is {last_offset_delta}"
                )
            previous = delta

            n = data[at]
            at += 1
            if n > 0x7F:
                n, at = decode_unsigned(data, at - 1, 32)
            if not n & 1:
                start = at
                at += n >> 1
                key = data[start:at]
            elif n == 1:
                key = None
            else:
                raise Corrupt(f"a key has the length {~(n >> 1)}")

            n = data[at]
            at += 1
            if n > 0x7F:
                m = data[at]
                if m > 0x7F:
                    n, at = decode_unsigned(data, at - 1, 32)
                else:
                    n = n & 0x7F | m << 7
                    at += 1
            if not n & 1:
                start = at
                at += n >> 1
                value = data[start:at]
            elif n == 1:
                value = None
            else:
                raise Corrupt(f"a value has the length {~(n >> 1)}")

            if data[at]:
                headers, at = _decode_headers(data, at, end)
            else:
                headers = ()
                at += 1
            if at != end:
                raise Corrupt(f"a record ends at byte {at} where its length says {end}")
            yield new(Record, (base_offset + delta, timestamp, key, value, headers))
    except IndexError:
        raise Corrupt("the records end too early") from None
    if at != len(data):
        raise Corrupt(f"{len(data) - at} bytes follow the last record")


def _decode_headers(data: bytes, at: int, end: int) -> tuple[Headers, int]:
    count, at = decode_signed(data, at, 32)
    if not 0 <= count <= (end - at) // _MIN_HEADER_ENTRY_BYTES:
        raise Corrupt(f"a record has {count} headers by its count, in {end - at} bytes")
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        n = data[at]
        at += 1
        if n > 0x7F:
            n, at = decode_unsigned(data, at - 1, 32)
        if n & 1:
            raise Corrupt(f"a header key has the length {~(n >> 1)}")
        start = at
        at += n >> 1
        key = data[start:at].decode("utf-8", "surrogateescape")

        n = data[at]
        at += 1
        if n > 0x7F:
            n, at = decode_unsigned(data, at - 1, 32)
        if not n & 1:
            start = at
            at += n >> 1
            value = data[start:at]
        elif n == 1:
            value = None
        else:
            raise Corrupt(f"a header value has the length {~(n >> 1)}")
        if at > end:
            raise Corrupt(f"a header ends at byte {at}, after the end of its record at {end}")
        headers.append((key, value))
    return tuple(headers), at


_signed = lru_cache(maxsize=8192)(encode_signed)
"""Lengths and deltas repeat from record to record; the cache halves the cost of `build`."""


def build(
    records: Iterable[tuple[int, int, bytes | None, bytes | None, Headers]],
    *,
    base_offset: int = 0,
    last_offset: int | None = None,
    codec: Codec = Codec.NONE,
    level: int | None = None,
    leader_epoch: int = -1,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    control: bool = False,
    log_append_time: bool = False,
    delete_horizon_ms: int | None = None,
    max_timestamp: int | None = None,
) -> bytearray:
    """Build a batch from records whose offsets are absolute and ascending; gaps are allowed.

    `last_offset` keeps the offsets of records that compaction removed; a batch without records
    needs it. `max_timestamp` defaults to the largest timestamp of the records; LogAppendTime needs
    it. Raise ValueError for records that do not fit into one batch, which is a programming error.
    """
    parts, count, last_delta, first, largest = _encode(records, base_offset, delete_horizon_ms)
    if last_offset is not None:
        if not last_delta <= last_offset - base_offset <= _MAX_I32:
            raise ValueError(f"the last offset {last_offset} does not fit the records")
        last_delta = last_offset - base_offset
    elif count == 0:
        raise ValueError("a batch without records needs last_offset")
    attributes = (
        codec
        | log_append_time * LOG_APPEND_TIME_FLAG
        | transactional * TRANSACTIONAL_FLAG
        | control * CONTROL_FLAG
        | (delete_horizon_ms is not None) * DELETE_HORIZON_FLAG
    )
    if codec is not Codec.NONE and count:
        parts = [compress(codec, b"".join(parts), level)]
    fields = _CHECKED_PART.pack(
        attributes,
        last_delta,
        first,
        largest if max_timestamp is None else max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    )
    # The only copy of the records.
    batch = bytearray().join((bytes(ATTRIBUTES_AT), fields, *parts))
    length = len(batch) - LOG_OVERHEAD
    crc = crc32c(memoryview(batch)[ATTRIBUTES_AT:])
    _FRONT.pack_into(batch, 0, base_offset, length, leader_epoch, MAGIC, crc)
    return batch


def _encode(
    records: Iterable[tuple[int, int, bytes | None, bytes | None, Headers]],
    base_offset: int,
    base_timestamp: int | None,
) -> tuple[list[bytes], int, int, int, int]:
    """Return encoded parts, count, last delta, base timestamp and largest timestamp."""
    parts: list[bytes] = []
    count = 0
    previous = -1
    largest = NO_TIMESTAMP
    signed = _signed
    for offset, timestamp, key, value, headers in records:
        if base_timestamp is None:
            base_timestamp = timestamp
        delta = offset - base_offset
        if not previous < delta <= _MAX_I32:
            raise ValueError(f"offset {offset} does not fit into a batch from {base_offset}")
        previous = delta
        if timestamp > largest:  # noqa: PLR1730 - a call to max() for each record is expensive.
            largest = timestamp
        count += 1
        front = b"\0" + signed(timestamp - base_timestamp) + signed(delta)
        front += b"\1" if key is None else signed(len(key)) + key
        if value is None:
            value = b""
            front += b"\1"
        else:
            front += signed(len(value))
        tail = _encode_headers(headers) if headers else b"\0"
        parts += (signed(len(front) + len(value) + len(tail)), front, value, tail)
    first = NO_TIMESTAMP if base_timestamp is None else base_timestamp
    return parts, count, previous, first, largest


def _encode_headers(headers: Headers) -> bytes:
    out = bytearray(_signed(len(headers)))
    for key, value in headers:
        name = key.encode("utf-8", "surrogateescape")
        out += _signed(len(name))
        out += name
        if value is None:
            out += b"\1"
        else:
            out += _signed(len(value))
            out += value
    return bytes(out)
