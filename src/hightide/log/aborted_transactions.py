"""Which transactions were aborted: the indexes of a log's segments, and making them again.

An index is a function of the segment's batches and of what was open before them. So one whose file
is missing or damaged costs time and nothing else: the producers are taken from the newest snapshot
before the segment, or from the beginning of the log, and the batch headers tell the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hightide.core.partition.producer_state import ProducerStates
from hightide.core.transactions.aborted_index import Aborted, AbortedIndex
from hightide.core.transactions.open_transactions import PartitionTransactions
from hightide.log.producer_snapshots import follow, newest_snapshot, replay
from hightide.log.segment import Segment

if TYPE_CHECKING:
    from hightide.log.segments import LogSegments


def between(log: LogSegments, start_offset: int, end_offset: int) -> list[Aborted]:
    """The aborted transactions with records in the range, in the order of their markers."""
    found: list[Aborted] = []
    for number in range(log.segment_index(start_offset), len(log.segments)):
        segment = log.segments[number]
        index = segment.aborted
        if index is None:
            index = index_of(log, segment)
        if index:
            some, is_complete = index.in_range(start_offset, end_offset)
            found += some
            if is_complete:
                break
    return found


def index_of(log: LogSegments, segment: Segment) -> AbortedIndex:
    """The index of a segment, from memory, from its file, or made again."""
    index = segment.load_aborted(min(segment.limit_offset, log.end_offset))
    if index is None:
        index = _rebuilt(log, segment)
        segment.replace_aborted(index)
    return index


def _rebuilt(log: LogSegments, segment: Segment) -> AbortedIndex:
    names = log.disk.list(log.directory)
    found = newest_snapshot(log.disk, log.directory, names, segment.base_offset, 0)
    producers, since = found or (ProducerStates(), log.bases[0])
    transactions = PartitionTransactions(producers)
    replay(transactions, log.segments, since, segment.base_offset, 0)
    index = AbortedIndex()
    for position, header in segment.headers():
        if header.producer_id >= 0:
            aborted = follow(transactions, header, segment, position, 0)
            if aborted is not None:
                index.append(aborted)
    return index
