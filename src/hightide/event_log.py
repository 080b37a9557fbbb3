"""Record events: into the ring of this process, and as sentences into its log.

A process has one ring, as it has one log: every part of a broker records here, also its threads.

    record(log, IsrShrunk(...))  ─▶  ring, counts
                                 └▶  log: "orders/0: the ISR shrank to brokers 1 and 2: ..."
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Collection, Iterator
from typing import NamedTuple

from hightide.core.events import Event, EventRing, Recorded, Severity

KEPT_PER_KIND = 1000

ring = EventRing(KEPT_PER_KIND)
START_ID = secrets.token_hex(8)
"""Names this start of the process: sequence numbers begin again with each."""
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


class Kept(NamedTuple):
    """What the ring has, at one moment."""

    events: Iterator[Recorded]
    last_sequence: int
    """The newest event that has been recorded."""
    dropped_sequence: int
    """The newest event of these kinds that is not kept any more."""


def newest(kinds: Collection[str] = ()) -> Kept:
    """The newest events first."""
    with _lock:
        return Kept(ring.newest(kinds), ring.last_sequence, ring.dropped_sequence(kinds))


def after(sequence: int, kinds: Collection[str] = ()) -> Kept:
    """The events after a sequence number, the oldest of them first."""
    with _lock:
        return Kept(ring.after(sequence, kinds), ring.last_sequence, ring.dropped_sequence(kinds))
