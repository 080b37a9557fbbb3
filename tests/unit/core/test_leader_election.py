"""Leader election: which replica leads, is in sync, is eligible; one test for each rule.

States are written `state(replicas, leader, isr, elr)`.  The broker epoch of broker n is n * 10 at
first, so that broker epochs and broker ids cannot be confused.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hightide.core.controller import reassignment
from hightide.core.controller.leader_election import (
    NO_LOG,
    UNCLEAN,
    Broker,
    LogEnd,
    RecoveryStrategy,
    distrusted,
    first_state,
    fitness,
    reelected,
    relieved,
    with_preferred,
    with_proposed_isr,
)
from hightide.core.partition.state import NO_BROKER, FailureKind, PartitionState


def live(*brokers: int) -> dict[int, int]:
    return {broker_id: broker_id * 10 for broker_id in brokers}


def state(replicas, leader, isr, elr=(), **others) -> PartitionState:
    made = PartitionState(
        tuple(replicas),
        leader,
        5,
        tuple(isr),
        tuple(elr),
        **{"broker_epochs": {member: member * 10 for member in (*isr, *elr)}} | others,
    )
    made.check()
    return made


def elect(before, alive, shutting_down=(), min_isr=1, unclean=False, distrust=(), logs=None):
    strategy = RecoveryStrategy.AGGRESSIVE if unclean else RecoveryStrategy.BALANCED
    ends = {broker: LogEnd(*end) for broker, end in (logs or {}).items()}
    after = reelected(before, alive, set(shutting_down), min_isr, strategy, set(distrust), ends)
    after.check()
    assert after.partition_epoch == before.partition_epoch, "set when the state is written"
    return after


# -- nothing to do ---------------------------------------------------------------------------


def test_a_partition_with_nothing_amiss_is_left_as_it_is():
    before = state([1, 2, 3], 1, [1, 2, 3])
    assert elect(before, live(1, 2, 3)) is before


def test_the_death_of_a_replica_that_is_out_of_sync_changes_nothing():
    before = state([1, 2, 3], 1, [1, 2])
    assert elect(before, live(1, 2)) is before


def test_a_partition_that_stays_without_leader_is_left_as_it_is():
    before = state([1, 2, 3], NO_BROKER, [], [2, 3], last_known_leader=3)
    assert elect(before, live(1)) is before


def test_a_leader_that_is_shutting_down_is_not_gone():
    before = state([1, 2], 1, [1, 2])
    assert elect(before, live(1, 2), shutting_down=[1]) is before


# -- the leader epoch ------------------------------------------------------------------------


def test_a_dead_follower_leaves_the_isr_in_the_same_leader_epoch():
    after = elect(state([1, 2, 3], 1, [1, 2, 3]), live(1, 3), min_isr=2)
    assert (after.leader, after.leader_epoch, after.isr) == (1, 5, (1, 3))


def test_another_leader_means_another_leader_epoch():
    after = elect(state([1, 2, 3], 1, [1, 2, 3]), live(2, 3), min_isr=2)
    assert (after.leader, after.leader_epoch, after.isr) == (2, 6, (2, 3))


def test_losing_the_leader_without_a_successor_means_another_leader_epoch():
    after = elect(state([1, 2], 1, [1]), live(2))
    assert (after.leader, after.leader_epoch, after.isr) == (NO_BROKER, 6, ())


def test_leading_again_after_there_was_no_leader_means_another_leader_epoch():
    after = elect(state([1, 2], NO_BROKER, [], [1], last_known_leader=1), live(1))
    assert (after.leader, after.leader_epoch, after.isr) == (1, 6, (1,))


def test_a_leader_that_restarted_leads_in_another_leader_epoch():
    after = elect(state([1], 1, [1]), {1: 77})
    assert (after.leader, after.leader_epoch, after.isr) == (1, 6, (1,))
    assert after.broker_epochs == {1: 77}


def test_losing_trust_in_an_eligible_replica_does_not_change_the_leader_epoch():
    before = state([1, 2, 3], NO_BROKER, [], [2, 3], last_known_leader=3)
    after = elect(before, live(2), min_isr=2, distrust=[2])
    assert (after.leader_epoch, after.elr, after.last_known_leader) == (5, (3,), 3)


# -- the order of election -------------------------------------------------------------------


def test_the_next_leader_is_the_first_in_sync_in_the_order_of_the_assignment():
    assert elect(state([3, 1, 2], 3, [3, 2, 1]), live(1, 2)).leader == 1


def test_a_replica_that_is_not_in_sync_is_passed_over():
    assert elect(state([3, 1, 2], 3, [3, 2]), live(1, 2)).leader == 2


def test_a_broker_that_is_shutting_down_is_elected_only_if_there_is_no_other():
    before = state([1, 2, 3], 1, [1, 2, 3])
    assert elect(before, live(2, 3), shutting_down=[2]).leader == 3
    assert elect(before, live(2, 3), shutting_down=[2, 3]).leader == 2
    assert elect(before, live(2), shutting_down=[2]).leader == 2


def test_after_the_isr_an_eligible_replica_is_elected_and_is_alone_in_sync():
    before = state([1, 2, 3], 3, [3], [1, 2])
    after = elect(before, live(2), min_isr=2)
    assert (after.leader, after.isr, after.elr) == (2, (2,), (1, 3))
    assert not after.is_recovering


def test_an_eligible_replica_does_not_lead_while_another_is_in_sync():
    before = state([1, 2, 3], 3, [3, 2], [1])
    after = elect(before, live(1, 2), min_isr=3)
    assert (after.leader, after.isr, after.elr) == (2, (2,), (1, 3))


def test_there_is_no_leader_while_a_complete_replica_may_come_back():
    before = state([1, 2, 3], 3, [3], [2])
    after = elect(before, live(1), min_isr=2)
    assert (after.leader, after.isr, after.elr, after.last_known_leader) == (
        NO_BROKER,
        (),
        (2, 3),
        3,
    )


def test_the_last_known_leader_is_not_elected_while_a_whole_replica_may_come_back():
    before = state([1, 2, 3], NO_BROKER, [], [2], last_known_leader=3)
    assert elect(before, live(1, 3), min_isr=2) is before


# -- recovery --------------------------------------------------------------------------------


def doubtful(*members: int) -> PartitionState:
    """A partition on 1, 2 and 3 without a leader, whose last members may all have lost records."""
    return state([1, 2, 3], NO_BROKER, [], last_known_leader=3, last_known_elr=members)


def test_the_longest_log_leads_when_no_replica_is_known_to_be_whole():
    # Broker 3 led last, and has lost what it had not synced.
    before = doubtful(1, 2, 3)
    after = elect(before, live(1, 2, 3), logs={1: (4, 90), 2: (4, 100), 3: (4, 10)})
    assert (after.leader, after.leader_epoch, after.isr, after.elr) == (2, 6, (2,), ())
    assert after.is_recovering
    assert (after.last_known_leader, after.last_known_elr) == (NO_BROKER, ())


def test_the_newest_epoch_counts_more_than_the_end():
    after = elect(doubtful(1, 2), live(1, 2), logs={1: (3, 900), 2: (4, 100)})
    assert after.leader == 2


def test_a_replica_without_a_log_is_not_elected_while_another_has_one():
    after = elect(doubtful(1, 2, 3), live(1, 2, 3), logs={1: (-1, 0), 2: (0, 1), 3: (-1, 0)})
    assert after.leader == 2


def test_if_all_last_members_have_lost_their_logs_the_others_are_asked():
    # The disk of broker 1, the last member of the ISR, was replaced.
    before, logs = doubtful(1), {1: (-1, 0)}
    assert elect(before, live(1, 2, 3), logs=logs) is before
    after = elect(before, live(1, 2, 3), logs={**logs, 2: (3, 70), 3: (3, 60)})
    assert after.leader == 2
    after = elect(before, live(1, 2, 3), logs={**logs, 2: (-1, 0), 3: (-1, 0)})
    assert after.leader == 1


def test_of_empty_logs_that_of_a_last_member_is_elected():
    """Nothing was ever written, so nothing is lost, and nothing is reported as lost."""
    after = elect(doubtful(2, 3), live(1, 2, 3), logs=dict.fromkeys((1, 2, 3), (-1, 0)))
    assert after.leader == 2


def test_a_single_replica_is_elected_without_a_question():
    before = state([1], NO_BROKER, [], last_known_leader=1, last_known_elr=(1,))
    after = elect(before, live(1))
    assert (after.leader, after.is_recovering) == (1, True)
    assert elect(before, live()) is before


def test_a_single_replica_that_restarted_uncleanly_is_elected_in_one_step():
    before = state([1], 1, [1])
    after = elect(before, {1: 17}, distrust=[1])
    assert (after.leader, after.leader_epoch, after.is_recovering) == (1, 6, True)
    assert after.broker_epochs == {1: 17}
    assert elect(after, {1: 17}) is after


def test_of_equal_logs_the_first_replica_is_elected():
    after = elect(doubtful(2, 3), live(1, 2, 3), logs={2: (4, 10), 3: (4, 10)})
    assert after.leader == 2


def test_a_recovery_waits_for_all_members_of_the_last_isr_and_elr():
    before, logs = doubtful(1, 2), {1: (4, 100)}
    assert elect(before, live(1), logs=logs) is before
    assert elect(before, live(1, 2), logs=logs) is before
    assert elect(before, live(1, 2), logs={**logs, 2: NO_LOG}) is before
    # An answer counts while its broker lives.
    assert elect(before, live(1), logs={**logs, 2: (4, 90)}) is before
    assert elect(before, live(1, 2), logs={**logs, 2: (4, 90)}).leader == 1


def test_a_recovery_does_not_ask_replicas_that_were_out_of_sync():
    after = elect(doubtful(1, 2), live(1, 2, 3), logs={1: (4, 1), 2: (4, 2), 3: (4, 9)})
    assert after.leader == 2


def test_a_recovery_does_not_begin_while_an_eligible_replica_is_only_away():
    before = state([1, 2, 3], NO_BROKER, [], [2], last_known_elr=(1,), last_known_leader=1)
    assert elect(before, live(1), logs={1: (4, 100)}) is before


def test_without_a_strategy_an_administrator_decides():
    before, ends = doubtful(1), {1: LogEnd(4, 100)}
    after = reelected(before, live(1), set(), 1, RecoveryStrategy.NONE, set(), ends)
    assert after is before


def test_members_that_lose_trust_one_after_the_other_are_all_remembered():
    before = elect(state([1, 2, 3], 3, [3], [1, 2]), live(), min_isr=2)
    assert (before.elr, before.last_known_elr) == ((1, 2, 3), ())
    before = elect(before, {1: 17}, min_isr=2, distrust=[1])
    assert (before.elr, before.last_known_elr) == ((2, 3), (1,))
    before = elect(before, {1: 17, 2: 27, 3: 37}, min_isr=2, distrust=[2, 3])
    assert (before.elr, before.last_known_elr) == ((), (1, 2, 3))


def test_a_large_enough_isr_forgets_the_members_that_lost_trust():
    before = state([1, 2, 3], 2, [2], last_known_elr=(1,))
    after = with_proposed_isr(before, [2, 3], live(1, 2, 3), 2)
    assert after.last_known_elr == ()


def test_an_unclean_election_takes_the_longest_log_of_the_live_replicas():
    before = elect(state([1, 2, 3], 3, [3], [1]), live(2), min_isr=2)
    assert (before.leader, before.leader_epoch) == (NO_BROKER, 6)
    after = elect(before, live(2), min_isr=2, unclean=True, logs={2: (1, 5)})
    assert (after.leader, after.leader_epoch, after.isr, after.elr) == (2, 7, (2,), ())
    assert after.is_recovering
    assert after.broker_epochs == {2: 20}


def test_an_unclean_election_waits_for_live_brokers_only_and_takes_no_answer_for_no_log():
    before = state([1, 2, 3], NO_BROKER, [], [3], last_known_leader=3)
    assert elect(before, live(1, 2), unclean=True, logs={1: (4, 9)}) is before
    after = elect(before, live(1, 2), unclean=True, logs={1: NO_LOG, 2: (0, 1)})
    assert after.leader == 2


def test_the_epoch_in_which_committed_records_may_have_been_lost_is_remembered():
    before = state([1, 2, 3], NO_BROKER, [], [1], last_known_leader=3)
    after = elect(before, live(2), min_isr=2, unclean=True, logs={2: (1, 5)})
    assert after.recovery_epoch == after.leader_epoch == 6
    later = elect(with_proposed_isr(after, [1, 2], live(1, 2), 2), live(1), min_isr=2)
    assert (later.leader, later.leader_epoch, later.recovery_epoch) == (1, 7, 6)


def test_an_unclean_election_is_a_last_resort():
    before = state([1, 2, 3], 3, [3], [2])
    after = elect(before, live(1, 2), min_isr=2, unclean=True)
    assert (after.leader, after.is_recovering) == (2, False)


def test_without_a_live_replica_even_an_unclean_election_finds_none():
    before = state([1, 2], NO_BROKER, [], [2], last_known_leader=2)
    assert elect(before, live(3), unclean=True) is before


def test_a_clean_election_ends_a_recovery():
    before = state([1, 2], 1, [1, 2], is_recovering=True)
    assert not elect(before, live(2)).is_recovering


# -- ELR -------------------------------------------------------------------------------------


def test_who_leaves_an_isr_that_remains_large_enough_is_out():
    after = elect(state([1, 2, 3], 1, [1, 2, 3]), live(1, 2), min_isr=2)
    assert (after.isr, after.elr) == ((1, 2), ())


def test_who_leaves_an_isr_that_is_then_too_small_is_eligible():
    after = elect(state([1, 2, 3], 1, [1, 2]), live(1, 3), min_isr=2)
    assert (after.isr, after.elr) == ((1,), (2,))


def test_all_who_die_at_once_are_eligible():
    after = elect(state([1, 2, 3], 1, [1, 2, 3]), live(), min_isr=2)
    assert (after.leader, after.isr, after.elr) == (NO_BROKER, (), (1, 2, 3))
    assert after.last_known_leader == 1


def test_more_replicas_than_there_are_need_not_be_in_sync():
    after = elect(state([1, 2], 1, [1, 2]), live(1, 2), min_isr=3)
    assert (after.isr, after.elr) == ((1, 2), ())
    after = elect(state([1], NO_BROKER, [], [1], last_known_leader=1), live(1), min_isr=3)
    assert (after.isr, after.elr) == ((1,), ())


def test_the_elr_is_empty_when_the_isr_is_large_enough():
    before = state([1, 2, 3], 1, [1, 2], [3])
    assert elect(before, live(1, 2, 3), min_isr=2).elr == ()


def test_a_dead_eligible_replica_stays_eligible():
    before = state([1, 2, 3], 1, [1], [2, 3])
    assert elect(before, live(1), min_isr=2) is before


def test_an_accepted_isr_that_is_large_enough_empties_the_elr():
    before = state([1, 2, 3], 1, [1], [2, 3])
    after = with_proposed_isr(before, [2, 1], live(1, 2, 3), 2)
    assert (after.isr, after.elr, after.leader_epoch) == ((1, 2), (), 5)


def test_a_proposal_that_shrinks_the_isr_below_its_least_size_makes_the_removed_eligible():
    before = state([1, 2, 3], 1, [1, 2, 3])
    after = with_proposed_isr(before, [1], live(1, 2, 3), 2)
    assert (after.isr, after.elr) == ((1,), (2, 3))
    assert after.broker_epochs == live(1, 2, 3)


def test_a_removed_member_that_lost_trust_is_not_eligible():
    before = state([1, 2, 3], 1, [1, 2, 3])
    assert with_proposed_isr(before, [1], live(1, 2, 3), 2, {3}).elr == (2,)


def test_a_leader_that_proposes_an_isr_is_over_its_recovery():
    before = state([1, 2], 1, [1], is_recovering=True)
    assert not with_proposed_isr(before, [1, 2], live(1, 2), 1).is_recovering


# -- restarts and trust ----------------------------------------------------------------------


def test_a_broker_in_the_same_broker_epoch_is_trusted():
    brokers = {1: Broker(10), 2: Broker(20, previous_epoch=UNCLEAN)}
    assert distrusted(state([1, 2], 1, [1], [2]), brokers) == set()


def test_a_broker_that_was_shut_down_cleanly_at_the_end_of_that_epoch_is_trusted():
    brokers = {1: Broker(10), 2: Broker(25, previous_epoch=20)}
    assert distrusted(state([1, 2], 1, [1], [2]), brokers) == set()


@pytest.mark.parametrize("previous", [UNCLEAN, 23])
def test_who_restarted_in_any_other_way_is_not_trusted(previous):
    brokers = {1: Broker(10), 2: Broker(25, previous_epoch=previous)}
    assert distrusted(state([1, 2], 1, [1], [2]), brokers) == {2}


def test_the_dead_are_judged_when_they_come_back():
    assert distrusted(state([1, 2], 1, [1], [2]), {1: Broker(10)}) == set()


def test_a_state_without_broker_epochs_is_judged_by_the_registration():
    before = state([1, 2, 3], 1, [1, 2], [3], broker_epochs={})
    brokers = {1: Broker(10, previous_epoch=9), 2: Broker(20), 3: Broker(30)}
    assert distrusted(before, brokers) == {2, 3}
    after = elect(before, live(1, 2, 3), distrust=[2, 3])
    assert (after.isr, after.broker_epochs) == ((1,), {1: 10})


def test_who_restarted_cleanly_leaves_the_isr_and_must_fetch_again():
    after = elect(state([1, 2, 3], 1, [1, 2, 3]), {1: 10, 2: 25, 3: 30}, min_isr=2)
    assert (after.isr, after.elr) == ((1, 3), ())


def test_a_broker_that_restarted_cleanly_is_eligible_in_its_new_epoch():
    after = elect(state([1, 2], 1, [1, 2]), {1: 10, 2: 25}, min_isr=2)
    assert (after.isr, after.elr, after.broker_epochs) == ((1,), (2,), {1: 10, 2: 25})
    again = elect(after, {1: 10, 2: 28}, min_isr=2)
    assert (again.elr, again.broker_epochs) == ((2,), {1: 10, 2: 28})


def test_who_lost_trust_is_neither_in_sync_nor_eligible():
    after = elect(state([1, 2, 3], 1, [1, 2], [3]), live(1, 2, 3), min_isr=3, distrust=[2, 3])
    assert (after.isr, after.elr, after.leader_epoch) == ((1,), (), 5)


def test_a_leader_that_lost_trust_hands_over_to_a_replica_in_sync():
    after = elect(state([1, 2], 1, [1, 2]), {1: 17, 2: 20}, min_isr=2, distrust=[1])
    assert (after.leader, after.isr, after.elr) == (2, (2,), ())


def test_a_sole_member_that_crashed_is_elected_by_its_log():
    before = state([1, 2], 1, [1])
    after = elect(before, {1: 17, 2: 20}, distrust=[1])
    assert (after.leader, after.leader_epoch, after.last_known_elr) == (NO_BROKER, 6, (1,))
    after = elect(after, {1: 17, 2: 20}, logs={1: (4, 3)})
    assert (after.leader, after.leader_epoch, after.isr) == (1, 7, (1,))
    assert after.is_recovering


def test_a_crashed_last_leader_is_not_elected_while_another_whole_replica_may_come_back():
    before = state([1, 2], 1, [1], [2])
    after = elect(before, {1: 17}, min_isr=2, distrust=[1])
    assert (after.leader, after.elr, after.last_known_leader) == (NO_BROKER, (2,), 1)


# -- preferred leaders -----------------------------------------------------------------------


def test_the_preferred_leader_is_the_first_of_the_assignment():
    after = with_preferred(state([1, 2], 2, [1, 2], is_recovering=True), live(1, 2), set())
    assert (after.leader, after.leader_epoch, after.isr) == (1, 6, (1, 2))
    assert not after.is_recovering


@pytest.mark.parametrize(
    ("isr", "alive", "shutting_down"),
    [([2], [1, 2], []), ([1, 2], [2], []), ([1, 2], [1, 2], [1])],
    ids=["out of sync", "dead", "shutting down"],
)
def test_a_preferred_leader_that_cannot_lead_does_not(isr, alive, shutting_down):
    before = state([1, 2], 2, isr)
    assert with_preferred(before, live(*alive), set(shutting_down)) is before


def test_a_preferred_leader_that_leads_goes_on():
    before = state([1, 2], 1, [1, 2])
    assert with_preferred(before, live(1, 2), set()) is before


# -- controlled shutdown ---------------------------------------------------------------------


def test_a_leader_that_leaves_hands_over_and_is_out_of_the_isr():
    after = relieved(state([1, 2, 3], 1, [1, 2, 3]), live(1, 2, 3), {1}, 2)
    assert (after.leader, after.leader_epoch, after.isr, after.elr) == (2, 6, (2, 3), ())


def test_a_follower_that_leaves_is_out_of_the_isr_in_the_same_leader_epoch():
    after = relieved(state([1, 2, 3], 1, [1, 2, 3]), live(1, 2, 3), {2}, 2)
    assert (after.leader, after.leader_epoch, after.isr) == (1, 5, (1, 3))


def test_who_leaves_an_isr_that_is_then_too_small_is_eligible_to_return():
    after = relieved(state([1, 2], 1, [1, 2]), live(1, 2), {1}, 2)
    assert (after.leader, after.isr, after.elr) == (2, (2,), (1,))
    after.check()


def test_leadership_does_not_go_to_another_that_leaves():
    after = relieved(state([1, 2, 3], 1, [1, 2, 3]), live(1, 2, 3), {1, 2}, 1)
    assert (after.leader, after.isr) == (3, (3,))


@pytest.mark.parametrize("isr", [[1], [1, 2]])
def test_when_only_those_are_in_sync_who_leave_they_stay(isr):
    before = state([1, 2, 3], 1, isr)
    assert relieved(before, live(1, 2, 3), {1, 2}, 1) is before


# -- new partitions --------------------------------------------------------------------------


def test_a_new_partition_is_led_by_its_first_live_replica_and_all_live_ones_are_in_sync():
    made = first_state((1, 2, 3), live(2, 3), set())
    assert made == PartitionState((1, 2, 3), 2, 0, (2, 3), broker_epochs={2: 20, 3: 30})


def test_a_new_partition_is_not_given_to_a_broker_that_leaves_if_another_can_have_it():
    assert first_state((1, 2), live(1, 2), {1}).isr == (2,)
    assert first_state((1, 2), live(1, 2), {1, 2}).isr == (1, 2)


def test_a_new_partition_whose_replicas_are_all_dead_has_no_state_yet():
    assert first_state((1, 2), live(3), set()) is None


# -- moving ----------------------------------------------------------------------------------


def move(step, before, *target, shutting_down=frozenset(), min_isr=1):
    after = step(before, *target, live(1, 2, 3, 4, 5), shutting_down, min_isr)
    if after is not None:
        after.check()
    return after


def test_a_move_begins_with_target_and_origin_together_the_target_first():
    before = state([1, 2, 3], 1, [1, 2, 3])
    after = move(reassignment.begun, before, (3, 4))
    assert (after.replicas, after.adding, after.removing) == ((3, 4, 1, 2), (4,), (1, 2))
    assert (after.leader, after.leader_epoch, set(after.isr)) == (1, 5, {1, 2, 3})
    assert reassignment.target_of(after) == (3, 4)
    assert set(reassignment.origin_of(after)) == {1, 2, 3}


def test_a_move_waits_until_all_replicas_of_the_target_are_in_sync():
    before = state([3, 4, 1, 2], 1, [3, 1, 2], adding=(4,), removing=(1, 2))
    assert move(reassignment.finished, before) is before


def test_a_move_ends_with_the_leader_and_the_isr_at_the_target():
    before = state([3, 4, 1, 2], 1, [3, 4, 1], adding=(4,), removing=(1, 2))
    after = move(reassignment.finished, before)
    assert (after.replicas, after.adding, after.removing) == ((3, 4), (), ())
    assert (after.leader, after.leader_epoch, after.isr) == (3, 6, (3, 4))
    assert after.broker_epochs == {3: 30, 4: 40}


def test_the_leader_does_not_move_if_it_is_at_the_target():
    before = state([3, 4, 1], 4, [3, 4, 1], adding=(3,), removing=(1,))
    assert move(reassignment.finished, before).leader == 4


def test_a_replica_that_goes_means_another_leader_epoch_though_the_leader_stays():
    # Otherwise it could come back empty without the leader noticing that it was gone.
    before = state([3, 4, 1], 4, [3, 4, 1], adding=(3,), removing=(1,))
    assert move(reassignment.finished, before).leader_epoch == 6


def test_the_leader_does_not_move_to_a_broker_that_leaves_if_there_is_another():
    before = state([3, 4, 1], 1, [3, 4, 1], adding=(3,), removing=(1,))
    assert move(reassignment.finished, before, shutting_down={3}).leader == 4


def test_another_order_of_the_same_brokers_is_no_move():
    before = state([1, 2, 3], 1, [1, 2, 3])
    after = move(reassignment.begun, before, (3, 2, 1))
    assert (after.replicas, after.is_reassigning) == ((3, 2, 1), False)
    assert (after.leader, after.leader_epoch) == (1, 5)


def test_moving_to_where_it_is_changes_nothing():
    before = state([1, 2, 3], 1, [1, 2, 3])
    assert move(reassignment.begun, before, (1, 2, 3)) is before


def test_a_move_that_is_given_up_takes_the_added_replicas_away():
    before = state([3, 4, 1, 2], 4, [3, 4, 1], adding=(4,), removing=(1, 2))
    after = move(reassignment.cancelled, before)
    assert (after.replicas, after.adding, after.removing) == ((3, 1, 2), (), ())
    assert (after.leader, after.leader_epoch, after.isr) == (3, 6, (3, 1))


def test_another_target_takes_away_what_only_the_former_one_added():
    before = state([4, 1, 2], 1, [4, 1, 2], adding=(4,), removing=())
    after = move(reassignment.begun, before, (5, 1))
    assert (after.replicas, after.adding, after.removing) == ((5, 1, 2), (5,), (2,))
    assert (after.isr, after.leader_epoch) == ((1, 2), 6)


def test_a_move_is_not_given_up_if_only_an_added_replica_is_whole():
    before = state([4, 1], 4, [4], adding=(4,), removing=(1,))
    assert move(reassignment.cancelled, before) is None
    before = state([4, 1], NO_BROKER, [], [4], adding=(4,), removing=(1,), last_known_leader=4)
    assert move(reassignment.cancelled, before) is None
    before = state([4, 1], NO_BROKER, [], [], adding=(4,), removing=(1,), last_known_leader=4)
    assert move(reassignment.cancelled, before) is None


def test_a_move_is_given_up_without_a_leader_if_a_whole_replica_may_come_back():
    before = state([4, 1], NO_BROKER, [], [4, 1], adding=(4,), removing=(1,), last_known_leader=4)
    after = move(reassignment.cancelled, before)
    assert (after.replicas, after.leader, after.elr) == ((1,), NO_BROKER, (1,))


# -- failed replicas -------------------------------------------------------------------------


def fail(before, alive, min_isr=2, **failures):
    """Return the state after `r1="FULL"` and so on, until nothing more changes."""
    kinds = {int(name[1:]): FailureKind[kind] for name, kind in failures.items()}
    brokers = {broker_id: Broker(epoch) for broker_id, epoch in alive.items()}
    while True:
        fit = fitness(before, brokers, alive, set(), kinds)
        strategy = RecoveryStrategy.BALANCED
        after = reelected(before, fit.live, fit.leaving, min_isr, strategy, fit.distrusted)
        if after is before:
            after = relieved(before, fit.live, fit.leaving, min_isr, fit.damaged)
        after.check()
        if after is before:
            return after
        before = after


@pytest.mark.parametrize("kind", ["FULL", "OFFLINE", "DAMAGED"])
def test_a_leader_that_failed_hands_over_and_leaves_the_isr(kind):
    after = fail(state([1, 2, 3], 1, [1, 2, 3]), live(1, 2, 3), r1=kind)
    assert (after.leader, after.leader_epoch, after.isr, after.elr) == (2, 6, (2, 3), ())


@pytest.mark.parametrize("kind", ["FULL", "OFFLINE", "DAMAGED"])
def test_a_follower_that_failed_leaves_the_isr_in_the_same_leader_epoch(kind):
    after = fail(state([1, 2, 3], 1, [1, 2, 3]), live(1, 2, 3), r2=kind)
    assert (after.leader, after.leader_epoch, after.isr, after.elr) == (1, 5, (1, 3), ())


def test_a_full_replica_stays_eligible_and_leads_if_there_is_no_other():
    after = fail(state([1, 2], 1, [1, 2]), live(1, 2), r1="FULL")
    assert (after.leader, after.isr, after.elr) == (2, (2,), (1,))
    after = fail(after, live(1), r1="FULL")
    assert (after.leader, after.isr, after.elr) == (1, (1,), (2,))


def test_an_offline_replica_is_like_one_whose_broker_is_down():
    after = fail(state([1, 2], 1, [1, 2]), live(1, 2), r1="OFFLINE")
    assert (after.leader, after.isr, after.elr) == (2, (2,), (1,))
    after = fail(after, live(1), r1="OFFLINE")
    assert (after.leader, after.elr) == (NO_BROKER, (1, 2))
    assert fail(after, live(1)).leader == 1


def test_a_damaged_replica_is_not_eligible():
    after = fail(state([1, 2], 1, [1, 2]), live(1, 2), r1="DAMAGED")
    assert (after.leader, after.isr, after.elr) == (2, (2,), ())


def test_the_last_member_stays_the_leader_though_it_is_full_or_damaged():
    before = state([1, 2], 1, [1], [2])
    assert fail(before, live(1), r1="FULL") is before
    assert fail(before, live(1), r1="DAMAGED") is before


def test_a_live_eligible_replica_takes_over_from_a_damaged_leader():
    after = fail(state([1, 2], 1, [1], [2]), live(1, 2), r1="DAMAGED")
    assert (after.leader, after.isr, after.elr) == (2, (2,), ())


# -- properties ------------------------------------------------------------------------------


BROKERS = st.integers(1, 6)
SMALL = st.integers(0, 3)


@st.composite
def situations(draw):
    replicas = tuple(draw(st.permutations(range(1, 6)))[: draw(st.integers(1, 5))])
    roles = {replica: draw(st.sampled_from("iieod")) for replica in replicas}
    isr = tuple(replica for replica in replicas if roles[replica] == "i")
    elr = tuple(replica for replica in replicas if roles[replica] == "e")
    before = state(
        replicas,
        draw(st.sampled_from(isr)) if isr else NO_BROKER,
        isr,
        elr,
        last_known_leader=NO_BROKER if isr else draw(st.sampled_from((NO_BROKER, *replicas))),
        last_known_elr=tuple(replica for replica in replicas if roles[replica] == "d"),
    )
    alive = {
        broker_id: broker_id * 10 + draw(st.sampled_from([0, 0, 3]))
        for broker_id in draw(st.sets(BROKERS))
    }
    return before, alive, draw(st.sets(BROKERS)), draw(st.integers(1, 4)), draw(st.booleans())


@given(situations(), st.sets(BROKERS), st.dictionaries(BROKERS, st.tuples(SMALL, SMALL)))
def test_every_election_is_sound_final_and_as_good_as_it_can_be(situation, distrust, logs):
    before, alive, shutting_down, min_isr, unclean = situation
    # A dead broker does not lose trust.
    distrust &= alive.keys()
    how = (alive, shutting_down, min_isr, unclean)
    after = elect(before, *how, distrust, logs if before.leader == NO_BROKER else {})
    assert elect(after, *how, distrust & set(after.osr)) is after
    assert after.leader_epoch - before.leader_epoch in (0, 1)
    assert set(after.isr) <= alive.keys()
    whole = (set(before.isr) | set(before.elr)) - distrust
    if whole & alive.keys():
        assert after.leader in whole & alive.keys()
        assert not after.is_recovering
    elif whole:
        assert after.leader == NO_BROKER or unclean
    if after.is_recovering and after is not before:
        asked = set(before.replicas) & alive.keys()
        if not unclean:
            asked = {*before.elr, *before.last_known_elr} or set(before.replicas)
        assert after.leader in asked
        if len(before.replicas) > 1:
            assert all(logs[after.leader] >= logs[other] for other in asked)
    if not after.is_recovering:
        assert set(after.isr) | set(after.elr) <= whole
    if after.leader != before.leader:
        assert after.leader_epoch == before.leader_epoch + 1
    assert after.broker_epochs.keys() == {*after.isr, *after.elr}


@given(situations())
def test_letting_brokers_go_is_sound_and_final(situation):
    before, alive, shutting_down, min_isr, unclean = situation
    before = elect(before, alive, shutting_down, min_isr, unclean)
    after = relieved(before, alive, shutting_down, min_isr)
    after.check()
    assert relieved(after, alive, shutting_down, min_isr) is after
    assert bool(after.isr) == bool(before.isr)
    assert set(after.isr) <= set(before.isr)
    if after.leader in shutting_down:
        assert set(after.isr) <= shutting_down
