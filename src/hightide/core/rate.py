"""A rate over a sliding window: how much was recorded per second (KIP-73).

    │ 3 MB │ 0 │ 8 MB │ … │ 1 MB ▏      rate = sum / the time since the oldest sample's window began
    └ oldest, dropped next        └ now

The elapsed time counts as at least one window.  Otherwise the first bytes after an idle time would
give an arbitrarily high rate.  If it counted as more than one window, several windows' worth of
bytes could pass at once, and a short reassignment would not be throttled at all.
"""

from __future__ import annotations

from collections import deque


class Rate:
    """The rate of what was recorded in the last `windows` windows of `window_ms` each."""

    __slots__ = ("_most_ms", "_samples", "_total", "_window_ms")

    def __init__(self, windows: int, window_ms: int) -> None:
        assert windows >= 1
        assert window_ms >= 1
        self._window_ms = window_ms
        self._most_ms = windows * window_ms
        # The start of each window, and the amount recorded in it.
        self._samples: deque[list[int]] = deque()
        self._total = 0

    def record(self, amount: int, now_ms: int) -> None:
        self._forget(now_ms)
        samples = self._samples
        if samples and now_ms < samples[-1][0] + self._window_ms:
            samples[-1][1] += amount
        else:
            samples.append([now_ms, amount])
        self._total += amount

    def per_second(self, now_ms: int) -> float:
        self._forget(now_ms)
        return self._total * 1000 / self._elapsed_ms(now_ms)

    def exceeds(self, limit: int, now_ms: int) -> bool:
        """Return whether the rate is above `limit` per second."""
        self._forget(now_ms)
        return self._total * 1000 > limit * self._elapsed_ms(now_ms)

    def delay_ms(self, limit: int, now_ms: int) -> int:
        """Return how long to wait until the rate is at most `limit`, if nothing is recorded.

        Look again no later than when the oldest window is dropped.
        """
        if not self.exceeds(limit, now_ms):
            return 0
        oldest_ms = self._samples[0][0]
        forgotten_ms = oldest_ms + self._most_ms - now_ms
        if limit <= 0:
            return forgotten_ms
        needed_ms = -(-self._total * 1000 // limit)
        return min(forgotten_ms, oldest_ms + needed_ms - now_ms)

    def _elapsed_ms(self, now_ms: int) -> int:
        if not self._samples:
            return self._window_ms
        return max(self._window_ms, now_ms - self._samples[0][0])

    def _forget(self, now_ms: int) -> None:
        samples = self._samples
        while samples and samples[0][0] + self._most_ms <= now_ms:
            self._total -= samples.popleft()[1]
