"""A picture of replication for the terminal: one bar for each replica.

    1  ==============================|--------
    2  ==============================|---
    3  =============|
       600                                1200

`=` is what the replica knows to be committed, `|` its high watermark, and `-` what it has beyond.
It needs no colour and no sign that is not ASCII, so that it can be pasted into a mail.

What all have in common is the longest part of every log and tells nothing, so the picture begins
not at the start of the log but as far before the first difference as the differences are long.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence

from hightide.client.model.replicas import ReplicaStatus

WIDTH = 60
LEGEND = "= committed   | high watermark   - not known to be committed"


def picture(replicas: Sequence[ReplicaStatus], width: int | None = None) -> list[str]:
    """The lines of the picture; none if no replica's offsets are known."""
    known = [each for each in replicas if each.end_offset is not None]
    if not known:
        return []
    width = width or min(WIDTH, max(20, shutil.get_terminal_size().columns - 20))
    low, high = window(known)
    margin = max(len(str(each.broker)) for each in replicas)
    lines = []
    for each in replicas:
        bar = "?" if each.end_offset is None else _bar(each, low, high, width)
        lines.append(f"{each.broker:>{margin}}  {bar}".rstrip())
    ends = f"{low}{high:>{max(1, width + 1 - len(str(low)))}}" if high > low else str(low)
    lines.append(f"{'':>{margin}}  {ends}")
    return lines


def window(replicas: Sequence[ReplicaStatus]) -> tuple[int, int]:
    """From which offset to which the picture goes."""
    ends = [each.end_offset or 0 for each in replicas]
    marks = [each.high_watermark for each in replicas if each.high_watermark is not None]
    starts = [each.log_start_offset for each in replicas if each.log_start_offset is not None]
    first, high = min(starts, default=0), max(ends)
    parted = min([*ends, *marks])
    if parted == high:
        return first, high
    return max(first, 2 * parted - high), high


def _bar(each: ReplicaStatus, low: int, high: int, width: int) -> str:
    def column(offset: int) -> int:
        if high == low:
            return 0
        # What is not the end is not drawn as the end.
        at = round((min(max(offset, low), high) - low) * width / (high - low))
        return min(at, width - 1) if offset < high else at

    assert each.end_offset is not None
    end = column(each.end_offset)
    if each.high_watermark is None:
        # The leader knows where its log ends, and nothing else.
        return "-" * end
    committed = min(end, column(each.high_watermark))
    start = min(committed, column(each.log_start_offset or 0))
    return " " * start + "=" * (committed - start) + "|" + "-" * (end - committed)
