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
from tests.unit.core.group_desk import DELAY_MS, REBALANCE_MS, SESSION_MS, Desk
from tests.unit.core.group_world import subscription


@pytest.fixture
def desk() -> Desk:
    return Desk()


def error_of(desk: Desk, ticket: int) -> ErrorCode:
    return ErrorCode(desk.answers[ticket].error_code)


# -- joining ---------------------------------------------------------------------------------


def test_a_group_forms_in_two_steps_and_shares_are_told_when_they_are_written(desk: Desk) -> None:
    first, second = desk.new_id(), desk.new_id()
    tickets = [desk.join(first), desk.join(second)]
    assert desk.group().state is State.PREPARING_REBALANCE
    desk.wait(2 * DELAY_MS)
    leader, follower = (desk.answers[each] for each in tickets)
    assert leader.leader == follower.leader == first
    assert [each.member_id for each in leader.members] == [first, second]
    assert follower.members == []
    assert leader.generation_id == follower.generation_id == 1
    assert leader.protocol_name == "range"
    desk.holds = True
    waiting = desk.sync(follower)
    assert not desk.writes
    leading = desk.sync(leader, {first: b"one", second: b"two"})
    assert waiting not in desk.answers
    assert leading not in desk.answers
    assert desk.group().state is State.COMPLETING_REBALANCE
    desk.commit()
    assert desk.answers[leading].assignment == b"one"
    assert desk.answers[waiting].assignment == b"two"
    assert desk.group().state is State.STABLE


def test_whoever_has_no_member_id_is_given_one_first(desk: Desk) -> None:
    ticket = desk.join(version=4)
    assert error_of(desk, ticket) == ErrorCode.MEMBER_ID_REQUIRED
    member_id = desk.answers[ticket].member_id
    assert member_id.startswith("client-")
    assert desk.group().pending == {member_id}
    desk.join(member_id)
    assert desk.group().pending == set()
    assert [*desk.group().members] == [member_id]


def test_old_versions_are_members_at_once(desk: Desk) -> None:
    ticket = desk.join(version=3)
    assert ticket not in desk.answers
    desk.wait(DELAY_MS)
    assert error_of(desk, ticket) == ErrorCode.NONE


def test_a_member_id_that_is_never_used_is_forgotten_with_its_group(desk: Desk) -> None:
    desk.new_id()
    desk.wait(SESSION_MS)
    assert desk.coordinator.classic_groups == {}


def test_the_first_rebalance_waits_longer_if_somebody_comes(desk: Desk) -> None:
    first = desk.join(version=3)
    desk.wait(DELAY_MS - 1)
    second = desk.join(version=3)
    desk.wait(DELAY_MS)
    assert first not in desk.answers
    desk.wait(1)
    assert desk.answers[first].generation_id == desk.answers[second].generation_id == 1


def test_the_first_rebalance_does_not_wait_longer_than_the_rebalance_timeout(desk: Desk) -> None:
    first = desk.join(version=3)
    for _ in range(REBALANCE_MS // 1000 - 1):
        desk.wait(1000)
        desk.join(version=3)
    assert first not in desk.answers
    desk.wait(1000)
    assert error_of(desk, first) == ErrorCode.NONE


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"session_ms": 5999}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"session_ms": 30 * 60_000 + 1}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"member_id": "nobody"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"protocol_type": ""}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    ],
)
def test_a_bad_join_is_refused_and_leaves_no_trace(
    desk: Desk, how: dict[str, Any], error: ErrorCode
) -> None:
    assert error_of(desk, desk.join(**how)) == error
    assert desk.coordinator.classic_groups == {}


def test_a_join_without_protocols_is_refused(desk: Desk) -> None:
    request = JoinGroupRequest(
        group_id="g", session_timeout_ms=SESSION_MS, member_id="", protocol_type="x", protocols=[]
    )
    ticket = desk.ask("join_asked", request, 9, Client("c", "/h"))
    assert error_of(desk, ticket) == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert desk.coordinator.classic_groups == {}


@pytest.mark.parametrize(
    "how", [{"protocols": {"sticky": b""}}, {"protocol_type": "connect"}, {"member_id": "nobody"}]
)
def test_what_does_not_fit_the_group_changes_nothing(desk: Desk, how: dict[str, Any]) -> None:
    desk.stable()
    before = desk.group().record()
    assert error_of(desk, desk.join(**how)) in (
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
        ErrorCode.UNKNOWN_MEMBER_ID,
    )
    assert desk.group().record() == before
    assert desk.group().state is State.STABLE


def test_the_protocol_that_most_members_prefer_is_chosen_of_those_that_all_know(
    desk: Desk,
) -> None:
    offers = [{"a": b"", "b": b""}, {"b": b"", "a": b""}, {"c": b"", "b": b"", "a": b""}]
    tickets = [desk.join(version=3, protocols=each) for each in offers]
    desk.wait(3 * DELAY_MS)
    assert {desk.answers[each].protocol_name for each in tickets} == {"b"}


def test_a_full_group_takes_nobody_else() -> None:
    desk = Desk(max_size=2)
    desk.stable(2)
    assert error_of(desk, desk.join(version=3)) == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert desk.group().state is State.STABLE


def test_when_the_limit_was_lowered_those_who_come_first_stay(desk: Desk) -> None:
    ids = [each.member_id for each in desk.stable(3)]
    desk.rules = Desk(max_size=2).rules
    moved = desk.moved()
    assert moved.group().state is State.PREPARING_REBALANCE
    assert moved.group().last_rebalance is not None
    assert "more than 2" in moved.group().last_rebalance.reason
    tickets = [moved.join(each) for each in ids]
    assert [error_of(moved, each) for each in tickets] == [
        ErrorCode.NONE,
        ErrorCode.NONE,
        ErrorCode.GROUP_MAX_SIZE_REACHED,
    ]


def test_a_new_member_calls_the_others_together(desk: Desk) -> None:
    leader, follower = desk.stable()
    third = desk.join(version=3, reason="more work")
    assert desk.group().state is State.PREPARING_REBALANCE
    assert desk.group().last_rebalance is not None
    assert desk.group().last_rebalance.reason.endswith("joined: more work")
    for each in (leader, follower):
        assert desk.heartbeat(each.member_id, 1) == ErrorCode.REBALANCE_IN_PROGRESS
    again = [desk.join(each.member_id) for each in (leader, follower)]
    assert {desk.answers[each].generation_id for each in (*again, third)} == {2}


def test_a_follower_that_asks_again_with_nothing_new_is_told_the_same(desk: Desk) -> None:
    _, follower = desk.stable()
    ticket = desk.join(follower.member_id)
    assert desk.answers[ticket].generation_id == 1
    assert desk.group().state is State.STABLE


def test_a_leader_that_joins_again_wants_a_rebalance(desk: Desk) -> None:
    leader, _ = desk.stable()
    desk.join(leader.member_id)
    assert desk.group().state is State.PREPARING_REBALANCE


def test_a_follower_that_has_changed_wants_a_rebalance(desk: Desk) -> None:
    _, follower = desk.stable()
    desk.join(follower.member_id, protocols={"range": b"more"})
    assert desk.group().state is State.PREPARING_REBALANCE


def test_who_joins_again_before_the_shares_are_out_is_told_the_same(desk: Desk) -> None:
    tickets = [desk.join(version=3), desk.join(version=3)]
    desk.wait(2 * DELAY_MS)
    leader = desk.answers[tickets[0]]
    again = desk.answers[desk.join(leader.member_id)]
    assert (again.generation_id, len(again.members)) == (1, 2)
    assert desk.group().state is State.COMPLETING_REBALANCE


def test_a_change_while_shares_are_made_begins_anew(desk: Desk) -> None:
    tickets = [desk.join(version=3), desk.join(version=3)]
    desk.wait(2 * DELAY_MS)
    leader, follower = (desk.answers[each] for each in tickets)
    waiting = desk.sync(follower)
    desk.join(leader.member_id, protocols={"range": b"more"})
    assert error_of(desk, waiting) == ErrorCode.REBALANCE_IN_PROGRESS
    assert desk.group().state is State.PREPARING_REBALANCE


def test_dynamic_members_that_do_not_come_in_time_are_out(desk: Desk) -> None:
    leader, follower = desk.stable()
    third = desk.join(version=3)
    joined = desk.join(follower.member_id)
    for _ in range(REBALANCE_MS // 5000):
        desk.heartbeat(leader.member_id, 1)
        desk.wait(5000)
    assert desk.answers[joined].leader == follower.member_id
    assert desk.answers[third].generation_id == 2
    assert leader.member_id not in desk.group().members


def test_a_request_that_is_sent_again_ends_the_wait_of_the_first(desk: Desk) -> None:
    member_id = desk.new_id()
    first = desk.join(member_id)
    second = desk.join(member_id)
    assert error_of(desk, first) == ErrorCode.REBALANCE_IN_PROGRESS
    desk.wait(DELAY_MS)
    assert error_of(desk, second) == ErrorCode.NONE


def test_a_new_member_that_waits_too_long_is_asked_to_try_again() -> None:
    desk = Desk(new_member_join_timeout_ms=1000)
    ticket = desk.join(version=3)
    desk.wait(1000)
    assert error_of(desk, ticket) == ErrorCode.UNKNOWN_MEMBER_ID
    assert desk.group().members == {}


# -- sharing out -----------------------------------------------------------------------------


def test_shares_of_a_generation_are_written_once(desk: Desk) -> None:
    ticket = desk.join(version=3)
    desk.wait(DELAY_MS)
    leader = desk.answers[ticket]
    desk.holds = True
    first = desk.sync(leader, {leader.member_id: b"one"})
    second = desk.sync(leader, {leader.member_id: b"two"})
    assert len(desk.writes) == 1
    assert error_of(desk, first) == ErrorCode.REBALANCE_IN_PROGRESS
    desk.commit()
    assert desk.answers[second].assignment == b"one"


def test_a_member_that_the_leader_forgot_gets_nothing(desk: Desk) -> None:
    tickets = [desk.join(version=3), desk.join(version=3)]
    desk.wait(2 * DELAY_MS)
    leader, follower = (desk.answers[each] for each in tickets)
    desk.sync(leader, {leader.member_id: b"all", "nobody": b"none"})
    assert desk.answers[desk.sync(follower)].assignment == b""


def test_if_shares_cannot_be_written_all_is_begun_anew(desk: Desk) -> None:
    ticket = desk.join(version=3)
    desk.wait(DELAY_MS)
    leader = desk.answers[ticket]
    desk.holds = True
    waiting = desk.sync(leader, {leader.member_id: b"one"})
    desk.refuse()
    assert error_of(desk, waiting) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert desk.group().state is State.PREPARING_REBALANCE
    assert desk.group().members[leader.member_id].assignment == b""


def test_shares_that_are_written_too_late_count_for_nobody(desk: Desk) -> None:
    ticket = desk.join(version=3)
    desk.wait(DELAY_MS)
    leader = desk.answers[ticket]
    desk.holds = True
    waiting = desk.sync(leader, {leader.member_id: b"one"})
    desk.join(version=3)
    assert error_of(desk, waiting) == ErrorCode.REBALANCE_IN_PROGRESS
    desk.commit()
    assert desk.group().state is State.PREPARING_REBALANCE


def test_members_that_do_not_ask_for_their_share_are_out(desk: Desk) -> None:
    tickets = [desk.join(version=3), desk.join(version=3)]
    desk.wait(2 * DELAY_MS)
    leader, follower = (desk.answers[each] for each in tickets)
    desk.sync(leader, {})
    for _ in range(REBALANCE_MS // 5000):
        for each in (leader, follower):
            desk.heartbeat(each.member_id, 1)
        desk.wait(5000)
    assert [*desk.group().members] == [leader.member_id]
    assert desk.group().state is State.PREPARING_REBALANCE


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"member_id": "nobody"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"generation_id": 0}, ErrorCode.ILLEGAL_GENERATION),
        ({"generation_id": 2}, ErrorCode.ILLEGAL_GENERATION),
        ({"group_instance_id": "nobody"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_name": "sticky"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"group_id": "nobody"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
    ],
)
def test_a_bad_sync_is_refused(desk: Desk, changed: dict[str, Any], error: ErrorCode) -> None:
    leader, _ = desk.stable()
    assert error_of(desk, desk.sync(leader, **changed)) == error
    assert desk.group().state is State.STABLE


def test_a_sync_during_a_rebalance_is_told_so(desk: Desk) -> None:
    leader, _ = desk.stable()
    desk.join(leader.member_id)
    assert error_of(desk, desk.sync(leader)) == ErrorCode.REBALANCE_IN_PROGRESS


# -- sessions --------------------------------------------------------------------------------


def test_who_sends_no_heartbeat_is_out_and_the_others_share_anew(desk: Desk) -> None:
    leader, follower = desk.stable()
    desk.wait(SESSION_MS - 1)
    assert desk.heartbeat(leader.member_id, 1) == ErrorCode.NONE
    desk.wait(1)
    assert [*desk.group().members] == [leader.member_id]
    assert desk.heartbeat(leader.member_id, 1) == ErrorCode.REBALANCE_IN_PROGRESS
    assert desk.heartbeat(follower.member_id, 1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert desk.group().last_rebalance is not None
    assert "session" in desk.group().last_rebalance.reason


def test_who_waits_for_others_needs_no_heartbeat(desk: Desk) -> None:
    leader, follower = desk.stable()
    waiting = desk.join(leader.member_id)
    for _ in range(REBALANCE_MS // 5000 - 1):
        desk.wait(5000)
        desk.heartbeat(follower.member_id, 1)
    assert waiting not in desk.answers
    desk.join(follower.member_id)
    assert error_of(desk, waiting) == ErrorCode.NONE


def test_when_all_are_gone_the_group_is_empty_and_that_is_written(desk: Desk) -> None:
    desk.stable()
    desk.wait(2 * SESSION_MS + REBALANCE_MS)
    assert desk.group().state is State.EMPTY
    assert desk.group().generation == 2
    assert desk.moved().group().record() == desk.group().record()


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"member_id": "nobody"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"generation_id": 0}, ErrorCode.ILLEGAL_GENERATION),
        ({"group_id": "nobody"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
    ],
)
def test_a_bad_heartbeat_is_refused(desk: Desk, changed: dict[str, Any], error: ErrorCode) -> None:
    leader, _ = desk.stable()
    request = HeartbeatRequest(group_id="g", generation_id=1, member_id=leader.member_id)
    for name, value in changed.items():
        setattr(request, name, value)
    assert error_of(desk, desk.ask("heartbeat_asked", request)) == error


# -- leaving ---------------------------------------------------------------------------------


def test_who_leaves_is_out_and_the_others_share_anew(desk: Desk) -> None:
    leader, follower = desk.stable()
    response = desk.leave((leader.member_id, None), ("nobody", None))
    assert [each.error_code for each in response.members] == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
    ]
    assert desk.group().leader == follower.member_id
    assert desk.group().state is State.PREPARING_REBALANCE


def test_a_member_id_that_was_given_out_can_leave(desk: Desk) -> None:
    member_id = desk.new_id()
    assert desk.leave((member_id, None)).members[0].error_code == ErrorCode.NONE
    assert desk.coordinator.classic_groups == {}


def test_old_versions_of_leave_name_one_member_and_have_one_error(desk: Desk) -> None:
    leader, _ = desk.stable()
    request = LeaveGroupRequest(group_id="g", member_id=leader.member_id)
    assert error_of(desk, desk.ask("leave_asked", request, 2)) == ErrorCode.NONE
    assert error_of(desk, desk.ask("leave_asked", request, 2)) == ErrorCode.UNKNOWN_MEMBER_ID
    request.group_id = "nobody"
    assert error_of(desk, desk.ask("leave_asked", request, 2)) == ErrorCode.UNKNOWN_MEMBER_ID
    request.group_id = ""
    assert error_of(desk, desk.ask("leave_asked", request, 2)) == ErrorCode.INVALID_GROUP_ID


def test_an_administrator_removes_a_static_member_by_its_instance(desk: Desk) -> None:
    desk.join(instance="i")
    desk.wait(DELAY_MS)
    assert desk.leave(("", "i"), ("", "j")).members[0].error_code == ErrorCode.NONE
    assert desk.group().state is State.EMPTY


# -- static members --------------------------------------------------------------------------


def static(desk: Desk, count: int = 2, **how: Any) -> list[Any]:
    tickets = [desk.join(instance=f"i{n}", **how) for n in range(count)]
    desk.wait(DELAY_MS * 2)
    joined = [desk.answers[each] for each in tickets]
    leader = joined[0]
    desk.sync(leader, {each.member_id: f"share {n}".encode() for n, each in enumerate(joined)})
    for each in joined[1:]:
        desk.sync(each)
    return joined


def test_a_static_member_restarts_and_nobody_notices(desk: Desk) -> None:
    leader, follower = static(desk)
    restarted = desk.answers[desk.join(instance="i1")]
    assert restarted.error_code == ErrorCode.NONE
    assert restarted.member_id != follower.member_id
    assert restarted.generation_id == 1
    assert desk.group().state is State.STABLE
    assert desk.answers[desk.sync(restarted)].assignment == b"share 1"
    assert desk.heartbeat(leader.member_id, 1, "i0") == ErrorCode.NONE
    assert desk.moved().group().static_members["i1"] == restarted.member_id


def test_its_former_incarnation_is_fenced(desk: Desk) -> None:
    _, follower = static(desk)
    desk.join(instance="i1")
    old = follower.member_id
    assert desk.heartbeat(old, 1, "i1") == ErrorCode.FENCED_INSTANCE_ID
    assert error_of(desk, desk.join(old, instance="i1")) == ErrorCode.FENCED_INSTANCE_ID
    synced = desk.sync(follower, group_instance_id="i1")
    assert error_of(desk, synced) == ErrorCode.FENCED_INSTANCE_ID
    assert desk.commit_error(1, old, 1, instance="i1") == ErrorCode.FENCED_INSTANCE_ID
    left = desk.leave((old, "i1"))
    assert left.members[0].error_code == ErrorCode.FENCED_INSTANCE_ID


def test_its_new_id_is_told_when_it_is_written(desk: Desk) -> None:
    static(desk)
    desk.holds = True
    ticket = desk.join(instance="i1")
    assert ticket not in desk.answers
    desk.commit()
    assert error_of(desk, ticket) == ErrorCode.NONE


def test_if_its_new_id_cannot_be_written_the_old_one_stays(desk: Desk) -> None:
    _, follower = static(desk)
    desk.holds = True
    ticket = desk.join(instance="i1")
    desk.refuse()
    assert error_of(desk, ticket) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert desk.heartbeat(follower.member_id, 1, "i1") == ErrorCode.NONE


def test_a_leader_that_restarts_need_not_share_out_again(desk: Desk) -> None:
    static(desk)
    restarted = desk.answers[desk.join(instance="i0")]
    assert restarted.skip_assignment
    assert restarted.leader == restarted.member_id
    assert len(restarted.members) == 2
    old_version = desk.answers[desk.join(instance="i0", version=8)]
    assert not old_version.skip_assignment
    assert old_version.leader == restarted.member_id != old_version.member_id
    assert old_version.members == []


def test_a_restart_that_changes_the_protocol_begins_a_rebalance(desk: Desk) -> None:
    static(desk, protocols={"range": b"", "sticky": b""})
    desk.join(instance="i0", protocols={"sticky": b""})
    assert desk.group().state is State.PREPARING_REBALANCE


def test_a_restart_while_shares_are_made_begins_a_rebalance(desk: Desk) -> None:
    tickets = [desk.join(instance=f"i{n}") for n in range(2)]
    desk.wait(2 * DELAY_MS)
    waiting = desk.sync(desk.answers[tickets[1]], group_instance_id="i1")
    desk.join(instance="i1")
    assert error_of(desk, waiting) == ErrorCode.FENCED_INSTANCE_ID
    assert desk.group().state is State.PREPARING_REBALANCE


def test_a_restart_during_a_rebalance_takes_the_place_of_the_one_that_waits(desk: Desk) -> None:
    first = desk.join(instance="i0")
    second = desk.join(instance="i0")
    assert error_of(desk, first) == ErrorCode.FENCED_INSTANCE_ID
    desk.wait(2 * DELAY_MS)
    assert error_of(desk, second) == ErrorCode.NONE


def test_a_static_member_that_does_not_come_keeps_its_place(desk: Desk) -> None:
    leader, follower = static(desk, session_ms=10 * REBALANCE_MS)
    again = desk.join(leader.member_id, instance="i0")
    desk.wait(REBALANCE_MS)
    assert desk.answers[again].generation_id == 2
    assert follower.member_id in desk.group().members


def test_if_only_absent_static_members_are_left_the_rebalance_waits_for_them(desk: Desk) -> None:
    desk.join(version=3)
    static(desk, session_ms=10 * REBALANCE_MS)
    desk.wait(REBALANCE_MS + SESSION_MS)
    assert desk.group().state is State.PREPARING_REBALANCE
    desk.wait(10 * REBALANCE_MS)
    assert desk.group().state is State.EMPTY


# -- failover --------------------------------------------------------------------------------


def test_another_coordinator_goes_on_with_the_generation_that_is_written(desk: Desk) -> None:
    leader, follower = desk.stable()
    moved = desk.moved()
    assert moved.group().state is State.STABLE
    assert moved.heartbeat(leader.member_id, 1) == ErrorCode.NONE
    assert moved.answers[moved.sync(follower)].assignment == b"share of 1"
    moved.wait(SESSION_MS)
    assert moved.group().members == {}


def test_a_coordinator_that_resigns_answers_all_who_wait(desk: Desk) -> None:
    joining = desk.join(version=3)
    desk.holds = True
    committing = desk.commit_offset(1, group_id="h")
    answers = dict(desk.coordinator.resigned().answers)
    assert answers.keys() == {joining, committing}
    assert answers[joining].error_code == ErrorCode.NOT_COORDINATOR
    code = answers[committing].topics[0].partitions[0].error_code
    assert code == ErrorCode.NOT_COORDINATOR


# -- administration --------------------------------------------------------------------------


def test_a_stable_group_is_described_whole_and_another_in_part(desk: Desk) -> None:
    leader, _ = desk.stable(protocols={"range": b"offer"})
    found = desk.coordinator.administration.describe("g", 5)
    assert (found.group_state, found.protocol_type, found.protocol_data) == (
        "Stable",
        "consumer",
        "range",
    )
    assert found.members[0].member_metadata == b"offer"
    assert found.members[0].member_assignment == b"share of 0"
    assert found.members[0].client_host == "/host"
    desk.join(leader.member_id)
    found = desk.coordinator.administration.describe("g", 5)
    assert (found.group_state, found.protocol_data) == ("PreparingRebalance", "")
    assert found.members[0].member_assignment == b""


def test_a_group_that_is_not_there_is_dead_or_not_found(desk: Desk) -> None:
    old, new = (desk.coordinator.administration.describe("g", version) for version in (5, 6))
    assert (old.group_state, old.error_code) == ("Dead", ErrorCode.NONE)
    assert new.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert new.error_message


def test_groups_are_listed_by_state_and_type(desk: Desk) -> None:
    desk.stable()
    desk.commit_offset(1, group_id="simple")

    def listed(states: list[str], types: list[str]) -> list[str]:
        request = ListGroupsRequest(states_filter=states, types_filter=types)
        return [each.group_id for each in desk.coordinator.administration.listed(request)]

    assert listed([], []) == ["g", "simple"]
    assert listed(["stable"], []) == ["g"]
    assert listed(["Empty", "Dead"], ["classic"]) == ["simple"]
    assert listed([], ["consumer"]) == []


def delete(desk: Desk, *groups: str) -> int:
    return desk.ask("delete_groups_asked", DeleteGroupsRequest(groups_names=[*groups]))


def test_only_an_empty_group_can_be_deleted(desk: Desk) -> None:
    leader, follower = desk.stable()
    desk.commit_offset(5, leader.member_id, 1)
    results = desk.answers[delete(desk, "g", "nobody")].results
    assert [each.error_code for each in results] == [
        ErrorCode.NON_EMPTY_GROUP,
        ErrorCode.GROUP_ID_NOT_FOUND,
    ]
    desk.leave((leader.member_id, None), (follower.member_id, None))
    assert desk.answers[delete(desk, "g")].results[0].error_code == ErrorCode.NONE
    assert desk.coordinator.classic_groups == {}
    assert desk.fetch() == -1
    assert desk.moved().coordinator.classic_groups == {}
    assert desk.moved().fetch() == -1


def test_a_group_founded_while_another_is_deleted_is_another_one(desk: Desk) -> None:
    leader, follower = desk.stable()
    desk.leave((leader.member_id, None), (follower.member_id, None))
    desk.holds = True
    deleting = delete(desk, "g")
    joining = desk.join(version=3)
    desk.commit()
    assert deleting in desk.answers
    desk.wait(DELAY_MS)
    assert desk.answers[joining].generation_id == 1


def test_a_group_that_could_not_be_deleted_is_there_again(desk: Desk) -> None:
    leader, follower = desk.stable()
    desk.leave((leader.member_id, None), (follower.member_id, None))
    desk.holds = True
    deleting = delete(desk, "g")
    desk.refuse()
    results = desk.answers[deleting].results
    assert results[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert desk.group().generation == 2


# -- parts -----------------------------------------------------------------------------------


def test_a_deadline_can_be_put_off_forward_and_taken_back() -> None:
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
    assert subscribed_topics(metadata) == {"a", "b"}
    assert subscribed_topics(b"\0\3" + metadata[2:] + b"later") == {"a", "b"}
    assert subscribed_topics(b"") is None
    assert subscribed_topics(metadata[:9]) is None
    assert subscribed_topics(b"\0\0\x7f\xff\xff\xff") is None
    assert subscribed_topics(b"\0\0\0\0\0\1\0\1\xff") is None


def test_requests_of_a_group_without_a_name_are_refused(desk: Desk) -> None:
    request = SyncGroupRequest(group_id="", generation_id=1, member_id="m", assignments=[])
    assert error_of(desk, desk.ask("sync_asked", request)) == ErrorCode.INVALID_GROUP_ID
