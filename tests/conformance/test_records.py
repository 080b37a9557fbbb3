"""Records come back with the same bytes, in the same order, with every client."""

from __future__ import annotations

from functools import cache

import pytest

from hightide.wire.batch import batches
from hightide.wire.compression import Codec
from tests.conformance.adapters import CODECS, Record, Refused, values

NOW_MS = 1_700_000_000_000


@pytest.mark.needs("produce", "read")
def test_keys_values_headers_and_nulls_come_back_as_they_were_sent(broker, topic, client):
    sent = [
        Record(b"plain"),
        Record(b"with key", key=b"key"),
        Record(b"with headers", headers=(("a", b"1"), ("b", b"2"), ("a", b"3"))),
        Record(None, key=b"tombstone"),
        Record("žluťoučký 🐎".encode(), key="klíč".encode()),
    ]
    if client.NAME != "kcat":  # It skips empty files, and a command line holds no such bytes.
        sent.append(Record(b"", key=b""))
        sent.append(Record(bytes(range(256)), key=b"\x00\xff", headers=(("b", b"\x00\xfe"),)))
    client.produce(broker.bootstrap, topic, sent)
    found = client.read(broker.bootstrap, topic, len(sent))
    assert [(r.key, r.value, r.headers) for r in found] == [
        (r.key, r.value, r.headers) for r in sent
    ]
    assert [r.offset for r in found] == list(range(len(sent)))


@pytest.mark.needs("produce", "read", "timestamps")
def test_timestamps_of_the_producer_are_kept(broker, topic, client):
    sent = [Record(b"x", timestamp=NOW_MS + step) for step in (0, 5, 3, 100_000)]
    client.produce(broker.bootstrap, topic, sent)
    found = client.read(broker.bootstrap, topic, len(sent))
    assert [r.timestamp for r in found] == [r.timestamp for r in sent]


@pytest.mark.needs("produce", "read", "timestamps")
def test_a_topic_can_take_the_brokers_time_instead(broker, client):
    topic = broker.create_topic(config={"message.timestamp.type": "LogAppendTime"})
    client.produce(broker.bootstrap, topic, [Record(b"x", timestamp=1000)])
    (found,) = client.read(broker.bootstrap, topic, 1)
    assert found.timestamp > NOW_MS
    assert found.timestamp != 1000


@pytest.mark.needs("produce", "offsets")
def test_the_producer_is_told_the_offset_of_each_record(broker, topic, client):
    assert client.produce(broker.bootstrap, topic, [Record(b"a"), Record(b"b")]) == [0, 1]
    assert client.produce(broker.bootstrap, topic, [Record(b"c")]) == [2]


@pytest.mark.needs("produce", "read")
@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_every_kind_of_acks_writes_the_records(broker, topic, client, acks):
    sent = [Record(b"%d" % at) for at in range(20)]
    client.produce(broker.bootstrap, topic, sent, acks=acks)
    assert values(client.read(broker.bootstrap, topic, 20)) == values(sent)


@pytest.mark.needs("produce", "read", "idempotence")
def test_an_idempotent_producer_writes_every_record_once(broker, topic, client):
    sent = [Record(b"%d" % at) for at in range(200 if client.NAME != "kcat" else 20)]
    client.produce(broker.bootstrap, topic, sent, idempotent=True, per_batch=5)
    client.produce(broker.bootstrap, topic, [Record(b"last")], idempotent=True)
    expected = [*values(sent), b"last"]
    assert values(client.read(broker.bootstrap, topic, len(expected))) == expected
    assert headers_of(broker, topic)[0].producer_id >= 0


@pytest.mark.needs("produce", "read")
def test_records_stay_in_order_within_a_partition(broker, topic, client):
    count = 5000 if client.NAME != "kcat" else 200
    sent = [Record(b"%06d" % at) for at in range(count)]
    client.produce(broker.bootstrap, topic, sent)
    found = client.read(broker.bootstrap, topic, count)
    assert values(found) == values(sent)
    assert [r.offset for r in found] == list(range(count))


@pytest.mark.needs("produce", "read", "bounds")
def test_partitions_are_logs_of_their_own(broker, client):
    topic = broker.create_topic(partitions=4)
    for partition in range(4):
        sent = [Record(b"%d-%d" % (partition, at)) for at in range(partition)]
        if sent:
            client.produce(broker.bootstrap, topic, sent, partition=partition)
    for partition in range(4):
        assert client.bounds(broker.bootstrap, topic, partition) == (0, partition)
        if partition:
            found = client.read(broker.bootstrap, topic, partition, partition=partition)
            assert values(found) == [b"%d-%d" % (partition, at) for at in range(partition)]


@pytest.mark.needs("produce", "read")
def test_reading_can_start_at_any_offset(broker, topic, client):
    client.produce(broker.bootstrap, topic, [Record(b"%d" % at) for at in range(10)])
    for start in (0, 3, 9):
        found = client.read(broker.bootstrap, topic, 10 - start, start=start)
        assert [r.offset for r in found] == list(range(start, 10))


@pytest.mark.needs("produce", "read")
def test_a_record_of_nearly_a_megabyte_goes_through(broker, topic, client):
    big = bytes(range(256)) * 3900
    client.produce(broker.bootstrap, topic, [Record(big), Record(b"small")])
    assert values(client.read(broker.bootstrap, topic, 2)) == [big, b"small"]


@pytest.mark.needs("produce", "read")
def test_a_topic_can_allow_much_larger_records(broker, client):
    topic = broker.create_topic(config={"max.message.bytes": 30_000_000})
    huge = bytes(range(256)) * 80_000
    options = {"max_bytes": 25_000_000}
    client.produce(broker.bootstrap, topic, [Record(huge)], **options)
    assert values(client.read(broker.bootstrap, topic, 1, **options)) == [huge]


@pytest.mark.needs("produce", "read")
def test_a_record_larger_than_one_fetch_is_still_delivered(broker, topic, client):
    big = b"x" * 500_000
    client.produce(broker.bootstrap, topic, [Record(big), Record(b"after")])
    found = client.read(broker.bootstrap, topic, 2, max_bytes=10_000)
    assert values(found) == [big, b"after"]


@pytest.mark.needs("produce")
def test_a_record_larger_than_the_topic_allows_is_refused_and_not_written(broker, client):
    topic = broker.create_topic(config={"max.message.bytes": 1000})
    with pytest.raises(Refused) as refusal:
        client.produce(broker.bootstrap, topic, [Record(b"x" * 5000)], max_bytes=2**20)
    assert refusal.value.name == "MESSAGE_TOO_LARGE"
    client.produce(broker.bootstrap, topic, [Record(b"fits")])
    assert values(confluent_read(broker, topic, 1)) == [b"fits"]


@pytest.mark.needs("produce", "read")
def test_a_consumer_that_waits_gets_a_record_as_soon_as_it_is_written(broker, topic, client):
    """The fetch may wait a minute; only a wake-up by the write lets it return in time."""
    client.produce(broker.bootstrap, topic, [Record(b"before")])
    with client.waiting(broker.bootstrap, topic, 1) as next_record:
        client.produce(broker.bootstrap, topic, [Record(b"the one")])
        assert next_record().value == b"the one"


# -- codecs ----------------------------------------------------------------------------------


@cache
def compressed_topic(broker, producer, codec):
    """A topic that one producer has filled in one codec, for all consumers to read."""
    topic = broker.create_topic()
    producer.produce(broker.bootstrap, topic, compressible(codec), codec=codec)
    return topic


def compressible(codec):
    return [Record(b"%d " % at + b"compressible " * 50, key=codec.encode()) for at in range(20)]


@pytest.mark.parametrize("codec", CODECS)
def test_every_consumer_reads_what_every_producer_compressed(broker, producer, consumer, codec):
    for client in (producer, consumer):
        if codec not in client.codecs():
            pytest.skip(f"{client.NAME} has no {codec} on this machine")
    topic = compressed_topic(broker, producer, codec)
    found = consumer.read(broker.bootstrap, topic, 20)
    assert [(r.key, r.value) for r in found] == [(r.key, r.value) for r in compressible(codec)]
    # librdkafka sends lz4 only to brokers that have FindCoordinator.
    assert {header.codec for header in headers_of(broker, topic)} == {Codec[codec.upper()]}


def headers_of(broker, topic):
    """Return the headers of the batches on disk."""
    (segment,) = (broker.data() / f"{topic}-0").glob("*.log")
    return [header for _, header in batches(segment.read_bytes())]


def confluent_read(broker, topic, count):
    from tests.conformance.adapters import confluent

    return confluent.read(broker.bootstrap, topic, count)
