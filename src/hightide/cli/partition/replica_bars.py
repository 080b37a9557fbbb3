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
        bar = "?" if status.end_offset is None else _bar(status, low, high, width)
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


def _bar(status: ReplicaStatus, low: int, high: int, width: int) -> str:
    def column(offset: int) -> int:
        if high == low:
            return 0
        # Only the last offset is drawn in the last column.
        at = round((min(max(offset, low), high) - low) * width / (high - low))
        return min(at, width - 1) if offset < high else at

    assert status.end_offset is not None
    end = column(status.end_offset)
    if status.high_watermark is None:
        # The broker did not answer, and its leader knows only where its log ends.
        return "-" * end
    committed = min(end, column(status.high_watermark))
    start = min(committed, column(status.log_start_offset or 0))
    return " " * start + "=" * (committed - start) + "|" + "-" * (end - committed)
