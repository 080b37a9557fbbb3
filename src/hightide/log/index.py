"""The two sparse indexes of a segment, in Kafka's format.

The offset index has an entry of 8 bytes for about every 4 KiB of log: the last offset of a batch,
relative to the segment's base offset, and the position of that batch. The time index has an entry
of 12 bytes for each of them: the largest timestamp so far, and the relative offset of the batch
that has it. Both are big endian and only ever grow, so a lookup is a bisection.

In memory an index is two arrays. New entries stay there until `flush` appends them to the file.
An index can always be rebuilt from the log: a missing or damaged file is not an error.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from operator import le, lt
from struct import Struct

from hightide.log.disk import Disk
from hightide.wire.errors import Corrupt

OFFSET_ENTRY_BYTES = 8
TIME_ENTRY_BYTES = 12
MAX_RELATIVE_OFFSET = 0x7FFF_FFFF

_TIME_ENTRY = Struct(">qi")


class OffsetIndex:
    """Batch positions by relative offset. The batch at positions[i] has the last offset
    base_offset + offsets[i]."""

    __slots__ = ("base_offset", "flushed", "offsets", "path", "positions")

    def __init__(self, path: str, base_offset: int) -> None:
        self.path = path
        self.base_offset = base_offset
        self.offsets = array("I")
        self.positions = array("I")
        self.flushed = 0

    def load(self, disk: Disk, log_size: int) -> None:
        """Read the file. Raise Corrupt if it cannot be the index of a log of `log_size` bytes."""
        data = disk.read_file(self.path)
        if len(data) % OFFSET_ENTRY_BYTES:
            raise Corrupt(f"{self.path} is {len(data)} bytes long, not a multiple of 8")
        entries = array("I", data)
        if sys.byteorder == "little":
            entries.byteswap()
        self.offsets = entries[0::2]
        self.positions = entries[1::2]
        # Kafka preallocates an index file with zeros and cuts them off when it closes the segment.
        # After a crash the zeros are still there.
        while len(self.offsets) > 1 and self.positions[-1] == 0:
            self.offsets.pop()
            self.positions.pop()
        self.flushed = len(self.offsets)
        self._check(log_size, whole=self.flushed * OFFSET_ENTRY_BYTES == len(data))

    def _check(self, log_size: int, whole: bool) -> None:
        offsets, positions = self.offsets, self.positions
        if not whole:
            raise Corrupt(f"{self.path} ends in zeros")
        if not offsets:
            return
        if positions[-1] >= log_size:
            raise Corrupt(f"{self.path} points at byte {positions[-1]} of {log_size}")
        if not all(map(lt, offsets, offsets[1:])) or not all(map(lt, positions, positions[1:])):
            raise Corrupt(f"the entries of {self.path} do not rise")

    def add(self, last_offset: int, position: int) -> None:
        self.offsets.append(last_offset - self.base_offset)
        self.positions.append(position)

    def position_for(self, offset: int) -> int:
        """Return a batch boundary at or shortly before the batch that holds `offset`."""
        relative = offset - self.base_offset
        if relative <= 0:
            return 0
        # The batch of an entry ends with the entry's offset. So it is the right start both for its
        # last offset and for later offsets.
        i = bisect_right(self.offsets, min(relative, MAX_RELATIVE_OFFSET)) - 1
        return self.positions[i] if i >= 0 else 0

    def boundary_before(self, position: int) -> int:
        """Return the last indexed batch boundary at or before `position`; 0 if there is none."""
        i = bisect_right(self.positions, position) - 1
        return self.positions[i] if i >= 0 else 0

    def truncate(self, disk: Disk, position: int) -> None:
        """Drop the entries of batches at or after `position`."""
        keep = bisect_left(self.positions, position)
        del self.offsets[keep:], self.positions[keep:]
        if keep < self.flushed:
            disk.open(self.path).truncate(keep * OFFSET_ENTRY_BYTES)
            self.flushed = keep

    def flush(self, disk: Disk) -> None:
        """Append the new entries to the file, which is created if necessary."""
        fresh = array("I", bytes(8 * (len(self.offsets) - self.flushed)))
        fresh[0::2] = self.offsets[self.flushed :]
        fresh[1::2] = self.positions[self.flushed :]
        if sys.byteorder == "little":
            fresh.byteswap()
        _extend(disk, self.path, self.flushed * OFFSET_ENTRY_BYTES, fresh.tobytes())
        self.flushed = len(self.offsets)


class TimeIndex:
    """Largest timestamps by offset: no record up to base_offset + offsets[i] is later than
    timestamps[i]."""

    __slots__ = ("base_offset", "flushed", "offsets", "path", "timestamps")

    def __init__(self, path: str, base_offset: int) -> None:
        self.path = path
        self.base_offset = base_offset
        self.timestamps = array("q")
        self.offsets = array("I")
        self.flushed = 0

    def load(self, disk: Disk) -> None:
        data = disk.read_file(self.path)
        if len(data) % TIME_ENTRY_BYTES:
            raise Corrupt(f"{self.path} is {len(data)} bytes long, not a multiple of 12")
        entries = list(_TIME_ENTRY.iter_unpack(data))
        while len(entries) > 1 and entries[-1] == (0, 0):
            entries.pop()
        if len(entries) * TIME_ENTRY_BYTES != len(data):
            raise Corrupt(f"{self.path} ends in zeros")
        if any(offset < 0 for _, offset in entries):
            raise Corrupt(f"{self.path} has a negative offset")
        self.timestamps = array("q", [timestamp for timestamp, _ in entries])
        self.offsets = array("I", [offset for _, offset in entries])
        self.flushed = len(entries)
        if not all(map(lt, self.timestamps, self.timestamps[1:])) or not all(
            map(le, self.offsets, self.offsets[1:])
        ):
            raise Corrupt(f"the entries of {self.path} do not rise")

    def add(self, timestamp: int, last_offset: int) -> None:
        """Add a new largest timestamp; ignore one that is not larger than the last."""
        if timestamp >= 0 and (not self.timestamps or timestamp > self.timestamps[-1]):
            self.timestamps.append(timestamp)
            self.offsets.append(last_offset - self.base_offset)

    def offset_before(self, timestamp: int) -> int:
        """Return an offset such that no record before it has a timestamp of `timestamp` or
        later."""
        # Records before an entry's batch may have the entry's timestamp too, so only entries that
        # are strictly earlier can be skipped.
        i = bisect_left(self.timestamps, timestamp) - 1
        return self.base_offset + (self.offsets[i] if i >= 0 else 0)

    def last(self) -> tuple[int, int]:
        """Return the largest timestamp and the last offset of its batch; -1 and the base offset if
        there is none."""
        if not self.timestamps:
            return -1, self.base_offset
        return self.timestamps[-1], self.base_offset + self.offsets[-1]

    def truncate(self, disk: Disk, end_offset: int) -> None:
        """Drop the entries of batches whose last offset is `end_offset` or later."""
        keep = bisect_left(self.offsets, max(0, end_offset - self.base_offset))
        del self.offsets[keep:], self.timestamps[keep:]
        if keep < self.flushed:
            disk.open(self.path).truncate(keep * TIME_ENTRY_BYTES)
            self.flushed = keep

    def flush(self, disk: Disk) -> None:
        fresh = b"".join(
            map(_TIME_ENTRY.pack, self.timestamps[self.flushed :], self.offsets[self.flushed :])
        )
        _extend(disk, self.path, self.flushed * TIME_ENTRY_BYTES, fresh)
        self.flushed = len(self.offsets)


def _extend(disk: Disk, path: str, size: int, data: bytes) -> None:
    file = disk.open(path) if disk.exists(path) else disk.create(path)
    if file.size != size:
        file.truncate(min(size, file.size))
    if data:
        file.append(data)
