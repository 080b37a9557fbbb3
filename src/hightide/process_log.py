"""The log of a process that serves: lines with a time, on stderr.

Clients cause some lines, such as those about a connection that is closed, and can cause thousands a
second: they would fill the disk that the records need. The lines of one kind are limited; the first
one after a pause says how many were left out.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable

FORMAT = "%(asctime)s %(levelname)-7s %(message)s"
MOST_LINES, IN_S = 50, 10.0
_OF_CLIENTS = ("hightide.broker.network.", "hightide.zookeeper")


def begin(level: str) -> None:
    """Log to stderr, with limited repetition."""
    logging.basicConfig(level=level.upper(), format=FORMAT, stream=sys.stderr)
    for handler in logging.getLogger().handlers:
        handler.addFilter(Repetition())


class Repetition(logging.Filter):
    """Limits how often one place in the code may log because of clients."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now_s = now_s
        self._seen: dict[tuple[str, int], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if not record.name.startswith(_OF_CLIENTS):
            return True
        place, now_s = (record.pathname, record.lineno), self._now_s()
        began_s, count = self._seen.get(place, (now_s, 0))
        if now_s - began_s >= IN_S:
            if count > MOST_LINES:
                left_out = f"({count - MOST_LINES} such lines were left out)"
                record.msg, record.args = f"{record.getMessage()} {left_out}", None
            began_s, count = now_s, 0
        self._seen[place] = began_s, count + 1
        return count < MOST_LINES
