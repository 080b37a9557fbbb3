"""The hand-tuned codecs agree with the declarations in every version.

Requests are decoded as in a broker: in the middle of a larger buffer, with other bytes after them,
where only the decoder itself can notice a read past the end.
"""

from dataclasses import dataclass
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hightide.wire.codec import decode, encode
from hightide.wire.errors import WireError
from hightide.wire.frame import encode_request, encode_response
from hightide.wire.hot import fetch_codec, produce_codec
from hightide.wire.hot.read_cursor import body_at
from hightide.wire.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    NodeEndpoint,
    PartitionData,
)
from hightide.wire.messages.fetch import LeaderIdAndEpoch as FetchLeader
from hightide.wire.messages.produce import (
    LeaderIdAndEpoch,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from tests.unit.wire.message_values import drawn

PRODUCE_VERSIONS = range(produce_codec.LOWEST, produce_codec.HIGHEST + 1)
FETCH_VERSIONS = range(fetch_codec.LOWEST, fetch_codec.HIGHEST + 1)
BEFORE, BEHIND = b"\x7f" * 11, b"\x01" * 70


def in_a_buffer(body: bytes) -> tuple[bytearray, memoryview, int, int]:
    buf = bytearray(BEFORE + body + BEHIND)
    return buf, memoryview(buf), len(BEFORE), len(BEFORE) + len(body)


def plain_produce(request: ProduceRequest) -> Any:
    return (
        request.acks,
        request.timeout_ms,
        None if request.transactional_id is None else request.transactional_id.encode(),
        [
            (
                topic.name.encode(),
                [
                    (partition.index, bytes(partition.records or b""))
                    for partition in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ],
    )


def plain_hot_produce(found: produce_codec.Produce, buf: bytearray) -> Any:
    topics = [
        (
            name,
            [
                (partition.partition, bytes(buf[partition.start : partition.end]))
                for partition in partitions
            ],
        )
        for name, partitions in found.topics
    ]
    return (found.acks, found.timeout_ms, found.transactional_id, topics)


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_produce_request_means_what_its_declaration_says(version: int, data: st.DataObject):
    request = data.draw(drawn(ProduceRequest, version))
    buf, view, start, end = in_a_buffer(encode(request, version))
    found = produce_codec.decode(buf, view, start, end, version)
    assert plain_hot_produce(found, buf) == plain_produce(request)


def plain_fetch(request: FetchRequest, version: int) -> Any:
    def topic_of(topic: Any) -> bytes:
        return topic.topic_id.bytes if version >= 13 else topic.topic.encode()

    state = request.replica_state
    replica_id, replica_epoch = request.replica_id if version <= 14 else -1, -1
    if state is not None and version >= 15:
        replica_id, replica_epoch = state.replica_id, state.replica_epoch
    return (
        replica_id,
        request.max_wait_ms,
        request.min_bytes,
        request.max_bytes,
        request.isolation_level,
        request.session_id,
        request.session_epoch,
        [
            (
                topic_of(topic),
                [
                    (
                        partition.partition,
                        partition.current_leader_epoch,
                        partition.fetch_offset,
                        partition.last_fetched_epoch,
                        partition.log_start_offset,
                        partition.partition_max_bytes,
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ],
        [(topic_of(topic), topic.partitions) for topic in request.forgotten_topics_data],
        request.rack_id.encode() if version >= 11 else None,
        replica_epoch,
    )


@pytest.mark.parametrize("version", FETCH_VERSIONS)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_fetch_request_means_what_its_declaration_says(version: int, data: st.DataObject):
    request = data.draw(drawn(FetchRequest, version))
    found = fetch_codec.decode(*in_a_buffer(encode(request, version)), version)
    assert tuple(found) == plain_fetch(request, version)


HOT = [
    *((produce_codec, ProduceRequest, version) for version in PRODUCE_VERSIONS),
    *((fetch_codec, FetchRequest, version) for version in FETCH_VERSIONS),
]


@pytest.mark.parametrize(("hot", "cls", "version"), HOT)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_damaged_requests_are_refused_by_both_codecs_or_by_none(
    hot: Any, cls: type, version: int, data: st.DataObject
):
    """A hot decoder is less strict only about bytes that it does not decode: text."""
    body = bytearray(encode(data.draw(drawn(cls, version)), version))
    for _ in range(data.draw(st.integers(1, 3))):
        if body and data.draw(st.booleans()):
            body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
        else:
            del body[data.draw(st.integers(0, len(body))) :]
    buf, view, start, end = in_a_buffer(bytes(body))
    try:
        found = hot.decode(buf, view, start, end, version)
    except WireError:
        with pytest.raises(WireError):
            decode(cls, bytes(body), version, exact=False)
        return
    try:
        wanted: Any = decode(cls, bytes(body), version, exact=False)
    except WireError as error:
        assert "UTF-8" in str(error) or "tag" in str(error)  # noqa: PT017
        return
    if hot is produce_codec:
        assert plain_hot_produce(found, buf) == plain_produce(wanted)
    else:
        assert tuple(found) == plain_fetch(wanted, version)


@pytest.mark.parametrize(("hot", "cls", "version"), HOT)
@settings(max_examples=40, deadline=None)
@given(noise=st.binary(max_size=80))
def test_any_bytes_are_a_request_or_a_wire_error(hot: Any, cls: type, version: int, noise: bytes):
    try:
        hot.decode(*in_a_buffer(noise), version)
    except WireError:
        pass
    else:
        decode(cls, noise, version, exact=False)


codes = st.integers(0, 100)
i64 = st.integers(-(2**63), 2**63 - 1)
i32 = st.integers(-(2**31), 2**31 - 1)
name = st.text("abcdef._-é", min_size=1, max_size=200)
appended = st.builds(
    produce_codec.ProducedPartition,
    i32,
    codes,
    i64,
    i64,
    i64,
    st.none() | st.text(max_size=5),
    st.none() | st.tuples(st.integers(0, 9), st.integers(0, 9)),
)


def declared_produce(version: int, topics: Any) -> ProduceResponse:
    return ProduceResponse(
        responses=[
            TopicProduceResponse(
                name=name,
                partition_responses=[
                    PartitionProduceResponse(
                        index=partition.partition,
                        error_code=partition.error_code,
                        base_offset=partition.base_offset,
                        log_append_time_ms=partition.log_append_time_ms,
                        **(
                            {"log_start_offset": partition.log_start_offset} if version >= 5 else {}
                        ),
                        **({"error_message": partition.error_message} if version >= 8 else {}),
                        current_leader=LeaderIdAndEpoch(
                            leader_id=partition.leader[0], leader_epoch=partition.leader[1]
                        )
                        if partition.leader is not None and version >= 10
                        else None,
                    )
                    for partition in results
                ],
            )
            for name, results in topics
        ]
    )


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(name, st.lists(appended, max_size=3)), max_size=3), i32)
def test_a_produce_answer_has_the_bytes_that_its_declaration_gives(
    version: int, topics: Any, correlation_id: int
):
    hot = produce_codec.encode(correlation_id, version, [(n.encode(), r) for n, r in topics])
    assert hot == encode_response(declared_produce(version, topics), version, correlation_id)


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
@settings(max_examples=25, deadline=None)
@given(name, i32, i64, i64, i64, i32)
def test_a_prepared_answer_equals_an_encoded_one(
    version: int, topic: str, partition: int, base: int, time_ms: int, start: int, correlation: int
):
    result = produce_codec.ProducedPartition(partition, 0, base, time_ms, start)
    prepared = produce_codec.ResponseTemplate(version, topic.encode(), partition)
    assert prepared.encode(correlation, base, time_ms, start) == produce_codec.encode(
        correlation, version, [(topic.encode(), [result])]
    )


@dataclass
class Bytes:
    data: bytes

    @property
    def length(self) -> int:
        return len(self.data)


fetched = st.builds(
    fetch_codec.FetchedPartition,
    i32,
    codes,
    i64,
    i64,
    i64,
    st.none() | st.binary(min_size=1, max_size=200).map(Bytes),
    st.none() | st.lists(st.tuples(i64, i64), max_size=3) | st.just([(1, 2)] * 130),
    st.just(-1) | i32,
    st.none() | st.tuples(i32, i64),
    st.none() | st.tuples(i32, i32),
)
nodes = st.lists(
    st.builds(
        fetch_codec.Node,
        i32,
        st.text(max_size=3) | st.just("h" * 200),
        i32,
        st.none() | st.text(max_size=3) | st.just("é" * 90),
    ),
    max_size=3,
)


def declared_partition(version: int, partition: fetch_codec.FetchedPartition) -> PartitionData:
    """Convert a partition to its declared class; fields that the version lacks have defaults."""
    declared = PartitionData(
        partition_index=partition.partition,
        error_code=partition.error_code,
        high_watermark=partition.high_watermark,
        last_stable_offset=partition.last_stable_offset,
        aborted_transactions=None
        if partition.aborted is None
        else [
            AbortedTransaction(producer_id=i, first_offset=first) for i, first in partition.aborted
        ],
        records=cast(Any, partition.records).data if partition.records else b"",
    )
    if version >= 5:
        declared.log_start_offset = partition.log_start_offset
    if version >= 11:
        declared.preferred_read_replica = partition.preferred_read_replica
    if version >= 12 and partition.diverging_epoch is not None:
        epoch, end_offset = partition.diverging_epoch
        declared.diverging_epoch = EpochEndOffset(epoch=epoch, end_offset=end_offset)
    if version >= 12 and partition.leader is not None:
        leader_id, leader_epoch = partition.leader
        declared.current_leader = FetchLeader(leader_id=leader_id, leader_epoch=leader_epoch)
    return declared


@pytest.mark.parametrize("version", FETCH_VERSIONS)
@settings(max_examples=25, deadline=None)
@given(st.data())
def test_a_fetch_answer_has_the_bytes_that_its_declaration_gives(version: int, data: st.DataObject):
    topic: Any = st.uuids() if version >= 13 else name
    topics = data.draw(st.lists(st.tuples(topic, st.lists(fetched, max_size=3)), max_size=3))
    correlation_id, session_id, code = data.draw(i32), data.draw(i32), data.draw(codes)
    sent_nodes = data.draw(nodes)
    if version < 7:
        session_id = code = 0
    declared = FetchResponse(
        error_code=code,
        session_id=session_id,
        responses=[
            FetchableTopicResponse(
                **({"topic_id": topic} if version >= 13 else {"topic": topic}),
                partitions=[declared_partition(version, partition) for partition in results],
            )
            for topic, results in topics
        ],
        node_endpoints=[NodeEndpoint(**node._asdict()) for node in sent_nodes]
        if version >= 16
        else [],
    )
    keyed = [(t.bytes if version >= 13 else t.encode(), results) for t, results in topics]
    parts = fetch_codec.encode(correlation_id, version, keyed, session_id, code, sent_nodes)
    whole = b"".join(part if isinstance(part, bytes) else cast(Any, part).data for part in parts)
    assert whole == encode_response(declared, version, correlation_id)


@pytest.mark.parametrize("version", [8, 9])
@pytest.mark.parametrize("client_id", [None, "", "a client"])
def test_the_body_begins_behind_the_header(version: int, client_id: str | None):
    request = ProduceRequest(acks=1, timeout_ms=7, topic_data=[])
    frame = bytearray(encode_request(request, version, 5, client_id)[4:])
    at = body_at(frame, 0, len(frame), version >= produce_codec.FLEXIBLE)
    assert produce_codec.decode(frame, memoryview(frame), at, len(frame), version).timeout_ms == 7


@pytest.mark.parametrize("length", [-2, 100, 32767])
def test_a_client_id_that_does_not_fit_is_refused(length: int):
    frame = bytearray(b"\0\0\0\x09\0\0\0\1" + length.to_bytes(2, "big", signed=True) + b"abc")
    with pytest.raises(WireError, match="client id"):
        body_at(frame, 0, len(frame), True)
