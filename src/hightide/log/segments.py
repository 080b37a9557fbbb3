"""The row of segments under a log: rolling, forcing to disk, dropping, replacing.

    start_offset                                            end_offset
        │   sealed segments (immutable)    │  active segment    │
        ▼──────────────┬───────────────────┬────────────────────▼
           .log .index │   .log .index     │  .log, appended to
                                  ▲ recovery_point: all before it is on the disk for certain

This is the half of a log that deals with files; the half that deals with records, in `log`, builds
on it. The limits that say when the next segment begins are kept as plain numbers, because every
append compares with them.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable
from typing import NamedTuple

from hightide.core.transactions.open_transactions import PartitionTransactions
from hightide.log import truncation
from hightide.log.batch_validation import Rules
from hightide.log.disk import Disk, DiskFailed
from hightide.log.index import MAX_RELATIVE_OFFSET
from hightide.log.leader_epochs import LeaderEpochs
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
from hightide.wire.crc import crc32c
from hightide.wire.errors import KafkaError

_log = logging.getLogger(__name__)


class Parts(NamedTuple):
    """What a log is put together from: by `recovery` from files, or empty by `Log.create`."""

    segments: list[Segment]
    start_offset: int
    end_offset: int
    recovery_point: int
    epochs: LeaderEpochs
    transactions: PartitionTransactions
    settled_at: int = -1


class LogSegments:
    """The files of one partition."""

    # With slots a log with nothing in it is small, and its attributes are found fastest.
    __slots__ = (
        "_active",
        "_after_max_ms",
        "_epoch",
        "_index_interval",
        "_indexed_at",
        "_max_bytes",
        "_needs_look",
        "_roll_offset",
        "_roll_timestamp",
        "_rules",
        "_segment_bytes",
        "bases",
        "cleaned_offset",
        "config",
        "directory",
        "disk",
        "end_offset",
        "epochs",
        "failure",
        "files",
        "flush_at",
        "flushed_ms",
        "high_watermark",
        "hints",
        "is_uncleanable",
        "name_changes",
        "names_synced",
        "offsets_lowered",
        "partition",
        "producers",
        "recovery_point",
        "recovery_point_written",
        "segments",
        "settled_at",
        "start_offset",
        "tombstones_due_ms",
        "topic",
        "transactions",
        "truncations",
    )

    def __init__(
        self,
        disk: Disk,
        topic: str,
        partition: int,
        config: Topic,
        files: OpenFiles,
        parts: Parts,
    ) -> None:
        self.disk = disk
        self.topic = topic
        self.partition = partition
        self.directory = f"{topic}-{partition}"
        self.files = files
        self.segments = parts.segments
        self.start_offset = parts.start_offset
        self.end_offset = parts.end_offset
        self.recovery_point = parts.recovery_point
        self.epochs = parts.epochs
        self.transactions = parts.transactions
        self.producers = parts.transactions.producers
        # Set by whoever replicates the partition. None: all that is written is committed.
        self.high_watermark: int | None = None
        # What the checkpoint on disk says at least.
        self.recovery_point_written = 0
        # Called when recovery point or start go back, before anything else is written.
        self.offsets_lowered: Callable[[], None] = lambda: None
        self.failure: KafkaError | None = None
        # The end offset for which everything on disk is in order, as after a clean stop; else -1.
        self.settled_at = parts.settled_at
        # Where compaction has still to begin, and when it could drop its next tombstones.
        self.cleaned_offset = 0
        self.tombstones_due_ms = MAX_OFFSET
        self.is_uncleanable = False
        # When it was last forced to disk, as `flush.ms` counts.
        self.flushed_ms = 0
        # How often the log was truncated, so that work begun before can see it.
        self.truncations = 0
        # How often files came, and how many of those times the disk knows of.
        self.name_changes = 1
        self.names_synced = int(parts.settled_at >= 0)
        self._epoch = self.epochs.latest
        self.bases = [segment.base_offset for segment in self.segments]
        self.hints: dict[int, tuple[Segment, int]] = {}
        self._active = self.segments[-1]
        self._indexed_at = 0
        self._roll_timestamp = -1
        self._roll_offset = -1
        self.reconfigure(config)
        self._activate()

    def __repr__(self) -> str:
        return f"Log({self.directory}, {self.start_offset}..{self.end_offset})"

    def reconfigure(self, config: Topic) -> None:
        """Follow the topic's settings. What `append` reads is kept here as plain numbers."""
        self.config = config
        self._rules = rules = Rules.of(config)
        self._max_bytes = min(config.max_message_bytes, config.segment_bytes)
        self._segment_bytes = config.segment_bytes
        self._after_max_ms = rules.after_max_ms
        self._index_interval = config.index_interval_bytes
        self._needs_look = not rules.are_plain or self.failure is not None
        self.flush_at = self._next_flush()
        for segment in self.segments:
            segment.index_interval_bytes = config.index_interval_bytes
        self._roll_timestamp = -1

    def _next_flush(self) -> int:
        """The end offset from which on `flush.messages` asks for a flush before an answer."""
        return min(self.recovery_point + self.config.flush_messages, MAX_OFFSET)

    @property
    def active(self) -> Segment:
        """The segment that grows."""
        return self._active

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self.segments)

    @property
    def committed_offset(self) -> int:
        """Records before it will stay; only they may be dropped for age or be compacted."""
        return self.end_offset if self.high_watermark is None else self.high_watermark

    @property
    def last_stable_offset(self) -> int:
        """Every transaction with records before it is decided, and that is committed."""
        high_watermark = self.committed_offset
        transactions = self.transactions
        if transactions.are_all_decided:
            return high_watermark
        transactions.high_watermark_moved(high_watermark)
        return max(transactions.last_stable_offset(high_watermark), self.start_offset)

    def fail(self, failure: KafkaError) -> None:
        """Take the log out of service: every later append and read is refused with this."""
        _log.error("the log %s/%s is offline: %s", self.disk.name, self.directory, failure)
        self.failure = failure
        self._needs_look = True
        self.hints.clear()

    def _refused(self) -> KafkaError:
        # A new exception each time: one that is raised again and again grows with every traceback.
        assert self.failure is not None
        return KafkaError(self.failure.code, self.failure.detail)

    def segment_index(self, offset: int) -> int:
        """Number of the segment whose range holds `offset`, which is also how many segments end
        at or before it."""
        return max(0, bisect_right(self.bases, offset) - 1)

    # ---- rolling

    def _activate(self) -> None:
        """Take the last segment as the one that grows."""
        self._active = segment = self.segments[-1]
        segment.limit_offset = MAX_OFFSET
        segment.is_indexed_on_disk = False
        segment.index_interval_bytes = self._index_interval
        self._indexed_at = 0
        # The first append to it asks `_must_roll`, which then knows the numbers to compare with.
        self._roll_timestamp = -1
        self._roll_offset = -1

    def _must_roll(self, size: int, max_timestamp: int, last_offset: int, now_ms: int) -> bool:
        """Whether a batch begins a new segment. Sets the limits that `append` looks at."""
        segment = self._active
        if segment.size == 0:
            segment.start_empty(segment.created_ms or now_ms)
            segment.first_timestamp = max_timestamp
            self._set_roll_limits(segment)
            return False
        if segment.first_timestamp == UNKNOWN:
            self._learn(segment)
        self._set_roll_limits(segment)
        return (
            segment.size + size > self._segment_bytes
            or self._roll_timestamp < max_timestamp
            or not segment.has_room_for(last_offset)
            or segment.is_index_full(self.config.segment_index_bytes)
        )

    def _learn(self, segment: Segment) -> None:
        """What is not known of a segment that was found on disk until it grows again."""
        positions = segment.offsets.positions
        self._indexed_at = positions[-1] if positions else 0
        segment.largest_timestamp(0)
        segment.first_timestamp = next(segment.headers())[1].max_timestamp

    def _set_roll_limits(self, segment: Segment) -> None:
        self._roll_offset = segment.base_offset + MAX_RELATIVE_OFFSET
        segment_ms = self.config.segment_ms
        if self._rules.compacted:
            # What lies in the active segment is not compacted, however old it grows.
            segment_ms = min(segment_ms, self.config.max_compaction_lag_ms)
        jitter = min(self.config.segment_jitter_ms, segment_ms)
        if jitter > 0:
            # Spread over the partitions, but the same for a segment whenever it is asked.
            name = f"{self.directory}/{segment.base_offset}"
            jitter = crc32c(name.encode()) % jitter
        # Without timestamps in the records their age cannot be told from them: see `roll_if_old`.
        started = segment.first_timestamp
        self._roll_timestamp = started + segment_ms - jitter if started >= 0 else MAX_OFFSET

    def _roll(self, now_ms: int) -> Segment:
        """Seal the active segment and begin the next at the end of the log."""
        sealed = self._active
        base_offset = self.end_offset
        if self.recovery_point == base_offset:
            # Recovery passes over a segment that ends before the recovery point, so its indexes
            # must be on the disk before it is seen to end there.
            sealed.sync_indexes()
        segment = Segment.create(self.disk, self.directory, base_offset, self.files, now_ms)
        sealed.limit_offset = base_offset
        try:
            sealed.flush_indexes()
            self.write_snapshot()
        except DiskFailed as failure:
            # Both can be made again from the batches.
            _log.warning("%s", failure)
        self.segments.append(segment)
        self.bases.append(base_offset)
        self.settled_at = -1
        self.name_changes += 1
        self._activate()
        return segment

    def roll(self, now_ms: int) -> None:
        """Begin a new segment, unless the active one is empty."""
        if self._active.size:
            self._roll(now_ms)

    def roll_if_old(self, now_ms: int) -> None:
        """Roll a segment whose records have no timestamps once it is `segment.ms` old."""
        segment = self._active
        age_ms = now_ms - segment.created_ms
        if segment.size and segment.first_timestamp == -1 and age_ms > self.config.segment_ms:
            self._roll(now_ms)

    def write_snapshot(self) -> None:
        """Store the state of the producers as of the end of the log."""
        name = file_name(self.end_offset, SNAPSHOT)
        self.disk.create(f"{self.directory}/{name}").append(self.producers.encode())

    # ---- durability

    def unsynced(self) -> tuple[list[Segment], list[str]]:
        """The sealed segments that the disk may not have completely, and the paths of all files
        that may hold something it does not have."""
        sealed: list[Segment] = []
        paths: list[str] = []
        for segment in self.segments[self.segment_index(self.recovery_point) :]:
            if segment is not self._active:
                sealed.append(segment)
                segment.flush_indexes()
                paths += segment.index_paths()
                snapshot = f"{self.directory}/{file_name(segment.limit_offset, SNAPSHOT)}"
                if self.disk.exists(snapshot):
                    paths.append(snapshot)
            paths.append(segment.path(LOG))
        return sealed, paths

    def flush(self) -> None:
        """Force everything to disk; afterwards the recovery point is the end of the log."""
        end_offset = self.end_offset
        try:
            sealed, paths = self.unsynced()
            for path in paths:
                self.disk.open(path).sync()
            epochs = self.epochs
            epochs.save(self.disk, self.directory, epochs.version, epochs.encode())
            if self.names_synced < self.name_changes:
                self.sync_names()
        except DiskFailed as failure:
            self.fail(failure)
            raise
        self.flushed(end_offset, sealed, self.name_changes)

    def sync_names(self) -> None:
        """Force to disk which files there are; may be called in any thread."""
        self.disk.sync_directory(self.directory)
        self.disk.sync_directory("")

    def flushed(self, end_offset: int, sealed: list[Segment], name_changes: int) -> None:
        """Everything before `end_offset` has been forced to disk, with the indexes of `sealed`."""
        for segment in sealed:
            segment.is_indexed_on_disk = True
        self.names_synced = max(self.names_synced, name_changes)
        number = self.segment_index(end_offset)
        if number and self.bases[number] == end_offset:
            # It was sealed meanwhile, and its indexes are still to come.
            end_offset -= not self.segments[number - 1].is_indexed_on_disk
        if end_offset > self.recovery_point:
            self.recovery_point = min(end_offset, self.end_offset)
        self.flush_at = self._next_flush()

    def close(self) -> None:
        """Leave the log so that it can be opened again without looking at its batches."""
        if self.failure is None and (self.settled_at != self.end_offset or self.epochs.dirty):
            self._active.sync_indexes()
            self.write_snapshot()
            self.name_changes += 1
            self.flush()
        for segment in self.segments:
            self.files.forget(segment)

    # ---- dropping

    def start_at(self, offset: int) -> None:
        """Serve nothing before `offset` any more."""
        if offset > self.start_offset:
            self.start_offset = offset
            self.epochs.truncate_from_start(offset)

    def drop_segments(self, count: int) -> list[Segment]:
        """Take the oldest `count` segments out of the log; their files are still there."""
        assert count < len(self.segments), "the active segment stays"
        dropped = self.segments[:count]
        del self.segments[:count], self.bases[:count]
        self.forget(dropped)
        self.start_at(self.bases[0])
        return dropped

    def replace_segments(self, old: list[Segment], new: Segment) -> None:
        """Put a compacted segment in the place of those it was made from."""
        first = self.segments.index(old[0])
        assert self.segments[first : first + len(old)] == old
        new.limit_offset = old[-1].limit_offset
        new.index_interval_bytes = self._index_interval
        self.segments[first : first + len(old)] = [new]
        self.bases[first : first + len(old)] = [new.base_offset]
        self.forget(old)

    def forget(self, segments: list[Segment]) -> None:
        self.hints.clear()
        self.settled_at = -1
        for segment in segments:
            self.files.forget(segment)

    def truncate_to(self, offset: int, now_ms: int = 0) -> int:
        """Drop the batches that reach `offset` or lie behind it; returns the new end offset."""
        return truncation.truncate(self, offset, now_ms)

    def restart_at(self, offset: int, now_ms: int = 0) -> int:
        """Drop everything and begin again, empty, at `offset`."""
        return truncation.restart(self, offset, now_ms)

    def drop_empty_epochs(self) -> None:
        """Forget epochs in which this broker led and wrote nothing."""
        self.epochs.truncate_from_end(self.end_offset)
        self._epoch = self.epochs.latest

    def truncated(self, end_offset: int, transactions: PartitionTransactions) -> None:
        """The files have been cut: go on from there."""
        self.truncations += 1
        self.name_changes += 1
        self.end_offset = end_offset
        self.transactions = transactions
        self.producers = transactions.producers
        self.start_offset = min(self.start_offset, end_offset)
        self.recovery_point = min(self.recovery_point, end_offset)
        self.cleaned_offset = min(self.cleaned_offset, end_offset)
        self.drop_empty_epochs()
        self._activate()
        self.flush_at = self._next_flush()
