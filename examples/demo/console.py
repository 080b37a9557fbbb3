"""The console beside the demo: the stream in the X-ray, the ledger as a banner, brokers to kill.

browser ─▶ console process ─▶ commands ─▶ KillableBrokers
                 ▲
                 └── banner.json: "Orders: 19,380 acknowledged, 19,380 read back, 0 missing, …"
"""

from __future__ import annotations

import time
import webbrowser
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path

from examples.demo.local_cluster import KillableBrokers
from examples.demo.observer import ClusterState
from examples.demo.pipeline import STATE
from examples.demo.snapshot import Snapshot, banner
from examples.demo.topics import ORDERS
from hightide.cli.local_console import LocalConsole
from hightide.console.banner import write_banner
from hightide.control import ControlServer, Refused

FILE = "banner.json"
EVERY_S = 1.0
STREAM = f"/x/{ORDERS}/0"


class DemoConsole:
    """Runs from `start` to `close`; without a port there is no console, but commands work."""

    def __init__(
        self,
        port: int,
        addresses: Sequence[str],
        folder: Path,
        killable: KillableBrokers,
        cluster: Callable[[], ClusterState],
        tell: Callable[[str], None],
    ) -> None:
        self._killable, self._cluster = killable, cluster
        self._file = folder.resolve() / FILE
        self._file.unlink(missing_ok=True)
        self._published_s = -EVERY_S
        self._control = ControlServer(addresses, self._execute)
        more = ["--title", "demo", "--banner-file", str(self._file)]
        more += ["--pipelines", str(folder.resolve() / STATE)]
        self._console = LocalConsole(port, addresses, folder, more, tell) if port else None

    def start(self) -> None:
        if self._console is not None:
            self._console.start()

    @property
    def url(self) -> str:
        """Where it serves; "" if it does not."""
        return self._console.url if self._console is not None else ""

    def open_browser(self) -> None:
        """Show the stream in the user's browser."""
        if self.url:
            webbrowser.open(self.url + STREAM)

    def publish(self, snapshot: Snapshot) -> None:
        """Write the ledger, once a second."""
        now_s = time.monotonic()
        if self._console is not None and now_s - self._published_s >= EVERY_S:
            self._published_s = now_s
            write_banner(self._file, *banner(snapshot))

    def close(self) -> None:
        self._control.close()
        if self._console is not None:
            self._console.end()
            self._console.wait()
        self._file.unlink(missing_ok=True)

    def _execute(self, command: str, broker_id: int, reply: Future[str]) -> None:
        # This runs in a thread of its own, so it may wait for a broker.
        try:
            reply.set_result(self._killable.execute(command, broker_id, self._cluster()))
        except Refused as refusal:
            reply.set_exception(refusal)
