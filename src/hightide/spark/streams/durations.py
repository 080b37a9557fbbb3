"""Durations as people write them ("10 s", "5 min", "1 hour 30 minutes"), in Spark's words.

Spark knows only whole words, and reports a mistake as a stack trace in the middle of a run. Here a
mistake is reported when the app is declared.
"""

from __future__ import annotations

import re
from datetime import timedelta

from hightide.spark.streams.errors import StreamsError

UNITS_MS = {
    "millisecond": 1,
    "second": 1000,
    "minute": 60_000,
    "hour": 3_600_000,
    "day": 86_400_000,
    "week": 604_800_000,
}
SHORT = {
    "ms": "millisecond",
    "s": "second",
    "sec": "second",
    "m": "minute",
    "min": "minute",
    "h": "hour",
    "d": "day",
    "w": "week",
}
PART = re.compile(r"\s*(\d+)\s*([a-z]+)", re.IGNORECASE)


def milliseconds(text: str | timedelta, what: str) -> int:
    """Parse a duration; `what` names it in an error."""
    if isinstance(text, timedelta):
        return text // timedelta(milliseconds=1)
    total, position = 0, 0
    while position < len(text.rstrip()):
        part = PART.match(text, position)
        unit = part[2].lower() if part else ""
        unit = SHORT.get(unit, SHORT.get(unit.removesuffix("s"), unit.removesuffix("s")))
        if part is None or unit not in UNITS_MS:
            break
        total += int(part[1]) * UNITS_MS[unit]
        position = part.end()
    if not text.strip() or position < len(text.rstrip()):
        raise StreamsError(
            f'{what} is {text!r}; expected a duration like "500 ms", "10 seconds" or "1 hour".'
        )
    return total


def interval(text: str | timedelta, what: str, *, zero: bool = False) -> str:
    """Return a duration in Spark's words. Only some may be zero."""
    length = milliseconds(text, what)
    if length == 0 and not zero:
        raise StreamsError(f"{what} is {text!r}; it must be longer than zero.")
    for unit, size in reversed(UNITS_MS.items()):
        if length and length % size == 0:
            count = length // size
            return f"{count} {unit}" if count == 1 else f"{count} {unit}s"
    return "0 seconds"
