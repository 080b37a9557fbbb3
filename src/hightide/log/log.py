"""One partition's log: batches in at one end, batches out from anywhere.

Batches are stored as they come: the header is checked, the CRC proved, base offset and leader epoch
stamped in place, and the bytes written with a single call. Nothing is buffered here, so what
`append` returned for survives the death of the process.

Reading is in `reading`, the files below are in `segments`. A log belongs to one thread.
"""

from __future__ import annotations

from struct import Struct

from hightide.core.partition.producer_state import ProducerStates, Written
from hightide.core.transactions.open_transactions import PartitionTransactions
from hightide.core.transactions.transaction import Producer
from hightide.core.transactions.verification import Guard
from hightide.log import aborted_transactions
from hightide.log.batch_validation import (
    PLAIN_ATTRIBUTES,
    PLAIN_TRANSACTIONAL,
    check_attributes,
    check_copy,
    check_keys,
    check_timestamps,
    count_limit,
    recompress,
    refusal,
    stamp_append_time,
)
from hightide.log.disk import Disk, DiskFailed
from hightide.log.leader_epochs import LeaderEpochs
from hightide.log.producer_snapshots import batches_before, follow
from hightide.log.reading import ReadableLog, Slice
from hightide.log.segment import OpenFiles, Segment
from hightide.log.segments import Parts
from hightide.settings import Topic
from hightide.wire.batch import (
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD,
    BatchHeader,
    read_header,
)
from hightide.wire.control import ControlType, Marker, build_marker
from hightide.wire.crc import crc32c
from hightide.wire.errors import Corrupt, ErrorCode, KafkaError

__all__ = ["Log", "Slice"]

_unpack_header = HEADER.unpack_from
_stamp = Struct(">qii").pack_into
_NEWEST_EPOCH = 2**31 - 1


class Log(ReadableLog):
    """The records of one partition."""

    __slots__ = ()

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
        transactions = PartitionTransactions(ProducerStates())
        parts = Parts(
            [segment], start_offset, start_offset, start_offset, LeaderEpochs(), transactions
        )
        return cls(disk, topic, partition, config, files, parts)

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
        guard: Guard | None = None,
    ) -> tuple[int, int, int]:
        """Write the one batch in buf[start:end]; `view` is a memoryview of `buf`.

        `guard` says that the coordinator was asked whether the batch belongs to a transaction.

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
            or not (
                0 <= attributes <= PLAIN_ATTRIBUTES
                or (0x10 <= attributes <= PLAIN_TRANSACTIONAL and producer_id >= 0)
            )
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
            try:
                written = self.producers.check(producer_id, producer_epoch, sequence, count)
            except KafkaError:
                written = self._check_again(producer_id, producer_epoch, sequence, count)
            if written is not None:
                appended_at = written.timestamp if self._rules.append_time else -1
                return written.base_offset, written.last_offset + 1, appended_at
            transactional = attributes & 0x10 != 0
            if transactional or self.transactions.opened:
                self.transactions.check(producer_id, producer_epoch, sequence, transactional, guard)

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
                transactional,
            )
            if transactional:
                self.transactions.appended(producer_id, base_offset)
        return base_offset, end_offset, appended_at

    def append_own(
        self, batch: bytearray, leader_epoch: int, now_ms: int, guard: Guard | None = None
    ) -> tuple[int, int]:
        """Write a batch that the broker has made; its base offset and the offset behind it.

        It has keys if the topic needs them. It may be part of a transaction, and has no sequence:
        who writes for a producer may come from several brokers. KafkaError says why it is refused;
        then nothing has changed.
        """
        if self.failure is not None:
            raise self._refused()
        size = len(batch)
        if size > self._max_bytes:
            raise refusal(batch, 0, size, self.config.max_message_bytes, self._segment_bytes)
        if self._rules.codec is not None or self._rules.append_time:
            batch, _, _, _ = self._look_again(batch, memoryview(batch), 0, size, now_ms)
        header = self._stamped(batch, leader_epoch)
        if header.producer_id >= 0:
            self.producers.check_epoch(header.producer_id, header.producer_epoch)
            self.transactions.check(
                header.producer_id,
                header.producer_epoch,
                header.base_sequence,
                header.is_transactional,
                guard,
            )
        self._write(batch, header, now_ms)
        return header.base_offset, self.end_offset

    def append_marker(
        self,
        producer: Producer,
        coordinator_epoch: int,
        is_commit: bool,
        version: int,
        leader_epoch: int,
        now_ms: int,
    ) -> int | None:
        """Write the end of a transaction; its offset, or None if it is there already.

        KafkaError when whoever sends it has been replaced; then nothing has changed.
        """
        if self.failure is not None:
            raise self._refused()
        if not self.transactions.marker_asked(producer, coordinator_epoch, version):
            return None
        kind = ControlType.COMMIT if is_commit else ControlType.ABORT
        batch = build_marker(
            Marker(kind, coordinator_epoch),
            timestamp=now_ms,
            producer_id=producer.id,
            producer_epoch=producer.epoch,
        )
        if self._rules.append_time:
            stamp_append_time(batch, 0, len(batch), read_header(batch).attributes, now_ms)
        header = self._stamped(batch, leader_epoch)
        self._write(batch, header, now_ms)
        return header.base_offset

    def _stamped(self, batch: bytearray, leader_epoch: int) -> BatchHeader:
        """The header of a batch of the broker's own, with its place at the end of the log."""
        _stamp(batch, 0, self.end_offset, len(batch) - LOG_OVERHEAD, leader_epoch)
        return BatchHeader._make(_unpack_header(batch))

    def _write(self, batch: bytearray, header: BatchHeader, now_ms: int) -> None:
        size = len(batch)
        max_timestamp, last_offset = header.max_timestamp, header.last_offset
        if (
            self._active.size + size > self._segment_bytes
            or max_timestamp > self._roll_timestamp
            or last_offset > self._roll_offset
        ) and self._must_roll(size, max_timestamp, last_offset, now_ms):
            self._roll(now_ms)
        self._write_batches(memoryview(batch), [header], now_ms)

    # ---- copy

    def append_fetched(
        self, data: memoryview, now_ms: int, newest_epoch: int = _NEWEST_EPOCH
    ) -> int:
        """Write the batches that the leader sent, as they are; the new end of the log.

        Offsets and epochs were given by the leader; offsets may be missing where it compacted. A
        batch that is cut off at the end is left for the next time. Corrupt, with everything before
        it written, for a batch that is damaged, is newer than the leader's own epoch, or does not
        follow this log.
        """
        if self.failure is not None:
            raise self._refused()
        at, end = 0, len(data)
        if self.end_offset == self.start_offset and end >= HEADER_BYTES:
            self._begin_with(BatchHeader._make(_unpack_header(data, 0)), now_ms)
        run: list[BatchHeader] = []
        run_at, end_offset, epoch = 0, self.end_offset, self._epoch
        damage: Corrupt | None = None
        while end - at >= HEADER_BYTES:
            header = BatchHeader._make(_unpack_header(data, at))
            size = header.size
            if size > end - at:
                break
            try:
                check_copy(data[at : at + size], header, end_offset, epoch, newest_epoch)
            except Corrupt as found:
                damage = found
                break
            last_offset = header.last_offset
            if (
                self._active.size + at - run_at + size > self._segment_bytes
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

    def _begin_with(self, header: BatchHeader, now_ms: int) -> None:
        """Let an empty log begin where its first batch does.

        The leader's log starts within that batch if records were deleted up to there. Who copies
        it learns the start with every answer, and hides what is before.
        """
        if header.base_offset < self.end_offset <= header.last_offset:
            self.restart_at(header.base_offset, now_ms)

    def _write_batches(self, data: memoryview, run: list[BatchHeader], now_ms: int) -> None:
        """Write whole batches to the active segment, which has room for them."""
        if not run:
            return
        segment = self._active
        if segment.aborted is None and any(header.is_control for header in run):
            self._looked_up(lambda: aborted_transactions.index_of(self, segment))
        file = segment.opened()
        position = file.size
        try:
            file.append(data)
        except DiskFailed as failure:
            if not failure.harmless:
                self.fail(failure)
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

    def _check_again(
        self, producer_id: int, producer_epoch: int, sequence: int, count: int
    ) -> Written | None:
        """A sequence that is out of order may repeat a batch that a snapshot had no room for."""
        state = self.producers.get(producer_id)
        if state is not None and state.is_partial and producer_epoch == state.epoch:
            before = state.batches[0].base_offset
            earlier = batches_before(self.segments, producer_id, producer_epoch, before)
            self.producers.recall(producer_id, earlier)
        return self.producers.check(producer_id, producer_epoch, sequence, count)

    def _look_again(
        self, buf: bytearray, view: memoryview, start: int, end: int, now_ms: int
    ) -> tuple[bytearray, int, int, int]:
        """The checks and changes that only some batches and topics need.

        Returns the batch to store: buffer, start, end; and the time it was stamped with or -1.
        """
        if self.failure is not None:
            raise self._refused()
        header = BatchHeader._make(_unpack_header(buf, start))
        rules = self._rules
        check_attributes(header, rules)
        check_timestamps(header, rules, now_ms)
        if rules.compacted:
            check_keys(view[start:end])
        if rules.codec is not None and rules.codec is not header.codec:
            buf = recompress(view[start:end], header, rules.codec, rules.level)
            start, end = 0, len(buf)
            if end > self._max_bytes:
                raise refusal(buf, 0, end, self.config.max_message_bytes, self._segment_bytes)
        if not rules.append_time:
            return buf, start, end, -1
        attributes = BatchHeader._make(_unpack_header(buf, start)).attributes
        stamp_append_time(buf, start, end, attributes, now_ms)
        return buf, start, end, now_ms

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
