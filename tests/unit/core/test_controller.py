"""The controller's plans for every fact, and its answers to every request."""

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
from hightide.core.controller.leader_election import Broker, LogEnd
from hightide.core.partition.isr import Proposal
from hightide.core.partition.state import NO_BROKER, PartitionState
from hightide.wire.errors import ErrorCode, KafkaError

T = uuid.UUID(int=1)
U = uuid.UUID(int=2)


def brokers(*ids: int, **registrations: Broker) -> dict[int, Broker]:
    """Broker n has broker epoch n * 10 at first; `b2=Broker(…)` sets another."""
    return {broker_id: Broker(broker_id * 10) for broker_id in ids} | {
        int(name[1:]): broker for name, broker in registrations.items()
    }


class Harness:
    """A controller, and a store that writes its plans."""

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
        """Return the answer to a valid proposal with these differences; write it if accepted."""
        state = self.state(index)
        proposal = Proposal(
            tuple(isr),
            differing.get("broker_epochs", {member: member * 10 for member in isr}),
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

    def answer_logs(self, partitions=None, **ends: tuple[int, int]):
        """Answer what the controller wants to know with `b2=(last epoch, end)`; return that."""
        needed = self.controller.logs_needed(partitions)
        for broker_id, wanted in needed.items():
            end = LogEnd(*ends[f"b{broker_id}"])
            logs = {key: (epoch, end) for key, epoch in wanted.items()}
            epoch = self.controller.brokers[broker_id].epoch
            self.write(self.controller.logs_read(broker_id, epoch, logs))
        return needed

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
def harness() -> Harness:
    """Three brokers and a partition on all of them, of which two must be in sync."""
    harness = Harness(1, 2, 3)
    harness.topic([(1, 2, 3)], min_insync_replicas=2)
    return harness


# -- plans -----------------------------------------------------------------------------------


def test_a_plan_changes_nothing_until_it_is_written(harness: Harness):
    before = harness.state()
    plan = harness.controller.brokers_seen(brokers(2, 3))
    assert [change.before for change in plan] == [before]
    assert harness.state() is before
    harness.write(plan)
    assert (harness.state().leader, harness.state().partition_epoch) == (2, 1)


def test_a_plan_that_could_not_be_written_is_planned_again_by_an_audit(harness: Harness):
    lost = harness.controller.brokers_seen(brokers(2, 3))
    assert harness.controller.brokers_seen(brokers(2, 3)) == []
    assert harness.controller.audit() == lost


def test_when_all_is_well_an_audit_finds_nothing(harness: Harness):
    assert harness.controller.audit() == []


def test_a_plan_is_in_the_order_of_topics_and_partitions():
    harness = Harness(1, 2)
    harness.topic([(1, 2)] * 12, "b", T)
    harness.topic([(1, 2)] * 3, "a", U)
    plan = harness.controller.brokers_seen(brokers(2))
    assert [(change.topic, change.index) for change in plan] == [
        *(("a", index) for index in range(3)),
        *(("b", index) for index in range(12)),
    ]


def test_a_change_that_was_decided_on_another_state_is_a_bug(harness: Harness):
    [change] = harness.controller.brokers_seen(brokers(2, 3))
    harness.write([change])
    with pytest.raises(AssertionError):
        harness.controller.changed(change, 2)


def test_a_change_that_is_written_after_its_topic_went_is_forgotten(harness: Harness):
    [change] = harness.controller.brokers_seen(brokers(2, 3))
    harness.controller.topic_removed("t")
    assert harness.controller.changed(change, 1) == []
    harness.controller.check()


def test_a_change_says_whether_it_changes_the_assignment(harness: Harness):
    harness.see(1, 2, 3, 4)
    [change] = harness.see(1, 2, 4)
    assert not change.changes_assignment
    assert harness.move((1, 2, 4)) == ErrorCode.NONE
    assert harness.written[-1].changes_assignment


# -- brokers ---------------------------------------------------------------------------------


def test_when_a_broker_dies_its_partitions_get_other_leaders_and_it_leaves_every_isr():
    harness = Harness(1, 2, 3)
    harness.topic([(1, 2, 3), (2, 3, 1), (3, 1, 2)], min_insync_replicas=2)
    harness.see(2, 3)
    assert [harness.state(index).leader for index in range(3)] == [2, 2, 3]
    assert all(1 not in harness.state(index).isr for index in range(3))
    assert [harness.state(index).leader_epoch for index in range(3)] == [1, 0, 0]


def test_the_death_of_a_broker_that_holds_nothing_plans_nothing(harness: Harness):
    harness.see(1, 2, 3, 4)
    assert harness.see(1, 2, 3) == []


def test_a_broker_with_another_epoch_has_died_and_come_back(harness: Harness):
    harness.see(2, 3, b1=Broker(15, previous_epoch=10))
    assert (harness.state().leader, harness.state().isr) == (2, (2, 3))


def test_a_restart_that_is_seen_once_is_planned_for_once(harness: Harness):
    assert harness.see(2, 3, b1=Broker(15, previous_epoch=10)) != []
    assert harness.see(2, 3, b1=Broker(15, previous_epoch=10)) == []


def test_a_sole_replica_that_restarted_cleanly_leads_again_in_another_epoch():
    harness = Harness(1)
    harness.topic([(1,)])
    harness.see(b1=Broker(15, previous_epoch=10))
    assert (harness.state().leader, harness.state().leader_epoch) == (1, 1)
    assert not harness.state().is_recovering


def test_a_sole_replica_that_crashed_leads_again_and_is_marked():
    harness = Harness(1)
    harness.topic([(1,)])
    harness.see()
    harness.see(b1=Broker(15))
    assert harness.controller.logs_needed() == {}
    assert (harness.state().leader, harness.state().leader_epoch) == (1, 2)
    assert harness.state().is_recovering


def test_the_brokers_of_the_last_isr_and_elr_are_asked_for_their_logs(harness: Harness):
    harness.see(2, 3)
    harness.see(3)
    harness.see()
    harness.see(b2=Broker(25))
    assert harness.controller.logs_needed() == {}, "3 is eligible, and only away"
    harness.see(1, b2=Broker(25), b3=Broker(35))
    needed = harness.answer_logs(b2=(1, 100), b3=(1, 7))
    assert needed.keys() == {2, 3}
    assert (harness.state().leader, harness.state().is_recovering) == (2, True)
    assert harness.controller.logs_needed() == {}


def test_an_answer_from_another_leader_epoch_or_broker_epoch_does_not_count(harness: Harness):
    harness.see(2, 3)
    harness.see()
    brokers_now = {"b2": Broker(25), "b3": Broker(35)}
    harness.see(**brokers_now)
    epoch = harness.state().leader_epoch
    late = {("t", 0): (epoch - 1, LogEnd(1, 100))}
    right = {("t", 0): (epoch, LogEnd(1, 100))}
    harness.write(harness.controller.logs_read(2, 25, late))
    harness.write(harness.controller.logs_read(2, 20, right))
    harness.write(harness.controller.logs_read(3, 35, right))
    assert harness.state().leader == NO_BROKER
    assert harness.controller.logs_needed() == {2: {("t", 0): epoch}}
    # A broker that restarts is asked again.
    harness.see(**brokers_now | {"b3": Broker(36)})
    assert harness.controller.logs_needed().keys() == {2, 3}


def test_if_the_last_members_have_no_log_the_others_are_asked_at_once(harness: Harness):
    harness.see(2, 3)
    harness.see()
    harness.see(1, b2=Broker(25), b3=Broker(35))
    epoch, controller = harness.state().leader_epoch, harness.controller
    empty = {("t", 0): (epoch, LogEnd(-1, 0))}
    harness.write(controller.logs_read(2, 25, empty))
    before = controller.cluster.recovery_changes
    harness.write(controller.logs_read(3, 35, empty))
    assert controller.cluster.recovery_changes > before, "or the question waits for the next audit"
    assert controller.logs_needed() == {1: {("t", 0): epoch}}
    harness.write(controller.logs_read(1, 10, empty))
    assert harness.state().leader == 2, "a last member, because no log is longer"


def test_a_partition_that_waits_for_logs_says_whose(harness: Harness):
    harness.see(2, 3)
    harness.see()
    harness.see(b2=Broker(25), b3=Broker(35))
    harness.see(b2=Broker(25))
    epoch = harness.state().leader_epoch
    harness.write(harness.controller.logs_read(2, 25, {("t", 0): (epoch, LogEnd(1, 100))}))
    assert harness.controller.recovery_waits() == {("t", 0): (3,)}


def test_who_crashed_is_not_elected_while_a_whole_replica_is_only_away(harness: Harness):
    harness.see(2, 3)
    harness.see(3)
    harness.see()
    assert harness.state().elr == (2, 3)
    harness.see(b3=Broker(35))
    assert (harness.state().leader, harness.state().elr) == (NO_BROKER, (2,))
    harness.see(b2=Broker(25, previous_epoch=20), b3=Broker(35))
    assert (harness.state().leader, harness.state().isr) == (2, (2,))
    assert not harness.state().is_recovering


def test_two_restarts_of_which_one_was_not_seen_are_not_trusted(harness: Harness):
    harness.see(1)
    assert harness.state().elr == (2, 3)
    # Broker 2 crashed, came back as 23, and was then shut down cleanly.
    harness.see(1, b2=Broker(25, previous_epoch=23))
    assert harness.state().elr == (3,)


def test_an_eligible_broker_may_restart_cleanly_as_often_as_it_likes(harness: Harness):
    harness.see(1)
    harness.see(1, b2=Broker(25, previous_epoch=20))
    harness.see(1)
    harness.see(1, b2=Broker(28, previous_epoch=25))
    assert harness.state().elr == (2, 3)


def test_offline_partitions_are_elected_when_a_broker_comes(harness: Harness):
    harness.see(1)
    harness.see()
    harness.see(b2=Broker(25, previous_epoch=20))
    assert harness.state().leader == 2


# -- a new controller ------------------------------------------------------------------------


def loaded(states: Mapping[int, PartitionState], **rules) -> Controller:
    controller = Controller()
    assert controller.topic_found("t", T, TopicRules(**rules), states) == []
    return controller


def test_a_new_controller_plans_nothing_before_it_has_seen_the_brokers(harness: Harness):
    controller = loaded({0: harness.state()})
    assert controller.audit() == []


def test_a_new_controller_elects_for_leaders_that_died_before_its_time(harness: Harness):
    controller = loaded({0: harness.state()}, min_insync_replicas=2)
    [change] = controller.brokers_seen(brokers(2, 3))
    assert (change.after.leader, change.after.isr) == (2, (2, 3))


def test_a_new_controller_takes_dead_members_from_the_isr(harness: Harness):
    controller = loaded({0: harness.state()}, min_insync_replicas=2)
    [change] = controller.brokers_seen(brokers(1, 2))
    assert (change.after.leader, change.after.isr, change.after.leader_epoch) == (1, (1, 2), 0)


def test_a_new_controller_elects_for_partitions_without_leader(harness: Harness):
    harness.see(1)
    harness.see()
    controller = loaded({0: harness.state()}, min_insync_replicas=2)
    [change] = controller.brokers_seen(brokers(b3=Broker(33, previous_epoch=30)))
    assert change.after.leader == 3


def test_a_new_controller_trusts_a_member_in_the_broker_epoch_in_which_it_joined(harness: Harness):
    # All three were started for the first time, so none came from a clean shutdown.
    controller = loaded({0: harness.state()}, min_insync_replicas=2)
    assert controller.brokers_seen(brokers(1, 2, 3)) == []


def test_a_new_controller_distrusts_a_broker_that_crashed_while_there_was_no_controller(
    harness: Harness,
):
    controller = loaded({0: harness.state()}, min_insync_replicas=2)
    [change] = controller.brokers_seen(brokers(1, 3, b2=Broker(25)))
    assert (change.after.isr, change.after.elr) == ((1, 3), ())


# -- topics ----------------------------------------------------------------------------------


def test_a_new_partition_begins_in_epoch_zero(harness: Harness):
    change = harness.written[0]
    assert change.before is None
    assert change.after == PartitionState(
        (1, 2, 3), 1, 0, (1, 2, 3), broker_epochs={1: 10, 2: 20, 3: 30}
    )


def test_a_new_partition_waits_for_one_of_its_brokers():
    harness = Harness(1)
    harness.topic([(2, 3), (1, 2)])
    assert harness.controller.state("t", 0) is None
    assert harness.controller.holders("t") == {1, 2, 3}
    harness.see(1, 3)
    assert (harness.state(0).leader, harness.state(0).isr) == (3, (3,))
    harness.controller.topic_removed("t")
    harness.controller.check()


def test_partitions_that_are_added_are_born_and_the_others_are_left_alone(
    harness: Harness,
):
    had = harness.state()
    harness.topic([(1, 2, 3), (2, 3, 1)], min_insync_replicas=2)
    assert harness.state(0) is had
    assert harness.state(1).leader == 2


def test_a_state_that_turns_out_to_be_written_is_taken_over(harness: Harness):
    [change] = harness.controller.brokers_seen(brokers(2, 3))
    written = PartitionState(
        (1, 2, 3), 2, 1, (2, 3), partition_epoch=1, broker_epochs={2: 20, 3: 30}
    )
    rules = TopicRules(min_insync_replicas=2)
    assert harness.controller.topic_found("t", T, rules, {0: written}) == []
    assert harness.state() == written
    assert change.before is not None
    assert harness.controller.topic_found("t", T, rules, {0: change.before}) == []
    assert harness.state() == written


def test_a_topic_with_the_name_of_one_that_is_gone_is_another(harness: Harness):
    harness.see(2, 3)
    harness.topic([(3, 2)], topic_id=U)
    assert harness.state().replicas == (3, 2)
    assert harness.controller.cluster.topic_of(T) is None
    harness.controller.check()


def test_a_topic_that_is_removed_is_forgotten(harness: Harness):
    assert harness.controller.holders("t") == {1, 2, 3}
    harness.controller.topic_removed("t")
    harness.controller.topic_removed("t")
    harness.controller.check()
    assert harness.see(1) == []


def test_allowing_unclean_elections_elects_at_once(harness: Harness):
    harness.see(1)
    harness.see(b2=Broker(25))
    assert harness.state().leader == NO_BROKER
    rules = TopicRules(min_insync_replicas=2, unclean_leader_election=True)
    harness.write(harness.controller.settings_changed("t", rules))
    harness.answer_logs(b2=(0, 1))
    assert (harness.state().leader, harness.state().is_recovering) == (2, True)


def test_when_fewer_replicas_suffice_the_elr_is_emptied(harness: Harness):
    harness.see(1)
    assert harness.state().elr == (2, 3)
    harness.write(harness.controller.settings_changed("t", TopicRules(min_insync_replicas=1)))
    assert harness.state().elr == ()


# -- AlterPartition --------------------------------------------------------------------------


def test_a_proposal_of_the_leader_is_accepted(harness: Harness):
    assert harness.propose(1, [1, 2]) == ErrorCode.NONE
    assert (harness.state().isr, harness.state().elr) == ((1, 2), ())
    assert (harness.state().leader_epoch, harness.state().partition_epoch) == (0, 1)
    assert harness.propose(1, [3, 1, 2]) == ErrorCode.NONE
    assert harness.state().isr == (1, 2, 3)


def test_a_proposal_that_shrinks_the_isr_too_much_makes_the_removed_eligible(
    harness: Harness,
):
    harness.propose(1, [1])
    assert (harness.state().isr, harness.state().elr) == ((1,), (2, 3))
    harness.propose(1, [1, 3])
    assert (harness.state().isr, harness.state().elr) == ((1, 3), ())


@pytest.mark.parametrize("epoch", [9, 11])
def test_a_request_of_another_broker_epoch_is_refused(harness: Harness, epoch: int):
    with pytest.raises(KafkaError) as refused:
        harness.propose(1, [1, 2], sender_epoch=epoch)
    assert refused.value.code == ErrorCode.STALE_BROKER_EPOCH


def test_a_request_of_a_broker_that_is_dead_is_refused(harness: Harness):
    harness.see(2, 3)
    with pytest.raises(KafkaError) as refused:
        harness.propose(1, [1, 2])
    assert refused.value.code == ErrorCode.STALE_BROKER_EPOCH


def test_unknown_topics_and_partitions_are_refused(harness: Harness):
    nothing = Proposal((1,), {1: 10}, 0, 0)
    asked = {(U, 0): nothing, (T, 7): nothing}
    assert harness.controller.isr_proposed(1, 10, asked) == {
        (U, 0): Decision(ErrorCode.UNKNOWN_TOPIC_ID),
        (T, 7): Decision(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    }


@pytest.mark.parametrize("newer", [{"leader_epoch": 1}, {"partition_epoch": 1}])
def test_a_leader_that_knows_more_than_the_controller_is_sent_to_the_real_one(harness, newer):
    assert harness.propose(1, [1, 2], **newer) == ErrorCode.NOT_CONTROLLER


def test_a_proposal_from_an_older_leader_epoch_is_fenced(harness: Harness):
    harness.see(2, 3)
    harness.see(1, 2, 3)
    assert harness.propose(1, [1, 2], leader_epoch=0) == ErrorCode.FENCED_LEADER_EPOCH


def test_only_the_leader_proposes(harness: Harness):
    assert harness.propose(2, [1, 2]) == ErrorCode.INVALID_REQUEST


def test_what_is_so_already_is_accepted_whatever_partition_epoch_the_leader_knew(
    harness: Harness,
):
    harness.propose(1, [1, 2])
    before = harness.state()
    assert harness.propose(1, [2, 1], partition_epoch=0) == ErrorCode.NONE
    assert harness.state() is before


def test_a_proposal_from_an_older_partition_epoch_is_refused(harness: Harness):
    harness.propose(1, [1, 2])
    assert harness.propose(1, [1], partition_epoch=0) == ErrorCode.INVALID_UPDATE_VERSION


@pytest.mark.parametrize("isr", [[], [2, 3], [1, 4], [1, 2, 2]])
def test_an_isr_that_cannot_be_is_refused(harness: Harness, isr):
    harness.see(1, 2, 3, 4)
    assert harness.propose(1, isr) == ErrorCode.INVALID_REQUEST


def test_who_is_dead_cannot_join(harness: Harness):
    harness.see(1, 2)
    assert harness.propose(1, [1, 2, 3]) == ErrorCode.INELIGIBLE_REPLICA


def test_who_is_shutting_down_cannot_join(harness: Harness):
    harness.write(harness.controller.shutdown_asked(3, 30).plan)
    assert harness.propose(1, [1, 2, 3]) == ErrorCode.INELIGIBLE_REPLICA


@pytest.mark.parametrize("epochs", [{1: 10, 2: 20}, {1: 10, 2: 20, 3: 31}, {1: 10, 2: 20, 3: -1}])
def test_a_replica_that_fetched_in_another_epoch_or_never_cannot_join(harness: Harness, epochs):
    harness.propose(1, [1, 2])
    refusal = harness.propose(1, [1, 2, 3], broker_epochs=epochs)
    assert refusal == ErrorCode.INELIGIBLE_REPLICA


def test_a_member_that_has_not_fetched_from_a_new_leader_may_stay(harness: Harness):
    harness.propose(1, [1, 2])
    assert harness.propose(1, [1, 2, 3], broker_epochs={1: 10, 2: -1, 3: 30}) == ErrorCode.NONE


def test_a_member_that_restarted_may_not_stay_even_before_its_restart_is_written(
    harness: Harness,
):
    harness.controller.brokers_seen(brokers(1, 3, b2=Broker(25)))  # the plan is lost
    for epoch in (-1, 20):
        refusal = harness.propose(1, [1, 2], broker_epochs={1: 10, 2: epoch})
        assert refusal == ErrorCode.INELIGIBLE_REPLICA


def test_a_removed_member_that_crashed_is_not_eligible_even_before_it_is_written(
    harness: Harness,
):
    harness.controller.brokers_seen(brokers(1, 3, b2=Broker(25)))  # the plan is lost
    assert harness.propose(1, [1]) == ErrorCode.NONE
    assert harness.state().elr == (3,)


def test_every_partition_of_a_request_is_judged_for_itself():
    harness = Harness(1, 2)
    harness.topic([(1, 2), (2, 1), (1, 2)])
    asked = {(T, index): Proposal((1,), {1: 10}, 0, 0) for index in range(3)}
    decisions = harness.controller.isr_proposed(1, 10, asked)
    assert [decision.error for decision in decisions.values()] == [
        ErrorCode.NONE,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NONE,
    ]


# -- ControlledShutdown ----------------------------------------------------------------------


def test_a_broker_that_leaves_leads_nothing_that_others_can_lead():
    harness = Harness(1, 2)
    harness.topic([(1, 2), (2, 1), (1,)])
    shutdown = harness.controller.shutdown_asked(1, 10)
    assert shutdown.remaining == [("t", 2)]
    harness.write(shutdown.plan)
    assert [harness.state(index).isr for index in range(3)] == [(2,), (2,), (1,)]
    assert [harness.state(index).leader for index in range(3)] == [2, 2, 1]


def test_asking_again_answers_what_is_left(harness: Harness):
    harness.see(1)
    assert harness.controller.shutdown_asked(1, 10).remaining == [("t", 0)]
    harness.see(1, b2=Broker(25, previous_epoch=20))
    # A leader that is shutting down adds a member that can take over.
    assert harness.propose(1, [1, 2], broker_epochs={1: 10, 2: 25}) == ErrorCode.NONE
    assert (harness.state().leader, harness.state().isr, harness.state().elr) == (2, (2,), (1,))
    assert harness.controller.shutdown_asked(1, 10) == ([], [])


def test_a_broker_that_leaves_gets_nothing_new_to_lead(harness: Harness):
    harness.write(harness.controller.shutdown_asked(2, 20).plan)
    harness.see(2, 3)
    assert harness.state().leader == 3


def test_a_broker_that_comes_back_is_not_leaving_any_more(harness: Harness):
    harness.write(harness.controller.shutdown_asked(2, 20).plan)
    harness.see(1, 2, 3)
    assert harness.controller.brokers[2].is_shutting_down
    harness.see(1, 3, b2=Broker(25, previous_epoch=20))
    assert not harness.controller.brokers[2].is_shutting_down


def test_a_shutdown_requested_in_another_broker_epoch_is_refused(harness: Harness):
    with pytest.raises(KafkaError) as refused:
        harness.controller.shutdown_asked(1, 9)
    assert refused.value.code == ErrorCode.STALE_BROKER_EPOCH
    assert not harness.controller.brokers[1].is_shutting_down


# -- ElectLeaders ----------------------------------------------------------------------------


def moved_away(harness: Harness) -> None:
    """Let broker 2 lead, with the preferred leader 1 back and in sync."""
    harness.see(2, 3)
    harness.see(1, 2, 3)
    harness.propose(2, [1, 2, 3])


def test_the_preferred_leader_is_elected(harness: Harness):
    moved_away(harness)
    assert harness.elect(ElectionKind.PREFERRED) == ErrorCode.NONE
    assert (harness.state().leader, harness.state().leader_epoch) == (1, 2)
    assert harness.elect(ElectionKind.PREFERRED) == ErrorCode.ELECTION_NOT_NEEDED


def test_a_preferred_leader_that_is_not_in_sync_is_not_available(harness: Harness):
    harness.see(2, 3)
    harness.see(1, 2, 3)
    assert harness.elect(ElectionKind.PREFERRED) == ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE


def test_an_unclean_election_can_be_asked_for(harness: Harness):
    harness.see(1)
    assert harness.elect(ElectionKind.UNCLEAN) == ErrorCode.ELECTION_NOT_NEEDED
    harness.see(b2=Broker(25))
    assert harness.elect(ElectionKind.UNCLEAN) == ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    harness.answer_logs([("t", 0)], b2=(0, 1))
    assert harness.elect(ElectionKind.UNCLEAN) == ErrorCode.NONE
    assert (harness.state().leader, harness.state().is_recovering) == (2, True)
    harness.see()
    assert harness.elect(ElectionKind.UNCLEAN) == ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE


def test_no_election_is_held_for_a_partition_that_does_not_exist(harness: Harness):
    for kind in ElectionKind:
        assert harness.elect(kind, index=7) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_an_election_for_all_tells_only_of_those_that_needed_it():
    harness = Harness(1, 2)
    harness.topic([(1, 2), (2, 1)])
    harness.see(2)
    harness.see(1, 2)
    decisions = harness.controller.election_asked(ElectionKind.PREFERRED)
    assert decisions == {("t", 0): Decision(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE)}


# -- balance ---------------------------------------------------------------------------------


def with_one_of_four_led_elsewhere() -> Harness:
    harness = Harness(1, 2)
    harness.topic([(1, 2)] * 4)
    moved = PartitionState((1, 2), 2, 1, (1, 2), partition_epoch=1, broker_epochs={1: 10, 2: 20})
    harness.write(harness.controller.topic_found("t", T, TopicRules(), {3: moved}))
    return harness


def test_a_broker_that_leads_too_little_of_its_own_gets_it_back():
    harness = with_one_of_four_led_elsewhere()
    harness.write(harness.controller.balance(24))
    assert [harness.state(index).leader for index in range(4)] == [1, 1, 1, 1]
    assert harness.controller.balance(0) == []


def test_a_broker_within_the_limit_is_left_alone():
    assert with_one_of_four_led_elsewhere().controller.balance(25) == []


def test_balance_does_not_elect_who_cannot_lead():
    harness = Harness(1, 2)
    harness.topic([(1, 2)])
    harness.see(2)
    assert harness.controller.balance(0) == []
    harness.see(1, 2)
    assert harness.controller.balance(0) == []


# -- reassignment ----------------------------------------------------------------------------


@pytest.fixture
def wide() -> Harness:
    harness = Harness(1, 2, 3, 4, 5)
    harness.topic([(1, 2, 3)], min_insync_replicas=2)
    return harness


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
    epochs = {broker_id: broker_id * 10 for broker_id in range(1, 5)}
    proposal = Proposal((4, 2, 3, 1), epochs, 0, wide.state().partition_epoch)
    [decision] = wide.controller.isr_proposed(1, 10, {(T, 0): proposal}).values()
    assert decision.change is not None
    # The change is written, and then the controller dies.
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
    harness = Harness(1, 4, 5)
    harness.topic([(1,)])
    harness.move((4, 5))
    harness.propose(1, [4, 1])
    harness.see(4, 5)
    assert (harness.state().leader, harness.state().isr) == (4, (4,))
    assert harness.move(None) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert harness.move((5,)) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert harness.move((5, 4)) == ErrorCode.NONE


def test_partitions_that_do_not_exist_are_not_moved(wide: Harness):
    assert wide.move((1,), index=7) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert wide.move(None, index=7) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_move_to_where_it_is_has_nothing_to_do(wide: Harness):
    before = wide.state()
    assert wide.move((1, 2, 3)) == ErrorCode.NONE
    assert wide.state() is before


# -- many ------------------------------------------------------------------------------------


def test_only_what_a_dead_broker_held_is_looked_at():
    """The dead broker held 3,000 of 20,000 partitions; the others must cost nothing."""

    def cluster(is_held: Callable[[tuple[int, ...]], bool]) -> Controller:
        controller = Controller()
        for number in range(20):
            states = {}
            for index in range(1000):
                replicas = tuple((number + index + offset) % 20 for offset in range(3))
                epochs = {broker_id: broker_id * 10 for broker_id in replicas}
                if is_held(replicas):
                    states[index] = PartitionState(
                        replicas, replicas[0], 0, replicas, broker_epochs=epochs
                    )
            rules = TopicRules(min_insync_replicas=2)
            controller.topic_found(f"t{number}", uuid.UUID(int=number + 1), rules, states)
        assert controller.brokers_seen(brokers(*range(20))) == []
        return controller

    def calls_to_replace(controller: Controller) -> int:
        """Count the function calls of a plan: a measure that a busy machine does not change."""
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
