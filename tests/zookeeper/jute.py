"""ZooKeeper's wire protocol as bytes: a client that hides nothing and checks nothing.

It returns what a server sends in order, and can send what no library sends. It is independent of
the codec of the embedded server, so that the two cannot share a mistake.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

DEADLINE_S = 20.0

CREATE, DELETE, EXISTS, GET_DATA, SET_DATA, GET_ACL, SET_ACL, GET_CHILDREN = range(1, 9)
SYNC, PING, GET_CHILDREN2, CHECK, MULTI, CREATE2, RECONFIG = 9, 11, 12, 13, 14, 15, 16
CHECK_WATCHES, REMOVE_WATCHES, CREATE_CONTAINER, DELETE_CONTAINER = 17, 18, 19, 20
CREATE_TTL, MULTI_READ = 21, 22
AUTH, SET_WATCHES, SASL, GET_EPHEMERALS, ALL_CHILDREN_NUMBER = 100, 101, 102, 103, 104
SET_WATCHES2, ADD_WATCH, WHO_AM_I = 105, 106, 107
CREATE_SESSION, CLOSE = -10, -11

EVENT_XID, PING_XID, AUTH_XID, SET_WATCHES_XID = -1, -2, -4, -8

NEW_SESSION = (0, bytes(16))


def int32(value: int) -> bytes:
    return struct.pack(">i", value)


def int64(value: int) -> bytes:
    return struct.pack(">q", value)


def boolean(value: bool) -> bytes:
    return struct.pack(">?", value)


def buffer(value: bytes | None) -> bytes:
    return int32(-1) if value is None else int32(len(value)) + value


def text(value: str | None) -> bytes:
    return buffer(None if value is None else value.encode("utf-8", "surrogatepass"))


def texts(values: Sequence[str]) -> bytes:
    return int32(len(values)) + b"".join(text(value) for value in values)


class Acl(NamedTuple):
    permissions: int
    scheme: str
    identity: str


OPEN = (Acl(31, "world", "anyone"),)


def acl_list(entries: Sequence[Acl] | None) -> bytes:
    if entries is None:
        return int32(-1)
    return int32(len(entries)) + b"".join(
        int32(one.permissions) + text(one.scheme) + text(one.identity) for one in entries
    )


class Stat(NamedTuple):
    czxid: int
    mzxid: int
    ctime: int
    mtime: int
    version: int
    cversion: int
    aversion: int
    owner: int
    data_length: int
    num_children: int
    pzxid: int


class Event(NamedTuple):
    """A watch that fired: kind 1 created, 2 deleted, 3 data changed, 4 children changed."""

    kind: int
    state: int
    path: str
    zxid: int


class Reply(NamedTuple):
    xid: int
    zxid: int
    code: int
    body: bytes


class Reader:
    """The rest of a body."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    def unpack(self, form: str) -> tuple[Any, ...]:
        values = struct.unpack_from(form, self.data, self.position)
        self.position += struct.calcsize(form)
        return values

    def int32(self) -> int:
        return int(self.unpack(">i")[0])

    def int64(self) -> int:
        return int(self.unpack(">q")[0])

    def boolean(self) -> bool:
        return bool(self.unpack(">?")[0])

    def buffer(self) -> bytes | None:
        size = self.int32()
        if size < 0:
            return None
        part = self.data[self.position : self.position + size]
        assert len(part) == size, "a buffer that ends early"
        self.position += size
        return part

    def text(self) -> str | None:
        value = self.buffer()
        return None if value is None else value.decode()

    def texts(self) -> list[str | None]:
        return [self.text() for _ in range(self.int32())]

    def stat(self) -> Stat:
        return Stat(*self.unpack(">qqqqiiiqiiq"))

    def acls(self) -> list[Acl]:
        return [
            Acl(self.int32(), self.text() or "", self.text() or "") for _ in range(self.int32())
        ]

    def is_at_end(self) -> bool:
        return self.position == len(self.data)


class HungUp(Exception):
    """The server closed the connection."""


@dataclass(slots=True)
class Greeting:
    """The response to a connect request."""

    protocol: int
    timeout_ms: int
    session_id: int
    password: bytes
    read_only: bool | None


class Wire:
    """One connection, with a session unless `greet` is false."""

    def __init__(
        self,
        hosts: str,
        session: tuple[int, bytes] = NEW_SESSION,
        *,
        timeout_ms: int = 30_000,
        last_zxid: int = 0,
        read_only: bool | None = False,
        greet: bool = True,
    ) -> None:
        host, port = hosts.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), DEADLINE_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = bytearray()
        self._xid = 0
        self.events: list[Event] = []
        self.hung_up = False
        if greet:
            request = int32(0) + int64(last_zxid) + int32(timeout_ms)
            request += int64(session[0]) + buffer(session[1])
            self.send_frame(request + (b"" if read_only is None else boolean(read_only)))
            try:
                self.greeting = self._greeting()
            except BaseException:
                self.disconnect()
                raise

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.disconnect()

    @property
    def session(self) -> tuple[int, bytes]:
        return self.greeting.session_id, self.greeting.password

    def disconnect(self) -> None:
        """Close the connection without closing the session."""
        self._socket.close()

    def send(self, data: bytes) -> None:
        """Send bytes as they are; the server may already have closed the connection."""
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            self._socket.sendall(data)

    def send_frame(self, body: bytes) -> None:
        self.send(int32(len(body)) + body)

    def request(self, operation: int, body: bytes = b"", xid: int | None = None) -> int:
        """Send a request without waiting and return its xid."""
        if xid is None:
            self._xid += 1
            xid = self._xid
        self.send_frame(int32(xid) + int32(operation) + body)
        return xid

    def receive_frame(self) -> bytes:
        (size,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(size)

    def receive(self) -> Reply | Event:
        """Return the next message of the server."""
        reader = Reader(self.receive_frame())
        xid, zxid, code = reader.unpack(">iqi")
        if xid == EVENT_XID:
            kind, state = reader.unpack(">ii")
            return Event(kind, state, reader.text() or "", zxid)
        return Reply(xid, zxid, code, reader.data[reader.position :])

    def reply_to(self, xid: int) -> Reply:
        """Return the response to `xid`; events before it are kept in order."""
        while isinstance(message := self.receive(), Event):
            self.events.append(message)
        assert message.xid == xid, f"got the response to {message.xid}, expected {xid}"
        return message

    def call(self, operation: int, body: bytes = b"", xid: int | None = None) -> Reply:
        return self.reply_to(self.request(operation, body, xid))

    def ping(self) -> Reply:
        return self.call(PING, xid=PING_XID)

    def authenticate(self, scheme: str, credentials: bytes) -> Reply:
        return self.call(AUTH, int32(0) + text(scheme) + buffer(credentials), AUTH_XID)

    def close(self) -> Reply:
        """Close the session."""
        reply = self.call(CLOSE)
        self.disconnect()
        return reply

    def taken_events(self) -> list[Event]:
        """Return the events since the last call, including those not yet received."""
        self.ping()
        events, self.events = self.events, []
        return events

    def ends(self) -> bool:
        """Return whether the server closes the connection without another message."""
        try:
            self.receive_frame()
        except HungUp:
            return True
        return False

    def _greeting(self) -> Greeting:
        reader = Reader(self.receive_frame())
        protocol, timeout_ms, session_id = reader.unpack(">iiq")
        password = reader.buffer() or b""
        read_only = None if reader.is_at_end() else reader.boolean()
        return Greeting(protocol, timeout_ms, session_id, password, read_only)

    def _exactly(self, size: int) -> bytes:
        while len(self._received) < size:
            try:
                part = self._socket.recv(65536)
            except ConnectionResetError:
                part = b""
            if not part:
                self.hung_up = True
                raise HungUp
            self._received += part
        taken = bytes(self._received[:size])
        del self._received[:size]
        return taken
