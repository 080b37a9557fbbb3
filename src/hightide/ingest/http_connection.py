"""One HTTP/1.1 connection of `ingest http`: requests in, JSON responses out.

h11 parses and frames; this module adds the I/O, the limits and the words of the errors. Everything
has a bound: the head, a chunk line, and the body both before and after decompression.
"""

from __future__ import annotations

import asyncio
import json
import urllib.parse
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import h11

HEAD_BYTES = 32 << 10
READ_BYTES = 16 << 10
# How much one turn of the event loop does.
TURN_EVENTS = 200
TURN_BYTES = 1 << 20
# gzip allows many members in one body; each costs time without adding bytes.
MEMBERS = 100


class HttpError(Exception):
    """A request that gets an error response; by default the connection is closed after it."""

    def __init__(
        self, status: HTTPStatus, reason: str, *, keeps_alive: bool = False, **fields: Any
    ) -> None:
        super().__init__(reason)
        self.status = status
        self.body = {"error": f"{status.value} {status.phrase}: {reason}", **fields}
        self.keeps_alive = keeps_alive


@dataclass(frozen=True, slots=True)
class Request:
    """A request without its body."""

    method: str
    host: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]

    @property
    def media_type(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def is_chunked(self) -> bool:
        return "transfer-encoding" in self.headers

    @property
    def length(self) -> int | None:
        # h11 has checked that it is a number.
        length = self.headers.get("content-length")
        return None if length is None else int(length)


class HttpConnection:
    """The server's side of one connection."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        head_bytes: int = HEAD_BYTES,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=head_bytes)
        # Whether the request is a HEAD request, whose response has no body.
        self._is_head = False

    async def read_request(self) -> Request | None:
        """Return the next request, or None if the client has closed the connection."""
        self._is_head = False
        event = await self._next_event()
        if not isinstance(event, h11.Request):
            return None
        self._is_head = event.method == b"HEAD"
        if not event.http_version.startswith(b"1."):
            version = event.http_version.decode("latin-1")
            raise HttpError(HTTPStatus.BAD_REQUEST, f"HTTP/{version} is not HTTP/1.1")
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in event.headers}
        if "transfer-encoding" in headers and "content-length" in headers:
            # h11 would ignore the length. A proxy may do the opposite, and smuggle a request.
            raise HttpError(
                HTTPStatus.BAD_REQUEST, "send Content-Length or Transfer-Encoding, not both"
            )
        try:
            target = urllib.parse.urlsplit(event.target.decode("latin-1"))
        except ValueError as error:
            raise HttpError(HTTPStatus.BAD_REQUEST, f"the target is no URL: {error}") from None
        request = Request(
            method=event.method.decode("latin-1"),
            # A target with an authority counts instead of the header, as HTTP says.
            host=target.netloc or headers.get("host", ""),
            path=urllib.parse.unquote(target.path),
            query=dict(urllib.parse.parse_qsl(target.query, keep_blank_values=True)),
            headers=headers,
        )
        if not request.is_chunked and not request.length:
            await self._next_event()  # The end of a request without a body; h11 needs no bytes.
        return request

    async def read_body(self, request: Request, limit: int, hold: Callable[[int], None]) -> bytes:
        """Return the body, decompressed; raise HttpError if it has more bytes than the limit.

        `hold` is called with the number of bytes that are kept, and may refuse them.
        """
        if not request.is_chunked:
            if request.length is None:
                raise HttpError(HTTPStatus.LENGTH_REQUIRED, "Content-Length is missing")
            if request.length > limit:
                raise _too_large(limit)
        if self._http.they_are_waiting_for_100_continue:
            self._write(h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue"))
        body = bytearray()
        events = 0
        while self._http.their_state is h11.SEND_BODY:
            event = await self._next_event()
            events += 1
            if events % TURN_EVENTS == 0:
                await asyncio.sleep(0)  # A body may have a chunk for each byte.
            if isinstance(event, h11.Data):
                hold(len(event.data))
                body += event.data
                if len(body) > limit:
                    raise _too_large(limit)
        return await _decompressed(request, bytes(body), limit, hold)

    async def respond(self, status: HTTPStatus, body: dict[str, Any], *, keeps_alive: bool) -> bool:
        """Send a response, and return whether the connection takes another request.

        The connection is closed if a part of the request was not read: its rest must not be taken
        for the next request.
        """
        data = json.dumps(body).encode() + b"\n"
        is_read = self._http.their_state is h11.DONE
        keeps_alive = keeps_alive and is_read
        headers = [
            ("Content-Type", "application/json"),
            ("Content-Length", str(len(data))),
            ("Connection", "keep-alive" if keeps_alive else "close"),
        ]
        if status == HTTPStatus.SERVICE_UNAVAILABLE:
            headers.append(("Retry-After", "1"))
        self._write(
            h11.Response(status_code=status.value, headers=headers, reason=status.phrase.encode())
        )
        if not self._is_head:
            self._write(h11.Data(data=data))
        self._write(h11.EndOfMessage())
        await self._writer.drain()
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            return False
        self._http.start_next_cycle()
        return True

    def _write(self, event: h11.Event) -> None:
        self._writer.write(self._http.send(event) or b"")

    async def _next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """Return the next event of h11, reading as many bytes as it needs; never NEED_DATA."""
        try:
            while (event := self._http.next_event()) is h11.NEED_DATA:
                self._http.receive_data(await self._reader.read(READ_BYTES))
        except h11.RemoteProtocolError as error:
            raise HttpError(HTTPStatus(error.error_status_hint), str(error)) from None
        return event


async def _decompressed(
    request: Request, data: bytes, limit: int, hold: Callable[[int], None]
) -> bytes:
    coding = request.headers.get("content-encoding", "identity").lower()
    if coding == "identity":
        return data
    if coding not in ("gzip", "deflate"):
        raise HttpError(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            f"Content-Encoding is {coding}; send gzip, deflate or identity",
            keeps_alive=True,
        )
    body = bytearray()
    for _ in range(MEMBERS):
        decompressor = zlib.decompressobj(wbits=47 if coding == "gzip" else 15)
        while data and not decompressor.eof:
            try:
                part = decompressor.decompress(data, min(TURN_BYTES, limit + 1 - len(body)))
            except zlib.error as error:
                raise HttpError(
                    HTTPStatus.BAD_REQUEST, f"the body is not {coding}: {error}"
                ) from None
            hold(len(part))
            body += part
            if len(body) > limit:
                raise _too_large(limit)
            data = decompressor.unconsumed_tail
            await asyncio.sleep(0)
        if not decompressor.eof:
            raise HttpError(
                HTTPStatus.BAD_REQUEST, f"the {coding} body is incomplete", keeps_alive=True
            )
        # A gzip file may have several members, one after the other.
        data = decompressor.unused_data
        if not data:
            return bytes(body)
    raise HttpError(HTTPStatus.BAD_REQUEST, f"the body has more than {MEMBERS} gzip members")


def _too_large(limit: int) -> HttpError:
    return HttpError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body has more than {limit} bytes")
