"""A znode as an immutable value, its Stat, and the rules for paths.

Znodes are values and not mutable objects: a draft holds the next version of a znode beside the
current one, the commit thread writes it while the event loop continues, and two trees compare with
`==`. The value holds the number of children but not their names, so adding the 5,000th topic does
not copy 4,999 names.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from hightide.zookeeper.zookeeper_errors import BadArguments

OPEN_ACL = b""
"""The ACL that permits everything to every client. ACLs are opaque to the tree."""

WORLD_READS_ACL = b"\0\0\0\1\0\0\0\1\0\0\0\5world\0\0\0\6anyone"
"""The ACL that permits only reading, to every client."""

# ZooKeeper counts UTF-16 units, so it also refuses characters that need a surrogate pair.
_BAD_PATH = re.compile(
    "[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff\U00010000-\U0010ffff]"
    r"|//|/\.{1,2}(?:/|\Z)|(?<=.)/\Z",
    re.DOTALL,
)


class Stat(NamedTuple):
    """ZooKeeper's Stat of a znode, fields in its order."""

    czxid: int
    mzxid: int
    ctime: int
    mtime: int
    version: int
    cversion: int
    aversion: int
    ephemeral_owner: int
    data_length: int
    num_children: int
    pzxid: int


class Znode(NamedTuple):
    """One znode. `data` None and empty differ, as they do on ZooKeeper's wire."""

    data: bytes | None
    acl: bytes
    stat: Stat

    @property
    def create_count(self) -> int:
        """The number of children ever created: the next sequence number.

        The cversion that clients see counts creates and deletes, so creates follow from it and
        from the number of children that are left.
        """
        return (self.stat.cversion + self.stat.num_children) // 2

    def with_child(self, zxid: int) -> Znode:
        stat = self.stat
        return self._replace(
            stat=stat._replace(
                cversion=stat.cversion + 1, num_children=stat.num_children + 1, pzxid=zxid
            )
        )

    def without_child(self, zxid: int) -> Znode:
        stat = self.stat
        return self._replace(
            stat=stat._replace(
                cversion=stat.cversion + 1, num_children=stat.num_children - 1, pzxid=zxid
            )
        )

    def with_data(self, data: bytes | None, zxid: int, time_ms: int) -> Znode:
        stat = self.stat._replace(
            mzxid=zxid, mtime=time_ms, version=self.stat.version + 1, data_length=len(data or b"")
        )
        return Znode(data, self.acl, stat)

    def with_acl(self, acl: bytes) -> Znode:
        return Znode(self.data, acl, self.stat._replace(aversion=self.stat.aversion + 1))


def new_znode(data: bytes | None, acl: bytes, owner: int, zxid: int, time_ms: int) -> Znode:
    length = len(data or b"")
    return Znode(data, acl, Stat(zxid, zxid, time_ms, time_ms, 0, 0, 0, owner, length, 0, zxid))


def initial_nodes() -> dict[str, Znode]:
    """Return the znodes of an empty ZooKeeper. They were never created, hence the cversions."""

    def node(child_count: int) -> Znode:
        return Znode(b"", OPEN_ACL, Stat(0, 0, 0, 0, 0, -child_count, 0, 0, 0, child_count, 0))

    config = Znode(b"", WORLD_READS_ACL, Stat(0, 0, 0, 0, 0, 0, -1, 0, 0, 0, 0))
    return {
        "/": node(1),
        "/zookeeper": node(2),
        "/zookeeper/config": config,
        "/zookeeper/quota": node(0),
    }


UNDELETABLE = frozenset(initial_nodes())


def check_path(path: str) -> None:
    """Raise BadArguments unless `path` is valid."""
    if not path.startswith("/") or _BAD_PATH.search(path):
        raise BadArguments(path)


def split(path: str) -> tuple[str, str]:
    """Return the parent's path and the last name; raise BadArguments if there is neither."""
    cut = path.rfind("/")
    if cut < 0 or "\0" in path:
        raise BadArguments(path)
    return path[:cut] or "/", path[cut + 1 :]
