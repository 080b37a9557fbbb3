"""Reading one partition's log: by offset, by time, and what to pass over.

A read is only planned here: it names the bytes of a file, which go from there to the connection
without passing through.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from hightide.core.transactions.aborted_index import Aborted
from hightide.log import aborted_transactions
from hightide.log.disk import File
from hightide.log.segment import Segment
from hightide.log.segments import LogSegments
from hightide.log.time_lookup import Timestamped, first_at_or_after, latest
from hightide.wire.errors import Corrupt, ErrorCode, KafkaError

_log = logging.getLogger(__name__)

_HINTS_KEPT = 128

Found = TypeVar("Found")


class Slice(NamedTuple):
    """Bytes of a file to be sent. It keeps the file readable even if its segment is deleted."""

    file: File
    position: int
    length: int
    end_offset: int = -1
    """Nothing at or behind it is among the bytes; there may be more before it than they hold."""


class ReadableLog(LogSegments):
    """The half of a log that answers readers."""

    __slots__ = ()

    def read(self, offset: int, max_bytes: int, end_offset: int) -> Slice | None:
        """Which bytes to send for a fetch from `offset`: whole batches of one segment, none at or
        behind `end_offset`, no more than `max_bytes` but one batch at least.

        None when there is nothing yet. OFFSET_OUT_OF_RANGE outside the log.
        """
        if not self.start_offset <= offset <= self.end_offset or self.failure is not None:
            raise self._out_of_range(offset)
        if offset >= end_offset:
            return None
        hints = self.hints
        try:
            found = hints.get(offset)
            if found is None:
                segment, position = self._locate(offset)
            else:
                segment, position = found
            file = segment.file
            if file is None:
                file = segment.opened()
            end = file.size
            if position >= end and segment is not self._active:
                segment, position = self._locate(offset)
                file = segment.opened()
                end = file.size
            segment.used = True
            next_offset = -1
            if end_offset < self.end_offset and end_offset < segment.limit_offset:
                end = self._position_of(segment, end_offset)
                next_offset = end_offset
            elif segment is self._active:
                next_offset = self.end_offset
            if end - position > max_bytes:
                stop = segment.fit(position, max_bytes, end)
                if stop < end:
                    end = stop
                    next_offset = segment.offset_at(end)
        except Corrupt as damage:
            raise self._damaged(damage) from damage
        if end <= position:
            return None
        if next_offset >= 0 and next_offset not in hints:
            # The reader will be back for what follows.
            if len(hints) >= _HINTS_KEPT:
                del hints[next(iter(hints))]
            hints[next_offset] = (segment, end)
        if next_offset < 0:
            return Slice(file, position, end - position, segment.limit_offset)
        return Slice(file, position, end - position, next_offset)

    def _out_of_range(self, offset: int) -> KafkaError:
        if self.failure is not None:
            return self._refused()
        return KafkaError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"offset {offset} is not in {self.start_offset}..{self.end_offset}",
        )

    def _locate(self, offset: int) -> tuple[Segment, int]:
        """The batch that holds `offset`, or the next one if compaction has removed it."""
        number = self.segment_index(offset)
        while True:
            segment = self.segments[number]
            position = segment.locate(offset)
            number += 1
            if position < segment.size or number == len(self.segments):
                return segment, position

    def _position_of(self, segment: Segment, offset: int) -> int:
        """Where batches that reach `offset` begin in a segment whose range holds it."""
        found = self.hints.get(offset)
        if found is not None and found[0] is segment:
            return found[1]
        return segment.locate(offset)

    def aborted_between(self, start_offset: int, end_offset: int) -> list[Aborted]:
        """The aborted transactions with records in the range, in the order of their markers."""
        active = self._active
        if start_offset >= active.base_offset and active.aborted is not None and not active.aborted:
            return []  # as for most who read, and they ask with every fetch
        return self._looked_up(lambda: aborted_transactions.between(self, start_offset, end_offset))

    # ---- by time

    def offset_for_timestamp(self, timestamp_ms: int) -> Timestamped | None:
        """The first record whose timestamp is at least `timestamp_ms`."""
        return self._looked_up(
            lambda: first_at_or_after(self.segments, self.start_offset, timestamp_ms)
        )

    def max_timestamp(self) -> Timestamped | None:
        """The record with the largest timestamp, the first of them if there are several."""
        return self._looked_up(lambda: latest(self.segments, self.start_offset))

    def _looked_up(self, look: Callable[[], Found]) -> Found:
        if self.failure is not None:
            raise self._refused()
        try:
            return look()
        except Corrupt as damage:
            raise self._damaged(damage) from damage

    def _damaged(self, damage: Corrupt) -> KafkaError:
        """A batch that cannot be read. The others can, so the log stays in service."""
        _log.error("%s/%s is damaged: %s", self.disk.name, self.directory, damage)
        return KafkaError(ErrorCode.CORRUPT_MESSAGE, str(damage))
