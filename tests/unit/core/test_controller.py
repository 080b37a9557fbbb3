"""What the controller plans for every fact, and what it answers to every request."""

from __future__ import annotations

import sys
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Mapping

import pytest

from hightide.core.controller.cluster_state import TopicRules
from hightide.core.controller.controller import (
    Controller,
    Decision,
    ElectionKind,
    PartitionChange,
)
from hightide.core.controller.leader_election import Broker
from hightide.core.partition.isr import Proposal
from hightide.core.partition.state import NO_BROKER, PartitionState
from hightide.wire.errors import ErrorCode, KafkaError

T = uuid.UUID(int=1)
U = uuid.UUID(int=2)


def brokers(*ids: int, **registrations: Broker) -> dict[int, Broker]:
    """Broker n in its first life has the epoch n * 10; `b2=Broker(…)` says it otherwise."""
    return {each: Broker(each * 10) for each in ids} | {
        int(name[1:]): broker for name, broker in registrations.items()
    }


class Harness:
    """A controller, and a store that writes whatever it plans."""

    def __init__(self, *alive: int) -> None:
        self.controller = Controller()
        self.written: list[PartitionChange] = []
        self.write(self.controller.brokers_seen(brokers(*alive)))

    def write(self, plan: Iterable[PartitionChange]) -> list[PartitionChange]:
        done = []
        queue = deque(plan)
        while queue:
            change = queue.popleft()
            epoch = 0 if change.before is None else change.before.partition_epoch + 1
            queue.extend(self.controller.changed(change, epoch))
            self.controller.check()
            done.append(change)
        self.written += done
        return done

    def topic(self, assignments, name="t", topic_id=T, **rules) -> None:
        new_partitions = dict(enumerate(assignments))
        self.write(
            self.controller.topic_found(name, topic_id, TopicRules(**rules), {}, new_partitions)
        )

    def see(self, *ids: int, **registrations: Broker) -> list[PartitionChange]:
        return self.write(self.controller.brokers_seen(brokers(*ids, **registrations)))

    def propose(self, sender, isr, *, index=0, topic_id=T, sender_epoch=None, **differing):
        """The verdict on a proposal that is right but for what is said; written if accepted."""
        state = self.state(index)
        proposal = Proposal(
            tuple(isr),
            differing.get("broker_epochs", {each: each * 10 for each in isr}),
            differing.get("leader_epoch", state.leader_epoch),
            differing.get("partition_epoch", state.partition_epoch),
        )
        epoch = sender * 10 if sender_epoch is None else sender_epoch
        key = (topic_id, index)
        decision = self.controller.isr_proposed(sender, epoch, {key: proposal})[key]
        return self.answer(decision)

    def answer(self, decision: Decision) -> ErrorCode:
        if decision.change is not None:
            assert decision.error == ErrorCode.NONE
            self.write([decision.change])
        return decision.error

    def elect(self, kind, index=0) -> ErrorCode:
        key = ("t", index)
        return self.answer(self.controller.election_asked(kind, [key])[key])

    def move(self, target, index=0) -> ErrorCode:
        key = ("t", index)
        return self.answer(self.controller.reassignment_asked({key: target})[key])

    def state(self, index=0, topic="t") -> PartitionState:
        state = self.controller.state(topic, index)
        assert state is not None
        return state


@pytest.fixture
def office() -> Harness:
    """Three brokers and a partition on all of them, of which two must be in sync."""
    office = Harness(1, 2, 3)
    office.topic([(1, 2, 3)], min_insync_replicas=2)
    return office


# -- plans -----------------------------------------------------------------------------------


def test_a_plan_changes_nothing_until_it_is_written(office: Harness):
    before = office.state()
    plan = office.controller.brokers_seen(brokers(2, 3))
    assert [change.before for change in plan] == [before]
    assert office.state() is before
    office.write(plan)
    assert (office.state().leader, office.state().partition_epoch) == (2, 1)


def test_a_plan_that_could_not_be_written_is_planned_again_by_an_audit(office: Harness):
    lost = office.controller.brokers_seen(brokers(2, 3))
    assert office.controller.brokers_seen(brokers(2, 3)) == []
    assert office.controller.audit() == lost


def test_when_all_is_well_an_audit_finds_nothing(office: Harness):
    assert office.controller.audit() == []


def test_a_plan_is_in_the_order_of_topics_and_partitions():
    office = Harness(1, 2)
    office.topic([(1, 2)] * 12, "b", T)
    office.topic([(1, 2)] * 3, "a", U)
    plan = office.controller.brokers_seen(brokers(2))
    assert [(each.topic, each.index) for each in plan] == [
        *(("a", index) for index in range(3)),
        *(("b", index) for index in range(12)),
    ]


def test_a_change_that_was_decided_on_another_state_is_a_bug(office: Harness):
    [change] = office.controller.brokers_seen(brokers(2, 3))
    office.write([change])
    with pytest.raises(AssertionError):
        office.controller.changed(change, 2)


def test_a_change_that_is_written_after_its_topic_went_is_forgotten(office: Harness):
    [change] = office.controller.brokers_seen(brokers(2, 3))
    office.controller.topic_removed("t")
    assert office.controller.changed(change, 1) == []
    office.controller.check()


def test_a_change_says_whether_it_changes_the_assignment(office: Harness):
    office.see(1, 2, 3, 4)
    [change] = office.see(1, 2, 4)
    assert not change.changes_assignment
    assert office.move((1, 2, 4)) == ErrorCode.NONE
    assert office.written[-1].changes_assignment


# -- brokers ---------------------------------------------------------------------------------


def test_when_a_broker_dies_its_partitions_get_other_leaders_and_it_leaves_every_isr():
    office = Harness(1, 2, 3)
    office.topic([(1, 2, 3), (2, 3, 1), (3, 1, 2)], min_insync_replicas=2)
    office.see(2, 3)
    assert [office.state(each).leader for each in range(3)] == [2, 2, 3]
    assert all(1 not in office.state(each).isr for each in range(3))
    assert [office.state(each).leader_epoch for each in range(3)] == [1, 0, 0]


def test_the_death_of_a_broker_that_holds_nothing_plans_nothing(office: Harness):
    office.see(1, 2, 3, 4)
    assert office.see(1, 2, 3) == []


def test_a_broker_with_another_epoch_has_died_and_come_back(office: Harness):
    office.see(2, 3, b1=Broker(15, previous_epoch=10))
    assert (office.state().leader, office.state().isr) == (2, (2, 3))


def test_a_restart_that_is_seen_once_is_planned_for_once(office: Harness):
    assert office.see(2, 3, b1=Broker(15, previous_epoch=10)) != []
    assert office.see(2, 3, b1=Broker(15, previous_epoch=10)) == []


def test_a_sole_replica_that_restarted_cleanly_leads_again_in_another_epoch():
    office = Harness(1)
    office.topic([(1,)])
    office.see(b1=Broker(15, previous_epoch=10))
    assert (office.state().leader, office.state().leader_epoch) == (1, 1)
    assert not office.state().is_recovering


def test_a_sole_replica_that_crashed_leads_again_and_is_marked():
    office = Harness(1)
    office.topic([(1,)])
    office.see()
    office.see(b1=Broker(15))
    assert (office.state().leader, office.state().leader_epoch) == (1, 2)
    assert office.state().is_recovering


def test_who_crashed_is_not_elected_while_a_whole_replica_is_only_away(office: Harness):
    office.see(2, 3)
    office.see(3)
    office.see()
    assert office.state().elr == (2, 3)
    office.see(b3=Broker(35))
    assert (office.state().leader, office.state().elr) == (NO_BROKER, (2,))
    office.see(b2=Broker(25, previous_epoch=20), b3=Broker(35))
    assert (office.state().leader, office.state().isr) == (2, (2,))
    assert not office.state().is_recovering


def test_two_restarts_of_which_one_was_not_seen_are_not_trusted(office: Harness):
    office.see(1)
    assert office.state().elr == (2, 3)
    # Broker 2 crashed, came back as 23, and was then shut down cleanly.
    office.see(1, b2=Broker(25, previous_epoch=23))
    assert office.state().elr == (3,)


def test_an_eligible_broker_may_restart_cleanly_as_often_as_it_likes(office: Harness):
    office.see(1)
    office.see(1, b2=Broker(25, previous_epoch=20))
    office.see(1)
    office.see(1, b2=Broker(28, previous_epoch=25))
    assert office.state().elr == (2, 3)


def test_offline_partitions_are_elected_when_a_broker_comes(office: Harness):
    office.see(1)
    office.see()
    office.see(b2=Broker(25, previous_epoch=20))
    assert office.state().leader == 2


# -- a new controller ------------------------------------------------------------------------


def loaded(states: Mapping[int, PartitionState], **rules) -> Controller:
    controller = Controller()
    assert controller.topic_found("t", T, TopicRules(**rules), states) == []
    return controller


def test_a_new_controller_plans_nothing_before_it_has_seen_the_brokers(office: Harness):
    controller = loaded({0: office.state()})
    assert controller.audit() == []


def test_a_new_controller_elects_for_leaders_that_died_before_its_time(office: Harness):
    controller = loaded({0: office.state()}, min_insync_replicas=2)
    [change] = controller.brokers_seen(brokers(2, 3))
    assert (change.after.leader, change.after.isr) == (2, (2, 3))


def test_a_new_controller_takes_dead_members_from_the_isr(office: Harness):
    controller = loaded({0: office.state()}, min_insync_replicas=2)
    [change] = controller.brokers_seen(brokers(1, 2))
    assert (change.after.leader, change.after.isr, change.after.leader_epoch) == (1, (1, 2), 0)


def test_a_new_controller_elects_for_partitions_without_leader(office: Harness):
    office.see(1)
    office.see()
    controller = loaded({0: office.state()}, min_insync_replicas=2)
    [change] = controller.brokers_seen(brokers(b3=Broker(33, previous_epoch=30)))
    assert change.after.leader == 3


def test_a_new_controller_trusts_who_joined_in_the_life_it_still_lives(office: Harness):
    # All three were started for the first time, so none came from a clean shutdown.
    controller = loaded({0: office.state()}, min_insync_replicas=2)
    assert controller.brokers_seen(brokers(1, 2, 3)) == []


def test_a_new_controller_does_not_trust_who_crashed_while_nobody_was_controller(
    office: Harness,
):
    controller = loaded({0: office.state()}, min_insync_replicas=2)
    [change] = controller.brokers_seen(brokers(1, 3, b2=Broker(25)))
    assert (change.after.isr, change.after.elr) == ((1, 3), ())


# -- topics ----------------------------------------------------------------------------------


def test_a_new_partition_begins_in_epoch_zero(office: Harness):
    change = office.written[0]
    assert change.before is None
    assert change.after == PartitionState(
        (1, 2, 3), 1, 0, (1, 2, 3), broker_epochs={1: 10, 2: 20, 3: 30}
    )


def test_a_new_partition_waits_for_one_of_its_brokers():
    office = Harness(1)
    office.topic([(2, 3), (1, 2)])
    assert office.controller.state("t", 0) is None
    assert office.controller.holders("t") == {1, 2, 3}
    office.see(1, 3)
    assert (office.state(0).leader, office.state(0).isr) == (3, (3,))
    office.controller.topic_removed("t")
    office.controller.check()


def test_partitions_that_are_added_are_born_and_the_others_are_left_alone(
    office: Harness,
):
    had = office.state()
    office.topic([(1, 2, 3), (2, 3, 1)], min_insync_replicas=2)
    assert office.state(0) is had
    assert office.state(1).leader == 2


def test_a_state_that_turns_out_to_be_written_is_taken_over(office: Harness):
    [change] = office.controller.brokers_seen(brokers(2, 3))
    written = PartitionState(
        (1, 2, 3), 2, 1, (2, 3), partition_epoch=1, broker_epochs={2: 20, 3: 30}
    )
    rules = TopicRules(min_insync_replicas=2)
    assert office.controller.topic_found("t", T, rules, {0: written}) == []
    assert office.state() == written
    assert office.controller.topic_found("t", T, rules, {0: change.before}) == []
    assert office.state() == written


def test_a_topic_with_the_name_of_one_that_is_gone_is_another(office: Harness):
    office.see(2, 3)
    office.topic([(3, 2)], topic_id=U)
    assert office.state().replicas == (3, 2)
    assert office.controller.cluster.topic_of(T) is None
    office.controller.check()


def test_a_topic_that_is_removed_is_forgotten(office: Harness):
    assert office.controller.holders("t") == {1, 2, 3}
    office.controller.topic_removed("t")
    office.controller.topic_removed("t")
    office.controller.check()
    assert office.see(1) == []


def test_allowing_unclean_elections_elects_at_once(office: Harness):
    office.see(1)
    office.see(b2=Broker(25))
    assert office.state().leader == NO_BROKER
    rules = TopicRules(min_insync_replicas=2, unclean_leader_election=True)
    office.write(office.controller.settings_changed("t", rules))
    assert (office.state().leader, office.state().is_recovering) == (2, True)


def test_when_fewer_replicas_suffice_nobody_is_eligible_any_more(office: Harness):
    office.see(1)
    assert office.state().elr == (2, 3)
    office.write(office.controller.settings_changed("t", TopicRules(min_insync_replicas=1)))
    assert office.state().elr == ()


# -- AlterPartition --------------------------------------------------------------------------


def test_a_proposal_of_the_leader_is_accepted(office: Harness):
    assert office.propose(1, [1, 2]) == ErrorCode.NONE
    assert (office.state().isr, office.state().elr) == ((1, 2), ())
    assert (office.state().leader_epoch, office.state().partition_epoch) == (0, 1)
    assert office.propose(1, [3, 1, 2]) == ErrorCode.NONE
    assert office.state().isr == (1, 2, 3)


def test_a_proposal_that_shrinks_the_isr_too_much_makes_the_removed_eligible(
    office: Harness,
):
    office.propose(1, [1])
    assert (office.state().isr, office.state().elr) == ((1,), (2, 3))
    office.propose(1, [1, 3])
    assert (office.state().isr, office.state().elr) == ((1, 3), ())


@pytest.mark.parametrize("epoch", [9, 11])
def test_a_request_of_another_life_of_the_broker_is_refused(office: Harness, epoch: int):
    with pytest.raises(KafkaError) as refused:
        office.propose(1, [1, 2], sender_epoch=epoch)
    assert refused.value.code == ErrorCode.STALE_BROKER_EPOCH


def test_a_request_of_a_broker_that_is_dead_is_refused(office: Harness):
    office.see(2, 3)
    with pytest.raises(KafkaError) as refused:
        office.propose(1, [1, 2])
    assert refused.value.code == ErrorCode.STALE_BROKER_EPOCH


def test_unknown_topics_and_partitions_are_refused(office: Harness):
    nothing = Proposal((1,), {1: 10}, 0, 0)
    asked = {(U, 0): nothing, (T, 7): nothing}
    assert office.controller.isr_proposed(1, 10, asked) == {
        (U, 0): Decision(ErrorCode.UNKNOWN_TOPIC_ID),
        (T, 7): Decision(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    }


@pytest.mark.parametrize("newer", [{"leader_epoch": 1}, {"partition_epoch": 1}])
def test_a_leader_that_knows_more_than_the_controller_is_sent_to_the_real_one(office, newer):
    assert office.propose(1, [1, 2], **newer) == ErrorCode.NOT_CONTROLLER


def test_a_proposal_from_an_older_leader_epoch_is_fenced(office: Harness):
    office.see(2, 3)
    office.see(1, 2, 3)
    assert office.propose(1, [1, 2], leader_epoch=0) == ErrorCode.FENCED_LEADER_EPOCH


def test_only_the_leader_proposes(office: Harness):
    assert office.propose(2, [1, 2]) == ErrorCode.INVALID_REQUEST


def test_what_is_so_already_is_accepted_whatever_partition_epoch_the_leader_knew(
    office: Harness,
):
    office.propose(1, [1, 2])
    before = office.state()
    assert office.propose(1, [2, 1], partition_epoch=0) == ErrorCode.NONE
    assert office.state() is before


def test_a_proposal_from_an_older_partition_epoch_is_refused(office: Harness):
    office.propose(1, [1, 2])
    assert office.propose(1, [1], partition_epoch=0) == ErrorCode.INVALID_UPDATE_VERSION


@pytest.mark.parametrize("isr", [[], [2, 3], [1, 4], [1, 2, 2]])
def test_an_isr_that_cannot_be_is_refused(office: Harness, isr):
    office.see(1, 2, 3, 4)
    assert office.propose(1, isr) == ErrorCode.INVALID_REQUEST


def test_who_is_dead_cannot_join(office: Harness):
    office.see(1, 2)
    assert office.propose(1, [1, 2, 3]) == ErrorCode.INELIGIBLE_REPLICA


def test_who_is_shutting_down_cannot_join(office: Harness):
    office.write(office.controller.shutdown_asked(3, 30).plan)
    assert office.propose(1, [1, 2, 3]) == ErrorCode.INELIGIBLE_REPLICA


@pytest.mark.parametrize("epochs", [{1: 10, 2: 20}, {1: 10, 2: 20, 3: 31}, {1: 10, 2: 20, 3: -1}])
def test_who_fetched_in_another_life_or_never_cannot_join(office: Harness, epochs):
    office.propose(1, [1, 2])
    refusal = office.propose(1, [1, 2, 3], broker_epochs=epochs)
    assert refusal == ErrorCode.INELIGIBLE_REPLICA


def test_a_member_that_has_not_fetched_from_a_new_leader_may_stay(office: Harness):
    office.propose(1, [1, 2])
    assert office.propose(1, [1, 2, 3], broker_epochs={1: 10, 2: -1, 3: 30}) == ErrorCode.NONE


def test_a_member_that_restarted_may_not_stay_even_before_its_restart_is_written(
    office: Harness,
):
    office.controller.brokers_seen(brokers(1, 3, b2=Broker(25)))  # the plan is lost
    for epoch in (-1, 20):
        refusal = office.propose(1, [1, 2], broker_epochs={1: 10, 2: epoch})
        assert refusal == ErrorCode.INELIGIBLE_REPLICA


def test_a_removed_member_that_crashed_is_not_eligible_even_before_it_is_written(
    office: Harness,
):
    office.controller.brokers_seen(brokers(1, 3, b2=Broker(25)))  # the plan is lost
    assert office.propose(1, [1]) == ErrorCode.NONE
    assert office.state().elr == (3,)


def test_every_partition_of_a_request_is_judged_for_itself():
    office = Harness(1, 2)
    office.topic([(1, 2), (2, 1), (1, 2)])
    asked = {(T, index): Proposal((1,), {1: 10}, 0, 0) for index in range(3)}
    decisions = office.controller.isr_proposed(1, 10, asked)
    assert [decision.error for decision in decisions.values()] == [
        ErrorCode.NONE,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NONE,
    ]


# -- ControlledShutdown ----------------------------------------------------------------------


def test_a_broker_that_leaves_leads_nothing_that_others_can_lead():
    office = Harness(1, 2)
    office.topic([(1, 2), (2, 1), (1,)])
    shutdown = office.controller.shutdown_asked(1, 10)
    assert shutdown.remaining == [("t", 2)]
    office.write(shutdown.plan)
    assert [office.state(each).isr for each in range(3)] == [(2,), (2,), (1,)]
    assert [office.state(each).leader for each in range(3)] == [2, 2, 1]


def test_asking_again_answers_what_is_left(office: Harness):
    office.see(1)
    assert office.controller.shutdown_asked(1, 10).remaining == [("t", 0)]
    office.see(1, b2=Broker(25, previous_epoch=20))
    # The leader that leaves lets somebody join who can take over.
    assert office.propose(1, [1, 2], broker_epochs={1: 10, 2: 25}) == ErrorCode.NONE
    assert (office.state().leader, office.state().isr, office.state().elr) == (2, (2,), (1,))
    assert office.controller.shutdown_asked(1, 10) == ([], [])


def test_a_broker_that_leaves_gets_nothing_new_to_lead(office: Harness):
    office.write(office.controller.shutdown_asked(2, 20).plan)
    office.see(2, 3)
    assert office.state().leader == 3


def test_a_broker_that_comes_back_is_not_leaving_any_more(office: Harness):
    office.write(office.controller.shutdown_asked(2, 20).plan)
    office.see(1, 2, 3)
    assert office.controller.brokers[2].is_shutting_down
    office.see(1, 3, b2=Broker(25, previous_epoch=20))
    assert not office.controller.brokers[2].is_shutting_down


def test_a_shutdown_asked_for_by_another_life_is_refused(office: Harness):
    with pytest.raises(KafkaError) as refused:
        office.controller.shutdown_asked(1, 9)
    assert refused.value.code == ErrorCode.STALE_BROKER_EPOCH
    assert not office.controller.brokers[1].is_shutting_down


# -- ElectLeaders ----------------------------------------------------------------------------


def moved_away(office: Harness) -> None:
    """The leader is 2, and the preferred leader 1 is back and in sync."""
    office.see(2, 3)
    office.see(1, 2, 3)
    office.propose(2, [1, 2, 3])


def test_the_preferred_leader_is_elected(office: Harness):
    moved_away(office)
    assert office.elect(ElectionKind.PREFERRED) == ErrorCode.NONE
    assert (office.state().leader, office.state().leader_epoch) == (1, 2)
    assert office.elect(ElectionKind.PREFERRED) == ErrorCode.ELECTION_NOT_NEEDED


def test_a_preferred_leader_that_is_not_in_sync_is_not_available(office: Harness):
    office.see(2, 3)
    office.see(1, 2, 3)
    assert office.elect(ElectionKind.PREFERRED) == ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE


def test_an_unclean_election_can_be_asked_for(office: Harness):
    office.see(1)
    assert office.elect(ElectionKind.UNCLEAN) == ErrorCode.ELECTION_NOT_NEEDED
    office.see(b2=Broker(25))
    assert office.elect(ElectionKind.UNCLEAN) == ErrorCode.NONE
    assert (office.state().leader, office.state().is_recovering) == (2, True)
    office.see()
    assert office.elect(ElectionKind.UNCLEAN) == ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE


def test_no_election_is_held_for_a_partition_that_does_not_exist(office: Harness):
    for kind in ElectionKind:
        assert office.elect(kind, index=7) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_an_election_for_all_tells_only_of_those_that_needed_it():
    office = Harness(1, 2)
    office.topic([(1, 2), (2, 1)])
    office.see(2)
    office.see(1, 2)
    decisions = office.controller.election_asked(ElectionKind.PREFERRED)
    assert decisions == {("t", 0): Decision(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE)}


# -- balance ---------------------------------------------------------------------------------


def with_one_of_four_led_elsewhere() -> Harness:
    office = Harness(1, 2)
    office.topic([(1, 2)] * 4)
    moved = PartitionState((1, 2), 2, 1, (1, 2), partition_epoch=1, broker_epochs={1: 10, 2: 20})
    office.write(office.controller.topic_found("t", T, TopicRules(), {3: moved}))
    return office


def test_a_broker_that_leads_too_little_of_its_own_gets_it_back():
    office = with_one_of_four_led_elsewhere()
    office.write(office.controller.balance(24))
    assert [office.state(index).leader for index in range(4)] == [1, 1, 1, 1]
    assert office.controller.balance(0) == []


def test_a_broker_within_the_limit_is_left_alone():
    assert with_one_of_four_led_elsewhere().controller.balance(25) == []


def test_balance_does_not_elect_who_cannot_lead():
    office = Harness(1, 2)
    office.topic([(1, 2)])
    office.see(2)
    assert office.controller.balance(0) == []
    office.see(1, 2)
    assert office.controller.balance(0) == []


# -- reassignment ----------------------------------------------------------------------------


@pytest.fixture
def wide() -> Harness:
    office = Harness(1, 2, 3, 4, 5)
    office.topic([(1, 2, 3)], min_insync_replicas=2)
    return office


def test_a_partition_moves_when_all_at_the_target_are_in_sync(wide: Harness):
    assert wide.move((4, 5, 3)) == ErrorCode.NONE
    assert wide.state().replicas == (4, 5, 3, 1, 2)
    assert list(wide.controller.reassignments()) == [("t", 0)]
    wide.propose(1, [4, 3, 1, 2])
    assert wide.state().is_reassigning
    wide.propose(1, [4, 5, 3, 1, 2])
    assert (wide.state().replicas, wide.state().isr, wide.state().leader) == (
        (4, 5, 3),
        (4, 5, 3),
        4,
    )
    assert wide.state().leader_epoch == 1
    assert wide.controller.reassignments() == {}
    assert wide.controller.holders("t") == {3, 4, 5}


def test_a_move_that_only_takes_replicas_away_ends_at_once(wide: Harness):
    wide.move((2,))
    assert (wide.state().replicas, wide.state().leader, wide.state().isr) == ((2,), 2, (2,))


def test_a_move_that_is_given_up_goes_back(wide: Harness):
    wide.move((4, 5, 3))
    wide.propose(1, [4, 3, 1, 2])
    assert wide.move(None) == ErrorCode.NONE
    assert (set(wide.state().replicas), set(wide.state().isr)) == ({1, 2, 3}, {1, 2, 3})
    assert wide.move(None) == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


def test_a_new_controller_ends_the_move_that_another_began(wide: Harness):
    wide.move((4, 2, 3))
    lives = {each: each * 10 for each in range(1, 5)}
    proposal = Proposal((4, 2, 3, 1), lives, 0, wide.state().partition_epoch)
    [decision] = wide.controller.isr_proposed(1, 10, {(T, 0): proposal}).values()
    assert decision.change is not None
    # It is written, and then the controller dies.
    controller = loaded({0: decision.change.after}, min_insync_replicas=2)
    [change] = controller.brokers_seen(brokers(1, 2, 3, 4, 5))
    assert (change.after.replicas, change.after.leader) == ((4, 2, 3), 4)


def test_a_move_under_way_can_be_sent_elsewhere(wide: Harness):
    wide.move((4, 2, 3))
    assert wide.move((5, 2, 3)) == ErrorCode.NONE
    assert (wide.state().replicas, wide.state().adding) == ((5, 2, 3, 1), (5,))
    wide.propose(1, [5, 2, 3])
    wide.propose(1, [5, 2, 3, 1])
    assert wide.state().replicas == (5, 2, 3)


def test_going_on_with_the_move_under_way_has_nothing_to_do(wide: Harness):
    wide.move((4, 2, 3))
    before = wide.state()
    assert wide.move((4, 2, 3)) == ErrorCode.NONE
    assert wide.state() is before


@pytest.mark.parametrize("target", [(), (1, 1, 2), (1, 2, 9), (-1,)])
def test_targets_that_cannot_be_are_refused_with_a_reason(wide: Harness, target):
    decision = wide.controller.reassignment_asked({("t", 0): target})["t", 0]
    assert decision.error == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert decision.detail


def test_a_dead_broker_may_stay_at_the_target(wide: Harness):
    wide.see(1, 3, 4)
    assert wide.move((4, 2)) == ErrorCode.NONE


def test_a_move_is_not_given_up_if_what_it_added_is_all_that_is_whole():
    office = Harness(1, 4, 5)
    office.topic([(1,)])
    office.move((4, 5))
    office.propose(1, [4, 1])
    office.see(4, 5)
    assert (office.state().leader, office.state().isr) == (4, (4,))
    assert office.move(None) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert office.move((5,)) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert office.move((5, 4)) == ErrorCode.NONE


def test_partitions_that_do_not_exist_are_not_moved(wide: Harness):
    assert wide.move((1,), index=7) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert wide.move(None, index=7) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_move_to_where_it_is_has_nothing_to_do(wide: Harness):
    before = wide.state()
    assert wide.move((1, 2, 3)) == ErrorCode.NONE
    assert wide.state() is before


# -- many ------------------------------------------------------------------------------------


def test_only_what_a_dead_broker_held_is_looked_at():
    """Of 20,000 partitions on 20 brokers it held 3,000; the rest may cost nothing."""

    def cluster(is_held: Callable[[tuple[int, ...]], bool]) -> Controller:
        controller = Controller()
        for number in range(20):
            states = {}
            for index in range(1000):
                replicas = tuple((number + index + each) % 20 for each in range(3))
                lives = {each: each * 10 for each in replicas}
                if is_held(replicas):
                    states[index] = PartitionState(
                        replicas, replicas[0], 0, replicas, broker_epochs=lives
                    )
            rules = TopicRules(min_insync_replicas=2)
            controller.topic_found(f"t{number}", uuid.UUID(int=number + 1), rules, states)
        assert controller.brokers_seen(brokers(*range(20))) == []
        return controller

    def calls_to_replace(controller: Controller) -> int:
        """How many functions are called until all is planned: work that no busy machine slows."""
        alive = brokers(*range(20))
        del alive[7]
        calls = 0

        def count(_frame: object, event: str, _argument: object) -> None:
            nonlocal calls
            calls += event in ("call", "c_call")

        sys.setprofile(count)
        plan = controller.brokers_seen(alive)
        sys.setprofile(None)
        elected = [change for change in plan if change.after.leader != change.before.leader]
        assert (len(plan), len(elected)) == (3000, 1000)
        return calls

    whole = calls_to_replace(cluster(lambda _: True))
    assert whole <= 1.01 * calls_to_replace(cluster(lambda replicas: 7 in replicas))
