"""DescribeReplicas: what a broker says about the replicas that it holds."""

from __future__ import annotations

import uuid
from types import SimpleNamespace
from typing import Any

from hightide.broker.handlers.describe_replicas import describe_replicas
from hightide.broker.replication.replica_failures import ReplicaFailure
from hightide.core.metadata.image import MetadataImage
from hightide.core.partition.follower import Follower
from hightide.core.partition.leader import Leader
from hightide.core.partition.state import NO_BROKER, FailureKind, PartitionState
from hightide.wire.codec import decode, encode
from hightide.wire.messages.replicas import (
    DescribeReplicasRequest,
    DescribeReplicasResponse,
    TopicPartitions,
)
from hightide.wire.messages.replication import PublishedBroker, PublishedEndpoint
from tests.support.steps import all_steps

ID = uuid.UUID(int=7)
STATE = PartitionState((1, 2, 3), leader=1, leader_epoch=4, isr=(1, 2))
LOG = SimpleNamespace(
    start_offset=2,
    end_offset=20,
    size_bytes=500,
    epochs=SimpleNamespace(latest=3),
    last_stable_offset=12,
)


def replica(index, *, state=STATE, leader=None, follower=None, lost_records=0, failure=None):
    return SimpleNamespace(
        topic="orders",
        topic_id=ID,
        partition=index,
        log=LOG,
        high_watermark=15,
        lost_records=lost_records,
        failure=failure,
        state=state,
        leader=leader,
        follower=follower,
        leader_epoch=state.leader_epoch if state else -1,
    )


def leader():
    leader = Leader(
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
    leader.fetched(2, 18, 11, 1500)
    return leader


class Replicas(list):
    def get(self, topic, index):
        found = [one for one in self if (one.topic.encode(), one.partition) == (topic, index)]
        return found[0] if found else None


def described(*replicas, topics=None, now_ms=2000):
    response = answered(*replicas, topics=topics, now_ms=now_ms)
    return [partition for topic in response.topics for partition in topic.partitions]


def answered(*replicas, topics=None, now_ms=2000, image=None):
    broker: Any = SimpleNamespace(
        replica_manager=Replicas(replicas),
        monotonic_ms=lambda: now_ms,
        now_ms=lambda: 1_700_000_000_000,
        metadata_image=MetadataImage(1, "PLAINTEXT") if image is None else image,
    )
    context: Any = SimpleNamespace(connection=SimpleNamespace(listener="PLAINTEXT"))
    request = DescribeReplicasRequest(topics=topics)
    response = all_steps(describe_replicas(broker, request, context))
    # The response must also survive the codec.
    assert decode(DescribeReplicasResponse, encode(response, 0), 0) == response
    return response


def test_a_leader_reports_the_progress_of_all_replicas():
    (found,) = described(replica(0, leader=leader()))
    assert (found.role, found.leader_epoch, found.is_under_min_isr) == (1, 4, True)
    assert (found.log_start_offset, found.high_watermark, found.end_offset) == (2, 15, 20)
    assert (found.size_bytes, found.maximal_isr) == (500, [1, 2])
    assert found.last_stable_offset == 12
    assert found.state.isr == [1, 2]
    assert [
        (one.broker_id, one.standing, one.end_offset, one.lag_records, one.lag_ms)
        for one in found.progress
    ] == [
        (1, "LEADER", 20, 0, 0),
        (2, "IN_SYNC", 18, 2, 1000),
        (3, "NEVER_FETCHED", -1, -1, -1),
    ]


def test_a_follower_reports_why_it_has_stopped():
    waiting = Follower(STATE, LOG, 15)
    waiting.is_waiting = True
    found = described(
        replica(0, follower=Follower(STATE, LOG, 15)),
        replica(1, follower=Follower(STATE, LOG, 15), lost_records=9),
        replica(2, follower=waiting),
    )
    assert [(one.role, one.is_waiting, one.lost_records) for one in found] == [
        (2, False, 0),
        (2, False, 9),
        (2, True, 0),
    ]


def test_a_replica_that_cannot_be_served_says_why():
    failure = ReplicaFailure(FailureKind.FULL, "the disk of /data is full")
    found = described(replica(0), replica(1, failure=failure))
    assert [one.failure for one in found] == ["", "full: the disk of /data is full"]


def test_a_replica_without_a_role_waits():
    leaderless = PartitionState((1, 2, 3), NO_BROKER, 5, (), elr=(1,))
    found = described(replica(0, state=leaderless), replica(1, state=None))
    assert [(one.role, one.state is None) for one in found] == [(0, False), (0, True)]


def test_only_the_requested_partitions_are_described():
    requested = [TopicPartitions(topic="orders", partitions=[1, 7])]
    found = described(replica(0), replica(1), topics=requested)
    assert [one.partition_index for one in found] == [1]
    assert described(replica(0), topics=[]) == []


def test_a_broker_names_those_that_it_saw_leave():
    image = MetadataImage(1, "PLAINTEXT")
    endpoint = PublishedEndpoint(
        listener="PLAINTEXT", host="b", port=9093, security_protocol="PLAINTEXT"
    )
    brokers = {
        2: PublishedBroker(broker_id=2, broker_epoch=5, endpoints=[endpoint]),
        3: PublishedBroker(broker_id=3, broker_epoch=6, endpoints=[]),
    }
    image.departed.published(brokers, 1_000)
    assert answered(image=image).departed == []
    image.departed.published({}, 1_500)
    assert [
        (one.broker_id, one.host, one.port, one.last_seen_ms)
        for one in answered(image=image, now_ms=2_000).departed
    ] == [(2, "b", 9093, 1_699_999_999_500), (3, "", 0, 1_699_999_999_500)]
