"""Groups that change their protocol while they have members, rule by rule."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from hightide.core.groups.classic.classic_group import ClassicGroup, State
from hightide.core.groups.consumer.consumer_group import ConsumerGroup, GroupState, MemberState
from hightide.core.groups.group_rules import MigrationPolicy
from hightide.wire.errors import ErrorCode
from hightide.wire.messages.groups import JoinGroupResponse
from hightide.wire.records.consumer_offsets import (
    ConsumerGroupCurrentMemberAssignmentValue,
    decode,
    encode,
)
from hightide.wire.records.consumer_protocol import (
    ConsumerAssignment,
    ConsumerPartitions,
    ConsumerSubscription,
    read,
    write,
)
from tests.unit.core.consumer_world import topic_id, topics
from tests.unit.core.group_desk import DELAY_MS, Desk
from tests.unit.core.test_group_consumers import beat, told


def said(*names: str, owned: list[int] | None = None, generation: int = -1) -> bytes:
    """What a consumer of the classic protocol says about itself."""
    partitions = [ConsumerPartitions(topic="t", partitions=owned)] if owned else []
    subscription = ConsumerSubscription(
        topics=[*(names or ("t",))], owned_partitions=partitions, generation_id=generation
    )
    return write(subscription, 3)


def share(*indexes: int) -> bytes:
    partitions = [ConsumerPartitions(topic="t", partitions=[*indexes])]
    return write(ConsumerAssignment(assigned_partitions=partitions), 3)


def assigned(response: Any) -> list[int]:
    assert response.error_code == ErrorCode.NONE
    found = read(ConsumerAssignment, response.assignment)
    return [index for each in found.assigned_partitions for index in each.partitions]


RANGE = {"range": said()}


@pytest.fixture
def desk() -> Desk:
    return new_desk()


def new_desk(**rules: Any) -> Desk:
    desk = Desk(**rules)
    desk.coordinator.topics_changed(topics(t=4, u=2))
    return desk


def consumer_group(desk: Desk) -> ConsumerGroup:
    assert "g" not in desk.coordinator.classic_groups
    found = desk.coordinator.consumer_groups.get("g")
    assert found is not None
    return found


def classic_group(desk: Desk) -> ClassicGroup:
    assert desk.coordinator.consumer_groups.get("g") is None
    return desk.group()


def stable(desk: Desk, **how: Any) -> list[JoinGroupResponse]:
    """Two members, which have two partitions each."""
    ids = [desk.new_id(protocols=RANGE, **how) for _ in range(2)]
    tickets = [desk.join(each, protocols=RANGE, **how) for each in ids]
    desk.wait(DELAY_MS * 2)
    joined = sorted((desk.answers[each] for each in tickets), key=lambda r: r.leader != r.member_id)
    shares = {each.member_id: share(2 * n, 2 * n + 1) for n, each in enumerate(joined)}
    desk.sync(joined[0], shares)
    desk.sync(joined[1])
    return joined


def rejoin(desk: Desk, member_id: str, **how: Any) -> JoinGroupResponse:
    protocols = {"range": said(**how)}
    response = desk.answers[desk.join(member_id, protocols=protocols)]
    assert isinstance(response, JoinGroupResponse)
    return response


def mixed(desk: Desk) -> list[JoinGroupResponse]:
    """A group of two classic members and one of the newer protocol, `n`, that is at work."""
    members = [each.member_id for each in stable(desk)]
    epoch = beat(desk, "n").member_epoch
    joined = [rejoin(desk, each) for each in members]
    for each in joined:
        desk.sync(each)
    beat(desk, "n", epoch)
    return [rejoin(desk, each) for each in members]


# -- from classic to consumer --------------------------------------------------------------------


def test_a_member_of_the_newer_protocol_converts_a_group_at_work(desk: Desk) -> None:
    first, second = stable(desk)
    response = beat(desk, "n")
    assert (response.error_code, response.member_epoch, told(response)) == (0, 2, [])
    group = consumer_group(desk)
    assert [*group.members] == [first.member_id, second.member_id, "n"]
    member = group.members[first.member_id]
    assert member.classic is not None
    assert (member.epoch, member.state, member.topic_names) == (1, MemberState.STABLE, ("t",))
    assert member.assigned == {(topic_id("t"), 0), (topic_id("t"), 1)}
    assert consumer_group(desk.moved()) == group
    for each in (first, second):
        told_now = desk.heartbeat(each.member_id, 1)
        assert told_now == ErrorCode.REBALANCE_IN_PROGRESS
        again = rejoin(desk, each.member_id)
        assert (again.error_code, again.generation_id, again.leader) == (0, 2, "")
    shares = [assigned(desk.answers[desk.sync(rejoin(desk, m))]) for m in group.members if m != "n"]
    rest = told(beat(desk, "n", 2))
    assert rest is not None
    assert sorted(sum(shares, rest)) == [0, 1, 2, 3]
    assert consumer_group(desk).state is GroupState.STABLE
    assert desk.heartbeat(first.member_id, 2) == ErrorCode.NONE


def test_a_conversion_is_one_write_of_tombstones_and_records(desk: Desk) -> None:
    stable(desk)
    desk.holds = True
    beat_ticket = desk.tickets + 1
    with pytest.raises(KeyError):
        beat(desk, "n")
    (write_of_it,) = desk.writes
    kinds = [type(each.key).__name__ for each in write_of_it.records]
    assert kinds[0] == "GroupMetadataKey"
    assert write_of_it.records[0].value is None
    assert {"ConsumerGroupMetadataKey", "ConsumerGroupMemberMetadataKey"} <= {*kinds}
    assert [decode(*encode(each)) for each in write_of_it.records] == [*write_of_it.records]
    desk.holds = False
    desk.commit()
    assert desk.answers[beat_ticket].member_epoch == 2


def test_a_conversion_that_could_not_be_written_did_not_happen(desk: Desk) -> None:
    first, _ = stable(desk)
    desk.holds = True
    desk.tickets += 1
    with pytest.raises(KeyError):
        beat(desk, "n")
    desk.refuse()
    desk.holds = False
    assert classic_group(desk).state is State.STABLE
    assert desk.heartbeat(first.member_id, 1) == ErrorCode.NONE
    desk.wait(9000)
    assert desk.heartbeat(first.member_id, 1) == ErrorCode.NONE


def test_who_waits_for_others_is_told_to_join_again(desk: Desk) -> None:
    first, second = stable(desk)
    waiting = desk.join(first.member_id, protocols=RANGE)
    new = desk.new_id(protocols=RANGE)
    new_waiting = desk.join(new, protocols=RANGE)
    assert beat(desk, "n").error_code == ErrorCode.NONE
    for ticket in (waiting, new_waiting):
        assert desk.answers[ticket].error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert {*consumer_group(desk).members} == {first.member_id, second.member_id, "n"}
    assert rejoin(desk, new).generation_id == 3
    assert new in consumer_group(desk).members


def test_what_a_member_has_while_the_leader_shares_out_is_what_it_said(desk: Desk) -> None:
    first, second = stable(desk)
    leader = desk.join(first.member_id, protocols={"range": said(owned=[0, 1], generation=1)})
    other = desk.join(second.member_id, protocols={"range": said(owned=[1, 2], generation=0)})
    assert desk.answers[leader].generation_id == desk.answers[other].generation_id == 2
    assert told(beat(desk, "n")) == [3]
    members = consumer_group(desk).members
    assert members[first.member_id].assigned == {(topic_id("t"), 0), (topic_id("t"), 1)}
    assert members[second.member_id].assigned == {(topic_id("t"), 2)}


@pytest.mark.parametrize(
    ("rules", "how"),
    [
        ({"migration_policy": MigrationPolicy.DISABLED}, {}),
        ({"migration_policy": MigrationPolicy.DOWNGRADE}, {}),
        ({"consumer_max_size": 1}, {}),
        ({}, {"protocol_type": "connect"}),
    ],
)
def test_some_groups_stay_classic(rules: dict[str, Any], how: dict[str, Any]) -> None:
    desk = new_desk(**rules)
    stable(desk, **how)
    response = beat(desk, "n")
    assert response.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert response.error_message
    assert classic_group(desk).state is State.STABLE
    assert len(desk.group().members) == 2


def test_a_conversion_for_a_member_that_is_refused_does_not_happen() -> None:
    desk = new_desk(consumer_max_size=2)
    stable(desk)
    assert beat(desk, "n").error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert classic_group(desk).state is State.STABLE
    assert beat(desk, "n", 1).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert beat(desk, "n", -1).error_code == ErrorCode.GROUP_ID_NOT_FOUND


# -- classic members of a consumer group ---------------------------------------------------------


def test_a_classic_member_joins_a_consumer_group(desk: Desk) -> None:
    beat(desk, "n")
    member_id = desk.new_id(protocols=RANGE)
    assert [*consumer_group(desk).members] == ["n"]
    joined = rejoin(desk, member_id)
    assert (joined.generation_id, joined.protocol_name) == (2, "range")
    assert assigned(desk.answers[desk.sync(joined)]) == []
    assert desk.heartbeat(member_id, 2) == ErrorCode.NONE
    beat(desk, "n", 1, owned={"t": [0, 1, 2, 3]})
    assert desk.heartbeat(member_id, 2) == ErrorCode.NONE
    beat(desk, "n", 1, owned={"t": [0, 1]})
    assert desk.heartbeat(member_id, 2) == ErrorCode.REBALANCE_IN_PROGRESS
    joined = rejoin(desk, member_id)
    assert joined.generation_id == 2
    assert assigned(desk.answers[desk.sync(joined)]) == [2, 3]
    described = desk.coordinator.administration.describe_consumers("g", "uniform")
    assert [each.member_type for each in described.members] == [1, 0]
    moved = desk.moved()
    assert consumer_group(moved) == consumer_group(desk)
    assert moved.heartbeat(member_id, 2) == ErrorCode.NONE


def test_a_member_that_keeps_what_it_has_gives_up_first(desk: Desk) -> None:
    first, second = stable(desk)
    beat(desk, "n", subscribed_topic_names=["t"])
    beat(desk, "m", subscribed_topic_names=["t"])
    joined = rejoin(desk, first.member_id, owned=[0, 1], generation=1)
    assert joined.generation_id == 1
    assert desk.heartbeat(first.member_id, 1) == ErrorCode.REBALANCE_IN_PROGRESS
    (kept,) = assigned(desk.answers[desk.sync(joined)])
    late = rejoin(desk, first.member_id, owned=[], generation=0)
    assert late.generation_id == 1, "what it said in a generation before proves nothing"
    done = rejoin(desk, first.member_id, owned=[kept], generation=1)
    assert done.generation_id == consumer_group(desk).epoch
    assert second.member_id in consumer_group(desk).members


def test_bad_requests_of_classic_members_get_their_errors(desk: Desk) -> None:
    first, _ = mixed(desk)
    epoch = first.generation_id
    assert desk.heartbeat("nobody", epoch) == ErrorCode.UNKNOWN_MEMBER_ID
    assert desk.heartbeat("n", epoch) == ErrorCode.UNKNOWN_MEMBER_ID
    assert desk.heartbeat(first.member_id, epoch + 1) == ErrorCode.ILLEGAL_GENERATION
    assert desk.heartbeat(first.member_id, epoch, "i") == ErrorCode.UNKNOWN_MEMBER_ID

    def sync_error(**changed: Any) -> ErrorCode:
        return ErrorCode(desk.answers[desk.sync(first, **changed)].error_code)

    assert sync_error() == ErrorCode.NONE
    assert sync_error(generation_id=epoch - 1) == ErrorCode.ILLEGAL_GENERATION
    assert sync_error(member_id="n") == ErrorCode.UNKNOWN_MEMBER_ID
    assert sync_error(protocol_name="sticky") == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert sync_error(protocol_type="connect") == ErrorCode.INCONSISTENT_GROUP_PROTOCOL

    def join_error(**how: Any) -> ErrorCode:
        return ErrorCode(desk.answers[desk.join(first.member_id, **how)].error_code)

    inconsistent = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert join_error(protocols={"range": b""}) == inconsistent
    assert join_error(protocols={"sticky": said()}) == inconsistent
    assert join_error(protocols=RANGE, protocol_type="connect") == inconsistent
    assert join_error(protocols=RANGE, instance="i") == ErrorCode.UNKNOWN_MEMBER_ID
    before = consumer_group(desk)
    beat(desk, "m")
    assert sync_error() == ErrorCode.REBALANCE_IN_PROGRESS
    assert before.members.keys() < consumer_group(desk).members.keys()


def test_classic_members_commit_in_their_generation(desk: Desk) -> None:
    first, _ = mixed(desk)
    epoch = first.generation_id
    assert desk.commit_error(5, first.member_id, epoch, version=8) == ErrorCode.NONE
    wrong = desk.commit_error(6, first.member_id, epoch - 1, version=8)
    assert wrong == ErrorCode.ILLEGAL_GENERATION
    assert desk.commit_error(6) == ErrorCode.UNKNOWN_MEMBER_ID
    assert desk.fetch() == 5


@pytest.mark.parametrize("what", ["session", "join", "sync"])
def test_a_classic_member_that_is_late_is_out(desk: Desk, what: str) -> None:
    first, second = mixed(desk)
    desk.sync(second)
    if what != "sync":
        desk.sync(first)
    if what == "join":
        beat(desk, "m")
    for _ in range(2 if what == "session" else 13):
        desk.wait(5000)
        epoch = consumer_group(desk).members["n"].epoch
        beat(desk, "n", epoch)
        if what == "join":
            beat(desk, "m", consumer_group(desk).members["m"].epoch)
        if second.member_id in consumer_group(desk).members:
            again = rejoin(desk, second.member_id)
            desk.sync(again)
        if what != "session" and first.member_id in consumer_group(desk).members:
            generation = consumer_group(desk).members[first.member_id].epoch
            desk.heartbeat(first.member_id, generation)
    assert first.member_id not in consumer_group(desk).members
    assert second.member_id in consumer_group(desk).members


def test_a_static_classic_member_is_replaced_by_one_of_the_newer_protocol(desk: Desk) -> None:
    beat(desk, "n")
    joined = desk.answers[desk.join(instance="i", protocols=RANGE)]
    back = beat(desk, "new", instance_id="i")
    assert back.error_code == ErrorCode.NONE
    assert {*consumer_group(desk).members} == {"n", "new"}
    fenced = desk.heartbeat(joined.member_id, joined.generation_id, "i")
    assert fenced == ErrorCode.FENCED_INSTANCE_ID
    again = desk.answers[desk.join(instance="i", protocols=RANGE)]
    assert again.error_code == ErrorCode.NONE
    assert beat(desk, "new", 2, instance_id="i").error_code == ErrorCode.FENCED_INSTANCE_ID


# -- leaving -------------------------------------------------------------------------------------


def test_members_of_both_protocols_are_taken_out_by_leave_group(desk: Desk) -> None:
    beat(desk, "a", instance_id="i")
    beat(desk, "b")
    beat(desk, "c", instance_id="k")
    member_id = desk.new_id(protocols=RANGE)
    rejoin(desk, member_id)
    gone = [("", "i"), ("b", None), (member_id, None), ("", "x"), ("zz", "k"), ("d", None)]
    response = desk.leave(*gone, ("b", None))
    unknown = ErrorCode.UNKNOWN_MEMBER_ID
    codes = [each.error_code for each in response.members]
    assert codes == [0, 0, 0, unknown, ErrorCode.FENCED_INSTANCE_ID, unknown, unknown]
    named = [(each.member_id, each.group_instance_id) for each in response.members]
    assert named == [*gone, ("b", None)], "as they were asked for"
    assert [*consumer_group(desk).members] == ["c"]
    assert consumer_group(desk.moved()) == consumer_group(desk)


def test_a_leave_group_that_could_not_be_written_did_not_happen(desk: Desk) -> None:
    beat(desk, "a", instance_id="i")
    desk.holds = True
    ticket = desk.tickets + 1
    with pytest.raises(KeyError):
        desk.leave(("", "i"))
    desk.refuse()
    assert desk.answers[ticket].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert [*consumer_group(desk).members] == ["a"]


# -- from consumer to classic --------------------------------------------------------------------


def go(desk: Desk, how: str) -> None:
    match how:
        case "leaves":
            beat(desk, "n", -1)
        case "is taken out":
            desk.leave(("n", None))
        case "is gone":
            for _ in range(6):
                desk.wait(9000)
                group = desk.coordinator.consumer_groups.get("g")
                members = group.members if group else {}
                for each in members.values():
                    if each.classic is not None:
                        desk.heartbeat(each.id, each.epoch)


@pytest.mark.parametrize("how", ["leaves", "is taken out", "is gone"])
def test_with_its_last_member_the_newer_protocol_goes(desk: Desk, how: str) -> None:
    joined = mixed(desk)
    for each in joined:
        desk.sync(each)
    go(desk, how)
    group = classic_group(desk)
    assert group.state is State.PREPARING_REBALANCE
    assert group.generation == joined[0].generation_id
    assert {*group.members} == {each.member_id for each in joined}
    assert group.last_rebalance is not None
    for each in joined:
        told_now = desk.heartbeat(each.member_id, each.generation_id)
        assert told_now == ErrorCode.REBALANCE_IN_PROGRESS
    tickets = [desk.join(each.member_id, protocols=RANGE) for each in joined]
    again = [desk.answers[each] for each in tickets]
    assert {each.generation_id for each in again} == {joined[0].generation_id + 1}
    assert sum(len(each.members) for each in again) == 2


def test_after_a_move_the_members_are_called_together(desk: Desk) -> None:
    joined = mixed(desk)
    beat(desk, "n", -1)
    group = desk.group()
    moved = desk.moved()
    assert classic_group(moved).state is State.PREPARING_REBALANCE
    assert {*moved.group().members} == {*group.members}
    tickets = [moved.join(each.member_id, protocols=RANGE) for each in joined]
    (leader,) = [moved.answers[each] for each in tickets if moved.answers[each].members]
    moved.sync(leader, {each.member_id: share(0) for each in joined})
    assert moved.moved().group().state is State.STABLE


def test_a_downgrade_that_could_not_be_written_did_not_happen(desk: Desk) -> None:
    mixed(desk)
    before = consumer_group(desk)
    desk.holds = True
    ticket = desk.tickets + 1
    with pytest.raises(KeyError):
        beat(desk, "n", -1)
    assert classic_group(desk).state is State.PREPARING_REBALANCE
    desk.refuse()
    desk.holds = False
    assert desk.answers[ticket].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert consumer_group(desk) == before
    desk.wait(9000)
    assert consumer_group(desk) == before


@pytest.mark.parametrize(
    "rules",
    [
        {"migration_policy": MigrationPolicy.UPGRADE},
        {"max_size": 1},
    ],
)
def test_some_groups_stay_of_the_newer_protocol(rules: dict[str, Any]) -> None:
    desk = new_desk(migration_policy=rules.get("migration_policy", MigrationPolicy.BIDIRECTIONAL))
    joined = mixed(desk)
    desk.coordinator.rules = desk.rules = type(desk.rules)(
        **{name: getattr(desk.rules, name) for name in desk.rules.__slots__} | rules
    )
    beat(desk, "n", -1)
    assert {*consumer_group(desk).members} == {each.member_id for each in joined}
    assert rejoin(desk, joined[0].member_id).error_code == ErrorCode.NONE


def test_the_last_static_member_of_the_newer_protocol_comes_back_as_a_classic_one(
    desk: Desk,
) -> None:
    members = [each.member_id for each in stable(desk)]
    beat(desk, "n", instance_id="i")
    ticket = desk.join(instance="i", protocols=RANGE)
    assert ticket not in desk.answers
    assert len(classic_group(desk).members) == 3
    for each in members:
        desk.join(each, protocols=RANGE)
    assert desk.answers[ticket].error_code == ErrorCode.NONE
    assert desk.answers[ticket].generation_id == 3


# -- expressions and reasons ---------------------------------------------------------------------


def test_what_an_expression_stands_for_is_in_the_log(desk: Desk) -> None:
    beat(desk, "a", subscribed_topic_names=None, subscribed_topic_regex="[tu]+")
    assert consumer_group(desk).expressions == {"[tu]+": {"t", "u"}}
    assert consumer_group(desk.moved()) == consumer_group(desk)
    written = len(desk.log)
    beat(desk, "a", 1)
    assert len(desk.log) == written
    desk.coordinator.topics_changed(topics(t=4, tt=1))
    beat(desk, "a", 1, owned={"t": [0, 1, 2, 3]})
    assert consumer_group(desk.moved()).expressions == {"[tu]+": {"t", "tt"}}
    beat(desk, "a", 2, subscribed_topic_names=["t"], subscribed_topic_regex="")
    assert consumer_group(desk).expressions == {}
    assert consumer_group(desk.moved()) == consumer_group(desk)


def test_the_reason_of_the_last_rebalance_is_known(desk: Desk) -> None:
    def last() -> tuple[str, int]:
        found = desk.coordinator.administration.find("g")
        assert found is not None
        assert found.last_rebalance is not None
        assert found.last_rebalance.at_ms == desk.now_ms
        return found.last_rebalance.reason, found.last_rebalance.generation

    beat(desk, "a")
    assert last() == ("a joined", 0)
    beat(desk, "a", 1, subscribed_topic_names=["t", "u"])
    assert last() == ("a changed its subscription", 1)
    desk.coordinator.topics_changed(topics(t=5, u=2))
    beat(desk, "a", 2)
    assert last() == ("the topics changed", 2)
    beat(desk, "b")
    desk.leave(("b", None))
    assert last() == ("left: b", 4)
    desk.wait(45_000)
    found = desk.coordinator.administration.last_rebalance("g")
    assert found is not None
    assert found.reason == "the session of a expired"
    assert desk.coordinator.administration.last_rebalance("nobody") is None


def test_a_tombstone_of_a_group_that_is_not_there_makes_none(desk: Desk) -> None:
    beat(desk, "a")
    records = consumer_group(desk).tombstones()
    other = new_desk()
    for offset, record in enumerate(records[:-1]):
        other.coordinator.replay(record, offset)
    assert other.coordinator.consumer_groups.groups == {}


def test_a_state_of_a_later_version_is_led_out_of(desk: Desk) -> None:
    beat(desk, "a")
    other = new_desk()
    for offset, (record, _) in enumerate(desk.log):
        if isinstance(record.value, ConsumerGroupCurrentMemberAssignmentValue):
            record.value.state = 7
        other.coordinator.replay(record, offset)
    assert consumer_group(other).members["a"].state is MemberState.UNRELEASED_PARTITIONS
    other.carry_out(other.coordinator.loaded(other.now_ms))
    assert beat(other, "a", 1).member_epoch == 1
    assert consumer_group(other).state is GroupState.STABLE


def test_an_id_of_a_topic_that_came_again_is_another(desk: Desk) -> None:
    stable(desk)
    again = {"t": topics(t=4)["t"]._replace(id=uuid.UUID(int=7))}
    desk.coordinator.topics_changed(again)
    beat(desk, "n")
    ids = {topic for each in consumer_group(desk).members.values() for topic, _ in each.assigned}
    assert ids <= {uuid.UUID(int=7)}
