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
from tests.unit.core.group_harness import DELAY_MS, SESSION_MS, Harness
from tests.unit.core.group_world import subscription

RETENTION_MS = 7 * 24 * 60 * 60_000
CHECK_MS = 10 * 60_000


@pytest.fixture
def harness() -> Harness:
    return Harness()


# -- commits ---------------------------------------------------------------------------------


def test_a_member_commits_and_reads_it_when_it_is_written(harness: Harness) -> None:
    leader, _ = harness.stable()
    harness.holds = True
    ticket = harness.commit_offset(5, leader.member_id, 1, metadata="note")
    assert ticket not in harness.answers
    assert harness.fetch() == -1
    assert harness.fetch(require_stable=True) == ErrorCode.UNSTABLE_OFFSET_COMMIT
    harness.commit()
    assert harness.answers[ticket].topics[0].partitions[0].error_code == ErrorCode.NONE
    assert harness.fetch() == harness.fetch(require_stable=True) == harness.moved().fetch() == 5
    (found,) = harness.coordinator.offsets.of("g").values()
    assert found.metadata == "note"


def test_the_later_of_two_commits_counts_also_while_both_are_being_written(
    harness: Harness,
) -> None:
    harness.holds = True
    harness.commit_offset(5)
    harness.commit_offset(6)
    harness.commit()
    assert harness.fetch() == 5
    assert harness.fetch(require_stable=True) == ErrorCode.UNSTABLE_OFFSET_COMMIT
    harness.commit()
    assert harness.fetch(require_stable=True) == 6


def test_a_commit_that_could_not_be_written_changes_nothing(harness: Harness) -> None:
    harness.commit_offset(5)
    harness.holds = True
    ticket = harness.commit_offset(6)
    harness.refuse()
    code = harness.answers[ticket].topics[0].partitions[0].error_code
    assert code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert harness.fetch(require_stable=True) == 5
    ticket = harness.commit_offset(6)
    harness.refuse(ErrorCode.MESSAGE_TOO_LARGE)
    code = harness.answers[ticket].topics[0].partitions[0].error_code
    assert code == ErrorCode.INVALID_COMMIT_OFFSET_SIZE


def test_a_commit_of_another_generation_is_refused(harness: Harness) -> None:
    leader, _ = harness.stable()
    assert harness.commit_error(5, leader.member_id, 1) == ErrorCode.NONE
    assert harness.commit_error(1, leader.member_id, 0) == ErrorCode.ILLEGAL_GENERATION
    assert harness.commit_error(9, leader.member_id, 2) == ErrorCode.ILLEGAL_GENERATION
    assert harness.commit_error(9, leader.member_id, -1) == ErrorCode.ILLEGAL_GENERATION
    assert harness.commit_error(9, "unknown", 1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert harness.commit_error(9, leader.member_id, 1, instance="i") == ErrorCode.UNKNOWN_MEMBER_ID
    assert harness.commit_error(9) == ErrorCode.UNKNOWN_MEMBER_ID
    assert harness.fetch() == 5


def test_members_commit_while_a_rebalance_is_prepared_but_not_during_the_assignment(
    harness: Harness,
) -> None:
    leader, follower = harness.stable()
    harness.join(leader.member_id)
    assert harness.group().state is State.PREPARING_REBALANCE
    assert harness.commit_error(5, follower.member_id, 1) == ErrorCode.NONE
    harness.join(follower.member_id)
    assert harness.group().state is State.COMPLETING_REBALANCE
    assert harness.commit_error(5, follower.member_id, 1) == ErrorCode.ILLEGAL_GENERATION
    assert harness.commit_error(5, follower.member_id, 2) == ErrorCode.REBALANCE_IN_PROGRESS


def test_a_commit_keeps_the_session(harness: Harness) -> None:
    leader, _ = harness.stable()
    harness.wait(SESSION_MS - 1)
    harness.commit_offset(5, leader.member_id, 1)
    harness.wait(SESSION_MS - 1)
    assert [*harness.group().members] == [leader.member_id]


def test_a_commit_without_a_group_creates_a_simple_group(harness: Harness) -> None:
    assert harness.commit_error(5) == ErrorCode.NONE
    assert harness.group().state is State.EMPTY
    assert harness.group().protocol_type is None
    assert harness.commit_error(6) == ErrorCode.NONE
    assert harness.moved().group().state is State.EMPTY


def test_a_member_of_a_group_that_does_not_exist_gets_an_error(harness: Harness) -> None:
    assert harness.commit_error(5, "m", 1, version=9) == ErrorCode.GROUP_ID_NOT_FOUND
    assert harness.commit_error(5, "m", 1, version=8) == ErrorCode.ILLEGAL_GENERATION
    assert harness.coordinator.classic_groups == {}


def test_metadata_that_is_too_long_is_refused_for_its_partition_only() -> None:
    harness = Harness(offset_metadata_max_bytes=3)
    assert harness.commit_error(5, metadata="four") == ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert harness.coordinator.classic_groups == {}
    assert harness.commit_error(5, metadata="two") == ErrorCode.NONE


def test_an_empty_commit_is_answered(harness: Harness) -> None:
    request = OffsetCommitRequest(group_id="g", member_id="", topics=[])
    assert harness.answers[harness.ask("commit_asked", request, 9)].topics == []


# -- fetching --------------------------------------------------------------------------------


def test_all_offsets_of_a_group_can_be_fetched(harness: Harness) -> None:
    harness.commit_offset(5, topic="a")
    harness.commit_offset(6, topic="b")
    harness.holds = True
    harness.commit_offset(7, topic="c")

    def everything(require_stable: bool) -> dict[str, int]:
        request = OffsetFetchRequestGroup(group_id="g", topics=None)
        found = harness.coordinator.fetch_asked(request, require_stable=require_stable)
        return {topic.name: topic.partitions[0].error_code for topic in found.topics}

    assert everything(False) == {"a": 0, "b": 0}
    assert everything(True) == {"a": 0, "b": 0, "c": ErrorCode.UNSTABLE_OFFSET_COMMIT}


def test_a_group_that_does_not_exist_has_no_offsets(harness: Harness) -> None:
    assert harness.fetch() == -1
    request = OffsetFetchRequestGroup(group_id="g", topics=None)
    assert harness.coordinator.fetch_asked(request, require_stable=False).topics == []


# -- deletions -------------------------------------------------------------------------------


def delete(harness: Harness, *topics: str) -> int:
    partitions = [OffsetDeleteRequestPartition(partition_index=0)]
    return harness.ask(
        "delete_offsets_asked",
        OffsetDeleteRequest(
            group_id="g",
            topics=[
                OffsetDeleteRequestTopic(name=topic, partitions=partitions) for topic in topics
            ],
        ),
    )


def test_offsets_of_topics_without_subscribers_can_be_deleted(harness: Harness) -> None:
    leader, _ = harness.stable(protocols={"range": subscription("t")})
    for topic in ("t", "u"):
        harness.commit_offset(5, leader.member_id, 1, topic=topic)
    response = harness.answers[delete(harness, "t", "u", "v")]
    assert [topic.partitions[0].error_code for topic in response.topics] == [
        ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
        ErrorCode.NONE,
        ErrorCode.NONE,
    ]
    assert (harness.fetch("t"), harness.fetch("u")) == (5, -1)
    assert (harness.moved().fetch("t"), harness.moved().fetch("u")) == (5, -1)


def test_offsets_of_a_group_of_another_kind_are_kept_while_it_has_members(harness: Harness) -> None:
    assert harness.answers[delete(harness, "t")].error_code == ErrorCode.GROUP_ID_NOT_FOUND
    harness.stable(protocol_type="connect")
    assert harness.answers[delete(harness, "t")].error_code == ErrorCode.NON_EMPTY_GROUP


def test_a_deletion_cancels_a_commit_that_is_still_being_written(harness: Harness) -> None:
    harness.commit_offset(4)
    harness.holds = True
    harness.commit_offset(5)
    deleting = delete(harness, "t")
    harness.commit()
    harness.commit()
    assert harness.answers[deleting].error_code == ErrorCode.NONE
    assert harness.fetch() == -1
    assert harness.coordinator.classic_groups == {}


def test_the_offsets_of_a_deleted_topic_are_deleted(harness: Harness) -> None:
    harness.commit_offset(5, topic="t")
    harness.commit_offset(5, topic="u", group_id="h")
    harness.carry_out(harness.coordinator.topic_deleted("t", harness.now_ms))
    harness.carry_out(harness.coordinator.topic_deleted("unknown", harness.now_ms))
    assert (harness.fetch("t"), harness.fetch("u", group_id="h")) == (-1, 5)
    assert [*harness.coordinator.classic_groups] == ["h"]


# -- retention -------------------------------------------------------------------------------


def test_offsets_outlive_the_last_member_by_the_retention(harness: Harness) -> None:
    leader, follower = harness.stable()
    harness.commit_offset(5, leader.member_id, 1)
    harness.now_ms += RETENTION_MS
    harness.leave((leader.member_id, None), (follower.member_id, None))
    assert harness.group().state is State.EMPTY
    harness.wait(RETENTION_MS - CHECK_MS)
    assert harness.fetch() == 5
    harness.wait(2 * CHECK_MS)
    assert harness.fetch() == -1
    assert harness.coordinator.classic_groups == {}
    assert harness.moved().coordinator.classic_groups == {}


def test_offsets_of_a_simple_group_count_from_their_commit(harness: Harness) -> None:
    harness.commit_offset(5, topic="t")
    harness.wait(RETENTION_MS // 2)
    harness.commit_offset(6, topic="u")
    harness.wait(RETENTION_MS // 2 + CHECK_MS)
    assert (harness.fetch("t"), harness.fetch("u")) == (-1, 6)
    assert "g" in harness.coordinator.classic_groups


def test_while_a_group_has_members_only_offsets_of_other_topics_expire(harness: Harness) -> None:
    protocols = {"range": subscription("t")}
    (leader,) = harness.stable(1, protocols=protocols, session_ms=30 * 60_000)
    for topic in ("t", "u"):
        harness.commit_offset(5, leader.member_id, 1, topic=topic)
    for _ in range(RETENTION_MS // CHECK_MS + 1):
        harness.wait(CHECK_MS)
        assert harness.heartbeat(leader.member_id, 1) == ErrorCode.NONE
    assert (harness.fetch("t"), harness.fetch("u")) == (5, -1)


def test_a_commit_may_bring_its_own_retention(harness: Harness) -> None:
    harness.commit_offset(5, version=4, retention_ms=CHECK_MS)
    harness = harness.moved()
    assert harness.fetch() == 5
    harness.wait(2 * CHECK_MS)
    assert harness.fetch() == -1


def test_an_empty_group_without_offsets_is_forgotten(harness: Harness) -> None:
    leader, follower = harness.stable()
    harness.leave((leader.member_id, None), (follower.member_id, None))
    harness.wait(CHECK_MS)
    assert harness.coordinator.classic_groups == {}
    assert harness.moved().coordinator.classic_groups == {}


# -- transactions ----------------------------------------------------------------------------


def commit_in_transaction(
    harness: Harness, offset: int, producer_id: int = 7, member_id: str = "", generation: int = -1
) -> int:
    partition = TxnOffsetCommitRequestPartition(
        partition_index=0, committed_offset=offset, committed_metadata=None
    )
    return harness.ask(
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


def end(harness: Harness, *, is_committed: bool, producer_id: int = 7) -> None:
    outcome = harness.coordinator.transaction_ended(producer_id, is_committed, harness.now_ms)
    harness.carry_out(outcome)


def code(harness: Harness, ticket: int) -> ErrorCode:
    return ErrorCode(harness.answers[ticket].topics[0].partitions[0].error_code)


def test_offsets_of_a_transaction_count_when_it_commits(harness: Harness) -> None:
    harness.holds = True
    ticket = commit_in_transaction(harness, 5)
    assert (harness.writes[0].producer_id, harness.writes[0].producer_epoch) == (7, 3)
    harness.commit()
    assert code(harness, ticket) == ErrorCode.NONE
    assert harness.fetch() == -1
    assert harness.fetch(require_stable=True) == ErrorCode.UNSTABLE_OFFSET_COMMIT
    assert harness.moved().fetch(require_stable=True) == ErrorCode.UNSTABLE_OFFSET_COMMIT
    end(harness, is_committed=True)
    assert harness.fetch(require_stable=True) == 5


def test_offsets_of_an_aborted_transaction_never_count(harness: Harness) -> None:
    harness.commit_offset(4)
    commit_in_transaction(harness, 5)
    end(harness, is_committed=False)
    assert harness.fetch(require_stable=True) == 4
    end(harness, is_committed=True)
    assert harness.fetch(require_stable=True) == 4


def test_a_commit_after_that_of_a_transaction_stays_when_the_transaction_commits(
    harness: Harness,
) -> None:
    commit_in_transaction(harness, 5)
    harness.commit_offset(6)
    end(harness, is_committed=True)
    assert harness.fetch(require_stable=True) == 6


def test_a_transactional_commit_names_its_member_or_none(harness: Harness) -> None:
    leader, _ = harness.stable()
    assert code(harness, commit_in_transaction(harness, 5)) == ErrorCode.NONE
    for member_id, generation, error in [
        (leader.member_id, 1, ErrorCode.NONE),
        (leader.member_id, 2, ErrorCode.ILLEGAL_GENERATION),
        ("unknown", 1, ErrorCode.UNKNOWN_MEMBER_ID),
    ]:
        ticket = commit_in_transaction(harness, 5, member_id=member_id, generation=generation)
        assert code(harness, ticket) == error
    harness = Harness()
    ticket = commit_in_transaction(harness, 5, member_id="m", generation=1)
    assert code(harness, ticket) == ErrorCode.ILLEGAL_GENERATION


def test_nothing_expires_that_a_transaction_may_still_commit(harness: Harness) -> None:
    harness.commit_offset(4)
    commit_in_transaction(harness, 5)
    harness.wait(RETENTION_MS + 2 * CHECK_MS)
    assert harness.fetch() == 4
    end(harness, is_committed=False)
    harness.wait(2 * CHECK_MS)
    assert harness.coordinator.classic_groups == {}


def test_a_deletion_cancels_what_a_transaction_may_still_commit(harness: Harness) -> None:
    commit_in_transaction(harness, 5)
    delete(harness, "t")
    end(harness, is_committed=True)
    assert harness.fetch() == -1
    assert harness.coordinator.classic_groups == {}


def test_offsets_are_ordered_by_their_records_and_not_by_the_marker() -> None:
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
    harness = Harness(initial_rebalance_delay_ms=0)
    ticket = harness.join(version=3)
    harness.wait(0)
    assert harness.answers[ticket].generation_id == 1
    assert DELAY_MS > 0
