"""The segments of one log: their files, their order, and lookups that cross segments.

    start_offset                                            end_offset
        │   sealed segments (immutable)    │  active segment    │
        ▼──────────────┬───────────────────┬────────────────────▼
           .log .index │   .log .index     │  .log, appended to
                                  ▲ recovery_point: everything before it is on disk for certain

`Segments` deals with files. It knows nothing of replication and makes no decisions: `Log` holds
one, and says when to roll, flush, drop, replace or truncate.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple, overload

from hightide.core.partition.producer_state import ProducerStates
from hightide.core.transactions.aborted_index import AbortedIndex, AbortedTransaction
from hightide.core.transactions.open_transactions import PartitionTransactions
from hightide.log.disk import Disk, DiskFailed
from hightide.log.leader_epochs import LeaderEpochs
from hightide.log.producer_snapshots import follow, newest_snapshot, remove_snapshots, replay
from hightide.log.segment import (
    LOG,
    MAX_OFFSET,
    SNAPSHOT,
    UNKNOWN,
    OpenFiles,
    Segment,
    file_name,
)
from hightide.settings import Topic
from hightide.wire.batch import BatchHeader, records
from hightide.wire.crc import crc32c

_log = logging.getLogger(__name__)

_COPY_BYTES = 1024 * 1024


class LogParts(NamedTuple):
    """The state a log starts from: loaded by `recovery`, or empty from `Log.create`."""

    segments: list[Segment]
    start_offset: int
    end_offset: int
    recovery_point: int
    epochs: LeaderEpochs
    transactions: PartitionTransactions
    settled_at: int = -1


class TimestampedRecord(NamedTuple):
    """A record that was looked up by its timestamp."""

    timestamp: int
    offset: int
    leader_epoch: int


class Segments(Sequence[Segment]):
    """The segments of one log, oldest first. The last one is the active segment."""

    __slots__ = (
        "_gaps_before",
        "_index_interval_bytes",
        "_rolled_bytes",
        "_segments",
        "bases",
        "directory",
        "disk",
        "files",
        "hints",
        "name_changes",
        "names_synced",
        "settled_at",
    )

    def __init__(
        self,
        disk: Disk,
        directory: str,
        segments: list[Segment],
        files: OpenFiles,
        settled_at: int = -1,
    ) -> None:
        self.disk = disk
        self.directory = directory
        self.files = files
        self._segments = segments
        self.bases = [segment.base_offset for segment in segments]
        self._index_interval_bytes = 4096
        self._gaps_before = MAX_OFFSET
        # Where readers continue: offset -> segment and position.
        self.hints: dict[int, tuple[Segment, int]] = {}
        # The end offset for which all files are complete, as after a clean shutdown; else -1.
        self.settled_at = settled_at
        # How often files were created, and how many of those changes are on disk.
        self.name_changes = 1
        self._rolled_bytes = 0
        self.names_synced = int(settled_at >= 0)

    def __len__(self) -> int:
        return len(self._segments)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments)

    @overload
    def __getitem__(self, index: int) -> Segment: ...
    @overload
    def __getitem__(self, index: slice) -> list[Segment]: ...
    def __getitem__(self, index: int | slice) -> Segment | list[Segment]:
        return self._segments[index]

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self._segments)

    @property
    def written_bytes(self) -> int:
        """How far the log has grown: appends move it by what they write, deletions do not."""
        return self._rolled_bytes + self._segments[-1].size

    def index_of(self, offset: int) -> int:
        """Return the index of the segment whose range holds `offset`. It is also the number of
        segments that end at or before `offset`."""
        return max(0, bisect_right(self.bases, offset) - 1)

    def locate(self, offset: int) -> tuple[Segment, int]:
        """Find the batch that holds `offset`, or the next one if compaction removed it."""
        index = bisect_right(self.bases, offset) - 1
        index = max(index, 0)
        segments = self._segments
        while True:
            segment = segments[index]
            position = segment.locate(offset)
            index += 1
            if position < segment.size or index == len(segments):
                return segment, position

    # ---- rolling

    def set_index_interval(self, index_interval_bytes: int) -> None:
        self._index_interval_bytes = index_interval_bytes
        for segment in self._segments:
            segment.index_interval_bytes = index_interval_bytes

    def set_gaps_before(self, offset: int) -> None:
        """Compaction may have removed records before `offset`, and none after it."""
        self._gaps_before = offset
        for segment in self._segments:
            segment.gaps_before = offset

    def activate(self) -> Segment:
        """Prepare the last segment for appends and return it."""
        segment = self._segments[-1]
        segment.trusted_from = min(segment.trusted_from, segment.size)
        segment.gaps_before = self._gaps_before
        segment.limit_offset = MAX_OFFSET
        segment.is_indexed_on_disk = False
        segment.index_interval_bytes = self._index_interval_bytes
        return segment

    def roll(self, base_offset: int, snapshot: bytes, is_durable: bool, now_ms: int) -> Segment:
        """Seal the active segment at `base_offset`, and return the new one that begins there.

        `snapshot` is the producer state at `base_offset`. `is_durable` says that the recovery point
        is `base_offset`: recovery skips a segment that ends before the recovery point, so its
        indexes must be on disk before it ends there.
        """
        sealed = self._segments[-1]
        if is_durable:
            sealed.sync_indexes()
        segment = Segment.create(self.disk, self.directory, base_offset, self.files, now_ms)
        sealed.limit_offset = base_offset
        sealed.trusted_from = MAX_OFFSET
        try:
            sealed.flush_indexes()
            self.write_snapshot(base_offset, snapshot)
        except DiskFailed as failure:
            _log.warning("%s; it will be rebuilt from the record batches", failure)
        self._segments.append(segment)
        self.bases.append(base_offset)
        self._rolled_bytes += sealed.size
        self.name_changes += 1
        self.settled_at = -1
        return self.activate()

    def write_snapshot(self, offset: int, snapshot: bytes) -> None:
        """Store the producer state at `offset`."""
        name = file_name(offset, SNAPSHOT)
        self.disk.create(f"{self.directory}/{name}").append(snapshot)

    # ---- flushing

    def unsynced(self, recovery_point: int) -> tuple[list[Segment], list[str]]:
        """Return the sealed segments that may not be on disk completely, and the paths of all
        files that may hold bytes which are not on disk. The active segment's log comes last."""
        sealed: list[Segment] = []
        paths: list[str] = []
        for segment in self._segments[self.index_of(recovery_point) :]:
            if segment is not self._segments[-1]:
                sealed.append(segment)
                segment.flush_indexes()
                paths += segment.index_paths()
                snapshot = f"{self.directory}/{file_name(segment.limit_offset, SNAPSHOT)}"
                if self.disk.exists(snapshot):
                    paths.append(snapshot)
            paths.append(segment.path(LOG))
        return sealed, paths

    def sync_names(self) -> None:
        """Force the directory entries to disk. May be called in any thread."""
        self.disk.sync_directory(self.directory)
        self.disk.sync_directory("")

    def synced(self, end_offset: int, sealed: list[Segment], name_changes: int) -> int:
        """Everything before `end_offset` is on disk, with the indexes of `sealed` and the first
        `name_changes` file names. Return the offset that is safe as a recovery point."""
        for segment in sealed:
            segment.is_indexed_on_disk = True
        self.names_synced = max(self.names_synced, name_changes)
        index = self.index_of(end_offset)
        if index and self.bases[index] == end_offset:
            # The segment before was sealed during the flush; its indexes may not be on disk yet.
            end_offset -= not self._segments[index - 1].is_indexed_on_disk
        return end_offset

    # ---- dropping and replacing

    def drop_oldest(self, count: int) -> list[Segment]:
        """Take the oldest `count` segments out of the log. Their files stay."""
        assert count < len(self._segments), "the active segment stays"
        dropped = self._segments[:count]
        del self._segments[:count], self.bases[:count]
        self.close_files(dropped)
        return dropped

    def replace(self, old: list[Segment], new: Segment) -> None:
        """Put a compacted segment in the place of the segments it was made from."""
        first = self._segments.index(old[0])
        after = first + len(old)
        assert self._segments[first:after] == old
        new.limit_offset = old[-1].limit_offset
        self._put(first, after, [new])
        self.close_files(old)

    def split(self, old: Segment, parts: list[Segment]) -> None:
        """Put the intact parts of a damaged segment in its place."""
        first = self._segments.index(old)
        self._put(first, first + 1, parts)
        self.close_files([old])

    def insert(self, new: Segment) -> None:
        """Add a segment with records that were missing. An empty segment there gives way."""
        first = bisect_right(self.bases, new.base_offset)
        after = first
        if first and self.bases[first - 1] == new.base_offset:
            first -= 1
        empty = self._segments[first:after]
        assert not any(segment.size for segment in empty)
        self._put(first, after, [new])
        self.close_files(empty)

    def _put(self, first: int, after: int, new: list[Segment]) -> None:
        for segment in new:
            segment.index_interval_bytes = self._index_interval_bytes
            segment.gaps_before = self._gaps_before
        self._segments[first:after] = new
        self.bases[first:after] = [segment.base_offset for segment in new]

    def close_files(self, segments: Sequence[Segment]) -> None:
        """Close the files of segments that are dropped, or of all before the log is renamed."""
        self.hints.clear()
        self.settled_at = -1
        for segment in segments:
            self.files.forget(segment)

    # ---- truncation

    def truncation_point(self, offset: int) -> tuple[int, int, int]:
        """Return where a truncation to `offset` cuts: the index of the segment, the position in
        it, and the end offset of the batches before that position."""
        index = self.index_of(offset)
        segment = self._segments[index]
        position = segment.locate(offset)
        return index, position, segment.next_offset(position)

    def save_from(self, index: int, position: int, aside: str) -> None:
        """Copy the log files from a `truncation_point` on to the directory `aside`."""
        self.disk.make_directory(aside)
        for segment in self._segments[index:]:
            source = segment.opened()
            if position < source.size:
                copy = self.disk.create(f"{aside}/{file_name(segment.base_offset, LOG)}")
                for at in range(position, source.size, _COPY_BYTES):
                    copy.append(source.read(at, min(_COPY_BYTES, source.size - at)))
                copy.sync()
            position = 0
        self.disk.sync_directory(aside)
        self.disk.sync_directory("")

    def truncate(self, index: int, position: int, end_offset: int) -> None:
        """Cut the log at a `truncation_point`, with the producer snapshots after it."""
        self._remove_snapshots(end_offset)
        self._remove_from(index + 1)
        self._segments[index].truncate(position, end_offset)
        self.name_changes += 1

    def restart(self, offset: int, now_ms: int) -> None:
        """Remove every segment and begin with an empty one at `offset`."""
        self._remove_snapshots(-1)
        self._remove_from(0)
        segment = Segment.create(self.disk, self.directory, offset, self.files, now_ms)
        self._segments.append(segment)
        self.bases.append(offset)
        self.name_changes += 1

    def _remove_snapshots(self, after_offset: int) -> None:
        names = self.disk.list(self.directory)
        if remove_snapshots(self.disk, self.directory, names, after_offset):
            self.disk.sync_directory(self.directory)

    def _remove_from(self, index: int) -> None:
        """Remove the segments from `index` on and their files, the newest first."""
        removed = self._segments[index:]
        del self._segments[index:], self.bases[index:]
        self.close_files(removed)
        for segment in reversed(removed):
            segment.remove_files()
        self.disk.sync_directory(self.directory)

    # ---- producers and transactions

    def producers_before(self, offset: int, now_ms: int) -> tuple[ProducerStates, int]:
        """Return the producer state of the newest snapshot at or before `offset`, and the offset
        of that snapshot; an empty state at the start of the first segment if there is none."""
        names = self.disk.list(self.directory)
        found = newest_snapshot(self.disk, self.directory, names, offset, now_ms)
        return found or (ProducerStates(), self.bases[0])

    def aborted_between(
        self, start_offset: int, end_offset: int, log_end_offset: int
    ) -> list[AbortedTransaction]:
        """Return the aborted transactions with records in the range, in marker order."""
        aborted: list[AbortedTransaction] = []
        for segment in self._segments[self.index_of(start_offset) :]:
            index = segment.aborted
            if index is None:
                index = self.aborted_index(segment, log_end_offset)
            if index:
                some, is_complete = index.in_range(start_offset, end_offset)
                aborted += some
                if is_complete:
                    break
        return aborted

    def aborted_index(self, segment: Segment, log_end_offset: int) -> AbortedIndex:
        """Return the transaction index of a segment: from memory, from its file, or rebuilt.

        The index follows from the segment's batches and the transactions that were open before
        them. A missing or damaged file therefore costs time and nothing else.
        """
        index = segment.load_aborted(min(segment.limit_offset, log_end_offset))
        if index is None:
            index = self._rebuild_aborted_index(segment)
            segment.replace_aborted(index)
        return index

    def _rebuild_aborted_index(self, segment: Segment) -> AbortedIndex:
        producers, since = self.producers_before(segment.base_offset, 0)
        transactions = PartitionTransactions(producers)
        replay(transactions, self._segments, since, segment.base_offset, 0)
        index = AbortedIndex()
        for position, header in segment.headers():
            if header.producer_id >= 0:
                aborted = follow(transactions, header, segment, position, 0)
                if aborted is not None:
                    index.append(aborted)
        return index

    # ---- timestamps

    # The time indexes give the segment and the offset to search from; the batches give the rest.
    # Producers set the timestamps, so timestamps need not rise with the offsets: a lookup always
    # returns the first record, by offset, that is late enough.

    def batch_at_or_after(self, timestamp_ms: int, start_offset: int) -> FoundBatch:
        """Find the first batch from `start_offset` on with a timestamp of `timestamp_ms` or later.

        Looks at a limited number of batches: see `FoundBatch.next_offset`.
        """
        looks = _HEADERS_PER_LOOK
        for segment in self._segments:
            if segment.limit_offset <= start_offset or not segment.size:
                continue
            if _max_timestamp(segment) < timestamp_ms:
                continue
            start = max(start_offset, segment.times.offset_before(timestamp_ms))
            for position, header in segment.headers(segment.locate(start)):
                if header.last_offset < start_offset:
                    continue
                if header.max_timestamp >= timestamp_ms:
                    batch = segment.read_batch(position, header.size)
                    return FoundBatch(batch, header, header.last_offset + 1)
                looks -= 1
                if not looks:
                    return FoundBatch(None, None, header.last_offset + 1)
        return FoundBatch(None, None, None)

    def largest_timestamp(self, start_offset: int) -> int:
        """Return the largest timestamp from about `start_offset` on; -1 if there is none.

        The record may be before the start of the log, or removed by compaction.
        """
        timestamps = (
            _max_timestamp(segment)
            for segment in self._segments
            if segment.size and segment.limit_offset > start_offset
        )
        return max(timestamps, default=-1)


_HEADERS_PER_LOOK = 500


class FoundBatch(NamedTuple):
    """What one look for a timestamp found."""

    batch: bytes | None
    header: BatchHeader | None
    next_offset: int | None
    """Where to look next; None at the end of the log."""


def first_at_or_after(batch: bytes, timestamp_ms: int, start_offset: int) -> tuple[int, int] | None:
    """Return timestamp and offset of a batch's first record that is not before `timestamp_ms`."""
    for record in records(batch):
        if record.timestamp >= timestamp_ms and record.offset >= start_offset:
            return record.timestamp, record.offset
    return None


def largest_below(batch: bytes, bound: int, start_offset: int) -> int:
    """Return the largest timestamp before `bound` in a batch; -1 if there is none."""
    return max(
        (
            record.timestamp
            for record in records(batch)
            if record.offset >= start_offset and record.timestamp < bound
        ),
        default=-1,
    )


def _max_timestamp(segment: Segment) -> int:
    if segment.max_timestamp == UNKNOWN:
        segment.largest_timestamp(0)
    return segment.max_timestamp


def roll_timestamp(segment: Segment, config: Topic) -> int:
    """Return the timestamp after which a batch begins a new segment, from `segment.ms`."""
    started = segment.first_timestamp
    if started < 0:
        # Records without timestamps do not tell their age: see `Log.roll_if_old`.
        return MAX_OFFSET
    segment_ms = config.segment_ms
    if "compact" in config.cleanup_policy:
        # The active segment is never compacted, however old it grows.
        segment_ms = min(segment_ms, config.max_compaction_lag_ms)
    jitter = min(config.segment_jitter_ms, segment_ms)
    if jitter > 0:
        # Different for each partition, but always the same for one segment.
        name = f"{segment.directory}/{segment.base_offset}"
        jitter = crc32c(name.encode()) % jitter
    return started + segment_ms - jitter
