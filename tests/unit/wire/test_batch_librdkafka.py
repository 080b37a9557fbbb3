"""Hightide's batches and librdkafka's, through librdkafka's mock broker.

The mock broker stores batches without decoding them, so each side reads the bytes of the other.
"""

import socket
import struct
from typing import Any, TypeVar

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from hightide.wire.batch import Record, batches, build, check, records
from hightide.wire.compression import Codec
from hightide.wire.frame import decode_response, encode_request
from hightide.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from hightide.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

NOW_MS = 1_700_000_000_000
COUNT = 100
HEADERS: list[Any] = [("h", b"1"), ("n", None)]
TOPIC = "tide"

Response = TypeVar("Response")


def call(
    address: tuple[str, int], request: object, expected: type[Response], version: int
) -> Response:
    """Send one request on a new connection."""
    with socket.create_connection(address, timeout=10) as connection:
        connection.sendall(encode_request(request, version, 1, "test"))
        stream = connection.makefile("rb")
        (length,) = struct.unpack(">i", stream.read(4))
        frame = stream.read(length)
        stream.close()
    return decode_response(expected, memoryview(frame), version)[1]


@pytest.mark.parametrize("codec", Codec)
def test_librdkafka_and_we_read_each_others_batches(codec: Codec) -> None:
    # The producer owns the mock broker, which stops with it.
    producer = Producer(
        {
            "bootstrap.servers": "unused",
            "test.mock.num.brokers": 1,
            "compression.type": codec.name.lower(),
            "linger.ms": 50,
            "log_level": 0,
        }
    )
    for number in range(COUNT):
        producer.produce(
            TOPIC, b"theirs %d " % number * 9, b"%d" % number, partition=0, headers=HEADERS
        )
    assert producer.flush(10) == 0
    (broker,) = producer.list_topics(timeout=10).brokers.values()
    address = (broker.host, broker.port)

    # On a busy machine there is more than one batch, and the mock broker returns one at a time.
    found: list[Record] = []
    while len(found) < COUNT:
        partition = FetchPartition(partition=0, fetch_offset=len(found), partition_max_bytes=2**24)
        fetch = FetchRequest(
            max_wait_ms=100,
            min_bytes=1,
            topics=[FetchTopic(topic=TOPIC, partitions=[partition])],
        )
        data = call(address, fetch, FetchResponse, 4).responses[0].partitions[0].records
        assert data
        for at, header in batches(data):
            check(data, at, at + header.size)
            assert header.codec is codec
            found += records(data, at)
    assert [record.value for record in found] == [b"theirs %d " % n * 9 for n in range(COUNT)]
    assert {record.headers for record in found} == {tuple(HEADERS)}

    ours = [
        Record(at, NOW_MS + at, b"%d" % at, b"ours %d " % at * 500, tuple(HEADERS))
        for at in range(COUNT)
    ]
    part = PartitionProduceData(index=0, records=build(ours, codec=codec))
    produce = ProduceRequest(
        acks=1, timeout_ms=5000, topic_data=[TopicProduceData(name=TOPIC, partition_data=[part])]
    )
    answer = call(address, produce, ProduceResponse, 7).responses[0].partition_responses[0]
    assert (answer.error_code, answer.base_offset) == (0, COUNT)
    consumer = Consumer(
        {"bootstrap.servers": f"{broker.host}:{broker.port}", "group.id": "g", "check.crcs": True}
    )
    try:
        consumer.assign([TopicPartition(TOPIC, 0, COUNT)])
        messages = consumer.consume(COUNT, timeout=30)
    finally:
        consumer.close()
    assert [message.error() for message in messages] == [None] * COUNT
    assert [
        ((m.offset() or 0) - COUNT, m.timestamp()[1], m.key(), m.value(), tuple(m.headers() or ()))
        for m in messages
    ] == ours
