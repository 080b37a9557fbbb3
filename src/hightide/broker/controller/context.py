"""What one term of a controller knows: the machine that decides, and what the shell needs beside.

The machine knows brokers by their lives and topics by their states.  To write and to publish one
also needs addresses, the topics' own znodes and the settings they have.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from hightide.broker.controller.partition_states import assignment_of, leaderless
from hightide.broker.controller.znode_reader import FoundTopic, LiveBroker
from hightide.core.controller.cluster_state import Partition, Topic, TopicRules
from hightide.core.controller.controller import Controller, PartitionChange
from hightide.core.controller.leader_election import Broker
from hightide.core.partition.state import PartitionState
from hightide.settings import Broker as Settings
from hightide.settings import Topic as TopicSettings
from hightide.zookeeper import znodes

_RULING = ("min.insync.replicas", "unclean.leader.election.enable")


@dataclass(slots=True)
class TopicNotes:
    """What the tree has of a topic that decisions do not depend on."""

    assignment: znodes.TopicAssignment
    version: int
    overrides: Mapping[str, str]
    damaged: Mapping[int, tuple[int, ...]]
    """Assignments of partitions whose state makes no sense, or is gone though it was decided:
    nothing can be written about them."""


@dataclass(frozen=True, slots=True)
class Taken:
    """What came of reading a topic: what others do not know yet, and what is to be done."""

    changed: list[Partition]
    replaced: uuid.UUID | None
    lost: list[int]
    """Partitions that have a state, which the tree has not any more."""
    plan: list[PartitionChange]


class ControllerContext:
    """The machine and its papers."""

    def __init__(self, settings: Callable[[], Settings]) -> None:
        self.machine = Controller()
        self.brokers: dict[int, LiveBroker] = {}
        self.notes: dict[str, TopicNotes] = {}
        self._settings = settings
        # Most topics have the same rules: what they are depends on these settings and on two texts.
        self._ruled_by = settings()
        self._rules: dict[tuple[str | None, ...], TopicRules] = {}

    def rules(self, overrides: Mapping[str, str]) -> TopicRules:
        """What elections of a topic with these settings of its own go by."""
        settings = self._settings()
        if settings is not self._ruled_by:
            self._ruled_by = settings
            self._rules.clear()
        key = tuple(overrides.get(name) for name in _RULING)
        rules = self._rules.get(key)
        if rules is None:
            given = {name: overrides[name] for name in _RULING if name in overrides}
            effective = TopicSettings.effective(settings, given)
            rules = self._rules[key] = TopicRules(
                effective.min_insync_replicas, effective.unclean_leader_election_enable
            )
        return rules

    def see_brokers(self, found: Mapping[int, LiveBroker]) -> list[PartitionChange]:
        self.brokers = dict(sorted(found.items()))
        return self.machine.brokers_seen(
            {
                broker_id: Broker(
                    each.epoch, each.registration.rack, each.registration.previous_epoch
                )
                for broker_id, each in self.brokers.items()
            }
        )

    def take(self, found: FoundTopic) -> Taken:
        """A topic as it was found in the tree, or as it was just written there."""
        known = self.machine.topics.get(found.name)
        before = {} if known is None else self._told(known)
        replaced = known.id if known is not None and known.id != found.topic_id else None
        if replaced is not None:
            known, before = None, {}
        lost = [] if known is None else [each for each in found.unborn if each in known.partitions]
        self.notes[found.name] = TopicNotes(
            found.assignment,
            found.version,
            found.overrides,
            found.damaged | {index: found.unborn[index] for index in lost},
        )
        plan = self.machine.topic_found(
            found.name,
            found.topic_id,
            self.rules(found.overrides),
            found.partitions,
            found.unborn,
        )
        after = self._told(self.machine.topics[found.name])
        changed = [
            (found.name, index)
            for index, state in after.items()
            if index not in before or before[index] != state
        ]
        return Taken(changed, replaced, lost, plan)

    def forget(self, name: str) -> uuid.UUID | None:
        """A topic that is gone; the id that it had if it was known."""
        topic = self.machine.topics.get(name)
        self.notes.pop(name, None)
        self.machine.topic_removed(name)
        return None if topic is None else topic.id

    def is_current(self, change: PartitionChange) -> bool:
        """Whether a change was planned from what is still known to be so, and can be written."""
        topic = self.machine.topics.get(change.topic)
        if topic is None or change.index in self.notes[change.topic].damaged:
            return False
        if change.before is None:
            return change.index in topic.unborn
        return topic.partitions.get(change.index) is change.before

    def with_assignments(
        self, name: str, after: Mapping[int, PartitionState]
    ) -> znodes.TopicAssignment:
        """What a topic's own znode shall hold when these partitions are as they shall be."""
        return assignment_of(self.notes[name].assignment, after)

    def told(self, name: str, index: int) -> PartitionState | None:
        """What brokers shall know of a partition; None if there is none."""
        topic = self.machine.topics.get(name)
        if topic is None:
            return None
        state = topic.partitions.get(index)
        if state is not None:
            return state
        replicas = topic.unborn.get(index) or self.notes[name].damaged.get(index)
        return None if replicas is None else leaderless(replicas)

    def _told(self, topic: Topic) -> dict[int, PartitionState]:
        return dict(self.all_told(topic))

    def all_told(self, topic: Topic) -> Iterator[tuple[int, PartitionState]]:
        """All partitions of a topic as brokers shall know them, in order."""
        for index in sorted({*topic.partitions, *topic.unborn, *self.notes[topic.name].damaged}):
            state = self.told(topic.name, index)
            assert state is not None
            yield index, state
