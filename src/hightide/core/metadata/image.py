"""A broker's metadata image: its copy of the cluster's state, and the roles that follow from it.

    controller ── PublishState ──▶ MetadataImage.receive ──▶ ImageUpdate(error code, role changes)
                                        │
                                        └─▶ Metadata responses: topics, leaders, endpoints

One image serves both, so that what a broker does and what it tells clients cannot differ.  The
image is always the state of one moment of one controller or, partition by partition, a newer one:

- A message of an older controller, or for another broker epoch of this broker, is refused.
- A message that is not newer than the last one, because it was sent twice or arrived late, is
  acknowledged and ignored: the later message contained everything that it says.
- A partition's state never goes back in partition epoch or leader epoch, whichever message says so.
- What a full message does not mention is gone.

The role changes come in an order in which they can be applied: first what ends, so that the folder
of a topic that was deleted and created again is free, then what is to be led, because clients wait
for it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from hightide.core.metadata.departed_brokers import DepartedBrokers
from hightide.core.partition.state import NO_BROKER, PartitionState
from hightide.wire.errors import ErrorCode
from hightide.wire.messages.replication import (
    PublishedBroker,
    PublishedEndpoint,
    PublishedPartition,
    PublishedTopic,
    PublishStateRequest,
)


@dataclass(frozen=True, slots=True)
class Lead:
    """Lead from now on, in the state's leader epoch."""

    topic: str
    topic_id: uuid.UUID
    index: int
    state: PartitionState


@dataclass(frozen=True, slots=True)
class Follow:
    """Follow `state.leader`, which listens at `endpoint`; None while that broker is not alive."""

    topic: str
    topic_id: uuid.UUID
    index: int
    state: PartitionState
    endpoint: PublishedEndpoint | None


@dataclass(frozen=True, slots=True)
class NoLeader:
    """The partition has no leader.  This broker keeps its replica and waits."""

    topic: str
    topic_id: uuid.UUID
    index: int
    state: PartitionState


@dataclass(frozen=True, slots=True)
class StateChanged:
    """The role and the leader epoch stay; the ISR or something else changed."""

    topic: str
    topic_id: uuid.UUID
    index: int
    state: PartitionState


@dataclass(frozen=True, slots=True)
class Stop:
    """This broker is not among the partition's replicas any more."""

    topic: str
    topic_id: uuid.UUID
    index: int
    state: PartitionState


@dataclass(frozen=True, slots=True)
class Delete:
    """The partition's topic was deleted, and perhaps created again.

    If that is only `inferred`, from its absence in a full message, the broker sets the log aside
    instead of deleting it.
    """

    topic: str
    topic_id: uuid.UUID
    index: int
    inferred: bool


Role = Lead | Follow | NoLeader
RoleChange = Delete | Stop | NoLeader | Lead | Follow | StateChanged
_ORDER = {kind: nth for nth, kind in enumerate((NoLeader, Lead, Follow, StateChanged))}


class ImageUpdate(NamedTuple):
    """What a message changed; with an error code, the message was refused."""

    error_code: ErrorCode = ErrorCode.NONE
    changes: tuple[RoleChange, ...] = ()
    brokers_changed: bool = False
    topics_changed: bool = False
    """Whether topics or partitions were added or removed."""
    deleted_topics: tuple[str, ...] = ()
    """Topics that are known to be deleted; a topic that a message merely lacks may come back."""


@dataclass(slots=True)
class Topic:
    """A topic as last published, its partitions in order."""

    name: str
    topic_id: uuid.UUID
    partitions: dict[int, PartitionState] = field(default_factory=dict)


class _Changes:
    """The changes of one message, while they are collected."""

    def __init__(self) -> None:
        self.ended: list[Delete | Stop] = []
        self.begun: dict[tuple[str, int], Role | StateChanged] = {}
        self.topics_changed = False
        self.deleted_topics: list[str] = []

    def in_order(self) -> tuple[RoleChange, ...]:
        begun = sorted(self.begun.values(), key=lambda change: _ORDER[type(change)])
        return (*self.ended, *begun)


class MetadataImage:
    """The image of broker `broker_id`, which connects to other brokers on `listener`."""

    def __init__(self, broker_id: int, listener: str) -> None:
        self.broker_id = broker_id
        self.controller_id = NO_BROKER
        self.controller_epoch = -1
        self.is_complete = False
        """Whether a full message has arrived: before that, absence means nothing."""
        self.brokers: Mapping[int, PublishedBroker] = {}
        self.live: Mapping[int, int] = {}
        """The broker epochs of the live brokers."""
        self.shutting_down: frozenset[int] = frozenset()
        self.departed = DepartedBrokers()
        self._listener = listener
        self._addresses: Mapping[int, PublishedEndpoint | None] = {}
        self._newest = (-1, -1, -1)
        self._own_epoch = -1
        self._topics: dict[str, Topic] = {}
        self._names: dict[uuid.UUID, str] = {}

    # -- messages of the controller --------------------------------------------------------

    def receive(self, message: PublishStateRequest, own_epoch: int) -> ImageUpdate:
        """Apply a message; `own_epoch` is this broker's present broker epoch."""
        if message.broker_epoch != own_epoch:
            return ImageUpdate(ErrorCode.STALE_BROKER_EPOCH)
        if message.controller_epoch < self.controller_epoch:
            return ImageUpdate(ErrorCode.STALE_CONTROLLER_EPOCH)
        number = (message.controller_epoch, own_epoch, message.sequence)
        if number <= self._newest:
            return ImageUpdate()
        self._newest = number
        self._own_epoch = own_epoch
        self.controller_id = message.controller_id
        self.controller_epoch = message.controller_epoch
        brokers, addresses = self.brokers, self._addresses
        self._see_brokers(message.brokers)
        changes = _Changes()
        self._remove_topics(message, changes)
        for topic in message.topics:
            self._see_topic(topic, message.is_full, changes)
        if addresses != self._addresses:
            self._follow_elsewhere(addresses, changes)
        self.is_complete = self.is_complete or message.is_full
        return ImageUpdate(
            ErrorCode.NONE,
            changes.in_order(),
            brokers != self.brokers,
            changes.topics_changed,
            tuple(changes.deleted_topics),
        )

    def _see_brokers(self, brokers: Iterable[PublishedBroker]) -> None:
        self.brokers = {broker.broker_id: broker for broker in brokers}
        self.live = {i: broker.broker_epoch for i, broker in self.brokers.items()}
        self.shutting_down = frozenset(
            i for i, broker in self.brokers.items() if broker.is_shutting_down
        )
        self._addresses = {i: self.endpoint(i, self._listener) for i in self.brokers}

    def _remove_topics(self, message: PublishStateRequest, changes: _Changes) -> None:
        for topic_id in message.removed_topics:
            name = self._names.get(topic_id)
            if name is not None:
                self._remove(self._topics[name], changes, inferred=False)
        if message.is_full:
            mentioned = {topic.name for topic in message.topics}
            for topic in [topic for topic in self if topic.name not in mentioned]:
                self._remove(topic, changes, inferred=True)

    def _remove(self, topic: Topic, changes: _Changes, inferred: bool) -> None:
        del self._topics[topic.name]
        changes.topics_changed = True
        if not inferred:
            changes.deleted_topics.append(topic.name)
        if self._names.get(topic.topic_id) == topic.name:
            del self._names[topic.topic_id]
        for index in list(topic.partitions):
            self._remove_partition(topic, index, changes, inferred)

    def _remove_partition(
        self, topic: Topic, index: int, changes: _Changes, inferred: bool
    ) -> None:
        state = topic.partitions.pop(index)
        changes.topics_changed = True
        if self.broker_id in state.replicas:
            changes.ended.append(Delete(topic.name, topic.topic_id, index, inferred))

    def _see_topic(self, published: PublishedTopic, is_full: bool, changes: _Changes) -> None:
        name = published.name
        topic = self._topics.get(name)
        if topic is not None and topic.topic_id != published.topic_id:
            # Its deletion was not published: the new id may be wrong.
            self._remove(topic, changes, inferred=True)
            topic = None
        if topic is None:
            topic = self._topics[name] = Topic(name, published.topic_id)
            self._names[published.topic_id] = name
        known, count = topic.partitions, len(topic.partitions)
        for partition in published.partitions:
            index = partition.partition_index
            before, after = known.get(index), state_of(partition)
            if before is None or not _is_older(after, before):
                known[index] = after
                self._change_role(topic, index, before, after, changes)
        if len(known) > count:
            topic.partitions = known = dict(sorted(known.items()))
            changes.topics_changed = True
        if is_full and len(known) > len(published.partitions):
            mentioned = {partition.partition_index for partition in published.partitions}
            for index in [index for index in known if index not in mentioned]:
                self._remove_partition(topic, index, changes, inferred=True)

    # -- roles of this broker --------------------------------------------------------------

    def _change_role(
        self,
        topic: Topic,
        index: int,
        before: PartitionState | None,
        after: PartitionState,
        changes: _Changes,
    ) -> None:
        held = before is not None and self.broker_id in before.replicas
        if self.broker_id not in after.replicas:
            if held:
                changes.ended.append(Stop(topic.name, topic.topic_id, index, after))
        elif not held or before is None or _has_new_leader(before, after):
            changes.begun[topic.name, index] = self._role(topic, index, after)
        elif before != after:
            changes.begun[topic.name, index] = StateChanged(
                topic.name, topic.topic_id, index, after
            )

    def _role(self, topic: Topic, index: int, state: PartitionState) -> Role:
        # A new controller publishes the states that it found before it has decided anything. A
        # decision about a former broker epoch, whose log may be gone, does not make this broker
        # lead.
        elected_in = state.broker_epochs.get(self.broker_id, self._own_epoch)
        if state.leader == self.broker_id and elected_in == self._own_epoch:
            return Lead(topic.name, topic.topic_id, index, state)
        if state.leader in (NO_BROKER, self.broker_id):
            return NoLeader(topic.name, topic.topic_id, index, state)
        address = self._addresses.get(state.leader)
        return Follow(topic.name, topic.topic_id, index, state, address)

    def _follow_elsewhere(
        self, before: Mapping[int, PublishedEndpoint | None], changes: _Changes
    ) -> None:
        """Follow again where the leader stayed and its address changed."""
        now = self._addresses
        moved = {i for i in before.keys() | now.keys() if before.get(i) != now.get(i)}
        for topic, index, state in self._held():
            if state.leader not in moved or state.leader == self.broker_id:
                continue
            found = changes.begun.get((topic.name, index))
            if found is None or isinstance(found, StateChanged):
                changes.begun[topic.name, index] = self._role(topic, index, state)

    def _held(self) -> Iterator[tuple[Topic, int, PartitionState]]:
        for topic in self._topics.values():
            for index, state in topic.partitions.items():
                if self.broker_id in state.replicas:
                    yield topic, index, state

    def roles(self) -> list[Role]:
        """Return every role of this broker: the sum of the role changes of all messages."""
        return [self._role(topic, index, state) for topic, index, state in self._held()]

    # -- questions -------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Topic]:
        return iter(self._topics.values())

    def __len__(self) -> int:
        return len(self._topics)

    def topic(self, name: str) -> Topic | None:
        return self._topics.get(name)

    def topic_by_id(self, topic_id: uuid.UUID) -> Topic | None:
        name = self._names.get(topic_id)
        return None if name is None else self._topics[name]

    def state(self, name: str, index: int) -> PartitionState | None:
        topic = self._topics.get(name)
        return None if topic is None else topic.partitions.get(index)

    def leader(self, state: PartitionState) -> int:
        """Return the leader if it is alive, else NO_BROKER."""
        return state.leader if state.leader in self.live else NO_BROKER

    def offline_replicas(self, state: PartitionState) -> list[int]:
        return [replica for replica in state.replicas if replica not in self.live]

    def endpoint(self, broker_id: int, listener: str) -> PublishedEndpoint | None:
        broker = self.brokers.get(broker_id)
        if broker is not None:
            for endpoint in broker.endpoints:
                if endpoint.listener == listener:
                    return endpoint
        return None

    def endpoints(self, listener: str) -> list[tuple[PublishedBroker, PublishedEndpoint]]:
        """Return the live brokers with a listener of this name, in the order of their ids."""
        found = ((self.brokers[i], self.endpoint(i, listener)) for i in sorted(self.live))
        return [(broker, endpoint) for broker, endpoint in found if endpoint is not None]

    def check(self) -> None:
        """Assert what must hold between messages."""
        for topic_id, name in self._names.items():
            assert self._topics[name].topic_id == topic_id
        for name, topic in self._topics.items():
            assert topic.name == name
            assert topic.topic_id in self._names
            assert list(topic.partitions) == sorted(topic.partitions)
        assert self._newest[0] == self.controller_epoch
        assert self.live.keys() == self.brokers.keys() >= self.shutting_down


def _is_older(state: PartitionState, known: PartitionState) -> bool:
    return state.partition_epoch < known.partition_epoch or state.leader_epoch < known.leader_epoch


def _has_new_leader(before: PartitionState, after: PartitionState) -> bool:
    return before.leader_epoch != after.leader_epoch or before.leader != after.leader


def state_of(published: PublishedPartition) -> PartitionState:
    """Return the state in a message.  It has the broker epoch of the leader only: controllers
    need the others, and read them from the partition's znode."""
    epochs = {}
    if published.leader_broker_epoch >= 0:
        epochs[published.leader] = published.leader_broker_epoch
    return PartitionState(
        tuple(published.replicas),
        published.leader,
        published.leader_epoch,
        tuple(published.isr),
        tuple(published.elr),
        published.last_known_leader,
        published.partition_epoch,
        tuple(published.adding),
        tuple(published.removing),
        published.is_recovering,
        published.recovery_epoch,
        epochs,
        tuple(published.last_known_elr),
    )


def published_partition(index: int, state: PartitionState) -> PublishedPartition:
    """Return the message part for a state: the inverse of `state_of`."""
    return PublishedPartition(
        partition_index=index,
        replicas=list(state.replicas),
        leader=state.leader,
        leader_epoch=state.leader_epoch,
        isr=list(state.isr),
        partition_epoch=state.partition_epoch,
        elr=list(state.elr),
        last_known_leader=state.last_known_leader,
        last_known_elr=list(state.last_known_elr),
        adding=list(state.adding),
        removing=list(state.removing),
        is_recovering=state.is_recovering,
        recovery_epoch=state.recovery_epoch,
        leader_broker_epoch=state.broker_epochs.get(state.leader, -1),
    )
