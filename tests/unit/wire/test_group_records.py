"""Records of `__consumer_offsets`: Kafka's bytes, and back."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hightide.wire import codec
from hightide.wire.errors import Corrupt
from hightide.wire.records.consumer_offsets import (
    KINDS,
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    GroupMetadataKey,
    GroupMetadataMember,
    GroupMetadataValue,
    GroupRecord,
    OffsetCommitKey,
    OffsetCommitValue,
    decode,
    encode,
)
from tests.unit.wire.message_values import bare, drawn, full, versions_of

COMMIT = GroupRecord(
    OffsetCommitKey(group="g", topic="t", partition=3),
    OffsetCommitValue(offset=5, leader_epoch=7, metadata="m", commit_timestamp=9),
)
GROUP = GroupRecord(
    GroupMetadataKey(group="g"),
    GroupMetadataValue(
        protocol_type="consumer",
        generation=2,
        protocol="range",
        leader="m",
        current_state_timestamp=9,
        members=[
            GroupMetadataMember(
                member_id="m",
                group_instance_id=None,
                client_id="c",
                client_host="/h",
                rebalance_timeout=4,
                session_timeout=3,
                subscription=b"s",
                assignment=b"a",
            )
        ],
    ),
)
CASES = [
    pytest.param(cls, version, id=f"{cls.__name__}-{version}")
    for cls in dict.fromkeys(side for kind in KINDS.values() for side in (kind.key, kind.value))
    for version in versions_of(cls)
]


def text(value: str) -> str:
    return f"{len(value):04x}{value.encode().hex()}"


def test_a_commit_is_written_in_versions_1_and_3() -> None:
    key, value = encode(COMMIT)
    assert key.hex() == "0001" + text("g") + text("t") + "00000003"
    assert value is not None
    assert value.hex() == "0003" + f"{5:016x}{7:08x}" + text("m") + f"{9:016x}"
    assert decode(key, value) == COMMIT


def test_a_commit_with_a_time_to_expire_is_written_in_version_1() -> None:
    record = COMMIT._replace(
        value=OffsetCommitValue(offset=5, metadata="m", commit_timestamp=9, expire_timestamp=10)
    )
    key, value = encode(record)
    assert value is not None
    assert value.hex() == "0001" + f"{5:016x}" + text("m") + f"{9:016x}{10:016x}"
    assert decode(key, value) == record


def test_a_group_is_written_in_versions_2_and_3() -> None:
    key, value = encode(GROUP)
    assert key.hex() == "0002" + text("g")
    assert value is not None
    assert value.hex() == (
        "0003" + text("consumer") + f"{2:08x}" + text("range") + text("m") + f"{9:016x}"
        f"{1:08x}" + text("m") + "ffff" + text("c") + text("/h") + f"{4:08x}{3:08x}"
        f"{1:08x}73{1:08x}61"
    )
    assert decode(key, value) == GROUP


def test_what_is_taken_back_has_no_value() -> None:
    record = GroupRecord(COMMIT.key, None)
    key, value = encode(record)
    assert value is None
    assert decode(key, None) == record


@pytest.mark.parametrize(("cls", "version"), CASES)
def test_every_version_comes_back_as_it_was(cls: type, version: int) -> None:
    for message in (full(cls, version), bare(cls, version)):
        assert codec.decode(cls, codec.encode(message, version), version) == message

    @settings(max_examples=5, deadline=None, database=None)
    @given(drawn(cls, version))
    def comes_back(message: Any) -> None:
        assert codec.decode(cls, codec.encode(message, version), version) == message

    comes_back()


def test_a_kind_of_later_times_is_passed_over() -> None:
    assert decode(b"\x7f\x00anything", b"whatever") is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b""),
        (b"", b""),
        (b"\0", None),
        (b"\xff\xff", None),
        (encode(COMMIT)[0][:-1], None),
        (encode(COMMIT)[0], b""),
        (encode(COMMIT)[0], b"\0\x05"),
        (encode(COMMIT)[0], b"\xff\xff" + (encode(COMMIT)[1] or b"")[2:]),
        (encode(COMMIT)[0], b"\0\x03"),
        (encode(GROUP)[0], encode(COMMIT)[1]),
    ],
)
def test_what_is_no_record_is_corrupt(key: bytes | None, value: bytes | None) -> None:
    with pytest.raises(Corrupt):
        decode(key, value)


def test_a_value_of_a_later_version_is_read_as_the_newest_that_is_known() -> None:
    value = OffsetCommitValue(offset=5, leader_epoch=7, metadata="m", commit_timestamp=9)
    newest = codec.encode(value, 4)
    assert decode(encode(COMMIT)[0], b"\0\x06" + newest + b"what is new") == COMMIT
    with pytest.raises(Corrupt):
        decode(encode(COMMIT)[0], b"\0\x04" + newest + b"what is new")


def test_what_is_known_of_a_classic_member_is_a_struct_that_could_be_null() -> None:
    value = ConsumerGroupMemberMetadataValue(
        instance_id=None,
        rack_id=None,
        client_id="c",
        client_host="/h",
        subscribed_topic_names=["t"],
        subscribed_topic_regex=None,
        server_assignor=None,
        classic_member_metadata=ClassicMemberMetadata(
            session_timeout_ms=9,
            supported_protocols=[ClassicProtocol(name="range", metadata=b"m")],
        ),
    )
    _, written = encode(
        GroupRecord(ConsumerGroupMemberMetadataKey(group="g", member_id="m"), value)
    )
    assert written is not None
    # Tag 0, its length, not null, the timeout, one protocol, and no tags of either.
    member = b"\x01" + b"\0\0\0\x09" + b"\x02\x06range\x02m\0" + b"\0"
    assert written.endswith(b"\x01\0" + bytes([len(member)]) + member)


def test_that_a_member_does_not_speak_the_classic_protocol_is_said() -> None:
    """Bytes of Kafka 4.1. Without the tag Kafka takes the member for a classic one."""
    written = (
        b"\0\0\x04two\0\x08rdkafka\x0b/127.0.0.1\x02\x12test-10400273aa97\x01\0\0\xea`\0"
        b"\x01\0\x01\0"
    )
    key = ConsumerGroupMemberMetadataKey(group="g", member_id="m")
    record = decode(encode(GroupRecord(key, None))[0], written)
    assert record is not None
    assert isinstance(record.value, ConsumerGroupMemberMetadataValue)
    assert record.value.classic_member_metadata is None
    assert encode(record)[1] == written
    older = decode(encode(record)[0], written[:-4] + b"\0")
    assert older == record


def test_an_expression_is_written_with_key_16() -> None:
    key = ConsumerGroupRegularExpressionKey(group="g", regular_expression="a.*")
    value = ConsumerGroupRegularExpressionValue(topics=["ab"], version=0, timestamp=9)
    written = encode(GroupRecord(key, value))
    assert written == (
        b"\0\x10\0\x01g\0\x03a.*",
        b"\0\0" + b"\x02\x03ab" + bytes(8) + bytes(7) + b"\x09" + b"\0",
    )
    assert decode(*written) == GroupRecord(key, value)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from([*KINDS]), st.binary(max_size=60), st.none() | st.binary(max_size=80))
def test_any_bytes_are_a_record_or_corrupt(version: int, key: bytes, value: bytes | None) -> None:
    with suppress(Corrupt):
        decode(version.to_bytes(2, "big") + key, value)
