"""A network in memory: connections that behave like TCP, between processes that may be cut off.

Bytes of a connection stay in order and are never lost: while a link is cut they wait, and arrive
some time after it heals.  A link is a direction from one process to another, so it can also be cut
one way only.  Like a kernel, the network accepts connections to a paused process, refuses them
where no process listens, resets those of a killed process, and does not respond for a machine
without power.

Neither bandwidth nor packets are simulated.  But one write may be read in pieces, and a writer
whose reader does not read is blocked.
"""

from __future__ import annotations

import asyncio
import errno
import os
import zlib
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Any

from tests.simulation.shipped.loop import Process, SimLoop, World

_WINDOW_BYTES = 128 * 1024  # in flight or unread, in one direction
_HIGH_WATER_BYTES = 64 * 1024  # asyncio's default
_FIRST_PORT = 40_000
_PIECES = 0.05  # how often a read returns only a part of the bytes
_READ_BYTES = 256 * 1024
_UNREACHABLE_S = 3.0

FIN, RST = object(), object()


class Link:
    """One direction between two processes."""

    def __init__(self) -> None:
        self.is_cut = False
        self.delay_s = 0.0
        self.held: dict[Pipe, None] = {}


class Network:
    """All links, listeners and connections."""

    def __init__(self, world: World) -> None:
        world.network = self
        self.world = world
        self.loss = 0.0
        """The probability of a retransmission, which takes a while."""
        self._links: dict[tuple[str, str], Link] = {}
        self._listening: dict[tuple[str, int], Listening] = {}
        self._ends: dict[SimLoop, dict[End, None]] = {}
        self._ports = count(_FIRST_PORT)

    def link(self, source: str, target: str) -> Link:
        return self._links.setdefault((source, target), Link())

    # -- faults ----------------------------------------------------------------------------

    def cut(self, source: str, target: str) -> None:
        """Cut this direction, also for bytes in flight."""
        if source != target:
            self.link(source, target).is_cut = True

    def slow_down(self, source: str, target: str, delay_s: float) -> None:
        self.link(source, target).delay_s = delay_s

    def heal(self) -> None:
        """Heal the link; waiting bytes are sent again when the sender's timer expires."""
        self.loss = 0.0
        for link in self._links.values():
            link.is_cut, link.delay_s = False, 0.0
            held, link.held = link.held, {}
            for pipe in held:
                self.world.at(self.world.random.uniform(0.0, 0.3), pipe.arrive)

    def reset(self, one: str, other: str) -> None:
        """A middlebox forgets their connections: both sides get a reset."""
        for end in self._ends_between(one, other):
            end.pipe.put(RST)
            end.received(RST)

    def _ends_between(self, one: str, other: str) -> list[End]:
        process = self.world.processes[one]
        ends = self._ends.get(process.loop, {}) if process.loop is not None else {}
        return [end for end in ends if end.peer.process.name == other]

    # -- connections -----------------------------------------------------------------------

    def listen(self, process: Process, port: int) -> Listening:
        """Open a listening socket; the kernel accepts connections from now on."""
        assert process.loop is not None
        address = (process.name, port or next(self._ports))
        if address in self._listening:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        found = self._listening[address] = Listening(self, process.loop, address)
        return found

    def serve(self, loop: SimLoop, factory: Callable[[], Any], listening: Listening) -> SimServer:
        assert loop is listening.loop
        listening.begin(factory)
        return SimServer(listening)

    async def connect(
        self, loop: SimLoop, factory: Callable[[], Any], host: str, port: int
    ) -> tuple[Any, Any]:
        connected = loop.create_future()
        there = self.world.processes.get(host)
        if there is None:
            raise OSError(errno.EHOSTUNREACH, os.strerror(errno.EHOSTUNREACH))
        local = (loop.process.name, next(self._ports))
        client = End(self, loop, local, (host, port))
        server = End(self, None, (host, port), local, there)
        client.peer, server.peer = server, client
        client.begin(server, connected)
        await connected
        protocol = factory()
        transport = client.open(protocol)
        return transport, protocol

    def syn_arrived(self, server: End) -> None:
        """A process connects to `server`."""
        listening = self._listening.get(server.local)
        if not server.process.has_power:
            # After a while, the next router reports that the address is unreachable.
            self.world.at(_UNREACHABLE_S, server.pipe.put, RST)
            return
        if listening is None:
            server.pipe.put(RST)
            return
        server.belongs_to(listening.loop)
        server.is_established = True
        server.pipe.put(None)
        listening.connected(server)

    def ends_of(self, loop: SimLoop) -> dict[End, None]:
        return self._ends.setdefault(loop, {})

    def closed(self, listening: Listening) -> None:
        if self._listening.get(listening.address) is listening:
            del self._listening[listening.address]

    def process_ended(self, loop: SimLoop, *, silently: bool) -> None:
        """Close the sockets of a dead process, as a kernel does."""
        for listening in [
            listening for listening in self._listening.values() if listening.loop is loop
        ]:
            self.closed(listening)
        for end in list(self._ends.pop(loop, {})):
            end.is_gone = True
            if not silently:
                end.pipe.put(RST if end.unread else FIN)


class Listening:
    """A listening socket, with the methods that a server uses."""

    def __init__(self, network: Network, loop: SimLoop, address: tuple[str, int]) -> None:
        self._network = network
        self.loop = loop
        self.address = address
        self._factory: Callable[[], Any] | None = None
        self._waiting: list[End] = []

    def getsockname(self) -> tuple[str, int]:
        return self.address

    def fileno(self) -> int:
        return -1

    def begin(self, factory: Callable[[], Any]) -> None:
        self._factory = factory
        waiting, self._waiting = self._waiting, []
        for end in waiting:
            self.connected(end)

    def connected(self, end: End) -> None:
        if self._factory is None:
            self._waiting.append(end)
        else:
            self.loop.arrived(self._accept, end)

    def _accept(self, end: End) -> None:
        if not end.is_gone and self._factory is not None:
            end.open(self._factory())

    def close(self) -> None:
        self._network.closed(self)
        for end in self._waiting:
            end.drop()
        self._waiting.clear()


class SimServer:
    """What create_server returns."""

    def __init__(self, listening: Listening) -> None:
        self._listening = listening

    @property
    def sockets(self) -> tuple[Listening, ...]:
        return (self._listening,)

    def close(self) -> None:
        self._listening.close()

    async def wait_closed(self) -> None:
        return


class Pipe:
    """The bytes in flight from one end of a connection to the other."""

    def __init__(self, network: Network, source: str, target: End) -> None:
        self._network = network
        self._world = network.world
        self._link = network.link(source, target.process.name)
        self._target = target
        self._in_flight: deque[tuple[float, Any]] = deque()
        self._last = 0.0

    def put(self, what: Any) -> None:
        random, network = self._world.random, self._network
        delay_s = 0.0001 + random.expovariate(2000) + self._link.delay_s
        if network.loss and random.random() < network.loss:
            delay_s += random.uniform(0.2, 0.6)
        at = self._last = max(self._world.now + delay_s, self._last)
        self._in_flight.append((at, what))
        self._world.schedule(at, None, (self.arrive, ()), 0)

    def arrive(self) -> None:
        if self._link.is_cut:
            self._link.held[self] = None
            return
        in_flight, now = self._in_flight, self._world.now
        while in_flight and in_flight[0][0] <= now:
            self._target.received(in_flight.popleft()[1])


class End:
    """One end of a connection, as the kernel sees it."""

    def __init__(
        self,
        network: Network,
        loop: SimLoop | None,
        local: tuple[str, int],
        remote: tuple[str, int],
        process: Process | None = None,
    ) -> None:
        self.network = network
        self.local, self.remote = local, remote
        self.peer: End = self
        self.is_gone = False
        """Closed on this side, or its process is dead: nothing is received any more."""
        self.is_established = False
        self.unread: deque[memoryview] = deque()
        self.unread_bytes = 0
        self.ended: object | None = None
        """FIN or RST, after it was received."""
        self.transport: SimTransport | None = None
        self._connected: asyncio.Future[None] | None = None
        if loop is not None:
            self.process = loop.process
            self.belongs_to(loop)
        else:
            assert process is not None
            self.process = process

    def belongs_to(self, loop: SimLoop) -> None:
        self.loop = loop
        self.network.ends_of(loop)[self] = None

    @property
    def pipe(self) -> Pipe:
        found: Pipe | None = self.__dict__.get("_pipe")
        if found is None:
            found = self._pipe = Pipe(self.network, self.process.name, self.peer)
        return found

    # -- opening ---------------------------------------------------------------------------

    def begin(self, server: End, connected: asyncio.Future[None]) -> None:
        """Open the connection."""
        self._connected = connected
        self.pipe.put(self.network.syn_arrived)

    def open(self, protocol: Any) -> SimTransport:
        transport = self.transport = SimTransport(self, protocol)
        protocol.connection_made(transport)
        transport.look()
        return transport

    # -- events of the network -------------------------------------------------------------

    def received(self, what: Any) -> None:
        if callable(what):
            what(self)
        elif self.is_gone:
            # The process is gone; a machine without power does not respond at all.
            if what is not RST and self.process.has_power:
                self.pipe.put(RST)
        elif not self.is_established:
            self._answered(what)
        elif what is RST or what is FIN:
            self.ended = what
            self._tell()
        else:
            world = self.network.world
            world.fingerprint = zlib.crc32(what, world.fingerprint)
            self.unread.append(memoryview(what))
            self.unread_bytes += len(what)
            self._tell()

    def _answered(self, what: Any) -> None:
        connected = self._connected
        if connected is None:
            return  # the client gave up before the connection was refused
        self.is_established = what is None
        if what is None:
            self.loop.arrived(self._established, connected)
        else:
            self.loop.arrived(self._refused, connected)
            self.forget()

    def _established(self, connected: asyncio.Future[None]) -> None:
        if connected.done():
            self.drop()  # nothing waits for it
        else:
            connected.set_result(None)

    def _refused(self, connected: asyncio.Future[None]) -> None:
        if not connected.done():
            connected.set_exception(
                ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
            )

    def _tell(self) -> None:
        if self.transport is not None:
            self.transport.look()

    # -- closing ---------------------------------------------------------------------------

    def drop(self) -> None:
        """Close at once; the other side gets a reset."""
        if not self.is_gone:
            self.pipe.put(RST)
            self.forget()

    def forget(self) -> None:
        self.is_gone = True
        self.unread.clear()
        self.network.ends_of(self.loop).pop(self, None)

    def take(self, most: int) -> list[memoryview]:
        """Return at most so many of the received bytes."""
        parts: list[memoryview] = []
        while most and self.unread:
            part = self.unread.popleft()
            if len(part) > most:
                self.unread.appendleft(part[most:])
                part = part[:most]
            most -= len(part)
            self.unread_bytes -= len(part)
            parts.append(part)
        return parts


class SimTransport(asyncio.Transport):
    """An end of a connection, as a transport of asyncio."""

    def __init__(self, end: End, protocol: Any) -> None:
        super().__init__({"peername": end.remote, "sockname": end.local})
        self._end = end
        self._loop = end.loop
        self._random = end.network.world.random
        self._protocol = protocol
        self._unsent: deque[bytes] = deque()
        self._unsent_bytes = 0
        self._sent_unread = 0
        self._high, self._low = _HIGH_WATER_BYTES, _HIGH_WATER_BYTES // 4
        self._is_reading, self._looks = True, False
        self._is_closing = self._is_over = self._holds_up = False

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol

    def get_protocol(self) -> Any:
        return self._protocol

    # -- reading ---------------------------------------------------------------------------

    def is_reading(self) -> bool:
        return self._is_reading and not self._is_closing

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        self._is_reading = True
        self.look()

    def look(self) -> None:
        """Read if there are bytes."""
        if not self._looks and (self._end.unread or self._end.ended is not None):
            self._looks = True
            self._loop.arrived(self._read)

    def _read(self) -> None:
        self._looks = False
        end = self._end
        if self._is_over or (end.ended is not RST and not self.is_reading()):
            return
        if end.ended is RST:
            self._lose(ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)))
        elif end.unread:
            self._hand_over()
            self.look()
        elif end.ended is FIN and not self._protocol.eof_received():
            self.close()

    def _hand_over(self) -> None:
        """One read from the socket."""
        end, protocol = self._end, self._protocol
        most = min(end.unread_bytes, _READ_BYTES)
        if self._random.random() < _PIECES:
            most = self._random.randint(1, most)
        if isinstance(protocol, asyncio.BufferedProtocol):
            buffer = memoryview(protocol.get_buffer(-1))
            filled = 0
            for part in end.take(min(most, len(buffer))):
                buffer[filled : filled + len(part)] = part
                filled += len(part)
            self._taken(filled)
            protocol.buffer_updated(filled)
        else:
            data = b"".join(end.take(most))
            self._taken(len(data))
            protocol.data_received(data)

    def _taken(self, count: int) -> None:
        """Allow the other side to send so many more bytes."""
        other = self._end.peer.transport
        if other is not None:
            other.was_read(count)

    # -- writing ---------------------------------------------------------------------------

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = _HIGH_WATER_BYTES if low is None else 4 * low
        self._high, self._low = high, high // 4 if low is None else low

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def get_write_buffer_size(self) -> int:
        return self._unsent_bytes

    def can_write_eof(self) -> bool:
        return False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        # A machine may lose its power in the middle of a callback.
        if not data or self._is_over or self._is_closing or self._loop.is_dead:
            return
        self._unsent.append(bytes(data))
        self._unsent_bytes += len(data)
        self._send()
        if self._unsent_bytes > self._high and not self._holds_up:
            self._holds_up = True
            self._protocol.pause_writing()

    def _send(self) -> None:
        while self._unsent and self._sent_unread < _WINDOW_BYTES:
            data = self._unsent.popleft()
            room = _WINDOW_BYTES - self._sent_unread
            if len(data) > room:
                self._unsent.appendleft(data[room:])
                data = data[:room]
            self._unsent_bytes -= len(data)
            self._sent_unread += len(data)
            self._end.pipe.put(data)

    def was_read(self, count: int) -> None:
        self._sent_unread -= count
        if self._unsent:
            self._loop.arrived(self._go_on)

    def _go_on(self) -> None:
        if self._is_over:
            return
        self._send()
        if self._holds_up and self._unsent_bytes <= self._low:
            self._holds_up = False
            self._protocol.resume_writing()
        if self._is_closing and not self._unsent:
            self._finish()

    # -- closing ---------------------------------------------------------------------------

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        if not self._is_closing and not self._loop.is_dead:
            self._is_closing = True
            if not self._unsent:
                self._finish()

    def _finish(self) -> None:
        if not self._is_over:
            # Closing with bytes unread resets the connection, as a kernel does.
            self._end.pipe.put(RST if self._end.unread else FIN)
            self._lose(None)

    def abort(self) -> None:
        if not self._is_over and not self._loop.is_dead:
            self._is_closing = True
            self._end.pipe.put(RST)
            self._lose(None)

    def _lose(self, error: Exception | None) -> None:
        self._is_closing = self._is_over = True
        self._unsent.clear()
        self._unsent_bytes = 0
        self._end.forget()
        self._loop.call_soon(self._protocol.connection_lost, error)
