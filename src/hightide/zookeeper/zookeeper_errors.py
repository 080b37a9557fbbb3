"""ZooKeeper's errors, one class per error code that the program distinguishes.

The tree returns them in decisions, the client raises them, and the server sends `code`. Every
error names its znode.
"""

from __future__ import annotations

from typing import ClassVar


class ZooKeeperError(Exception):
    """Any error of ZooKeeper."""

    code: ClassVar[int] = -1
    meaning: ClassVar[str] = "ZooKeeper failed"

    def __init__(self, path: str = "", detail: str = "") -> None:
        self.path = path
        self.detail = detail
        sentence = f"{self.meaning}: {path}" if path else self.meaning
        super().__init__(f"{sentence} ({detail})" if detail else sentence)


class RuntimeInconsistency(ZooKeeperError):
    """An operation of a multi that was not tried, because an earlier one failed."""

    code = -2
    meaning = "an earlier operation of the same multi failed"


class ConnectionLoss(ZooKeeperError):
    """The connection broke during a request: the server may or may not have executed it."""

    code = -4
    meaning = "the connection to ZooKeeper was lost, the outcome is unknown"


class NotConnected(ConnectionLoss):
    """There was no connection, so the request was not sent."""

    meaning = "not connected to ZooKeeper, nothing was sent"


class MalformedZnode(ZooKeeperError):
    """A znode's data does not have the format that its path requires."""

    code = -5
    meaning = "cannot parse the data of znode"


class MalformedRequest(ZooKeeperError):
    """A request's body does not have the format that its type requires."""

    code = -5
    meaning = "cannot parse the request"


class ResponseTooLarge(ZooKeeperError):
    """The response would be larger than the server builds, or take too long to build."""

    code = -5
    meaning = "the response is too large"


class Unimplemented(ZooKeeperError):
    """A request type that this server does not support."""

    code = -6
    meaning = "not supported by this server"


class BadArguments(ZooKeeperError):
    """An invalid path, or a znode that must not be deleted."""

    code = -8
    meaning = "invalid path"


class TooLarge(ZooKeeperError):
    """More data than a server accepts in one request; it was not sent."""

    code = -8
    meaning = "too much data for one request"


class NoNode(ZooKeeperError):
    """The znode, or for create its parent, does not exist."""

    code = -101
    meaning = "no such znode"


class NoAuth(ZooKeeperError):
    """The ACL does not permit the request, or the connection is not authenticated."""

    code = -102
    meaning = "not authorized"


class BadVersion(ZooKeeperError):
    """The znode's version is not the expected one: another client wrote it."""

    code = -103
    meaning = "unexpected znode version"


class NoChildrenForEphemerals(ZooKeeperError):
    """An ephemeral znode cannot have children."""

    code = -108
    meaning = "an ephemeral znode cannot have children"


class NodeExists(ZooKeeperError):
    """The znode to create already exists."""

    code = -110
    meaning = "znode already exists"


class NotEmpty(ZooKeeperError):
    """The znode to delete has children."""

    code = -111
    meaning = "znode has children"


class SessionLost(ZooKeeperError):
    """The session is closed or expired: its ephemerals are gone and it takes no requests."""

    code = -112
    meaning = "the ZooKeeper session is closed or expired"


class InvalidAcl(ZooKeeperError):
    """An ACL that is empty, or that has an invalid id."""

    code = -114
    meaning = "invalid ACL"


class AuthFailed(ZooKeeperError):
    """The credentials are wrong, or their scheme is unknown to the server."""

    code = -115
    meaning = "authentication failed"


class NoWatcher(ZooKeeperError):
    """There is no such watch to remove."""

    code = -121
    meaning = "no such watch"


class QuotaExceeded(ZooKeeperError):
    """The request would add more znodes, bytes or watches than the server accepts."""

    code = -125
    meaning = "quota exceeded"


class StorageError(ZooKeeperError):
    """The database file cannot be opened, read or written."""

    meaning = "ZooKeeper database failed"


class MultiFailed(ZooKeeperError):
    """A multi failed as a whole: operation `index` was refused because of `cause`."""

    meaning = "multi failed, nothing was changed"

    def __init__(self, index: int, cause: ZooKeeperError, count: int) -> None:
        super().__init__(detail=f"operation {index + 1} of {count}: {cause}")
        self.index = index
        self.cause = cause
        self.count = count

    @property
    def codes(self) -> list[int]:
        """The code per operation as ZooKeeper reports it: rolled back, refused, not tried."""
        not_tried = [RuntimeInconsistency.code] * (self.count - self.index - 1)
        return [0] * self.index + [self.cause.code, *not_tried]
