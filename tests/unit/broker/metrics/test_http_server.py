"""The HTTP server: requests of good clients, and the limits for the others."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from http import HTTPStatus

import pytest

from hightide.broker.metrics import http_server
from hightide.broker.metrics.http_server import HttpServer, Request, Response
from tests.support.eventually import eventually_async

GET = b"GET /a?b=c HTTP/1.1\r\nHost: h\r\n\r\n"
LARGE = 8 << 20


class World:
    """A server, and what it was asked."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.server = HttpServer(self.respond)
        self.gate = asyncio.Event()
        self.gate.set()
        self.port = 0

    async def respond(self, request: Request) -> Response:
        self.requests.append(request)
        await self.gate.wait()
        if request.path == "/bug":
            raise ZeroDivisionError
        if request.path == "/large":
            return Response(HTTPStatus.OK, bytes(LARGE), [])
        return Response.plain(HTTPStatus.OK, "found\n")

    async def client(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[World]:
    world = World()
    sock = socket.create_server(("127.0.0.1", 0))
    world.port = sock.getsockname()[1]
    await world.server.listen(sock)
    try:
        yield world
    finally:
        await world.server.stop()


async def ended(reader: asyncio.StreamReader) -> bytes:
    """What comes until the server closes the connection."""
    found = b""
    with contextlib.suppress(ConnectionResetError):
        while part := await asyncio.wait_for(reader.read(65536), 60):
            found += part
    return found


def test_a_connection_serves_one_request_after_the_other() -> None:
    async def test() -> None:
        async with serving() as world:
            reader, writer = await world.client()
            # The second and the third come at once.
            for sent, count in ((GET, 1), (GET + GET, 2)):
                writer.write(sent)
                for _ in range(count):
                    head = await reader.readuntil(b"\r\n\r\n")
                    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
                    assert await reader.readexactly(6) == b"found\n"
            assert world.requests[2] == Request("/a", {"b": "c"}, {"host": "h"})
            writer.close()

    asyncio.run(test())


def test_a_request_may_come_in_pieces() -> None:
    async def test() -> None:
        async with serving() as world:
            reader, writer = await world.client()
            for at in range(len(GET)):
                writer.write(GET[at : at + 1])
                await writer.drain()
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            writer.close()

    asyncio.run(test())


def test_a_request_that_does_not_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "HEAD_S", 0.01)

    async def test() -> None:
        async with serving() as world:
            reader, writer = await world.client()
            writer.write(GET[:20])
            assert (await ended(reader)).startswith(b"HTTP/1.1 408 ")
            writer.close()
            assert world.requests == []

    asyncio.run(test())


def test_a_silent_connection_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "IDLE_S", 0.01)

    async def test() -> None:
        async with serving() as world:
            reader, writer = await world.client()
            assert await ended(reader) == b""
            writer.close()

    asyncio.run(test())


def test_a_client_that_does_not_take_its_response_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_server, "SEND_S", 0.01)

    async def test() -> None:
        async with serving() as world:
            reader, writer = await world.client()
            # The reader stops reading after 128 KiB; the rest stays in the sockets.
            writer.write(GET.replace(b"/a", b"/large"))
            await eventually_async(lambda: world.requests)
            await eventually_async(lambda: not world.server._connections)
            assert len(await ended(reader)) < LARGE
            writer.close()

    asyncio.run(test())


def test_a_new_connection_replaces_a_silent_one_then_a_slow_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_server, "MOST_CONNECTIONS", 2)

    async def test() -> None:
        async with serving() as world:
            slow, slow_writer = await world.client()
            slow_writer.write(GET.replace(b"/a", b"/large"))
            await eventually_async(lambda: any(c.is_sending for c in world.server._connections))
            silent, silent_writer = await world.client()
            await eventually_async(lambda: len(world.server._connections) == 2)
            # The silent one goes first, then the slow one.
            world.gate.clear()
            waiting, waiting_writer = await world.client()
            waiting_writer.write(GET)
            await eventually_async(lambda: len(world.requests) == 2)
            assert await ended(silent) == b""
            other, other_writer = await world.client()
            other_writer.write(GET)
            await eventually_async(lambda: len(world.requests) == 3)
            assert len(await ended(slow)) < LARGE
            # Both wait for their responses, so one more is turned away.
            late, late_writer = await world.client()
            assert await ended(late) == b""
            world.gate.set()
            for reader in (waiting, other):
                assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            for writer in (
                slow_writer, silent_writer, waiting_writer, other_writer, late_writer,
            ):  # fmt: skip
                writer.close()

    asyncio.run(test())


def test_a_bug_closes_one_connection_and_no_other(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with serving() as world:
            reader, writer = await world.client()
            writer.write(GET.replace(b"/a", b"/bug"))
            assert await ended(reader) == b""
            writer.close()
            again, other = await world.client()
            other.write(GET)
            assert (await again.readline()).startswith(b"HTTP/1.1 200")
            other.close()

    asyncio.run(test())
    assert "a request for metrics failed" in caplog.text
