"""Scenarios on a raw connection, each of which returns what the server sent.

A scenario takes a server's address and an unused path, so that it can run on two servers and the
results can be compared. `test_wire` has the expected results.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tests.zookeeper import jute
from tests.zookeeper.histories import USERS, digest
from tests.zookeeper.jute import (
    OPEN,
    HungUp,
    Reader,
    Wire,
    acl_list,
    boolean,
    buffer,
    int32,
    int64,
    text,
    texts,
)

Scenario = Callable[[str, str], Any]
"""Takes a server's address and an unused path; returns what the server sent."""

HANGS_UP = "hangs up"
END_OF_MULTI = int32(-1) + boolean(True) + int32(-1)
PATIENCE_S = 20.0


def create(path: str | None, data: bytes | None = b"", acl: Any = OPEN, flags: int = 0) -> bytes:
    return text(path) + buffer(data) + acl_list(acl) + int32(flags)


def part(operation: int, body: bytes) -> bytes:
    """Encode an operation of a multi."""
    return int32(operation) + boolean(False) + int32(-1) + body


def then(wire: Wire) -> Any:
    """Return whether the connection still works."""
    try:
        return wire.ping().code
    except HungUp:
        return HANGS_UP


def asks(operation: int, body: Any = b"", xid: int | None = None) -> Scenario:
    """Send one request; return its code and body, and whether the connection survives."""

    def scenario(hosts: str, path: str) -> Any:
        sent = body(path) if callable(body) else body
        with Wire(hosts) as wire:
            try:
                reply = wire.call(operation, sent, xid)
            except HungUp:
                return HANGS_UP
            return reply.code, reply.body, then(wire)

    return scenario


def code_of(scenario: Scenario) -> Scenario:
    """Return only the code: the body has zxids and times."""
    return lambda hosts, path: scenario(hosts, path)[0]


def sends(data: bytes) -> Scenario:
    """Send bytes that are not a request."""

    def scenario(hosts: str, _path: str) -> Any:
        with Wire(hosts) as wire:
            wire.send(data)
            try:
                return wire.receive_frame()
            except HungUp:
                return HANGS_UP

    return scenario


def connects(
    timeout_ms: int = 10_000,
    session_id: int = 0,
    password: bytes | None = bytes(16),
    zxid: int = 0,
    protocol: int = 0,
    tail: bytes = b"\0",
    body: bytes | None = None,
) -> Scenario:
    """Send a connect request; return the response without session id and password."""
    request = int32(protocol) + int64(zxid) + int32(timeout_ms) + int64(session_id)
    request += buffer(password) + tail

    def scenario(hosts: str, _path: str) -> Any:
        with Wire(hosts, greet=False) as wire:
            wire.send_frame(request if body is None else body)
            try:
                reader = Reader(wire.receive_frame())
            except HungUp:
                return HANGS_UP
            version, granted_ms, new_id = reader.unpack(">iiq")
            size = len(reader.buffer() or b"")
            return version, granted_ms, new_id != 0, size, reader.data[reader.position :]

    return scenario


def events_of(wire: Wire) -> list[tuple[int, str]]:
    return [(event.kind, event.path.rpartition("/")[2]) for event in wire.taken_events()]


# Watches.


def watches_come_back(hosts: str, path: str) -> Any:
    """After a reconnect, watches on changed znodes fire at once; the others are armed."""
    with Wire(hosts) as away, Wire(hosts) as other:
        for name in ("", "/data", "/kids", "/gone"):
            seen = other.call(jute.CREATE, create(path + name)).zxid
        other.call(jute.SET_DATA, text(path + "/data") + buffer(b"x") + int32(-1))
        other.call(jute.DELETE, text(path + "/gone") + int32(-1))
        other.call(jute.CREATE, create(path + "/kids/1"))
        other.call(jute.CREATE, create(path + "/new"))

        def named(*names: str) -> bytes:
            return texts([f"{path}/{name}" for name in names])

        data = named("data", "gone", "kids", "none")
        exist, children = named("new", "none", "gone"), named("kids", "gone", "data", "none")
        body = int64(seen) + data + exist + children
        reply = away.call(jute.SET_WATCHES, body, jute.SET_WATCHES_XID)
        at_once = events_of(away)
        other.call(jute.CREATE, create(path + "/none"))
        other.call(jute.CREATE, create(path + "/data/1"))
        other.call(jute.SET_DATA, text(path + "/kids") + buffer(b"") + int32(-1))
        return reply.code, reply.body, at_once, events_of(away)


def newer_watches_come_back(hosts: str, path: str) -> Any:
    with Wire(hosts) as wire:
        wire.call(jute.CREATE, create(path))
        lists = texts([path]) + texts([path + "/x"]) + texts([path]) + texts([]) + texts([])
        reply = wire.call(jute.SET_WATCHES2, int64(0) + lists, jute.SET_WATCHES_XID)
        return reply.code, reply.body, events_of(wire)


def removes_watches(kind: int) -> Scenario:
    """Watch types: 1 children, 2 data, 3 both."""

    def scenario(hosts: str, path: str) -> Any:
        with Wire(hosts) as wire:
            wire.call(jute.CREATE, create(path))
            wire.call(jute.GET_DATA, text(path) + boolean(True))
            wire.call(jute.GET_CHILDREN, text(path) + boolean(True))
            body = text(path) + int32(kind)
            operations = (jute.CHECK_WATCHES, jute.REMOVE_WATCHES, jute.REMOVE_WATCHES)
            codes = [wire.call(operation, body).code for operation in operations]
            wire.call(jute.CREATE, create(path + "/child"))
            wire.call(jute.SET_DATA, text(path) + buffer(b"") + int32(-1))
            return codes, events_of(wire)

    return scenario


def adds_watch(mode: int) -> Scenario:
    def scenario(hosts: str, path: str) -> Any:
        with Wire(hosts) as wire:
            reply = wire.call(jute.ADD_WATCH, text(path) + int32(mode))
            wire.call(jute.CREATE, create(path))
            wire.call(jute.SET_DATA, text(path) + buffer(b"") + int32(-1))
            wire.call(jute.CREATE, create(path + "/child"))
            return reply.code, events_of(wire)

    return scenario


def a_write_is_seen_before_it_is_answered(hosts: str, path: str) -> Any:
    """All messages to one connection, in order, while it writes what it watches."""
    with Wire(hosts) as wire:
        wire.call(jute.CREATE, create(path))
        wire.call(jute.GET_DATA, text(path) + boolean(True))
        wire.call(jute.GET_CHILDREN, text(path) + boolean(True))
        wire.request(jute.SET_DATA, text(path) + buffer(b"1") + int32(-1), xid=101)
        wire.request(jute.EXISTS, text(path) + boolean(True), xid=102)
        wire.request(jute.CREATE, create(path + "/child"), xid=103)
        wire.request(jute.DELETE, text(path + "/child") + int32(-1), xid=104)
        wire.request(jute.DELETE, text(path) + int32(-1), xid=105)
        messages: list[Any] = []
        while not messages or messages[-1] != ("reply", 105, 0):
            one = wire.receive()
            if isinstance(one, jute.Event):
                messages.append(("event", one.kind, one.path == path, one.zxid))
            else:
                messages.append(("reply", one.xid, one.code))
        return messages


ANN_ONLY = (jute.Acl(31, "digest", digest("ann")),)


def who_may_not_read_hears_nothing(hosts: str, path: str) -> Any:
    """A watch on a znode that the watcher may not read is removed without an event."""
    with Wire(hosts) as ann, Wire(hosts) as other:
        ann.authenticate("digest", USERS["ann"])
        events = []
        for wire in (ann, other):
            wire.call(jute.EXISTS, text(path) + boolean(True))
        ann.call(jute.CREATE, create(path, acl=ANN_ONLY))
        events += [events_of(ann), events_of(other)]
        for wire in (ann, other):
            wire.call(jute.EXISTS, text(path) + boolean(True))
        ann.call(jute.SET_DATA, text(path) + buffer(b"x") + int32(-1))
        events += [events_of(ann), events_of(other)]
        for wire in (ann, other):
            wire.call(jute.EXISTS, text(path) + boolean(True))
        ann.call(jute.DELETE, text(path) + int32(-1))
        return [*events, events_of(ann), events_of(other)]


def who_may_no_longer_read_hears_nothing(hosts: str, path: str) -> Any:
    """Watches armed with permission, and fired without it."""
    with Wire(hosts) as ann, Wire(hosts) as other:
        ann.authenticate("digest", USERS["ann"])
        ann.call(jute.CREATE, create(path))
        for wire in (ann, other):
            wire.call(jute.GET_DATA, text(path) + boolean(True))
            wire.call(jute.GET_CHILDREN, text(path) + boolean(True))
        ann.call(jute.SET_ACL, text(path) + acl_list(ANN_ONLY) + int32(-1))
        ann.call(jute.CREATE, create(path + "/child"))
        ann.call(jute.SET_DATA, text(path) + buffer(b"x") + int32(-1))
        ann.call(jute.SET_ACL, text(path) + acl_list(OPEN) + int32(-1))
        ann.call(jute.SET_DATA, text(path) + buffer(b"x") + int32(-1))
        return events_of(ann), events_of(other)


def needs_permission(operation: int, tail: bytes = b"") -> Scenario:
    """Requests of another client for a znode that only Ann may use."""

    def scenario(hosts: str, path: str) -> Any:
        with Wire(hosts) as ann, Wire(hosts) as other:
            ann.authenticate("digest", USERS["ann"])
            ann.call(jute.CREATE, create(path, acl=ANN_ONLY))
            return other.call(operation, text(path) + tail).code

    return scenario


# Sessions.


def opened_with_a_wrong_password(hosts: str, _path: str) -> Any:
    with Wire(hosts) as wire, Wire(hosts, (wire.session[0], b"x" * 16)) as thief:
        greeting = thief.greeting
        return greeting.timeout_ms, greeting.session_id, greeting.password, thief.ends()


def the_robbed_after_a_wrong_password(hosts: str, _path: str) -> Any:
    with Wire(hosts) as wire, Wire(hosts, (wire.session[0], b"x" * 16)):
        return then(wire)


def opened_a_second_time(hosts: str, _path: str) -> Any:
    with Wire(hosts) as first, Wire(hosts, first.session) as second:
        return second.session == first.session, first.ends(), then(second)


def closed(hosts: str, _path: str) -> Any:
    with Wire(hosts) as wire:
        wire.request(jute.CLOSE, xid=7)
        reply = wire.receive()
        assert isinstance(reply, jute.Reply)
        return reply.xid, reply.code, reply.body, wire.ends()


def opened_after_it_was_closed(hosts: str, _path: str) -> Any:
    wire = Wire(hosts)
    wire.close()
    with Wire(hosts, wire.session) as again:
        return again.greeting.timeout_ms, again.greeting.session_id, again.ends()


def opened_with_a_zxid_from_the_future(hosts: str, _path: str) -> Any:
    wire = Wire(hosts)
    wire.disconnect()
    try:
        with Wire(hosts, wire.session, last_zxid=2**50) as again:
            return again.greeting.timeout_ms, again.ends()
    except HungUp:
        return HANGS_UP


def expires(hosts: str, path: str) -> Any:
    """A silent session expires with its ephemerals, and other sessions get the events."""
    with Wire(hosts, timeout_ms=1000) as silent, Wire(hosts) as other:
        silent.call(jute.CREATE, create(path, flags=1))
        other.call(jute.EXISTS, text(path) + boolean(True))
        # The server closes its connection when the session expires.
        began, ended = time.monotonic(), silent.ends()
        lasted_s = time.monotonic() - began
        events = events_of(other)
        code = other.call(jute.EXISTS, text(path) + boolean(False)).code
        with Wire(hosts, silent.session) as again:
            timeout_ms = again.greeting.timeout_ms
        return ended, 0.8 < lasted_s < PATIENCE_S, events, code, timeout_ms


def pinged_with_an_xid(hosts: str, _path: str) -> Any:
    with Wire(hosts) as wire:
        wire.request(jute.PING, xid=5)
        reply = wire.receive()
        assert isinstance(reply, jute.Reply)
        return reply.xid, reply.code, reply.body


def authenticates(scheme: str | None, credentials: bytes | None, kind: int = 0) -> Scenario:
    def scenario(hosts: str, _path: str) -> Any:
        with Wire(hosts) as wire:
            body = int32(kind) + text(scheme) + buffer(credentials)
            try:
                return wire.call(jute.AUTH, body, jute.AUTH_XID).code, then(wire)
            except HungUp:
                return HANGS_UP

    return scenario


def says_who_it_is(hosts: str, _path: str) -> Any:
    with Wire(hosts) as wire:
        wire.authenticate("digest", b"ann:secret")
        reader = Reader(wire.call(jute.WHO_AM_I).body)
        return sorted((reader.text(), reader.text()) for _ in range(reader.int32()))


# Reads.


def knows_its_ephemerals(hosts: str, path: str) -> Any:
    with Wire(hosts) as wire:
        for name in ("-1", "-2"):
            wire.call(jute.CREATE, create(path + name, flags=1))
        answers = []
        for prefix in (path, path + "-1", "/nothing"):
            reply = wire.call(jute.GET_EPHEMERALS, text(prefix))
            answers.append((reply.code, sorted(map(str, Reader(reply.body).texts()))))
        return [(code, [name.removeprefix(path) for name in names]) for code, names in answers]


def counts_what_is_below(hosts: str, path: str) -> Any:
    with Wire(hosts) as wire:
        for name in ("", "/b", "/b/c"):
            wire.call(jute.CREATE, create(path + name))
        reply = wire.call(jute.ALL_CHILDREN_NUMBER, text(path))
        missing = wire.call(jute.ALL_CHILDREN_NUMBER, text(path + "/none"))
        return reply.code, reply.body, missing.code


def lists(path: str, operation: int = jute.GET_CHILDREN) -> Scenario:
    def scenario(hosts: str, _path: str) -> Any:
        with Wire(hosts) as wire:
            tail = b"" if operation == jute.GET_ACL else boolean(False)
            reply = wire.call(operation, text(path) + tail)
            if reply.code:
                return reply.code
            reader = Reader(reply.body)
            if operation == jute.GET_ACL:
                return reader.acls()
            is_root = path in ("", "/")
            return sorted(name for name in reader.texts() if not is_root or name == "zookeeper")

    return scenario


def zxids_only_grow(hosts: str, path: str) -> Any:
    """zxids over writes, reads, errors and two connections."""
    with Wire(hosts) as one, Wire(hosts) as two:
        zxids = []
        for number in range(20):
            wire = (one, two)[number % 2]
            operation = (jute.CREATE, jute.EXISTS, jute.SET_DATA)[number % 3]
            tails = {jute.EXISTS: boolean(False), jute.SET_DATA: buffer(b"") + int32(number)}
            body = text(path) + tails[operation] if operation in tails else create(path)
            zxids.append(wire.call(operation, body).zxid)
        return zxids == sorted(zxids), zxids[0] > 0
