"""What the program may ask of coordination, whoever answers: the tree in this process, the
embedded coordinator, or a ZooKeeper ensemble.

One object has one session at a time. Calls made one after the other are answered in that order, and
a watch event reaches its callback before any answer that shows the change. A callback runs on the
event loop, must not block, and means only "go and read again": it fires at most once, and never for
a watch that was armed in an earlier connection. So on every change to CONNECTED everything is read
anew.

No call waits for a coordinator that is away: while the state is not CONNECTED a call fails at once,
and one that is under way fails when the connection does, or after its time. A write that failed
with ConnectionLoss may have happened: whoever made it reads again and compares.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Protocol

from hightide.zookeeper.errors import NodeExists, NoNode
from hightide.zookeeper.node import Stat, split
from hightide.zookeeper.operation import Operation
from hightide.zookeeper.watch import WatchEvent

Watch = Callable[[WatchEvent], None]


class SessionState(Enum):
    """CONNECTED: calls are answered. SUSPENDED: the connection is down, the session lives.
    DOUBTFUL: it is down for longer than the session's timeout, by our own clock: others may have
    seen our ephemerals go, so nothing may be done any more in their name; but the session may be
    found alive, and then it is CONNECTED again. LOST: the session is over, its ephemerals are gone.
    A client goes on from LOST to CONNECTED with a new session, hence with another `session_id`.
    """

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    DOUBTFUL = "doubtful"
    LOST = "lost"


StateListener = Callable[[SessionState], None]


class ZooKeeper(Protocol):
    """A coordinator as one client sees it. Every call may raise SessionLost or ConnectionLoss."""

    @property
    def session_id(self) -> int:
        """The owner that this session's ephemerals show in their Stat."""

    @property
    def timeout_ms(self) -> int:
        """The session's timeout, as the coordinator granted it."""

    @property
    def state(self) -> SessionState: ...

    def on_state(self, listener: StateListener) -> None:
        """Call `listener` on the event loop whenever the state changes."""

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, Stat]:
        """Data and Stat, or NoNode (which arms no watch). Watches data and deletion."""

    async def exists(self, path: str, watch: Watch | None = None) -> Stat | None:
        """Stat, or None. Watches creation, data and deletion, also of a znode that is missing."""

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        """Names, sorted, or NoNode (which arms no watch). Watches children and deletion."""

    async def create(
        self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequence: bool = False
    ) -> str:
        """The path created, with its sequence number. NodeExists, NoNode (parent missing), …"""

    async def set(self, path: str, data: bytes, version: int = -1) -> Stat:
        """The new Stat. NoNode, BadVersion."""

    async def delete(self, path: str, version: int = -1) -> None:
        """NoNode, BadVersion, NotEmpty."""

    async def multi(self, operations: Sequence[Operation]) -> list[str | Stat | None]:
        """All or nothing. Per operation: the path for Create, the Stat for SetData, else None.
        MultiFailed tells which operation was refused (`index`) and why (`cause`)."""

    async def close(self) -> None:
        """End the session; its ephemerals go at once."""


async def ensure_path(zookeeper: ZooKeeper, path: str) -> None:
    """Create `path` with empty data, and its parents, where they are missing."""
    try:
        await zookeeper.create(path)
    except NodeExists:
        return
    except NoNode:
        await ensure_path(zookeeper, split(path)[0])
        await ensure_path(zookeeper, path)


async def delete_recursively(zookeeper: ZooKeeper, path: str) -> None:
    """Delete `path` and all below it; somebody else deleting the same is no error."""
    try:
        for name in await zookeeper.children(path):
            await delete_recursively(zookeeper, f"{path}/{name}")
        await zookeeper.delete(path)
    except NoNode:
        return
