"""Places that a snapshot can come from and go to.

`Ensemble` is a coordinator that runs, ours or ZooKeeper, asked over the wire with kazoo's blocking
client; `StoppedFile` is the file of one of ours that does not. Both can `look`, which tells all
that is there, and `replace`, which writes a snapshot over what was found. What may be replaced, and
whether, is for `copying` to say.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from kazoo import exceptions as refusal
from kazoo.client import KazooClient, TransactionRequest
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol import serialization as wire
from kazoo.protocol.states import ZnodeStat
from kazoo.security import ACL, Id

from hightide.zookeeper import DATABASE, acl
from hightide.zookeeper.node import Stat, Znode, initial_nodes, split
from hightide.zookeeper.operation import Create, Delete, Operation, SetData
from hightide.zookeeper.snapshot import (
    SERVERS_OWN,
    Snapshot,
    batches,
    creations,
    deletions,
    joined,
    root_acl,
    root_of,
)

SESSION_S = 30.0
CONNECT_S = 10.0
ANSWER_S = 60.0
AT_ONCE = 500
READINGS = 5

_HOSTS = re.compile(r"[^/,\s]+:\d+(,[^/,\s]+:\d+)*(?P<chroot>(/[^/]+)*)/?")


class LocationFailed(Exception):
    """A place that cannot be reached, read or written; the text says which and why."""


class Contents(NamedTuple):
    """All znodes of a place, ephemerals included, without what belongs to the server."""

    zxid: int
    nodes: dict[str, Znode]


class Access(NamedTuple):
    """What to show to coordinators over the wire."""

    credentials: tuple[str, ...] = ()
    tls_ca: Path | None = None


class Location(Protocol):
    """Where a tree is."""

    @property
    def name(self) -> str: ...

    def read_all(self, allow_changes: bool = False) -> Contents:
        """All that is there; PlaceFailed if it changed while it was read, unless allowed."""

    def replace(self, old: Contents, roots: frozenset[str], new: Snapshot) -> None:
        """Delete what was found under these roots, and write the snapshot."""

    def close(self) -> None: ...


def location(text: str, access: Access, *, may_be_new: bool) -> Location:
    """The place that a person means."""
    if _HOSTS.fullmatch(text):
        return RunningZooKeeper(text, access)
    path = Path(text)
    file = path if path.is_file() or path.suffix == ".db" else path / DATABASE
    # A new directory must look like one: the name of a host without its port does not.
    if not (file.exists() or (may_be_new and (path.exists() or "/" in text))):
        raise LocationFailed(
            f"There is no coordinator at {text}. A place is host:port, or else the directory or"
            f" the file ({DATABASE}) of a coordinator that is stopped."
        )
    return DatabaseFile(file)


class DatabaseFile:
    """The file of an embedded coordinator that is not running. All is kept, versions too."""

    def __init__(self, file: Path) -> None:
        self._file = file

    @property
    def name(self) -> str:
        return str(self._file)

    def read_all(self, allow_changes: bool = False) -> Contents:  # noqa: ARG002 - it cannot change
        if not self._file.exists():
            return Contents(0, {"/": initial_nodes()["/"]})
        from hightide.zookeeper.store import open_tree

        store, tree = open_tree(self._file, None)
        store.close()
        return Contents(
            tree.zxid,
            {path: node for path, node in tree.nodes.items() if root_of(path) != SERVERS_OWN},
        )

    def replace(self, old: Contents, roots: frozenset[str], new: Snapshot) -> None:
        from hightide.zookeeper.store import open_tree

        store, tree = open_tree(self._file, None)
        try:
            if tree.zxid != old.zxid:
                raise LocationFailed(f"{self.name} was used since it was looked at.")
            after: dict[str, Znode | None] = {
                path: None for path in old.nodes if root_of(path) in roots
            }
            after |= {path: node for path, node in new.nodes.items() if path != "/"}
            left = {path for path in tree.nodes if path not in after}
            left |= {path for path, node in after.items() if node is not None}
            count = sum(1 for path in left if path != "/" and split(path)[0] == "/")
            base = tree.nodes["/"]
            after["/"] = joined(base, new.nodes.get("/", base), count)
            store.write(max(tree.zxid, new.zxid), after, {})
        finally:
            store.close()

    def close(self) -> None:
        pass


class _LastWords(logging.Handler):
    """kazoo logs why it cannot connect and raises only that it could not."""

    text = "no answer in time"

    def emit(self, record: logging.LogRecord) -> None:
        said = record.getMessage()
        _, reason, words = said.partition("error: ")
        if reason:
            self.text = words
        elif said.startswith("AUTH_FAILED"):
            # It may come before kazoo has told that it was connected, and is forgotten then.
            self.text = "it does not accept the credentials"


class RunningZooKeeper:
    """A coordinator over the wire, and a chroot in it."""

    def __init__(self, hosts: str, access: Access) -> None:
        self.name = hosts
        matched = _HOSTS.fullmatch(hosts)
        assert matched is not None
        self._chroot = matched["chroot"]
        log = logging.Logger("kazoo", logging.WARNING)
        log.addHandler(last_words := _LastWords())
        # Without the chroot: it may have to be made, and kazoo's transactions hide null data.
        self._client = KazooClient(
            hosts=hosts.partition("/")[0],
            timeout=SESSION_S,
            auth_data=[("digest", line) for line in access.credentials],
            connection_retry={"max_tries": -1, "delay": 0.1, "max_delay": 1.0},
            use_ssl=access.tls_ca is not None,
            ca=str(access.tls_ca) if access.tls_ca else None,
            check_hostname=True,
            logger=log,
        )
        try:
            self._client.start(timeout=CONNECT_S)
        except (KazooTimeoutError, refusal.KazooException, OSError) as failure:
            self.close()
            raise LocationFailed(f"Nobody answers at {hosts}: {last_words.text}.") from failure

    def close(self) -> None:
        self._client.stop()
        self._client.close()

    # -- reading ---------------------------------------------------------------------------

    def read_all(self, allow_changes: bool = False) -> Contents:
        """Read until nothing happened meanwhile.

        The coordinator's zxid tells that, but others move it without touching our znodes. So two
        readings that agree count as well: what is the same before and after a moment was so in it.
        """
        self._ask([self._client.sync_async(self._path("/"))])
        last: dict[str, Znode] | None = None
        for _ in range(READINGS):
            before, nodes = self._read()
            zxid = self._client.last_zxid
            if before == zxid or nodes == last:
                return Contents(zxid, nodes)
            last = nodes
        if allow_changes:
            return Contents(self._client.last_zxid, nodes)
        raise LocationFailed(
            f"{self.name} changed every time while it was read. Try again when less goes on there,"
            " or take it as it comes with --allow-changes."
        )

    def _read(self) -> tuple[int, dict[str, Znode]]:
        """Level by level; the zxid is that of the first answer."""
        client, first = self._client, 0
        nodes: dict[str, Znode] = {}
        level = ["/"]
        while level:
            data = self._each(level, client.get_async)
            first = first or client.last_zxid
            level = [path for path in level if path in data]
            lists = self._each(level, client.get_acls_async)
            for path in level:
                if path in lists:
                    nodes[path] = self._znode(path, data[path], lists[path][0])
            parents = [path for path in level if path in nodes and nodes[path].stat.num_children]
            children = self._each(parents, client.get_children_async)
            level = [
                below
                for path, names in children.items()
                for below in (f"{path.rstrip('/')}/{name}" for name in names)
                if below != SERVERS_OWN
            ]
        if not nodes:
            nodes["/"] = initial_nodes()["/"]  # the chroot is still to be made
        return first, nodes

    def _znode(self, path: str, got: tuple[bytes | None, ZnodeStat], listed: list[ACL]) -> Znode:
        entries = [acl.Entry(each.perms, each.id.scheme, each.id.id) for each in listed]
        if any(entry.scheme == "digest" and entry.id.endswith(":x") for entry in entries):
            raise LocationFailed(
                f"{self.name}: the access list of {path} is hidden from us; give credentials that"
                " may change it."
            )
        data, stat = got
        return Znode(data, acl.encode(entries), Stat._make(stat))

    def _each(self, paths: Sequence[str], question: Callable[[str], Any]) -> dict[str, Any]:
        """The answers for all paths but those that are gone."""
        found: dict[str, Any] = {}
        for start in range(0, len(paths), AT_ONCE):
            part = paths[start : start + AT_ONCE]
            answers = self._ask([question(self._path(path)) for path in part])
            found |= {
                path: answer
                for path, answer in zip(part, answers, strict=True)
                if not isinstance(answer, refusal.NoNodeError)
            }
        return found

    def _ask(self, questions: Iterable[Any]) -> list[Any]:
        """The answers; NoNodeError is one."""
        answers = []
        for question in questions:
            try:
                answers.append(question.get(timeout=ANSWER_S))
            except refusal.NoNodeError as missing:
                answers.append(missing)
            except (refusal.KazooException, KazooTimeoutError) as failure:
                raise LocationFailed(f"{self.name}: {_in_words(failure)}.") from failure
        return answers

    def _path(self, path: str) -> str:
        return (self._chroot + path).rstrip("/") or "/"

    # -- writing ---------------------------------------------------------------------------

    def replace(self, old: Contents, roots: frozenset[str], new: Snapshot) -> None:
        if self._chroot:
            self._client.ensure_path(self._chroot)
        gone = deletions(path for path in old.nodes if root_of(path) in roots)
        is_touched = False
        try:
            for batch in batches(chain(gone, creations(new))):
                self._commit(batch)
                is_touched = True
        except LocationFailed as failure:
            if not is_touched:
                raise
            raise LocationFailed(
                f"{failure} What is there now is incomplete; do it again with --overwrite."
            ) from failure
        listed = root_acl(new)
        if listed is not None:
            self._ask([self._client.set_acls_async(self._path("/"), _kazoo_acl(listed))])

    def _commit(self, batch: list[Operation]) -> None:
        """All of these or none. kazoo reports a refused multi as its results."""
        request = TransactionRequest(self._client)
        request.operations = [self._request(operation) for operation in batch]
        (results,) = self._ask([request.commit_async()])
        unclear = refusal.RolledBackError | refusal.RuntimeInconsistency
        for operation, result in zip(batch, results, strict=False):
            if isinstance(result, Exception) and not isinstance(result, unclear):
                raise LocationFailed(f"{self.name}: {operation.path}: {_in_words(result)}.")

    def _request(self, operation: Operation) -> Any:
        path = self._path(operation.path)
        match operation:
            case Create(data=data, acl=listed):
                return wire.Create(path, data, _kazoo_acl(listed), 0)
            case SetData(data=data, version=version):
                return wire.SetData(path, data, version)
            case Delete(version=version):
                return wire.Delete(path, version)
        raise AssertionError(operation)


def _kazoo_acl(listed: bytes) -> list[ACL]:
    return [ACL(permissions, Id(scheme, name)) for permissions, scheme, name in acl.decode(listed)]


def _in_words(failure: Exception) -> str:
    match failure:
        case refusal.NoAuthError():
            return "the credentials do not allow this"
        case refusal.AuthFailedError():
            return "the credentials are refused"
        case refusal.InvalidACLError():
            return "the coordinator does not know this kind of access list"
        case (
            refusal.ConnectionLoss()
            | refusal.SessionExpiredError()
            | refusal.ConnectionClosedError()
        ):
            return "the connection was lost"
        case KazooTimeoutError():
            return "it does not answer any more"
    return str(failure) or type(failure).__name__
