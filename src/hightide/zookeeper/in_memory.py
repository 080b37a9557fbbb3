"""ZooKeeper inside this process: the same tree and the same rules, without a server.

    zookeeper = await InMemoryZooKeeper.open()                            # memory only
    zookeeper = await InMemoryZooKeeper.open(Path("…/zookeeper.db"))      # durable
    second = await zookeeper.new_session()                                # same tree

Tests and the simulator use it. With a file, a write returns when the change is on disk. Opening the
file again loads the same tree without the sessions and ephemerals of the earlier process.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from hightide.zookeeper.committer import Committer, wall_clock_ms
from hightide.zookeeper.interface import SessionState, StateListener, Watch
from hightide.zookeeper.node import Stat, check_path
from hightide.zookeeper.operation import (
    CloseSession,
    Create,
    Delete,
    Multi,
    NewNode,
    OpenSession,
    Operation,
    Request,
    Result,
    SetData,
)
from hightide.zookeeper.watch import EventType, WatchEvent
from hightide.zookeeper.zookeeper_errors import SessionLost, StorageError, ZooKeeperError

T = TypeVar("T")
A = TypeVar("A")

# A session in this process never expires; the tree only shows this timeout.
_TIMEOUT_MS = 18_000


class InMemoryZooKeeper:
    """One session on a tree in this process."""

    def __init__(self, committer: Committer, session_id: int) -> None:
        """Use `open` or `new_session`."""
        self._committer = committer
        self._session_id = session_id
        self._state = SessionState.CONNECTED
        self._listeners: list[StateListener] = []
        # Dicts as ordered sets: a callback armed twice on the same znode is called once.
        self._data_watches: dict[str, dict[Watch, None]] = {}
        self._child_watches: dict[str, dict[Watch, None]] = {}

    @classmethod
    async def open(
        cls, file: Path | None = None, *, clock: Callable[[], int] = wall_clock_ms
    ) -> InMemoryZooKeeper:
        """Open the first session on a new tree, or on the one in `file`, created if missing.

        Raises StorageError if the file cannot be used, or if another process uses it.
        """
        committer = Committer(clock)
        if file is not None:
            await committer.open(file)
        try:
            return await cls._begin(committer)
        except BaseException:
            await committer.close()
            raise

    async def new_session(self) -> InMemoryZooKeeper:
        """Open another session on the same tree."""
        return await self._begin(self._committer)

    @classmethod
    async def _begin(cls, committer: Committer) -> InMemoryZooKeeper:
        session_id = committer.new_session_id()
        session = cls(committer, session_id)
        await session._submit(OpenSession(session_id, _TIMEOUT_MS))
        committer.sessions[session_id] = session
        return session

    @property
    def session_id(self) -> int:
        return self._session_id

    @property
    def timeout_ms(self) -> int:
        return _TIMEOUT_MS

    @property
    def state(self) -> SessionState:
        return self._state

    def on_state(self, listener: StateListener) -> None:
        self._listeners.append(listener)

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, Stat]:
        def read() -> tuple[bytes, Stat]:
            node = self._committer.tree.get(path, self._watcher(watch))
            _arm(self._data_watches, path, watch)
            return node.data or b"", node.stat

        return await self._read(path, read)

    async def exists(self, path: str, watch: Watch | None = None) -> Stat | None:
        def read() -> Stat | None:
            stat = self._committer.tree.exists(path, self._watcher(watch))
            _arm(self._data_watches, path, watch)
            return stat

        return await self._read(path, read)

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        def read() -> list[str]:
            names = self._committer.tree.children(path, self._watcher(watch))
            _arm(self._child_watches, path, watch)
            return names

        return await self._read(path, read)

    async def create(
        self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequence: bool = False
    ) -> str:
        result = await self._submit(Create(path, data, ephemeral, sequence))
        assert isinstance(result, NewNode)
        return result.path

    async def set(self, path: str, data: bytes, version: int = -1) -> Stat:
        result = await self._submit(SetData(path, data, version))
        assert isinstance(result, Stat)
        return result

    async def delete(self, path: str, version: int = -1) -> None:
        await self._submit(Delete(path, version))

    async def multi(self, operations: Sequence[Operation]) -> list[str | Stat | None]:
        results = await self._submit(Multi(tuple(operations)))
        assert isinstance(results, list)
        return [result.path if isinstance(result, NewNode) else result for result in results]

    async def close(self) -> None:
        """Close the session; the last session closes the file. Closing twice is not an error."""
        # After a failure the session counts as closed: reopening the file drops it.
        with contextlib.suppress(SessionLost, StorageError):
            await self._submit(CloseSession())
        if not self._committer.sessions:
            await self._committer.close()

    def watch_fired(self, event: WatchEvent, acl: bytes) -> None:  # noqa: ARG002
        """Call the watches on the znode; the tree has disarmed them."""
        watches: dict[Watch, None] = {}
        if event.type is not EventType.CHILD:
            watches |= self._data_watches.pop(event.path, {})
        if event.type in (EventType.CHILD, EventType.DELETED):
            watches |= self._child_watches.pop(event.path, {})
        for watch in watches:
            _call(watch, event)

    def lost(self) -> None:
        """Notify the listeners that the session is closed."""
        self._state = SessionState.LOST
        self._data_watches.clear()
        self._child_watches.clear()
        for listener in self._listeners:
            _call(listener, self._state)

    def _watcher(self, watch: Watch | None) -> int | None:
        return None if watch is None else self._session_id

    async def _read(self, path: str, read: Callable[[], T]) -> T:
        if self._state is SessionState.LOST:
            raise SessionLost
        check_path(path)
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def turn(outcome: Result | ZooKeeperError) -> None:
            # A cancelled caller must not arm a watch.
            if answer.done():
                return
            try:
                if isinstance(outcome, ZooKeeperError):
                    raise outcome
                answer.set_result(read())
            except ZooKeeperError as refusal:
                answer.set_exception(refusal)

        self._committer.after_pending(turn)
        return await answer

    async def _submit(self, request: Request) -> Result:
        if self._state is SessionState.LOST:
            raise SessionLost
        answer: asyncio.Future[Result] = asyncio.get_running_loop().create_future()

        def turn(outcome: Result | ZooKeeperError) -> None:
            # The caller was cancelled; the change stands.
            if answer.done():
                return
            if isinstance(outcome, ZooKeeperError):
                answer.set_exception(outcome)
            else:
                answer.set_result(outcome)

        self._committer.submit(request, self._session_id, turn)
        return await answer


def _arm(table: dict[str, dict[Watch, None]], path: str, watch: Watch | None) -> None:
    if watch is not None:
        table.setdefault(path, {})[watch] = None


def _call(callback: Callable[[A], None], argument: A) -> None:
    """Run a callback; its exception must not reach the caller whose change caused it."""
    try:
        callback(argument)
    except Exception as failure:
        asyncio.get_running_loop().call_exception_handler(
            {"message": f"a ZooKeeper callback failed on {argument}", "exception": failure}
        )
