"""Retention and compaction: what a broker deletes, and what it keeps."""

from __future__ import annotations

import pytest

from hightide.testing import Cluster
from tests.conformance.adapters import Record, confluent, values
from tests.conformance.replicated import segments_in
from tests.support.eventually import eventually

OLD_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def tidy_broker():
    """A broker with frequent retention checks."""
    settings = {
        "log.initial.task.delay.ms": 0,
        "log.retention.check.interval.ms": 50,
        "log.cleaner.backoff.ms": 50,
        # Only synced records are compacted.
        "log.flush.offset.checkpoint.interval.ms": 50,
        "log.segment.delete.delay.ms": 0,
    }
    with Cluster(settings=settings) as cluster:
        yield cluster
        assert cluster.is_running(), cluster.log()


def fill(cluster, topic, count, *, timestamp=None, size=1000):
    """One record per batch, so that segments can roll between them."""
    for at in range(count):
        record = Record(b"%03d" % at + b"x" * size, key=b"%d" % (at % 3), timestamp=timestamp)
        confluent.produce(cluster.bootstrap, topic, [record])


def test_a_log_is_kept_below_its_size(tidy_broker):
    topic = tidy_broker.create_topic(config={"segment.bytes": 3000, "retention.bytes": 5000})
    fill(tidy_broker, topic, 12)
    # Two records make a segment; without the next one, less than retention.bytes would be left.
    eventually(lambda: confluent.bounds(tidy_broker.bootstrap, topic) == (6, 12))
    start, end = 6, 12
    found = confluent.read(tidy_broker.bootstrap, topic, end - start, start=start)
    assert [record.offset for record in found] == list(range(start, end))
    folder = tidy_broker.data() / f"{topic}-0"
    eventually(lambda: not list(folder.glob("*.deleted")))
    assert len(segments_in(folder)) < 12_000


def test_old_records_go_and_new_ones_stay(tidy_broker):
    topic = tidy_broker.create_topic(config={"segment.bytes": 3000, "retention.ms": 3_600_000})
    fill(tidy_broker, topic, 5, timestamp=OLD_MS)
    fill(tidy_broker, topic, 5)
    eventually(lambda: confluent.bounds(tidy_broker.bootstrap, topic)[0] >= 4)
    assert confluent.bounds(tidy_broker.bootstrap, topic)[1] == 10
    newest = confluent.read(tidy_broker.bootstrap, topic, 5, start=5)
    assert [(value or b"")[:3] for value in values(newest)] == [b"%03d" % at for at in range(5)]


@pytest.mark.extended
def test_a_compacted_topic_keeps_the_last_value_of_every_key(tidy_broker):
    config = {
        "cleanup.policy": "compact",
        "segment.bytes": 2000,
        "min.cleanable.dirty.ratio": "0.01",
        "delete.retention.ms": 0,
    }
    topic = tidy_broker.create_topic(config=config)
    fill(tidy_broker, topic, 30)
    confluent.produce(tidy_broker.bootstrap, topic, [Record(None, key=b"0")])
    # The active segment is never compacted, so records must follow.
    for at in range(6):
        confluent.produce(tidy_broker.bootstrap, topic, [Record(b"y" * 1000, key=b"f%d" % at)])

    def compacted():
        found = read_all(tidy_broker, topic)
        kept = [record.key for record in found if record.key in {b"0", b"1", b"2"}]
        return kept.count(b"1") == kept.count(b"2") == 1 and b"0" not in kept

    eventually(compacted)
    last = {record.key: record for record in read_all(tidy_broker, topic)}
    assert (last[b"1"].offset, last[b"1"].value[:3]) == (28, b"028")
    assert (last[b"2"].offset, last[b"2"].value[:3]) == (29, b"029")
    assert confluent.bounds(tidy_broker.bootstrap, topic)[1] == 37


def read_all(cluster, topic):
    """Return all records from the earliest to the last offset."""
    end = confluent.bounds(cluster.bootstrap, topic)[1]
    with confluent.consumer(cluster.bootstrap) as source:
        source.assign([confluent.TopicPartition(topic, 0, 0)])
        found = []
        while not found or found[-1].offset < end - 1:
            found += confluent.poll(source, 1)
    return found


def test_a_record_without_a_key_is_refused_by_a_compacted_topic(tidy_broker):
    topic = tidy_broker.create_topic(config={"cleanup.policy": "compact"})
    with pytest.raises(confluent.Refused) as refusal:
        confluent.produce(tidy_broker.bootstrap, topic, [Record(b"x")])
    assert refusal.value.name == "INVALID_RECORD"
    assert confluent.bounds(tidy_broker.bootstrap, topic) == (0, 0)


@pytest.mark.parametrize("codec", ["gzip", "snappy", "zstd"])
def test_a_compressed_batch_without_keys_is_refused_by_a_compacted_topic(tidy_broker, codec):
    topic = tidy_broker.create_topic(config={"cleanup.policy": "compact"})
    with pytest.raises(confluent.Refused) as refusal:
        confluent.produce(tidy_broker.bootstrap, topic, [Record(b"x" * 500)], codec=codec)
    assert refusal.value.name == "INVALID_RECORD"


def test_files_of_a_deleted_topic_go_away(tidy_broker):
    topic = tidy_broker.create_topic(config={"file.delete.delay.ms": 0})
    confluent.produce(tidy_broker.bootstrap, topic, [Record(b"x")])
    confluent.delete_topic(tidy_broker.bootstrap, topic)
    eventually(lambda: not list(tidy_broker.data().glob(f"{topic}*")))
