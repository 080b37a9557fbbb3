"""Loading a log from the files of its partition, after a clean shutdown or a crash.

After a clean shutdown nothing is checked: the log end offset comes from the last index entry, and
the producer state from its snapshot. After a crash every segment from the recovery point on is
read, and the CRC of every batch is checked. The first batch that is damaged, incomplete or out of
order ends the log: this batch and all after it were never forced to disk, so they are the torn tail
of the last writes. Indexes, leader epochs and producer state are rebuilt from the batches.

Damage before the recovery point is different. Those records were on disk, so their loss is a fault
of the disk that must not go unnoticed: nothing is truncated. The damaged file is set aside, the
intact batches stay, and the offsets in between are refused until another replica has sent them
(`damage`, `repair`). The same holds for files that are lost or cut, which `start_check` finds, also
after a clean shutdown.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from struct import Struct
from typing import NamedTuple

from hightide.core.events import Event, Severity, partition_name
from hightide.core.partition.producer_state import ProducerStates
from hightide.core.transactions.open_transactions import PartitionTransactions
from hightide.event_log import record
from hightide.log.damage import Damage, Extent, aside_name, load_damage
from hightide.log.disk import Disk, DiskFailed, File
from hightide.log.index import MAX_RELATIVE_OFFSET
from hightide.log.leader_epochs import LeaderEpochs
from hightide.log.log import Log
from hightide.log.producer_snapshots import (
    follow,
    newest_snapshot,
    recall_ended,
    remove_snapshots,
    replay,
    snapshot_offsets,
)
from hightide.log.repair import (
    holes_of,
    install_parts,
    intact_parts,
    report_damage,
    write_parts,
)
from hightide.log.segment import (
    CLEANED,
    DELETED,
    LOG,
    MAX_OFFSET,
    SNAPSHOT,
    SUFFIXES,
    SWAP,
    TRANSACTION_INDEX,
    UNKNOWN,
    OpenFiles,
    Segment,
    file_name,
)
from hightide.log.segments import LogParts
from hightide.log.start_check import (
    DamagedSegment,
    StartCheck,
    begin_lost_start,
    check_epochs,
    continue_after_lost_end,
    damage_of,
)
from hightide.settings import Topic
from hightide.wire.batch import HEADER_BYTES, LOG_OVERHEAD, MAGIC, BatchHeader, read_header
from hightide.wire.crc import crc32c
from hightide.wire.errors import Corrupt

READ_BYTES = 4 * 1024 * 1024

_MIN_LENGTH = HEADER_BYTES - LOG_OVERHEAD
# The header fields that recovery needs: base offset, length, leader epoch, magic, CRC, last offset
# delta, largest timestamp, producer id.
_unpack = Struct(">qiibI2xi8xqq").unpack_from

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LogRecovered(Event):
    """A log was checked after a crash, from its recovery point on."""

    topic: str
    partition: int
    recovery_point: int
    end_offset: int
    cut_bytes: int
    """Bytes at the end that were no whole record batches, or not after the others."""
    took_ms: int

    @property
    def level(self) -> Severity:
        return Severity.WARNING if self.cut_bytes else Severity.DEBUG

    def __str__(self) -> str:
        cut = f", {self.cut_bytes} bytes behind it were cut off" if self.cut_bytes else ""
        return (
            f"{partition_name(self.topic, self.partition)}: recovered from offset"
            f" {min(self.recovery_point, self.end_offset)} to {self.end_offset}{cut}"
            f" ({self.took_ms} ms)"
        )


class CheckpointedState(NamedTuple):
    """The state of one partition in the checkpoints of its log directory."""

    clean: bool
    recovery_point: int
    start_offset: int
    # Without a checkpoint any offset may be missing because of compaction.
    allows_gaps: bool = False
    high_watermark: int = 0
    cleaned_offset: int = 0


def load(
    disk: Disk,
    topic: str,
    partition: int,
    config: Topic,
    files: OpenFiles,
    checkpointed: CheckpointedState,
    now_ms: int,
) -> Log:
    """Load the log in the directory of a partition. Set aside what is damaged."""
    # Several threads load logs, so each log has its own `OpenFiles` until it is loaded.
    own_files = OpenFiles(16)
    directory = f"{topic}-{partition}"
    damage = load_damage(disk, directory, checkpointed.cleaned_offset)
    loading = Loading(disk, directory, config, checkpointed, damage, own_files, now_ms)
    while True:
        try:
            parts = loading.parts()
            break
        except DamagedSegment as found:
            # Each round sets the damage of one segment aside, and loads what is left.
            _isolate(found, damage, own_files, now_ms)
    if not checkpointed.clean and parts.end_offset < checkpointed.start_offset:
        parts = _restart(disk, directory, parts, own_files, checkpointed.start_offset, now_ms)
    damage.save(disk, directory)
    _recall_ended(disk, parts, checkpointed.high_watermark)
    if not any(name.endswith(TRANSACTION_INDEX) for name in loading.names):
        _start_transaction_indexes(parts)
    for segment in parts.segments:
        own_files.forget(segment)
        segment.drop_indexes()
        segment.files = files
    log = Log(disk, topic, partition, config, files, parts, damage)
    log.cleaned_offset = checkpointed.cleaned_offset
    log.reconfigure(config)
    return log


def _isolate(found: DamagedSegment, damage: Damage, files: OpenFiles, now_ms: int) -> None:
    segment = found.segment
    parts = intact_parts(segment, found.damaged)
    aside = aside_name(segment.directory, now_ms)
    files.forget(segment)
    write_parts(segment, parts)
    damage.isolated(segment, holes_of(found.damaged))
    damage.save(segment.disk, segment.directory)
    install_parts(segment, parts, aside, files)
    report_damage(segment.disk, segment.directory, found.damaged, aside)


class Loading:
    """One log as its files are found."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        config: Topic,
        checkpointed: CheckpointedState,
        damage: Damage,
        files: OpenFiles,
        now_ms: int,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._config = config
        self._checkpointed = checkpointed
        self._damage = damage
        self._files = files
        self._now_ms = now_ms
        self.names: dict[str, int] = {}

    def parts(self) -> LogParts:
        """Load the log; raise DamagedSegment if damaged bytes must be set aside first."""
        checkpointed, disk, directory = self._checkpointed, self._disk, self._directory
        self.names = names = finish_interrupted_work(disk, directory)
        segments = self._segments()
        epochs = LeaderEpochs.load(disk, directory)
        safe_before = MAX_OFFSET if checkpointed.clean else checkpointed.recovery_point
        check_epochs(segments, epochs, checkpointed.start_offset, safe_before)
        StartCheck(
            segments,
            self._damage,
            epochs.entries,
            checkpointed.recovery_point,
            checkpointed.clean,
        ).run()
        if checkpointed.clean:
            self._check_ends(segments, epochs)
            parts = _load_clean(
                disk, directory, names, segments, epochs, checkpointed, self._now_ms
            )
            if parts is not None:
                return parts
        recovery = Recovery(
            disk, directory, segments, epochs, checkpointed, self._damage, self._now_ms
        )
        began_s = time.monotonic()
        recovery.run()
        topic, _, partition = directory.rpartition("-")
        took_ms = int((time.monotonic() - began_s) * 1000)
        offsets = (checkpointed.recovery_point, recovery.end_offset)
        record(_log, LogRecovered(topic, int(partition), *offsets, recovery.cut_bytes, took_ms))
        return recovery.parts()

    def _segments(self) -> list[Segment]:
        checkpointed = self._checkpointed
        # Only a crash can leave gaps before the start offset. Otherwise retention drops segments.
        first_offset = 0 if checkpointed.clean else checkpointed.start_offset
        segments = find_segments(self._disk, self._directory, self.names, self._files, first_offset)
        if not segments:
            start, files = checkpointed.start_offset, self._files
            segments = [Segment.create(self._disk, self._directory, start, files, self._now_ms)]
        if "compact" in self._config.cleanup_policy or checkpointed.allows_gaps:
            gaps_before = MAX_OFFSET
        else:
            gaps_before = max(self._damage.gaps_before, checkpointed.cleaned_offset)
        for segment in segments:
            segment.gaps_before = gaps_before
            segment.index_interval_bytes = self._config.index_interval_bytes
            segment.is_indexed_on_disk = (
                checkpointed.clean or segment.limit_offset <= checkpointed.recovery_point
            )
        return segments

    def _check_ends(self, segments: list[Segment], epochs: LeaderEpochs) -> None:
        """Compare the two ends of the log with the traces that a clean shutdown leaves."""
        snapshots = snapshot_offsets(self.names)
        last_snapshot = snapshots[-1] if snapshots else 0
        last = segments[-1]
        try:
            end_offset = last.next_offset()
        except Corrupt:
            end_offset = -1
        if end_offset != last_snapshot:
            # The shutdown that wrote the last snapshot saw another end than the files have now.
            is_short = last_snapshot > max(end_offset, last.base_offset)
            limit = last_snapshot if is_short else MAX_OFFSET
            least_end = self._checkpointed.recovery_point
            damaged = damage_of(last, limit, epochs.entries, MAX_OFFSET, least_end)
            if any(found.position < found.end for found in damaged):
                raise DamagedSegment(last, damaged)
            continue_after_lost_end(segments, self._damage, last_snapshot, self._now_ms)
        start_offset = self._checkpointed.start_offset
        begin_lost_start(segments, self._damage, epochs.entries, start_offset, self._now_ms)


def _restart(
    disk: Disk, directory: str, parts: LogParts, files: OpenFiles, start_offset: int, now_ms: int
) -> LogParts:
    """Begin with an empty log at the start offset. The records before it were deleted, and the
    records after it never reached the disk. An offset is never assigned twice."""
    for segment in reversed(parts.segments):
        files.forget(segment)
        segment.remove_files()
    disk.sync_directory(directory)
    segment = Segment.create(disk, directory, start_offset, files, now_ms)
    epochs = parts.epochs
    epochs.truncate_from_end(0)
    transactions = PartitionTransactions(ProducerStates())
    return LogParts([segment], start_offset, start_offset, start_offset, epochs, transactions)


def _recall_ended(disk: Disk, parts: LogParts, high_watermark: int) -> None:
    committed = max(high_watermark, parts.start_offset)
    try:
        recall_ended(parts.transactions, disk, parts.segments, committed, parts.end_offset)
    except Corrupt as damage:
        # Reads of this batch report the damage too.
        _log.warning("%s/%s: %s", disk.name, parts.segments[0].directory, damage)


def _start_transaction_indexes(parts: LogParts) -> None:
    """Create empty transaction indexes for a log in which no segment has one.

    Apache Kafka wrote the log, which has such a file only where a transaction was aborted. A
    rebuild from the batches would take long and find nothing, unless some producer is known to
    have ended a transaction.
    """
    if any(state.coordinator_epoch >= 0 for _, state in parts.transactions.producers):
        return
    for segment in parts.segments:
        if segment.aborted is None:
            segment.start_aborted()
        try:
            segment.flush_indexes()
        except DiskFailed as failure:
            _log.warning("%s", failure)


def finish_interrupted_work(disk: Disk, directory: str) -> dict[str, int]:
    """Finish or undo work that a crash interrupted, as Kafka does; return the files that remain.

    Files marked as deleted are removed. A compacted segment that was not completely written
    (.cleaned) is removed. One that was (.swap) is installed: the segments it replaces are removed,
    then it takes their names.
    """
    names = disk.list(directory)
    leftover = [n for n in names if n.endswith((DELETED, CLEANED, SWAP, ".tmp"))]
    if not leftover:
        return names
    cleaned = [int(n[:20]) for n in leftover if n.endswith(CLEANED) and n[:20].isdecimal()]
    swaps = {int(n[:20]) for n in leftover if n.endswith(LOG + SWAP)}
    swaps = {base for base in swaps if base < min(cleaned, default=MAX_OFFSET)}
    for name in leftover:
        if not name.endswith(SWAP) or int(name[:20]) not in swaps:
            disk.remove(f"{directory}/{name}")
    for base in sorted(swaps):
        end = _end_of_swap(disk, directory, base)
        for name in disk.list(directory):
            if name.endswith(SUFFIXES) and base <= int(name[:20]) < end:
                disk.remove(f"{directory}/{name}")
        disk.sync_directory(directory)
        for suffix in reversed(SUFFIXES):
            path = f"{directory}/{file_name(base, suffix)}"
            if disk.exists(path + SWAP):
                disk.rename(path + SWAP, path)
    disk.sync_directory(directory)
    return disk.list(directory)


def _end_of_swap(disk: Disk, directory: str, base_offset: int) -> int:
    """Return the offset after the last batch of a .swap file. It was synced before its rename."""
    segment = Segment(disk, directory, base_offset, 0, OpenFiles(1))
    segment.file = disk.open(segment.path(LOG + SWAP))
    end = base_offset + 1
    for _, header in segment.headers():
        end = header.last_offset + 1
    return end


def find_segments(
    disk: Disk, directory: str, names: dict[str, int], files: OpenFiles, start_offset: int
) -> list[Segment]:
    """Return the segments of a directory in order. Remove files that belong to no segment, also
    from `names`, and segments that end before the log start offset."""
    bases = sorted(int(n[:20]) for n in names if n.endswith(LOG) and n[:20].isdecimal())
    bases = bases[max(0, bisect_right(bases, start_offset) - 1) :]
    segments = [
        Segment(disk, directory, base, names[file_name(base, LOG)], files) for base in bases
    ]
    for segment, following in pairwise(segments):
        segment.limit_offset = following.base_offset
    known = {f"{base:020d}" for base in bases}
    for name in names:
        if name.endswith(SUFFIXES) and name[:20].isdecimal() and name[:20] not in known:
            _log.warning(
                "removing %s/%s/%s, which belongs to no segment", disk.name, directory, name
            )
            disk.remove(f"{directory}/{name}")
    # A snapshot belongs to the segment that begins at its offset, or to the end of the log.
    for offset in snapshot_offsets(names):
        if bases and offset < bases[-1] and f"{offset:020d}" not in known:
            disk.remove(f"{directory}/{file_name(offset, SNAPSHOT)}")
            del names[file_name(offset, SNAPSHOT)]
    return segments


def _load_clean(
    disk: Disk,
    directory: str,
    names: dict[str, int],
    segments: list[Segment],
    epochs: LeaderEpochs,
    checkpointed: CheckpointedState,
    now_ms: int,
) -> LogParts | None:
    """Load the log as a clean shutdown left it; return None if its files do not look like that."""
    last = segments[-1]
    try:
        end_offset = last.next_offset()
    except Corrupt as damage:
        _log.warning(
            "recovering %s/%s in spite of a clean shutdown: %s", disk.name, directory, damage
        )
        return None
    start_offset = max(checkpointed.start_offset, segments[0].base_offset)
    begin = max(epochs.entries[0][1] if epochs.entries else start_offset, segments[0].base_offset)
    if begin < start_offset:
        # The first leader epoch begins at the log start, so one of the two files is damaged.
        _log.warning(
            "%s/%s starts at offset %d by its leader epochs, not at %d: keeping all records",
            disk.name,
            directory,
            begin,
            start_offset,
        )
        start_offset = begin
    if start_offset > end_offset:
        # A clean shutdown does not write such a checkpoint, so the checkpoint is wrong.
        _log.warning(
            "%s/%s ends at offset %d, before the checkpointed log start offset %d: ignoring the"
            " checkpoint",
            disk.name,
            directory,
            end_offset,
            start_offset,
        )
        start_offset = segments[0].base_offset
    found = newest_snapshot(disk, directory, names, end_offset, now_ms)
    producers, since = found or (ProducerStates(), segments[0].base_offset)
    transactions = PartitionTransactions(producers)
    replay(transactions, segments, since, end_offset, now_ms)
    epochs.truncate_from_end(end_offset)
    epochs.truncate_from_start(start_offset)
    settled = end_offset if since == end_offset and found else -1
    return LogParts(segments, start_offset, end_offset, end_offset, epochs, transactions, settled)


class Recovery:
    """The recovery of one log after a crash."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        segments: list[Segment],
        epochs: LeaderEpochs,
        checkpointed: CheckpointedState,
        damage: Damage,
        now_ms: int,
    ) -> None:
        self.disk = disk
        self.directory = directory
        self.segments = segments
        self.damage = damage
        self.epochs = epochs
        # Complete before the recovery point; the later epochs are in the batches.
        self.known = epochs.entries
        self.checkpointed = checkpointed
        self.now_ms = now_ms
        self.transactions = PartitionTransactions(ProducerStates())
        self.end_offset = segments[0].base_offset
        self.cut_bytes = 0

    def run(self) -> None:
        """Check, truncate, rebuild. Raise DamagedSegment if records before the recovery point are
        damaged; then nothing is truncated."""
        segments = self.segments
        recovery_point = self.checkpointed.recovery_point
        first = 0
        while first + 1 < len(segments) and segments[first].limit_offset <= recovery_point:
            first += 1
        since = self._load_producers(segments[first].base_offset)
        self.epochs.truncate_from_end(segments[first].base_offset)
        self.end_offset = segments[first].base_offset
        largest = max(segment.size for segment in segments[first:])
        buffer = bytearray(min(READ_BYTES, largest))
        for number in range(first, len(segments)):
            segment = segments[number]
            checked = self._check(segment, buffer, since)
            self.end_offset = checked.end_offset
            damage = checked.damage
            is_last = number + 1 == len(segments)
            if damage is None and not is_last and not self.checkpointed.allows_gaps:
                damage = _gap(segment, checked.end_offset)
            if damage is not None and self.end_offset < recovery_point:
                limit = MAX_OFFSET if is_last else segment.limit_offset
                damaged = damage_of(segment, limit, self.known, recovery_point, recovery_point)
                damaged = [found for found in damaged if found.start_offset < recovery_point]
                if any(found.position < found.end for found in damaged):
                    raise DamagedSegment(segment, damaged)
            elif damage is not None:
                self._cut(number, checked.size, damage)
                break
        if self.end_offset < recovery_point:
            continue_after_lost_end(segments, self.damage, recovery_point, self.now_ms)
            self.end_offset = recovery_point
        names = self.disk.list(self.directory)
        if remove_snapshots(self.disk, self.directory, names, self.end_offset):
            self.disk.sync_directory(self.directory)

    def _load_producers(self, offset: int) -> int:
        """Load the producer state at `offset`; return the offset from which batches are applied."""
        names = self.disk.list(self.directory)
        found = newest_snapshot(self.disk, self.directory, names, offset, self.now_ms)
        producers, since = found or (ProducerStates(), self.segments[0].base_offset)
        self.transactions.restored(producers)
        replay(self.transactions, self.segments, since, offset, self.now_ms)
        return max(since, offset)

    def _cut(self, number: int, size: int, damage: str) -> None:
        """Truncate the log after `size` bytes of a segment."""
        segment = self.segments[number]
        _log.warning(
            "truncating %s/%s at offset %d: %s",
            self.disk.name,
            self.directory,
            self.end_offset,
            damage,
        )
        self.cut_bytes = segment.size - size
        for later in reversed(self.segments[number + 1 :]):
            self.cut_bytes += later.size
            later.files.forget(later)
            later.remove_files()
        del self.segments[number + 1 :]
        segment.cut(size)
        segment.limit_offset = MAX_OFFSET
        self.disk.sync_directory(self.directory)

    def _check(self, segment: Segment, buffer: bytearray, since: int) -> SegmentCheck:
        def visit(position: int, header: BatchHeader) -> None:
            if header.leader_epoch > self.epochs.latest:
                self.epochs.assign(header.leader_epoch, header.base_offset)
            if header.producer_id >= 0 and header.base_offset >= since:
                aborted = follow(self.transactions, header, segment, position, self.now_ms)
                if aborted is not None:
                    segment.add_aborted(aborted)

        extent = Extent(
            segment.base_offset,
            segment.limit_offset,
            segment.size,
            segment.gaps_before,
            self.known,
            self.checkpointed.recovery_point,
        )
        return check_segment(segment, buffer, extent, visit)

    def parts(self) -> LogParts:
        start = min(
            max(self.checkpointed.start_offset, self.segments[0].base_offset), self.end_offset
        )
        self.epochs.truncate_from_end(self.end_offset)
        self.epochs.truncate_from_start(start)
        recovery_point = min(self.checkpointed.recovery_point, self.end_offset)
        return LogParts(
            self.segments, start, self.end_offset, recovery_point, self.epochs, self.transactions
        )


def _gap(segment: Segment, end_offset: int) -> str | None:
    """Describe the gap after a segment, if there is one.

    Compaction never changes records after the written recovery point. There each segment must end
    where the next one begins, or where a known hole begins; otherwise its last batches never
    reached the disk.
    """
    if end_offset == segment.limit_offset:
        return None
    return f"{segment.path(LOG)} ends at offset {end_offset}, not at {segment.limit_offset}"


class SegmentCheck(NamedTuple):
    """The intact part of a segment, and the damage after it."""

    size: int
    end_offset: int
    damage: str | None


# One long function: it runs for every batch of gigabytes, and a call per batch would double its
# time for small batches. `visit` is called only for batches that change state.
def check_segment(
    segment: Segment,
    buffer: bytearray,
    extent: Extent,
    visit: Callable[[int, BatchHeader], None],
) -> SegmentCheck:
    """Check each batch of a segment and rebuild its indexes.

    `visit` gets the batches with a producer id and those that begin a new leader epoch. Where
    compaction has not been, no offset may be missing.
    """
    file = segment.opened()
    end = file.size
    segment.start_empty(segment.created_ms)
    segment.start_aborted()
    segment.clear_index_files()
    interval = segment.index_interval_bytes
    base = segment.base_offset
    expected = base
    gaps_before = segment.gaps_before
    limit = min(base + MAX_RELATIVE_OFFSET, segment.limit_offset - 1)
    view = memoryview(buffer)
    position = indexed_at = 0
    epoch = epoch_end = -1
    damage: str | None = None
    max_timestamp = -1
    while position < end and damage is None:
        filled = file.read_into(view[: end - position], position)
        at = 0
        while filled - at >= HEADER_BYTES:
            offset, length, leader_epoch, magic, crc, delta, timestamp, producer = _unpack(
                buffer, at
            )
            after = at + LOG_OVERHEAD + length
            if magic != MAGIC or length < _MIN_LENGTH:
                damage = "there is no record batch"
                break
            if after > filled:
                break
            if crc32c(view[at + 21 : after]) != crc:
                damage = "the CRC of the record batch does not match"
                break
            last_offset = offset + delta
            if (
                (offset != expected and not expected < offset <= gaps_before)
                or delta < 0
                or last_offset > limit
            ):
                damage = f"offsets {offset} to {last_offset} do not follow {expected - 1}"
                break
            if leader_epoch != epoch or offset >= epoch_end:
                known, epoch_end = extent.epoch_at(offset), extent.epoch_end(offset)
                if leader_epoch != known and (leader_epoch < epoch or known >= 0):
                    damage = f"leader epoch {leader_epoch} does not follow {epoch}"
                    break
            if timestamp > max_timestamp:
                segment.max_timestamp = max_timestamp = timestamp
                segment.max_timestamp_offset = last_offset
            if position + at - indexed_at > interval:
                indexed_at = position + at
                segment.add_index_entry(last_offset, indexed_at)
            if leader_epoch > epoch or producer >= 0:
                epoch = max(epoch, leader_epoch)
                visit(position + at, read_header(buffer, at))
            expected = last_offset + 1
            at = after
        position += at
        if at == 0 and damage is None:
            size = _claimed_size(file, position)
            if not len(buffer) < size <= end - position:
                damage = "the file ends inside a batch"
            else:
                view.release()
                buffer.extend(bytes(size - len(buffer)))
                view = memoryview(buffer)
    segment.first_timestamp = UNKNOWN
    try:
        segment.flush_indexes()
    except DiskFailed as failure:
        # A full disk must not prevent the log from opening. The indexes stay in memory.
        _log.warning("%s", failure)
    if damage is not None:
        damage = f"at byte {position} of {file.path}: {damage}"
    return SegmentCheck(position, expected, damage)


def _claimed_size(file: File, position: int) -> int:
    head = file.read(position, LOG_OVERHEAD)
    if len(head) < LOG_OVERHEAD:
        return HEADER_BYTES
    return LOG_OVERHEAD + int.from_bytes(head[8:12], "big", signed=True)
