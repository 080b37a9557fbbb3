"""What a broker tells of the replicas that it holds, from the machines that run them."""

from __future__ import annotations

import uuid
from types import SimpleNamespace

from hightide.broker.handlers.describe_replicas import describe_replicas
from hightide.core.partition.follower import Follower
from hightide.core.partition.leader import Leader
from hightide.core.partition.state import NO_BROKER, PartitionState
from hightide.wire.codec import decode, encode
from hightide.wire.messages.replicas import (
    DescribeReplicasRequest,
    DescribeReplicasResponse,
    TopicPartitions,
)

ID = uuid.UUID(int=7)
STATE = PartitionState((1, 2, 3), leader=1, leader_epoch=4, isr=(1, 2))
LOG = SimpleNamespace(
    start_offset=2, end_offset=20, size_bytes=500, epochs=SimpleNamespace(latest=3)
)


def replica(index, *, state=STATE, leader=None, follower=None, lost_records=0):
    return SimpleNamespace(
        topic="orders",
        topic_id=ID,
        partition=index,
        log=LOG,
        high_watermark=15,
        lost_records=lost_records,
        state=state,
        leader=leader,
        follower=follower,
        leader_epoch=state.leader_epoch if state else -1,
    )


def leader():
    made = Leader(
        1,
        10,
        STATE,
        end_offset=20,
        high_watermark=15,
        min_isr=3,
        lag_ms=1000,
        live={1: 10, 2: 11, 3: 12},
        shutting_down=frozenset(),
        now_ms=1000,
    )
    made.fetched(2, 18, 11, 1500)
    return made


class Held(list):
    def get(self, topic, index):
        found = [each for each in self if (each.topic.encode(), each.partition) == (topic, index)]
        return found[0] if found else None


def told(*replicas, topics=None, now_ms=2000):
    broker = SimpleNamespace(replica_manager=Held(replicas), monotonic_ms=lambda: now_ms)
    answer = describe_replicas(broker, DescribeReplicasRequest(topics=topics), None)
    # It must also survive the wire.
    assert decode(DescribeReplicasResponse, encode(answer, 0), 0) == answer
    return [each for topic in answer.topics for each in topic.partitions]


def test_a_leader_tells_how_far_everybody_is():
    (found,) = told(replica(0, leader=leader()))
    assert (found.role, found.leader_epoch, found.is_under_min_isr) == (1, 4, True)
    assert (found.log_start_offset, found.high_watermark, found.end_offset) == (2, 15, 20)
    assert (found.size_bytes, found.maximal_isr) == (500, [1, 2])
    assert found.state.isr == [1, 2]
    assert [
        (each.broker_id, each.standing, each.end_offset, each.lag_records, each.lag_ms)
        for each in found.progress
    ] == [
        (1, "LEADER", 20, 0, 0),
        (2, "IN_SYNC", 18, 2, 1000),
        (3, "NEVER_FETCHED", -1, -1, -1),
    ]


def test_a_follower_tells_why_it_has_stopped():
    waiting = Follower(STATE, LOG, 15)
    waiting.is_waiting = True
    found = told(
        replica(0, follower=Follower(STATE, LOG, 15)),
        replica(1, follower=Follower(STATE, LOG, 15), lost_records=9),
        replica(2, follower=waiting),
    )
    assert [(each.role, each.is_waiting, each.lost_records) for each in found] == [
        (2, False, 0),
        (2, False, 9),
        (2, True, 0),
    ]


def test_a_replica_without_a_role_waits():
    nobody = PartitionState((1, 2, 3), NO_BROKER, 5, (), elr=(1,))
    found = told(replica(0, state=nobody), replica(1, state=None))
    assert [(each.role, each.state is None) for each in found] == [(0, False), (0, True)]


def test_only_what_is_asked_for_is_told():
    asked = [TopicPartitions(topic="orders", partitions=[1, 7])]
    found = told(replica(0), replica(1), topics=asked)
    assert [each.partition_index for each in found] == [1]
    assert told(replica(0), topics=[]) == []
