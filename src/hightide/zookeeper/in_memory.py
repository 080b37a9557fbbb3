"""Coordination inside this process: the same tree and the same rules, with no server between.

    coordination = await InMemoryZooKeeper.open()                  # memory only
    coordination = await InMemoryZooKeeper.open(Path("…/coordination.db"))   # durable
    second = await coordination.new_session()                      # another session, same tree

A single broker, the tests and the simulator use it. With a file, a call that changes something
returns when the change is on disk, and opening the file again gives the same tree without the
sessions, and so without the ephemerals, of the process that had it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from hightide.zookeeper.committer import Committer, wall_clock_ms
from hightide.zookeeper.errors import SessionLost, StorageError, ZooKeeperError
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

T = TypeVar("T")
A = TypeVar("A")

# A session in this process lives as long as the process; the timeout is only for show in the tree.
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
        """The first session on a new tree, or on the one in `file`, which is created if missing.

        StorageError if the file cannot be used; it says so when another process has it.
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
        """Another session on the same tree."""
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
        def question() -> tuple[bytes, Stat]:
            node = self._committer.tree.get(path, self._watcher(watch))
            _arm(self._data_watches, path, watch)
            return node.data or b"", node.stat

        return await self._ask(path, question)

    async def exists(self, path: str, watch: Watch | None = None) -> Stat | None:
        def question() -> Stat | None:
            stat = self._committer.tree.exists(path, self._watcher(watch))
            _arm(self._data_watches, path, watch)
            return stat

        return await self._ask(path, question)

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        def question() -> list[str]:
            names = self._committer.tree.children(path, self._watcher(watch))
            _arm(self._child_watches, path, watch)
            return names

        return await self._ask(path, question)

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
        """End the session; the last one to close lets go of the file. Twice is no error."""
        # A session that cannot be closed any more is closed: the tree drops it when reopened.
        with contextlib.suppress(SessionLost, StorageError):
            await self._submit(CloseSession())
        if not self._committer.sessions:
            await self._committer.close()

    def watch_fired(self, event: WatchEvent, acl: bytes) -> None:  # noqa: ARG002
        """The tree disarmed this session's watches on the znode; call those who armed them."""
        watches: dict[Watch, None] = {}
        if event.type is not EventType.CHILD:
            watches |= self._data_watches.pop(event.path, {})
        if event.type in (EventType.CHILD, EventType.DELETED):
            watches |= self._child_watches.pop(event.path, {})
        for watch in watches:
            _call(watch, event)

    def lost(self) -> None:
        """The session is over, whoever ended it."""
        self._state = SessionState.LOST
        self._data_watches.clear()
        self._child_watches.clear()
        for listener in self._listeners:
            _call(listener, self._state)

    def _watcher(self, watch: Watch | None) -> int | None:
        return None if watch is None else self._session_id

    async def _ask(self, path: str, question: Callable[[], T]) -> T:
        if self._state is SessionState.LOST:
            raise SessionLost
        check_path(path)
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def turn(outcome: Result | ZooKeeperError) -> None:
            # A caller that stopped waiting has cancelled its answer: it shall arm no watch.
            if answer.done():
                return
            try:
                if isinstance(outcome, ZooKeeperError):
                    raise outcome
                answer.set_result(question())
            except ZooKeeperError as refusal:
                answer.set_exception(refusal)

        self._committer.after_pending(turn)
        return await answer

    async def _submit(self, request: Request) -> Result:
        if self._state is SessionState.LOST:
            raise SessionLost
        answer: asyncio.Future[Result] = asyncio.get_running_loop().create_future()

        def turn(outcome: Result | ZooKeeperError) -> None:
            # A caller that stopped waiting has cancelled its answer; the change stands.
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
    """Call back; a callback that fails must not harm the one whose change caused the call."""
    try:
        callback(argument)
    except Exception as failure:
        asyncio.get_running_loop().call_exception_handler(
            {"message": f"a coordination callback failed on {argument}", "exception": failure}
        )
