"""Requests in order: decided, made durable in groups, applied, and only then answered.

Without a store every request is done on the spot. With one, what is asked while a commit is under
way waits and is committed together after it; the disk is touched by one worker thread alone, so
the event loop never waits for an fsync. A question asked while changes are under way is answered
after them: whoever writes and then reads, reads what was written.

A commit that fails is the end: nothing of it is applied or answered as done, nobody can know what
reached the disk, so every caller gets StorageError and the sessions are lost.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from hightide.coordination.errors import CoordinationError, SessionLost, StorageError
from hightide.coordination.operation import (
    Decision,
    Request,
    Result,
    SessionClosed,
    Transaction,
)
from hightide.coordination.tree import Draft, Tree
from hightide.coordination.watch import WatchEvent

if TYPE_CHECKING:
    from hightide.coordination.store import Store

T = TypeVar("T")

_GROUP_LIMIT = 1000
"""Requests per commit: bounds how long deciding and applying hold the event loop."""


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


class Subscriber(Protocol):
    """A session, as far as the committer must tell it something."""

    def happened(self, event: WatchEvent) -> None: ...
    def lost(self) -> None: ...


class _Waiting(NamedTuple):
    """A request or a question, and whom to answer."""

    session_id: int
    ask: Request | Callable[[], Any]
    answer: asyncio.Future[Any]


class Committer:
    """One tree and, if durable, its store. Belongs to one event loop."""

    def __init__(self, clock: Callable[[], int] = wall_clock_ms) -> None:
        self.tree = Tree()
        self.sessions: dict[int, Subscriber] = {}
        self._clock = clock
        self._store: Store | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._queue: deque[_Waiting] = deque()
        self._running: asyncio.Task[None] | None = None
        self._over: CoordinationError | None = None
        self._last_session_id = 0

    async def open(self, file: Path) -> None:
        """Take the tree from `file`, without the sessions of the process that had it before."""
        from hightide.coordination.store import reopen

        self._thread = ThreadPoolExecutor(1, thread_name_prefix="coordination")
        try:
            self._store, self.tree = await self._in_thread(reopen, file, self._clock())
        except BaseException:
            self._thread.shutdown()
            raise

    async def close(self) -> None:
        """Finish what is under way and let go of the file."""
        if self._running is not None:
            await self._running
        if self._over is None:
            self._over = SessionLost(detail="coordination was closed")
        if self._thread is not None and self._store is not None:
            thread, store = self._thread, self._store
            self._thread = self._store = None
            await asyncio.get_running_loop().run_in_executor(thread, store.close)
            thread.shutdown()

    def new_session_id(self) -> int:
        """An id never used before: opening the session takes a zxid, which is at least the id."""
        self._last_session_id = max(self._last_session_id, self.tree.zxid) + 1
        return self._last_session_id

    async def submit(self, request: Request, session_id: int) -> Result:
        """Decide, make durable, apply, answer."""
        if self._over is not None:
            raise self._over.with_traceback(None)
        if self._store is not None:
            result: Result = await self._enqueue(session_id, request)
            return result
        return self._settle(self.tree.decide(request, session_id, self._clock()))

    async def ask(self, question: Callable[[], T], session_id: int) -> T:
        """Answer a question about the tree, after what was asked before it."""
        if self._over is not None:
            raise self._over.with_traceback(None)
        if self._running is None:
            return question()
        answer: T = await self._enqueue(session_id, question)
        return answer

    def _enqueue(self, session_id: int, ask: Request | Callable[[], Any]) -> asyncio.Future[Any]:
        loop = asyncio.get_running_loop()
        waiting = _Waiting(session_id, ask, loop.create_future())
        self._queue.append(waiting)
        if self._running is None:
            self._running = loop.create_task(self._run())
        return waiting.answer

    async def _run(self) -> None:
        group: list[_Waiting] = []
        try:
            while self._queue:
                count = min(len(self._queue), _GROUP_LIMIT)
                group = [self._queue.popleft() for _ in range(count)]
                await self._commit(group)
        except StorageError as failure:
            self._give_up(group, failure)
        except BaseException as failure:
            self._give_up(group, StorageError(detail=f"a commit was cut short: {failure!r}"))
            raise
        finally:
            self._running = None

    async def _commit(self, group: list[_Waiting]) -> None:
        draft = Draft(self.tree)
        time_ms = self._clock()
        decisions = [
            None if callable(each.ask) else draft.decide(each.ask, each.session_id, time_ms)
            for each in group
        ]
        if draft.zxid > self.tree.zxid:
            assert self._store is not None
            await self._in_thread(self._store.write, draft.zxid, draft.nodes, draft.sessions)
        for waiting, decision in zip(group, decisions, strict=True):
            try:
                result = self._settle(decision) if decision else waiting.ask()  # type: ignore[operator]
            except CoordinationError as refusal:
                if not waiting.answer.done():
                    waiting.answer.set_exception(refusal)
            else:
                # A caller that stopped waiting has cancelled its answer; the change stands.
                if not waiting.answer.done():
                    waiting.answer.set_result(result)

    def _settle(self, decision: Decision) -> Result:
        """Apply what is durable, tell the sessions concerned, then give the answer."""
        if decision.transaction is not None:
            self._apply(decision.transaction)
        if isinstance(decision.outcome, CoordinationError):
            raise decision.outcome
        return decision.outcome

    def _apply(self, transaction: Transaction) -> None:
        for watcher, event in self.tree.apply(transaction):
            if watcher in self.sessions:
                self.sessions[watcher].happened(event)
        for change in transaction.changes:
            if isinstance(change, SessionClosed):
                self.tree.watches.forget(change.session_id)
                if change.session_id in self.sessions:
                    self.sessions.pop(change.session_id).lost()

    def _give_up(self, group: list[_Waiting], failure: StorageError) -> None:
        self._over = failure
        for waiting in [*group, *self._queue]:
            if not waiting.answer.done():
                waiting.answer.set_exception(failure)
        self._queue.clear()
        sessions = list(self.sessions.values())
        self.sessions.clear()
        for session in sessions:
            session.lost()

    async def _in_thread(self, function: Callable[..., T], *arguments: object) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, function, *arguments)
