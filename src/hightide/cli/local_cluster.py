"""The processes of a local cluster: started together, kept running, stopped in order.

    a process has ended ───┐
    a command (`control`) ─┼──▶ queue ──▶ the main thread: restart, pause, reply
    a broker serves again ─┘

A broker that dies is restarted after a pause that doubles with each death.  Its ZooKeeper session
has ended by then (`process.py`), so other brokers lead its partitions within milliseconds.
"""

from __future__ import annotations

import queue
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from hightide.cli.render import say
from hightide.control import Refused
from hightide.process import (
    BrokerProcess,
    ServiceFailed,
    ServiceProcess,
    ZooKeeperProcess,
    stop_all,
)

LOG_BYTES_KEPT = 16 * 1024 * 1024
REPORT_S = 10.0
"""How often a process that does not serve yet is reported."""

CALM_S = 10.0
"""A ZooKeeper server that dies twice within this time is not restarted."""

FIRST_PAUSE_S, LONGEST_PAUSE_S, RESTARTS = 1.0, 30.0, 8
"""The pauses before a broker is restarted, and how often until it has lived for `STEADY_S`."""
STEADY_S = 60.0

if TYPE_CHECKING:
    from hightide.client.retry import Backoff

SIGNALS_S = 0.2
"""The longest wait for an event: a signal that comes just before a wait does not end it."""

Reply = Future[str]
Event = Callable[[], None]


@dataclass(slots=True)
class _Member:
    """A broker, and what should become of it."""

    broker_id: int
    process: BrokerProcess
    is_wanted: bool = True
    """False after a command has ended it, until a command restarts it."""
    restart_s: float | None = None
    is_restarting: bool = False
    """It was told to end so that it can be started again."""
    started_s: float = 0.0
    ended_pid: int | None = None
    """The last process whose end was dealt with."""
    starting: threading.Thread | None = None
    """Waits until the broker serves."""
    replies: list[Reply] = field(default_factory=list)
    """Commands that wait for its end, or until it serves."""
    backoff: Backoff | None = None

    @property
    def name(self) -> str:
        return f"broker {self.broker_id}"


class LocalCluster:
    """A ZooKeeper server and brokers.  All decisions are made in the thread of `watch`."""

    def __init__(
        self, zookeeper: ZooKeeperProcess, brokers: Sequence[BrokerProcess], *, keeps_data: bool
    ) -> None:
        self.zookeeper = zookeeper
        self.brokers = list(brokers)
        self.keeps_data = keeps_data
        self._members = {n: _Member(n, process) for n, process in enumerate(brokers, 1)}
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._zookeeper_died_s = -CALM_S

    @property
    def processes(self) -> list[ServiceProcess]:
        return [self.zookeeper, *self.brokers]

    # -- start and stop --------------------------------------------------------------------

    def start(self) -> None:
        """Start all processes at once: the brokers wait for ZooKeeper.

        A slow start is reported and not ended: a process that cannot start ends by itself, and
        Ctrl-C ends the wait.
        """
        for process in self.processes:
            make_room(process.log)
            process.on_end = self._notice(process)
            process.launch()
        for process in self.processes:
            while not process.listens_within(REPORT_S):
                say(f"hightide: waiting for {process.name}: {process.last_lines(1)}")
        for member in self._members.values():
            member.started_s = time.monotonic()
            keep_port(member.process)

    def stop(self) -> int:
        """Stop the brokers first, all at once, since their shutdown needs ZooKeeper."""
        running = [broker for broker in self.brokers if broker.is_running()]
        try:
            codes = [*stop_all(running), *stop_all([self.zookeeper])]
        except KeyboardInterrupt:
            for process in self.processes:
                if process.is_running():
                    process.kill()
            return 1
        # A child that was stopped before it served has exited by the signal; that is no failure.
        return 0 if set(codes) <= {0, -signal.SIGTERM} else 1

    # -- watch -----------------------------------------------------------------------------

    def watch(self) -> None:
        """Keep the cluster running; return when no broker is left.

        The ZooKeeper server is restarted too: it reads its data, with the brokers' sessions. It is
        not restarted if its data was in memory, or if it dies again soon after.
        """
        while any(self._is_left(member) for member in self._members.values()):
            due = [at for at in (m.restart_s for m in self._members.values()) if at is not None]
            wait_s = min([SIGNALS_S, *(max(0.0, at - time.monotonic()) for at in due)])
            try:
                self._events.get(timeout=wait_s)()
            except queue.Empty:
                self._restart_due()

    def _notice(self, process: ServiceProcess) -> Callable[[int], None]:
        return lambda pid: self._events.put(lambda: self._ended(process, pid))

    def _is_left(self, member: _Member) -> bool:
        """Whether it runs, or will, or has ended and that is not dealt with yet."""
        is_over = member.ended_pid == member.process.pid
        return not is_over or member.restart_s is not None or not member.is_wanted

    def _ended(self, process: ServiceProcess, pid: int) -> None:
        if pid != process.pid:
            return  # it has been started again
        if process is self.zookeeper:
            self._zookeeper_ended(process.died())
            return
        member = next(m for m in self._members.values() if m.process is process)
        if member.starting is not None:
            member.starting.join()  # it reads from the child, and ends with it
        failure = process.died()
        member.ended_pid = pid
        if member.is_restarting:
            self._launch(member)
        elif member.is_wanted:
            self._died(member, failure)
        else:
            self._reply(member, f"{member.name} has ended; `restart` starts it again")

    def _zookeeper_ended(self, failure: ServiceFailed) -> None:
        now_s = time.monotonic()
        if not self.keeps_data or now_s - self._zookeeper_died_s < CALM_S:
            raise failure
        self._zookeeper_died_s = now_s
        say(f"hightide: {failure}\nhightide: the ZooKeeper server is restarted.")
        self.zookeeper.start()

    def _died(self, member: _Member, failure: ServiceFailed) -> None:
        """A broker has ended without a command."""
        say(f"hightide: {failure}")
        now_s = time.monotonic()
        if member.backoff is None or now_s - member.started_s >= STEADY_S:
            # Imported with the first death: a client's modules would delay every start.
            from hightide.client.retry import Backoff

            member.backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S, attempts=RESTARTS + 1)
        pause_s = member.backoff.next_s()
        if pause_s is None:
            say(f"hightide: {member.name} is not restarted: it has died {RESTARTS + 1} times.")
            return
        say(f"hightide: {member.name} is restarted in {pause_s:g} s.")
        member.restart_s = now_s + pause_s

    def _restart_due(self) -> None:
        now_s = time.monotonic()
        for member in self._members.values():
            if member.restart_s is None or member.restart_s > now_s:
                continue
            if self.keeps_data or any(broker.is_running() for broker in self.brokers):
                self._launch(member)
            else:
                member.restart_s = None
                say(
                    f"hightide: {member.name} is not restarted: the data was in memory, and no"
                    " other broker has a copy."
                )

    def _launch(self, member: _Member) -> None:
        """Start a broker; a thread waits until it serves."""
        member.restart_s, member.is_wanted, member.is_restarting = None, True, False
        member.started_s = time.monotonic()
        make_room(member.process.log)
        member.process.launch()
        member.starting = threading.Thread(
            target=self._await, args=(member,), name=f"start of {member.name}", daemon=True
        )
        member.starting.start()

    def _await(self, member: _Member) -> None:
        try:
            while not member.process.listens_within(REPORT_S):
                say(f"hightide: waiting for {member.name}: {member.process.last_lines(1)}")
        except ServiceFailed as failure:
            # Its end is noticed as any end is; a command must not wait for that.
            error = Refused(f"{member.name} did not start: {failure}")
            self._events.put(lambda: self._reply(member, error))
            return
        serving = f"{member.name} serves on {member.process.address}"
        say(f"hightide: {serving}.")
        self._events.put(lambda: self._reply(member, serving))

    # -- commands --------------------------------------------------------------------------

    def execute(self, command: str, broker_id: int, reply: Reply) -> None:
        """Carry out a command for one broker; may be called from any thread."""
        self._events.put(lambda: self._execute(command, broker_id, reply))

    def _execute(self, command: str, broker_id: int, reply: Reply) -> None:
        member = self._members.get(broker_id)
        action = self._actions.get(command)
        try:
            if action is None:
                raise Refused(f"there is no command {command!r}")
            if member is None:
                known = ", ".join(map(str, self._members))
                raise Refused(f"there is no broker {broker_id}; the brokers are {known}")
            if command != "restart" and not member.process.is_running():
                raise Refused(f"{member.name} is not running; `restart` starts it")
        except Refused as refusal:
            reply.set_exception(refusal)
            return
        member.replies.append(reply)
        action(self, member)

    def _kill(self, member: _Member) -> None:
        member.is_wanted = False
        say(f"hightide: {member.name} is killed by a command.")
        member.process.kill()

    def _stop(self, member: _Member) -> None:
        member.is_wanted = False
        say(f"hightide: {member.name} is stopped by a command.")
        member.process.terminate()

    def _pause(self, member: _Member) -> None:
        member.process.pause()
        self._reply(member, f"{member.name} is paused; `resume` lets it run again")

    def _resume(self, member: _Member) -> None:
        member.process.resume()
        self._reply(member, f"{member.name} runs again")

    def _restart(self, member: _Member) -> None:
        say(f"hightide: {member.name} is restarted by a command.")
        member.backoff = None
        if member.process.is_running():
            member.is_restarting = True
            member.process.terminate()
        else:
            self._launch(member)

    _actions: ClassVar[dict[str, Callable[[LocalCluster, _Member], None]]] = {
        "kill": _kill,
        "stop": _stop,
        "pause": _pause,
        "resume": _resume,
        "restart": _restart,
    }

    def _reply(self, member: _Member, outcome: str | Refused) -> None:
        replies, member.replies = member.replies, []
        for reply in replies:
            if isinstance(outcome, Refused):
                reply.set_exception(outcome)
            else:
                reply.set_result(outcome)


def keep_port(process: ServiceProcess) -> None:
    """Make a restart listen on the port that port 0 has picked: clients know it."""
    at = process.arguments.index("--port") + 1
    process.arguments[at] = process.address.rpartition(":")[2]


def make_room(log: Path) -> None:
    """Keep one old log file: daily starts must not fill the disk with logs."""
    if log.exists() and log.stat().st_size > LOG_BYTES_KEPT:
        log.replace(log.with_suffix(".log.1"))
