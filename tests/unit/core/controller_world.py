"""A cluster as its controller sees it, and the true state of the cluster.

Brokers crash, shut down and start; the controller learns of it when it looks.  Its plans are
written at once, later or never, by compare-and-set.  Leaders propose; proposals arrive late, twice
or never.

The true state, which no controller knows: `whole`, the replicas that have every committed record,
and `lineage`, the broker epochs of a broker since it last lost data.  A broker that was not shut
down cleanly may have lost its data.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from hightide.core.controller.cluster_state import Partition, TopicRules
from hightide.core.controller.controller import Controller, PartitionChange
from hightide.core.controller.leader_election import UNCLEAN, Broker, LogEnd
from hightide.core.partition.isr import Proposal
from hightide.core.partition.state import (
    NO_BROKER,
    FailureKind,
    PartitionState,
    effective_min_isr,
)
from hightide.wire.errors import ErrorCode, KafkaError


@contextmanager
def refusing(code: ErrorCode) -> Iterator[None]:
    """Assert that a request is refused with this error."""
    try:
        yield
    except KafkaError as refusal:
        if refusal.code == code:
            return
    raise AssertionError(f"not refused with {code.name}")


@dataclass
class BrokerProcess:
    """The true state of a broker."""

    epoch: int = UNCLEAN
    previous_epoch: int = UNCLEAN
    is_up: bool = False
    clean_epoch: int = UNCLEAN
    """The content of its clean-shutdown file."""
    lineage: list[int] = field(default_factory=list)
    failures: dict[Partition, FailureKind] = field(default_factory=dict)
    """Its replicas that have failed, as it last reported them."""


class ProposalInFlight(NamedTuple):
    """A proposal in flight."""

    sender: int
    sender_epoch: int
    topic_id: uuid.UUID
    key: Partition
    proposal: Proposal


class PlannedChange(NamedTuple):
    """A planned change that is not written yet."""

    controller: Controller
    topic_id: uuid.UUID
    change: PartitionChange


class World:
    """A few brokers, a few topics, one controller after another."""

    def __init__(self, broker_count: int) -> None:
        self.machines = {broker_id: BrokerProcess() for broker_id in range(1, broker_count + 1)}
        self.zxid = 100
        self.ids: dict[str, uuid.UUID] = {}
        self.rules: dict[str, TopicRules] = {}
        self.leaders_min_isr: dict[str, int] = {}
        """The settings that leaders know, which may be old."""
        self.store: dict[Partition, PartitionState] = {}
        self.new_partitions: dict[Partition, tuple[int, ...]] = {}
        self.whole: dict[Partition, set[int]] = {}
        self.letters: list[ProposalInFlight] = []
        self.drafts: list[PlannedChange] = []
        self.zombies: list[Controller] = []
        self.is_watchful = self.is_prompt = True
        """Whether the controller looks whenever a broker comes or goes, and writes its plans."""
        self.controller = Controller()
        for number in self.machines:
            self.start(number)

    # -- brokers ---------------------------------------------------------------------------

    def start(self, number: int, has_lost: bool = True) -> None:
        """Start a broker.  `has_lost`: unless it was shut down cleanly, it has lost its data."""
        machine = self.machines[number]
        self.zxid += 1
        machine.epoch, machine.is_up = self.zxid, True
        machine.previous_epoch, machine.clean_epoch = machine.clean_epoch, UNCLEAN
        machine.failures = {}
        if machine.previous_epoch == UNCLEAN and has_lost:
            machine.lineage = []
            for whole in self.whole.values():
                whole.discard(number)
        machine.lineage.append(machine.epoch)
        if self.is_watchful:
            self.look()

    def stop(self, number: int, cleanly: bool) -> None:
        machine = self.machines[number]
        machine.is_up = False
        machine.clean_epoch = machine.epoch if cleanly else UNCLEAN
        if self.is_watchful:
            self.look()

    def fail(self, number: int, key: Partition, kind: FailureKind | None) -> None:
        """A replica fails, or works again (None).  A damaged replica lacks records from the time
        at which it is out of ISR and ELR: from then on it copies."""
        machine = self.machines[number]
        machine.failures.pop(key, None)
        if kind is not None:
            machine.failures[key] = kind
        self.report(number)

    def report(self, number: int) -> None:
        machine = self.machines[number]
        known = self.controller.brokers.get(number)
        if machine.is_up and known is not None and known.epoch == machine.epoch:
            failures = {
                (self.ids[name], index): kind
                for (name, index), kind in machine.failures.items()
                if name in self.ids
            }
            self.plan(self.controller.replicas_failed(number, machine.epoch, failures))

    def answer_logs(self) -> None:
        """Every broker that is asked says how far its logs reach."""
        for number, partitions in self.controller.logs_needed().items():
            machine = self.machines[number]
            logs = {
                key: (epoch, LogEnd(1, 100 if number in self.whole[key] else number))
                for key, epoch in partitions.items()
                if key in self.store
            }
            self.plan(self.controller.logs_read(number, machine.epoch, logs))

    def copy_damaged(self) -> None:
        """Damaged replicas that are out of ISR and ELR drop what they have."""
        for number, machine in self.machines.items():
            for key, kind in machine.failures.items():
                state = self.store.get(key)
                if state is None or kind is not FailureKind.DAMAGED or not machine.is_up:
                    continue
                if number not in (*state.isr, *state.elr) and state.leader != NO_BROKER:
                    self.whole[key].discard(number)

    def registered(self) -> dict[int, Broker]:
        return {
            number: Broker(machine.epoch, previous_epoch=machine.previous_epoch)
            for number, machine in self.machines.items()
            if machine.is_up
        }

    def has_epoch(self, number: int, epoch: int) -> bool:
        return self.machines[number].is_up and self.machines[number].epoch == epoch

    # -- topics ----------------------------------------------------------------------------

    def create(self, name: str, assignments: list[tuple[int, ...]], rules: TopicRules) -> None:
        self.zxid += 1
        self.ids[name], self.rules[name] = uuid.UUID(int=self.zxid), rules
        self.leaders_min_isr[name] = rules.min_insync_replicas
        new_partitions = dict(enumerate(assignments))
        self.new_partitions.update(
            {(name, index): replicas for index, replicas in new_partitions.items()}
        )
        self.plan(self.controller.topic_found(name, self.ids[name], rules, {}, new_partitions))

    def delete(self, name: str) -> None:
        self.controller.topic_removed(name)
        del self.ids[name], self.rules[name], self.leaders_min_isr[name]
        for kept in (self.store, self.new_partitions, self.whole):
            for key in [key for key in kept if key[0] == name]:
                del kept[key]

    # -- the controller --------------------------------------------------------------------

    def look(self) -> None:
        self.plan(self.controller.brokers_seen(self.registered()))

    def loaded(self) -> Controller:
        """Return a new controller that has read everything."""
        controller = Controller()
        for name, topic_id in self.ids.items():
            states = {index: state for (topic, index), state in self.store.items() if topic == name}
            new_partitions = {
                index: replicas
                for (topic, index), replicas in self.new_partitions.items()
                if topic == name
            }
            plan = controller.topic_found(name, topic_id, self.rules[name], states, new_partitions)
            assert plan == []
        return controller

    def replace_controller(self) -> None:
        self.check_agreement()
        self.zombies.append(self.controller)
        self.controller = self.loaded()
        self.look()

    def plan(self, plan: Iterable[PartitionChange], allows_unclean: bool = False) -> None:
        self.draft(plan, allows_unclean)
        if self.is_prompt:
            self.write_all()

    def draft(self, plan: Iterable[PartitionChange], allows_unclean: bool = False) -> None:
        for change in plan:
            self.review(change, allows_unclean)
            topic_id = self.controller.topics[change.topic].id
            self.drafts.append(PlannedChange(self.controller, topic_id, change))

    def review(self, change: PartitionChange, allows_unclean: bool) -> None:
        """Check a decision against what its controller knew."""
        before, after = change.before, change.after
        after.check()
        if before is None:
            return
        brokers = self.controller.brokers
        rules = self.rules[change.topic]

        key = (self.controller.topics[change.topic].id, change.index)
        failures = self.controller.cluster.failures(*key, before.replicas)

        def has_lost_trust(member: int) -> bool:
            epoch = before.broker_epochs[member]
            broker = brokers.get(member)
            is_damaged = failures.get(member) is FailureKind.DAMAGED
            return broker is not None and (
                is_damaged or epoch not in (broker.epoch, broker.previous_epoch)
            )

        had = {*before.isr, *before.elr}
        if after.recovery_epoch != before.recovery_epoch:
            is_balanced = all(has_lost_trust(member) for member in had)
            assert allows_unclean or rules.unclean_leader_election or is_balanced
            known = before.last_known_elr or before.replicas
            if not allows_unclean and not rules.unclean_leader_election:
                assert after.leader in known
                assert all(member in self.controller.brokers for member in known)
                whole = self.whole[change.topic, change.index] & {*known}
                assert not whole or after.leader in whole, "a longer log is passed over"
        elif len(after.isr) < effective_min_isr(rules.min_insync_replicas, after.replicas):
            lost = had - {*after.isr, *after.elr}
            assert all(has_lost_trust(member) for member in lost & {*after.replicas})
        if before.adding and not after.adding and set(before.adding) <= set(after.replicas):
            assert set(after.isr) == set(after.replicas), "a move ends with all replicas in sync"

    def write(self, draft: PlannedChange) -> bool:
        """Write a change, if its controller is the present one and the state has not changed since
        it was planned."""
        change = draft.change
        key = (change.topic, change.index)
        now = self.store.get(key)
        expected = None if change.before is None else change.before.partition_epoch
        if (
            draft.controller is not self.controller
            or self.ids.get(change.topic) != draft.topic_id
            or (None if now is None else now.partition_epoch) != expected
        ):
            return False
        epoch = 0 if now is None else now.partition_epoch + 1
        after = replace(change.after, partition_epoch=epoch)
        if now is None:
            self.whole[key] = {*after.isr}
            self.new_partitions.pop(key)
        else:
            self.check_epochs(now, after)
            self.whole[key] &= {*after.replicas}
            if after.recovery_epoch != now.recovery_epoch:
                # From now on the log of this replica is what is committed, if it still has it.
                has_it = after.broker_epochs[after.leader] in self.machines[after.leader].lineage
                self.whole[key] = {after.leader} if has_it else set()
        self.store[key] = after
        self.draft(self.controller.changed(change, epoch))
        self.controller.check()
        return True

    def check_epochs(self, before: PartitionState, after: PartitionState) -> None:
        epochs = before.broker_epochs.get(before.leader), after.broker_epochs.get(after.leader)
        has_changed_hands = (
            before.leader != after.leader
            or (after.leader != NO_BROKER and epochs[0] != epochs[1])
            or not {*before.replicas} <= {*after.replicas}
        )
        assert after.leader_epoch >= before.leader_epoch + has_changed_hands

    def write_all(self) -> None:
        written = 0
        while self.drafts:
            written += self.write(self.drafts.pop(0))
            assert written < 100, "every plan comes to an end"

    # -- leaders ---------------------------------------------------------------------------

    def is_led(self, state: PartitionState) -> bool:
        """Return whether the leader knows, or will know, that it leads."""
        leader = state.leader
        return leader != NO_BROKER and self.has_epoch(leader, state.broker_epochs[leader])

    def propose(self, key: Partition, drop: set[int], join: set[int], has_fetched: bool) -> None:
        state = self.store[key]
        if not self.is_led(state) or self.proposed(key):
            return
        joining = {
            replica
            for replica in join & {*state.osr}
            if self.machines[replica].is_up and replica in state.replicas
            if key not in self.machines[replica].failures
        }
        isr = ({*state.isr} - drop) | joining | {state.leader}
        epochs = {
            replica: state.broker_epochs[replica] if has_fetched else -1 for replica in state.isr
        }
        epochs |= {replica: self.machines[replica].epoch for replica in (*joining, state.leader)}
        proposal = Proposal(
            tuple(replica for replica in state.replicas if replica in isr),
            {replica: epochs[replica] for replica in isr},
            state.leader_epoch,
            state.partition_epoch,
        )
        # The replica has caught up, and the leader commits nothing without it from now on.
        self.whole[key] |= joining
        epoch = self.machines[state.leader].epoch
        self.letters.append(ProposalInFlight(state.leader, epoch, self.ids[key[0]], key, proposal))

    def proposed(self, key: Partition) -> set[int]:
        """Return the members of proposals that may still be accepted."""
        state = self.store[key]
        return {
            member
            for letter in self.letters
            if letter.topic_id == self.ids[key[0]] and letter.key == key
            if letter.proposal.leader_epoch == state.leader_epoch
            if letter.proposal.partition_epoch == state.partition_epoch
            for member in letter.proposal.isr
        }

    def deliver(self, letter: ProposalInFlight) -> None:
        key = (letter.topic_id, letter.key[1])
        known = self.controller.brokers.get(letter.sender)
        request = letter.sender, letter.sender_epoch, {key: letter.proposal}
        if known is None or known.epoch != letter.sender_epoch:
            with refusing(ErrorCode.STALE_BROKER_EPOCH):
                self.controller.isr_proposed(*request)
        elif change := self.controller.isr_proposed(*request)[key].change:
            self.check_accepted(letter, change.before)
            self.plan([change])

    def check_accepted(self, letter: ProposalInFlight, state: PartitionState | None) -> None:
        proposal = letter.proposal
        assert state is not None
        assert state.leader == letter.sender
        assert state.leader_epoch == proposal.leader_epoch
        assert state.partition_epoch == proposal.partition_epoch
        for joining in {*proposal.isr} - {*state.isr}:
            assert self.controller.brokers[joining].epoch == proposal.broker_epochs[joining]

    def commit(self) -> None:
        """Let every leader commit that may, so that only its maximal ISR remains complete."""
        for key, state in self.store.items():
            least = effective_min_isr(self.leaders_min_isr[key[0]], state.replicas)
            if not self.is_led(state) or state.elr or len(state.isr) < least:
                continue
            maximal = {*state.isr} | self.proposed(key)
            if all(self.has_fetched(key, member) for member in maximal):
                assert maximal <= self.whole[key]
                self.whole[key] = maximal

    def has_fetched(self, key: Partition, member: int) -> bool:
        state = self.store[key]
        epoch = state.broker_epochs.get(member)
        if member not in state.isr:
            [epoch] = {
                letter.proposal.broker_epochs[member]
                for letter in self.letters
                if letter.key == key and member in letter.proposal.isr
                if letter.proposal.partition_epoch == state.partition_epoch
                if letter.topic_id == self.ids[key[0]]
            }
        return epoch is not None and self.has_epoch(member, epoch)

    # -- invariants ------------------------------------------------------------------------

    def check(self) -> None:
        for key, state in self.store.items():
            assert self.controller.state(*key) == state
            for member in (*state.isr, *state.elr):
                if state.broker_epochs[member] in self.machines[member].lineage:
                    assert member in self.whole[key], f"{key}: {member} is trusted and lacks some"

    def check_agreement(self) -> None:
        """A controller that reads what another one wrote comes to the same decisions."""
        other = self.loaded()
        plan = other.brokers_seen(self.controller.brokers)
        other.cluster._logs = deepcopy(self.controller.cluster._logs)
        plan = other.audit()
        for number, failures in self.controller.cluster._failures.items():
            plan = other.replicas_failed(number, other.brokers[number].epoch, failures)
            plan = other.audit()
        assert plan == self.controller.audit()

    def settle(self) -> None:
        """See and write everything; then every partition must be as available as it can be."""
        self.drafts.clear()
        self.look()
        for number in self.machines:
            self.report(number)
        self.write_all()
        self.draft(self.controller.audit())
        self.write_all()
        self.answer_logs()
        self.write_all()
        assert self.controller.audit() == []
        self.check()
        self.check_agreement()
        for key, state in self.store.items():
            self.check_settled(key, state, self.rules[key[0]])
        for replicas in self.new_partitions.values():
            assert not any(self.machines[replica].is_up for replica in replicas)

    def check_settled(self, key: Partition, state: PartitionState, rules: TopicRules) -> None:
        failures = {
            number: machine.failures[key]
            for number, machine in self.machines.items()
            if machine.is_up and key in machine.failures
        }
        offline = {b for b, kind in failures.items() if kind is FailureKind.OFFLINE}
        up = {broker_id for broker_id, machine in self.machines.items() if machine.is_up} - offline
        for member in up & {*state.isr, *state.elr}:
            assert state.broker_epochs[member] == self.machines[member].epoch
        assert {*state.isr} <= up
        if up & {*state.isr, *state.elr}:
            assert state.leader in up
        if rules.unclean_leader_election and up & {*state.replicas}:
            assert state.leader in up
        if not state.elr and {*(state.last_known_elr or state.replicas)} <= up:
            assert state.leader in up
        if len(state.isr) >= effective_min_isr(rules.min_insync_replicas, state.replicas):
            assert state.elr == ()
        leaving = {
            broker_id
            for broker_id, broker in self.controller.brokers.items()
            if broker.is_shutting_down or broker_id in failures
        }
        if failures.get(state.leader) is FailureKind.DAMAGED:
            assert not (up & {*state.elr}) - leaving
        if state.leader in leaving:
            assert {*state.isr} <= leaving
        if state.is_reassigning:
            assert not {*state.replicas} - {*state.removing} <= {*state.isr}
