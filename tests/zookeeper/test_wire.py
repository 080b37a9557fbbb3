"""Requests that no client library sends, and rare ones: the embedded server and ZooKeeper.

Both servers must answer `ALIKE` in the same way. `DELIBERATE` has the intended differences: the
response of each server with the reason. Both are tested, so that the list stays true.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.zookeeper import jute, scenarios
from tests.zookeeper.jute import OPEN, acl_list, boolean, buffer, int32, int64, text
from tests.zookeeper.scenarios import (
    END_OF_MULTI,
    HANGS_UP,
    Scenario,
    adds_watch,
    asks,
    authenticates,
    code_of,
    connects,
    create,
    lists,
    needs_permission,
    part,
    removes_watches,
    sends,
)

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
    "who may not read hears nothing": scenarios.who_may_not_read_hears_nothing,
    "who may no longer read hears nothing": scenarios.who_may_no_longer_read_hears_nothing,
    "exists without permission": needs_permission(jute.EXISTS, boolean(False)),
    "get without permission": needs_permission(jute.GET_DATA, boolean(False)),
    "children without permission": needs_permission(jute.GET_CHILDREN, boolean(False)),
    "count without permission": needs_permission(jute.ALL_CHILDREN_NUMBER),
    "get acl without permission": needs_permission(jute.GET_ACL),
    "setWatches": scenarios.watches_come_back,
    "setWatches2": scenarios.newer_watches_come_back,
    "events and replies in order": scenarios.a_write_is_seen_before_it_is_answered,
    "wrong password": scenarios.opened_with_a_wrong_password,
    "a session on two connections": scenarios.opened_a_second_time,
    "close": scenarios.closed,
    "a closed session": scenarios.opened_after_it_was_closed,
    "expiry": scenarios.expires,
    "whoAmI": scenarios.says_who_it_is,
    "getEphemerals": scenarios.knows_its_ephemerals,
    "getAllChildrenNumber": scenarios.counts_what_is_below,
    "zxids": scenarios.zxids_only_grow,
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
    "connect request for an unknown session": connects(session_id=12345),
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
    "ping with an xid": scenarios.pinged_with_an_xid,
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
        scenarios.the_robbed_after_a_wrong_password,
        0,
        HANGS_UP,
        "a client that knows only the id must not be able to disconnect its owner",
    ),
    "a zxid from the future": (
        scenarios.opened_with_a_zxid_from_the_future,
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
    # The same path on both servers, since it may be in a response.
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
