"""The coordinator's writes as record batches, and back.

Almost all records are offsets, one for each partition of each commit.  So offset records are
encoded and decoded by hand: the generated codec takes several times as long.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from struct import Struct, error

from hightide.core.groups.turn import NO_PRODUCER, Write
from hightide.wire.batch import Headers, build
from hightide.wire.compression import Codec
from hightide.wire.records.consumer_offsets import (
    NO_EXPIRY,
    GroupRecord,
    OffsetCommitKey,
    OffsetCommitValue,
    decode,
    encode,
)

_VALUE_VERSION = 3
_KEY_1, _VALUE_3 = b"\0\1", b"\0\3"
_FRONT = Struct(">hqih")  # version, offset, leader epoch, length of the metadata
_TIME = Struct(">q")
_PLAIN_RECORD_BYTES = 64


def batch_of(writes: Sequence[Write], now_ms: int, codec: Codec) -> bytearray:
    """Build one batch of the records of writes that have the same producer, or none."""
    first = writes[0]
    return build(
        _records(writes, now_ms),
        codec=codec,
        producer_id=first.producer_id,
        producer_epoch=first.producer_epoch,
        transactional=first.producer_id != NO_PRODUCER,
    )


def _records(
    writes: Iterable[Write], now_ms: int
) -> Iterator[tuple[int, int, bytes, bytes | None, Headers]]:
    index = 0
    for write in writes:
        for record in write.records:
            key, value = encoded(record)
            yield index, now_ms, key, value, ()
            index += 1


def encoded(record: GroupRecord) -> tuple[bytes, bytes | None]:
    """Return the bytes of key and value, as `encode` does."""
    key, value = record
    if type(key) is not OffsetCommitKey or type(value) is not OffsetCommitValue:
        return encode(record)
    if value.expire_timestamp != NO_EXPIRY:
        return encode(record)
    metadata = value.metadata.encode()
    front = _FRONT.pack(_VALUE_VERSION, value.offset, value.leader_epoch, len(metadata))
    return (
        _key(key.group, key.topic, key.partition),
        front + metadata + _TIME.pack(value.commit_timestamp),
    )


@lru_cache(maxsize=16384)
def _key(group: str, topic: str, partition: int) -> bytes:
    return encode(
        GroupRecord(OffsetCommitKey(group=group, topic=topic, partition=partition), None)
    )[0]


def decoded(key: bytes | None, value: bytes | None) -> GroupRecord | None:
    """Return the record of these bytes, as `decode` does."""
    if value is not None and key is not None and value[:2] == _VALUE_3 and key[:2] == _KEY_1:
        try:
            _, offset, leader_epoch, length = _FRONT.unpack_from(value)
            metadata_end = _FRONT.size + length
            if length >= 0 and metadata_end + _TIME.size == len(value):
                metadata = value[_FRONT.size : metadata_end].decode()
                (time_ms,) = _TIME.unpack_from(value, metadata_end)
                found = OffsetCommitValue(
                    offset=offset,
                    leader_epoch=leader_epoch,
                    metadata=metadata,
                    commit_timestamp=time_ms,
                )
                return GroupRecord(_decoded_key(key), found)
        except (error, UnicodeDecodeError):
            pass  # `decode` raises the error
    return decode(key, value)


@lru_cache(maxsize=16384)
def _decoded_key(key: bytes) -> OffsetCommitKey:
    record = decode(key, None)
    assert record is not None
    assert isinstance(record.key, OffsetCommitKey)
    return record.key


def approximate_size(write: Write) -> int:
    """Estimate the bytes of a commit's records; long metadata is counted."""
    size = 0
    for _, value in write.records:
        size += _PLAIN_RECORD_BYTES
        if isinstance(value, OffsetCommitValue):
            size += len(value.metadata)
    return size
