"""The classic protocol by raw requests: joining, generations, and refusals."""

from __future__ import annotations

import dataclasses

import pytest

from hightide.wire.errors import ErrorCode
from hightide.wire.messages.groups import FindCoordinatorRequest
from tests.conformance.raw import Raw
from tests.conformance.raw_group import (
    JOIN,
    RawMember,
    commit,
    describe,
    find,
    leave,
    new_group,
    offsets_of,
    share,
)
from tests.support.eventually import eventually

STRANGER = "stranger-00000000-0000-0000-0000-000000000000"


@pytest.fixture(scope="module")
def topic(group_broker):
    return group_broker.create_topic(partitions=4)


@pytest.fixture
def raw(group_broker):
    with Raw(group_broker) as made:
        yield made


@pytest.fixture
def other(group_broker):
    with Raw(group_broker) as made:
        yield made


@pytest.fixture(autouse=True)
def found(group_broker):
    """The topic of offsets exists after a client has asked for a coordinator once."""
    with Raw(group_broker) as raw:
        eventually(lambda: find(raw, "any").error_code == 0)


@pytest.fixture
def pair(raw, other, topic):
    """Two members of one group, each with half of the topic."""
    group = new_group()
    first = RawMember(raw, group, (topic,)).form((topic, 0))
    second = RawMember(other, group, (topic,))
    second.begin_to_join()
    eventually(lambda: first.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS)
    assert first.join() is ErrorCode.NONE
    assert second.end_of_join() is ErrorCode.NONE
    shares = {
        first.member_id: share((topic, 0), (topic, 1)),
        second.member_id: share((topic, 2), (topic, 3)),
    }
    assert first.is_leader
    assert first.sync(shares).error_code == 0
    assert second.sync().error_code == 0
    return first, second


def state_of(member):
    return describe(member.raw, member.group).group_state


# -- membership ----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(10))
def test_a_member_lives_in_every_version(raw, topic, version):
    member = RawMember(raw, new_group(), (topic,))
    found = find(raw, member.group, min(version, 6))
    assert (found.error_code, found.node_id) == (0, 1)
    assert member.join(version) is ErrorCode.NONE
    assert (member.generation, member.is_leader) == (1, True)
    assert [peer.member_id for peer in member.joined.members] == [member.member_id]
    assert member.joined.protocol_name == "range"
    answer = member.sync({member.member_id: share((topic, 0))}, min(version, 5))
    assert (answer.error_code, answer.assignment) == (0, share((topic, 0)))
    assert member.heartbeat(min(version, 4)) is ErrorCode.NONE
    assert member.commit({(topic, 0): 12}, max(2, version)) == [ErrorCode.NONE]
    assert offsets_of(raw, member.group, (topic, 0)) == {(topic, 0): 12}
    assert member.leave(min(version, 5)) is ErrorCode.NONE
    assert member.heartbeat(min(version, 4)) is ErrorCode.UNKNOWN_MEMBER_ID
    assert state_of(member) == "Empty"


@pytest.mark.parametrize("version", range(4, JOIN + 1))
def test_a_new_member_is_given_an_id_before_it_is_let_in(raw, topic, version):
    member = RawMember(raw, new_group(), (topic,))
    answer = raw.ask(member.join_request(), version)
    assert ErrorCode(answer.error_code) is ErrorCode.MEMBER_ID_REQUIRED
    assert answer.member_id
    assert answer.generation_id == -1
    member.member_id = answer.member_id
    assert member.join(version) is ErrorCode.NONE


@pytest.mark.parametrize("version", range(4))
def test_older_members_are_let_in_at_once(raw, topic, version):
    member = RawMember(raw, new_group(), (topic,))
    answer = raw.ask(member.join_request(), version)
    assert (answer.error_code, answer.generation_id) == (0, 1)
    assert answer.member_id


def test_a_member_that_does_not_join_delays_the_group_for_a_session_at_most(raw, topic):
    group = new_group()
    late = RawMember(raw, group, (topic,), session_ms=500)
    late.member_id = raw.ask(late.join_request(), JOIN).member_id
    waiting = dataclasses.replace(late, member_id="", session_ms=30_000)
    assert waiting.join() is ErrorCode.NONE
    assert [member.member_id for member in waiting.joined.members] == [waiting.member_id]
    assert late.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID


# -- generations ---------------------------------------------------------------------------------


def test_a_second_member_begins_a_new_generation(pair, topic):
    first, second = pair
    assert first.generation == second.generation == 2
    assert first.heartbeat() is second.heartbeat() is ErrorCode.NONE
    assert state_of(first) == "Stable"
    found = describe(first.raw, first.group)
    assert {member.member_id: member.member_assignment for member in found.members} == {
        first.member_id: share((topic, 0), (topic, 1)),
        second.member_id: share((topic, 2), (topic, 3)),
    }


def test_a_member_that_leaves_begins_a_new_generation(pair):
    first, second = pair
    assert first.leave() is ErrorCode.NONE
    assert second.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    assert second.join() is ErrorCode.NONE
    assert (second.generation, second.is_leader) == (3, True)


def test_a_member_that_is_silent_is_dropped_when_its_session_ends(raw, other, topic):
    group = new_group()
    silent = RawMember(raw, group, (topic,), session_ms=500).form((topic, 0))
    eventually(lambda: describe(other, group).group_state == "Empty", 5)
    assert silent.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_that_does_not_join_again_is_left_behind(raw, other, topic):
    group = new_group()
    slow = RawMember(raw, group, (topic,), rebalance_ms=700).form((topic, 0))
    quick = RawMember(other, group, (topic,), rebalance_ms=700)
    assert quick.join() is ErrorCode.NONE
    assert (quick.generation, quick.is_leader) == (2, True)
    assert [member.member_id for member in quick.joined.members] == [quick.member_id]
    assert slow.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID


def test_the_others_wait_for_the_leaders_shares(raw, other, topic):
    group = new_group()
    leader = RawMember(raw, group, (topic,)).form((topic, 0))
    second = RawMember(other, group, (topic,))
    second.begin_to_join()
    eventually(lambda: leader.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS)
    assert leader.join() is ErrorCode.NONE
    assert second.end_of_join() is ErrorCode.NONE
    assert state_of(leader) == "CompletingRebalance"
    second.raw.begin(second.sync_request(), 5)
    assert leader.commit({(topic, 0): 1}) == [ErrorCode.REBALANCE_IN_PROGRESS]
    shares = {leader.member_id: share((topic, 0)), second.member_id: share((topic, 1))}
    assert leader.sync(shares).assignment == share((topic, 0))
    assert second.raw.end(second.sync_request(), 5).assignment == share((topic, 1))


def test_shares_are_given_once(pair, topic):
    first, second = pair
    again = {first.member_id: share(), second.member_id: share((topic, 0))}
    assert first.sync(again).assignment == share((topic, 0), (topic, 1))
    assert second.sync(again).assignment == share((topic, 2), (topic, 3))


def test_a_leader_that_joins_again_begins_a_new_generation_and_a_follower_does_not(pair):
    first, second = pair
    assert second.join() is ErrorCode.NONE
    assert second.generation == 2
    first.begin_to_join()
    eventually(lambda: second.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS)
    assert second.join() is ErrorCode.NONE
    assert first.end_of_join() is ErrorCode.NONE
    assert first.generation == second.generation == 3


def test_a_protocol_is_chosen_that_all_members_know(raw, other, topic):
    group = new_group()
    one = RawMember(raw, group, (topic,), protocols=("sticky", "range"))
    one.form((topic, 0))
    assert one.joined.protocol_name == "sticky"
    two = RawMember(other, group, (topic,), protocols=("roundrobin", "range"))
    two.begin_to_join()
    eventually(lambda: one.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS)
    assert one.join() is ErrorCode.NONE
    assert two.end_of_join() is ErrorCode.NONE
    assert one.joined.protocol_name == two.joined.protocol_name == "range"


# -- static members ------------------------------------------------------------------------------


def test_a_static_member_that_restarts_has_its_share_in_the_same_generation(raw, other, topic):
    before = RawMember(raw, new_group(), (topic,), instance="one").form((topic, 0))
    after = dataclasses.replace(before, raw=other, member_id="", generation=-1)
    assert after.join() is ErrorCode.NONE
    assert after.member_id != before.member_id
    assert after.generation == before.generation == 1
    assert after.joined.skip_assignment
    assert after.sync().assignment == share((topic, 0))
    assert before.heartbeat() is ErrorCode.FENCED_INSTANCE_ID
    assert before.commit({(topic, 0): 1}) == [ErrorCode.FENCED_INSTANCE_ID]
    assert before.join() is ErrorCode.FENCED_INSTANCE_ID
    assert ErrorCode(before.sync().error_code) is ErrorCode.FENCED_INSTANCE_ID
    assert after.heartbeat() is ErrorCode.NONE


def test_a_static_member_that_can_do_other_things_now_begins_a_new_generation(raw, other, topic):
    both = ("range", "roundrobin")
    before = RawMember(raw, new_group(), (topic,), instance="one", protocols=both)
    before.form((topic, 0))
    after = RawMember(other, before.group, (topic,), instance="one", protocols=("roundrobin",))
    assert after.join() is ErrorCode.NONE
    assert (after.generation, after.joined.protocol_name) == (2, "roundrobin")


def test_static_members_are_removed_by_their_name(raw, other, topic):
    member = RawMember(raw, new_group(), (topic,), instance="one").form((topic, 0))
    wanted = [("", "another"), ("", "one"), (STRANGER, None)]
    answer = leave(other, member.group, wanted)
    assert answer.error_code == 0
    assert [(member.member_id, member.group_instance_id) for member in answer.members] == wanted
    assert [ErrorCode(member.error_code) for member in answer.members] == [
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
    ]
    assert member.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_static_member_keeps_its_place_while_it_is_away(raw, other, topic):
    member = RawMember(raw, new_group(), (topic,), instance="one").form((topic, 0))
    raw.__exit__()
    (found,) = describe(other, member.group).members
    assert (found.member_id, found.group_instance_id) == (member.member_id, "one")


# -- refusals ------------------------------------------------------------------------------------


def test_a_group_without_a_name_cannot_be_joined(raw, topic):
    assert RawMember(raw, "", (topic,)).join() is ErrorCode.INVALID_GROUP_ID


@pytest.mark.parametrize("session_ms", [-1, 0, 499, 1_800_001])
def test_a_session_must_have_a_length_that_the_broker_allows(raw, topic, session_ms):
    member = RawMember(raw, new_group(), (topic,), session_ms=session_ms)
    assert member.join() is ErrorCode.INVALID_SESSION_TIMEOUT


def test_an_unknown_member_cannot_join(raw, topic):
    member = RawMember(raw, new_group(), (topic,), member_id=STRANGER)
    assert member.join() is ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize(
    "wrong",
    [
        {"protocols": ()},
        {"protocol_type": ""},
        {"protocol_type": "connect"},
        {"protocols": ("roundrobin",)},
    ],
)
def test_a_member_without_a_common_protocol_is_refused(raw, other, topic, wrong):
    member = RawMember(raw, new_group(), (topic,)).form((topic, 0))
    stranger = RawMember(other, member.group, (topic,), **wrong)
    assert stranger.join() is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert member.heartbeat() is ErrorCode.NONE


def test_an_unknown_member_can_do_nothing(pair, topic):
    first, second = pair
    stranger = dataclasses.replace(first, member_id=STRANGER)
    assert stranger.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID
    assert ErrorCode(stranger.sync().error_code) is ErrorCode.UNKNOWN_MEMBER_ID
    assert stranger.leave() is ErrorCode.UNKNOWN_MEMBER_ID
    assert stranger.commit({(topic, 0): 5}) == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert stranger.join() is ErrorCode.UNKNOWN_MEMBER_ID
    assert first.heartbeat() is second.heartbeat() is ErrorCode.NONE
    assert offsets_of(first.raw, first.group) == {}


@pytest.mark.parametrize("step", [-1, 1, -2])
def test_another_generation_can_do_nothing(pair, topic, step):
    first, second = pair
    old = dataclasses.replace(first, generation=first.generation + step)
    assert old.heartbeat() is ErrorCode.ILLEGAL_GENERATION
    assert ErrorCode(old.sync().error_code) is ErrorCode.ILLEGAL_GENERATION
    assert old.commit({(topic, 0): 5}) == [ErrorCode.ILLEGAL_GENERATION]
    assert first.heartbeat() is second.heartbeat() is ErrorCode.NONE
    assert offsets_of(first.raw, first.group) == {}


@pytest.mark.parametrize("generation", [-1, 2])
def test_a_client_that_is_no_member_cannot_commit_for_a_group_with_members(pair, topic, generation):
    first, _ = pair
    found = commit(first.raw, first.group, {(topic, 0): 5}, generation=generation)
    assert found == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert offsets_of(first.raw, first.group) == {}


@pytest.mark.parametrize("wrong", [{"protocol_type": "connect"}, {"protocol_name": "roundrobin"}])
def test_shares_of_another_protocol_are_refused(raw, topic, wrong):
    member = RawMember(raw, new_group(), (topic,))
    assert member.join() is ErrorCode.NONE
    answer = member.sync({member.member_id: share((topic, 0))}, **wrong)
    assert ErrorCode(answer.error_code) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert member.sync({member.member_id: share((topic, 0))}).assignment == share((topic, 0))


def test_members_of_an_unknown_group_are_unknown(raw, topic):
    member = RawMember(raw, new_group(), (topic,), member_id=STRANGER, generation=1)
    assert member.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID
    assert ErrorCode(member.sync().error_code) is ErrorCode.UNKNOWN_MEMBER_ID
    assert member.leave() is ErrorCode.UNKNOWN_MEMBER_ID
    assert member.commit({(topic, 0): 5}, 8) == [ErrorCode.ILLEGAL_GENERATION]
    assert member.commit({(topic, 0): 5}, 9) == [ErrorCode.GROUP_ID_NOT_FOUND]
    assert state_of(member) == "Dead"


@pytest.mark.parametrize("kind", [-1, 3, 99])
def test_a_coordinator_of_an_unknown_kind_is_not_looked_for(raw, kind):
    assert ErrorCode(find(raw, "x", 4, kind).error_code) is ErrorCode.INVALID_REQUEST


def test_several_coordinators_are_found_at_once(raw):
    names = [f"group-{number}" for number in range(20)]
    answer = raw.ask(FindCoordinatorRequest(coordinator_keys=names, key_type=0), 4)
    assert [coordinator.key for coordinator in answer.coordinators] == names
    assert {
        (coordinator.error_code, coordinator.node_id) for coordinator in answer.coordinators
    } == {(0, 1)}
