"""Groups of the consumer protocol (KIP-848), rule by rule."""

from __future__ import annotations

from typing import Any

import pytest

from hightide.core.groups.consumer.assignors import Subscriber, range_assignor, uniform_assignor
from hightide.core.groups.consumer.consumer_group import ConsumerGroup, GroupState, MemberState
from hightide.core.groups.turn import Client
from hightide.wire.errors import ErrorCode
from hightide.wire.messages.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    OwnedTopicPartitions,
)
from hightide.wire.messages.groups import DeleteGroupsRequest, ListGroupsRequest
from hightide.wire.messages.offsets import OffsetFetchRequestGroup
from tests.unit.core.consumer_world import topic_id, topics
from tests.unit.core.group_harness import DELAY_MS, Harness

SESSION_MS = 45_000


@pytest.fixture
def harness() -> Harness:
    harness = Harness()
    harness.coordinator.topics_changed(topics(t=4, u=2))
    return harness


def ask(harness: Harness, member_id: str, epoch: int = 0, /, **how: Any) -> int:
    """Send a heartbeat; one that joins has all fields."""
    owned = how.pop("owned", None)
    request = ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id=member_id,
        member_epoch=epoch,
        rebalance_timeout_ms=60_000 if epoch == 0 else -1,
        subscribed_topic_names=["t"] if epoch == 0 else None,
    )
    if owned is not None or epoch == 0:
        request.topic_partitions = [
            OwnedTopicPartitions(topic_id=topic_id(name), partitions=indexes)
            for name, indexes in (owned or {}).items()
        ]
    for name, value in how.items():
        setattr(request, name, value)
    return harness.ask("consumer_heartbeat_asked", request, Client("client", "/host"))


def beat(harness: Harness, *how: Any, **more: Any) -> ConsumerGroupHeartbeatResponse:
    response = harness.answers[ask(harness, *how, **more)]
    assert isinstance(response, ConsumerGroupHeartbeatResponse)
    return response


def assigned_indexes(response: ConsumerGroupHeartbeatResponse) -> list[int] | None:
    if response.assignment is None:
        return None
    return [
        partition
        for topic in response.assignment.topic_partitions
        for partition in topic.partitions
    ]


def group(harness: Harness) -> ConsumerGroup:
    found = harness.coordinator.consumer_groups.get("g")
    assert found is not None
    return found


# -- joining and assignments -----------------------------------------------------------------


def test_the_first_member_gets_everything_at_once(harness: Harness) -> None:
    response = beat(harness, "a")
    assert (response.member_epoch, assigned_indexes(response)) == (1, [0, 1, 2, 3])
    assert response.heartbeat_interval_ms == 5000
    assert group(harness).state is GroupState.STABLE
    assert assigned_indexes(beat(harness, "a", 1)) is None
    assert group(harness.moved()) == group(harness)


def test_a_member_without_an_id_gets_one(harness: Harness) -> None:
    response = beat(harness, "")
    assert response.member_id
    assert [*group(harness).members] == [response.member_id]


def test_a_partition_is_revoked_before_it_is_assigned_to_another_member(harness: Harness) -> None:
    beat(harness, "a")
    joined = beat(harness, "b")
    assert (joined.member_epoch, assigned_indexes(joined)) == (2, [])
    revoked = beat(harness, "a", 1, owned={"t": [0, 1, 2, 3]})
    assert revoked.member_epoch == 1
    kept = assigned_indexes(revoked)
    assert kept is not None
    assert len(kept) == 2
    assert group(harness).members["a"].state is MemberState.UNREVOKED_PARTITIONS
    assert assigned_indexes(beat(harness, "b", 2)) is None
    done = beat(harness, "a", 1, owned={"t": kept})
    assert done.member_epoch == 2
    rest = assigned_indexes(beat(harness, "b", 2))
    assert rest is not None
    assert sorted(kept + rest) == [0, 1, 2, 3]
    assert group(harness).state is GroupState.STABLE


def test_an_answer_waits_until_its_decision_is_written(harness: Harness) -> None:
    harness.holds = True
    first = ask(harness, "a")
    second = ask(harness, "a", 1)
    assert not {first, second} & harness.answers.keys()
    harness.commit()
    assert harness.answers[first].member_epoch == harness.answers[second].member_epoch == 1


def test_a_decision_that_could_not_be_written_is_undone(harness: Harness) -> None:
    beat(harness, "a")
    before = group(harness)
    harness.holds = True
    ticket = ask(harness, "b")
    harness.refuse()
    assert harness.answers[ticket].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert group(harness) == before


def test_a_member_that_does_not_revoke_in_time_is_removed(harness: Harness) -> None:
    beat(harness, "a")
    beat(harness, "b")
    beat(harness, "a", 1, owned={"t": [0, 1, 2, 3]})
    for _ in range(4):
        harness.wait(15_000)
        late = beat(harness, "a", 1, owned={"t": [0, 1, 2, 3]})
        other = beat(harness, "b", 2)
    assert late.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert assigned_indexes(other) == [0, 1, 2, 3]


def test_a_member_without_heartbeats_is_removed(harness: Harness) -> None:
    beat(harness, "a")
    harness.wait(SESSION_MS)
    assert group(harness).state is GroupState.EMPTY
    assert beat(harness, "a", 1).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_that_leaves_is_removed_at_once(harness: Harness) -> None:
    beat(harness, "a")
    beat(harness, "b")
    assert beat(harness, "a", -1).member_epoch == -1
    assert assigned_indexes(beat(harness, "b", 2)) == [0, 1, 2, 3]


# -- subscriptions ---------------------------------------------------------------------------


def test_a_member_changes_its_subscription(harness: Harness) -> None:
    beat(harness, "a")
    changed = beat(harness, "a", 1, subscribed_topic_names=["u"], owned={"t": [0, 1, 2, 3]})
    assert assigned_indexes(changed) == []
    done = beat(harness, "a", 1, owned={})
    assert (done.member_epoch, assigned_indexes(done)) == (2, [0, 1])


def test_a_member_subscribes_by_an_expression_and_gets_new_topics(harness: Harness) -> None:
    response = beat(harness, "a", subscribed_topic_names=None, subscribed_topic_regex="t.*")
    assert assigned_indexes(response) == [0, 1, 2, 3]
    harness.coordinator.topics_changed(topics(t=4, u=2, tt=1))
    more = beat(harness, "a", 1)
    assert more.member_epoch == 2
    assert len(assigned_indexes(more) or ()) == 5


def test_new_partitions_are_assigned_and_deleted_topics_are_revoked(
    harness: Harness,
) -> None:
    beat(harness, "a")
    harness.coordinator.topics_changed(topics(t=6))
    assert assigned_indexes(beat(harness, "a", 1)) == [0, 1, 2, 3, 4, 5]
    harness.coordinator.topics_changed({})
    assert assigned_indexes(beat(harness, "a", 2)) == []


# -- epochs ----------------------------------------------------------------------------------


def test_another_epoch_is_fenced_unless_only_an_answer_was_lost(harness: Harness) -> None:
    beat(harness, "a")
    beat(harness, "a", 1, subscribed_topic_names=["t", "u"])
    assert group(harness).members["a"].epoch == 2
    assert beat(harness, "a", 3).error_code == ErrorCode.FENCED_MEMBER_EPOCH
    assert beat(harness, "a", 1).error_code == ErrorCode.FENCED_MEMBER_EPOCH
    owned = {"t": [0, 1, 2, 3]}
    assert beat(harness, "a", 1, owned=owned).member_epoch == 2
    stranger = {"t": [0, 9]}
    assert beat(harness, "a", 1, owned=stranger).error_code == ErrorCode.FENCED_MEMBER_EPOCH


def test_a_join_whose_answer_was_lost_is_answered_again(harness: Harness) -> None:
    for _ in range(2):
        response = beat(harness, "a")
        assert (response.member_epoch, assigned_indexes(response)) == (1, [0, 1, 2, 3])


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"instance_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"rebalance_timeout_ms": -1}, ErrorCode.INVALID_REQUEST),
        ({"topic_partitions": None}, ErrorCode.INVALID_REQUEST),
        ({"owned": {"t": [1]}}, ErrorCode.INVALID_REQUEST),
        ({"subscribed_topic_names": []}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": -3}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": -2}, ErrorCode.INVALID_REQUEST),
        ({"member_id": "", "member_epoch": 1}, ErrorCode.INVALID_REQUEST),
        ({"server_assignor": "mine"}, ErrorCode.UNSUPPORTED_ASSIGNOR),
        ({"subscribed_topic_regex": "("}, ErrorCode.INVALID_REGULAR_EXPRESSION),
        ({"member_epoch": 1}, ErrorCode.GROUP_ID_NOT_FOUND),
    ],
)
def test_a_bad_heartbeat_is_refused_and_leaves_no_trace(
    harness: Harness, how: dict[str, Any], error: ErrorCode
) -> None:
    response = beat(harness, "a", **how)
    assert response.error_code == error
    assert response.error_message
    assert harness.coordinator.consumer_groups.groups == {}
    assert harness.log == []


def test_a_full_group_accepts_no_more_members() -> None:
    harness = Harness(consumer_max_size=1)
    harness.coordinator.topics_changed(topics(t=4))
    beat(harness, "a")
    assert beat(harness, "b").error_code == ErrorCode.GROUP_MAX_SIZE_REACHED


# -- static members --------------------------------------------------------------------------


def test_a_static_member_keeps_its_partitions_when_it_restarts(harness: Harness) -> None:
    beat(harness, "a", instance_id="i")
    beat(harness, "b")
    assert beat(harness, "c", instance_id="i").error_code == ErrorCode.UNRELEASED_INSTANCE_ID
    beat(harness, "a", -2, instance_id="i")
    assert assigned_indexes(beat(harness, "b", 2)) is None
    back = beat(harness, "c", instance_id="i")
    assert (back.error_code, back.member_epoch) == (ErrorCode.NONE, 2)
    assert len(assigned_indexes(back) or ()) == 2
    assert group(harness).epoch == 2
    assert beat(harness, "a", 1, instance_id="i").error_code == ErrorCode.FENCED_INSTANCE_ID
    assert beat(harness, "a", -1, instance_id="i").error_code == ErrorCode.FENCED_INSTANCE_ID
    assert group(harness.moved()) == group(harness)


def test_a_static_member_that_does_not_come_back_is_removed(harness: Harness) -> None:
    beat(harness, "a", instance_id="i")
    beat(harness, "a", -2, instance_id="i")
    harness.wait(SESSION_MS)
    assert group(harness).members == {}
    assert beat(harness, "a", 1, instance_id="i").error_code == ErrorCode.UNKNOWN_MEMBER_ID


# -- offsets ---------------------------------------------------------------------------------


def test_a_member_commits_and_fetches_in_its_epoch(harness: Harness) -> None:
    beat(harness, "a")
    assert harness.commit_error(5, "a", 1) == ErrorCode.NONE
    assert harness.commit_error(6, "a", 0) == ErrorCode.STALE_MEMBER_EPOCH
    assert harness.commit_error(6, "a", 2) == ErrorCode.STALE_MEMBER_EPOCH
    assert harness.commit_error(6, "b", 1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert harness.commit_error(6) == ErrorCode.UNKNOWN_MEMBER_ID
    assert harness.commit_error(6, "a", 1, version=8) == ErrorCode.UNSUPPORTED_VERSION
    assert harness.fetch() == 5

    def fetch(member_id: str | None, epoch: int) -> int:
        request = OffsetFetchRequestGroup(
            group_id="g", member_id=member_id, member_epoch=epoch, topics=None
        )
        return harness.coordinator.fetch_asked(request, require_stable=True).error_code

    assert [fetch("a", 1), fetch(None, -1)] == [ErrorCode.NONE, ErrorCode.NONE]
    assert [fetch("a", 2), fetch("b", 1)] == [
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.UNKNOWN_MEMBER_ID,
    ]


def test_offsets_outlive_the_members_and_the_group_is_forgotten_with_them(harness: Harness) -> None:
    beat(harness, "a")
    harness.commit_offset(5, "a", 1)
    beat(harness, "a", -1)
    harness.wait(harness.rules.offsets_retention_ms // 2)
    assert harness.moved().fetch() == harness.fetch() == 5
    harness.coordinator.topics_changed({})
    harness.wait(harness.rules.offsets_retention_ms)
    assert harness.fetch() == -1
    assert harness.coordinator.consumer_groups.groups == {}
    assert harness.moved().coordinator.consumer_groups.groups == {}


# -- classic groups --------------------------------------------------------------------------


def test_an_empty_classic_group_is_replaced_and_its_offsets_stay(harness: Harness) -> None:
    harness.commit_offset(5)
    leader, follower = harness.stable()
    assert beat(harness, "a").error_code == ErrorCode.GROUP_ID_NOT_FOUND
    harness.leave((leader.member_id, None), (follower.member_id, None))
    assert beat(harness, "a").member_epoch == 1
    assert "g" not in harness.coordinator.classic_groups
    assert harness.fetch() == 5
    moved = harness.moved()
    assert (group(moved), moved.fetch()) == (group(harness), 5)
    assert "g" not in moved.coordinator.classic_groups


def test_an_empty_group_is_replaced_by_a_classic_one(harness: Harness) -> None:
    beat(harness, "a")
    harness.commit_offset(5, "a", 1)
    refused = harness.answers[harness.join()]
    assert refused.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    beat(harness, "a", -1)
    ticket = harness.join(version=3)
    harness.wait(DELAY_MS)
    assert harness.answers[ticket].generation_id == 1
    assert harness.fetch() == 5
    assert harness.moved().coordinator.consumer_groups.groups == {}


def test_if_its_tombstones_cannot_be_written_it_is_not_replaced(harness: Harness) -> None:
    beat(harness, "a")
    beat(harness, "a", -1)
    before = group(harness)
    harness.holds = True
    ticket = harness.join(version=3)
    harness.refuse()
    harness.holds = False
    assert harness.answers[ticket].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert group(harness) == group(harness.moved()) == before
    harness.wait(DELAY_MS)
    assert "g" not in harness.coordinator.classic_groups


# -- administration --------------------------------------------------------------------------


def test_a_group_is_described_listed_and_deleted(harness: Harness) -> None:
    beat(harness, "a", instance_id="i")
    administration = harness.coordinator.administration
    found = administration.describe_consumers("g", "uniform")
    assert (found.group_state, found.group_epoch, found.assignor_name) == ("Stable", 1, "uniform")
    (member,) = found.members
    assert (member.member_id, member.instance_id, member.client_host) == ("a", "i", "/host")
    assert member.assignment == member.target_assignment
    assert member.assignment.topic_partitions[0].topic_name == "t"
    unknown = administration.describe_consumers("h", "uniform")
    assert unknown.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    (listed,) = administration.listed(ListGroupsRequest(types_filter=["consumer"]))
    assert (listed.group_type, listed.protocol_type) == ("consumer", "consumer")
    request = DeleteGroupsRequest(groups_names=["g"])
    refused = harness.answers[harness.ask("delete_groups_asked", request)]
    assert refused.results[0].error_code == ErrorCode.NON_EMPTY_GROUP
    beat(harness, "a", -1, instance_id="i")
    deleted = harness.answers[harness.ask("delete_groups_asked", request)]
    assert deleted.results[0].error_code == ErrorCode.NONE
    assert harness.moved().coordinator.consumer_groups.groups == {}


# -- assignors -------------------------------------------------------------------------------

T, U = topic_id("t"), topic_id("u")


def subscriber(name: str, *topics: Any, has: Any = ()) -> Subscriber:
    return Subscriber(("", name), frozenset(topics), frozenset(has))


def test_ranges_are_the_same_for_topics_of_one_size() -> None:
    members = {name: subscriber(name, T, U) for name in "ab"}
    shares = range_assignor(members, {T: 3, U: 3})
    assert shares["a"] == {(T, 0), (T, 1), (U, 0), (U, 1)}
    assert shares["b"] == {(T, 2), (U, 2)}


def test_uniform_assignments_differ_by_one_at_most_and_move_little() -> None:
    members = {name: subscriber(name, T) for name in "ab"}
    first = uniform_assignor(members, {T: 7})
    assert sorted(map(len, first.values())) == [3, 4]
    members = {name: subscriber(name, T, has=first.get(name, ())) for name in "abc"}
    second = uniform_assignor(members, {T: 7})
    assert sorted(map(len, second.values())) == [2, 2, 3]
    assert all(second[name] <= first[name] for name in "ab")


def test_uniform_assignments_are_as_even_as_subscriptions_allow() -> None:
    members = {"a": subscriber("a", T), "b": subscriber("b", T, U), "c": subscriber("c", U)}
    shares = uniform_assignor(members, {T: 2, U: 4})
    assert {name: len(share) for name, share in shares.items()} == {"a": 2, "b": 2, "c": 2}
    assert all(topic in members[name].topics for name in "abc" for topic, _ in shares[name])


def test_the_assignor_that_most_members_request_is_used(harness: Harness) -> None:
    beat(harness, "a", subscribed_topic_names=["t", "u"], server_assignor="range")
    beat(harness, "b", subscribed_topic_names=["t", "u"], server_assignor="range")
    found = harness.coordinator.administration.describe_consumers("g", "uniform")
    assert found.assignor_name == "range"
    shares = [sorted(index for _, index in share) for share in group(harness).target.values()]
    assert shares == [[0, 0, 1], [1, 2, 3]]
