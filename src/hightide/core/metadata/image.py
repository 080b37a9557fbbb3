"""A broker's copy of the cluster's state, and what each new copy means for its own partitions.

    controller ── PublishState ──▶ Picture.receive ──▶ Received(error code, role changes)
                                        │
                                        └─▶ what Metadata tells: topics, leaders, endpoints

One picture serves both, so that what a broker does and what it tells clients cannot differ.  It is
always the state of one moment of one controller or, partition by partition, a newer one:

- A message of an older controller, or for another life of this broker, is refused.
- A message that is not newer than the last, because it was sent twice or was overtaken, is taken
  for done: what came later holds all that it says.
- A partition's state never goes back in partition epoch or leader epoch, whoever says so.
- What a full message does not mention is gone.

The role changes come in an order in which they can be carried out: first what ends, so that the
folder of a topic that was made anew is free, then what is to be led, because clients wait for it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

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
    """This broker leads from now on, in the state's leader epoch."""

    topic: str
    topic_id: uuid.UUID
    index: int
    state: PartitionState


@dataclass(frozen=True, slots=True)
class Follow:
    """`state.leader` leads, and is reached at `endpoint`; None while it is not seen alive."""

    topic: str
    topic_id: uuid.UUID
    index: int
    state: PartitionState
    endpoint: PublishedEndpoint | None


@dataclass(frozen=True, slots=True)
class NoLeader:
    """Nobody leads.  This broker keeps the partition and waits."""

    topic: str
    topic_id: uuid.UUID
    index: int
    state: PartitionState


@dataclass(frozen=True, slots=True)
class StateChanged:
    """The role and the leader epoch are what they were; the ISR or something else is not."""

    topic: str
    topic_id: uuid.UUID
    index: int
    state: PartitionState


@dataclass(frozen=True, slots=True)
class Stop:
    """Others hold the partition now; this broker is not among its replicas any more."""

    topic: str
    topic_id: uuid.UUID
    index: int
    state: PartitionState


@dataclass(frozen=True, slots=True)
class Delete:
    """Nobody holds the partition any more: its topic was deleted, and perhaps made anew.

    When that is only `inferred`, from its absence in a full message, a prudent broker sets the log
    aside rather than erasing it.
    """

    topic: str
    topic_id: uuid.UUID
    index: int
    inferred: bool


Role = Lead | Follow | NoLeader
RoleChange = Delete | Stop | NoLeader | Lead | Follow | StateChanged
_ORDER = {kind: nth for nth, kind in enumerate((NoLeader, Lead, Follow, StateChanged))}


class ImageUpdate(NamedTuple):
    """What a message meant; with an error code, that nothing of it was taken."""

    error_code: ErrorCode = ErrorCode.NONE
    changes: tuple[RoleChange, ...] = ()
    brokers_changed: bool = False
    topics_changed: bool = False
    """Whether there are other topics now, or more partitions."""
    deleted_topics: tuple[str, ...] = ()
    """Those that are known to be deleted; what is only missing in a message may come back."""


@dataclass(slots=True)
class Topic:
    """A topic as it was last published; its partitions in order."""

    name: str
    topic_id: uuid.UUID
    partitions: dict[int, PartitionState] = field(default_factory=dict)


class _Changes:
    """The changes of one message as they are found."""

    def __init__(self) -> None:
        self.ended: list[Delete | Stop] = []
        self.begun: dict[tuple[str, int], Role | StateChanged] = {}
        self.topics_changed = False
        self.deleted_topics: list[str] = []

    def in_order(self) -> tuple[RoleChange, ...]:
        begun = sorted(self.begun.values(), key=lambda each: _ORDER[type(each)])
        return (*self.ended, *begun)


class MetadataImage:
    """The copy of broker `broker_id`, which reaches others at their `listener`."""

    def __init__(self, broker_id: int, listener: str) -> None:
        self.broker_id = broker_id
        self.controller_id = NO_BROKER
        self.controller_epoch = -1
        self.is_complete = False
        """Whether there ever was a full message: before, nothing is known to be missing."""
        self.brokers: Mapping[int, PublishedBroker] = {}
        self.live: Mapping[int, int] = {}
        """The broker epochs of the live brokers, and of these the ones that will soon stop."""
        self.shutting_down: frozenset[int] = frozenset()
        self._listener = listener
        self._addresses: Mapping[int, PublishedEndpoint | None] = {}
        self._newest = (-1, -1, -1)
        self._own_epoch = -1
        self._topics: dict[str, Topic] = {}
        self._names: dict[uuid.UUID, str] = {}

    # -- what the controller says ----------------------------------------------------------

    def receive(self, message: PublishStateRequest, own_epoch: int) -> ImageUpdate:
        """Take a message; `own_epoch` is the epoch in which this broker is registered now."""
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
        self.brokers = {each.broker_id: each for each in brokers}
        self.live = {each.broker_id: each.broker_epoch for each in self.brokers.values()}
        self.shutting_down = frozenset(
            each.broker_id for each in self.brokers.values() if each.is_shutting_down
        )
        self._addresses = {each: self.endpoint(each, self._listener) for each in self.brokers}

    def _remove_topics(self, message: PublishStateRequest, changes: _Changes) -> None:
        for topic_id in message.removed_topics:
            name = self._names.get(topic_id)
            if name is not None:
                self._remove(self._topics[name], changes, inferred=False)
        if message.is_full:
            mentioned = {topic.name for topic in message.topics}
            for topic in [each for each in self if each.name not in mentioned]:
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
            self._remove(topic, changes, inferred=False)
            topic = None
        if topic is None:
            topic = self._topics[name] = Topic(name, published.topic_id)
            self._names[published.topic_id] = name
        known, count = topic.partitions, len(topic.partitions)
        for each in published.partitions:
            index = each.partition_index
            before, after = known.get(index), state_of(each)
            if before is None or not _is_older(after, before):
                known[index] = after
                self._change_role(topic, index, before, after, changes)
        if len(known) > count:
            topic.partitions = known = dict(sorted(known.items()))
            changes.topics_changed = True
        if is_full and len(known) > len(published.partitions):
            mentioned = {each.partition_index for each in published.partitions}
            for index in [each for each in known if each not in mentioned]:
                self._remove_partition(topic, index, changes, inferred=True)

    # -- what it means for this broker -----------------------------------------------------

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
        elif not held or before is None or _is_led_anew(before, after):
            changes.begun[topic.name, index] = self._role(topic, index, after)
        elif before != after:
            changes.begun[topic.name, index] = StateChanged(
                topic.name, topic.topic_id, index, after
            )

    def _role(self, topic: Topic, index: int, state: PartitionState) -> Role:
        # A controller publishes what it found before it has decided anew. What was decided about
        # a former life of this broker, whose log may have been another, does not make it lead.
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
        """Follow anew where the leader stayed and its address did not."""
        now = self._addresses
        moved = {each for each in before.keys() | now.keys() if before.get(each) != now.get(each)}
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
        """Every role that this broker has; the changes of all messages so far amount to this."""
        return [self._role(topic, index, state) for topic, index, state in self._held()]

    # -- what others ask -------------------------------------------------------------------

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
        """Who can be asked as the leader: one that is not alive cannot."""
        return state.leader if state.leader in self.live else NO_BROKER

    def offline_replicas(self, state: PartitionState) -> list[int]:
        return [each for each in state.replicas if each not in self.live]

    def endpoint(self, broker_id: int, listener: str) -> PublishedEndpoint | None:
        broker = self.brokers.get(broker_id)
        if broker is not None:
            for endpoint in broker.endpoints:
                if endpoint.listener == listener:
                    return endpoint
        return None

    def endpoints(self, listener: str) -> list[tuple[PublishedBroker, PublishedEndpoint]]:
        """The live brokers that have a listener of this name, in the order of their ids."""
        found = ((self.brokers[each], self.endpoint(each, listener)) for each in sorted(self.live))
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


def _is_led_anew(before: PartitionState, after: PartitionState) -> bool:
    return before.leader_epoch != after.leader_epoch or before.leader != after.leader


def state_of(published: PublishedPartition) -> PartitionState:
    """A partition's state out of a message, with the life of its leader: those of the others only
    controllers need, who keep them with the decision."""
    lives = {}
    if published.leader_broker_epoch >= 0:
        lives[published.leader] = published.leader_broker_epoch
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
        lives,
    )


def published_partition(index: int, state: PartitionState) -> PublishedPartition:
    """The inverse of `state_of`, for the controller."""
    return PublishedPartition(
        partition_index=index,
        replicas=list(state.replicas),
        leader=state.leader,
        leader_epoch=state.leader_epoch,
        isr=list(state.isr),
        partition_epoch=state.partition_epoch,
        elr=list(state.elr),
        last_known_leader=state.last_known_leader,
        adding=list(state.adding),
        removing=list(state.removing),
        is_recovering=state.is_recovering,
        recovery_epoch=state.recovery_epoch,
        leader_broker_epoch=state.broker_epochs.get(state.leader, -1),
    )
