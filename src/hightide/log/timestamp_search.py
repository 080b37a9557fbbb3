"""Finds a record by its timestamp, in steps that are short enough for an event loop.

    next_batch ─▶ Scan: a batch to look into ─▶ scan() in a thread ─▶ scanned ─▶ next_batch …

The steps keep no position in a file: between two of them segments may be added, replaced, truncated
or deleted.  Only `Scan` is slow, because it inflates and decodes a batch, and it works on bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hightide.log.segments import TimestampedRecord, first_at_or_after, largest_below
from hightide.wire.batch import CODEC_MASK, BatchHeader

if TYPE_CHECKING:
    from hightide.log.log import Log


class Scan(NamedTuple):
    """A batch that may have the record; without one, the search goes on with the next step."""

    batch: bytes | None
    header: BatchHeader | None
    timestamp_ms: int
    start_offset: int
    is_bound: bool

    def __call__(self) -> tuple[int, int] | None:
        """Return timestamp and offset of the record, if the batch has it."""
        assert self.batch is not None
        if self.is_bound:
            return largest_below(self.batch, self.timestamp_ms, self.start_offset), -1
        return first_at_or_after(self.batch, self.timestamp_ms, self.start_offset)

    @property
    def is_quick(self) -> bool:
        """Whether the batch can be decoded within a turn of the event loop."""
        header = self.header
        return header is None or (
            header.record_count <= _FEW_RECORDS and not header.attributes & CODEC_MASK
        )


_FEW_RECORDS = 500


def find_timestamp(log: Log, timestamp_ms: int | None) -> TimestampedRecord | None:
    """Take all steps of a search at once."""
    search = TimestampSearch(log, timestamp_ms)
    while (scan := search.next_batch()) is not None:
        search.scanned(scan() if scan.batch is not None else None)
    return search.found


class TimestampSearch:
    """A search for the first record at or after a timestamp, or for the largest timestamp."""

    def __init__(self, log: Log, timestamp_ms: int | None) -> None:
        self.found: TimestampedRecord | None = None
        self._log = log
        self._is_for_largest = timestamp_ms is None
        self._offset = log.start_offset
        self._timestamp_ms = timestamp_ms
        # When no record has the largest timestamp of the indexes, because it was deleted, the
        # batches are scanned for the largest one below it.
        self._bound: int | None = None
        self._largest_below = -1
        self._header: BatchHeader | None = None
        self._is_done = False

    def next_batch(self) -> Scan | None:
        """Take a short step; return what to scan, or None if the search is over."""
        if self._is_done:
            return None
        log = self._log
        self._offset = max(self._offset, log.start_offset)
        if self._timestamp_ms is None:
            self._timestamp_ms = log.segments.largest_timestamp(log.start_offset)
            if self._timestamp_ms < 0:
                self._is_done = True
                return None
        wanted = self._timestamp_ms if self._bound is None else self._largest_below + 1
        batch, header, next_offset = log.segments.batch_at_or_after(wanted, self._offset)
        start_offset, self._header = self._offset, header
        if next_offset is not None:
            self._offset = next_offset
        else:
            self._end_of_log()
        timestamp_ms = wanted if self._bound is None else self._bound
        return Scan(batch, header, timestamp_ms, start_offset, self._bound is not None)

    def scanned(self, result: tuple[int, int] | None) -> None:
        """The batch was scanned, or there was none."""
        if self._header is None or result is None:
            return
        timestamp_ms, offset = result
        if self._bound is not None:
            self._largest_below = max(self._largest_below, timestamp_ms)
        else:
            self.found = TimestampedRecord(timestamp_ms, offset, self._header.leader_epoch)
            self._is_done = True

    def _end_of_log(self) -> None:
        if not self._is_for_largest:
            self._is_done = True
        elif self._bound is None:
            self._bound, self._largest_below = self._timestamp_ms, -1
            self._offset = self._log.start_offset
        elif self._largest_below < 0:
            self._is_done = True
        else:
            self._timestamp_ms, self._bound = self._largest_below, None
            self._offset = self._log.start_offset
