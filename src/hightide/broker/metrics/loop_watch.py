"""How busy the event loop is, and how late its timers fire.

A timer fires every half second.  What the thread of the loop has used of the CPU since the last
time is the busy part; the rest is idle, also while the operating system runs other processes.
"""

from __future__ import annotations

import asyncio
from collections import deque

from hightide.broker.network.turn import Clock

_PERIOD_S = 0.5
_KEPT = 120  # a minute
_BUSY_OVER = 20  # periods


class LoopWatch:
    """Measures the event loop while the broker serves metrics."""

    def __init__(self, clock: Clock, cpu_clock: Clock) -> None:
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._used: deque[tuple[float, float]] = deque(maxlen=_BUSY_OVER)
        self._timer: asyncio.TimerHandle | None = None
        self.lags_s: deque[float] = deque(maxlen=_KEPT)
        self.count = 0
        self.lag_sum_s = 0.0

    @property
    def idle(self) -> float:
        """The idle part of the last seconds, from 0 to 1."""
        if not self._used:
            return 1.0
        (since_s, cpu_before_s), now_s = self._used[0], self._clock()
        if now_s <= since_s:
            return 1.0
        busy = (self._cpu_clock() - cpu_before_s) / (now_s - since_s)
        return min(max(1 - busy, 0.0), 1.0)

    def start(self) -> None:
        self._next()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _next(self) -> None:
        now_s = self._clock()
        self._used.append((now_s, self._cpu_clock()))
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(_PERIOD_S, self._fired, now_s + _PERIOD_S)

    def _fired(self, due_s: float) -> None:
        late_s = max(0.0, self._clock() - due_s)
        self.lags_s.append(late_s)
        self.lag_sum_s += late_s
        self.count += 1
        self._next()
