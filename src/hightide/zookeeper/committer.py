"""Group commit: requests are decided in order, written to disk in groups, applied and answered.

Without a store the committer executes every request at once, unless it works in turns as a server
does. Otherwise requests that arrive during a commit wait and share the next commit. The sessions
share the commits fairly, and a group is limited by the znodes that it touches, so a session's small
request does not wait for the large ones of others. One worker thread does all disk access, so the
event loop never waits for an fsync. A read that arrives while writes are pending runs after them: a
client reads its own writes.

Deciding a multi, applying it and sending its events may take several turns of the event loop. The
tree is between two states while a transaction is applied, so reads wait until it is.

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
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from hightide.zookeeper.acl import UNCHECKED, Access
from hightide.zookeeper.fair_queue import FairQueue
from hightide.zookeeper.operation import (
    CloseSession,
    Create,
    Decision,
    Multi,
    Operation,
    Refused,
    Request,
    Result,
    SessionClosed,
    SetData,
    Transaction,
)
from hightide.zookeeper.tree import Draft, Tree
from hightide.zookeeper.watch import FiredWatch, WatchEvent
from hightide.zookeeper.zookeeper_errors import SessionLost, StorageError, ZooKeeperError

if TYPE_CHECKING:
    from hightide.zookeeper.store import Store

T = TypeVar("T")

Answer = Callable[[Result | ZooKeeperError], None]
"""Called once with the outcome. It must not raise: other requests of the group follow."""

_GROUP_WEIGHT = 1000
"""The weight of the requests of a commit; one request may have more."""
_WEIGHT_BYTES = 1024
"""Data that weighs as much as a znode."""
_EVENTS_PER_CHECK = 50
"""Watch events that are sent before the clock is read."""

_TURN_S = 0.01
"""How long deciding or applying keeps the event loop before other callbacks run."""


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
    weight: int


class _Turn:
    """A turn of the event loop that ends after `_TURN_S`."""

    __slots__ = ("_ends_at", "_loop")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ends_at = self._loop.time() + _TURN_S

    async def pause(self) -> None:
        """Let other callbacks run if the turn is over."""
        if self._loop.time() > self._ends_at:
            await asyncio.sleep(0)
            self._ends_at = self._loop.time() + _TURN_S


class Committer:
    """One tree and, if durable, its store. Belongs to one event loop."""

    def __init__(
        self, clock: Callable[[], int] = wall_clock_ms, *, works_in_turns: bool = False
    ) -> None:
        """With `works_in_turns`, requests are executed in turns also without a store."""
        self.tree = Tree()
        self.sessions: dict[int, Subscriber] = {}
        self.on_failure: Callable[[StorageError], None] | None = None
        self.is_applying = False
        """Whether the tree is between two states, so that it must not be read."""
        self._clock = clock
        self._works_in_turns = works_in_turns
        self._store: Store | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._queue: FairQueue[_PendingRequest] = FairQueue()
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
        elif self._store is not None or self._works_in_turns:
            weight = self._weight(request, session_id)
            self._enqueue(_PendingRequest(request, session_id, access, answer, weight))
        else:
            decision = self.tree.decide(request, session_id, self._clock(), access)
            if decision.transaction is not None:
                self._apply(decision.transaction)
            answer(decision.outcome)

    def after_pending(self, answer: Answer, session_id: int | None = None) -> None:
        """Call `answer` with None after the requests submitted before are applied.

        These are the requests of a session, or all without one.
        """
        if self._over is not None:
            answer(self._over.with_traceback(None))
        elif self._running is not None:
            pending = _PendingRequest(None, session_id or 0, UNCHECKED, answer, 0)
            self._enqueue(pending, after_all=session_id is None)
        else:
            answer(None)

    def _enqueue(self, pending: _PendingRequest, *, after_all: bool = False) -> None:
        self._queue.put(pending, pending.session_id, pending.weight, after_all=after_all)
        if self._running is None:
            self._running = asyncio.get_running_loop().create_task(self._run())

    def _weight(self, request: Request, session_id: int) -> int:
        """Return about how many znodes a request touches."""
        if isinstance(request, Multi):
            return 1 + sum(map(_operation_weight, request.operations))
        if isinstance(request, CloseSession):
            return 1 + self.tree.ephemeral_count(session_id)
        return _operation_weight(request) if isinstance(request, Create | SetData) else 1

    async def _run(self) -> None:
        group: deque[_PendingRequest] = deque()
        try:
            while self._queue:
                await self._commit(group)
        except StorageError as failure:
            self._give_up(group, failure)
        except BaseException as failure:
            self._give_up(group, StorageError(detail=f"a commit was interrupted: {failure!r}"))
            raise
        finally:
            self._running = None

    async def _commit(self, group: deque[_PendingRequest]) -> None:
        """Commit a group, and remove every request that is answered from it.

        Other callbacks may run between two decisions, because only this coroutine changes the tree,
        and between two answers, because everything is on disk.
        """
        draft = Draft(self.tree)
        time_ms = self._clock()
        decisions: deque[Decision | None] = deque()
        turn = _Turn()
        weight = 0
        while self._queue and weight < _GROUP_WEIGHT:
            group.append(pending := self._queue.pop())
            weight += pending.weight or 1
            decisions.append(await self._decide(draft, pending, time_ms, turn))
            await turn.pause()
        if draft.zxid > self.tree.zxid and self._store is not None:
            await self._in_thread(self._store.write, draft.zxid, draft.nodes, draft.sessions)
        turn = _Turn()
        while decisions:
            await turn.pause()
            decision = decisions[0]
            if decision is not None and decision.transaction is not None:
                await self._apply_in_turns(decision.transaction, turn)
            decisions.popleft()
            group.popleft().answer(None if decision is None else decision.outcome)

    async def _decide(
        self, draft: Draft, pending: _PendingRequest, time_ms: int, turn: _Turn
    ) -> Decision | None:
        if pending.request is None:
            return None
        steps = draft.decide_in_steps(pending.request, pending.session_id, time_ms, pending.access)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                decision: Decision = end.value
                return decision
            await turn.pause()

    async def _apply_in_turns(self, transaction: Transaction, turn: _Turn) -> None:
        """Apply a durable transaction and notify the sessions it concerns."""
        self.is_applying = True
        try:
            for fired in self.tree.apply_in_steps(transaction):
                for number, watch in enumerate(fired, 1):
                    self._notify(watch)
                    if not number % _EVENTS_PER_CHECK:
                        await turn.pause()
                await turn.pause()
        finally:
            self.is_applying = False
        self._end_sessions(transaction)

    def _apply(self, transaction: Transaction) -> None:
        for watch in self.tree.apply(transaction):
            self._notify(watch)
        self._end_sessions(transaction)

    def _notify(self, watch: FiredWatch) -> None:
        if watch.watcher in self.sessions:
            self.sessions[watch.watcher].watch_fired(watch.event, watch.acl)

    def _end_sessions(self, transaction: Transaction) -> None:
        for change in transaction.changes:
            if isinstance(change, SessionClosed):
                self.tree.watches.forget(change.session_id)
                if change.session_id in self.sessions:
                    self.sessions.pop(change.session_id).lost()

    def _give_up(self, group: Iterable[_PendingRequest], failure: StorageError) -> None:
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


def _operation_weight(operation: Operation | Refused) -> int:
    if isinstance(operation, Create | SetData):
        return 1 + len(operation.data or b"") // _WEIGHT_BYTES
    return 1
