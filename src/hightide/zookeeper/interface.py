"""The ZooKeeper interface of the program: an ensemble, the embedded server, or a tree in process.

One object has one session at a time. Calls are answered in the order in which they were made, and a
watch event reaches its callback before any response that shows the change. A callback runs on the
event loop, must not block, and means only "read again": it fires at most once, and never for a
watch that was armed on an earlier connection. So on every change to CONNECTED the caller reads
everything again.

No call waits for an unreachable server. While the state is not CONNECTED a call fails at once; a
pending call fails when its connection does, or after its timeout. A write that failed with
ConnectionLoss may have been executed: the caller reads again and compares (see `write_outcome`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Protocol

from hightide.zookeeper.node import Stat, split
from hightide.zookeeper.operation import Operation
from hightide.zookeeper.watch import WatchEvent
from hightide.zookeeper.zookeeper_errors import NodeExists, NoNode

Watch = Callable[[WatchEvent], None]


class SessionState(Enum):
    """The state of a session.

    - CONNECTED: calls are answered.
    - SUSPENDED: the connection is down, the session is alive.
    - DOUBTFUL: the connection is down for longer than the session timeout, by our own clock. Other
      clients may have seen our ephemerals deleted, so nothing may rely on them. The session may
      turn out to be alive; then it is CONNECTED again.
    - LOST: the session is closed or expired, and its ephemerals are deleted. A client returns from
      LOST to CONNECTED with a new session and another `session_id`.
    """

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    DOUBTFUL = "doubtful"
    LOST = "lost"


StateListener = Callable[[SessionState], None]


class Lease(Protocol):
    """How long a session certainly lives, by the client's own clock."""

    def clock_s(self) -> float:
        """Return the time, by a clock that also runs while the host sleeps."""

    def sure_until_s(self) -> float:
        """Return when the session may have expired; 0 if it may have ended already."""


class ZooKeeper(Protocol):
    """A ZooKeeper session. Every call may raise SessionLost or ConnectionLoss."""

    @property
    def session_id(self) -> int:
        """The session id, which is the owner in the Stat of the session's ephemerals."""

    @property
    def timeout_ms(self) -> int:
        """The session timeout that the server granted."""

    @property
    def state(self) -> SessionState: ...

    def on_state(self, listener: StateListener) -> None:
        """Call `listener` on the event loop whenever the state changes."""

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, Stat]:
        """Return data and Stat. Raises NoNode, which arms no watch. Watches data and deletion."""

    async def exists(self, path: str, watch: Watch | None = None) -> Stat | None:
        """Return the Stat, or None. Watches creation, data and deletion, also if missing."""

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        """Return sorted names. Raises NoNode, which arms no watch. Watches children, deletion."""

    async def create(
        self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequence: bool = False
    ) -> str:
        """Create a znode and return its path, with the sequence number if any.

        Raises NodeExists, NoNode (the parent is missing), NoChildrenForEphemerals."""

    async def set(self, path: str, data: bytes, version: int = -1) -> Stat:
        """Write the data and return the new Stat. Raises NoNode, BadVersion."""

    async def delete(self, path: str, version: int = -1) -> None:
        """Delete a znode. Raises NoNode, BadVersion, NotEmpty."""

    async def multi(self, operations: Sequence[Operation]) -> list[str | Stat | None]:
        """Execute all operations or none. Returns per operation the path for Create, the Stat for
        SetData, else None. MultiFailed names the refused operation (`index`) and its `cause`."""

    async def close(self) -> None:
        """Close the session; the server deletes its ephemerals at once."""


async def ensure_path(zookeeper: ZooKeeper, path: str) -> None:
    """Create `path` and its parents with empty data where they are missing."""
    try:
        await zookeeper.create(path)
    except NodeExists:
        return
    except NoNode:
        await ensure_path(zookeeper, split(path)[0])
        await ensure_path(zookeeper, path)


async def delete_recursively(zookeeper: ZooKeeper, path: str) -> None:
    """Delete `path` and all below it. A znode that another client deletes is not an error."""
    try:
        for name in await zookeeper.children(path):
            await delete_recursively(zookeeper, f"{path}/{name}")
        await zookeeper.delete(path)
    except NoNode:
        return
