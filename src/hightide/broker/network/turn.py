"""Turns: how long one request or one connection may keep the event loop, and who is next.

A handler is one of three kinds of function:

    returns a response        its work has a small, fixed bound
    yields, then returns it   each `yield` is a place where others may have a turn
    a coroutine               it awaits, and calls `Turn.pause` in loops over what a client names

A turn is over after `TURN_S`.  The rest waits in the `TurnQueue`, which gives one turn in each
iteration of the event loop.  So a request that arrives waits for one turn, and not for a turn of
every connection that has work.

    first turn ── over ──▶ TurnQueue ── least usage first ──▶ another turn ── over ──▶ …

The queue, and that of the `WorkPool`, prefer the connection whose requests use least (`Usage`).  So
many large requests do not delay small ones of others.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Generator, Iterable
from functools import partial
from heapq import heappop, heappush
from math import log2
from typing import Any, TypeVar

Value = TypeVar("Value")

TURN_S = 0.01
STALL_S = 0.1  # a longer turn is logged
_LEAST_TURN_S = 0.0005  # a first turn while many wait
_SMALL_S, _LARGE_S = 0.0001, 3 * TURN_S  # less is as good, and more as bad
_WORTH_TWICE_S = 2.0  # a request that came so much earlier may have used twice as much

Steps = Generator[None, None, Value]
Clock = Callable[[], float]


class Usage:
    """How much time the requests of a connection take.

    A request adds what it uses; what those before it have used counts half with each new request.
    So a short request of a connection with short ones comes before the rest of a long one.
    """

    __slots__ = ("_used_s", "continues")

    def __init__(self, expected_s: float = TURN_S) -> None:
        """A connection whose requests are known to take less than expected comes first."""
        self._used_s = expected_s
        self.continues = False
        """Whether the next request belongs to pipelined ones that have taken a whole turn."""

    def asked(self) -> None:
        """A request begins."""
        if not self.continues:
            self._used_s /= 2

    def add(self, seconds: float) -> None:
        self._used_s += seconds

    def rank(self, since_s: float, most_s: float = _LARGE_S) -> float:
        """Return what orders work of a request that began at `since_s`: the lowest rank is next.

        Later requests have higher ranks, so work that takes long does not wait for ever.  Requests
        that use more than `most_s` end one after the other, so that few hold half a response.
        """
        used_s = min(max(self._used_s, _SMALL_S), most_s)
        return log2(used_s) + since_s / _WORTH_TWICE_S


class TurnQueue:
    """Work that waits for another turn."""

    __slots__ = (
        "_full_at",
        "_is_running",
        "_number",
        "_waiting",
        "clock",
        "cpu_clock",
        "first_turn_s",
    )

    def __init__(
        self, clock: Clock = time.perf_counter, cpu_clock: Clock = time.thread_time
    ) -> None:
        """`cpu_clock` measures usage: a thread of the pool, or another process, is not counted."""
        self.clock = clock
        self.cpu_clock = cpu_clock
        self._waiting: list[tuple[float, int, Callable[[], object]]] = []
        self._number = 0
        self._is_running = False
        self._full_at: float | None = None
        self.first_turn_s = TURN_S
        """How long a request that arrives now may take: less while many wait."""

    @property
    def is_full(self) -> bool:
        """Whether this iteration of the event loop has worked for a turn: what arrives then waits.

        Requests that take some microseconds do not ask.
        """
        now_s = self.clock()
        if self._full_at is None:
            self._full_at = now_s + TURN_S
            asyncio.get_running_loop().call_soon(self._iteration_began)
            return False
        return now_s >= self._full_at

    def _iteration_began(self) -> None:
        self._full_at = None

    def later(
        self, usage: Usage, resume: Callable[[], object], since_s: float | None = None
    ) -> None:
        """Call `resume` when it has its turn; `since_s` is when its request began, or None: now."""
        self._number += 1
        rank = usage.rank(self.clock() if since_s is None else since_s)
        heappush(self._waiting, (rank, self._number, resume))
        self._share()
        if not self._is_running:
            self._is_running = True
            asyncio.get_running_loop().call_soon(self._next)

    async def wait(self, usage: Usage, since_s: float) -> None:
        """Return when it is the caller's turn."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.later(usage, partial(_begin, turn), since_s)
        await turn

    def _next(self) -> None:
        _, _, resume = heappop(self._waiting)
        self._share()
        self._is_running = bool(self._waiting)
        if self._is_running:
            asyncio.get_running_loop().call_soon(self._next)
        resume()

    def _share(self) -> None:
        self.first_turn_s = max(_LEAST_TURN_S, TURN_S / (1 + len(self._waiting)))


def _begin(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_result(None)


class Turn:
    """One turn of the event loop."""

    __slots__ = ("_clock", "_counted_at", "_ends_at", "_queue", "_since_s", "usage")

    def __init__(self, queue: TurnQueue | None = None, usage: Usage | None = None) -> None:
        self._queue = queue or TurnQueue()
        self._clock = self._queue.clock
        self.usage = usage or Usage()
        self._since_s = self.begin()

    def begin(self) -> float:
        """A turn begins now; return the time."""
        now_s = self._clock()
        self._counted_at = self._queue.cpu_clock()
        self._ends_at = now_s + self._queue.first_turn_s
        return now_s

    def count(self) -> float:
        """Count what has been used of the turn; return the time."""
        cpu_s = self._queue.cpu_clock()
        # More is a garbage collection, or a step that cannot be divided.
        self.usage.add(min(cpu_s - self._counted_at, TURN_S))
        self._counted_at = cpu_s
        return self._clock()

    @property
    def is_over(self) -> bool:
        return self._clock() >= self._ends_at

    async def enter(self) -> None:
        """Wait if others have used this iteration of the event loop."""
        if self._queue.is_full:
            await self._next()

    async def pause(self) -> None:
        """Let others have a turn if this one is over."""
        if self._clock() >= self._ends_at:
            await self._next()

    async def _next(self) -> None:
        """Let others have a turn, and begin the next one."""
        self.count()
        await self._queue.wait(self.usage, self._since_s)
        self._ends_at = self.begin() + TURN_S

    def run(self, steps: Steps[Value]) -> Value | None:
        """Take steps until the turn is over; return their value, or None if steps are left."""
        try:
            while True:
                next(steps)
                if self._clock() >= self._ends_at:
                    return None
        except StopIteration as stop:
            value: Value = stop.value
            return value

    async def finish(self, steps: Steps[Value]) -> Value:
        """Take all steps that are left, in as many turns as they need."""
        while True:
            await self._next()
            value = self.run(steps)
            if value is not None:
                return value


async def watched(
    work: Coroutine[Any, Any, Value], turn: Turn, stalled: Callable[[float], None]
) -> Value:
    """Await `work`, with a turn whenever it goes on; report each longer than `STALL_S`."""
    value: Value = await _Watched(work, turn, stalled)
    return value


class _Watched:
    """Drives a coroutine as a task does, with a clock around each of its turns."""

    def __init__(
        self, work: Coroutine[Any, Any, Any], turn: Turn, stalled: Callable[[float], None]
    ) -> None:
        self._work = work
        self._turn = turn
        self._stalled = stalled

    def __await__(self) -> Generator[Any, Any, Any]:
        work, value, error = self._work, None, None
        while True:
            began = self._turn.begin()
            try:
                waits_for = work.send(value) if error is None else work.throw(error)
            except StopIteration as stop:
                return stop.value
            finally:
                # An error, or a future that has it, and this frame would keep each other, and the
                # request with them, until a garbage collection.
                value, error = None, None
                took_s = self._turn.count() - began
                if took_s > STALL_S:
                    self._stalled(took_s)
            try:
                value = yield waits_for
            except BaseException as thrown:
                error = thrown
            finally:
                waits_for = None


_AT_ONCE = 32


async def gather_in_turns(turn: Turn, work: Iterable[Coroutine[Any, Any, Value]]) -> list[Value]:
    """Await coroutines, a few at a time; a task for each at once would keep the loop busy."""
    results: list[Value] = []
    batch: list[Coroutine[Any, Any, Value]] = []
    for coroutine in work:
        batch.append(coroutine)
        if len(batch) == _AT_ONCE:
            results += await asyncio.gather(*batch)
            batch = []
            await turn.pause()
    if batch:
        results += await asyncio.gather(*batch)
    return results
