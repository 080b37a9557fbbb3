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
from tests.unit.core.group_harness import DELAY_MS, Harness
from tests.unit.core.test_consumer_groups import assigned_indexes, beat


def subscription(*names: str, owned: list[int] | None = None, generation: int = -1) -> bytes:
    """Encode the subscription of a consumer of the classic protocol."""
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
    return [
        index
        for assigned_partition in found.assigned_partitions
        for index in assigned_partition.partitions
    ]


RANGE = {"range": subscription()}


@pytest.fixture
def harness() -> Harness:
    return new_harness()


def new_harness(**rules: Any) -> Harness:
    harness = Harness(**rules)
    harness.coordinator.topics_changed(topics(t=4, u=2))
    return harness


def consumer_group(harness: Harness) -> ConsumerGroup:
    assert "g" not in harness.coordinator.classic_groups
    found = harness.coordinator.consumer_groups.get("g")
    assert found is not None
    return found


def classic_group(harness: Harness) -> ClassicGroup:
    assert harness.coordinator.consumer_groups.get("g") is None
    return harness.group()


def stable(harness: Harness, **how: Any) -> list[JoinGroupResponse]:
    """Form a group of two members with two partitions each."""
    ids = [harness.new_id(protocols=RANGE, **how) for _ in range(2)]
    tickets = [harness.join(member_id, protocols=RANGE, **how) for member_id in ids]
    harness.wait(DELAY_MS * 2)
    joined = sorted(
        (harness.answers[ticket] for ticket in tickets), key=lambda r: r.leader != r.member_id
    )
    shares = {member.member_id: share(2 * n, 2 * n + 1) for n, member in enumerate(joined)}
    harness.sync(joined[0], shares)
    harness.sync(joined[1])
    return joined


def rejoin(harness: Harness, member_id: str, **how: Any) -> JoinGroupResponse:
    protocols = {"range": subscription(**how)}
    response = harness.answers[harness.join(member_id, protocols=protocols)]
    assert isinstance(response, JoinGroupResponse)
    return response


def mixed(harness: Harness) -> list[JoinGroupResponse]:
    """Form a stable group of two classic members and `n`, of the consumer protocol."""
    members = [member.member_id for member in stable(harness)]
    epoch = beat(harness, "n").member_epoch
    joined = [rejoin(harness, member) for member in members]
    for response in joined:
        harness.sync(response)
    beat(harness, "n", epoch)
    return [rejoin(harness, member) for member in members]


# -- from classic to consumer --------------------------------------------------------------------


def test_a_member_of_the_consumer_protocol_converts_a_stable_group(harness: Harness) -> None:
    first, second = stable(harness)
    response = beat(harness, "n")
    assert (response.error_code, response.member_epoch, assigned_indexes(response)) == (0, 2, [])
    group = consumer_group(harness)
    assert [*group.members] == [first.member_id, second.member_id, "n"]
    member = group.members[first.member_id]
    assert member.classic is not None
    assert (member.epoch, member.state, member.topic_names) == (1, MemberState.STABLE, ("t",))
    assert member.assigned == {(topic_id("t"), 0), (topic_id("t"), 1)}
    assert consumer_group(harness.moved()) == group
    for joined in (first, second):
        error = harness.heartbeat(joined.member_id, 1)
        assert error == ErrorCode.REBALANCE_IN_PROGRESS
        again = rejoin(harness, joined.member_id)
        assert (again.error_code, again.generation_id, again.leader) == (0, 2, "")
    shares = [
        assigned(harness.answers[harness.sync(rejoin(harness, m))])
        for m in group.members
        if m != "n"
    ]
    rest = assigned_indexes(beat(harness, "n", 2))
    assert rest is not None
    assert sorted(sum(shares, rest)) == [0, 1, 2, 3]
    assert consumer_group(harness).state is GroupState.STABLE
    assert harness.heartbeat(first.member_id, 2) == ErrorCode.NONE


def test_a_conversion_is_one_write_of_tombstones_and_records(harness: Harness) -> None:
    stable(harness)
    harness.holds = True
    beat_ticket = harness.tickets + 1
    with pytest.raises(KeyError):
        beat(harness, "n")
    (write_of_it,) = harness.writes
    kinds = [type(record.key).__name__ for record in write_of_it.records]
    assert kinds[0] == "GroupMetadataKey"
    assert write_of_it.records[0].value is None
    assert {"ConsumerGroupMetadataKey", "ConsumerGroupMemberMetadataKey"} <= {*kinds}
    assert [decode(*encode(record)) for record in write_of_it.records] == [*write_of_it.records]
    harness.holds = False
    harness.commit()
    assert harness.answers[beat_ticket].member_epoch == 2


def test_a_conversion_that_could_not_be_written_is_undone(harness: Harness) -> None:
    first, _ = stable(harness)
    harness.holds = True
    harness.tickets += 1
    with pytest.raises(KeyError):
        beat(harness, "n")
    harness.refuse()
    harness.holds = False
    assert classic_group(harness).state is State.STABLE
    assert harness.heartbeat(first.member_id, 1) == ErrorCode.NONE
    harness.wait(9000)
    assert harness.heartbeat(first.member_id, 1) == ErrorCode.NONE


def test_members_that_wait_for_others_must_join_again(harness: Harness) -> None:
    first, second = stable(harness)
    waiting = harness.join(first.member_id, protocols=RANGE)
    new = harness.new_id(protocols=RANGE)
    new_waiting = harness.join(new, protocols=RANGE)
    assert beat(harness, "n").error_code == ErrorCode.NONE
    for ticket in (waiting, new_waiting):
        assert harness.answers[ticket].error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert {*consumer_group(harness).members} == {first.member_id, second.member_id, "n"}
    assert rejoin(harness, new).generation_id == 3
    assert new in consumer_group(harness).members


def test_during_the_assignment_a_member_owns_what_its_subscription_claims(harness: Harness) -> None:
    first, second = stable(harness)
    leader = harness.join(
        first.member_id, protocols={"range": subscription(owned=[0, 1], generation=1)}
    )
    other = harness.join(
        second.member_id, protocols={"range": subscription(owned=[1, 2], generation=0)}
    )
    assert harness.answers[leader].generation_id == harness.answers[other].generation_id == 2
    assert assigned_indexes(beat(harness, "n")) == [3]
    members = consumer_group(harness).members
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
    harness = new_harness(**rules)
    stable(harness, **how)
    response = beat(harness, "n")
    assert response.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert response.error_message
    assert classic_group(harness).state is State.STABLE
    assert len(harness.group().members) == 2


def test_a_conversion_for_a_member_that_is_refused_does_not_happen() -> None:
    harness = new_harness(consumer_max_size=2)
    stable(harness)
    assert beat(harness, "n").error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert classic_group(harness).state is State.STABLE
    assert beat(harness, "n", 1).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert beat(harness, "n", -1).error_code == ErrorCode.GROUP_ID_NOT_FOUND


# -- classic members of a consumer group ---------------------------------------------------------


def test_a_classic_member_joins_a_consumer_group(harness: Harness) -> None:
    beat(harness, "n")
    member_id = harness.new_id(protocols=RANGE)
    assert [*consumer_group(harness).members] == ["n"]
    joined = rejoin(harness, member_id)
    assert (joined.generation_id, joined.protocol_name) == (2, "range")
    assert assigned(harness.answers[harness.sync(joined)]) == []
    assert harness.heartbeat(member_id, 2) == ErrorCode.NONE
    beat(harness, "n", 1, owned={"t": [0, 1, 2, 3]})
    assert harness.heartbeat(member_id, 2) == ErrorCode.NONE
    beat(harness, "n", 1, owned={"t": [0, 1]})
    assert harness.heartbeat(member_id, 2) == ErrorCode.REBALANCE_IN_PROGRESS
    joined = rejoin(harness, member_id)
    assert joined.generation_id == 2
    assert assigned(harness.answers[harness.sync(joined)]) == [2, 3]
    described = harness.coordinator.administration.describe_consumers("g", "uniform")
    assert [member.member_type for member in described.members] == [1, 0]
    moved = harness.moved()
    assert consumer_group(moved) == consumer_group(harness)
    assert moved.heartbeat(member_id, 2) == ErrorCode.NONE


def test_a_cooperative_member_revokes_first(harness: Harness) -> None:
    first, second = stable(harness)
    beat(harness, "n", subscribed_topic_names=["t"])
    beat(harness, "m", subscribed_topic_names=["t"])
    joined = rejoin(harness, first.member_id, owned=[0, 1], generation=1)
    assert joined.generation_id == 1
    assert harness.heartbeat(first.member_id, 1) == ErrorCode.REBALANCE_IN_PROGRESS
    (kept,) = assigned(harness.answers[harness.sync(joined)])
    late = rejoin(harness, first.member_id, owned=[], generation=0)
    assert late.generation_id == 1, "a report of an earlier generation proves nothing"
    done = rejoin(harness, first.member_id, owned=[kept], generation=1)
    assert done.generation_id == consumer_group(harness).epoch
    assert second.member_id in consumer_group(harness).members


def test_bad_requests_of_classic_members_get_their_errors(harness: Harness) -> None:
    first, _ = mixed(harness)
    epoch = first.generation_id
    assert harness.heartbeat("unknown", epoch) == ErrorCode.UNKNOWN_MEMBER_ID
    assert harness.heartbeat("n", epoch) == ErrorCode.UNKNOWN_MEMBER_ID
    assert harness.heartbeat(first.member_id, epoch + 1) == ErrorCode.ILLEGAL_GENERATION
    assert harness.heartbeat(first.member_id, epoch, "i") == ErrorCode.UNKNOWN_MEMBER_ID

    def sync_error(**changed: Any) -> ErrorCode:
        return ErrorCode(harness.answers[harness.sync(first, **changed)].error_code)

    assert sync_error() == ErrorCode.NONE
    assert sync_error(generation_id=epoch - 1) == ErrorCode.ILLEGAL_GENERATION
    assert sync_error(member_id="n") == ErrorCode.UNKNOWN_MEMBER_ID
    assert sync_error(protocol_name="sticky") == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert sync_error(protocol_type="connect") == ErrorCode.INCONSISTENT_GROUP_PROTOCOL

    def join_error(**how: Any) -> ErrorCode:
        return ErrorCode(harness.answers[harness.join(first.member_id, **how)].error_code)

    inconsistent = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert join_error(protocols={"range": b""}) == inconsistent
    assert join_error(protocols={"sticky": subscription()}) == inconsistent
    assert join_error(protocols=RANGE, protocol_type="connect") == inconsistent
    assert join_error(protocols=RANGE, instance="i") == ErrorCode.UNKNOWN_MEMBER_ID
    before = consumer_group(harness)
    beat(harness, "m")
    assert sync_error() == ErrorCode.REBALANCE_IN_PROGRESS
    assert before.members.keys() < consumer_group(harness).members.keys()


def test_classic_members_commit_in_their_generation(harness: Harness) -> None:
    first, _ = mixed(harness)
    epoch = first.generation_id
    assert harness.commit_error(5, first.member_id, epoch, version=8) == ErrorCode.NONE
    wrong = harness.commit_error(6, first.member_id, epoch - 1, version=8)
    assert wrong == ErrorCode.ILLEGAL_GENERATION
    assert harness.commit_error(6) == ErrorCode.UNKNOWN_MEMBER_ID
    assert harness.fetch() == 5


@pytest.mark.parametrize("what", ["session", "join", "sync"])
def test_a_classic_member_that_is_late_is_removed(harness: Harness, what: str) -> None:
    first, second = mixed(harness)
    harness.sync(second)
    if what != "sync":
        harness.sync(first)
    if what == "join":
        beat(harness, "m")
    for _ in range(2 if what == "session" else 13):
        harness.wait(5000)
        epoch = consumer_group(harness).members["n"].epoch
        beat(harness, "n", epoch)
        if what == "join":
            beat(harness, "m", consumer_group(harness).members["m"].epoch)
        if second.member_id in consumer_group(harness).members:
            again = rejoin(harness, second.member_id)
            harness.sync(again)
        if what != "session" and first.member_id in consumer_group(harness).members:
            generation = consumer_group(harness).members[first.member_id].epoch
            harness.heartbeat(first.member_id, generation)
    assert first.member_id not in consumer_group(harness).members
    assert second.member_id in consumer_group(harness).members


def test_a_static_classic_member_is_replaced_by_one_of_the_consumer_protocol(
    harness: Harness,
) -> None:
    beat(harness, "n")
    joined = harness.answers[harness.join(instance="i", protocols=RANGE)]
    back = beat(harness, "new", instance_id="i")
    assert back.error_code == ErrorCode.NONE
    assert {*consumer_group(harness).members} == {"n", "new"}
    fenced = harness.heartbeat(joined.member_id, joined.generation_id, "i")
    assert fenced == ErrorCode.FENCED_INSTANCE_ID
    again = harness.answers[harness.join(instance="i", protocols=RANGE)]
    assert again.error_code == ErrorCode.NONE
    assert beat(harness, "new", 2, instance_id="i").error_code == ErrorCode.FENCED_INSTANCE_ID


# -- leaving -------------------------------------------------------------------------------------


def test_leave_group_removes_members_of_both_protocols(harness: Harness) -> None:
    beat(harness, "a", instance_id="i")
    beat(harness, "b")
    beat(harness, "c", instance_id="k")
    member_id = harness.new_id(protocols=RANGE)
    rejoin(harness, member_id)
    gone = [("", "i"), ("b", None), (member_id, None), ("", "x"), ("zz", "k"), ("d", None)]
    response = harness.leave(*gone, ("b", None))
    unknown = ErrorCode.UNKNOWN_MEMBER_ID
    codes = [member.error_code for member in response.members]
    assert codes == [0, 0, 0, unknown, ErrorCode.FENCED_INSTANCE_ID, unknown, unknown]
    named = [(member.member_id, member.group_instance_id) for member in response.members]
    assert named == [*gone, ("b", None)], "in the order of the request"
    assert [*consumer_group(harness).members] == ["c"]
    assert consumer_group(harness.moved()) == consumer_group(harness)


def test_a_leave_group_that_could_not_be_written_is_undone(harness: Harness) -> None:
    beat(harness, "a", instance_id="i")
    harness.holds = True
    ticket = harness.tickets + 1
    with pytest.raises(KeyError):
        harness.leave(("", "i"))
    harness.refuse()
    assert harness.answers[ticket].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert [*consumer_group(harness).members] == ["a"]


# -- from consumer to classic --------------------------------------------------------------------


def go(harness: Harness, how: str) -> None:
    match how:
        case "leaves":
            beat(harness, "n", -1)
        case "is taken out":
            harness.leave(("n", None))
        case "is gone":
            for _ in range(6):
                harness.wait(9000)
                group = harness.coordinator.consumer_groups.get("g")
                members = group.members if group else {}
                for member in members.values():
                    if member.classic is not None:
                        harness.heartbeat(member.id, member.epoch)


@pytest.mark.parametrize("how", ["leaves", "is taken out", "is gone"])
def test_with_its_last_member_of_the_consumer_protocol_a_group_becomes_classic(
    harness: Harness, how: str
) -> None:
    joined = mixed(harness)
    for response in joined:
        harness.sync(response)
    go(harness, how)
    group = classic_group(harness)
    assert group.state is State.PREPARING_REBALANCE
    assert group.generation == joined[0].generation_id
    assert {*group.members} == {response.member_id for response in joined}
    assert group.last_rebalance is not None
    for response in joined:
        error = harness.heartbeat(response.member_id, response.generation_id)
        assert error == ErrorCode.REBALANCE_IN_PROGRESS
    tickets = [harness.join(response.member_id, protocols=RANGE) for response in joined]
    again = [harness.answers[ticket] for ticket in tickets]
    assert {response.generation_id for response in again} == {joined[0].generation_id + 1}
    assert sum(len(response.members) for response in again) == 2


def test_after_a_failover_the_converted_group_rebalances(harness: Harness) -> None:
    joined = mixed(harness)
    beat(harness, "n", -1)
    group = harness.group()
    moved = harness.moved()
    assert classic_group(moved).state is State.PREPARING_REBALANCE
    assert {*moved.group().members} == {*group.members}
    tickets = [moved.join(response.member_id, protocols=RANGE) for response in joined]
    (leader,) = [moved.answers[ticket] for ticket in tickets if moved.answers[ticket].members]
    moved.sync(leader, {response.member_id: share(0) for response in joined})
    assert moved.moved().group().state is State.STABLE


def test_a_downgrade_that_could_not_be_written_is_undone(harness: Harness) -> None:
    mixed(harness)
    before = consumer_group(harness)
    harness.holds = True
    ticket = harness.tickets + 1
    with pytest.raises(KeyError):
        beat(harness, "n", -1)
    assert classic_group(harness).state is State.PREPARING_REBALANCE
    harness.refuse()
    harness.holds = False
    assert harness.answers[ticket].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert consumer_group(harness) == before
    harness.wait(9000)
    assert consumer_group(harness) == before


@pytest.mark.parametrize(
    "rules",
    [
        {"migration_policy": MigrationPolicy.UPGRADE},
        {"max_size": 1},
    ],
)
def test_some_groups_keep_the_consumer_protocol(rules: dict[str, Any]) -> None:
    harness = new_harness(
        migration_policy=rules.get("migration_policy", MigrationPolicy.BIDIRECTIONAL)
    )
    joined = mixed(harness)
    harness.coordinator.rules = harness.rules = type(harness.rules)(
        **{name: getattr(harness.rules, name) for name in harness.rules.__slots__} | rules
    )
    beat(harness, "n", -1)
    assert {*consumer_group(harness).members} == {response.member_id for response in joined}
    assert rejoin(harness, joined[0].member_id).error_code == ErrorCode.NONE


def test_the_last_static_consumer_member_comes_back_as_a_classic_one(
    harness: Harness,
) -> None:
    members = [member.member_id for member in stable(harness)]
    beat(harness, "n", instance_id="i")
    ticket = harness.join(instance="i", protocols=RANGE)
    assert ticket not in harness.answers
    assert len(classic_group(harness).members) == 3
    for member in members:
        harness.join(member, protocols=RANGE)
    assert harness.answers[ticket].error_code == ErrorCode.NONE
    assert harness.answers[ticket].generation_id == 3


# -- expressions and reasons ---------------------------------------------------------------------


def test_the_topics_of_an_expression_are_in_the_log(harness: Harness) -> None:
    beat(harness, "a", subscribed_topic_names=None, subscribed_topic_regex="[tu]+")
    assert consumer_group(harness).expressions == {"[tu]+": {"t", "u"}}
    assert consumer_group(harness.moved()) == consumer_group(harness)
    written = len(harness.log)
    beat(harness, "a", 1)
    assert len(harness.log) == written
    harness.coordinator.topics_changed(topics(t=4, tt=1))
    beat(harness, "a", 1, owned={"t": [0, 1, 2, 3]})
    assert consumer_group(harness.moved()).expressions == {"[tu]+": {"t", "tt"}}
    beat(harness, "a", 2, subscribed_topic_names=["t"], subscribed_topic_regex="")
    assert consumer_group(harness).expressions == {}
    assert consumer_group(harness.moved()) == consumer_group(harness)


def test_the_reason_of_the_last_rebalance_is_known(harness: Harness) -> None:
    def last() -> tuple[str, int]:
        found = harness.coordinator.administration.find("g")
        assert found is not None
        assert found.last_rebalance is not None
        assert found.last_rebalance.at_ms == harness.now_ms
        return found.last_rebalance.reason, found.last_rebalance.generation

    beat(harness, "a")
    assert last() == ("a joined", 0)
    beat(harness, "a", 1, subscribed_topic_names=["t", "u"])
    assert last() == ("a changed its subscription", 1)
    harness.coordinator.topics_changed(topics(t=5, u=2))
    beat(harness, "a", 2)
    assert last() == ("the topics changed", 2)
    beat(harness, "b")
    harness.leave(("b", None))
    assert last() == ("left: b", 4)
    harness.wait(45_000)
    found = harness.coordinator.administration.last_rebalance("g")
    assert found is not None
    assert found.reason == "the session of a expired"
    assert harness.coordinator.administration.last_rebalance("unknown") is None


def test_a_tombstone_of_an_unknown_group_creates_none(harness: Harness) -> None:
    beat(harness, "a")
    records = consumer_group(harness).tombstones()
    other = new_harness()
    for offset, record in enumerate(records[:-1]):
        other.coordinator.replay(record, offset)
    assert other.coordinator.consumer_groups.groups == {}


def test_a_member_state_of_a_later_version_is_resolved(harness: Harness) -> None:
    beat(harness, "a")
    other = new_harness()
    for offset, (record, _) in enumerate(harness.log):
        if isinstance(record.value, ConsumerGroupCurrentMemberAssignmentValue):
            record.value.state = 7
        other.coordinator.replay(record, offset)
    assert consumer_group(other).members["a"].state is MemberState.UNRELEASED_PARTITIONS
    other.carry_out(other.coordinator.loaded(other.now_ms))
    assert beat(other, "a", 1).member_epoch == 1
    assert consumer_group(other).state is GroupState.STABLE


def test_a_topic_that_is_created_again_has_another_id(harness: Harness) -> None:
    stable(harness)
    again = {"t": topics(t=4)["t"]._replace(id=uuid.UUID(int=7))}
    harness.coordinator.topics_changed(again)
    beat(harness, "n")
    ids = {
        topic for member in consumer_group(harness).members.values() for topic, _ in member.assigned
    }
    assert ids <= {uuid.UUID(int=7)}
