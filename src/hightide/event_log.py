"""Record events: into the ring of this process, and as sentences into its log.

A process has one ring, as it has one log: every part of a broker records here, also its threads.

    record(log, IsrShrunk(...))  ─▶  ring, counts
                                 └▶  log: "orders/0: the ISR shrank to brokers 1 and 2: ..."
"""

from __future__ import annotations

import logging
import threading
import time

from hightide.core.events import Event, EventRing, Recorded, Severity

KEPT_PER_KIND = 1000

ring = EventRing(KEPT_PER_KIND)
_lock = threading.Lock()
_LEVELS = {severity: logging.getLevelNamesMapping()[severity.name] for severity in Severity}


def record(log: logging.Logger, event: Event, *, is_logged: bool = True) -> None:
    """Record an event that has just happened; may be called from any thread.

    One that is not logged is only in the ring: it is one of many that have the same cause.
    """
    with _lock:
        recorded = ring.add(event, time.time_ns() // 1_000_000, time.monotonic_ns() // 1_000_000)
    level = _LEVELS[event.level]
    if is_logged and log.isEnabledFor(level):
        log.log(level, "%s", event, extra={"event": recorded})


def newest(count: int) -> list[Recorded]:
    """The newest events, the oldest of them first."""
    with _lock:
        return ring.newest(count)


def after(sequence: int, limit: int, kinds: frozenset[str] = frozenset()) -> list[Recorded]:
    """The oldest events after a sequence number."""
    with _lock:
        return ring.after(sequence, limit, kinds)
