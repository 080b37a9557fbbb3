"""Log compaction, as Kafka's LogCleaner does it: for each key the latest record stays.

One round takes the sealed segments up to some offset. First it maps every key in the dirty part,
which is new since the last round, to its latest offset. Then it copies all segments from the start
of the log up to there without the superseded records, and merges small neighbours:

    ├──── clean ────┼──── dirty: mapped ────┼── not yet ──┼─ active ─┤
    └──────── copied without the superseded ────┘

Rules, batch by batch. Offsets never change. A record without a value is a tombstone: the first
round that sees it writes the delete horizon, `delete.retention.ms` from then, into its batch, and a
round after that time drops it. So a consumer that is not slower than that sees every deletion. The
last batch of each producer stays, empty if necessary, since its sequence numbers must survive a
restart. Records of aborted transactions are dropped. A transaction marker is dropped after the last
batch of its transaction, with the same delay as a tombstone.

The map holds a limited number of keys. If there are more, the round ends where the map was full,
and the next round continues there. New segments are written as .cleaned, renamed to .swap when all
their bytes are on disk, and then take the names of the old ones. A crash leaves the old segment or
the new one. The older part of the log is always swapped first, so no record outlives its tombstone.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from hashlib import blake2b
from itertools import chain
from typing import NamedTuple

from hightide.core.transactions.aborted_index import AbortedIndex, AbortedTransaction
from hightide.log.disk import Buffer, Disk, DiskFailed, File
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
from hightide.wire.batch import (
    HEADER_BYTES,
    LOG_OVERHEAD,
    BatchHeader,
    Record,
    build,
    check,
    read_header,
    records,
)
from hightide.wire.compression import Codec
from hightide.wire.control import ControlType, control_type
from hightide.wire.errors import Corrupt

DIGEST_BYTES = 16
BYTES_PER_KEY = 200
"""The memory that a key takes in the map: a dict entry, a bytes object and an int."""

_log = logging.getLogger(__name__)


# ---- planning a round


class Source(NamedTuple):
    """A segment to compact, with its size at the beginning of the round."""

    segment: Segment
    size: int

    @property
    def path(self) -> str:
        return self.segment.path(LOG)


class Round(NamedTuple):
    """The work of one compaction round."""

    sources: list[Source]
    following: list[Source]
    first_dirty_offset: int
    upper_offset: int
    ratio: float


def plan(log: Log, now_ms: int) -> Round | None:
    """Return the round that the log needs now, if any."""
    config = log.config
    if "compact" not in config.cleanup_policy or log.failure is not None or log.is_uncleanable:
        return None
    if log.damage or log.damage.suspects:
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
    """Return the end of what may be compacted: records in sealed segments that are committed,
    decided, on disk, and old enough.

    The written recovery point counts, because recovery takes a gap after it for lost records.
    """
    upper = min(log.active_segment.base_offset, log.last_stable_offset, log.recovery_point_written)
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
    """Say whether a record has waited longer than `max.compaction.lag.ms`."""
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
    """The job that compacts a log by one round. `run` may be called in any thread."""

    def __init__(
        self,
        log: Log,
        work: Round,
        now_ms: int,
        key_capacity: int,
        io_bytes: int,
        done: Callable[[list[str]], None],
    ) -> None:
        """`finish` calls `done` with the files to remove after `file.delete.delay.ms`."""
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
        self._rules = CompactionRules(
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
        """Group neighbours that together fit into one segment."""
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
        """Copy a group into one .cleaned segment and sync it."""
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
            # The next round would fail too, until the damage is repaired.
            _log.error("no more compaction of %s: %s", log.directory, self._failure)
            log.is_uncleanable = True
            log.damage.suspect(log.segments, str(self._failure))
        elif self._failure is not None:
            _log.error("the compaction of %s failed: %s", log.directory, self._failure)
        self._done(removable)

    def _still_fits(self) -> bool:
        """Say whether the log still begins with the segments that were copied."""
        log = self._log
        copied = [source.segment for result in self._results for source in result.sources]
        return (
            log.failure is None
            and log.truncations == self._truncations
            and log.segments[: len(copied)] == copied
        )

    def _swap(self, result: Result) -> list[str]:
        """Replace the sources by the new segment; return the old files, now marked as deleted."""
        log, disk = self._log, self._log.disk
        old = [source.segment for source in result.sources]
        new = Segment(disk, log.directory, old[0].base_offset, result.size, log.segments.files)
        new.max_timestamp = result.max_timestamp
        new.max_timestamp_offset = result.max_timestamp_offset
        new.created_ms = old[-1].created_ms
        new.is_indexed_on_disk = True
        _rename(disk, new, CLEANED, SWAP)
        disk.sync_directory(log.directory)
        log.segments.replace(old, new)
        left = []
        for segment in old:
            segment.rename_files("", DELETED)
            left += [segment.path(suffix + DELETED) for suffix in SUFFIXES]
        # Drop the snapshots of replaced segments, except the first.
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


# ---- batches


def fingerprint(key: bytes) -> bytes:
    """Return the form of a key in the map: the key if it is short, else a digest of it."""
    return key if len(key) < DIGEST_BYTES else blake2b(key, digest_size=DIGEST_BYTES).digest()


def read_batches(file: File, end: int, io_bytes: int) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Yield each batch before byte `end` after a check of its CRC. The view is valid until the
    next batch."""
    position = 0
    wanted = io_bytes
    while position < end:
        block = file.read(position, min(max(wanted, HEADER_BYTES), end - position))
        view = memoryview(block)
        at = 0
        wanted = io_bytes
        while len(block) - at >= HEADER_BYTES:
            size = LOG_OVERHEAD + read_header(block, at).batch_length
            if at + size > len(block) and position + at + size <= end:
                wanted = max(io_bytes, size)
                break
            header = check(view, at, len(block), stored=True)
            yield header, view[at : at + size]
            at += size
        if at == 0 and wanted <= len(block):
            raise Corrupt(f"{file.path} ends inside a batch at byte {position}")
        position += at


class Transactions:
    """The outcomes of the transactions in the part that is compacted.

    A batch of a transaction belongs to the next marker of its producer, so the first pass collects
    the markers. A marker stays as long as there is any batch of its transaction, even an empty
    one: without the marker that batch would begin a transaction without an end.
    """

    def __init__(self) -> None:
        self._markers: dict[int, list[tuple[int, bool]]] = {}
        self._open: dict[int, int] = {}
        # On the copying pass: the first offsets of transactions whose marker comes later.
        self._begun: dict[int, int] = {}

    @property
    def are_open(self) -> bool:
        """Whether a noted batch still has no marker."""
        return bool(self._open)

    def note(self, header: BatchHeader, batch: memoryview) -> None:
        """Note a batch on the first pass."""
        if header.is_control:
            kind = _marker_type(batch)
            if kind is not None:
                marker = (header.base_offset, kind == ControlType.ABORT)
                self._markers.setdefault(header.producer_id, []).append(marker)
                self._open.pop(header.producer_id, None)
        elif header.is_transactional:
            self._open[header.producer_id] = header.base_offset

    def is_aborted(self, header: BatchHeader) -> bool:
        """Say whether the batch belongs to an aborted transaction."""
        if not header.is_transactional or header.is_control:
            return False
        markers = self._markers.get(header.producer_id, [])
        i = bisect_left(markers, (header.last_offset, False))
        return i < len(markers) and markers[i][1]

    def copied_batch(self, header: BatchHeader) -> None:
        """Note a batch of records on the copying pass."""
        if header.is_transactional:
            self._begun.setdefault(header.producer_id, header.base_offset)

    def copied_marker(
        self, header: BatchHeader, batch: memoryview
    ) -> tuple[bool, AbortedTransaction | None]:
        """Note a control batch on the copying pass. Return whether no batch of its transaction is
        left, and otherwise the transaction if the marker aborts it."""
        kind = _marker_type(batch)
        if kind is None:
            return header.record_count == 0, None
        first_offset = self._begun.pop(header.producer_id, None)
        if first_offset is None:
            return True, None
        if kind is ControlType.COMMIT:
            return False, None
        offset = header.base_offset
        stable = next(iter(self._begun.values()), offset + 1)
        return False, AbortedTransaction(header.producer_id, first_offset, offset, stable)


def _marker_type(batch: memoryview) -> ControlType | None:
    for record in records(batch):
        kind = control_type(record)
        return ControlType(kind) if kind in (ControlType.ABORT, ControlType.COMMIT) else None
    return None


class KeyMap:
    """The latest offset of each key in the part of the log before `end_offset`."""

    def __init__(self, capacity: int, first_offset: int) -> None:
        self._capacity = capacity
        self._first_offset = first_offset
        self.latest: dict[bytes, int] = {}
        self.end_offset = first_offset

    @property
    def is_full(self) -> bool:
        return len(self.latest) >= self._capacity

    def add(self, header: BatchHeader, batch: memoryview, aborted: bool) -> None:
        """Add all keys of a batch, so that every round makes progress, even with a small map."""
        if header.last_offset < self._first_offset:
            return
        if not header.is_control and not aborted:
            latest = self.latest
            for record in records(batch):
                if record.key is not None and record.offset >= self._first_offset:
                    latest[fingerprint(record.key)] = record.offset
        self.end_offset = header.last_offset + 1


class CompactionRules(NamedTuple):
    """The input of a copying pass."""

    keys: KeyMap
    transactions: Transactions
    first_dirty_offset: int
    upper_offset: int
    last_batches: Mapping[int, tuple[int, int]]
    """Producer id → last data offset (-1 if none) and epoch."""
    now_ms: int
    delete_retention_ms: int


class Compacted(NamedTuple):
    """A batch for the new segment; `data` is None if the batch is dropped."""

    data: Buffer | None
    max_timestamp: int
    delete_horizon_ms: int | None
    changed: bool
    aborted: AbortedTransaction | None = None
    """The entry for the transaction index of the new segment."""


def compact(header: BatchHeader, batch: memoryview, rules: CompactionRules) -> Compacted:
    """Compact one batch."""
    horizon = header.delete_horizon_ms
    is_due = horizon is not None and horizon <= rules.now_ms
    aborted: AbortedTransaction | None = None
    if header.is_control:
        needless, aborted = rules.transactions.copied_marker(header, batch)
        kept = [] if needless and is_due else list(records(batch))
        wants_horizon = needless
    else:
        rules.transactions.copied_batch(header)
        kept = _kept_records(header, batch, rules, is_due)
        wants_horizon = any(record.value is None for record in kept)
    if not kept:
        return _emptied(header, rules)
    if wants_horizon and horizon is None:
        horizon = rules.now_ms + rules.delete_retention_ms
    elif len(kept) == header.record_count:
        return Compacted(batch, header.max_timestamp, horizon, False, aborted)
    data = _rebuilt(header, kept, horizon)
    return Compacted(data, read_header(data).max_timestamp, horizon, True, aborted)


def _kept_records(
    header: BatchHeader, batch: memoryview, rules: CompactionRules, tombstones_are_due: bool
) -> list[Record]:
    # Aborted records before the first dirty offset were dropped when they were dirty.
    if header.base_offset >= rules.first_dirty_offset and rules.transactions.is_aborted(header):
        return []
    latest = rules.keys.latest
    end_offset = rules.keys.end_offset
    kept = []
    for record in records(batch):
        if record.offset < end_offset:
            if record.key is None or record.offset < latest.get(fingerprint(record.key), -1):
                continue
            if record.value is None and tombstones_are_due:
                continue
        kept.append(record)
    return kept


def _emptied(header: BatchHeader, rules: CompactionRules) -> Compacted:
    """Drop a batch without records, unless its header is still needed."""
    last_offset, epoch = rules.last_batches.get(header.producer_id, (-1, -1))
    is_last_of_producer = header.producer_id >= 0 and (
        header.last_offset == last_offset
        if last_offset >= 0
        else header.is_control and header.producer_epoch == epoch
    )
    # The last batch of a round stays too: it marks the end of the compacted offsets.
    if not is_last_of_producer and header.last_offset + 1 != rules.upper_offset:
        return Compacted(None, -1, None, changed=True)
    return Compacted(
        _rebuilt(header, [], None), header.max_timestamp, None, header.record_count > 0
    )


def _rebuilt(header: BatchHeader, kept: list[Record], horizon: int | None) -> bytearray:
    keeps_timestamp = header.is_log_append_time or not kept
    return build(
        kept,
        base_offset=header.base_offset,
        last_offset=header.last_offset,
        codec=header.codec if kept else Codec.NONE,
        leader_epoch=header.leader_epoch,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        transactional=header.is_transactional,
        control=header.is_control,
        log_append_time=header.is_log_append_time,
        delete_horizon_ms=horizon,
        max_timestamp=header.max_timestamp if keeps_timestamp else None,
    )
