"""Which segments of a log have outlived their topic's settings.

Segments go whole and from the old end only, so the answer is always a number: how many of the
oldest. A segment is as old as its latest record. The active segment goes only if everything in it
has expired, and then a new, empty one takes its place, so that a silent topic empties itself too.
"""

from __future__ import annotations

from hightide.log.log import Log


def expired(log: Log, now_ms: int) -> int:
    """How many of the oldest segments are to go. May roll the log to let the active one go."""
    # What lies before the start of the log goes in any case.
    count = 0
    while count < len(log.segments) - 1 and log.bases[count + 1] <= log.start_offset:
        count += 1
    if "delete" in log.config.cleanup_policy:
        count = max(count, _by_age(log, now_ms), _by_size(log))
    if count == len(log.segments):
        log.roll(now_ms)
    return min(count, len(log.segments) - 1)


def _by_age(log: Log, now_ms: int) -> int:
    retention_ms = log.config.retention_ms
    if retention_ms < 0:
        return 0
    count = 0
    for segment in log.segments:
        end_offset = min(segment.limit_offset, log.end_offset)
        if end_offset > log.committed_offset:
            break
        if segment.size:
            if now_ms - segment.largest_timestamp(now_ms) <= retention_ms:
                break
        elif segment is log.active:
            break
        # One that compaction has emptied has no age and goes with its neighbours.
        count += 1
    return count


def _by_size(log: Log) -> int:
    retention_bytes = log.config.retention_bytes
    if retention_bytes < 0:
        return 0
    surplus = log.size_bytes - retention_bytes
    count = 0
    for segment in log.segments[:-1]:
        if surplus < segment.size or segment.limit_offset > log.committed_offset:
            break
        surplus -= segment.size
        count += 1
    return count
