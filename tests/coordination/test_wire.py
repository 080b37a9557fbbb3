"""What no client library sends, and what few ask for: ours and ZooKeeper on the bare wire.

`ALIKE` must be answered alike. `DELIBERATE` is where we differ on purpose: what each server says is
written down with the reason, and both are asked, so that the list stays true.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jute
import pytest
from histories import USERS, digest
from jute import (
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
"""A server's address and a path of one's own in; what the server said out."""

HANGS_UP = "hangs up"
END_OF_MULTI = int32(-1) + boolean(True) + int32(-1)
PATIENCE_S = 20.0


def create(path: str | None, data: bytes | None = b"", acl: Any = OPEN, flags: int = 0) -> bytes:
    return text(path) + buffer(data) + acl_list(acl) + int32(flags)


def part(operation: int, body: bytes) -> bytes:
    """An operation as it stands in a multi."""
    return int32(operation) + boolean(False) + int32(-1) + body


def then(wire: Wire) -> Any:
    """Whether the connection still serves."""
    try:
        return wire.ping().code
    except HungUp:
        return HANGS_UP


def asks(operation: int, body: Any = b"", xid: int | None = None) -> Scenario:
    """One request; its code and body, and whether the connection survives it."""

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
    """Only the code: the body holds zxids and times."""
    return lambda hosts, path: scenario(hosts, path)[0]


def sends(data: bytes) -> Scenario:
    """Bytes that are no request."""

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
    """A greeting; what the answer says besides the session's id and password."""
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
    """What changed while the client was away is told at once; the rest is armed again."""
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
    """1 children, 2 data, 3 both."""

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
    """All that one connection is told, in order, while it writes what it watches itself."""
    with Wire(hosts) as wire:
        wire.call(jute.CREATE, create(path))
        wire.call(jute.GET_DATA, text(path) + boolean(True))
        wire.call(jute.GET_CHILDREN, text(path) + boolean(True))
        wire.request(jute.SET_DATA, text(path) + buffer(b"1") + int32(-1), xid=101)
        wire.request(jute.EXISTS, text(path) + boolean(True), xid=102)
        wire.request(jute.CREATE, create(path + "/child"), xid=103)
        wire.request(jute.DELETE, text(path + "/child") + int32(-1), xid=104)
        wire.request(jute.DELETE, text(path) + int32(-1), xid=105)
        said: list[Any] = []
        while not said or said[-1] != ("reply", 105, 0):
            one = wire.receive()
            if isinstance(one, jute.Event):
                said.append(("event", one.kind, one.path == path, one.zxid))
            else:
                said.append(("reply", one.xid, one.code))
        return said


ANN_ONLY = (jute.Acl(31, "digest", digest("ann")),)


def who_may_not_read_hears_nothing(hosts: str, path: str) -> Any:
    """A watch on a znode that is hidden from the watcher is used up in silence."""
    with Wire(hosts) as ann, Wire(hosts) as other:
        ann.authenticate("digest", USERS["ann"])
        told = []
        for wire in (ann, other):
            wire.call(jute.EXISTS, text(path) + boolean(True))
        ann.call(jute.CREATE, create(path, acl=ANN_ONLY))
        told += [events_of(ann), events_of(other)]
        for wire in (ann, other):
            wire.call(jute.EXISTS, text(path) + boolean(True))
        ann.call(jute.SET_DATA, text(path) + buffer(b"x") + int32(-1))
        told += [events_of(ann), events_of(other)]
        for wire in (ann, other):
            wire.call(jute.EXISTS, text(path) + boolean(True))
        ann.call(jute.DELETE, text(path) + int32(-1))
        return [*told, events_of(ann), events_of(other)]


def who_may_no_longer_read_hears_nothing(hosts: str, path: str) -> Any:
    """Watches armed while it was allowed, and fired when it is not."""
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
    """A znode that is Ann's alone, asked by somebody else."""

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
    """Who falls silent loses its session and its ephemerals, and others are told."""
    with Wire(hosts, timeout_ms=1000) as silent, Wire(hosts) as other:
        silent.call(jute.CREATE, create(path, flags=1))
        other.call(jute.EXISTS, text(path) + boolean(True))
        # Its connection is closed when its time is over.
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


# Questions.


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
    """Over writes, reads, refusals and two connections."""
    with Wire(hosts) as one, Wire(hosts) as two:
        zxids = []
        for number in range(20):
            wire = (one, two)[number % 2]
            operation = (jute.CREATE, jute.EXISTS, jute.SET_DATA)[number % 3]
            tails = {jute.EXISTS: boolean(False), jute.SET_DATA: buffer(b"") + int32(number)}
            body = text(path) + tails[operation] if operation in tails else create(path)
            zxids.append(wire.call(operation, body).zxid)
        return zxids == sorted(zxids), zxids[0] > 0


PATHS = ["/zookeeper", "/zookeeper/config", "/zookeeper/quota", "/zookeeper/none"]
READERS = {
    "delete": jute.DELETE,
    "exists": jute.EXISTS,
    "get": jute.GET_DATA,
    "set": jute.SET_DATA,
    "get acl": jute.GET_ACL,
    "set acl": jute.SET_ACL,
    "children": jute.GET_CHILDREN,
    "children2": jute.GET_CHILDREN2,
    "create": jute.CREATE,
    "create2": jute.CREATE2,
}

ALIKE: dict[str, Scenario] = {
    "who may not read hears nothing": who_may_not_read_hears_nothing,
    "who may no longer read hears nothing": who_may_no_longer_read_hears_nothing,
    "exists without permission": needs_permission(jute.EXISTS, boolean(False)),
    "get without permission": needs_permission(jute.GET_DATA, boolean(False)),
    "children without permission": needs_permission(jute.GET_CHILDREN, boolean(False)),
    "count without permission": needs_permission(jute.ALL_CHILDREN_NUMBER),
    "get acl without permission": needs_permission(jute.GET_ACL),
    "setWatches": watches_come_back,
    "setWatches2": newer_watches_come_back,
    "events and replies in order": a_write_is_seen_before_it_is_answered,
    "wrong password": opened_with_a_wrong_password,
    "a session on two connections": opened_a_second_time,
    "close": closed,
    "a closed session": opened_after_it_was_closed,
    "expiry": expires,
    "whoAmI": says_who_it_is,
    "getEphemerals": knows_its_ephemerals,
    "getAllChildrenNumber": counts_what_is_below,
    "zxids": zxids_only_grow,
    **{f"removeWatches {kind}": removes_watches(kind) for kind in (0, 1, 2, 3, 4)},
    **{f"{name} without a body": asks(code) for name, code in READERS.items()},
    **{
        f"{name} of a body cut short": asks(code, text("/abc")[:-1])
        for name, code in READERS.items()
    },
    **{f"{name} of a huge text": asks(code, int32(2**31 - 1)) for name, code in READERS.items()},
    **{
        f"{name} of a text of length -5": asks(code, int32(-5) + bytes(30))
        for name, code in READERS.items()
    },
    **{f"{name} of no path": asks(code, text(None) + bytes(40)) for name, code in READERS.items()},
    "sync": asks(jute.SYNC, text),
    "sync of an odd path": asks(jute.SYNC, text("a//")),
    "sync of no path": asks(jute.SYNC, text(None)),
    "multi without an end": asks(jute.MULTI, lambda path: part(jute.CREATE, create(path))),
    "multi without anything": asks(jute.MULTI),
    "multi of nothing": asks(jute.MULTI, END_OF_MULTI),
    "multi with something after it": asks(jute.MULTI, END_OF_MULTI + b"more"),
    "multi of an unknown kind": asks(jute.MULTI, part(77, text("/a")) + END_OF_MULTI),
    "multi of a question": asks(
        jute.MULTI, part(jute.GET_DATA, text("/") + boolean(False)) + END_OF_MULTI
    ),
    "multi of a set acl": asks(
        jute.MULTI, part(jute.SET_ACL, text("/") + acl_list(OPEN) + int32(-1)) + END_OF_MULTI
    ),
    "multi of no path": code_of(
        asks(jute.MULTI, part(jute.SET_DATA, text(None) + buffer(b"") + int32(-1)) + END_OF_MULTI)
    ),
    "multi that deletes the root": asks(
        jute.MULTI, part(jute.DELETE, text("/") + int32(-1)) + END_OF_MULTI
    ),
    "multi of a time to live": asks(
        jute.MULTI, lambda path: part(jute.CREATE, create(path, flags=5)) + END_OF_MULTI
    ),
    "multi of wrong flags": asks(
        jute.MULTI,
        lambda path: (
            part(jute.CREATE, create(path))
            + part(jute.CREATE, create(path + "/x", flags=99))
            + part(jute.CREATE, create(path + "/y"))
            + END_OF_MULTI
        ),
    ),
    "multi of a check that fails": asks(
        jute.MULTI,
        lambda path: (
            part(jute.CREATE, create(path))
            + part(jute.CHECK, text(path) + int32(3))
            + part(jute.CREATE, create(path + "/y"))
            + END_OF_MULTI
        ),
    ),
    "multi of create2": asks(
        jute.MULTI, lambda _: part(jute.CREATE2, create("/a-b/c")) + END_OF_MULTI
    ),
    "multiRead of nothing": asks(jute.MULTI_READ, END_OF_MULTI),
    "multiRead of missing ones": asks(
        jute.MULTI_READ,
        lambda path: (
            part(jute.GET_DATA, text(path) + boolean(True))
            + part(jute.GET_CHILDREN, text("/zookeeper/quota") + boolean(False))
            + END_OF_MULTI
        ),
    ),
    "a create after which more comes": asks(jute.CREATE, lambda path: create(path) + bytes(50)),
    **{
        f"flags {flags}": asks(
            jute.CREATE, lambda path, flags=flags: create(path + "/x", flags=flags)
        )
        for flags in (5, 6, 7, 8, 99, -1)
    },
    "a sequence below nothing": asks(jute.CREATE, lambda path: create(path + "/", flags=2)),
    "exists of an empty path": code_of(asks(jute.EXISTS, text("") + boolean(False))),
    "children of an empty path": lists(""),
    "access to an empty path": lists("", jute.GET_ACL),
    "create of an empty path": asks(jute.CREATE, create("")),
    "set of an empty path": asks(jute.SET_DATA, text("") + buffer(b"") + int32(-1)),
    "delete of an empty path": asks(jute.DELETE, text("") + int32(-1)),
    "delete of the root": asks(jute.DELETE, text("/") + int32(-1)),
    "create of the root": asks(jute.CREATE, create("/")),
    **{f"delete {path}": asks(jute.DELETE, text(path) + int32(-1)) for path in PATHS},
    **{f"create {path}": asks(jute.CREATE, create(path)) for path in PATHS[:3]},
    **{f"children of {path}": lists(path) for path in ["/", *PATHS]},
    **{f"access to {path}": lists(path, jute.GET_ACL) for path in ["/", *PATHS]},
    "set /zookeeper/config": code_of(
        asks(jute.SET_DATA, text("/zookeeper/config") + buffer(b"") + int32(-1))
    ),
    "a frame of length -1": sends(int32(-1)),
    "a frame of no length": sends(int32(0)),
    "a frame that is too large": sends(int32(0x100000) + bytes(0x100000)),
    "a frame that cannot be": sends(int32(2**31 - 1)),
    "a frame of four bytes": sends(int32(4) + int32(1)),
    "the largest frame": code_of(
        asks(jute.EXISTS, text("/" + "a" * (0xFFFFF - 8 - 4 - 1 - 1)) + boolean(False))
    ),
    "greeting": connects(),
    "greeting of an old client": connects(tail=b""),
    "greeting that would take reading": connects(tail=b"\1"),
    "greeting with something after it": connects(tail=bytes(20)),
    "greeting without a timeout": connects(timeout_ms=0),
    "greeting with a negative timeout": connects(timeout_ms=-5),
    "greeting with a tiny timeout": connects(timeout_ms=1),
    "greeting with a huge timeout": connects(timeout_ms=10**9),
    "greeting of another version": connects(protocol=7),
    "greeting without a password": connects(password=None),
    "greeting with a short password": connects(password=b"abc"),
    "greeting with a long password": connects(password=bytes(40)),
    "greeting of a session nobody knows": connects(session_id=12345),
    "greeting that is too short": connects(body=bytes(10)),
    "greeting of nothing": connects(body=b""),
    "authentication": authenticates("digest", b"ann:secret"),
    "authentication of another type": authenticates("digest", b"ann:secret", kind=7),
    "authentication by an unknown scheme": authenticates("carrier-pigeon", b"coo"),
    "authentication without a colon": authenticates("digest", b"ann"),
    "authentication without credentials": authenticates("digest", None),
    "authentication without a scheme": authenticates(None, b""),
    "authentication as the world": authenticates("world", b"anyone"),
    "authentication as an address": authenticates("ip", b"1.2.3.4"),
    "ping with an xid": pinged_with_an_xid,
}

KEPT = (-6, b"", 0)
UNKNOWN = "an opcode that a later client may try is refused, and the client goes on"
NOT_OFFERED = "we do not offer it, and say so"

DELIBERATE: dict[str, tuple[Scenario, Any, Any, str]] = {
    **{
        f"opcode {code}": (asks(code), KEPT, (-6, b"", HANGS_UP), UNKNOWN)
        for code in (-12, -1, 0, 10, 23, 99, 108, 1000)
    },
    "reconfig": (
        asks(jute.RECONFIG, text("server.9=x") + text(None) + text(None) + int64(-1)),
        KEPT,
        (-123, b"", 0),
        "ZooKeeper says that its configuration forbids it; we have no ensemble to change",
    ),
    "sasl": (asks(jute.SASL), KEPT, HANGS_UP, NOT_OFFERED),
    "a container": (
        code_of(asks(jute.CREATE_CONTAINER, lambda path: create(path, flags=4))),
        -6,
        0,
        NOT_OFFERED,
    ),
    "a container by its flag": (
        code_of(asks(jute.CREATE2, lambda path: create(path, flags=4))),
        -6,
        0,
        NOT_OFFERED,
    ),
    "addWatch": (
        adds_watch(0),
        (-6, []),
        (0, [(1, "{name}"), (3, "{name}"), (4, "{name}")]),
        NOT_OFFERED,
    ),
    "a path that is not UTF-8": (
        code_of(asks(jute.EXISTS, buffer(b"/\xff\xfe") + boolean(False))),
        -5,
        -101,
        "Java puts replacement characters there, so two names could become one",
    ),
    "check alone": (
        code_of(asks(jute.CHECK, text("/zookeeper") + int32(0))),
        0,
        "timed out",
        "ZooKeeper never answers it",
    ),
    "the robbed after a wrong password": (
        the_robbed_after_a_wrong_password,
        0,
        HANGS_UP,
        "who knows only an id must not be able to disconnect its owner",
    ),
    "a zxid from the future": (
        opened_with_a_zxid_from_the_future,
        (0, True),
        HANGS_UP,
        "there is no other server that could know more: our data is gone, and so is the session",
    ),
    "a new client with a zxid from the future": (
        connects(zxid=2**50),
        (0, 10_000, True, 16, b"\0"),
        HANGS_UP,
        "the same: it asks for a new session, and gets one",
    ),
}


def answer(scenario: Scenario, backend: Any, path: str) -> Any:
    try:
        return scenario(backend.server.hosts, backend.chroot + path)
    except TimeoutError:
        return "timed out"


@pytest.mark.parametrize("name", ALIKE)
def test_both_answer_alike(name, embedded, zookeeper):
    # The same path on both, so that it may stand in an answer.
    scenario = ALIKE[name]
    ours = answer(scenario, embedded, "/x")
    theirs = answer(scenario, zookeeper, "/x")
    assert without(ours, embedded.chroot) == without(theirs, zookeeper.chroot)


def without(value: Any, chroot: str) -> str:
    return repr(value).replace(chroot, "<chroot>")


@pytest.mark.parametrize("name", DELIBERATE)
def test_where_we_differ_it_is_on_purpose(name, embedded, zookeeper, monkeypatch):
    scenario, ours, theirs, reason = DELIBERATE[name]
    if theirs == "timed out":
        monkeypatch.setattr(jute, "DEADLINE_S", 2.0)
    assert answer(scenario, embedded, "/{name}") == ours, reason
    assert answer(scenario, zookeeper, "/{name}") == theirs, reason
