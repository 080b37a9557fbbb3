"""A queue that gives every session an equal share of the work, however much each of them asks for.

A request has a weight, roughly the znodes that it touches. Requests are served in the order of what
their sessions will have had with them (weighted fair queueing). So a session with one small request
does not wait for the multis of a hundred others, a session that sends many requests waits for
itself, and none waits for ever. The requests of one session stay in order.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import count
from typing import Generic, TypeVar

T = TypeVar("T")


_SPENT_SHARES = 1000
"""Sessions that are remembered before those are forgotten that have no items."""


class FairQueue(Generic[T]):
    """Items of sessions, the next one first."""

    __slots__ = ("_ends", "_heap", "_last", "_now", "_numbers", "_prune_at")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, int, T]] = []
        """Items by what their session will have had, and their weights."""
        self._ends: dict[int, float] = {}
        """What a session will have had after its last item."""
        self._now = 0.0
        """What a session without items has had."""
        self._last = 0.0
        self._numbers = count()
        self._prune_at = _SPENT_SHARES

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[T]:
        """Iterate over the items in order, without removing them."""
        return (item for *_, item in sorted(self._heap, key=lambda entry: entry[:2]))

    def put(self, item: T, session_id: int, weight: int, *, after_all: bool = False) -> None:
        """Add an item after all of its session, or after all items of all sessions."""
        begin = self._last if after_all else self._ends.get(session_id, 0)
        end = max(self._now, begin) + weight
        self._ends[session_id] = end
        self._last = max(self._last, end)
        heapq.heappush(self._heap, (end, next(self._numbers), weight, item))

    def pop(self) -> T:
        end, _, weight, item = heapq.heappop(self._heap)
        if not self._heap:
            self.clear()
            return item
        # The first term is at most the share of every session. With it, new sessions that keep
        # coming do not pass a large request for ever.
        self._now = max(self._now + weight / len(self._heap), end - weight)
        if len(self._ends) > self._prune_at:
            self._ends = {key: end for key, end in self._ends.items() if end > self._now}
            self._prune_at = 2 * len(self._ends) + _SPENT_SHARES
        return item

    def clear(self) -> None:
        self._heap.clear()
        self._ends.clear()
        self._now = self._last = 0.0
        self._prune_at = _SPENT_SHARES
