"""The thread under a coordination client: kazoo, held to the promises of `interface`.

kazoo keeps one connection after another to one server or another, for one session after another,
in a thread of its own. This module is all that runs in that thread, or touches what it owns:

- What the server says, and how the connection fares, goes to the event loop as letters in one
  queue, hence in the order in which it happened.
- A request enters kazoo's queue only through the gate, for a connection that its caller knows and
  that still stands. kazoo empties its queue when a connection ends; the gate shuts before it does.
  So a request never waits for a server, and never runs in another connection or session.
- The lease begins anew whenever the server answers, at the time of the question and not of the
  answer: only then is it certain that the server began to count no earlier.
- A thread that ends by a fault, or because the session was given up, begins again.
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
from typing import Any, NamedTuple, Protocol

from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionDropped
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.connection import ConnectionHandler
from kazoo.protocol.serialization import CloseInstance, Connect
from kazoo.protocol.states import EventType, KeeperState

_log = logging.getLogger(__name__)

# The pauses between attempts double from the first to the longest, ± 40 %. kazoo's own would grow
# to an hour; ours leave time to come back to a server that gives a session its full time again.
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 2.0
_PAUSE_S = 1.0
# kazoo allows a server its share of the session's timeout to answer at first, however short that
# is; and all of it if there is only one. But ZooKeeper may never answer somebody whom it accepted
# while it was starting, so there must be time to ask again.
_LEAST_HANDSHAKE_S = 1.0
_HANDSHAKES_PER_SESSION = 3
_SUSPICIOUS_ROUNDS = 5

_ENDS = (KeeperState.EXPIRED_SESSION, KeeperState.AUTH_FAILED, KeeperState.CLOSED)


_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def clock() -> float:
    """Seconds that go on while this machine sleeps, as the server's do."""
    return time.clock_gettime(_CLOCK)


class SessionKey(NamedTuple):
    """What it takes to come back to a session."""

    session_id: int
    password: bytes

    def __repr__(self) -> str:
        return f"SessionKey({self.session_id:#x})"


class Connection(NamedTuple):
    """A connection that stands, its number, and the session that it serves."""

    number: int
    session_key: SessionKey
    timeout_ms: int


class SessionListener(Protocol):
    """Who gets the letters, on the event loop."""

    def opened(self, connection: Connection) -> None: ...
    def broken(self) -> None: ...
    def lost(self, auth_failed: bool) -> None: ...
    def ended(self) -> None: ...


class Mailbox:
    """Letters to the event loop, in order; one wake-up serves all that were posted meanwhile."""

    __slots__ = ("_called", "_letters", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._letters: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._called = False

    def post(self, function: Callable[..., None], *arguments: Any) -> None:
        """Have `function` called on the loop. A loop that is closed gets no letters."""
        self._letters.append((function, arguments))
        if not self._called:
            self._called = True
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        # Before the letters are taken: who posts from here on calls again.
        self._called = False
        for _ in range(len(self._letters)):
            function, arguments = self._letters.popleft()
            function(*arguments)


class Call:
    """A request under way. kazoo calls `set` or `set_exception`, in the connection's thread."""

    __slots__ = ("_answered", "_mailbox", "asked_at")

    def __init__(self, mailbox: Mailbox, answered: Callable[[Any, Exception | None], None]) -> None:
        self._mailbox = mailbox
        self._answered = answered
        self.asked_at = clock()

    def set(self, value: Any = None) -> None:
        self._mailbox.post(self._answered, value, None)

    def set_exception(self, failure: Exception) -> None:
        self._mailbox.post(self._answered, None, failure)


class WakeupPipe:
    """Both ends of the pipe on which kazoo wants a byte per request, with one byte for all.

    A real pair of sockets is full after a few hundred bytes, and would then hold up the event
    loop while it holds the gate that the connection's thread may need to go on.
    """

    def __init__(self) -> None:
        self._inside, self._outside = socket.socketpair()
        self._lock = threading.Lock()
        self._rings = 0

    def fileno(self) -> int:
        return self._inside.fileno()

    def send(self, ring: bytes) -> None:
        with self._lock:
            self._rings += 1
            if self._rings == 1:
                self._outside.send(ring)

    def recv(self, count: int) -> None:
        with self._lock:
            self._rings -= 1
            if self._rings == 0:
                self._inside.recv(count)

    def close(self) -> None:
        self._inside.close()
        self._outside.close()


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """How kazoo waits and calls back: no workers, straight to the mailbox."""

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
        bell = WakeupPipe()
        return bell, bell

    def create_connection(
        self, *, address: tuple[str, int], hostname: str, timeout: float, **_: object
    ) -> socket.socket:
        # A machine that is gone must leave time to try the others before the session is over.
        timeout_s = max(timeout / self._server_count, _LEAST_HANDSHAKE_S)
        connection = socket.create_connection(address, timeout_s)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._tls is None:
            return connection
        return self._tls.wrap_socket(connection, server_hostname=hostname)

    def dispatch_callback(self, callback: Any) -> None:
        (event,) = callback.args
        # kazoo tells every watch when the connection ends; we promise silence from then on.
        if event.type != EventType.NONE:
            self._mailbox.post(callback.func, event.type, event.path)

    def select(
        self, readers: Sequence[Any], writers: Sequence[Any], _: object, timeout: float
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """One system call, whatever the file's number; and TLS may hold what poll cannot see."""
        poll = select.poll()
        for reader in readers:
            poll.register(reader, select.POLLIN)
        for writer in writers:
            poll.register(writer, select.POLLOUT)
        held = [each for each in readers if hasattr(each, "pending") and each.pending()]
        ready = {number for number, _ in poll.poll(0 if held else timeout * 1000)}
        return (
            [each for each in readers if each.fileno() in ready or each in held],
            [each for each in writers if each.fileno() in ready],
            [],
        )


class _Log(logging.LoggerAdapter[logging.Logger]):
    """kazoo's log: its reports of trouble are details to us, and the last of them is kept.

    What it logs at DEBUG and below is dropped, since passwords and data are in it.
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
    """kazoo's thread, and what it reads from the socket."""

    client: KazooThread

    _pinged_at = 0.0
    _closed_rounds = 0

    def zk_loop(self) -> None:
        """kazoo's own loop, which ends when a session is closed, again until all is closed."""
        kazoo = self.client
        while not kazoo.is_stopped():
            try:
                super().zk_loop()
            except Exception:
                _log.exception("the connection to the coordinator failed by a fault of ours")
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
                        "the coordinator %s:%d accepts connections and closes them unanswered. "
                        "Either it has no quorum or too many connections, or its data is older "
                        "than what this process has seen (zxid %#x): was its data folder emptied "
                        "or restored? If so, restart this process",
                        *(host, port, self.client.last_zxid),
                    )
            raise
        self._closed_rounds = 0
        return timeouts

    def _invoke(self, timeout: float, request: Any, xid: int | None = None) -> Any:
        asked_at = clock()
        most_s = self.client.granted_ms / 1000 / _HANDSHAKES_PER_SESSION
        answer = super()._invoke(max(min(timeout, most_s), _LEAST_HANDSHAKE_S), request, xid)
        if isinstance(request, Connect):
            self.client.granted_ms = answer[0].time_out
        self.client.note_response(asked_at)
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
            # Before the answer is handed on: who has it may count on the lease that it renewed.
            self.client.note_response(call.asked_at)
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
        # A session that is resumed is closed as soon as it is ours.
        self._abandoned = resume is not None
        self._over = threading.Event()

    def submit(self, number: int, request: Any, call: Call) -> bool:
        """Send a request over connection `number`; False if that is not the one any more."""
        with self._gate:
            if self._open != number:
                return False
            self._call(request, call)
            return True

    def abandon(self, timeout_s: float) -> bool:
        """End the session at once; True if the server has confirmed it in time.

        A server that cannot be reached is told when it can be, unless the session expires before.
        """
        with self._gate:
            if self._state in _ENDS:
                return True
            self._over.clear()
            self._abandoned = True
            self._ask_to_close()
        return self._over.wait(timeout_s)

    def finish(self) -> None:
        """End the session if it can be reached, and the thread in any case, soon."""
        with self._gate:
            self._stopped.set()
            self._ask_to_close()

    def drop(self, number: int | None = None) -> None:
        """Break the connection, if it is that number; what follows is kazoo's to do."""
        with self._gate:
            if number is None or number == self._open:
                # The bare socket's: TLS would say good-bye to one who does not listen.
                with contextlib.suppress(OSError, TypeError):
                    socket.socket.shutdown(self._connection._socket, socket.SHUT_RDWR)

    def note_response(self, asked_at: float) -> None:
        """The server said something: the answer to what was asked then, or 0 if to nothing."""
        self.last_response_at = clock()
        self.lease_renewed_at = max(self.lease_renewed_at, asked_at)

    def is_stopped(self) -> bool:
        stopped: bool = self._stopped.is_set()
        return stopped

    def wait_for_the_event_loop(self) -> None:
        """A session is over. The next one begins when there is somebody to use it; and after a
        pause, unless the end was wished for."""
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
        """kazoo's connection is about to be in another state; it fails its requests in here."""
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
