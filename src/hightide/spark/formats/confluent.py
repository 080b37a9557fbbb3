"""The prefix that Confluent's serialisers put before a value, and the schema registry.

The prefix is a zero byte and the id of the writer's schema in four bytes. For Protobuf, a list of
indexes follows that selects a message of the schema; the list that means "the first" is one zero
byte.

The registry is asked once for each id, over HTTP. If it cannot be reached, the query fails and the
record is not bad: a dead-letter topic full of good records is worse than a stopped query.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import math
import socket
import struct
import threading
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from typing import Any

MAGIC = 0
PREFIX = struct.Struct(">bI")
TRIES = 4
PAUSE_S = 0.5
TIMEOUT_S = 10
RESPONSE_BYTES = 16 << 20


class RegistryUnreachable(Exception):
    """The registry gave no response, or an invalid one."""


class UnknownSchema(Exception):
    """The registry has no such schema."""


def _opener(deadline: _Deadline) -> urllib.request.OpenerDirector:
    """Return an opener for HTTP and HTTPS only; proxies of the environment count."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        _Http(deadline),
        _Https(deadline),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        _SameOrigin(),
    ):
        opener.add_handler(handler)
    return opener


def prefixed(value: bytes) -> int | None:
    """Return the schema id in front of a value; None if it has no prefix."""
    if len(value) < PREFIX.size or value[0] != MAGIC:
        return None
    return int(PREFIX.unpack_from(value)[1])


def prefix(schema_id: int) -> bytes:
    return PREFIX.pack(MAGIC, schema_id)


def end_of_indexes(value: bytes, at: int) -> int:
    """Return the end of the list of message indexes that starts at a position."""
    count, at = _zigzag(value, at)
    for _ in range(count):
        _, at = _zigzag(value, at)
    return at


def indexes(path: list[int]) -> bytes:
    """Encode a list of message indexes."""
    if path == [0]:
        return b"\0"
    return b"".join(_varint(number * 2) for number in (len(path), *path))


def _zigzag(value: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        if at >= len(value) or shift > 28:
            raise ValueError("the list of message indexes is incomplete")
        byte = value[at]
        number |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at
        shift += 7


def _varint(number: int) -> bytes:
    made = bytearray()
    while number > 0x7F:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    made.append(number)
    return bytes(made)


class _SameOrigin(urllib.request.HTTPRedirectHandler):
    """Follows redirects within one origin: another server must not get the password."""

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        before, after = urllib.parse.urlsplit(req.full_url), urllib.parse.urlsplit(newurl)
        if (before.scheme, before.netloc) != (after.scheme, after.netloc):
            raise OSError(
                f"it redirects to {after.scheme}://{after.hostname}; set that URL instead"
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def check_url(url: str) -> str:
    """Return the URL of a registry; raise ValueError unless it is http or https with a host."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        shown = f"{parts.scheme}:" if parts.scheme else "without a scheme"
        raise ValueError(f"a schema registry has a URL http://host or https://host, not {shown}")
    # After a / or # in the password the rest of it would be taken for path or fragment, and shown.
    if "@" in url.partition("://")[2][len(parts.netloc) :] or not _has_valid_port(parts):
        raise ValueError(
            "the URL of a schema registry has no valid host and port; percent-encode special"
            " characters of user and password"
        )
    return url


def _has_valid_port(parts: urllib.parse.SplitResult) -> bool:
    try:
        return parts.port != 0
    except ValueError:
        return False


class _Deadline:
    """Ends the connections of a request when its time is over, and then raises OSError.

    A timeout of a socket begins again with each byte.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._sockets: list[socket.socket] = []
        self._is_over = False
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True

    def __enter__(self) -> _Deadline:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        if self._is_over:
            raise OSError(f"it has not responded within {self._seconds:g} s") from None

    def watch(self, connected: socket.socket) -> None:
        self._sockets.append(connected)
        if self._is_over:
            self._end()

    def _end(self) -> None:
        self._is_over = True
        for connected in self._sockets:
            with contextlib.suppress(OSError):
                # Not the method of a TLS socket, which another thread is reading from.
                socket.socket.shutdown(connected, socket.SHUT_RDWR)


class _Watched(urllib.request.AbstractHTTPHandler):
    """Makes connections that a deadline ends."""

    def __init__(self, deadline: _Deadline) -> None:
        super().__init__()
        self._deadline = deadline

    def do_open(self, http_class: Any, req: urllib.request.Request, **options: Any) -> Any:
        def connection(host: str, **more: Any) -> http.client.HTTPConnection:
            made: http.client.HTTPConnection = http_class(host, **more)
            connect = made.connect

            def watched() -> None:
                connect()
                self._deadline.watch(made.sock)

            made.connect = watched  # type: ignore[method-assign]
            return made

        return super().do_open(connection, req, **options)


class _Http(_Watched, urllib.request.HTTPHandler):
    pass


class _Https(_Watched, urllib.request.HTTPSHandler):
    pass


@dataclass(slots=True)
class Registry:
    """A schema registry, by its URL, which may contain user and password."""

    url: str = field(repr=False)
    known: dict[int, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_url(self.url)

    def schema(self, schema_id: int) -> dict[str, Any]:
        """Return what is registered under an id: `schema` as text, perhaps `references`."""
        if schema_id not in self.known:
            self.known[schema_id] = self._get(f"/schemas/ids/{schema_id}")
        return self.known[schema_id]

    def version(self, subject: str, version: int | str = "latest") -> dict[str, Any]:
        """Return what is registered under a subject: `schema`, `id`, perhaps `references`."""
        return self._get(f"/subjects/{urllib.parse.quote(subject, safe='')}/versions/{version}")

    def _get(self, path: str) -> dict[str, Any]:
        # Imported here, because most processes that decode never ask a registry.
        from hightide.client.retry import Backoff

        backoff = Backoff(PAUSE_S, math.inf, attempts=TRIES)
        while True:
            try:
                return self._get_once(path)
            except (OSError, ValueError, RecursionError, http.client.HTTPException) as error:
                if not backoff.sleep():
                    raise RegistryUnreachable(
                        f"The schema registry at {self._address()} did not return {path}:"
                        f" {str(error) or type(error).__name__}."
                    ) from None

    def _get_once(self, path: str) -> dict[str, Any]:
        parts = urllib.parse.urlsplit(self.url)
        request = urllib.request.Request(self._address() + path)
        if parts.username is not None:
            pair = urllib.parse.unquote(f"{parts.username}:{parts.password or ''}")
            coded = base64.b64encode(pair.encode()).decode()
            request.add_header("Authorization", f"Basic {coded}")
        try:
            with (
                _Deadline(TIMEOUT_S) as deadline,
                _opener(deadline).open(request, timeout=TIMEOUT_S) as response,
            ):
                text = response.read(RESPONSE_BYTES + 1)
            if len(text) > RESPONSE_BYTES:
                raise ValueError(f"the response has more than {RESPONSE_BYTES} bytes")
            found = json.loads(text)
        except urllib.error.HTTPError as error:
            with error:
                if error.code == 404:
                    raise UnknownSchema(f"the schema registry has no {path}") from None
                raise OSError(f"it responds {error.code} {error.reason}") from None
        if not isinstance(found, dict) or "schema" not in found:
            raise ValueError("the response has no schema")
        return found

    def _address(self) -> str:
        """Return the URL without user and password, for messages."""
        parts = urllib.parse.urlsplit(self.url)
        host = parts.netloc.rpartition("@")[2]
        return urllib.parse.urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", ""))
