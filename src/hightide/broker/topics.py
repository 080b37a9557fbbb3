"""Topics: written to the coordination tree first, then carried out by the brokers that follow it.

The tree decides.  Two clients that create the same topic at once are told apart by it, and a broker
that dies in the middle finds there, when it comes back, what is still to be done: partitions
without a log get one, topics marked for deletion go.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from hightide.broker.config_changes import Change, change_config
from hightide.broker.election import Election
from hightide.broker.hosting import Hosting
from hightide.broker.metadata import Metadata, Partition, Topic
from hightide.broker.reading import Reading, in_groups
from hightide.broker.topic_reader import TopicReader
from hightide.coordination import znodes
from hightide.coordination.errors import MultiFailed, NodeExists, NoNode
from hightide.coordination.interface import Coordination
from hightide.coordination.node import Stat
from hightide.coordination.operation import Create, Delete, Operation, SetData
from hightide.coordination.watch import WatchEvent
from hightide.core import topics as rules
from hightide.core.partition import NOBODY
from hightide.log.disk import DiskFailed
from hightide.wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from random import Random

log = logging.getLogger(__name__)

_PREFIX = len(f"{znodes.TOPICS}/")
# A multi must fit into a megabyte, and the name of a topic may be 249 bytes long.
_STATES_PER_MULTI = 500

Assignment = Mapping[int, Sequence[int]]
Write = Callable[[Sequence[Operation]], Awaitable[object]]
"""All or nothing; as the controller, or as anybody."""


class Topics:
    """Makes, changes and removes topics, and follows what others do to them."""

    def __init__(
        self,
        coordination: Coordination,
        election: Election,
        metadata: Metadata,
        hosting: Hosting,
        random: Random,
        new_id: Callable[[], uuid.UUID],
        may_delete: Callable[[], bool],
    ) -> None:
        self.reading = Reading(znodes.TOPICS, self.read)
        self._coordination = coordination
        self._election = election
        self._metadata = metadata
        self._hosting = hosting
        self._random = random
        self._new_id = new_id
        self._may_delete = may_delete
        self._reader = TopicReader(coordination, election, metadata, new_id, self._topic_changed)
        self._doomed: list[Topic] = []
        # Topics whose own znode fired its watch since the last reading.
        self._changed: set[str] = set()
        # A topic may be found by a reading while the request that made it is under way.
        self._carrying_out = asyncio.Lock()

    def assign(self, partition_count: int, replication_factor: int) -> dict[int, list[int]]:
        """Replicas for a new topic, beginning at a random broker."""
        brokers = self._metadata.broker_ids
        first = self._random.randrange(len(brokers))
        return rules.assign(brokers, partition_count, replication_factor, first)

    # -- at the start ----------------------------------------------------------------------

    async def load(self) -> None:
        """Read all topics from the tree; nothing is carried out yet."""
        doomed = set(await self._coordination.children(znodes.DELETE_TOPICS, self.reading.wake))
        names = await self._coordination.children(znodes.TOPICS, self.reading.wake)
        for topic in await in_groups(names, self._reader.read):
            if topic is not None and topic.name in doomed and self._may_delete():
                self._doomed.append(topic)
            elif topic is not None:
                self._metadata.put(topic)

    async def lead(self) -> None:
        """Lead every partition that this broker leads in an epoch that nobody led in before.

        Before that, logs of topics that are to go are deleted, and logs of no topic set aside.
        """
        for topic in self._doomed:
            await self._hosting.delete(topic)
        self._doomed.clear()
        self._hosting.set_strays_aside(self._reader.unusable)
        await in_groups(list(self._metadata), self._lead_anew)
        for topic in self._metadata:
            await self._hosting.lead(topic)

    async def _lead_anew(self, topic: Topic) -> None:
        led = self._hosting.led_here(topic)
        for start in range(0, len(led), _STATES_PER_MULTI):
            partitions = led[start : start + _STATES_PER_MULTI]
            for partition in partitions:
                partition.leader_epoch += 1
            results = await self._coordination.multi(
                [
                    SetData(
                        znodes.partition_state_path(topic.name, partition.index),
                        self._state(partition),
                        partition.partition_epoch,
                    )
                    for partition in partitions
                ]
            )
            for partition, stat in zip(partitions, results, strict=True):
                assert isinstance(stat, Stat)
                partition.partition_epoch = stat.version

    # -- following -------------------------------------------------------------------------

    async def read(self) -> None:
        """Bring this broker in line with the tree."""
        doomed = set(await self._coordination.children(znodes.DELETE_TOPICS, self.reading.wake))
        if doomed and not self._may_delete():
            await self._spare(doomed)
            doomed.clear()
        names = set(await self._coordination.children(znodes.TOPICS, self.reading.wake))
        changed, self._changed = self._changed, set()
        for topic in list(self._metadata):
            if topic.name in doomed or topic.name not in names:
                await self._bury(topic)
        living = names - doomed
        news = living & changed | living - {topic.name for topic in self._metadata}
        for found in await in_groups(sorted(news), self._reader.read):
            if found is not None:
                await self._adopt_found(found)
        if self._election.is_controller:
            for topic in list(self._metadata):
                if any(partition.leader == NOBODY for partition in topic.partitions):
                    await self._complete(topic)
            for name in doomed:
                await self._finish_deletion(name)

    async def _spare(self, doomed: Iterable[str]) -> None:
        """Take the marks away: nothing is deleted here."""
        if self._election.is_controller:
            for name in doomed:
                log.warning("topic %s is not deleted: delete.topic.enable is false", name)
                await self._election.fenced([Delete(znodes.delete_topic_path(name))])

    def reconnected(self) -> None:
        """Every watch is gone, so any topic may have changed."""
        self._changed.update(topic.name for topic in self._metadata)
        self.reading.wake()

    def _topic_changed(self, event: WatchEvent) -> None:
        self._changed.add(event.path[_PREFIX:])
        self.reading.wake()

    async def _adopt_found(self, topic: Topic) -> None:
        try:
            await self._adopt(topic)
        except DiskFailed as failed:
            log.error("cannot make the logs of topic %s: %s", topic.name, failed)

    async def _adopt(self, topic: Topic) -> None:
        """Know a topic, or what it has become, and lead what is led here.  Twice is no harm."""
        known = self._metadata.get(topic.name)
        if known is not None and known.topic_id != topic.topic_id:
            await self._bury(known)
            known = None
        async with self._carrying_out:
            if known is None:
                self._metadata.put(topic)
                known = topic
            else:
                for partition in topic.partitions[: len(known.partitions)]:
                    if known.partitions[partition.index].leader == NOBODY:
                        known.partitions[partition.index] = partition
                known.partitions += topic.partitions[len(known.partitions) :]
                known.overrides = topic.overrides
            await self._hosting.lead(known)
            self._hosting.reconfigure(known.name)

    async def _bury(self, topic: Topic) -> None:
        async with self._carrying_out:
            if self._metadata.get(topic.name) is topic:
                self._metadata.remove(topic.name)
            await self._hosting.delete(topic)

    # -- changes ---------------------------------------------------------------------------

    async def create(
        self,
        name: str,
        assignment: Assignment,
        overrides: dict[str, str],
        *,
        by_anybody: bool = False,
    ) -> Topic:
        """Make a topic, or TOPIC_ALREADY_EXISTS, or KAFKA_STORAGE_ERROR if no disk takes it.

        NotController if this broker is not the controller, or is not any more when it comes to
        writing; but a topic may be made `by_anybody`, since that changes nothing that is.
        """
        partitions = _new_partitions(assignment)
        topic = Topic(name, self._new_id(), partitions, overrides)
        config_path = znodes.topic_config_path(name)
        config = znodes.EntityConfig(overrides).encode()
        left_over = await self._coordination.exists(config_path)
        decision: list[Operation] = [
            Create(znodes.topic_path(name), _assignment(topic)),
            Create(znodes.partitions_path(name)),
            Create(config_path, config)
            if left_over is None
            else SetData(config_path, config, left_over.version),
        ]
        try:
            write = self._coordination.multi if by_anybody else self._election.fenced
            await self._write_with_states(write, decision, topic, partitions)
        except MultiFailed as failed:
            if isinstance(failed.cause, NodeExists):
                raise KafkaError(
                    ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {name} already exists"
                ) from None
            raise
        try:
            await self._adopt(topic)
        except DiskFailed as failed:
            log.error("cannot make the logs of topic %s: %s", name, failed)
            await self.delete(name)
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"no disk takes the logs of {name}"
            ) from None
        # Nobody has watched its znode here yet.
        self._changed.add(name)
        self.reading.wake()
        log.info("created topic %s with %d partitions", name, len(partitions))
        return topic

    async def delete(self, name: str) -> None:
        """Remove a topic and its records; UNKNOWN_TOPIC_OR_PARTITION if there is none."""
        topic = self._existing(name)
        try:
            await self._coordination.create(znodes.delete_topic_path(name))
        except NodeExists:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name} is being deleted"
            ) from None
        await self._bury(topic)
        if self._election.is_controller:
            await self._finish_deletion(name)
        log.info("deleted topic %s", name)

    async def _finish_deletion(self, name: str) -> None:
        """Take a topic out of the tree, its mark last."""
        coordination, topic = self._coordination, znodes.topic_path(name)
        writes: list[Operation] = []
        try:
            partitions = znodes.partitions_path(name)
            paths = [f"{partitions}/{each}" for each in await coordination.children(partitions)]
            below = await in_groups(paths, coordination.children)
            for path, nodes in zip(paths, below, strict=True):
                writes += [Delete(f"{path}/{node}") for node in nodes]
                writes.append(Delete(path))
            writes.append(Delete(partitions))
        except NoNode:
            pass  # a tool made the topic, and nobody has given it partitions yet
        for path in (topic, znodes.topic_config_path(name), znodes.delete_topic_path(name)):
            if await coordination.exists(path) is not None:
                writes.append(Delete(path))
        try:
            for start in range(0, len(writes), 2 * _STATES_PER_MULTI):
                await self._election.fenced(writes[start : start + 2 * _STATES_PER_MULTI])
        except MultiFailed as failed:
            # Who asked for the deletion and who follows the tree may both be at it.
            if not isinstance(failed.cause, NoNode):
                raise

    async def add_partitions(self, name: str, assignment: Assignment) -> None:
        """Give a topic more partitions, numbered on from those it has."""
        topic = self._existing(name)
        path = znodes.topic_path(name)
        stat = await self._coordination.exists(path)
        added = _new_partitions(assignment)
        grown = Topic(name, topic.topic_id, [*topic.partitions, *added], topic.overrides)
        try:
            if stat is None:
                raise NoNode(path)
            decision = [SetData(path, _assignment(grown), stat.version)]
            await self._write_with_states(self._election.fenced, decision, topic, added)
        except (MultiFailed, NoNode) as failed:
            raise KafkaError(
                ErrorCode.INVALID_PARTITIONS, f"topic {name} was changed meanwhile"
            ) from failed
        await self._adopt(grown)
        log.info("topic %s now has %d partitions", name, len(grown.partitions))

    async def configure(self, name: str, change: Change) -> None:
        """Change the settings that are the topic's own."""
        topic = self._existing(name)
        topic.overrides = dict(await change_config(self._coordination, f"topics/{name}", change))
        self._hosting.reconfigure(name)

    async def read_settings(self, name: str) -> None:
        """Somebody has changed a topic's settings."""
        topic = self._metadata.get(name)
        if topic is None:
            # It may just be being read, with the settings that it had before.
            self._changed.add(name)
            self.reading.wake()
            return
        topic.overrides = await self._reader.read_overrides(name)
        self._hosting.reconfigure(name)

    def _existing(self, name: str) -> Topic:
        topic = self._metadata.get(name)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}")
        return topic

    async def _write_with_states(
        self,
        write: Write,
        decision: Sequence[Operation],
        topic: Topic,
        partitions: Sequence[Partition],
    ) -> None:
        """Write what a topic shall be and its partitions' states: in one step if it fits in one.

        If it does not, the decision comes first, and the rest is what the controller completes.
        """
        if len(partitions) <= _STATES_PER_MULTI:
            await write([*decision, *self._creations(topic.name, partitions)])
            return
        await write(decision)
        await self._write_states(write, topic.name, partitions)

    async def _complete(self, topic: Topic) -> None:
        """Give partitions that have no state one, led by the first replica that is alive."""
        live = self._metadata.broker_ids
        missing = []
        for each in topic.partitions:
            leader = next((id_ for id_ in each.replicas if id_ in live), NOBODY)
            if each.leader == NOBODY and leader != NOBODY:
                missing.append(Partition(each.index, each.replicas, leader, 0, [leader]))
        if missing:
            if await self._coordination.exists(znodes.partitions_path(topic.name)) is None:
                await self._election.fenced([Create(znodes.partitions_path(topic.name))])
            await self._write_states(self._election.fenced, topic.name, missing)

    async def _write_states(self, write: Write, name: str, partitions: Sequence[Partition]) -> None:
        while True:
            there = set(await self._coordination.children(znodes.partitions_path(name)))
            missing = [each for each in partitions if str(each.index) not in there]
            if not missing:
                break
            try:
                await write(self._creations(name, missing[:_STATES_PER_MULTI]))
            except MultiFailed as failed:
                # Who makes a topic and who completes what the tree has may both be at it.
                if not isinstance(failed.cause, NodeExists):
                    raise
        # Whoever follows the topic watches its own znode: writing it again says "go and read".
        data, stat = await self._coordination.get(znodes.topic_path(name))
        await write([SetData(znodes.topic_path(name), data, stat.version)])

    def _creations(self, topic: str, partitions: Sequence[Partition]) -> list[Operation]:
        writes: list[Operation] = []
        for partition in partitions:
            writes.append(Create(znodes.partition_path(topic, partition.index)))
            path = znodes.partition_state_path(topic, partition.index)
            writes.append(Create(path, self._state(partition)))
        return writes

    def _state(self, partition: Partition) -> bytes:
        return znodes.PartitionState(
            partition.leader, partition.leader_epoch, tuple(partition.isr), self._election.epoch
        ).encode()


def _new_partitions(assignment: Assignment) -> list[Partition]:
    if any(len(replicas) != 1 for replicas in assignment.values()):
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "this version keeps one replica of each partition",
        )
    return [
        Partition(index, list(replicas), replicas[0], 0, list(replicas))
        for index, replicas in sorted(assignment.items())
    ]


def _assignment(topic: Topic) -> bytes:
    replicas = {partition.index: tuple(partition.replicas) for partition in topic.partitions}
    return znodes.TopicAssignment(topic.topic_id, replicas).encode()
