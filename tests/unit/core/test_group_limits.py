"""What clients may store in groups: bytes and protocols of a member, members, groups, ids."""

from __future__ import annotations

from typing import Any

import pytest

from hightide.core.groups.group_coordinator import GroupCoordinator
from hightide.core.groups.group_rules import MAX_ID_CHARACTERS, MAX_PROTOCOLS
from hightide.core.groups.turn import Client
from hightide.wire.errors import ErrorCode
from hightide.wire.messages.consumer_groups import ConsumerGroupHeartbeatRequest
from hightide.wire.messages.groups import JoinGroupRequest, JoinGroupRequestProtocol
from hightide.wire.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tests.unit.core.consumer_world import topics
from tests.unit.core.group_harness import DELAY_MS, Harness

MAX_BYTES = 500
LONG_ID = "x" * (MAX_ID_CHARACTERS + 1)
TOO_MANY = ErrorCode.POLICY_VIOLATION


@pytest.fixture
def harness() -> Harness:
    harness = Harness(member_metadata_max_bytes=MAX_BYTES, max_count=2)
    harness.coordinator.topics_changed(topics(t=4))
    return harness


def join_error(harness: Harness, *how: Any, **more: Any) -> ErrorCode:
    return ErrorCode(harness.answers[harness.join(*how, **more)].error_code)


def beat_error(harness: Harness, *, client_id: str = "client", **fields: Any) -> ErrorCode:
    """Send a heartbeat with which a member joins."""
    request = ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id="a",
        member_epoch=0,
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=["t"],
        topic_partitions=[],
    )
    for name, value in fields.items():
        setattr(request, name, value)
    ticket = harness.ask("consumer_heartbeat_asked", request, Client(client_id, "/host"))
    return ErrorCode(harness.answers[ticket].error_code)


def transactional_commit_error(harness: Harness, group_id: str = "g") -> ErrorCode:
    partition = TxnOffsetCommitRequestPartition(
        partition_index=0, committed_offset=1, committed_metadata=None
    )
    request = TxnOffsetCommitRequest(
        transactional_id="tx",
        group_id=group_id,
        producer_id=1,
        producer_epoch=0,
        topics=[TxnOffsetCommitRequestTopic(name="t", partitions=[partition])],
    )
    response = harness.answers[harness.ask("transactional_commit_asked", request)]
    return ErrorCode(response.topics[0].partitions[0].error_code)


# -- what all members store -------------------------------------------------------------------


def test_large_members_of_all_groups_together_store_no_more_than_the_limit() -> None:
    harness = Harness(metadata_max_bytes=100_000)
    harness.coordinator.topics_changed(topics(t=4))

    def join(group_id: str, size: int) -> ErrorCode:
        protocol = JoinGroupRequestProtocol(name="range", metadata=bytes(size))
        request = JoinGroupRequest(
            group_id=group_id,
            session_timeout_ms=30_000,
            rebalance_timeout_ms=60_000,
            member_id="",
            protocol_type="consumer",
            protocols=[protocol],
        )
        ticket = harness.ask("join_asked", request, 3, Client("client", "/host"))
        harness.wait(DELAY_MS)
        return ErrorCode(harness.answers[ticket].error_code)

    assert [join(f"g{at}", 40_000) for at in range(3)] == [
        ErrorCode.NONE,
        ErrorCode.NONE,
        ErrorCode.GROUP_MAX_SIZE_REACHED,
    ]
    assert join("small", 10_000) is ErrorCode.NONE
    names = [f"topic-{at}" for at in range(200)]
    assert beat_error(harness, subscribed_topic_names=names) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert beat_error(harness) is ErrorCode.NONE


# -- what one member stores ------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [
        {"protocols": {"range": b"x" * MAX_BYTES}},
        {"protocols": {"a": b"x" * (MAX_BYTES // 2), "b": b"x" * (MAX_BYTES // 2)}},
        {"protocols": {"x" * MAX_BYTES: b""}},
        {"protocols": {"ü" * (MAX_BYTES // 2): b""}},
        {"protocol_type": "x" * MAX_BYTES},
        {"instance": "x" * MAX_BYTES},
        {"reason": "x" * MAX_BYTES},
        {"protocols": {str(n): b"" for n in range(MAX_PROTOCOLS + 1)}},
    ],
)
def test_a_member_that_joins_with_too_much_is_refused_and_nothing_is_kept(
    harness: Harness, fields: dict[str, Any]
) -> None:
    for version in (3, 9):
        assert join_error(harness, version=version, **fields) == ErrorCode.INVALID_REQUEST
    assert not harness.coordinator.classic_groups


def test_a_member_that_joins_again_with_too_much_stays_as_it_was(harness: Harness) -> None:
    leader, _ = harness.stable(protocols={"range": b"before"})
    much = {"range": b"x" * MAX_BYTES}
    assert join_error(harness, leader.member_id, protocols=much) == ErrorCode.INVALID_REQUEST
    assert harness.group().members[leader.member_id].metadata("range") == b"before"
    assert harness.heartbeat(leader.member_id, 1) == ErrorCode.NONE


def test_a_member_may_store_as_much_as_the_limit(harness: Harness) -> None:
    others = len("consumer" + "client" + "/host" + "range")
    for size, error in ((0, ErrorCode.NONE), (1, ErrorCode.INVALID_REQUEST)):
        ticket = harness.join(version=3, protocols={"range": b"x" * (MAX_BYTES - others + size)})
        harness.wait(2 * DELAY_MS)
        assert harness.answers[ticket].error_code == error


@pytest.mark.parametrize("client", [Client("x" * MAX_BYTES, "/host"), Client(LONG_ID, "/host")])
def test_the_client_id_counts(client: Client) -> None:
    harness = Harness(member_metadata_max_bytes=MAX_BYTES if len(client.id) == MAX_BYTES else 9999)
    request = JoinGroupRequest(
        group_id="g",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        member_id="",
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )
    response = harness.answers[harness.ask("join_asked", request, 9, client)]
    assert response.error_code == ErrorCode.INVALID_REQUEST
    assert not harness.coordinator.classic_groups


def test_a_long_group_instance_id_is_refused() -> None:
    assert join_error(Harness(), instance=LONG_ID) == ErrorCode.INVALID_REQUEST


def test_a_leader_cannot_assign_too_much_to_one_member(harness: Harness) -> None:
    ids = [harness.new_id() for _ in range(2)]
    tickets = [harness.join(member_id) for member_id in ids]
    harness.wait(2 * DELAY_MS)
    leader, follower = (harness.answers[ticket] for ticket in tickets)
    written = len(harness.log)
    much = {leader.member_id: b"", follower.member_id: b"x" * (MAX_BYTES + 1)}
    refused = harness.answers[harness.sync(leader, much)]
    assert refused.error_code == ErrorCode.INVALID_REQUEST
    assert len(harness.log) == written
    # The limit is for each member: the sum of all assignments may be larger.
    fair = dict.fromkeys(ids, b"x" * (MAX_BYTES // 3 * 2))
    assert harness.answers[harness.sync(leader, fair)].error_code == ErrorCode.NONE


@pytest.mark.parametrize(
    "fields",
    [
        {"subscribed_topic_names": ["x" * 200] * 3},
        {"subscribed_topic_regex": "x" * MAX_BYTES},
        {"instance_id": "x" * MAX_BYTES},
        {"rack_id": "x" * MAX_BYTES},
        {"server_assignor": "x" * MAX_BYTES},
        {"client_id": "x" * MAX_BYTES},
        {"member_id": LONG_ID},
    ],
)
def test_a_heartbeat_with_too_much_is_refused_and_nothing_is_kept(
    harness: Harness, fields: dict[str, Any]
) -> None:
    assert beat_error(harness, **fields) == ErrorCode.INVALID_REQUEST
    assert harness.coordinator.group_count == 0
    assert not harness.log


@pytest.mark.parametrize("name", ["member_id", "instance_id"])
def test_the_ids_of_a_consumer_are_no_longer_than_ids_may_be(name: str) -> None:
    assert beat_error(Harness(), **{name: LONG_ID}) == ErrorCode.INVALID_REQUEST


def test_the_reason_of_a_rebalance_is_kept_in_part() -> None:
    harness = Harness()
    harness.stable()
    harness.join(version=3, reason="x" * 100_000)
    rebalance = harness.group().last_rebalance
    assert rebalance is not None
    assert len(rebalance.reason) < 2000


# -- members of a group ----------------------------------------------------------------------


def test_no_more_member_ids_are_handed_out_than_a_group_may_have_members() -> None:
    harness = Harness(max_size=3)
    ids = [harness.new_id() for _ in range(3)]
    assert join_error(harness) == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert harness.group().pending == {*ids}
    tickets = [harness.join(member_id) for member_id in ids]
    harness.wait(2 * DELAY_MS)
    assert [harness.answers[ticket].error_code for ticket in tickets] == [0, 0, 0]


def test_static_members_that_are_away_count_as_members() -> None:
    harness = Harness(max_size=3)
    ids = [harness.join(instance=f"i{n}", session_ms=600_000) for n in range(3)]
    harness.wait(2 * DELAY_MS)
    leader, *_ = (harness.answers[ticket] for ticket in ids)
    harness.join(leader.member_id, instance="i0", protocols={"range": b"new"})
    assert harness.group().joining_count == 1
    assert join_error(harness, instance="i3") == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert len(harness.group().members) == 3
    # One of them restarts and has no member id: it is not a new member.
    harness.join(instance="i1")
    assert harness.group().joining_count == 2


# -- groups ----------------------------------------------------------------------------------


def test_no_request_creates_more_groups_than_allowed(harness: Harness) -> None:
    for name in ("a", "b"):
        assert harness.commit_error(1, group_id=name) == ErrorCode.NONE
    written = len(harness.log)
    assert join_error(harness) == TOO_MANY
    assert join_error(harness, version=3) == TOO_MANY
    assert join_error(harness, instance="i") == TOO_MANY
    assert beat_error(harness) == TOO_MANY
    assert harness.commit_error(1) == TOO_MANY
    assert transactional_commit_error(harness) == TOO_MANY
    assert harness.coordinator.group_count == 2
    assert len(harness.log) == written


def test_groups_that_exist_work_while_no_more_can_be_created(harness: Harness) -> None:
    harness.stable()
    assert harness.commit_error(1, group_id="a") == ErrorCode.NONE
    assert join_error(harness, group_id="b") == TOO_MANY
    assert harness.commit_error(2, group_id="a") == ErrorCode.NONE
    assert transactional_commit_error(harness, "a") == ErrorCode.NONE
    assert join_error(harness) == ErrorCode.MEMBER_ID_REQUIRED
    assert beat_error(harness, group_id="a") == ErrorCode.NONE


def test_a_group_that_is_gone_makes_room_for_another(harness: Harness) -> None:
    member_id = harness.new_id()
    assert harness.commit_error(1, group_id="a") == ErrorCode.NONE
    assert harness.commit_error(1, group_id="b") == TOO_MANY
    harness.leave((member_id, None))
    assert harness.commit_error(1, group_id="b") == ErrorCode.NONE


def test_commits_in_flight_count_as_groups(harness: Harness) -> None:
    harness.holds = True
    for name in ("a", "b", "b"):
        assert harness.commit_offset(1, group_id=name) not in harness.answers
    assert harness.commit_error(1, group_id="c") == TOO_MANY
    harness.refuse()
    assert harness.commit_offset(1, group_id="c") not in harness.answers
    assert harness.commit_error(1, group_id="d") == TOO_MANY
    harness.holds = False
    harness.commit()
    while harness.writes:
        harness.commit()
    assert harness.coordinator.group_count == 2
    assert {*harness.coordinator.classic_groups} == {"b", "c"}


def test_a_group_counts_while_one_of_its_first_commits_is_in_flight(harness: Harness) -> None:
    harness.holds = True
    for name in ("a", "a", "b"):
        harness.commit_offset(1, group_id=name)
    harness.refuse()
    assert harness.coordinator.group_count == 2
    harness.refuse()
    assert harness.coordinator.group_count == 1


def test_the_log_may_hold_more_groups_than_are_allowed_now(harness: Harness) -> None:
    for name in ("a", "b"):
        harness.commit_error(1, group_id=name)
    harness.rules = Harness(max_count=1).rules
    moved = harness.moved()
    assert moved.coordinator.group_count == 2
    assert moved.commit_error(2, group_id="b") == ErrorCode.NONE
    assert moved.commit_error(2, group_id="c") == TOO_MANY


def test_the_groups_of_the_whole_broker_count(harness: Harness) -> None:
    busy = GroupCoordinator(
        harness.rules,
        harness.coordinator._random,
        harness.coordinator.consumer_groups.compile_pattern,
        count_groups=lambda: 2,
    )
    harness.coordinator = busy
    harness.carry_out(busy.loaded(harness.now_ms))
    assert harness.commit_error(1) == TOO_MANY


def test_a_long_group_id_is_refused_unless_the_log_has_it(harness: Harness) -> None:
    invalid = ErrorCode.INVALID_GROUP_ID
    assert join_error(harness, group_id=LONG_ID) == invalid
    assert beat_error(harness, group_id=LONG_ID) == invalid
    assert harness.commit_error(1, group_id=LONG_ID) == invalid
    assert transactional_commit_error(harness, LONG_ID) == invalid
    assert harness.commit_error(1, group_id="a") == ErrorCode.NONE
    ((key, value), _), *_ = harness.log
    key.group = LONG_ID
    assert value is not None
    assert harness.moved().commit_error(1, group_id=LONG_ID) == ErrorCode.NONE
