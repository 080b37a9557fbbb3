"""ZooKeeper of a simulated cluster, and a broker's client of it.

The znode tree, its sessions and their leases are the real ones; the connection is one of the
simulated network.  The client keeps the promises of `hightide.zookeeper.interface` by the rules of
the shipped client: a call that is cut off may have happened, no watch survives its connection, and
a lease counts from the time of the request.

On the wire is a number; the message is in a table that both sides share.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from hightide.zookeeper.client import SessionKey
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
    SessionClosed,
    SessionOpened,
    SetData,
)
from hightide.zookeeper.session import Leases
from hightide.zookeeper.tree import Tree
from hightide.zookeeper.watch import EventType, WatchEvent
from hightide.zookeeper.zookeeper_errors import (
    ConnectionLoss,
    NotConnected,
    SessionLost,
    ZooKeeperError,
)
from tests.simulation.shipped.loop import Process, SimLoop, World

NAME, PORT = "zookeeper", 2181
TICK_MS = 200
_NUMBER = struct.Struct(">q")
_CLOSE_S = 2.0
_HANDSHAKE_S = 1.0

Connect, Ping, Close, Answer, Event, Expired = "connect", "ping", "close", "answer", "event", "lost"


class Channel(asyncio.Protocol):
    """Objects in order, both ways."""

    def __init__(
        self,
        objects: dict[int, Any],
        received: Callable[[Channel, Any], None],
        lost: Callable[[Channel], None],
    ) -> None:
        self._objects = objects
        self._received, self._lost = received, lost
        self._data = b""
        self.is_open = True
        self.session_id = 0
        self.number = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport
        self.peer = transport.get_extra_info("peername")[0]

    def data_received(self, data: bytes) -> None:
        self._data += data
        while len(self._data) >= _NUMBER.size and self.is_open:
            (number,) = _NUMBER.unpack_from(self._data)
            self._data = self._data[_NUMBER.size :]
            self._received(self, self._objects.pop(number))

    def connection_lost(self, _error: Exception | None) -> None:
        self.is_open = False
        self._lost(self)

    def send(self, what: Any) -> None:
        if self.is_open:
            number = self._objects[0] = self._objects.get(0, 0) + 1
            self._objects[number] = what
            self._transport.write(_NUMBER.pack(number))

    def drop(self) -> None:
        if self.is_open:
            self.is_open = False
            self._transport.abort()


class ZooKeeperServer(Process):
    """A server with a durable tree; a restart gives every session its full timeout again."""

    def __init__(self, world: World) -> None:
        super().__init__(world, NAME)
        self.tree = Tree()
        self.objects: dict[int, Any] = {0: 0}
        self.written: Callable[[list[str], str], None] = lambda _paths, _writer: None
        """Called after every change with the change and its session."""
        self._owners: dict[int, str] = {}
        self._channels: dict[int, Channel] = {}
        self._numbers = count(1)

    async def main(self) -> None:
        loop: Any = asyncio.get_running_loop()
        for number in self._channels:
            self.tree.watches.forget(number)
        self._channels = {}
        self._leases = Leases(TICK_MS, self._clock())
        for session_id, session in self.tree.sessions.items():
            self._leases.opened(session_id, session.timeout_ms, self._clock())
        listening = self.world.network.listen(self, PORT)
        await loop.create_server(self._channel, sock=listening)
        while True:
            await asyncio.sleep(TICK_MS / 1000)
            for session_id in self._leases.expired(self._clock()):
                self.world.tell(f"session {session_id} expires")
                self.write(CloseSession(), session_id)

    def _clock(self) -> int:
        return round(self.world.now * 1000)

    def _channel(self) -> Channel:
        channel = Channel(self.objects, self._received, self._lost)
        channel.number = next(self._numbers)
        self._channels[channel.number] = channel
        return channel

    def _lost(self, channel: Channel) -> None:
        self._channels.pop(channel.number, None)
        self.tree.watches.forget(channel.number)

    def _received(self, channel: Channel, message: Any) -> None:
        kind, body = message
        if kind is Connect:
            self._connect(channel, *body)
            return
        if channel.session_id not in self.tree.sessions:
            channel.send((Expired, None))
            return
        self._leases.touched(channel.session_id, self._clock())
        if kind is Ping:
            channel.send((Answer, None))
        elif kind is Close:
            self.write(CloseSession(), channel.session_id)
            channel.send((Answer, None))
        elif kind in ("get", "exists", "children"):
            path, watches = body
            channel.send((Answer, self._read(kind, path, watches, channel.number)))
        else:
            outcome = self.write(body, channel.session_id)
            channel.send((Answer, outcome))

    def _connect(
        self, channel: Channel, mine: SessionKey, ends: SessionKey | None, timeout_ms: int
    ) -> None:
        if ends is not None and self._knows(ends):
            self.world.tell(f"session {ends.session_id} is ended by its successor")
            self.write(CloseSession(), ends.session_id)
        if mine.session_id and not self._knows(mine):
            channel.send((Expired, None))
            return
        if mine.session_id:
            for other in list(self._channels.values()):
                if other.session_id == mine.session_id:
                    other.drop()
        else:
            session_id = self.tree.zxid + 1
            mine = SessionKey(session_id, self.world.random.randbytes(8))
            self._owners[session_id] = channel.peer
            self.write(OpenSession(session_id, timeout_ms, mine.password), session_id)
        self._leases.opened(mine.session_id, timeout_ms, self._clock())
        channel.session_id = mine.session_id
        channel.send((Answer, mine))

    def _knows(self, session_key: SessionKey) -> bool:
        session = self.tree.sessions.get(session_key.session_id)
        return session is not None and session.password == session_key.password

    def _read(self, kind: str, path: str, watches: bool, number: int) -> Any:
        watcher = number if watches else None
        try:
            if kind == "get":
                node = self.tree.get(path, watcher)
                return node.data or b"", node.stat
            return getattr(self.tree, kind)(path, watcher)
        except ZooKeeperError as refusal:
            return refusal

    def write(self, request: Request, session_id: int) -> Any:
        """Change the tree; watches fire before any response."""
        decision = self.tree.decide(request, session_id, self.now_ms())
        if decision.transaction is not None:
            for fired in self.tree.apply(decision.transaction):
                channel = self._channels.get(fired.watcher)
                if channel is not None:
                    channel.send((Event, fired.event))
            if isinstance(request, CloseSession):
                self._leases.closed(session_id)
            paths = [change.path for change in decision.transaction.changes if _has_path(change)]
            self.written(paths, self._owners.get(session_id, ""))
        return decision.outcome


class SimZooKeeper:
    """A broker's sessions, one after the other, on one connection after the other."""

    def __init__(self, loop: SimLoop, timeout_ms: int, ends: SessionKey | None) -> None:
        self._loop = loop
        self._timeout_ms = timeout_ms
        self._ends = ends
        self._objects = _zookeeper(loop.world).objects
        self._session_key = SessionKey(0, b"")
        self._state = SessionState.LOST
        self._listeners: list[StateListener] = []
        self._channel: Channel | None = None
        self._calls: list[tuple[float, asyncio.Future[Any] | None, Callable[[], None]]] = []
        """For each request: when it was sent, its future (none for a ping), and its callback."""
        self._data_watches: dict[str, dict[Watch, None]] = {}
        self._child_watches: dict[str, dict[Watch, None]] = {}
        self._waiting: list[asyncio.Future[None]] = []
        self._renewed_at = self._heard_at = loop.time()
        self._is_closing = False
        self.on_session: Callable[[SessionKey], None] = lambda _session_key: None
        self._task = loop.create_task(self._keep_connected())
        self._timer = loop.call_soon(self._look_at_lease)

    # -- the session -----------------------------------------------------------------------

    @property
    def session_id(self) -> int:
        return self._session_key.session_id

    @property
    def session_key(self) -> SessionKey:
        return self._session_key

    @property
    def timeout_ms(self) -> int:
        return self._timeout_ms

    @property
    def state(self) -> SessionState:
        return self._state

    def on_state(self, listener: StateListener) -> None:
        self._listeners.append(listener)

    def clock_s(self) -> float:
        return self._loop.time()

    def sure_until_s(self) -> float:
        is_good = self._state in (SessionState.CONNECTED, SessionState.SUSPENDED)
        return self._renewed_at + self._timeout_ms / 1000 if is_good else 0.0

    async def connected(self, timeout_ms: int | None) -> None:
        if self._state is SessionState.CONNECTED:
            return
        if self._is_closing:
            raise SessionLost(detail="it was closed")
        waiting: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(waiting)
        try:
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                await waiting
        except TimeoutError:
            raise NotConnected(detail=f"tried for {timeout_ms} ms") from None
        finally:
            self._waiting.remove(waiting)

    async def close(self) -> None:
        if self._is_closing:
            return
        with contextlib.suppress(ZooKeeperError, TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await self._call(Close, None)
        self._is_closing = True
        self._task.cancel()
        self._timer.cancel()
        self._drop()
        self._become(SessionState.LOST)
        self._listeners.clear()

    def abandon(self, _timeout_ms: int = 1000) -> bool:
        raise NotImplementedError("nothing hangs on virtual time")

    def _become(self, state: SessionState) -> None:
        if state is self._state:
            return
        self._state = state
        self._loop.world.tell(f"{self._loop.process.name} {state.value} {self.session_id}")
        if state is SessionState.CONNECTED:
            for waiting in self._waiting:
                if not waiting.done():
                    waiting.set_result(None)
        for listener in tuple(self._listeners):
            listener(state)

    # -- the connection --------------------------------------------------------------------

    async def _keep_connected(self) -> None:
        random = self._loop.world.random
        while True:
            try:
                async with asyncio.timeout(_HANDSHAKE_S):
                    channel, answered = await self._open()
                    await answered
            except (OSError, TimeoutError, ConnectionLoss):
                self._drop()
                await asyncio.sleep(random.uniform(0.03, 0.3))
                continue
            lost = self._lost_one = self._loop.create_future()
            if channel.is_open:
                await lost

    async def _open(self) -> tuple[Channel, asyncio.Future[Any]]:
        _, channel = await self._loop.create_connection(
            lambda: Channel(self._objects, self._received, self._lost), NAME, PORT
        )
        self._channel = channel
        channel.send((Connect, (self._session_key, self._ends, self._timeout_ms)))
        answered: asyncio.Future[Any] = self._loop.create_future()
        asked_at = self._loop.time()

        def opened() -> None:
            session_key: SessionKey = answered.result()
            is_new = session_key.session_id != self.session_id
            self._session_key, self._ends = session_key, None
            self._renewed_at = max(self._renewed_at, asked_at)
            if is_new:
                self.on_session(session_key)
            if self._state in (SessionState.SUSPENDED, SessionState.DOUBTFUL) and is_new:
                self._become(SessionState.LOST)
            self._become(SessionState.CONNECTED)

        self._calls.append((asked_at, answered, opened))
        return channel, answered

    def _received(self, channel: Channel, message: Any) -> None:
        if channel is not self._channel:
            return
        kind, body = message
        self._heard_at = self._loop.time()
        if kind is Expired:
            self._session_key = SessionKey(0, b"")
            self._drop()
            self._become(SessionState.LOST)
        elif kind is Event:
            self._happened(body)
        else:
            asked_at, answer, answered = self._calls.pop(0)
            self._renewed_at = max(self._renewed_at, asked_at)
            if answer is None or answer.done():
                return
            if isinstance(body, ZooKeeperError):
                answer.set_exception(body)
            else:
                answer.set_result(body)
                answered()

    def _lost(self, channel: Channel) -> None:
        if channel is self._channel:
            self._drop()

    def _drop(self) -> None:
        """The connection is closed, and with it all watches and requests."""
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.drop()
        self._data_watches.clear()
        self._child_watches.clear()
        calls, self._calls = self._calls, []
        for _, answer, _ in calls:
            if answer is not None and not answer.done():
                answer.set_exception(ConnectionLoss())
        if self._state is SessionState.CONNECTED and not self._is_closing:
            self._become(SessionState.SUSPENDED)
        lost = getattr(self, "_lost_one", None)
        if lost is not None and not lost.done():
            lost.set_result(None)

    def _look_at_lease(self) -> None:
        now, timeout_s = self._loop.time(), self._timeout_ms / 1000
        if self._state in (SessionState.CONNECTED, SessionState.SUSPENDED):
            if now - self._renewed_at >= timeout_s:
                self._drop()
                self._become(SessionState.DOUBTFUL)
            elif self._state is SessionState.CONNECTED:
                if now - self._heard_at >= timeout_s * 2 / 3:
                    self._drop()
                elif now - self._renewed_at >= timeout_s / 4 and self._channel is not None:
                    self._channel.send((Ping, None))
                    self._calls.append((now, None, lambda: None))
        self._timer = self._loop.call_later(timeout_s / 10, self._look_at_lease)

    # -- watches and calls -----------------------------------------------------------------

    def _happened(self, event: WatchEvent) -> None:
        watches: dict[Watch, None] = {}
        if event.type is not EventType.CHILD:
            watches |= self._data_watches.pop(event.path, {})
        if event.type in (EventType.CHILD, EventType.DELETED):
            watches |= self._child_watches.pop(event.path, {})
        for watch in watches:
            watch(event)

    async def _call(self, kind: str, body: Any, arm: Callable[[], None] = lambda: None) -> Any:
        if self._is_closing or self._state is SessionState.LOST:
            raise SessionLost
        if self._state is not SessionState.CONNECTED or self._channel is None:
            raise NotConnected
        answer: asyncio.Future[Any] = self._loop.create_future()
        self._channel.send((kind, body))
        self._calls.append((self._loop.time(), answer, arm))
        try:
            async with asyncio.timeout(self._timeout_ms / 1000):
                return await answer
        except TimeoutError:
            raise ConnectionLoss(detail="no answer in time") from None

    async def _read(
        self, kind: str, path: str, table: dict[str, dict[Watch, None]], watch: Watch | None
    ) -> Any:
        check_path(path)

        def arm() -> None:
            if watch is not None:
                table.setdefault(path, {})[watch] = None

        return await self._call(kind, (path, watch is not None), arm)

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, Stat]:
        found: tuple[bytes, Stat] = await self._read("get", path, self._data_watches, watch)
        return found

    async def exists(self, path: str, watch: Watch | None = None) -> Stat | None:
        found: Stat | None = await self._read("exists", path, self._data_watches, watch)
        return found

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        found: list[str] = await self._read("children", path, self._child_watches, watch)
        return found

    async def create(
        self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequence: bool = False
    ) -> str:
        made: NewNode = await self._call("write", Create(path, data, ephemeral, sequence))
        return made.path

    async def set(self, path: str, data: bytes, version: int = -1) -> Stat:
        stat: Stat = await self._call("write", SetData(path, data, version))
        return stat

    async def delete(self, path: str, version: int = -1) -> None:
        await self._call("write", Delete(path, version))

    async def multi(self, operations: Sequence[Operation]) -> list[str | Stat | None]:
        results = await self._call("write", Multi(tuple(operations)))
        return [result.path if isinstance(result, NewNode) else result for result in results]


def _has_path(change: Any) -> bool:
    return not isinstance(change, SessionOpened | SessionClosed)


def _zookeeper(world: World) -> ZooKeeperServer:
    found = world.processes[NAME]
    assert isinstance(found, ZooKeeperServer)
    return found
