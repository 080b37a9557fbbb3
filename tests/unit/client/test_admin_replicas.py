"""Requests about leaders and replicas, to brokers that answer, disconnect or stay silent."""

from __future__ import annotations

import asyncio

import pytest

from hightide.client.admin import replicas
from hightide.client.model.replicas import Reassignment, Role
from hightide.core.controller.controller import ElectionKind
from hightide.wire.errors import ErrorCode, KafkaError
from hightide.wire.messages.configs import (
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from hightide.wire.messages.metadata import (
    Cursor,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from hightide.wire.messages.replicas import (
    AlterPartitionReassignmentsResponse,
    DepartedBroker,
    DescribedReplica,
    DescribedTopic,
    DescribeReplicasResponse,
    ElectLeadersResponse,
    FollowerProgress,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
    PartitionResult,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
    ReplicaElectionResult,
)
from hightide.wire.messages.replication import PublishedPartition
from tests.unit.client.fake_broker import ID, METADATA, FakeBroker, cluster

CONFIGS = 32
ELECT, ALTER, LIST, TOPIC_PARTITIONS, REPLICAS = 43, 45, 46, 75, 30002


def described(**values):
    defaults = {
        "partition_index": 0,
        "role": 2,
        "leader_epoch": 4,
        "log_start_offset": 0,
        "high_watermark": 5,
        "end_offset": 7,
        "size_bytes": 70,
    }
    replica = DescribedReplica(**{**defaults, **values})
    topic = DescribedTopic(name="orders", topic_id=ID, partitions=[replica])
    return DescribeReplicasResponse(topics=[topic])


def test_every_broker_is_asked_and_the_answers_are_put_together():
    one, two = FakeBroker(1), FakeBroker(2)
    state = PublishedPartition(
        partition_index=0, replicas=[1, 2], leader=1, leader_epoch=4, isr=[1, 2], partition_epoch=9
    )
    one.answers[REPLICAS] = lambda _: described(
        role=1,
        state=state,
        is_under_min_isr=True,
        maximal_isr=[1, 2],
        progress=[
            FollowerProgress(broker_id=1, standing="LEADER", end_offset=7, lag_records=0, lag_ms=0),
            FollowerProgress(broker_id=2, standing="NEVER_FETCHED"),
        ],
    )
    two.answers[REPLICAS] = lambda _: described(end_offset=6, is_waiting=True, lost_records=3)

    async def ask():
        async with cluster(one, two) as admin:
            return await admin.replicas.describe(["orders"])

    found = asyncio.run(ask())
    (partition,) = found.partitions
    assert (found.controller, found.live, found.silent, found.others) == (1, {1, 2}, {}, set())
    assert (partition.state.isr, partition.state.partition_epoch) == ((1, 2), 9)
    assert partition.leader_report.is_under_min_isr
    first, second = partition.statuses()
    assert (first.role, first.end_offset, first.lag_ms) == (Role.LEADER, 7, 0)
    assert (second.end_offset, second.lag_records, second.lag_ms) == (6, 1, None)
    assert second.lost_records == 3
    (asked,) = [
        request for request in two.asked if type(request).__name__ == "DescribeReplicasRequest"
    ]
    assert [(topic.topic, topic.partitions) for topic in asked.topics] == [("orders", [0])]


def test_what_live_brokers_remember_of_dead_ones_is_put_together():
    one, two = FakeBroker(1), FakeBroker(2)

    def remembers(*departed):
        found = [
            DepartedBroker(broker_id=broker, host=host, port=9092, last_seen_ms=at_ms)
            for broker, host, at_ms in departed
        ]
        return lambda _: DescribeReplicasResponse(topics=[], departed=found)

    # Broker 1 did not notice yet that broker 2 is back, and saw broker 3 before it moved.
    one.answers[REPLICAS] = remembers((2, "b", 100), (3, "old", 200))
    two.answers[REPLICAS] = remembers((3, "new", 300), (4, "", 400))

    async def ask():
        async with cluster(one, two) as admin:
            return await admin.replicas.describe(["orders"])

    found = asyncio.run(ask())
    assert found.last_seen_ms == {3: 300, 4: 400}
    assert found.addresses == {
        1: f"127.0.0.1:{one.port}",
        2: f"127.0.0.1:{two.port}",
        3: "new:9092",
    }


def test_a_broker_is_asked_for_some_at_a_time_and_only_for_what_it_holds(monkeypatch):
    monkeypatch.setattr(replicas, "REPORTED_AT_ONCE", 2)
    one, two = FakeBroker(1), FakeBroker(2)
    topics = [
        MetadataResponseTopic(
            name=name,
            topic_id=ID,
            partitions=[
                MetadataResponsePartition(
                    partition_index=index, leader_id=1, replica_nodes=[1], isr_nodes=[1]
                )
                for index in range(count)
            ],
        )
        for name, count in (("a", 3), ("b", 2))
    ]
    for broker in (one, two):
        broker.answers[METADATA] = lambda _: MetadataResponse(
            brokers=[
                MetadataResponseBroker(node_id=broker.id, host="127.0.0.1", port=broker.port)
                for broker in (one, two)
            ],
            controller_id=1,
            topics=topics,
        )
        broker.answers[REPLICAS] = lambda _: DescribeReplicasResponse(topics=[])

    async def ask():
        async with cluster(one, two) as admin:
            await admin.replicas.describe()

    def asked(broker):
        return [
            [(topic.topic, topic.partitions) for topic in request.topics]
            for request in broker.asked
            if type(request).__name__ == "DescribeReplicasRequest"
        ]

    asyncio.run(ask())
    assert asked(one) == [[("a", [0, 1])], [("a", [2]), ("b", [0])], [("b", [1])]]
    assert asked(two) == [[]]


def test_a_broker_that_says_nothing_is_named_and_not_waited_for(monkeypatch):
    monkeypatch.setattr(replicas, "REPORT_TIMEOUT_S", 0.2)
    one, two, three = FakeBroker(1), FakeBroker(2), FakeBroker(3)
    one.answers[REPLICAS] = lambda _: described(role=1)
    two.answers[REPLICAS] = lambda _: None

    async def ask():
        async with cluster(one, two, three) as admin:
            three.port = 1
            return await admin.replicas.describe()

    found = asyncio.run(ask())
    assert found.silent[2] == "It did not answer within 0.2 s."
    assert found.silent[3].startswith("Cannot connect to 127.0.0.1:1:")
    assert found.partitions[0].silent == {2, 3}
    assert found.partitions[0].statuses()[1].why == "out of sync; its broker does not answer"


def test_brokers_that_do_not_know_the_question_are_others():
    one = FakeBroker(1)
    one.answers[LIST] = lambda _: ListPartitionReassignmentsResponse(
        topics=[
            OngoingTopicReassignment(
                name="orders",
                partitions=[
                    OngoingPartitionReassignment(
                        partition_index=0,
                        replicas=[1, 2],
                        adding_replicas=[2],
                        removing_replicas=[],
                    )
                ],
            )
        ]
    )

    async def ask():
        async with cluster(one) as admin:
            return await admin.replicas.describe()

    found = asyncio.run(ask())
    assert (found.others, found.silent) == ({1}, {})
    assert found.partitions[0].state.adding == (2,)
    assert found.partitions[0].missing == ()


def test_the_elr_is_read_page_by_page():
    one = FakeBroker(1)
    one.answers[REPLICAS] = lambda _: DescribeReplicasResponse(topics=[])

    def page(request):
        index = 0 if request.cursor is None else request.cursor.partition_index
        partition = DescribeTopicPartitionsResponsePartition(
            partition_index=index,
            leader_id=1,
            replica_nodes=[1, 2],
            isr_nodes=[1],
            eligible_leader_replicas=[2] if index == 0 else None,
            offline_replicas=[],
        )
        return DescribeTopicPartitionsResponse(
            topics=[
                DescribeTopicPartitionsResponseTopic(
                    name="orders", topic_id=ID, partitions=[partition]
                )
            ],
            next_cursor=Cursor(topic_name="orders", partition_index=1) if index == 0 else None,
        )

    one.answers[TOPIC_PARTITIONS] = page

    async def ask():
        async with cluster(one) as admin:
            return await admin.replicas.describe()

    assert asyncio.run(ask()).partitions[0].state.elr == (2,)
    cursors = [request.cursor for request in one.asked if hasattr(request, "cursor")]
    assert [cursor and cursor.partition_index for cursor in cursors] == [None, 1]


def test_elections_tell_what_was_refused():
    one = FakeBroker(1)
    one.answers[ELECT] = lambda _: ElectLeadersResponse(
        replica_election_results=[
            ReplicaElectionResult(
                topic="orders",
                partition_result=[
                    PartitionResult(partition_id=0),
                    PartitionResult(partition_id=1, error_code=84),
                ],
            )
        ]
    )

    async def ask():
        async with cluster(one) as admin:
            return await admin.replicas.elect_leaders(
                ElectionKind.UNCLEAN, [("orders", 0), ("orders", 1)]
            )

    found = asyncio.run(ask())
    assert found["orders", 0] is None
    assert found["orders", 1].code == ErrorCode.ELECTION_NOT_NEEDED
    request = one.asked[-1]
    assert request.election_type == 1
    assert [(topic.topic, topic.partitions) for topic in request.topic_partitions] == [
        ("orders", [0, 1])
    ]


def test_a_controller_that_was_replaced_is_asked_again():
    one = FakeBroker(1)
    codes = iter([41, 41, 0])
    one.answers[ELECT] = lambda _: ElectLeadersResponse(
        error_code=next(codes), replica_election_results=[]
    )

    async def ask():
        async with cluster(one) as admin:
            return await admin.replicas.elect_leaders(ElectionKind.PREFERRED)

    assert asyncio.run(ask()) == {}
    assert one.asked[-1].topic_partitions is None


def test_moves_are_begun_stopped_and_listed():
    one = FakeBroker(1)
    one.answers[ALTER] = lambda request: AlterPartitionReassignmentsResponse(
        responses=[
            ReassignableTopicResponse(
                name=topic.name,
                partitions=[
                    ReassignablePartitionResponse(
                        partition_index=partition.partition_index,
                        error_code=85 if partition.replicas is None else 0,
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
    one.answers[LIST] = lambda request: ListPartitionReassignmentsResponse(
        topics=[
            OngoingTopicReassignment(
                name=topic.name,
                partitions=[
                    OngoingPartitionReassignment(
                        partition_index=index,
                        replicas=[3, 1],
                        adding_replicas=[3],
                        removing_replicas=[1],
                    )
                    for index in topic.partition_indexes
                ],
            )
            for topic in request.topics
        ]
    )

    async def ask():
        async with cluster(one) as admin:
            begun = await admin.replicas.reassign({("a", 0): (3,), ("a", 1): None})
            return begun, await admin.replicas.reassignments([("a", 0)])

    begun, listed = asyncio.run(ask())
    assert begun["a", 0] is None
    assert begun["a", 1].code == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    assert listed == {("a", 0): Reassignment((3, 1), (3,), (1,))}
    assert listed["a", 0].target == (3,)


def test_settings_of_many_topics_are_one_question():
    one = FakeBroker(1)
    values = {"a": "2", "b": None}
    one.answers[CONFIGS] = lambda request: DescribeConfigsResponse(
        results=[
            DescribeConfigsResult(
                error_code=0,
                error_message=None,
                resource_type=2,
                resource_name=resource.resource_name,
                configs=[
                    DescribeConfigsResourceResult(
                        name=key,
                        value=values[resource.resource_name],
                        read_only=False,
                        is_sensitive=False,
                        synonyms=[],
                    )
                    for key in resource.configuration_keys
                ],
            )
            for resource in request.resources
        ]
    )

    async def ask():
        async with cluster(one) as admin:
            return await admin.configs.min_insync_replicas(
                ["a", "b"]
            ), await admin.configs.topic_values([], ["x"])

    assert asyncio.run(ask()) == ({"a": 2, "b": 1}, {})
    assert len([request for request in one.asked if hasattr(request, "resources")]) == 1


def test_a_refusal_of_the_whole_is_an_error():
    one = FakeBroker(1)
    one.answers[LIST] = lambda _: ListPartitionReassignmentsResponse(
        error_code=31, error_message="Not for you.", topics=[]
    )

    async def ask():
        async with cluster(one) as admin:
            await admin.replicas.reassignments()

    with pytest.raises(KafkaError, match="Not for you"):
        asyncio.run(ask())
