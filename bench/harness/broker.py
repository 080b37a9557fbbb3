"""A broker under measurement: a process to start, query, stop and kill."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from bench.harness.process import with_descendants
from bench.harness.wire import Connection, WireFailure

BUILT = Path(__file__).resolve().parents[1] / ".build"
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0
NOT_YET = (OSError, WireFailure)
Question = Callable[[Connection], bool]
Settings = Mapping[str, str]


class NotSupported(Exception):
    """This broker cannot take part in this workload; not a failure, only a gap in the table."""


class BrokerFailure(Exception):
    """The broker failed."""


@dataclass(frozen=True, slots=True)
class Launch:
    """How a process is started.

    `before` runs once, while the data directory is empty, and is not part of any measured time:
    Kafka wants its directory formatted.
    """

    words: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    before: Callable[[], None] | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a broker in a cluster: its number, its data and its ports."""

    broker_id: int
    data: Path
    port: int
    inner_port: int
    """The port between brokers, where they use a separate one."""


class Candidate(Protocol):
    """A kind of broker, and how one of them or several are started."""

    @property
    def name(self) -> str: ...

    @property
    def about(self) -> str:
        """A description for the head of a report."""

    def alone(self, place: Place, settings: Settings) -> Launch:
        """One broker that is a whole cluster."""

    def together(self, places: list[Place], settings: Settings) -> list[Launch]:
        """One launch for each place; processes beside the brokers come after them."""


@dataclass(slots=True)
class Broker:
    """A broker process. `start_s` is the time from exec to the first answered ApiVersions.

    `began_at` and `killed_at` are moments of time.perf_counter().
    """

    launch: Launch
    data: Path
    port: int
    start_s: float = 0.0
    began_at: float = 0.0
    killed_at: float = 0.0
    _process: subprocess.Popen[bytes] | None = None

    @property
    def log_path(self) -> Path:
        return self.data.with_suffix(".out")

    @property
    def pids(self) -> list[int]:
        return [] if self._process is None else with_descendants(self._process.pid)

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def prepare(self) -> None:
        """Prepare the first start; the time does not count."""
        self.data.mkdir(parents=True, exist_ok=True)
        if self.launch.before is not None and not any(self.data.iterdir()):
            self.launch.before()

    def begin(self) -> None:
        """Start the process and do not wait."""
        self.prepare()
        with self.log_path.open("ab") as log:
            self.began_at = time.perf_counter()
            # Its own process group, so that it can be ended whole; not its own session, so that
            # it stays in the scheduling group of the harness and of the generators.
            self._process = subprocess.Popen(
                self.launch.words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=_environment() | dict(self.launch.environment),
                process_group=0,
            )

    def start(self, timeout_s: float = START_TIMEOUT_S) -> None:
        self.begin()
        self.wait_until(lambda ask: bool(ask.api_versions()), timeout_s)
        self.start_s = time.perf_counter() - self.began_at

    def wait_until(self, is_true: Question, timeout_s: float = START_TIMEOUT_S) -> None:
        """Query the broker until the result is true. It may not be listening yet."""
        assert self._process is not None
        give_up_at = time.monotonic() + timeout_s
        while True:
            try:
                with Connection(self.port) as connection:
                    if is_true(connection):
                        return
            except NOT_YET:
                pass
            if self._process.poll() is not None:
                raise BrokerFailure(f"ended with status {self._process.returncode}{self.said()}")
            if time.monotonic() > give_up_at:
                raise BrokerFailure(f"not ready after {timeout_s:.0f} s{self.said()}")
            time.sleep(0.002)

    def stop(self) -> None:
        """Send SIGTERM and wait. A killed broker would start with a recovery."""
        if not self._end(signal.SIGTERM):
            raise BrokerFailure(f"did not stop within {STOP_TIMEOUT_S:.0f} s{self.said()}")

    def kill(self) -> None:
        """Send SIGKILL: unwritten data is lost."""
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> bool:
        """Return whether the process ended after the signal."""
        process = self._process
        if process is None:
            return True
        self._process = None
        self.killed_at = time.perf_counter()
        try:
            os.killpg(process.pid, how)
            process.wait(STOP_TIMEOUT_S)
        except ProcessLookupError:
            process.wait()
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return False
        return True

    def said(self) -> str:
        lines = self.log_path.read_text(errors="replace").splitlines()[-15:]
        return "; it said:\n    " + "\n    ".join(lines) if lines else "; it said nothing"


def _environment() -> dict[str, str]:
    """The environment of every broker: byte code is cached, as in an installed package.

    A setting against it, usual in containers, would have Python brokers compile their source in
    every start. The cache has a separate directory, since a source tree may not be writable.
    """
    environment = dict(os.environ)
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    return environment | {"PYTHONPYCACHEPREFIX": str(BUILT / "pycache")}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
