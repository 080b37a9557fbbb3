"""A cluster of real broker processes, for tests.

Real processes on real ports, not a fake: what a test proves here it proves for the broker
that is shipped.  Nothing needs asyncio, so it serves tests of any client.

Ports are chosen below the range from which the kernel gives outgoing connections theirs.
A broker that is killed and restarted must get the same port back, and a client that keeps
trying to reach a dead port inside that range can end up connected to itself and hold it.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from hightide.process import BrokerFailed, BrokerProcess

if TYPE_CHECKING:
    from hightide.client.admin import Admin

HOST = "127.0.0.1"
T = TypeVar("T")

# What differs from a broker's own defaults, because a test wants its answer soon.
TEST_SETTINGS: Mapping[str, str] = {}


def port_range() -> tuple[int, int]:
    """Ports that no outgoing connection takes."""
    try:
        low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        low = 32768
    return max(1024, low - 12000), low - 1


def free_port() -> int:
    low, high = port_range()
    for port in random.sample(range(low, high), k=min(200, high - low)):
        with socket.socket() as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                trial.bind((HOST, port))
            except OSError:
                continue
            return port
    raise BrokerFailed(f"No free port between {low} and {high}.")


@dataclass(slots=True)
class _Broker:
    port: int
    process: BrokerProcess


class Cluster:
    """Brokers that live as long as the `with` block, or from `start()` to `stop()`.

    `settings` are broker settings by Kafka's names.  Data goes to a temporary directory that
    is removed at the end, unless `data` names one, which is kept.  `memory=True` writes
    nothing to disk; what a broker knew is then gone after `kill` or `restart`.
    """

    def __init__(
        self,
        brokers: int = 1,
        *,
        settings: Mapping[str, object] | None = None,
        data: Path | str | None = None,
        memory: bool = False,
        start_timeout_s: float = 60.0,
    ) -> None:
        if brokers != 1:
            raise ValueError(f"this version runs clusters of one broker, not of {brokers}")
        self._count = brokers
        self._settings = {**TEST_SETTINGS, **(settings or {})}
        self._given = Path(data) if data is not None else None
        self._memory = memory
        self._start_timeout_s = start_timeout_s
        self._folder: Path | None = None
        self._brokers: dict[int, _Broker] = {}

    # -- life ------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start every broker; returns when all of them serve."""
        assert not self._brokers, "the cluster is already started"
        self._folder = self._given or Path(tempfile.mkdtemp(prefix="hightide-test-"))
        try:
            for broker_id in range(1, self._count + 1):
                self._launch(broker_id)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop every broker in order, and remove the data unless it was given a place."""
        for broker in self._brokers.values():
            if broker.process.is_running():
                broker.process.resume()
                broker.process.stop()
        self._brokers.clear()
        if self._folder is not None and self._given is None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._folder = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _launch(self, broker_id: int) -> None:
        # Another process may take the port between our look and the broker's bind.
        for attempt in range(5):
            port = free_port()
            process = BrokerProcess(self._arguments(broker_id, port), self._log_file(broker_id))
            try:
                process.start(self._start_timeout_s)
            except BrokerFailed as error:
                if attempt < 4 and "address already in use" in str(error).lower():
                    continue
                raise
            self._brokers[broker_id] = _Broker(port, process)
            return

    def _arguments(self, broker_id: int, port: int) -> list[str]:
        made = ["--host", HOST, "--port", str(port)]
        settings: dict[str, object] = {"broker.id": broker_id}
        if self._memory:
            made.append("--memory")
        else:
            settings["log.dirs"] = self.data(broker_id)
        for name, value in {**settings, **self._settings}.items():
            text = str(value).lower() if isinstance(value, bool) else str(value)
            made += ["--override", f"{name}={text}"]
        return made

    def _log_file(self, broker_id: int) -> Path:
        assert self._folder is not None, "the cluster is not started"
        return self._folder / f"broker-{broker_id}.log"

    # -- what it is ------------------------------------------------------------------------

    @property
    def bootstrap(self) -> str:
        """What a client takes as `bootstrap.servers`."""
        return ",".join(f"{HOST}:{broker.port}" for broker in self._brokers.values())

    @property
    def brokers(self) -> list[int]:
        """The broker ids, running or not."""
        return list(self._brokers)

    def port(self, broker_id: int = 1) -> int:
        return self._brokers[broker_id].port

    def pid(self, broker_id: int = 1) -> int:
        return self._brokers[broker_id].process.pid

    def is_running(self, broker_id: int = 1) -> bool:
        return self._brokers[broker_id].process.is_running()

    def log(self, broker_id: int = 1) -> str:
        """Everything the broker has logged since the cluster was started."""
        return self._log_file(broker_id).read_text(errors="replace")

    def data(self, broker_id: int = 1) -> Path:
        """The broker's log directory."""
        assert self._folder is not None, "the cluster is not started"
        return self._folder / f"broker-{broker_id}"

    def leader(self, topic: str, partition: int = 0) -> int:
        """The id of the broker that leads a partition now."""

        async def ask(admin: Admin) -> int:
            (found,) = await admin.describe_topics([topic])
            return {each.partition: each.leader for each in found.partitions}[partition]

        return self._ask(ask)

    def create_topic(
        self,
        name: str | None = None,
        *,
        partitions: int = 1,
        config: Mapping[str, object] | None = None,
    ) -> str:
        """Create a topic, by default with a name nobody else has, and return the name."""
        made = name or f"test-{random.randbytes(6).hex()}"
        texts = {key: str(value) for key, value in (config or {}).items()}

        async def ask(admin: Admin) -> None:
            await admin.create_topic(made, partitions=partitions, config=texts)

        self._ask(ask)
        return made

    def _ask(self, question: Callable[[Admin], Coroutine[Any, Any, T]]) -> T:
        """Ask the cluster something; in a thread, since the caller may have a loop running."""
        from hightide.client.admin import Admin

        async def ask() -> T:
            async with Admin(self.bootstrap) as admin:
                return await question(admin)

        return _in_thread(ask)

    # -- what can happen to it -------------------------------------------------------------

    def kill(self, broker_id: int = 1) -> None:
        """SIGKILL."""
        self._brokers[broker_id].process.kill()

    def terminate(self, broker_id: int = 1) -> int:
        """SIGTERM: the broker stops in order; returns its exit code."""
        return self._brokers[broker_id].process.stop()

    def restart(self, broker_id: int = 1) -> None:
        """Start the broker again on the same port and data; one that runs is stopped first."""
        broker = self._brokers[broker_id]
        if broker.process.is_running():
            broker.process.resume()
            broker.process.stop()
        broker.process = BrokerProcess(
            self._arguments(broker_id, broker.port), self._log_file(broker_id)
        )
        broker.process.start(self._start_timeout_s)

    def pause(self, broker_id: int = 1) -> None:
        """SIGSTOP: the broker is there but does not answer."""
        self._brokers[broker_id].process.pause()

    def resume(self, broker_id: int = 1) -> None:
        self._brokers[broker_id].process.resume()


def _in_thread(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(asyncio.run(work()))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="hightide-testing")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
