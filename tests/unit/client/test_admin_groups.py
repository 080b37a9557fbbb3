"""Group requests to coordinators that move, load, are old, or are not Hightide's."""

from __future__ import annotations

import asyncio
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hightide.client import routing
from hightide.client.model.cluster import Extent
from hightide.client.model.groups import (
    Commit,
    GroupDescription,
    PartitionLag,
    assigned,
    lags,
    unread,
)
from hightide.wire import batch
from hightide.wire.errors import ErrorCode, KafkaError
from hightide.wire.messages.consumer_groups import (
    ConsumerGroupDescribeResponse,
    DescribedAssignment,
    DescribedConsumer,
    DescribedConsumerGroup,
    DescribedTopicPartitions,
)
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
    DeletableGroupResult,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsResponse,
    FindCoordinatorResponse,
    ListedGroup,
    ListGroupsResponse,
)
from hightide.wire.messages.offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from tests.unit.client.fake_broker import ID, FakeBroker, cluster

FETCH, LIST_OFFSETS, COMMIT, COMMITTED, FIND = 1, 2, 8, 9, 10
DESCRIBE, LIST, DELETE, DESCRIBE_CONSUMERS, STATUS = 15, 16, 42, 69, 30003
SHARE = struct.pack(">hih6siiii", 3, 1, 6, b"orders", 2, 1, 0, -1)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    """Retries need no pauses here."""
    monkeypatch.setattr(routing, "COORDINATOR_PAUSE_S", 0.001)
    monkeypatch.setattr(routing, "LONGEST_PAUSE_S", 0.002)


def coordinated(*brokers, by=1):
    """Brokers that all name the same coordinator."""
    for broker in brokers:
        broker.answers[FIND] = lambda request: FindCoordinatorResponse(
            coordinators=[
                Coordinator(key=key, node_id=by, host="x", port=1)
                for key in request.coordinator_keys
            ]
        )
    return brokers


def asked(broker, name):
    return [request for request in broker.asked if type(request).__name__ == name + "Request"]


def run(question, *brokers):
    async def ask():
        async with cluster(*brokers) as admin:
            return await question(admin)

    return asyncio.run(ask())


def classic(state="Stable", **values):
    members = [
        DescribedGroupMember(
            member_id="a-1",
            client_id="a",
            client_host="/10.0.0.1",
            member_metadata=b"",
            member_assignment=SHARE,
        )
    ]
    defaults = {"protocol_type": "consumer", "protocol_data": "range", "members": members}
    group = DescribedGroup(group_id="g", group_state=state, **{**defaults, **values})
    return lambda _: DescribeGroupsResponse(groups=[group])


# -- coordinators ------------------------------------------------------------------------------


def test_the_coordinator_is_asked_and_asked_again_while_it_moves_or_loads():
    one, two = coordinated(FakeBroker(1), FakeBroker(2), by=2)
    codes = iter([16, 14, 15, 0])
    two.answers[DELETE] = lambda _: DeleteGroupsResponse(
        results=[DeletableGroupResult(group_id="g", error_code=next(codes))]
    )
    run(lambda admin: admin.groups.delete("g"), one, two)
    assert [request.groups_names for request in asked(two, "DeleteGroups")] == [["g"]] * 4
    assert len(asked(one, "FindCoordinator")) == 4


def test_what_is_refused_for_good_is_not_asked_again():
    (one,) = coordinated(FakeBroker(1))
    one.answers[DELETE] = lambda _: DeleteGroupsResponse(
        results=[DeletableGroupResult(group_id="g", error_code=68)]
    )
    with pytest.raises(KafkaError) as refused:
        run(lambda admin: admin.groups.delete("g"), one)
    assert refused.value.code is ErrorCode.NON_EMPTY_GROUP
    assert len(asked(one, "DeleteGroups")) == 1


def test_a_coordinator_that_does_not_come_is_given_up(monkeypatch):
    monkeypatch.setattr(routing, "COORDINATOR_LIMIT_S", 0.05)
    (one,) = coordinated(FakeBroker(1), by=9)
    with pytest.raises(KafkaError, match="broker 9, is not alive"):
        run(lambda admin: admin.groups.delete("g"), one)
    one.answers[FIND] = lambda _: FindCoordinatorResponse(
        coordinators=[Coordinator(key="g", node_id=-1, host="", port=-1, error_code=15)]
    )
    with pytest.raises(KafkaError) as refused:
        run(lambda admin: admin.groups.delete("g"), one)
    assert refused.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_older_brokers_find_one_coordinator_at_a_time():
    one = FakeBroker(1)
    one.highest[FIND] = 3
    one.answers[FIND] = lambda _: FindCoordinatorResponse(node_id=1, host="x", port=1)
    one.answers[DELETE] = lambda _: DeleteGroupsResponse(results=[])
    run(lambda admin: admin.groups.delete("g"), one)
    (question,) = asked(one, "FindCoordinator")
    assert (question.key, question.key_type) == ("g", 0)


# -- listing and describing --------------------------------------------------------------------


def test_groups_are_listed_from_all_brokers_and_a_silent_one_is_named():
    brokers = coordinated(FakeBroker(1), FakeBroker(2), FakeBroker(3))
    for broker, names in zip(brokers[:2], (["c", "a"], ["b"]), strict=True):
        broker.answers[LIST] = lambda request, names=names: ListGroupsResponse(
            groups=[
                ListedGroup(
                    group_id=name,
                    protocol_type="consumer",
                    group_state=request.states_filter[0],
                    group_type="Classic",
                )
                for name in names
            ]
        )
    found = run(lambda admin: admin.groups.list(["Stable"], ["classic"]), *brokers)
    assert [(group.group, group.state, group.coordinator) for group in found.groups] == [
        ("a", "Stable", 1),
        ("b", "Stable", 2),
        ("c", "Stable", 1),
    ]
    assert list(found.silent) == [3]
    assert "does not offer ListGroups" in found.silent[3]


def test_when_no_broker_can_list_that_is_an_error():
    (one,) = coordinated(FakeBroker(1))
    with pytest.raises(KafkaError, match="does not offer ListGroups"):
        run(lambda admin: admin.groups.list(), one)


def test_a_classic_group_of_a_cluster_that_is_not_hightides_is_described():
    (one,) = coordinated(FakeBroker(1))
    one.answers[DESCRIBE] = classic()
    found = run(lambda admin: admin.groups.describe("g"), one)
    assert (found.state, found.type, found.assignor, found.coordinator) == (
        "Stable",
        "Classic",
        "range",
        1,
    )
    assert (found.generation, found.last_rebalance, found.since_ms) == (None, None, None)
    (member,) = found.members
    assert member.assignment == (("orders", 0), ("orders", 1))
    assert found.owners() == {("orders", 0): member, ("orders", 1): member}


def test_what_only_hightide_tells_is_added():
    (one,) = coordinated(FakeBroker(1))
    one.answers[DESCRIBE] = classic()
    one.answers[STATUS] = lambda _: GroupStatusResponse(
        groups=[
            GroupStatus(
                group_id="g",
                generation=7,
                state_ms=900,
                leader="a-1",
                last_rebalance=RebalanceStatus(reason="a-1 joined", at_ms=800, generation=6),
            )
        ]
    )
    found = run(lambda admin: admin.groups.describe("g"), one)
    assert (found.generation, found.since_ms, found.leader) == (7, 900, "a-1")
    assert (found.last_rebalance.reason, found.last_rebalance.generation) == ("a-1 joined", 6)


def test_a_group_of_the_newer_protocol_is_described():
    (one,) = coordinated(FakeBroker(1))

    def share(*indexes):
        topic = DescribedTopicPartitions(topic_id=ID, topic_name="orders", partitions=list(indexes))
        return DescribedAssignment(topic_partitions=[topic])

    one.answers[DESCRIBE_CONSUMERS] = lambda _: ConsumerGroupDescribeResponse(
        groups=[
            DescribedConsumerGroup(
                group_id="g",
                group_state="Reconciling",
                group_epoch=5,
                assignment_epoch=5,
                assignor_name="uniform",
                members=[
                    DescribedConsumer(
                        member_id="m",
                        member_epoch=4,
                        client_id="c",
                        client_host="/h",
                        subscribed_topic_names=["orders"],
                        assignment=share(0),
                        target_assignment=share(0, 1),
                    )
                ],
            )
        ]
    )
    found = run(lambda admin: admin.groups.describe("g"), one)
    assert (found.type, found.generation, found.assignor) == ("Consumer", 5, "uniform")
    (member,) = found.members
    assert (member.epoch, len(member.assignment), len(member.target)) == (4, 1, 2)


@pytest.mark.parametrize("response", [{"error_code": 69}, {"state": "Dead", "members": []}])
def test_a_group_that_is_not_there_is_said_in_words(response):
    (one,) = coordinated(FakeBroker(1))
    one.answers[DESCRIBE] = classic(**response)
    one.answers[DESCRIBE_CONSUMERS] = lambda _: ConsumerGroupDescribeResponse(
        groups=[
            DescribedConsumerGroup(
                error_code=69,
                group_id="g",
                group_state="",
                group_epoch=0,
                assignment_epoch=0,
                assignor_name="",
                members=[],
            )
        ]
    )
    with pytest.raises(KafkaError, match="There is no group 'g'") as refused:
        run(lambda admin: admin.groups.describe("g"), one)
    assert refused.value.code is ErrorCode.GROUP_ID_NOT_FOUND


def test_assignments_of_other_protocols_are_left_alone():
    (one,) = coordinated(FakeBroker(1))
    one.answers[DESCRIBE] = classic(protocol_type="connect")
    assert run(lambda admin: admin.groups.describe("g"), one).members[0].assignment is None


@given(st.binary(max_size=60))
def test_any_bytes_are_an_assignment_or_none(data):
    found = assigned(data)
    assert found is None or all(topic is not None for topic, _ in found)


def test_an_assignment_is_read():
    assert assigned(SHARE) == (("orders", 0), ("orders", 1))
    assert assigned(b"") == ()
    assert assigned(SHARE[:12]) is None


# -- offsets -----------------------------------------------------------------------------------


def committed(offset, error=0):
    part = OffsetFetchResponsePartitions(
        partition_index=0, committed_offset=offset, metadata=None, error_code=error
    )
    topic = OffsetFetchResponseTopics(name="orders", partitions=[part])
    return OffsetFetchResponse(groups=[OffsetFetchResponseGroup(group_id="g", topics=[topic])])


def test_committed_offsets_are_read_when_no_transaction_may_change_them():
    (one,) = coordinated(FakeBroker(1))
    answers = iter([committed(-1, 88), committed(5)])
    one.answers[COMMITTED] = lambda _: next(answers)
    found = run(lambda admin: admin.groups.committed("g", stable=True), one)
    assert found == {("orders", 0): Commit(5, -1, "")}
    question = asked(one, "OffsetFetch")[0]
    assert (question.require_stable, question.groups[0].topics) == (True, None)


def test_older_brokers_are_asked_for_one_group():
    (one,) = coordinated(FakeBroker(1))
    one.highest[COMMITTED] = 6
    part = OffsetFetchResponsePartition(partition_index=0, committed_offset=3, metadata="x")
    one.answers[COMMITTED] = lambda _: OffsetFetchResponse(
        topics=[OffsetFetchResponseTopic(name="orders", partitions=[part])]
    )
    found = run(lambda admin: admin.groups.committed("g", stable=True), one)
    assert found == {("orders", 0): Commit(3, -1, "x")}
    assert asked(one, "OffsetFetch")[0].group_id == "g"


def test_offsets_are_committed_in_the_name_of_an_empty_group():
    (one,) = coordinated(FakeBroker(1))

    def answer(*codes):
        parts = [
            OffsetCommitResponsePartition(partition_index=at, error_code=code)
            for at, code in enumerate(codes)
        ]
        return OffsetCommitResponse(
            topics=[OffsetCommitResponseTopic(name="orders", partitions=parts)]
        )

    answers = iter([answer(14, 14), answer(0, 25)])
    one.answers[COMMIT] = lambda _: next(answers)
    found = run(lambda admin: admin.groups.commit("g", {("orders", 0): 4, ("orders", 1): 9}), one)
    assert found["orders", 0] is None
    assert found["orders", 1].code is ErrorCode.UNKNOWN_MEMBER_ID
    question = asked(one, "OffsetCommit")[-1]
    assert (question.member_id, question.generation_id_or_member_epoch) == ("", -1)
    (topic,) = question.topics
    assert [partition.committed_offset for partition in topic.partitions] == [4, 9]


# -- lag ---------------------------------------------------------------------------------------


def broker_with_records(batches, end):
    """One partition with these batches, and a group with a commit at offset 4."""
    (one,) = coordinated(FakeBroker(1))
    one.answers[DESCRIBE] = classic()
    one.answers[COMMITTED] = lambda _: committed(4)
    one.answers[STATUS] = lambda _: GroupStatusResponse(
        groups=[
            GroupStatus(
                group_id="g",
                topics=[
                    TopicCommits(
                        name="orders",
                        partitions=[
                            PartitionCommit(
                                partition_index=0, committed_offset=4, committed_ms=5000
                            )
                        ],
                    )
                ],
            )
        ]
    )

    def offsets(request):
        (asked_for,) = request.topics[0].partitions
        offset = {-2: 2, -1: end}[asked_for.timestamp]
        part = ListOffsetsPartitionResponse(partition_index=0, timestamp=-1, offset=offset)
        return ListOffsetsResponse(
            topics=[ListOffsetsTopicResponse(name="orders", partitions=[part])]
        )

    def fetch(request):
        (wanted,) = request.topics[0].partitions
        kept = [
            data for data in batches if batch.read_header(data).last_offset >= wanted.fetch_offset
        ]
        data = b"".join(bytes(data) for data in kept)[: wanted.partition_max_bytes]
        part = PartitionData(
            partition_index=0, high_watermark=end, aborted_transactions=None, records=data
        )
        return FetchResponse(responses=[FetchableTopicResponse(topic="orders", partitions=[part])])

    one.answers[LIST_OFFSETS] = offsets
    one.answers[FETCH] = fetch
    return one


def records(first, last, size=1):
    made = [batch.Record(at, 1000 * at, None, b"v" * size) for at in range(first, last + 1)]
    return batch.build(made, base_offset=first)


def marker(offset):
    made = [batch.Record(offset, 1, b"\0\0\0\1", b"\0" * 6)]
    return batch.build(made, base_offset=offset, control=True, producer_id=1, producer_epoch=0)


@pytest.mark.parametrize(
    ("batches", "end", "oldest_ms"),
    [
        ([records(2, 9)], 10, 4000),
        ([records(2, 9, size=3000)], 10, 4000),
        ([records(2, 3), marker(4), marker(5), records(6, 7)], 8, 6000),
        ([records(2, 3), marker(4)], 5, None),
        ([b"\0" * 100], 10, None),
    ],
)
def test_the_lag_is_told_in_records_and_by_the_oldest_record_not_consumed(batches, end, oldest_ms):
    one = broker_with_records(batches, end)
    found = run(lambda admin: admin.groups.lag("g"), one)
    lag, other = found.partitions
    assert (lag.commit, lag.extent) == (Commit(4, -1, "", 5000), Extent(2, end))
    assert (lag.lag_records, lag.oldest_ms) == (end - 4, oldest_ms)
    assert lag.lag_ms(10_000) == (None if oldest_ms is None else 10_000 - oldest_ms)
    assert lag.owner.id == "a-1"
    # The member has a partition that does not exist: only its owner is known.
    assert (other.partition, other.commit, other.extent, other.lag_records) == (1, None, None, None)


def test_a_group_that_has_everything_is_not_behind():
    one = broker_with_records([records(2, 3)], 4)
    lag = run(lambda admin: admin.groups.lag("g"), one).partitions[0]
    assert (lag.lag_records, lag.lag_ms(10_000)) == (0, 0)
    assert asked(one, "Fetch") == []


def test_records_that_were_deleted_before_they_were_consumed_do_not_count():
    group = GroupDescription("g", "Classic", "Empty", 1, "consumer", "", None, [])
    commits = {
        ("t", 0): Commit(3, -1, ""),
        ("t", 1): Commit(9, -1, ""),
        ("t", 2): Commit(1, -1, ""),
    }
    extents = {("t", 0): Extent(10, 15), ("t", 1): Extent(0, 9)}
    assert unread(commits, extents) == {("t", 0): 10}
    found = lags(group, commits, extents, {("t", 0): 100})
    assert [lag.lag_records for lag in found] == [5, 0, None]
    assert [lag.lag_ms(50) for lag in found] == [0, 0, None]


def test_a_commit_ahead_of_the_end_is_no_negative_lag():
    """The end offset came from a new leader, which did not know the high watermark yet."""
    lag = PartitionLag("t", 0, Commit(9, -1, ""), Extent(0, 7), None, None)
    assert (lag.lag_records, lag.lag_ms(5)) == (0, 0)
