"""Fuzz target: bytes as frames of a ZooKeeper client, without sockets."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator

from hightide.zookeeper import operation as op
from hightide.zookeeper.acl import Identity
from hightide.zookeeper.quota import Quota
from hightide.zookeeper.server import requests
from hightide.zookeeper.server.jute import Reader
from hightide.zookeeper.server.options import Limits
from hightide.zookeeper.tree import Tree
from hightide.zookeeper.watch import WatchEvent
from hightide.zookeeper.zookeeper_errors import MultiFailed, ZooKeeperError

_SESSION = 1
_MAX_FRAMES = 64


class _Client:
    """A client with a session and a small tree."""

    def __init__(self) -> None:
        limits = Limits()
        self.tree = Tree()
        self.session_id = _SESSION
        self.identity = Identity((("ip", "127.0.0.1"),), Quota())
        self.response_bytes = limits.response_bytes
        self.operations = limits.operations
        self.items = limits.items
        self.submit(op.OpenSession(_SESSION, 1000))
        self.submit(op.Create("/a", b"x"))

    def submit(self, request: op.Request) -> op.Result | ZooKeeperError:
        decision = self.tree.decide(request, _SESSION, 0, self.identity)
        if decision.transaction is not None:
            self.tree.apply(decision.transaction)
        return decision.outcome

    def watch_fired(self, event: WatchEvent, acl: bytes) -> None:
        if self.identity.may(acl, 1):
            requests.event(event)


def fuzz_zookeeper_requests(data: bytes) -> None:
    """Execute `data` as requests: a byte of length, then type and body, again and again."""
    client = _Client()
    for _ in range(_MAX_FRAMES):
        if len(data) < 2:
            break
        length = data[0] + 1
        frame, data = data[1 : 1 + length], data[1 + length :]
        with contextlib.suppress(ZooKeeperError):
            _execute(client, frame[0], Reader(frame[1:], client.items))
    client.tree.check()


def _execute(client: _Client, kind: int, body: Reader) -> None:
    if kind in requests.READS:
        assert len(requests.READS[kind](client, body)) <= client.response_bytes + 1024 * 1024
    elif kind == requests.MULTI:
        kinds, multi = requests.decode_multi(body, client.operations)
        outcome = client.submit(multi)
        if isinstance(outcome, list | MultiFailed):
            requests.multi_result(kinds, outcome)
    else:
        outcome = client.submit(requests.decode_write(kind, body))
        if not isinstance(outcome, ZooKeeperError):
            requests.result(kind, outcome)


def seeds_zookeeper_requests() -> Iterator[bytes]:
    """Requests with the fields of the usual operations: paths, data, ACLs and flags."""
    path = _text(b"/b")
    acl = struct.pack(">ii", 1, 31) + _text(b"world") + _text(b"anyone")
    bodies = {
        1: path + _text(b"data") + acl + struct.pack(">i", 0),  # create
        2: path + struct.pack(">i", -1),  # delete
        3: path + b"\x01",  # exists
        4: path + b"\0",  # getData
        5: path + _text(b"new") + struct.pack(">i", -1),  # setData
        8: path + b"\x01",  # getChildren
        12: path + b"\0",  # getChildren2
    }
    frames = [bytes([kind]) + body for kind, body in bodies.items()]
    for frame in frames:
        yield bytes([len(frame) - 1]) + frame
    yield b"".join(bytes([len(frame) - 1]) + frame for frame in frames)
    multi = bytes([requests.MULTI]) + struct.pack(">ibi", 2, 0, -1) + bodies[2]
    multi += struct.pack(">ibi", -1, 1, -1)
    yield bytes([len(multi) - 1]) + multi


def _text(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data
