"""Finding records by time.

The time indexes say in which segment and from which offset on to look; the rest is read. Timestamps
are the producers' own, so they need not rise with the offsets: what is asked for is always the
first record, by offset, that is late enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hightide.log.segment import UNKNOWN, Segment
from hightide.wire.batch import records


class Timestamped(NamedTuple):
    """A record found by time."""

    timestamp: int
    offset: int
    leader_epoch: int


def first_at_or_after(
    segments: Sequence[Segment], start_offset: int, timestamp_ms: int
) -> Timestamped | None:
    """The first record from `start_offset` on whose timestamp is at least `timestamp_ms`."""
    for segment in segments:
        if segment.limit_offset <= start_offset or not segment.size:
            continue
        if _latest_in(segment) < timestamp_ms:
            continue
        start = max(start_offset, segment.times.offset_before(timestamp_ms))
        for position, header in segment.headers(segment.locate(start)):
            if header.max_timestamp < timestamp_ms or header.last_offset < start_offset:
                continue
            for record in records(segment.read_batch(position, header.size)):
                if record.timestamp >= timestamp_ms and record.offset >= start_offset:
                    return Timestamped(record.timestamp, record.offset, header.leader_epoch)
    return None


def latest(segments: Sequence[Segment], start_offset: int) -> Timestamped | None:
    """The record with the largest timestamp, the first of them if there are several."""
    largest = max(
        (_latest_in(s) for s in segments if s.size and s.limit_offset > start_offset), default=-1
    )
    while largest >= 0:
        found = first_at_or_after(segments, start_offset, largest)
        if found is not None:
            return found
        # The largest was in a record that no longer counts: one before the start of the log, or
        # one that compaction removed. Then the records themselves must say.
        largest = _largest_below(segments, start_offset, largest)
    return None


def _largest_below(segments: Sequence[Segment], start_offset: int, bound: int) -> int:
    largest = -1
    for segment in segments:
        if segment.limit_offset <= start_offset:
            continue
        for position, header in segment.headers(segment.locate(start_offset)):
            if header.max_timestamp <= largest:
                continue
            for record in records(segment.read_batch(position, header.size)):
                if record.offset >= start_offset and largest < record.timestamp < bound:
                    largest = record.timestamp
    return largest


def _latest_in(segment: Segment) -> int:
    if segment.max_timestamp == UNKNOWN:
        segment.largest_timestamp(0)
    return segment.max_timestamp
