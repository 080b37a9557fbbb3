"""ZooKeeper as the parts of a broker see it: open only in a session that the broker has admitted.

A new session may be at a ZooKeeper that has lost the cluster's data, or that serves another
cluster.  A broker that trusted it would take every topic for deleted, and would write into another
cluster.  So all calls are refused from the start of a session until the broker has checked the
cluster id and registered.
"""

from __future__ import annotations

from collections.abc import Sequence

from hightide.zookeeper.interface import SessionState, StateListener, Watch, ZooKeeper
from hightide.zookeeper.node import Stat
from hightide.zookeeper.operation import Operation
from hightide.zookeeper.zookeeper_errors import NotConnected


class FencedSession:
    """A ZooKeeper that refuses all calls except in the session that was admitted last."""

    def __init__(self, zookeeper: ZooKeeper, session_id: int) -> None:
        self._zookeeper = zookeeper
        self._admitted = session_id

    def admit(self, session_id: int) -> None:
        self._admitted = session_id

    @property
    def session_id(self) -> int:
        return self._zookeeper.session_id

    @property
    def timeout_ms(self) -> int:
        return self._zookeeper.timeout_ms

    @property
    def state(self) -> SessionState:
        state = self._zookeeper.state
        if state is SessionState.CONNECTED and self.session_id != self._admitted:
            return SessionState.SUSPENDED
        return state

    @property
    def is_sure(self) -> bool:
        """Whether the admitted session is certainly alive, so that no other broker has replaced
        this one as leader or controller."""
        is_alive = self._zookeeper.state in (SessionState.CONNECTED, SessionState.SUSPENDED)
        return is_alive and self.session_id == self._admitted

    @property
    def is_admitted(self) -> bool:
        """Whether the broker has registered in the present session."""
        return self.session_id == self._admitted

    def on_state(self, listener: StateListener) -> None:
        self._zookeeper.on_state(listener)

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, Stat]:
        return await self._open(path).get(path, watch)

    async def exists(self, path: str, watch: Watch | None = None) -> Stat | None:
        return await self._open(path).exists(path, watch)

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        return await self._open(path).children(path, watch)

    async def create(
        self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequence: bool = False
    ) -> str:
        return await self._open(path).create(path, data, ephemeral=ephemeral, sequence=sequence)

    async def set(self, path: str, data: bytes, version: int = -1) -> Stat:
        return await self._open(path).set(path, data, version)

    async def delete(self, path: str, version: int = -1) -> None:
        await self._open(path).delete(path, version)

    async def multi(self, operations: Sequence[Operation]) -> list[str | Stat | None]:
        return await self._open("").multi(operations)

    async def close(self) -> None:
        await self._zookeeper.close()

    def _open(self, path: str) -> ZooKeeper:
        # The call starts before any other task runs, so it is made in the session checked here.
        if self.session_id != self._admitted:
            raise NotConnected(path, "the broker is not registered in this session yet")
        return self._zookeeper
