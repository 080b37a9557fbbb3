"""How much of the tree and of the watches a client may take.

The tree and the watches count what they hold; a client's quota says up to which count a request
that adds to it is accepted. Requests that add nothing are always accepted, so a full tree can be
read, changed and emptied. Clients on other hosts that have shown no credentials get a smaller quota
than others: what is left is for brokers.
"""

from __future__ import annotations

from typing import NamedTuple

from hightide.zookeeper.zookeeper_errors import QuotaExceeded


class Quota(NamedTuple):
    """Limits that apply to what all clients hold together, unless they say otherwise."""

    znodes: int = 1_000_000
    tree_bytes: int = 1024 * 1024 * 1024
    """Paths, data and ACLs of all znodes."""
    children: int = 100_000
    """Children of one znode; the names of more do not fit into a response."""
    ephemerals: int = 5_000
    """Ephemeral znodes of one session; all of them are deleted in one transaction."""
    watches: int = 500_000
    watch_bytes: int = 128 * 1024 * 1024
    """Paths of all watches."""
    session_watches: int = 50_000
    """Watches of one session."""

    def for_strangers(self) -> Quota:
        """Return the quota of clients that are neither on this host nor authenticated."""
        return self._replace(
            znodes=self.znodes * 7 // 8,
            tree_bytes=self.tree_bytes * 7 // 8,
            children=self.children * 7 // 8,
            watches=self.watches * 7 // 8,
            watch_bytes=self.watch_bytes * 7 // 8,
        )

    def check_growth(self, path: str, size: int, more: int) -> None:
        """Raise QuotaExceeded if a tree of this size may not grow by `more` bytes."""
        if more > 0 and size + more > self.tree_bytes:
            raise QuotaExceeded(path, f"the znodes have {size} of {self.tree_bytes} bytes")

    def check_create(self, path: str, znodes: int, siblings: int) -> None:
        """Raise QuotaExceeded if there are too many znodes, or children of the parent."""
        if znodes >= self.znodes:
            raise QuotaExceeded(path, f"there are {self.znodes} znodes")
        if siblings >= self.children:
            raise QuotaExceeded(path, f"the parent has {self.children} children")

    def check_ephemerals(self, path: str, count: int) -> None:
        if count >= self.ephemerals:
            raise QuotaExceeded(path, f"the session has {self.ephemerals} ephemeral znodes")
