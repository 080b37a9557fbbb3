"""The offsets of a partition's replicas as text: one bar for each replica.

    1  ==============================|--------
    2  ==============================|---
    3  =============|
       600                                1200

`=` are records below the replica's high watermark `|`, and `-` are records above it.  The bars are
plain ASCII without colours, so that they can be pasted into a mail.

Replicas have most of the log in common, and that part shows nothing.  So the bars do not begin at
the log start: the part before the first difference is as long as the differences.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass

from hightide.client.model.replicas import ReplicaStatus

WIDTH = 60
LEGEND = "= committed   | high watermark   - not known to be committed"


def bars(replicas: Sequence[ReplicaStatus], width: int | None = None) -> list[str]:
    """The lines; none if no replica's offsets are known."""
    known = [status for status in replicas if status.end_offset is not None]
    if not known:
        return []
    width = width or min(WIDTH, max(20, shutil.get_terminal_size().columns - 20))
    low, high = window(known)
    margin = max(len(str(status.replica)) for status in replicas)
    lines = []
    for status in replicas:
        found = columns(status, low, high, width)
        bar = "?" if found is None else _bar(found)
        lines.append(f"{status.replica:>{margin}}  {bar}".rstrip())
    ends = f"{low}{high:>{max(1, width + 1 - len(str(low)))}}" if high > low else str(low)
    lines.append(f"{'':>{margin}}  {ends}")
    return lines


def window(replicas: Sequence[ReplicaStatus]) -> tuple[int, int]:
    """The first and the last offset that the bars show."""
    ends = [status.end_offset or 0 for status in replicas]
    marks = [status.high_watermark for status in replicas if status.high_watermark is not None]
    starts = [status.log_start_offset for status in replicas if status.log_start_offset is not None]
    first, high = min(starts, default=0), max(ends)
    first_difference = min([*ends, *marks])
    if first_difference == high:
        return first, high
    return max(first, 2 * first_difference - high), high


@dataclass(frozen=True, slots=True)
class Columns:
    """Where a replica's bar starts, where the committed part ends, and where the bar ends."""

    start: int
    committed: int | None
    """None if its high watermark is unknown."""
    end: int


def columns(replica: ReplicaStatus, low: int, high: int, width: int) -> Columns | None:
    """A replica's offsets as columns of a bar from `low` to `high`; None if its end is unknown."""

    def column(offset: int) -> int:
        if high == low:
            return 0
        # Only the last offset is drawn in the last column.
        at = round((min(max(offset, low), high) - low) * width / (high - low))
        return min(at, width - 1) if offset < high else at

    if replica.end_offset is None:
        return None
    end = column(replica.end_offset)
    if replica.high_watermark is None:
        return Columns(0, None, end)
    committed = min(end, column(replica.high_watermark))
    return Columns(min(committed, column(replica.log_start_offset or 0)), committed, end)


def _bar(found: Columns) -> str:
    if found.committed is None:
        # The broker did not answer, and its leader knows only where its log ends.
        return "-" * found.end
    below = " " * found.start + "=" * (found.committed - found.start)
    return below + "|" + "-" * (found.end - found.committed)
