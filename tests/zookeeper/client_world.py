"""Helpers for tests of the client: sessions that are closed at the end, and a bad network."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import uvloop

from hightide.zookeeper.client import ZooKeeperClient
from hightide.zookeeper.interface import SessionState
from tests.support.eventually import eventually_async
from tests.support.proxy import Proxy

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


@contextlib.contextmanager
def proxy_to(backend: Any) -> Iterator[Proxy]:
    """A proxy to the server, or to the first of an ensemble."""
    proxy = Proxy(backend.server.hosts.split(",")[0])
    try:
        yield proxy
    finally:
        proxy.close()
