"""Truncation: dropping batches from the end of a log, as a follower does that diverges, and
deleting records from its beginning.

The order of the steps matters. A crash between any two of them leaves a log whose recovery ends at
the new end offset or before it, and never takes producer state from records that are gone. The
recovery point and the start offset go back first: new records at the same offsets are not on disk,
and not deleted, just because the old ones were.

Records below the high watermark were committed. They are truncated only if the leader has lost
them, so this may be their last copy: it is set aside in a directory next to the log.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from hightide.core.partition.producer_state import ProducerStates
from hightide.core.transactions.open_transactions import PartitionTransactions
from hightide.log.damage import aside_name
from hightide.log.disk import DiskFailed
from hightide.log.producer_snapshots import recall_ended, replay
from hightide.wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from hightide.log.log import Log

_log = logging.getLogger(__name__)


def truncate(log: Log, offset: int, now_ms: int) -> int:
    """Drop every batch that reaches `offset` or comes after it; return the new end offset."""
    segments = log.segments
    if offset >= log.end_offset:
        log.drop_empty_epochs()
        return log.end_offset
    if offset < segments.bases[0]:
        return restart(log, offset, now_ms)
    index, position, end_offset = segments.truncation_point(offset)
    _set_aside(log, index, position, end_offset, now_ms)
    _lower_offsets(log, end_offset)
    try:
        segments.truncate(index, position, end_offset)
    except DiskFailed as failure:
        log.fail(failure)
        raise
    producers, since = segments.producers_before(end_offset, now_ms)
    transactions = PartitionTransactions(producers, verifies=log.transactions.verifies)
    replay(transactions, segments, since, end_offset, now_ms)
    recall_ended(transactions, log.disk, segments, log.committed_offset, end_offset)
    log.truncated(end_offset, transactions)
    return end_offset


def restart(log: Log, offset: int, now_ms: int) -> int:
    """Drop everything and begin with an empty log at `offset`."""
    _set_aside(log, 0, 0, offset, now_ms)
    _lower_offsets(log, 0)
    try:
        log.segments.restart(offset, now_ms)
    except DiskFailed as failure:
        log.fail(failure)
        raise
    log.start_offset = log.recovery_point = log.cleaned_offset = offset
    verifies = log.transactions.verifies
    log.truncated(offset, PartitionTransactions(ProducerStates(), verifies=verifies))
    return offset


def _set_aside(log: Log, index: int, position: int, end_offset: int, now_ms: int) -> None:
    """Keep committed records that are about to be truncated."""
    if log.high_watermark is None or log.high_watermark <= max(end_offset, log.start_offset):
        return
    aside = aside_name(log.directory, now_ms)
    log.segments.save_from(index, position, aside)
    _log.error(
        "%s: committed records from offset %d on are truncated; they are set aside in %s/%s",
        log.directory,
        max(end_offset, log.start_offset),
        log.disk.name,
        aside,
    )


def _lower_offsets(log: Log, end_offset: int) -> None:
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


def delete_records(log: Log, before_offset: int) -> int:
    """Move the log start offset to `before_offset`, or to the high watermark (-1); return it."""
    if "delete" not in log.config.cleanup_policy:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, "cannot delete from a compacted topic")
    if before_offset == -1:
        before_offset = log.committed_offset
    if before_offset > log.committed_offset or before_offset < 0:
        raise log.out_of_range(before_offset)
    log.start_at(before_offset)
    return log.start_offset
