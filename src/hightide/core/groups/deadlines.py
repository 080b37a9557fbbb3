"""Deadlines of a coordinator: sessions, phases of a rebalance, the expiry of offsets.

Every heartbeat postpones a session, and sessions rarely end.  So postponing a deadline costs one
write to a dict; the queue is corrected when the earlier time comes up.
"""

from __future__ import annotations

from enum import IntEnum
from heapq import heappop, heappush
from typing import NamedTuple


class Kind(IntEnum):
    """What a deadline limits."""

    SESSION = 0
    JOIN = 1
    SYNC = 2
    EXPIRY = 3
    CONSUMER_SESSION = 4
    REVOCATION = 5
    # Members of a consumer group that use the classic protocol.
    MEMBER_JOIN = 6
    MEMBER_SYNC = 7


class Deadline(NamedTuple):
    """The key of a deadline: its kind, and the group and member it belongs to."""

    kind: Kind
    group_id: str = ""
    member_id: str = ""


class Deadlines:
    """A queue of deadlines, soonest first."""

    __slots__ = ("_at_ms", "_queue", "_queued_ms")

    def __init__(self) -> None:
        self._at_ms: dict[Deadline, int] = {}
        # When the queue looks at each deadline next: not later than its time.
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
        """The time of the soonest deadline, or None."""
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
        """Remove and return a deadline that has passed, or None."""
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
