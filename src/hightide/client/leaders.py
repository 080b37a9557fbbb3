"""Who leads which partition: remembered, and looked up again when it turns out to be wrong.

Whoever reads and writes records asks for a leader thousands of times, and leaders change a few
times a day.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeVar

from hightide.client.connection import TIMEOUT_MS, Connection, ConnectionFailed, check
from hightide.client.replicas import Partition
from hightide.client.retry import PATIENCE_MS, Backoff
from hightide.client.routing import Routes
from hightide.wire.errors import ErrorCode, KafkaError

T = TypeVar("T")


class Leaders:
    """The way to the leaders of partitions."""

    def __init__(
        self, routes: Routes, *, timeout_ms: int = TIMEOUT_MS, patience_ms: int = PATIENCE_MS
    ) -> None:
        self._routes = routes
        self._leaders: dict[Partition, int] = {}
        self.timeout_ms = timeout_ms
        """How long one request may take."""
        self.patience_ms = patience_ms
        """How long to go on asking when none succeeds."""

    async def connection(self, topic: str, partition: int) -> Connection:
        """To the broker that leads a partition, as far as is known; raises if nobody does."""
        if (topic, partition) not in self._leaders:
            await self._learn([topic])
        return await self._routes.broker(self._leader(topic, partition))

    def forget(self, topic: str, connection: Connection | None = None) -> None:
        """Look the leaders of a topic up again; a connection that failed is not used again."""
        for known in [each for each in self._leaders if each[0] == topic]:
            del self._leaders[known]
        if connection is not None:
            connection.close()

    async def ask(
        self,
        wanted: Mapping[Partition, int],
        question: Callable[[Connection, Mapping[Partition, int]], Awaitable[dict[Partition, T]]],
    ) -> dict[Partition, T]:
        """Ask all leaders at once, each about its partitions, and again those that have changed."""
        patience = Backoff(self.patience_ms)
        found: dict[Partition, T] = {}
        while True:
            missing = {key: value for key, value in wanted.items() if key not in found}
            if not missing:
                return found
            try:
                await self._ask_once(missing, question, found)
            except (KafkaError, ConnectionFailed) as error:
                for topic in {topic for topic, _ in missing}:
                    self.forget(topic)
                await patience.after(error, doubtful=not self._routes.nodes)

    async def _ask_once(
        self,
        wanted: Mapping[Partition, int],
        question: Callable[[Connection, Mapping[Partition, int]], Awaitable[dict[Partition, T]]],
        found: dict[Partition, T],
    ) -> None:
        unknown = {topic for topic, index in wanted if (topic, index) not in self._leaders}
        if unknown:
            await self._learn(unknown)
        parts: dict[int, dict[Partition, int]] = defaultdict(dict)
        for key, value in wanted.items():
            parts[self._leader(*key)][key] = value

        async def one(leader: int, part: Mapping[Partition, int]) -> None:
            found.update(await question(await self._routes.broker(leader), part))

        told = await asyncio.gather(
            *(one(leader, part) for leader, part in parts.items()), return_exceptions=True
        )
        for each in told:
            if isinstance(each, BaseException):
                raise each

    async def _learn(self, topics: Iterable[str]) -> None:
        answer = await self._routes.metadata(sorted(topics))
        for topic in answer.topics:
            if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise KafkaError(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic {topic.name!r}."
                )
            check(topic.error_code, about=topic.name)
            for each in topic.partitions:
                self._leaders[topic.name, each.partition_index] = each.leader_id

    def _leader(self, topic: str, partition: int) -> int:
        leader = self._leaders.get((topic, partition))
        if leader is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"Topic {topic!r} has no partition {partition}.",
            )
        if leader not in self._routes.nodes:
            self.forget(topic)
            raise KafkaError(
                ErrorCode.LEADER_NOT_AVAILABLE, f"Nobody leads {topic}/{partition} now."
            )
        return leader
