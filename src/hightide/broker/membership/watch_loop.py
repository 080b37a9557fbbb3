"""A loop that keeps a part of ZooKeeper up to date: set a watch, read, wait, again.

A watch only says that something has changed, and it is lost with its connection.  So there is one
way to stay up to date: set the watch and read, whenever the watch fires and after every reconnect.
Reads of one part never overlap; an event during a read causes one more read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from hightide.zookeeper.zookeeper_errors import ConnectionLoss, SessionLost, ZooKeeperError

log = logging.getLogger(__name__)

_PAUSE_S = 1.0
_GROUP = 200

Item = TypeVar("Item")
Result = TypeVar("Result")


class WatchLoop:
    """Runs `read` after every `wake`, until it is stopped."""

    def __init__(self, what: str, read: Callable[[], Awaitable[None]]) -> None:
        self._what = what
        self._read = read
        self._wakeup = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def wake(self, _event: object = None) -> None:
        """Read again.  Always the same callable, so setting it as a watch twice is harmless."""
        self._wakeup.set()

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._wakeup.wait()
            self._wakeup.clear()
            try:
                await self._read()
            except ZooKeeperError as failure:
                # A reconnect wakes the loop as well; the timer is for a call that timed out.
                if not isinstance(failure, ConnectionLoss | SessionLost):
                    log.error("cannot read %s: %s", self._what, failure)
                loop.call_later(_PAUSE_S, self._wakeup.set)
            except Exception:
                log.exception("reading %s failed", self._what)
                loop.call_later(_PAUSE_S, self._wakeup.set)


async def in_groups(
    items: Sequence[Item], work: Callable[[Item], Awaitable[Result]]
) -> list[Result]:
    """Run `work` for all items, up to 200 at a time, and return the results in order."""
    results: list[Result] = []
    for start in range(0, len(items), _GROUP):
        results += await asyncio.gather(*map(work, items[start : start + _GROUP]))
    return results
