"""The controller: what becomes of every partition when brokers come and go and somebody asks.

    fact ──▶ plan: [PartitionChange, …] ──written by compare-and-set──▶ changed(…) ──▶ next plan

A fact about the world (which brokers live, how a topic is configured) is noted at once; what
follows for partitions is only planned.  `changed` alone changes a partition's state, when the
change has been written.  So a plan that could not be written has changed nothing, and `audit`
plans it again.

What is right for a partition is a function of its state, of the live brokers and of its topic's
rules, and nothing else (`_next`).  A controller that loads what another one has written therefore
comes to the same decisions.  Facts only say which partitions to look at: those that a broker holds
are indexed, so the death of one among a hundred costs no look at what the others hold.
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
    """A decision to be written; its partition epoch is the one to compare with."""

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
    """What becomes of one partition of a request.  Without error and change all is so already."""

    error: ErrorCode
    change: PartitionChange | None = None
    detail: str = ""


class Shutdown(NamedTuple):
    """What lets a broker go, and the partitions that it leads even then."""

    plan: list[PartitionChange]
    remaining: list[Partition]


class ElectionKind(IntEnum):
    """Numbered as in ElectLeaders."""

    PREFERRED = 0
    UNCLEAN = 1


class Controller:
    """All brokers, all topics, and what is to be done about them."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        # Until the brokers have been seen, it is not known that anybody is dead.
        self._has_seen_brokers = False

    # -- what can be asked -----------------------------------------------------------------

    @property
    def brokers(self) -> Mapping[int, Broker]:
        return self.cluster.brokers

    @property
    def topics(self) -> Mapping[str, Topic]:
        return self.cluster.topics

    def state(self, topic: str, index: int) -> PartitionState | None:
        return self.cluster.state(topic, index)

    def holders(self, topic: str) -> frozenset[int]:
        """Brokers that hold a replica of the topic, dead ones too."""
        found = self.topics[topic]
        assignments = [state.replicas for state in found.partitions.values()]
        return frozenset().union(*assignments, *found.new_partitions.values())

    def reassignments(self) -> dict[Partition, PartitionState]:
        """Partitions on their way to other brokers."""
        return {
            (topic.name, index): state
            for topic in self.topics.values()
            for index, state in topic.partitions.items()
            if state.is_reassigning
        }

    # -- facts about the world -------------------------------------------------------------

    def brokers_seen(self, found: Mapping[int, Broker]) -> list[PartitionChange]:
        """All live brokers, as they are registered now.

        One that has another epoch than before has died and come back.
        """
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
        """A topic that is new, or has new partitions, or states that turned out to be written.

        `unborn` are the assignments of partitions that have no state yet; the plan makes it.
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
        """Other rules may empty an ELR that is not needed any more, or allow an election."""
        topic = self.topics[name]
        topic.rules = rules
        return self._plan(topic.keys)

    def changed(self, change: PartitionChange, partition_epoch: int) -> list[PartitionChange]:
        """A change was written; the partition has this epoch now.  What it makes possible."""
        topic = self.topics.get(change.topic)
        if topic is None:
            return []  # removed while it was being written
        known = topic.partitions.get(change.index)
        if change.before is None:
            assert known is None, "a partition is born once"
        else:
            assert known is not None
            assert known.partition_epoch == change.before.partition_epoch < partition_epoch
        after = replace(change.after, partition_epoch=partition_epoch)
        after.check()
        self.cluster.put_state(topic, change.index, after)
        return self._plan([(change.topic, change.index)])

    def audit(self) -> list[PartitionChange]:
        """What is to be done about any partition; empty when everything is as it should be."""
        return self._plan(key for topic in self.topics.values() for key in topic.keys)

    # -- what brokers and people ask for ---------------------------------------------------

    def isr_proposed(
        self,
        broker_id: int,
        broker_epoch: int,
        proposals: Mapping[tuple[uuid.UUID, int], IsrProposal],
    ) -> dict[tuple[uuid.UUID, int], Decision]:
        """AlterPartition.  Raises STALE_BROKER_EPOCH if the sender has died or restarted since."""
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
        """ControlledShutdown.  Raises STALE_BROKER_EPOCH if the sender has restarted since.

        A broker that is leaving gets nothing new to lead, until it comes back with another epoch.
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
        """ElectLeaders.  Of all partitions (None) only those are told that needed an election."""
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
        """Preferred elections for brokers that lead too few of the partitions they are first in."""
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
        """AlterPartitionReassignments: where partitions shall be; None gives up a move."""
        return {key: self._reassign(key, target) for key, target in targets.items()}

    def _reassign(self, key: Partition, target: tuple[int, ...] | None) -> Decision:
        before = self.state(*key)
        if before is None:
            return Decision(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        rules = self.topics[key[0]].rules
        state = self._reelected(before, rules)
        circumstances = self.cluster.live, self.cluster.shutting_down, rules.min_insync_replicas
        if target is None:
            if not state.is_reassigning:
                return Decision(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
            after = reassignment.cancelled(state, *circumstances)
        else:
            if problem := reassignment.problem(state, target, self.cluster.live):
                return Decision(ErrorCode.INVALID_REPLICA_ASSIGNMENT, detail=problem)
            after = reassignment.begun(state, target, *circumstances)
        if after is None:
            return Decision(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                detail="no replica that has everything would be left",
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
        """One step towards what is right for a partition; the next follows when it is written."""
        after = self._reelected(state, rules)
        circumstances = self.cluster.live, self.cluster.shutting_down, rules.min_insync_replicas
        if after is state and self.cluster.shutting_down:
            after = leader_election.relieved(state, *circumstances)
        if after is state and state.is_reassigning:
            after = reassignment.finished(state, *circumstances)
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
