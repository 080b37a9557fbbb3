"""Streams of topics: from batch to batch without Spark, and whole queries with it."""

from __future__ import annotations

import json
import pickle

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

from bench.harness.maven import SPARK_CONNECTOR, NoMaven, jars_of
from hightide.spark.blocking_client import shared_client
from hightide.spark.source import commit_progress
from hightide.spark.source.batch_plan import DataLoss
from hightide.wire.errors import KafkaError
from tests.spark.topics import (
    delete_records,
    delete_topic,
    grow,
    named,
    options,
    produce,
    rows,
    stream,
    transaction,
    values,
)
from tests.support.eventually import eventually

ALL = ReadAllAvailable()
# Metadata is refreshed with each batch, so that tests need not wait for it.
FRESH = {"kafka_metadata.max.age.ms": 0, "fetchOffset_retryIntervalMs": 10}


def answer(*offsets, topic):
    return {topic: {str(partition): offset for partition, offset in enumerate(offsets)}}


def batch(reader, start, limit=ALL):
    """Do what Spark does for one batch; return where it ends and what it reads."""
    end = json.loads(json.dumps(reader.latestOffset(start, limit)))
    return end, values(rows(reader, reader.partitions(start, end)))


def until(reader, start, wanted, limit=ALL):
    """Run batches until one ends as wanted: metadata takes a moment to reach all brokers."""

    def one():
        nonlocal start
        start, found = batch(reader, start, limit)
        read.extend(found)
        return start == wanted

    read = []
    eventually(one)
    return read


# -- from batch to batch ---------------------------------------------------------------------


def test_a_stream_from_the_earliest_goes_on_where_it_was(broker):
    topic = broker.create_topic("stream-plain", partitions=2)
    produce(broker, topic, named(0, 1))
    reader = stream(broker, subscribe=topic, startingOffsets="earliest")
    start = reader.initialOffset()
    assert start == answer(0, 0, topic=topic)
    end, found = batch(reader, start)
    assert (end, found) == (answer(2, 0, topic=topic), named(0, 1))
    assert batch(reader, end) == (end, [])
    produce(broker, topic, named(2), partition=1)
    # A new reader needs only the offsets.
    later = pickle.loads(pickle.dumps(reader))
    assert batch(later, end) == (answer(2, 1, topic=topic), named(2))
    assert later.reportLatestOffset() == answer(2, 1, topic=topic)


def test_where_a_stream_from_the_latest_starts_outlives_a_crash_in_its_first_batch(broker):
    topic = broker.create_topic("stream-latest")
    produce(broker, topic, named(0, 1))
    reader = stream(broker, subscribe=topic)
    start = reader.initialOffset()
    end, found = batch(reader, start)
    assert (end, found) == (answer(2, topic=topic), [])
    produce(broker, topic, named(2))
    # Spark runs the batch again, and asks again where the query starts.
    again = stream(broker, subscribe=topic)
    assert again.initialOffset() == start
    assert again.partitions(start, end) == []
    assert batch(again, end) == (answer(3, topic=topic), named(2))


def test_a_limit_is_kept_and_everything_is_read_in_the_end(broker):
    topic = broker.create_topic("stream-limit", partitions=2)
    produce(broker, topic, named(*range(30)))
    produce(broker, topic, named(*range(30, 40)), partition=1)
    reader = stream(broker, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=8)
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(8)
    start, read = reader.initialOffset(), []
    end, found = batch(reader, start, limit)
    assert end == answer(6, 2, topic=topic)
    while end != start:
        assert 0 < len(found) <= 9
        read += found
        start = end
        end, found = batch(reader, start, limit)
    assert sorted(read) == named(*range(40))
    # ReadAllAvailable ignores the minimum.
    assert batch(reader, answer(0, 0, topic=topic))[0] == answer(30, 10, topic=topic)


def test_a_batch_waits_for_enough_records_but_not_for_ever(broker):
    topic = broker.create_topic("stream-patient")
    produce(broker, topic, named(0))
    given = {"subscribe": topic, "startingOffsets": "earliest", "minOffsetsPerTrigger": 3}
    reader = stream(broker, **given)
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMinRows(3)
    end, found = batch(reader, reader.initialOffset(), limit)
    assert found == named(0), "the first batch does not wait"
    produce(broker, topic, named(1, 2))
    assert batch(reader, end, limit) == (end, [])
    impatient = stream(broker, **given, maxTriggerDelay="0s")
    assert batch(impatient, end, limit)[1] == named(1, 2)
    produce(broker, topic, named(3))
    assert batch(reader, end, limit)[1] == named(1, 2, 3)
    ending = stream(broker, **given)
    ending.prepareForTriggerAvailableNow()
    assert batch(ending, answer(3, topic=topic), limit)[1] == named(3)


def test_available_now_ends_at_what_was_there(broker):
    topic = broker.create_topic("stream-now", partitions=2)
    produce(broker, topic, named(0, 1, 2))
    reader = stream(broker, subscribe=topic, startingOffsets="earliest", **FRESH)
    reader.prepareForTriggerAvailableNow()
    produce(broker, topic, named(3))
    grow(broker, topic, 3)
    # As if the query had been stopped before the second partition was there.
    start = {topic: {"0": 1}}
    end, found = batch(reader, start)
    assert (end, found) == (answer(3, 0, topic=topic), named(1, 2))
    assert batch(reader, end) == (end, [])
    latest = stream(broker, subscribe=topic)
    latest.prepareForTriggerAvailableNow()
    produce(broker, topic, named(4))
    assert batch(latest, latest.initialOffset()) == (answer(4, 0, 0, topic=topic), [])


def test_partitions_and_topics_that_come_later_are_read_from_their_first_record(broker):
    topic = broker.create_topic("stream-new-1")
    reader = stream(broker, subscribePattern="stream-new-.*", **FRESH)
    start, _ = batch(reader, reader.initialOffset())
    assert start == answer(0, topic=topic)
    grow(broker, topic, 2)
    produce(broker, topic, named(0), partition=1)
    other = broker.create_topic("stream-new-2")
    produce(broker, other, named(1))
    wanted = {topic: {"0": 0, "1": 1}, other: {"0": 1}}
    assert sorted(until(reader, start, wanted)) == named(0, 1)


def test_a_pattern_that_nothing_matches_yet_waits_and_then_reads_all(broker):
    reader = stream(broker, subscribePattern="stream-early-.*", **FRESH)
    start = reader.initialOffset()
    end, _ = batch(reader, start)
    assert end == {}
    assert end != start, "Spark has to write down that the query has begun"
    topic = broker.create_topic("stream-early-1")
    produce(broker, topic, named(0, 1))
    assert until(reader, end, answer(2, topic=topic)) == named(0, 1)


def test_a_stream_of_committed_records_ends_before_open_transactions(broker):
    topic = broker.create_topic("stream-committed")
    transaction(broker, topic, named(0), commit=False)
    given = {"kafka_isolation.level": "read_committed", "startingOffsets": "earliest"}
    reader = stream(broker, subscribe=topic, **given)
    transaction(broker, topic, named(1), commit=True)
    pending = transaction(broker, topic, named(2), commit=None)
    end, found = batch(reader, reader.initialOffset())
    assert (end, found) == (answer(4, topic=topic), named(1))
    pending.commit_transaction(60)
    assert until(reader, end, answer(6, topic=topic)) == named(2)


@pytest.mark.extended
def test_a_stream_goes_on_when_the_leader_dies(three):
    topic = three.create_topic("stream-failover", replication_factor=3)
    produce(three, topic, named(*range(10)))
    reader = stream(three, subscribe=topic, startingOffsets="earliest")
    end, found = batch(reader, reader.initialOffset())
    assert found == named(*range(10))
    leader = three.leader(topic)
    three.kill(leader)
    try:
        produce(three, topic, named(*range(10, 20)))
        assert until(reader, end, answer(20, topic=topic)) == named(*range(10, 20))
    finally:
        three.restart(leader)


# -- lost records ----------------------------------------------------------------------------


@pytest.mark.extended
def test_a_deleted_topic_stops_the_query_or_is_forgotten(broker, caplog):
    topic = broker.create_topic("stream-deleted")
    other = broker.create_topic("stream-kept")
    produce(broker, topic, named(0))
    given = {"subscribe": f"{topic},{other}", "startingOffsets": "earliest", **FRESH}
    strict = stream(broker, **given)
    end, _ = batch(strict, strict.initialOffset())
    delete_topic(broker, topic)

    def lost():
        with pytest.raises(DataLoss, match=f"{topic}/0: deleted or") as raised:
            strict.latestOffset(end, ALL)
        return raised

    assert eventually(lost)
    lenient = stream(broker, **given, failOnDataLoss="false")
    end, _ = batch(lenient, end)
    assert end == answer(0, topic=other)
    assert f"{topic}/0: deleted" in caplog.text
    broker.create_topic(topic)
    produce(broker, topic, named(1))
    assert until(lenient, end, answer(1, topic=topic) | answer(0, topic=other)) == named(1)


def test_a_topic_created_again_stops_the_query_or_is_read_from_its_beginning(broker):
    topic = broker.create_topic("stream-recreated")
    produce(broker, topic, named(*range(5)))
    given = {"subscribe": topic, "startingOffsets": "earliest", **FRESH}
    strict = stream(broker, **given)
    end, _ = batch(strict, strict.initialOffset())
    delete_topic(broker, topic)
    broker.create_topic(topic)
    produce(broker, topic, named(7, 8))
    with pytest.raises(DataLoss, match=r"is at offset 5, but the log ends at 2\. .* created again"):
        strict.latestOffset(end, ALL)
    lenient = stream(broker, **given, failOnDataLoss="false")
    assert until(lenient, end, answer(2, topic=topic)) == named(7, 8)


def test_retention_that_overtakes_a_stream_stops_it_or_is_a_warning(broker, caplog):
    topic = broker.create_topic("stream-overtaken")
    produce(broker, topic, named(*range(6)))
    delete_records(broker, topic, 4)
    start = answer(1, topic=topic)
    with pytest.raises(DataLoss, match=r"offsets 1 to 3 are no longer in the log"):
        batch(stream(broker, subscribe=topic), start)
    lenient = stream(broker, subscribe=topic, failOnDataLoss="false")
    assert batch(lenient, start) == (answer(6, topic=topic), named(4, 5))
    assert "continues without them" in caplog.text


def test_a_topic_that_was_never_there_is_said_before_the_query_runs(broker):
    with pytest.raises(KafkaError, match="There is no topic 'stream-nowhere'"):
        stream(broker, subscribe="stream-nowhere").initialOffset()


def test_a_group_that_cannot_be_committed_to_does_not_stop_the_query(broker, caplog):
    topic = broker.create_topic("stream-group")
    produce(broker, topic, named(0))
    reader = stream(broker, subscribe=topic, startingOffsets="earliest", group_id="x" * 40_000)
    end, found = batch(reader, reader.initialOffset())
    reader.commit(end)
    assert found == named(0)
    assert "could not be committed" in caplog.text


# -- whole queries ---------------------------------------------------------------------------


def frame(spark, broker, **given):
    return spark.readStream.format("hightide").options(**options(broker, **given)).load()


def committed_offsets(broker, group):
    found = shared_client({"bootstrap.servers": broker.bootstrap}).committed(group)
    return {where: offset for where, (offset, _) in found.items()}


def test_a_query_stops_and_goes_on_and_its_group_shows_how_far_it_is(spark, broker, checkpoint):
    topic = broker.create_topic("query-plain", partitions=2)
    batches = []

    def collect(found, number):
        batches.append((number, [row.value for row in found.select("value").collect()]))

    def run():
        given = {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": 20}
        query = (
            frame(spark, broker, **given, kafka_group_id="watched")
            .writeStream.foreachBatch(collect)
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)
        return query

    produce(broker, topic, named(*range(30)))
    query = run()
    assert [number for number, _ in batches] == [0, 1]
    assert [value for _, found in batches for value in found] == named(*range(30))
    (source,) = query.lastProgress.sources
    assert json.loads(source.endOffset) == answer(30, 0, topic=topic)
    assert json.loads(source.latestOffset) == answer(30, 0, topic=topic)
    # The last batch too, although Spark does not tell a source that it is finished.
    assert committed_offsets(broker, "watched") == {(topic, 0): 30, (topic, 1): 0}
    produce(broker, topic, named(30, 31), partition=1)
    run()
    assert batches[2:] == [(2, named(30, 31))]
    assert committed_offsets(broker, "watched") == {(topic, 0): 30, (topic, 1): 2}


@pytest.mark.extended
def test_a_checkpoint_of_sparks_own_connector_is_gone_on_from(spark, broker, checkpoint):
    try:
        jars_of(*SPARK_CONNECTOR)
    except NoMaven as error:
        pytest.skip(f"Spark's own Kafka connector was not tried: {error}")
    topic = broker.create_topic("query-moving", partitions=2)
    seen = []
    for number, source in enumerate(("kafka", "hightide", "kafka")):
        produce(broker, topic, named(number), partition=number % 2)
        given = options(broker, subscribe=topic, startingOffsets="earliest")
        query = (
            spark.readStream.format(source)
            .options(**given)
            .load()
            .writeStream.foreachBatch(lambda found, _: seen.extend(found.select("value").collect()))
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)
        assert [row.value for row in seen] == named(*range(number + 1))


def test_a_running_query_reads_what_comes_and_the_partitions_that_come(spark, broker, checkpoint):
    topic = broker.create_topic("query-running")
    seen = []
    query = (
        frame(spark, broker, subscribe=topic, columns="value")
        .writeStream.foreachBatch(lambda found, _: seen.extend(row[0] for row in found.collect()))
        .queryName("running")
        .option("checkpointLocation", checkpoint)
        .start()
    )
    listener = commit_progress(spark, options(broker), "listened", query="running")
    try:
        eventually(lambda: query.lastProgress or query.exception())
        produce(broker, topic, named(0))
        eventually(lambda: seen == named(0) or query.exception())
        grow(broker, topic, 2)
        eventually(lambda: len(brokers_of(broker).offsets({(topic, 1): -1})) == 1)
        produce(broker, topic, named(1), partition=1)
        eventually(lambda: seen == named(0, 1) or query.exception())
        assert query.exception() is None
        eventually(lambda: committed_offsets(broker, "listened") == {(topic, 0): 1, (topic, 1): 1})
    finally:
        query.stop()
        spark.streams.removeListener(listener)


def brokers_of(broker):
    return shared_client({"bootstrap.servers": broker.bootstrap})
