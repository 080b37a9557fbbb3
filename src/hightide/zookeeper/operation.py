"""Requests to the tree, and the transactions that result from them.

A request may be refused; a transaction is a fact. It names what changed and leaves nothing to
decide: a sequence number is already in the path, an ephemeral has its owner, and the ephemerals of
a closed session are listed one by one. So applying a transaction cannot fail.

Named tuples and not frozen dataclasses: a named tuple class takes a seventh of the time to define,
there are many of them, and the definition delays a broker's first response.
"""

from __future__ import annotations

from typing import NamedTuple

from hightide.zookeeper.node import OPEN_ACL, Stat
from hightide.zookeeper.session import Session
from hightide.zookeeper.zookeeper_errors import ZooKeeperError

ANY_VERSION = -1


class Create(NamedTuple):
    """Create a znode; `sequence` appends the parent's create count to the path."""

    path: str
    data: bytes | None = b""
    ephemeral: bool = False
    sequence: bool = False
    acl: bytes = OPEN_ACL


class Delete(NamedTuple):
    """Delete a znode that has no children, if it has this version."""

    path: str
    version: int = ANY_VERSION


class SetData(NamedTuple):
    """Replace a znode's data, if it has this version."""

    path: str
    data: bytes | None
    version: int = ANY_VERSION


class Check(NamedTuple):
    """Change nothing, but refuse the multi unless the znode exists with this version."""

    path: str
    version: int = ANY_VERSION


class SetAcl(NamedTuple):
    """Replace a znode's ACL; `version` is the ACL's version (aversion)."""

    path: str
    acl: bytes
    version: int = ANY_VERSION


class Refused(NamedTuple):
    """An operation of a multi that is invalid by itself, in its position among the others."""

    cause: ZooKeeperError


class Multi(NamedTuple):
    """Operations executed all or none, as one transaction; each sees the ones before it."""

    operations: tuple[Create | Delete | SetData | Check | Refused, ...]


class OpenSession(NamedTuple):
    """Open a session. The caller chooses id and password: the tree has no randomness."""

    session_id: int
    timeout_ms: int
    password: bytes = b""


class CloseSession:
    """Close the requesting session, because its client asked or it expired, with its ephemerals."""

    __slots__ = ()


Operation = Create | Delete | SetData | Check
Request = Operation | SetAcl | Multi | OpenSession | CloseSession


class NewNode(NamedTuple):
    """The result of Create: the znode's path and its Stat at the end of the transaction."""

    path: str
    stat: Stat


Result = NewNode | Stat | list["NewNode | Stat | None"] | None


class Created(NamedTuple):
    path: str
    data: bytes | None
    acl: bytes
    owner: int


class Deleted(NamedTuple):
    path: str


class DataSet(NamedTuple):
    path: str
    data: bytes | None


class AclSet(NamedTuple):
    path: str
    acl: bytes


class SessionOpened(NamedTuple):
    session_id: int
    session: Session


class SessionClosed(NamedTuple):
    session_id: int


NodeChange = Created | Deleted | DataSet | AclSet
Change = NodeChange | SessionOpened | SessionClosed


class Transaction(NamedTuple):
    """What one request changed, under one zxid."""

    zxid: int
    time_ms: int
    session_id: int
    changes: tuple[Change, ...]


class Decision(NamedTuple):
    """The outcome to answer when `transaction` is durable and applied; None if nothing changes."""

    outcome: Result | ZooKeeperError
    transaction: Transaction | None
