"""What Kafka's protocol says about brokers that do not know DescribeReplicas.

ListOffsets gives the log start, the last stable offset and the high watermark of each leader.
DescribeLogDirs gives how far each replica's end is behind the high watermark, and its size.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from hightide.client.admin import Admin
from hightide.client.broker_connection import ConnectionFailed
from hightide.client.model.cluster import Partition, Timestamp, by_topic
from hightide.client.model.replicas import PartitionReplicas
from hightide.wire.errors import KafkaError
from hightide.wire.messages.cluster import DescribableLogDirTopic, DescribeLogDirsRequest
from hightide.wire.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)

ANSWER_S = 2.0
_START, _STABLE, _MARK = range(3)
_UNCOMMITTED, _COMMITTED = 0, 1


class Offsets(NamedTuple):
    """Offsets of a leader."""

    start: int
    stable: int
    high_watermark: int


class ForeignLooks:
    """The newest offsets, lags and sizes of foreign brokers' partitions."""

    def __init__(self, admin: Admin) -> None:
        self.sizes: dict[tuple[int, Partition], int] = {}
        self.silent: dict[int, str] = {}
        self._router = admin.router
        self._timeout_ms = int(ANSWER_S * 1000)
        self._offsets: dict[Partition, list[int | None]] = {}
        self._lags: dict[Partition, dict[int, int]] = {}

    def offsets(self, partition: Partition) -> Offsets | None:
        found = self._offsets.get(partition)
        if found is None or None in found:
            return None
        return Offsets(*(offset or 0 for offset in found))

    def lags(self, partition: Partition) -> Mapping[int, int]:
        return self._lags.get(partition, {})

    async def look(
        self, partitions: Collection[PartitionReplicas], brokers: Iterable[int]
    ) -> set[Partition]:
        """Ask about these partitions; return those that have changed."""
        by_leader: dict[int, list[Partition]] = {}
        for partition in partitions:
            if partition.leader >= 0:
                key = partition.topic, partition.partition
                by_leader.setdefault(partition.leader, []).append(key)
        held = {(one.topic, one.partition) for one in partitions}
        changed: set[Partition] = set()
        asked = [self._ask_offsets(broker, led, changed) for broker, led in by_leader.items()]
        asked += [self._ask_sizes(broker, held, changed) for broker in brokers]
        await asyncio.gather(*asked)
        return changed

    async def _ask_offsets(
        self, broker: int, led: list[Partition], changed: set[Partition]
    ) -> None:
        asked = ((_START, Timestamp.EARLIEST, 0), (_STABLE, Timestamp.LATEST, _COMMITTED))
        for which, time, isolation in (*asked, (_MARK, Timestamp.LATEST, _UNCOMMITTED)):
            request = ListOffsetsRequest(
                replica_id=-1,
                isolation_level=isolation,
                topics=[
                    ListOffsetsTopic(
                        name=topic,
                        partitions=[
                            ListOffsetsPartition(
                                partition_index=index, current_leader_epoch=-1, timestamp=time
                            )
                            for index in indexes
                        ],
                    )
                    for topic, indexes in by_topic(led).items()
                ],
                timeout_ms=self._timeout_ms,
            )
            answer = await self._ask(broker, request)
            for topic in answer.topics if answer else ():
                for one in topic.partitions:
                    if not one.error_code:
                        self._take(changed, (topic.name, one.partition_index), which, one.offset)

    def _take(self, changed: set[Partition], key: Partition, which: int, offset: int) -> None:
        known = self._offsets.setdefault(key, [None, None, None])
        if known[which] != offset:
            known[which] = offset
            changed.add(key)

    async def _ask_sizes(self, broker: int, held: set[Partition], changed: set[Partition]) -> None:
        topics = [
            DescribableLogDirTopic(topic=topic, partitions=indexes)
            for topic, indexes in by_topic(held).items()
        ]
        answer = await self._ask(broker, DescribeLogDirsRequest(topics=topics))
        for directory in answer.results if answer else ():
            for topic in directory.topics:
                for one in topic.partitions:
                    if one.is_future_key:
                        continue
                    partition = topic.name, one.partition_index
                    self.sizes[broker, partition] = one.partition_size
                    lags = self._lags.setdefault(partition, {})
                    if lags.get(broker) != one.offset_lag:
                        lags[broker] = one.offset_lag
                        changed.add(partition)

    async def _ask(self, broker: int, request: Any) -> Any:
        try:
            async with asyncio.timeout(ANSWER_S):
                connection = await self._router.broker(broker)
                answer = await connection.send(request, timeout_ms=self._timeout_ms)
        except TimeoutError:
            self.silent[broker] = f"It did not answer within {ANSWER_S:g} s."
        except (ConnectionFailed, KafkaError) as error:
            self.silent[broker] = str(error)
        else:
            self.silent.pop(broker, None)
            return answer
        return None
