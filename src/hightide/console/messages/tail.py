"""The live tail of a topic: what is written from now on, bounded.

A tail asks for the end offsets a few times a second and scans what is new.  A topic that is written
faster than a person can read is not sent whole: without a filter the tail skips to the newest
records and says how many it has skipped; with a filter it looks at more of them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field

from hightide.client.leader_cache import LeaderCache
from hightide.client.model.cluster import Timestamp
from hightide.console.messages.filter import Filter
from hightide.console.messages.plan import ask_offsets
from hightide.console.messages.positions import Span
from hightide.console.messages.scan import FoundIn, Limits, Scan

PAUSE_S = 0.2
SHOWN_AT_ONCE = 200
LOOKED_AT_ONCE = 20_000
LOOK_LIMITS = Limits(
    found=SHOWN_AT_ONCE, bytes=16 * 1024 * 1024, found_bytes=2 * 1024 * 1024, seconds=2.0
)


@dataclass(slots=True)
class Look:
    """What one look at the ends found."""

    found: list[FoundIn] = field(default_factory=list)
    looked: int = 0
    skipped: int = 0
    damaged: list[str] = field(default_factory=list)


async def follow(
    leaders: LeaderCache,
    topic: str,
    spans: Sequence[Span],
    wanted: Filter,
    *,
    read_committed: bool = True,
) -> AsyncGenerator[Look, None]:
    """Yield a look a few times a second, also when nothing is new."""
    positions = {span.partition: span.begin for span in spans}
    while True:
        began = time.monotonic()
        ends = await ask_offsets(leaders, topic, list(positions), Timestamp.LATEST, read_committed)
        new, skipped = unread(positions, ends, LOOKED_AT_ONCE if not wanted.is_empty else None)
        look = Look(skipped=skipped)
        if new:
            scan = Scan(leaders, topic, new, wanted, LOOK_LIMITS, read_committed=read_committed)
            async for found in scan.run():
                look.found += found
            positions.update(scan.positions())
            look.looked, look.damaged = scan.progress.looked, scan.progress.damaged
        for partition, end in ends.items():
            # A new leader may have a shorter log after an unclean election.
            positions[partition] = min(positions[partition], end)
        yield look
        await asyncio.sleep(max(PAUSE_S, time.monotonic() - began))


def unread(
    positions: dict[int, int], ends: dict[int, int], most: int | None
) -> tuple[list[Span], int]:
    """Spans of what is new, and how many offsets are skipped; moves the positions of those."""
    new = {index: end for index, end in ends.items() if end > positions[index]}
    if not new:
        return [], 0
    share = max(1, (most or SHOWN_AT_ONCE) // len(new))
    skipped = 0
    for index, end in new.items():
        begin = max(positions[index], end - share)
        # A little more than the share is sent later instead of skipped.
        if end - positions[index] > 2 * share:
            skipped += begin - positions[index]
            positions[index] = begin
    return [Span(index, positions[index], end) for index, end in new.items()], skipped
