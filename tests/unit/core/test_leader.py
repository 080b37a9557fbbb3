"""More rules of a leader: clocks, answers, reassignments, settings, questions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hightide.core.partition.follower_progress import Standing
from hightide.core.partition.isr import Proposal
from hightide.core.partition.leader import NOTHING, Changes, Leader
from hightide.core.partition.state import PartitionState
from hightide.wire.errors import ErrorCode

LIVE = {1: 11, 2: 12, 3: 13, 4: 14}
LAG_MS = 1000


def leader(
    isr: tuple[int, ...] = (1, 2, 3), end: int = 10, high_watermark: int = 10, **changes: Any
) -> Leader:
    state = PartitionState((1, 2, 3), 1, 5, isr, partition_epoch=7)
    options: dict[str, Any] = {"min_isr": 1, "lag_ms": LAG_MS, "live": LIVE}
    options |= {"shutting_down": set(), "now_ms": 0}
    options |= changes
    made = Leader(1, 11, state, end_offset=end, high_watermark=high_watermark, **options)
    made.check()
    return made


def fetch(made: Leader, replica: int, offset: int, now_ms: int = 0, **how: int) -> Changes:
    epoch = how.pop("broker_epoch", LIVE[replica])
    changes = made.fetched(replica, offset, epoch, now_ms, **how)
    made.check()
    return changes


def proposal_of(changes: Changes) -> Proposal:
    assert changes.proposal is not None
    return changes.proposal


def decided(made: Leader, isr: tuple[int, ...], **changes: Any) -> PartitionState:
    """Return the decision after the one that the leader knows."""
    epoch = made.state.partition_epoch + 1
    return replace(made.state, **{"isr": isr, "partition_epoch": epoch, **changes})


# The high watermark -----------------------------------------------------------------------------


def test_a_leader_alone_commits_what_it_took_over():
    assert leader(isr=(1,), end=10, high_watermark=4).high_watermark == 10
    assert leader(isr=(1,), end=10, high_watermark=4, min_isr=2).high_watermark == 4


def test_an_append_does_not_commit_by_itself():
    made = leader(isr=(1, 2))
    assert made.appended(12) == -1
    assert made.high_watermark == 10


def test_the_high_watermark_does_not_go_back_with_a_follower():
    made = leader(isr=(1, 2))
    fetch(made, 2, 10)
    assert fetch(made, 2, 3) == NOTHING
    assert made.high_watermark == 10


def test_the_high_watermark_does_not_wait_for_a_member_that_the_controller_removed():
    # Its replica has failed, so it does not fetch any more.
    made = leader(isr=(1, 2, 3))
    fetch(made, 2, 10)
    fetch(made, 3, 10)
    made.appended(12)
    fetch(made, 2, 12)
    assert made.high_watermark == 10
    made.published(decided(made, (1, 2)))
    assert made.high_watermark == 12


def test_the_high_watermark_waits_for_who_is_about_to_join():
    made = leader(isr=(1, 2), end=10, high_watermark=10)
    asked = proposal_of(fetch(made, 3, 10))
    made.refused(asked)
    made.appended(12)
    fetch(made, 2, 12)
    assert made.high_watermark == 10, "3 was caught up a moment ago"
    assert made.tick(LAG_MS).high_watermark is None
    assert made.tick(LAG_MS + 1).high_watermark == 12, "the leader waits no longer than that"


def test_who_cannot_join_is_not_waited_for():
    made = leader(isr=(1, 2), shutting_down={3})
    fetch(made, 3, 10)
    made.appended(12)
    assert fetch(made, 2, 12).high_watermark == 12


def test_who_is_waited_for_alone_is_let_go_when_its_broker_dies():
    made = leader(isr=(1,))
    made.refused(proposal_of(fetch(made, 3, 10)))
    assert made.appended(12) == -1
    assert made.brokers_changed({1: 11, 2: 12}, set()).high_watermark == 12


# The caught-up clock ----------------------------------------------------------------------------


def test_who_asks_for_the_end_of_the_fetch_before_was_caught_up_then():
    made = leader(isr=(1, 2))
    now_ms = 0
    for now_ms in range(0, 10 * LAG_MS, 500):
        fetch(made, 2, made.end_offset - 7 if now_ms else 10, now_ms)
        assert made.tick(now_ms).proposal is None
        made.appended(made.end_offset + 7)
    assert made.progress(2, now_ms).lag_ms == 500


def test_who_never_sees_the_end_of_the_fetch_before_is_late():
    made = leader(isr=(1, 2), end=1000, high_watermark=10)
    for now_ms in range(0, LAG_MS + 1, 250):
        fetch(made, 2, 10 + now_ms // 250, now_ms)
        assert made.tick(now_ms).proposal is None
    assert proposal_of(made.tick(LAG_MS + 1)).isr == (1,)


def test_who_has_everything_is_never_late():
    made = leader(isr=(1, 2))
    fetch(made, 2, 10)
    assert made.tick(100 * LAG_MS) == NOTHING
    made.appended(11)
    assert proposal_of(made.tick(100 * LAG_MS)).isr == (1,)


def test_a_member_that_never_fetched_has_its_time_from_the_start_of_the_epoch():
    made = leader(isr=(1, 2), now_ms=5000)
    assert made.tick(5000 + LAG_MS).proposal is None
    asked = proposal_of(made.tick(5001 + LAG_MS))
    assert asked.isr == (1,)


def test_a_new_member_that_never_was_at_the_end_has_its_time_from_then_on():
    made = leader(isr=(1,), end=10, high_watermark=10, min_isr=2)
    made.appended(100)
    asked = proposal_of(fetch(made, 2, 20, now_ms=500))
    assert made.accepted(decided(made, asked.isr)).high_watermark == 20
    assert made.tick(500 + LAG_MS).proposal is None
    assert proposal_of(made.tick(501 + LAG_MS)).isr == (1,)


def test_it_is_looked_after_every_half_of_the_time():
    made = leader()
    assert made.deadline_ms() == LAG_MS // 2
    made.tick(600)
    assert made.deadline_ms() == 600 + LAG_MS // 2
    made.configured(1, 200)
    assert made.deadline_ms() == 700
    alone = PartitionState((1,), 1, 5, (1,))
    assert (
        Leader(
            1,
            11,
            alone,
            end_offset=0,
            high_watermark=0,
            min_isr=1,
            lag_ms=LAG_MS,
            live=LIVE,
            shutting_down=set(),
            now_ms=0,
        ).deadline_ms()
        is None
    )


def test_a_clock_that_goes_back_makes_no_member_late():
    made = leader(isr=(1, 2), now_ms=5000)
    made.appended(11)
    fetch(made, 2, 11, now_ms=4000)
    assert made.tick(5000 + LAG_MS).proposal is None


# Proposals and their answers --------------------------------------------------------------------


def test_one_proposal_is_under_way_at_a_time():
    made = leader(isr=(1,))
    assert proposal_of(fetch(made, 2, 10)).isr == (1, 2)
    assert fetch(made, 3, 10).proposal is None
    assert made.tick(10 * LAG_MS).proposal is None
    made.published(decided(made, (1, 2)))
    assert proposal_of(fetch(made, 3, 10)).isr == (1, 2, 3)


def test_a_proposal_names_members_in_order_with_the_broker_epochs_they_fetched_in():
    made = leader(isr=(1, 3))
    asked = proposal_of(fetch(made, 2, 10))
    assert asked == Proposal((1, 2, 3), {1: 11, 2: 12, 3: -1}, 5, 7)


def test_an_accepted_removal_lets_the_high_watermark_go_on():
    made = leader(isr=(1, 2, 3))
    made.appended(20)
    fetch(made, 2, 20, now_ms=900)
    fetch(made, 3, 10, now_ms=0)
    asked = proposal_of(made.tick(LAG_MS + 1))
    assert made.accepted(decided(made, asked.isr)).high_watermark == 20
    made.check()


def test_an_accepted_addition_counts_for_good():
    made = leader(isr=(1, 2))
    asked = proposal_of(fetch(made, 3, 10))
    made.accepted(decided(made, asked.isr))
    made.check()
    assert (made.proposal, made.state.partition_epoch) == (None, 8)
    made.appended(11)
    fetch(made, 2, 11)
    assert made.high_watermark == 10


@pytest.mark.parametrize(
    "change",
    [{"partition_epoch": 9}, {"partition_epoch": 7}, {"leader_epoch": 6}, {"isr": (1, 2)}],
    ids=str,
)
def test_an_answer_that_is_not_the_very_next_decision_is_left_to_be_published(change):
    made = leader(isr=(1, 2))
    asked = proposal_of(fetch(made, 3, 10))
    assert made.accepted(replace(decided(made, asked.isr), **change)) == NOTHING
    assert made.proposal is asked
    assert made.accepted(decided(made, (1, 2, 3))) == NOTHING
    assert made.proposal is None


def test_an_answer_after_the_decision_was_published_changes_nothing():
    made = leader(isr=(1, 2))
    fetch(made, 3, 10)
    decision = decided(made, (1, 2, 3))
    made.published(decision)
    assert made.accepted(decision) == NOTHING
    made.check()


def test_the_decision_published_after_the_answer_tells_the_rest():
    made = leader(isr=(1, 2))
    fetch(made, 3, 10)
    decision = decided(made, (1, 2, 3))
    made.accepted(decision)
    made.published(replace(decision, isr=(3, 2, 1), broker_epochs={1: 11}))
    made.check()
    assert made.state.broker_epochs == {1: 11}


def test_any_newer_decision_voids_a_proposal():
    made = leader(isr=(1, 2))
    asked = proposal_of(fetch(made, 3, 10))
    made.published(decided(made, (1,)))
    made.check()
    assert made.proposal is None
    assert made.maximal_isr == {1}
    assert made.refused(asked) == NOTHING


def test_an_older_decision_is_passed_over():
    made = leader(isr=(1, 2))
    assert made.published(replace(made.state, isr=(1,), partition_epoch=6)) == NOTHING
    assert made.state.isr == (1, 2)


def test_a_late_refusal_of_a_former_proposal_does_not_touch_its_twin():
    made = leader(isr=(1, 2))
    first = proposal_of(fetch(made, 3, 10))
    made.refused(first)
    second = proposal_of(fetch(made, 3, 10))
    assert first == second
    made.refused(first)
    assert made.proposal is second
    assert made.maximal_isr == {1, 2, 3}


def test_a_refused_removal_changes_nothing():
    made = leader(isr=(1, 2))
    made.appended(11)
    asked = proposal_of(made.tick(2 * LAG_MS))
    made.refused(asked)
    made.check()
    assert made.maximal_isr == {1, 2}
    assert proposal_of(made.tick(2 * LAG_MS)).isr == (1,)


def doubting() -> Leader:
    """Return a leader that proposed 3, got no answer, proposed it again, and was refused."""
    made = leader(isr=(1, 2))
    asked = proposal_of(fetch(made, 3, 10))
    made.unanswered()
    made.refused(asked)
    made.check()
    return made


def test_a_replica_in_doubt_counts_and_is_proposed_again():
    made = doubting()
    made.appended(11)
    fetch(made, 2, 11)
    assert made.high_watermark == 10
    assert proposal_of(made.tick(LAG_MS)).isr == (1, 2, 3)


def test_a_newer_decision_ends_the_doubt():
    made = doubting()
    made.published(decided(made, (1, 2), adding=()))
    made.check()
    assert made.maximal_isr == {1, 2}


def test_a_dead_broker_is_beyond_doubt():
    made = doubting()
    made.brokers_changed({1: 11, 2: 12}, set())
    made.check()
    assert made.maximal_isr == {1, 2}


def test_nothing_is_unanswered_when_nothing_was_asked():
    made = leader()
    made.unanswered()
    made.check()


# Broker epochs and reassignments ----------------------------------------------------------------


def test_a_member_that_restarted_counts_as_having_nothing():
    made = leader(isr=(1, 2))
    made.appended(20)
    fetch(made, 2, 10)
    made.brokers_changed({**LIVE, 2: 22}, set())
    made.check()
    assert made.progress(2, 0).end_offset is None
    assert fetch(made, 2, 20) == NOTHING, "that is its former broker epoch"
    assert made.high_watermark == 10
    assert fetch(made, 2, 15, broker_epoch=22).high_watermark == 15


def test_a_fetch_of_an_unknown_broker_epoch_counts_but_does_not_join():
    made = leader(isr=(1, 2))
    assert fetch(made, 3, 10, broker_epoch=23).proposal is None
    assert made.progress(3, 0).standing is Standing.RESTARTED
    made.brokers_changed({**LIVE, 3: 23}, set())
    assert made.progress(3, 0).standing is Standing.JOINING
    assert proposal_of(fetch(made, 3, 10, broker_epoch=23)).broker_epochs[3] == 23


def test_a_fetch_without_a_broker_epoch_does_not_join():
    made = leader(isr=(1, 2), live={1: 11, 2: 12})
    assert fetch(made, 3, 10, broker_epoch=-1).proposal is None


def test_a_replica_that_comes_begins_with_nothing_known():
    made = leader(isr=(1, 2, 3))
    made.published(decided(made, (1, 2, 3), replicas=(1, 2, 3, 4)))
    made.check()
    assert made.progress(4, 0).standing is Standing.NEVER_FETCHED
    assert proposal_of(fetch(made, 4, 10)).isr == (1, 2, 3, 4)


def test_what_a_removed_replica_says_is_passed_over():
    made = leader(isr=(1, 2))
    made.published(decided(made, (1, 2), replicas=(1, 2)))
    assert fetch(made, 3, 10) == NOTHING
    assert made.fetch_error(3, 13) == ErrorCode.UNKNOWN_LEADER_EPOCH


@pytest.mark.parametrize("is_skipped", [False, True])
def test_a_replica_that_was_removed_and_comes_again_begins_with_nothing_known(is_skipped):
    made = leader(isr=(1, 2), shutting_down={3})
    fetch(made, 3, 10)
    removed = decided(made, (1, 2), replicas=(1, 2))
    if not is_skipped:
        made.published(removed)
    made.published(replace(made.state, replicas=(1, 2, 3), partition_epoch=9))
    made.check()
    assert made.progress(3, 0).end_offset is None


def test_members_are_known_across_skipped_decisions():
    made = leader(isr=(1, 2))
    fetch(made, 2, 10)
    made.published(replace(made.state, partition_epoch=10))
    assert made.progress(2, 0).end_offset == 10


# Settings ---------------------------------------------------------------------------------------


def test_a_smaller_min_isr_lets_the_high_watermark_go_on():
    made = leader(isr=(1,), min_isr=2)
    made.appended(12)
    assert made.configured(1, LAG_MS).high_watermark == 12
    made.configured(2, LAG_MS)
    made.check()
    assert made.appended(13) == -1


def test_more_than_all_replicas_are_not_asked_for():
    made = leader(min_isr=9)
    assert made.write_error() == ErrorCode.NONE
    made.published(decided(made, (1, 2)))
    assert made.write_error() == ErrorCode.NOT_ENOUGH_REPLICAS


def test_a_pending_member_does_not_make_the_isr_large_enough():
    made = leader(isr=(1,), min_isr=2)
    made.appended(12)
    asked = proposal_of(fetch(made, 2, 12))
    assert made.high_watermark == 10
    assert made.write_error() == ErrorCode.NOT_ENOUGH_REPLICAS
    assert made.accepted(decided(made, asked.isr)).high_watermark == 12


def test_a_pending_removal_does_not_make_it_too_small():
    made = leader(isr=(1, 2), min_isr=2)
    made.appended(11)
    proposal_of(made.tick(2 * LAG_MS))
    assert made.write_error() == ErrorCode.NONE
    assert fetch(made, 2, 11, now_ms=2 * LAG_MS).high_watermark == 11


# Questions --------------------------------------------------------------------------------------


def test_a_write_that_was_committed_before_the_isr_shrank_is_answered_so():
    made = leader(isr=(1, 2), min_isr=2)
    made.appended(12)
    fetch(made, 2, 12)
    assert made.commit_result(12) == ErrorCode.NONE
    made.published(decided(made, (1,)))
    assert made.commit_result(12) == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    assert made.commit_result(13) is None
    fetch(made, 2, 12)
    assert made.maximal_isr == {1, 2}
    assert made.commit_result(12) == ErrorCode.NONE, "who is about to join counts here"


def test_the_end_can_be_told_when_former_leaders_commits_are_known():
    made = leader(isr=(1, 2), end=10, high_watermark=4)
    assert not made.is_hw_trusted
    fetch(made, 2, 9)
    assert not made.is_hw_trusted
    fetch(made, 2, 10)
    assert made.is_hw_trusted


def test_a_former_broker_epoch_may_not_fetch():
    made = leader()
    assert made.fetch_error(2, 12) == ErrorCode.NONE
    assert made.fetch_error(2, 13) == ErrorCode.NONE
    assert made.fetch_error(2, 11) == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_consumers_may_read_from_members_that_have_the_offset():
    made = leader(isr=(1, 2, 3), end=20, high_watermark=10)
    assert made.readable_from(10) == []
    fetch(made, 2, 15, log_start_offset=5)
    fetch(made, 3, 18, log_start_offset=0)
    assert made.readable_from(15) == [3, 2]
    assert made.readable_from(16) == [3]
    assert made.readable_from(4) == [3]
    made.brokers_changed(LIVE, {3})
    assert made.readable_from(15) == [2]
    made.published(decided(made, (1, 3)))
    assert made.readable_from(15) == []


def test_the_low_watermark_waits_for_every_live_replica():
    made = leader()
    assert made.low_watermark(8) == -1
    fetch(made, 2, 10, log_start_offset=3)
    fetch(made, 3, 10, log_start_offset=9)
    assert made.low_watermark(8) == 3
    made.brokers_changed({1: 11, 3: 13}, set())
    assert made.low_watermark(8) == 8


def test_people_are_told_how_far_each_replica_is():
    made = leader(isr=(1, 2), end=20, high_watermark=10)
    fetch(made, 3, 12, now_ms=100)
    told = made.progress(3, 500)
    assert (told.standing, told.lag_records, told.lag_ms) == (Standing.BEHIND, 8, None)
    assert made.progress(2, 500).standing is Standing.IN_SYNC
    assert made.progress(2, 500).lag_ms == 500
    fetch(made, 3, 20, now_ms=600)
    assert made.progress(3, 900).standing is Standing.JOINING
    assert made.progress(3, 900).lag_ms == 0
    made.brokers_changed(LIVE, {3})
    assert made.progress(3, 900).standing is Standing.SHUTTING_DOWN
    made.brokers_changed({**LIVE, 3: 99}, set())
    assert made.progress(3, 900).standing is Standing.RESTARTED


# Doubt ------------------------------------------------------------------------------------------


def test_a_leader_is_certain_while_all_electable_replicas_follow_it():
    made = leader(isr=(1, 2, 3))
    assert made.is_certain({2: 50, 3: 60}, 50)
    assert not made.is_certain({2: 49, 3: 60}, 50)
    assert not made.is_certain({3: 60}, 50), "broker 2 may lead"


def test_a_replica_that_cannot_be_elected_does_not_count():
    made = leader(isr=(1, 2))
    assert made.is_certain({2: 50}, 50)
    assert not made.is_certain({2: 50}, 50, any_replica=True), "an unclean election may choose 3"


def test_the_only_electable_replica_is_certain():
    assert leader(isr=(1,)).is_certain({}, 50)


def test_eligible_leader_replicas_count():
    made = leader(isr=(1, 2), min_isr=3)
    made.published(decided(made, (1,), elr=(2,)))
    assert not made.is_certain({}, 50), "broker 2 may be back, and lead"
    assert made.is_certain({2: 50}, 50)


def test_a_replica_that_a_proposal_may_have_added_counts():
    made = leader(isr=(1, 2), end=10, high_watermark=10)
    proposal_of(fetch(made, 3, 10))
    assert not made.is_certain({2: 50}, 50)
    assert made.is_certain({2: 50, 3: 50}, 50)
