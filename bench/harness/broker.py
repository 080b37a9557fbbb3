"""A broker under measurement: a command line that is started, asked, stopped and killed."""

import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from harness.process import starting_on, with_descendants
from harness.wire import CREATE_TOPICS, Connection, WireFailure

SOURCE = Path(__file__).resolve().parents[2] / "src"
BUILT = Path(__file__).resolve().parents[1] / ".build"
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0
NOT_YET = (OSError, WireFailure)
Question = Callable[[Connection], bool]


class NotSupported(Exception):
    """This broker cannot take part in this workload; not a failure, only a gap in the table."""


class BrokerFailure(Exception):
    """The broker did not do what a broker must do."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A broker by name, and how to start it; `{port}` and `{data}` are put in."""

    name: str
    command: str
    environment: dict[str, str] = field(default_factory=dict)

    @staticmethod
    def hightide(overrides: list[str]) -> "Candidate":
        """The Hightide of this source tree, under the interpreter that runs the harness."""
        more = "".join(f" --override {shlex.quote(one)}" for one in overrides)
        command = (
            f"{shlex.quote(sys.executable)} -m hightide broker start"
            f" --port {{port}} --override log.dirs={{data}}{more}"
        )
        path = os.pathsep.join(filter(None, [str(SOURCE), os.environ.get("PYTHONPATH")]))
        return Candidate("hightide", command, {"PYTHONPATH": path})

    @staticmethod
    def parse(text: str) -> "Candidate":
        name, equals, command = text.partition("=")
        if not (name and equals and "{port}" in command):
            raise ValueError(f"not NAME='command with {{port}} and {{data}}': {text!r}")
        return Candidate(name.strip(), command.strip())


@dataclass(slots=True)
class Broker:
    """A broker process. `start_s` is the time from exec to the first answered ApiVersions."""

    candidate: Candidate
    data: Path
    port: int
    cpu: int | None = None
    start_s: float = 0.0
    _process: subprocess.Popen[bytes] | None = None

    @property
    def log_path(self) -> Path:
        return self.data.with_suffix(".out")

    @property
    def pids(self) -> list[int]:
        assert self._process is not None
        return with_descendants(self._process.pid)

    def start(self, timeout_s: float = START_TIMEOUT_S) -> None:
        self.data.mkdir(parents=True, exist_ok=True)
        command = self.candidate.command
        for mark, value in (("{port}", str(self.port)), ("{data}", shlex.quote(str(self.data)))):
            command = command.replace(mark, value)
        words = shlex.split(command)
        environment = _environment() | self.candidate.environment
        with self.log_path.open("ab") as log, starting_on(self.cpu):
            began = time.perf_counter()
            # Its own process group, so that it can be ended whole; not its own session, so that
            # it stays in the scheduling group of the harness and of the generators.
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                process_group=0,
            )
        self.wait_until(lambda ask: bool(ask.api_versions()), timeout_s)
        self.start_s = time.perf_counter() - began

    def wait_until(self, is_true: Question, timeout_s: float = START_TIMEOUT_S) -> None:
        """Ask the broker until it says yes. It may not be listening yet."""
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
                raise BrokerFailure(f"ended with status {self._process.returncode}{self._said()}")
            if time.monotonic() > give_up_at:
                raise BrokerFailure(f"not ready after {timeout_s:.0f} s{self._said()}")
            time.sleep(0.002)

    def ensure_topic(self, name: str, partitions: int, *, must_create: bool = False) -> None:
        """Create the topic where the broker can; else it must be there from the start."""
        with Connection(self.port) as connection:
            if CREATE_TOPICS in connection.api_versions():
                connection.create_topic(name, partitions)
            elif must_create:
                raise NotSupported("has no CreateTopics")
        self.wait_until(lambda ask: ask.led_partitions(name) >= partitions)

    def stop(self) -> None:
        """SIGTERM and patience."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """kill -9: no goodbye, what is not written is lost."""
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        process = self._process
        if process is None:
            return
        self._process = None
        try:
            os.killpg(process.pid, how)
            process.wait(STOP_TIMEOUT_S)
        except ProcessLookupError:
            process.wait()
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _said(self) -> str:
        lines = self.log_path.read_text(errors="replace").splitlines()[-15:]
        return "; it said:\n    " + "\n    ".join(lines) if lines else "; it said nothing"


def _environment() -> dict[str, str]:
    """The environment of every broker: byte code is cached, as in an installed package.

    A setting against it, usual in containers, would have Python brokers compile their source in
    every start. The cache has a place of its own, since a source tree may not be writable.
    """
    environment = dict(os.environ)
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    return environment | {"PYTHONPYCACHEPREFIX": str(BUILT / "pycache")}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(candidate: Candidate, under: Path, cpu: int | None = None) -> Iterator[Broker]:
    """A broker on an empty data directory; killed and its data removed afterwards.

    Killed, because an orderly stop would first write the data to disk that is about to be
    removed. So most of it never gets there and the rounds that follow are not disturbed.
    """
    data = under / candidate.name
    shutil.rmtree(data, ignore_errors=True)
    broker = Broker(candidate, data, free_port(), cpu)
    try:
        broker.start()
        yield broker
    finally:
        broker.kill()
        shutil.rmtree(data, ignore_errors=True)
        broker.log_path.unlink(missing_ok=True)
