"""Round trips of messages, and named errors for invalid bytes.

These tests use small messages, declared here, so that each test shows the invalid bytes. Other
tests compare the real messages with other implementations.
"""

import struct
import tracemalloc
import uuid
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from hightide.wire.codec import OBJECT_BUDGET, decode, encode
from hightide.wire.errors import WireError
from hightide.wire.messages.fetch import FetchRequest, FetchResponse, ReplicaState
from hightide.wire.messages.groups import HeartbeatRequest, LeaveGroupRequest, MemberIdentity
from hightide.wire.messages.metadata import MetadataRequest, MetadataResponse
from hightide.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from hightide.wire.messages.sasl import SaslAuthenticateRequest
from hightide.wire.types import (
    Records,
    f64,
    field,
    i8,
    i16,
    i32,
    i64,
    message,
    part,
    u16,
    u32,
)
from tests.unit.wire.message_values import drawn, every_case, full

OLD, FLEXIBLE = 0, 1


@message(versions=(0, 1), flexible=1)
class Text:
    text: str


@message(versions=(0, 1), flexible=1)
class NullableText:
    text: str | None


@message(versions=(0, 1), flexible=1)
class Blob:
    blob: bytes


@message(versions=(0, 1), flexible=1)
class Numbers:
    numbers: list[i32]


@part
class Pair:
    left: i32
    right: i64


@message(versions=(0, 1), flexible=1)
class Pairs:
    pairs: list[Pair] | None


@part
class Inner:
    value: i32 = -1


@message(versions=(0, 1), flexible=1)
class Nullable:
    inner: Inner | None


@message(versions=(0, 2), flexible=1)
class Tagged:
    plain: i8 = 0
    number: i32 = field(since=1, tag=0, default=-1)
    text: str | None = field(since=1, tag=3, default=None)
    inner: Inner | None = field(since=2, tag=4, default=None)


@message(versions=(0, 1), flexible=1)
class EveryScalar:
    a: i8
    b: i16
    c: i32
    d: i64
    e: u16
    f: u32
    g: f64
    h: bool
    i: uuid.UUID
    j: list[uuid.UUID]
    k: list[bool]
    l: list[str]  # noqa: E741


def refused(cls: type, data: bytes, version: int, why: str) -> None:
    with pytest.raises(WireError, match=why):
        decode(cls, data, version)


# -- round trips ---------------------------------------------------------------------------


@pytest.mark.parametrize(("cls", "version"), every_case())
def test_a_message_survives_the_wire(cls: type, version: int) -> None:
    @settings(max_examples=5, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(drawn(cls, version))
    def survive(message: Any) -> None:
        data = encode(message, version)
        assert decode(cls, data, version) == message
        assert decode(cls, bytearray(b"<" + data + b">")[1:-1], version) == message
        assert decode(cls, memoryview(b"<" + data + b">")[1:-1], version) == message

    survive()


@pytest.mark.parametrize("version", [OLD, FLEXIBLE])
@pytest.mark.parametrize("sign", [-1, 1])
def test_numbers_reach_the_ends_of_their_ranges(version: int, sign: int) -> None:
    low = sign < 0
    message = EveryScalar(
        a=-128 if low else 127,
        b=-(2**15) if low else 2**15 - 1,
        c=-(2**31) if low else 2**31 - 1,
        d=-(2**63) if low else 2**63 - 1,
        e=0 if low else 2**16 - 1,
        f=0 if low else 2**32 - 1,
        g=sign * 1.5,
        h=not low,
        i=uuid.UUID(int=0 if low else 2**128 - 1),
        j=[uuid.UUID(int=1), uuid.UUID(int=2)],
        k=[True, False],
        l=["a", ""],
    )
    assert decode(EveryScalar, encode(message, version), version) == message


def test_records_are_views_of_the_frame_and_other_bytes_are_copies() -> None:
    frame = bytearray(
        encode(
            ProduceRequest(
                acks=-1,
                timeout_ms=1,
                topic_data=[
                    TopicProduceData(
                        name="t", partition_data=[PartitionProduceData(index=0, records=b"batch")]
                    )
                ],
            ),
            9,
        )
    )
    records = decode(ProduceRequest, frame, 9).topic_data[0].partition_data[0].records
    assert isinstance(records, memoryview)
    frame[frame.index(b"batch")] = ord("B")
    assert bytes(records) == b"Batch"
    assert isinstance(decode(Blob, b"\0\0\0\1x", OLD).blob, bytes)


@pytest.mark.parametrize("records", [b"abc", bytearray(b"abc"), memoryview(b"xabc")[1:]])
def test_records_encode_from_any_buffer(records: Records) -> None:
    data = PartitionProduceData(index=0, records=records)
    request = ProduceRequest(
        acks=1, timeout_ms=1, topic_data=[TopicProduceData(name="t", partition_data=[data])]
    )
    assert b"abc" in encode(request, 9)


# -- defaults, versions, tags --------------------------------------------------------------


def test_a_field_that_the_version_lacks_decodes_to_its_default() -> None:
    old = decode(HeartbeatRequest, encode(full(HeartbeatRequest, 0), 0), 0)
    assert old.group_instance_id is None


def test_lists_that_the_version_lacks_are_not_shared() -> None:
    data = encode(full(FetchRequest, 4), 4)
    one, other = decode(FetchRequest, data, 4), decode(FetchRequest, data, 4)
    assert one.forgotten_topics_data == []
    assert one.forgotten_topics_data is not other.forgotten_topics_data


def test_a_value_that_the_version_lacks_is_refused_unless_it_is_ignorable() -> None:
    leave = LeaveGroupRequest(group_id="g", member_id="m", members=[MemberIdentity(member_id="m")])
    with pytest.raises(WireError, match="members has a value that this version cannot carry"):
        encode(leave, 2)
    with pytest.raises(WireError, match="member_id has a value that this version cannot carry"):
        encode(leave, 3)
    ignored = MetadataResponse(brokers=[], topics=[], throttle_time_ms=5, controller_id=7)
    assert decode(MetadataResponse, encode(ignored, 0), 0).throttle_time_ms == 0


def test_a_tagged_field_that_the_version_lacks_is_refused_too() -> None:
    with pytest.raises(WireError, match="inner has a value"):
        encode(Tagged(inner=Inner(value=5)), 1)
    assert encode(Tagged(inner=Inner()), 1) == b"\0\0"


def test_null_is_refused_in_versions_before_it_was_allowed() -> None:
    assert decode(MetadataRequest, encode(MetadataRequest(topics=None), 1), 1).topics is None
    with pytest.raises(WireError, match=r"topics is null"):
        encode(MetadataRequest(topics=None), 0)
    refused(MetadataRequest, struct.pack(">i", -1), 0, "topics is null")


def test_tagged_fields_are_left_out_when_they_have_their_defaults() -> None:
    assert encode(Tagged(plain=7), 2) == b"\x07\0"
    assert encode(Tagged(plain=7, number=-1, text=None, inner=Inner()), 2) == b"\x07\0"
    assert encode(Tagged(number=2, text="", inner=Inner(value=9)), 2) == (
        b"\0"  # plain
        b"\x03"  # three tags
        b"\x00\x04\x00\x00\x00\x02"  # number
        b"\x03\x01\x01"  # text
        b"\x04\x05\x00\x00\x00\x09\x00"  # inner, with its own empty tags
    )


def test_tagged_structs_of_real_messages_come_back() -> None:
    request = full(FetchRequest, 17)
    request.replica_state = ReplicaState(replica_id=3, replica_epoch=4)
    assert decode(FetchRequest, encode(request, 17), 17).replica_state == request.replica_state
    response = decode(FetchResponse, encode(full(FetchResponse, 12), 12), 12)
    assert response.responses[0].partitions[0].diverging_epoch is not None


def test_unknown_tags_are_skipped_and_not_kept() -> None:
    known = b"\x00\x04\x00\x00\x00\x02"
    message = decode(Tagged, b"\x07\x03" + known + b"\x01\x02zz" + b"\x63\x00", 2)
    assert message == Tagged(plain=7, number=2)
    assert encode(message, 2) == b"\x07\x01" + known


def test_a_nullable_struct_has_a_byte_in_front() -> None:
    assert encode(Nullable(inner=None), OLD) == b"\xff"
    assert encode(Nullable(inner=Inner(value=1)), OLD) == b"\x01\0\0\0\x01"
    assert decode(Nullable, b"\xff\0", FLEXIBLE).inner is None
    refused(Nullable, b"\x02\0\0\0\x01", OLD, "impossible length 2")


def test_versions_that_are_not_declared_are_refused() -> None:
    with pytest.raises(WireError, match="has versions 0 to 1, not 2"):
        encode(Text(text=""), 2)
    refused(Text, b"\0\0", -1, "has versions 0 to 1, not -1")


# -- limits --------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [b"", b"\0", b"\0\x05abcd", b"\x7f\xff" + b"x" * 99])
def test_a_string_must_lie_inside_the_message(data: bytes) -> None:
    refused(Text, data, OLD, "too early|are left")


@pytest.mark.parametrize("data", [b"", b"\x05abc", b"\xff\x01", b"\xff\xff\xff\xff\x0fx"])
def test_a_compact_string_must_lie_inside_the_message(data: bytes) -> None:
    refused(Text, data, FLEXIBLE, "too early|are left")


def test_negative_lengths_are_refused_unless_they_mean_null() -> None:
    refused(Text, b"\xff\xff", OLD, "text is null")
    refused(Text, b"\xff\xfe", OLD, "impossible length -2")
    refused(Text, b"\0\0", FLEXIBLE, "text is null")
    assert decode(NullableText, b"\xff\xff", OLD).text is None
    assert decode(NullableText, b"\0\0", FLEXIBLE).text is None
    refused(NullableText, b"\x80\0", OLD, "impossible length -32768")
    refused(Blob, b"\xff\xff\xff\xff", OLD, "blob is null")
    refused(Numbers, struct.pack(">i", -1), OLD, "numbers is null")
    refused(Pairs, struct.pack(">i", -2), OLD, "impossible length -2")


def test_text_must_be_utf8() -> None:
    refused(Text, b"\0\x02\xc3\x28", OLD, "not UTF-8")
    refused(Text, b"\0\x03\xed\xa0\x80", OLD, "not UTF-8")
    refused(Text, b"\x02\xff\0", FLEXIBLE, "not UTF-8")


def test_strings_are_at_most_32767_bytes_long() -> None:
    longest = "x" * 32767
    for version in (OLD, FLEXIBLE):
        assert decode(Text, encode(Text(text=longest), version), version).text == longest
        with pytest.raises(WireError, match="cannot be encoded"):
            encode(Text(text=longest + "x"), version)
    refused(Text, b"\x81\x80\x02" + b"x" * 32768 + b"\0", FLEXIBLE, "has 32768 bytes")


def test_an_array_is_held_against_the_bytes_that_remain_before_it_is_made() -> None:
    # A pair has twelve bytes, so three pairs do not fit into thirty-five.
    refused(
        Pairs, struct.pack(">i", 3) + bytes(35), OLD, "3 elements, which do not fit into 35 bytes"
    )
    refused(Pairs, b"\x04" + bytes(38), FLEXIBLE, "3 elements, which do not fit into 38 bytes")
    assert len(decode(Pairs, struct.pack(">i", 3) + bytes(36), OLD).pairs or []) == 3
    for count in (2**31 - 1, 2**29, 10**6):
        refused(Numbers, struct.pack(">i", count) + bytes(100), OLD, "do not fit into")
    refused(Numbers, b"\xff\xff\xff\xff\x0f" + bytes(100), FLEXIBLE, "do not fit into")


def test_a_message_has_a_budget_of_objects() -> None:
    within, beyond = OBJECT_BUDGET, OBJECT_BUDGET + 1
    assert len(decode(Numbers, struct.pack(">i", within) + bytes(4 * within), OLD).numbers) > 0
    refused(
        Numbers, struct.pack(">i", beyond) + bytes(4 * beyond), OLD, "exceeds the limit of objects"
    )
    more = decode(Numbers, struct.pack(">i", beyond) + bytes(4 * beyond), OLD, budget=beyond)
    assert len(more.numbers) == beyond


def test_the_budget_counts_over_all_arrays_of_a_message() -> None:
    members = [MemberIdentity(member_id="m") for _ in range(10)]
    data = encode(LeaveGroupRequest(group_id="g", members=members), 5)
    # A member is a struct with three strings.
    assert len(decode(LeaveGroupRequest, data, 5, budget=40).members) == 10
    with pytest.raises(WireError, match="members exceeds the limit of objects"):
        decode(LeaveGroupRequest, data, 5, budget=39)


def test_memory_stays_in_proportion_when_lengths_lie() -> None:
    hostile = [
        (Numbers, struct.pack(">i", 2**31 - 1) + bytes(64), OLD),
        (Pairs, b"\xff\xff\xff\xff\x07" + bytes(64), FLEXIBLE),
        (Blob, struct.pack(">i", 2**31 - 1), OLD),
        (Text, b"\xff\xff\xff\xff\x07", FLEXIBLE),
        (Tagged, b"\0\x01\x63\xff\xff\xff\xff\x07", 2),
    ]
    for cls, data, version in hostile:
        # Generate the codec before the memory is measured.
        refused(cls, data, version, "do not fit|are left")
    tracemalloc.start()
    for cls, data, version in hostile:
        refused(cls, data, version, "do not fit|are left")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000


def test_a_varint_is_at_most_five_bytes_long() -> None:
    refused(Text, b"\x80\x80\x80\x80\x80\x01", FLEXIBLE, "longer than five bytes")
    # A longer form of a small number is valid up to five bytes.
    assert decode(Text, b"\x82\x80\x80\x80\x00x\0", FLEXIBLE).text == "x"


def test_tags_must_ascend_and_not_repeat() -> None:
    refused(Text, b"\x01\x02\x05\x00\x05\x00", FLEXIBLE, "tag 5 comes after tag 5")
    refused(Text, b"\x01\x02\x05\x00\x04\x00", FLEXIBLE, "tag 4 comes after tag 5")
    refused(Tagged, b"\0\x02\x03\x01\x01\x00\x04\0\0\0\x02", 2, "tag 0 comes after tag 3")
    refused(Tagged, b"\0\x02\x03\x01\x01\x03\x01\x01", 2, "tag 3 comes after tag 3")


def test_a_struct_has_at_most_64_tags() -> None:
    def tags(count: int) -> bytes:
        return bytes([count]) + b"".join(bytes([10 + n, 0]) for n in range(count))

    assert decode(Text, b"\x01" + tags(64), FLEXIBLE).text == ""
    refused(Text, b"\x01" + tags(65), FLEXIBLE, "65 tagged fields")
    refused(Tagged, b"\0" + tags(65), 2, "65 tagged fields")
    refused(Text, b"\x01\xff\xff\xff\xff\x0f", FLEXIBLE, "more than 64")


def test_a_tag_must_lie_inside_the_message() -> None:
    refused(Text, b"\x01\x01\x05\x04abc", FLEXIBLE, "tag 5 has 4 bytes, but 3 are left")
    refused(Tagged, b"\0\x01\x05\x04abc", 2, "has 4 bytes, but 3 are left")


def test_a_known_tag_must_fill_exactly_its_size() -> None:
    refused(Tagged, b"\0\x01\x00\x05\0\0\0\x02\0", 2, "differs by 1 bytes from the size")
    refused(Tagged, b"\0\x01\x00\x03\0\0\0\x02", 2, "differs by -1 bytes from the size")


def test_nothing_may_follow_the_message() -> None:
    refused(Text, b"\0\x01x!", OLD, "1 bytes follow the end")
    assert decode(Text, b"\0\x01x!", OLD, exact=False) == decode(Text, b"\0\x01x", OLD)
    refused(HeartbeatRequest, encode(full(HeartbeatRequest, 4), 4) + b"\0", 4, "1 bytes follow")


def test_elements_must_take_bytes() -> None:
    @part
    class Nothing:
        late: i32 = field(since=1, default=0)

    @message(versions=(0, 1))
    class Nothings:
        nothings: list[Nothing]

    with pytest.raises(TypeError, match="elements of zero bytes"):
        decode(Nothings, struct.pack(">i", 100_000), 0)


def test_declarations_are_at_most_eight_deep() -> None:
    inner: Any = Inner
    for _ in range(9):
        inner = part(type("Layer", (), {"__annotations__": {"below": inner}}))
    deep = message(versions=(0, 0))(type("Deep", (), {"__annotations__": {"top": inner}}))
    with pytest.raises(TypeError, match="more than 8 deep"):
        decode(deep, b"", 0)
    with pytest.raises(TypeError, match="more than 8 deep"):
        encode(deep(top=None), 0)


# -- encoding errors -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        Text(text=None),  # type: ignore[arg-type]
        Text(text="\ud800"),
        Numbers(numbers=[2**31]),
        Numbers(numbers=None),  # type: ignore[arg-type]
        Numbers(numbers=["1"]),  # type: ignore[list-item]
        Pairs(pairs=[None]),  # type: ignore[list-item]
        Pairs(pairs=[Pair(left=2**40, right=0)]),
        Blob(blob=None),  # type: ignore[arg-type]
    ],
    ids=repr,
)
@pytest.mark.parametrize("version", [OLD, FLEXIBLE])
def test_values_that_do_not_fit_are_refused_when_encoding(wrong: object, version: int) -> None:
    with pytest.raises(WireError, match="cannot be encoded"):
        encode(wrong, version)


def test_messages_are_equal_and_shown_by_their_fields() -> None:
    assert Pair(left=1, right=2) == Pair(left=1, right=2)
    assert Pair(left=1, right=2) != Pair(left=2, right=2)
    assert Inner() != Pair(left=1, right=2)  # type: ignore[comparison-overlap]
    assert repr(Pair(left=1, right=2)) == "Pair(left=1, right=2)"
    with pytest.raises(AttributeError):
        Inner().other = 1  # type: ignore[attr-defined]


def test_secrets_are_not_shown() -> None:
    request = SaslAuthenticateRequest(auth_bytes=b"\0me\0password")
    assert repr(request) == "SaslAuthenticateRequest(auth_bytes=[hidden])"
    assert decode(SaslAuthenticateRequest, encode(request, 2), 2).auth_bytes == request.auth_bytes
