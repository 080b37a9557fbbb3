"""Detects an event loop that hangs, so that the ZooKeeper session does not outlive it.

The ZooKeeper client keeps its session alive from a thread. If the event loop hangs, in an endless
loop or in a blocking call, the thread would keep the session alive, and the broker would keep
leading partitions that it does not serve.

    watchdog = Watchdog(loop, limit_ms=client.timeout_ms, on_hang=give_up)
    watchdog.start()

The loop increments a counter ten times per limit; a thread checks it. Silence is counted in waits
of the thread and not by the clock: in a process that was stopped as a whole (SIGSTOP, a suspended
host) the thread did not wait either, and after waking the loop has the full limit to run. Whether
the session is still alive then is for ZooKeeper to say. A blocked interpreter, by an extension that
holds the GIL, is not reported either: the client's thread is blocked too, and the session expires.
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
        """Start; called on the event loop."""
        self._beat()
        threading.Thread(target=self._listen, name="watchdog", daemon=True).start()

    def stop(self) -> None:
        """Stop; called on the event loop."""
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
                    _log.exception("the handler of a hanging event loop failed")
