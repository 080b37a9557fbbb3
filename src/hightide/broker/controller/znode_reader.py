"""Reads brokers and topics from ZooKeeper, in any valid form.

Kafka's older tools write only a topic's assignment and leave the rest to the controller, so a topic
without an id gets one here.  An invalid znode is logged once and left alone: it is neither served
nor deleted.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Sequence
from typing import NamedTuple

from hightide.broker.controller.context import LiveBroker, StoredTopic, decode_state
from hightide.broker.controller.controller_election import ControllerElection
from hightide.broker.membership.dynamic_configs import read_config
from hightide.broker.membership.watch_loop import in_groups
from hightide.core.metadata import topic_names as rules
from hightide.settings import Topic as TopicSettings
from hightide.wire.errors import KafkaError
from hightide.zookeeper import znodes
from hightide.zookeeper.interface import Watch, ZooKeeper
from hightide.zookeeper.operation import SetData
from hightide.zookeeper.zookeeper_errors import MalformedZnode, MultiFailed, NoNode

log = logging.getLogger(__name__)


class _AssignedTopic(NamedTuple):
    name: str
    assignment: znodes.TopicAssignment
    version: int


class ZnodeReader:
    """Reads for the controller, and sets a watch on the znode of every topic."""

    def __init__(
        self,
        zookeeper: ZooKeeper,
        election: ControllerElection,
        new_id: Callable[[], uuid.UUID],
        on_topic: Watch,
    ) -> None:
        self.unusable: dict[str, str] = {}
        """Why topics, partitions and brokers with invalid znodes cannot be used."""
        self._zookeeper = zookeeper
        self._election = election
        self._new_id = new_id
        self._on_topic = on_topic

    # -- brokers ---------------------------------------------------------------------------

    async def brokers(self, watch: Watch) -> dict[int, LiveBroker]:
        names = await self._zookeeper.children(znodes.BROKER_IDS, watch)
        found = await in_groups(names, self._broker)
        return dict(broker for broker in found if broker is not None)

    async def _broker(self, name: str) -> tuple[int, LiveBroker] | None:
        path = f"{znodes.BROKER_IDS}/{name}"
        try:
            data, stat = await self._zookeeper.get(path)
            registration = znodes.BrokerRegistration.decode(data, path)
            return znodes.broker_id_of(path), LiveBroker(stat.czxid, registration)
        except NoNode:
            return None  # its watch has fired, or will
        except MalformedZnode as damage:
            self._report(path, f"the broker at {path} counts as dead: {damage}")
            return None

    # -- topics ----------------------------------------------------------------------------

    async def versions(self, names: Sequence[str]) -> dict[str, tuple[uuid.UUID | None, int]]:
        """Return ids and znode versions of topics, to tell which topics have changed."""
        found = await in_groups(names, self._read_assignment)
        return {topic.name: (topic.assignment.topic_id, topic.version) for topic in found if topic}

    async def topics(self, names: Sequence[str]) -> dict[str, StoredTopic]:
        """Read topics with their partitions, without those that are gone or invalid.

        Znodes of one kind are read together: the states of a thousand topics of one partition cost
        no more than those of one topic with a thousand partitions.
        """
        assigned = [
            topic for topic in await in_groups(names, self._read_assignment) if topic is not None
        ]
        topics = await in_groups(assigned, self._with_topic_id)
        partitions = [(topic, index) for topic in topics for index in topic.assignment.partitions]
        await in_groups(partitions, self._read_state)
        await in_groups(topics, self._read_overrides)
        return {topic.name: topic for topic in topics}

    async def _read_assignment(self, name: str) -> _AssignedTopic | None:
        path = znodes.topic_path(name)
        try:
            data, stat = await self._zookeeper.get(path, self._on_topic)
            found = znodes.TopicAssignment.decode(data, path)
            _check(name, found, path)
        except NoNode:
            self.unusable.pop(name, None)
            return None
        except MalformedZnode as damage:
            self._report(name, f"topic {name} cannot be used: {damage}")
            return None
        self.unusable.pop(name, None)
        return _AssignedTopic(name, found, stat.version)

    async def _with_topic_id(self, topic: _AssignedTopic) -> StoredTopic:
        """Assign an id to a topic that has none."""
        name, assignment, version = topic
        if assignment.topic_id is None:
            assignment = assignment._replace(topic_id=self._new_id())
            path = znodes.topic_path(name)
            try:
                await self._election.fenced([SetData(path, assignment.encode(), version)])
            except MultiFailed as failed:
                # Another party has changed the topic, so the check reads everything again.
                raise failed.cause from failed
            version += 1
        assert assignment.topic_id is not None
        return StoredTopic(name, assignment.topic_id, assignment, version)

    async def _read_state(self, partition: tuple[StoredTopic, int]) -> None:
        topic, index = partition
        path = znodes.partition_state_path(topic.name, index)
        try:
            data, stat = await self._zookeeper.get(path)
        except NoNode:
            topic.new_partitions[index] = topic.assignment.partitions[index]
            return
        try:
            topic.partitions[index] = decode_state(
                data, path, stat.version, topic.assignment, index
            )
            self.unusable.pop(path, None)
        except MalformedZnode as damage:
            topic.damaged[index] = topic.assignment.partitions[index]
            self._report(path, f"{topic.name}-{index} has no leader: {damage}")

    async def _read_overrides(self, topic: StoredTopic) -> None:
        topic.overrides = await self.overrides(topic.name)

    async def overrides(self, name: str) -> dict[str, str]:
        """Read the settings of a topic."""
        return await read_config(self._zookeeper, f"topics/{name}", TopicSettings.check)

    def _report(self, about: str, why: str) -> None:
        if self.unusable.get(about) != why:
            self.unusable[about] = why
            log.error("%s", why)


def _check(name: str, found: znodes.TopicAssignment, path: str) -> None:
    """Raise MalformedZnode unless the name and assignment are valid."""
    try:
        rules.check_name(name)
    except KafkaError as wrong:
        raise MalformedZnode(path, wrong.detail) from None
    if not found.partitions or list(found.partitions) != list(range(len(found.partitions))):
        raise MalformedZnode(path, "its partitions are not numbered 0, 1, 2, …")
    for index, replicas in found.partitions.items():
        if not replicas or len(set(replicas)) < len(replicas):
            raise MalformedZnode(path, f"partition {index} cannot be on brokers {list(replicas)}")
