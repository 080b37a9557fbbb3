"""Clients continue while brokers, the controller and ZooKeeper are killed, and lose nothing.

All four clients write to one topic and read it, with acks=all and idempotence, on three brokers
with min.insync.replicas=2.  At the end of a test, the log must explain every response that a client
got (`history.py`), and the replicas must be equal byte for byte.
"""

from __future__ import annotations

import gc
import time
from contextlib import contextmanager

import pytest

from tests.conformance.workload import Load
from tests.support.eventually import eventually

PARTITIONS = 3

pytestmark = [
    pytest.mark.timeout(180),
    # kafka-python drops sockets that could not connect, and leaves them to the garbage collector.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]


@contextmanager
def loaded(cluster, partitions=PARTITIONS, **options):
    """A topic under load; at the end everything is healed, checked and compared."""
    topic = cluster.create_topic(partitions=partitions, replication_factor=3)
    try:
        with Load(cluster.bootstrap, topic, partitions, **options) as load:
            yield load
            cluster.heal()
            load.wait_for_acks()
        for index in range(partitions):
            cluster.check_equal_logs(topic, index)
    finally:
        gc.collect()  # here, where its warnings are expected


def test_a_leader_is_killed(three, record_testsuite_property):
    with loaded(three) as load:
        leader = three.leader_now(load.topic)
        since_s = time.monotonic()
        three.kill(leader)
        load.wait_for_acks()
        record_testsuite_property(
            "stall s, leader killed, session 2 s", load.longest_stall_s(since_s)
        )
        assert three.leader_now(load.topic) != leader
        three.restart(leader)
        eventually(lambda: three.all_say_isr(load.topic, [1, 2, 3]))
        assert three.leader_now(load.topic) != leader


@pytest.mark.extended
def test_one_leader_after_the_other_is_killed(three):
    """Twice, the second time as soon as the first broker is in sync again."""
    with loaded(three) as load:
        for _ in range(2):
            leader = three.leader_now(load.topic)
            three.kill(leader)
            three.restart(leader)
            three.heal()
            load.wait_for_acks()


@pytest.mark.extended
def test_the_controller_is_killed(three):
    with loaded(three) as load:
        controller = three.controller()
        three.kill(controller)
        eventually(lambda: three.controller() not in (-1, controller))
        load.wait_for_acks()
        # The new controller works.
        assert three.create_topic(replication_factor=2)


@pytest.mark.extended
def test_the_controller_resigns_again_and_again(three):
    with loaded(three) as load:
        for _ in range(4):
            before, after = three.resign()
            assert before != after
            load.wait_for_acks()
        assert load.longest_stall_s() < 5


@pytest.mark.extended
def test_zookeeper_is_killed(three):
    """Records are written and read while ZooKeeper is down; no broker stops when it returns."""
    with loaded(three) as load:
        epochs = {index: three.partition(load.topic, index).leader_epoch for index in range(3)}
        three.kill_zookeeper()
        load.wait_for_acks()
        three.restart_zookeeper()
        load.wait_for_acks()
        three.heal()
        after = {index: three.partition(load.topic, index).leader_epoch for index in range(3)}
        assert after == epochs


@pytest.mark.extended
def test_zookeeper_is_silent_for_longer_than_a_session(three):
    with loaded(three) as load:
        three.pause_zookeeper()
        try:
            time.sleep(3)
            load.wait_for_acks()
        finally:
            three.resume_zookeeper()


@pytest.mark.extended
def test_a_leader_sleeps_through_its_session(three):
    """When it resumes, others lead: it must not acknowledge records that clients sent to it."""
    with loaded(three) as load:
        leader = three.leader_now(load.topic)
        three.pause(leader)
        assert three.leader_now(load.topic, not_any_of=[leader])
        load.wait_for_acks()
        three.resume(leader)
        eventually(lambda: three.all_say_isr(load.topic, [1, 2, 3]))


@pytest.mark.extended
def test_all_brokers_are_killed_at_once(three):
    """Written records are in the page cache: a kill of all brokers loses nothing."""
    with loaded(three) as load:
        for broker in three.brokers:
            three.kill(broker)
        three.heal()
        load.wait_for_acks()


@pytest.mark.extended
def test_brokers_and_zookeeper_are_killed_at_once(three):
    with loaded(three) as load:
        three.kill_zookeeper()
        for broker in three.brokers:
            three.kill(broker)
        three.restart_zookeeper()
        three.heal()
        load.wait_for_acks()


@pytest.mark.extended
def test_a_rolling_restart_stalls_no_partition(three, record_testsuite_property):
    """Every broker is stopped and started again; the others lead meanwhile."""
    with loaded(three) as load:
        since_s = time.monotonic()
        for broker in three.brokers:
            assert three.terminate(broker) == 0
            three.restart(broker)
            three.heal()
        load.wait_for_acks()
        stalls = load.history.stalls_s(since_s)
        record_testsuite_property("stall s, rolling restart", max(stalls.values()))
        print("longest time without an acknowledgement in a rolling restart:", stalls)
        assert max(stalls.values()) < 5


@pytest.mark.extended
def test_clients_get_over_a_failover_with_the_session_timeout_of_production(
    racked, record_testsuite_property
):
    """Six seconds until the session expires, and a little for the election and the clients."""
    with loaded(racked) as load:
        leader = racked.leader_now(load.topic)
        since_s = time.monotonic()
        racked.kill(leader)
        load.wait_for_acks()
        stall_s = load.longest_stall_s(since_s)
        record_testsuite_property("stall s, leader killed, session 6 s", stall_s)
        print("longest time without an acknowledgement after a kill:", stall_s)
        assert stall_s < 10


@pytest.mark.extended
def test_topics_come_and_go_under_load(three):
    with loaded(three) as load:
        for _ in range(5):
            name = three.create_topic(partitions=2)
            assert three.write(name, b"x") == 0
            three.delete_topic(name)
            folders = [three.folder(broker, name) for broker in three.brokers]
            eventually(lambda folders=folders: not any(folder.exists() for folder in folders))
        load.wait_for_acks()
