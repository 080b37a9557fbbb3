"""Notices an event loop that hangs, so that its session does not outlive it.

The coordination client keeps its session from a thread of its own. If the event loop hangs, in an
endless loop or in a call that blocks, the thread would go on, and the broker would keep leading
partitions that it does not serve.

    watchdog = Watchdog(loop, limit_ms=client.timeout_ms, on_hang=give_up)
    watchdog.start()

The loop beats ten times per limit; a thread listens. Silence is counted in the thread's own waits
and not by the clock: a process that was stopped as a whole (SIGSTOP, a paused machine, a laptop's
lid) had none of them, and on waking its loop has all the time to beat. Whether its session still
lives then is for the coordinator to say. Likewise nobody is accused when the interpreter itself is
held up, by an extension that keeps its lock: the client's thread stands still as well, and the
session expires by itself.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable

_log = logging.getLogger(__name__)

_BEATS_PER_LIMIT = 10


class Watchdog:
    """Calls `on_hang` with the milliseconds of silence, in its own thread, once per hang."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, limit_ms: int, on_hang: Callable[[int], object]
    ) -> None:
        self._loop = loop
        self._interval_s = limit_ms / 1000 / _BEATS_PER_LIMIT
        self._on_hang = on_hang
        self._beats = 0
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = threading.Event()

    def start(self) -> None:
        """Begin; called on the event loop."""
        self._beat()
        threading.Thread(target=self._listen, name="watchdog", daemon=True).start()

    def stop(self) -> None:
        """End; called on the event loop."""
        self._stopped.set()
        if self._timer is not None:
            self._timer.cancel()

    def _beat(self) -> None:
        self._beats += 1
        self._timer = self._loop.call_later(self._interval_s, self._beat)

    def _listen(self) -> None:
        heard, silent_waits = self._beats, 0
        while not self._stopped.wait(self._interval_s):
            if self._beats != heard:
                heard, silent_waits = self._beats, 0
                continue
            silent_waits += 1
            if silent_waits == _BEATS_PER_LIMIT:
                silent_ms = round(silent_waits * self._interval_s * 1000)
                _log.error("the event loop has not run for %d ms", silent_ms)
                try:
                    self._on_hang(silent_ms)
                except Exception:
                    _log.exception("a hang could not be dealt with; the next one is watched for")
