"""Group commit: requests are decided in order, written to disk in groups, applied and answered.

Without a store the committer executes every request at once. With a store, requests that arrive
during a commit wait and share the next commit. One worker thread does all disk access, so the event
loop never waits for an fsync. A read that arrives while writes are pending runs after them: a
client reads its own writes.

Responses and watch events are delivered by callback, synchronously and in order: the events of a
change, then its response, then the events of the next change. A future would not do: the coroutine
that awaits it runs later than the events that follow.

A failed commit is final. Nothing of it is applied or acknowledged, and it is unknown what reached
the disk. Every caller gets StorageError, and all sessions are lost.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from hightide.zookeeper.acl import UNCHECKED, Access
from hightide.zookeeper.operation import (
    Decision,
    Request,
    Result,
    SessionClosed,
    Transaction,
)
from hightide.zookeeper.tree import Draft, Tree
from hightide.zookeeper.watch import WatchEvent
from hightide.zookeeper.zookeeper_errors import SessionLost, StorageError, ZooKeeperError

if TYPE_CHECKING:
    from hightide.zookeeper.store import Store

T = TypeVar("T")

Answer = Callable[[Result | ZooKeeperError], None]
"""Called once with the outcome. It must not raise: other requests of the group follow."""

_GROUP_LIMIT = 1000
"""Requests per commit: bounds how long deciding and applying block the event loop."""


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


class Subscriber(Protocol):
    """A session, as the committer notifies it."""

    def watch_fired(self, event: WatchEvent, acl: bytes) -> None:
        """A watch fired; the session may see the event only if this ACL lets it read."""

    def lost(self) -> None:
        """The session was closed or has expired, or the store failed."""


class _PendingRequest(NamedTuple):
    """A queued request; None is a read, which only waits for the writes before it."""

    request: Request | None
    session_id: int
    access: Access
    answer: Answer


class Committer:
    """One tree and, if durable, its store. Belongs to one event loop."""

    def __init__(self, clock: Callable[[], int] = wall_clock_ms) -> None:
        self.tree = Tree()
        self.sessions: dict[int, Subscriber] = {}
        self.on_failure: Callable[[StorageError], None] | None = None
        self._clock = clock
        self._store: Store | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._queue: deque[_PendingRequest] = deque()
        self._running: asyncio.Task[None] | None = None
        self._over: ZooKeeperError | None = None
        self._last_session_id = 0

    async def open(self, file: Path, *, keep_sessions: bool = False) -> None:
        """Load the tree from `file`, by default without the sessions stored in it."""
        from hightide.zookeeper.store import open_tree

        self._thread = ThreadPoolExecutor(1, thread_name_prefix="zookeeper-store")
        try:
            self._store, self.tree = await self._in_thread(
                open_tree, file, None if keep_sessions else self._clock()
            )
        except BaseException:
            self._thread.shutdown()
            raise

    async def close(self) -> None:
        """Finish pending commits and close the file."""
        if self._running is not None:
            await self._running
        if self._over is None:
            self._over = SessionLost(detail="ZooKeeper is closed")
        if self._thread is not None and self._store is not None:
            thread, store = self._thread, self._store
            self._thread = self._store = None
            await asyncio.get_running_loop().run_in_executor(thread, store.close)
            thread.shutdown()

    def new_session_id(self) -> int:
        """Return an unused id. Opening the session takes a zxid, which is at least the id."""
        self._last_session_id = max(self._last_session_id, self.tree.zxid) + 1
        return self._last_session_id

    @property
    def queued(self) -> int:
        """The number of requests that wait for the next commit."""
        return len(self._queue)

    def submit(
        self, request: Request, session_id: int, answer: Answer, access: Access = UNCHECKED
    ) -> None:
        """Decide a request, commit and apply it, then call `answer` with the outcome."""
        if self._over is not None:
            answer(self._over.with_traceback(None))
        elif self._store is not None:
            self._enqueue(_PendingRequest(request, session_id, access, answer))
        else:
            decision = self.tree.decide(request, session_id, self._clock(), access)
            self._finish(decision, answer)

    def after_pending(self, answer: Answer) -> None:
        """Call `answer` with None after all requests submitted before are applied."""
        if self._over is not None:
            answer(self._over.with_traceback(None))
        elif self._running is not None:
            self._enqueue(_PendingRequest(None, 0, UNCHECKED, answer))
        else:
            answer(None)

    def _enqueue(self, pending: _PendingRequest) -> None:
        self._queue.append(pending)
        if self._running is None:
            self._running = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        group: list[_PendingRequest] = []
        try:
            while self._queue:
                count = min(len(self._queue), _GROUP_LIMIT)
                group = [self._queue.popleft() for _ in range(count)]
                await self._commit(group)
                group = []
        except StorageError as failure:
            self._give_up(group, failure)
        except BaseException as failure:
            self._give_up(group, StorageError(detail=f"a commit was interrupted: {failure!r}"))
            raise
        finally:
            self._running = None

    async def _commit(self, group: list[_PendingRequest]) -> None:
        draft = Draft(self.tree)
        time_ms = self._clock()
        decisions = [
            draft.decide(pending.request, pending.session_id, time_ms, pending.access)
            if pending.request is not None
            else None
            for pending in group
        ]
        if draft.zxid > self.tree.zxid:
            assert self._store is not None
            await self._in_thread(self._store.write, draft.zxid, draft.nodes, draft.sessions)
        for pending, decision in zip(group, decisions, strict=True):
            if decision is None:
                pending.answer(None)
            else:
                self._finish(decision, pending.answer)

    def _finish(self, decision: Decision, answer: Answer) -> None:
        """Apply a durable decision, notify the sessions it concerns, then answer."""
        if decision.transaction is not None:
            self._apply(decision.transaction)
        answer(decision.outcome)

    def _apply(self, transaction: Transaction) -> None:
        for watcher, event, acl in self.tree.apply(transaction):
            if watcher in self.sessions:
                self.sessions[watcher].watch_fired(event, acl)
        for change in transaction.changes:
            if isinstance(change, SessionClosed):
                self.tree.watches.forget(change.session_id)
                if change.session_id in self.sessions:
                    self.sessions.pop(change.session_id).lost()

    def _give_up(self, group: list[_PendingRequest], failure: StorageError) -> None:
        self._over = failure
        for pending in [*group, *self._queue]:
            pending.answer(failure)
        self._queue.clear()
        sessions = list(self.sessions.values())
        self.sessions.clear()
        for session in sessions:
            session.lost()
        if self.on_failure is not None:
            self.on_failure(failure)

    async def _in_thread(self, function: Callable[..., T], *arguments: object) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, function, *arguments)
