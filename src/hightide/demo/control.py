"""How one terminal tells the demonstration in another what to do: a socket, and where it is.

The socket is in a folder of its own with a short name, since such names may not be long, and the
demonstration's data folder has a file that tells it.
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
ANSWER_BYTES = 64 * 1024
PATIENCE_S = 60


class NoDemo(Exception):
    """There is nobody to tell; the text says where was looked."""


class Control:
    """Listens for words, and answers each with a sentence."""

    def __init__(self, folder: Path, bootstrap: str, obey: Callable[[list[str]], str]) -> None:
        self._file = folder / FILE
        self._obey = obey
        self._folder = Path(tempfile.mkdtemp(prefix="hightide-demo-"))
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(self._folder / "control"))
        self._socket.listen()
        folder.mkdir(parents=True, exist_ok=True)
        told = {"pid": os.getpid(), "bootstrap": bootstrap, "control": self._socket.getsockname()}
        self._file.write_text(json.dumps(told))
        threading.Thread(target=self._serve, name="demo-control", daemon=True).start()

    def close(self) -> None:
        self._file.unlink(missing_ok=True)
        # Wakes the thread that waits in accept, which closing alone does not.
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
                words = connection.recv(ANSWER_BYTES).decode().split()
                connection.sendall(self._obey(words).encode())


def tell(folder: Path, *words: str) -> str:
    """Say something to the demonstration whose data is in a folder; its answer."""
    try:
        told = json.loads((folder / FILE).read_text())
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(PATIENCE_S)
            connection.connect(told["control"])
            connection.sendall(" ".join(words).encode())
            return connection.recv(ANSWER_BYTES).decode()
    except (FileNotFoundError, ConnectionRefusedError):
        raise NoDemo(
            f"No demonstration runs with its data in {folder}: start one with `hightide demo`, "
            "or name its folder with --data."
        ) from None
