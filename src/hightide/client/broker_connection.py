"""One connection to one broker: sends requests and matches responses to callers.

    caller ── send(request) ──▶ frame with a correlation id ──▶ socket
    caller ◀── future ◀── response with the same correlation id ◀── socket

Requests are pipelined: many may be in flight, and the correlation id of a response finds its
caller.  The version of a request is the highest that both sides know, learned from ApiVersions when
the connection opens.  The class is an asyncio protocol with callbacks rather than a reader task, so
that closing cancels nothing.

A broker may be broken or of another make, so nothing it sends is trusted: the length of a response
is checked before any of it is stored, a response with an unknown correlation id ends the
connection, and a caller waits no longer than its timeout.

Responses are received in a buffer that grows with them.  A small response is copied out of the
buffer.  A large one is handed over with the buffer, so that megabytes of records, which followers
fetch, are not copied at all.  When the caller is done with it, `recycle` returns the buffer for
the next response.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import ssl
import struct
from collections.abc import Callable
from typing import Any, Self, TypeVar, cast

from hightide import __version__, tcp
from hightide.client.security import PLAINTEXT, Security
from hightide.wire import frame
from hightide.wire.codec import decode
from hightide.wire.errors import ErrorCode, KafkaError, WireError
from hightide.wire.messages import RESPONSES
from hightide.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from hightide.wire.types import api_of

T = TypeVar("T")
CLIENT_ID = "hightide"
TIMEOUT_MS = 30_000
MAX_RESPONSE_BYTES = 64 * 1024 * 1024
API_VERSIONS = 18
LENGTH = struct.Struct(">i")
ERROR_CODE = struct.Struct(">h")
RECEIVE_BYTES = 64 * 1024
_LARGE_BYTES = 16 * 1024
_KEPT_BYTES = 4 * 1024 * 1024
CODES = {code.value: code for code in ErrorCode}


class ConnectionFailed(Exception):
    """A broker cannot be reached, or a connection broke; the text names the address."""


class Connection(asyncio.BufferedProtocol):
    """An open connection; made by `Connection.open`, ended by `close`."""

    def __init__(self, host: str, port: int, client_id: str, max_response_bytes: int) -> None:
        self.address = f"{host}:{port}"
        self.client_id = client_id
        self.versions: dict[int, tuple[int, int]] = {}
        self.max_response_bytes = max_response_bytes
        self._transport: asyncio.Transport | None = None
        self._buffer = memoryview(bytearray(RECEIVE_BYTES))
        self._filled = 0
        self._ids = itertools.count(1)
        # Includes requests whose callers have given up: their responses may still arrive.
        self._pending: dict[int, tuple[asyncio.Future[memoryview], asyncio.TimerHandle]] = {}
        self._failure: ConnectionFailed | None = None

    @classmethod
    async def open(
        cls,
        host: str,
        port: int,
        *,
        client_id: str = CLIENT_ID,
        timeout_ms: int = TIMEOUT_MS,
        max_response_bytes: int = MAX_RESPONSE_BYTES,
        security: Security = PLAINTEXT,
        is_peer: bool = False,
    ) -> Self:
        """Connect, learn the broker's API versions, and authenticate if `security` says so.

        With `is_peer`, a cut of the network closes the connection, and ends the attempt to connect,
        within seconds (`hightide/tcp.py`): the caller connects again at once.
        """
        connection = cls(host, port, client_id, max_response_bytes)
        if is_peer:
            await connection._connect_to_peer(host, port, timeout_ms)
        else:
            await connection._connect(host, port, timeout_ms, security.tls)
        try:
            await connection._negotiate(timeout_ms)
            if security.sasl is not None:
                # Imported when needed: brokers, which are clients too, do not use it.
                from hightide.client.sasl import authenticate

                await authenticate(connection.send, security.sasl, connection.address)
        except BaseException:
            connection.close()
            raise
        return connection

    async def _connect(
        self, host: str, port: int, timeout_ms: int, tls: ssl.SSLContext | None = None
    ) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await loop.create_connection(lambda: self, host, port, ssl=tls)
        except TimeoutError:
            why = f"{host}:{port} did not accept a connection within {timeout_ms} ms."
            raise ConnectionFailed(why) from None
        except OSError as error:
            raise ConnectionFailed(f"Cannot connect to {host}:{port}: {_why(error)}") from error

    async def _connect_to_peer(self, host: str, port: int, timeout_ms: int) -> None:
        """Look up the addresses, which may take long, and connect to one, which may not."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (TimeoutError, OSError) as error:
            raise ConnectionFailed(f"Cannot find the address of {host}: {_why(error)}") from error
        addresses = list(dict.fromkeys(str(where[0]) for *_, where in found))
        for address in addresses:
            try:
                await self._connect(address, port, min(timeout_ms, tcp.CONNECT_MS))
                break
            except ConnectionFailed:
                if address == addresses[-1]:
                    raise
        assert self._transport is not None
        connected = self._transport.get_extra_info("socket")
        if connected is not None:
            tcp.peer_options(connected)

    async def _negotiate(self, timeout_ms: int) -> None:
        request = ApiVersionsRequest(
            client_software_name=CLIENT_ID, client_software_version=__version__
        )
        _, version = api_of(ApiVersionsRequest).versions
        answer = await self._api_versions(request, version, timeout_ms)
        if answer.error_code == ErrorCode.UNSUPPORTED_VERSION:
            # A broker since KIP-511 returns the versions of ApiVersions that it knows; an older
            # one returns none.  Every broker knows version 0.
            known = {api.api_key: api.max_version for api in answer.api_keys}
            older = min(known.get(API_VERSIONS, 0), version - 1)
            answer = await self._api_versions(request, older, timeout_ms)
        check(answer.error_code, about=self.address)
        self.versions = {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}

    async def _api_versions(
        self, request: ApiVersionsRequest, version: int, timeout_ms: int
    ) -> ApiVersionsResponse:
        answer = await self._exchange(request, version, timeout_ms)
        # An UNSUPPORTED_VERSION response has the layout of version 0, because both sides know that
        # one.  Some servers get that wrong, but the error code comes first in all versions.
        body = answer[LENGTH.size :]
        if len(body) >= 2 and ERROR_CODE.unpack_from(body)[0] == ErrorCode.UNSUPPORTED_VERSION:
            try:
                return decode(ApiVersionsResponse, body, 0)
            except WireError:
                return ApiVersionsResponse(
                    error_code=ErrorCode.UNSUPPORTED_VERSION.value, api_keys=[]
                )
        return self.read(lambda: decode(ApiVersionsResponse, body, version))

    # -- requests --------------------------------------------------------------------------

    def version_for(self, request_type: Any) -> int:
        """The highest version of a request that both sides know."""
        api = api_of(request_type)
        assert api.key is not None
        lowest, highest = api.versions
        theirs = self.versions.get(api.key)
        if theirs is None:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"{self.address} does not offer {_api_name(request_type)}.",
            )
        version = min(highest, theirs[1])
        if version < max(lowest, theirs[0]):
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"{self.address} offers {_api_name(request_type)} in versions {theirs[0]} to "
                f"{theirs[1]}, and this client knows {lowest} to {highest}.",
            )
        return version

    async def send(
        self, request: Any, *, version: int | None = None, timeout_ms: int = TIMEOUT_MS
    ) -> Any:
        """Send a request and return the decoded response.  Its error codes are data."""
        chosen = self.version_for(type(request)) if version is None else version
        answer = await self._exchange(request, chosen, timeout_ms)
        response_type = RESPONSES[api_of(type(request)).key or 0]
        return self.read(lambda: frame.decode_response(response_type, answer, chosen))[1]

    async def _exchange(self, request: Any, version: int, timeout_ms: int) -> memoryview:
        return await self.exchange(
            lambda correlation_id: frame.encode_request(
                request, version, correlation_id, self.client_id
            ),
            _api_name(type(request)),
            timeout_ms,
        )

    async def exchange(
        self, encode: Callable[[int], bytes], api_name: str, timeout_ms: int = TIMEOUT_MS
    ) -> memoryview:
        """Send the frame that `encode` builds for a correlation id; return the response's frame.

        This is for requests with a special codec.  The frame begins with the correlation id.
        """
        return await self.submit(encode, api_name, timeout_ms)

    def submit(
        self, encode: Callable[[int], bytes], api_name: str, timeout_ms: int = TIMEOUT_MS
    ) -> asyncio.Future[memoryview]:
        """Do what `exchange` does without waiting; a caller that gives up cancels the future."""
        if self._failure is not None:
            raise self._failure
        assert self._transport is not None
        correlation_id = next(self._ids) & 0x7FFFFFFF
        data = encode(correlation_id)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[memoryview] = loop.create_future()
        timer = loop.call_later(timeout_ms / 1000, self._timed_out, future, api_name, timeout_ms)
        self._pending[correlation_id] = future, timer
        self._transport.write(data)
        return future

    def _timed_out(
        self, future: asyncio.Future[memoryview], api_name: str, timeout_ms: int
    ) -> None:
        if not future.done():
            why = f"{self.address} did not answer {api_name} within {timeout_ms} ms."
            future.set_exception(ConnectionFailed(why))

    def read(self, parse: Callable[[], T]) -> T:
        """Return what `parse` returns; a response that it cannot decode ends the connection."""
        try:
            return parse()
        except WireError as error:
            self._fail(f"{self.address} sent a response that cannot be decoded: {error}")
            assert self._failure is not None
            raise self._failure from error

    # -- called by asyncio -----------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not inherit from asyncio.Transport, so this cannot be asserted.
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, _sizehint: int) -> memoryview:
        return self._buffer[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """Hand over the complete responses; move the rest to the start of the buffer."""
        self._filled += nbytes
        at, filled, buffer = 0, self._filled, self._buffer
        while filled - at >= LENGTH.size:
            (size,) = LENGTH.unpack_from(buffer, at)
            if not LENGTH.size <= size <= self.max_response_bytes:
                self._fail(f"{self.address} announced a response of {size} bytes.")
                return
            body, end = at + LENGTH.size, at + LENGTH.size + size
            if end > filled:
                if end - at > len(buffer):
                    self._buffer = memoryview(bytearray(end - at))
                break
            if size >= _LARGE_BYTES and at == 0 and end == filled:
                self._buffer, self._filled = memoryview(bytearray(RECEIVE_BYTES)), 0
                self._answered(buffer[body:end])
                return
            self._answered(memoryview(bytes(buffer[body:end])))
            at = end
        if at or self._buffer is not buffer:
            self._buffer[: filled - at] = bytes(buffer[at:filled])
            self._filled = filled - at

    def recycle(self, part: memoryview) -> None:
        """Reuse the buffer that `part` is a view of: the caller is done with that response."""
        buffer = part.obj
        if isinstance(buffer, bytearray) and len(buffer) <= _KEPT_BYTES and not self._filled:
            self._buffer = memoryview(buffer)

    def _answered(self, answer: memoryview) -> None:
        (correlation_id,) = LENGTH.unpack_from(answer)
        pending = self._pending.pop(correlation_id, None)
        if pending is None:
            self._fail(f"{self.address} sent a response to a request that was not sent.")
            return
        future, timer = pending
        timer.cancel()
        if not future.done():
            future.set_result(answer)

    def connection_lost(self, error: Exception | None) -> None:
        reason = f": {_why(error)}" if isinstance(error, OSError) else "."
        self._fail(f"The connection to {self.address} was closed{reason}")

    def _fail(self, sentence: str) -> None:
        if self._failure is None:
            self._failure = ConnectionFailed(sentence)
        for future, timer in self._pending.values():
            timer.cancel()
            if not future.done():
                future.set_exception(self._failure)
        self._pending.clear()
        if self._transport is not None:
            self._transport.abort()

    def is_open(self) -> bool:
        return self._failure is None and self._transport is not None

    def close(self) -> None:
        """Close immediately; requests in flight fail."""
        self._fail(f"The connection to {self.address} was closed by this side.")


def check(code: int, message: str | None = None, about: str = "") -> None:
    """Raise a `KafkaError` if a response has an error code.

    The error has the broker's message; without one, `about` says what it concerns.
    """
    if not code:
        return
    known = CODES.get(code)
    if known is None:
        known = ErrorCode.UNKNOWN_SERVER_ERROR
        message = message or f"The broker returned the unknown error code {code}."
    raise KafkaError(known, message or ": ".join(filter(None, (about, known.meaning))))


def _api_name(request_type: type) -> str:
    return request_type.__name__.removesuffix("Request")


def _why(error: BaseException) -> str:
    """The operating system's reason, without numbers and addresses."""
    if isinstance(error, ssl.SSLError):
        return f"the TLS handshake failed: {error.reason or error}."
    if isinstance(error, ConnectionRefusedError):
        return "connection refused. Is a broker running there?"
    if isinstance(error, OSError) and error.strerror and error.errno is not None:
        # asyncio writes "Connect call failed (address)" into strerror for connects.
        name = error.strerror if error.errno < 0 else os.strerror(error.errno)
        return f"{name[:1].lower()}{name[1:]}."
    return f"{error or type(error).__name__}."
