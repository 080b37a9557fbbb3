"""The console beside the brokers of `hightide up`: a process of its own, which they do not need.

It is started when the brokers serve, so that it does not delay them. If it does not start, or ends,
one sentence says why, and the brokers go on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from hightide.cli.local_cluster import make_room
from hightide.cli.render import say
from hightide.process import ConsoleProcess, ServiceFailed

CONSOLE_PORT = 8088
GRACE_S = 5.0


class LocalConsole:
    """The console of the brokers with these addresses; it listens on this machine only."""

    def __init__(
        self,
        port: int,
        bootstrap: Sequence[str],
        folder: Path,
        more: Sequence[str] = (),
        tell: Callable[[str], None] = say,
    ) -> None:
        """`tell` gets the address when it serves, and a sentence if it does not."""
        self._tell = tell
        self.url = ""
        """Where it serves; "" until it does."""
        self._bootstrap = ",".join(bootstrap)
        self._process = ConsoleProcess(
            [*("--bootstrap", self._bootstrap), *("--port", str(port)), "--owner", *more],
            folder / "console.log",
        )
        self._is_stopping = False
        self._starting: threading.Thread | None = None

    def start(self) -> None:
        """Start it, and return at once; its address is printed when it serves."""
        try:
            make_room(self._process.log)
            self._process.launch()
        except OSError as error:
            self._report(str(error))
            return
        self._starting = threading.Thread(target=self._await, name="console", daemon=True)
        self._starting.start()

    def _await(self) -> None:
        try:
            address = self._process.wait_until_it_listens()
        except ServiceFailed as failure:
            self._report(str(failure))
            return
        if not self._is_stopping:
            self.url = f"http://{address}"
            self._tell(f"console: {self.url}")
        self._process.wait()
        self._report(str(self._process.died()))

    def _report(self, why: str) -> None:
        if not self._is_stopping:
            self._tell(
                f"hightide: {why}\nhightide: the brokers go on without the console;"
                f" `hightide console --bootstrap {self._bootstrap}` starts it again."
            )

    def end(self) -> None:
        """Tell it to end, without waiting."""
        self._is_stopping = True
        if self._process.is_running():
            self._process.terminate()

    def wait(self) -> None:
        """Wait until it has ended; it is killed if that takes long."""
        if self._starting is None:
            return
        self._starting.join(GRACE_S)
        if self._process.is_running():
            self._process.kill()
