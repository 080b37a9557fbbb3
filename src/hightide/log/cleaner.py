"""Compaction of a log: when, which segments, and how the new ones take the place of the old.

One round takes the sealed segments up to some offset. First it maps every key in the part that is
new since the last round to its latest offset; then it copies all segments from the start of the log
up to there, leaving out what `compaction` says, and small neighbours become one segment:

    ├──── clean ────┼──── dirty: mapped ────┼── not yet ──┼─ active ─┤
    └──────── copied without the superseded ────┘

The map holds a bounded number of keys. If there are more, the round ends where it was full and the
next one goes on. New segments are written as .cleaned, renamed to .swap when all of their bytes are
on the disk, and then take the names of the old ones. A crash anywhere leaves the old or the new,
and the older part of the log is always swapped first, so that no record outlives its tombstone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import chain
from typing import NamedTuple

from hightide.core.transactions.aborted_index import AbortedIndex
from hightide.log.compaction import KeyMap, Rules, Transactions, compact, read_batches
from hightide.log.disk import Disk, DiskFailed
from hightide.log.index import (
    MAX_RELATIVE_OFFSET,
    OFFSET_ENTRY_BYTES,
    TIME_ENTRY_BYTES,
    OffsetIndex,
    TimeIndex,
)
from hightide.log.log import Log
from hightide.log.segment import (
    CLEANED,
    DELETED,
    LOG,
    MAX_OFFSET,
    OFFSET_INDEX,
    SNAPSHOT,
    SUFFIXES,
    SWAP,
    TIME_INDEX,
    TRANSACTION_INDEX,
    UNKNOWN,
    Segment,
    file_name,
)
from hightide.wire.batch import HEADER_BYTES
from hightide.wire.errors import Corrupt

_log = logging.getLogger(__name__)


class Source(NamedTuple):
    """A segment as a round sees it, with its size at the beginning of the round."""

    segment: Segment
    size: int

    @property
    def path(self) -> str:
        return self.segment.path(LOG)


class Round(NamedTuple):
    """What one round is about."""

    sources: list[Source]
    following: list[Source]
    first_dirty_offset: int
    upper_offset: int
    ratio: float


def plan(log: Log, now_ms: int) -> Round | None:
    """The round that the log needs now, if any."""
    config = log.config
    if "compact" not in config.cleanup_policy or log.failure is not None or log.is_uncleanable:
        return None
    first_dirty = log.cleaned_offset
    if not log.start_offset <= first_dirty <= log.end_offset:
        first_dirty = log.start_offset
    upper = _upper_offset(log, first_dirty, now_ms)
    count = 0
    while count < len(log.segments) - 1 and log.segments[count].limit_offset <= upper:
        count += 1
    segments = log.segments[:count]
    clean_bytes = sum(s.size for s in segments if s.limit_offset <= first_dirty)
    dirty_bytes = sum(s.size for s in segments if s.limit_offset > first_dirty)
    if clean_bytes + dirty_bytes == 0:
        return None
    ratio = dirty_bytes / (clean_bytes + dirty_bytes)
    dirty = [segment for segment in segments if segment.limit_offset > first_dirty]
    if not (
        ratio > config.min_cleanable_dirty_ratio
        or (dirty_bytes and _is_overdue(dirty, now_ms - config.max_compaction_lag_ms))
        or now_ms >= log.tombstones_due_ms
    ):
        return None
    return Round(
        [Source(segment, segment.size) for segment in segments],
        [Source(segment, segment.size) for segment in log.segments[count:]],
        first_dirty,
        segments[-1].limit_offset,
        ratio,
    )


def _upper_offset(log: Log, first_dirty: int, now_ms: int) -> int:
    """Compaction takes only what is sealed, committed, decided, safely on disk, and old enough.

    The disk must also say so: recovery takes a gap behind the recovery point for lost records.
    """
    upper = min(log.active.base_offset, log.last_stable_offset, log.recovery_point_written)
    lag_ms = log.config.min_compaction_lag_ms
    if lag_ms > 0:
        for segment in log.segments:
            if segment.limit_offset > upper:
                break
            is_dirty = segment.limit_offset > first_dirty
            if is_dirty and segment.largest_timestamp(now_ms) > now_ms - lag_ms:
                return min(upper, segment.base_offset)
    return upper


def _is_overdue(dirty: list[Segment], before_ms: int) -> bool:
    """Whether some record has waited for compaction longer than it may."""
    if before_ms <= 0:
        return False
    for segment in dirty:
        if segment.first_timestamp == UNKNOWN and segment.size:
            segment.first_timestamp = next(segment.headers())[1].max_timestamp
        if 0 < segment.first_timestamp < before_ms:
            return True
    return False


class Result(NamedTuple):
    """One new segment, written and synced as .cleaned."""

    sources: list[Source]
    size: int
    max_timestamp: int
    max_timestamp_offset: int
    changed: bool


class Compact:
    """The job that compacts a log by one round."""

    def __init__(
        self,
        log: Log,
        work: Round,
        now_ms: int,
        key_capacity: int,
        io_bytes: int,
        done: Callable[[list[str]], None],
    ) -> None:
        """`done` is told in `finish`, with the files that can be removed after a while."""
        self._log = log
        self._work = work
        self._done = done
        self._io_bytes = max(io_bytes, HEADER_BYTES)
        self._truncations = log.truncations
        self._results: list[Result] = []
        self._failure: Corrupt | DiskFailed | None = None
        self._tombstones_due_ms = MAX_OFFSET
        self._segment_bytes = log.config.segment_bytes
        self._index_bytes = log.config.segment_index_bytes
        self._interval = log.config.index_interval_bytes
        self._rules = Rules(
            keys=KeyMap(key_capacity, work.first_dirty_offset),
            transactions=Transactions(),
            first_dirty_offset=work.first_dirty_offset,
            upper_offset=work.upper_offset,
            last_batches={i: (s.last_offset, s.epoch) for i, s in log.producers},
            now_ms=now_ms,
            delete_retention_ms=log.config.delete_retention_ms,
        )

    # ---- in a thread

    def run(self) -> None:
        try:
            self._map_keys()
            end_offset = self._rules.keys.end_offset
            sources = [s for s in self._work.sources if s.segment.base_offset < end_offset]
            for group in self._groups(sources):
                self._results.append(self._write(group))
        except (Corrupt, DiskFailed) as failure:
            self._failure = failure

    def _map_keys(self) -> None:
        first_dirty = self._work.first_dirty_offset
        dirty = [s for s in self._work.sources if s.segment.limit_offset > first_dirty]
        keys, transactions = self._rules.keys, self._rules.transactions
        disk = self._log.disk
        for source in dirty:
            for header, batch in read_batches(disk.open(source.path), source.size, self._io_bytes):
                transactions.note(header, batch)
        for source in self._work.following if transactions.are_open else ():
            for header, batch in read_batches(disk.open(source.path), source.size, self._io_bytes):
                if header.is_control:
                    transactions.note(header, batch)
        for source in dirty:
            for header, batch in read_batches(disk.open(source.path), source.size, self._io_bytes):
                if keys.is_full:
                    return
                keys.add(header, batch, transactions.is_aborted(header))
        keys.end_offset = self._work.upper_offset

    def _groups(self, sources: list[Source]) -> list[list[Source]]:
        """Neighbours that fit into one segment together."""
        groups: list[list[Source]] = []
        size = 0
        entry_bytes = max(OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES)
        step_bytes = max(self._interval, HEADER_BYTES)
        for source in sources:
            size += source.size
            if (
                not groups
                or size > self._segment_bytes
                or (size // step_bytes + 1) * entry_bytes > self._index_bytes
                or source.segment.limit_offset - groups[-1][0].segment.base_offset
                > MAX_RELATIVE_OFFSET
            ):
                groups.append([])
                size = source.size
            groups[-1].append(source)
        return groups

    def _write(self, group: list[Source]) -> Result:
        """Copy a group into one .cleaned segment and force it to disk."""
        disk = self._log.disk
        target = group[0].segment
        offsets = OffsetIndex(target.path(OFFSET_INDEX + CLEANED), target.base_offset)
        times = TimeIndex(target.path(TIME_INDEX + CLEANED), target.base_offset)
        aborted = AbortedIndex()
        file = disk.create(target.path(LOG + CLEANED))
        pending = bytearray()
        position = indexed_at = 0
        latest, latest_offset = -1, target.base_offset
        changed = len(group) > 1
        readers = (read_batches(disk.open(s.path), s.size, self._io_bytes) for s in group)
        for header, batch in chain.from_iterable(readers):
            done = compact(header, batch, self._rules)
            changed = changed or done.changed
            if done.delete_horizon_ms is not None:
                self._tombstones_due_ms = min(self._tombstones_due_ms, done.delete_horizon_ms)
            if done.data is None:
                continue
            if done.aborted is not None:
                aborted.append(done.aborted)
            if done.max_timestamp > latest:
                latest, latest_offset = done.max_timestamp, header.last_offset
            if position - indexed_at > self._interval:
                indexed_at = position
                offsets.add(header.last_offset, position)
                times.add(latest, latest_offset)
            pending += done.data
            position += len(done.data)
            if len(pending) >= self._io_bytes:
                file.append(pending)
                pending = bytearray()
        if pending:
            file.append(pending)
        times.add(latest, latest_offset)
        file.sync()
        for index in (offsets, times):
            disk.create(index.path)
            index.flush(disk)
            disk.open(index.path).sync()
        index_file = disk.create(target.path(TRANSACTION_INDEX + CLEANED))
        if aborted:
            index_file.append(aborted.encode())
            index_file.sync()
        return Result(group, position, latest, latest_offset, changed)

    # ---- on the owner's thread

    def finish(self) -> None:
        log = self._log
        removable: list[str] = []
        try:
            if self._failure is None and self._still_fits():
                for result in self._results:
                    if result.changed:
                        removable += self._swap(result)
                    else:
                        self._discard(result.sources[0].segment)
                log.cleaned_offset = self._rules.keys.end_offset
                log.tombstones_due_ms = self._tombstones_due_ms
            else:
                for source in self._work.sources:
                    self._discard(source.segment)
        except DiskFailed as failure:
            log.fail(failure)
        if isinstance(self._failure, Corrupt):
            # It would only fail again. Reads of the damaged batch will say so too.
            _log.error("%s cannot be compacted: %s", log.directory, self._failure)
            log.is_uncleanable = True
        elif self._failure is not None:
            _log.error("compacting %s failed: %s", log.directory, self._failure)
        self._done(removable)

    def _still_fits(self) -> bool:
        """Whether the log still begins with the segments that were copied."""
        log = self._log
        copied = [source.segment for result in self._results for source in result.sources]
        return (
            log.failure is None
            and log.truncations == self._truncations
            and log.segments[: len(copied)] == copied
        )

    def _swap(self, result: Result) -> list[str]:
        """Let a new segment take the place of its sources; returns the files that are left."""
        log, disk = self._log, self._log.disk
        old = [source.segment for source in result.sources]
        new = Segment(disk, log.directory, old[0].base_offset, result.size, log.files)
        new.max_timestamp = result.max_timestamp
        new.max_timestamp_offset = result.max_timestamp_offset
        new.created_ms = old[-1].created_ms
        new.is_indexed_on_disk = True
        _rename(disk, new, CLEANED, SWAP)
        disk.sync_directory(log.directory)
        log.replace_segments(old, new)
        left = []
        for segment in old:
            segment.rename_files("", DELETED)
            left += [segment.path(suffix + DELETED) for suffix in SUFFIXES]
        # The snapshots of segments that are no more mean nothing; the first one's stays.
        left += [f"{log.directory}/{file_name(s.base_offset, SNAPSHOT)}" for s in old[1:]]
        _rename(disk, new, SWAP, "")
        disk.sync_directory(log.directory)
        return left

    def _discard(self, segment: Segment) -> None:
        for suffix in SUFFIXES:
            segment.disk.remove(segment.path(suffix + CLEANED))


def _rename(disk: Disk, segment: Segment, old: str, new: str) -> None:
    for suffix in SUFFIXES:
        disk.rename(segment.path(suffix + old), segment.path(suffix + new))
