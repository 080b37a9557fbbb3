"""The leaders of partitions, remembered, and looked up again when a request shows them wrong.

A client that reads and writes records needs a leader thousands of times, and leaders change a few
times a day.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TypeVar

from hightide.client.broker_connection import Connection, ConnectionFailed
from hightide.client.model.cluster import Partition
from hightide.client.retry import RETRY_MS, Backoff
from hightide.client.routing import AskLeader, Router
from hightide.wire.errors import ErrorCode, KafkaError

T = TypeVar("T")


class LeaderCache:
    """The way to the leaders of partitions."""

    def __init__(self, router: Router, *, retry_ms: int = RETRY_MS) -> None:
        self._router = router
        self._leaders: dict[Partition, int] = {}
        self.timeout_ms = router.timeout_ms
        """How long one request may take."""
        self.retry_ms = retry_ms
        """How long to retry while no request succeeds."""

    async def connection(self, topic: str, partition: int) -> Connection:
        """A connection to the leader of a partition; raises if it has none."""
        if (topic, partition) not in self._leaders:
            await self._look_up([topic])
        return await self._router.broker(self._leader(topic, partition))

    def forget(self, topic: str, connection: Connection | None = None) -> None:
        """Look up the leaders of a topic again; a connection that failed is closed."""
        for partition in [partition for partition in self._leaders if partition[0] == topic]:
            del self._leaders[partition]
        if connection is not None:
            connection.close()

    async def ask(self, values: Mapping[Partition, int], ask: AskLeader[T]) -> dict[Partition, T]:
        """Ask all leaders at once, each about its partitions, and again where they moved."""
        backoff = Backoff(limit_s=self.retry_ms / 1000)
        found: dict[Partition, T] = {}
        while True:
            missing = {key: value for key, value in values.items() if key not in found}
            if not missing:
                return found
            try:
                await self._ask_once(missing, ask, found)
            except (KafkaError, ConnectionFailed) as error:
                for topic in {topic for topic, _ in missing}:
                    self.forget(topic)
                await backoff.after(error, doubtful=not self._router.nodes)

    async def _ask_once(
        self, values: Mapping[Partition, int], ask: AskLeader[T], found: dict[Partition, T]
    ) -> None:
        unknown = {topic for topic, index in values if (topic, index) not in self._leaders}
        if unknown:
            await self._look_up(unknown)
        by_leader: dict[int, dict[Partition, int]] = defaultdict(dict)
        for key, value in values.items():
            by_leader[self._leader(*key)][key] = value

        async def ask_one(leader: int, part: Mapping[Partition, int]) -> None:
            found.update(await ask(await self._router.broker(leader), part))

        results = await asyncio.gather(
            *(ask_one(leader, part) for leader, part in by_leader.items()), return_exceptions=True
        )
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _look_up(self, topics: Iterable[str]) -> None:
        for topic in await self._router.topics(sorted(topics)):
            for partition in topic.partitions:
                self._leaders[topic.name, partition.partition_index] = partition.leader_id

    def _leader(self, topic: str, partition: int) -> int:
        leader = self._leaders.get((topic, partition))
        if leader is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"Topic {topic!r} has no partition {partition}.",
            )
        if leader not in self._router.nodes:
            self.forget(topic)
            raise KafkaError(
                ErrorCode.LEADER_NOT_AVAILABLE, f"{topic}/{partition} has no leader now."
            )
        return leader
