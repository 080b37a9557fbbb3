"""What lies in partitions, asked of their leaders: offsets, and when a record was made."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from hightide.client.cluster_admin import ClusterAdmin
from hightide.client.connection import Connection, check
from hightide.client.model import OffsetAt
from hightide.client.replicas import Partition
from hightide.wire import batch
from hightide.wire.errors import Corrupt, ErrorCode, KafkaError
from hightide.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from hightide.wire.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from hightide.wire.messages.topics import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)

T = TypeVar("T")
NAMES_TOPICS = 12
"""The last version of Fetch in which topics go by name."""
FIRST_LOOK_BYTES = 4096
MOST_BYTES = 16 * 1024 * 1024


class Glance(NamedTuple):
    """What a small fetch showed of a partition."""

    timestamp: int | None
    next_offset: int | None
    """Where to look on; None if there is nothing more to find."""


class RecordAdmin(ClusterAdmin):
    """The questions to the leaders of partitions."""

    async def list_offsets(self, wanted: Mapping[Partition, int]) -> dict[Partition, OffsetAt]:
        """The first offset at or after a timestamp, or what a `model.Timestamp` asks for."""

        return await self._at_leaders(wanted, offsets_question(self._timeout_ms))

    async def delete_records(self, before: Mapping[Partition, int]) -> dict[Partition, int]:
        """Delete what lies before an offset (-1: everything); returns the new start offsets."""

        async def ask(
            connection: Connection, part: Mapping[Partition, int]
        ) -> dict[Partition, int]:
            request = DeleteRecordsRequest(
                topics=[
                    DeleteRecordsTopic(
                        name=topic,
                        partitions=[
                            DeleteRecordsPartition(partition_index=index, offset=offset)
                            for index, offset in partitions
                        ],
                    )
                    for topic, partitions in _by_topic(part)
                ],
                timeout_ms=self._timeout_ms,
            )
            answer = await connection.send(request, timeout_ms=self._timeout_ms)
            found = {}
            for topic in answer.topics:
                for each in topic.partitions:
                    check(each.error_code, about=f"{topic.name}/{each.partition_index}")
                    found[topic.name, each.partition_index] = each.low_watermark
            return found

        return await self._at_leaders(before, ask)

    async def record_times(self, positions: Mapping[Partition, int]) -> dict[Partition, int]:
        """When the first record at or after an offset was made.

        Left out are partitions that have no such record, or whose records tell no time.  A little
        is fetched of all partitions, and more only of those whose batches are larger than that.
        """
        found: dict[Partition, int] = {}
        waiting, limit_bytes = dict(positions), FIRST_LOOK_BYTES
        while waiting and limit_bytes <= MOST_BYTES:
            seen = await self._glances(waiting, limit_bytes)
            found.update(
                {key: each.timestamp for key, each in seen.items() if each.timestamp is not None}
            )
            waiting = {
                key: each.next_offset
                for key, each in seen.items()
                if each.timestamp is None and each.next_offset is not None
            }
            limit_bytes *= 8
        return {key: timestamp for key, timestamp in found.items() if timestamp >= 0}

    async def _glances(
        self, positions: Mapping[Partition, int], limit_bytes: int
    ) -> dict[Partition, Glance]:
        async def ask(
            connection: Connection, part: Mapping[Partition, int]
        ) -> dict[Partition, Glance]:
            request = FetchRequest(
                max_wait_ms=0,
                min_bytes=0,
                max_bytes=2 * MOST_BYTES,
                topics=[
                    FetchTopic(
                        topic=topic,
                        partitions=[
                            FetchPartition(
                                partition=index,
                                fetch_offset=offset,
                                partition_max_bytes=limit_bytes,
                            )
                            for index, offset in partitions
                        ],
                    )
                    for topic, partitions in _by_topic(part)
                ],
            )
            version = min(NAMES_TOPICS, connection.version_for(FetchRequest))
            answer = await connection.send(request, version=version, timeout_ms=self._timeout_ms)
            check(answer.error_code)
            return {
                (topic.topic, each.partition_index): glance(
                    each, part[topic.topic, each.partition_index], topic.topic
                )
                for topic in answer.responses
                for each in topic.partitions
            }

        return await self._at_leaders(positions, ask)

    async def _at_leaders(
        self,
        wanted: Mapping[Partition, int],
        ask: Callable[[Connection, Mapping[Partition, int]], Awaitable[dict[Partition, T]]],
    ) -> dict[Partition, T]:
        """Ask each leader about its partitions."""

        async def attempt() -> dict[Partition, T]:
            topics = await self.describe_topics(sorted({topic for topic, _ in wanted}))
            leaders = {
                (topic.name, each.partition): each.leader
                for topic in topics
                for each in topic.partitions
            }
            parts: dict[int, dict[Partition, int]] = defaultdict(dict)
            for (topic, index), value in wanted.items():
                if (topic, index) not in leaders:
                    raise KafkaError(
                        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                        f"Topic {topic!r} has no partition {index}.",
                    )
                parts[leaders[topic, index]][topic, index] = value
            found: dict[Partition, T] = {}
            for leader, part in parts.items():
                if leader not in self._routes.nodes:
                    names = ", ".join(f"{topic}/{index}" for topic, index in part)
                    raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"{names} has no leader.")
                found.update(await ask(await self._routes.broker(leader), part))
            return found

        return await self._routes.persist(attempt)


def offsets_question(
    timeout_ms: int, *, read_committed: bool = False
) -> Callable[[Connection, Mapping[Partition, int]], Awaitable[dict[Partition, OffsetAt]]]:
    """What asks one leader for offsets at timestamps; the latest is the last stable one if only
    committed records count."""

    async def ask(
        connection: Connection, part: Mapping[Partition, int]
    ) -> dict[Partition, OffsetAt]:
        request = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=int(read_committed),
            topics=[
                ListOffsetsTopic(
                    name=topic,
                    partitions=[
                        ListOffsetsPartition(
                            partition_index=index, current_leader_epoch=-1, timestamp=time
                        )
                        for index, time in partitions
                    ],
                )
                for topic, partitions in _by_topic(part)
            ],
            timeout_ms=timeout_ms,
        )
        answer = await connection.send(request, timeout_ms=timeout_ms)
        found = {}
        for topic in answer.topics:
            for each in topic.partitions:
                check(each.error_code, about=f"{topic.name}/{each.partition_index}")
                found[topic.name, each.partition_index] = OffsetAt(
                    each.offset, each.timestamp, each.leader_epoch
                )
        return found

    return ask


def glance(answer: Any, offset: int, topic: str) -> Glance:
    """What a partition's answer to a fetch from an offset shows."""
    if answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
        return Glance(None, None)
    check(answer.error_code, about=f"{topic}/{answer.partition_index}")
    if offset >= answer.high_watermark:
        return Glance(None, None)
    data, next_offset = answer.records or b"", offset
    try:
        for at, header in batch.batches(data):
            next_offset = max(next_offset, header.last_offset + 1)
            if header.last_offset < offset or header.is_control:
                continue
            for record in batch.records(data, at):
                if record.offset >= offset:
                    return Glance(record.timestamp, None)
    except Corrupt:
        # Of a format that we do not read, or damaged: whoever consumes it will be told.
        return Glance(None, None)
    return Glance(None, next_offset if next_offset < answer.high_watermark else None)


def _by_topic(values: Mapping[Partition, int]) -> list[tuple[str, list[tuple[int, int]]]]:
    topics: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for (topic, partition), value in values.items():
        topics[topic].append((partition, value))
    return list(topics.items())
