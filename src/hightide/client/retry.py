"""Pauses between attempts: how long to wait before a retry, and when to give up.

`Backoff` is the one mechanism.  It doubles its pause up to a longest one, and stops after a time
limit or a number of attempts.

    backoff = Backoff(limit_s=30)
    while True:
        try:
            return await attempt()
        except (KafkaError, ConnectionFailed) as error:
            await backoff.after(error)      # pauses, or raises the error

A broker that dies takes its partitions along until other brokers lead them, which takes seconds.  A
client that runs for hours, such as a Spark query, must not fail for that.  But an address at which
no broker ever answered, and a topic that no broker knows, are probably mistakes: the limit for
those (`doubt_s`) is shorter.
"""

from __future__ import annotations

import asyncio
import math
import time
from typing import Self

from hightide.client.broker_connection import ConnectionFailed
from hightide.wire.errors import ErrorCode, KafkaError

RETRY_MS = 120_000
"""How long a client that runs for hours retries before it gives up."""
DOUBT_S = 10.0
"""How long to retry what is probably a mistake."""
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 1.0

DOUBTFUL = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.CORRUPT_MESSAGE,
}
# Kafka's table calls these final, but a cluster in which brokers come and go returns them for a
# short time.
TRANSIENT = {ErrorCode.BROKER_NOT_AVAILABLE}


def is_retriable(error: Exception) -> bool:
    """Whether the same request may succeed a little later."""
    if isinstance(error, KafkaError):
        return error.code.retriable or error.code in TRANSIENT
    return isinstance(error, ConnectionFailed)


class Backoff:
    """Pauses that double, until a limit.  `reset` after a success starts over."""

    def __init__(
        self,
        first_s: float | None = None,
        longest_s: float | None = None,
        *,
        limit_s: float = math.inf,
        attempts: int | None = None,
        doubt_s: float = DOUBT_S,
    ) -> None:
        """`limit_s` counts from the first failure, or from `start`.

        `attempts` counts the first attempt too: two attempts have one pause between them.
        """
        self._first_s = FIRST_PAUSE_S if first_s is None else first_s
        self._longest_s = max(self._first_s, LONGEST_PAUSE_S if longest_s is None else longest_s)
        self._limit_s = limit_s
        self._doubt_s = min(limit_s, doubt_s)
        self._attempts = math.inf if attempts is None else attempts
        self._since_s: float | None = None
        self._pause_s = self._first_s
        self._failures = 0

    @classmethod
    def every(
        cls, pause_s: float, *, limit_s: float = math.inf, attempts: int | None = None
    ) -> Self:
        """Pauses of equal length."""
        return cls(pause_s, pause_s, limit_s=limit_s, attempts=attempts)

    def start(self) -> None:
        """Count the time limit from now on instead of from the first failure."""
        self._since_s = _now_s()

    def reset(self) -> None:
        """Forget past failures: the next one is a new problem."""
        self._since_s, self._pause_s, self._failures = None, self._first_s, 0

    @property
    def is_over(self) -> bool:
        """Whether no attempt is left, so that the next failure is final."""
        return self._is_over(self._limit_s)

    def next_s(self) -> float | None:
        """Count a failure and return the pause after it, for a timer; None if none is left."""
        return self._next_s(self._limit_s)

    async def pause(self) -> bool:
        """Wait before the next attempt; False, without a wait, if no attempt is left."""
        pause_s = self.next_s()
        if pause_s is None:
            return False
        await asyncio.sleep(pause_s)
        return True

    def sleep(self) -> bool:
        """Do what `pause` does, in a program without an event loop."""
        pause_s = self.next_s()
        if pause_s is None:
            return False
        time.sleep(pause_s)
        return True

    async def after(self, error: Exception, *, doubtful: bool = False) -> None:
        """Wait before the next attempt; raise the error if it is final or no attempt is left.

        `doubtful` says that the cause is probably a mistake, so the shorter limit applies.
        """
        if isinstance(error, KafkaError) and error.code in DOUBTFUL:
            doubtful = True
        if not is_retriable(error):
            raise error
        pause_s = self._next_s(self._doubt_s if doubtful else self._limit_s)
        if pause_s is None:
            raise error
        await asyncio.sleep(pause_s)

    def _is_over(self, limit_s: float) -> bool:
        since_s = self._since_s
        elapsed_s = 0.0 if since_s is None else _now_s() - since_s
        return self._failures + 1 >= self._attempts or elapsed_s + self._pause_s > limit_s

    def _next_s(self, limit_s: float) -> float | None:
        if self._is_over(limit_s):
            return None
        if self._since_s is None:
            self._since_s = _now_s()
        self._failures += 1
        pause_s = self._pause_s
        self._pause_s = min(2 * pause_s, self._longest_s)
        return pause_s


def _now_s() -> float:
    """The event loop's time where there is one: a simulated loop has its own clock."""
    try:
        return asyncio.get_running_loop().time()
    except RuntimeError:
        return time.monotonic()
