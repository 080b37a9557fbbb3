"""Background work on the logs: retention, compaction, flushes, checkpoints.

The log manager decides what is due.  The slow part of each job runs in a thread; its result is
applied on the event loop, which owns the logs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from hightide.log.log_manager import LogManager

log = logging.getLogger(__name__)

_EVERY_S = 1.0


class Housekeeping:
    """Runs the log manager's jobs, one at a time."""

    def __init__(self, log_manager: LogManager, now_ms: Callable[[], int]) -> None:
        self._log_manager = log_manager
        self._now_ms = now_ms
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Stop after the current job."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_EVERY_S)
            try:
                await self._jobs()
            except Exception:
                # A failure of one log must not keep the others from housekeeping.
                log.exception("housekeeping failed; the next run is in %.0f s", _EVERY_S)

    async def _jobs(self) -> None:
        for job in self._log_manager.jobs(self._now_ms()):
            # A job that has started is finished, even if the broker stops meanwhile.
            running = asyncio.ensure_future(asyncio.to_thread(job.run))
            try:
                await asyncio.shield(running)
            except asyncio.CancelledError:
                await asyncio.wait([running])
                raise
            finally:
                if running.done() and not running.cancelled() and running.exception() is None:
                    job.finish()
