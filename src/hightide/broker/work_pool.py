"""The pool for work that takes too long for the event loop.

    request ─▶ run(usage, bytes, function) ─▶ waits for its turn ─▶ a thread ─▶ result on the loop

That is decoding and encoding of large messages, inflating, and scans of records.  The pool has few
threads, so that this work takes a bounded share of the interpreter's time, and a budget of bytes,
so that requests which wait here cannot take all memory.  The work of the connection whose requests
use least is next (`network/turn.py`), so that small requests do not wait for all the large ones.
Reads from the disk have their own threads: a scan must not delay them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from heapq import heappop, heappush
from typing import TypeVar, TypeVarTuple

from hightide.broker.network.turn import Clock, Usage

Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")

THREADS = 2
_MOST_S = 60.0
_MOST_BEGUN = THREADS + 1  # the next work is at hand while the event loop is busy


class WorkPool:
    """Runs functions in threads, within a budget of bytes."""

    def __init__(
        self,
        max_bytes: int,
        clock: Clock = time.perf_counter,
        cpu_clock: Clock = time.thread_time,
    ) -> None:
        self._executor = ThreadPoolExecutor(THREADS, thread_name_prefix="work")
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._left = max_bytes
        self._begun = 0
        self._number = 0
        # (rank, number, bytes, turn); of equal ranks the first comes first.
        self._waiting: list[tuple[float, int, int, asyncio.Future[None]]] = []

    async def run(
        self,
        usage: Usage,
        size: int,
        function: Callable[[*Arguments], Result],
        *arguments: *Arguments,
    ) -> Result:
        """Return `function(*arguments)`, which works on about `size` bytes for a connection."""
        await self._admitted(usage, size)
        took_s = 0.0

        def work() -> Result:
            nonlocal took_s
            began_s = self._cpu_clock()
            try:
                return function(*arguments)
            finally:
                took_s = self._cpu_clock() - began_s

        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, work)
        finally:
            usage.add(took_s)
            self._ended(size)

    async def _admitted(self, usage: Usage, size: int) -> None:
        if self._waiting or not self._fits(size):
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._number += 1
            rank = usage.rank(self._clock(), _MOST_S)
            heappush(self._waiting, (rank, self._number, size, turn))
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._ended(size)
                raise
        else:
            self._take(size)

    def _fits(self, size: int) -> bool:
        # Work that exceeds the whole budget runs alone.
        return self._begun < _MOST_BEGUN and (size <= self._left or self._begun == 0)

    def _take(self, size: int) -> None:
        self._left -= size
        self._begun += 1

    def _ended(self, size: int) -> None:
        self._left += size
        self._begun -= 1
        while self._waiting:
            _, _, following, turn = self._waiting[0]
            if turn.cancelled():
                heappop(self._waiting)
                continue
            if not self._fits(following):
                return
            heappop(self._waiting)
            self._take(following)
            turn.set_result(None)

    def stop(self) -> None:
        """Begin no more work; do not wait for what runs."""
        self._executor.shutdown(wait=False, cancel_futures=True)
