"""A coordinator beside a broker: in the same process, in a thread and an event loop of its own.

So a broker that is busy does not keep other brokers' sessions waiting, and the broker reaches its
own coordinator as every other one does, over a socket.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future

from hightide.zookeeper.server.options import ServerOptions
from hightide.zookeeper.server.server import ZooKeeperServer

log = logging.getLogger("hightide.coordinator")


class ServerThread:
    """A coordinator that is started and stopped from another thread."""

    def __init__(self, options: ServerOptions) -> None:
        self.on_failure: Callable[[Exception], None] | None = None
        """Called from the coordinator's thread when it ended by itself: a commit failed."""
        self.coordinator: ZooKeeperServer | None = None
        self._options = options
        self._started: Future[tuple[str, int]] = Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._run, name="coordinator", daemon=True)

    def start(self) -> tuple[str, int]:
        """Serve; where. Raises what kept it from doing so."""
        self._thread.start()
        try:
            return self._started.result()
        except BaseException:
            self._thread.join()
            raise

    def stop(self) -> None:
        """Stop, and wait until the file is let go of. Twice is no error."""
        if self._loop is not None and self._stop is not None and self._thread.is_alive():
            try:
                self._loop.call_soon_threadsafe(self._stop.set)
            except RuntimeError:
                log.debug("the coordinator had stopped by itself")
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            failure = asyncio.run(self._serve())
        except BaseException as error:
            if not self._started.done():
                self._started.set_exception(error)
                return
            log.exception("the coordinator's thread failed")
            failure = error if isinstance(error, Exception) else RuntimeError(repr(error))
        if failure is not None and self.on_failure is not None:
            self.on_failure(failure)

    async def _serve(self) -> Exception | None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self.coordinator = coordinator = ZooKeeperServer(self._options)
        self._started.set_result(await coordinator.start())
        waiting = asyncio.create_task(self._stop.wait())
        await asyncio.wait((waiting, coordinator.failed), return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        await coordinator.stop()
        return coordinator.failed.result() if coordinator.failed.done() else None
