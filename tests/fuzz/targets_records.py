"""Fuzz targets: record batches, their compression, and the records of internal topics."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterator

from hightide.broker.groups.batches import decoded as decoded_group_record
from hightide.wire import batch
from hightide.wire.batch import HEADER_BYTES, Record, build
from hightide.wire.compression import Codec, compress, inflate
from hightide.wire.control import ControlType, Marker, build_marker, parse_marker
from hightide.wire.crc import crc32c
from hightide.wire.errors import Corrupt, WireError
from hightide.wire.record_walk import Flaw, walk, walk_plain
from hightide.wire.records import consumer_offsets, consumer_protocol, transaction_state
from tests.unit.wire.message_values import bare, full, versions_of

SMALL_LIMIT_BYTES = 4096
_FRONT = struct.Struct(">Hbq")

_RECORDS = [
    Record(0, 1_700_000_000_000, b"key", b"value"),
    Record(1, 1_700_000_000_001, None, None, (("h", b"x"), ("g", None))),
    Record(2, 1_699_999_999_000, b"", b"v" * 200),
]


def with_right_crcs(data: bytes, *, of_control_batches: bool = True) -> bytearray:
    """Return the bytes with the CRC of each batch made right, so that decoders read on."""
    made = bytearray(data)
    at = 0
    while len(made) - at >= HEADER_BYTES:
        (length,) = struct.unpack_from(">i", made, at + 8)
        end = at + batch.LOG_OVERHEAD + length
        if not at + HEADER_BYTES <= end <= len(made):
            end = len(made)
        if of_control_batches or not batch.read_header(made, at).is_control:
            crc = crc32c(memoryview(made)[at + batch.ATTRIBUTES_AT : end])
            struct.pack_into(">I", made, at + batch.CRC_AT, crc)
        at = end
    return made


def fuzz_batch(data: bytes) -> None:
    """Walk the headers, verify the CRC and decode the records of each batch."""
    with contextlib.suppress(Corrupt):
        batch.read_header(data)
    buf = with_right_crcs(data)
    with contextlib.suppress(Corrupt):
        for at, header in batch.batches(buf):
            with contextlib.suppress(Corrupt):
                batch.check(buf, at, at + header.size, stored=True)
                _read_batch(buf, at, header)


def _read_batch(buf: bytearray, at: int, header: batch.BatchHeader) -> None:
    found = list(batch.records(buf, at, SMALL_LIMIT_BYTES))
    assert len(found) == header.record_count
    if header.is_control:
        for record in found:
            parse_marker(record)
    if not found or header.is_log_append_time or header.base_offset < 0:
        return
    if max(record.offset for record in found) > header.last_offset:
        raise AssertionError("a record has an offset after the batch")
    made = build(found, base_offset=header.base_offset, last_offset=header.last_offset)
    assert list(batch.records(made)) == found


def seeds_batch() -> Iterator[bytes]:
    for codec in Codec:
        yield bytes(build(_RECORDS, codec=codec))
    yield bytes(build(_RECORDS[:1])) + bytes(build(_RECORDS))
    yield bytes(build([], last_offset=5))
    for kind in ControlType:
        yield bytes(build_marker(Marker(kind, 3), timestamp=5, producer_id=1, producer_epoch=2))


def fuzz_record_walk(data: bytes) -> None:
    """Both walks agree, and the records of a walk without a flaw can be decoded."""
    if len(data) < _FRONT.size:
        return
    count, start, base = _FRONT.unpack_from(data)
    count %= 1024
    content = data[_FRONT.size :]
    first = min(max(start, 0), len(content))
    walked = walk(content, first, len(content), count, base)
    assert walked == walk_plain(content, first, len(content), count, base)
    if walked[0] != Flaw.NONE:
        return
    packed = content[first:]
    length = HEADER_BYTES - batch.LOG_OVERHEAD + len(packed)
    last_delta = max(count - 1, 0)
    header = batch.HEADER.pack(
        0, length, 0, batch.MAGIC, 0, 0, last_delta, base, base, -1, -1, -1, count
    )
    found = list(batch.records(header + packed))
    assert len(found) == count
    assert sum(record.key is None for record in found) == walked[4]
    assert max([-1, *(record.timestamp for record in found)]) == walked[3]


def seeds_record_walk() -> Iterator[bytes]:
    for count in (1, 2, 3):
        made = build(_RECORDS[:count])
        base = batch.read_header(made).base_timestamp
        yield _FRONT.pack(count, 0, base) + bytes(made[HEADER_BYTES:])
    yield _FRONT.pack(0, 0, 0)
    yield _FRONT.pack(1, 0, 2**63 - 1) + bytes(build(_RECORDS[:1])[HEADER_BYTES:])


def fuzz_inflate(data: bytes) -> None:
    """No codec returns more bytes than its limit."""
    if not data:
        return
    limit = 16 << (data[0] >> 3 & 7)
    with contextlib.suppress(Corrupt):
        assert len(inflate(Codec(data[0] % len(Codec)), data[1:], limit)) <= limit


def seeds_inflate() -> Iterator[bytes]:
    for codec in Codec:
        for size in (0, 5, 1000, 100_000):
            for bits in (0, 7 << 3):
                # The first byte has the codec modulo five, and the limit in three of its bits.
                front = next(
                    byte for byte in range(256) if byte % 5 == codec and byte & 0x38 == bits
                )
                yield bytes([front]) + compress(codec, b"ab" * (size // 2))


def fuzz_markers(data: bytes) -> None:
    """A control record gives a marker, None, or Corrupt."""
    cut = data[0] if data else 0
    key, value = data[1 : 1 + cut], data[1 + cut :]
    for record in (Record(0, 0, key, value), Record(0, 0, key, None), Record(0, 0, None, value)):
        with contextlib.suppress(Corrupt):
            marker = parse_marker(record)
            assert marker is None or marker.type in ControlType


def seeds_markers() -> Iterator[bytes]:
    for kind in ControlType:
        yield b"\x04" + struct.pack(">hhhi", 0, kind, 0, 3)


def fuzz_group_records(data: bytes) -> None:
    """A record of __consumer_offsets: both decoders agree, and what they give can be encoded."""
    if not data:
        return
    key, value = data[1 : 1 + data[0]], data[1 + data[0] :]
    found = _decoded(consumer_offsets.decode, key, value)
    assert _decoded(decoded_group_record, key, value) == found
    with contextlib.suppress(Corrupt):
        consumer_offsets.decode(key, None)
    if found is not None and found.value is not None:
        try:
            encoded = consumer_offsets.encode(found)
        except WireError as error:
            # The version that is written has shorter strings and fewer fields than others.
            assert "cannot be encoded" in str(error)  # noqa: PT017
            return
        assert consumer_offsets.decode(*encoded) is not None


def _decoded(
    decode: Callable[[bytes, bytes], consumer_offsets.GroupRecord | None], key: bytes, value: bytes
) -> consumer_offsets.GroupRecord | None:
    """Return the record; None if it is damaged or unknown."""
    try:
        return decode(key, value)
    except Corrupt:
        return None


def seeds_group_records() -> Iterator[bytes]:
    for version, kind in consumer_offsets.KINDS.items():
        for value_version in versions_of(kind.value):
            for make in (full, bare):
                key = _versioned(make(kind.key, version), version)
                yield (
                    bytes([len(key)])
                    + key
                    + _versioned(make(kind.value, value_version), value_version)
                )


def _versioned(message: object, version: int) -> bytes:
    return consumer_protocol.write(message, version)


def fuzz_transaction_records(data: bytes) -> None:
    """A key or a value of __transaction_state."""
    with contextlib.suppress(Corrupt):
        name = transaction_state.decode_key(data)
        if name is not None:
            assert transaction_state.decode_key(transaction_state.encode_key(name)) == name
    with contextlib.suppress(Corrupt):
        value = transaction_state.decode_value(data)
        assert transaction_state.decode_value(transaction_state.encode_value(value)) == value


def seeds_transaction_records() -> Iterator[bytes]:
    yield transaction_state.encode_key("orders")
    for version in versions_of(transaction_state.TransactionLogValue):
        for make in (full, bare):
            value = make(transaction_state.TransactionLogValue, version)
            yield transaction_state.encode_value(value, version)


def fuzz_consumer_protocol(data: bytes) -> None:
    """Subscriptions and assignments of the classic protocol."""
    for cls in (consumer_protocol.ConsumerSubscription, consumer_protocol.ConsumerAssignment):
        with contextlib.suppress(WireError):
            found = consumer_protocol.read(cls, data)
            version = consumer_protocol.version_of(data)
            assert consumer_protocol.read(cls, consumer_protocol.write(found, version)) == found


def seeds_consumer_protocol() -> Iterator[bytes]:
    for cls in (consumer_protocol.ConsumerSubscription, consumer_protocol.ConsumerAssignment):
        for version in versions_of(cls):
            for make in (full, bare):
                yield consumer_protocol.write(make(cls, version), version)
