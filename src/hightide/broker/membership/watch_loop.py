"""A part of the tree that this broker keeps a picture of: read again whenever it may have changed.

A watch only says "go and read", and none survives a lost connection.  So there is one way to be up
to date: arm the watch and read, when something fires it, and after every reconnect.  Readings of
one part never overlap; what fires during one causes one more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from hightide.zookeeper.errors import ConnectionLoss, SessionLost, ZooKeeperError

log = logging.getLogger(__name__)

_PAUSE_S = 1.0
_GROUP = 200

Item = TypeVar("Item")
Result = TypeVar("Result")


class WatchLoop:
    """Runs `read` each time it is woken, until it is stopped."""

    def __init__(self, what: str, read: Callable[[], Awaitable[None]]) -> None:
        self._what = what
        self._read = read
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def wake(self, _event: object = None) -> None:
        """Read again.  It is the same callable every time, so it can be armed as a watch twice."""
        self._wanted.set()

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
            await self._wanted.wait()
            self._wanted.clear()
            try:
                await self._read()
            except ZooKeeperError as failure:
                # A reconnect wakes us too; the timer is for a call that only took too long.
                if not isinstance(failure, ConnectionLoss | SessionLost):
                    log.error("cannot read %s: %s", self._what, failure)
                loop.call_later(_PAUSE_S, self._wanted.set)
            except Exception:
                log.exception("reading %s failed", self._what)
                loop.call_later(_PAUSE_S, self._wanted.set)


async def in_groups(
    items: Sequence[Item], work: Callable[[Item], Awaitable[Result]]
) -> list[Result]:
    """What `work` makes of each item, many at a time: one by one, each would wait for the last."""
    results: list[Result] = []
    for start in range(0, len(items), _GROUP):
        results += await asyncio.gather(*map(work, items[start : start + _GROUP]))
    return results
