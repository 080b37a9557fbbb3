"""What compaction keeps: the rules, batch by batch, apart from segments and swaps.

For each key the latest record stays and older ones go; offsets never change. A record without a
value is a tombstone: the first round that meets it writes into its batch when it may go,
`delete.retention.ms` from then, and a round after that drops it, so that a reader who is not slower
than that sees every deletion. The last batch of each producer stays, empty if need be, since its
sequence numbers must survive a restart. Records of aborted transactions go, and a transaction's
marker goes after its last batch, with the same delay as a tombstone.

All of this runs in a thread of its own, on files that no longer change.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import NamedTuple

from hightide.core.transactions.aborted_index import Aborted
from hightide.log.disk import Buffer, File
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
"""What a key takes in the map: a dict's entry, a bytes object and a number."""


def fingerprint(key: bytes) -> bytes:
    """What stands for a key in the map: itself if it is short, else a digest of it."""
    return key if len(key) < DIGEST_BYTES else blake2b(key, digest_size=DIGEST_BYTES).digest()


def read_batches(file: File, end: int, io_bytes: int) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Each batch before byte `end`, proved by its CRC. The view is good until the next one."""
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
    """How the transactions in the part that is being compacted have ended.

    A batch of a transaction belongs to the next marker of its producer, so the markers are
    collected before anything is decided. A marker stays as long as there is any batch of its
    transaction, an empty one included: without it that batch would seem to begin a transaction that
    nobody ends.
    """

    def __init__(self) -> None:
        self._markers: dict[int, list[tuple[int, bool]]] = {}
        self._open: dict[int, int] = {}
        # On the copying pass: where the transactions begin whose markers are still to come.
        self._begun: dict[int, int] = {}

    @property
    def are_open(self) -> bool:
        """Whether a marker is still missing for some batch that was noted."""
        return bool(self._open)

    def note(self, header: BatchHeader, batch: memoryview) -> None:
        """Look at a batch on the first pass."""
        if header.is_control:
            kind = _marker_type(batch)
            if kind is not None:
                marker = (header.base_offset, kind == ControlType.ABORT)
                self._markers.setdefault(header.producer_id, []).append(marker)
                self._open.pop(header.producer_id, None)
        elif header.is_transactional:
            self._open[header.producer_id] = header.base_offset

    def is_aborted(self, header: BatchHeader) -> bool:
        """Whether the batch belongs to a transaction that was aborted."""
        if not header.is_transactional or header.is_control:
            return False
        markers = self._markers.get(header.producer_id, [])
        i = bisect_left(markers, (header.last_offset, False))
        return i < len(markers) and markers[i][1]

    def met(self, header: BatchHeader) -> None:
        """A batch of records is met on the copying pass."""
        if header.is_transactional:
            self._begun.setdefault(header.producer_id, header.base_offset)

    def ended(self, header: BatchHeader, batch: memoryview) -> tuple[bool, Aborted | None]:
        """A control batch is met on the copying pass: whether there is nothing left that it speaks
        of, and else the transaction that it aborts, if it does."""
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
        return False, Aborted(header.producer_id, first_offset, offset, stable)


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
        """Take a whole batch in, so that every round gets on, even with little room."""
        if header.last_offset < self._first_offset:
            return
        if not header.is_control and not aborted:
            latest = self.latest
            for record in records(batch):
                if record.key is not None and record.offset >= self._first_offset:
                    latest[fingerprint(record.key)] = record.offset
        self.end_offset = header.last_offset + 1


class Rules(NamedTuple):
    """What a copying pass goes by."""

    keys: KeyMap
    transactions: Transactions
    first_dirty_offset: int
    upper_offset: int
    last_batches: Mapping[int, tuple[int, int]]
    """Producer id → last data offset (-1 if none) and epoch."""
    now_ms: int
    delete_retention_ms: int


class Compacted(NamedTuple):
    """A batch as it goes into the new segment; `data` is None if nothing is left of it."""

    data: Buffer | None
    max_timestamp: int
    delete_horizon_ms: int | None
    changed: bool
    aborted: Aborted | None = None
    """What the index of the new segment is to say of a marker."""


def compact(header: BatchHeader, batch: memoryview, rules: Rules) -> Compacted:
    """What is left of one batch."""
    horizon = header.delete_horizon_ms
    is_due = horizon is not None and horizon <= rules.now_ms
    aborted: Aborted | None = None
    if header.is_control:
        needless, aborted = rules.transactions.ended(header, batch)
        kept = [] if needless and is_due else list(records(batch))
        wants_horizon = needless
    else:
        rules.transactions.met(header)
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
    header: BatchHeader, batch: memoryview, rules: Rules, tombstones_are_due: bool
) -> list[Record]:
    # Aborted records before the first dirty offset went when that part was first compacted.
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


def _emptied(header: BatchHeader, rules: Rules) -> Compacted:
    """A batch that has lost all records: gone, or kept for what its header says."""
    last_offset, epoch = rules.last_batches.get(header.producer_id, (-1, -1))
    is_last_of_producer = header.producer_id >= 0 and (
        header.last_offset == last_offset
        if last_offset >= 0
        else header.is_control and header.producer_epoch == epoch
    )
    # The last batch of a round stays too, so that the end of the offsets it covers is known.
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
