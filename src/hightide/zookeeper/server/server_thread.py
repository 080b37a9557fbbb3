"""The embedded ZooKeeper server in a broker's process, in a separate thread and event loop.

A busy broker does not delay the sessions of other brokers, and the broker reaches its own ZooKeeper
over a socket, as all other brokers do.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future

from hightide.zookeeper.server.options import ServerOptions
from hightide.zookeeper.server.server import ZooKeeperServer

log = logging.getLogger("hightide.zookeeper")


class ServerThread:
    """A server that is started and stopped from another thread."""

    def __init__(self, options: ServerOptions) -> None:
        self.on_failure: Callable[[Exception], None] | None = None
        """Called from the server's thread when the server failed."""
        self.server: ZooKeeperServer | None = None
        self._options = options
        self._started: Future[tuple[str, int]] = Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._run, name="zookeeper", daemon=True)

    def start(self) -> tuple[str, int]:
        """Start the server and return host and port; raise what the server raised."""
        self._thread.start()
        try:
            return self._started.result()
        except BaseException:
            self._thread.join()
            raise

    def stop(self) -> None:
        """Stop, and wait until the file is closed. Stopping twice is not an error."""
        if self._loop is not None and self._stop is not None and self._thread.is_alive():
            try:
                self._loop.call_soon_threadsafe(self._stop.set)
            except RuntimeError:
                log.debug("ZooKeeper had already stopped")
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            failure = asyncio.run(self._serve())
        except BaseException as error:
            if not self._started.done():
                self._started.set_exception(error)
                return
            log.exception("the ZooKeeper thread failed")
            failure = error if isinstance(error, Exception) else RuntimeError(repr(error))
        if failure is not None and self.on_failure is not None:
            self.on_failure(failure)

    async def _serve(self) -> Exception | None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self.server = server = ZooKeeperServer(self._options)
        self._started.set_result(await server.start())
        waiting = asyncio.create_task(self._stop.wait())
        await asyncio.wait((waiting, server.failed), return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        await server.stop()
        return server.failed.result() if server.failed.done() else None
