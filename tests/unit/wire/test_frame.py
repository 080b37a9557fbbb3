"""Frames: sizes, headers of three versions, and Kafka's two exceptions."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hightide.wire.codec import encode
from hightide.wire.errors import WireError
from hightide.wire.frame import (
    RequestHeader,
    decode_request_header,
    decode_response,
    encode_request,
    encode_response,
)
from hightide.wire.messages import REQUESTS, RESPONSES
from hightide.wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from hightide.wire.messages.groups import HeartbeatRequest, HeartbeatResponse
from hightide.wire.messages.metadata import MetadataRequest
from hightide.wire.types import api_of
from tests.unit.wire.message_values import every_message, full
from tests.unit.wire.oracles import kafka_python_classes, kafka_python_knows, to_kafka_python

HEARTBEAT = HeartbeatRequest(group_id="g", generation_id=7, member_id="m")


def body_of(frame: bytes) -> memoryview:
    (size,) = struct.unpack_from(">i", frame)
    assert size == len(frame) - 4
    return memoryview(frame)[4:]


@pytest.mark.parametrize("version", [0, 3, 4])
@pytest.mark.parametrize("client_id", [None, "", "a client", "x" * 300])
def test_a_request_comes_back_with_its_header(version: int, client_id: str | None) -> None:
    frame = body_of(encode_request(HEARTBEAT, version, 42, client_id))
    header, at = decode_request_header(frame)
    assert header == RequestHeader(12, version, 42, client_id)
    assert frame[at:] == encode(HEARTBEAT, version)


def test_the_client_id_is_never_compact() -> None:
    assert encode_request(HEARTBEAT, 4, 42, "me") == (
        b"\0\0\0\x17"
        b"\0\x0c\0\x04\0\0\0\x2a"
        b"\0\x02me"  # two bytes of length although the version is flexible
        b"\0"  # and yet the header ends with tags
        b"\x02g\0\0\0\x07\x02m\0\0"
    )


@pytest.mark.parametrize("version", [0, 4])
def test_an_answer_comes_back_with_its_correlation_id(version: int) -> None:
    answer = HeartbeatResponse(error_code=27)
    frame = body_of(encode_response(answer, version, -5))
    assert len(frame) == 4 + (version == 4) + len(encode(answer, version))
    assert decode_response(HeartbeatResponse, frame, version) == (-5, answer)


def test_an_api_versions_answer_never_has_tags_in_its_header() -> None:
    answer = ApiVersionsResponse(api_keys=[ApiVersion(api_key=18, min_version=0, max_version=4)])
    frame = body_of(encode_response(answer, 3, 9))
    assert frame == struct.pack(">i", 9) + encode(answer, 3)
    assert decode_response(ApiVersionsResponse, frame, 3) == (9, answer)


def test_the_oldest_header_has_no_client_id() -> None:
    header, at = decode_request_header(memoryview(struct.pack(">hhi", 7, 0, 3) + b"\0\0\0\1"))
    assert (header, at) == (RequestHeader(7, 0, 3, None), 8)


def test_tags_in_a_request_header_are_skipped() -> None:
    fields = struct.pack(">hhih", 12, 4, 1, -1)
    header, at = decode_request_header(memoryview(fields + b"\x01\x05\x03abc" + b"body"))
    assert (header.client_id, at) == (None, len(fields) + 6)
    for wrong in (b"\x01\x05\x09abc", b"\x02\x05\x00\x05\x00", b"\x41" + bytes(200), b""):
        with pytest.raises(WireError):
            decode_request_header(memoryview(fields + wrong))


@pytest.mark.parametrize(("key", "version"), [(999, 0), (-1, 3), (18, 99), (0, 2), (12, -7)])
def test_the_header_of_an_unknown_api_or_version_can_still_be_answered(
    key: int, version: int
) -> None:
    raw = struct.pack(">hhih", key, version, 77, 2) + b"me\xff\xff\xff\xff"
    header, at = decode_request_header(memoryview(raw))
    assert header == RequestHeader(key, version, 77, "me")
    assert at == 12


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"", "too early"),
        (struct.pack(">hhi", 12, 0, 1), "too early"),
        (struct.pack(">hhih", 12, 0, 1, 3) + b"ab", "exceeds the frame"),
        (struct.pack(">hhih", 12, 0, 1, -2), "impossible length -2"),
        (struct.pack(">hhih", 12, 0, 1, 1) + b"\xff", "not UTF-8"),
    ],
)
def test_a_header_that_is_none_is_refused(raw: bytes, why: str) -> None:
    with pytest.raises(WireError, match=why):
        decode_request_header(memoryview(raw))


def test_an_answer_that_is_cut_or_too_long_is_refused() -> None:
    frame = body_of(encode_response(HeartbeatResponse(), 4, 1))
    for wrong in (frame[:3], frame[:4], frame[:-1], bytes(frame) + b"\0"):
        with pytest.raises(WireError):
            decode_response(HeartbeatResponse, wrong, 4)


@given(st.integers(-(2**31), 2**31 - 1), st.none() | st.text(max_size=20), st.integers(0, 13))
def test_any_correlation_id_and_client_id_survive(
    correlation_id: int, client_id: str | None, version: int
) -> None:
    request = MetadataRequest(topics=[])
    frame = body_of(encode_request(request, version, correlation_id, client_id))
    header, at = decode_request_header(frame)
    assert header == RequestHeader(3, version, correlation_id, client_id)
    assert frame[at:] == encode(request, version)


@pytest.mark.parametrize(
    "cls",
    [cls for cls in every_message() if kafka_python_knows(cls, api_of(cls).versions[1])],
    ids=lambda cls: cls.__name__,
)
def test_whole_frames_are_those_of_kafka_python(cls: type) -> None:
    low, high = api_of(cls).versions
    for version in (low, high):
        message = full(cls, version)
        theirs = to_kafka_python(message, kafka_python_classes()[cls.__name__], version)
        theirs.API_VERSION = version
        if cls in REQUESTS.values():
            theirs.with_header(correlation_id=5, client_id="me")
            ours = encode_request(message, version, 5, "me")
        else:
            theirs.with_header(correlation_id=5)
            ours = encode_response(message, version, 5)
        assert ours == bytes(theirs.encode(header=True, framed=True))


def test_keys_are_known_without_importing_what_they_lead_to() -> None:
    assert 12 in REQUESTS
    assert 999 not in RESPONSES
    assert REQUESTS.get(999) is None
    assert set(REQUESTS) == set(RESPONSES)
    assert len(REQUESTS) == len(set(REQUESTS))
