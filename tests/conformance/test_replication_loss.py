"""Replicas that come back with fewer records or none, also after all brokers were down.

Brokers that keep everything in memory lose it when they are killed.  One of three may lose its
records at any time, even the leader, and even if it is back before its session expires: records
that two others have acknowledged must survive (min.insync.replicas=2 survives one such loss).
"""

from __future__ import annotations

import gc
import os
import shutil
import time

import pytest

from hightide.wire.errors import ErrorCode
from tests.conformance.adapters import Record, confluent, values
from tests.conformance.raw import Raw
from tests.conformance.replicated import SETTINGS, Replicated, fetch, list_offset, values_of
from tests.conformance.workload import Load
from tests.support.eventually import eventually

ALL = [1, 2, 3]
EARLIEST = -2

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]


@pytest.fixture(scope="module")
def forgetful():
    """Three brokers that keep nothing on disk."""
    settings = {
        **SETTINGS,
        "zookeeper.session.timeout.ms": 2000,
        "auto.leader.rebalance.enable": False,
    }
    with Replicated(3, settings=settings, memory=True) as cluster:
        yield cluster
        cluster.check_brokers_failed_at_nothing()


@pytest.fixture
def loaded(forgetful):
    forgetful.heal()
    topic = forgetful.create_topic(partitions=3)
    try:
        with Load(forgetful.bootstrap, topic, 3) as load:
            yield load
            forgetful.heal()
            load.wait_for_acks()
    finally:
        gc.collect()  # here, where the warnings of kafka-python are expected


@pytest.mark.extended
def test_brokers_that_lose_everything_lose_nothing_that_two_others_have(forgetful, loaded):
    """Each in turn, with an expired session."""
    for broker_id in ALL:
        forgetful.kill(broker_id)
        eventually(
            lambda broker_id=broker_id: broker_id not in forgetful.isrs(loaded.topic).popitem()[1]
        )
        forgetful.restart(broker_id)
        forgetful.heal()
        loaded.wait_for_acks()


@pytest.mark.extended
def test_a_leader_that_is_back_before_its_session_ends_does_not_lead_with_nothing(
    forgetful, loaded
):
    for _ in range(3):
        leader = forgetful.leader_now(loaded.topic)
        forgetful.kill(leader)
        forgetful.restart(leader)
        forgetful.heal()
        loaded.wait_for_acks()


@pytest.mark.extended
def test_a_follower_that_is_back_before_its_session_ends_is_not_counted_on(forgetful):
    """It is in the ISR in ZooKeeper, but empty: it must fetch again to be in sync."""
    forgetful.heal()
    topic = forgetful.place_topic({0: ALL})
    forgetful.write(topic, *(b"%d" % at for at in range(100)))
    forgetful.kill(2)
    forgetful.restart(2)
    forgetful.heal()
    # Only 2 and 3 are left now, and 2 leads: it must have everything again.
    forgetful.kill(1)
    assert forgetful.leader_now(topic, not_any_of=[1]) == 2
    assert len(confluent.read(forgetful.bootstrap, topic, 100)) == 100


# -- all brokers stop --------------------------------------------------------------------------


@pytest.mark.extended
def test_a_cluster_that_was_stopped_is_led_by_those_who_have_everything(three):
    """One broker after the other stops; the first one misses the later records."""
    topic = three.place_topic({0: ALL})
    three.write(topic, b"a")
    assert three.terminate(1) == 0
    three.write(topic, b"b")
    assert three.terminate(2) == 0
    assert three.terminate(3) == 0
    three.restart(1)
    time.sleep(1)
    found = three.partition(topic, 0, 1)
    assert (found.leader_id, found.error_code) == (-1, ErrorCode.LEADER_NOT_AVAILABLE)
    three.restart(2)
    assert three.leader_now(topic) == 2
    eventually(lambda: three.all_say_isr(topic, [1, 2]))
    assert values(confluent.read(three.bootstrap, topic, 2)) == [b"a", b"b"]
    assert three.write(topic, b"c") == 2
    three.heal()
    three.check_equal_logs(topic)


@pytest.mark.extended
def test_a_cluster_that_was_stopped_at_once_has_everything(three):
    topic = three.create_topic(partitions=3)
    for index in range(3):
        three.write(topic, b"a", b"b", index=index)
    processes = [three._brokers[broker_id].process for broker_id in ALL]
    for process in processes:
        process.terminate()
    assert [process.wait(30) for process in processes] == [0, 0, 0]
    three.heal()
    for index in range(3):
        found = confluent.read(three.bootstrap, topic, 2, partition=index)
        assert values(found) == [b"a", b"b"]
        three.check_equal_logs(topic, index)


@pytest.mark.extended
@pytest.mark.parametrize("lost", ["log", "disk"])
def test_a_last_leader_that_lost_its_log_does_not_lead(three, lost):
    """Two brokers are killed one after the other, and the last one loses its records with its
    power, or its whole disk.  The others still have every record."""
    topic = three.place_topic({0: ALL})
    three.write(topic, b"a", b"b")
    three.kill(2)
    eventually(lambda: three.isrs(topic).get(1) == [1, 3])
    three.write(topic, b"c")
    three.kill(3)
    eventually(lambda: three.isrs(topic).get(1) == [1])
    three.kill(1)
    if lost == "disk":
        shutil.rmtree(three.data(1))
    else:
        for file in three.folder(1, topic).glob("*.log"):
            os.truncate(file, 0)
    three.restart(1)
    time.sleep(1)
    assert three.partition(topic, 0, 1).leader_id == -1, "it waits for the others"
    three.heal()
    assert values(confluent.read(three.bootstrap, topic, 3)) == [b"a", b"b", b"c"]
    three.check_equal_logs(topic)
    assert not any("UNCLEAN ELECTION" in three.log(broker_id) for broker_id in ALL)


# -- a deleted log start -----------------------------------------------------------------------


@pytest.mark.extended
def test_a_follower_begins_where_the_leaders_log_begins_by_now(three):
    """It was down while records were written and deleted."""
    topic = three.place_topic({0: ALL})
    three.write(topic, *(b"old %d" % at for at in range(10)))
    three.kill(3)
    eventually(lambda: three.all_say_isr(topic, [1, 2]))
    three.write(topic, *(b"newer %d" % at for at in range(10)))
    confluent.delete_records(three.bootstrap, topic, 15)
    three.restart(3)
    eventually(lambda: three.all_say_isr(topic, ALL))
    with Raw(three, 3) as raw:
        eventually(lambda: fetch(raw, topic, 15).log_start_offset == 15)
        expected = [b"newer %d" % at for at in range(5, 10)]
        eventually(lambda: values_of(fetch(raw, topic, 15).records)[-5:] == expected)
        assert fetch(raw, topic, 3).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    # It can lead, too.
    three.lead_with(topic, 3)
    assert confluent.bounds(three.bootstrap, topic) == (15, 20)
    assert three.write(topic, b"more") == 20
    assert values(confluent.read(three.bootstrap, topic, 6)) == [*expected, b"more"]


@pytest.mark.extended
def test_records_are_deleted_on_all_replicas(three):
    topic = three.place_topic({0: ALL})
    three.write(topic, *(b"%d" % at for at in range(10)))
    assert confluent.delete_records(three.bootstrap, topic, 4) == 4
    for broker_id in ALL:
        with Raw(three, broker_id) as raw:
            eventually(lambda raw=raw: fetch(raw, topic, 5).log_start_offset == 4)
    three.kill(1)
    assert three.leader_now(topic, not_any_of=[1])
    with Raw(three, three.leader_now(topic)) as raw:
        assert list_offset(raw, topic, EARLIEST).offset == 4


@pytest.mark.extended
def test_a_follower_copies_a_log_that_has_been_compacted(three):
    """Compaction leaves gaps in the offsets, which the follower must accept."""
    topic = three.place_topic(
        {0: ALL},
        cleanup_policy="compact",
        segment_bytes=14_000,
        min_cleanable_dirty_ratio=0.01,
        segment_ms=500,
    )
    three.kill(3)
    eventually(lambda: three.all_say_isr(topic, [1, 2]))
    sent = [Record(b"x" * 100, key=b"%d" % (at % 7)) for at in range(500)]
    confluent.produce(three.bootstrap, topic, sent, idempotent=True, per_batch=10)
    last = [Record(b"last", key=b"%d" % at) for at in range(7)]
    eventually(lambda: len(three.log_bytes(1, topic)) < 40_000)
    confluent.produce(three.bootstrap, topic, last)
    three.restart(3)
    eventually(lambda: three.all_say_isr(topic, ALL))
    three.lead_with(topic, 3)
    eventually(lambda: confluent.bounds(three.bootstrap, topic)[1] == 507)
    found = {}
    for record in confluent.read(three.bootstrap, topic, 7, start=500):
        found[record.key] = record.value
    assert found == {b"%d" % at: b"last" for at in range(7)}
