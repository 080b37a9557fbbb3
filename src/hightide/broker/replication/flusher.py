"""Group commit: for topics that want their records on disk before they are acknowledged.

A topic with `flush.messages` asks for a flush after so many messages.  A flush takes a thread and
hundreds of microseconds, so it is never done on the event loop, and never once per request: while
one runs, further appends go on, and the next flush is for all of them together.  Until its flush is
done, a record is neither acknowledged nor shown to anybody, followers included; and a follower does
not ask for more, which would tell its leader that it has it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from hightide.broker.replication.replica import Replica
from hightide.log.jobs import Flush

log = logging.getLogger(__name__)


class Flusher:
    """Flushes replicas in threads, one flush at a time for each."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._running: dict[Replica, asyncio.Task[None]] = {}

    def flush(self, replica: Replica) -> asyncio.Task[None]:
        """Begin, or go on; the task is done when there is nothing left that has to be on disk."""
        task = self._running.get(replica)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._flush(replica))
            self._running[replica] = task
        return task

    async def _flush(self, replica: Replica) -> None:
        log_ = replica.log
        try:
            while log_.failure is None and log_.end_offset >= log_.flush_at:
                job = Flush(log_, sealed_only=False, done=lambda: None)
                await asyncio.to_thread(job.run)
                job.finish()
                if log_.failure is None:
                    replica.flushed(log_.recovery_point)
                    self._wake()
        except Exception:
            log.exception("the flush of %s-%d failed", replica.topic, replica.partition)
        finally:
            del self._running[replica]
            if log_.failure is not None:
                replica.flush_failed()

    async def stop(self) -> None:
        """Wait for the flushes under way and for those that they lead to."""
        while self._running:
            await asyncio.wait(list(self._running.values()))
