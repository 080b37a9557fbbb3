"""ZooKeeper of the machine room: embedded, one Apache ZooKeeper, or an ensemble of three.

Every server runs on a machine of the room.  Members are numbered from 0.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from signal import SIGCONT, SIGSTOP
from typing import Protocol

from hightide.process import ZooKeeperProcess
from hightide.testing.cluster import ZOOKEEPER_TIMES, free_port
from tests.chaos.machine import Machine
from tests.zookeeper import servers

KINDS = {"embedded": 1, "apache": 1, "ensemble": 3}


class Server(Protocol):
    """One ZooKeeper server; also after a kill, `start` makes it serve the same data."""

    def launch(self) -> None: ...
    def await_service(self) -> None: ...
    def is_running(self) -> bool: ...
    def kill(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def mode(self) -> str: ...


class Embedded:
    def __init__(self, machine: Machine, port: int, log: Path) -> None:
        words = ["--listen", f"{machine.address}:{port}", "--data", str(machine.path / "data")]
        self._process = ZooKeeperProcess(
            [*words, *ZOOKEEPER_TIMES, "--insecure"], log, wrapper=machine.wrapper()
        )

    def launch(self) -> None:
        self._process.launch()

    def await_service(self) -> None:
        self._process.wait_until_it_listens()

    def is_running(self) -> bool:
        return self._process.is_running()

    def kill(self) -> None:
        if self._process.is_running():
            self._process.kill()

    def pause(self) -> None:
        self._process.pause()

    def resume(self) -> None:
        if self._process.is_running():
            self._process.resume()

    def mode(self) -> str:
        return "standalone" if self.is_running() else ""


class Apache:
    """Debian's ZooKeeper, single or as a member of an ensemble."""

    def __init__(
        self, machine: Machine, port: int, log: Path, number: int, members: Sequence[str]
    ) -> None:
        self.hosts = f"{machine.address}:{port}"
        data = machine.path / "data"
        data.mkdir(exist_ok=True)
        (data / "myid").write_text(str(number + 1))
        alone = (f"clientPort={port}", f"clientPortAddress={machine.address}")
        settings = [
            f"tickTime={servers.TICK_MS}",
            f"minSessionTimeout={2 * servers.TICK_MS}",
            f"maxSessionTimeout={servers.LONGEST_SESSION_MS}",
            f"dataDir={data}",
            "admin.enableServer=false",
            "4lw.commands.whitelist=*",
            "maxClientCnxns=0",
            *(("initLimit=50", "syncLimit=25", *members) if len(members) > 1 else alone),
        ]
        file = machine.path.parent / f"{machine.name}.cfg"
        file.write_text("\n".join([*settings, ""]))
        quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
        java = ["java", *servers._QUICK_JVM, quiet, "-cp", servers.classpath()]
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        self._child = servers.Child([*machine.wrapper(), *java, main, str(file)], log)

    def launch(self) -> None:
        self._child.end("KILL")  # the shell that waits for a child which has died
        self._child.start()

    def await_service(self) -> None:
        deadline_s = time.monotonic() + servers.START_S
        while not self.mode():
            if self._child.is_dead() or time.monotonic() > deadline_s:
                raise servers.NotServing(self._child.failure(f"{self.hosts} does not serve"))
            time.sleep(0.02)

    def is_running(self) -> bool:
        return self._child.is_running() and not self._child.is_dead()

    def kill(self) -> None:
        self._child.end("KILL")

    def pause(self) -> None:
        self._child.signal(SIGSTOP)

    def resume(self) -> None:
        if self.is_running():
            self._child.signal(SIGCONT)

    def mode(self) -> str:
        """Return standalone, leader or follower; an empty text while it does not serve."""
        try:
            answer = servers.four_letters(self.hosts, "srvr", timeout_s=1.0)
        except OSError:
            return ""
        return answer.partition("\nMode: ")[2].partition("\n")[0]


class ZooKeepers:
    """All ZooKeeper servers of a room."""

    def __init__(self, kind: str, machine: Callable[[str], Machine], logs: Path) -> None:
        self.machines = [machine(f"zookeeper-{number + 1}") for number in range(KINDS[kind])]
        places = [(each.address, [free_port() for _ in range(3)]) for each in self.machines]
        members = [
            f"server.{n + 1}={host}:{peer}:{election}:participant;{host}:{client}"
            for n, (host, (client, peer, election)) in enumerate(places)
        ]
        self.connect = ",".join(f"{host}:{ports[0]}" for host, ports in places)
        self.servers: list[Server] = []
        for number, each in enumerate(self.machines):
            port, log = places[number][1][0], logs / f"{each.name}.log"
            if kind == "embedded":
                self.servers.append(Embedded(each, port, log))
            else:
                self.servers.append(Apache(each, port, log, number, members))

    def start(self) -> None:
        """Start all servers that do not run, and wait until all of them serve."""
        started = [server for server in self.servers if not server.is_running()]
        for server in started:
            server.launch()
        for server in started:
            server.await_service()

    def stop(self) -> None:
        for server in self.servers:
            server.kill()

    def heal(self) -> None:
        for server in self.servers:
            server.resume()
        self.start()

    def leader(self) -> int:
        """Return the number of the member that leads, or of the only one."""
        for number, server in enumerate(self.servers):
            if server.mode() in ("leader", "standalone"):
                return number
        return 0
