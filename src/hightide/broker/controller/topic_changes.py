"""Creates, extends and deletes topics: first in ZooKeeper, then in the controller's context.

A topic of up to 500 partitions is created in one multi with all its states.  For a larger topic the
assignment comes first, and this controller or the next one adds the states.

A deletion is a mark in `/admin/delete_topics`: from then on no broker serves the topic, and this
controller or the next one deletes its znodes.  A deletion waits for no broker: one that is down
notices on its return that the topic is missing.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple

from hightide.broker.controller.context import ControllerContext, StoredTopic
from hightide.broker.controller.controller_election import ControllerElection
from hightide.broker.controller.znode_reader import ZnodeReader
from hightide.broker.controller.znode_writer import CHANGES_PER_MULTI, ZnodeWriter
from hightide.broker.membership.watch_loop import in_groups
from hightide.core.controller import leader_election as rules
from hightide.core.controller.controller_events import (
    PartitionsAdded,
    TopicCreated,
    TopicDeleted,
)
from hightide.core.partition.state import PartitionState
from hightide.event_log import record
from hightide.settings import Broker as Settings
from hightide.wire.errors import ErrorCode, KafkaError
from hightide.zookeeper import znodes
from hightide.zookeeper.interface import ZooKeeper
from hightide.zookeeper.operation import Create, Delete, Operation, SetData
from hightide.zookeeper.zookeeper_errors import (
    BadVersion,
    ConnectionLoss,
    MultiFailed,
    NodeExists,
    NoNode,
    NotEmpty,
)

log = logging.getLogger(__name__)

Assignment = Mapping[int, Sequence[int]]
_DELETIONS_PER_MULTI = 2 * CHANGES_PER_MULTI
_TRIES = 5


async def announce_topic(
    zookeeper: ZooKeeper,
    name: str,
    assignment: Assignment,
    overrides: Mapping[str, str],
    new_id: Callable[[], uuid.UUID],
) -> None:
    """Create a topic without the controller, which then finds it and elects its leaders.

    TOPIC_ALREADY_EXISTS if another broker was faster.
    """
    topic = _NewTopic(name, new_id(), _as_tuples(assignment), dict(overrides))
    await _create_topic(zookeeper, topic, [], zookeeper.multi)


class _NewTopic(NamedTuple):
    name: str
    topic_id: uuid.UUID
    partitions: dict[int, tuple[int, ...]]
    overrides: dict[str, str]

    @property
    def assignment(self) -> znodes.TopicAssignment:
        return znodes.TopicAssignment(self.topic_id, self.partitions)


def _as_tuples(assignment: Assignment) -> dict[int, tuple[int, ...]]:
    return {index: tuple(replicas) for index, replicas in sorted(assignment.items())}


async def _create_topic(
    zookeeper: ZooKeeper,
    topic: _NewTopic,
    states: Sequence[Operation],
    write: Callable[[Sequence[Operation]], Awaitable[object]],
) -> None:
    """Write a topic's znodes; KafkaError or ZooKeeperError if that fails."""
    config_path = znodes.topic_config_path(topic.name)
    config = znodes.EntityConfig(topic.overrides).encode()
    for attempt in range(_TRIES):
        left_over = await zookeeper.exists(config_path)
        operations: list[Operation] = [
            Create(znodes.topic_path(topic.name), topic.assignment.encode()),
            Create(znodes.partitions_path(topic.name)),
            Create(config_path, config)
            if left_over is None
            else SetData(config_path, config, left_over.version),
            *states,
        ]
        try:
            await write(operations)
            return
        except MultiFailed as failed:
            if failed.index == 0 and isinstance(failed.cause, NodeExists):
                raise KafkaError(
                    ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {topic.name} already exists"
                ) from None
            # Another party may delete or write left-over settings at the same time.
            if failed.index != 2 or attempt == _TRIES - 1:
                raise


class TopicChanges:
    """Creates, extends and deletes topics as the controller."""

    def __init__(
        self,
        zookeeper: ZooKeeper,
        election: ControllerElection,
        context: ControllerContext,
        reader: ZnodeReader,
        writer: ZnodeWriter,
        new_id: Callable[[], uuid.UUID],
    ) -> None:
        self._zookeeper = zookeeper
        self._election = election
        self._context = context
        self._reader = reader
        self._writer = writer
        self._new_id = new_id

    # -- creation --------------------------------------------------------------------------

    async def create(
        self, name: str, assignment: Assignment, overrides: Mapping[str, str]
    ) -> uuid.UUID:
        if name in self._context.machine.topics:
            raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {name} already exists")
        topic = _NewTopic(name, self._new_id(), _as_tuples(assignment), dict(overrides))
        states = self._first_states(topic)
        try:
            writes = self._state_writes(name, states)
            await _create_topic(self._zookeeper, topic, writes, self._election.fenced)
        except ConnectionLoss:
            if not await self._was_created(topic):
                raise
        new_partitions = {
            index: replicas for index, replicas in topic.partitions.items() if index not in states
        }
        found = StoredTopic(
            name, topic.topic_id, topic.assignment, 0, states, new_partitions, {}, topic.overrides
        )
        plan = self._writer.publish(self._context.update_topic(found))
        record(log, TopicCreated(name, str(topic.topic_id), len(topic.partitions)))
        await self._writer.carry_out(plan, "the topic is new")
        return topic.topic_id

    def _first_states(self, topic: _NewTopic) -> dict[int, PartitionState]:
        """Return the states to write with the topic; none if they are too many for one multi."""
        if len(topic.partitions) > CHANGES_PER_MULTI:
            return {}
        cluster = self._context.machine.cluster
        states = {
            index: rules.first_state(replicas, cluster.live, cluster.shutting_down)
            for index, replicas in topic.partitions.items()
        }
        return {index: state for index, state in states.items() if state is not None}

    def _state_writes(self, name: str, states: Mapping[int, PartitionState]) -> list[Operation]:
        writes: list[Operation] = []
        for index, state in states.items():
            writes.append(Create(znodes.partition_path(name, index)))
            path = znodes.partition_state_path(name, index)
            writes.append(Create(path, self._writer.encoded(state)))
        return writes

    async def _was_created(self, topic: _NewTopic) -> bool:
        """Whether a write with an unknown outcome has created the topic."""
        plan = await self._writer.reread([topic.name])
        known = self._context.machine.topics.get(topic.name)
        if known is not None and known.id == topic.topic_id:
            return True
        await self._writer.carry_out(plan, "another party's topic has that name")
        return False

    async def add_partitions(self, name: str, assignment: Assignment) -> None:
        """Append partitions to a topic."""
        topic_znodes = self._context.topic_znodes.get(name)
        if topic_znodes is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}")
        added = _as_tuples(assignment)
        had = len(topic_znodes.assignment.partitions)
        if list(added) != list(range(had, had + len(added))):
            raise _changed_meanwhile(name)
        grown = topic_znodes.assignment._replace(
            partitions={**topic_znodes.assignment.partitions, **added}
        )
        path = znodes.topic_path(name)
        try:
            await self._election.fenced([SetData(path, grown.encode(), topic_znodes.version)])
        except (MultiFailed, ConnectionLoss) as failure:
            await self._writer.carry_out(await self._writer.reread([name]), "new partitions")
            found = self._context.topic_znodes.get(name)
            if found is None or found.assignment != grown:
                if isinstance(failure, MultiFailed):
                    raise _changed_meanwhile(name) from failure
                raise
            return
        topic = self._context.machine.topics[name]
        found_topic = StoredTopic(
            name,
            topic.id,
            grown,
            topic_znodes.version + 1,
            {},
            added,
            dict(topic_znodes.damaged),
            dict(topic_znodes.overrides),
        )
        plan = self._writer.publish(self._context.update_topic(found_topic))
        record(log, PartitionsAdded(name, had, len(grown.partitions)))
        await self._writer.carry_out(plan, "new partitions")

    # -- deletion --------------------------------------------------------------------------

    async def delete(self, name: str) -> None:
        """Mark a topic as deleted, and delete its znodes if possible; else the next check does."""
        if name not in self._context.machine.topics:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}")
        mark = znodes.delete_topic_path(name)
        try:
            await self._election.fenced([Create(mark)])
        except MultiFailed as failed:
            if not isinstance(failed.cause, NodeExists):
                raise
        self._writer.remove_topic(name)
        record(log, TopicDeleted(name))
        try:
            await self.delete_znodes(name)
        except ConnectionLoss as failure:
            log.warning("topic %s is deleted; its znodes remain for now: %s", name, failure)

    async def reject_deletions(self, names: Sequence[str]) -> None:
        """Remove deletion marks, because delete.topic.enable is false."""
        for name in names:
            log.warning("topic %s is not deleted: delete.topic.enable is false", name)
            try:
                await self._election.fenced([Delete(znodes.delete_topic_path(name))])
            except MultiFailed as failed:
                if not isinstance(failed.cause, NoNode):
                    raise

    async def delete_znodes(self, name: str) -> None:
        """Delete a topic's znodes, the deletion mark last."""
        for attempt in range(_TRIES):
            try:
                writes = await self._deletions(name)
                for start in range(0, len(writes), _DELETIONS_PER_MULTI):
                    await self._election.fenced(writes[start : start + _DELETIONS_PER_MULTI])
                return
            except MultiFailed as failed:
                # Another party changes the same znodes.
                again = isinstance(failed.cause, NoNode | NotEmpty | BadVersion)
                if not again or attempt == _TRIES - 1:
                    raise

    async def _deletions(self, name: str) -> list[Operation]:
        zookeeper, topic = self._zookeeper, znodes.topic_path(name)
        paths = await self._below(topic)
        for path in (topic, znodes.topic_config_path(name), znodes.delete_topic_path(name)):
            if await zookeeper.exists(path) is not None:
                paths.append(path)
        return [Delete(path) for path in paths]

    async def _below(self, path: str) -> list[str]:
        """Return all descendants of a znode, children before their parents."""
        try:
            names = await self._zookeeper.children(path)
        except NoNode:
            return []
        children = [f"{path}/{name}" for name in names]
        deeper = await in_groups(children, self._below)
        return [
            descendant
            for child, below in zip(children, deeper, strict=True)
            for descendant in (*below, child)
        ]


def _changed_meanwhile(name: str) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_PARTITIONS, f"topic {name} was changed at the same time; try again"
    )


# -- defaults of new topics ------------------------------------------------------------------


class Counts(NamedTuple):
    """Number of partitions and of replicas."""

    partitions: int
    replication_factor: int


def default_counts(settings: Settings, topic: str, broker_count: int) -> Counts:
    """Return the counts of a topic that is created without any.

    Internal topics have their own settings, by default with three replicas.  If none is set and
    there are fewer brokers, every broker gets one replica, so that a single broker can serve groups
    and transactions.  A number that is set is kept.
    """
    if topic == "__consumer_offsets":
        return Counts(
            settings.offsets_topic_num_partitions,
            _replication_factor(
                settings,
                "offsets.topic.replication.factor",
                settings.offsets_topic_replication_factor,
                broker_count,
            ),
        )
    if topic == "__transaction_state":
        return Counts(
            settings.transaction_state_log_num_partitions,
            _replication_factor(
                settings,
                "transaction.state.log.replication.factor",
                settings.transaction_state_log_replication_factor,
                broker_count,
            ),
        )
    return Counts(settings.num_partitions, settings.default_replication_factor)


def internal_overrides(settings: Settings, topic: str, replication_factor: int) -> dict[str, str]:
    """Return the settings of an internal topic, the same as Kafka's."""
    if topic == "__consumer_offsets":
        return {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": f"{settings.offsets_topic_segment_bytes}",
        }
    assert topic == "__transaction_state", topic
    return {
        "cleanup.policy": "compact",
        "compression.type": "uncompressed",
        "min.insync.replicas": f"{_transaction_min_isr(settings, replication_factor)}",
        "segment.bytes": f"{settings.transaction_state_log_segment_bytes}",
        "unclean.leader.election.enable": "false",
    }


def _transaction_min_isr(settings: Settings, replication_factor: int) -> int:
    name, value = "transaction.state.log.min.isr", settings.transaction_state_log_min_isr
    # With fewer replicas than min.insync.replicas no transaction could be written.
    return value if _is_set(settings, name, value) else min(value, replication_factor)


def _replication_factor(settings: Settings, name: str, value: int, broker_count: int) -> int:
    return value if _is_set(settings, name, value) else max(min(value, broker_count), 1)


def _is_set(settings: Settings, name: str, value: int) -> bool:
    return value != settings.declared[name].default or any(
        name in values for _, values in settings.layers
    )
