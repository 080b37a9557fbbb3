"""Virtual time, processes that can stop and die, and a network between them.

Everything that happens is a call on a heap, ordered by virtual time and then by a serial number.
All randomness comes from one seeded Random, nothing here iterates over a set, and no thread exists:
equal seeds give equal histories, also in other processes.

Each start of a process is an incarnation.  Calls scheduled for a dead incarnation never happen.
Calls that come due while a process is paused happen when it resumes, as in a real process that was
stopped.  Each process has a clock, which may be wrong, run fast or slow, and jump.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from math import log
from random import Random
from typing import Any

Reply = Callable[[Any], None]
"""Called with the response, or with None after a timeout."""

_TRACE = 400


class World:
    """The clock, the random generator and the history."""

    def __init__(self, seed: int, told: Callable[[str], None] | None = None) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.now_ms = 0
        self.events = 0
        self.processes: dict[str, Process] = {}
        self.network = Network(self)
        self.story: deque[str] = deque(maxlen=_TRACE)
        self._told = told
        self._digest = hashlib.blake2b(digest_size=16)
        self._heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._serial = 0

    def at(self, delay_ms: int, function: Callable[..., None], *arguments: Any) -> None:
        self._serial += 1
        heappush(self._heap, (self.now_ms + delay_ms, self._serial, function, arguments))

    def run(self, until_ms: int) -> None:
        heap = self._heap
        while heap and heap[0][0] <= until_ms:
            self.now_ms, _, function, arguments = heappop(heap)
            self.events += 1
            function(*arguments)
        self.now_ms = until_ms

    def tell(self, text: str) -> None:
        line = f"{self.now_ms:>7} {text}"
        self.story.append(line)
        self._digest.update(line.encode())
        if self._told is not None:
            self._told(line)

    def digest(self) -> str:
        """Return a digest of the history and of all random choices; equal for equal seeds."""
        end = self._digest.copy()
        end.update(repr((self.events, self.random.getstate())).encode())
        return end.hexdigest()


class Process:
    """A process that can crash, pause and restart."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.is_up = False
        self.is_paused = False
        self.incarnation = 0
        self.clock_percent = 100
        """The rate of its clock and of its timers."""
        self.clock_offset_ms = 0
        self._missed: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        world.processes[name] = self

    # -- for subclasses

    def begin(self) -> None:
        """A new incarnation starts, with nothing in memory."""

    def asked(self, sender: str, request: Any, answer: Reply) -> None:
        """A request has arrived."""

    def told(self, sender: str, message: Any) -> None:
        """A message that wants no answer has arrived."""

    # -- start and stop

    def start(self) -> None:
        assert not self.is_up
        self.incarnation += 1
        self.is_up, self.is_paused = True, False
        self._missed.clear()
        self.world.tell(f"{self.name} starts")
        self.begin()

    def crash(self) -> None:
        self.is_up = self.is_paused = False
        self._missed.clear()
        self.world.tell(f"{self.name} dies")

    def pause(self) -> None:
        self.is_paused = True
        self.world.tell(f"{self.name} is paused")

    def resume(self) -> None:
        self.is_paused = False
        self.world.tell(f"{self.name} resumes")
        missed, self._missed = self._missed, []
        for function, arguments in missed:
            self.world.at(0, self._do, self.incarnation, function, arguments)

    # -- time and messages

    def clock_ms(self) -> int:
        """Return the time by the clock of this process."""
        return self.world.now_ms * self.clock_percent // 100 + self.clock_offset_ms

    def after(self, delay_ms: int, function: Callable[..., None], *arguments: Any) -> None:
        """Call a function of this incarnation later."""
        if self.clock_percent != 100:
            delay_ms = delay_ms * 100 // self.clock_percent
        self.world.at(delay_ms, self._do, self.incarnation, function, arguments)

    def _do(
        self, incarnation: int, function: Callable[..., None], arguments: tuple[Any, ...]
    ) -> None:
        if incarnation != self.incarnation or not self.is_up:
            return
        if self.is_paused:
            self._missed.append((function, arguments))
            return
        function(*arguments)

    def tell(self, receiver: str, message: Any) -> None:
        """Send a message, which may get lost."""
        connection = self.world.network.connection(self.name, receiver, "")
        self.world.network.carry(connection, self.name, receiver, self._deliver, receiver, message)

    def _deliver(self, receiver: str, message: Any) -> None:
        process = self.world.processes[receiver]
        process.after(0, process.told, self.name, message)

    def ask(
        self, receiver: str, request: Any, timeout_ms: int, reply: Reply, channel: str = ""
    ) -> None:
        """Send a request.  `reply` is called exactly once, unless this process dies."""
        asked = _PendingRequest(self, receiver, request, reply, channel)
        self.after(timeout_ms, asked.give_up)


class _PendingRequest:
    """A request in flight, and its response."""

    __slots__ = (
        "_asker",
        "_channel",
        "_connection",
        "_incarnation",
        "_receiver",
        "_reply",
        "_request",
    )

    def __init__(
        self, asker: Process, receiver: str, request: Any, reply: Reply, channel: str
    ) -> None:
        self._asker = asker
        self._incarnation = asker.incarnation
        self._receiver = receiver
        self._channel = channel
        self._request = request
        self._reply: Reply | None = reply
        network = asker.world.network
        self._connection = network.connection(asker.name, receiver, channel)
        network.carry(self._connection, asker.name, receiver, self._arrive)

    def _arrive(self) -> None:
        process = self._asker.world.processes[self._receiver]
        process.after(0, process.asked, self._asker.name, self._request, self._answer)

    def _answer(self, value: Any) -> None:
        asker = self._asker
        asker.world.network.carry(
            self._connection, self._receiver, asker.name, self._arrive_back, value
        )

    def _arrive_back(self, value: Any) -> None:
        self._asker._do(self._incarnation, self._finish, (value,))

    def _finish(self, value: Any) -> None:
        if self._reply is not None:
            reply, self._reply = self._reply, None
            reply(value)

    def give_up(self) -> None:
        if self._reply is not None:
            self._asker.world.network.reconnect(self._asker.name, self._receiver, self._channel)
            self._finish(None)


class Connection:
    """A connection: messages arrive in order, in each direction."""

    __slots__ = ("last_ms",)

    def __init__(self) -> None:
        self.last_ms: dict[str, int] = {}
        """By sender: the arrival time of the newest message."""


class Network:
    """Carries calls from one process to another: in order per connection, late, or not at all.

    A process that gave up waiting continues over a new connection, and messages in flight on the
    old one may arrive after later ones.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._cut: dict[tuple[str, str], None] = {}
        self._slow: dict[tuple[str, str], int] = {}
        self._connections: dict[tuple[str, str, str], Connection] = {}
        self.loss = 0.0
        self.lost = 0
        """The number of messages since the start."""

    def connection(self, sender: str, receiver: str, channel: str) -> Connection:
        found = self._connections.get((sender, receiver, channel))
        return found or self.reconnect(sender, receiver, channel)

    def reconnect(self, sender: str, receiver: str, channel: str) -> Connection:
        connection = self._connections[sender, receiver, channel] = Connection()
        return connection

    def carry(
        self,
        connection: Connection,
        sender: str,
        receiver: str,
        function: Callable[..., None],
        *arguments: Any,
    ) -> None:
        world, way = self._world, (sender, receiver)
        if way in self._cut or (self.loss and world.random.random() < self.loss):
            self.lost += 1
            return
        # A simple model of a network: mostly fast, sometimes slow.
        delay_ms = 1 + int(-2.0 * log(1.0 - world.random.random())) + self._slow.get(way, 0)
        arrival_ms = max(world.now_ms + delay_ms, connection.last_ms.get(sender, 0))
        connection.last_ms[sender] = arrival_ms
        world.at(arrival_ms - world.now_ms, self._arrive, way, function, arguments)

    def _arrive(
        self, way: tuple[str, str], function: Callable[..., None], arguments: tuple[Any, ...]
    ) -> None:
        if way not in self._cut:
            function(*arguments)

    def cut(self, sender: str, receiver: str) -> None:
        """Cut this direction, also for messages in flight."""
        self._cut[sender, receiver] = None

    def mend(self, sender: str, receiver: str) -> None:
        self._cut.pop((sender, receiver), None)
        self._slow.pop((sender, receiver), None)

    def slow_down(self, sender: str, receiver: str, delay_ms: int) -> None:
        self._slow[sender, receiver] = delay_ms

    def heal(self) -> None:
        self._cut.clear()
        self._slow.clear()
        self.loss = 0.0
