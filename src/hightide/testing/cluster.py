"""A cluster of real processes for tests: brokers, and the ZooKeeper server that they share.

The processes are real and listen on real ports, so a test checks the broker that is shipped.  The
class does not need asyncio, so it works for tests of any client.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping
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
from hightide.settings.secrets import is_secret, variable_of

if TYPE_CHECKING:
    from hightide.client.admin import Admin
    from hightide.client.model.events import BrokerEvent, EventFilter, FoundEvents
    from hightide.client.model.replicas import ReplicasDescription

__all__ = ["Cluster", "free_port"]

HOST = "127.0.0.1"
ATTEMPTS = 5
EVENTS_S = 20.0
T = TypeVar("T")

MOST_REPLICAS = 3
# Settings that differ from a broker's defaults, because tests should be fast.
TEST_SETTINGS: Mapping[str, str] = {
    "zookeeper.session.timeout.ms": "6000",
    # A group with one member should not wait for others, and a test may want members to expire.
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "500",
    "group.consumer.heartbeat.interval.ms": "300",
}
# A ZooKeeper session timeout is at least two ticks, and by default at most twenty.
ZOOKEEPER_TIMES = ("--tick-ms", "200", "--max-session-timeout-ms", "60000")


@dataclass(slots=True)
class _Broker:
    port: int
    metrics_port: int
    """0 without metrics."""
    process: BrokerProcess


class Cluster:
    """Brokers that run during the `with` block, or from `start()` to `stop()`.

    A topic has as many replicas as there are brokers, at most three.

    `settings` are broker settings with Kafka's names.  `broker_settings` are the settings of single
    brokers, by broker id, such as a rack each.  Data goes to a temporary directory that is removed
    at the end, unless `data` names a directory, which is kept.  `memory=True` writes nothing to
    disk: the data of a process is then lost when it is killed or restarted.

    `metrics=True` lets each broker serve /metrics, /livez and /readyz at `metrics(broker_id)`.

    ZooKeeper runs inside of the broker if there is one broker, and as a separate process if there
    are several; `zookeeper=True` always starts a separate process.  `zookeeper_connect` names an
    ensemble that the test runs itself.

    The ZooKeeper session of a broker that was killed ends at once, so others lead its partitions
    within a few tenths of a second.  `ends_sessions=False` leaves it to the session timeout, as on
    machines that fail.  `coordinator` is the earlier name of `zookeeper`, also in
    the names of methods.
    """

    def __init__(
        self,
        brokers: int = 1,
        *,
        settings: Mapping[str, object] | None = None,
        broker_settings: Mapping[int, Mapping[str, object]] | None = None,
        data: Path | str | None = None,
        memory: bool = False,
        metrics: bool = False,
        zookeeper: bool = False,
        coordinator: bool = False,
        zookeeper_connect: str | None = None,
        ends_sessions: bool = True,
        start_timeout_s: float = START_S,
    ) -> None:
        if brokers < 1:
            raise ValueError(f"a cluster has at least one broker, not {brokers}")
        zookeeper = zookeeper or coordinator
        if zookeeper and zookeeper_connect is not None:
            raise ValueError("give either zookeeper=True or zookeeper_connect, not both")
        self._count = brokers
        replicas = {"default.replication.factor": str(min(MOST_REPLICAS, brokers))}
        self._settings = {**TEST_SETTINGS, **replicas, **(settings or {})}
        self._broker_settings = broker_settings or {}
        self._given = Path(data) if data is not None else None
        self._memory = memory
        self._has_metrics = metrics
        self._ensemble = zookeeper_connect
        self._separate = zookeeper_connect is None and (zookeeper or brokers > 1)
        self._ends_sessions = ends_sessions
        self._start_timeout_s = start_timeout_s
        self._folder: Path | None = None
        self._brokers: dict[int, _Broker] = {}
        self._zookeeper_port = 0
        self._zookeeper: ZooKeeperProcess | None = None

    # -- start and stop --------------------------------------------------------------------

    def start(self) -> Self:
        """Start all processes at once; return when every broker serves."""
        assert not self._brokers, "the cluster is already started"
        self._folder = self._given or Path(tempfile.mkdtemp(prefix="hightide-test-"))
        try:
            self._with_free_ports(self._start_all)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop all processes, and remove the data unless `data` was given."""
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
        """Start one more broker, and return its id when it serves."""
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
        """Start, and try again if another process took a port between the check and the bind."""
        for attempt in range(ATTEMPTS):
            try:
                return start()
            except ServiceFailed as error:
                if attempt == ATTEMPTS - 1 or "already in use" not in str(error).lower():
                    raise

    def _start_all(self) -> None:
        self._stop_all()
        self._zookeeper_port = free_port()
        if self._separate:
            where = ["--memory"] if self._memory else ["--data", str(self._file("zookeeper"))]
            self._zookeeper = ZooKeeperProcess(
                ["--listen", f"{HOST}:{self._zookeeper_port}", *where, *ZOOKEEPER_TIMES],
                self._file("zookeeper.log"),
            )
            self._zookeeper.launch()
        for broker_id in range(1, self._count + 1):
            self._launch(broker_id)
        if self._zookeeper is not None:
            self._zookeeper.wait_until_it_listens(self._start_timeout_s)
        for broker in self._brokers.values():
            broker.process.wait_until_it_listens(self._start_timeout_s)

    def _stop_all(self) -> None:
        stop_all(broker.process for broker in self._brokers.values())
        if self._zookeeper is not None:
            stop_all([self._zookeeper])
        self._brokers.clear()
        self._zookeeper = None

    def _launch(self, broker_id: int) -> None:
        port = free_port()
        metrics_port = free_port() if self._has_metrics else 0
        process = BrokerProcess(
            self._arguments(broker_id, port, metrics_port),
            self._file(f"broker-{broker_id}.log"),
            f"broker {broker_id}",
            wrapper=self.wrapper(broker_id),
            variables=self._variables(broker_id),
        )
        if self._ends_sessions:
            process.zookeeper = self.zookeeper
        self._brokers[broker_id] = _Broker(port, metrics_port, process)
        process.launch()

    def _arguments(self, broker_id: int, port: int, metrics_port: int = 0) -> list[str]:
        arguments = ["--host", self.host(broker_id), "--port", str(port)]
        settings: dict[str, object] = {"broker.id": broker_id}
        if self._memory:
            arguments.append("--memory")
        else:
            settings["log.dirs"] = self.data(broker_id)
        if metrics_port:
            settings["metrics.listeners"] = f"HTTP://{self.host(broker_id)}:{metrics_port}"
        # An embedded ZooKeeper runs inside of the first broker; brokers added later use it too.
        inside = not self._separate and self._ensemble is None and broker_id == 1
        settings["zookeeper.listen" if inside else "zookeeper.connect"] = self.zookeeper
        own = self._broker_settings.get(broker_id, {})
        for name, value in {**settings, **self._settings, **own}.items():
            text = str(value).lower() if isinstance(value, bool) else str(value)
            if not is_secret(name):
                arguments += ["--override", f"{name}={text}"]
        return arguments

    def _variables(self, broker_id: int) -> dict[str, str]:
        """The settings that are secrets, as environment variables: arguments are public."""
        given = {**self._settings, **self._broker_settings.get(broker_id, {})}
        return {variable_of(name): str(value) for name, value in given.items() if is_secret(name)}

    def _file(self, name: str) -> Path:
        assert self._folder is not None, "the cluster is not started"
        return self._folder / name

    # -- describe --------------------------------------------------------------------------

    @property
    def bootstrap(self) -> str:
        """The `bootstrap.servers` of a client."""
        return self._addresses(self._brokers)

    @property
    def brokers(self) -> list[int]:
        """The broker ids, running or not."""
        return list(self._brokers)

    @property
    def zookeeper(self) -> str:
        """The hosts of a ZooKeeper client."""
        return self._ensemble or f"{HOST}:{self._zookeeper_port}"

    def host(self, broker_id: int = 1) -> str:  # noqa: ARG002 - a subclass may have one for each
        """The address of the broker, without the port."""
        return HOST

    def wrapper(self, broker_id: int = 1) -> list[str]:  # noqa: ARG002 - likewise
        """The command that starts the broker's command, such as `ip netns exec`; empty for none."""
        return []

    def port(self, broker_id: int = 1) -> int:
        return self._brokers[broker_id].port

    def metrics(self, broker_id: int = 1, path: str = "/metrics") -> str:
        """The URL of a broker's metrics, or of another path there, such as /readyz."""
        port = self._brokers[broker_id].metrics_port
        assert port, "Cluster(metrics=True) has metrics"
        return f"http://{self.host(broker_id)}:{port}{path}"

    def pid(self, broker_id: int = 1) -> int:
        return self._brokers[broker_id].process.pid

    def is_running(self, broker_id: int = 1) -> bool:
        return self._brokers[broker_id].process.is_running()

    def is_paused(self, broker_id: int = 1) -> bool:
        return self._brokers[broker_id].process.is_paused

    def responsive(self) -> list[int]:
        """The brokers that run and are not paused."""
        return [
            broker_id
            for broker_id, broker in self._brokers.items()
            if broker.process.is_running() and not broker.process.is_paused
        ]

    def log(self, broker_id: int = 1) -> str:
        """The broker's log since the cluster was started."""
        return self._file(f"broker-{broker_id}.log").read_text(errors="replace")

    def log_ends(self, line_count: int = 20) -> str:
        """The last log lines of each process, for the report of a failed test."""
        processes = [broker.process for broker in self._brokers.values()]
        return "\n".join(
            f"-- {process.name} ({'running' if process.is_running() else 'ended'})\n"
            f"{process.last_lines(line_count)}"
            for process in (*processes, *filter(None, [self._zookeeper]))
        )

    def events(
        self, broker_id: int | None = None, *, kind: str | None = None, limit: int = 1000
    ) -> list[BrokerEvent]:
        """The newest events of the running brokers, or of one, in the order of time."""
        from hightide.client.model.events import EventFilter

        brokers = self.responsive() if broker_id is None else [broker_id]
        kinds = [] if kind is None else [kind]
        return self.found_events(EventFilter(brokers=brokers, kinds=kinds), limit).events

    def found_events(self, wanted: EventFilter, limit: int) -> FoundEvents:
        """The newest events of these brokers, and the brokers that did not answer."""

        async def ask(admin: Admin) -> FoundEvents:
            async with asyncio.timeout(EVENTS_S):
                return await admin.events.newest(limit, wanted)

        return self._ask(ask)

    def event_ends(self, count: int = 20) -> str:
        """The last events of each broker, for the report of a failed test."""
        from hightide.testing.report import event_ends

        return event_ends(self, count)

    def xray_ends(self) -> str:
        """Files with X-rays of changed partitions, for the report of a failed test."""
        from hightide.testing.report import xray_ends

        return xray_ends(self)

    def replicas(self) -> tuple[ReplicasDescription, Mapping[str, int]]:
        """All replicas, as the brokers that answer describe them, and the topics' min ISR."""

        async def ask(admin: Admin) -> tuple[ReplicasDescription, Mapping[str, int]]:
            async with asyncio.timeout(EVENTS_S):
                found = await admin.replicas.describe()
                names = sorted({partition.topic for partition in found.partitions})
                return found, await admin.configs.min_insync_replicas(names)

        return self._ask(ask)

    def data(self, broker_id: int = 1) -> Path:
        """The broker's log directory."""
        return self._file(f"broker-{broker_id}")

    def controller(self) -> int:
        """The id of the controller; -1 while there is none."""

        async def ask(admin: Admin) -> int:
            return (await admin.cluster.describe()).controller

        return self._ask(ask)

    def leader(self, topic: str, partition: int = 0) -> int:
        """The id of the leader of a partition."""

        async def ask(admin: Admin) -> int:
            (found,) = await admin.topics.describe([topic])
            return {at.partition: at.leader for at in found.partitions}[partition]

        return self._ask(ask)

    def create_topic(
        self,
        name: str | None = None,
        *,
        partitions: int = 1,
        replication_factor: int = -1,
        config: Mapping[str, object] | None = None,
    ) -> str:
        """Create a topic, by default with a random name, and return the name."""
        topic = name or f"test-{random.randbytes(6).hex()}"
        texts = {key: str(value) for key, value in (config or {}).items()}

        async def ask(admin: Admin) -> None:
            await admin.topics.create(
                topic,
                partitions=partitions,
                replication_factor=replication_factor,
                config=texts,
            )

        self._ask(ask)
        return topic

    def _ask(self, question: Callable[[Admin], Coroutine[Any, Any, T]]) -> T:
        """Run an admin client, in a thread, because the caller may have a running event loop."""
        from hightide.client.admin import Admin

        responsive = self._addresses(self.responsive())

        async def ask() -> T:
            async with Admin(responsive) as admin:
                return await question(admin)

        return _in_thread(ask)

    def _addresses(self, broker_ids: Iterable[int]) -> str:
        return ",".join(
            f"{self.host(broker_id)}:{self.port(broker_id)}" for broker_id in broker_ids
        )

    # -- faults ----------------------------------------------------------------------------

    def kill(self, broker_id: int = 1) -> None:
        """Send SIGKILL."""
        self._brokers[broker_id].process.kill()

    def terminate(self, broker_id: int = 1) -> int:
        """Send SIGTERM, wait for the controlled shutdown, and return the exit code."""
        return self._brokers[broker_id].process.stop()

    def restart(self, broker_id: int = 1) -> None:
        """Start the broker again on the same port and data; a running one is stopped first."""
        process = self._brokers[broker_id].process
        stop_all([process])
        process.start(self._start_timeout_s)

    def pause(self, broker_id: int = 1) -> None:
        """Send SIGSTOP: the broker exists but does not answer."""
        self._brokers[broker_id].process.pause()

    def resume(self, broker_id: int = 1) -> None:
        self._brokers[broker_id].process.resume()

    def kill_zookeeper(self) -> None:
        """Send SIGKILL."""
        self._zookeeper_process.kill()

    def restart_zookeeper(self) -> None:
        """Start ZooKeeper again on the same port and data; a running one is stopped first."""
        stop_all([self._zookeeper_process])
        self._zookeeper_process.start(self._start_timeout_s)

    def pause_zookeeper(self) -> None:
        """Send SIGSTOP."""
        self._zookeeper_process.pause()

    def resume_zookeeper(self) -> None:
        self._zookeeper_process.resume()

    coordinator = zookeeper
    kill_coordinator = kill_zookeeper
    restart_coordinator = restart_zookeeper
    pause_coordinator = pause_zookeeper
    resume_coordinator = resume_zookeeper

    @property
    def _zookeeper_process(self) -> ZooKeeperProcess:
        if self._zookeeper is None:
            where = "outside the cluster" if self._ensemble else "inside broker 1"
            raise ValueError(
                f"ZooKeeper is {where}; Cluster(zookeeper=True) runs a separate process"
            )
        return self._zookeeper


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
