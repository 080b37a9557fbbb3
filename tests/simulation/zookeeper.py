"""ZooKeeper of a simulated cluster: the real znode tree, with sessions, on the simulated network.

It is the state machine of the embedded ZooKeeper, without the wire protocol.  A client
(`TreeClient`, inside a broker) knows as much as a real client: a call without a response may have
happened, a watch may have been lost, and after its session timeout without a response it must
assume that its session has expired.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hightide.zookeeper.operation import CloseSession, Multi, OpenSession, Operation
from hightide.zookeeper.session import Leases
from hightide.zookeeper.tree import Tree
from hightide.zookeeper.watch import WatchEvent
from hightide.zookeeper.zookeeper_errors import NoNode, SessionLost, ZooKeeperError
from tests.simulation.world import Process, World

NAME = "zookeeper"
TICK_MS = 200
TIMEOUT_MS = 2000
CALL_MS = 900


@dataclass(frozen=True, slots=True)
class Open:
    pass


@dataclass(frozen=True, slots=True)
class Ping:
    session_id: int


@dataclass(frozen=True, slots=True)
class Close:
    session_id: int


@dataclass(frozen=True, slots=True)
class Read:
    """Read data and Stat of a path, or None, and its children on request."""

    session_id: int
    path: str
    watches: bool
    children: bool


@dataclass(frozen=True, slots=True)
class Write:
    session_id: int
    operations: tuple[Operation, ...]


class ZooKeeperServer(Process):
    """A server with a durable tree; a restart gives every session its full timeout again."""

    def __init__(self, world: World) -> None:
        super().__init__(world, NAME)
        self.tree = Tree()
        self._owners: dict[int, str] = {}
        self._last_session = 0
        # Events per session: a client that has seen fewer lost some, as with a broken connection.
        self._sent: dict[int, int] = {}
        self.on_written: Callable[[Any, str], None] = lambda _request, _owner: None
        """Called after every write, with the name of the writer."""

    def begin(self) -> None:
        self._leases = Leases(TICK_MS, self.world.now_ms)
        for session_id, session in self.tree.sessions.items():
            self._leases.opened(session_id, session.timeout_ms, self.world.now_ms)
            self.tree.watches.forget(session_id)
        self.after(TICK_MS, self._tick)

    def _tick(self) -> None:
        for session_id in self._leases.expired(self.world.now_ms):
            self._expire(session_id)
        self.after(TICK_MS, self._tick)

    def _expire(self, session_id: int) -> None:
        self.world.tell(f"session {session_id} of {self._owners[session_id]} expires")
        self.write(CloseSession(), session_id)

    def expire(self, owner: str) -> None:
        """Expire the sessions of a process, although it is alive and connected."""
        for session_id in [
            session for session in self.tree.sessions if self._owners.get(session) == owner
        ]:
            self._leases.closed(session_id)
            self._expire(session_id)

    def asked(self, sender: str, request: Any, answer: Callable[[Any], None]) -> None:
        if isinstance(request, Open):
            self._last_session += 1
            self._owners[self._last_session] = sender
            self.write(OpenSession(self._last_session, TIMEOUT_MS), self._last_session)
            self._leases.opened(self._last_session, TIMEOUT_MS, self.world.now_ms)
            answer(self._last_session)
            return
        session_id = request.session_id
        if session_id not in self.tree.sessions:
            answer(SessionLost())
            return
        self._leases.touched(session_id, self.world.now_ms)
        match request:
            case Ping():
                answer(self._sent.get(session_id, 0))
            case Close():
                self._leases.closed(session_id)
                answer(self.write(CloseSession(), session_id))
            case Read():
                answer(self._read(request))
            case Write(_, operations):
                answer(self.write(Multi(operations), session_id))

    def _read(self, read: Read) -> Any:
        watcher = read.session_id if read.watches else None
        try:
            if read.children:
                return self.tree.children(read.path, watcher)
            if watcher is not None:
                self.tree.exists(read.path, watcher)
            node = self.tree.get(read.path)
            return node.data or b"", node.stat
        except NoNode as missing:
            return missing

    def write(self, request: Any, session_id: int) -> Any:
        decision = self.tree.decide(request, session_id, self.world.now_ms)
        if decision.transaction is not None:
            for fired in self.tree.apply(decision.transaction):
                self._sent[fired.watcher] = self._sent.get(fired.watcher, 0) + 1
                owner = self._owners[fired.watcher]
                self.tell(owner, (fired.watcher, fired.event))
            if isinstance(request, CloseSession):
                self.tree.watches.forget(session_id)
            self.on_written(request, self._owners.get(session_id, ""))
        return decision.outcome


class TreeClient:
    """A broker's session."""

    def __init__(self, owner: Process, connected: Callable[[bool], None]) -> None:
        """`connected` is called after every reconnect, with whether the session is a new one."""
        self._owner = owner
        self._connected = connected
        self._watches: dict[tuple[str, bool], Callable[[], None]] = {}
        self._heard_ms = owner.clock_ms()
        self._is_connected = False
        self._opens = 0
        self._incarnation = 0
        self._events = 0
        self.session_id = 0
        self.on_doubt: Callable[[], None] = lambda: None
        self._open()

    @property
    def is_doubtful(self) -> bool:
        """Return whether the session may have expired for others."""
        return self._owner.clock_ms() - self._heard_ms > TIMEOUT_MS

    def close(self) -> None:
        self._owner.ask(NAME, Close(self.session_id), CALL_MS, lambda _answer: None)

    def read(
        self,
        path: str,
        reply: Callable[[Any], None],
        watch: Callable[[], None] | None = None,
        *,
        children: bool = False,
    ) -> None:
        """Return data and Stat, names of children, NoNode, or None if ZooKeeper is unreachable."""
        if watch is not None:
            self._watches[path, children] = watch
        self._ask(Read(self.session_id, path, watch is not None, children), reply)

    def write(self, operations: Sequence[Operation], reply: Callable[[Any], None]) -> None:
        """Return the results, an error (MultiFailed, SessionLost), or None if unknown."""
        self._ask(Write(self.session_id, tuple(operations)), reply)

    def happened(self, session_id: int, event: WatchEvent) -> None:
        if session_id == self.session_id:
            self._events += 1
            for children in (False, True):
                watch = self._watches.pop((event.path, children), None)
                if watch is not None:
                    watch()

    def _ask(self, request: Any, reply: Callable[[Any], None]) -> None:
        asked_ms, session_id = self._owner.clock_ms(), self.session_id

        def answered(answer: Any) -> None:
            if session_id != self.session_id:
                reply(None)
                return
            if answer is None:
                self._is_connected = False
            elif isinstance(answer, SessionLost):
                self._open()
            else:
                self._heard_ms = max(self._heard_ms, asked_ms)
                # A server that died broke the connection, and lost the watches.
                incarnation = self._owner.world.processes[NAME].incarnation
                if not self._is_connected or incarnation != self._incarnation:
                    self._incarnation = incarnation
                    self._is_connected = True
                    self._watches.clear()
                    self._owner.after(0, self._connected, False)
            reply(None if isinstance(answer, SessionLost) else answer)

        self._owner.ask(NAME, request, CALL_MS, answered)

    def _open(self) -> None:
        self._opens += 1
        self.session_id, self._is_connected = -self._opens, False
        self._watches.clear()
        self.on_doubt()
        number = self._opens

        def answered(session_id: int | None) -> None:
            if number != self._opens:
                return
            if session_id is None:
                self._open()
                return
            self.session_id, self._is_connected = session_id, True
            self._events = 0
            self._incarnation = self._owner.world.processes[NAME].incarnation
            self._heard_ms = self._owner.clock_ms() - CALL_MS
            self._connected(True)
            self._owner.after(TIMEOUT_MS // 4, self._ping, session_id)

        self._owner.ask(NAME, Open(), CALL_MS, answered)

    def _ping(self, session_id: int) -> None:
        if session_id != self.session_id:
            return
        if self.is_doubtful:
            # A client that is connected again must read again what it watched.
            self._is_connected = False
            self.on_doubt()
        self._ask(Ping(session_id), self._pinged)
        self._owner.after(TIMEOUT_MS // 4, self._ping, session_id)

    def _pinged(self, sent: int | None) -> None:
        if sent is not None and sent != self._events:
            self._events = sent
            self._watches.clear()
            self._connected(False)


def failed(answer: Any) -> bool:
    """Return whether a call has no result: refused, or unknown."""
    return answer is None or isinstance(answer, ZooKeeperError)
