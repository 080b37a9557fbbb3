"""A broker as a child process: started, waited for, stopped, and never left behind.

`hightide up` and `hightide.testing` both run brokers this way, as a person would from a
shell, so nothing here knows what a broker does inside.  Three things are promised:

* `start` returns when the broker says that it serves (its `listening:` line), or raises
  with the last lines of its log.  Nobody sleeps and hopes.
* The broker dies with its parent, even when the parent is killed.  The parent holds the
  one writing end of a pipe, and the child stops when that pipe closes.  The kernel's own
  parent-death signal is no substitute: it fires when the *thread* that started the child
  ends, which would end a broker started from a test's worker thread.
* The child is in a session of its own, so Ctrl-C reaches the parent only, which then
  stops the child in order.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import hightide

LIFELINE = "HIGHTIDE_LIFELINE_FD"
LISTENING = b"listening:"
GRACE_S = 30.0


class BrokerFailed(Exception):
    """A broker that did not start, or stopped by itself; the text ends with its last log lines."""


def environment() -> dict[str, str]:
    """The parent's environment, made such that the child finds the same `hightide` package.

    An installed package is found anyway; a source tree that only this process has on its
    path is not.
    """
    found = dict(os.environ)
    root = Path(hightide.__file__).resolve().parents[1]
    if root.name not in {"site-packages", "dist-packages"}:
        found["PYTHONPATH"] = os.pathsep.join(filter(None, (str(root), found.get("PYTHONPATH"))))
    return found


class BrokerProcess:
    """One `hightide broker start` process and the file that its log goes to."""

    def __init__(self, arguments: Sequence[str], log: Path) -> None:
        self.arguments = list(arguments)
        self.log = log
        self.address = ""
        self._child: subprocess.Popen[bytes] | None = None
        self._lifeline = -1

    @property
    def pid(self) -> int:
        assert self._child is not None
        return self._child.pid

    def is_running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    def start(self, timeout_s: float = 60.0) -> str:
        """Start the broker and return the `host:port` on which it serves."""
        assert not self.is_running()
        self.log.parent.mkdir(parents=True, exist_ok=True)
        watched, self._lifeline = os.pipe()
        # -P keeps the current directory off the child's path: a file there that happens to
        # be called like one of our imports must not be loaded.
        command = [sys.executable, "-P", "-m", "hightide", "broker", "start", *self.arguments]
        try:
            with self.log.open("ab") as log:
                self._child = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    env={**environment(), LIFELINE: str(watched)},
                    pass_fds=(watched,),
                    start_new_session=True,
                )
        finally:
            os.close(watched)
        self.address = self._wait_until_it_listens(time.monotonic() + timeout_s)
        return self.address

    def _wait_until_it_listens(self, deadline: float) -> str:
        assert self._child is not None
        assert self._child.stdout is not None
        pipe = self._child.stdout.fileno()
        said = b""
        while True:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([pipe], [], [], left)[0]:
                self.kill()
                raise BrokerFailed(self._obituary("The broker did not start in time"))
            part = os.read(pipe, 4096)
            if not part:
                code = self.wait()
                raise BrokerFailed(self._obituary(f"The broker stopped with exit code {code}"))
            said += part
            for line in said.splitlines(keepends=True):
                if line.startswith(LISTENING) and line.endswith(b"\n"):
                    return line.removeprefix(LISTENING).decode().strip()

    def wait(self) -> int:
        """Wait until the broker is gone, and return its exit code."""
        assert self._child is not None
        code = self._child.wait()
        self._let_go()
        return code

    def stop(self, timeout_s: float = GRACE_S) -> int:
        """Ask the broker to stop in order; one that does not is killed."""
        assert self._child is not None
        self._signal(signal.SIGTERM)
        try:
            code = self._child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            code = self._child.wait()
        self._let_go()
        return code

    def kill(self) -> None:
        """SIGKILL: the broker has no chance to finish anything."""
        self._signal(signal.SIGKILL)
        self.wait()

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        assert self._child is not None
        # send_signal reaps first, so a pid that was given to somebody else is never hit.
        with contextlib.suppress(ProcessLookupError):
            self._child.send_signal(number)

    def _let_go(self) -> None:
        if self._child is not None and self._child.stdout is not None:
            self._child.stdout.close()
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1

    def last_lines(self, count: int = 20) -> str:
        """The end of the broker's log."""
        try:
            with self.log.open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - 64 * 1024))
                lines = log.read().decode(errors="replace").splitlines()
        except OSError:
            return ""
        return "\n".join(lines[-count:])

    def _obituary(self, what: str) -> str:
        lines = self.last_lines()
        return f"{what}. The end of its log:\n{lines}" if lines else f"{what} and logged nothing."

    def died(self) -> BrokerFailed:
        """What to raise when a broker that should be running is not."""
        return BrokerFailed(self._obituary(f"The broker stopped with exit code {self.wait()}"))


def stop_with_parent() -> None:
    """In the child: stop when the parent that holds the lifeline is gone.

    A thread that only ever waits in one read costs the event loop nothing.
    """
    descriptor = os.environ.pop(LIFELINE, "")
    if not descriptor.isdigit():
        return
    import threading

    def watch() -> None:
        with contextlib.suppress(OSError):
            while os.read(int(descriptor), 1):
                pass
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE_S)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="lifeline", daemon=True).start()
