"""A small HTTP server for metrics and health, on the broker's event loop.

h11 parses and frames.  Everything has a bound: the connections, the bytes and the seconds of a
request's head, and the seconds in which a client must take a response.  When all connections are
taken, a new one replaces the one that has been silent for longest, else the one that has been
taking its response for longest.  So clients that only hold connections do not keep others out.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import parse_qsl, urlsplit

import h11

log = logging.getLogger(__name__)

MOST_CONNECTIONS = 32
HEAD_BYTES = 8 * 1024
HEAD_S = 5.0
IDLE_S = 90.0
"""Prometheus asks every minute at most, and keeps its connection."""
SEND_S = 30.0
_READ_BYTES = 4 * 1024
_WRITE_BYTES = 64 * 1024
_BACKLOG = 64
_TEXT = ("Content-Type", "text/plain; charset=utf-8")


class Request(NamedTuple):
    """A GET request."""

    path: str
    query: dict[str, str]
    headers: dict[str, str]


class Response(NamedTuple):
    """What is sent back."""

    status: HTTPStatus
    body: bytes
    headers: list[tuple[str, str]]

    @classmethod
    def plain(cls, status: HTTPStatus, text: str, *headers: tuple[str, str]) -> Response:
        return cls(status, text.encode(), [_TEXT, *headers])


Respond = Callable[[Request], Awaitable[Response]]


class _Refused(Exception):
    """A request that gets an error response; then its connection is closed."""

    def __init__(self, response: Response) -> None:
        super().__init__(response.status.phrase)
        self.response = response


class HttpServer:
    """Accepts connections and passes their requests to `respond`."""

    def __init__(self, respond: Respond) -> None:
        self._respond = respond
        self._servers: list[asyncio.Server] = []
        # The open connections, the one that has been silent for longest first.
        self._connections: dict[_Connection, None] = {}

    async def listen(self, sock: socket.socket) -> None:
        server = await asyncio.start_server(
            self._accepted, sock=sock, limit=HEAD_BYTES, backlog=_BACKLOG
        )
        self._servers.append(server)

    async def stop(self) -> None:
        for server in self._servers:
            server.close()
        for connection in list(self._connections):
            connection.abort()

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) >= MOST_CONNECTIONS:
            replaced = self._replaceable()
            if replaced is None:
                writer.transport.abort()
                return
            self._forget(replaced)
            replaced.abort()
        connection = _Connection(reader, writer)
        self._connections[connection] = None
        try:
            while (request := await connection.read_request()) is not None:
                # It is the last one to be replaced.
                self._forget(connection)
                self._connections[connection] = None
                response = await self._respond(request)
                if not await connection.send(response):
                    break
        except _Refused as refused:
            await connection.send(refused.response)
        except (OSError, TimeoutError, h11.LocalProtocolError):
            pass  # the client is gone, or too slow
        except Exception:
            log.exception("a request for metrics failed")
        finally:
            self._forget(connection)
            connection.close()

    def _replaceable(self) -> _Connection | None:
        """A connection without a request, else one whose client is slow; the oldest."""
        silent = (c for c in self._connections if not c.is_responding)
        slow = (c for c in self._connections if c.is_sending)
        return next(silent, None) or next(slow, None)

    def _forget(self, connection: _Connection) -> None:
        self._connections.pop(connection, None)


class _Connection:
    """The server's side of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES)
        self.is_responding = False
        """Whether there is a request that has no complete response."""
        self.is_sending = False
        """Whether the response is complete, and the client is to take it."""

    async def read_request(self) -> Request | None:
        """Return the next request; None if the client is gone or has sent nothing for long."""
        self.is_responding = self.is_sending = False
        if not self._http.trailing_data[0]:
            try:
                async with asyncio.timeout(IDLE_S):
                    data = await self._reader.read(_READ_BYTES)
            except TimeoutError:
                return None
            self._receive(data)
        try:
            async with asyncio.timeout(HEAD_S):
                event = await self._next_event()
                if not isinstance(event, h11.Request):
                    return None
                self.is_responding = True
                request = _checked(event)
                if not isinstance(await self._next_event(), h11.EndOfMessage):
                    raise _Refused(_bad("a GET request has no body"))
                return request
        except TimeoutError:
            text = f"the request did not arrive in {HEAD_S:g} s\n"
            raise _Refused(Response.plain(HTTPStatus.REQUEST_TIMEOUT, text)) from None

    def _receive(self, data: bytes) -> None:
        try:
            self._http.receive_data(data)
        except h11.RemoteProtocolError as error:
            raise _Refused(_bad(str(error))) from None

    async def _next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        try:
            while (event := self._http.next_event()) is h11.NEED_DATA:
                self._receive(await self._reader.read(_READ_BYTES))
        except h11.RemoteProtocolError as error:
            raise _Refused(_bad(str(error))) from None
        return event

    async def send(self, response: Response) -> bool:
        """Send a response; return whether the connection takes another request."""
        self.is_sending = True
        keeps = self._http.their_state is h11.DONE
        if not self._may_respond():
            return False
        headers = [*response.headers, ("Content-Length", str(len(response.body)))]
        if not keeps:
            headers.append(("Connection", "close"))
        self._write(
            h11.Response(
                status_code=response.status.value,
                headers=headers,
                reason=response.status.phrase.encode(),
            )
        )
        async with asyncio.timeout(SEND_S):
            body = memoryview(response.body)
            for start in range(0, len(body), _WRITE_BYTES):
                self._write(h11.Data(data=bytes(body[start : start + _WRITE_BYTES])))
                await self._writer.drain()
            self._write(h11.EndOfMessage())
            await self._writer.drain()
        if not keeps:
            return False
        self._http.start_next_cycle()
        return True

    def _may_respond(self) -> bool:
        """Whether no response was begun, and the connection is not broken."""
        return self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE)

    def _write(self, event: h11.Event) -> None:
        if self._writer.is_closing():
            raise ConnectionResetError("the client is gone")  # uvloop raises RuntimeError
        self._writer.write(self._http.send(event) or b"")

    def close(self) -> None:
        self._writer.close()

    def abort(self) -> None:
        self._writer.transport.abort()


def _bad(problem: str) -> Response:
    return Response.plain(HTTPStatus.BAD_REQUEST, f"{problem}\n")


def _checked(event: h11.Request) -> Request:
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in event.headers}
    if event.method != b"GET":
        text = "only GET is served\n"
        raise _Refused(Response.plain(HTTPStatus.METHOD_NOT_ALLOWED, text, ("Allow", "GET")))
    try:
        target = urlsplit(event.target.decode("latin-1"))
        query = dict(parse_qsl(target.query, keep_blank_values=True))
    except ValueError as error:
        raise _Refused(_bad(f"the target is no URL: {error}")) from None
    return Request(target.path, query, headers)
