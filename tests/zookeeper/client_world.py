"""Helpers for tests of the client: sessions that are closed at the end, and a bad network."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import uvloop

from hightide.zookeeper.client import ZooKeeperClient
from hightide.zookeeper.interface import SessionState
from tests.support.eventually import eventually_async

TIMEOUT_MS = 2000
LIMIT_S = 60.0


def scenario(test: Callable[..., Any]) -> Callable[..., None]:
    """Run a test coroutine in its own event loop, with a time limit."""
    return _on_a_loop(test, asyncio.run)


def uvloop_scenario(test: Callable[..., Any]) -> Callable[..., None]:
    return _on_a_loop(test, uvloop.run)


def _on_a_loop(test: Callable[..., Any], run: Callable[..., None]) -> Callable[..., None]:
    async def limited(*arguments: Any, **fixtures: Any) -> None:
        async with asyncio.timeout(LIMIT_S):
            await test(*arguments, **fixtures)

    @functools.wraps(test)
    def on_a_loop(*arguments: Any, **fixtures: Any) -> None:
        run(limited(*arguments, **fixtures))

    on_a_loop.__signature__ = inspect.signature(test)  # type: ignore[attr-defined]
    return on_a_loop


@contextlib.asynccontextmanager
async def session(hosts: str, **options: Any) -> AsyncIterator[ZooKeeperClient]:
    options = {"session_timeout_ms": TIMEOUT_MS, "connection_timeout_ms": 20_000} | options
    client = await ZooKeeperClient.connect(hosts, **options)
    try:
        yield client
    finally:
        await client.close()


def block_until(condition: Callable[[], object], limit_s: float = 20.0) -> None:
    """Block the event loop until the condition is true."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true in time"
        time.sleep(0.005)


def block_for(seconds: float) -> None:
    """Block the event loop."""
    time.sleep(seconds)


class States(list[SessionState]):
    """The states of a client since, and its session at that time."""

    def __init__(self, client: ZooKeeperClient) -> None:
        self.times: list[float] = []
        self.sessions: list[int] = []
        self._client = client
        client.on_state(self._became)

    def _became(self, state: SessionState) -> None:
        self.append(state)
        self.times.append(time.monotonic())
        self.sessions.append(self._client.session_id)

    async def until(self, *states: SessionState) -> None:
        await eventually_async(lambda: tuple(self[-len(states) :]) == states)


@contextlib.contextmanager
def switched_off() -> Iterator[str]:
    """The address of a host that drops connections: its accept queue is full."""
    with contextlib.ExitStack() as sockets:
        full = sockets.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):
            one = sockets.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(full.getsockname())
        yield f"127.0.0.1:{full.getsockname()[1]}"


class Proxy:
    """A proxy that can break, refuse or hold back connections in either direction.

    It runs in a separate thread, so that a test may block its event loop.
    """

    def __init__(self, target: str, tls: ssl.SSLContext | None = None) -> None:
        """`tls` is for clients; the connection to the server is plain."""
        host, _, port = target.rpartition(":")
        self._tls = tls
        self._target = host, int(port)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = []
        self._refusing = False
        self.accepted_at: list[float] = []
        self._thread.start()
        self._do(self._listen())

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


@contextlib.contextmanager
def proxy_to(backend: Any) -> Iterator[Proxy]:
    """A proxy to the server, or to the first of an ensemble."""
    proxy = Proxy(backend.server.hosts.split(",")[0])
    try:
        yield proxy
    finally:
        proxy.close()
