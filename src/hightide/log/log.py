"""One partition's log: a row of segments that grows at one end and is dropped from the other.

    start_offset                                            end_offset
        │   sealed segments (immutable)    │  active segment    │
        ▼──────────────┬───────────────────┬────────────────────▼
           .log .index │   .log .index     │  .log, appended to
                                  ▲ recovery_point: all before it is on the disk for certain

Batches are stored as they come: the header is checked, the CRC proved, base offset and leader epoch
stamped in place, and the bytes written with a single call. Nothing is buffered here, so what
`append` returned for survives the death of the process. A log belongs to one thread.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable
from struct import Struct
from typing import NamedTuple

from hightide.core.producer import ProducerStates
from hightide.log.disk import Disk, DiskFailed, File
from hightide.log.epochs import LeaderEpochs
from hightide.log.incoming import (
    PLAIN_ATTRIBUTES,
    Rules,
    check_attributes,
    check_keys,
    check_timestamps,
    count_limit,
    recompress,
    refusal,
    stamp_append_time,
)
from hightide.log.index import MAX_RELATIVE_OFFSET
from hightide.log.segment import (
    LOG,
    MAX_OFFSET,
    OFFSET_INDEX,
    SNAPSHOT,
    TIME_INDEX,
    UNKNOWN,
    OpenFiles,
    Segment,
    file_name,
)
from hightide.log.snapshots import newest_snapshot, remove_snapshots, replay
from hightide.settings import Topic
from hightide.wire.batch import HEADER, HEADER_BYTES, BatchHeader, records
from hightide.wire.crc import crc32c
from hightide.wire.errors import Corrupt, ErrorCode, KafkaError

_log = logging.getLogger(__name__)

_unpack_header = HEADER.unpack_from
_stamp = Struct(">qii").pack_into
_HINTS_KEPT = 128


class Slice(NamedTuple):
    """Bytes of a file to be sent. It keeps the file readable even if its segment is deleted."""

    file: File
    position: int
    length: int


class Timestamped(NamedTuple):
    """A record found by time."""

    timestamp: int
    offset: int
    leader_epoch: int


class Parts(NamedTuple):
    """What a log is put together from: by `recovery` from files, or empty by `Log.create`."""

    segments: list[Segment]
    start_offset: int
    end_offset: int
    recovery_point: int
    epochs: LeaderEpochs
    producers: ProducerStates
    settled_at: int = -1


class Log:
    """The records of one partition."""

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
        self.producers = parts.producers
        # Set by whoever replicates the partition. None: all that is written is committed.
        self.high_watermark: int | None = None
        # Called when the recovery point goes back, before anything else is written.
        self.recovery_point_lowered: Callable[[], None] = lambda: None
        self.failure: KafkaError | None = None
        # The end offset for which everything on disk is in order, as after a clean stop; else -1.
        self.settled_at = parts.settled_at
        self._names_synced = parts.settled_at >= 0
        self._epoch = self.epochs.latest
        self._bases = [segment.base_offset for segment in self.segments]
        self._hints: dict[int, tuple[Segment, int]] = {}
        self._active = self.segments[-1]
        self._indexed_at = 0
        self._roll_timestamp = -1
        self._roll_offset = -1
        self.reconfigure(config)
        self._activate()

    @classmethod
    def create(
        cls,
        disk: Disk,
        topic: str,
        partition: int,
        config: Topic,
        files: OpenFiles,
        now_ms: int,
        start_offset: int = 0,
    ) -> Log:
        """A new, empty log in a directory that exists."""
        segment = Segment.create(disk, f"{topic}-{partition}", start_offset, files, now_ms)
        parts = Parts(
            [segment], start_offset, start_offset, start_offset, LeaderEpochs(), ProducerStates()
        )
        return cls(disk, topic, partition, config, files, parts)

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
        self._flush_at = self._next_flush()
        for segment in self.segments:
            segment.index_interval_bytes = config.index_interval_bytes
        self._roll_timestamp = -1

    def _next_flush(self) -> int:
        return min(self.recovery_point + self.config.flush_messages, MAX_OFFSET)

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self.segments)

    @property
    def committed_offset(self) -> int:
        """Records before it will stay; only they may be dropped for age or be compacted."""
        return self.end_offset if self.high_watermark is None else self.high_watermark

    def fail(self, failure: KafkaError) -> None:
        """Take the log out of service: every later append and read is refused with this."""
        _log.error("the log %s/%s is offline: %s", self.disk.name, self.directory, failure)
        self.failure = failure
        self._needs_look = True
        self._hints.clear()

    # ---- append

    # One long function: a call costs as much as all the checks, and this is the hottest code
    # there is. Whatever a plain batch does not need is in `_look_again` and `incoming`.
    def append(
        self,
        buf: bytearray,
        view: memoryview,
        start: int,
        end: int,
        leader_epoch: int,
        now_ms: int,
    ) -> tuple[int, int, int]:
        """Write the one batch in buf[start:end]; `view` is a memoryview of `buf`.

        Returns its base offset, the offset behind it, and the time it was stamped with or -1. A
        batch that an idempotent producer repeats gives the offsets of the first time and writes
        nothing. KafkaError says why a batch is refused; then nothing has changed.
        """
        size = end - start
        if size < HEADER_BYTES:
            raise refusal(buf, start, end, self.config.max_message_bytes, self._segment_bytes)
        (
            base_offset,
            length,
            _,
            magic,
            crc,
            attributes,
            last_delta,
            _,
            max_timestamp,
            producer_id,
            producer_epoch,
            sequence,
            count,
        ) = _unpack_header(buf, start)
        if (
            length != size - 12
            or magic != 2
            or count != last_delta + 1
            or count < 1
            or size > self._max_bytes
            or base_offset
            or (count * 7 > size - HEADER_BYTES and count > count_limit(size, attributes))
        ):
            raise refusal(buf, start, end, self.config.max_message_bytes, self._segment_bytes)
        if crc32c(view[start + 21 : end]) != crc:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "the batch's CRC does not match its bytes")

        appended_at = -1
        if (
            self._needs_look
            or not 0 <= attributes <= PLAIN_ATTRIBUTES
            or max_timestamp - now_ms > self._after_max_ms
        ):
            buf, start, end, appended_at = self._look_again(buf, view, start, end, now_ms)
            view = memoryview(buf)
            size = end - start
            length = size - 12
            if appended_at >= 0:
                max_timestamp = appended_at
        if producer_id >= 0:
            if sequence < 0:
                raise KafkaError(ErrorCode.INVALID_RECORD, f"sequence {sequence} is negative")
            written = self.producers.check(producer_id, producer_epoch, sequence, count)
            if written is not None:
                appended_at = written.timestamp if self._rules.append_time else -1
                return written.base_offset, written.last_offset + 1, appended_at

        base_offset = self.end_offset
        last_offset = base_offset + last_delta
        segment = self._active
        file = segment.file
        if file is None:
            file = segment.opened()
        position = file.size
        if (
            position + size > self._segment_bytes
            or max_timestamp > self._roll_timestamp
            or last_offset > self._roll_offset
        ) and self._must_roll(size, max_timestamp, last_offset, now_ms):
            segment = self._roll(now_ms)
            file = segment.opened()
            position = 0
        _stamp(buf, start, base_offset, length, leader_epoch)
        try:
            file.append(view[start:end])
        except DiskFailed as failure:
            if not failure.harmless:
                self.fail(failure)
            raise
        # From here on the batch is in the log, whatever else happens.
        self.end_offset = end_offset = last_offset + 1
        if max_timestamp > segment.max_timestamp:
            segment.max_timestamp = max_timestamp
            segment.max_timestamp_offset = last_offset
        if position - self._indexed_at > self._index_interval:
            self._indexed_at = position
            segment.used = True
            segment.add_index_entry(last_offset, position)
            if segment.is_index_full(self.config.segment_index_bytes):
                self._roll_offset = -1
        if leader_epoch != self._epoch:
            self._epoch = leader_epoch
            if leader_epoch >= 0:
                self.epochs.assign(leader_epoch, base_offset)
        if producer_id >= 0:
            self.producers.appended(
                producer_id,
                producer_epoch,
                sequence,
                base_offset,
                last_offset,
                max_timestamp,
                now_ms,
                attributes & 0x10 != 0,
            )
        if end_offset >= self._flush_at:
            self.flush()
        return base_offset, end_offset, appended_at

    def _look_again(
        self, buf: bytearray, view: memoryview, start: int, end: int, now_ms: int
    ) -> tuple[bytearray, int, int, int]:
        """The checks and changes that only some batches and topics need.

        Returns the batch to store: buffer, start, end; and the time it was stamped with or -1.
        """
        if self.failure is not None:
            raise self.failure
        header = BatchHeader._make(_unpack_header(buf, start))
        rules = self._rules
        check_attributes(header, rules)
        check_timestamps(header, rules, now_ms)
        if rules.compacted:
            check_keys(view[start:end])
        if rules.codec is not None and rules.codec is not header.codec:
            buf = recompress(view[start:end], header, rules.codec, rules.level)
            start, end = 0, len(buf)
        if not rules.append_time:
            return buf, start, end, -1
        attributes = BatchHeader._make(_unpack_header(buf, start)).attributes
        stamp_append_time(buf, start, end, attributes, now_ms)
        return buf, start, end, now_ms

    # ---- segments

    def _activate(self) -> None:
        """Take the last segment as the one that grows."""
        self._active = segment = self.segments[-1]
        segment.limit_offset = MAX_OFFSET
        segment.index_interval_bytes = self._index_interval
        self._indexed_at = 0
        # The first append to it asks `_must_roll`, which then knows the numbers to compare with.
        self._roll_timestamp = -1
        self._roll_offset = -1

    def _must_roll(self, size: int, max_timestamp: int, last_offset: int, now_ms: int) -> bool:
        """Whether a batch begins a new segment. Sets the limits that `append` looks at."""
        segment = self._active
        if segment.size == 0:
            segment.first_timestamp = max_timestamp
            segment.created_ms = segment.created_ms or now_ms
            if segment.max_timestamp == UNKNOWN:
                segment.start_empty(segment.created_ms)
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
        jitter = min(self.config.segment_jitter_ms, self.config.segment_ms)
        if jitter > 0:
            # Spread over the partitions, but the same for a segment whenever it is asked.
            name = f"{self.directory}/{segment.base_offset}"
            jitter = crc32c(name.encode()) % jitter
        # Without timestamps in the records their age cannot be told from them: see `roll_if_old`.
        started = segment.first_timestamp
        self._roll_timestamp = (
            started + self.config.segment_ms - jitter if started >= 0 else MAX_OFFSET
        )

    def _roll(self, now_ms: int) -> Segment:
        """Seal the active segment and begin the next at the end of the log."""
        sealed = self._active
        base_offset = self.end_offset
        segment = Segment.create(self.disk, self.directory, base_offset, self.files, now_ms)
        sealed.limit_offset = base_offset
        try:
            sealed.flush_indexes()
            self.write_snapshot()
        except DiskFailed as failure:
            # Both can be made again from the batches.
            _log.warning("%s", failure)
        self.segments.append(segment)
        self._bases.append(base_offset)
        self._names_synced = False
        self._activate()
        return segment

    def roll(self, now_ms: int) -> None:
        """Begin a new segment, unless the active one is empty."""
        if self._active.size:
            self._roll(now_ms)

    def roll_if_old(self, now_ms: int) -> None:
        """Roll a segment whose records have no timestamps once it is `segment.ms` old."""
        segment = self._active
        if segment.size and segment.first_timestamp == -1:
            if now_ms - segment.created_ms > self.config.segment_ms:
                self._roll(now_ms)

    def write_snapshot(self) -> None:
        """Store the state of the producers as of the end of the log."""
        name = file_name(self.end_offset, SNAPSHOT)
        self.disk.create(f"{self.directory}/{name}").append(self.producers.encode())

    # ---- read

    def read(self, offset: int, max_bytes: int, end_offset: int) -> Slice | None:
        """Which bytes to send for a fetch from `offset`: whole batches of one segment, none at or
        behind `end_offset`, no more than `max_bytes` but one batch at least.

        None when there is nothing yet. OFFSET_OUT_OF_RANGE outside the log.
        """
        if not self.start_offset <= offset <= self.end_offset or self.failure is not None:
            raise self._out_of_range(offset)
        if offset >= end_offset:
            return None
        hints = self._hints
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
        next_offset = self.end_offset
        if end_offset < next_offset and end_offset < segment.limit_offset:
            end = self._position_of(segment, end_offset)
            next_offset = end_offset
        if end - position > max_bytes:
            end = segment.fit(position, max_bytes, end)
            next_offset = segment.offset_at(end) if end < file.size else segment.limit_offset
        elif segment is not self._active:
            next_offset = segment.limit_offset
        if end <= position:
            return None
        if next_offset not in hints:
            if len(hints) >= _HINTS_KEPT:
                del hints[next(iter(hints))]
            hints[next_offset] = (segment, end)
        return Slice(file, position, end - position)

    def _out_of_range(self, offset: int) -> KafkaError:
        if self.failure is not None:
            return self.failure
        return KafkaError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"offset {offset} is not in {self.start_offset}..{self.end_offset}",
        )

    def _segment_index(self, offset: int) -> int:
        """Number of the segment whose range holds `offset`."""
        return max(0, bisect_right(self._bases, offset) - 1)

    def _locate(self, offset: int) -> tuple[Segment, int]:
        """The batch that holds `offset`, or the next one if compaction has removed it."""
        try:
            for segment in self.segments[self._segment_index(offset) :]:
                position = segment.locate(offset)
                if position < segment.size:
                    break
        except Corrupt as damage:
            self.fail(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(damage)))
            raise self._out_of_range(offset) from damage
        return segment, position

    def _position_of(self, segment: Segment, offset: int) -> int:
        """Where batches that reach `offset` begin in a segment whose range holds it."""
        found = self._hints.get(offset)
        if found is not None and found[0] is segment:
            return found[1]
        return segment.locate(offset)

    # ---- by time

    def offset_for_timestamp(self, timestamp_ms: int) -> Timestamped | None:
        """The first record whose timestamp is at least `timestamp_ms`."""
        for segment in self.segments[self._segment_index(self.start_offset) :]:
            if not segment.size or self._latest_in(segment) < timestamp_ms:
                continue
            start = max(self.start_offset, segment.times.offset_before(timestamp_ms))
            for position, header in segment.headers(segment.locate(start)):
                if header.max_timestamp < timestamp_ms or header.last_offset < self.start_offset:
                    continue
                for record in records(segment.read_batch(position, header.size)):
                    if record.timestamp >= timestamp_ms and record.offset >= self.start_offset:
                        epoch = header.leader_epoch
                        return Timestamped(record.timestamp, record.offset, epoch)
        return None

    def max_timestamp(self) -> Timestamped | None:
        """The record with the largest timestamp, the first of them if there are several."""
        segments = [s for s in self.segments if s.size and s.limit_offset > self.start_offset]
        latest = max(map(self._latest_in, segments), default=-1)
        return self.offset_for_timestamp(latest) if latest >= 0 else None

    def _latest_in(self, segment: Segment) -> int:
        if segment.max_timestamp == UNKNOWN:
            segment.largest_timestamp(0)
        return segment.max_timestamp

    # ---- durability

    def unsynced(self) -> list[str]:
        """Paths of the files that may hold something the disk does not have yet."""
        paths = []
        for segment in self.segments[self._segment_index(self.recovery_point) :]:
            paths.append(segment.path(LOG))
            if segment is not self._active:
                paths += (segment.path(OFFSET_INDEX), segment.path(TIME_INDEX))
                paths.append(f"{self.directory}/{file_name(segment.limit_offset, SNAPSHOT)}")
        return paths

    def flush(self) -> None:
        """Force everything to disk; afterwards the recovery point is the end of the log."""
        end_offset = self.end_offset
        try:
            for path in self.unsynced():
                self.disk.open(path).sync()
            self.epochs.flush(self.disk, self.directory)
            if not self._names_synced:
                self.disk.sync_directory(self.directory)
                self._names_synced = True
        except DiskFailed as failure:
            self.fail(failure)
            raise
        self.flushed_to(end_offset)

    def flushed_to(self, offset: int) -> None:
        """Everything before `offset` has been forced to disk."""
        if offset > self.recovery_point:
            self.recovery_point = min(offset, self.end_offset)
        self._flush_at = self._next_flush()

    def close(self) -> None:
        """Leave the log so that it can be opened again without looking at its batches."""
        if self.failure is None and (self.settled_at != self.end_offset or self.epochs.dirty):
            active = self._active
            active.flush_indexes()
            self.write_snapshot()
            for suffix in (OFFSET_INDEX, TIME_INDEX):
                if self.disk.exists(active.path(suffix)):
                    self.disk.open(active.path(suffix)).sync()
            snapshot = f"{self.directory}/{file_name(self.end_offset, SNAPSHOT)}"
            self.disk.open(snapshot).sync()
            self._names_synced = False
            self.flush()
        for segment in self.segments:
            self.files.forget(segment)

    # ---- dropping records

    def delete_records(self, before_offset: int) -> int:
        """Make `before_offset` the start of the log, -1 meaning all that is committed.

        Returns the start. The segments before it go with the next retention.
        """
        if "delete" not in self.config.cleanup_policy:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION, "records of a compacted topic cannot be deleted"
            )
        if before_offset == -1:
            before_offset = self.committed_offset
        if before_offset > self.committed_offset or before_offset < 0:
            raise self._out_of_range(before_offset)
        self.start_at(before_offset)
        return self.start_offset

    def start_at(self, offset: int) -> None:
        """Serve nothing before `offset` any more."""
        if offset > self.start_offset:
            self.start_offset = offset
            self.epochs.truncate_from_start(offset)

    def drop_segments(self, count: int) -> list[Segment]:
        """Take the oldest `count` segments out of the log; their files are still there."""
        assert count < len(self.segments), "the active segment stays"
        dropped = self.segments[:count]
        del self.segments[:count], self._bases[:count]
        self._forget(dropped)
        self.start_at(self._bases[0])
        return dropped

    def replace_segments(self, old: list[Segment], new: Segment) -> None:
        """Put a compacted segment in the place of those it was made from."""
        first = self.segments.index(old[0])
        assert self.segments[first : first + len(old)] == old
        new.limit_offset = old[-1].limit_offset
        new.index_interval_bytes = self._index_interval
        self.segments[first : first + len(old)] = [new]
        self._bases[first : first + len(old)] = [new.base_offset]
        self._forget(old)

    def _forget(self, segments: list[Segment]) -> None:
        self._hints.clear()
        self.settled_at = -1
        for segment in segments:
            self.files.forget(segment)

    def truncate_to(self, offset: int, now_ms: int = 0) -> int:
        """Drop the batches that reach `offset` or lie behind it; returns the new end offset.

        The steps are in an order that a crash between any two of them leaves a log whose recovery
        ends at the same place or further back, never with records that were to go.
        """
        if offset >= self.end_offset:
            return self.end_offset
        if offset < self._bases[0]:
            return self.restart_at(offset, now_ms)
        if offset < self.recovery_point:
            self.recovery_point = offset
            self.recovery_point_lowered()
        if remove_snapshots(self.disk, self.directory, self.disk.list(self.directory), offset):
            self.disk.sync_directory(self.directory)
        kept = self._segment_index(offset) + 1
        self._remove_from(kept)
        segment = self.segments[-1]
        segment.truncate(segment.locate(offset), offset)
        self.end_offset = segment.next_offset()
        self._after_truncation(now_ms)
        return self.end_offset

    def restart_at(self, offset: int, now_ms: int) -> int:
        """Drop everything and begin again, empty, at `offset`."""
        self.recovery_point = min(self.recovery_point, offset)
        self.recovery_point_lowered()
        if remove_snapshots(self.disk, self.directory, self.disk.list(self.directory), -1):
            self.disk.sync_directory(self.directory)
        self._remove_from(0)
        segment = Segment.create(self.disk, self.directory, offset, self.files, now_ms)
        self.segments.append(segment)
        self._bases.append(offset)
        self.start_offset = self.end_offset = self.recovery_point = offset
        self._after_truncation(now_ms)
        return offset

    def _remove_from(self, kept: int) -> None:
        """Remove the files of all segments but the first `kept`, the newest first."""
        removed = self.segments[kept:]
        del self.segments[kept:], self._bases[kept:]
        self._forget(removed)
        for segment in reversed(removed):
            segment.remove_files()
        self.disk.sync_directory(self.directory)

    def _after_truncation(self, now_ms: int) -> None:
        self._hints.clear()
        self.settled_at = -1
        self.start_offset = min(self.start_offset, self.end_offset)
        self.recovery_point = min(self.recovery_point, self.end_offset)
        self.epochs.truncate_from_end(self.end_offset)
        self._epoch = self.epochs.latest
        self._activate()
        self._flush_at = self._next_flush()
        names = self.disk.list(self.directory)
        found = newest_snapshot(self.disk, self.directory, names, self.end_offset, now_ms)
        self.producers, since = found or (ProducerStates(), self.start_offset)
        replay(self.producers, self.segments, since, self.end_offset, now_ms)
