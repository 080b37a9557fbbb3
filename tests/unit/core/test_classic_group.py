"""Classic groups, rule by rule."""

from __future__ import annotations

from typing import Any

import pytest

from hightide.core.groups.classic.classic_group import State, subscribed_topics
from hightide.core.groups.deadlines import Deadline, Deadlines, Kind
from hightide.core.groups.turn import Client
from hightide.wire.errors import ErrorCode
from hightide.wire.messages.groups import (
    DeleteGroupsRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    SyncGroupRequest,
)
from tests.unit.core.group_harness import DELAY_MS, REBALANCE_MS, SESSION_MS, Harness
from tests.unit.core.group_world import subscription


@pytest.fixture
def harness() -> Harness:
    return Harness()


def error_of(harness: Harness, ticket: int) -> ErrorCode:
    return ErrorCode(harness.answers[ticket].error_code)


# -- joining ---------------------------------------------------------------------------------


def test_a_group_forms_in_two_steps_and_assignments_are_sent_when_they_are_written(
    harness: Harness,
) -> None:
    first, second = harness.new_id(), harness.new_id()
    tickets = [harness.join(first), harness.join(second)]
    assert harness.group().state is State.PREPARING_REBALANCE
    harness.wait(2 * DELAY_MS)
    leader, follower = (harness.answers[ticket] for ticket in tickets)
    assert leader.leader == follower.leader == first
    assert [member.member_id for member in leader.members] == [first, second]
    assert follower.members == []
    assert leader.generation_id == follower.generation_id == 1
    assert leader.protocol_name == "range"
    harness.holds = True
    waiting = harness.sync(follower)
    assert not harness.writes
    leading = harness.sync(leader, {first: b"one", second: b"two"})
    assert waiting not in harness.answers
    assert leading not in harness.answers
    assert harness.group().state is State.COMPLETING_REBALANCE
    harness.commit()
    assert harness.answers[leading].assignment == b"one"
    assert harness.answers[waiting].assignment == b"two"
    assert harness.group().state is State.STABLE


def test_a_client_without_a_member_id_gets_one_first(harness: Harness) -> None:
    ticket = harness.join(version=4)
    assert error_of(harness, ticket) == ErrorCode.MEMBER_ID_REQUIRED
    member_id = harness.answers[ticket].member_id
    assert member_id.startswith("client-")
    assert harness.group().pending == {member_id}
    harness.join(member_id)
    assert harness.group().pending == set()
    assert [*harness.group().members] == [member_id]


def test_old_versions_are_members_at_once(harness: Harness) -> None:
    ticket = harness.join(version=3)
    assert ticket not in harness.answers
    harness.wait(DELAY_MS)
    assert error_of(harness, ticket) == ErrorCode.NONE


def test_a_member_id_that_is_never_used_is_forgotten_with_its_group(harness: Harness) -> None:
    harness.new_id()
    harness.wait(SESSION_MS)
    assert harness.coordinator.classic_groups == {}


def test_the_first_rebalance_waits_longer_if_a_member_joins(harness: Harness) -> None:
    first = harness.join(version=3)
    harness.wait(DELAY_MS - 1)
    second = harness.join(version=3)
    harness.wait(DELAY_MS)
    assert first not in harness.answers
    harness.wait(1)
    assert harness.answers[first].generation_id == harness.answers[second].generation_id == 1


def test_the_first_rebalance_does_not_wait_longer_than_the_rebalance_timeout(
    harness: Harness,
) -> None:
    first = harness.join(version=3)
    for _ in range(REBALANCE_MS // 1000 - 1):
        harness.wait(1000)
        harness.join(version=3)
    assert first not in harness.answers
    harness.wait(1000)
    assert error_of(harness, first) == ErrorCode.NONE


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"session_ms": 5999}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"session_ms": 30 * 60_000 + 1}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"member_id": "unknown"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"protocol_type": ""}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    ],
)
def test_a_bad_join_is_refused_and_leaves_no_trace(
    harness: Harness, how: dict[str, Any], error: ErrorCode
) -> None:
    assert error_of(harness, harness.join(**how)) == error
    assert harness.coordinator.classic_groups == {}


def test_a_join_without_protocols_is_refused(harness: Harness) -> None:
    request = JoinGroupRequest(
        group_id="g", session_timeout_ms=SESSION_MS, member_id="", protocol_type="x", protocols=[]
    )
    ticket = harness.ask("join_asked", request, 9, Client("c", "/h"))
    assert error_of(harness, ticket) == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert harness.coordinator.classic_groups == {}


@pytest.mark.parametrize(
    "how", [{"protocols": {"sticky": b""}}, {"protocol_type": "connect"}, {"member_id": "unknown"}]
)
def test_a_join_that_does_not_fit_the_group_changes_nothing(
    harness: Harness, how: dict[str, Any]
) -> None:
    harness.stable()
    before = harness.group().record()
    assert error_of(harness, harness.join(**how)) in (
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
        ErrorCode.UNKNOWN_MEMBER_ID,
    )
    assert harness.group().record() == before
    assert harness.group().state is State.STABLE


def test_the_protocol_that_most_members_prefer_is_chosen_of_those_that_all_know(
    harness: Harness,
) -> None:
    offers = [{"a": b"", "b": b""}, {"b": b"", "a": b""}, {"c": b"", "b": b"", "a": b""}]
    tickets = [harness.join(version=3, protocols=offer) for offer in offers]
    harness.wait(3 * DELAY_MS)
    assert {harness.answers[ticket].protocol_name for ticket in tickets} == {"b"}


def test_a_full_group_accepts_no_more_members() -> None:
    harness = Harness(max_size=2)
    harness.stable(2)
    assert error_of(harness, harness.join(version=3)) == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert harness.group().state is State.STABLE


def test_when_the_limit_was_lowered_the_first_members_to_join_stay(harness: Harness) -> None:
    ids = [member.member_id for member in harness.stable(3)]
    harness.rules = Harness(max_size=2).rules
    moved = harness.moved()
    assert moved.group().state is State.PREPARING_REBALANCE
    assert moved.group().last_rebalance is not None
    assert "more than 2" in moved.group().last_rebalance.reason
    tickets = [moved.join(member_id) for member_id in ids]
    assert [error_of(moved, ticket) for ticket in tickets] == [
        ErrorCode.NONE,
        ErrorCode.NONE,
        ErrorCode.GROUP_MAX_SIZE_REACHED,
    ]


def test_a_new_member_starts_a_rebalance(harness: Harness) -> None:
    leader, follower = harness.stable()
    third = harness.join(version=3, reason="more work")
    assert harness.group().state is State.PREPARING_REBALANCE
    assert harness.group().last_rebalance is not None
    assert harness.group().last_rebalance.reason.endswith("joined: more work")
    for member in (leader, follower):
        assert harness.heartbeat(member.member_id, 1) == ErrorCode.REBALANCE_IN_PROGRESS
    again = [harness.join(member.member_id) for member in (leader, follower)]
    assert {harness.answers[ticket].generation_id for ticket in (*again, third)} == {2}


def test_a_follower_that_joins_again_unchanged_gets_the_same_response(harness: Harness) -> None:
    _, follower = harness.stable()
    ticket = harness.join(follower.member_id)
    assert harness.answers[ticket].generation_id == 1
    assert harness.group().state is State.STABLE


def test_a_leader_that_joins_again_starts_a_rebalance(harness: Harness) -> None:
    leader, _ = harness.stable()
    harness.join(leader.member_id)
    assert harness.group().state is State.PREPARING_REBALANCE


def test_a_follower_that_has_changed_starts_a_rebalance(harness: Harness) -> None:
    _, follower = harness.stable()
    harness.join(follower.member_id, protocols={"range": b"more"})
    assert harness.group().state is State.PREPARING_REBALANCE


def test_a_member_that_joins_again_before_the_assignment_gets_the_same_response(
    harness: Harness,
) -> None:
    tickets = [harness.join(version=3), harness.join(version=3)]
    harness.wait(2 * DELAY_MS)
    leader = harness.answers[tickets[0]]
    again = harness.answers[harness.join(leader.member_id)]
    assert (again.generation_id, len(again.members)) == (1, 2)
    assert harness.group().state is State.COMPLETING_REBALANCE


def test_a_change_during_the_assignment_starts_over(harness: Harness) -> None:
    tickets = [harness.join(version=3), harness.join(version=3)]
    harness.wait(2 * DELAY_MS)
    leader, follower = (harness.answers[ticket] for ticket in tickets)
    waiting = harness.sync(follower)
    harness.join(leader.member_id, protocols={"range": b"more"})
    assert error_of(harness, waiting) == ErrorCode.REBALANCE_IN_PROGRESS
    assert harness.group().state is State.PREPARING_REBALANCE


def test_dynamic_members_that_do_not_join_in_time_are_removed(harness: Harness) -> None:
    leader, follower = harness.stable()
    third = harness.join(version=3)
    joined = harness.join(follower.member_id)
    for _ in range(REBALANCE_MS // 5000):
        harness.heartbeat(leader.member_id, 1)
        harness.wait(5000)
    assert harness.answers[joined].leader == follower.member_id
    assert harness.answers[third].generation_id == 2
    assert leader.member_id not in harness.group().members


def test_a_request_that_is_sent_again_ends_the_wait_of_the_first(harness: Harness) -> None:
    member_id = harness.new_id()
    first = harness.join(member_id)
    second = harness.join(member_id)
    assert error_of(harness, first) == ErrorCode.REBALANCE_IN_PROGRESS
    harness.wait(DELAY_MS)
    assert error_of(harness, second) == ErrorCode.NONE


def test_a_new_member_that_waits_too_long_is_asked_to_try_again() -> None:
    harness = Harness(new_member_join_timeout_ms=1000)
    ticket = harness.join(version=3)
    harness.wait(1000)
    assert error_of(harness, ticket) == ErrorCode.UNKNOWN_MEMBER_ID
    assert harness.group().members == {}


# -- assignments -----------------------------------------------------------------------------


def test_the_assignment_of_a_generation_is_written_once(harness: Harness) -> None:
    ticket = harness.join(version=3)
    harness.wait(DELAY_MS)
    leader = harness.answers[ticket]
    harness.holds = True
    first = harness.sync(leader, {leader.member_id: b"one"})
    second = harness.sync(leader, {leader.member_id: b"two"})
    assert len(harness.writes) == 1
    assert error_of(harness, first) == ErrorCode.REBALANCE_IN_PROGRESS
    harness.commit()
    assert harness.answers[second].assignment == b"one"


def test_a_member_that_the_leader_forgot_gets_nothing(harness: Harness) -> None:
    tickets = [harness.join(version=3), harness.join(version=3)]
    harness.wait(2 * DELAY_MS)
    leader, follower = (harness.answers[ticket] for ticket in tickets)
    harness.sync(leader, {leader.member_id: b"all", "unknown": b"none"})
    assert harness.answers[harness.sync(follower)].assignment == b""


def test_if_the_assignment_cannot_be_written_the_rebalance_starts_over(harness: Harness) -> None:
    ticket = harness.join(version=3)
    harness.wait(DELAY_MS)
    leader = harness.answers[ticket]
    harness.holds = True
    waiting = harness.sync(leader, {leader.member_id: b"one"})
    harness.refuse()
    assert error_of(harness, waiting) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert harness.group().state is State.PREPARING_REBALANCE
    assert harness.group().members[leader.member_id].assignment == b""


def test_an_assignment_that_is_written_too_late_has_no_effect(harness: Harness) -> None:
    ticket = harness.join(version=3)
    harness.wait(DELAY_MS)
    leader = harness.answers[ticket]
    harness.holds = True
    waiting = harness.sync(leader, {leader.member_id: b"one"})
    harness.join(version=3)
    assert error_of(harness, waiting) == ErrorCode.REBALANCE_IN_PROGRESS
    harness.commit()
    assert harness.group().state is State.PREPARING_REBALANCE


def test_members_that_send_no_sync_group_are_removed(harness: Harness) -> None:
    tickets = [harness.join(version=3), harness.join(version=3)]
    harness.wait(2 * DELAY_MS)
    leader, follower = (harness.answers[ticket] for ticket in tickets)
    harness.sync(leader, {})
    for _ in range(REBALANCE_MS // 5000):
        for member in (leader, follower):
            harness.heartbeat(member.member_id, 1)
        harness.wait(5000)
    assert [*harness.group().members] == [leader.member_id]
    assert harness.group().state is State.PREPARING_REBALANCE


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"member_id": "unknown"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"generation_id": 0}, ErrorCode.ILLEGAL_GENERATION),
        ({"generation_id": 2}, ErrorCode.ILLEGAL_GENERATION),
        ({"group_instance_id": "unknown"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_name": "sticky"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"group_id": "unknown"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
    ],
)
def test_a_bad_sync_is_refused(harness: Harness, changed: dict[str, Any], error: ErrorCode) -> None:
    leader, _ = harness.stable()
    assert error_of(harness, harness.sync(leader, **changed)) == error
    assert harness.group().state is State.STABLE


def test_a_sync_during_a_rebalance_gets_an_error(harness: Harness) -> None:
    leader, _ = harness.stable()
    harness.join(leader.member_id)
    assert error_of(harness, harness.sync(leader)) == ErrorCode.REBALANCE_IN_PROGRESS


# -- sessions --------------------------------------------------------------------------------


def test_a_member_without_heartbeats_is_removed_and_the_others_rebalance(harness: Harness) -> None:
    leader, follower = harness.stable()
    harness.wait(SESSION_MS - 1)
    assert harness.heartbeat(leader.member_id, 1) == ErrorCode.NONE
    harness.wait(1)
    assert [*harness.group().members] == [leader.member_id]
    assert harness.heartbeat(leader.member_id, 1) == ErrorCode.REBALANCE_IN_PROGRESS
    assert harness.heartbeat(follower.member_id, 1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert harness.group().last_rebalance is not None
    assert "session" in harness.group().last_rebalance.reason


def test_a_member_that_waits_for_others_needs_no_heartbeat(harness: Harness) -> None:
    leader, follower = harness.stable()
    waiting = harness.join(leader.member_id)
    for _ in range(REBALANCE_MS // 5000 - 1):
        harness.wait(5000)
        harness.heartbeat(follower.member_id, 1)
    assert waiting not in harness.answers
    harness.join(follower.member_id)
    assert error_of(harness, waiting) == ErrorCode.NONE


def test_when_all_members_are_gone_the_group_is_empty_and_that_is_written(harness: Harness) -> None:
    harness.stable()
    harness.wait(2 * SESSION_MS + REBALANCE_MS)
    assert harness.group().state is State.EMPTY
    assert harness.group().generation == 2
    assert harness.moved().group().record() == harness.group().record()


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"member_id": "unknown"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"generation_id": 0}, ErrorCode.ILLEGAL_GENERATION),
        ({"group_id": "unknown"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
    ],
)
def test_a_bad_heartbeat_is_refused(
    harness: Harness, changed: dict[str, Any], error: ErrorCode
) -> None:
    leader, _ = harness.stable()
    request = HeartbeatRequest(group_id="g", generation_id=1, member_id=leader.member_id)
    for name, value in changed.items():
        setattr(request, name, value)
    assert error_of(harness, harness.ask("heartbeat_asked", request)) == error


# -- leaving ---------------------------------------------------------------------------------


def test_a_member_that_leaves_is_removed_and_the_others_rebalance(harness: Harness) -> None:
    leader, follower = harness.stable()
    response = harness.leave((leader.member_id, None), ("unknown", None))
    assert [member.error_code for member in response.members] == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
    ]
    assert harness.group().leader == follower.member_id
    assert harness.group().state is State.PREPARING_REBALANCE


def test_a_pending_member_id_can_leave(harness: Harness) -> None:
    member_id = harness.new_id()
    assert harness.leave((member_id, None)).members[0].error_code == ErrorCode.NONE
    assert harness.coordinator.classic_groups == {}


def test_old_versions_of_leave_name_one_member_and_have_one_error(harness: Harness) -> None:
    leader, _ = harness.stable()
    request = LeaveGroupRequest(group_id="g", member_id=leader.member_id)
    assert error_of(harness, harness.ask("leave_asked", request, 2)) == ErrorCode.NONE
    assert error_of(harness, harness.ask("leave_asked", request, 2)) == ErrorCode.UNKNOWN_MEMBER_ID
    request.group_id = "unknown"
    assert error_of(harness, harness.ask("leave_asked", request, 2)) == ErrorCode.UNKNOWN_MEMBER_ID
    request.group_id = ""
    assert error_of(harness, harness.ask("leave_asked", request, 2)) == ErrorCode.INVALID_GROUP_ID


def test_an_administrator_removes_a_static_member_by_its_instance(harness: Harness) -> None:
    harness.join(instance="i")
    harness.wait(DELAY_MS)
    assert harness.leave(("", "i"), ("", "j")).members[0].error_code == ErrorCode.NONE
    assert harness.group().state is State.EMPTY


# -- static members --------------------------------------------------------------------------


def static(harness: Harness, count: int = 2, **how: Any) -> list[Any]:
    tickets = [harness.join(instance=f"i{n}", **how) for n in range(count)]
    harness.wait(DELAY_MS * 2)
    joined = [harness.answers[ticket] for ticket in tickets]
    leader = joined[0]
    harness.sync(
        leader, {member.member_id: f"share {n}".encode() for n, member in enumerate(joined)}
    )
    for response in joined[1:]:
        harness.sync(response)
    return joined


def test_a_static_member_restarts_without_a_rebalance(harness: Harness) -> None:
    leader, follower = static(harness)
    restarted = harness.answers[harness.join(instance="i1")]
    assert restarted.error_code == ErrorCode.NONE
    assert restarted.member_id != follower.member_id
    assert restarted.generation_id == 1
    assert harness.group().state is State.STABLE
    assert harness.answers[harness.sync(restarted)].assignment == b"share 1"
    assert harness.heartbeat(leader.member_id, 1, "i0") == ErrorCode.NONE
    assert harness.moved().group().static_members["i1"] == restarted.member_id


def test_the_old_member_id_of_a_static_member_is_fenced(harness: Harness) -> None:
    _, follower = static(harness)
    harness.join(instance="i1")
    old = follower.member_id
    assert harness.heartbeat(old, 1, "i1") == ErrorCode.FENCED_INSTANCE_ID
    assert error_of(harness, harness.join(old, instance="i1")) == ErrorCode.FENCED_INSTANCE_ID
    synced = harness.sync(follower, group_instance_id="i1")
    assert error_of(harness, synced) == ErrorCode.FENCED_INSTANCE_ID
    assert harness.commit_error(1, old, 1, instance="i1") == ErrorCode.FENCED_INSTANCE_ID
    left = harness.leave((old, "i1"))
    assert left.members[0].error_code == ErrorCode.FENCED_INSTANCE_ID


def test_the_new_member_id_is_sent_when_it_is_written(harness: Harness) -> None:
    static(harness)
    harness.holds = True
    ticket = harness.join(instance="i1")
    assert ticket not in harness.answers
    harness.commit()
    assert error_of(harness, ticket) == ErrorCode.NONE


def test_if_the_new_member_id_cannot_be_written_the_old_one_stays(harness: Harness) -> None:
    _, follower = static(harness)
    harness.holds = True
    ticket = harness.join(instance="i1")
    harness.refuse()
    assert error_of(harness, ticket) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert harness.heartbeat(follower.member_id, 1, "i1") == ErrorCode.NONE


def test_a_leader_that_restarts_need_not_assign_again(harness: Harness) -> None:
    static(harness)
    restarted = harness.answers[harness.join(instance="i0")]
    assert restarted.skip_assignment
    assert restarted.leader == restarted.member_id
    assert len(restarted.members) == 2
    old_version = harness.answers[harness.join(instance="i0", version=8)]
    assert not old_version.skip_assignment
    assert old_version.leader == restarted.member_id != old_version.member_id
    assert old_version.members == []


def test_a_restart_that_changes_the_protocol_begins_a_rebalance(harness: Harness) -> None:
    static(harness, protocols={"range": b"", "sticky": b""})
    harness.join(instance="i0", protocols={"sticky": b""})
    assert harness.group().state is State.PREPARING_REBALANCE


def test_a_restart_during_the_assignment_starts_a_rebalance(harness: Harness) -> None:
    tickets = [harness.join(instance=f"i{n}") for n in range(2)]
    harness.wait(2 * DELAY_MS)
    waiting = harness.sync(harness.answers[tickets[1]], group_instance_id="i1")
    harness.join(instance="i1")
    assert error_of(harness, waiting) == ErrorCode.FENCED_INSTANCE_ID
    assert harness.group().state is State.PREPARING_REBALANCE


def test_a_restart_during_a_rebalance_takes_the_place_of_the_one_that_waits(
    harness: Harness,
) -> None:
    first = harness.join(instance="i0")
    second = harness.join(instance="i0")
    assert error_of(harness, first) == ErrorCode.FENCED_INSTANCE_ID
    harness.wait(2 * DELAY_MS)
    assert error_of(harness, second) == ErrorCode.NONE


def test_a_static_member_that_does_not_join_keeps_its_place(harness: Harness) -> None:
    leader, follower = static(harness, session_ms=10 * REBALANCE_MS)
    again = harness.join(leader.member_id, instance="i0")
    harness.wait(REBALANCE_MS)
    assert harness.answers[again].generation_id == 2
    assert follower.member_id in harness.group().members


def test_if_only_absent_static_members_are_left_the_rebalance_waits_for_them(
    harness: Harness,
) -> None:
    harness.join(version=3)
    static(harness, session_ms=10 * REBALANCE_MS)
    harness.wait(REBALANCE_MS + SESSION_MS)
    assert harness.group().state is State.PREPARING_REBALANCE
    harness.wait(10 * REBALANCE_MS)
    assert harness.group().state is State.EMPTY


# -- failover --------------------------------------------------------------------------------


def test_another_coordinator_continues_the_written_generation(harness: Harness) -> None:
    leader, follower = harness.stable()
    moved = harness.moved()
    assert moved.group().state is State.STABLE
    assert moved.heartbeat(leader.member_id, 1) == ErrorCode.NONE
    assert moved.answers[moved.sync(follower)].assignment == b"share of 1"
    moved.wait(SESSION_MS)
    assert moved.group().members == {}


def test_a_coordinator_that_resigns_answers_all_waiting_requests(harness: Harness) -> None:
    joining = harness.join(version=3)
    harness.holds = True
    committing = harness.commit_offset(1, group_id="h")
    answers = dict(harness.coordinator.resigned().answers)
    assert answers.keys() == {joining, committing}
    assert answers[joining].error_code == ErrorCode.NOT_COORDINATOR
    code = answers[committing].topics[0].partitions[0].error_code
    assert code == ErrorCode.NOT_COORDINATOR


# -- administration --------------------------------------------------------------------------


def test_a_stable_group_is_described_whole_and_another_in_part(harness: Harness) -> None:
    leader, _ = harness.stable(protocols={"range": b"offer"})
    found = harness.coordinator.administration.describe("g", 5)
    assert (found.group_state, found.protocol_type, found.protocol_data) == (
        "Stable",
        "consumer",
        "range",
    )
    assert found.members[0].member_metadata == b"offer"
    assert found.members[0].member_assignment == b"share of 0"
    assert found.members[0].client_host == "/host"
    harness.join(leader.member_id)
    found = harness.coordinator.administration.describe("g", 5)
    assert (found.group_state, found.protocol_data) == ("PreparingRebalance", "")
    assert found.members[0].member_assignment == b""


def test_a_group_that_does_not_exist_is_dead_or_not_found(harness: Harness) -> None:
    old, new = (harness.coordinator.administration.describe("g", version) for version in (5, 6))
    assert (old.group_state, old.error_code) == ("Dead", ErrorCode.NONE)
    assert new.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert new.error_message


def test_groups_are_listed_by_state_and_type(harness: Harness) -> None:
    harness.stable()
    harness.commit_offset(1, group_id="simple")

    def listed(states: list[str], types: list[str]) -> list[str]:
        request = ListGroupsRequest(states_filter=states, types_filter=types)
        return [group.group_id for group in harness.coordinator.administration.listed(request)]

    assert listed([], []) == ["g", "simple"]
    assert listed(["stable"], []) == ["g"]
    assert listed(["Empty", "Dead"], ["classic"]) == ["simple"]
    assert listed([], ["consumer"]) == []


def delete(harness: Harness, *groups: str) -> int:
    return harness.ask("delete_groups_asked", DeleteGroupsRequest(groups_names=[*groups]))


def test_only_an_empty_group_can_be_deleted(harness: Harness) -> None:
    leader, follower = harness.stable()
    harness.commit_offset(5, leader.member_id, 1)
    results = harness.answers[delete(harness, "g", "unknown")].results
    assert [result.error_code for result in results] == [
        ErrorCode.NON_EMPTY_GROUP,
        ErrorCode.GROUP_ID_NOT_FOUND,
    ]
    harness.leave((leader.member_id, None), (follower.member_id, None))
    assert harness.answers[delete(harness, "g")].results[0].error_code == ErrorCode.NONE
    assert harness.coordinator.classic_groups == {}
    assert harness.fetch() == -1
    assert harness.moved().coordinator.classic_groups == {}
    assert harness.moved().fetch() == -1


def test_a_group_created_while_another_is_deleted_is_another_one(harness: Harness) -> None:
    leader, follower = harness.stable()
    harness.leave((leader.member_id, None), (follower.member_id, None))
    harness.holds = True
    deleting = delete(harness, "g")
    joining = harness.join(version=3)
    harness.commit()
    assert deleting in harness.answers
    harness.wait(DELAY_MS)
    assert harness.answers[joining].generation_id == 1


def test_a_group_that_could_not_be_deleted_is_restored(harness: Harness) -> None:
    leader, follower = harness.stable()
    harness.leave((leader.member_id, None), (follower.member_id, None))
    harness.holds = True
    deleting = delete(harness, "g")
    harness.refuse()
    results = harness.answers[deleting].results
    assert results[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert harness.group().generation == 2


# -- deadlines and subscriptions -------------------------------------------------------------


def test_a_deadline_can_be_postponed_advanced_and_cancelled() -> None:
    deadlines = Deadlines()
    one, two = Deadline(Kind.JOIN, "one"), Deadline(Kind.JOIN, "two")
    deadlines.set(one, 10)
    deadlines.set(two, 20)
    deadlines.set(one, 30)
    assert deadlines.next_ms == 20
    deadlines.set(two, 5)
    assert deadlines.due(4) is None
    assert deadlines.due(5) == two
    assert deadlines.next_ms == 30
    deadlines.cancel(one)
    assert deadlines.next_ms is None
    deadlines.set(one, 40)
    assert deadlines.due(50) == one
    assert deadlines.due(50) is None


def test_a_subscription_is_read_whatever_its_version() -> None:
    metadata = subscription("a", "b")
    assert subscribed_topics(metadata) == frozenset({"a", "b"})
    assert subscribed_topics(b"\0\3" + metadata[2:] + b"later") == frozenset({"a", "b"})
    assert subscribed_topics(b"") is None
    assert subscribed_topics(metadata[:9]) is None
    assert subscribed_topics(b"\0\0\x7f\xff\xff\xff") is None
    assert subscribed_topics(b"\0\0\0\0\0\1\0\1\xff") is None


def test_requests_of_a_group_without_a_name_are_refused(harness: Harness) -> None:
    request = SyncGroupRequest(group_id="", generation_id=1, member_id="m", assignments=[])
    assert error_of(harness, harness.ask("sync_asked", request)) == ErrorCode.INVALID_GROUP_ID
