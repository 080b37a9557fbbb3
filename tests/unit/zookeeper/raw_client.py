"""A ZooKeeper client for tests that sends exactly the given bytes, and keeps everything that it
receives in order."""

from __future__ import annotations

import itertools
import socket
import ssl
import struct
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from hightide.zookeeper.node import Stat

CREATE, DELETE, EXISTS, GET_DATA, SET_DATA, GET_ACL, SET_ACL = 1, 2, 3, 4, 5, 6, 7
GET_CHILDREN, SYNC, PING, GET_CHILDREN2, CHECK, MULTI, CREATE2 = 8, 9, 11, 12, 13, 14, 15
RECONFIG, CHECK_WATCHES, REMOVE_WATCHES, CREATE_CONTAINER, CREATE_TTL = 16, 17, 18, 19, 21
MULTI_READ, AUTH, SET_WATCHES, SASL, GET_EPHEMERALS, ALL_CHILDREN = 22, 100, 101, 102, 103, 104
SET_WATCHES2, ADD_WATCH, WHO_AM_I, CLOSE = 105, 106, 107, -11

CREATED, DELETED, CHANGED, CHILD = 1, 2, 3, 4

MALFORMED, UNIMPLEMENTED, BAD_ARGUMENTS = -5, -6, -8
NO_NODE, NO_AUTH, BAD_VERSION, EPHEMERAL_PARENT, EXISTS_ALREADY = -101, -102, -103, -108, -110
NOT_EMPTY, EXPIRED, INVALID_ACL, AUTH_FAILED, NO_WATCHER = -111, -112, -114, -115, -121

DEADLINE_S = 10.0


def int32(*values: int) -> bytes:
    return struct.pack(f">{len(values)}i", *values)


def int64(value: int) -> bytes:
    return struct.pack(">q", value)


def buffer(data: bytes | None) -> bytes:
    return int32(-1) if data is None else int32(len(data)) + data


def text(value: str) -> bytes:
    return buffer(value.encode())


def texts(values: Sequence[str]) -> bytes:
    return int32(len(values)) + b"".join(map(text, values))


OPEN_ACL = ((31, "world", "anyone"),)


def acl(entries: Sequence[tuple[int, str, str]]) -> bytes:
    return int32(len(entries)) + b"".join(int32(p) + text(s) + text(i) for p, s, i in entries)


def create(path: str, data: bytes | None = b"", entries: Any = OPEN_ACL, flags: int = 0) -> bytes:
    return text(path) + buffer(data) + acl(entries) + int32(flags)


def read(path: str, watch: bool = False) -> bytes:
    return text(path) + bytes([watch])


def set_data(path: str, data: bytes | None, version: int = -1) -> bytes:
    return text(path) + buffer(data) + int32(version)


def versioned(path: str, version: int = -1) -> bytes:
    return text(path) + int32(version)


def multi(*operations: tuple[int, bytes]) -> bytes:
    parts = [int32(kind) + b"\0" + int32(-1) + body for kind, body in operations]
    return b"".join(parts) + int32(-1) + b"\1" + int32(-1)


def set_watches(
    zxid: int, data: Sequence[str] = (), exists: Sequence[str] = (), children: Sequence[str] = ()
) -> bytes:
    return int64(zxid) + texts(data) + texts(exists) + texts(children)


class Reply(NamedTuple):
    xid: int
    zxid: int
    error: int
    body: bytes


class Event(NamedTuple):
    type: int
    path: str


class Body:
    """Decodes a response body from its start."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def take(self, count: int) -> bytes:
        assert len(self.data) >= count
        taken, self.data = self.data[:count], self.data[count:]
        return taken

    def int32(self) -> int:
        return struct.unpack(">i", self.take(4))[0]

    def buffer(self) -> bytes | None:
        length = self.int32()
        return None if length == -1 else self.take(length)

    def text(self) -> str:
        return (self.buffer() or b"").decode()

    def texts(self) -> list[str]:
        return [self.text() for _ in range(self.int32())]

    def acl(self) -> list[tuple[int, str, str]]:
        return [(self.int32(), self.text(), self.text()) for _ in range(self.int32())]

    def stat(self) -> Stat:
        return Stat._make(struct.unpack(">qqqqiiiqiiq", self.take(68)))


class Closed(Exception):
    """The server closed the connection."""


class RawSocket:
    """Frames over a socket, without their meaning."""

    def __init__(self, address: tuple[str, int], tls: ssl.SSLContext | None = None) -> None:
        self.socket = socket.create_connection(address, DEADLINE_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname=address[0])
        self._input = b""

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send_frame(self, frame: bytes) -> None:
        self.socket.sendall(int32(len(frame)) + frame)

    def frame(self) -> bytes:
        (length,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(length)

    def _exactly(self, count: int) -> bytes:
        while len(self._input) < count:
            try:
                part = self.socket.recv(65536)
            except (ConnectionResetError, BrokenPipeError):
                part = b""
            if not part:
                raise Closed
            self._input += part
        taken, self._input = self._input[:count], self._input[count:]
        return taken

    def is_closed(self) -> bool:
        """Wait until the server closes; False if it sends something instead."""
        try:
            self._exactly(1)
        except Closed:
            return True
        return False


class RawClient(RawSocket):
    """A client with a session, unless the server refuses it."""

    def __init__(
        self,
        address: tuple[str, int],
        *,
        timeout_ms: int = 6000,
        session: tuple[int, bytes] = (0, bytes(16)),
        last_zxid: int = 0,
        last_byte: bytes = b"\0",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(address, tls)
        self._xids = itertools.count(1)
        self.events: list[Event] = []
        claim = int32(0) + int64(last_zxid) + int32(timeout_ms) + int64(session[0])
        try:
            self.send_frame(claim + buffer(session[1]) + last_byte)
            granted = self.frame()
        except BaseException:
            self.socket.close()
            raise
        _, self.timeout_ms, self.session_id = struct.unpack(">iiq", granted[:16])
        rest = Body(granted[16:])
        self.password = rest.buffer() or b""
        self.last_byte = rest.data

    @property
    def key(self) -> tuple[int, bytes]:
        return self.session_id, self.password

    def send(self, kind: int, body: bytes = b"", xid: int | None = None) -> int:
        xid = next(self._xids) if xid is None else xid
        self.send_frame(int32(xid, kind) + body)
        return xid

    def receive(self) -> Reply | Event:
        frame = self.frame()
        xid, zxid, error = struct.unpack(">iqi", frame[:16])
        reply = Reply(xid, zxid, error, frame[16:])
        if reply.xid != -1:
            return reply
        assert (reply.zxid, reply.error) == (-1, 0)
        body = Body(reply.body)
        kind, state, path = body.int32(), body.int32(), body.text()
        assert (state, body.data) == (3, b"")
        return Event(kind, path)

    def reply(self, xid: int) -> Reply:
        """Return the next reply, which must have this xid; events before it are kept."""
        while isinstance(message := self.receive(), Event):
            self.events.append(message)
        assert message.xid == xid
        return message

    def call(self, kind: int, body: bytes = b"") -> Reply:
        return self.reply(self.send(kind, body))

    def ok(self, kind: int, body: bytes = b"") -> Body:
        reply = self.call(kind, body)
        assert reply.error == 0, reply
        return Body(reply.body)

    def error(self, kind: int, body: bytes = b"") -> int:
        reply = self.call(kind, body)
        assert reply.error == 0 or not reply.body, "an error has no body"
        return reply.error

    def create(self, path: str, data: bytes | None = b"", **more: Any) -> str:
        return self.ok(CREATE, create(path, data, **more)).text()

    def ping(self) -> None:
        assert self.reply(self.send(PING, xid=-2)).error == 0

    def exists(self, path: str) -> bool:
        return self.error(EXISTS, read(path)) == 0

    def authenticate(self, credentials: str, scheme: str = "digest") -> int:
        body = int32(0) + text(scheme) + buffer(credentials.encode())
        return self.reply(self.send(AUTH, body, xid=-4)).error

    def close_session(self) -> None:
        assert self.call(CLOSE).error == 0
        assert self.is_closed()


def word(address: tuple[str, int], letters: str, tls: ssl.SSLContext | None = None) -> str:
    """Return the response to a four-letter word."""
    with RawSocket(address, tls) as raw:
        raw.socket.sendall(letters.encode())
        answer = b""
        while part := raw.socket.recv(65536):
            answer += part
        return answer.decode()


def wait_until(condition: Any, deadline_s: float = DEADLINE_S) -> float:
    """Wait for the condition and return the seconds that took."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < deadline_s, "the condition did not become true in time"
        time.sleep(0.005)
    return time.monotonic() - began
