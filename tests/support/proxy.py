"""A proxy between a client and a server, for tests of a bad network."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
import time
from typing import Any


class Proxy:
    """A proxy that can break, refuse or hold back connections in either direction.

    It runs in a separate thread, so that a test may block its event loop.
    """

    def __init__(self, target: str, tls: ssl.SSLContext | None = None) -> None:
        """`tls` is for clients; the connection to the server is plain."""
        self._tls = tls
        self.forward_to(target)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = []
        self._refusing = False
        self.accepted_at: list[float] = []
        self._thread.start()
        self._do(self._listen())

    def forward_to(self, target: str) -> None:
        """Connect new clients to this address from now on."""
        host, _, port = target.rpartition(":")
        self._target = host, int(port)

    def _do(self, action: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(action, self._loop).result(10)

    async def _listen(self) -> None:
        self._requests = asyncio.Event()
        self._responses = asyncio.Event()
        self._requests.set()
        self._responses.set()
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, ssl=self._tls)
        self.hosts = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted_at.append(time.monotonic())
        if self._refusing:
            writer.transport.abort()
            return
        server_reader, server_writer = await asyncio.open_connection(*self._target)
        self._writers.append((writer, server_writer))
        for pump in (
            self._pump(reader, server_writer, self._requests),
            self._pump(server_reader, writer, self._responses),
        ):
            task = self._loop.create_task(pump)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gate: asyncio.Event
    ) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                await gate.wait()
                writer.write(data)
                await writer.drain()
        await gate.wait()
        writer.close()

    async def _cut(self, refusing: bool) -> None:
        self._refusing = refusing
        for pair in self._writers:
            for writer in pair:
                writer.transport.abort()
        self._writers.clear()

    async def _set(self, requests: bool, responses: bool) -> None:
        for gate, is_open in ((self._requests, requests), (self._responses, responses)):
            if is_open:
                gate.set()
            else:
                gate.clear()

    async def _say(self, data: bytes) -> None:
        for writer, _ in self._writers:
            writer.write(data)

    def cut(self) -> None:
        """Break every connection; accept new ones."""
        self._do(self._cut(refusing=False))

    def refuse(self) -> None:
        """Break every connection, and close new ones at once."""
        self._do(self._cut(refusing=True))

    def silence(self) -> None:
        """Hold back everything, with connections left open."""
        self._do(self._set(requests=False, responses=False))

    def hold_responses(self) -> None:
        """Let requests through to the server and hold back its responses."""
        self._do(self._set(requests=True, responses=False))

    def heal(self) -> None:
        self._do(self._set(requests=True, responses=True))
        self._refusing = False

    def lose_responses(self) -> None:
        """Break the connections whose responses were held back, and accept new ones."""
        self.cut()
        self.heal()

    def say(self, data: bytes) -> None:
        """Send bytes to the client that the server did not send."""
        self._do(self._say(data))

    async def _close(self) -> None:
        await self._cut(refusing=True)
        self._server.close()
        await self._set(requests=True, responses=True)
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def close(self) -> None:
        self._do(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()
