"""Brokers and ZooKeeper servers as child processes: start, wait, stop, and leave none behind.

`hightide up` and `hightide.testing` both run them this way, like a user from a shell, so this
module knows only one thing that they do.  It guarantees:

* `start` returns when the child serves (it prints a `listening:` line), or raises with the last
  lines of its log.  There is no sleep.  To start several at once, `launch` them all and then wait
  for each.
* The child dies with its parent, even when the parent is killed: a pair of sockets, the lifeline,
  joins the two, and the child stops when the parent's end closes.  The kernel's parent-death signal
  does not work here: it fires when the *thread* that started the child ends, and would stop a
  broker that a test's worker thread has started.
* The parent learns at once that the child has died, because the child's end closes too.
* A broker's ZooKeeper session ends with the broker.  The broker reports the key of its session over
  the lifeline, and the parent ends the session of a broker that died.  So the controller elects new
  leaders at once, instead of after the session timeout.
* The child is in a new session, so Ctrl-C reaches only the parent, which then stops the children in
  order.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from hightide import private_files

if TYPE_CHECKING:
    from hightide.zookeeper.kazoo_thread import SessionKey

LIFELINE = "HIGHTIDE_LIFELINE_FD"
LISTENING = b"listening:"
START_S = 60.0
GRACE_S = 30.0
REAP_S = 3.0
"""How long the end of a child waits until its ZooKeeper session has ended."""


class ServiceFailed(Exception):
    """A child did not start, or stopped unexpectedly; the text ends with its last log lines."""


class BrokerFailed(ServiceFailed):
    """A broker failed."""


class ZooKeeperFailed(ServiceFailed):
    """The ZooKeeper server failed."""


class ConsoleFailed(ServiceFailed):
    """The console failed."""


def environment(package: str = "hightide") -> dict[str, str]:
    """Return the parent's environment, extended so that the child imports the same packages.

    These are `hightide` and the package of the child's main module. The child finds an installed
    package anyway, but not a source tree that only this process has on its path.
    """
    found = dict(os.environ)
    for name in dict.fromkeys(("hightide", package.partition(".")[0])):
        root = Path(str(sys.modules[name].__file__)).resolve().parents[1]
        if root.name not in {"site-packages", "dist-packages"}:
            known = found.get("PYTHONPATH")
            found["PYTHONPATH"] = os.pathsep.join(filter(None, (str(root), known)))
    return found


class ServiceProcess:
    """One `hightide …` process that serves on a port, and its log file."""

    module: ClassVar[str] = "hightide"
    """What `python -m` runs."""
    command: ClassVar[tuple[str, ...]]
    failure: ClassVar[type[ServiceFailed]]
    name = "the process"

    def __init__(
        self,
        arguments: Sequence[str],
        log: Path,
        name: str = "",
        *,
        wrapper: Sequence[str] = (),
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.arguments = list(arguments)
        self.wrapper = list(wrapper)
        """A command that runs the child's command in its own process, such as `ip netns exec`."""
        self.variables = dict(variables or {})
        """Environment variables for the child: secrets, which must not be in arguments."""
        self.log = log
        self.name = name or type(self).name
        self.address = ""
        self.is_paused = False
        self.on_end: Callable[[int], None] = lambda _: None
        """Called in a thread with the pid of a child that has ended, whatever the reason."""
        self._child: subprocess.Popen[bytes] | None = None
        self._watcher: threading.Thread | None = None

    @property
    def pid(self) -> int:
        assert self._child is not None
        return self._child.pid

    def is_running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    @property
    def has_pipes(self) -> bool:
        """Whether the end of the last child has not been waited for."""
        stdout = None if self._child is None else self._child.stdout
        return stdout is not None and not stdout.closed

    # -- start -----------------------------------------------------------------------------

    def start(self, timeout_s: float = START_S) -> str:
        """Start the child and return the `host:port` on which it serves."""
        self.launch()
        return self.wait_until_it_listens(timeout_s)

    def launch(self) -> None:
        """Start the child without waiting."""
        assert not self.is_running()
        if self.has_pipes:
            self.wait()  # a child that has ended by itself
        private_files.make_directory(self.log.parent)
        self.address = ""
        self.is_paused = False
        lifeline, end_of_child = socket.socketpair()
        # -P keeps the current directory off the child's path: a file there with the name of an
        # imported module must not be loaded.
        command = [*self.wrapper, sys.executable, "-P", "-m", self.module]
        command += [*self.command, *self.arguments]
        try:
            with open(private_files.append_to(self.log), "ab") as log:
                self._child = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    env={
                        **environment(self.module),
                        **self.variables,
                        LIFELINE: str(end_of_child.fileno()),
                    },
                    pass_fds=(end_of_child.fileno(),),
                    start_new_session=True,
                )
        except BaseException:
            lifeline.close()
            raise
        finally:
            end_of_child.close()
        self._watcher = threading.Thread(
            target=self._watch,
            args=(lifeline, self._child.pid),
            name=f"lifeline of {self.name}",
            daemon=True,
        )
        self._watcher.start()

    def _watch(self, lifeline: socket.socket, pid: int) -> None:
        """Receive what the child reports, until it has ended."""
        try:
            # A child that is killed may leave unread bytes, and then the end is a reset.
            with lifeline, lifeline.makefile("r") as reports, contextlib.suppress(OSError):
                for line in reports:
                    self._reported(line)
            self._ended()
        finally:
            self.on_end(pid)

    def _reported(self, line: str) -> None:
        """The child has sent a line over the lifeline."""

    def _ended(self) -> None:
        """The child has ended."""

    def wait_until_it_listens(self, timeout_s: float = START_S) -> str:
        """Wait until a launched child serves, and return its `host:port`."""
        address = self.listens_within(timeout_s)
        if not address:
            self.kill()
            raise self._failed(f"did not start within {timeout_s:g} s")
        return address

    def listens_within(self, timeout_s: float) -> str:
        """Wait until a launched child serves; return its `host:port`, "" if it takes longer."""
        assert self._child is not None
        assert self._child.stdout is not None
        stdout = self._child.stdout.fileno()
        deadline = time.monotonic() + timeout_s
        output = b""
        while True:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([stdout], [], [], left)[0]:
                return ""
            part = os.read(stdout, 4096)
            if not part:
                raise self.died()
            output += part
            for line in output.splitlines(keepends=True):
                if line.startswith(LISTENING) and line.endswith(b"\n"):
                    self.address = line.removeprefix(LISTENING).decode().strip()
                    return self.address

    # -- stop ------------------------------------------------------------------------------

    def wait(self, timeout_s: float | None = None) -> int:
        """Wait until the child has ended, and return its exit code; kill it after the timeout."""
        assert self._child is not None
        try:
            code = self._child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            code = self._child.wait()
        if self._child.stdout is not None:
            self._child.stdout.close()
        if self._watcher not in {None, threading.current_thread()}:
            self._watcher.join(REAP_S)
        return code

    def stop(self, timeout_s: float = GRACE_S) -> int:
        """Stop the child with SIGTERM; kill it after the timeout."""
        self.terminate()
        return self.wait(timeout_s)

    def terminate(self) -> None:
        """Send SIGTERM, also to a paused child, without waiting."""
        self._signal(signal.SIGTERM)
        self.resume()

    def kill(self) -> None:
        """Send SIGKILL, and wait."""
        self._signal(signal.SIGKILL)
        self.wait()

    def pause(self) -> None:
        """Send SIGSTOP."""
        self._signal(signal.SIGSTOP)
        self.is_paused = True

    def resume(self) -> None:
        self._signal(signal.SIGCONT)
        self.is_paused = False

    def _signal(self, number: signal.Signals) -> None:
        assert self._child is not None
        # send_signal polls first, so it never hits another process that has got the same pid.
        with contextlib.suppress(ProcessLookupError):
            self._child.send_signal(number)

    # -- failures --------------------------------------------------------------------------

    def died(self) -> ServiceFailed:
        """The error for a child that should be running and is not."""
        return self._failed(f"stopped with exit code {self.wait()}")

    def _failed(self, what: str) -> ServiceFailed:
        name = self.name[0].upper() + self.name[1:]
        lines = self.last_lines()
        end = f". The end of its log:\n{lines}" if lines else " and logged nothing."
        return self.failure(f"{name} {what}{end}")

    def last_lines(self, count: int = 20) -> str:
        """The end of the child's log."""
        try:
            with self.log.open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - 64 * 1024))
                lines = log.read().decode(errors="replace").splitlines()
        except OSError:
            return ""
        return "\n".join(lines[-count:])


class BrokerProcess(ServiceProcess):
    """One `hightide broker start` process."""

    command = ("broker", "start")
    failure = BrokerFailed
    name = "the broker"

    zookeeper = ""
    """The hosts of ZooKeeper, where the session of a broker that died is ended; "" to leave it."""
    _session: SessionKey | None = None

    def _reported(self, line: str) -> None:
        if not self.zookeeper:
            return
        from hightide.zookeeper.end_session import SessionKey  # the parent loads kazoo in time

        session_id, _, password = line.strip().partition(" ")
        self._session = (
            SessionKey(int(session_id, 16), bytes.fromhex(password)) if password else None
        )

    def _ended(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            from hightide.zookeeper.end_session import end_session

            end_session(self.zookeeper, session)


class ZooKeeperProcess(ServiceProcess):
    """One `hightide zookeeper start` process."""

    command = ("zookeeper", "start")
    failure = ZooKeeperFailed
    name = "the ZooKeeper server"


class ConsoleProcess(ServiceProcess):
    """One `python -m hightide.console` process."""

    module = "hightide.console"
    command = ()
    failure = ConsoleFailed
    name = "the console"


def stop_all(processes: Iterable[ServiceProcess], timeout_s: float = GRACE_S) -> list[int]:
    """Stop all running processes at once, and return their exit codes."""
    running = [process for process in processes if process.is_running()]
    deadline = time.monotonic() + timeout_s
    for process in running:
        process.terminate()
    return [process.wait(max(0.0, deadline - time.monotonic())) for process in running]


# -- ports -----------------------------------------------------------------------------------


def port_range() -> tuple[int, int]:
    """A range of ports that the kernel does not use for outgoing connections.

    A child that is killed and restarted must get the same port back.  If that port were in the
    kernel's range, a client that keeps connecting to it could end up connected to itself, and
    occupy the port.
    """
    try:
        low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        low = 32768
    return max(1024, low - 12000), low - 1


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Whether a server could listen there now."""
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((host, port))
        except OSError:
            return False
        return True


def free_port() -> int:
    """A port that is free now; another process may still take it first."""
    import random  # imported here, because every child loads this module and needs no port

    low, high = port_range()
    for port in random.sample(range(low, high), k=min(200, high - low)):
        if is_free(port):
            return port
    raise ServiceFailed(f"There is no free port between {low} and {high}.")


# -- in the child ----------------------------------------------------------------------------


def join_parent() -> Callable[[SessionKey | None], None]:
    """In the child: stop when the parent, which holds the other end of the lifeline, has ended.

    Return the function with which a broker reports the key of its ZooKeeper session, or that it has
    none.  A thread that only waits in one read costs the event loop nothing.
    """
    descriptor = os.environ.pop(LIFELINE, "")
    if not descriptor.isdigit():
        return lambda _: None
    lifeline = int(descriptor)

    def watch() -> None:
        with contextlib.suppress(OSError):
            while os.read(lifeline, 1):
                pass
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE_S)
        os.kill(os.getpid(), signal.SIGKILL)

    def report(session: SessionKey | None) -> None:
        line = "" if session is None else f"{session.session_id:x} {session.password.hex()}"
        with contextlib.suppress(OSError):  # the parent has ended, or the lifeline is one way
            os.write(lifeline, f"{line}\n".encode())

    threading.Thread(target=watch, name="lifeline", daemon=True).start()
    return report
