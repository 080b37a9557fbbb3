"""Locations that a snapshot can be read from and written to.

`RunningZooKeeper` is an ensemble or an embedded server, reached with kazoo's blocking client.
`DatabaseFile` is the file of an embedded server that is stopped. Both have `read_all`, and
`replace`, which writes a snapshot over what was read. `copy_tree` decides what may be replaced.
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
from kazoo.security import ACL

from hightide.zookeeper import DATABASE, acl, database_file
from hightide.zookeeper.kazoo_translation import kazoo_acl
from hightide.zookeeper.node import Stat, Znode, initial_nodes, split
from hightide.zookeeper.operation import Create, Delete, Operation, SetData
from hightide.zookeeper.snapshot import (
    Snapshot,
    batches,
    creations,
    deletions,
    is_copied,
    joined,
    root_acl,
    root_of,
)

SESSION_S = 30.0
CONNECT_S = 10.0
ANSWER_S = 60.0
PIPELINED = 500
READ_ATTEMPTS = 5

_HOSTS = re.compile(r"[^/,\s]+:\d+(,[^/,\s]+:\d+)*(?P<chroot>(/[^/]+)*)/?")


class LocationFailed(Exception):
    """A location cannot be reached, read or written; the text says which and why."""


class Contents(NamedTuple):
    """All znodes of a location, ephemerals included, without those of the server
    and the secrets of the brokers."""

    zxid: int
    nodes: dict[str, Znode]


class Access(NamedTuple):
    """Credentials and TLS for running servers."""

    credentials: tuple[str, ...] = ()
    tls_ca: Path | None = None


class Location(Protocol):
    """Where the znodes of a cluster are."""

    @property
    def name(self) -> str: ...

    def read_all(self, allow_changes: bool = False) -> Contents:
        """Read all znodes; raise LocationFailed if they changed meanwhile, unless allowed."""

    def replace(self, old: Contents, roots: frozenset[str], new: Snapshot) -> None:
        """Delete the old znodes under these roots, and write the snapshot."""

    def close(self) -> None: ...


def location(text: str, access: Access, *, may_be_new: bool) -> Location:
    """Parse a location as the command line takes it: host:port, a directory or a file."""
    if _HOSTS.fullmatch(text):
        return RunningZooKeeper(text, access)
    path = Path(text)
    file = path if path.is_file() or path.suffix == ".db" else database_file(path)
    # A new directory must contain a slash: a host name without its port does not.
    if not (file.exists() or (may_be_new and (path.exists() or "/" in text))):
        raise LocationFailed(
            f"There is no ZooKeeper at {text}. Expected host:port, or the directory or the file"
            f" ({DATABASE}) of a stopped embedded ZooKeeper."
        )
    return DatabaseFile(file)


class DatabaseFile:
    """The file of a stopped embedded server. Copies to it keep versions and times too."""

    def __init__(self, file: Path) -> None:
        self._file = file

    @property
    def name(self) -> str:
        return str(self._file)

    def read_all(self, allow_changes: bool = False) -> Contents:  # noqa: ARG002 - the file is locked
        if not self._file.exists():
            return Contents(0, {"/": initial_nodes()["/"]})
        from hightide.zookeeper.store import open_tree

        store, tree = open_tree(self._file, None)
        store.close()
        return Contents(
            tree.zxid,
            {path: node for path, node in tree.nodes.items() if is_copied(path)},
        )

    def replace(self, old: Contents, roots: frozenset[str], new: Snapshot) -> None:
        from hightide.zookeeper.store import open_tree

        store, tree = open_tree(self._file, None)
        try:
            if tree.zxid != old.zxid:
                raise LocationFailed(f"{self.name} changed since it was read.")
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


class _ConnectError(logging.Handler):
    """Keeps why kazoo cannot connect: kazoo only logs the reason, its exception has none."""

    text = "no response in time"

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        _, separator, reason = message.partition("error: ")
        if separator:
            self.text = reason
        elif message.startswith("AUTH_FAILED"):
            # kazoo forgets this error when it arrives before the connection event.
            self.text = "the credentials are refused"


class RunningZooKeeper:
    """A running ZooKeeper, and a chroot in it."""

    def __init__(self, hosts: str, access: Access) -> None:
        self.name = hosts
        matched = _HOSTS.fullmatch(hosts)
        assert matched is not None
        self._chroot = matched["chroot"]
        log = logging.Logger("kazoo", logging.WARNING)
        log.addHandler(connect_error := _ConnectError())
        # Without the chroot: it may have to be created, and kazoo's transactions hide null data.
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
            raise LocationFailed(
                f"Cannot connect to ZooKeeper at {hosts}: {connect_error.text}."
            ) from failure

    def close(self) -> None:
        self._client.stop()
        self._client.close()

    # -- reading ---------------------------------------------------------------------------

    def read_all(self, allow_changes: bool = False) -> Contents:
        """Read until nothing changed during a pass.

        An unchanged zxid proves it, but other clients advance the zxid without touching these
        znodes. So two equal passes count as well: what is equal before and after a moment was so at
        that moment.
        """
        self._wait([self._client.sync_async(self._path("/"))])
        last: dict[str, Znode] | None = None
        for _ in range(READ_ATTEMPTS):
            before, nodes = self._read()
            zxid = self._client.last_zxid
            if before == zxid or nodes == last:
                return Contents(zxid, nodes)
            last = nodes
        if allow_changes:
            return Contents(self._client.last_zxid, nodes)
        raise LocationFailed(
            f"{self.name} changed during every one of {READ_ATTEMPTS} reads. Try again when there"
            " are fewer changes, or use --allow-changes to accept an inconsistent snapshot."
        )

    def _read(self) -> tuple[int, dict[str, Znode]]:
        """Read level by level; return the zxid of the first response, and the znodes."""
        client, first = self._client, 0
        nodes: dict[str, Znode] = {}
        level = ["/"]
        while level:
            data = self._read_paths(level, client.get_async)
            first = first or client.last_zxid
            level = [path for path in level if path in data]
            lists = self._read_paths(level, client.get_acls_async)
            for path in level:
                if path in lists:
                    nodes[path] = self._znode(path, data[path], lists[path][0])
            parents = [path for path in level if path in nodes and nodes[path].stat.num_children]
            children = self._read_paths(parents, client.get_children_async)
            level = [
                below
                for path, names in children.items()
                for below in (f"{path.rstrip('/')}/{name}" for name in names)
                if is_copied(below)
            ]
        if not nodes:
            nodes["/"] = initial_nodes()["/"]  # the chroot does not exist yet
        return first, nodes

    def _znode(self, path: str, got: tuple[bytes | None, ZnodeStat], listed: list[ACL]) -> Znode:
        entries = [acl.Entry(entry.perms, entry.id.scheme, entry.id.id) for entry in listed]
        if any(entry.scheme == "digest" and entry.id.endswith(":x") for entry in entries):
            raise LocationFailed(
                f"{self.name}: the ACL of {path} is hidden. Use credentials that have ADMIN"
                " permission on it."
            )
        data, stat = got
        return Znode(data, acl.encode(entries), Stat._make(stat))

    def _read_paths(self, paths: Sequence[str], read: Callable[[str], Any]) -> dict[str, Any]:
        """Read all paths in pipelined groups; leave out those that do not exist."""
        found: dict[str, Any] = {}
        for start in range(0, len(paths), PIPELINED):
            part = paths[start : start + PIPELINED]
            responses = self._wait([read(self._path(path)) for path in part])
            found |= {
                path: response
                for path, response in zip(part, responses, strict=True)
                if not isinstance(response, refusal.NoNodeError)
            }
        return found

    def _wait(self, requests: Iterable[Any]) -> list[Any]:
        """Wait for the responses; NoNodeError counts as one."""
        responses = []
        for request in requests:
            try:
                responses.append(request.get(timeout=ANSWER_S))
            except refusal.NoNodeError as missing:
                responses.append(missing)
            except (refusal.KazooException, KazooTimeoutError) as failure:
                raise LocationFailed(f"{self.name}: {_describe(failure)}.") from failure
        return responses

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
                f"{failure} The copy is incomplete; repeat the command with --overwrite."
            ) from failure
        listed = root_acl(new)
        if listed is not None:
            self._wait([self._client.set_acls_async(self._path("/"), kazoo_acl(listed))])

    def _commit(self, batch: list[Operation]) -> None:
        """Execute a batch as one multi. kazoo reports a failed multi as its results."""
        request = TransactionRequest(self._client)
        request.operations = [self._request(operation) for operation in batch]
        (results,) = self._wait([request.commit_async()])
        unclear = refusal.RolledBackError | refusal.RuntimeInconsistency
        for operation, result in zip(batch, results, strict=False):
            if isinstance(result, Exception) and not isinstance(result, unclear):
                raise LocationFailed(f"{self.name}: {operation.path}: {_describe(result)}.")

    def _request(self, operation: Operation) -> Any:
        path = self._path(operation.path)
        match operation:
            case Create(data=data, acl=listed):
                return wire.Create(path, data, kazoo_acl(listed), 0)
            case SetData(data=data, version=version):
                return wire.SetData(path, data, version)
            case Delete(version=version):
                return wire.Delete(path, version)
        raise AssertionError(operation)


def _describe(failure: Exception) -> str:
    match failure:
        case refusal.NoAuthError():
            return "the credentials do not allow this"
        case refusal.AuthFailedError():
            return "the credentials are refused"
        case refusal.InvalidACLError():
            return "the server does not support this ACL"
        case (
            refusal.ConnectionLoss()
            | refusal.SessionExpiredError()
            | refusal.ConnectionClosedError()
        ):
            return "the connection was lost"
        case KazooTimeoutError():
            return "no response in time"
    return str(failure) or type(failure).__name__
