"""Machines on which the shell commands of a page run as they are printed.

A machine is a mount namespace with an `/etc` and a `/var/lib`, and an address of loopback to which
`/etc/hosts` leads its name. `systemctl` and `ssh` are small programs that ask the test: it runs the
command of a unit as systemd does, though as root, and waits until the unit is ready.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from hightide.process import environment
from tests.support import units
from tests.zookeeper.servers import Child

NETWORK = "127.92.81"
"""Of addresses that other tests leave alone; the last number is the machine's."""
READY_S = 120.0
RUN_S = 300.0
IN_NAMESPACE = 'mount --bind "$0/etc" /etc && mount --bind "$0/var-lib" /var/lib && exec "$@"'

# Each prints the answer to its arguments, and ends with the code that the answer begins with.
_ASK = """#!{python} -PS
import os, socket, sys
words = {words}
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect({socket!r})
    connection.sendall("\\0".join(words).encode())
    connection.shutdown(socket.SHUT_WR)
    code, _, text = connection.makefile().read().partition("\\n")
sys.stderr.write(text)
sys.exit(int(code))
"""
_NETCAT = """#!{python} -PS
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), 5) as connection:
    connection.sendall(sys.stdin.buffer.read())
    while part := connection.recv(4096):
        sys.stdout.buffer.write(part)
"""


def missing() -> str:
    """Return why machines cannot be made here, or an empty text."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "only root on Linux can give a machine an /etc of its own"
    if shutil.which("unshare") is None or shutil.which("install") is None:
        return "unshare and install are not there (Debian packages: util-linux, coreutils)"
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode:
        return "this container has no mount namespaces"
    return ""


class Service:
    """A unit that runs."""

    def __init__(self, machine: Machine, name: str) -> None:
        unit = (machine.folder / "etc/systemd/system" / f"{name}.service").read_text()
        self._type = units.settings(unit)["Service"]["Type"]
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.settimeout(1.0)
        address = machine.folder / f"{name}.notify"
        address.unlink(missing_ok=True)
        self._socket.bind(str(address))
        words = ["env", f"NOTIFY_SOCKET={address}", "WATCHDOG_USEC=120000000", *units.command(unit)]
        self.child = Child(machine.inside(*words), machine.folder / f"{name}.log")

    def start(self) -> None:
        """Return when the unit is ready, as systemctl does."""
        self.child.start()
        deadline_s = time.monotonic() + READY_S
        while self._type == ["notify"] and not self._is_ready():
            if self.child.is_dead() or time.monotonic() > deadline_s:
                raise AssertionError(self.child.failure("The unit did not become ready"))

    def _is_ready(self) -> bool:
        try:
            return self._socket.recv(4096).startswith(b"READY=1")
        except TimeoutError:
            return False

    def end(self, signal: str) -> None:
        self.child.end(signal)
        self._socket.close()


class Machine:
    def __init__(self, number: int, folder: Path, tools: Path) -> None:
        self.number = number
        self.name = f"m{number}.example"
        self.folder = folder
        self._tools = tools
        self._services: dict[str, Service] = {}
        self.make()

    def make(self) -> None:
        """Give the machine empty disks."""
        shutil.rmtree(self.folder, ignore_errors=True)
        (self.folder / "var-lib").mkdir(parents=True)
        (self.folder / "work" / "files").mkdir(parents=True)
        shutil.copytree("/etc", self.folder / "etc", symlinks=True, ignore_dangling_symlinks=True)
        hosts = [f"{NETWORK}.{number} m{number}.example" for number in (1, 2, 3)]
        (self.folder / "etc" / "hosts").write_text("\n".join(["127.0.0.1 localhost", *hosts, ""]))

    def inside(self, *words: str) -> list[str]:
        """Return the command that runs a command on this machine."""
        namespace = ["unshare", "--mount", "--propagation", "private", "sh", "-c", IN_NAMESPACE]
        return [*namespace, str(self.folder), *words]

    def start(self, block: str) -> subprocess.Popen[str]:
        """Start lines of shell in the machine's working directory."""
        variables = {
            **environment(),
            "N": str(self.number),
            "MACHINE": self.name,
            "PATH": f"{self._tools}:{os.environ['PATH']}",
        }
        return subprocess.Popen(
            self.inside("sh", "-eu", "-c", block),
            cwd=self.folder / "work",
            env=variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, block: str, feed: str = "") -> str:
        """Run lines of shell; return what they print."""
        with self.start(block) as shell:
            try:
                printed, messages = shell.communicate(feed, timeout=RUN_S)
            except subprocess.TimeoutExpired:
                shell.kill()
                raise
        assert shell.returncode == 0, (
            f"exit code {shell.returncode}\n{block}\n{printed}\n{messages}"
        )
        return printed

    def systemctl(self, words: list[str]) -> None:
        """Do what systemctl does with these words."""
        match words:
            case ["daemon-reload"]:
                pass
            case ["enable", "--now", name]:
                self._start(name)
            case ["start", name]:
                self._start(name)
            case ["stop", name]:
                self._services.pop(name).end("TERM")
            case ["restart", name]:
                self._services.pop(name).end("TERM")
                self._start(name)
            case _:
                raise AssertionError(f"systemctl {words}")

    def _start(self, name: str) -> None:
        assert name not in self._services
        self._services[name] = service = Service(self, name)
        service.start()

    def kill(self) -> None:
        """The machine loses its power: everything on it ends at once."""
        for service in self._services.values():
            service.end("KILL")
        self._services.clear()

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")


class Machines:
    """Three machines, and the socket at which their `systemctl` and `ssh` ask."""

    def __init__(self, folder: Path) -> None:
        tools = folder / "tools"
        tools.mkdir()
        self._address = folder / "ask"
        self._write_tools(tools)
        self.all = [Machine(number, folder / f"m{number}", tools) for number in (1, 2, 3)]

    def _write_tools(self, tools: Path) -> None:
        ask = {"python": sys.executable, "socket": str(self._address)}
        words = '[os.environ["MACHINE"], *sys.argv[1:]]'
        texts = {
            "systemctl": _ASK.format(words=words, **ask),
            # `ssh HOST systemctl …`
            "ssh": _ASK.format(words="[sys.argv[1], *sys.argv[3:]]", **ask),
            "nc": _NETCAT.format(python=sys.executable),
            "hightide": f'#!/bin/sh\nexec {sys.executable} -P -m hightide "$@"\n',
        }
        for name, text in texts.items():
            (tools / name).write_text(text)
            (tools / name).chmod(0o755)

    def named(self, name: str) -> Machine:
        [found] = [machine for machine in self.all if machine.name == name]
        return found

    def answer(self, question: str) -> str:
        """Do what a tool asks for; return an exit code and a text."""
        name, *words = question.split("\0")
        try:
            self.named(name).systemctl(words)
        except Exception as error:
            return f"1\n{error}\n"
        return "0\n"

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Answer the tools; at the end all services are killed."""
        machines = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                self.wfile.write(machines.answer(self.rfile.read().decode()).encode())

        with socketserver.ThreadingUnixStreamServer(str(self._address), Handler) as server:
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            try:
                yield
            finally:
                server.shutdown()
                thread.join()
                for machine in self.all:
                    machine.kill()
