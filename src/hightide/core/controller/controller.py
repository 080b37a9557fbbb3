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
from hightide.core.controller.cluster_state import Cluster, Partition, Topic, TopicRules
from hightide.core.controller.leader_election import Broker
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
        error = proposal_error(proposal, sender, state, self.brokers)
        if error != ErrorCode.NONE or set(proposal.isr) == set(state.isr):
            return Decision(error)
        after = leader_election.with_proposed_isr(
            state,
            proposal.isr,
            self.cluster.live,
            topic.rules.min_insync_replicas,
            leader_election.distrusted(state, self.brokers),
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
        rules = self.topics[key[0]].rules
        state = self._reelected(before, rules)
        if kind == ElectionKind.PREFERRED:
            if state.leader == state.replicas[0]:
                return Decision(ErrorCode.ELECTION_NOT_NEEDED)
            after = leader_election.with_preferred(
                state, self.cluster.live, self.cluster.shutting_down
            )
            refusal = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
        else:
            if state.leader != NO_BROKER:
                return Decision(ErrorCode.ELECTION_NOT_NEEDED)
            after = self._reelected(before, replace(rules, unclean_leader_election=True))
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
        rules = self.topics[key[0]].rules
        state = self._reelected(before, rules)
        cluster = self.cluster.live, self.cluster.shutting_down, rules.min_insync_replicas
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
                after = self._next(before, topic.rules)
            if after is not None and after is not before:
                plan.append(PartitionChange(name, index, before, after))
        return plan

    def _next(self, state: PartitionState, rules: TopicRules) -> PartitionState:
        """Return the next step for a partition; another may follow when this one is written."""
        after = self._reelected(state, rules)
        cluster = self.cluster.live, self.cluster.shutting_down, rules.min_insync_replicas
        if after is state and self.cluster.shutting_down:
            after = leader_election.relieved(state, *cluster)
        if after is state and state.is_reassigning:
            after = reassignment.finished(state, *cluster)
        return after

    def _reelected(self, state: PartitionState, rules: TopicRules) -> PartitionState:
        return leader_election.reelected(
            state,
            self.cluster.live,
            self.cluster.shutting_down,
            rules.min_insync_replicas,
            rules.unclean_leader_election,
            leader_election.distrusted(state, self.brokers),
        )

    def check(self) -> None:
        """Assert what must hold between any two facts."""
        self.cluster.check()
