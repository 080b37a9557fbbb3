"""ZooKeeper servers as processes: Debian's ZooKeeper, single and as an ensemble, and the embedded.

All three have the same methods, so that one test can run on each. Every process ends with the test
run, however that ends: its parent is a shell that waits for a line on a pipe from the test run. The
line is the signal to send; a closed pipe means KILL.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from hightide.process import environment
from hightide.testing.cluster import free_port

HOST = "127.0.0.1"
JARS = Path("/usr/share/java")
START_S = 60.0
TICK_MS = 200
LONGEST_SESSION_MS = 60_000

# The process leads a process group, so its children end with it. At first there is no group yet.
_KEEPER = """
setsid "$@" </dev/null & echo $!
read signal
kill -${signal:-KILL} -$! || kill -${signal:-KILL} $!
kill -CONT -$!
wait $!
"""

# A small heap and the quick compiler: a server of a test runs for seconds.
_QUICK_JVM = ("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")


class NotServing(Exception):
    """A server did not start; the text ends with its log."""


def missing() -> str:
    """Return why Apache ZooKeeper cannot run here, or an empty text."""
    if not (JARS / "zookeeper.jar").exists():
        return "Apache ZooKeeper is not installed (Debian package: zookeeper)"
    if shutil.which("java") is None:
        return "Java is not installed, and Apache ZooKeeper needs it"
    return ""


def classpath() -> str:
    """Return the class path. Debian's jar names its dependencies except two; logs to stderr."""
    names = ("zookeeper", "slf4j-simple", "netty-codec", "netty-resolver")
    return ":".join(str(JARS / f"{name}.jar") for name in names)


def is_free(port: int) -> bool:
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((HOST, port))
        except OSError:
            return False
    return True


def four_letters(host: str, word: str, timeout_s: float = 5.0) -> str:
    """Return the response of the server at `host:port` to a four-letter word."""
    name, port = host.rsplit(":", 1)
    with socket.create_connection((name, int(port)), timeout_s) as connection:
        connection.sendall(word.encode())
        parts = []
        while part := connection.recv(4096):
            parts.append(part)
    return b"".join(parts).decode()


class Child:
    """One process, and the shell that ends it."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self._command = ["sh", "-c", _KEEPER, "keeper", *command]
        self.log = log
        self.pid = 0
        self._keeper: subprocess.Popen[bytes] | None = None
        self._output = b""

    def is_running(self) -> bool:
        return self._keeper is not None and self._keeper.poll() is None

    def start(self) -> None:
        assert not self.is_running()
        self._output = b""
        with self.log.open("ab") as log:
            self._keeper = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment(),
                start_new_session=True,
            )
        self.pid = int(self.line(time.monotonic() + START_S))

    def line(self, deadline: float) -> str:
        """Return the next line of the process's output."""
        assert self._keeper is not None
        assert self._keeper.stdout is not None
        pipe = self._keeper.stdout.fileno()
        while b"\n" not in self._output:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([pipe], [], [], left)[0]:
                raise NotServing(self.failure("The process printed nothing in time"))
            part = os.read(pipe, 4096)
            if not part:
                raise NotServing(self.failure("The process ended"))
            self._output += part
        line, _, self._output = self._output.partition(b"\n")
        return line.decode()

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def end(self, word: str) -> int:
        """Send the signal with this name and wait; return the process's exit code."""
        if self._keeper is None:
            return 0
        assert self._keeper.stdin is not None
        assert self._keeper.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._keeper.stdin.write(word.encode() + b"\n")
            self._keeper.stdin.flush()
        try:
            code = self._keeper.wait(START_S)
        finally:
            with contextlib.suppress(BrokenPipeError):
                self._keeper.stdin.close()
            self._keeper.stdout.close()
        self._keeper = None
        return code

    def is_dead(self) -> bool:
        """Return whether the process has ended: then the shell has not reaped it yet."""
        try:
            return "\nState:\tZ" in Path(f"/proc/{self.pid}/status").read_text()
        except OSError:
            return True

    def failure(self, what: str) -> str:
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return "\n".join([f"{what}. Its log ends with:", *lines[-30:]])


class Server:
    """A single server of any kind."""

    tick_ms = TICK_MS
    child: Child

    def __init__(self, folder: Path, port: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.port = port

    @property
    def hosts(self) -> str:
        return f"{HOST}:{self.port}"

    def start(self) -> None:
        """Start the server and wait until it serves."""
        self.launch()
        self.await_service()

    def launch(self) -> None:
        self.child.start()

    def await_service(self) -> None:
        raise NotImplementedError

    def stop(self) -> int:
        """Stop the server with SIGTERM and return its exit code."""
        return self.child.end("TERM")

    def kill(self) -> None:
        self.child.end("KILL")

    def restart(self) -> None:
        """Stop the server if it runs, and start it on the same port with the same data."""
        self.stop()
        self.start()

    def pause(self) -> None:
        self.child.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.child.signal(signal.SIGCONT)

    def heal(self) -> None:
        """Make the server serve again after a kill or a pause."""
        if not self.child.is_running() or self.child.is_dead():
            self.kill()
            self.start()
        self.resume()

    def pids(self) -> list[int]:
        return [self.child.pid]


class Embedded(Server):
    """`hightide zookeeper start`."""

    def __init__(self, folder: Path, *arguments: str, port: int = 0, memory: bool = False) -> None:
        super().__init__(folder, port or free_port())
        where = ["--memory"] if memory else ["--data", str(folder / "data")]
        command = [sys.executable, "-P", "-m", "hightide", "zookeeper", "start"]
        command += ["--listen", self.hosts, *where, "--tick-ms", str(self.tick_ms)]
        command += ["--min-session-timeout-ms", str(2 * self.tick_ms)]
        command += ["--max-session-timeout-ms", str(LONGEST_SESSION_MS), *arguments]
        self.child = Child(command, folder / "zookeeper.log")

    def await_service(self) -> None:
        line = self.child.line(time.monotonic() + START_S)
        assert line == f"listening: {self.hosts}", line


class ZooKeeper(Server):
    """Debian's ZooKeeper, single or as a member of an ensemble."""

    def __init__(
        self,
        folder: Path,
        *members: str,
        port: int = 0,
        number: int = 1,
        jvm: Sequence[str] = _QUICK_JVM,
        properties: Sequence[str] = (),
    ) -> None:
        super().__init__(folder, port or free_port())
        data = folder / "data"
        data.mkdir(exist_ok=True)
        (data / "myid").write_text(str(number))
        settings = [
            f"tickTime={self.tick_ms}",
            f"minSessionTimeout={2 * self.tick_ms}",
            f"maxSessionTimeout={LONGEST_SESSION_MS}",
            f"dataDir={data}",
            "admin.enableServer=false",
            "4lw.commands.whitelist=*",
            "maxClientCnxns=0",
            *(("initLimit=50", "syncLimit=25", *members) if members else self._alone()),
        ]
        (folder / "zoo.cfg").write_text("\n".join([*settings, ""]))
        quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
        command = ["java", *jvm, quiet, *properties, "-cp", classpath()]
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        self.child = Child([*command, main, str(folder / "zoo.cfg")], folder / "zookeeper.log")

    def _alone(self) -> tuple[str, ...]:
        return f"clientPort={self.port}", f"clientPortAddress={HOST}"

    def await_service(self) -> None:
        deadline = time.monotonic() + START_S
        while not self.mode():
            if self.child.is_dead() or time.monotonic() > deadline:
                raise NotServing(self.child.failure(f"{self.hosts} does not serve"))
            time.sleep(0.02)

    def mode(self) -> str:
        """Return standalone, leader or follower; an empty text while it does not serve."""
        try:
            # A starting ZooKeeper may accept a connection and never answer it.
            answer = four_letters(self.hosts, "srvr", timeout_s=1.0)
        except OSError:
            return ""
        return answer.partition("\nMode: ")[2].partition("\n")[0]


class Ensemble:
    """Three ZooKeepers that elect a leader. Members are numbered from 0."""

    tick_ms = TICK_MS

    def __init__(self, folder: Path, jvm: Sequence[str] = _QUICK_JVM) -> None:
        ports = [free_port() for _ in range(9)]
        assert len(set(ports)) == len(ports), "the same free port was found twice"
        places = [ports[3 * n : 3 * n + 3] for n in range(3)]
        members = [
            f"server.{n + 1}={HOST}:{peer}:{election}:participant;{HOST}:{client}"
            for n, (client, peer, election) in enumerate(places)
        ]
        self.members = [
            ZooKeeper(folder / str(n + 1), *members, port=places[n][0], number=n + 1, jvm=jvm)
            for n in range(3)
        ]

    @property
    def hosts(self) -> str:
        return ",".join(member.hosts for member in self.members)

    def start(self) -> None:
        for member in self.members:
            if not member.child.is_running():
                member.launch()
        for member in self.members:
            member.await_service()

    def leader(self) -> int:
        """Return the number of the leader; wait for an election if there is none."""
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            for number, member in enumerate(self.members):
                if member.child.is_running() and member.mode() == "leader":
                    return number
            time.sleep(0.02)
        raise NotServing("No member of the ensemble leads")

    def kill(self, member: int | None = None) -> None:
        """Kill one member, or all members."""
        for server in self._selected(member):
            server.kill()

    def stop(self, member: int | None = None) -> None:
        for server in self._selected(member):
            server.stop()

    def restart(self, member: int | None = None) -> None:
        self.stop(member)
        for server in self._selected(member):
            server.launch()
        for server in self._selected(member):
            server.await_service()

    def pause(self, member: int | None = None) -> None:
        for server in self._selected(member):
            server.pause()

    def resume(self, member: int | None = None) -> None:
        for server in self._selected(member):
            server.resume()

    def heal(self) -> None:
        for member in self.members:
            if not member.child.is_running() or member.child.is_dead():
                member.kill()
                member.launch()
            member.resume()
        for member in self.members:
            member.await_service()

    def pids(self) -> list[int]:
        return [member.child.pid for member in self.members]

    def _selected(self, member: int | None) -> list[ZooKeeper]:
        return self.members if member is None else [self.members[member]]
