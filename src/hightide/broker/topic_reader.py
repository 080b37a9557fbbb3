"""Topics as the tree has them, whoever wrote them there.

Brokers write a topic's id, its assignment and the states of its partitions.  Kafka's older tools
wrote only the assignment and left the rest to the controller, so a topic without an id is given one
here.  What makes no sense is told once and left alone: neither served nor cleared away.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Sequence

from hightide.broker.config_changes import read_config
from hightide.broker.election import Election
from hightide.broker.metadata import Metadata, Partition, Topic
from hightide.broker.reading import in_groups
from hightide.coordination import znodes
from hightide.coordination.errors import MalformedZnode, NoNode
from hightide.coordination.interface import Coordination, Watch
from hightide.coordination.operation import SetData
from hightide.core import topics as rules
from hightide.core.partition import NOBODY
from hightide.settings import Topic as TopicSettings
from hightide.wire.errors import KafkaError

log = logging.getLogger(__name__)


class TopicReader:
    """Reads topics, and watches the znode of each that it reads."""

    def __init__(
        self,
        coordination: Coordination,
        election: Election,
        metadata: Metadata,
        new_id: Callable[[], uuid.UUID],
        on_change: Watch,
    ) -> None:
        self.unusable: dict[str, str] = {}
        """Topics that were found and make no sense, and why."""
        self._coordination = coordination
        self._election = election
        self._metadata = metadata
        self._new_id = new_id
        self._on_change = on_change

    async def read(self, name: str) -> Topic | None:
        """A topic; None if it is gone or cannot be used."""
        path = znodes.topic_path(name)
        try:
            data, stat = await self._coordination.get(path, self._on_change)
            found = znodes.TopicAssignment.decode(data, path)
            _check(name, found, path)
            topic_id = found.topic_id or await self._give_id(path, found, stat.version)
            partitions = await in_groups(
                list(found.partitions.items()), lambda each: self._read_partition(name, *each)
            )
        except NoNode:
            self.unusable.pop(name, None)
            return None
        except MalformedZnode as damage:
            self._complain(name, str(damage))
            return None
        self.unusable.pop(name, None)
        return Topic(name, topic_id, partitions, await self.read_overrides(name))

    async def read_overrides(self, name: str) -> dict[str, str]:
        """The settings that are the topic's own."""
        known = self._metadata.get(name)
        return await read_config(
            self._coordination,
            f"topics/{name}",
            TopicSettings.check,
            {} if known is None else known.overrides,
        )

    async def _give_id(self, path: str, found: znodes.TopicAssignment, version: int) -> uuid.UUID:
        if not self._election.is_controller:
            # When the controller has done it, the watch fires.
            raise MalformedZnode(path, "it has no topic id until the controller gives it one")
        topic_id = self._new_id()
        data = found._replace(topic_id=topic_id).encode()
        await self._election.fenced([SetData(path, data, version)])
        return topic_id

    async def _read_partition(self, name: str, index: int, replicas: Sequence[int]) -> Partition:
        path = znodes.partition_state_path(name, index)
        nothing = Partition(index, list(replicas), NOBODY, 0, [])
        try:
            data, stat = await self._coordination.get(path)
            state = znodes.PartitionState.decode(data, path)
        except NoNode:
            return nothing
        except MalformedZnode as damage:
            log.error("%s-%d has no leader: %s", name, index, damage)
            return nothing
        return Partition(
            index, list(replicas), state.leader, state.leader_epoch, list(state.isr), stat.version
        )

    def _complain(self, name: str, why: str) -> None:
        if self.unusable.get(name) != why:
            self.unusable[name] = why
            log.error("topic %s cannot be used: %s", name, why)


def _check(name: str, found: znodes.TopicAssignment, path: str) -> None:
    """MalformedZnode unless this can be a topic."""
    try:
        rules.check_name(name)
    except KafkaError as wrong:
        raise MalformedZnode(path, wrong.detail) from None
    if not found.partitions or list(found.partitions) != list(range(len(found.partitions))):
        raise MalformedZnode(path, "its partitions are not numbered from 0 on")
    for index, replicas in found.partitions.items():
        if not replicas or len(set(replicas)) < len(replicas):
            raise MalformedZnode(path, f"partition {index} cannot be on brokers {list(replicas)}")
