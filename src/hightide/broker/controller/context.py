"""Controller state, and the znode versions needed to write it.

`core.controller` decides from broker epochs and partition states alone.  Writing and publishing a
decision also needs addresses, the topics' znodes and their settings, which are kept here.

ZooKeeper stores a partition in two znodes.  The topic's znode holds the assignment of all its
partitions, including replicas that are being added or removed.  The partition's state znode holds
the rest, and its version is the partition epoch.  Both are written in one multi, so they agree,
unless Kafka's own controller or a person has changed one of them.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from hightide.core.controller.cluster_state import Partition, Topic, TopicRules
from hightide.core.controller.controller import Controller, PartitionChange
from hightide.core.controller.leader_election import Broker, RecoveryStrategy
from hightide.core.partition.state import NO_BROKER, PartitionState
from hightide.settings import Broker as Settings
from hightide.settings import Topic as TopicSettings
from hightide.zookeeper import znodes
from hightide.zookeeper.zookeeper_errors import MalformedZnode

# The settings that elections depend on.
_ELECTION_SETTINGS = (
    "min.insync.replicas",
    "unclean.leader.election.enable",
    "unclean.recovery.strategy",
)


class LiveBroker(NamedTuple):
    """A registered broker, with its broker epoch."""

    epoch: int
    registration: znodes.BrokerRegistration


@dataclass(slots=True)
class StoredTopic:
    """A topic as ZooKeeper stores it."""

    name: str
    topic_id: uuid.UUID
    assignment: znodes.TopicAssignment
    version: int
    """Version of the topic's znode."""
    partitions: dict[int, PartitionState] = field(default_factory=dict)
    new_partitions: dict[int, tuple[int, ...]] = field(default_factory=dict)
    damaged: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """Assignments of partitions without a state znode, and of those whose state is invalid."""
    overrides: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class TopicZnodes:
    """The part of a topic's znodes that decisions do not depend on."""

    assignment: znodes.TopicAssignment
    version: int
    overrides: Mapping[str, str]
    damaged: Mapping[int, tuple[int, ...]]
    """Assignments of partitions whose state znode is invalid, or was deleted by another party: no
    change of them can be written."""


@dataclass(frozen=True, slots=True)
class TopicUpdate:
    """The result of reading a topic: what to publish, and what to write."""

    changed: list[Partition]
    replaced: uuid.UUID | None
    lost: list[int]
    """Partitions with a known state whose state znode is missing."""
    plan: list[PartitionChange]


class ControllerContext:
    """The state of one controller epoch."""

    def __init__(self, settings: Callable[[], Settings]) -> None:
        self.machine = Controller()
        self.brokers: dict[int, LiveBroker] = {}
        self.topic_znodes: dict[str, TopicZnodes] = {}
        self._settings = settings
        # A cache: the rules depend on the broker's settings and on two settings of the topic.
        self._cached_for = settings()
        self._rules: dict[tuple[str | None, ...], TopicRules] = {}

    def rules(self, overrides: Mapping[str, str]) -> TopicRules:
        """Return the election rules of a topic with these settings."""
        settings = self._settings()
        if settings is not self._cached_for:
            self._cached_for = settings
            self._rules.clear()
        key = tuple(overrides.get(name) for name in _ELECTION_SETTINGS)
        rules = self._rules.get(key)
        if rules is None:
            relevant = {name: overrides[name] for name in _ELECTION_SETTINGS if name in overrides}
            effective = TopicSettings.effective(settings, relevant)
            rules = self._rules[key] = TopicRules(
                effective.min_insync_replicas,
                effective.unclean_leader_election_enable,
                RecoveryStrategy(effective.unclean_recovery_strategy.lower()),
            )
        return rules

    def update_brokers(self, live: Mapping[int, LiveBroker]) -> list[PartitionChange]:
        """Take over the live brokers; return the changes that follow."""
        self.brokers = dict(sorted(live.items()))
        return self.machine.brokers_seen(
            {
                broker_id: Broker(
                    broker.epoch, broker.registration.rack, broker.registration.previous_epoch
                )
                for broker_id, broker in self.brokers.items()
            }
        )

    def update_topic(self, stored: StoredTopic) -> TopicUpdate:
        """Take over a topic that was read from ZooKeeper, or just written there."""
        known = self.machine.topics.get(stored.name)
        before = {} if known is None else self._states(known)
        replaced = known.id if known is not None and known.id != stored.topic_id else None
        if replaced is not None:
            known, before = None, {}
        lost = []
        if known is not None:
            lost = [index for index in stored.new_partitions if index in known.partitions]
        self.topic_znodes[stored.name] = TopicZnodes(
            stored.assignment,
            stored.version,
            stored.overrides,
            stored.damaged | {index: stored.new_partitions[index] for index in lost},
        )
        plan = self.machine.topic_found(
            stored.name,
            stored.topic_id,
            self.rules(stored.overrides),
            stored.partitions,
            stored.new_partitions,
        )
        after = self._states(self.machine.topics[stored.name])
        changed = [
            (stored.name, index)
            for index, state in after.items()
            if index not in before or before[index] != state
        ]
        return TopicUpdate(changed, replaced, lost, plan)

    def remove_topic(self, name: str) -> uuid.UUID | None:
        """Remove a topic and return its id, or None if the topic is unknown."""
        topic = self.machine.topics.get(name)
        self.topic_znodes.pop(name, None)
        self.machine.topic_removed(name)
        return None if topic is None else topic.id

    def is_current(self, change: PartitionChange) -> bool:
        """Whether the state that a change was planned from is still current, and writable."""
        topic = self.machine.topics.get(change.topic)
        if topic is None or change.index in self.topic_znodes[change.topic].damaged:
            return False
        if change.before is None:
            return change.index in topic.new_partitions
        return topic.partitions.get(change.index) is change.before

    def with_assignments(
        self, name: str, after: Mapping[int, PartitionState]
    ) -> znodes.TopicAssignment:
        """Return the content of a topic's znode when these partitions have these states."""
        return assignment_of(self.topic_znodes[name].assignment, after)

    def published_state(self, name: str, index: int) -> PartitionState | None:
        """Return the state to publish for a partition, or None if it does not exist."""
        topic = self.machine.topics.get(name)
        if topic is None:
            return None
        state = topic.partitions.get(index)
        if state is not None:
            return state
        replicas = topic.new_partitions.get(index) or self.topic_znodes[name].damaged.get(index)
        return None if replicas is None else leaderless(replicas)

    def _states(self, topic: Topic) -> dict[int, PartitionState]:
        return dict(self.published_states(topic))

    def published_states(self, topic: Topic) -> Iterator[tuple[int, PartitionState]]:
        """Yield the states to publish for a topic, in the order of its partitions."""
        damaged = self.topic_znodes[topic.name].damaged
        for index in sorted({*topic.partitions, *topic.new_partitions, *damaged}):
            state = self.published_state(topic.name, index)
            assert state is not None
            yield index, state


# -- partition state znodes ------------------------------------------------------------------


def encode_state(state: PartitionState, controller_epoch: int) -> bytes:
    """Encode the state znode of a partition."""
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
        state.last_known_elr,
    ).encode()


def decode_state(
    data: bytes, path: str, version: int, assignment: znodes.TopicAssignment, index: int
) -> PartitionState:
    """Decode the state znode of a partition; MalformedZnode if it is invalid.

    Kafka keeps the last replicas in the ISR of a partition without a leader; here they move to the
    ELR.  So does an ISR whose leader is not a member, or holds no replica any more.
    """
    stored = znodes.PartitionState.decode(data, path)
    replicas = assignment.partitions[index]
    isr = tuple(member for member in stored.isr if member in replicas)
    elr = tuple(member for member in stored.elr if member in replicas and member not in isr)
    leader, last_known_leader = stored.leader, stored.last_known_leader
    if leader not in isr:
        isr, elr = (), isr + elr
        if leader in replicas:
            last_known_leader = leader
        leader = NO_BROKER
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
        {member: epoch for member, epoch in stored.broker_epochs.items() if member in isr + elr},
        tuple(m for m in stored.last_known_elr if m in replicas and m not in isr + elr),
    )
    try:
        state.check()
    except AssertionError as wrong:
        raise MalformedZnode(path, f"it contradicts itself or the assignment: {wrong}") from None
    return state


def assignment_of(
    topic: znodes.TopicAssignment, states: Mapping[int, PartitionState]
) -> znodes.TopicAssignment:
    """Return a topic's assignment, updated with these partitions."""
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
    """Return the published state of a partition without a valid state znode."""
    return PartitionState(replicas, NO_BROKER, 0, (), partition_epoch=partition_epoch)
