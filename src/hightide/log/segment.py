"""One segment: a file of batches, with its offset index, time index and transaction index.

A log is a sequence of segments; only the last one grows. A segment's file is opened on first use
and closed when many others have been used since (`OpenFiles`). So a broker with thousands of
segments starts without opening them, and stays within its limit of file descriptors. The indexes
of a sealed segment are loaded and dropped with its file.

Every position that this module returns is the beginning of a batch or the end of the file.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from hightide.core.transactions.aborted_index import AbortedIndex, AbortedTransaction
from hightide.log.disk import Disk, File
from hightide.log.index import MAX_RELATIVE_OFFSET, OFFSET_ENTRY_BYTES, OffsetIndex, TimeIndex
from hightide.wire.batch import HEADER, HEADER_BYTES, LOG_OVERHEAD, MAGIC, BatchHeader
from hightide.wire.errors import Corrupt

LOG, OFFSET_INDEX, TIME_INDEX, TRANSACTION_INDEX = ".log", ".index", ".timeindex", ".txnindex"
SNAPSHOT = ".snapshot"
DELETED, CLEANED, SWAP = ".deleted", ".cleaned", ".swap"
SUFFIXES = (LOG, OFFSET_INDEX, TIME_INDEX, TRANSACTION_INDEX)

MAX_OFFSET = (1 << 63) - 1
UNKNOWN = -2
"""A timestamp that has not been looked up yet; -1 is Kafka's "no timestamp"."""

_log = logging.getLogger(__name__)

# Base offset, length, magic and last offset delta: enough to step from batch to batch.
_STEP = Struct(">qi4xb6xi")
_step = _STEP.unpack_from
_STEP_BYTES = _STEP.size
_MIN_LENGTH = HEADER_BYTES - LOG_OVERHEAD
# A little more than the distance of two index entries, so that one read is usually enough.
_WALK_BYTES = 4096 + HEADER_BYTES


def file_name(offset: int, suffix: str) -> str:
    return f"{offset:020d}{suffix}"


class Slice(NamedTuple):
    """Bytes of a file to send. A slice keeps its file readable even if the segment is deleted."""

    file: File
    position: int
    length: int
    end_offset: int = -1
    """All batches of the slice end before this offset. The slice may stop earlier than that."""
    segment: Segment | None = None
    """Set if the bytes may come from the disk: a consumer gets them after a check only."""
    offset: int = -1
    """The offset that the first batch holds."""


class Segment:
    """The batches from `base_offset` up to the next segment's base offset, `limit_offset`."""

    __slots__ = (
        "_aborted_is_stored",
        "_offsets",
        "_size",
        "_times",
        "aborted",
        "base_offset",
        "checked_ms",
        "created_ms",
        "directory",
        "disk",
        "file",
        "files",
        "first_timestamp",
        "gaps_before",
        "index_interval_bytes",
        "is_indexed_on_disk",
        "limit_offset",
        "max_timestamp",
        "max_timestamp_offset",
        "trusted_from",
        "used",
    )

    def __init__(
        self, disk: Disk, directory: str, base_offset: int, size: int, files: OpenFiles
    ) -> None:
        self.disk = disk
        self.directory = directory
        self.base_offset = base_offset
        self.limit_offset = MAX_OFFSET
        self.files = files
        self.file: File | None = None
        self.used = False
        self.index_interval_bytes = 4096
        # Compaction may have removed records before this offset.
        self.gaps_before = MAX_OFFSET
        # This process wrote the bytes from this position on. Others may have changed on the disk.
        self.trusted_from = MAX_OFFSET
        # When every batch was last checked.
        self.checked_ms = 0
        # Whether the index files were forced to disk after the segment was sealed.
        self.is_indexed_on_disk = False
        self.created_ms = 0
        self.first_timestamp = UNKNOWN
        self.max_timestamp = UNKNOWN
        self.max_timestamp_offset = base_offset
        self._size = size
        # None: not loaded. `Segments.aborted_index` rebuilds a missing or damaged file.
        self.aborted: AbortedIndex | None = None
        self._aborted_is_stored = False
        self._offsets: OffsetIndex | None = None
        self._times: TimeIndex | None = None

    def __repr__(self) -> str:
        return f"Segment({self.path(LOG)}, {self.size} bytes)"

    @classmethod
    def create(
        cls, disk: Disk, directory: str, base_offset: int, files: OpenFiles, now_ms: int
    ) -> Segment:
        """Create an empty segment with an empty file."""
        segment = cls(disk, directory, base_offset, 0, files)
        segment.file = disk.create(segment.path(LOG))
        segment.trusted_from = 0
        segment.checked_ms = now_ms
        segment.start_empty(now_ms)
        segment.aborted = AbortedIndex()
        # Files that a crash left under these names belong to batches that are gone.
        for suffix in (OFFSET_INDEX, TIME_INDEX, TRANSACTION_INDEX):
            disk.remove(segment.path(suffix))
        files.opened(segment)
        return segment

    def start_empty(self, now_ms: int) -> None:
        """Begin with empty indexes, for a file without batches."""
        self.created_ms = now_ms
        self.first_timestamp = UNKNOWN
        self.max_timestamp = -1
        self.max_timestamp_offset = self.base_offset
        self._offsets = OffsetIndex(self.path(OFFSET_INDEX), self.base_offset)
        self._times = TimeIndex(self.path(TIME_INDEX), self.base_offset)

    def path(self, suffix: str) -> str:
        return f"{self.directory}/{self.base_offset:020d}{suffix}"

    @property
    def size(self) -> int:
        file = self.file
        return self._size if file is None else file.size

    def opened(self) -> File:
        """Return the file, and open it if necessary."""
        file = self.file
        if file is None:
            self.file = file = self.disk.open(self.path(LOG))
            self.files.opened(self)
        return file

    def release(self) -> None:
        """Close the file. A connection that still sends from it keeps it open until it is done."""
        if self.file is not None:
            self._size = self.file.size
            self.file = None
        if self.limit_offset != MAX_OFFSET:
            self.drop_indexes()

    def drop_indexes(self) -> None:
        """Drop the indexes from memory, unless a failed write left them there only."""
        if self._aborted_is_stored and self.aborted:
            self.aborted = None
        offsets, times = self._offsets, self._times
        if offsets is None or times is None:
            return
        if offsets.flushed == len(offsets.offsets) and times.flushed == len(times.offsets):
            self._offsets = self._times = None

    # ---- indexes

    @property
    def offsets(self) -> OffsetIndex:
        if self._offsets is None:
            self._load_indexes()
        assert self._offsets is not None
        return self._offsets

    @property
    def times(self) -> TimeIndex:
        if self._times is None:
            self._load_indexes()
        assert self._times is not None
        return self._times

    def _load_indexes(self) -> None:
        offsets = OffsetIndex(self.path(OFFSET_INDEX), self.base_offset)
        times = TimeIndex(self.path(TIME_INDEX), self.base_offset)
        try:
            if not self.disk.exists(offsets.path) or not self.disk.exists(times.path):
                raise Corrupt(f"{self.path(LOG)} has no index files")
            offsets.load(self.disk, self.size)
            times.load(self.disk)
            self._check_last_time(offsets, times)
        except Corrupt as damage:
            if self.size:
                _log.warning("rebuilding an index: %s", damage)
            self.rebuild_indexes()
            return
        self._offsets, self._times = offsets, times
        if self.max_timestamp == UNKNOWN:
            self.max_timestamp, self.max_timestamp_offset = times.last()

    def _check_last_time(self, offsets: OffsetIndex, times: TimeIndex) -> None:
        """Compare the last entry of a time index with its batch: retention depends on it."""
        timestamp, offset = times.last()
        if not times.timestamps:
            return
        position = self._walk_to(offset, offsets.position_for(offset))
        if position == self.size:
            raise Corrupt(f"{times.path} has an offset that its segment does not have")
        header = next(self.headers(position))[1]
        if (header.max_timestamp, header.last_offset) != (timestamp, offset):
            raise Corrupt(f"{times.path} does not agree with the batch at offset {offset}")

    def rebuild_indexes(self) -> None:
        """Rebuild both indexes from the batches and replace the files."""
        self.start_empty(self.created_ms)
        self.clear_index_files()
        indexed_at = 0
        for position, header in self.headers():
            if self.first_timestamp == UNKNOWN:
                self.first_timestamp = header.max_timestamp
            if header.max_timestamp > self.max_timestamp:
                self.max_timestamp = header.max_timestamp
                self.max_timestamp_offset = header.last_offset
            if position - indexed_at > self.index_interval_bytes:
                self.add_index_entry(header.last_offset, position)
                indexed_at = position
        self.flush_indexes()

    def clear_index_files(self) -> None:
        """Empty the index files. The next flush writes all entries that are in memory."""
        for suffix in (OFFSET_INDEX, TIME_INDEX):
            self.disk.create(self.path(suffix))

    def add_index_entry(self, last_offset: int, position: int) -> None:
        self.offsets.add(last_offset, position)
        self.times.add(self.max_timestamp, self.max_timestamp_offset)

    def flush_indexes(self) -> None:
        """Append new entries to the index files, with the largest timestamp as the last entry."""
        self._store_aborted()
        if self._offsets is not None and self._times is not None:
            self._times.add(self.max_timestamp, self.max_timestamp_offset)
            self._offsets.flush(self.disk)
            self._times.flush(self.disk)

    def index_paths(self) -> list[str]:
        """Return the index files to force to disk with the segment. An empty transaction index
        has no content to force."""
        paths = [self.path(OFFSET_INDEX), self.path(TIME_INDEX)]
        path = self.path(TRANSACTION_INDEX)
        if self.aborted or (self.aborted is None and self.disk.exists(path)):
            paths.append(path)
        return paths

    def sync_indexes(self) -> None:
        """Append new entries to the index files and force the files to disk."""
        self.flush_indexes()
        for path in self.index_paths():
            if self.disk.exists(path):
                self.disk.open(path).sync()
        self.is_indexed_on_disk = True

    def load_for_append(self) -> int:
        """Load what the first append to a segment from disk needs: timestamps and indexes. Return
        the position of the last index entry."""
        positions = self.offsets.positions
        self.largest_timestamp(0)
        self.first_timestamp = next(self.headers())[1].max_timestamp
        return positions[-1] if positions else 0

    def is_index_full(self, index_bytes: int) -> bool:
        return len(self.offsets.offsets) * 8 >= index_bytes - 8 or (
            len(self.times.offsets) * 12 >= index_bytes - 12
        )

    def has_room_for(self, last_offset: int) -> bool:
        return last_offset - self.base_offset <= MAX_RELATIVE_OFFSET

    def largest_timestamp(self, now_ms: int) -> int:
        """Return the largest timestamp of the records; without any, the file's last change."""
        if self.max_timestamp == UNKNOWN:
            self._load_indexes()
        if self.max_timestamp >= 0:
            return self.max_timestamp
        if not self.created_ms:
            self.created_ms = self.disk.modified_ms(self.path(LOG)) or now_ms
        return self.created_ms

    # ---- aborted transactions

    def start_aborted(self) -> AbortedIndex:
        """Begin with an empty transaction index that is not stored yet."""
        self.aborted = AbortedIndex()
        self._aborted_is_stored = False
        return self.aborted

    def add_aborted(self, entry: AbortedTransaction) -> None:
        assert self.aborted is not None, "the transaction index is loaded before its segment grows"
        self.aborted.append(entry)
        self._aborted_is_stored = False

    def load_aborted(self, end_offset: int) -> AbortedIndex | None:
        """Return the transaction index, and read its file if necessary. Return None if there is no
        valid file for the batches before `end_offset`."""
        if self.aborted is None:
            path = self.path(TRANSACTION_INDEX)
            if not self.disk.exists(path):
                return self.start_aborted() if not self.size else None
            try:
                data = self.disk.read_file(path)
                self.aborted = AbortedIndex.decode(data, self.base_offset, end_offset)
            except Corrupt as damage:
                _log.warning("rebuilding %s: %s", path, damage)
                return None
            self._aborted_is_stored = True
        return self.aborted

    def replace_aborted(self, index: AbortedIndex) -> None:
        """Install a rebuilt transaction index and replace its file. The replacement is atomic,
        because an index file is trusted without a look at the segment."""
        self.disk.replace(self.path(TRANSACTION_INDEX), index.encode())
        self.aborted = index
        self._aborted_is_stored = True

    def _store_aborted(self) -> None:
        if self.aborted is None or self._aborted_is_stored or not self.size:
            return
        path = self.path(TRANSACTION_INDEX)
        if not self.aborted:
            # A new file without content needs no sync.
            self.disk.remove(path)
        file = self.disk.create(path)
        if self.aborted:
            file.append(self.aborted.encode())
        self._aborted_is_stored = True

    # ---- finding batches

    def locate(self, offset: int) -> int:
        """Return the position of the first batch whose last offset is at least `offset`, or the
        size of the file if there is none.

        A wrong index entry shows in the bytes that it points to. The index is then rebuilt.
        """
        position = self.offsets.position_for(offset)
        try:
            return self._walk_to(offset, position)
        except Corrupt as damage:
            if position == 0:
                raise
            _log.warning("rebuilding an index: %s", damage)
            self.rebuild_indexes()
            return self._walk_to(offset, self.offsets.position_for(offset))

    def _walk_to(self, offset: int, position: int) -> int:
        file = self.opened()
        end = file.size
        started_at = position
        while position < end:
            block = file.read(position, min(end - position, _WALK_BYTES))
            at = 0
            last = len(block) - _STEP_BYTES
            while at <= last:
                base_offset, length, magic, delta = _step(block, at)
                if magic != MAGIC or length < _MIN_LENGTH or base_offset < self.base_offset:
                    raise Corrupt(f"there is no batch at byte {position + at} of {file.path}")
                if base_offset + delta >= offset:
                    if base_offset > self.gaps_before and base_offset > offset >= self.base_offset:
                        raise Corrupt(f"{file.path} has no batch with offset {offset}")
                    if base_offset > offset and position + at == started_at != 0:
                        raise Corrupt(f"the index of {file.path} points past offset {offset}")
                    return position + at
                at += LOG_OVERHEAD + length
            if at == 0:
                raise Corrupt(f"{file.path} ends inside a batch at byte {position}")
            position += at
        return end

    def fit(self, position: int, max_bytes: int, end: int) -> int:
        """Return where complete batches from `position` end that fit `max_bytes`; after one batch
        at least."""
        limit = position + max_bytes
        stop = max(position, self.offsets.boundary_before(limit))
        # Index entries are close enough for large fetches. A small fetch would lose a large share
        # of its bytes, so it is filled batch by batch.
        if stop > position and (limit - stop) * 8 <= max_bytes:
            return stop
        file = self.opened()
        block, block_at = b"", stop
        while stop < end:
            at = stop - block_at
            if at + _STEP_BYTES > len(block):
                block, block_at, at = file.read(stop, _WALK_BYTES), stop, 0
            length = _step(block, at)[1] if len(block) >= _STEP_BYTES else 0
            if length < _MIN_LENGTH:
                raise Corrupt(f"there is no batch at byte {stop} of {file.path}")
            after = stop + LOG_OVERHEAD + length
            if after > limit and stop > position:
                break
            stop = after
        return min(stop, end)

    def offset_at(self, position: int) -> int:
        """Return the base offset of the batch at `position`."""
        return int.from_bytes(self.opened().read(position, 8), "big")

    def next_offset(self, before: int | None = None) -> int:
        """Return the offset after the last batch, or after the last one before `before`."""
        before = self.size if before is None else before
        offset = self.base_offset
        for position, header in self.headers(self.offsets.boundary_before(before - 1)):
            if position >= before:
                break
            offset = header.last_offset + 1
        return offset

    def tail_offset(self) -> int:
        """Return the offset after the last batch. This reads the last index entry and the batches
        after it, and leaves the file closed if it was."""
        was_open = self.file is not None
        start = 0
        path = self.path(OFFSET_INDEX)
        if self._offsets is None and self.disk.exists(path):
            index = self.disk.open(path)
            if index.size >= OFFSET_ENTRY_BYTES:
                entry = index.read(index.size - OFFSET_ENTRY_BYTES, OFFSET_ENTRY_BYTES)
                start = int.from_bytes(entry[4:], "big")
        elif self._offsets is not None:
            start = self._offsets.boundary_before(self.size)
        offset = self.base_offset
        try:
            for _, header in self.headers(start if start < self.size else 0):
                offset = header.last_offset + 1
        finally:
            if not was_open:
                self.files.forget(self)
        return offset

    def headers(self, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
        """Yield position and header of each batch from `position` on, without checking CRCs."""
        file = self.opened()
        end = file.size
        while position < end:
            block = file.read(position, min(end - position, _WALK_BYTES))
            at = 0
            while at + HEADER_BYTES <= len(block):
                header = BatchHeader._make(HEADER.unpack_from(block, at))
                if (
                    header.magic != MAGIC
                    or header.batch_length < _MIN_LENGTH
                    or not 0 <= header.last_offset - self.base_offset <= MAX_RELATIVE_OFFSET
                ):
                    raise Corrupt(f"there is no batch at byte {position + at} of {file.path}")
                if position + at + header.size > end:
                    raise Corrupt(f"{file.path} ends inside a batch at byte {position + at}")
                yield position + at, header
                at += header.size
            if at == 0:
                raise Corrupt(f"{file.path} ends inside a batch at byte {position}")
            position += at

    def read_batch(self, position: int, size: int) -> bytes:
        return self.opened().read(position, size)

    # ---- changing

    def truncate(self, position: int, end_offset: int) -> None:
        """Keep only the batches before `position`, whose offsets are before `end_offset`."""
        offsets, times = self.offsets, self.times
        aborted = self.load_aborted(MAX_OFFSET)
        if aborted is None or aborted.truncate_to(end_offset):
            # An empty segment stores no transaction index, so the old file must go.
            self.disk.remove(self.path(TRANSACTION_INDEX))
            self._aborted_is_stored = False
        self.cut(position)
        offsets.truncate(self.disk, position)
        times.truncate(self.disk, end_offset)
        # The largest timestamp may be in a batch after the last entry of the time index.
        self.max_timestamp, self.max_timestamp_offset = times.last()
        start = self.offsets.position_for(self.max_timestamp_offset)
        for _, header in self.headers(start):
            if header.max_timestamp > self.max_timestamp:
                self.max_timestamp = header.max_timestamp
                self.max_timestamp_offset = header.last_offset

    def cut(self, position: int) -> None:
        """Cut the file and sync it: after a crash the old batches must not reappear where new ones
        have been written."""
        file = self.opened()
        file.truncate(position)
        file.sync()

    def remove_files(self) -> None:
        """Remove the files, the batches last: index files without batches are ignored."""
        for suffix in reversed(SUFFIXES):
            self.disk.remove(self.path(suffix))

    def rename_files(self, old_suffix: str, new_suffix: str) -> None:
        """Rename the segment's files to another suffix, for example to mark them as deleted."""
        for suffix in SUFFIXES:
            if self.disk.exists(self.path(suffix + old_suffix)):
                self.disk.rename(self.path(suffix + old_suffix), self.path(suffix + new_suffix))


class OpenFiles:
    """The segments whose files are open, the longest open first, at most `capacity` of them.

    Eviction is second chance (clock): a segment that was used since it came to the front goes to
    the back. So files in steady use stay open, and reads and writes only set one flag.
    """

    __slots__ = ("_segments", "capacity")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._segments: dict[Segment, None] = {}

    def __len__(self) -> int:
        return len(self._segments)

    def opened(self, segment: Segment) -> None:
        self._segments[segment] = None
        segment.used = True
        while len(self._segments) > self.capacity:
            oldest = next(iter(self._segments))
            del self._segments[oldest]
            if oldest.used:
                oldest.used = False
                self._segments[oldest] = None
            else:
                oldest.release()

    def forget(self, segment: Segment) -> None:
        """Close a segment that is removed from its log."""
        self._segments.pop(segment, None)
        segment.release()
