"""The position to read from, as `--from` and `-o` take it.

    beginning, start, earliest    the oldest record
    end, latest                   only new records
    42                            offset 42 of each partition
    -10                           the last 10 records of each partition
    15m, 2h, 3d                   records of the last 15 minutes, 2 hours, 3 days
    2026-11-15T10:00:00Z          records at or after that time; without a zone it is local time
    10:00                         records at or after that time of today
    @1731664800000                the same in milliseconds since 1970; also kcat's s@…

`hightide consume` takes a position in `--from`, and in `-o` as kcat does.  In other commands `-o`
is the output format; here it is that too, since no position is called `json`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, time

BEGINNING = frozenset({"beginning", "start", "earliest", "oldest"})
END = frozenset({"end", "latest", "newest"})
UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclass(frozen=True, slots=True)
class Beginning:
    """The log start offset."""


@dataclass(frozen=True, slots=True)
class End:
    """The high watermark."""


@dataclass(frozen=True, slots=True)
class Offset:
    offset: int


@dataclass(frozen=True, slots=True)
class Last:
    """This many offsets before the end; a compacted log may have fewer records there."""

    count: int


@dataclass(frozen=True, slots=True)
class Time:
    timestamp_ms: int


Position = Beginning | End | Offset | Last | Time


def parse(text: str, now_ms: int) -> Position:
    """Parse a position; ValueError says what is wrong."""
    word = text.strip().lower()
    if word in BEGINNING:
        return Beginning()
    if word in END:
        return End()
    if re.fullmatch(r"\d+", word):
        return Offset(int(word))
    if re.fullmatch(r"-\d+", word):
        return Last(-int(word))
    if found := re.fullmatch(r"(?:s?@)(\d+)", word):
        return Time(int(found[1]))
    if found := re.fullmatch(r"-?(\d+)([smhd])", word):
        return Time(now_ms - int(found[1]) * UNITS_MS[found[2]])
    try:
        return Time(_moment_ms(text.strip(), now_ms))
    except ValueError:
        raise ValueError(
            f"{text!r} is not a position: use beginning, end, an offset, -N for the last N, "
            "15m for the last 15 minutes, or a time such as 2026-11-15T10:00:00 or 10:00"
        ) from None


def _moment_ms(text: str, now_ms: int) -> int:
    """Parse a time; without a zone it is local time, and without a day it is today."""
    if re.match(r"\d\d?:", text):
        today = datetime.fromtimestamp(now_ms / 1000).astimezone().date()
        moment = datetime.combine(today, time.fromisoformat(text.rjust(5, "0")))
    else:
        moment = datetime.fromisoformat(text)
    return int(moment.astimezone().timestamp() * 1000)


def first_offset(
    position: Position, start_offset: int, end_offset: int, at_time: int | None = None
) -> int:
    """The first offset to read, inside of the partition.

    `at_time` is the offset that the broker found for a `Time`; None means that the time is after
    the last record, so reading begins at the end.
    """
    match position:
        case Beginning():
            wanted = start_offset
        case End():
            wanted = end_offset
        case Offset(offset):
            wanted = offset
        case Last(count):
            wanted = end_offset - count
        case Time():
            wanted = end_offset if at_time is None else at_time
    return min(max(wanted, start_offset), end_offset)
