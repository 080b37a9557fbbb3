"""Replica placement, reassignment and elections, and fetches from the nearest replica."""

from __future__ import annotations

import json
import time
import warnings
from collections import Counter
from threading import Timer

import pytest
from confluent_kafka import Consumer, ElectionType, TopicCollection, TopicPartition

from hightide.wire.errors import ErrorCode
from tests.conformance.adapters import Record, confluent, kafka_python, values
from tests.conformance.raw import Raw
from tests.conformance.raw_group import find
from tests.conformance.replicated import BROKER, TOPIC, fetch, values_of
from tests.support.eventually import eventually, seconds_until

ALL = [1, 2, 3]
MEGABYTE = 1_000_000


# -- placement ---------------------------------------------------------------------------------


def test_replicas_stand_in_different_racks(racked):
    """Racks a, a and b: each partition of two replicas has one in b, and leaders go round."""
    topic = racked.create_topic(partitions=12, replication_factor=2)
    found = racked.partitions(1, topic).values()
    assert all(3 in move.replica_nodes for move in found)
    assert Counter(move.leader_id for move in found) == {1: 4, 2: 4, 3: 4}
    racks = {broker.node_id: broker.rack for broker in racked.metadata(1).brokers}
    assert racks == {1: "a", 2: "a", 3: "b"}


def test_replicas_and_leaders_are_spread_evenly(three):
    topic = three.create_topic(partitions=12, replication_factor=2)
    found = three.partitions(1, topic).values()
    assert Counter(move.leader_id for move in found) == {1: 4, 2: 4, 3: 4}
    assert Counter(replica_node for one in found for replica_node in one.replica_nodes) == {
        1: 8,
        2: 8,
        3: 8,
    }


def test_new_partitions_have_as_many_replicas_as_the_others(three):
    topic = three.create_topic(partitions=2, replication_factor=3)
    confluent.add_partitions(three.bootstrap, topic, 5)
    eventually(lambda: all(len(three.partitions(broker_id, topic)) == 5 for broker_id in ALL))
    for index in range(5):
        assert sorted(three.partition(topic, index).replica_nodes) == ALL
        assert three.write(topic, b"x", index=index) == 0


@pytest.mark.parametrize("factor", [4, 0])
def test_a_replication_factor_that_cannot_be_is_refused(three, factor):
    with pytest.raises(Exception, match=r"INVALID_REPLICATION_FACTOR|[Rr]eplication"):
        three.create_topic(replication_factor=factor)


def test_topics_that_are_made_by_themselves_have_the_default_factor(racked):
    name = f"by-itself-{time.monotonic_ns()}"
    confluent.produce(racked.bootstrap, name, [Record(b"x")])
    assert len(racked.partition(name).replica_nodes) == 2


def test_internal_topics_have_numbers_of_their_own(racked):
    """Three replicas, whatever other topics have: offsets.topic.replication.factor."""
    # It is created when a client first looks for a group coordinator.
    with Raw(racked) as raw:
        eventually(lambda: find(raw, "any").error_code == 0)
    (found,) = racked.metadata(1, "__consumer_offsets").topics
    assert found.is_internal
    assert len(found.partitions) == 4
    assert all(sorted(partition.replica_nodes) == ALL for partition in found.partitions)


# -- elections ---------------------------------------------------------------------------------


def moved_away(cluster):
    """A topic whose preferred leader has been down: topic, preferred leader, leader."""
    topic = cluster.place_topic({0: ALL})
    cluster.write(topic, b"x")
    assert cluster.terminate(1) == 0
    leader = cluster.leader_now(topic, not_any_of=[1])
    cluster.restart(1)
    eventually(lambda: cluster.all_say_isr(topic, ALL))
    return topic, leader


def test_the_preferred_leader_leads_again_when_it_is_elected(three):
    topic, leader = moved_away(three)
    assert three.leader_now(topic) == leader
    assert three.elect(topic) is ErrorCode.NONE
    assert seconds_until(lambda: three.leader_now(topic) == 1) < 1
    assert three.elect(topic) is ErrorCode.ELECTION_NOT_NEEDED
    assert three.elect("no-such-topic") is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert three.write(topic, b"y") == 1


def test_confluent_elects_the_preferred_leader(three):
    topic, _ = moved_away(three)
    admin = confluent.admin(three.bootstrap)
    found = admin.elect_leaders(ElectionType.PREFERRED, [TopicPartition(topic, 0)]).result(25)
    assert list(found.values()) == [None]
    assert three.leader_now(topic) == 1
    (described,) = admin.describe_topics(TopicCollection([topic])).values()
    assert described.result(25).partitions[0].leader.id == 1


def test_kafka_python_elects_the_preferred_leader(three):
    topic, _ = moved_away(three)
    with kafka_python.admin(three.bootstrap) as admin:
        admin.elect_leaders(0, {topic: [0]})
    assert three.leader_now(topic) == 1


def test_leadership_goes_back_by_itself_where_it_is_so_set(racked):
    topic = racked.place_topic({0: ALL})
    assert racked.terminate(1) == 0
    assert racked.leader_now(topic, not_any_of=[1])
    racked.restart(1)
    eventually(lambda: racked.leader_now(topic) == 1, 15)


def test_a_broker_that_stops_in_order_hands_over_before_it_is_gone(three):
    topic = three.place_topic({0: ALL})
    three.write(topic, b"x")
    began = time.monotonic()
    assert three.terminate(1) == 0
    assert three.leader_now(topic) != 1
    # No client had to wait for its session to expire.
    assert time.monotonic() - began < 2
    assert three.write(topic, b"y") == 1


# -- reassignment ------------------------------------------------------------------------------


def filled(cluster, replicas, megabytes=2):
    """A topic of one partition with records in it."""
    topic = cluster.place_topic({0: replicas}, min_insync_replicas=1)
    for _ in range(megabytes * 5):
        cluster.write(topic, bytes(200_000))
    return topic


def has_moved(cluster, topic, replicas):
    if cluster.reassignments().get((topic, 0)) is not None:
        return False
    return all(
        found.replica_nodes == replicas and sorted(found.isr_nodes) == sorted(replicas)
        for found in (cluster.partition(topic, 0, broker_id) for broker_id in cluster.able())
    )


def test_a_partition_moves_to_other_brokers(three, record_testsuite_property):
    topic = filled(three, [1, 2])
    before = three.log_bytes(1, topic)
    assert three.reassign(topic, [3, 2]) is ErrorCode.NONE
    moved_s = seconds_until(lambda: has_moved(three, topic, [3, 2]))
    record_testsuite_property("reassignment of 2 MB s", round(moved_s, 3))
    eventually(lambda: not three.folder(1, topic).exists())
    assert three.log_bytes(3, topic) == before
    # The old leader is removed, so another replica leads.
    assert three.leader_now(topic) in (2, 3)
    assert three.write(topic, b"x") == 10
    three.check_equal_logs(topic)
    assert len(confluent.read(three.bootstrap, topic, 11)) == 11


def test_a_partition_gets_more_replicas_and_fewer(three):
    topic = filled(three, [1], 1)
    assert three.reassign(topic, [1, 2, 3]) is ErrorCode.NONE
    eventually(lambda: has_moved(three, topic, [1, 2, 3]))
    three.check_equal_logs(topic)
    assert three.reassign(topic, [2, 1]) is ErrorCode.NONE
    eventually(lambda: has_moved(three, topic, [2, 1]))
    eventually(lambda: not three.folder(3, topic).exists())
    assert three.leader_now(topic) == 1


def test_kafka_python_moves_a_partition(three):
    topic = filled(three, [1, 2], 1)
    where = kafka_python.TopicPartition(topic, 0)
    with warnings.catch_warnings(), kafka_python.admin(three.bootstrap) as admin:
        assert admin.alter_partition_reassignments({where: [2, 3]}) == {where: None}
        eventually(lambda: has_moved(three, topic, [2, 3]))
        assert admin.list_partition_reassignments() == {}
    three.check_equal_logs(topic)


def test_a_move_to_an_unknown_broker_is_refused(three):
    topic = three.place_topic({0: [1, 2]})
    assert three.reassign(topic, [1, 9]) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert three.reassign(topic, [1, 1]) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert three.reassign("no-such-topic", [1]) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert three.reassign(topic, None) is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


def throttle(cluster, topic, rate):
    for kind in ("leader", "follower"):
        for broker in cluster.brokers:
            cluster.configure(BROKER, str(broker), **{f"{kind}_replication_throttled_rate": rate})
        cluster.configure(TOPIC, topic, **{f"{kind}_replication_throttled_replicas": "*"})


@pytest.mark.extended
def test_a_move_can_be_throttled(three, record_testsuite_property):
    """Two megabytes at half a megabyte per second take seconds; the ISR is not throttled."""
    topic = filled(three, [1, 2], 2)
    throttle(three, topic, MEGABYTE // 2)
    assert three.reassign(topic, [1, 2, 3]) is ErrorCode.NONE
    began = time.monotonic()
    found = eventually(lambda: three.reassignments().get((topic, 0)))
    assert (found.replicas, found.adding_replicas, found.removing_replicas) == ([1, 2, 3], [3], [])
    wrote_s = seconds_until(lambda: three.write(topic, b"x"))
    assert wrote_s < 1
    eventually(lambda: has_moved(three, topic, [1, 2, 3]))
    moved_s = time.monotonic() - began
    record_testsuite_property("reassignment of 2 MB at 0.5 MB/s s", round(moved_s, 3))
    assert 1.5 < moved_s < 15
    three.check_equal_logs(topic)


def test_a_move_can_be_stopped(three):
    topic = filled(three, [1, 2], 2)
    throttle(three, topic, 10_000)
    assert three.reassign(topic, [2, 3]) is ErrorCode.NONE
    eventually(lambda: (topic, 0) in three.reassignments())
    eventually(lambda: three.folder(3, topic).exists())
    assert three.reassign(topic, None) is ErrorCode.NONE
    # As in Kafka, the remaining replicas keep the order that they had during the move.
    eventually(lambda: has_moved(three, topic, [2, 1]))
    eventually(lambda: not three.folder(3, topic).exists())
    assert three.leader_now(topic) == 1
    three.check_equal_logs(topic)
    throttle(three, topic, 100 * MEGABYTE)


def test_a_move_goes_on_when_the_controller_is_killed(three):
    topic = filled(three, [1, 2], 2)
    throttle(three, topic, MEGABYTE // 4)
    assert three.reassign(topic, [1, 2, 3]) is ErrorCode.NONE
    eventually(lambda: (topic, 0) in three.reassignments())
    controller = three.controller()
    three.kill(controller)
    throttle_off = {f"{kind}_replication_throttled_replicas": "" for kind in ("leader", "follower")}
    three.configure(TOPIC, topic, **throttle_off)
    three.restart(controller)
    eventually(lambda: has_moved(three, topic, [1, 2, 3]))
    three.check_equal_logs(topic)


# -- fetches from followers --------------------------------------------------------------------


@pytest.fixture
def near_and_far(racked):
    """Three records in a partition that is led from rack a and followed from rack b."""
    topic = racked.place_topic({0: [1, 2, 3]})
    racked.write(topic, b"a", b"b", b"c")
    assert racked.leader_now(topic) == 1
    with Raw(racked, 3) as raw:
        # A follower learns the high watermark a moment later than the writer.
        eventually(lambda: len(values_of(fetch(raw, topic, 0, rack_id="b").records)) == 3)
    return topic


def test_a_reader_is_sent_to_the_follower_in_its_rack(racked, near_and_far):
    topic = near_and_far
    with Raw(racked, 1) as raw:
        found = eventually(
            lambda: (
                (answer := fetch(raw, topic, 0, rack_id="b")).preferred_read_replica == 3 and answer
            )
        )
        assert values_of(found.records) == []
        for rack in ("a", "nowhere", ""):
            # The leader is as near as another in its rack.
            found = fetch(raw, topic, 0, rack_id=rack)
            assert found.preferred_read_replica == -1
            assert values_of(found.records) == [b"a", b"b", b"c"]
    with Raw(racked, 3) as raw:
        found = fetch(raw, topic, 0, rack_id="b")
        assert found.preferred_read_replica == -1
        assert values_of(found.records) == [b"a", b"b", b"c"]


def test_a_follower_shows_nothing_that_is_not_committed(racked, near_and_far):
    """The follower has the record, but the other one does not, so it is not committed."""
    topic = near_and_far
    racked.pause(2)
    try:
        with Raw(racked, 3) as raw:
            racked.write(topic, b"not yet", acks=1)
            eventually(lambda: len(racked.logged(3, topic)) == 4, 1.4)
            found = fetch(raw, topic, 0, rack_id="b")
            assert values_of(found.records) == [b"a", b"b", b"c"]
            # At the high watermark there is nothing yet; that is no error.
            found = fetch(raw, topic, 3, rack_id="b")
            assert (found.error_code, values_of(found.records)) == (0, [])
    finally:
        racked.resume(2)
    with Raw(racked, 3) as raw:
        eventually(lambda: values_of(fetch(raw, topic, 3, rack_id="b").records) == [b"not yet"])
        # Beyond its log a reader that was sent here must ask the leader again, and one that was
        # not, and takes this broker for the leader, must look for it.
        found = fetch(raw, topic, 99, rack_id="b")
        assert found.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert fetch(raw, topic, 99).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_fetch_that_waits_at_a_follower_is_woken_by_the_commit(racked, near_and_far):
    topic = near_and_far
    with Raw(racked, 3) as raw:
        eventually(lambda: fetch(raw, topic, 0).high_watermark == 3)
        timer = Timer(0.3, racked.write, (topic, b"d"))
        timer.start()
        began = time.monotonic()
        found = fetch(raw, topic, 3, max_wait_ms=10_000, rack_id="b")
        timer.join()
    assert values_of(found.records) == [b"d"]
    assert time.monotonic() - began < 2


class Nearby:
    """A consumer in rack b, and its number of fetches per broker."""

    def __init__(self, cluster, topic):
        self.fetches: Counter[int] = Counter()
        self.source = Consumer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "group.id": "unused",
                "client.rack": "b",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "reconnect.backoff.max.ms": 500,
                "statistics.interval.ms": 100,
                "stats_cb": self._note,
            }
        )
        self.source.assign([TopicPartition(topic, 0, 0)])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.source.close()

    def _note(self, text):
        for broker in json.loads(text)["brokers"].values():
            self.fetches[broker["nodeid"]] = broker["req"]["Fetch"]

    def read(self, count):
        return values(confluent.poll(self.source, count))

    def fetched(self):
        """Wait for current statistics, and return the counts."""
        deadline = time.monotonic() + 1
        while time.monotonic() < deadline:
            self.source.poll(0.1)
        return self.fetches


def test_confluent_reads_from_the_follower_in_its_rack(racked, near_and_far):
    """The client's statistics show repeated fetches from the follower."""
    with Nearby(racked, near_and_far) as nearby:
        assert nearby.read(3) == [b"a", b"b", b"c"]
        racked.write(near_and_far, b"d")
        assert nearby.read(1) == [b"d"]
        fetches = nearby.fetched()
    assert fetches[3] > fetches[1], fetches
    assert fetches[2] == 0


@pytest.mark.extended
def test_confluent_goes_back_to_the_leader_when_the_follower_in_its_rack_dies(racked, near_and_far):
    with Nearby(racked, near_and_far) as nearby:
        assert nearby.read(3) == [b"a", b"b", b"c"]
        assert nearby.fetched()[3] > 0
        racked.kill(3)
        racked.write(near_and_far, b"d", acks=1)
        assert nearby.read(1) == [b"d"]
        racked.restart(3)
        eventually(lambda: racked.all_say_isr(near_and_far, ALL))
        racked.write(near_and_far, b"e")
        assert nearby.read(1) == [b"e"]
