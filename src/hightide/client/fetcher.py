"""Reads a range of a partition's records, and fetches ahead of the caller that decodes them.

    leader ◀── Fetch from 0 ──      ── Fetch from 918 ──      …
           ── records 0 – 917 ──▶ queue (bounded in bytes) ──▶ next() ──▶ caller

The headers of the received batches say where the next fetch begins, so that fetch is in flight
while the caller decodes.  An offset is not a count: compaction and transaction markers leave gaps.
The range is complete when the position has passed its end, whether or not the last offsets hold
records.

Requests name topics, in the last version of Fetch that does so, which every broker offers.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from struct import Struct
from typing import Any

from hightide.client.admin.records import NAMES_TOPICS, list_offsets
from hightide.client.broker_connection import Connection, ConnectionFailed, check
from hightide.client.leader_cache import LeaderCache
from hightide.client.model.cluster import Timestamp
from hightide.client.retry import RETRY_MS, Backoff
from hightide.wire.batch import HEADER_BYTES, LOG_OVERHEAD
from hightide.wire.errors import Corrupt, ErrorCode, KafkaError
from hightide.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic

FETCH_BYTES = 4 * 1024 * 1024
AHEAD_BYTES = 8 * 1024 * 1024
MOST_BYTES = 48 * 1024 * 1024
WAIT_MS = 500
NO_RECORDS = memoryview(b"")

_FRONT = Struct(">qi")  # base offset, length
_LAST_OFFSET_DELTA = Struct(">i")
_LAST_OFFSET_DELTA_AT = 23


@dataclass(frozen=True, slots=True)
class FetchedBatches:
    """Record batches of one fetch; the last one may be cut off."""

    data: memoryview
    aborted: list[tuple[int, int]]
    """Producer id and first offset of each aborted transaction; empty for read_uncommitted."""
    high_watermark: int
    last_stable: int
    log_start: int


class OffsetOutOfRange(Exception):
    """The partition has no records at an offset: they were deleted, or never written."""

    def __init__(self, topic: str, partition: int, offset: int, log_start: int, log_end: int):
        super().__init__(topic, partition, offset, log_start, log_end)
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.log_start = log_start
        self.log_end = log_end

    def __str__(self) -> str:
        return (
            f"{self.topic}/{self.partition} has no records at offset {self.offset}: "
            f"it begins at {self.log_start} and ends at {self.log_end}."
        )


def end_of(data: memoryview, position: int) -> int:
    """The offset after the last complete batch; `position` if there is none."""
    at, last, size = 0, -1, len(data)
    while size - at >= HEADER_BYTES:
        _, length = _FRONT.unpack_from(data, at)
        if length < HEADER_BYTES - LOG_OVERHEAD:
            raise Corrupt(f"a batch of impossible length {length}")
        if at + LOG_OVERHEAD + length > size:
            break
        last = at
        at += LOG_OVERHEAD + length
    if last < 0:
        return position
    base, _ = _FRONT.unpack_from(data, last)
    (delta,) = _LAST_OFFSET_DELTA.unpack_from(data, last + _LAST_OFFSET_DELTA_AT)
    return max(position, int(base) + int(delta) + 1)


class RangeFetcher:
    """Fetches the offsets from `start` up to, not including, `end`."""

    def __init__(
        self,
        leaders: LeaderCache,
        topic: str,
        partition: int,
        start: int,
        end: int,
        *,
        read_committed: bool = False,
        fetch_bytes: int = FETCH_BYTES,
        ahead_bytes: int = AHEAD_BYTES,
        retry_ms: int = RETRY_MS,
    ) -> None:
        self._leaders = leaders
        self._topic, self._partition = topic, partition
        self._position, self._end = start, end
        self._read_committed = read_committed
        self._fetch_bytes = fetch_bytes
        self._ahead_bytes = ahead_bytes
        self._queue: deque[FetchedBatches] = deque()
        self._queued_bytes = 0
        self._changed = asyncio.Event()
        self._empty_at = -1
        self._backoff = Backoff(limit_s=retry_ms / 1000)
        self._task: asyncio.Task[None] | None = None
        self._is_fetched = start >= end

    @property
    def is_done(self) -> bool:
        """Whether `next` has returned everything; safe to read from another thread."""
        return self._is_fetched and not self._queue

    async def next(self) -> FetchedBatches | None:
        """The next fetched batches; None at the end of the range."""
        if self._task is None:
            self._task = asyncio.ensure_future(self._fill())
            self._task.add_done_callback(lambda _: self._changed.set())
        while not self._queue:
            if self._task.done():
                self._task.result()
                return None
            self._changed.clear()
            await self._changed.wait()
        fetched = self._queue.popleft()
        self._queued_bytes -= len(fetched.data)
        self._changed.set()
        return fetched

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _fill(self) -> None:
        while self._position < self._end:
            while self._queued_bytes >= self._ahead_bytes:
                self._changed.clear()
                await self._changed.wait()
            fetched = await self._fetch()
            if fetched is not None and len(fetched.data):
                self._queue.append(fetched)
                self._queued_bytes += len(fetched.data)
                self._changed.set()
        self._is_fetched = True

    async def _fetch(self) -> FetchedBatches | None:
        """Send one fetch, and advance the position if the response has batches."""
        connection: Connection | None = None
        try:
            connection = await self._leaders.connection(self._topic, self._partition)
            answer = await connection.send(
                self._request(),
                version=min(NAMES_TOPICS, connection.version_for(FetchRequest)),
                timeout_ms=self._leaders.timeout_ms,
            )
            return await self._received(answer)
        except ConnectionFailed as error:
            self._leaders.forget(self._topic, connection)
            await self._backoff.after(error)
        except KafkaError as error:
            self._leaders.forget(self._topic)
            await self._backoff.after(error)
        return None

    def _request(self) -> FetchRequest:
        partition = FetchPartition(
            partition=self._partition,
            fetch_offset=self._position,
            partition_max_bytes=self._fetch_bytes,
        )
        return FetchRequest(
            max_wait_ms=WAIT_MS,
            min_bytes=1,
            max_bytes=self._fetch_bytes,
            isolation_level=int(self._read_committed),
            topics=[FetchTopic(topic=self._topic, partitions=[partition])],
        )

    async def _received(self, answer: Any) -> FetchedBatches | None:
        check(answer.error_code, about=self._topic)
        partitions = [result for topic in answer.responses for result in topic.partitions]
        if not partitions:  # A broker that throttles its consumers leaves the partition out.
            await asyncio.sleep(answer.throttle_time_ms / 1000)
            return None
        (result,) = partitions
        about = f"{self._topic}/{self._partition}"
        if result.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            raise await self._out_of_range()
        check(result.error_code, about=about)
        data = NO_RECORDS if result.records is None else memoryview(result.records)
        try:
            after = end_of(data, self._position)
        except Corrupt as error:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{about}: {error}") from error
        if after == self._position:
            await self._received_nothing(result, len(data))
            return None
        self._position = after
        self._backoff.reset()
        aborted = result.aborted_transactions or () if self._read_committed else ()
        return FetchedBatches(
            data=data,
            aborted=[(producer.producer_id, producer.first_offset) for producer in aborted],
            high_watermark=result.high_watermark,
            last_stable=result.last_stable_offset,
            log_start=result.log_start_offset,
        )

    async def _received_nothing(self, result: Any, size: int) -> None:
        """A fetch returned no complete batch: it was too small, too early, or there is none."""
        if size:
            if self._fetch_bytes >= MOST_BYTES:
                raise KafkaError(
                    ErrorCode.MESSAGE_TOO_LARGE,
                    f"{self._topic}/{self._partition} has a batch at offset {self._position} that "
                    f"is larger than {MOST_BYTES} bytes.",
                )
            self._fetch_bytes = min(2 * self._fetch_bytes, MOST_BYTES)
            return
        visible = result.last_stable_offset if self._read_committed else result.high_watermark
        if visible > self._position and self._empty_at == self._position:
            # The second response in a row without records, although the high watermark is higher:
            # compaction has emptied the end of the log.
            self._position = min(self._end, visible)
            return
        self._empty_at = self._position
        if visible <= self._position:
            # A consumer may be ahead of a new leader's high watermark for a while.  If it stays so,
            # the log was truncated or the topic created again, or a transaction stays open too
            # long.
            late = KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE, f"The log ends at {visible}.")
            try:
                await self._backoff.after(late)
            except KafkaError:
                start = result.log_start_offset
                raise OffsetOutOfRange(
                    self._topic, self._partition, self._position, start, visible
                ) from None

    async def _out_of_range(self) -> Exception:
        """Explain OFFSET_OUT_OF_RANGE with the current offsets, which not every broker returns."""
        key = self._topic, self._partition
        ask = list_offsets(self._leaders.timeout_ms)
        earliest = await self._leaders.ask({key: Timestamp.EARLIEST}, ask)
        latest = await self._leaders.ask({key: Timestamp.LATEST}, ask)
        start, end = earliest[key].offset, latest[key].offset
        if start <= self._position < end:
            # A leader that was just elected may not have known its high watermark yet.
            return KafkaError(
                ErrorCode.OFFSET_NOT_AVAILABLE,
                f"{self._topic}/{self._partition} refused offset {self._position}, which it has.",
            )
        return OffsetOutOfRange(self._topic, self._partition, self._position, start, end)
