"""The ZooKeeper client: one session with an ensemble or with the embedded server.

    client = await ZooKeeperClient.connect("zk1:2181,zk2:2181/kafka", session_timeout_ms=18_000)

The client keeps the promises of `interface` on the event loop; `kazoo_thread` is the thread under
it. Everything the thread reports arrives here in order, so the state, the armed watches and the
responses always belong to one connection.

The client keeps one clock: the lease. A disconnected client gets no notice that its session has
expired. So when the server has answered nothing for the session timeout, whatever the state of the
connection, the session becomes DOUBTFUL.

Importing this module takes about 20 ms, which is kazoo's share; a program that must start quickly
can import it in a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from kazoo.hosts import collect_hosts
from kazoo.protocol import serialization as wire

from hightide.core.events import Event, Severity
from hightide.event_log import record
from hightide.zookeeper import kazoo_translation
from hightide.zookeeper.interface import (
    SessionState,
    StateListener,
    Watch,
    ensure_path,
)
from hightide.zookeeper.kazoo_thread import (
    Call,
    Connection,
    KazooThread,
    Mailbox,
    SessionKey,
    clock,
)
from hightide.zookeeper.kazoo_translation import Chroot
from hightide.zookeeper.node import Stat, check_path
from hightide.zookeeper.operation import Create, Delete, Operation, SetData
from hightide.zookeeper.watch import EventType, WatchEvent
from hightide.zookeeper.zookeeper_errors import (
    AuthFailed,
    BadArguments,
    ConnectionLoss,
    NotConnected,
    SessionLost,
    ZooKeeperError,
)

__all__ = ["ClientTls", "SessionKey", "ZooKeeperClient"]

_log = logging.getLogger(__name__)

A = TypeVar("A")

_CLOSE_S = 2.0
"""How long `close` waits for the server's confirmation."""

_REPORT_S = 5
_CALL_TIMES = 256  # as many of the last calls have quantiles
"""How often a wait for a connection is logged."""

_Watches = dict[str, dict[Watch, None]]
"""Watch callbacks by path. Dicts as ordered sets: a watch armed twice is called once."""


class ClientTls(NamedTuple):
    """TLS to the servers: the CA, our certificate and key, and whether host names are checked."""

    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    check_hostname: bool = True

    def context(self) -> ssl.SSLContext:
        """Load the files now, so that a bad file is one error and not one per attempt."""
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.certificate:
                context.load_cert_chain(self.certificate, self.key)
        except OSError as failure:
            named = ", ".join(filter(None, (self.ca, self.certificate, self.key)))
            raise ZooKeeperError(
                detail=f"cannot load the TLS files {named}: {failure}"
            ) from failure
        context.check_hostname = self.check_hostname
        return context


@dataclass(frozen=True, slots=True)
class SessionChanged(Event):
    """The ZooKeeper session of this process is connected, or not."""

    state: SessionState
    servers: str
    why: str
    is_closing: bool

    @property
    def level(self) -> Severity:
        is_good = self.state is SessionState.CONNECTED or self.is_closing
        return Severity.INFO if is_good else Severity.WARNING

    def __str__(self) -> str:
        return f"ZooKeeper session {self.state.value} ({self.servers}): {self.why}"


class ZooKeeperClient:
    """A session, and after its loss the next one. Belongs to the event loop that created it."""

    _kazoo: KazooThread

    def __init__(self, servers: str, call_timeout_ms: int | None) -> None:
        """Use `connect`."""
        self._loop = asyncio.get_running_loop()
        self._servers = servers
        self._chroot = Chroot("")
        self._call_timeout_ms = call_timeout_ms
        self._state = SessionState.LOST
        self.call_times = CallTimes()
        self._listeners: list[StateListener] = []
        self._waiting_for_connection: list[asyncio.Future[None]] = []
        self._data_watches: _Watches = {}
        self._child_watches: _Watches = {}
        self._connection = Connection(0, SessionKey(0, b""), 0)
        self._lease_timer: asyncio.TimerHandle | None = None
        self._auth_failed = False
        self._is_closing = False
        self._has_ended = asyncio.Event()
        self._mailbox = Mailbox(self._loop)

    @classmethod
    async def connect(
        cls,
        hosts: str,
        *,
        session_timeout_ms: int = 18_000,
        connection_timeout_ms: int | None = 18_000,
        call_timeout_ms: int | None = None,
        credentials: str | None = None,
        tls: ClientTls | None = None,
        resume: SessionKey | None = None,
        creates_chroot: bool = True,
    ) -> ZooKeeperClient:
        """Open a session. `hosts` may end in a chroot, which is created if it is missing, unless
        `creates_chroot` is false: then every znode below it is missing too.

        A call fails when it gets no response within `call_timeout_ms`, by default the session
        timeout. `credentials` are user:password. `resume` is the key of an earlier session of this
        broker: if that session is still alive, it is closed first, with its ephemerals.

        Raises ConnectionLoss if no server answers in time, AuthFailed if the server refuses the
        credentials. Without a `connection_timeout_ms` it waits until a server answers.
        """
        servers, chroot = _parse(hosts)
        context = None if tls is None else tls.context()
        client = cls(servers, call_timeout_ms)
        mailbox = client._mailbox
        kazoo = KazooThread(
            client, mailbox, servers, session_timeout_ms, resume, credentials, context
        )
        client._kazoo = kazoo
        kazoo.start_async()
        try:
            await client._begin(chroot, creates_chroot, connection_timeout_ms)
        except BaseException:
            await client.close()
            raise
        return client

    @property
    def session_id(self) -> int:
        return self._connection.session_key.session_id

    @property
    def session_key(self) -> SessionKey:
        """Id and password, with which a later process can close this session."""
        return self._connection.session_key

    @property
    def timeout_ms(self) -> int:
        return self._connection.timeout_ms

    @property
    def state(self) -> SessionState:
        is_good = self._state in (SessionState.CONNECTED, SessionState.SUSPENDED)
        # After a pause of the process (SIGSTOP) this may run before the lease timer.
        return SessionState.DOUBTFUL if is_good and self._lease_left_s() <= 0 else self._state

    clock_s = staticmethod(clock)

    def sure_until_s(self) -> float:
        is_good = self._state in (SessionState.CONNECTED, SessionState.SUSPENDED)
        return self._kazoo.lease_renewed_at + self.timeout_ms / 1000 if is_good else 0.0

    def on_state(self, listener: StateListener) -> None:
        self._listeners.append(listener)

    async def connected(self, timeout_ms: int | None) -> None:
        """Wait until the state is CONNECTED; raise NotConnected after `timeout_ms`, if it is given.

        A wait of several seconds is logged, again and again.
        """
        if self._state is SessionState.CONNECTED:
            return
        if self._is_closing:
            raise SessionLost(detail="the client is closed")
        if self._auth_failed:
            raise AuthFailed(detail=f"by {self._servers}")
        waiting = self._loop.create_future()
        self._waiting_for_connection.append(waiting)
        reporting = self._loop.create_task(self._report_wait())
        try:
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                await waiting
        except TimeoutError:
            raise NotConnected(
                detail=f"tried {self._servers} for {timeout_ms} ms, last error: {self._trouble}"
            ) from None
        finally:
            reporting.cancel()
            self._waiting_for_connection.remove(waiting)

    async def _report_wait(self) -> None:
        waited_s = 0
        while True:
            await asyncio.sleep(_REPORT_S)
            waited_s += _REPORT_S
            _log.warning(
                "waiting for ZooKeeper at %s for %d s, last error: %s",
                *(self._servers, waited_s, self._trouble),
            )

    @property
    def _trouble(self) -> str:
        return self._kazoo.log.trouble or "no response"

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, Stat]:
        check_path(path)
        request = wire.GetData(self._chroot.outer(path), self._watcher(watch))
        data, stat = await self._ask(path, request, self._data_watches, watch)
        return data or b"", Stat._make(stat)

    async def exists(self, path: str, watch: Watch | None = None) -> Stat | None:
        check_path(path)
        request = wire.Exists(self._chroot.outer(path), self._watcher(watch))
        stat = await self._ask(path, request, self._data_watches, watch)
        return None if stat is None else Stat._make(stat)

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        check_path(path)
        request = wire.GetChildren(self._chroot.outer(path), self._watcher(watch))
        return sorted(await self._ask(path, request, self._child_watches, watch))

    async def create(
        self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequence: bool = False
    ) -> str:
        request = kazoo_translation.request(Create(path, data, ephemeral, sequence), self._chroot)
        return self._chroot.inner(await self._ask(path, request))

    async def set(self, path: str, data: bytes, version: int = -1) -> Stat:
        request = kazoo_translation.request(SetData(path, data, version), self._chroot)
        return Stat._make(await self._ask(path, request))

    async def delete(self, path: str, version: int = -1) -> None:
        await self._ask(path, kazoo_translation.request(Delete(path, version), self._chroot))

    async def multi(self, operations: Sequence[Operation]) -> list[str | Stat | None]:
        request = kazoo_translation.multi_request(operations, self._chroot)
        results = await self._ask("", request)
        return kazoo_translation.multi_results(results, operations, self._chroot)

    async def close(self) -> None:
        """Close the session. The server deletes its ephemerals at once if it can be reached within
        seconds, else when the session expires.

        No callback runs afterwards. Closing twice is not an error.
        """
        self._is_closing = True
        self._stop_lease_timer()
        self._kazoo.finish()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await self._has_ended.wait()
        # A thread that is still connecting to an unreachable host ends a little later.
        self._kazoo.drop()
        self._become(SessionState.LOST, "closed")
        self._listeners.clear()
        self._tell_waiting(SessionLost(detail="the client is closed"))

    def abandon(self, timeout_ms: int = 1000) -> bool:
        """Close the session at once, from any thread but the event loop's, which may hang.

        Closing is better than silence: other brokers need not wait for the timeout. The server
        still executes requests sent before, and none after. Returns whether the server confirmed.
        A new session begins when the event loop runs again; the loop sees LOST first.
        """
        return self._kazoo.abandon(timeout_ms / 1000)

    # Reports of the kazoo thread, in order and on the event loop.

    def opened(self, connection: Connection) -> None:
        self._connection = connection
        self._data_watches.clear()
        self._child_watches.clear()
        self._auth_failed = False
        self._become(
            SessionState.CONNECTED,
            f"session {connection.session_key.session_id:#x}, timeout {connection.timeout_ms} ms",
        )
        self._stop_lease_timer()
        self._check_lease()

    def broken(self) -> None:
        if self._state is SessionState.CONNECTED:
            self._become(SessionState.SUSPENDED, self._kazoo.log.trouble)

    def lost(self, auth_failed: bool) -> None:
        self._stop_lease_timer()
        if auth_failed:
            self._auth_failed = True
            _log.error("ZooKeeper at %s refuses the credentials", self._servers)
            self._tell_waiting(AuthFailed(detail=f"by {self._servers}"))
        self._become(SessionState.LOST, f"session {self.session_id:#x} is closed or expired")

    def ended(self) -> None:
        self._has_ended.set()

    def _watch_fired(self, kind: str, path: str) -> None:
        """Call the watches of an event. kazoo reports a deletion once per kind of watch."""
        event = WatchEvent(EventType[kind], self._chroot.inner(path))
        watches: dict[Watch, None] = {}
        if event.type is not EventType.CHILD:
            watches |= self._data_watches.pop(event.path, {})
        if event.type in (EventType.CHILD, EventType.DELETED):
            watches |= self._child_watches.pop(event.path, {})
        for watch in watches:
            self._call_back(watch, event)

    # The state.

    def _become(self, state: SessionState, why: str) -> None:
        if state is self._state or (self._is_closing and state is not SessionState.LOST):
            return
        self._state = state
        record(_log, SessionChanged(state, self._servers, why, self._is_closing))
        if state is SessionState.CONNECTED:
            self._tell_waiting(None)
        for listener in tuple(self._listeners):
            self._call_back(listener, state)

    def _check_lease(self) -> None:
        """Check the lease ten times per timeout, until the session is LOST or DOUBTFUL."""
        now, timeout_s = clock(), self.timeout_ms / 1000
        left_s = self._lease_left_s()
        if left_s <= 0:
            self._kazoo.drop(self._connection.number)
            self._become(SessionState.DOUBTFUL, f"no response for {timeout_s:g} s")
            return
        if now - self._kazoo.last_response_at >= timeout_s * 2 / 3:
            # kazoo detects a silent server only while no request is pending. The rest of the
            # session timeout is for finding another server.
            self._kazoo.drop(self._connection.number)
        pause_s = min(left_s, timeout_s / 10)
        self._lease_timer = self._loop.call_later(pause_s, self._check_lease)

    def _lease_left_s(self) -> float:
        return self._kazoo.lease_renewed_at + self.timeout_ms / 1000 - clock()

    def _stop_lease_timer(self) -> None:
        if self._lease_timer is not None:
            self._lease_timer.cancel()

    def _tell_waiting(self, failure: ZooKeeperError | None) -> None:
        for waiting in self._waiting_for_connection:
            if waiting.done():
                continue
            if failure is None:
                waiting.set_result(None)
            else:
                waiting.set_exception(failure)

    def _call_back(self, callback: Callable[[A], None], argument: A) -> None:
        """Run a callback; an exception in one must not stop the others."""
        try:
            callback(argument)
        except Exception as failure:
            self._loop.call_exception_handler(
                {"message": f"a ZooKeeper callback failed on {argument}", "exception": failure}
            )

    # Requests.

    async def _begin(self, chroot: str, creates_chroot: bool, timeout_ms: int | None) -> None:
        """Wait for a session and a first response in it, which proves it, and create the chroot."""
        deadline = math.inf if timeout_ms is None else self._loop.time() + timeout_ms / 1000
        while True:
            left_ms = (deadline - self._loop.time()) * 1000
            await self.connected(None if left_ms == math.inf else max(1, round(left_ms)))
            try:
                if await self.exists(chroot or "/") is None and creates_chroot:
                    await ensure_path(self, chroot)
            except (ConnectionLoss, SessionLost, AuthFailed):
                if self._auth_failed:
                    raise AuthFailed(detail=f"by {self._servers}") from None
                if self._loop.time() > deadline:
                    raise
            else:
                self._chroot = Chroot(chroot)
                return

    async def _ask(
        self,
        path: str,
        request: Any,
        watches: _Watches | None = None,
        watch: Watch | None = None,
    ) -> Any:
        """Send a request and wait for its response. The response arms the watch."""
        if self._is_closing or self._state is SessionState.LOST:
            raise SessionLost(path)
        answer: asyncio.Future[Any] = self._loop.create_future()

        def answered(value: Any, failure: Exception | None) -> None:
            if answer.done():
                return
            if failure is not None:
                answer.set_exception(kazoo_translation.error(failure, path))
                return
            # Here and not in the caller, which runs only after the reports that follow.
            if watches is not None and watch is not None:
                watches.setdefault(path, {})[watch] = None
            answer.set_result(value)

        sent = self._state is SessionState.CONNECTED and self._kazoo.submit(
            self._connection.number, request, Call(self._mailbox, answered)
        )
        if not sent:
            # The report of it is still in the queue, and the caller must not retry before.
            self.broken()
            raise NotConnected(path)
        began_s = clock()
        limit_ms = self._call_timeout_ms or self.timeout_ms
        timer = self._loop.call_later(limit_ms / 1000, _give_up, answer, path, limit_ms)
        try:
            value = await answer
            self.call_times.add(clock() - began_s)
            return value
        finally:
            timer.cancel()

    def _watcher(self, watch: Watch | None) -> Callable[[str, str], None] | None:
        return None if watch is None else self._watch_fired


class CallTimes:
    """How long calls took that were answered."""

    def __init__(self) -> None:
        self.recent_s: deque[float] = deque(maxlen=_CALL_TIMES)
        self.count = 0
        self.sum_s = 0.0

    def add(self, seconds: float) -> None:
        self.recent_s.append(seconds)
        self.count += 1
        self.sum_s += seconds


def _parse(hosts: str) -> tuple[str, str]:
    """Split `hosts` into servers and chroot; the chroot is "" if there is none."""
    servers, _, rest = hosts.partition("/")
    try:
        collect_hosts(servers)
    except ValueError as failure:
        raise BadArguments(hosts, f"expected host:port,host:port/chroot: {failure}") from None
    chroot = f"/{rest.rstrip('/')}" if rest.rstrip("/") else ""
    if chroot:
        check_path(chroot)
    return servers, chroot


def _give_up(answer: asyncio.Future[Any], path: str, limit_ms: int) -> None:
    if not answer.done():
        answer.set_exception(ConnectionLoss(path, f"no response within {limit_ms} ms"))
