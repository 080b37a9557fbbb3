"""As much of HTTP/1.1 as a receiver of lines needs: one request read from a stream, one answer.

Everything has a bound: the head, the body, before and after it is unpacked.
"""

from __future__ import annotations

import asyncio
import json
import urllib.parse
import zlib
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

HEAD_BYTES = 32 << 10


class Refused(Exception):
    """A request that gets an answer with an error; the connection may have to be closed then."""

    def __init__(self, status: HTTPStatus, words: str, *, keeps: bool = False, **more: Any) -> None:
        super().__init__(words)
        self.status = status
        self.body = {"error": words, **more}
        self.keeps = keeps


@dataclass(frozen=True, slots=True)
class Head:
    """The first lines of a request."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    keeps_alive: bool

    @property
    def media_type(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()


async def read_head(reader: asyncio.StreamReader) -> Head | None:
    """None if the client has nothing more to ask."""
    try:
        data = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    except asyncio.LimitOverrunError:
        raise Refused(
            HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "The head of the request is too long."
        ) from None
    first, *rest = data.decode("latin-1").split("\r\n")[:-2]
    parts = first.split(" ")
    if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
        raise Refused(HTTPStatus.BAD_REQUEST, f"{first[:80]!r} is no request of HTTP/1.1.")
    headers: dict[str, str] = {}
    for line in rest:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise Refused(HTTPStatus.BAD_REQUEST, f"{line[:80]!r} is no header.")
        headers[name.lower()] = value.strip()
    target = urllib.parse.urlsplit(parts[1])
    connection = headers.get("connection", "").lower()
    return Head(
        method=parts[0],
        path=urllib.parse.unquote(target.path),
        query=dict(urllib.parse.parse_qsl(target.query, keep_blank_values=True)),
        headers=headers,
        keeps_alive=connection == "keep-alive" if parts[2] == "HTTP/1.0" else connection != "close",
    )


async def read_body(
    head: Head, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limit: int
) -> bytes:
    is_chunked = head.headers.get("transfer-encoding", "").lower() == "chunked"
    if is_chunked and "content-length" in head.headers:
        raise Refused(HTTPStatus.BAD_REQUEST, "The length of the body is said in two ways.")
    length = _length(head, limit) if not is_chunked else 0
    if head.headers.get("expect", "").lower() == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    try:
        data = await (_chunks(reader, limit) if is_chunked else reader.readexactly(length))
    except asyncio.IncompleteReadError:
        raise Refused(HTTPStatus.BAD_REQUEST, "The body ended too early.") from None
    return _unpacked(head, data, limit)


def _length(head: Head, limit: int) -> int:
    text = head.headers.get("content-length")
    if text is None:
        raise Refused(HTTPStatus.LENGTH_REQUIRED, "The length of the body is not said.")
    if not text.isascii() or not text.isdecimal():
        raise Refused(HTTPStatus.BAD_REQUEST, f"Content-Length is {text[:40]!r}.")
    if int(text) > limit:
        raise _too_large(limit)
    return int(text)


async def _chunks(reader: asyncio.StreamReader, limit: int) -> bytes:
    body = bytearray()
    while True:
        line = await reader.readuntil(b"\r\n")
        try:
            size = int(line.partition(b";")[0], 16)
        except ValueError:
            raise Refused(HTTPStatus.BAD_REQUEST, "A chunk of the body has no length.") from None
        if size < 0 or len(body) + size > limit:
            raise _too_large(limit)
        if size == 0:
            break
        body += await reader.readexactly(size)
        await reader.readexactly(2)
    # Trailers, which nobody sends, end with an empty line.
    while await reader.readuntil(b"\r\n") != b"\r\n":
        pass
    return bytes(body)


def _unpacked(head: Head, data: bytes, limit: int) -> bytes:
    coding = head.headers.get("content-encoding", "identity").lower()
    if coding == "identity":
        return data
    if coding not in ("gzip", "deflate"):
        raise Refused(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"The body is {coding}; it may be gzip.", keeps=True
        )
    unpacker = zlib.decompressobj(wbits=47 if coding == "gzip" else 15)
    try:
        body = unpacker.decompress(data, limit + 1)
    except zlib.error as error:
        raise Refused(HTTPStatus.BAD_REQUEST, f"The body is no {coding}: {error}.") from None
    if len(body) > limit:
        raise _too_large(limit)
    if not unpacker.eof:
        raise Refused(HTTPStatus.BAD_REQUEST, f"The {coding} of the body is torn.", keeps=True)
    return body


def _too_large(limit: int) -> Refused:
    return Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"The body has more than {limit} bytes.")


def answer(status: HTTPStatus, body: dict[str, Any], *, keeps_alive: bool) -> bytes:
    data = json.dumps(body).encode() + b"\n"
    lines = [
        f"HTTP/1.1 {status.value} {status.phrase}",
        "Content-Type: application/json",
        f"Content-Length: {len(data)}",
        f"Connection: {'keep-alive' if keeps_alive else 'close'}",
    ]
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        lines.append("Retry-After: 1")
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + data
