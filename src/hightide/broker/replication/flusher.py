"""Group commit, for topics whose records must be on disk before they are acknowledged.

A topic with `flush.messages` asks for a flush after so many messages.  A flush takes a thread and
hundreds of microseconds, so it never runs on the event loop, and not once per request: while one
runs, more records are appended, and the next flush covers all of them.  Until its flush is done, a
record is neither acknowledged nor visible to consumers or followers.  A follower does not fetch on
before its flush, because its next fetch offset would tell the leader that it has the record.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from hightide.broker.metrics.counters import Durations
from hightide.broker.replication.replica import Replica
from hightide.log.disk import DiskFailed
from hightide.log.flush import Flush

log = logging.getLogger(__name__)


class Flusher:
    """Flushes replicas in threads, one flush at a time for each."""

    def __init__(
        self, wake: Callable[[], None], clock_s: Callable[[], float] = time.perf_counter
    ) -> None:
        self._wake = wake
        # Finer than the event loop's clock, which has milliseconds.
        self._clock_s = clock_s
        self._running: dict[Replica, asyncio.Task[None]] = {}
        self.durations = Durations()

    def flush(self, replica: Replica) -> asyncio.Task[None]:
        """Flush a replica; the task is done when nothing is left that must be on disk."""
        task = self._running.get(replica)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._flush(replica))
            self._running[replica] = task
        return task

    async def _flush(self, replica: Replica) -> None:
        log_, is_flushed = replica.log, False
        clock = self._clock_s
        try:
            while log_.failure is None and log_.end_offset >= log_.flush_at:
                job = Flush(log_, sealed_only=False, done=lambda: None)
                began_s = clock()
                await asyncio.to_thread(job.run)
                self.durations.add(clock() - began_s)
                job.finish()
                if job.failure is not None:
                    break
                replica.flushed(log_.recovery_point)
                self._wake()
            else:
                is_flushed = log_.failure is None
        except DiskFailed as failure:
            log_.disk_failed(failure)
        except Exception:
            log.exception("cannot flush %s-%d", replica.topic, replica.partition)
        finally:
            del self._running[replica]
            if not is_flushed:
                replica.flush_failed()

    async def stop(self) -> None:
        """Wait for all flushes, including those that start meanwhile."""
        while self._running:
            await asyncio.wait(list(self._running.values()))
