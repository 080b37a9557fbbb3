"""Listeners, and what all connections of a broker share: buffers, limits and the sweep.

The sweep is the only timer that looks at connections: twice a second it closes connections that
have been idle for too long, that send a request too slowly, or that do not read their responses.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Protocol

from hightide import tcp
from hightide.broker.network.checked_reads import CheckedReads
from hightide.broker.network.connection import (
    CLIENT_ID_CHARACTERS,
    STARTING,
    STARVED,
    STOPPING,
    SWEEP_S,
    Connection,
    Response,
)
from hightide.broker.network.read_ahead import ReadAhead
from hightide.broker.network.turn import Clock, TurnQueue
from hightide.core.events import Event, Severity
from hightide.event_log import record
from hightide.log.disk import DiskFailed
from hightide.log.segment import Slice
from hightide.settings import Broker, Listener
from hightide.wire.errors import WireError
from hightide.wire.frame import RequestHeader, decode_request_header
from hightide.wire.messages import APIS

log = logging.getLogger(__name__)

_SCRATCH_BYTES = 256 * 1024
_SEND_BYTES = 1024 * 1024
_SPARES = 8
_SPARE_BYTES = 4 * 1024 * 1024
_SHORT_BYTES = 16 * 1024
_STOP_S = 5.0


class Serve(Protocol):
    """Serves one request; returns the response, or None if it comes later or not at all."""

    def __call__(
        self, connection: Connection, buf: bytearray, view: memoryview, start: int, end: int
    ) -> Response | None: ...


class Server:
    """Accepts connections and owns what they share.

    Settings that can change while the broker runs are read when they are needed.
    """

    def __init__(
        self,
        settings: Callable[[], Broker],
        serve: Serve,
        after_responses: Callable[[], None],
        listen: Callable[[str, int, int], socket.socket] | None = None,
        clock: Clock = time.perf_counter,
        cpu_clock: Clock = time.thread_time,
    ) -> None:
        self.serve = serve
        self.after_responses = after_responses
        self.frame_limit = settings().socket_request_max_bytes
        self.memory_limit = settings().queued_max_request_bytes
        self.scratch = bytearray(_SCRATCH_BYTES)
        self.scratch_view = memoryview(self.scratch)
        self.receive_view = self.scratch_view
        """Where a connection without an own buffer receives; short while memory is short."""
        self.send_view = memoryview(bytearray(_SEND_BYTES))
        self.read_ahead = ReadAhead()
        self.on_read_failure: Callable[[str, DiskFailed], None] = lambda _path, _failure: None
        """Called with the path of a file that cannot be read."""
        self.checked_reads = CheckedReads()
        self.starved: deque[Connection] = deque()
        self.clock = clock
        self.turns = TurnQueue(clock, cpu_clock)
        self._settings = settings
        self._listen = listen or listening_socket
        # In the order of their arrival; the sweep looks at all of them.
        self._connections: dict[Connection, None] = {}
        self._per_ip: Counter[str] = Counter()
        self.per_listener: Counter[str] = Counter()
        """The open connections of each listener."""
        self.accepted = 0
        self.refused = 0
        """Connections above a limit."""
        self._new_this_second = 0
        self._second = 0
        self._request_bytes = 0
        self._held_bytes = 0
        self._favoured: Connection | None = None
        self._spares: list[bytearray] = []
        self._bound: list[tuple[str, socket.socket]] = []
        self._backlog = 0
        self._servers: list[asyncio.Server] = []
        self._sweeper: asyncio.TimerHandle | None = None

    # -- starting and stopping -------------------------------------------------------------

    def bind(self, listeners: Sequence[Listener], backlog: int) -> list[tuple[str, int]]:
        """Bind the listeners; return the bound addresses in the same order.

        Clients that connect from now on are served as soon as the server is started.
        """
        for listener in listeners:
            self._bound.append((listener.name, self._listen(listener.host, listener.port, backlog)))
        self._backlog = backlog
        return [sock.getsockname()[:2] for _, sock in self._bound]

    async def start(self) -> None:
        """Accept connections."""
        loop = asyncio.get_running_loop()
        self.now = loop.time
        self.call_soon = loop.call_soon
        self._loop = loop
        while self._bound:
            name, sock = self._bound.pop(0)
            server = await loop.create_server(
                partial(Connection, self, name), sock=sock, backlog=self._backlog
            )
            self._servers.append(server)
        self._sweeper = loop.call_later(SWEEP_S, self._sweep)

    def serve_early(self) -> None:
        """Serve the requests that came before the broker was ready."""
        for connection in list(self._connections):
            connection.unblock(STARTING)

    def stop_reading(self) -> None:
        """Accept no more connections and no more requests."""
        for _, sock in self._bound:
            sock.close()
        for server in self._servers:
            server.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in self._connections:
            connection.block(STOPPING)

    async def stop(self) -> None:
        """Send the responses that are ready, then close."""
        deadline = self.now() + _STOP_S
        for connection in list(self._connections):
            if not connection.is_waiting:
                connection.close("the broker stops", logging.DEBUG)
        # Responses leave as fast as clients read them. There is no signal for that, so poll.
        while any(c.is_waiting for c in self._connections) and self.now() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        for connection in list(self._connections):
            connection.close("the broker stops", logging.DEBUG)
        while self._connections and self.now() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    # -- connections -----------------------------------------------------------------------

    def admit(self, connection: Connection) -> bool:
        """Register a new connection; return False if there are too many."""
        why = self._too_many(connection.client_address)
        if why is not None:
            log.warning("refusing a connection from %s: %s", connection.client_address, why)
            self.refused += 1
            return False
        self.accepted += 1
        connection.number, connection.accepted_s = self.accepted, self.now()
        self.per_listener[connection.listener] += 1
        self._connections[connection] = None
        self._per_ip[connection.client_address] += 1
        return True

    def _too_many(self, address: str) -> str | None:
        settings = self._settings()
        if len(self._connections) >= settings.max_connections:
            return f"{settings.max_connections} connections are open"
        if address.startswith("127.") or address == "::1":
            return None  # clients on the same host are not limited
        if self._per_ip[address] >= settings.max_connections_per_ip:
            return f"{settings.max_connections_per_ip} connections are open from that address"
        second = int(self.now())
        if second != self._second:
            self._second, self._new_this_second = second, 0
        self._new_this_second += 1
        if self._new_this_second > settings.max_connection_creation_rate:
            return f"more than {settings.max_connection_creation_rate} new connections in a second"
        return None

    @property
    def connections(self) -> Iterable[Connection]:
        """The open connections, in the order of their numbers."""
        return self._connections

    def forget(self, connection: Connection) -> None:
        if connection in self._connections:
            del self._connections[connection]
            self.per_listener[connection.listener] -= 1
            address = connection.client_address
            self._per_ip[address] -= 1
            if not self._per_ip[address]:
                del self._per_ip[address]

    def _sweep(self) -> None:
        now = self.now()
        settings = self._settings()
        idle_ms = settings.connections_max_idle_ms
        frame_s = settings.request_receive_timeout_ms / 1000
        stuck_s = settings.response_send_timeout_ms / 1000
        most_checks = idle_ms / 1000 / SWEEP_S if idle_ms >= 0 else float("inf")
        for connection in list(self._connections):
            connection.idle_checks += 1
            if connection.is_waiting:
                stuck = connection.stuck_since
                if stuck is not None and now - stuck > stuck_s:
                    connection.abort(f"its responses were not read for {stuck_s:g} s")
            elif connection.idle_checks > most_checks:
                connection.close("idle", logging.DEBUG)
            since = connection.frame_since
            if since is not None and now - since > frame_s and not connection.is_blocked:
                connection.close(f"its request did not arrive within {frame_s:g} s")
        self._drop_unsent(settings.queued_max_response_bytes)
        self._sweeper = self._loop.call_later(SWEEP_S, self._sweep)

    def _drop_unsent(self, limit: int) -> None:
        """If unsent responses take too much memory, close the connections that wait for longest."""
        stuck = [
            (connection.stuck_since, at, connection, connection.unsent_bytes)
            for at, connection in enumerate(self._connections)
            if connection.stuck_since is not None and not connection.is_closed
        ]
        excess = sum(unsent for _, _, _, unsent in stuck) - limit
        if limit < 0 or excess <= 0:
            return
        for _, _, connection, unsent in sorted(stuck):
            connection.abort(f"it does not read {unsent} bytes of responses, and memory is short")
            excess -= unsent
            if excess <= 0:
                return

    # -- memory ----------------------------------------------------------------------------

    def may_grow(self, connection: Connection) -> bool:
        """Whether a connection may take a larger buffer; if not, it is unblocked when it may.

        When memory is short, one connection at a time may still grow.  If none could, connections
        that hold half a request each would wait for one another for ever.  Whole requests that wait
        for the pool end by themselves, so none may grow meanwhile.
        """
        if self.is_short_of_memory and self._favoured is not connection:
            if self._favoured is not None or self._held_bytes:
                self.starved.append(connection)
                return False
            self._favoured = connection
        return True

    def hold(self, size: int) -> None:
        """Count a whole request that is kept outside of its connection's buffer."""
        self._held_bytes += size
        self._taken(size)

    def release(self, size: int) -> None:
        """A request that was held is decoded."""
        self._held_bytes -= size
        self._taken(-size)
        self._wake_starved()

    def has_grown(self, connection: Connection) -> None:
        """Release a connection's request buffer, and let the next one grow."""
        if self._favoured is connection:
            self._favoured = None
        self._wake_starved()

    def _wake_starved(self) -> None:
        while self.starved and (
            not self.is_short_of_memory or (self._favoured is None and not self._held_bytes)
        ):
            self.starved.popleft().unblock(STARVED)

    @property
    def is_short_of_memory(self) -> bool:
        return 0 <= self.memory_limit < self._request_bytes

    def _taken(self, size: int) -> None:
        self._request_bytes += size
        # A connection has received bytes before their memory is counted, so each may exceed the
        # limit by what it receives at once.
        is_short = self.is_short_of_memory
        self.receive_view = self.scratch_view[:_SHORT_BYTES] if is_short else self.scratch_view

    def buffer(self, need: int, capacity: int) -> bytearray:
        """Get a buffer for a frame of `need` bytes: a spare one, else one of `capacity` bytes."""
        for at, spare in enumerate(self._spares):
            if need <= len(spare):
                self._taken(len(spare))
                return self._spares.pop(at)
        self._taken(capacity)
        return bytearray(capacity)

    def recycle(self, buffer: bytearray) -> None:
        """Return a buffer; a few large ones are kept for streams of large requests."""
        size = len(buffer)
        self._taken(-size)
        if _SCRATCH_BYTES <= size <= _SPARE_BYTES and len(self._spares) < _SPARES:
            self._spares.append(buffer)

    # -- long turns ------------------------------------------------------------------------

    def stalled(self, connection: Connection, buf: bytearray, start: int, took_s: float) -> None:
        """Log a request that kept the event loop for too long."""
        frame = memoryview(buf)[start:]
        try:
            header, _ = decode_request_header(frame)
        except WireError:
            return
        log_stall(connection.client_address, header, took_s)

    # -- cold reads ------------------------------------------------------------------------

    def read_in_thread(self, connection: Connection, part: Slice, length: int) -> None:
        """Read bytes that are not in the page cache, without blocking the event loop."""
        self.read_ahead.begin(part.file, part.position + length)
        future = self._loop.run_in_executor(None, part.file.read, part.position, length)

        def done(read: asyncio.Future[bytes]) -> None:
            error = read.exception()
            if error is None:
                connection.chunk_read(part, read.result())
            elif isinstance(error, DiskFailed):
                connection.read_failed(part, error)
            else:
                raise error

        future.add_done_callback(done)


@dataclass(frozen=True, slots=True)
class SlowRequest(Event):
    """A request kept the event loop, and with it all other clients."""

    severity: ClassVar[Severity] = Severity.WARNING
    api: str
    version: int
    client_id: str
    client: str
    took_ms: int

    def __str__(self) -> str:
        return (
            f"{self.api} version {self.version} of client {self.client_id!r} at {self.client} kept"
            f" the event loop for {self.took_ms} ms"
        )


def log_stall(address: str, header: RequestHeader, took_s: float) -> None:
    """Log which request of which client kept the event loop."""
    name = APIS[header.api_key][0] if header.api_key in APIS else f"API key {header.api_key}"
    client_id = (header.client_id or "")[:CLIENT_ID_CHARACTERS]
    record(log, SlowRequest(name, header.api_version, client_id, address, int(took_s * 1000)))


def listening_socket(host: str, port: int, backlog: int) -> socket.socket:
    """Open a socket that accepts connections."""
    # Without IPPROTO_TCP asyncio leaves Nagle's algorithm on for accepted sockets.
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        tcp.listen_options(sock)
        sock.bind((host, port))
        sock.listen(backlog)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise OSError(error.errno, f"cannot listen on {host}:{port}: {error.strerror}") from None
    return sock
