"""Changes to topics: written to the coordination tree first, then carried out on this broker.

The tree decides.  Two clients that create the same topic at once are told apart by it, and a broker
that dies in the middle finds there, when it comes back, what is still to be done: partitions
without a log get one, topics marked for deletion go.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from hightide.broker.metadata import Metadata, Partition, Topic
from hightide.broker.replicas import Replicas
from hightide.coordination import znodes
from hightide.coordination.errors import CoordinationError, MultiFailed, NodeExists, NoNode
from hightide.coordination.interface import Coordination
from hightide.coordination.operation import Create, Delete, Operation, SetData
from hightide.core import topics as rules
from hightide.log.disk import DiskFailed
from hightide.log.store import LogStore
from hightide.wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from random import Random

log = logging.getLogger(__name__)

_CONTROLLER_EPOCH = 0
_LOGS_PER_TURN = 50  # making a log takes some 100 µs; then the connections get a turn

Assignment = Mapping[int, Sequence[int]]


class Topics:
    """Makes, changes and removes topics."""

    def __init__(
        self,
        coordination: Coordination,
        metadata: Metadata,
        replicas: Replicas,
        store: LogStore,
        random: Random,
        new_id: Callable[[], uuid.UUID],
    ) -> None:
        self._coordination = coordination
        self._metadata = metadata
        self._replicas = replicas
        self._store = store
        self._random = random
        self._new_id = new_id
        self._doomed: list[Topic] = []

    def assign(self, partition_count: int, replication_factor: int) -> dict[int, list[int]]:
        """Replicas for a new topic, beginning at a random broker."""
        brokers = self._metadata.broker_ids
        first = self._random.randrange(len(brokers))
        return rules.assign(brokers, partition_count, replication_factor, first)

    # -- at the start ----------------------------------------------------------------------

    async def load(self) -> None:
        """Read all topics from the tree."""
        doomed = set(await self._coordination.children(znodes.DELETE_TOPICS))
        for name in await self._coordination.children(znodes.TOPICS):
            topic = await self._read(name)
            if name in doomed:
                self._doomed.append(topic)
            else:
                self._metadata.put(topic)
        for name in doomed - {topic.name for topic in self._doomed}:
            await self._coordination.delete(znodes.delete_topic_path(name))

    async def _read(self, name: str) -> Topic:
        path = znodes.topic_path(name)
        assignment = znodes.TopicAssignment.decode((await self._coordination.get(path))[0], path)
        try:
            path = znodes.topic_config_path(name)
            config = znodes.EntityConfig.decode((await self._coordination.get(path))[0], path)
        except NoNode:
            config = znodes.EntityConfig({})
        partitions = []
        for index, replicas in assignment.partitions.items():
            path = znodes.partition_state_path(name, index)
            state = znodes.PartitionState.decode((await self._coordination.get(path))[0], path)
            partitions.append(
                Partition(index, list(replicas), state.leader, state.leader_epoch, list(state.isr))
            )
        topic_id = assignment.topic_id
        if topic_id is None:
            raise CoordinationError(znodes.topic_path(name), "the topic has no id")
        return Topic(name, topic_id, partitions, dict(config.config))

    async def lead(self) -> None:
        """Become the leader of every partition, each in an epoch that nobody led in before.

        Before that, logs of topics that are to go are deleted, and logs of no topic set aside.
        """
        for topic in self._doomed:
            await self._delete_logs(topic)
            await self._forget(topic)
        self._set_strays_aside()
        for topic in self._metadata:
            for partition in topic.partitions:
                partition.leader_epoch += 1
            await self._coordination.multi(
                [
                    SetData(
                        znodes.partition_state_path(topic.name, partition.index),
                        _state(partition),
                    )
                    for partition in topic.partitions
                ]
            )
            await self._open_logs(topic, topic.partitions)

    def _set_strays_aside(self) -> None:
        for name, partition in list(self._store.logs):
            topic = self._metadata.get(name)
            known_id = self._store.topic_ids.get((name, partition))
            if topic is None or partition >= len(topic.partitions):
                why = "the cluster knows no such partition"
            elif known_id is not None and known_id != topic.topic_id:
                why = "it belongs to a former topic of that name"
            else:
                continue
            kept = self._store.set_aside(name, partition)
            log.warning("%s-%d is set aside as %s: %s", name, partition, kept, why)

    async def _open_logs(self, topic: Topic, partitions: Sequence[Partition]) -> None:
        created = False
        for done, partition in enumerate(partitions, 1):
            key = (topic.name, partition.index)
            found = self._store.logs.get(key)
            if found is None:
                found = self._store.create(topic.name, partition.index, topic.topic_id)
                created = True
            elif key not in self._store.topic_ids:
                self._store.identify(found, topic.topic_id)
            # Before any record of the epoch exists, so that the epoch's start is never in doubt.
            found.epochs.assign(partition.leader_epoch, found.end_offset)
            self._replicas.add(found, topic.topic_id, partition.leader_epoch)
            if done % _LOGS_PER_TURN == 0:
                await asyncio.sleep(0)
        if created:
            await asyncio.to_thread(self._store.sync_names)

    # -- changes ---------------------------------------------------------------------------

    async def create(self, name: str, assignment: Assignment, overrides: dict[str, str]) -> Topic:
        """Make a topic, or TOPIC_ALREADY_EXISTS, or KAFKA_STORAGE_ERROR if no disk takes it."""
        partitions = [
            Partition(index, list(replicas), replicas[0], 0, list(replicas))
            for index, replicas in sorted(assignment.items())
        ]
        topic = Topic(name, self._new_id(), partitions, overrides)
        config = znodes.EntityConfig(overrides).encode()
        writes: list[Operation] = [
            Create(znodes.topic_path(name), _assignment(topic)),
            Create(znodes.partitions_path(name)),
            *_new_partitions(topic, partitions),
        ]
        if await self._coordination.exists(znodes.topic_config_path(name)) is None:
            writes.append(Create(znodes.topic_config_path(name), config))
        else:
            writes.append(SetData(znodes.topic_config_path(name), config))
        try:
            await self._coordination.multi(writes)
        except MultiFailed as failed:
            if isinstance(failed.cause, NodeExists):
                raise KafkaError(
                    ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {name} already exists"
                ) from None
            raise
        self._metadata.put(topic)
        try:
            await self._open_logs(topic, partitions)
        except DiskFailed as failed:
            log.error("cannot make the logs of topic %s: %s", name, failed)
            await self.delete(name)
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"no disk takes the logs of {name}"
            ) from None
        log.info("created topic %s with %d partitions", name, len(partitions))
        return topic

    async def delete(self, name: str) -> None:
        """Remove a topic and its records; UNKNOWN_TOPIC_OR_PARTITION if there is none."""
        topic = self._metadata.get(name)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}")
        try:
            await self._coordination.create(znodes.delete_topic_path(name))
        except NodeExists:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name} is being deleted"
            ) from None
        self._metadata.remove(name)
        await self._delete_logs(topic)
        await self._forget(topic)
        log.info("deleted topic %s", name)

    async def _delete_logs(self, topic: Topic) -> None:
        for partition in topic.partitions:
            self._replicas.remove(topic.name, partition.index)
            if (topic.name, partition.index) in self._store.logs:
                self._store.delete(topic.name, partition.index)
        await asyncio.to_thread(self._store.sync_names)

    async def _forget(self, topic: Topic) -> None:
        """Take a topic out of the tree, its mark last."""
        writes: list[Operation] = []
        for partition in topic.partitions:
            writes.append(Delete(znodes.partition_state_path(topic.name, partition.index)))
            writes.append(Delete(znodes.partition_path(topic.name, partition.index)))
        writes.append(Delete(znodes.partitions_path(topic.name)))
        writes.append(Delete(znodes.topic_path(topic.name)))
        if await self._coordination.exists(znodes.topic_config_path(topic.name)) is not None:
            writes.append(Delete(znodes.topic_config_path(topic.name)))
        writes.append(Delete(znodes.delete_topic_path(topic.name)))
        await self._coordination.multi(writes)

    async def add_partitions(self, name: str, assignment: Assignment) -> None:
        """Give a topic more partitions, numbered on from those it has."""
        topic = self._metadata.get(name)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}")
        had = len(topic.partitions)
        added = [
            Partition(index, list(replicas), replicas[0], 0, list(replicas))
            for index, replicas in sorted(assignment.items())
        ]
        grown = Topic(name, topic.topic_id, [*topic.partitions, *added], topic.overrides)
        try:
            await self._coordination.multi(
                [
                    *_new_partitions(topic, added),
                    SetData(znodes.topic_path(name), _assignment(grown)),
                ]
            )
        except MultiFailed as failed:
            raise KafkaError(
                ErrorCode.INVALID_PARTITIONS, f"topic {name} was changed meanwhile"
            ) from failed
        # Somebody may have changed the settings while the tree was written.
        topic.partitions.extend(added)
        assert len(topic.partitions) == had + len(added)
        await self._open_logs(topic, added)
        log.info("topic %s now has %d partitions", name, len(topic.partitions))

    async def configure(self, name: str, overrides: dict[str, str]) -> None:
        """Replace the settings that are the topic's own."""
        topic = self._metadata.get(name)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}")
        await write_config(self._coordination, f"topics/{name}", overrides)
        topic.overrides = overrides
        self._store.reconfigure(name)


async def write_config(
    coordination: Coordination, entity_path: str, config: Mapping[str, str]
) -> None:
    """Write the settings of a topic or broker, and tell those who watch for changes."""
    path = znodes.config_path(entity_path)
    data = znodes.EntityConfig(config).encode()
    change = Create(
        znodes.CONFIG_CHANGE_PREFIX, znodes.ConfigChange(entity_path).encode(), sequence=True
    )
    write = Create(path, data) if await coordination.exists(path) is None else SetData(path, data)
    await coordination.multi([write, change])


def _assignment(topic: Topic) -> bytes:
    replicas = {partition.index: tuple(partition.replicas) for partition in topic.partitions}
    return znodes.TopicAssignment(topic.topic_id, replicas).encode()


def _state(partition: Partition) -> bytes:
    return znodes.PartitionState(
        partition.leader, partition.leader_epoch, tuple(partition.isr), _CONTROLLER_EPOCH
    ).encode()


def _new_partitions(topic: Topic, partitions: Sequence[Partition]) -> list[Operation]:
    writes: list[Operation] = []
    for partition in partitions:
        writes.append(Create(znodes.partition_path(topic.name, partition.index)))
        path = znodes.partition_state_path(topic.name, partition.index)
        writes.append(Create(path, _state(partition)))
    return writes
