"""A cluster of real processes, for tests: brokers and the coordinator that they share.

Real processes on real ports, not a fake: what a test proves here it proves for the broker
that is shipped.  Nothing needs asyncio, so it serves tests of any client.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
import threading
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from hightide.process import (
    START_S,
    BrokerProcess,
    ServiceFailed,
    ZooKeeperProcess,
    free_port,
    stop_all,
)

if TYPE_CHECKING:
    from hightide.client.admin import Admin

__all__ = ["Cluster", "free_port"]

HOST = "127.0.0.1"
ATTEMPTS = 5
T = TypeVar("T")

# What differs from a broker's own defaults, because a test wants its answer soon.
TEST_SETTINGS: Mapping[str, str] = {"zookeeper.session.timeout.ms": "6000"}
# A coordinator grants no session shorter than two of its ticks, and by default none longer than 20.
COORDINATOR_TIMES = ("--tick-ms", "200", "--max-session-timeout-ms", "60000")


@dataclass(slots=True)
class _Broker:
    port: int
    process: BrokerProcess


class Cluster:
    """Brokers that live as long as the `with` block, or from `start()` to `stop()`.

    `settings` are broker settings by Kafka's names, and `broker_settings` those that only some
    of the brokers have, by broker id: a rack each, for instance.  Data goes to a temporary
    directory that is removed at the end, unless `data` names one, which is kept.  `memory=True`
    writes nothing to disk; what a process knew is then gone after it is killed or restarted.

    The coordinator of one broker runs inside that broker, that of several is a process of its
    own; `coordinator=True` asks for such a process in any case.  `zookeeper_connect` names an
    ensemble that the test runs itself.
    """

    def __init__(
        self,
        brokers: int = 1,
        *,
        settings: Mapping[str, object] | None = None,
        broker_settings: Mapping[int, Mapping[str, object]] | None = None,
        data: Path | str | None = None,
        memory: bool = False,
        coordinator: bool = False,
        zookeeper_connect: str | None = None,
        start_timeout_s: float = START_S,
    ) -> None:
        if brokers < 1:
            raise ValueError(f"a cluster has at least one broker, not {brokers}")
        if coordinator and zookeeper_connect is not None:
            raise ValueError("a cluster with zookeeper_connect has no coordinator of its own")
        self._count = brokers
        self._settings = {**TEST_SETTINGS, **(settings or {})}
        self._broker_settings = broker_settings or {}
        self._given = Path(data) if data is not None else None
        self._memory = memory
        self._ensemble = zookeeper_connect
        self._separate = zookeeper_connect is None and (coordinator or brokers > 1)
        self._start_timeout_s = start_timeout_s
        self._folder: Path | None = None
        self._brokers: dict[int, _Broker] = {}
        self._coordinator_port = 0
        self._coordinator: ZooKeeperProcess | None = None

    # -- life ------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start everything at once; returns when every broker serves."""
        assert not self._brokers, "the cluster is already started"
        self._folder = self._given or Path(tempfile.mkdtemp(prefix="hightide-test-"))
        try:
            self._with_free_ports(self._start_all)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop everything in order, and remove the data unless it was given a place."""
        self._stop_all()
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

    def add_broker(self) -> int:
        """Start one more broker; returns its id when it serves."""
        broker_id = max(self._brokers) + 1

        def start() -> None:
            self._launch(broker_id)
            self._brokers[broker_id].process.wait_until_it_listens(self._start_timeout_s)

        try:
            self._with_free_ports(start)
        except BaseException:
            del self._brokers[broker_id]
            raise
        return broker_id

    def _with_free_ports(self, start: Callable[[], None]) -> None:
        """Start again when somebody took a port between our look and the bind."""
        for attempt in range(ATTEMPTS):
            try:
                return start()
            except ServiceFailed as error:
                if attempt == ATTEMPTS - 1 or "already in use" not in str(error).lower():
                    raise

    def _start_all(self) -> None:
        self._stop_all()
        self._coordinator_port = free_port()
        if self._separate:
            where = ["--memory"] if self._memory else ["--data", str(self._file("coordinator"))]
            self._coordinator = ZooKeeperProcess(
                ["--listen", f"{HOST}:{self._coordinator_port}", *where, *COORDINATOR_TIMES],
                self._file("coordinator.log"),
            )
            self._coordinator.launch()
        for broker_id in range(1, self._count + 1):
            self._launch(broker_id)
        if self._coordinator is not None:
            self._coordinator.wait_until_it_listens(self._start_timeout_s)
        for broker in self._brokers.values():
            broker.process.wait_until_it_listens(self._start_timeout_s)

    def _stop_all(self) -> None:
        stop_all(broker.process for broker in self._brokers.values())
        if self._coordinator is not None:
            stop_all([self._coordinator])
        self._brokers.clear()
        self._coordinator = None

    def _launch(self, broker_id: int) -> None:
        port = free_port()
        process = BrokerProcess(
            self._arguments(broker_id, port),
            self._file(f"broker-{broker_id}.log"),
            f"broker {broker_id}",
        )
        self._brokers[broker_id] = _Broker(port, process)
        process.launch()

    def _arguments(self, broker_id: int, port: int) -> list[str]:
        made = ["--host", HOST, "--port", str(port)]
        settings: dict[str, object] = {"broker.id": broker_id}
        if self._memory:
            made.append("--memory")
        else:
            settings["log.dirs"] = self.data(broker_id)
        # A coordinator inside a broker is inside the first; brokers added later go there too.
        inside = not self._separate and self._ensemble is None and broker_id == 1
        settings["coordinator.listen" if inside else "zookeeper.connect"] = self.coordinator
        own = self._broker_settings.get(broker_id, {})
        for name, value in {**settings, **self._settings, **own}.items():
            text = str(value).lower() if isinstance(value, bool) else str(value)
            made += ["--override", f"{name}={text}"]
        return made

    def _file(self, name: str) -> Path:
        assert self._folder is not None, "the cluster is not started"
        return self._folder / name

    # -- what it is ------------------------------------------------------------------------

    @property
    def bootstrap(self) -> str:
        """What a client takes as `bootstrap.servers`."""
        return ",".join(f"{HOST}:{broker.port}" for broker in self._brokers.values())

    @property
    def brokers(self) -> list[int]:
        """The broker ids, running or not."""
        return list(self._brokers)

    @property
    def coordinator(self) -> str:
        """What a ZooKeeper client takes as its hosts."""
        return self._ensemble or f"{HOST}:{self._coordinator_port}"

    def port(self, broker_id: int = 1) -> int:
        return self._brokers[broker_id].port

    def pid(self, broker_id: int = 1) -> int:
        return self._brokers[broker_id].process.pid

    def is_running(self, broker_id: int = 1) -> bool:
        return self._brokers[broker_id].process.is_running()

    def log(self, broker_id: int = 1) -> str:
        """Everything the broker has logged since the cluster was started."""
        return self._file(f"broker-{broker_id}.log").read_text(errors="replace")

    def data(self, broker_id: int = 1) -> Path:
        """The broker's log directory."""
        return self._file(f"broker-{broker_id}")

    def controller(self) -> int:
        """The id of the broker that is the controller now; -1 while there is none."""

        async def ask(admin: Admin) -> int:
            return (await admin.cluster.describe()).controller

        return self._ask(ask)

    def leader(self, topic: str, partition: int = 0) -> int:
        """The id of the broker that leads a partition now."""

        async def ask(admin: Admin) -> int:
            (found,) = await admin.topics.describe([topic])
            return {each.partition: each.leader for each in found.partitions}[partition]

        return self._ask(ask)

    def create_topic(
        self,
        name: str | None = None,
        *,
        partitions: int = 1,
        replication_factor: int = -1,
        config: Mapping[str, object] | None = None,
    ) -> str:
        """Create a topic, by default with a name nobody else has, and return the name."""
        made = name or f"test-{random.randbytes(6).hex()}"
        texts = {key: str(value) for key, value in (config or {}).items()}

        async def ask(admin: Admin) -> None:
            await admin.topics.create(
                made,
                partitions=partitions,
                replication_factor=replication_factor,
                config=texts,
            )

        self._ask(ask)
        return made

    def _ask(self, question: Callable[[Admin], Coroutine[Any, Any, T]]) -> T:
        """Ask the cluster something; in a thread, since the caller may have a loop running."""
        from hightide.client.admin import Admin

        able = ",".join(
            f"{HOST}:{broker.port}"
            for broker in self._brokers.values()
            if broker.process.is_running() and not broker.process.is_paused
        )

        async def ask() -> T:
            async with Admin(able) as admin:
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
        process = self._brokers[broker_id].process
        stop_all([process])
        process.start(self._start_timeout_s)

    def pause(self, broker_id: int = 1) -> None:
        """SIGSTOP: the broker is there but does not answer."""
        self._brokers[broker_id].process.pause()

    def resume(self, broker_id: int = 1) -> None:
        self._brokers[broker_id].process.resume()

    def kill_coordinator(self) -> None:
        """SIGKILL."""
        self._coordinator_process.kill()

    def restart_coordinator(self) -> None:
        """Start it again on the same port and data; one that runs is stopped first."""
        stop_all([self._coordinator_process])
        self._coordinator_process.start(self._start_timeout_s)

    def pause_coordinator(self) -> None:
        """SIGSTOP."""
        self._coordinator_process.pause()

    def resume_coordinator(self) -> None:
        self._coordinator_process.resume()

    @property
    def _coordinator_process(self) -> ZooKeeperProcess:
        if self._coordinator is None:
            where = "outside the cluster" if self._ensemble else "inside broker 1"
            raise ValueError(f"the coordinator is {where}; Cluster(coordinator=True) runs one")
        return self._coordinator


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
