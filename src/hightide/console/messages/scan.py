"""A bounded scan of a topic: reads spans of partitions in turn, filters, and says how far it is.

    spans ──▶ one reader for each partition ──▶ filter, in a thread ──▶ found records
              (a few fetch at once)              limits: found, looked at, bytes, seconds

Each turn takes a few records of one partition, so that no partition hides the others, and the
position is exact at every moment: a scan that has stopped at a limit can continue there.

A scan has connections of its own: a large response must not delay the observer's requests.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from hightide.client.fetcher import OffsetOutOfRange, RangeFetcher
from hightide.client.leader_cache import LeaderCache
from hightide.console.messages.batches import DamagedBatch, FoundRecord, records_of
from hightide.console.messages.filter import Filter
from hightide.console.messages.positions import Span

FETCH_BYTES = 512 * 1024
AHEAD_BYTES = 512 * 1024
RETRY_MS = 10_000
OPEN_READERS = 8
"""How many partitions are fetched at the same time."""
TURN_RECORDS = 2_000
"""How many records one turn looks at."""
TURN_SECONDS = 0.05

Stopped = Literal["end", "found", "looked", "bytes", "time"]


@dataclass(frozen=True, slots=True)
class Limits:
    """When a scan stops."""

    found: int = 500
    looked: int = 1_000_000
    bytes: int = 512 * 1024 * 1024
    found_bytes: int = 32 * 1024 * 1024
    seconds: float = 60.0


@dataclass(slots=True)
class Progress:
    """How far a scan is; `looked` counts records, `offsets` what is passed of the spans."""

    looked: int = 0
    found: int = 0
    bytes: int = 0
    found_bytes: int = 0
    offsets: int = 0
    of_offsets: int = 0
    damaged: list[str] = field(default_factory=list)
    stopped: Stopped | None = None


@dataclass(slots=True)
class FoundIn:
    """A record of a partition that the filter accepts."""

    partition: int
    found: FoundRecord


class Unreadable(Exception):
    """Batches that are not in the format of a Kafka record batch."""


class PartitionReader:
    """The records of one span, a few at a time."""

    def __init__(
        self, leaders: LeaderCache, topic: str, span: Span, *, read_committed: bool
    ) -> None:
        self.span = span
        self.position = span.begin
        """The next offset that is not looked at."""
        self.is_done = span.begin >= span.end
        self.found_since_pause = 0
        self._leaders, self._topic = leaders, topic
        self._read_committed = read_committed
        self._fetcher: RangeFetcher | None = None
        self._records: Iterator[FoundRecord | DamagedBatch] | None = None

    async def turn(self, wanted: Filter, most: int, progress: Progress) -> list[FoundIn]:
        """Look at some records and return at most so many that the filter accepts."""
        if self._fetcher is None:
            self._fetcher = RangeFetcher(
                self._leaders,
                self._topic,
                self.span.partition,
                self.position,
                self.span.end,
                read_committed=self._read_committed,
                fetch_bytes=FETCH_BYTES,
                ahead_bytes=AHEAD_BYTES,
                retry_ms=RETRY_MS,
            )
        if self._records is None:
            fetched = await self._fetcher.next()
            if fetched is None:
                self.position, self.is_done = self.span.end, True
                return []
            progress.bytes += len(fetched.data)
            self._records = records_of(fetched.data, fetched.aborted, self.position, self.span.end)
        # Decompression and decoding of a large batch would block the event loop.
        found = await asyncio.to_thread(self._look, wanted, most, progress)
        self.found_since_pause += len(found)
        return found

    def _look(self, wanted: Filter, most: int, progress: Progress) -> list[FoundIn]:
        assert self._records is not None
        found: list[FoundIn] = []
        until = time.monotonic() + TURN_SECONDS
        for _ in range(TURN_RECORDS):
            try:
                item = next(self._records, None)
            except Exception as error:
                raise Unreadable(f"{self._topic}/{self.span.partition}: {error}") from error
            if item is None:
                self._records = None
                break
            if isinstance(item, DamagedBatch):
                progress.damaged.append(
                    f"{self._topic}/{self.span.partition} has a batch at offsets "
                    f"{item.first_offset} to {item.last_offset} that cannot be read: {item.why}."
                )
                self.position = max(self.position, item.last_offset + 1)
                continue
            progress.looked += 1
            self.position = item.record.offset + 1
            if wanted.accepts(item.record):
                progress.found_bytes += len(item.record.value or b"") + len(item.record.key or b"")
                found.append(FoundIn(self.span.partition, item))
                if len(found) >= most:
                    break
            if time.monotonic() > until:
                break
        return found

    def pause(self) -> None:
        """Release what is fetched; the next turn fetches again from the position."""
        self.close()
        self._fetcher = self._records = None
        self.found_since_pause = 0

    def close(self) -> None:
        if self._fetcher is not None:
            self._fetcher.close()


class Scan:
    """Reads spans of a topic within limits."""

    def __init__(
        self,
        leaders: LeaderCache,
        topic: str,
        spans: Sequence[Span],
        wanted: Filter,
        limits: Limits,
        *,
        read_committed: bool = True,
    ) -> None:
        self.progress = Progress(of_offsets=sum(span.offsets for span in spans))
        self._wanted, self._limits = wanted, limits
        self._readers = [
            PartitionReader(leaders, topic, span, read_committed=read_committed) for span in spans
        ]
        self._until = time.monotonic() + limits.seconds

    def positions(self) -> Mapping[int, int]:
        """Where to continue, by partition; partitions that are read to their end are at it."""
        return {reader.span.partition: reader.position for reader in self._readers}

    async def run(self) -> AsyncGenerator[list[FoundIn], None]:
        """Yield found records as they are found, and empty lists in between; then it has ended."""
        waiting = deque(reader for reader in self._readers if not reader.is_done)
        current: deque[PartitionReader] = deque()
        share = max(1, min(100, self._limits.found // max(1, len(waiting))))
        try:
            while waiting or current:
                while waiting and len(current) < OPEN_READERS:
                    current.append(waiting.popleft())
                reader = current.popleft()
                found = await self._turn(reader, share)
                if reader.is_done:
                    reader.close()
                elif waiting and reader.found_since_pause >= share:
                    # Other partitions have a turn, and this one holds no memory until then.
                    reader.pause()
                    waiting.append(reader)
                else:
                    current.append(reader)
                self.progress.stopped = self._reason()
                yield found
                if self.progress.stopped is not None:
                    return
            self.progress.stopped = "end"
        finally:
            self.close()

    async def _turn(self, reader: PartitionReader, share: int) -> list[FoundIn]:
        progress, before = self.progress, reader.position
        most = min(share, self._limits.found - progress.found)
        try:
            found = await reader.turn(self._wanted, most, progress)
        except (Unreadable, OffsetOutOfRange) as error:
            # The batches have an old format, or were deleted since the span was made.
            progress.damaged.append(str(error))
            reader.position, reader.is_done = reader.span.end, True
            found = []
        progress.found += len(found)
        progress.offsets += reader.position - before
        return found

    def _reason(self) -> Stopped | None:
        progress, limits = self.progress, self._limits
        if progress.found >= limits.found:
            return "found"
        if progress.found_bytes >= limits.found_bytes or progress.bytes >= limits.bytes:
            return "bytes"
        if progress.looked >= limits.looked:
            return "looked"
        return "time" if time.monotonic() >= self._until else None

    def close(self) -> None:
        for reader in self._readers:
            reader.close()
