"""The controller: decides the state of every partition as brokers come and go and requests arrive.

    fact ──▶ plan: [PartitionChange, …] ──written by compare-and-set──▶ changed(…) ──▶ next plan

A fact about the cluster (which brokers are alive, how a topic is configured) takes effect at once.
What follows for partitions is only planned: `changed` alone changes a partition's state, after the
change has been written.  So a plan that could not be written has changed nothing, and `audit` plans
it again.

The right state of a partition is a function of its present state, the live brokers and its topic's
settings, and nothing else (`_next`).  A controller that loads what another one has written
therefore comes to the same decisions.  Facts only say which partitions to look at: the partitions
of each broker are indexed, so the failure of one broker among a hundred does not touch the
partitions of the others.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from types import MappingProxyType
from typing import NamedTuple

from hightide.core.controller import leader_election, reassignment
from hightide.core.controller.alter_partition import IsrProposal, proposal_error
from hightide.core.controller.cluster_state import (
    Cluster,
    Failures,
    Partition,
    Topic,
    TopicRules,
)
from hightide.core.controller.leader_election import (
    NO_LOG,
    Broker,
    Fitness,
    LogEnd,
    RecoveryStrategy,
)
from hightide.core.partition.state import NO_BROKER, PartitionState
from hightide.wire.errors import ErrorCode

_NO_PARTITIONS: Mapping[int, tuple[int, ...]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class PartitionChange:
    """A change of a partition's state to write, if the znode still has `before`'s version."""

    topic: str
    index: int
    before: PartitionState | None
    """None: the partition has no state yet."""
    after: PartitionState

    @property
    def changes_assignment(self) -> bool:
        """Whether the topic's assignment must be written together with the partition's state."""
        before, after = self.before, self.after
        return before is not None and (before.replicas, before.adding, before.removing) != (
            after.replicas,
            after.adding,
            after.removing,
        )


class Decision(NamedTuple):
    """The outcome of a request for one partition; without error and change nothing is to do."""

    error: ErrorCode
    change: PartitionChange | None = None
    detail: str = ""


class Shutdown(NamedTuple):
    """The changes that a controlled shutdown needs, and the partitions still led after them."""

    plan: list[PartitionChange]
    remaining: list[Partition]


class ElectionKind(IntEnum):
    """The election types of ElectLeaders."""

    PREFERRED = 0
    UNCLEAN = 1


class Controller:
    """The decisions about all partitions of the cluster."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        # Until the first `brokers_seen` no broker is known to be dead.
        self._has_seen_brokers = False

    # -- questions -------------------------------------------------------------------------

    @property
    def brokers(self) -> Mapping[int, Broker]:
        return self.cluster.brokers

    @property
    def topics(self) -> Mapping[str, Topic]:
        return self.cluster.topics

    def state(self, topic: str, index: int) -> PartitionState | None:
        return self.cluster.state(topic, index)

    def holders(self, topic: str) -> frozenset[int]:
        """Return the brokers that are assigned replicas of the topic, dead ones too."""
        found = self.topics[topic]
        assignments = [state.replicas for state in found.partitions.values()]
        return frozenset().union(*assignments, *found.new_partitions.values())

    def reassignments(self) -> dict[Partition, PartitionState]:
        """Return the partitions that are being reassigned."""
        return {
            (topic.name, index): state
            for topic in self.topics.values()
            for index, state in topic.partitions.items()
            if state.is_reassigning
        }

    # -- facts about the cluster -----------------------------------------------------------

    def brokers_seen(self, found: Mapping[int, Broker]) -> list[PartitionChange]:
        """These brokers are registered now; a broker with a new broker epoch has restarted."""
        affected = self.cluster.put_brokers(found)
        if not self._has_seen_brokers:
            self._has_seen_brokers = True
            return self.audit()
        return self._plan(self.cluster.held_by(affected))

    def replicas_failed(
        self, broker_id: int, broker_epoch: int, failures: Failures
    ) -> list[PartitionChange]:
        """These are all replicas of the broker that have failed; others of it work (again).

        Raise STALE_BROKER_EPOCH if the broker has died or restarted since.
        """
        self.cluster.check_epoch(broker_id, broker_epoch)
        return self._plan(self.cluster.put_failures(broker_id, failures))

    def logs_read(
        self, broker_id: int, broker_epoch: int, logs: Mapping[Partition, tuple[int, LogEnd]]
    ) -> list[PartitionChange]:
        """A broker has said how far its logs of partitions without a leader reach.

        Each answer comes with the leader epoch in which the broker knows of no leader: from then on
        the log does not change.
        """
        if self.cluster.live.get(broker_id) != broker_epoch:
            return []
        for partition, (leader_epoch, log) in logs.items():
            self.cluster.put_log(partition, broker_id, leader_epoch, log)
        return self._plan(partition for partition in logs if partition in self.cluster.leaderless)

    def logs_needed(
        self, partitions: Iterable[Partition] | None = None
    ) -> dict[int, dict[Partition, int]]:
        """Return which brokers to ask for their logs, with the leader epoch of each partition.

        None asks about all partitions that may be recovered.  If partitions are named, an
        administrator wants an unclean election of them: then all live replicas are asked.
        """
        needed: dict[int, dict[Partition, int]] = {}
        for name, index in sorted(self.cluster.leaderless if partitions is None else partitions):
            state = self.state(name, index)
            if state is None:
                continue
            topic = self.topics[name]
            strategy = topic.rules.strategy if partitions is None else RecoveryStrategy.AGGRESSIVE
            live = self._fitness(topic, index, state).live
            logs = self.cluster.logs((name, index), state)
            candidates = leader_election.recovery_candidates(state, live, strategy, logs)
            for broker_id in candidates:
                if broker_id in live and broker_id not in logs:
                    needed.setdefault(broker_id, {})[name, index] = state.leader_epoch
        return needed

    def recovery_waits(self) -> dict[Partition, tuple[int, ...]]:
        """Return the partitions that only a recovery can bring back, and whose logs it lacks."""
        waits = {}
        for name, index in sorted(self.cluster.leaderless):
            topic = self.topics[name]
            state = topic.partitions[index]
            live = self._fitness(topic, index, state).live
            if state.elr and topic.rules.strategy is not RecoveryStrategy.AGGRESSIVE:
                continue
            logs = self.cluster.logs((name, index), state)
            candidates = state.last_known_elr or state.replicas
            waits[name, index] = tuple(
                c for c in candidates if c not in live or logs.get(c) in (None, NO_LOG)
            )
        return waits

    def topic_found(
        self,
        name: str,
        topic_id: uuid.UUID,
        rules: TopicRules,
        partitions: Mapping[int, PartitionState],
        new_partitions: Mapping[int, tuple[int, ...]] = _NO_PARTITIONS,
    ) -> list[PartitionChange]:
        """A topic is new, or has new partitions, or states that were found written.

        `new_partitions` are the assignments of partitions without a state; the plan creates it.
        """
        topic = self.cluster.put_topic(name, topic_id, rules)
        for index, state in partitions.items():
            known = topic.partitions.get(index)
            if known is None or known.partition_epoch < state.partition_epoch:
                self.cluster.put_state(topic, index, state)
        for index, replicas in new_partitions.items():
            if index not in topic.partitions:
                self.cluster.put_new_partition(topic, index, replicas)
        return self._plan(topic.keys)

    def topic_removed(self, name: str) -> None:
        self.cluster.remove_topic(name)

    def settings_changed(self, name: str, rules: TopicRules) -> list[PartitionChange]:
        """The topic's settings changed: they may empty an ELR, or allow an election."""
        topic = self.topics[name]
        topic.rules = rules
        self.cluster.recovery_changes += 1
        return self._plan(topic.keys)

    def changed(self, change: PartitionChange, partition_epoch: int) -> list[PartitionChange]:
        """A change was written, and the partition has this epoch now.  Return what follows."""
        topic = self.topics.get(change.topic)
        if topic is None:
            return []  # the topic was removed meanwhile
        known = topic.partitions.get(change.index)
        if change.before is None:
            assert known is None, "the partition has a state already"
        else:
            assert known is not None
            assert known.partition_epoch == change.before.partition_epoch < partition_epoch
        after = replace(change.after, partition_epoch=partition_epoch)
        after.check()
        self.cluster.put_state(topic, change.index, after)
        return self._plan([(change.topic, change.index)])

    def audit(self) -> list[PartitionChange]:
        """Return every change that is due; empty if all partitions are as they should be."""
        return self._plan(key for topic in self.topics.values() for key in topic.keys)

    # -- requests --------------------------------------------------------------------------

    def isr_proposed(
        self,
        broker_id: int,
        broker_epoch: int,
        proposals: Mapping[tuple[uuid.UUID, int], IsrProposal],
    ) -> dict[tuple[uuid.UUID, int], Decision]:
        """AlterPartition.  Raise STALE_BROKER_EPOCH if the sender has died or restarted since."""
        self.cluster.check_epoch(broker_id, broker_epoch)
        return {
            key: self._proposed(broker_id, *key, proposal) for key, proposal in proposals.items()
        }

    def _proposed(
        self, sender: int, topic_id: uuid.UUID, index: int, proposal: IsrProposal
    ) -> Decision:
        topic = self.cluster.topic_of(topic_id)
        if topic is None:
            return Decision(ErrorCode.UNKNOWN_TOPIC_ID)
        state = topic.partitions.get(index)
        if state is None:
            return Decision(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        failures = self.cluster.failures(topic_id, index, state.replicas)
        error = proposal_error(proposal, sender, state, self.brokers, failures)
        if error != ErrorCode.NONE or set(proposal.isr) == set(state.isr):
            return Decision(error)
        after = leader_election.with_proposed_isr(
            state,
            proposal.isr,
            self.cluster.live,
            topic.rules.min_insync_replicas,
            self._fitness(topic, index, state).distrusted,
        )
        return Decision(ErrorCode.NONE, PartitionChange(topic.name, index, state, after))

    def shutdown_asked(self, broker_id: int, broker_epoch: int) -> Shutdown:
        """ControlledShutdown.  Raise STALE_BROKER_EPOCH if the sender has restarted since.

        A broker that is shutting down is not elected again before it registers in a new epoch.
        """
        self.cluster.check_epoch(broker_id, broker_epoch)
        self.cluster.put_shutting_down(broker_id)
        held = sorted(self.cluster.held_by([broker_id]))
        plan = self._plan(held)
        leaders = {(change.topic, change.index): change.after.leader for change in plan}
        for key in held:
            state = self.state(*key)
            if state is not None:
                leaders.setdefault(key, state.leader)
        return Shutdown(plan, [key for key in held if leaders.get(key) == broker_id])

    def election_asked(
        self, kind: ElectionKind, partitions: Iterable[Partition] | None = None
    ) -> dict[Partition, Decision]:
        """ElectLeaders.  For all partitions (None), return only those that needed an election."""
        if partitions is not None:
            return {key: self._elect(kind, key) for key in partitions}
        everything = (
            (topic.name, index) for topic in self.topics.values() for index in topic.partitions
        )
        decisions = {key: self._elect(kind, key) for key in everything}
        return {
            key: decision
            for key, decision in decisions.items()
            if decision.error != ErrorCode.ELECTION_NOT_NEEDED
        }

    def _elect(self, kind: ElectionKind, key: Partition) -> Decision:
        before = self.state(*key)
        if before is None:
            return Decision(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        topic = self.topics[key[0]]
        fitness = self._fitness(topic, key[1], before)
        state = self._reelected(key, before, topic.rules, fitness)
        if kind == ElectionKind.PREFERRED:
            if state.leader == state.replicas[0]:
                return Decision(ErrorCode.ELECTION_NOT_NEEDED)
            after = leader_election.with_preferred(state, fitness.live, fitness.leaving)
            refusal = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
        else:
            if state.leader != NO_BROKER:
                return Decision(ErrorCode.ELECTION_NOT_NEEDED)
            unclean = replace(topic.rules, unclean_leader_election=True)
            after = self._reelected(key, state, unclean, fitness)
            refusal = ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
        if after.leader == state.leader:
            return Decision(refusal)
        return Decision(ErrorCode.NONE, PartitionChange(*key, before, after))

    def balance(self, imbalance_percent: int) -> list[PartitionChange]:
        """Elect preferred leaders on brokers that lead too few of the partitions that prefer
        them."""
        preferring: dict[int, int] = {}
        away: dict[int, list[Partition]] = {}
        for topic in self.topics.values():
            for index, state in topic.partitions.items():
                preferred = state.replicas[0]
                preferring[preferred] = preferring.get(preferred, 0) + 1
                if state.leader != preferred and not state.is_reassigning:
                    away.setdefault(preferred, []).append((topic.name, index))
        decisions = [
            self._elect(ElectionKind.PREFERRED, key)
            for preferred, partitions in sorted(away.items())
            if len(partitions) * 100 > preferring[preferred] * imbalance_percent
            for key in sorted(partitions)
        ]
        return [decision.change for decision in decisions if decision.change is not None]

    def reassignment_asked(
        self, targets: Mapping[Partition, tuple[int, ...] | None]
    ) -> dict[Partition, Decision]:
        """AlterPartitionReassignments: the new replicas by partition; None cancels a move."""
        return {key: self._reassign(key, target) for key, target in targets.items()}

    def _reassign(self, key: Partition, target: tuple[int, ...] | None) -> Decision:
        before = self.state(*key)
        if before is None:
            return Decision(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        topic = self.topics[key[0]]
        fitness = self._fitness(topic, key[1], before)
        state = self._reelected(key, before, topic.rules, fitness)
        cluster = fitness.live, fitness.leaving, topic.rules.min_insync_replicas
        if target is None:
            if not state.is_reassigning:
                return Decision(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
            after = reassignment.cancelled(state, *cluster)
        else:
            if problem := reassignment.problem(state, target, self.cluster.live):
                return Decision(ErrorCode.INVALID_REPLICA_ASSIGNMENT, detail=problem)
            after = reassignment.begun(state, target, *cluster)
        if after is None:
            return Decision(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                detail="no replica that has every committed record would be left",
            )
        if after is state:
            return Decision(ErrorCode.NONE)
        return Decision(ErrorCode.NONE, PartitionChange(*key, before, after))

    # -- deciding --------------------------------------------------------------------------

    def _plan(self, partitions: Iterable[Partition]) -> list[PartitionChange]:
        if not self._has_seen_brokers:
            return []
        plan = []
        for name, index in sorted(partitions):
            topic = self.topics[name]
            before = topic.partitions.get(index)
            if before is None:
                after = leader_election.first_state(
                    topic.new_partitions[index], self.cluster.live, self.cluster.shutting_down
                )
            else:
                after = self._next(topic, index, before)
            if after is not None and after is not before:
                plan.append(PartitionChange(name, index, before, after))
        return plan

    def _next(self, topic: Topic, index: int, state: PartitionState) -> PartitionState:
        """Return the next step for a partition; another may follow when this one is written."""
        fitness = self._fitness(topic, index, state)
        after = self._reelected((topic.name, index), state, topic.rules, fitness)
        cluster = fitness.live, fitness.leaving, topic.rules.min_insync_replicas
        if after is state and fitness.leaving:
            after = leader_election.relieved(state, *cluster, fitness.damaged)
        if after is state and state.is_reassigning:
            after = reassignment.finished(state, *cluster)
        return after

    def _fitness(self, topic: Topic, index: int, state: PartitionState) -> Fitness:
        cluster = self.cluster
        failures = cluster.failures(topic.id, index, state.replicas)
        return leader_election.fitness(
            state, cluster.brokers, cluster.live, cluster.shutting_down, failures
        )

    def _reelected(
        self, key: Partition, state: PartitionState, rules: TopicRules, fitness: Fitness
    ) -> PartitionState:
        return leader_election.reelected(
            state,
            fitness.live,
            fitness.leaving,
            rules.min_insync_replicas,
            rules.strategy,
            fitness.distrusted,
            self.cluster.logs(key, state),
        )

    def check(self) -> None:
        """Assert what must hold between any two facts."""
        self.cluster.check()
