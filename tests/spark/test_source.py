"""Batch queries of topics. Most tests call what a task runs as Spark does, without Spark."""

from __future__ import annotations

import json

import pytest

from hightide.spark.source import BatchReader, OptionError, for_batch
from hightide.spark.source.batch_plan import DataLoss
from hightide.spark.source.offsets import PositionError
from hightide.testing import Cluster
from hightide.wire.errors import KafkaError
from tests.spark.topics import (
    DEADLINE_S,
    delete_records,
    grow,
    named,
    options,
    produce,
    read,
    rows,
    transaction,
    values,
)
from tests.support.eventually import eventually

OLD_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def two(broker):
    """A topic with records 0, 2, 4 … in one partition and 1, 3, 5 … in the other."""
    topic = broker.create_topic("source-two", partitions=2)
    produce(broker, topic, named(*range(0, 20, 2)), timestamp=OLD_MS)
    produce(broker, topic, named(*range(1, 20, 2)), partition=1, timestamp=OLD_MS + 1000)
    return topic


# -- through Spark ---------------------------------------------------------------------------


def test_spark_finds_the_source_by_name_and_has_the_columns_of_its_kafka_source(spark, broker):
    topic = broker.create_topic("source-columns")
    headers = [("a", b"1"), ("a", None), ("é", b"")]
    produce(broker, topic, [b"one"], headers=headers, timestamp=OLD_MS + 5)
    produce(broker, topic, [None], settings={"compression.type": "zstd"})
    frame = (
        spark.read.format("hightide")
        .options(**options(broker, subscribe=topic, includeHeaders="true"))
        .load()
    )
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,"
        "timestamp:timestamp,timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    first, second = (
        frame.selectExpr("*", "unix_millis(timestamp) as ms").orderBy("offset").collect()
    )
    assert (first.key, first.value, first.topic) == (b"one", b"one", topic)
    assert (first.partition, first.offset, first.ms, first.timestampType) == (0, 0, OLD_MS + 5, 0)
    assert [tuple(header) for header in first.headers] == headers
    assert (second.key, second.value, second.offset) == (None, None, 1)
    assert not second.headers


def test_sql_reads_a_topic_through_a_view(spark, broker, two):
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW two USING hightide OPTIONS ("
        f"`kafka.bootstrap.servers` '{broker.bootstrap}', subscribe '{two}', "
        "columns 'offset,value')"
    )
    found = spark.sql("SELECT count(*) n, max(cast(value AS STRING)) last FROM two").first()
    assert tuple(found) == (20, "019")
    assert spark.table("two").columns == ["value", "offset"]


def test_a_mistake_is_told_when_the_frame_is_made(spark, broker, two):
    wrong = options(broker, subscribe=two, startingOfsets="earliest")
    with pytest.raises(Exception, match="Did you mean startingOffsets"):
        spark.read.format("hightide").options(**wrong).load()
    with pytest.raises(Exception, match="another schema cannot be set"):
        spark.read.format("hightide").schema("a INT").options(
            **options(broker, subscribe=two)
        ).load().collect()


def test_a_live_batch_sees_records_and_partitions_that_came_after_it_was_planned(broker):
    topic = broker.create_topic("source-live")
    produce(broker, topic, named(0))
    other = broker.create_topic("source-live-too", partitions=2)
    produce(broker, other, named(3), partition=1)
    both = options(broker, subscribe=f"{topic},{other}", endingOffsets="live")
    reader = BatchReader(for_batch(both))
    planned = reader.partitions()
    assert values(rows(reader, planned)) == named(0, 3)
    grow(broker, topic, 3)
    produce(broker, topic, named(1))
    produce(broker, topic, named(2), partition=2)
    found = eventually(lambda: found if len(found := rows(reader, planned)) == 4 else None)
    assert sorted(values(found)) == named(0, 1, 2, 3)


# -- what is read ----------------------------------------------------------------------------


def test_topics_are_chosen_by_name_by_pattern_and_by_partition(broker, two):
    assert len(read(broker, subscribe=f"{two}, {two}")) == 20
    assert len(read(broker, subscribePattern="source-t[uvw]o")) == 20
    assert read(broker, subscribePattern="source-t") == []
    assert values(read(broker, assign=json.dumps({two: [1]}))) == named(*range(1, 20, 2))


def test_a_range_is_read_by_offsets(broker, two):
    found = read(
        broker,
        subscribe=two,
        startingOffsets=json.dumps({two: {"0": 3, "1": -2}}),
        endingOffsets=json.dumps({two: {"0": 5, "1": 2}}),
    )
    assert [(row["partition"], row["offset"]) for row in found] == [(0, 3), (0, 4), (1, 0), (1, 1)]


def test_a_range_is_read_by_time(broker, two):
    assert values(read(broker, subscribe=two, endingTimestamp=OLD_MS + 1)) == named(
        *range(0, 20, 2)
    )
    later = read(
        broker,
        subscribe=two,
        startingTimestamp=OLD_MS + 1,
        startingOffsetsByTimestampStrategy="latest",
    )
    assert values(later) == named(*range(1, 20, 2))
    by_partition = json.dumps({two: {"0": OLD_MS, "1": OLD_MS}})
    assert len(read(broker, subscribe=two, startingOffsetsByTimestamp=by_partition)) == 20
    with pytest.raises(PositionError, match=f"{two}/0 has no record at or after"):
        read(broker, subscribe=two, startingTimestamp=OLD_MS + 1)


def test_tasks_share_the_records_out(broker, two):
    for given, count in (({"minPartitions": 4}, 4), ({"maxRecordsPerPartition": 3}, 8)):
        reader = BatchReader(for_batch(options(broker, subscribe=two, **given)))
        cut = reader.partitions()
        assert len(cut) == count
        assert sorted(values(rows(reader, cut))) == named(*range(20))


def test_an_empty_topic_has_no_rows(broker):
    assert read(broker, subscribe=broker.create_topic("source-empty", partitions=3)) == []


def test_columns_that_are_not_wanted_are_left_out(broker, two):
    (first, *_) = read(broker, subscribe=two, columns="timestamp,value")
    assert list(first) == ["value", "timestamp"]


def test_only_committed_records_are_read_if_that_is_wanted(broker):
    topic = broker.create_topic("source-committed")
    produce(broker, topic, named(0))
    transaction(broker, topic, named(1, 2), commit=True)
    transaction(broker, topic, named(3, 4), commit=False)
    produce(broker, topic, named(5))
    pending = transaction(broker, topic, named(6), commit=None)
    produce(broker, topic, named(7))
    everything = read(broker, subscribe=topic)
    assert values(everything) == named(*range(8))
    # Markers of transactions have offsets too.
    assert [row["offset"] for row in everything] == [0, 1, 2, 4, 5, 7, 8, 9]
    committed = {"subscribe": topic, "kafka_isolation.level": "read_committed"}
    assert values(read(broker, **committed)) == named(0, 1, 2, 5)
    assert values(read(broker, **committed, minPartitions=5)) == named(0, 1, 2, 5)
    pending.abort_transaction(DEADLINE_S)
    assert eventually(lambda: values(read(broker, **committed)) == named(0, 1, 2, 5, 7))


def test_gaps_that_compaction_leaves_are_passed_over():
    settings = {
        "log.initial.task.delay.ms": 0,
        "log.cleaner.backoff.ms": 50,
        "log.flush.offset.checkpoint.interval.ms": 50,
    }
    config = {"cleanup.policy": "compact", "segment.bytes": 2000, "min.cleanable.dirty.ratio": 0.01}
    with Cluster(settings=settings) as cluster:
        topic = cluster.create_topic(config=config)
        for record in named(*range(24)):
            # One record per batch, so that segments can roll between them.
            produce(cluster, topic, [record + b"x" * 500], key=lambda value: b"%d" % (value[2] % 3))
        found = eventually(lambda: gappy(read(cluster, subscribe=topic)))
        again = read(cluster, subscribe=topic, maxRecordsPerPartition=1)
        assert {row["offset"] for row in again} <= {row["offset"] for row in found}
        assert again[-1]["offset"] == 23


def gappy(found):
    offsets = [row["offset"] for row in found]
    return found if len(offsets) < offsets[-1] - offsets[0] + 1 else None


# -- lost records ----------------------------------------------------------------------------


def test_records_that_are_gone_are_a_loss_or_a_warning(broker, caplog):
    topic = broker.create_topic("source-gone")
    produce(broker, topic, named(*range(10)))
    given = {"subscribe": topic, "startingOffsets": json.dumps({topic: {"0": 2}})}
    early = BatchReader(for_batch(options(broker, **given)))
    lenient = BatchReader(for_batch(options(broker, **given, failOnDataLoss="false")))
    whole = BatchReader(for_batch(options(broker, subscribe=topic)))
    planned, tolerated, all_of_it = early.partitions(), lenient.partitions(), whole.partitions()
    delete_records(broker, topic, 6)
    with pytest.raises(DataLoss, match=r"offsets 2 to 5 are no longer in the log.*failOnDataLoss"):
        rows(early, planned)
    with pytest.raises(DataLoss, match="starts at offset 2, but the log starts at 6"):
        early.partitions()
    assert values(rows(lenient, tolerated)) == named(6, 7, 8, 9)
    assert "offsets 2 to 5 are no longer in the log" in caplog.text
    # With "earliest", a later log start is no loss.
    assert values(rows(whole, all_of_it)) == named(6, 7, 8, 9)
    beyond = {"subscribe": topic, "endingOffsets": json.dumps({topic: {"0": 99}})}
    with pytest.raises(DataLoss, match="ends at offset 99, but the log ends at 10"):
        read(broker, **beyond)
    assert len(read(broker, **beyond, failOnDataLoss="false")) == 4


def test_what_is_not_there_is_said_in_words(broker, two):
    with pytest.raises(KafkaError, match="There is no topic 'source-nowhere'"):
        read(broker, subscribe="source-nowhere")
    with pytest.raises(PositionError, match="Partition 7 of 'source-two'"):
        read(broker, assign=json.dumps({two: [7]}))
    with pytest.raises(PositionError, match=f"missing for {two}/1"):
        read(broker, subscribe=two, startingOffsets=json.dumps({two: {"0": 3}}))
    with pytest.raises(OptionError, match="would be empty"):
        read(broker, subscribe=two, startingOffsets="latest")


def test_options_of_the_client_that_change_nothing_are_named(broker, two, caplog):
    read(broker, subscribe=two, **{"kafka_max.poll.records": 5})
    assert "These options have no effect: kafka.max.poll.records." in caplog.text
