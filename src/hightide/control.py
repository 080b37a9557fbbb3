"""Commands for a running `hightide up`, over a Unix socket that only its user can open.

    hightide broker kill 2 ──▶ <temporary directory>/hightide-<uid>/<port>.sock ──▶ up
                               {"command": "kill", "broker": 2, "host": …}
                           ◀── {"ok": true, "text": "broker 2 has ended; …"}

Each broker's port has a name for the socket, so any address of the cluster finds it. The command
line and the console send commands; `up` receives them.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path

_MAX_BYTES = 64 * 1024
_TIMEOUT_S = 90.0
_REQUEST_S = 5.0

Execute = Callable[[str, int, "Future[str]"], None]


class Refused(Exception):
    """A command cannot be carried out; the text says why."""


class NotRunning(Exception):
    """No `hightide up` of this user has a broker at an address."""


def directory() -> Path:
    """The directory of the sockets, which only this user can enter."""
    path = Path(tempfile.gettempdir()) / f"hightide-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        path.mkdir(0o700)
    status = path.lstat()
    if path.is_symlink() or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise PermissionError(f"{path} must be a directory that only its owner can enter")
    return path


class ControlServer:
    """Receives commands, each in a thread of its own."""

    def __init__(self, addresses: Sequence[str], execute: Execute) -> None:
        """Serve a cluster whose brokers have these addresses, `host:port`."""
        self._execute = execute
        self._hosts = {address.rpartition(":")[0].strip("[]") for address in addresses}
        folder = directory()
        self._paths = [folder / f"{address.rpartition(':')[2]}.sock" for address in addresses]
        for path in self._paths:
            path.unlink(missing_ok=True)  # left by an `up` that was killed: the port is ours now
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(self._paths[0]))
        for path in self._paths[1:]:
            path.symlink_to(self._paths[0].name)
        self._socket.listen()
        threading.Thread(target=self._serve, name="control", daemon=True).start()

    def close(self) -> None:
        for path in self._paths:
            path.unlink(missing_ok=True)
        # Wakes the thread that waits in accept; closing the socket alone does not.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.settimeout(_REQUEST_S)
            line = connection.makefile("rb").readline(_MAX_BYTES)
            ok, text = self._outcome(line)
            connection.sendall(json.dumps({"ok": ok, "text": text}).encode() + b"\n")

    def _outcome(self, line: bytes) -> tuple[bool, str]:
        try:
            request = json.loads(line)
            command, broker_id, host = request["command"], request["broker"], request["host"]
            if type(broker_id) is not int or not isinstance(command, str):
                raise TypeError
        except (ValueError, KeyError, TypeError):
            return False, "the request is not one that this version knows"
        if not any(_is_same_host(host, ours) for ours in self._hosts):
            return False, f"the cluster that runs here does not listen on {host}"
        reply: Future[str] = Future()
        self._execute(command, broker_id, reply)
        try:
            return True, reply.result(_TIMEOUT_S)
        except Refused as refusal:
            return False, str(refusal)
        except TimeoutError:
            return False, f"broker {broker_id} takes longer than {_TIMEOUT_S:.0f} s; see its log"


def is_running(bootstrap: str) -> bool:
    """Whether a `hightide up` of this user has a broker at one of these addresses."""
    folder = Path(tempfile.gettempdir()) / f"hightide-{os.getuid()}"
    for address in bootstrap.split(","):
        host, _, port = address.strip().rpartition(":")
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(_REQUEST_S)
                connection.connect(str(folder / f"{port}.sock"))
        except OSError:
            continue
        if _is_same_host(host.strip("[]"), "127.0.0.1"):
            return True
    return False


def send(address: str, command: str, broker_id: int) -> str:
    """Send a command to the `up` with a broker at this address, and return its sentence.

    NotRunning if there is none, Refused if it refuses the command.
    """
    host, _, port = address.rpartition(":")
    request = {"command": command, "broker": broker_id, "host": host.strip("[]")}
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_TIMEOUT_S + _REQUEST_S)
            connection.connect(str(directory() / f"{port}.sock"))
            connection.sendall(json.dumps(request).encode() + b"\n")
            line = connection.makefile("rb").readline(_MAX_BYTES)
    except (FileNotFoundError, ConnectionRefusedError) as error:
        raise NotRunning(
            f"No `hightide up` of this user has a broker at {address}. --bootstrap names one of its"
            " brokers; other clusters are controlled on their own hosts."
        ) from error
    reply = json.loads(line) if line else {"ok": False, "text": "`hightide up` has ended"}
    if not reply["ok"]:
        raise Refused(str(reply["text"]))
    return str(reply["text"])


def _is_same_host(asked: str, ours: str) -> bool:
    """Whether two names are of one host, as far as this host can tell."""
    return asked == ours or bool(_addresses(asked) & _addresses(ours))


def _addresses(host: str) -> set[str]:
    try:
        found = {str(entry[4][0]) for entry in socket.getaddrinfo(host, None)}
    except OSError:
        return set()
    # One loopback address stands for all: 127.0.0.1 and ::1 are this host.
    return {"loopback" if a == "::1" or a.startswith("127.") else a for a in found}
