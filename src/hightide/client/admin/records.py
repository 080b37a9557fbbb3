"""Offsets and records of partitions, asked of their leaders."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from hightide.client.broker_connection import Connection, check
from hightide.client.model.cluster import Extent, OffsetAt, Partition, Timestamp
from hightide.client.routing import AskLeader, Router
from hightide.wire import batch
from hightide.wire.errors import Corrupt, ErrorCode
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

NAMES_TOPICS = 12
"""The last version of Fetch that names topics instead of giving their ids."""
FIRST_LOOK_BYTES = 4096
MOST_BYTES = 16 * 1024 * 1024


class FirstRecord(NamedTuple):
    """What a small fetch shows about the first record at or after an offset."""

    timestamp: int | None
    next_offset: int | None
    """Where to continue the search; None if it has ended."""


class RecordAdmin:
    """Requests about the offsets and records of partitions."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._timeout_ms = router.timeout_ms

    async def offsets(self, timestamps: Mapping[Partition, int]) -> dict[Partition, OffsetAt]:
        """The first offset at or after a timestamp, or the one that a `Timestamp` stands for."""
        return await self._router.ask_leaders(timestamps, list_offsets(self._timeout_ms))

    async def delete(self, before: Mapping[Partition, int]) -> dict[Partition, int]:
        """Delete the records before an offset (-1: all), and return the new log start offsets."""

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
                for partition in topic.partitions:
                    key = topic.name, partition.partition_index
                    check(partition.error_code, about=f"{key[0]}/{key[1]}")
                    found[key] = partition.low_watermark
            return found

        return await self._router.ask_leaders(before, ask)

    async def timestamps(self, positions: Mapping[Partition, int]) -> dict[Partition, int]:
        """The timestamp of the first record at or after an offset.

        Partitions without such a record, or with records without timestamps, are left out.  The
        first fetch is small, and only partitions whose batches are larger are fetched again.
        """
        found: dict[Partition, int] = {}
        waiting, limit_bytes = dict(positions), FIRST_LOOK_BYTES
        while waiting and limit_bytes <= MOST_BYTES:
            results = await self._first_records(waiting, limit_bytes)
            waiting = {}
            for key, (timestamp, next_offset) in results.items():
                if timestamp is not None:
                    found[key] = timestamp
                elif next_offset is not None:
                    waiting[key] = next_offset
            limit_bytes *= 8
        return {key: timestamp for key, timestamp in found.items() if timestamp >= 0}

    async def _first_records(
        self, positions: Mapping[Partition, int], limit_bytes: int
    ) -> dict[Partition, FirstRecord]:
        async def ask(
            connection: Connection, part: Mapping[Partition, int]
        ) -> dict[Partition, FirstRecord]:
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
                (topic.topic, partition.partition_index): first_record(
                    partition, part[topic.topic, partition.partition_index], topic.topic
                )
                for topic in answer.responses
                for partition in topic.partitions
            }

        return await self._router.ask_leaders(positions, ask)

    async def extents(self, partitions: Iterable[Partition]) -> dict[Partition, Extent]:
        """The start and end offsets of partitions.

        Partitions that do not exist any more, and those without a leader, are left out.
        """
        wanted = [*partitions]
        answer = await self._router.metadata(sorted({topic for topic, _ in wanted}))
        with_leader = {
            (topic.name, partition.partition_index)
            for topic in answer.topics
            for partition in topic.partitions
            if topic.error_code == ErrorCode.NONE and partition.leader_id in self._router.nodes
        }
        asked = [partition for partition in wanted if partition in with_leader]
        starts = await self.offsets(dict.fromkeys(asked, Timestamp.EARLIEST))
        ends = await self.offsets(dict.fromkeys(asked, Timestamp.LATEST))
        return {
            partition: Extent(starts[partition].offset, ends[partition].offset)
            for partition in asked
        }


def list_offsets(timeout_ms: int, *, read_committed: bool = False) -> AskLeader[OffsetAt]:
    """Return the function that asks one leader for offsets at timestamps.

    With `read_committed` the latest offset is the last stable offset.
    """

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
            for partition in topic.partitions:
                key = topic.name, partition.partition_index
                check(partition.error_code, about=f"{key[0]}/{key[1]}")
                found[key] = OffsetAt(partition.offset, partition.timestamp, partition.leader_epoch)
        return found

    return ask


def first_record(answer: Any, offset: int, topic: str) -> FirstRecord:
    """Find the first record at or after an offset in a partition's fetch response."""
    if answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
        return FirstRecord(None, None)
    check(answer.error_code, about=f"{topic}/{answer.partition_index}")
    if offset >= answer.high_watermark:
        return FirstRecord(None, None)
    data, next_offset = answer.records or b"", offset
    try:
        for at, header in batch.batches(data):
            next_offset = max(next_offset, header.last_offset + 1)
            if header.last_offset < offset or header.is_control:
                continue
            for record in batch.records(data, at):
                if record.offset >= offset:
                    return FirstRecord(record.timestamp, None)
    except Corrupt:
        # The batch is damaged or of an unknown format; a consumer will report that.
        return FirstRecord(None, None)
    return FirstRecord(None, next_offset if next_offset < answer.high_watermark else None)


def _by_topic(values: Mapping[Partition, int]) -> list[tuple[str, list[tuple[int, int]]]]:
    topics: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for (topic, partition), value in values.items():
        topics[topic].append((partition, value))
    return list(topics.items())
