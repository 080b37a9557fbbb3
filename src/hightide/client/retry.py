"""How long a client goes on asking when brokers say "not now", or do not answer at all.

A broker that dies takes its partitions along until others lead them, which takes seconds.  Who
works for hours, as a query of Spark does, must not fail for that.  But an address where nobody ever
answered, and a topic that nobody knows, are more likely mistakes, so they are told sooner.
"""

from __future__ import annotations

import asyncio

from hightide.client.connection import ConnectionFailed
from hightide.wire.errors import ErrorCode, KafkaError

PATIENCE_MS = 120_000
DOUBT_MS = 10_000
"""How long to hope for what is probably a mistake."""
PAUSE_S = 0.05
LONGEST_PAUSE_S = 1.0

DOUBTFUL = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.CORRUPT_MESSAGE,
}
# Kafka's table calls these final, but a cluster in which brokers come and go says them in passing.
PASSING = {ErrorCode.BROKER_NOT_AVAILABLE}


def is_passing(error: Exception) -> bool:
    """Whether the same request may succeed a little later."""
    if isinstance(error, KafkaError):
        return error.code.retriable or error.code in PASSING
    return isinstance(error, ConnectionFailed)


class Backoff:
    """The pauses between attempts, and their end.  Each success begins it anew."""

    def __init__(self, limit_ms: int = PATIENCE_MS, *, doubt_ms: int = DOUBT_MS) -> None:
        self._limit_s = limit_ms / 1000
        self._doubt_s = min(limit_ms, doubt_ms) / 1000
        self._since: float | None = None
        self._pause_s = PAUSE_S

    def reward(self) -> None:
        """It went on: whatever fails next is a new trouble."""
        self._since, self._pause_s = None, PAUSE_S

    async def after(self, error: Exception, *, doubtful: bool = False) -> None:
        """Wait before the next attempt; raises the error if there is to be none."""
        now = asyncio.get_running_loop().time()
        self._since = now if self._since is None else self._since
        if isinstance(error, KafkaError) and error.code in DOUBTFUL:
            doubtful = True
        limit_s = self._doubt_s if doubtful else self._limit_s
        if not is_passing(error) or now + self._pause_s - self._since > limit_s:
            raise error
        await asyncio.sleep(self._pause_s)
        self._pause_s = min(self._pause_s * 2, LONGEST_PAUSE_S)
