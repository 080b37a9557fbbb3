"""Virtual time, processes that can stop and die, and a network between them.

Everything that happens is a call on a heap, ordered by virtual time and then by a serial number.
All chance comes from one seeded Random, nothing here iterates over a set, and no thread exists:
equal seeds give equal histories, also in other processes.

A process lives in incarnations.  What was scheduled for a dead one never happens.  What comes due
while a process is paused happens when it goes on, as it does to a real one that was stopped.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import Any

Reply = Callable[[Any], None]
"""Called with the answer, or with None if there was none in time."""

_TRACE = 400


class World:
    """The clock, the dice and the story so far."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.now_ms = 0
        self.events = 0
        self.processes: dict[str, Process] = {}
        self.network = Network(self)
        self.story: deque[str] = deque(maxlen=_TRACE)
        self.fingerprint = 0
        """Of everything that was told; equal for equal seeds."""
        self._heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._serial = 0

    def at(self, delay_ms: int, function: Callable[..., None], *arguments: Any) -> None:
        self._serial += 1
        heappush(self._heap, (self.now_ms + delay_ms, self._serial, function, arguments))

    def run(self, until_ms: int, after_each: Callable[[], None] = lambda: None) -> None:
        heap = self._heap
        while heap and heap[0][0] <= until_ms:
            self.now_ms, _, function, arguments = heappop(heap)
            self.events += 1
            function(*arguments)
            after_each()
        self.now_ms = until_ms

    def tell(self, text: str) -> None:
        line = f"{self.now_ms:>7} {text}"
        self.story.append(line)
        self.fingerprint = zlib.crc32(line.encode(), self.fingerprint)


class Process:
    """Something that runs, and may not."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.is_up = False
        self.is_paused = False
        self.lives = 0
        self._missed: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        world.processes[name] = self

    # -- what a subclass says

    def begin(self) -> None:
        """A new incarnation starts, with nothing in memory."""

    def asked(self, sender: str, request: Any, answer: Reply) -> None:
        """A request has arrived."""

    def told(self, sender: str, message: Any) -> None:
        """A message that wants no answer has arrived."""

    # -- life

    def start(self) -> None:
        assert not self.is_up
        self.lives += 1
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
        self.world.tell(f"{self.name} goes on")
        missed, self._missed = self._missed, []
        for function, arguments in missed:
            self.world.at(0, self._do, self.lives, function, arguments)

    # -- what it can do

    def after(self, delay_ms: int, function: Callable[..., None], *arguments: Any) -> None:
        """Call a function of this incarnation later."""
        self.world.at(delay_ms, self._do, self.lives, function, arguments)

    def _do(
        self, incarnation: int, function: Callable[..., None], arguments: tuple[Any, ...]
    ) -> None:
        if incarnation != self.lives or not self.is_up:
            return
        if self.is_paused:
            self._missed.append((function, arguments))
            return
        function(*arguments)

    def tell(self, receiver: str, message: Any) -> None:
        """Send a message.  It may get lost."""
        self.world.network.carry(self.name, receiver, self._deliver, receiver, message)

    def _deliver(self, receiver: str, message: Any) -> None:
        process = self.world.processes[receiver]
        process.after(0, process.told, self.name, message)

    def ask(self, receiver: str, request: Any, timeout_ms: int, reply: Reply) -> None:
        """Send a request.  `reply` is called exactly once, unless this process dies."""
        asked = _Asked(self, receiver, request, reply)
        self.world.network.carry(self.name, receiver, asked.arrive)
        self.after(timeout_ms, asked.finish, None)


class _Asked:
    """A request under way, and its answer."""

    __slots__ = ("_asker", "_incarnation", "_receiver", "_reply", "_request")

    def __init__(self, asker: Process, receiver: str, request: Any, reply: Reply) -> None:
        self._asker = asker
        self._incarnation = asker.lives
        self._receiver = receiver
        self._request = request
        self._reply: Reply | None = reply

    def arrive(self) -> None:
        process = self._asker.world.processes[self._receiver]
        process.after(0, process.asked, self._asker.name, self._request, self.answer)

    def answer(self, value: Any) -> None:
        network = self._asker.world.network
        network.carry(self._receiver, self._asker.name, self._arrive_back, value)

    def _arrive_back(self, value: Any) -> None:
        self._asker._do(self._incarnation, self.finish, (value,))

    def finish(self, value: Any) -> None:
        if self._reply is not None:
            reply, self._reply = self._reply, None
            reply(value)


class Network:
    """Carries calls from one process to another: in order per direction, late, or not at all."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._cut: dict[tuple[str, str], None] = {}
        self._slow: dict[tuple[str, str], int] = {}
        self._last: dict[tuple[str, str], int] = {}
        self.loss = 0.0

    def carry(
        self, sender: str, receiver: str, function: Callable[..., None], *arguments: Any
    ) -> None:
        way = (sender, receiver)
        random = self._world.random
        if way in self._cut or (self.loss and random.random() < self.loss):
            return
        delay_ms = 1 + int(random.expovariate(0.5)) + self._slow.get(way, 0)
        # Messages of one sender stay in order, as on a connection.
        arrival_ms = max(self._world.now_ms + delay_ms, self._last.get(way, 0))
        self._last[way] = arrival_ms
        self._world.at(arrival_ms - self._world.now_ms, self._arrive, way, function, arguments)

    def _arrive(
        self, way: tuple[str, str], function: Callable[..., None], arguments: tuple[Any, ...]
    ) -> None:
        if way not in self._cut:
            function(*arguments)

    def cut(self, sender: str, receiver: str) -> None:
        """Nothing passes in this direction any more, not even what is under way."""
        self._cut[sender, receiver] = None

    def slow_down(self, sender: str, receiver: str, delay_ms: int) -> None:
        self._slow[sender, receiver] = delay_ms

    def heal(self) -> None:
        self._cut.clear()
        self._slow.clear()
        self.loss = 0.0
