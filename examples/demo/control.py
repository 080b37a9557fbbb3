"""Commands from another terminal: a Unix socket, and a file that says where the socket is.

The name of a Unix socket may not be long, so the socket lives in a temporary folder with a short
name. A file in the demo's data folder holds that name.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

FILE = "demo.json"
MAX_BYTES = 64 * 1024
TIMEOUT_S = 60


class NoDemo(Exception):
    """No demo is running on a data folder."""


class ControlServer:
    """Receives commands in a thread, and answers each with a sentence."""

    def __init__(self, folder: Path, bootstrap: str, execute: Callable[[list[str]], str]) -> None:
        self._file = folder / FILE
        self._execute = execute
        self._folder = Path(tempfile.mkdtemp(prefix="hightide-demo-"))
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(self._folder / "control"))
        self._socket.listen()
        folder.mkdir(parents=True, exist_ok=True)
        state = {"pid": os.getpid(), "bootstrap": bootstrap, "control": self._socket.getsockname()}
        self._file.write_text(json.dumps(state))
        threading.Thread(target=self._serve, name="demo-control", daemon=True).start()

    def close(self) -> None:
        self._file.unlink(missing_ok=True)
        # Wakes the thread that waits in accept; closing the socket alone does not.
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                words = connection.recv(MAX_BYTES).decode().split()
                connection.sendall(self._execute(words).encode())


def send_command(folder: Path, *words: str) -> str:
    """Send a command to the demo whose data is in a folder, and return its answer."""
    try:
        state = json.loads((folder / FILE).read_text())
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(TIMEOUT_S)
            connection.connect(state["control"])
            connection.sendall(" ".join(words).encode())
            return connection.recv(MAX_BYTES).decode()
    except (FileNotFoundError, ConnectionRefusedError):
        raise NoDemo(
            f"No demo is running on {folder}: start one with `python -m examples.demo`, "
            "or name its folder with --data."
        ) from None
