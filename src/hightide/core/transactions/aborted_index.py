"""Which transactions were aborted: the transaction index of a segment.

A reader of committed records gets the batches of a range as they lie in the log, and beside them
the aborted transactions that have records there, so that it can pass those over:

    fetch range            ├───────────────────┤
    index    first ────────────▶ last                      reaches into it
                    first ──────────────▶ last             and so does this
                                           first ─▶ last   begins behind it

An entry is written where the abort marker is, and so lies in the index of the marker's segment,
however far back its first record is.  Entries are in the order of their markers, and each says what
the last stable offset was after it: once that is at or behind the end of the range, no later entry
can have begun inside it, because then it would have been open.

A file is Kafka's `.txnindex`: entries of 34 bytes.
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
    """A transaction that was aborted."""

    producer_id: int
    first_offset: int
    """Of its first record."""
    last_offset: int
    """Of its marker."""
    last_stable_offset: int
    """When the marker was written."""

    def encode(self) -> bytes:
        return _ENTRY.pack(_VERSION, *self)


class AbortedIndex:
    """The aborted transactions whose markers are in one segment, in order."""

    __slots__ = ("_entries",)

    def __init__(self, entries: Iterable[AbortedTransaction] = ()) -> None:
        self._entries: list[AbortedTransaction] = []
        for each in entries:
            self.append(each)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def entries(self) -> list[AbortedTransaction]:
        return self._entries

    def append(self, entry: AbortedTransaction) -> None:
        assert not self._entries or self._entries[-1].last_offset < entry.last_offset
        self._entries.append(entry)

    def truncate_to(self, end_offset: int) -> bool:
        """Drop the entries whose markers are at or behind `end_offset`; says whether any was."""
        kept = self._from(end_offset)
        has_dropped = kept < len(self._entries)
        del self._entries[kept:]
        return has_dropped

    def in_range(self, start_offset: int, end_offset: int) -> tuple[list[AbortedTransaction], bool]:
        """Those with records in the range, and whether there can be none in later segments."""
        found = []
        for at in range(self._from(start_offset), len(self._entries)):
            entry = self._entries[at]
            if entry.first_offset < end_offset:
                found.append(entry)
            if entry.last_stable_offset >= end_offset:
                return found, True
        return found, False

    def _from(self, offset: int) -> int:
        """The place of the first entry whose marker is at or behind `offset`."""
        return bisect_left(self._entries, offset, key=lambda each: each.last_offset)

    def encode(self) -> bytes:
        return b"".join(each.encode() for each in self._entries)

    @classmethod
    def decode(cls, data: bytes, base_offset: int, end_offset: int) -> AbortedIndex:
        """The entries in the file of a segment with these offsets.  Corrupt if it cannot be such a
        file; then the index is made anew from the segment."""
        if len(data) % ENTRY_BYTES:
            raise Corrupt(f"a transaction index of {len(data)} bytes ends inside an entry")
        index = cls()
        previous = base_offset - 1
        for version, *fields in _ENTRY.iter_unpack(data):
            entry = AbortedTransaction(*fields)
            if version != _VERSION:
                raise Corrupt(f"a transaction index has an entry of version {version}")
            if not (previous < entry.last_offset < end_offset and entry.producer_id >= 0):
                raise Corrupt(f"a transaction index has {entry} behind offset {previous}")
            if not 0 <= entry.first_offset < entry.last_offset:
                raise Corrupt(f"a transaction index has {entry}, which ends before it begins")
            index.append(entry)
            previous = entry.last_offset
        return index
