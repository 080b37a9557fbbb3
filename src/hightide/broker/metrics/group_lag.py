"""How far the groups of this coordinator are behind, in records and in seconds.

    committed offset ─┐
    high watermark ───┴─▶ lag ─▶ timestamp of the first record that is not read ─▶ lag in seconds

The high watermark is that of the replica here, if it leads or is in sync; else the leader is asked.
So is the timestamp.  A committed offset of a stopped consumer stays, so its timestamp is kept and
not read again.  What is not known in time has no sample, and is looked up again next time.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from hightide.broker.metrics import declarations as m
from hightide.broker.metrics.samples import Samples
from hightide.broker.network.turn import Turn, Usage
from hightide.broker.replication.replica import Replica
from hightide.client import replica_fetch
from hightide.client.broker_connection import ConnectionFailed
from hightide.log.disk import DiskFailed
from hightide.wire.batch import HEADER_BYTES, read_header, records
from hightide.wire.errors import Corrupt, ErrorCode, KafkaError, WireError
from hightide.wire.hot.fetch_codec import Fetch, RequestedPartition
from hightide.wire.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from hightide.wire.messages.replication import PublishedEndpoint

if TYPE_CHECKING:
    from hightide.broker.broker import Broker

_PURPOSE = "metrics"
_STEPS = 16
_LATEST = -1
_CONSUMER = -1
_TIMEOUT_MS = 1000
_ENDS_KEPT_S = 3.0
_SILENT_S = 10.0
"""How long a leader that does not answer is not asked again."""
_PARTITIONS_PER_REQUEST = 1000
_RECORDS_FROM_LEADERS = 50
"""Records whose timestamps are asked from other brokers, in one collection."""
_LOOKUPS_S = 2.0
_MOST_TIMESTAMPS = 50_000
_SCAN_BYTES = 1 << 20
"""In a larger batch the record is not looked for: its batch says how old it is at most."""

_Key = tuple[str, int]


class Committed(NamedTuple):
    """A committed offset of a group, and the end offset of its partition if it is known."""

    group: str
    topic: str
    partition: int
    offset: int


class GroupLags:
    """Finds the lag of all groups, with what it has learnt before."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        # End offsets from leaders, with the time at which they were asked.
        self._ends: dict[_Key, tuple[int, float]] = {}
        # Timestamps of records, by their place.
        self._timestamps: dict[tuple[str, int, int], int] = {}
        self._silent_until_s: dict[int, float] = {}

    async def collect(self, samples: Samples, turn: Turn) -> None:
        commits = await self._commits(turn)
        samples.add(m.GROUP_OFFSETS, len(commits))
        await self._ask_ends({(c.topic, c.partition) for c in commits}, turn)
        behind: list[Committed] = []
        offsets: dict[tuple[str, str], int] = defaultdict(int)
        lags: dict[tuple[str, str], int] = defaultdict(int)
        for at, commit in enumerate(commits):
            if at % _STEPS == 0:
                await turn.pause()
            labels = (commit.group, commit.topic, str(commit.partition))
            samples.add(m.GROUP_OFFSET, commit.offset, *labels)
            offsets[commit.group, commit.topic] += commit.offset
            end = self._end(commit.topic, commit.partition)
            if end is None:
                continue
            lag = max(0, end - commit.offset)
            samples.add(m.GROUP_LAG, lag, *labels)
            lags[commit.group, commit.topic] += lag
            if lag:
                behind.append(commit)
            else:
                samples.add(m.GROUP_LAG_SECONDS, 0, *labels)
        for (group, topic), offset_sum in offsets.items():
            samples.add(m.GROUP_OFFSET_SUM, offset_sum, group, topic)
        for (group, topic), lag_sum in lags.items():
            samples.add(m.GROUP_LAG_SUM, lag_sum, group, topic)
        await self._collect_seconds(samples, behind, turn)

    async def _commits(self, turn: Turn) -> list[Committed]:
        found: list[Committed] = []
        for partition in list(self._broker.groups):
            offsets = partition.coordinator.offsets
            for group_id in offsets.groups():
                await turn.pause()
                for at, (key, committed) in enumerate(list(offsets.of(group_id).items())):
                    if at % _STEPS == 0:
                        await turn.pause()
                    found.append(Committed(group_id, key.topic, key.partition, committed.offset))
        return found

    # -- end offsets -----------------------------------------------------------------------

    def _local(self, topic: str, partition: int) -> Replica | None:
        """The replica on this broker, if its high watermark is as new as the leader's."""
        replica = self._broker.replica_manager.get(topic.encode(), partition)
        if replica is None or replica.state is None or replica.failure is not None:
            return None
        is_in_sync = self._broker.broker_id in replica.state.isr
        return replica if replica.leader is not None or is_in_sync else None

    def _end(self, topic: str, partition: int) -> int | None:
        replica = self._local(topic, partition)
        if replica is not None:
            return replica.high_watermark
        known = self._ends.get((topic, partition))
        return None if known is None else known[0]

    def _leader(self, topic: str, partition: int) -> int | None:
        """The leader that can be asked, or None."""
        image = self._broker.metadata_image
        state = image.state(topic, partition)
        if (
            state is None
            or state.leader not in image.live
            or state.leader == self._broker.broker_id
        ):
            return None
        is_silent = self._silent_until_s.get(state.leader, 0.0) > self._broker.monotonic_s()
        return None if is_silent else state.leader

    def _endpoint(self, broker_id: int) -> PublishedEndpoint | None:
        broker = self._broker
        return broker.metadata_image.endpoint(broker_id, broker.settings.inter_broker_listener())

    async def _ask_ends(self, keys: set[_Key], turn: Turn) -> None:
        """Ask leaders for the end offsets of partitions that have no replica here."""
        now_s = self._broker.monotonic_s()
        self._ends = {
            key: known for key, known in self._ends.items() if now_s - known[1] < _ENDS_KEPT_S
        }
        wanted: dict[int, list[_Key]] = defaultdict(list)
        for at, key in enumerate(sorted(keys)):
            if at % _STEPS == 0:
                await turn.pause()
            if key in self._ends or self._local(*key) is not None:
                continue
            leader = self._leader(*key)
            if leader is not None:
                wanted[leader].append(key)
        if wanted:
            await asyncio.gather(*(self._ask(leader, keys) for leader, keys in wanted.items()))

    async def _ask(self, leader: int, keys: list[_Key]) -> None:
        endpoint = self._endpoint(leader)
        if endpoint is None:
            return
        for start in range(0, len(keys), _PARTITIONS_PER_REQUEST):
            request = _latest(keys[start : start + _PARTITIONS_PER_REQUEST])
            try:
                response = await self._broker.peers.send(
                    endpoint, request, timeout_ms=_TIMEOUT_MS, purpose=_PURPOSE
                )
            except (ConnectionFailed, KafkaError):
                self._silent_until_s[leader] = self._broker.monotonic_s() + _SILENT_S
                return
            now_s = self._broker.monotonic_s()
            for topic in response.topics:
                for partition in topic.partitions:
                    if partition.error_code == ErrorCode.NONE and partition.offset >= 0:
                        self._ends[topic.name, partition.partition_index] = partition.offset, now_s

    # -- seconds ---------------------------------------------------------------------------

    async def _collect_seconds(self, samples: Samples, behind: list[Committed], turn: Turn) -> None:
        places = {(c.topic, c.partition, c.offset) for c in behind}
        known = self._timestamps
        if len(known) > _MOST_TIMESTAMPS:
            self._timestamps = known = {at: known[at] for at in places if at in known}
        unknown = sorted(places - known.keys())
        try:
            async with asyncio.timeout(_LOOKUPS_S):
                await self._read_here(unknown, turn)
                await self._ask_leaders((at for at in unknown if at not in known), turn.usage)
        except TimeoutError:
            pass
        now_ms = self._broker.now_ms()
        for commit in behind:
            timestamp_ms = known.get((commit.topic, commit.partition, commit.offset))
            if timestamp_ms is not None and timestamp_ms >= 0:
                labels = (commit.group, commit.topic, str(commit.partition))
                seconds = max(0, now_ms - timestamp_ms) / 1000
                samples.add(m.GROUP_LAG_SECONDS, seconds, *labels)

    async def _read_here(self, places: Iterable[tuple[str, int, int]], turn: Turn) -> None:
        loop = asyncio.get_running_loop()
        for topic, partition, offset in places:
            await turn.pause()
            replica = self._local(topic, partition)
            if replica is None:
                continue
            start = max(offset, replica.log.start_offset)
            try:
                part = replica.log.read(start, 1, replica.high_watermark)
                if part is None:
                    continue
                length = min(part.length, _SCAN_BYTES)
                data = await loop.run_in_executor(None, part.file.read, part.position, length)
                found = await self._broker.work_pool.run(
                    turn.usage, length, timestamp_at, data, start
                )
            except (DiskFailed, Corrupt, KafkaError):
                continue
            self._timestamps[topic, partition, offset] = found

    async def _ask_leaders(self, places: Iterable[tuple[str, int, int]], usage: Usage) -> None:
        left = _RECORDS_FROM_LEADERS
        for topic, partition, offset in places:
            leader = self._leader(topic, partition)
            endpoint = None if leader is None else self._endpoint(leader)
            found = self._broker.metadata_image.topic(topic)
            if endpoint is None or found is None or self._local(topic, partition) is not None:
                continue
            if left == 0:
                return
            left -= 1
            fetch = Fetch(
                _CONSUMER, 0, 0, 1, 0, 0, -1,
                [(found.topic_id.bytes, [RequestedPartition(partition, -1, offset, -1, -1, 1)])],
                [], b"",
            )  # fmt: skip
            try:
                connection = await self._broker.peers.connection(endpoint, _PURPOSE)
                response = await replica_fetch.fetch(connection, fetch)
                ((_, (received,)),) = response.topics
                if received.records:
                    data = bytes(received.records)
                    self._timestamps[topic, partition, offset] = await self._broker.work_pool.run(
                        usage, len(data), timestamp_at, data, offset
                    )
            except (ConnectionFailed, KafkaError, WireError, Corrupt, ValueError):
                continue


def _latest(keys: Iterable[_Key]) -> ListOffsetsRequest:
    topics: dict[str, ListOffsetsTopic] = {}
    for topic, partition in keys:
        found = topics.setdefault(topic, ListOffsetsTopic(name=topic, partitions=[]))
        found.partitions.append(ListOffsetsPartition(partition_index=partition, timestamp=_LATEST))
    return ListOffsetsRequest(
        replica_id=_CONSUMER, topics=list(topics.values()), timeout_ms=_TIMEOUT_MS
    )


def timestamp_at(batch: bytes, offset: int) -> int:
    """Return the timestamp of the first record at or after an offset; that of the batch if the
    record is not in these bytes, or the batch is large."""
    if len(batch) < HEADER_BYTES:
        raise Corrupt(f"{len(batch)} bytes are no batch")
    header = read_header(batch)
    is_first = header.base_offset >= offset and header.delete_horizon_ms is None
    if is_first and not header.is_log_append_time:
        return header.base_timestamp
    if header.size <= len(batch) and not header.is_log_append_time:
        try:
            for record in records(batch, limit=_SCAN_BYTES):
                if record.offset >= offset:
                    return record.timestamp
        except Corrupt:  # it inflates to more than the limit, or the log is damaged
            pass
    return header.max_timestamp
