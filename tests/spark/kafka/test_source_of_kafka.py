"""The source reads Apache Kafka as it reads Hightide, through each of its listeners."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from hightide.spark.blocking_client import shared_client
from tests.spark.apache import PASSWORD, USER
from tests.spark.topics import create_topic, grow, named, produce, read, rows, stream, transaction
from tests.spark.topics import values as values_of
from tests.support.eventually import eventually

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@pytest.fixture(scope="module")
def cluster(kafka):
    return SimpleNamespace(bootstrap=kafka.address())


def test_batches_in_every_codec_and_transaction_are_read(cluster):
    topic = create_topic(cluster, "kafka-batches")
    for codec in CODECS:
        many = [codec.encode() + record * 50 for record in named(*range(10))]
        produce(cluster, topic, many, settings={"compression.type": codec})
    transaction(cluster, topic, named(1), commit=False)
    transaction(cluster, topic, named(2), commit=True)
    found = read(cluster, subscribe=topic, **{"kafka_isolation.level": "read_committed"})
    assert len(found) == 10 * len(CODECS) + 1
    assert found[-1]["value"] == named(2)[0]
    assert [row["offset"] for row in found] == [*range(50), 52]
    assert len(read(cluster, subscribe=topic, minPartitions=7)) == 52


def test_a_stream_keeps_its_limit_finds_new_partitions_and_shows_its_progress(cluster):
    topic = create_topic(cluster, "kafka-stream")
    produce(cluster, topic, named(*range(5)))
    reader = stream(
        cluster,
        subscribe=topic,
        startingOffsets="earliest",
        kafka_group_id="kafka-watched",
        **{"kafka_metadata.max.age.ms": 0},
    )
    start, seen = reader.initialOffset(), []

    def one():
        nonlocal start
        end = reader.latestOffset(start, ReadMaxRows(3))
        found = values_of(rows(reader, reader.partitions(start, end)))
        assert len(found) <= 4
        seen.extend(found)
        start = end
        return end

    assert one() == {topic: {"0": 3}}
    grow(cluster, topic, 2)
    produce(cluster, topic, named(5), partition=1)
    eventually(lambda: one() == {topic: {"0": 5, "1": 1}})
    assert sorted(seen) == named(*range(6))
    one()
    committed = shared_client({"bootstrap.servers": cluster.bootstrap}).committed("kafka-watched")
    assert {where: offset for where, (offset, _) in committed.items()} == {
        (topic, 0): 5,
        (topic, 1): 1,
    }


@pytest.mark.parametrize("listener", ["SASL_PLAINTEXT", "SSL", "SASL_SSL"])
def test_a_secured_listener_is_read_with_kafkas_own_options(cluster, kafka, listener):
    topic = create_topic(cluster, f"kafka-{listener.lower()}")
    produce(cluster, topic, named(0, 1, 2))
    given = {"kafka_security.protocol": listener}
    if listener.startswith("SASL"):
        quoted = PASSWORD.replace('"', r"\"")
        given["kafka_sasl.mechanism"] = "SCRAM-SHA-256"
        given["kafka_sasl.jaas.config"] = (
            "org.apache.kafka.common.security.scram.ScramLoginModule required "
            f'username="{USER}" password="{quoted}";'
        )
    if listener.endswith("SSL"):
        given["kafka_ssl.truststore.type"] = "PEM"
        given["kafka_ssl.truststore.location"] = kafka.authority
    way_in = SimpleNamespace(bootstrap=kafka.address(listener))
    assert values_of(read(way_in, subscribe=topic, **given)) == named(0, 1, 2)
