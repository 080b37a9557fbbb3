"""The records of `__transaction_state`: one transactional id each, in Kafka's format.

The key is the transactional id and the value its complete state, so the newest record of a key is
sufficient and the topic can be compacted. A record without a value removes the id.

Both begin with their version. Values are written in version 1: version 0 lacks the previous and the
next producer id. Both versions are decoded. Later fields are tagged, and unknown tags are skipped.
"""

from __future__ import annotations

from struct import Struct

from hightide.wire.codec import decode, encode
from hightide.wire.errors import Corrupt, WireError
from hightide.wire.types import Buffer, field, i8, i16, i32, i64, message, part

KEY_VERSION = 0
VALUE_VERSION = 1

_VERSION = Struct(">h")


@message(versions=(0, 0))
class TransactionLogKey:
    """The transactional id."""

    transactional_id: str


@part
class PartitionsOfTopic:
    topic: str
    partition_ids: list[i32]


@message(versions=(0, 1), flexible=1)
class TransactionLogValue:
    """The state of a transactional id."""

    producer_id: i64
    previous_producer_id: i64 = field(since=1, tag=0, default=-1)
    next_producer_id: i64 = field(since=1, tag=1, default=-1)
    producer_epoch: i16
    transaction_timeout_ms: i32
    transaction_status: i8
    transaction_partitions: list[PartitionsOfTopic] | None
    transaction_last_update_timestamp_ms: i64
    transaction_start_timestamp_ms: i64
    client_transaction_version: i16 = field(since=1, tag=2, default=0)


def encode_key(transactional_id: str) -> bytes:
    key = TransactionLogKey(transactional_id=transactional_id)
    return _VERSION.pack(KEY_VERSION) + encode(key, KEY_VERSION)


def encode_value(value: TransactionLogValue, version: int = VALUE_VERSION) -> bytes:
    return _VERSION.pack(version) + encode(value, version)


def decode_key(data: Buffer) -> str | None:
    """Return the transactional id, or None for a newer key version: a record of an unknown type,
    which is skipped. Raise Corrupt if the key is damaged."""
    version = _version_of(data, "key")
    if version > KEY_VERSION:
        return None
    try:
        return decode(TransactionLogKey, data[_VERSION.size :], version).transactional_id
    except WireError as damage:
        raise Corrupt(f"a key of __transaction_state: {damage}") from damage


def decode_value(data: Buffer) -> TransactionLogValue:
    """Decode a value; raise Corrupt if it is damaged or has an unknown version."""
    try:
        return decode(TransactionLogValue, data[_VERSION.size :], _version_of(data, "value"))
    except WireError as damage:
        raise Corrupt(f"a value of __transaction_state: {damage}") from damage


def _version_of(data: Buffer, what: str) -> int:
    if len(data) < _VERSION.size:
        raise Corrupt(f"a {what} of __transaction_state has only {len(data)} bytes")
    version: int = _VERSION.unpack_from(data)[0]
    if version < 0:
        raise Corrupt(f"a {what} of __transaction_state has version {version}")
    return version
