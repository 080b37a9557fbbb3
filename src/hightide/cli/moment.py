"""Times and durations as text, and back."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime

from hightide.cli.position import UNITS_MS


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def iso(timestamp_ms: int | None) -> str | None:
    """A timestamp in ISO 8601, in UTC."""
    if timestamp_ms is None:
        return None
    at = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def local_iso(timestamp_ms: int) -> str:
    """A timestamp in ISO 8601, in the local time with its offset from UTC, as logs have it."""
    at = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    return at.astimezone().isoformat(timespec="milliseconds")


def age(since_ms: int | None, now_ms: int) -> str | None:
    """The time since then in one word: 350ms, 4s, 3m20s, 5h02m, 12d03h."""
    if since_ms is None:
        return None
    passed_ms = max(0, now_ms - since_ms)
    if passed_ms < 1000:
        return f"{passed_ms}ms"
    seconds = passed_ms // 1000
    if seconds < 60:
        return f"{seconds}s"
    minutes, seconds = divmod(seconds, 60)
    if minutes < 60:
        return f"{minutes}m{seconds:02}s"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours}h{minutes:02}m"
    days, hours = divmod(hours, 24)
    return f"{days}d{hours:02}h"


def duration_ms(text: str) -> int:
    """Parse `90s`, `15m`, `2h` or `3d`; ValueError if it is something else."""
    found = re.fullmatch(r"(\d+)([smhd])", text.strip().lower())
    if found is None:
        raise ValueError(f"{text!r} is not a duration; it should be like 90s, 15m, 2h or 3d")
    return int(found[1]) * UNITS_MS[found[2]]
