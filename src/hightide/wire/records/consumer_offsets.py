"""The records of `__consumer_offsets`: committed offsets and group state.

    key    ── version 0, 1 ─▶ OffsetCommitKey    value ─▶ OffsetCommitValue
      │    ── version 2 ────▶ GroupMetadataKey         ─▶ GroupMetadataValue
      │    ── versions 3 to 8, 16: groups of the consumer protocol (KIP-848), several records each
      └─ a key without a value is a tombstone

The version at the start of a key is the type of the record. A coordinator skips types that it does
not know, which a newer coordinator may have written.

Values are written in the newest version without tags, as Kafka does: older brokers can read them.
Only a commit with an expire timestamp is written in version 1, the one version that has the field.
"""

from __future__ import annotations

import uuid
from struct import Struct
from typing import Any, NamedTuple

from hightide.wire.codec import decode as decode_message
from hightide.wire.codec import encode_into
from hightide.wire.errors import Corrupt, WireError
from hightide.wire.types import api_of, field, i8, i32, i64, message, part

_VERSION = Struct(">h")

NO_EXPIRY = -1


@message(versions=(0, 1))
class OffsetCommitKey:
    """The group and partition of a committed offset."""

    group: str
    topic: str
    partition: i32


@message(versions=(0, 4), flexible=4)
class OffsetCommitValue:
    """A committed offset."""

    offset: i64
    leader_epoch: i32 = field(since=3, ignorable=True, default=-1)
    metadata: str
    commit_timestamp: i64
    expire_timestamp: i64 = field(since=1, until=1, ignorable=True, default=NO_EXPIRY)


@message(versions=(2, 2))
class GroupMetadataKey:
    """A group of the classic protocol."""

    group: str


@part
class GroupMetadataMember:
    member_id: str
    group_instance_id: str | None = field(since=3, ignorable=True, default=None)
    client_id: str
    client_host: str
    rebalance_timeout: i32 = field(since=1, ignorable=True, default=-1)
    session_timeout: i32
    subscription: bytes
    assignment: bytes


@message(versions=(0, 4), flexible=4)
class GroupMetadataValue:
    """A generation of a group: its members and their assignments."""

    protocol_type: str
    generation: i32
    protocol: str | None
    leader: str | None
    current_state_timestamp: i64 = field(since=2, ignorable=True, default=-1)
    members: list[GroupMetadataMember]


@message(versions=(3, 3))
class ConsumerGroupMetadataKey:
    """A group of the consumer protocol (KIP-848)."""

    group: str


@message(versions=(0, 0), flexible=0)
class ConsumerGroupMetadataValue:
    """The group epoch."""

    epoch: i32


@message(versions=(4, 4))
class ConsumerGroupPartitionMetadataKey:
    """The metadata of the topics that a group subscribes to."""

    group: str


@part
class SubscribedPartition:
    partition: i32
    racks: list[str]


@part
class SubscribedTopic:
    topic_id: uuid.UUID
    topic_name: str
    num_partitions: i32
    partition_metadata: list[SubscribedPartition]


@message(versions=(0, 0), flexible=0)
class ConsumerGroupPartitionMetadataValue:
    """The topics as of the last assignment."""

    topics: list[SubscribedTopic]


@message(versions=(5, 5))
class ConsumerGroupMemberMetadataKey:
    """A member of a group."""

    group: str
    member_id: str


@part
class ClassicProtocol:
    name: str
    metadata: bytes


@part
class ClassicMemberMetadata:
    """The state of a member that uses the classic protocol."""

    # Kafka has a nullable struct here, which begins with 1 if it is not null.
    is_there: i8 = 1
    session_timeout_ms: i32 = 0
    supported_protocols: list[ClassicProtocol] = field(default=[])


@message(versions=(0, 0), flexible=0)
class ConsumerGroupMemberMetadataValue:
    """The subscription and properties of a member."""

    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    subscribed_topic_names: list[str]
    subscribed_topic_regex: str | None
    rebalance_timeout_ms: i32 = -1
    server_assignor: str | None
    # None is encoded too, in a form that the codec does not have: see `_NOT_CLASSIC`.
    classic_member_metadata: ClassicMemberMetadata | None = field(tag=0, default=None)


@message(versions=(6, 6))
class ConsumerGroupTargetAssignmentMetadataKey:
    """The target assignment of a group."""

    group: str


@message(versions=(0, 0), flexible=0)
class ConsumerGroupTargetAssignmentMetadataValue:
    """The group epoch of the target assignment."""

    assignment_epoch: i32


@message(versions=(7, 7))
class ConsumerGroupTargetAssignmentMemberKey:
    """The target assignment of a member."""

    group: str
    member_id: str


@part
class AssignedPartitions:
    topic_id: uuid.UUID
    partitions: list[i32]


@message(versions=(0, 0), flexible=0)
class ConsumerGroupTargetAssignmentMemberValue:
    """The partitions that the member is to own."""

    topic_partitions: list[AssignedPartitions]


@message(versions=(8, 8))
class ConsumerGroupCurrentMemberAssignmentKey:
    """The current assignment of a member."""

    group: str
    member_id: str


@message(versions=(0, 0), flexible=0)
class ConsumerGroupCurrentMemberAssignmentValue:
    """The partitions that the member owns, and its epochs."""

    member_epoch: i32
    previous_member_epoch: i32
    state: i8
    assigned_partitions: list[AssignedPartitions]
    partitions_pending_revocation: list[AssignedPartitions]


@message(versions=(16, 16))
class ConsumerGroupRegularExpressionKey:
    """A regular expression in the subscription of members."""

    group: str
    regular_expression: str


@message(versions=(0, 0), flexible=0)
class ConsumerGroupRegularExpressionValue:
    """The topics that the expression matched, and when."""

    topics: list[str]
    version: i64
    timestamp: i64


class Kind(NamedTuple):
    """The type of a record, and the version in which its value is written."""

    key: type[Any]
    value: type[Any]
    value_version: int


KINDS: dict[int, Kind] = {
    0: Kind(OffsetCommitKey, OffsetCommitValue, 3),
    1: Kind(OffsetCommitKey, OffsetCommitValue, 3),
    2: Kind(GroupMetadataKey, GroupMetadataValue, 3),
    3: Kind(ConsumerGroupMetadataKey, ConsumerGroupMetadataValue, 0),
    4: Kind(ConsumerGroupPartitionMetadataKey, ConsumerGroupPartitionMetadataValue, 0),
    5: Kind(ConsumerGroupMemberMetadataKey, ConsumerGroupMemberMetadataValue, 0),
    6: Kind(
        ConsumerGroupTargetAssignmentMetadataKey, ConsumerGroupTargetAssignmentMetadataValue, 0
    ),
    7: Kind(ConsumerGroupTargetAssignmentMemberKey, ConsumerGroupTargetAssignmentMemberValue, 0),
    8: Kind(ConsumerGroupCurrentMemberAssignmentKey, ConsumerGroupCurrentMemberAssignmentValue, 0),
    16: Kind(ConsumerGroupRegularExpressionKey, ConsumerGroupRegularExpressionValue, 0),
}
_WITH_EXPIRY = 1
# One tag, number 0, with one byte: null. Without it Kafka takes a member for one of the classic
# protocol. A value that is not null ends differently: with the tags of two structs.
_NOT_CLASSIC = b"\x01\0\x01\0"
_NO_TAGS = b"\0"
# The newest version of each type of key is written.
_KEY_VERSIONS: dict[type[Any], int] = {kind.key: version for version, kind in KINDS.items()}


ConsumerGroupKey = (
    ConsumerGroupMetadataKey
    | ConsumerGroupPartitionMetadataKey
    | ConsumerGroupMemberMetadataKey
    | ConsumerGroupTargetAssignmentMetadataKey
    | ConsumerGroupTargetAssignmentMemberKey
    | ConsumerGroupCurrentMemberAssignmentKey
    | ConsumerGroupRegularExpressionKey
)
ConsumerGroupValue = (
    ConsumerGroupMetadataValue
    | ConsumerGroupPartitionMetadataValue
    | ConsumerGroupMemberMetadataValue
    | ConsumerGroupTargetAssignmentMetadataValue
    | ConsumerGroupTargetAssignmentMemberValue
    | ConsumerGroupCurrentMemberAssignmentValue
    | ConsumerGroupRegularExpressionValue
)
Key = OffsetCommitKey | GroupMetadataKey | ConsumerGroupKey
Value = OffsetCommitValue | GroupMetadataValue | ConsumerGroupValue


class GroupRecord(NamedTuple):
    """A record of the topic. Without a value it is a tombstone for its key."""

    key: Key
    value: Value | None


def encode(record: GroupRecord) -> tuple[bytes, bytes | None]:
    """Return the bytes of key and value."""
    version = _KEY_VERSIONS[type(record.key)]
    key = bytearray(_VERSION.pack(version))
    encode_into(key, record.key, version)
    if record.value is None:
        return bytes(key), None
    value_version = KINDS[version].value_version
    if isinstance(record.value, OffsetCommitValue) and record.value.expire_timestamp != NO_EXPIRY:
        value_version = _WITH_EXPIRY
    value = bytearray(_VERSION.pack(value_version))
    encode_into(value, record.value, value_version)
    if (
        isinstance(record.value, ConsumerGroupMemberMetadataValue)
        and record.value.classic_member_metadata is None
    ):
        value[-len(_NO_TAGS) :] = _NOT_CLASSIC
    return bytes(key), bytes(value)


def decode(key: bytes | None, value: bytes | None) -> GroupRecord | None:
    """Decode a record; return None if its type is unknown, and raise Corrupt if it is damaged.

    A value of a newer version is decoded as the newest known version, as Kafka does: new fields
    come at the end or in tags. To skip it would lose a group.
    """
    if key is None or len(key) < _VERSION.size:
        raise Corrupt("a record of __consumer_offsets has no complete key")
    (version,) = _VERSION.unpack_from(key)
    kind = KINDS.get(version)
    if kind is None:
        if version < 0:
            raise Corrupt(f"a record of __consumer_offsets has key version {version}")
        return None
    try:
        decoded = decode_message(kind.key, memoryview(key)[_VERSION.size :], version)
        return GroupRecord(decoded, None if value is None else _decode_value(kind, value))
    except WireError as error:
        raise Corrupt(f"a record of __consumer_offsets cannot be decoded: {error}") from error


def _decode_value(kind: Kind, value: bytes) -> Any:
    if len(value) < _VERSION.size:
        raise Corrupt(f"a {kind.value.__name__} of {len(value)} bytes has no version")
    (version,) = _VERSION.unpack_from(value)
    low, high = api_of(kind.value).versions
    if version < low:
        raise Corrupt(f"a {kind.value.__name__} of version {version}; {low} to {high} are known")
    known = min(version, high)
    if kind.value is ConsumerGroupMemberMetadataValue and value.endswith(_NOT_CLASSIC):
        value = value.removesuffix(_NOT_CLASSIC) + _NO_TAGS
    body = memoryview(value)[_VERSION.size :]
    return decode_message(kind.value, body, known, exact=version == known)
