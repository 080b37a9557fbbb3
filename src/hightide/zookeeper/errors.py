"""What coordination can answer instead of a result, with ZooKeeper's own error codes.

One class per code that the program tells apart. The tree puts them into decisions, the interface
raises them, and a server can send `code` as it is. Each says which znode it is about.
"""

from __future__ import annotations

from typing import ClassVar


class ZooKeeperError(Exception):
    """Any refusal or failure of coordination."""

    code: ClassVar[int] = -1
    meaning: ClassVar[str] = "coordination failed"

    def __init__(self, path: str = "", detail: str = "") -> None:
        self.path = path
        self.detail = detail
        sentence = f"{self.meaning}: {path}" if path else self.meaning
        super().__init__(f"{sentence} ({detail})" if detail else sentence)


class RuntimeInconsistency(ZooKeeperError):
    """An operation of a multi that was never tried, because one before it was refused."""

    code = -2
    meaning = "an earlier operation of the same multi was refused"


class ConnectionLoss(ZooKeeperError):
    """The connection broke while a call was under way: it may or may not have happened."""

    code = -4
    meaning = "the connection to the coordinator was lost, the outcome is unknown"


class NotConnected(ConnectionLoss):
    """There was no connection when the call was made: it did not happen."""

    meaning = "there is no connection to a coordinator, nothing was asked of it"


class MalformedZnode(ZooKeeperError):
    """A znode's bytes are not what its path promises."""

    code = -5
    meaning = "cannot understand the data of znode"


class MalformedRequest(ZooKeeperError):
    """A request's body is not what its type promises."""

    code = -5
    meaning = "cannot understand the request"


class Unimplemented(ZooKeeperError):
    """A request that this coordinator does not know or does not offer."""

    code = -6
    meaning = "the coordinator does not offer this"


class BadArguments(ZooKeeperError):
    """A path that cannot name a znode, or one that must not be deleted."""

    code = -8
    meaning = "not a valid path here"


class TooLarge(ZooKeeperError):
    """More data than a coordinator takes in one request; it was not sent."""

    code = -8
    meaning = "too much data for one request"


class NoNode(ZooKeeperError):
    """The znode, or for create its parent, does not exist."""

    code = -101
    meaning = "no such znode"


class NoAuth(ZooKeeperError):
    """The znode's access list does not let the asker do this, or nobody has said who asks."""

    code = -102
    meaning = "not authorized"


class BadVersion(ZooKeeperError):
    """The znode's version is not the expected one: somebody else wrote it."""

    code = -103
    meaning = "znode has another version than expected"


class NoChildrenForEphemerals(ZooKeeperError):
    """An ephemeral znode cannot have children."""

    code = -108
    meaning = "an ephemeral znode cannot have children"


class NodeExists(ZooKeeperError):
    """The znode to create is there already."""

    code = -110
    meaning = "znode exists already"


class NotEmpty(ZooKeeperError):
    """The znode to delete has children."""

    code = -111
    meaning = "znode has children"


class SessionLost(ZooKeeperError):
    """The session is closed or expired: its ephemerals are gone and nothing more can be asked."""

    code = -112
    meaning = "the coordination session is gone"


class InvalidAcl(ZooKeeperError):
    """An access list that is empty, or that names somebody who cannot be recognised."""

    code = -114
    meaning = "not a valid access list"


class AuthFailed(ZooKeeperError):
    """The credentials are wrong, or of a kind that the coordinator does not know."""

    code = -115
    meaning = "authentication failed"


class NoWatcher(ZooKeeperError):
    """There is no such watch to remove."""

    code = -121
    meaning = "no such watch"


class StorageError(ZooKeeperError):
    """The file behind the tree cannot be opened, read or written."""

    meaning = "coordination storage failed"


class MultiFailed(ZooKeeperError):
    """A multi was refused as a whole: operation `index` for the reason `cause`."""

    meaning = "multi refused, nothing was changed"

    def __init__(self, index: int, cause: ZooKeeperError, count: int) -> None:
        super().__init__(detail=f"operation {index + 1} of {count}: {cause}")
        self.index = index
        self.cause = cause
        self.count = count

    @property
    def codes(self) -> list[int]:
        """The code per operation as ZooKeeper reports it: rolled back, the culprit, not tried."""
        not_tried = [RuntimeInconsistency.code] * (self.count - self.index - 1)
        return [0] * self.index + [self.cause.code, *not_tried]
