"""What is acknowledged can be read: honest records of any ratio are, and poisoned ones are not."""

from __future__ import annotations

import json
import random

import confluent_kafka
import pytest

from hightide.client import librdkafka
from hightide.wire import batch
from hightide.wire.compression import Codec, compress
from hightide.wire.crc import crc32c
from hightide.wire.errors import ErrorCode
from tests.conformance.adapters import Record, confluent
from tests.conformance.raw import Raw, good_batch, produce_request, produced
from tests.support.eventually import eventually

T0 = 1_700_000_000_000
LINES = 10_000
ONE_BATCH = {"per_batch": LINES, "max_bytes": 2**24}
FILLER = "heartbeat of a service that reports the same state again and again " * 15


def heartbeats(keys: int = 0):
    """Return JSON lines that zstd compresses some 400 times."""
    line = json.dumps({"service": "billing", "state": "up", "note": FILLER}).encode()
    return [
        Record(line, key=b"%d" % (at % keys) if keys else None, timestamp=T0 + at)
        for at in range(LINES)
    ]


def test_honest_records_of_a_high_ratio_are_read_and_found_by_time(broker, topic):
    sent = heartbeats()
    confluent.produce(broker.bootstrap, topic, sent, codec="zstd", **ONE_BATCH)
    found = confluent.read(broker.bootstrap, topic, LINES, max_bytes=2**24)
    assert [record.value for record in found] == [record.value for record in sent]
    for at in (0, 1, 4_321, LINES - 1):
        assert confluent.offset_at(broker.bootstrap, topic, T0 + at) == at


def test_librdkafka_reads_the_largest_batch_that_is_accepted_by_default(broker, topic):
    """zstd is the codec that it reads least of: a third of receive.message.max.bytes."""
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": "a"}
    reads_one_batch(broker, topic, 31, confluent_kafka.Consumer(settings))


def test_our_consumers_read_the_largest_batch_that_a_topic_may_accept(broker):
    """librdkafka's default limit is too small for it."""
    topic = broker.create_topic(config={"max.decompressed.message.bytes": 2**26})
    consumer = librdkafka.consumer(broker.bootstrap, {"group.id": "a"})
    reads_one_batch(broker, topic, 58, consumer)


def reads_one_batch(broker, topic, count, consumer):
    """Produce `count` messages of a megabyte as one batch, and read them."""
    config = {
        "bootstrap.servers": broker.bootstrap,
        "compression.type": "zstd",
        "linger.ms": 1000,
        "batch.size": 80_000_000,
        "message.max.bytes": 100_000_000,
    }
    producer = confluent_kafka.Producer(config)
    for at in range(count):
        producer.produce(topic, b"x" * 1_000_000, key=b"%d" % (at % 5), partition=0)
    assert producer.flush(15) == 0
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    try:
        messages = consumer.consume(count, 15)
    finally:
        consumer.close()
    assert [(message.error(), message.offset()) for message in messages] == [
        (None, offset) for offset in range(count)
    ]


@pytest.mark.extended
def test_honest_records_of_a_high_ratio_are_compacted(transacting):
    config = {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0.01",
        "segment.ms": "500",
        "segment.bytes": "20000",
    }
    topic = transacting.create_topic(config=config)
    for _ in range(3):
        confluent.produce(
            transacting.bootstrap, topic, heartbeats(keys=5), codec="zstd", **ONE_BATCH
        )
    last = [Record(b"last", key=b"%d" % at) for at in range(5)]

    def is_compacted():
        confluent.produce(transacting.bootstrap, topic, last)
        start, end = confluent.bounds(transacting.bootstrap, topic)
        first = confluent.read(transacting.bootstrap, topic, 1, start=start, max_bytes=2**24)
        return first[0].offset > LINES and end > 3 * LINES

    eventually(is_compacted, 20)
    assert "uncleanable" not in transacting.log()


def sealed(data: bytearray) -> bytearray:
    """Return a batch with the CRC of its bytes."""
    data[17:21] = crc32c(memoryview(data)[21:]).to_bytes(4, "big")
    return data


def poisoned() -> dict[str, bytearray]:
    """Return batches with a right CRC that no consumer can read."""
    noise = random.Random(2).randbytes(500)
    plain = good_batch(3)
    for_count = bytearray(good_batch(1))
    for_count[23:27] = (8_999_999).to_bytes(4, "big")
    for_count[57:61] = (9_000_000).to_bytes(4, "big")
    found = {
        "random bytes": bytearray(plain[: batch.HEADER_BYTES]) + noise,
        "a count of nine million": for_count,
        "bytes after the records": bytearray(plain) + b"\0",
    }
    for codec in (Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD):
        for what, content in (("noise inside", compress(codec, noise)), ("noise", noise)):
            data = bytearray(plain[: batch.HEADER_BYTES]) + content
            data[22] = codec
            found[f"{codec.name}, {what}"] = data
    for data in found.values():
        data[8:12] = (len(data) - batch.LOG_OVERHEAD).to_bytes(4, "big")
        sealed(data)
    return found


def test_poisoned_batches_are_refused_and_every_client_reads_on(broker, topic, consumer):
    with Raw(broker) as raw:
        for what, data in poisoned().items():
            answer = produced(raw.ask(produce_request(topic, bytes(data)), 7))
            codes = (ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE)
            assert answer.error_code in codes, what
        assert produced(raw.ask(produce_request(topic, good_batch(3)), 7)).error_code == 0
    found = consumer.read(broker.bootstrap, topic, 3)
    assert [record.value for record in found] == [b"v0", b"v1", b"v2"]
