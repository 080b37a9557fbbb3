"""The transaction index of a segment: which transactions were aborted.

A read_committed consumer gets the batches of a range as stored, together with the aborted
transactions that have records in the range, and skips those records:

    fetch range            ├───────────────────┤
    index    first ────────────▶ last                      overlaps it
                    first ──────────────▶ last             and so does this
                                           first ─▶ last   starts after it

An entry is written with the abort marker, so it is in the index of the marker's segment, however
far back the first record is.  Entries are in the order of their markers.  Each entry has the last
stable offset after it: once that is at or after the end of the range, no later entry can start
inside the range, because that transaction would have been open.

The file is Kafka's `.txnindex`: entries of 34 bytes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from struct import Struct
from typing import NamedTuple

from hightide.wire.errors import Corrupt

_ENTRY = Struct(">hqqqq")
_VERSION = 0

ENTRY_BYTES = _ENTRY.size


class AbortedTransaction(NamedTuple):
    """An aborted transaction."""

    producer_id: int
    first_offset: int
    """The offset of its first record."""
    last_offset: int
    """The offset of its marker."""
    last_stable_offset: int
    """The last stable offset when the marker was written."""

    def encode(self) -> bytes:
        return _ENTRY.pack(_VERSION, *self)


class AbortedIndex:
    """The aborted transactions whose markers are in one segment, in order."""

    __slots__ = ("_entries",)

    def __init__(self, entries: Iterable[AbortedTransaction] = ()) -> None:
        self._entries: list[AbortedTransaction] = []
        for entry in entries:
            self.append(entry)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def entries(self) -> list[AbortedTransaction]:
        return self._entries

    def append(self, entry: AbortedTransaction) -> None:
        assert not self._entries or self._entries[-1].last_offset < entry.last_offset
        self._entries.append(entry)

    def truncate_to(self, end_offset: int) -> bool:
        """Drop the entries whose markers are at or after `end_offset`; return whether any was."""
        kept = self._from(end_offset)
        has_dropped = kept < len(self._entries)
        del self._entries[kept:]
        return has_dropped

    def in_range(self, start_offset: int, end_offset: int) -> tuple[list[AbortedTransaction], bool]:
        """Return the entries with records in the range, and whether later segments have none."""
        found = []
        for at in range(self._from(start_offset), len(self._entries)):
            entry = self._entries[at]
            if entry.first_offset < end_offset:
                found.append(entry)
            if entry.last_stable_offset >= end_offset:
                return found, True
        return found, False

    def _from(self, offset: int) -> int:
        """Return the index of the first entry whose marker is at or after `offset`."""
        return bisect_left(self._entries, offset, key=lambda entry: entry.last_offset)

    def encode(self) -> bytes:
        return b"".join(entry.encode() for entry in self._entries)

    @classmethod
    def decode(cls, data: bytes, base_offset: int, end_offset: int) -> AbortedIndex:
        """Decode the index file of a segment with these offsets.

        Raise Corrupt if the file cannot be one; the caller then rebuilds the index.
        """
        if len(data) % ENTRY_BYTES:
            raise Corrupt(f"transaction index of {len(data)} bytes ends inside an entry")
        index = cls()
        previous = base_offset - 1
        for version, *fields in _ENTRY.iter_unpack(data):
            entry = AbortedTransaction(*fields)
            if version != _VERSION:
                raise Corrupt(f"transaction index has an entry of version {version}, expected 0")
            if not (previous < entry.last_offset < end_offset and entry.producer_id >= 0):
                raise Corrupt(f"transaction index has {entry} after offset {previous}")
            if not 0 <= entry.first_offset < entry.last_offset:
                raise Corrupt(f"transaction index has {entry}, which ends before it starts")
            index.append(entry)
            previous = entry.last_offset
        return index
