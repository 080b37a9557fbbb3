"""A survey of all groups: few requests, old brokers, foreign ones, and timestamps asked once."""

from __future__ import annotations

import asyncio

import pytest

from hightide.client import routing
from hightide.client.admin import group_survey
from hightide.client.admin.group_survey import GroupSurvey
from hightide.wire import batch
from hightide.wire.errors import ErrorCode
from hightide.wire.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from hightide.wire.messages.group_status import (
    GroupStatus,
    GroupStatusResponse,
    PartitionCommit,
    RebalanceStatus,
    TopicCommits,
)
from hightide.wire.messages.groups import (
    Coordinator,
    DescribedGroup,
    DescribeGroupsResponse,
    FindCoordinatorResponse,
    ListedGroup,
    ListGroupsResponse,
)
from hightide.wire.messages.offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from tests.unit.client.fake_broker import FakeBroker, cluster

FETCH, LIST_OFFSETS, COMMITTED, FIND = 1, 2, 9, 10
DESCRIBE, LIST, STATUS = 15, 16, 30003
END, WRITTEN_MS = 50, 1_700_000_000_000


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    """Retries need no pauses here."""
    monkeypatch.setattr(routing, "COORDINATOR_PAUSE_S", 0.001)
    monkeypatch.setattr(routing, "LONGEST_PAUSE_S", 0.002)


def asked(broker, name):
    return [request for request in broker.asked if type(request).__name__ == name + "Request"]


def records(offset):
    """A batch with one record at this offset, written that many seconds after the first."""
    record = batch.Record(offset, WRITTEN_MS + offset * 1000, None, b"x")
    return batch.build([record], base_offset=offset)


def coordinator(broker_id, offsets, *, status=True):
    """A broker that coordinates groups with these committed offsets, and leads their partition."""
    broker = FakeBroker(broker_id)
    broker.answers[LIST] = lambda _: ListGroupsResponse(
        groups=[
            ListedGroup(group_id=name, protocol_type="consumer", group_type="classic")
            for name in offsets
        ]
    )
    broker.answers[DESCRIBE] = lambda request: DescribeGroupsResponse(
        groups=[
            DescribedGroup(
                group_id=name,
                group_state="Empty",
                protocol_type="consumer",
                protocol_data="",
                members=[],
            )
            for name in request.groups
        ]
    )
    broker.answers[COMMITTED] = lambda request: OffsetFetchResponse(
        groups=[
            OffsetFetchResponseGroup(
                group_id=group.group_id,
                topics=[
                    OffsetFetchResponseTopics(
                        name="orders",
                        partitions=[
                            OffsetFetchResponsePartitions(
                                partition_index=0,
                                committed_offset=offsets[group.group_id],
                                metadata="",
                            )
                        ],
                    )
                ],
            )
            for group in request.groups
        ]
    )
    broker.answers[LIST_OFFSETS] = lambda request: ListOffsetsResponse(
        topics=[
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    ListOffsetsPartitionResponse(
                        partition_index=partition.partition_index,
                        offset=END if partition.timestamp == -1 else 0,
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
    broker.answers[FETCH] = lambda request: FetchResponse(
        responses=[
            FetchableTopicResponse(
                topic=topic.topic,
                partitions=[
                    PartitionData(
                        partition_index=partition.partition,
                        high_watermark=END,
                        aborted_transactions=None,
                        records=bytes(records(partition.fetch_offset)),
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
    broker.highest[FETCH] = 12
    if status:
        broker.answers[STATUS] = lambda request: GroupStatusResponse(
            groups=[
                GroupStatus(
                    group_id=name,
                    generation=4,
                    last_rebalance=RebalanceStatus(reason="left", at_ms=5, generation=3),
                    topics=[
                        TopicCommits(
                            name="orders",
                            partitions=[
                                PartitionCommit(
                                    partition_index=0,
                                    committed_offset=offsets[name],
                                    committed_ms=77,
                                )
                            ],
                        )
                    ],
                )
                for name in request.group_ids
            ]
        )
    return broker


def look(*brokers, times=1):
    async def run():
        async with cluster(*brokers) as admin:
            survey = GroupSurvey(admin)
            return [await survey.look() for _ in range(times)]

    return asyncio.run(run())


def test_many_groups_take_few_requests():
    offsets = {f"g{number}": 10 for number in range(250)}
    broker = coordinator(1, offsets)
    (found,) = look(broker)
    assert len(found.lags) == len(found.listed) == 250
    (lag,) = found.lags["g7"].partitions
    assert (lag.lag_records, lag.oldest_ms) == (40, WRITTEN_MS + 10_000)
    assert lag.commit.committed_ms == 77
    assert found.lags["g7"].group.last_rebalance.reason == "left"
    assert len(asked(broker, "DescribeGroups")) == 3
    assert len(asked(broker, "OffsetFetch")) == 3
    assert len(asked(broker, "Fetch")) == 1


def test_a_timestamp_is_asked_once_while_the_group_stays_there():
    offsets = {"slow": 10, "done": END, "quick": 20}
    broker = coordinator(1, offsets)
    first, _, third = look(broker, times=3)
    assert third.lags["slow"].partitions[0].oldest_ms == WRITTEN_MS + 10_000
    assert third.lags["quick"].partitions[0].oldest_ms == WRITTEN_MS + 20_000
    assert first.lags["done"].partitions[0].lag_records == 0
    # Two groups at different offsets of a partition are two fetches, and only at first.
    assert len(asked(broker, "Fetch")) == 2


def test_what_is_too_much_at_once_is_unknown_and_found_later(monkeypatch):
    monkeypatch.setattr(group_survey, "MOST_LOOKUPS", 2)
    broker = coordinator(1, {f"g{number}": number for number in range(5)})
    rounds = look(broker, times=3)
    unknown = [
        sum(lag.partitions[0].oldest_ms is None for lag in found.lags.values()) for found in rounds
    ]
    assert unknown == [3, 1, 0]


def test_a_broker_of_another_make_is_asked_once_for_what_it_does_not_know():
    broker = coordinator(1, {"g": 10}, status=False)
    _, second = look(broker, times=2)
    lag = second.lags["g"]
    assert (lag.group.last_rebalance, lag.partitions[0].commit.committed_ms) == (None, None)
    assert lag.partitions[0].lag_records == 40


def test_older_brokers_are_asked_for_one_group_at_a_time():
    broker = coordinator(1, {"g": 10})
    broker.highest[COMMITTED] = 7
    broker.answers[COMMITTED] = lambda _: OffsetFetchResponse(topics=[], error_code=ErrorCode.NONE)
    broker.answers[FIND] = lambda request: FindCoordinatorResponse(
        coordinators=[
            Coordinator(key=key, node_id=1, host="x", port=1) for key in request.coordinator_keys
        ]
    )
    (found,) = look(broker)
    assert found.lags["g"].partitions == []
    assert [request.group_id for request in asked(broker, "OffsetFetch")] == ["g"]


def test_a_group_that_its_coordinator_does_not_describe_is_listed_only():
    broker = coordinator(1, {"g": 10, "gone": 10})
    described = broker.answers[DESCRIBE]

    def describe(request):
        answer = described(request)
        answer.groups[-1].error_code = ErrorCode.NOT_COORDINATOR
        return answer

    broker.answers[DESCRIBE] = describe
    (found,) = look(broker)
    assert [group.group for group in found.listed] == ["g", "gone"]
    assert list(found.lags) == ["g"]


def test_no_groups_are_no_more_requests():
    broker = coordinator(1, {})
    (found,) = look(broker)
    assert (found.listed, found.lags) == ([], {})
    assert not asked(broker, "ListOffsets")
