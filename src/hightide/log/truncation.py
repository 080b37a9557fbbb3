"""Taking batches off the end of a log: what a replica does that has more than its leader.

The steps are in an order that a crash between any two of them leaves a log whose recovery ends at
the new end or further back, and never takes the state of producers from records that are gone. The
recovery point and the start go back first: records written later at the same offsets are not on
the disk just because the old ones were, and not deleted just because the old ones were.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hightide.core.partition.producer_state import ProducerStates
from hightide.core.transactions.open_transactions import PartitionTransactions
from hightide.log.producer_snapshots import newest_snapshot, recall_ended, remove_snapshots, replay
from hightide.log.segment import Segment

if TYPE_CHECKING:
    from hightide.log.segments import LogSegments


def truncate(log: LogSegments, offset: int, now_ms: int) -> int:
    """Drop the batches that reach `offset` or lie behind it; returns the new end offset."""
    if offset >= log.end_offset:
        log.drop_empty_epochs()
        return log.end_offset
    if offset < log.bases[0]:
        return restart(log, offset, now_ms)
    number = log.segment_index(offset)
    segment = log.segments[number]
    position = segment.locate(offset)
    end_offset = segment.next_offset(position)
    _lower_offsets(log, end_offset)
    _remove_snapshots(log, end_offset)
    _remove_segments(log, number + 1)
    segment.truncate(position, end_offset)
    names = log.disk.list(log.directory)
    found = newest_snapshot(log.disk, log.directory, names, end_offset, now_ms)
    producers, since = found or (ProducerStates(), log.bases[0])
    transactions = PartitionTransactions(producers, verifies=log.transactions.verifies)
    replay(transactions, log.segments, since, end_offset, now_ms)
    recall_ended(transactions, log.disk, log.segments, log.committed_offset, end_offset)
    log.truncated(end_offset, transactions)
    return end_offset


def restart(log: LogSegments, offset: int, now_ms: int) -> int:
    """Drop everything and begin again, empty, at `offset`."""
    _lower_offsets(log, 0)
    _remove_snapshots(log, -1)
    _remove_segments(log, 0)
    log.segments.append(Segment.create(log.disk, log.directory, offset, log.files, now_ms))
    log.bases.append(offset)
    log.start_offset = log.recovery_point = log.cleaned_offset = offset
    verifies = log.transactions.verifies
    log.truncated(offset, PartitionTransactions(ProducerStates(), verifies=verifies))
    return offset


def _lower_offsets(log: LogSegments, end_offset: int) -> None:
    """Lower every checkpointed offset that is above the new end, and write the checkpoints.

    A high watermark that stayed above the end would declare records committed that are appended
    later at the same offsets. The log is only truncated below it if committed records are lost.
    """
    high_watermark = 0 if log.high_watermark is None else log.high_watermark
    if end_offset < max(log.recovery_point, log.start_offset, high_watermark):
        log.recovery_point = min(log.recovery_point, end_offset)
        log.recovery_point_written = min(log.recovery_point_written, end_offset)
        log.start_offset = min(log.start_offset, end_offset)
        if log.high_watermark is not None:
            log.high_watermark = min(log.high_watermark, end_offset)
        log.offsets_lowered()


def _remove_snapshots(log: LogSegments, after_offset: int) -> None:
    names = log.disk.list(log.directory)
    if remove_snapshots(log.disk, log.directory, names, after_offset):
        log.disk.sync_directory(log.directory)


def _remove_segments(log: LogSegments, kept: int) -> None:
    """Remove the files of all segments but the first `kept`, the newest first."""
    removed = log.segments[kept:]
    del log.segments[kept:], log.bases[kept:]
    log.forget(removed)
    for segment in reversed(removed):
        segment.remove_files()
    log.disk.sync_directory(log.directory)
