"""Virtual time for plain asyncio code: many processes, each with a separate event loop.

A `World` has one clock, one queue of due callbacks and one seeded Random.  Each start of a
`Process` has a new `SimLoop`; the world makes it the running loop while one of its callbacks runs.
So every task, timer and connection belongs to the loop that created it, and can be stopped, delayed
or dropped with it, without the knowledge of the code under test.

Equal seeds give equal histories, in any process.  Some things would break that:

* The garbage collector runs at any moment, so a run switches it off.
* Sets of tasks and futures are in the order of their hashes, so the hashes are serial numbers here.
* A thread runs at any time, so its function runs here, at a random time of the seed.
* The code of a dead process must not run again, not even its `finally`, so its tasks are kept until
  the end of the run.
"""

from __future__ import annotations

import asyncio
import contextvars
import zlib
from collections import deque
from collections.abc import Callable, Coroutine
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.simulation.shipped.network import Network

_TASKS_KEPT = 200  # before the finished ones are dropped

# Callbacks that come due while a process is paused run in this order when it resumes, as in a
# selector loop: ready callbacks, then network events, then timers.
READY, ARRIVED, TIMER = 0, 1, 2

Context = contextvars.Context | None


class Failed(AssertionError):
    """The code under test raised an exception that it did not handle."""


class World:
    """The clock, the random generator, the due callbacks, and the history."""

    network: Network

    def __init__(self, seed: int, story_lines: int = 1000) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.now = 0.0
        self.events = 0
        self.processes: dict[str, Process] = {}
        self.loops: list[SimLoop] = []
        self.story: deque[str] = deque(maxlen=story_lines)
        self.fingerprint = 0
        """A digest of all events; equal for equal seeds."""
        self.after_each: Callable[[Process], None] = lambda _process: None
        """Called after every callback of a process."""
        self.failure: BaseException | None = None
        self._serials = count()
        self._ready: deque[tuple[SimLoop | None, Any, int]] = deque()
        self._due: list[tuple[float, int, SimLoop | None, Any, int]] = []

    # -- scheduling ------------------------------------------------------------------------

    def at(self, delay_s: float, function: Callable[..., None], *arguments: Any) -> None:
        """Call a function of the network or the fault injector later."""
        self.schedule(self.now + delay_s, None, (function, arguments), READY)

    def schedule(self, at: float, loop: SimLoop | None, what: Any, kind: int) -> None:
        heappush(self._due, (at, next(self._serials), loop, what, kind))

    def soon(self, loop: SimLoop, handle: asyncio.Handle, kind: int) -> None:
        self._ready.append((loop, handle, kind))

    def run(self, until: float) -> None:
        """Run all callbacks that are due until then; raise the first failure."""
        ready, due = self._ready, self._due
        while self.failure is None:
            if ready:
                loop, what, kind = ready.popleft()
            elif due and due[0][0] <= until:
                self.now, _, loop, what, kind = heappop(due)
            else:
                self.now = max(self.now, until)
                return
            if loop is None:
                self.events += 1
                function, arguments = what
                function(*arguments)
            elif loop.run(what, kind):
                self.events += 1
                self.after_each(loop.process)
        raise self.failure

    # -- the history -----------------------------------------------------------------------

    def tell(self, text: str) -> None:
        line = f"{self.now:>11.6f} {text}"
        self.story.append(line)
        self.fingerprint = zlib.crc32(line.encode(), self.fingerprint)

    def note(self, text: str) -> None:
        """Add a line to the history that need not be equal for equal seeds."""
        self.story.append(f"{self.now:>11.6f} {text}")

    def fail(self, failure: BaseException) -> None:
        if self.failure is None:
            self.failure = failure

    def close(self) -> None:
        """End every process, and drop its tasks silently."""
        self._ready.clear()
        self._due.clear()
        for loop in self.loops:
            loop.is_dead = True
        for loop in self.loops:
            loop.dismantle()


class Process:
    """A process that runs, pauses and dies, and its clocks."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.loop: SimLoop | None = None
        self.is_paused = False
        self.has_power = True
        self.incarnation = 0
        self.skew_ms = 0
        """How far its wall clock is ahead."""
        self.rate = 1.0
        """How fast its monotonic clock runs."""
        self.slow_s = 0.0
        """Extra time of its threads: a slow disk."""
        self.on_exit: Callable[[], None] = lambda: None
        """Called when `main` has returned; not after a crash."""
        world.processes[name] = self

    @property
    def is_up(self) -> bool:
        return self.loop is not None

    def now_ms(self) -> int:
        """The wall clock."""
        return 1_700_000_000_000 + round(self.world.now * 1000) + self.skew_ms

    def start(self, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start the process, with a new event loop."""
        assert self.loop is None
        self.incarnation += 1
        self.has_power, self.is_paused = True, False
        self.world.tell(f"{self.name} starts")
        # Everything that the broker and its libraries use is there; the rest stays abstract.
        loop = self.loop = SimLoop(self)  # type: ignore[abstract]

        async def run() -> None:
            try:
                await main()
            except Exception as failure:
                if not loop.is_dead:
                    self.world.fail(failure)
            if not loop.is_dead:
                self._exit()

        # The coroutine belongs to the new loop although no loop is running yet.
        loop.create_task(run())

    def _exit(self) -> None:
        self.world.tell(f"{self.name} exits")
        self._end()
        self.on_exit()

    def crash(self, *, power: bool = False) -> None:
        """Kill the process.  Without power, not even its connections are closed."""
        self.world.tell(f"{self.name} {'loses power' if power else 'is killed'}")
        self.has_power = not power
        self._end()

    def _end(self) -> None:
        assert self.loop is not None
        loop, self.loop = self.loop, None
        loop.is_dead = True
        loop.missed.clear()
        self.is_paused = False
        self.world.network.process_ended(loop, silently=not self.has_power)

    def pause(self) -> None:
        self.is_paused = True
        self.world.tell(f"{self.name} is paused")

    def resume(self) -> None:
        self.is_paused = False
        self.world.tell(f"{self.name} resumes")
        assert self.loop is not None
        missed, self.loop.missed = self.loop.missed, []
        missed.sort(key=lambda entry: entry[1])
        for handle, kind in missed:
            self.world.soon(self.loop, handle, kind)


class SimTask(asyncio.Task):  # type: ignore[type-arg]
    """A task whose place in a set does not depend on its address."""

    def __init__(self, serial: int, *arguments: Any, **keywords: Any) -> None:
        self._serial = serial
        super().__init__(*arguments, **keywords)

    def __hash__(self) -> int:
        return self._serial


class SimFuture(asyncio.Future):  # type: ignore[type-arg]
    """The same for futures."""

    def __init__(self, serial: int, loop: SimLoop) -> None:
        self._serial = serial
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._serial


class SimLoop(asyncio.AbstractEventLoop):
    """The event loop of a process, until it ends.  It has only the methods that brokers need."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.world = process.world
        self.is_dead = False
        self.missed: list[tuple[asyncio.Handle, int]] = []
        self._serials = count(1)
        self._tasks: list[SimTask] = []
        self._began, self._rate = self.world.now, process.rate
        self.world.loops.append(self)

    def run(self, handle: asyncio.Handle, kind: int) -> bool:
        """Run a callback unless the process is dead or paused; return whether it ran."""
        if self.is_dead or handle.cancelled():
            return False
        if self.process.is_paused:
            self.missed.append((handle, kind))
            return False
        asyncio._set_running_loop(self)
        try:
            handle._run()
        finally:
            asyncio._set_running_loop(None)
        return True

    # -- time ------------------------------------------------------------------------------

    def time(self) -> float:
        return 1000.0 + (self.world.now - self._began) * self._rate

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *arguments: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, arguments, self, context)
        if not self.is_dead:
            self.world.soon(self, handle, READY)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *arguments: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *arguments, context=context)

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *arguments: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, arguments, self, context)
        if not self.is_dead:
            at = self._began + (when - 1000.0) / self._rate
            self.world.schedule(max(at, self.world.now), self, handle, TIMER)
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """A cancelled timer is skipped when it comes due."""

    def arrived(self, callback: Callable[..., object], *arguments: Any) -> None:
        """Run a callback for a network event."""
        if not self.is_dead:
            self.world.soon(self, asyncio.Handle(callback, arguments, self), ARRIVED)

    # -- tasks, futures, threads -----------------------------------------------------------

    def create_future(self) -> SimFuture:
        return SimFuture(next(self._serials), self)

    def create_task(
        self, coro: Any, *, name: str | None = None, context: Context | None = None
    ) -> SimTask:
        task = SimTask(next(self._serials), coro, loop=self, name=name, context=context)
        if len(self._tasks) >= _TASKS_KEPT:
            self._tasks = [task for task in self._tasks if not task.done()]
        self._tasks.append(task)
        return task

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *arguments: Any
    ) -> asyncio.Future[Any]:
        """Run the function of a thread at once, at a later time; deliver its result later still."""
        future = self.create_future()
        delay_s, news_s = self.world.random.expovariate(2000), self.world.random.expovariate(2000)

        def work() -> None:
            asyncio._set_running_loop(None)
            try:
                result, failure = func(*arguments), None
            except Exception as error:
                result, failure = None, error
            finally:
                asyncio._set_running_loop(self)
            self.call_later(news_s, done, result, failure)

        def done(result: Any, failure: Exception | None) -> None:
            if future.done():
                return
            if failure is not None:
                future.set_exception(failure)
            else:
                future.set_result(result)

        self.call_later(delay_s + self.process.slow_s, work)
        return future

    # -- connections -----------------------------------------------------------------------

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], Any], host: str, port: int, *, ssl: None = None
    ) -> tuple[Any, Any]:
        assert ssl is None, "this network has no TLS"
        return await self.world.network.connect(self, protocol_factory, host, port)

    async def getaddrinfo(  # type: ignore[override]
        self, host: str, port: int, **_: Any
    ) -> list[tuple[int, int, int, str, tuple[str, int]]]:
        """Return the name itself: this network knows its hosts by name."""
        return [(0, 0, 0, "", (host, port))]

    async def create_server(  # type: ignore[override]
        self, protocol_factory: Callable[[], Any], *, sock: Any, backlog: int = 100
    ) -> Any:
        return self.world.network.serve(self, protocol_factory, sock)

    # -- other methods of a loop -----------------------------------------------------------

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return not self.is_dead

    def is_closed(self) -> bool:
        return self.is_dead

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Fail the run: no error of a live process goes unnoticed."""
        if self.is_dead:
            return
        error = context.get("exception")
        failure = Failed(f"{self.process.name}: {context.get('message')}: {error!r}")
        failure.__cause__ = error
        self.world.fail(failure)

    default_exception_handler = call_exception_handler

    def dismantle(self) -> None:
        """Close the coroutines that will never resume, so that no warning is raised."""
        asyncio._set_running_loop(self)
        try:
            for task in self._tasks:
                if not task.done():
                    task._log_destroy_pending = False  # type: ignore[attr-defined]
                    _close(task.get_coro())
        finally:
            asyncio._set_running_loop(None)
        self._tasks.clear()


def _close(coroutine: Any) -> None:
    for _ in range(20):
        try:
            coroutine.close()
        except RuntimeError:
            continue  # its `finally` awaits something that never comes
        except BaseException:  # its process is dead, so its errors mean nothing
            return
        else:
            return
