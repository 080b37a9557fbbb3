"""A follower's Fetch, hand-tuned: the same bytes and values as the declarations."""

import contextlib
import uuid
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hightide.wire.codec import decode
from hightide.wire.errors import WireError
from hightide.wire.frame import decode_request_header, encode_request, encode_response
from hightide.wire.hot import fetch_codec, replica_fetch_codec
from hightide.wire.hot.fetch_codec import Fetch, RequestedPartition
from hightide.wire.hot.read_cursor import body_at
from hightide.wire.hot.replica_fetch_codec import VERSION
from hightide.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    ReplicaState,
)
from tests.unit.wire.message_values import drawn

i32 = st.integers(-(2**31), 2**31 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)
ids = st.uuids().map(lambda value: value.bytes)
requests = st.builds(
    Fetch,
    i32.filter(lambda value: value != -1),
    i32,
    i32,
    i32,
    st.integers(0, 1),
    i32,
    i32,
    st.lists(
        st.tuples(
            ids, st.lists(st.builds(RequestedPartition, i32, i32, i64, i32, i64, i32), max_size=4)
        ),
        max_size=3,
    ),
    st.lists(st.tuples(ids, st.lists(i32, max_size=3)), max_size=2),
    st.sampled_from([b"", b"rack", b"r" * 200]),
    i64,
)


def declared(request: Fetch) -> FetchRequest:
    return FetchRequest(
        replica_state=ReplicaState(
            replica_id=request.replica_id, replica_epoch=request.replica_epoch
        ),
        max_wait_ms=request.max_wait_ms,
        min_bytes=request.min_bytes,
        max_bytes=request.max_bytes,
        isolation_level=request.isolation_level,
        session_id=request.session_id,
        session_epoch=request.session_epoch,
        topics=[
            FetchTopic(
                topic_id=uuid.UUID(bytes=topic),
                partitions=[
                    FetchPartition(
                        partition=partition.partition,
                        current_leader_epoch=partition.current_leader_epoch,
                        fetch_offset=partition.fetch_offset,
                        last_fetched_epoch=partition.last_fetched_epoch,
                        log_start_offset=partition.log_start_offset,
                        partition_max_bytes=partition.max_bytes,
                    )
                    for partition in wanted
                ],
            )
            for topic, wanted in request.topics
        ],
        forgotten_topics_data=[
            ForgottenTopic(topic_id=uuid.UUID(bytes=topic), partitions=indexes)
            for topic, indexes in request.forgotten
        ],
        rack_id=(request.rack_id or b"").decode(),
    )


@settings(max_examples=200, deadline=None)
@given(requests, i32, st.sampled_from(["", "a broker"]))
def test_a_request_has_the_bytes_that_its_declaration_gives(request, correlation_id, client_id):
    made = replica_fetch_codec.encode(request, correlation_id, client_id.encode())
    assert made == encode_request(declared(request), VERSION, correlation_id, client_id)


@settings(max_examples=100, deadline=None)
@given(requests)
def test_a_leader_reads_what_a_follower_wrote(request):
    frame = bytearray(replica_fetch_codec.encode(request, 5, b"me")[4:])
    header, _ = decode_request_header(memoryview(frame))
    assert (header.api_key, header.api_version) == (replica_fetch_codec.FETCH, VERSION)
    at = body_at(frame, 0, len(frame), flexible=True)
    assert fetch_codec.decode(frame, memoryview(frame), at, len(frame), VERSION) == request


usual = st.builds(
    lambda request, topic, wanted: request._replace(
        topics=[(topic, wanted)], forgotten=[], rack_id=b""
    ),
    requests,
    ids,
    st.lists(st.builds(RequestedPartition, i32, i32, i64, i32, i64, i32), min_size=1, max_size=126),
)


@settings(max_examples=200, deadline=None)
@given(usual)
def test_the_short_cut_takes_what_followers_usually_say(request):
    frame = bytearray(replica_fetch_codec.encode(request, 5, b"me")[4:])
    at = body_at(frame, 0, len(frame), flexible=True)
    assert replica_fetch_codec.decode_request(frame, memoryview(frame), at, len(frame)) == request


@settings(max_examples=500, deadline=None)
@given(requests | usual, st.data())
def test_the_short_cut_never_reads_anything_else_than_the_long_way(request, data):
    frame = bytearray(replica_fetch_codec.encode(request, 5, b"me")[4:])
    at = body_at(frame, 0, len(frame), flexible=True)
    if data.draw(st.booleans()):
        frame[data.draw(st.integers(at, len(frame) - 1))] = data.draw(st.integers(0, 255))
    end = len(frame) - data.draw(st.sampled_from([0, 0, 0, 1, 17, 40]))
    found = replica_fetch_codec.decode_request(frame, memoryview(frame), at, end)
    if found is not None:
        assert fetch_codec.decode(frame, memoryview(frame), at, end, VERSION) == found


def plain(answer: FetchResponse) -> Any:
    def pair(struct: Any) -> Any:
        return None if struct is None else tuple(getattr(struct, n) for n in struct.__slots__)

    topics = [
        (
            topic.topic_id.bytes,
            [
                (
                    partition.partition_index,
                    partition.error_code,
                    partition.high_watermark,
                    partition.log_start_offset,
                    bytes(partition.records or b""),
                    pair(partition.diverging_epoch),
                    pair(partition.current_leader),
                )
                for partition in topic.partitions
            ],
        )
        for topic in answer.responses
    ]
    return answer.error_code, answer.session_id, topics


def plain_hot(answer: replica_fetch_codec.ReplicaFetchResponse) -> Any:
    topics = [
        (
            topic,
            [(*partition[:4], bytes(partition.records), *partition[5:]) for partition in results],
        )
        for topic, results in answer.topics
    ]
    return answer.error_code, answer.session_id, topics


@settings(max_examples=300, deadline=None)
@given(drawn(FetchResponse, VERSION), i32)
def test_an_answer_means_what_its_declaration_says(answer, correlation_id):
    frame = encode_response(answer, VERSION, correlation_id)[4:]
    assert plain_hot(replica_fetch_codec.decode(memoryview(frame))) == plain(answer)


def test_records_are_views_of_the_frame_they_came_in():
    parts = fetch_codec.encode(
        1, VERSION, [(bytes(16), [fetch_codec.FetchedPartition(0, 0, 9, 9, 0, Records())])]
    )
    frame = bytearray(b"".join(part if isinstance(part, bytes) else b"r" * 300 for part in parts))
    answer = replica_fetch_codec.decode(memoryview(frame)[4:])
    records = answer.topics[0][1][0].records
    assert records == b"r" * 300
    assert records.obj is frame


class Records:
    length = 300


def both(body: bytes) -> None:
    """Both decoders refuse the bytes or decode the same values.

    The tuned one is less strict only about fields that it skips, which followers do not need.
    """
    try:
        found = replica_fetch_codec.decode(memoryview(b"\0\0\0\1\0" + body))
    except WireError:
        with pytest.raises(WireError):
            decode(FetchResponse, body, VERSION)
        return
    try:
        wanted = decode(FetchResponse, body, VERSION)
    except WireError as error:
        passed_over = ("tag", "snapshot_id", "node_endpoints", "UTF-8", "too early", "varint")
        assert any(text in str(error) for text in passed_over)  # noqa: PT017
        return
    assert plain_hot(found) == plain(wanted)


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_damaged_answers_are_refused_by_both_codecs_or_by_none(data: st.DataObject):
    body = bytearray(encode_response(data.draw(drawn(FetchResponse, VERSION)), VERSION, 1)[9:])
    for _ in range(data.draw(st.integers(1, 3))):
        if body and data.draw(st.booleans()):
            body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
        else:
            del body[data.draw(st.integers(0, len(body))) :]
    both(bytes(body))


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=120))
def test_any_bytes_are_an_answer_or_a_wire_error(noise: bytes):
    with contextlib.suppress(WireError):
        replica_fetch_codec.decode(memoryview(noise))
    both(noise)


@pytest.mark.parametrize("cut", range(60))
def test_a_frame_cut_anywhere_is_refused(cut):
    results = [fetch_codec.FetchedPartition(0, 0, 9, 9, 0, None, None, -1, (1, 2), (3, 4))]
    (frame,) = fetch_codec.encode(1, VERSION, [(bytes(16), results)])
    assert isinstance(frame, bytes)
    with pytest.raises(WireError):
        replica_fetch_codec.decode(memoryview(frame[4 : len(frame) - 1 - cut]))
