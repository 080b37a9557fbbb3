"""What happens if nothing else does before: sessions that end, phases of a rebalance that take too
long, a look for old offsets.

A session is put off by every heartbeat and ends almost never.  So a deadline that is put off costs
a write to a dict, and the queue is put right when the earlier time comes up.
"""

from __future__ import annotations

from enum import IntEnum
from heapq import heappop, heappush
from typing import NamedTuple


class Kind(IntEnum):
    """What comes to its end."""

    SESSION = 0
    JOIN = 1
    SYNC = 2
    EXPIRY = 3
    CONSUMER_SESSION = 4
    REVOCATION = 5
    # Of members of a consumer group that speak the classic protocol.
    MEMBER_JOIN = 6
    MEMBER_SYNC = 7


class Deadline(NamedTuple):
    """What a time was set for."""

    kind: Kind
    group_id: str = ""
    member_id: str = ""


class Deadlines:
    """The times that were set, the soonest first."""

    __slots__ = ("_at_ms", "_queue", "_queued_ms")

    def __init__(self) -> None:
        self._at_ms: dict[Deadline, int] = {}
        # When each of them is looked at next: not later than its time.
        self._queued_ms: dict[Deadline, int] = {}
        self._queue: list[tuple[int, Deadline]] = []

    def set(self, deadline: Deadline, at_ms: int) -> None:
        self._at_ms[deadline] = at_ms
        queued_ms = self._queued_ms.get(deadline)
        if queued_ms is None or at_ms < queued_ms:
            self._queued_ms[deadline] = at_ms
            heappush(self._queue, (at_ms, deadline))

    def cancel(self, deadline: Deadline) -> None:
        self._at_ms.pop(deadline, None)

    def get(self, deadline: Deadline) -> int | None:
        return self._at_ms.get(deadline)

    @property
    def next_ms(self) -> int | None:
        """The soonest; None when there is nothing to wait for."""
        while self._queue:
            queued_ms, deadline = self._queue[0]
            at_ms = self._at_ms.get(deadline)
            if at_ms == queued_ms:
                return at_ms
            self._pop()
            if at_ms is not None and deadline not in self._queued_ms:
                self.set(deadline, at_ms)
        return None

    def due(self, now_ms: int) -> Deadline | None:
        """One that has come, which is forgotten; None when there is none any more."""
        next_ms = self.next_ms
        if next_ms is None or next_ms > now_ms:
            return None
        deadline = self._pop()
        del self._at_ms[deadline]
        return deadline

    def _pop(self) -> Deadline:
        queued_ms, deadline = heappop(self._queue)
        if self._queued_ms.get(deadline) == queued_ms:
            del self._queued_ms[deadline]
        return deadline
