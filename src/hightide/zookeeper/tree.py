"""The znode tree: a pure state machine with ZooKeeper's semantics; no clock, file or socket.

    request ──Draft.decide──▶ Decision(outcome, transaction)
                                 │  the committer writes the transaction to disk
                                 ▼
                       Tree.apply(transaction) ──▶ watch events, then the response

`decide` does not change the tree. A Draft is an overlay that shows the tree as it will be when
everything decided on the draft is applied. Several requests can be decided on one draft and
committed together; if the commit fails, the draft is dropped. Only `apply` changes the tree. It
cannot fail, and applying all transactions in order rebuilds the tree. Draft and tree compute the
effect of a change with one function, `_effects`, so they cannot disagree.

A refused request takes no zxid, so no client ever sees a zxid that a restart could take back.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping
from typing import Protocol, TypeVar

from hightide.zookeeper import acl
from hightide.zookeeper import operation as op
from hightide.zookeeper.node import (
    UNDELETABLE,
    Stat,
    Znode,
    check_path,
    initial_nodes,
    new_znode,
    split,
)
from hightide.zookeeper.session import Session
from hightide.zookeeper.watch import EventType, FiredWatch, Watches, WatchEvent
from hightide.zookeeper.zookeeper_errors import (
    BadArguments,
    BadVersion,
    MultiFailed,
    NoAuth,
    NoChildrenForEphemerals,
    NodeExists,
    NoNode,
    NotEmpty,
    ResponseTooLarge,
    SessionLost,
    ZooKeeperError,
)

_K = TypeVar("_K", str, int)


class View(Protocol):
    """Read access for `decide`; the tree and every draft on it are views."""

    @property
    def zxid(self) -> int: ...
    def node(self, path: str) -> Znode | None: ...
    def session(self, session_id: int) -> Session | None: ...
    def ephemerals(self, session_id: int) -> Iterable[str]: ...
    def ephemeral_count(self, session_id: int) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def size(self) -> int: ...


class Tree:
    """Znodes, sessions and watches as of the last applied transaction."""

    __slots__ = ("_children", "_ephemerals", "nodes", "sessions", "size", "watches", "zxid")

    def __init__(self) -> None:
        self.zxid = 0
        self.size = 0
        """The bytes of all paths, data and ACLs."""
        self.nodes: dict[str, Znode] = {}
        self.sessions: dict[int, Session] = {}
        self.watches = Watches()
        # Only znodes with children, and sessions with ephemerals, have an entry.
        self._children: dict[str, set[str]] = {}
        self._ephemerals: dict[int, set[str]] = {}
        for path, node in initial_nodes().items():
            self._install(path, node)

    @classmethod
    def restored(
        cls, zxid: int, nodes: Mapping[str, Znode], sessions: Mapping[int, Session]
    ) -> Tree:
        """Restore a tree from znodes and sessions. It has no watches: connections own them."""
        tree = cls()
        tree.zxid = zxid
        for path, node in nodes.items():
            tree._install(path, node)
        tree.sessions.update(sessions)
        return tree

    # Reads. A watch is armed only if the read succeeds, except for `exists`.

    def node(self, path: str) -> Znode | None:
        return self.nodes.get(path)

    def session(self, session_id: int) -> Session | None:
        return self.sessions.get(session_id)

    def ephemerals(self, session_id: int) -> Iterable[str]:
        return self._ephemerals.get(session_id, ())

    def ephemeral_count(self, session_id: int) -> int:
        return len(self._ephemerals.get(session_id, ()))

    @property
    def count(self) -> int:
        """The number of znodes."""
        return len(self.nodes)

    def get(self, path: str, watcher: int | None = None) -> Znode:
        node = _existing(self, path)
        if watcher is not None:
            self.watches.watch_data(path, watcher)
        return node

    def exists(self, path: str, watcher: int | None = None) -> Stat | None:
        if watcher is not None:
            self.watches.watch_data(path, watcher)
        node = self.nodes.get(path)
        return None if node is None else node.stat

    def children(self, path: str, watcher: int | None = None) -> list[str]:
        """Return sorted names. ZooKeeper promises no order, but a simulation needs one."""
        _existing(self, path)
        if watcher is not None:
            self.watches.watch_children(path, watcher)
        return sorted(self._children.get(path, ()))

    def descendants(self, path: str, limit: int) -> int:
        """Count the znodes below `path`; raise ResponseTooLarge past `limit` parents."""
        if path == "/":
            return len(self.nodes) - 1
        count, parents = 0, [path]
        for visited, parent in enumerate(parents):
            if visited == limit:
                raise ResponseTooLarge(path, f"more than {limit} znodes below have children")
            names = self._children.get(parent, ())
            count += len(names)
            below = (f"{parent}/{name}" for name in names)
            parents += [child for child in below if child in self._children]
        return count

    def rearm(
        self,
        watcher: int,
        seen_zxid: int,
        data: Iterable[str] = (),
        exists: Iterable[str] = (),
        children: Iterable[str] = (),
    ) -> list[FiredWatch]:
        """Arm the watches of a client that has reconnected (ZooKeeper's setWatches).

        Watches on znodes that changed after `seen_zxid` fire at once.
        """
        fired = []
        for path in data:
            node = self.nodes.get(path)
            if node is None:
                fired.append(FiredWatch(watcher, WatchEvent(EventType.DELETED, path)))
            elif node.stat.mzxid > seen_zxid:
                fired.append(FiredWatch(watcher, WatchEvent(EventType.CHANGED, path)))
            else:
                self.watches.watch_data(path, watcher)
        for path in exists:
            if path in self.nodes:
                fired.append(FiredWatch(watcher, WatchEvent(EventType.CREATED, path)))
            else:
                self.watches.watch_data(path, watcher)
        for path in children:
            node = self.nodes.get(path)
            if node is None:
                fired.append(FiredWatch(watcher, WatchEvent(EventType.DELETED, path)))
            elif node.stat.pzxid > seen_zxid:
                fired.append(FiredWatch(watcher, WatchEvent(EventType.CHILD, path)))
            else:
                self.watches.watch_children(path, watcher)
        return fired

    # Writes.

    def decide(
        self,
        request: op.Request,
        session_id: int,
        time_ms: int,
        access: acl.Access = acl.UNCHECKED,
    ) -> op.Decision:
        """Decide one request on the current tree."""
        return Draft(self).decide(request, session_id, time_ms, access)

    def apply(self, transaction: op.Transaction) -> list[FiredWatch]:
        """Apply a transaction and return the watch events it causes, in order."""
        return [watch for fired in self.apply_in_steps(transaction) for watch in fired]

    def apply_in_steps(self, transaction: op.Transaction) -> Iterator[list[FiredWatch]]:
        """Apply a transaction change by change, and return the events of each.

        Between two steps the tree is between two states.
        """
        assert transaction.zxid == self.zxid + 1, "a transaction is missing or repeated"
        for change in transaction.changes:
            if isinstance(change, op.SessionOpened):
                self.sessions[change.session_id] = change.session
            elif isinstance(change, op.SessionClosed):
                del self.sessions[change.session_id]
            else:
                yield self._change(change, transaction)
        self.zxid = transaction.zxid

    def _change(self, change: op.NodeChange, transaction: op.Transaction) -> list[FiredWatch]:
        before = self.nodes.get(change.path)
        for path, node in _effects(self, change, transaction.zxid, transaction.time_ms):
            self._install(path, node)
        node = self.nodes.get(change.path, before)
        assert node is not None, "the znode exists before or after the change"
        parent = self.nodes[split(change.path)[0]]
        return self.watches.fire(change, node.acl, parent.acl)

    def check(self) -> None:
        """Assert all invariants; for tests and the simulator."""
        assert not (flaws := list(self.flaws())), flaws

    def flaws(self) -> Iterator[str]:
        """Describe violated invariants; there are none unless the file was damaged."""
        children: dict[str, set[str]] = {}
        owned: dict[int, set[str]] = {}
        for path, (_, _, stat) in self.nodes.items():
            if path != "/":
                _put(children, *split(path))
            if stat.ephemeral_owner:
                _put(owned, stat.ephemeral_owner, path)
        if children != self._children or owned != self._ephemerals:
            yield "the indexes disagree with the znodes"
        if self.size != sum(_size(path, node) for path, node in self.nodes.items()):
            yield "the sum of the sizes is wrong"
        for parent in children.keys() - self.nodes.keys():
            yield f"{parent} is missing but has children"
        for owner in owned.keys() - self.sessions.keys():
            yield f"session {owner} is missing but has ephemerals"
        for path, (data, _, stat) in self.nodes.items():
            if stat.num_children != len(children.get(path, ())):
                yield f"{path} has a wrong number of children"
            if stat.ephemeral_owner and stat.num_children:
                yield f"{path} is ephemeral and has children"
            if stat.data_length != len(data or b""):
                yield f"{path} has a wrong data length"
            if not stat.czxid <= min(stat.mzxid, stat.pzxid):
                yield f"{path} changed before it was created"
            if max(stat.mzxid, stat.pzxid) > self.zxid:
                yield f"{path} is newer than the tree"

    def _install(self, path: str, node: Znode | None) -> None:
        old = self.nodes.get(path)
        self.size += _size(path, node) - _size(path, old)
        if node is not None:
            self.nodes[path] = node
            if old is None:
                if node.stat.ephemeral_owner:
                    _put(self._ephemerals, node.stat.ephemeral_owner, path)
                if path != "/":
                    _put(self._children, *split(path))
        elif old is not None:
            del self.nodes[path]
            if old.stat.ephemeral_owner:
                _take(self._ephemerals, old.stat.ephemeral_owner, path)
            _take(self._children, *split(path))


class Draft:
    """A view of the tree, or of another draft, with the changes decided on it."""

    __slots__ = ("_base", "_changed", "_owned", "count", "nodes", "sessions", "size", "zxid")

    def __init__(self, base: View) -> None:
        self._base = base
        self._owned: dict[int, int] = {}
        self._changed: dict[int, set[str]] = {}
        """The ephemerals that changed on this draft, by session; some are deleted."""
        self.zxid = base.zxid
        self.count = base.count
        self.size = base.size
        self.nodes: dict[str, Znode | None] = {}
        """Every znode that differs from the base, after the changes; None is deleted."""
        self.sessions: dict[int, Session | None] = {}

    def node(self, path: str) -> Znode | None:
        return self.nodes[path] if path in self.nodes else self._base.node(path)

    def session(self, session_id: int) -> Session | None:
        if session_id in self.sessions:
            return self.sessions[session_id]
        return self._base.session(session_id)

    def ephemerals(self, session_id: int) -> Iterable[str]:
        for path in self._base.ephemerals(session_id):
            if path not in self.nodes:
                yield path
        for path in self._changed.get(session_id, ()):
            node = self.nodes[path]
            if node is not None and node.stat.ephemeral_owner == session_id:
                yield path

    def ephemeral_count(self, session_id: int) -> int:
        owned = self._owned.get(session_id)
        return self._base.ephemeral_count(session_id) if owned is None else owned

    def decide(
        self,
        request: op.Request,
        session_id: int,
        time_ms: int,
        access: acl.Access = acl.UNCHECKED,
    ) -> op.Decision:
        """Decide a request as if all earlier decisions on this draft were applied."""
        steps = self.decide_in_steps(request, session_id, time_ms, access)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                decision: op.Decision = end.value
                return decision

    def decide_in_steps(
        self, request: op.Request, session_id: int, time_ms: int, access: acl.Access
    ) -> Generator[None, None, op.Decision]:
        """Decide a request, and pause after each of its parts; the draft changes at the end."""
        attempt = _Attempt(self, session_id, time_ms, access)
        try:
            result = yield from attempt.run(request)
        except ZooKeeperError as refusal:
            return op.Decision(refusal, None)
        if not attempt.changes:
            return op.Decision(result, None)
        self.zxid = attempt.zxid
        self.count, self.size = attempt.count, attempt.size
        self._owned |= attempt._owned
        for owner, paths in attempt._changed.items():
            self._changed.setdefault(owner, set()).update(paths)
        self.nodes |= attempt.nodes
        self.sessions |= attempt.sessions
        changes = tuple(attempt.changes)
        return op.Decision(result, op.Transaction(self.zxid, time_ms, session_id, changes))


class _Attempt(Draft):
    """The draft of one request: one zxid, dropped as a whole if any part of it is refused.

    The checks run in ZooKeeper's order, which determines which of several errors is returned.
    """

    __slots__ = ("_access", "_session_id", "_time_ms", "changes")

    def __init__(self, base: View, session_id: int, time_ms: int, access: acl.Access) -> None:
        super().__init__(base)
        self.zxid = base.zxid + 1
        self._session_id = session_id
        self._time_ms = time_ms
        self._access = access
        self.changes: list[op.Change] = []

    def run(self, request: op.Request) -> Generator[None, None, op.Result]:
        if isinstance(request, op.OpenSession):
            self._open(request)
            return None
        if self.session(self._session_id) is None:
            raise SessionLost
        if isinstance(request, op.Multi):
            return (yield from self._multi(request))
        if isinstance(request, op.CloseSession):
            yield from self._close()
            return None
        if isinstance(request, op.SetAcl):
            return self._set_acl(request)
        return self._operate(request)

    def _operate(self, operation: op.Operation) -> op.NewNode | Stat | None:
        match operation:
            case op.Create():
                return self._create(operation)
            case op.SetData(path, data, version):
                check_path(path)
                node = self._permitted(path, acl.WRITE)
                _check_version(path, version, node.stat.version)
                self._check_growth(path, len(data or b"") - node.stat.data_length)
                return self._change(op.DataSet(path, data))
            case op.Delete():
                self._delete(operation)
                return None
            case op.Check(path, version):
                check_path(path)
                _check_version(path, version, self._permitted(path, acl.READ).stat.version)
                return None

    def _create(self, create: op.Create) -> op.NewNode:
        path = create.path
        parent_path, _ = split(path)
        entries = self._access.resolve(path, create.acl)
        parent = self._permitted(parent_path, acl.CREATE)
        if create.sequence:
            path += f"{parent.create_count:010d}"
        check_path(path)
        if self.node(path) is not None:
            raise NodeExists(path)
        if parent.stat.ephemeral_owner:
            raise NoChildrenForEphemerals(parent_path)
        owner = self._session_id if create.ephemeral else 0
        quota = self._access.quota
        if quota is not None:
            quota.check_create(path, self.count, parent.stat.num_children)
            if owner:
                quota.check_ephemerals(path, self.ephemeral_count(owner))
            self._check_growth(path, len(path) + len(create.data or b"") + len(entries))
        return op.NewNode(path, self._change(op.Created(path, create.data, entries, owner)))

    def _delete(self, delete: op.Delete) -> None:
        path = delete.path
        if path in UNDELETABLE:
            raise BadArguments(path, "this znode cannot be deleted")
        parent_path, _ = split(path)
        self._permitted(parent_path, acl.DELETE)
        node = _existing(self, path)
        _check_version(path, delete.version, node.stat.version)
        if node.stat.num_children:
            raise NotEmpty(path)
        self._delete_node(path)

    def _set_acl(self, request: op.SetAcl) -> Stat:
        path = request.path
        check_path(path)
        entries = self._access.resolve(path, request.acl)
        node = self._permitted(path, acl.ADMIN)
        _check_version(path, request.version, node.stat.aversion)
        self._check_growth(path, len(entries) - len(node.acl))
        return self._change(op.AclSet(path, entries))

    def _check_growth(self, path: str, more: int) -> None:
        if self._access.quota is not None:
            self._access.quota.check_growth(path, self.size, more)

    def _permitted(self, path: str, permission: int) -> Znode:
        """Return the znode; raise NoNode or NoAuth."""
        node = _existing(self, path)
        if not self._access.may(node.acl, permission):
            raise NoAuth(path)
        return node

    def _multi(self, multi: op.Multi) -> Generator[None, None, list[op.NewNode | Stat | None]]:
        results = []
        for index, operation in enumerate(multi.operations):
            try:
                if isinstance(operation, op.Refused):
                    raise operation.cause
                results.append(self._operate(operation))
            except ZooKeeperError as refusal:
                raise MultiFailed(index, refusal, len(multi.operations)) from refusal
            yield
        return results

    def _open(self, request: op.OpenSession) -> None:
        assert request.session_id > 0, "0 means no owner"
        assert self.session(request.session_id) is None, "session ids are used once"
        session = Session(request.timeout_ms, request.password)
        self.sessions[request.session_id] = session
        self.changes.append(op.SessionOpened(request.session_id, session))

    def _close(self) -> Iterator[None]:
        for path in sorted(self.ephemerals(self._session_id)):
            self._delete_node(path)
            yield
        self.sessions[self._session_id] = None
        self.changes.append(op.SessionClosed(self._session_id))

    def _delete_node(self, path: str) -> None:
        self._note(op.Deleted(path))

    def _change(self, change: op.Created | op.DataSet | op.AclSet) -> Stat:
        self._note(change)
        return _existing(self, change.path).stat

    def _note(self, change: op.NodeChange) -> None:
        """Add a change, and count what it adds or removes."""
        before = self.node(change.path)
        self.nodes.update(_effects(self, change, self.zxid, self._time_ms))
        self.changes.append(change)
        after = self.nodes[change.path]
        self.size += _size(change.path, after) - _size(change.path, before)
        owner = (after or before or _NO_NODE).stat.ephemeral_owner
        if owner:
            _put(self._changed, owner, change.path)
        if (before is None) == (after is None):
            return
        added = 1 if before is None else -1
        self.count += added
        if owner:
            self._owned[owner] = self.ephemeral_count(owner) + added


def _effects(
    view: View,
    change: op.NodeChange,
    zxid: int,
    time_ms: int,
) -> Iterator[tuple[str, Znode | None]]:
    """Return every znode that a change affects, after the change."""
    match change:
        case op.Created(path, data, acl, owner):
            parent_path, _ = split(path)
            yield parent_path, _existing(view, parent_path).with_child(zxid)
            yield path, new_znode(data, acl, owner, zxid, time_ms)
        case op.Deleted(path):
            parent_path, _ = split(path)
            yield parent_path, _existing(view, parent_path).without_child(zxid)
            yield path, None
        case op.DataSet(path, data):
            yield path, _existing(view, path).with_data(data, zxid, time_ms)
        case op.AclSet(path, acl):
            yield path, _existing(view, path).with_acl(acl)


_NO_NODE = new_znode(None, b"", 0, 0, 0)


def _size(path: str, node: Znode | None) -> int:
    """Return the bytes that a znode counts for."""
    return 0 if node is None else len(path) + node.stat.data_length + len(node.acl)


def _existing(view: View, path: str) -> Znode:
    node = view.node(path)
    if node is None:
        raise NoNode(path)
    return node


def _check_version(path: str, expected: int, version: int) -> None:
    if expected not in (op.ANY_VERSION, version):
        raise BadVersion(path, f"expected {expected}, found {version}")


def _put(index: dict[_K, set[str]], key: _K, value: str) -> None:
    index.setdefault(key, set()).add(value)


def _take(index: dict[_K, set[str]], key: _K, value: str) -> None:
    """Remove a value, and the entry with its last value."""
    values = index[key]
    values.remove(value)
    if not values:
        del index[key]
