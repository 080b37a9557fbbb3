"""Group commit: for topics that want their records on disk before they are acknowledged.

A topic with `flush.messages` asks for a flush after so many messages.  A flush takes a thread and
hundreds of microseconds, so it is never done on the event loop, and never once per request: while
one runs, further appends go on, and the next flush is for all of them together.  Until its flush is
done, a record is neither acknowledged nor shown to consumers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from hightide.broker.connection import Connection, Slot
from hightide.broker.replica import Replica
from hightide.log.jobs import Flush

log = logging.getLogger(__name__)


@dataclass(slots=True)
class FlushedAnswer:
    """An answer that waits for the flushes of all its partitions."""

    connection: Connection
    slot: Slot
    encode: Callable[[set[Replica]], bytes]  # given the replicas whose flush failed
    missing: int
    failed: set[Replica]

    def flushed(self, replica: Replica, ok: bool) -> None:
        self.missing -= 1
        if not ok:
            self.failed.add(replica)
        if self.missing == 0:
            self.connection.complete(self.slot, self.encode(self.failed))


class Flusher:
    """Flushes replicas in threads, one flush at a time for each."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._waiting: dict[Replica, list[tuple[int, FlushedAnswer]]] = {}
        self._running: dict[Replica, asyncio.Task[None]] = {}

    def answer(
        self,
        connection: Connection,
        replicas: dict[Replica, int],
        encode: Callable[[set[Replica]], bytes],
    ) -> None:
        """Answer when each of `replicas` is on disk up to its offset."""
        waiting = FlushedAnswer(connection, connection.defer(), encode, len(replicas), set())
        for replica, end_offset in replicas.items():
            self._waiting.setdefault(replica, []).append((end_offset, waiting))
            self.flush(replica)

    def flush(self, replica: Replica) -> None:
        if replica not in self._running:
            task = asyncio.get_running_loop().create_task(self._flush(replica))
            self._running[replica] = task

    async def _flush(self, replica: Replica) -> None:
        log_ = replica.log
        try:
            while log_.failure is None and log_.end_offset >= log_.flush_at:
                job = Flush(log_, sealed_only=False, done=lambda: None)
                await asyncio.to_thread(job.run)
                job.finish()
                if log_.failure is None:
                    replica.flushed(log_.recovery_point)
                    self._settle(replica, log_.recovery_point)
                    self._wake()
        except Exception:
            log.exception("the flush of %s-%d failed", replica.topic, replica.partition)
        finally:
            del self._running[replica]
            # Nobody can say any more what of the rest is on disk.
            if log_.failure is not None:
                self._settle(replica, None)

    def _settle(self, replica: Replica, flushed_to: int | None) -> None:
        """Tell those who wait for offsets up to `flushed_to`; None: tell all that it failed."""
        waiting = self._waiting.pop(replica, [])
        later = []
        for end_offset, answer in waiting:
            if flushed_to is None or end_offset <= flushed_to:
                answer.flushed(replica, ok=flushed_to is not None)
            else:
                later.append((end_offset, answer))
        if later:
            self._waiting[replica] = later

    async def stop(self) -> None:
        """Wait for the flushes under way and for those that they lead to."""
        while self._running:
            await asyncio.wait(list(self._running.values()))
