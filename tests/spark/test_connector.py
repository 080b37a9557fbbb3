"""Spark's own Kafka connector, a jar without Hightide's code, against our brokers."""

from __future__ import annotations

import json

import pytest
from confluent_kafka import Producer

from bench.harness.maven import SPARK_CONNECTOR, NoMaven, jars_of

pytestmark = pytest.mark.extended


@pytest.fixture(scope="module")
def kafka(spark, broker):
    """Return options for `format("kafka")`; the session has the connector if Maven could download
    it.
    """
    try:
        jars_of(*SPARK_CONNECTOR)
    except NoMaven as error:
        pytest.skip(f"Spark's own Kafka connector was not tried: {error}")
    return {"kafka.bootstrap.servers": broker.bootstrap}


def read(spark, kafka, topic, **options):
    return spark.read.format("kafka").options(**kafka, subscribe=topic, **options).load()


def numbers(rows):
    return sorted(row.number for row in rows.selectExpr("int(string(value)) number").collect())


def test_it_writes_a_batch_and_reads_it(spark, broker, kafka):
    topic = broker.create_topic(partitions=3)
    rows = spark.range(1000).selectExpr(
        "string(id % 7) key",
        "string(id) value",
        "array(struct('h' key, binary('x') value)) headers",
    )
    rows.write.format("kafka").options(**kafka, topic=topic, includeHeaders=True).save()
    found = read(spark, kafka, topic, includeHeaders=True)
    assert numbers(found) == list(range(1000))
    # A key has one partition, and each record its header.
    assert found.selectExpr("key", "partition").distinct().count() == 7
    assert found.where("headers[0].key = 'h' and string(headers[0].value) = 'x'").count() == 1000


def test_it_reads_between_offsets_and_times(spark, broker, kafka):
    topic = broker.create_topic(partitions=1)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for at in range(10):
        producer.produce(topic, str(at), partition=0, timestamp=1_700_000_000_000 + at * 1000)
    producer.flush()
    part = {
        "startingOffsets": json.dumps({topic: {"0": 3}}),
        "endingOffsets": json.dumps({topic: {"0": 7}}),
    }
    assert numbers(read(spark, kafka, topic, **part)) == [3, 4, 5, 6]
    assert numbers(read(spark, kafka, topic, startingTimestamp="1700000006500")) == [7, 8, 9]


def test_it_does_not_see_what_is_not_committed(spark, broker, kafka):
    topic = broker.create_topic(partitions=1)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": topic})
    producer.init_transactions()
    for at, is_committed in enumerate((True, False, True)):
        producer.begin_transaction()
        for number in range(at * 10, at * 10 + 10):
            producer.produce(topic, str(number))
        producer.flush()  # An abort drops records that were not sent yet.
        producer.commit_transaction() if is_committed else producer.abort_transaction()
    committed = read(spark, kafka, topic, **{"kafka.isolation.level": "read_committed"})
    assert numbers(committed) == [*range(10), *range(20, 30)]
    assert numbers(read(spark, kafka, topic)) == list(range(30))


def test_it_streams_from_topics_to_a_topic_and_goes_on_where_it_stopped(
    spark, broker, kafka, checkpoint
):
    start, out = broker.create_topic(partitions=2), broker.create_topic(partitions=2)
    producer = Producer({"bootstrap.servers": broker.bootstrap})

    def go_on(numbers_now):
        for number in numbers_now:
            producer.produce(start, str(number))
        producer.flush()
        stream = spark.readStream.format("kafka").options(
            **kafka,
            subscribePattern=start[:-1] + ".",
            startingOffsets="earliest",
            maxOffsetsPerTrigger=40,
        )
        query = (
            stream.load()
            .writeStream.format("kafka")
            .options(**kafka, topic=out, checkpointLocation=checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    go_on(range(100))
    go_on(range(100, 150))
    assert numbers(read(spark, kafka, out)) == list(range(150))
