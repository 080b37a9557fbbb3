"""What this broker holds of the cluster's topics: logs on its disks, and leading them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Container, Sequence

from hightide.broker.metadata import Metadata, Partition, Topic
from hightide.broker.replicas import Replicas
from hightide.log.store import LogStore

log = logging.getLogger(__name__)

_LOGS_PER_TURN = 50  # making a log takes some 100 µs; then the connections get a turn


class Hosting:
    """Opens and deletes logs as topics come and go."""

    def __init__(
        self, broker_id: int, metadata: Metadata, replicas: Replicas, store: LogStore
    ) -> None:
        self._broker_id = broker_id
        self._metadata = metadata
        self._replicas = replicas
        self._store = store

    def led_here(self, topic: Topic) -> list[Partition]:
        return [each for each in topic.partitions if each.leader == self._broker_id]

    async def lead(self, topic: Topic) -> None:
        """Open what is led here and not open yet."""
        name = topic.name.encode()
        await self._open_logs(
            topic,
            [each for each in self.led_here(topic) if self._replicas.get(name, each.index) is None],
        )

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

    async def delete(self, topic: Topic) -> None:
        """Drop every log of a topic."""
        for partition in topic.partitions:
            key = (topic.name, partition.index)
            if self._store.topic_ids.get(key, topic.topic_id) != topic.topic_id:
                continue
            self._replicas.remove(*key)
            if key in self._store.logs:
                self._store.delete(*key)
        await asyncio.to_thread(self._store.sync_names)

    def set_strays_aside(self, unusable: Container[str]) -> None:
        """Take logs out of the way that the cluster does not know, or knows to be elsewhere.

        Topics that are there but cannot be used may be put right; their logs stay.
        """
        for name, partition in list(self._store.logs):
            if name in unusable:
                continue
            topic = self._metadata.get(name)
            known_id = self._store.topic_ids.get((name, partition))
            if topic is None or partition >= len(topic.partitions):
                why = "the cluster knows no such partition"
            elif known_id is not None and known_id != topic.topic_id:
                why = "it belongs to a former topic of that name"
            elif self._broker_id not in topic.partitions[partition].replicas:
                why = f"its replicas are on {topic.partitions[partition].replicas}"
            else:
                continue
            kept = self._store.set_aside(name, partition)
            log.warning("%s-%d is set aside as %s: %s", name, partition, kept, why)

    def reconfigure(self, topic: str) -> None:
        self._store.reconfigure(topic)
