"""ZooKeeper's request types: decoding of requests, execution of reads, encoding of responses.

A write becomes an operation for the tree, which may refuse it; its result becomes the body of the
response. A read is executed on the current tree when its turn comes, and may arm watches. Both
raise ZooKeeperError, whose code is then the response.

Not supported, and answered with Unimplemented: reconfiguration, SASL, container and TTL znodes, and
persistent watches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from hightide.zookeeper import acl
from hightide.zookeeper import operation as op
from hightide.zookeeper.acl import Identity
from hightide.zookeeper.node import Znode
from hightide.zookeeper.server import jute
from hightide.zookeeper.server.jute import Reader
from hightide.zookeeper.tree import Tree
from hightide.zookeeper.watch import WatchEvent
from hightide.zookeeper.zookeeper_errors import (
    BadArguments,
    MalformedRequest,
    MultiFailed,
    NoAuth,
    NoNode,
    NoWatcher,
    QuotaExceeded,
    ResponseTooLarge,
    Unimplemented,
    ZooKeeperError,
)

CREATE, DELETE, EXISTS, GET_DATA, SET_DATA, GET_ACL, SET_ACL = 1, 2, 3, 4, 5, 6, 7
GET_CHILDREN, SYNC, PING, GET_CHILDREN2, CHECK, MULTI, CREATE2 = 8, 9, 11, 12, 13, 14, 15
CHECK_WATCHES, REMOVE_WATCHES, CREATE_CONTAINER, CREATE_TTL, MULTI_READ = 17, 18, 19, 21, 22
AUTH, SET_WATCHES, GET_EPHEMERALS, GET_ALL_CHILDREN_NUMBER = 100, 101, 103, 104
SET_WATCHES2, WHO_AM_I, CLOSE = 105, 107, -11

EVENT_XID, PING_XID = -1, -2
_LISTED_NAMES = 100_000
"""Names of children in one response: to sort and encode them takes some 70 ms."""
_NAMES_PER_ENTRY = 20
"""The entry of an ACL that is not known yet takes as long as so many names."""
_COUNTED_PARENTS = 50_000
"""Znodes with children that getAllChildrenNumber visits: they take some 50 ms."""
_EVENT = jute.int32(EVENT_XID) + b"\xff" * 8 + bytes(4)
_CONNECTED = jute.int32(3)
_END_OF_MULTI = jute.int32(-1) + b"\1" + jute.int32(-1)


class Requester(Protocol):
    """The connection that sent a read request."""

    @property
    def tree(self) -> Tree: ...
    @property
    def session_id(self) -> int: ...
    @property
    def identity(self) -> Identity: ...
    @property
    def response_bytes(self) -> int: ...
    @property
    def operations(self) -> int: ...
    def watch_fired(self, event: WatchEvent, acl: bytes) -> None: ...


def event(fired: WatchEvent) -> bytes:
    """Encode the frame of a watch event, without its length."""
    return _EVENT + jute.int32(fired.type) + _CONNECTED + jute.string(fired.path)


# Writes: from body to operation, and from result to body.


class _NeedsTtl(Unimplemented):
    """ZooKeeper does not support this either, unless it is configured to."""

    meaning = "TTL znodes are not supported"


def _create(body: Reader) -> op.Create:
    path, data, entries, flags = body.optional_string(), body.buffer(), body.acl(), body.int32()
    if flags in (5, 6):
        raise _NeedsTtl(path or "")
    if flags == 4:
        raise Unimplemented(path or "", "container znodes")
    if not 0 <= flags <= 3:
        raise BadArguments(path or "", f"flags {flags}")
    if path is None:
        raise jute.Missing
    return op.Create(path, data, bool(flags & 1), bool(flags & 2), acl.encode(entries))


def _create_container(body: Reader) -> op.Create:
    raise Unimplemented(_create(body).path, "container znodes")


def _create_ttl(body: Reader) -> op.Create:
    path, *_ = body.string(), body.buffer(), body.acl(), body.int32(), body.int64()
    raise Unimplemented(path, "TTL znodes")


def _delete(body: Reader) -> op.Delete:
    return op.Delete(body.string(), body.int32())


def _set_data(body: Reader) -> op.SetData:
    return op.SetData(body.string(), body.buffer(), body.int32())


def _check(body: Reader) -> op.Check:
    return op.Check(body.string(), body.int32())


def _set_acl(body: Reader) -> op.SetAcl:
    return op.SetAcl(body.string(), acl.encode(body.acl()), body.int32())


_OPERATIONS: dict[int, Callable[[Reader], op.Operation]] = {
    CREATE: _create,
    CREATE2: _create,
    DELETE: _delete,
    SET_DATA: _set_data,
    CHECK: _check,
    CREATE_CONTAINER: _create_container,
    CREATE_TTL: _create_ttl,
}

_WRITES: dict[int, Callable[[Reader], op.Request]] = {**_OPERATIONS, SET_ACL: _set_acl}


def decode_write(kind: int, body: Reader) -> op.Request:
    """Decode a write request other than a multi."""
    if kind not in _WRITES:
        raise Unimplemented(detail=f"request {kind}")
    try:
        return _WRITES[kind](body)
    except jute.Missing:
        # ZooKeeper answers a null path differently by request type, though not in a multi.
        if kind in (SET_DATA, CHECK, SET_ACL):
            raise BadArguments from None
        raise


def decode_multi(body: Reader, limit: int) -> tuple[list[int], op.Multi]:
    """Decode a multi of at most `limit` operations.

    Return the types of the parts of the response, and the operations.
    """
    kinds: list[int] = []
    operations: list[op.Operation | op.Refused] = []
    while True:
        kind, is_last, _ = body.int32(), body.boolean(), body.int32()
        if is_last:
            return kinds, op.Multi(tuple(operations))
        if kind not in _OPERATIONS:
            raise MalformedRequest(detail=f"request type {kind} in a multi")
        if len(kinds) == limit:
            raise MalformedRequest(detail=f"more than {limit} operations in a multi")
        # In a multi ZooKeeper treats the two types of create alike.
        kinds.append(CREATE if kind == CREATE2 else kind)
        try:
            operations.append(_OPERATIONS[kind](body))
        except _NeedsTtl as refusal:
            operations.append(op.Refused(MalformedRequest(refusal.path, "TTL znode in a multi")))
        except (BadArguments, Unimplemented) as refusal:
            operations.append(op.Refused(refusal))


def result(kind: int, outcome: op.Result) -> bytes:
    """Encode the body of the response to a write."""
    if isinstance(outcome, op.NewNode):
        path = jute.string(outcome.path)
        return path + jute.stat(outcome.stat) if kind == CREATE2 else path
    if outcome is None:
        return b""
    assert not isinstance(outcome, list), "multi_result encodes the result of a multi"
    return jute.stat(outcome)


def multi_result(kinds: list[int], outcome: op.Result | MultiFailed) -> bytes:
    if isinstance(outcome, MultiFailed):
        return b"".join(map(_failed_part, outcome.codes)) + _END_OF_MULTI
    assert isinstance(outcome, list)
    parts = [_part(kind, result(kind, part)) for kind, part in zip(kinds, outcome, strict=True)]
    return b"".join(parts) + _END_OF_MULTI


def _part(kind: int, body: bytes) -> bytes:
    return jute.int32(kind) + b"\0" + jute.int32(0) + body


def _failed_part(code: int) -> bytes:
    return jute.int32(-1) + b"\0" + jute.int32(code) * 2


# Reads: from requester and body to the body of the response.


def _readable(requester: Requester, path: str, permissions: int = acl.READ) -> Znode:
    node = requester.tree.node(path)
    if node is None:
        raise NoNode(path)
    if not requester.identity.may(node.acl, permissions):
        raise NoAuth(path)
    return node


def _path_and_watcher(requester: Requester, body: Reader) -> tuple[str, int | None]:
    """Decode path and watcher. The empty path is never watched: nothing happens to it."""
    path, is_watched = body.string(), body.boolean()
    if not is_watched or not path:
        return _root_if_empty(path), None
    _check_watches_quota(requester, path, 1, len(path))
    return path, requester.session_id


def _check_watches_quota(requester: Requester, path: str, count: int, size: int) -> None:
    """Raise QuotaExceeded if the client may not have so many more watches."""
    quota, watches = requester.identity.quota, requester.tree.watches
    if quota is None:
        return
    if (
        watches.count_of(requester.session_id) + count > quota.session_watches
        or len(watches) + count > quota.watches
        or watches.size + size > quota.watch_bytes
    ):
        raise QuotaExceeded(path, f"{len(watches)} watches, {watches.size} bytes")


def _root_if_empty(path: str) -> str:
    """ZooKeeper accepts the empty path for the root, but only in reads."""
    return path or "/"


def _exists(requester: Requester, body: Reader) -> bytes:
    path, watcher = _path_and_watcher(requester, body)
    if "\0" in path:
        raise BadArguments(path)
    stat = requester.tree.exists(path, watcher)
    if stat is None:
        raise NoNode(path)
    return jute.stat(stat)


def _data(requester: Requester, path: str, watcher: int | None) -> bytes:
    _readable(requester, path)
    node = requester.tree.get(path, watcher)
    return jute.buffer(node.data) + jute.stat(node.stat)


def _children(requester: Requester, path: str, watcher: int | None) -> bytes:
    node = _readable(requester, path)
    _check_children(requester, path, node)
    return _names(requester, path, watcher)


def _check_children(requester: Requester, path: str, node: Znode) -> None:
    """Refuse a list that cannot fit, before it is sorted: a name has at least 5 bytes."""
    count = node.stat.num_children
    if count > _LISTED_NAMES or 5 * count > requester.response_bytes:
        raise ResponseTooLarge(path, f"{count} children")


def _names(requester: Requester, path: str, watcher: int | None) -> bytes:
    """Encode the children's names, up to the largest response."""
    names = _strings(requester, path, requester.tree.children(path))
    if watcher is not None:
        requester.tree.watches.watch_children(path, watcher)
    return names


def _strings(requester: Requester, path: str, texts: list[str]) -> bytes:
    """Encode a list, up to the largest response."""
    room = requester.response_bytes
    parts: list[bytes] = []
    for item in texts:
        parts.append(jute.string(item))
        room -= len(parts[-1])
        if room < 0:
            raise ResponseTooLarge(path, f"a list of names exceeds {requester.response_bytes}")
    return jute.int32(len(parts)) + b"".join(parts)


def _get_data(requester: Requester, body: Reader) -> bytes:
    return _data(requester, *_path_and_watcher(requester, body))


def _get_children(requester: Requester, body: Reader) -> bytes:
    return _children(requester, *_path_and_watcher(requester, body))


def _get_children2(requester: Requester, body: Reader) -> bytes:
    path, watcher = _path_and_watcher(requester, body)
    node = _readable(requester, path)
    _check_children(requester, path, node)
    return _names(requester, path, watcher) + jute.stat(node.stat)


def _get_acl(requester: Requester, body: Reader) -> bytes:
    node = _readable(requester, _root_if_empty(body.string()), acl.READ | acl.ADMIN)
    entries = acl.decode(node.acl)
    if not requester.identity.may(node.acl, acl.ADMIN):
        return acl.wire(acl.without_secrets(entries)) + jute.stat(node.stat)
    return acl.wire(entries) + jute.stat(node.stat)


def _get_ephemerals(requester: Requester, body: Reader) -> bytes:
    prefix = (body.optional_string() or "").strip()
    mine = sorted(requester.tree.ephemerals(requester.session_id))
    return _strings(
        requester, prefix, [path for path in mine if prefix == "/" or path.startswith(prefix)]
    )


def _get_all_children_number(requester: Requester, body: Reader) -> bytes:
    path = _root_if_empty(body.string())
    _readable(requester, path)
    return jute.int32(requester.tree.descendants(path, _COUNTED_PARENTS))


def _sync(requester: Requester, body: Reader) -> bytes:  # noqa: ARG001
    path = body.optional_string()
    return jute.buffer(None) if path is None else jute.string(path)


def _ping(requester: Requester, body: Reader) -> bytes:  # noqa: ARG001
    return b""


def _who_am_i(requester: Requester, body: Reader) -> bytes:  # noqa: ARG001
    ids = requester.identity.ids
    names = [jute.string(scheme) + jute.string(name.partition(":")[0]) for scheme, name in ids]
    return jute.int32(len(ids)) + b"".join(names)


def _set_watches(requester: Requester, body: Reader) -> bytes:
    seen_zxid, data, exists, children = body.int64(), *(body.strings() for _ in range(3))
    _rearm(requester, seen_zxid, data, exists, children)
    return b""


def _rearm(
    requester: Requester, seen_zxid: int, data: list[str], exists: list[str], children: list[str]
) -> None:
    """Arm the watches of a reconnected client.

    A path that is named twice is one watch, but an event that was missed comes twice, as from
    ZooKeeper.
    """
    watched = [path for named in (data, exists, children) for path in set(named)]
    if watched:
        _check_watches_quota(requester, "", len(watched), sum(map(len, watched)))
    for fired in requester.tree.rearm(requester.session_id, seen_zxid, data, exists, children):
        requester.watch_fired(fired.event, fired.acl)


def _set_watches2(requester: Requester, body: Reader) -> bytes:
    seen_zxid, data, exists, children = body.int64(), *(body.strings() for _ in range(3))
    if body.strings() or body.strings():
        raise Unimplemented(detail="persistent watches")
    _rearm(requester, seen_zxid, data, exists, children)
    return b""


def _watch_kinds(body: Reader) -> tuple[str, bool, bool]:
    """Decode a path, and whether its data watch and its child watch are meant."""
    path, kind = body.string(), body.int32()
    if kind not in (1, 2, 3):
        raise MalformedRequest(path, f"watch type {kind}")
    return path, kind != 1, kind != 2


def _check_watches(requester: Requester, body: Reader) -> bytes:
    path, data, children = _watch_kinds(body)
    if not requester.tree.watches.has(requester.session_id, path, data=data, children=children):
        raise NoWatcher(path)
    return b""


def _remove_watches(requester: Requester, body: Reader) -> bytes:
    path, data, children = _watch_kinds(body)
    if not requester.tree.watches.remove(requester.session_id, path, data=data, children=children):
        raise NoWatcher(path)
    return b""


def _multi_read(requester: Requester, body: Reader) -> bytes:
    """Execute several reads. They arm no watches, whatever their flag says, as in ZooKeeper."""
    parts: list[bytes] = []
    room, names = requester.response_bytes, _LISTED_NAMES
    while True:
        kind, is_last, _ = body.int32(), body.boolean(), body.int32()
        if is_last:
            return b"".join(parts) + _END_OF_MULTI
        if len(parts) == requester.operations:
            raise MalformedRequest(detail=f"more than {requester.operations} operations")
        if kind not in (GET_DATA, GET_CHILDREN):
            raise MalformedRequest(detail=f"request type {kind} in a multi read")
        path, _ = _root_if_empty(body.string()), body.boolean()
        read = _data if kind == GET_DATA else _children
        node = requester.tree.node(path)
        if node is not None:
            names -= _NAMES_PER_ENTRY * acl.count(node.acl)
            names -= node.stat.num_children if kind == GET_CHILDREN else 0
            if names < 0:
                raise ResponseTooLarge(
                    path, f"a multi read visits more than {_LISTED_NAMES} names or ACL entries"
                )
        try:
            parts.append(_part(kind, read(requester, path, None)))
        except ZooKeeperError as refusal:
            if isinstance(refusal, ResponseTooLarge):
                raise
            parts.append(_failed_part(refusal.code))
        room -= len(parts[-1])
        if room < 0:
            raise ResponseTooLarge(path, f"a multi read exceeds {requester.response_bytes} bytes")


READS: dict[int, Callable[[Requester, Reader], bytes]] = {
    EXISTS: _exists,
    GET_DATA: _get_data,
    GET_ACL: _get_acl,
    GET_CHILDREN: _get_children,
    SYNC: _sync,
    PING: _ping,
    GET_CHILDREN2: _get_children2,
    CHECK_WATCHES: _check_watches,
    REMOVE_WATCHES: _remove_watches,
    MULTI_READ: _multi_read,
    SET_WATCHES: _set_watches,
    GET_EPHEMERALS: _get_ephemerals,
    GET_ALL_CHILDREN_NUMBER: _get_all_children_number,
    SET_WATCHES2: _set_watches2,
    WHO_AM_I: _who_am_i,
}
