"""What one term of a controller knows: the machine that decides, and what the shell needs beside.

The machine knows brokers by their lives and topics by their states.  To write and to publish one
also needs addresses, the topics' own znodes and the settings they have.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from hightide.core.controller.cluster_state import Partition, Topic, TopicRules
from hightide.core.controller.controller import Controller, PartitionChange
from hightide.core.controller.leader_election import Broker
from hightide.core.partition.state import NOBODY, PartitionState
from hightide.settings import Broker as Settings
from hightide.settings import Topic as TopicSettings
from hightide.zookeeper import znodes
from hightide.zookeeper.errors import MalformedZnode

_RULING = ("min.insync.replicas", "unclean.leader.election.enable")


class LiveBroker(NamedTuple):
    """A broker that is registered, and in which life."""

    epoch: int
    registration: znodes.BrokerRegistration


@dataclass(slots=True)
class StoredTopic:
    """A topic out of the tree."""

    name: str
    topic_id: uuid.UUID
    assignment: znodes.TopicAssignment
    version: int
    """Of the topic's own znode."""
    partitions: dict[int, PartitionState] = field(default_factory=dict)
    unborn: dict[int, tuple[int, ...]] = field(default_factory=dict)
    damaged: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """Assignments of partitions that have no state, and of those whose state makes no sense."""
    overrides: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class TopicZnodes:
    """What the tree has of a topic that decisions do not depend on."""

    assignment: znodes.TopicAssignment
    version: int
    overrides: Mapping[str, str]
    damaged: Mapping[int, tuple[int, ...]]
    """Assignments of partitions whose state makes no sense, or is gone though it was decided:
    nothing can be written about them."""


@dataclass(frozen=True, slots=True)
class TopicUpdate:
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
        self.topic_znodes: dict[str, TopicZnodes] = {}
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

    def update_brokers(self, stored: Mapping[int, LiveBroker]) -> list[PartitionChange]:
        self.brokers = dict(sorted(stored.items()))
        return self.machine.brokers_seen(
            {
                broker_id: Broker(
                    each.epoch, each.registration.rack, each.registration.previous_epoch
                )
                for broker_id, each in self.brokers.items()
            }
        )

    def update_topic(self, stored: StoredTopic) -> TopicUpdate:
        """A topic as it was stored in the tree, or as it was just written there."""
        known = self.machine.topics.get(stored.name)
        before = {} if known is None else self._states(known)
        replaced = known.id if known is not None and known.id != stored.topic_id else None
        if replaced is not None:
            known, before = None, {}
        lost = [] if known is None else [each for each in stored.unborn if each in known.partitions]
        self.topic_znodes[stored.name] = TopicZnodes(
            stored.assignment,
            stored.version,
            stored.overrides,
            stored.damaged | {index: stored.unborn[index] for index in lost},
        )
        plan = self.machine.topic_found(
            stored.name,
            stored.topic_id,
            self.rules(stored.overrides),
            stored.partitions,
            stored.unborn,
        )
        after = self._states(self.machine.topics[stored.name])
        changed = [
            (stored.name, index)
            for index, state in after.items()
            if index not in before or before[index] != state
        ]
        return TopicUpdate(changed, replaced, lost, plan)

    def remove_topic(self, name: str) -> uuid.UUID | None:
        """A topic that is gone; the id that it had if it was known."""
        topic = self.machine.topics.get(name)
        self.topic_znodes.pop(name, None)
        self.machine.topic_removed(name)
        return None if topic is None else topic.id

    def is_current(self, change: PartitionChange) -> bool:
        """Whether a change was planned from what is still known to be so, and can be written."""
        topic = self.machine.topics.get(change.topic)
        if topic is None or change.index in self.topic_znodes[change.topic].damaged:
            return False
        if change.before is None:
            return change.index in topic.unborn
        return topic.partitions.get(change.index) is change.before

    def with_assignments(
        self, name: str, after: Mapping[int, PartitionState]
    ) -> znodes.TopicAssignment:
        """What a topic's own znode shall hold when these partitions are as they shall be."""
        return assignment_of(self.topic_znodes[name].assignment, after)

    def published_state(self, name: str, index: int) -> PartitionState | None:
        """What brokers shall know of a partition; None if there is none."""
        topic = self.machine.topics.get(name)
        if topic is None:
            return None
        state = topic.partitions.get(index)
        if state is not None:
            return state
        replicas = topic.unborn.get(index) or self.topic_znodes[name].damaged.get(index)
        return None if replicas is None else leaderless(replicas)

    def _states(self, topic: Topic) -> dict[int, PartitionState]:
        return dict(self.published_states(topic))

    def published_states(self, topic: Topic) -> Iterator[tuple[int, PartitionState]]:
        """All partitions of a topic as brokers shall know them, in order."""
        for index in sorted(
            {*topic.partitions, *topic.unborn, *self.topic_znodes[topic.name].damaged}
        ):
            state = self.published_state(topic.name, index)
            assert state is not None
            yield index, state


# -- partition state znodes ------------------------------------------------------------------


def encode_state(state: PartitionState, controller_epoch: int) -> bytes:
    """The bytes of the partition's own znode."""
    return znodes.PartitionState(
        state.leader,
        state.leader_epoch,
        state.isr,
        controller_epoch,
        state.is_recovering,
        state.elr,
        state.last_known_leader,
        state.broker_epochs,
        state.recovery_epoch,
    ).encode()


def decode_state(
    data: bytes, path: str, version: int, assignment: znodes.TopicAssignment, index: int
) -> PartitionState:
    """The decision; MalformedZnode if what is there cannot be one.

    Kafka leaves the last replicas in the ISR of a partition that nobody leads; here they are
    eligible.  The same is said of an ISR whose leader is not in it, or holds no replica any more.
    """
    stored = znodes.PartitionState.decode(data, path)
    replicas = assignment.partitions[index]
    isr = tuple(each for each in stored.isr if each in replicas)
    elr = tuple(each for each in stored.elr if each in replicas and each not in isr)
    leader, last_known_leader = stored.leader, stored.last_known_leader
    if leader not in isr:
        isr, elr = (), isr + elr
        if leader in replicas:
            last_known_leader = leader
        leader = NOBODY
    state = PartitionState(
        replicas,
        leader,
        stored.leader_epoch,
        isr,
        elr,
        last_known_leader,
        version,
        assignment.adding_replicas.get(index, ()),
        assignment.removing_replicas.get(index, ()),
        stored.is_recovering,
        stored.recovery_epoch,
        {each: life for each, life in stored.broker_epochs.items() if each in isr + elr},
    )
    try:
        state.check()
    except AssertionError as wrong:
        raise MalformedZnode(path, f"it contradicts itself or its topic: {wrong}") from None
    return state


def assignment_of(
    topic: znodes.TopicAssignment, states: Mapping[int, PartitionState]
) -> znodes.TopicAssignment:
    """A topic's assignment with those of these partitions in it."""
    partitions, adding, removing = (
        dict(topic.partitions),
        dict(topic.adding_replicas),
        dict(topic.removing_replicas),
    )
    for index, state in states.items():
        partitions[index] = state.replicas
        for moving, brokers in ((adding, state.adding), (removing, state.removing)):
            moving.pop(index, None)
            if brokers:
                moving[index] = brokers
    return znodes.TopicAssignment(topic.topic_id, partitions, adding, removing)


def leaderless(replicas: tuple[int, ...], partition_epoch: int = 0) -> PartitionState:
    """What brokers are told of a partition about which nothing is decided, or can be."""
    return PartitionState(replicas, NOBODY, 0, (), partition_epoch=partition_epoch)
