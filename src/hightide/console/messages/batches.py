"""Records of fetched batches, without those of aborted transactions.  Pure, and bounded by callers.

A fetch for read_committed lists the aborted transactions that overlap its batches: producer id and
first offset.  The records of such a producer are left out from that offset to its abort marker.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from hightide.wire import batch
from hightide.wire.batch import Record
from hightide.wire.control import ControlType, control_type
from hightide.wire.errors import Corrupt

MOST_INFLATED_BYTES = 64 * 1024 * 1024
"""A batch that becomes larger than this is not shown: several are in memory at once."""


class FoundRecord(NamedTuple):
    """A record, and what its batch says about it."""

    record: Record
    codec: str
    transactional: bool
    producer_id: int


class DamagedBatch(NamedTuple):
    """A batch that cannot be decoded: its offsets and why."""

    first_offset: int
    last_offset: int
    why: str


def records_of(
    data: memoryview, aborted: list[tuple[int, int]], begin: int, end: int
) -> Iterator[FoundRecord | DamagedBatch]:
    """The visible records with offsets from `begin` to before `end`."""
    waiting = sorted(aborted, key=lambda transaction: -transaction[1])
    hidden: set[int] = set()
    for at, header in batch.batches(data):
        while waiting and waiting[-1][1] <= header.last_offset:
            hidden.add(waiting.pop()[0])
        if header.is_control:
            if header.producer_id in hidden and _is_abort(data, at):
                hidden.discard(header.producer_id)
            continue
        if header.last_offset < begin or header.base_offset >= end:
            continue
        if header.is_transactional and header.producer_id in hidden:
            continue
        yield from _of_batch(data, at, header, begin, end)


def _of_batch(
    data: memoryview, at: int, header: batch.BatchHeader, begin: int, end: int
) -> Iterator[FoundRecord | DamagedBatch]:
    try:
        batch.check(data, at, at + header.size, stored=True)
        codec = header.codec.name.lower()
        for record in batch.records(data, at, MOST_INFLATED_BYTES):
            if begin <= record.offset < end:
                yield FoundRecord(record, codec, header.is_transactional, header.producer_id)
    except Corrupt as error:
        yield DamagedBatch(header.base_offset, header.last_offset, str(error))


def _is_abort(data: memoryview, at: int) -> bool:
    try:
        return any(control_type(record) == ControlType.ABORT for record in batch.records(data, at))
    except Corrupt:
        return True
