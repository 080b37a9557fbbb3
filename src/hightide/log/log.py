"""One partition's log: append at the end, read from any offset.

Batches are stored as producers send them. `Log.append` checks the header and the CRC, stamps base
offset and leader epoch in place, and writes the bytes with a single call. Nothing is buffered, so
a batch that `append` returned for survives the death of the process.

A read is only planned here: it names the bytes of a file, and the connection sends them. The files
are in `segments`. A log belongs to one thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from struct import Struct
from typing import TypeVar, TypeVarTuple

from hightide.core.partition.producer_state import ProducerStates
from hightide.core.transactions.aborted_index import AbortedTransaction
from hightide.core.transactions.open_transactions import PartitionTransactions
from hightide.core.transactions.transaction import Producer
from hightide.core.transactions.verification import VerificationGuard
from hightide.log import batch_validation as validation
from hightide.log import truncation
from hightide.log.batch_validation import PLAIN_ATTRIBUTES, PLAIN_TRANSACTIONAL, refusal
from hightide.log.damage import Damage
from hightide.log.disk import Disk, DiskFailed
from hightide.log.index import MAX_RELATIVE_OFFSET
from hightide.log.leader_epochs import LeaderEpochs
from hightide.log.producer_snapshots import follow, recall_batches
from hightide.log.segment import MAX_OFFSET, UNKNOWN, OpenFiles, Segment, Slice
from hightide.log.segments import LogParts, Segments, TimestampedRecord, roll_timestamp
from hightide.log.timestamp_search import find_timestamp
from hightide.settings import Topic
from hightide.wire.batch import HEADER, HEADER_BYTES, LOG_OVERHEAD, BatchHeader, read_header
from hightide.wire.crc import crc32c
from hightide.wire.errors import Corrupt, ErrorCode, KafkaError
from hightide.wire.record_walk import walk

_log = logging.getLogger(__name__)

_unpack_header = HEADER.unpack_from
_stamp = Struct(">qii").pack_into
_most_records = validation.max_record_count
_NEWEST_EPOCH = 2**31 - 1
_HINTS_KEPT = 128

Arguments = TypeVarTuple("Arguments")
Value = TypeVar("Value")


class Log:
    """The records of one partition."""

    # Slots keep an empty log small and its attributes, which every append compares with, fast.
    # fmt: off
    __slots__ = (
        "_after_max_ms", "_checks_times", "_epoch", "_index_interval", "_indexed_at",
        "_max_bytes", "_roll_offset", "_roll_timestamp", "_segment_bytes", "_walks",
        "active_segment", "cleaned_offset", "config", "damage", "directory", "disk", "end_offset",
        "epochs", "failure", "flush_at", "flushed_ms", "high_watermark", "hints",
        "is_uncleanable", "offsets_lowered", "on_disk_failure", "partition", "producers",
        "recovery_point", "recovery_point_written", "refusal", "rules", "segments",
        "start_offset", "tombstones_due_ms", "topic", "transactions", "truncations",
    )
    # fmt: on

    def __init__(
        self,
        disk: Disk,
        topic: str,
        partition: int,
        config: Topic,
        files: OpenFiles,
        parts: LogParts,
        damage: Damage | None = None,
    ) -> None:
        self.disk = disk
        self.topic = topic
        self.partition = partition
        self.directory = f"{topic}-{partition}"
        self.segments = Segments(disk, self.directory, parts.segments, files, parts.settled_at)
        self.start_offset = parts.start_offset
        self.end_offset = parts.end_offset
        self.recovery_point = parts.recovery_point
        self.epochs = parts.epochs
        self.transactions = parts.transactions
        self.producers = parts.transactions.producers
        # Set by the replica that owns the log. None: every record in the log is committed.
        self.high_watermark: int | None = None
        self.recovery_point_written = 0  # the one in the checkpoint file is at least this
        # Called when the recovery point or the start offset goes back, before the next write.
        self.offsets_lowered: Callable[[], None] = lambda: None
        # Called when the disk refused an append because it is full, and when the log has failed.
        self.on_disk_failure: Callable[[Log, KafkaError], None] = lambda _log, _failure: None
        self.failure: KafkaError | None = None  # of every read and append
        self.refusal: KafkaError | None = None  # of every append
        self.cleaned_offset = 0  # where compaction continues
        self.tombstones_due_ms = MAX_OFFSET
        self.is_uncleanable = False
        self.flushed_ms = 0  # the time of the last flush, for `flush.ms`
        self.truncations = 0  # a job that began before one notices it by this count
        self.damage = damage or Damage()
        self._epoch = self.epochs.latest
        self.hints = self.segments.hints
        self.active_segment = self.segments[-1]
        self._indexed_at = self._roll_offset = 0
        self.reconfigure(config)
        self._activate(self.segments.activate())

    def __repr__(self) -> str:
        return f"Log({self.directory}, {self.start_offset}..{self.end_offset})"

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
        """Create an empty log in an existing directory."""
        segment = Segment.create(disk, f"{topic}-{partition}", start_offset, files, now_ms)
        transactions = PartitionTransactions(ProducerStates())
        at = start_offset
        parts = LogParts([segment], at, at, at, LeaderEpochs(), transactions)
        return cls(disk, topic, partition, config, files, parts)

    def reconfigure(self, config: Topic) -> None:
        """Apply the topic's settings."""
        self.config = config
        self.rules = rules = validation.ValidationRules.of(config)
        self._max_bytes = min(config.max_message_bytes, config.segment_bytes)
        self._segment_bytes = config.segment_bytes
        self._after_max_ms = rules.after_max_ms
        self._index_interval = config.index_interval_bytes
        self._walks = rules.validates or rules.compacted
        self._checks_times = rules.append_time or rules.before_max_ms < 1 << 62
        self.flush_at = self._next_flush()
        self.segments.set_index_interval(config.index_interval_bytes)
        self.damage.configured(self)
        self._roll_timestamp = -1

    @property
    def size_bytes(self) -> int:
        return self.segments.size_bytes

    @property
    def committed_offset(self) -> int:
        """The high watermark. Only records before it may be deleted by retention or compacted."""
        return self.end_offset if self.high_watermark is None else self.high_watermark

    @property
    def last_stable_offset(self) -> int:
        """The offset before which every transaction is decided, by a marker that is committed."""
        high_watermark, transactions = self.committed_offset, self.transactions
        if transactions.are_all_decided:
            return high_watermark
        transactions.high_watermark_moved(high_watermark)
        return max(transactions.last_stable_offset(high_watermark), self.start_offset)

    def fail(self, failure: KafkaError) -> None:
        """Take the log offline: refuse every later append and read with `failure`."""
        _log.error("the log %s/%s is offline: %s", self.disk.name, self.directory, failure)
        self.failure = self.refusal = failure
        self.hints.clear()
        self.on_disk_failure(self, failure)

    def disk_failed(self, failure: DiskFailed) -> None:
        """Take the log offline, unless the disk is only full and nothing has changed."""
        if failure.harmless:
            self.on_disk_failure(self, failure)
        elif failure.is_of_disk and self.failure is None:
            self.fail(failure)

    def set_full(self, failure: KafkaError | None) -> None:
        """Refuse appends with `failure`, and serve reads; None: accept appends again."""
        self.refusal = self.failure or failure
        self.reconfigure(self.config)

    def _refused(self) -> KafkaError:
        # A new exception each time: raising the same one again grows its traceback.
        assert self.refusal is not None
        return KafkaError(self.refusal.code, self.refusal.detail)

    # ---- append

    # One long function: a call costs as much as all the checks, and this is the hottest code of
    # the broker. What a plain batch does not need is in `batch_validation`.
    def append(
        self,
        buf: bytearray,
        view: memoryview,
        start: int,
        end: int,
        leader_epoch: int,
        now_ms: int,
        guard: VerificationGuard | None = None,
        checked: validation.CheckedBatch | None = None,
    ) -> tuple[int, int, int]:
        """Write the one batch in buf[start:end]; `view` is a memoryview of `buf`.

        `guard` shows that the transaction coordinator has verified the batch's transaction.
        `checked` is the batch with its records checked, and is written instead. Without it the
        records are checked here; raise NotInline if that takes long.

        Return the base offset, the offset after the batch, and its log append time or -1. For a
        batch that an idempotent producer repeats, return the offsets of the first append and write
        nothing. Raise KafkaError if the batch is refused; then nothing has changed.
        """
        if checked is not None:
            buf, view, start, end = checked.batch, memoryview(checked.batch), 0, len(checked.batch)
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
            lowest,
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
            or (count * 7 > size - HEADER_BYTES and count > _most_records(size, attributes))
        ):
            raise refusal(buf, start, end, self.config.max_message_bytes, self._segment_bytes)
        if crc32c(view[start + 21 : end]) != crc:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "the CRC of the batch does not match")

        if self.refusal is not None:
            raise self._refused()
        rules = self.rules
        if not (
            0 <= attributes <= PLAIN_ATTRIBUTES
            or (0x10 <= attributes <= PLAIN_TRANSACTIONAL and producer_id >= 0)
        ):
            validation.check_attributes(BatchHeader._make(_unpack_header(buf, start)), rules)
        highest = max_timestamp
        if checked is not None:
            _, lowest, highest, _ = checked
        elif attributes & 7 or rules.codec:
            if self._walks or rules.recompresses(attributes & 7):
                buf, lowest, highest, _ = validation.check_inline(buf, start, end, rules)
                view, start, end = memoryview(buf), 0, (size := len(buf))
        elif self._walks:
            if size > validation.INLINE_PLAIN_BYTES:
                raise validation.NotInline
            flaw, at, lowest, highest, without_key = walk(buf, start + 61, end, count, lowest)
            if flaw or without_key:
                validation.check_walk(flaw, at, without_key, rules)

        appended_at = -1
        if highest != max_timestamp or highest - now_ms > self._after_max_ms or self._checks_times:
            max_timestamp, appended_at = validation.settle_timestamps(
                buf, start, end, lowest, highest, rules, now_ms
            )
        if producer_id >= 0:
            if sequence < 0:
                raise KafkaError(ErrorCode.INVALID_RECORD, f"sequence {sequence} is negative")
            try:
                written = self.producers.check(producer_id, producer_epoch, sequence, count)
            except KafkaError:
                recall_batches(self.producers, self.segments, producer_id, producer_epoch)
                written = self.producers.check(producer_id, producer_epoch, sequence, count)
            if written is not None:
                appended_at = written.timestamp if self.rules.append_time else -1
                return written.base_offset, written.last_offset + 1, appended_at
            transactional = attributes & 0x10 != 0
            if transactional or self.transactions.opened:
                self.transactions.check(producer_id, producer_epoch, sequence, transactional, guard)

        base_offset = self.end_offset
        last_offset = base_offset + last_delta
        segment = self.active_segment
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
        _stamp(buf, start, base_offset, size - LOG_OVERHEAD, leader_epoch)
        try:
            file.append(view[start:end])
        except DiskFailed as failure:
            self.disk_failed(failure)
            raise
        # From here on the batch is in the log, even if a later step fails.
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
                transactional,
            )
            if transactional:
                self.transactions.appended(producer_id, base_offset)
        return base_offset, end_offset, appended_at

    def append_own(
        self,
        batch: bytearray,
        leader_epoch: int,
        now_ms: int,
        guard: VerificationGuard | None = None,
    ) -> tuple[int, int]:
        """Write a batch that the broker built; return its base offset and the offset after it.

        The batch has keys if the topic needs them. It may be part of a transaction, but has no
        sequence, since several brokers may write for one producer. Raise KafkaError if the batch is
        refused; then nothing has changed.
        """
        if self.refusal is not None:
            raise self._refused()
        size = len(batch)
        if size > self._max_bytes:
            raise refusal(batch, 0, size, self.config.max_message_bytes, self._segment_bytes)
        batch = validation.convert_own(batch, self.rules, now_ms)
        header = read_header(batch)
        if header.producer_id >= 0:
            self.producers.check_epoch(header.producer_id, header.producer_epoch)
            self.transactions.check(
                header.producer_id,
                header.producer_epoch,
                header.base_sequence,
                header.is_transactional,
                guard,
            )
        base_offset = self._write_own(batch, leader_epoch, now_ms)
        return base_offset, self.end_offset

    def append_marker(
        self,
        producer: Producer,
        coordinator_epoch: int,
        is_commit: bool,
        version: int,
        leader_epoch: int,
        now_ms: int,
    ) -> int | None:
        """Write a transaction marker; return its offset, or None if the log has it already.

        Raise KafkaError if the coordinator or the producer has been fenced; then nothing has
        changed.
        """
        if self.refusal is not None:
            raise self._refused()
        if not self.transactions.marker_asked(producer, coordinator_epoch, version):
            return None
        batch = validation.marker_batch(producer, coordinator_epoch, is_commit, self.rules, now_ms)
        return self._write_own(batch, leader_epoch, now_ms)

    def _write_own(self, batch: bytearray, leader_epoch: int, now_ms: int) -> int:
        """Write a batch that the broker built at the end of the log; return its base offset."""
        size = len(batch)
        _stamp(batch, 0, self.end_offset, size - LOG_OVERHEAD, leader_epoch)
        header = read_header(batch)
        max_timestamp, last_offset = header.max_timestamp, header.last_offset
        if (
            self.active_segment.size + size > self._segment_bytes
            or max_timestamp > self._roll_timestamp
            or last_offset > self._roll_offset
        ) and self._must_roll(size, max_timestamp, last_offset, now_ms):
            self._roll(now_ms)
        self._write_batches(memoryview(batch), [header], now_ms)
        return header.base_offset

    # ---- append as a follower

    def append_fetched(
        self, data: memoryview, now_ms: int, newest_epoch: int = _NEWEST_EPOCH
    ) -> int:
        """Write batches fetched from the leader unchanged; return the new log end offset.

        The leader assigned offsets and epochs; offsets are missing where it compacted. An
        incomplete batch at the end is ignored; the next fetch brings it again. Raise Corrupt for a
        batch that is damaged, has a newer epoch than the leader, or does not follow this log; the
        batches before it are written.
        """
        if self.refusal is not None:
            raise self._refused()
        at, end = 0, len(data)
        if self.end_offset == self.start_offset and end >= HEADER_BYTES:
            first = BatchHeader._make(_unpack_header(data, 0))
            if first.base_offset < self.end_offset <= first.last_offset:
                # The leader's log starts inside this batch, after a DeleteRecords. A follower
                # learns the log start offset from each response, and hides the records before it.
                self.restart_at(first.base_offset, now_ms)
        run: list[BatchHeader] = []
        run_at, end_offset, epoch = 0, self.end_offset, self._epoch
        damage: Corrupt | None = None
        while end - at >= HEADER_BYTES:
            header = BatchHeader._make(_unpack_header(data, at))
            size = header.size
            if size > end - at:
                break
            try:
                batch = data[at : at + size]
                validation.check_fetched_batch(batch, header, end_offset, epoch, newest_epoch)
            except Corrupt as error:
                damage = error
                break
            last_offset = header.last_offset
            if header.base_offset > end_offset:
                self.damage.gap_copied(self, header.base_offset)
            if (
                self.active_segment.size + at - run_at + size > self._segment_bytes
                or header.max_timestamp > self._roll_timestamp
                or last_offset > self._roll_offset
            ):
                self._write_batches(data[run_at:at], run, now_ms)
                run, run_at = [], at
                if self._must_roll(size, header.max_timestamp, last_offset, now_ms):
                    self._roll(now_ms)
            run.append(header)
            end_offset, epoch = last_offset + 1, header.leader_epoch
            at += size
        self._write_batches(data[run_at:at], run, now_ms)
        if damage is not None:
            raise damage
        return self.end_offset

    def _write_batches(self, data: memoryview, run: list[BatchHeader], now_ms: int) -> None:
        """Write complete batches to the active segment, which has room for them."""
        if not run:
            return
        segment = self.active_segment
        if segment.aborted is None and any(header.is_control for header in run):
            self.look_up(self.segments.aborted_index, segment, self.end_offset)
        file = segment.opened()
        position = file.size
        try:
            file.append(data)
        except DiskFailed as failure:
            self.disk_failed(failure)
            raise
        for header in run:
            self.end_offset = header.last_offset + 1
            if header.max_timestamp > segment.max_timestamp:
                segment.max_timestamp = header.max_timestamp
                segment.max_timestamp_offset = header.last_offset
            if position - self._indexed_at > self._index_interval:
                self._indexed_at = position
                segment.used = True
                segment.add_index_entry(header.last_offset, position)
                if segment.is_index_full(self.config.segment_index_bytes):
                    self._roll_offset = -1
            if header.leader_epoch != self._epoch:
                self._epoch = header.leader_epoch
                self.epochs.assign(header.leader_epoch, header.base_offset)
            if header.producer_id >= 0:
                ended = follow(self.transactions, header, segment, position, now_ms)
                if ended is not None:
                    segment.add_aborted(ended)
            position += header.size

    # ---- read

    def read(self, offset: int, max_bytes: int, end_offset: int) -> Slice | None:
        """Plan a fetch from `offset`: which bytes to send.

        The bytes are complete batches of one segment that end before `end_offset`. They are at
        most `max_bytes`, but at least one batch. Return None if there is no such batch yet. Raise
        OFFSET_OUT_OF_RANGE if the log does not hold `offset`.
        """
        if not self.start_offset <= offset <= self.end_offset or self.failure is not None:
            raise self.out_of_range(offset)
        if self.damage.refused:
            end_offset = self.damage.readable_end(offset, end_offset)
        if offset >= end_offset:
            return None
        hints = self.hints
        try:
            hint = hints.get(offset)
            if hint is None:
                segment, position = self.segments.locate(offset)
            else:
                segment, position = hint
            file = segment.file
            if file is None:
                file = segment.opened()
            end = file.size
            if position >= end and segment is not self.active_segment:
                segment, position = self.segments.locate(offset)
                file = segment.opened()
                end = file.size
            segment.used = True
            next_offset = -1
            if end_offset < self.end_offset and end_offset < segment.limit_offset:
                hint = hints.get(end_offset)
                if hint is not None and hint[0] is segment:
                    end = hint[1]
                else:
                    end = segment.locate(end_offset)
                next_offset = end_offset
            elif segment is self.active_segment:
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
            # The reader fetches from here next.
            if len(hints) >= _HINTS_KEPT:
                del hints[next(iter(hints))]
            hints[next_offset] = (segment, end)
        if next_offset < 0:
            next_offset = segment.limit_offset
        unchecked = segment if position < segment.trusted_from else None
        return Slice(file, position, end - position, next_offset, unchecked, offset)

    def out_of_range(self, offset: int) -> KafkaError:
        """Return the error for an offset that the log does not hold."""
        if self.failure is not None:
            return self._refused()
        offsets = f"{self.start_offset}..{self.end_offset}"
        return KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {offset} is not in {offsets}")

    def aborted_between(self, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """Return the aborted transactions with records in the range, in marker order."""
        active = self.active_segment
        if start_offset >= active.base_offset and active.aborted is not None and not active.aborted:
            return []  # the usual case, and every read_committed fetch asks
        find = self.segments.aborted_between
        return self.look_up(find, start_offset, end_offset, self.end_offset)

    def offset_for_timestamp(self, timestamp_ms: int | None) -> TimestampedRecord | None:
        """Return the first record that is not before `timestamp_ms`; None means the largest."""
        return self.look_up(find_timestamp, self, timestamp_ms)

    def look_up(self, find: Callable[[*Arguments], Value], *arguments: *Arguments) -> Value:
        if self.failure is not None:
            raise self._refused()
        try:
            return find(*arguments)
        except Corrupt as damage:
            raise self._damaged(damage) from damage

    def _damaged(self, damage: Corrupt) -> KafkaError:
        """Report a batch that cannot be read. The others can, so the log stays in service."""
        self.damage.suspect(self.segments, str(damage))
        return KafkaError(ErrorCode.CORRUPT_MESSAGE, str(damage))

    # ---- rolling

    def _activate(self, segment: Segment) -> Segment:
        """Make the last segment the one that appends go to."""
        self.active_segment = segment
        self._indexed_at = 0
        # With these the first append calls `_must_roll`, which sets the real limits.
        self._roll_timestamp = self._roll_offset = -1
        return segment

    def _must_roll(self, size: int, max_timestamp: int, last_offset: int, now_ms: int) -> bool:
        """Say whether a batch begins a new segment. Set the limits that `append` compares with."""
        segment = self.active_segment
        if segment.size == 0:
            segment.start_empty(segment.created_ms or now_ms)
            segment.first_timestamp = max_timestamp
        elif segment.first_timestamp == UNKNOWN:
            try:
                self._indexed_at = segment.load_for_append()
            except Corrupt as damage:
                self._damaged(damage)
                return True  # nothing is appended to a damaged segment
        self._roll_offset = segment.base_offset + MAX_RELATIVE_OFFSET
        self._roll_timestamp = roll_timestamp(segment, self.config)
        return segment.size > 0 and (
            segment.size + size > self._segment_bytes
            or self._roll_timestamp < max_timestamp
            or not segment.has_room_for(last_offset)
            or segment.is_index_full(self.config.segment_index_bytes)
        )

    def _roll(self, now_ms: int) -> Segment:
        """Seal the active segment and begin the next one at the end of the log."""
        end_offset, snapshot = self.end_offset, self.producers.encode()
        is_durable = self.recovery_point == end_offset
        try:
            return self._activate(self.segments.roll(end_offset, snapshot, is_durable, now_ms))
        except DiskFailed as failure:
            self.disk_failed(failure)
            raise

    def roll(self, now_ms: int) -> None:
        """Begin a new segment, unless the active one is empty."""
        if self.active_segment.size:
            self._roll(now_ms)

    # ---- flushing

    def _next_flush(self) -> int:
        """Return the end offset from which `flush.messages` needs a flush before the response."""
        return min(self.recovery_point + self.config.flush_messages, MAX_OFFSET)

    def flushed(self, end_offset: int, sealed: list[Segment], name_changes: int) -> None:
        """Everything before `end_offset` is on disk, with the indexes of the `sealed` segments."""
        durable = self.segments.synced(end_offset, sealed, name_changes)
        if durable > self.recovery_point:
            self.recovery_point = min(durable, self.end_offset)
        self.flush_at = self._next_flush()

    # ---- dropping and replacing segments

    def delete_records(self, before_offset: int) -> int:
        """Move the log start offset to `before_offset`; -1 means the high watermark.

        Return the log start offset. The next retention run drops the segments before it.
        """
        return truncation.delete_records(self, before_offset)

    def start_at(self, offset: int) -> None:
        """Move the log start offset up to `offset`."""
        if offset > self.start_offset:
            self.start_offset = offset
            self.epochs.truncate_from_start(offset)
            self.damage.kept(self)

    def drop_segments(self, count: int) -> list[Segment]:
        """Take the oldest `count` segments out of the log and return them. Their files stay."""
        dropped = self.segments.drop_oldest(count)
        self.start_at(self.segments.bases[0])
        return dropped

    # ---- truncation

    def truncate_to(self, offset: int, now_ms: int = 0) -> int:
        """Drop every batch that reaches `offset` or comes after it; return the new end offset."""
        return truncation.truncate(self, offset, now_ms)

    def restart_at(self, offset: int, now_ms: int = 0) -> int:
        """Drop everything and begin with an empty log at `offset`."""
        return truncation.restart(self, offset, now_ms)

    def truncated(self, end_offset: int, transactions: PartitionTransactions) -> None:
        """The files have been cut: continue from `end_offset`."""
        self.truncations += 1
        self.end_offset = end_offset
        self.transactions = transactions
        self.producers = transactions.producers
        self.start_offset = min(self.start_offset, end_offset)
        self.recovery_point = min(self.recovery_point, end_offset)
        self.cleaned_offset = min(self.cleaned_offset, end_offset)
        self.drop_empty_epochs()
        self._activate(self.segments.activate())
        self.damage.kept(self)
        self.flush_at = self._next_flush()

    def drop_empty_epochs(self) -> None:
        """Forget the epochs in which this broker was leader and wrote nothing."""
        self.epochs.truncate_from_end(self.end_offset)
        self._epoch = self.epochs.latest
