"""Committed offsets, rule by rule."""

from __future__ import annotations

import pytest

from hightide.core.groups.classic.classic_group import State
from hightide.core.groups.offsets import Offsets
from hightide.wire.errors import ErrorCode
from hightide.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequestGroup,
)
from hightide.wire.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from hightide.wire.records.consumer_offsets import OffsetCommitKey, OffsetCommitValue
from tests.unit.core.group_desk import DELAY_MS, SESSION_MS, Desk
from tests.unit.core.group_world import subscription

RETENTION_MS = 7 * 24 * 60 * 60_000
CHECK_MS = 10 * 60_000


@pytest.fixture
def desk() -> Desk:
    return Desk()


# -- commits ---------------------------------------------------------------------------------


def test_a_member_commits_and_reads_it_when_it_is_written(desk: Desk) -> None:
    leader, _ = desk.stable()
    desk.holds = True
    ticket = desk.commit_offset(5, leader.member_id, 1, metadata="note")
    assert ticket not in desk.answers
    assert desk.fetch() == -1
    assert desk.fetch(require_stable=True) == ErrorCode.UNSTABLE_OFFSET_COMMIT
    desk.commit()
    assert desk.answers[ticket].topics[0].partitions[0].error_code == ErrorCode.NONE
    assert desk.fetch() == desk.fetch(require_stable=True) == desk.moved().fetch() == 5
    (found,) = desk.coordinator.offsets.of("g").values()
    assert found.metadata == "note"


def test_the_later_of_two_commits_counts_also_while_both_are_being_written(desk: Desk) -> None:
    desk.holds = True
    desk.commit_offset(5)
    desk.commit_offset(6)
    desk.commit()
    assert desk.fetch() == 5
    assert desk.fetch(require_stable=True) == ErrorCode.UNSTABLE_OFFSET_COMMIT
    desk.commit()
    assert desk.fetch(require_stable=True) == 6


def test_a_commit_that_could_not_be_written_changes_nothing(desk: Desk) -> None:
    desk.commit_offset(5)
    desk.holds = True
    ticket = desk.commit_offset(6)
    desk.refuse()
    code = desk.answers[ticket].topics[0].partitions[0].error_code
    assert code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert desk.fetch(require_stable=True) == 5
    ticket = desk.commit_offset(6)
    desk.refuse(ErrorCode.MESSAGE_TOO_LARGE)
    code = desk.answers[ticket].topics[0].partitions[0].error_code
    assert code == ErrorCode.INVALID_COMMIT_OFFSET_SIZE


def test_a_commit_of_another_generation_is_refused(desk: Desk) -> None:
    leader, _ = desk.stable()
    assert desk.commit_error(5, leader.member_id, 1) == ErrorCode.NONE
    assert desk.commit_error(1, leader.member_id, 0) == ErrorCode.ILLEGAL_GENERATION
    assert desk.commit_error(9, leader.member_id, 2) == ErrorCode.ILLEGAL_GENERATION
    assert desk.commit_error(9, leader.member_id, -1) == ErrorCode.ILLEGAL_GENERATION
    assert desk.commit_error(9, "nobody", 1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert desk.commit_error(9, leader.member_id, 1, instance="i") == ErrorCode.UNKNOWN_MEMBER_ID
    assert desk.commit_error(9) == ErrorCode.UNKNOWN_MEMBER_ID
    assert desk.fetch() == 5


def test_members_commit_while_a_rebalance_is_prepared_but_not_while_shares_are_made(
    desk: Desk,
) -> None:
    leader, follower = desk.stable()
    desk.join(leader.member_id)
    assert desk.group().state is State.PREPARING_REBALANCE
    assert desk.commit_error(5, follower.member_id, 1) == ErrorCode.NONE
    desk.join(follower.member_id)
    assert desk.group().state is State.COMPLETING_REBALANCE
    assert desk.commit_error(5, follower.member_id, 1) == ErrorCode.ILLEGAL_GENERATION
    assert desk.commit_error(5, follower.member_id, 2) == ErrorCode.REBALANCE_IN_PROGRESS


def test_a_commit_keeps_the_session(desk: Desk) -> None:
    leader, _ = desk.stable()
    desk.wait(SESSION_MS - 1)
    desk.commit_offset(5, leader.member_id, 1)
    desk.wait(SESSION_MS - 1)
    assert [*desk.group().members] == [leader.member_id]


def test_without_a_group_anybody_commits_and_a_simple_group_is_there(desk: Desk) -> None:
    assert desk.commit_error(5) == ErrorCode.NONE
    assert desk.group().state is State.EMPTY
    assert desk.group().protocol_type is None
    assert desk.commit_error(6) == ErrorCode.NONE
    assert desk.moved().group().state is State.EMPTY


def test_a_member_of_a_group_that_is_not_there_is_told_so(desk: Desk) -> None:
    assert desk.commit_error(5, "m", 1, version=9) == ErrorCode.GROUP_ID_NOT_FOUND
    assert desk.commit_error(5, "m", 1, version=8) == ErrorCode.ILLEGAL_GENERATION
    assert desk.coordinator.classic_groups == {}


def test_a_note_that_is_too_long_is_refused_for_its_partition_only() -> None:
    desk = Desk(offset_metadata_max_bytes=3)
    assert desk.commit_error(5, metadata="four") == ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert desk.coordinator.classic_groups == {}
    assert desk.commit_error(5, metadata="two") == ErrorCode.NONE


def test_an_empty_commit_is_answered(desk: Desk) -> None:
    request = OffsetCommitRequest(group_id="g", member_id="", topics=[])
    assert desk.answers[desk.ask("commit_asked", request, 9)].topics == []


# -- looking ---------------------------------------------------------------------------------


def test_all_offsets_of_a_group_can_be_asked_for(desk: Desk) -> None:
    desk.commit_offset(5, topic="a")
    desk.commit_offset(6, topic="b")
    desk.holds = True
    desk.commit_offset(7, topic="c")

    def everything(require_stable: bool) -> dict[str, int]:
        request = OffsetFetchRequestGroup(group_id="g", topics=None)
        found = desk.coordinator.fetch_asked(request, require_stable=require_stable)
        return {each.name: each.partitions[0].error_code for each in found.topics}

    assert everything(False) == {"a": 0, "b": 0}
    assert everything(True) == {"a": 0, "b": 0, "c": ErrorCode.UNSTABLE_OFFSET_COMMIT}


def test_a_group_that_is_not_there_has_no_offsets(desk: Desk) -> None:
    assert desk.fetch() == -1
    request = OffsetFetchRequestGroup(group_id="g", topics=None)
    assert desk.coordinator.fetch_asked(request, require_stable=False).topics == []


# -- deletions -------------------------------------------------------------------------------


def delete(desk: Desk, *topics: str) -> int:
    partitions = [OffsetDeleteRequestPartition(partition_index=0)]
    return desk.ask(
        "delete_offsets_asked",
        OffsetDeleteRequest(
            group_id="g",
            topics=[OffsetDeleteRequestTopic(name=each, partitions=partitions) for each in topics],
        ),
    )


def test_offsets_of_topics_that_nobody_subscribes_to_can_be_deleted(desk: Desk) -> None:
    leader, _ = desk.stable(protocols={"range": subscription("t")})
    for topic in ("t", "u"):
        desk.commit_offset(5, leader.member_id, 1, topic=topic)
    response = desk.answers[delete(desk, "t", "u", "v")]
    assert [each.partitions[0].error_code for each in response.topics] == [
        ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
        ErrorCode.NONE,
        ErrorCode.NONE,
    ]
    assert (desk.fetch("t"), desk.fetch("u")) == (5, -1)
    assert (desk.moved().fetch("t"), desk.moved().fetch("u")) == (5, -1)


def test_offsets_of_a_group_of_another_kind_are_kept_while_it_has_members(desk: Desk) -> None:
    assert desk.answers[delete(desk, "t")].error_code == ErrorCode.GROUP_ID_NOT_FOUND
    desk.stable(protocol_type="connect")
    assert desk.answers[delete(desk, "t")].error_code == ErrorCode.NON_EMPTY_GROUP


def test_a_deletion_takes_back_a_commit_that_is_still_being_written(desk: Desk) -> None:
    desk.commit_offset(4)
    desk.holds = True
    desk.commit_offset(5)
    deleting = delete(desk, "t")
    desk.commit()
    desk.commit()
    assert desk.answers[deleting].error_code == ErrorCode.NONE
    assert desk.fetch() == -1
    assert desk.coordinator.classic_groups == {}


def test_with_a_topic_go_its_offsets(desk: Desk) -> None:
    desk.commit_offset(5, topic="t")
    desk.commit_offset(5, topic="u", group_id="h")
    desk.carry_out(desk.coordinator.topic_deleted("t", desk.now_ms))
    desk.carry_out(desk.coordinator.topic_deleted("nobody", desk.now_ms))
    assert (desk.fetch("t"), desk.fetch("u", group_id="h")) == (-1, 5)
    assert [*desk.coordinator.classic_groups] == ["h"]


# -- retention -------------------------------------------------------------------------------


def test_offsets_outlive_the_last_member_by_the_retention(desk: Desk) -> None:
    leader, follower = desk.stable()
    desk.commit_offset(5, leader.member_id, 1)
    desk.now_ms += RETENTION_MS
    desk.leave((leader.member_id, None), (follower.member_id, None))
    assert desk.group().state is State.EMPTY
    desk.wait(RETENTION_MS - CHECK_MS)
    assert desk.fetch() == 5
    desk.wait(2 * CHECK_MS)
    assert desk.fetch() == -1
    assert desk.coordinator.classic_groups == {}
    assert desk.moved().coordinator.classic_groups == {}


def test_offsets_of_a_simple_group_count_from_their_commit(desk: Desk) -> None:
    desk.commit_offset(5, topic="t")
    desk.wait(RETENTION_MS // 2)
    desk.commit_offset(6, topic="u")
    desk.wait(RETENTION_MS // 2 + CHECK_MS)
    assert (desk.fetch("t"), desk.fetch("u")) == (-1, 6)
    assert "g" in desk.coordinator.classic_groups


def test_while_members_are_there_only_offsets_of_other_topics_go(desk: Desk) -> None:
    protocols = {"range": subscription("t")}
    (leader,) = desk.stable(1, protocols=protocols, session_ms=30 * 60_000)
    for topic in ("t", "u"):
        desk.commit_offset(5, leader.member_id, 1, topic=topic)
    for _ in range(RETENTION_MS // CHECK_MS + 1):
        desk.wait(CHECK_MS)
        assert desk.heartbeat(leader.member_id, 1) == ErrorCode.NONE
    assert (desk.fetch("t"), desk.fetch("u")) == (5, -1)


def test_a_commit_may_bring_its_own_retention(desk: Desk) -> None:
    desk.commit_offset(5, version=4, retention_ms=CHECK_MS)
    desk = desk.moved()
    assert desk.fetch() == 5
    desk.wait(2 * CHECK_MS)
    assert desk.fetch() == -1


def test_an_empty_group_without_offsets_is_forgotten(desk: Desk) -> None:
    leader, follower = desk.stable()
    desk.leave((leader.member_id, None), (follower.member_id, None))
    desk.wait(CHECK_MS)
    assert desk.coordinator.classic_groups == {}
    assert desk.moved().coordinator.classic_groups == {}


# -- transactions ----------------------------------------------------------------------------


def commit_in_transaction(
    desk: Desk, offset: int, producer_id: int = 7, member_id: str = "", generation: int = -1
) -> int:
    partition = TxnOffsetCommitRequestPartition(
        partition_index=0, committed_offset=offset, committed_metadata=None
    )
    return desk.ask(
        "transactional_commit_asked",
        TxnOffsetCommitRequest(
            transactional_id="x",
            group_id="g",
            producer_id=producer_id,
            producer_epoch=3,
            generation_id=generation,
            member_id=member_id,
            topics=[TxnOffsetCommitRequestTopic(name="t", partitions=[partition])],
        ),
    )


def end(desk: Desk, *, is_committed: bool, producer_id: int = 7) -> None:
    outcome = desk.coordinator.transaction_ended(producer_id, is_committed, desk.now_ms)
    desk.carry_out(outcome)


def code(desk: Desk, ticket: int) -> ErrorCode:
    return ErrorCode(desk.answers[ticket].topics[0].partitions[0].error_code)


def test_offsets_of_a_transaction_count_when_it_commits(desk: Desk) -> None:
    desk.holds = True
    ticket = commit_in_transaction(desk, 5)
    assert (desk.writes[0].producer_id, desk.writes[0].producer_epoch) == (7, 3)
    desk.commit()
    assert code(desk, ticket) == ErrorCode.NONE
    assert desk.fetch() == -1
    assert desk.fetch(require_stable=True) == ErrorCode.UNSTABLE_OFFSET_COMMIT
    assert desk.moved().fetch(require_stable=True) == ErrorCode.UNSTABLE_OFFSET_COMMIT
    end(desk, is_committed=True)
    assert desk.fetch(require_stable=True) == 5


def test_offsets_of_an_aborted_transaction_never_count(desk: Desk) -> None:
    desk.commit_offset(4)
    commit_in_transaction(desk, 5)
    end(desk, is_committed=False)
    assert desk.fetch(require_stable=True) == 4
    end(desk, is_committed=True)
    assert desk.fetch(require_stable=True) == 4


def test_a_commit_after_that_of_a_transaction_stays_when_the_transaction_commits(
    desk: Desk,
) -> None:
    commit_in_transaction(desk, 5)
    desk.commit_offset(6)
    end(desk, is_committed=True)
    assert desk.fetch(require_stable=True) == 6


def test_a_transaction_says_who_commits_or_nothing(desk: Desk) -> None:
    leader, _ = desk.stable()
    assert code(desk, commit_in_transaction(desk, 5)) == ErrorCode.NONE
    for member_id, generation, error in [
        (leader.member_id, 1, ErrorCode.NONE),
        (leader.member_id, 2, ErrorCode.ILLEGAL_GENERATION),
        ("nobody", 1, ErrorCode.UNKNOWN_MEMBER_ID),
    ]:
        ticket = commit_in_transaction(desk, 5, member_id=member_id, generation=generation)
        assert code(desk, ticket) == error
    desk = Desk()
    ticket = commit_in_transaction(desk, 5, member_id="m", generation=1)
    assert code(desk, ticket) == ErrorCode.ILLEGAL_GENERATION


def test_nothing_expires_that_a_transaction_may_still_commit(desk: Desk) -> None:
    desk.commit_offset(4)
    commit_in_transaction(desk, 5)
    desk.wait(RETENTION_MS + 2 * CHECK_MS)
    assert desk.fetch() == 4
    end(desk, is_committed=False)
    desk.wait(2 * CHECK_MS)
    assert desk.coordinator.classic_groups == {}


def test_a_deletion_takes_back_what_a_transaction_may_still_commit(desk: Desk) -> None:
    commit_in_transaction(desk, 5)
    delete(desk, "t")
    end(desk, is_committed=True)
    assert desk.fetch() == -1
    assert desk.coordinator.classic_groups == {}


def test_of_offsets_the_place_in_the_log_counts_and_not_the_marker() -> None:
    offsets = Offsets()
    key = OffsetCommitKey(group="g", topic="t", partition=0)

    def value(offset: int) -> OffsetCommitValue:
        return OffsetCommitValue(offset=offset, metadata="", commit_timestamp=0)

    offsets.apply(key, value(1), 10, producer_id=7)
    offsets.apply(key, value(2), 11)
    offsets.apply(key, value(3), 12, producer_id=8)
    offsets.transaction_ended(8, True)
    offsets.transaction_ended(7, True)
    (found,) = offsets.of("g").values()
    assert found.offset == 3


def test_the_first_rebalance_can_be_at_once() -> None:
    desk = Desk(initial_rebalance_delay_ms=0)
    ticket = desk.join(version=3)
    desk.wait(0)
    assert desk.answers[ticket].generation_id == 1
    assert DELAY_MS > 0
