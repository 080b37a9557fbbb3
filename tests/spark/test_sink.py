"""`format("hightide")` writes rows to topics, as Spark's own Kafka sink would."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer

from hightide.spark.blocking_client import shared_client
from tests.spark.copying_queries import DEADLINE_S, committed


def create(cluster, topic, partitions=1):
    shared_client({"bootstrap.servers": cluster.bootstrap}).create_topic(topic, partitions)


def write(frame, cluster, topic=None, **options):
    writer = frame.write.format("hightide").mode("append")
    writer = writer.option("kafka.bootstrap.servers", cluster.bootstrap)
    if topic is not None:
        writer = writer.option("topic", topic)
    writer.options(**options).save()


def test_a_batch_goes_where_other_clients_would_have_sent_it(spark, broker):
    create(broker, "plain", 5)
    create(broker, "plain-theirs", 5)
    rows = spark.range(0, 500, 1, 3).selectExpr(
        "CONCAT('user-', id) AS key",
        "CAST(id AS STRING) AS value",
        "ARRAY(STRUCT('n' AS key, CAST('1' AS BINARY) AS value)) AS headers",
        "id AS other",
    )
    write(rows, broker, "plain", **{"kafka.compression.type": "zstd", "includeHeaders": "true"})
    producer = Producer({"bootstrap.servers": broker.bootstrap, "partitioner": "murmur2"})
    for number in range(500):
        producer.produce("plain-theirs", str(number), f"user-{number}")
    assert producer.flush(DEADLINE_S) == 0
    ours = {record.value(): record for record in committed(broker.bootstrap, "plain", 5)}
    theirs = {record.value(): record for record in committed(broker.bootstrap, "plain-theirs", 5)}
    assert len(ours) == len(theirs) == 500
    for value, our in ours.items():
        assert our.headers() == [("n", b"1")]
        assert (our.key(), our.partition()) == (theirs[value].key(), theirs[value].partition())


def test_a_stream_is_written_and_goes_on_from_its_checkpoint(spark, broker, checkpoint):
    create(broker, "plain-stream", 2)
    for _ in range(2):
        query = (
            spark.readStream.format("rate-micro-batch")
            .option("rowsPerBatch", 50)
            .load()
            .selectExpr("CAST(value AS STRING) AS value", "'plain-stream' AS topic")
            .writeStream.format("hightide")
            .option("kafka.bootstrap.servers", broker.bootstrap)
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(DEADLINE_S)
    seen = committed(broker.bootstrap, "plain-stream", 2)
    assert sorted(int(record.value()) for record in seen) == list(range(100))


@pytest.mark.extended
@pytest.mark.parametrize(
    ("expression", "options", "words"),
    [
        (
            "id AS number",
            {"topic": "plain-wrong"},
            "There is no column value; the columns are number",
        ),
        ("id AS value", {"topic": "plain-wrong"}, "value is bigint; it must be string or binary"),
        ("'x' AS value", {}, "set one, or add a column topic"),
        ("'x' AS value", {"topic": "plain-missing"}, "plain-missing"),
        ("'x' AS value", {"topic": "plain-wrong", "kafka.acks": "0"}, "so set all or 1"),
    ],
)
def test_what_cannot_be_written_is_said_in_words(spark, broker, expression, options, words):
    create(broker, "plain-wrong")
    with pytest.raises(Exception, match=words):
        write(spark.range(2).selectExpr(expression), broker, **options)
    assert committed(broker.bootstrap, "plain-wrong") == []
