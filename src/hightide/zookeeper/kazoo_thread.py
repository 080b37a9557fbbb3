"""The thread under a ZooKeeper client: kazoo, held to the promises of `interface`.

kazoo opens connections and sessions one after the other in its own thread. All code that runs in
that thread, or touches its state, is in this module:

- Responses, watch events and connection changes go to the event loop through one queue, so they
  arrive in the order in which they happened.
- A request enters kazoo's queue only while the gate is open for the connection that its caller
  knows. kazoo empties its queue when a connection ends; the gate closes before. So a request never
  waits for a server, and never runs on another connection or in another session.
- A response renews the lease as of the time of its request, not of the response: the server counts
  the session timeout from a moment in between, so only the earlier time is safe.
- The loop restarts after an internal error, and after the session was abandoned.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import select
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionDropped
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.connection import ConnectionHandler
from kazoo.protocol.serialization import CloseInstance, Connect
from kazoo.protocol.states import EventType, KeeperState

from hightide import tcp

_log = logging.getLogger(__name__)

# The pauses between attempts double from the first to the longest, ± 40 %. kazoo's default grows to
# an hour; these leave time to reach a server before the session expires.
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 0.5
_PAUSE_S = 1.0
# For the handshake kazoo allows a server its share of the session timeout, however short that is,
# and the whole timeout if there is only one server. But a starting ZooKeeper may accept a
# connection and never answer it, so there must be time for another attempt.
_LEAST_HANDSHAKE_S = 1.0
_HANDSHAKES_PER_SESSION = 3
_SUSPICIOUS_ROUNDS = 5

_ENDS = (KeeperState.EXPIRED_SESSION, KeeperState.AUTH_FAILED, KeeperState.CLOSED)


_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


clock: Callable[[], float] = partial(time.clock_gettime, _CLOCK)
"""Return seconds of a clock that also runs while this host sleeps, as the server's does."""


class SessionKey(NamedTuple):
    """Id and password of a session, with which a client can resume it."""

    session_id: int
    password: bytes

    def __repr__(self) -> str:
        return f"SessionKey({self.session_id:#x})"


class Connection(NamedTuple):
    """An open connection: its number, and the session on it."""

    number: int
    session_key: SessionKey
    timeout_ms: int


class SessionListener(Protocol):
    """Receives the reports of the thread, on the event loop."""

    def opened(self, connection: Connection) -> None: ...
    def broken(self) -> None: ...
    def lost(self, auth_failed: bool) -> None: ...
    def ended(self) -> None: ...


class Mailbox:
    """Calls to the event loop, in order; one wake-up serves all calls posted before it runs."""

    __slots__ = ("_calls", "_is_scheduled", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._calls: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._is_scheduled = False

    def post(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call `function` on the event loop; do nothing if the loop is closed."""
        self._calls.append((function, arguments))
        if not self._is_scheduled:
            self._is_scheduled = True
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        # Before the calls are taken: a post from here on schedules again.
        self._is_scheduled = False
        for _ in range(len(self._calls)):
            function, arguments = self._calls.popleft()
            function(*arguments)


class Call:
    """A pending request. kazoo calls `set` or `set_exception` in the connection's thread."""

    __slots__ = ("_answered", "_mailbox", "sent_at")

    def __init__(self, mailbox: Mailbox, answered: Callable[[Any, Exception | None], None]) -> None:
        self._mailbox = mailbox
        self._answered = answered
        self.sent_at = clock()

    def set(self, value: Any = None) -> None:
        self._mailbox.post(self._answered, value, None)

    def set_exception(self, failure: Exception) -> None:
        self._mailbox.post(self._answered, None, failure)


class WakeupPipe:
    """Both ends of the pipe to which kazoo writes a byte per request; this one sends one for all.

    A plain socket pair is full after a few hundred bytes. It would then block the event loop, which
    holds the gate that the connection's thread may need to continue.
    """

    def __init__(self) -> None:
        self._inside, self._outside = socket.socketpair()
        self._lock = threading.Lock()
        self._pending = 0

    def fileno(self) -> int:
        return self._inside.fileno()

    def send(self, data: bytes) -> None:
        with self._lock:
            self._pending += 1
            if self._pending == 1:
                self._outside.send(data)

    def recv(self, count: int) -> None:
        with self._lock:
            self._pending -= 1
            if self._pending == 0:
                self._inside.recv(count)

    def close(self) -> None:
        self._inside.close()
        self._outside.close()


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's I/O and callbacks: no worker threads, callbacks go straight to the mailbox."""

    name = "hightide"

    def __init__(self, mailbox: Mailbox, server_count: int, tls: ssl.SSLContext | None) -> None:
        super().__init__()
        self._mailbox = mailbox
        self._server_count = server_count
        self._tls = tls

    def start(self) -> None:
        self._running = True

    def stop(self) -> None:
        self._running = False

    def create_socket_pair(self) -> tuple[WakeupPipe, WakeupPipe]:
        pipe = WakeupPipe()
        return pipe, pipe

    def create_connection(
        self, *, address: tuple[str, int], hostname: str, timeout: float, **_: object
    ) -> socket.socket:
        # An unreachable host must leave time for the other servers before the session expires.
        timeout_s = max(timeout / self._server_count, _LEAST_HANDSHAKE_S)
        timeout_s = min(timeout_s, tcp.CONNECT_MS / 1000)
        connection = socket.create_connection(address, timeout_s)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Reading everything again after a reconnect is dear, so a short silence breaks nothing.
        tcp.peer_options(connection, max(tcp.SILENCE_MS, round(timeout * 1000 / 3)))
        if self._tls is None:
            return connection
        return self._tls.wrap_socket(connection, server_hostname=hostname)

    def dispatch_callback(self, callback: Any) -> None:
        (event,) = callback.args
        # kazoo calls every watch when the connection ends; `interface` promises no such call.
        if event.type != EventType.NONE:
            self._mailbox.post(callback.func, event.type, event.path)

    def select(
        self, readers: Sequence[Any], writers: Sequence[Any], _: object, timeout: float
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Poll with one system call. TLS may have buffered data that poll does not see."""
        poll = select.poll()
        for reader in readers:
            poll.register(reader, select.POLLIN)
        for writer in writers:
            poll.register(writer, select.POLLOUT)
        buffered = [file for file in readers if hasattr(file, "pending") and file.pending()]
        ready = {number for number, _ in poll.poll(0 if buffered else timeout * 1000)}
        return (
            [file for file in readers if file.fileno() in ready or file in buffered],
            [file for file in writers if file.fileno() in ready],
            [],
        )


class _Log(logging.LoggerAdapter[logging.Logger]):
    """kazoo's log: its warnings are logged at DEBUG, and the last one is kept in `trouble`.

    Messages of kazoo at DEBUG and below are dropped: they contain passwords and data.
    """

    def __init__(self) -> None:
        super().__init__(_log)
        self.trouble = ""

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        if level <= logging.DEBUG:
            return
        if level == logging.WARNING and args:
            self.trouble = str(msg) % args
        super().log(level if level >= logging.ERROR else logging.DEBUG, msg, *args, **kwargs)


class _Connections(ConnectionHandler):  # type: ignore[misc]
    """kazoo's connection loop, which runs in the thread."""

    client: KazooThread

    _pinged_at = 0.0
    _closed_rounds = 0

    def zk_loop(self) -> None:
        """Run kazoo's loop, which ends with each session, until the client is closed."""
        kazoo = self.client
        while not kazoo.is_stopped():
            try:
                super().zk_loop()
            except Exception:
                _log.exception("internal error in the ZooKeeper connection; reconnecting")
            kazoo.wait_for_the_event_loop()
        self.close()
        kazoo.mailbox.post(kazoo.listener.ended)

    def _connect(self, host: str, address: str, port: int) -> Any:
        try:
            timeouts = super()._connect(host, address, port)
        except ConnectionDropped:
            if self._socket is not None:
                self._closed_rounds += 1
                if self._closed_rounds == _SUSPICIOUS_ROUNDS:
                    _log.warning(
                        "ZooKeeper at %s:%d accepts connections and closes them without an answer. "
                        "Either it has no quorum or too many connections, or its data is older "
                        "than what this process has seen (zxid %#x): was its data directory "
                        "emptied or restored? If so, restart this process",
                        *(host, port, self.client.last_zxid),
                    )
            raise
        self._closed_rounds = 0
        return timeouts

    def _invoke(self, timeout: float, request: Any, xid: int | None = None) -> Any:
        sent_at = clock()
        most_s = self.client.granted_ms / 1000 / _HANDSHAKES_PER_SESSION
        answer = super()._invoke(max(min(timeout, most_s), _LEAST_HANDSHAKE_S), request, xid)
        if isinstance(request, Connect):
            self.client.granted_ms = answer[0].time_out
        self.client.note_response(sent_at)
        return answer

    def _send_ping(self, connect_timeout: float) -> None:
        self._pinged_at = clock()
        super()._send_ping(connect_timeout)

    def _read_socket(self, read_timeout: float) -> Any:
        pinged = self.ping_outstanding.is_set()
        answer = super()._read_socket(read_timeout)
        answered = pinged and not self.ping_outstanding.is_set()
        self.client.note_response(self._pinged_at if answered else 0.0)
        return answer

    def _read_response(self, header: Any, buffer: Any, offset: int) -> Any:
        call = self.client._pending[0][1]
        if call is not None:
            # Before the response is passed on: its receiver may rely on the renewed lease.
            self.client.note_response(call.sent_at)
        return super()._read_response(header, buffer, offset)


class KazooThread(KazooClient):  # type: ignore[misc]
    """Sessions and connections, one after the other. Methods may be called from any thread."""

    def __init__(
        self,
        listener: SessionListener,
        mailbox: Mailbox,
        servers: str,
        session_timeout_ms: int,
        resume: SessionKey | None,
        credentials: str | None,
        tls: ssl.SSLContext | None,
    ) -> None:
        self.log = _Log()
        super().__init__(
            servers,
            timeout=session_timeout_ms / 1000,
            client_id=resume,
            handler=_Handler(mailbox, servers.count(",") + 1, tls),
            auth_data=[("digest", credentials)] if credentials else [],
            connection_retry={
                "max_tries": -1,
                "delay": _FIRST_PAUSE_S,
                "max_delay": min(_LONGEST_PAUSE_S, session_timeout_ms / 4000),
                "max_jitter": 0.4,
            },
            logger=self.log,
        )
        self._connection = _Connections(self, self._conn_retry.copy(), logger=self.log)
        self.listener = listener
        self.mailbox = mailbox
        self.granted_ms = session_timeout_ms
        self.last_response_at = self.lease_renewed_at = clock()
        self._gate = threading.Lock()
        self._open = 0  # The number of the connection that takes requests, 0 for none.
        self._count = 0
        # A resumed session is closed as soon as the client has it.
        self._abandoned = resume is not None
        self._over = threading.Event()

    def submit(self, number: int, request: Any, call: Call) -> bool:
        """Send a request on connection `number`; False if that connection is no longer open."""
        with self._gate:
            if self._open != number:
                return False
            self._call(request, call)
            return True

    def abandon(self, timeout_s: float) -> bool:
        """Close the session at once; return whether the server confirmed in time.

        An unreachable server gets the request when it is reachable, unless the session expires
        before.
        """
        with self._gate:
            if self._state in _ENDS:
                return True
            self._over.clear()
            self._abandoned = True
            self._ask_to_close()
        return self._over.wait(timeout_s)

    def finish(self) -> None:
        """Close the session if a server is reachable, and end the thread in any case."""
        with self._gate:
            self._stopped.set()
            self._ask_to_close()

    def drop(self, number: int | None = None) -> None:
        """Break the connection, if it has that number; kazoo then reconnects."""
        with self._gate:
            if number is None or number == self._open:
                # The plain socket's shutdown: TLS would wait to send its close alert.
                with contextlib.suppress(OSError, TypeError):
                    socket.socket.shutdown(self._connection._socket, socket.SHUT_RDWR)

    def note_response(self, sent_at: float) -> None:
        """Note a message of the server; `sent_at` is the time of its request, 0 if it has none."""
        self.last_response_at = clock()
        self.lease_renewed_at = max(self.lease_renewed_at, sent_at)

    def is_stopped(self) -> bool:
        stopped: bool = self._stopped.is_set()
        return stopped

    def wait_for_the_event_loop(self) -> None:
        """Wait until the event loop runs, since only then can a new session be used; and after a
        pause, unless the session was closed on purpose."""
        if not self._abandoned:
            self._stopped.wait(_PAUSE_S)
        self._abandoned = False
        runs = threading.Event()
        self.mailbox.post(runs.set)
        while not (self.is_stopped() or runs.wait(0.1)):
            pass

    def _ask_to_close(self) -> None:
        self._open = 0
        self._call(CloseInstance, Call(self.mailbox, lambda _value, _failure: None))

    def _session_callback(self, state: str) -> None:
        """Handle a state change of kazoo's connection; kazoo fails its requests in here."""
        if state == self._state:
            return
        if state == KeeperState.CONNECTED:
            super()._session_callback(state)
            self._opened()
            return
        with self._gate:
            self._open = 0
        if state == KeeperState.CONNECTING:
            self.mailbox.post(self.listener.broken)
        else:
            self.mailbox.post(self.listener.lost, state == KeeperState.AUTH_FAILED)
        super()._session_callback(state)
        if state in _ENDS:
            self._over.set()
            if state == KeeperState.EXPIRED_SESSION:
                self._abandoned = False

    def _opened(self) -> None:
        with self._gate:
            if self._abandoned or self.is_stopped():
                self._ask_to_close()
                return
            self._count += 1
            self._open = self._count
        session_key = SessionKey(self._session_id, self._session_passwd)
        self.mailbox.post(
            self.listener.opened, Connection(self._count, session_key, self.granted_ms)
        )
