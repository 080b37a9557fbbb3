"""Promises of the protocol that client libraries hide."""

from __future__ import annotations

import struct
import uuid

import pytest

from hightide.testing import Cluster
from hightide.wire import batch
from hightide.wire.errors import ErrorCode
from hightide.wire.frame import decode_response, encode_request
from hightide.wire.messages.api_versions import ApiVersionsRequest
from hightide.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
)
from hightide.wire.messages.metadata import (
    Cursor,
    DescribeTopicPartitionsRequest,
    MetadataRequest,
    MetadataRequestTopic,
    TopicRequest,
)
from hightide.wire.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from hightide.wire.messages.produce import (
    InitProducerIdRequest,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from hightide.wire.types import NO_UUID
from tests.conformance.raw import Raw, good_batch, produce_request, produced, resident_bytes

T0 = 1_700_000_000_000


@pytest.fixture
def raw(broker):
    with Raw(broker) as connection:
        yield connection


def rows(count, first=0, size=10):
    return [
        batch.Record(at, T0 + (first + at) * 1000, None, b"%06d" % (first + at) * size, ())
        for at in range(count)
    ]


def write(raw, topic, data, version=9, **options):
    return produced(raw.ask(produce_request(topic, data, **options), version))


def values_of(records):
    found = []
    data = bytes(records or b"")
    for at, header in batch.batches(data):
        found += [record.value for record in batch.records(data[at : at + header.size])]
    return found


def topic_id_of(raw, topic):
    answer = raw.ask(MetadataRequest(topics=[MetadataRequestTopic(name=topic)]), 12)
    return answer.topics[0].topic_id


def fetch_request(topic, offset, version, *, topic_id=NO_UUID, partition=0, **given):
    """Fetch one partition from an offset on."""
    wanted = FetchPartition(
        partition=partition,
        fetch_offset=offset,
        partition_max_bytes=given.pop("partition_max_bytes", 2**20),
        current_leader_epoch=given.pop("current_leader_epoch", -1),
    )
    named = (
        FetchTopic(topic_id=topic_id, partitions=[wanted])
        if version >= 13
        else FetchTopic(topic=topic, partitions=[wanted])
    )
    options = {"max_wait_ms": 0, "min_bytes": 1, **given}
    return FetchRequest(topics=[named], **options)


def fetched(answer):
    return answer.responses[0].partitions[0]


# -- produce -----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(3, 13))
def test_every_version_of_produce_writes(broker, topic, raw, version):
    for expected in (0, 3):
        answer = write(raw, topic, good_batch(), version)
        assert (answer.error_code, answer.base_offset) == (0, expected)
    with Raw(broker) as other:
        answer = fetched(other.ask(fetch_request(topic, 0, 11), 11))
        assert len(values_of(answer.records)) == 6


def test_produce_without_acks_is_not_answered(broker, topic, raw):
    request = produce_request(topic, good_batch(), acks=0)
    raw.send(encode_request(request, 9, 1, "raw"))
    raw.send(encode_request(ApiVersionsRequest(), 0, 2, "raw"))
    assert raw.receive()[:4] == struct.pack(">i", 2)
    assert len(values_of(fetched(raw.ask(fetch_request(topic, 0, 11), 11)).records)) == 3


def test_one_wrong_partition_does_not_spoil_the_others(broker, raw):
    topic = broker.create_topic(partitions=2)
    data = [
        PartitionProduceData(index=0, records=good_batch()),
        PartitionProduceData(index=7, records=good_batch()),
        PartitionProduceData(index=1, records=good_batch()),
    ]
    request = ProduceRequest(
        acks=-1,
        timeout_ms=5000,
        topic_data=[
            TopicProduceData(name=topic, partition_data=data),
            TopicProduceData(name="not/a/topic", partition_data=data[:1]),
        ],
    )
    first, second = raw.ask(request, 9).responses
    found = {
        partition_response.index: partition_response.error_code
        for partition_response in first.partition_responses
    }
    assert found == {0: 0, 7: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 1: 0}
    assert second.partition_responses[0].error_code != 0


# -- idempotence -------------------------------------------------------------------------------


def new_producer(raw, **given):
    answer = raw.ask(
        InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000, **given), 4
    )
    assert answer.error_code == 0
    return answer.producer_id, answer.producer_epoch


def sequenced(producer, sequence, count=3):
    producer_id, epoch = producer
    return good_batch(count, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)


def test_producer_ids_are_never_given_twice(broker, raw):
    seen = [new_producer(raw) for _ in range(50)]
    assert len({producer_id for producer_id, _ in seen}) == 50
    assert {epoch for _, epoch in seen} == {0}


def test_a_repeated_batch_is_answered_with_its_first_offset_and_not_written(topic, raw):
    producer = new_producer(raw)
    for sequence, offset in ((0, 0), (3, 3), (6, 6)):
        answer = write(raw, topic, sequenced(producer, sequence))
        assert (answer.error_code, answer.base_offset) == (0, offset)
    for sequence, offset in ((6, 6), (0, 0), (3, 3)):
        answer = write(raw, topic, sequenced(producer, sequence))
        assert (answer.error_code, answer.base_offset) == (0, offset)
    assert write(raw, topic, sequenced(producer, 9)).base_offset == 9


def test_a_gap_in_the_sequence_is_refused(topic, raw):
    producer = new_producer(raw)
    write(raw, topic, sequenced(producer, 0))
    for sequence in (4, 2, 100):
        answer = write(raw, topic, sequenced(producer, sequence))
        assert answer.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert write(raw, topic, sequenced(producer, 3)).base_offset == 3


def test_an_old_epoch_is_fenced(topic, raw):
    old = new_producer(raw)
    write(raw, topic, sequenced(old, 0))
    new = new_producer(raw, producer_id=old[0], producer_epoch=old[1])
    if new[0] == old[0]:
        assert new[1] == old[1] + 1
        assert write(raw, topic, sequenced(new, 0)).error_code == 0
        answer = write(raw, topic, sequenced(old, 3))
        assert answer.error_code == ErrorCode.INVALID_PRODUCER_EPOCH


def test_repeats_are_recognised_after_a_kill():
    with Cluster() as cluster:
        topic = cluster.create_topic()
        with Raw(cluster) as raw:
            producer = new_producer(raw)
            write(raw, topic, sequenced(producer, 0))
        cluster.kill()
        cluster.restart()
        with Raw(cluster) as raw:
            answer = write(raw, topic, sequenced(producer, 0))
            assert (answer.error_code, answer.base_offset) == (0, 0)
            assert write(raw, topic, sequenced(producer, 3)).base_offset == 3
            assert new_producer(raw)[0] != producer[0]


def test_a_transactional_id_without_a_timeout_is_refused_by_every_broker(raw):
    request = InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=0)
    assert raw.ask(request, 4).error_code == ErrorCode.INVALID_TRANSACTION_TIMEOUT


# -- fetch -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hundred(broker):
    """A topic with ten batches of ten records."""
    topic = broker.create_topic()
    with Raw(broker) as connection:
        for first in range(0, 100, 10):
            assert write(connection, topic, batch.build(rows(10, first))).error_code == 0
    return topic


@pytest.mark.parametrize("version", range(4, 18))
def test_every_version_of_fetch_reads(hundred, raw, version):
    topic_id = topic_id_of(raw, hundred)
    request = fetch_request(hundred, 35, version, topic_id=topic_id)
    found = fetched(raw.ask(request, version))
    assert (found.error_code, found.high_watermark) == (0, 100)
    # Whole batches are served, so the response begins before the requested offset.
    assert values_of(found.records) == [row.value for row in rows(70, 30)]


def test_fetching_from_the_end_gives_nothing(hundred, raw):
    found = fetched(raw.ask(fetch_request(hundred, 100, 11), 11))
    assert (found.error_code, values_of(found.records)) == (0, [])


@pytest.mark.parametrize("offset", [-1, 101, 10**12])
def test_an_offset_out_of_range_is_told(hundred, raw, offset):
    found = fetched(raw.ask(fetch_request(hundred, offset, 11), 11))
    assert found.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert values_of(found.records) == []


def test_a_fetch_gives_at_least_one_batch_and_no_more_than_asked_for(hundred, raw):
    one = fetched(raw.ask(fetch_request(hundred, 0, 11, partition_max_bytes=1), 11))
    assert len(values_of(one.records)) == 10
    size = len(one.records)
    three = fetched(raw.ask(fetch_request(hundred, 0, 11, partition_max_bytes=3 * size), 11))
    assert len(values_of(three.records)) == 30
    limited = fetched(raw.ask(fetch_request(hundred, 0, 11, max_bytes=2 * size), 11))
    assert len(values_of(limited.records)) == 20


@pytest.mark.parametrize(
    ("epoch", "code"), [(0, ErrorCode.NONE), (5, ErrorCode.UNKNOWN_LEADER_EPOCH)]
)
def test_the_leader_epoch_is_checked(hundred, raw, epoch, code):
    request = fetch_request(hundred, 0, 11, current_leader_epoch=epoch)
    assert fetched(raw.ask(request, 11)).error_code == code


@pytest.mark.parametrize(
    ("name", "partition"), [("no-such-topic", 0), (None, 1), (None, -1), (None, 2**31 - 1)]
)
def test_an_unknown_partition_is_told(hundred, raw, name, partition):
    request = fetch_request(name or hundred, 0, 11, partition=partition)
    found = fetched(raw.ask(request, 11))
    assert found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_an_unknown_topic_id_is_told(raw):
    request = fetch_request("", 0, 13, topic_id=uuid.UUID(int=12345))
    assert fetched(raw.ask(request, 13)).error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_a_waiting_fetch_is_answered_by_the_write_and_not_before(broker, topic, raw):
    request = fetch_request(topic, 0, 11, max_wait_ms=60_000)
    raw.send(encode_request(request, 11, 5, "raw"))
    with Raw(broker) as other:
        # A broker takes up all that has come before it answers what came later, so when this
        # is answered the fetch is waiting.
        assert fetched(other.ask(fetch_request(topic, 0, 11), 11)).records in (None, b"")
        assert write(other, topic, good_batch()).error_code == 0
    _, answer = decode_response(FetchResponse, raw.receive(), 11)
    assert values_of(fetched(answer).records) == [b"v0", b"v1", b"v2"]


def test_a_fetch_waits_for_as_many_bytes_as_it_wants(broker, topic, raw):
    data = good_batch()
    request = fetch_request(topic, 0, 11, max_wait_ms=60_000, min_bytes=len(data) + 1)
    raw.send(encode_request(request, 11, 5, "raw"))
    with Raw(broker) as other:
        write(other, topic, good_batch())
        write(other, topic, good_batch())
    _, answer = decode_response(FetchResponse, raw.receive(), 11)
    assert len(values_of(fetched(answer).records)) == 6


def test_a_fetch_that_gets_nothing_is_answered_when_its_time_is_up(topic, raw):
    found = fetched(raw.ask(fetch_request(topic, 0, 11, max_wait_ms=50), 11))
    assert (found.error_code, values_of(found.records)) == (0, [])


def test_a_waiting_fetch_does_not_hold_up_other_connections(broker, topic):
    with Raw(broker) as waiting, Raw(broker) as other:
        request = fetch_request(topic, 0, 11, max_wait_ms=60_000)
        waiting.send(encode_request(request, 11, 5, "raw"))
        for _ in range(10):
            assert other.ask(ApiVersionsRequest(), 0) is not None


# -- fetch sessions ----------------------------------------------------------------------------


def test_a_session_sends_only_what_changed(broker, raw):
    first, second = broker.create_topic(), broker.create_topic()
    for topic in (first, second):
        write(raw, topic, good_batch())

    def wanted(topic, offset):
        part = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=2**20)
        return FetchTopic(topic=topic, partitions=[part])

    def ask(epoch, topics=(), forgotten=(), session=0):
        return raw.ask(
            FetchRequest(
                max_wait_ms=0,
                min_bytes=0,
                session_id=session,
                session_epoch=epoch,
                topics=list(topics),
                forgotten_topics_data=list(forgotten),
            ),
            11,
        )

    opened = ask(0, [wanted(first, 0), wanted(second, 0)])
    assert opened.error_code == 0
    assert opened.session_id > 0
    assert {response.topic for response in opened.responses} == {first, second}
    session = opened.session_id

    # The positions advance; nothing has changed since, so nothing is sent.
    moved = ask(1, [wanted(first, 3), wanted(second, 3)], session=session)
    assert (moved.error_code, moved.responses) == (0, [])

    write(raw, second, good_batch())
    changed = ask(2, session=session)
    assert [response.topic for response in changed.responses] == [second]
    assert values_of(fetched(changed).records) == [b"v0", b"v1", b"v2"]

    # A partition that was forgotten is not sent any more.
    write(raw, first, good_batch())
    gone = ask(3, [wanted(second, 6)], [ForgottenTopic(topic=first, partitions=[0])], session)
    assert (gone.error_code, gone.responses) == (0, [])

    wrong = ask(99, session=session)
    assert wrong.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    unknown = ask(1, session=session + 12345)
    assert unknown.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


# -- offsets -----------------------------------------------------------------------------------


def list_offsets(raw, topic, timestamp, version):
    request = ListOffsetsRequest(
        replica_id=-1,
        topics=[
            ListOffsetsTopic(
                name=topic,
                partitions=[ListOffsetsPartition(partition_index=0, timestamp=timestamp)],
            )
        ],
    )
    return raw.ask(request, version).topics[0].partitions[0]


@pytest.mark.parametrize("version", range(1, 12))
def test_every_version_of_list_offsets_finds_the_same(hundred, raw, version):
    for timestamp, offset in ((-2, 0), (-1, 100), (T0, 0), (T0 + 41_500, 42), (T0 + 99_000, 99)):
        found = list_offsets(raw, hundred, timestamp, version)
        assert (found.error_code, found.offset) == (0, offset)
    after = list_offsets(raw, hundred, T0 + 99_001, version)
    assert (after.error_code, after.offset, after.timestamp) == (0, -1, -1)
    if version >= 7:
        assert list_offsets(raw, hundred, -3, version).offset == 99


def test_the_end_of_an_epoch_is_told(hundred, raw):
    def ask(epoch):
        wanted = OffsetForLeaderPartition(partition=0, leader_epoch=epoch)
        topic = OffsetForLeaderTopic(topic=hundred, partitions=[wanted])
        request = OffsetForLeaderEpochRequest(replica_id=-1, topics=[topic])
        return raw.ask(request, 4).topics[0].partitions[0]

    assert (ask(0).error_code, ask(0).leader_epoch, ask(0).end_offset) == (0, 0, 100)
    assert (ask(9).leader_epoch, ask(9).end_offset) == (-1, -1)


# -- metadata ----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(14))
def test_every_version_of_metadata_describes_a_topic(broker, hundred, raw, version):
    answer = raw.ask(MetadataRequest(topics=[MetadataRequestTopic(name=hundred)]), version)
    (node,) = answer.brokers
    assert (node.node_id, node.host, node.port) == (1, "127.0.0.1", broker.port())
    (found,) = answer.topics
    assert (found.error_code, found.name) == (0, hundred)
    (partition,) = found.partitions
    assert (partition.leader_id, partition.replica_nodes, partition.isr_nodes) == (1, [1], [1])


def test_no_topics_and_all_topics_are_told_apart(broker, hundred, raw):
    for version in range(1, 14):
        assert raw.ask(MetadataRequest(topics=[]), version).topics == []
        everything = raw.ask(MetadataRequest(topics=None), version).topics
        assert hundred in {topic.name for topic in everything}
    # Version 0 has no null, so an empty list stands for all.
    assert hundred in {topic.name for topic in raw.ask(MetadataRequest(topics=[]), 0).topics}


def test_a_topic_is_found_by_its_id(hundred, raw):
    topic_id = topic_id_of(raw, hundred)
    wanted = MetadataRequestTopic(topic_id=topic_id, name=None)
    (found,) = raw.ask(MetadataRequest(topics=[wanted]), 12).topics
    assert (found.error_code, found.name) == (0, hundred)
    wanted = MetadataRequestTopic(topic_id=uuid.UUID(int=99), name=None)
    (found,) = raw.ask(MetadataRequest(topics=[wanted]), 12).topics
    assert found.error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_asking_creates_a_topic_only_if_the_client_allows_it(raw):
    name = f"maybe-{uuid.uuid4().hex}"
    wanted = [MetadataRequestTopic(name=name)]
    refused = raw.ask(MetadataRequest(topics=wanted, allow_auto_topic_creation=False), 9)
    assert refused.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    everything = raw.ask(MetadataRequest(topics=None), 9)
    assert name not in {topic.name for topic in everything.topics}


def test_partitions_are_described_page_by_page(broker, raw):
    names = sorted([broker.create_topic(partitions=3), broker.create_topic(partitions=4)])
    wanted = [TopicRequest(name=name) for name in names]
    seen, cursor = [], None
    for _ in range(10):
        request = DescribeTopicPartitionsRequest(
            topics=wanted, response_partition_limit=2, cursor=cursor
        )
        answer = raw.ask(request, 0)
        page = [
            (topic.name, partition.partition_index)
            for topic in answer.topics
            for partition in topic.partitions
        ]
        assert len(page) <= 2
        seen += page
        if answer.next_cursor is None:
            break
        cursor = Cursor(
            topic_name=answer.next_cursor.topic_name,
            partition_index=answer.next_cursor.partition_index,
        )
    sizes = {name: len([topic for topic in seen if topic[0] == name]) for name in names}
    assert len(seen) == len(set(seen)) == 7
    assert sorted(sizes.values()) == [3, 4]


# -- memory ------------------------------------------------------------------------------------


def test_a_client_that_asks_for_much_and_reads_nothing_takes_no_memory(broker, topic):
    """A client requests two hundred megabytes of responses, and reads none."""
    with Raw(broker) as raw:
        data = batch.build([batch.Record(0, T0, None, b"x" * 900_000, ())])
        for _ in range(10):
            assert write(raw, topic, bytearray(data)).error_code == 0
        before = resident_bytes(broker)
        with Raw(broker) as greedy:
            request = fetch_request(topic, 0, 11, partition_max_bytes=2**24)
            greedy.send(encode_request(request, 11, 1, "raw") * 25)
            for _ in range(20):
                assert raw.ask(ApiVersionsRequest(), 0) is not None
            assert resident_bytes(broker) - before < 64 * 2**20


def test_many_connections_can_wait_at_once(broker, topic):
    connections = [Raw(broker) for _ in range(200)]
    request = fetch_request(topic, 0, 11, max_wait_ms=60_000)
    for connection in connections:
        connection.send(encode_request(request, 11, 5, "raw"))
    with Raw(broker) as raw:
        write(raw, topic, good_batch())
    for connection in connections:
        _, answer = decode_response(FetchResponse, connection.receive(), 11)
        assert len(values_of(fetched(answer).records)) == 3
        connection.__exit__()


def test_a_broker_stops_in_order_while_a_fetch_waits():
    with Cluster() as cluster:
        topic = cluster.create_topic()
        with Raw(cluster) as raw:
            request = fetch_request(topic, 0, 11, max_wait_ms=600_000)
            raw.send(encode_request(request, 11, 5, "raw"))
            with Raw(cluster) as other:
                write(other, cluster.create_topic(), good_batch())
            assert cluster.terminate() == 0
            raw.receive()
