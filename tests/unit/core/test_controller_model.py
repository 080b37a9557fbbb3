"""The controller keeps every partition safe and available, whatever happens to the cluster.

Hypothesis runs the events (`controller_world.py`).  Then one rule after the other is removed from
the controller, and the model must notice each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from hightide.core.controller import (
    alter_partition,
    cluster_state,
    controller,
    leader_election,
    reassignment,
)
from hightide.core.controller.cluster_state import Partition, TopicRules
from hightide.core.controller.controller import ElectionKind
from hightide.core.partition.state import NO_BROKER, FailureKind
from hightide.wire.errors import ErrorCode
from tests.unit.core.controller_world import World, refusing

BROKERS = st.integers(1, 4)
SOME = st.sets(BROKERS)
ALL = st.just({1, 2, 3, 4})
RULES = st.builds(TopicRules, st.integers(1, 3), st.sampled_from([False, False, False, True]))
ASSIGNMENTS = st.builds(
    lambda order, count: tuple(order[:count]),
    st.permutations(range(1, 5)),
    st.sampled_from([3, 2, 3, 1, 4]),
)
CHANCE = st.integers(0, 99)


class AnyCluster(RuleBasedStateMachine):
    """Every event of brokers, topics and controllers, in any order."""

    @initialize(replicas=ASSIGNMENTS, rules=RULES)
    def begin(self, replicas: tuple[int, ...], rules: TopicRules) -> None:
        self.world = World(broker_count=4)
        self.world.create("t", [replicas], rules)

    def partition(self, chance: int) -> Partition | None:
        keys = sorted(self.world.store)
        return keys[chance % len(keys)] if keys else None

    # -- brokers ---------------------------------------------------------------------------

    @rule(number=BROKERS, cleanly=st.booleans())
    def a_broker_stops(self, number: int, cleanly: bool) -> None:
        if self.world.machines[number].is_up:
            self.world.stop(number, cleanly)

    @rule(number=BROKERS, has_lost=st.booleans())
    def a_broker_starts(self, number: int, has_lost: bool) -> None:
        if not self.world.machines[number].is_up:
            self.world.start(number, has_lost)

    @rule(number=BROKERS, cleanly=st.booleans(), has_lost=st.booleans())
    def a_broker_restarts(self, number: int, cleanly: bool, has_lost: bool) -> None:
        self.a_broker_stops(number, cleanly)
        self.world.start(number, has_lost)

    @rule()
    def brokers_say_how_far_their_logs_reach(self) -> None:
        self.world.answer_logs()

    @rule(number=BROKERS, is_late=st.booleans())
    def a_broker_asks_to_leave(self, number: int, is_late: bool) -> None:
        machine = self.world.machines[number]
        known = self.world.controller.brokers.get(number)
        epoch = machine.lineage[-2 if is_late and len(machine.lineage) > 1 else -1]
        if known is None or known.epoch != epoch:
            with refusing(ErrorCode.STALE_BROKER_EPOCH):
                self.world.controller.shutdown_asked(number, epoch)
        else:
            self.world.plan(self.world.controller.shutdown_asked(number, epoch).plan)

    @rule(number=BROKERS, chance=CHANCE, kind=st.sampled_from([None, *FailureKind]))
    def a_replica_fails_or_works_again(
        self, number: int, chance: int, kind: FailureKind | None
    ) -> None:
        key = self.partition(chance)
        if key is not None and self.world.machines[number].is_up:
            self.world.fail(number, key, kind)

    @rule()
    def damaged_replicas_copy(self) -> None:
        self.world.copy_damaged()

    # -- the controller --------------------------------------------------------------------

    @rule(is_watchful=st.booleans(), is_prompt=st.booleans())
    def the_controller_gets_slow_or_quick(self, is_watchful: bool, is_prompt: bool) -> None:
        self.world.is_watchful, self.world.is_prompt = is_watchful, is_prompt

    @rule()
    def the_controller_looks(self) -> None:
        self.world.look()

    @rule()
    def what_is_planned_is_written(self) -> None:
        self.world.write_all()

    @rule(chance=CHANCE)
    @precondition(lambda self: self.world.drafts)
    def one_change_is_written_out_of_turn(self, chance: int) -> None:
        self.world.write(self.world.drafts.pop(chance % len(self.world.drafts)))

    @rule()
    @precondition(lambda self: self.world.drafts)
    def what_is_planned_is_lost(self) -> None:
        self.world.drafts.clear()

    @rule()
    def the_controller_goes_through_everything(self) -> None:
        self.world.plan(self.world.controller.audit())

    @rule()
    def another_controller_takes_over(self) -> None:
        self.world.replace_controller()

    @rule(chance=CHANCE)
    @precondition(lambda self: self.world.zombies)
    def a_former_controller_believes_it_is_one(self, chance: int) -> None:
        # Its plans do not matter: the store compares the controller epoch.
        zombie = self.world.zombies[chance % len(self.world.zombies)]
        zombie.brokers_seen(self.world.registered())
        zombie.check()

    @rule()
    def everything_settles(self) -> None:
        self.world.settle()

    # -- leaders ---------------------------------------------------------------------------

    def propose(self, chance: int, drop: set[int], join: set[int], has_fetched: bool) -> None:
        if key := self.partition(chance):
            self.world.propose(key, drop, join, has_fetched)

    @rule(chance=CHANCE, drop=SOME, has_fetched=st.booleans())
    def a_leader_wants_to_shrink_its_isr(
        self, chance: int, drop: set[int], has_fetched: bool
    ) -> None:
        self.propose(chance, drop, set(), has_fetched)

    @rule(chance=CHANCE, join=ALL | SOME, has_fetched=st.booleans())
    def a_leader_wants_to_expand_its_isr(
        self, chance: int, join: set[int], has_fetched: bool
    ) -> None:
        self.propose(chance, set(), join, has_fetched)

    @rule(chance=CHANCE, drop=SOME, join=ALL | SOME, has_fetched=st.booleans())
    def a_leader_wants_another_isr(
        self, chance: int, drop: set[int], join: set[int], has_fetched: bool
    ) -> None:
        self.propose(chance, drop, join, has_fetched)

    @rule(chance=CHANCE, is_copy=st.booleans())
    @precondition(lambda self: self.world.letters)
    def a_proposal_arrives(self, chance: int, is_copy: bool) -> None:
        at = chance % len(self.world.letters)
        self.world.deliver(self.world.letters[at])
        if not is_copy:
            del self.world.letters[at]

    @rule(chance=CHANCE, at=st.integers(0, 3), cleanly=st.booleans())
    @precondition(lambda self: self.world.letters)
    def some_broker_restarts_while_a_proposal_about_it_is_in_flight(
        self, chance: int, at: int, cleanly: bool
    ) -> None:
        letter = self.world.letters[chance % len(self.world.letters)]
        isr = letter.proposal.isr
        self.a_broker_restarts(isr[at % len(isr)], cleanly, has_lost=True)

    @rule()
    def all_proposals_arrive_and_are_written(self) -> None:
        while self.world.letters:
            self.world.deliver(self.world.letters.pop(0))
            self.world.write_all()

    @rule()
    def leaders_hear_of_settings(self) -> None:
        for name, rules in self.world.rules.items():
            self.world.leaders_min_isr[name] = rules.min_insync_replicas

    # -- people ----------------------------------------------------------------------------

    @rule(rules=RULES)
    def the_settings_are_changed(self, rules: TopicRules) -> None:
        self.world.rules["t"] = rules
        self.world.plan(self.world.controller.settings_changed("t", rules))

    @rule(kind=st.sampled_from(ElectionKind), chance=CHANCE)
    def an_election_is_asked_for(self, kind: ElectionKind, chance: int) -> None:
        if key := self.partition(chance):
            change = self.world.controller.election_asked(kind, [key])[key].change
            if change is not None:
                self.world.plan([change], allows_unclean=kind == ElectionKind.UNCLEAN)

    @rule(percent=st.sampled_from([0, 50]))
    def leaders_are_balanced(self, percent: int) -> None:
        self.world.plan(self.world.controller.balance(percent))

    @rule(chance=CHANCE, goal=ASSIGNMENTS | st.none())
    def a_partition_is_moved(self, chance: int, goal: tuple[int, ...] | None) -> None:
        if key := self.partition(chance):
            decision = self.world.controller.reassignment_asked({key: goal})[key]
            if decision.change is not None:
                self.world.plan([decision.change])

    @rule(assignments=st.lists(ASSIGNMENTS, min_size=1, max_size=2), rules=RULES)
    def a_topic_is_created_again(
        self, assignments: list[tuple[int, ...]], rules: TopicRules
    ) -> None:
        if "u" in self.world.ids:
            self.world.delete("u")
        self.world.create("u", assignments, rules)

    # -- what must hold --------------------------------------------------------------------

    @invariant()
    def trusted_replicas_have_every_committed_record(self) -> None:
        # Every leader commits that can: the fewer replicas are complete, the more can go wrong.
        self.world.commit()
        self.world.check()

    def teardown(self) -> None:
        # A run that was refused at its start has no world.
        if hasattr(self, "world"):
            self.world.check_agreement()
            self.world.settle()


PROFILE = settings(
    max_examples=150,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
AnyCluster.TestCase.settings = PROFILE
TestAnyCluster = AnyCluster.TestCase


# -- mistakes that the model finds ------------------------------------------------------------

Real = Callable[..., Any]


def ignore_the_eligible(real: Real) -> Real:
    def reelected(state, live, *others):
        after = real(state, live, *others)
        if after.leader not in state.elr:
            return after
        return real(
            state,
            {broker_id: live[broker_id] for broker_id in live if broker_id not in state.elr},
            *others,
        )

    return reelected


def do_not_wait_for_the_eligible(real: Real) -> Real:
    return lambda state, *others: real(replace(state, elr=()), *others)


def keep_the_leader_epoch(real: Real) -> Real:
    def reelected(state, *others):
        after = real(state, *others)
        return after if after is state else replace(after, leader_epoch=state.leader_epoch)

    return reelected


def trust_any_clean_shutdown(_real: Real) -> Real:
    return lambda state, brokers: frozenset(
        member
        for member in (*state.isr, *state.elr)
        if member in brokers
        and brokers[member].epoch != state.broker_epochs[member]
        and brokers[member].previous_epoch == leader_election.UNCLEAN
    )


def elect_any_replica(real: Real) -> Real:
    return lambda state, live, leaving, least, _strategy, distrusted, logs: real(
        state, live, leaving, least, leader_election.RecoveryStrategy.AGGRESSIVE, distrusted, logs
    )


def leave_the_leader_alone(real: Real) -> Real:
    def reelected(state, live, *others):
        after = real(state, live, *others)
        return state if state.leader != NO_BROKER and after.leader == NO_BROKER else after

    return reelected


def end_moves_early(real: Real) -> Real:
    def finished(state, *others):
        return reassignment.cancelled(
            replace(state, adding=state.removing, removing=state.adding), *others
        )

    return lambda state, *others: (finished if state.is_reassigning else real)(state, *others)


def keep_the_epoch_when_a_replica_leaves(real: Real) -> Real:
    def assigned(state, *others):
        after = real(state, *others)
        stays = after is not None and after.leader == state.leader
        return replace(after, leader_epoch=state.leader_epoch) if stays else after

    return assigned


MUTANTS = {
    "elections ignore the eligible": (leader_election, "reelected", ignore_the_eligible),
    "elections do not wait for the eligible": (
        leader_election,
        "recovery_candidates",
        do_not_wait_for_the_eligible,
    ),
    "no member loses trust (B7)": (leader_election, "distrusted", lambda _: lambda *_: frozenset()),
    "any clean shutdown is trusted": (leader_election, "distrusted", trust_any_clean_shutdown),
    "a new leader has the old epoch": (leader_election, "reelected", keep_the_leader_epoch),
    "elections are always unclean": (leader_election, "reelected", elect_any_replica),
    "a dead leader stays the leader": (leader_election, "reelected", leave_the_leader_alone),
    "former broker epochs join the ISR (B6)": (
        alter_partition,
        "_is_eligible",
        lambda _: lambda _member, _proposal, _state, broker: broker is not None,
    ),
    "former broker epochs are answered (B9)": (
        cluster_state.Cluster,
        "check_epoch",
        lambda real: (
            lambda self, broker_id, epoch: real(self, broker_id, self.live.get(broker_id, epoch))
        ),
    ),
    "stale proposals are accepted": (
        controller,
        "proposal_error",
        lambda real: (
            lambda proposal, sender, state, *others: real(
                replace(proposal, partition_epoch=state.partition_epoch), sender, state, *others
            )
        ),
    ),
    "no replica becomes eligible": (leader_election, "effective_min_isr", lambda _: lambda *_: 0),
    "the eligible stay eligible": (leader_election, "effective_min_isr", lambda _: lambda *_: 9),
    "who leaves keeps leading": (leader_election, "relieved", lambda _: lambda state, *_: state),
    "moves never end": (reassignment, "finished", lambda _: lambda state, *_: state),
    "moves end early": (reassignment, "finished", end_moves_early),
    "a replica leaves unnoticed (B11)": (
        reassignment,
        "_assigned",
        keep_the_epoch_when_a_replica_leaves,
    ),
}


# How many examples it takes depends on the text of the model, and a busy machine takes longer.
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_model_notices_that(mutant: str, monkeypatch: pytest.MonkeyPatch):
    where, name, change = MUTANTS[mutant]
    monkeypatch.setattr(where, name, change(getattr(where, name)))
    looking = settings(
        PROFILE,
        max_examples=3000,
        phases=[Phase.generate],
        database=None,
        derandomize=True,
        report_multiple_bugs=False,
    )
    with pytest.raises(AssertionError):
        run_state_machine_as_test(AnyCluster, settings=looking)
