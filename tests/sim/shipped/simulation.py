"""A whole cluster of shipped brokers for one seed: chance chooses its shape, faults and clients.

First a time of faults, then everything heals, and then the cluster must come to rest: every
partition led, every replica in sync and equal to the others, every write answered, nothing lost.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import logging
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checkers import Violated

from hightide.broker.replica import Replica
from hightide.coordination import znodes
from hightide.coordination.operation import Create, Multi, OpenSession
from hightide.settings import Broker as Settings
from shipped.clients import Admin, Client, Consumer, Producer
from shipped.coordination import Coordinator
from shipped.loop import Failed, Process, SimLoop, World
from shipped.machine import PORT, Machine
from shipped.network import Network
from shipped.witness import Partition, Witness

sys.path.append(str(Path(__file__).parents[2] / "conformance"))

from history import History

FAULTS_S = 20.0
REST_S = 15.0
SESSION_MS = 2000
TOPIC = "t"
_FAULTS = (
    *("kill", "kill", "power", "leave", "pause", "slow", "disk", "coordinator", "reset"),
    *("cut", "cut", "cut_one_way", "island", "heal", "heal", "move", "skew"),
)


@dataclass(frozen=True, slots=True)
class Shape:
    """What a seed chose."""

    brokers: int
    replicas: int
    partitions: int
    min_isr: int
    lag_ms: int
    unclean: bool
    power_cuts: bool
    loss: float
    moves: bool
    flushes: bool
    segment_bytes: int


class Simulation:
    """One run."""

    def __init__(self, seed: int) -> None:
        self.world = world = World(seed)
        self.network = Network(world)
        random = world.random
        brokers = random.choice((2, 3, 3, 3, 4))
        replicas = min(brokers, random.choice((1, 2, 3, 3, 3)))
        self.shape = Shape(
            brokers,
            replicas,
            random.choice((1, 1, 2, 3)),
            random.randint(1, max(1, replicas - random.choice((0, 1, 1)))),
            random.choice((600, 1000, 2500)),
            random.random() < 0.1,
            random.random() < 0.5,
            random.choice((0.0, 0.0, 0.01, 0.05)),
            random.random() < 0.5,
            random.random() < 0.2,
            random.choice((1024, 4096, 1 << 30)),
        )
        world.tell(f"{self.shape}")
        self.coordinator = Coordinator(world)
        self.machines = {
            broker_id: Machine(world, broker_id, self._settings(broker_id))
            for broker_id in range(1, brokers + 1)
        }
        self.witness = Witness(
            self.machines,
            self.coordinator,
            min_isr=self.shape.min_isr,
            unclean=self.shape.unclean,
        )
        self.checker = self.witness.checker
        self.history = History(lambda: world.now)
        self.partitions: dict[Partition, tuple[int, ...]] = {
            (TOPIC, index): tuple(random.sample(list(self.machines), replicas))
            for index in range(self.shape.partitions)
        }
        self._make_clients()
        world.after_each = self._after_each
        for machine in self.machines.values():
            machine.on_exit = lambda machine=machine: self._later(machine)

    def _settings(self, broker_id: int) -> Settings:
        return Settings(
            broker_id=broker_id,
            listeners=f"PLAINTEXT://broker-{broker_id}:{PORT}",
            zookeeper_connect="coordinator:2181",
            zookeeper_session_timeout_ms=SESSION_MS,
            replica_lag_time_max_ms=self.shape.lag_ms,
            replica_fetch_wait_max_ms=min(500, self.shape.lag_ms // 3),
            replica_socket_timeout_ms=1500,
            controller_socket_timeout_ms=1500,
            controlled_shutdown_max_retries=2,
            replica_high_watermark_checkpoint_interval_ms=1000,
            log_flush_interval_ms=1500,
            unclean_leader_election_enable=self.shape.unclean,
            auto_create_topics_enable=False,
            leader_imbalance_check_interval_seconds=5,
        )

    def _make_clients(self) -> None:
        world, random = self.world, self.world.random
        brokers = {each.broker_id: (each.name, PORT) for each in self.machines.values()}
        self.admin = Admin(world, "admin", brokers)
        self.producers = [
            Producer(
                world,
                f"producer-{nth}",
                brokers,
                self.checker,
                self.history,
                list(self.partitions),
                acks=acks,
                idempotent=idempotent,
            )
            for nth, (acks, idempotent) in enumerate(
                ((-1, True), (-1, False), random.choice(((1, False), (-1, True))))
            )
        ]
        self.consumers = [
            Consumer(world, f"consumer-{nth}", brokers, self.checker, partition, nth % 2 == 0)
            for nth, partition in enumerate(self.partitions)
        ]
        self.clients: list[Client] = [*self.producers, *self.consumers]

    def _after_each(self, process: Process) -> None:
        if isinstance(process, Machine):
            self.witness.look(process)

    # -- the run ---------------------------------------------------------------------------

    def run(self) -> None:
        world, random = self.world, self.world.random
        self.coordinator.start(self.coordinator.main)
        world.run(0.0)
        self._found_cluster()
        for machine in self.machines.values():
            world.at(random.uniform(0.0, 0.3), machine.begin)
        self.admin.begin()
        self.admin.tell(lambda: self.admin.create(TOPIC, self._assignment(), self._configs()))
        for client in self.clients:
            world.at(random.uniform(0.5, 1.0), client.begin)
        self.network.loss = self.shape.loss
        world.at(3.0, self._fault)
        world.run(FAULTS_S)
        self._heal()
        world.run(FAULTS_S + REST_S)
        self._has_rested(FAULTS_S + REST_S / 2)
        for client in self.producers:
            client.is_stopping = True
        world.run(FAULTS_S + REST_S + 3.0)
        self.checker.finished()
        self._judge()

    def _found_cluster(self) -> None:
        """The cluster's id would be the one thing that is chosen by real chance."""
        self.coordinator.write(OpenSession(1 << 40, 1 << 40), 1 << 40)
        found = znodes.ClusterId(znodes.id_text(uuid.UUID(int=self.world.seed)))
        self.coordinator.write(
            Multi((Create("/cluster"), Create(znodes.CLUSTER_ID, found.encode()))), 1 << 40
        )

    def _assignment(self) -> dict[int, tuple[int, ...]]:
        return {index: replicas for (_, index), replicas in self.partitions.items()}

    def _configs(self) -> dict[str, str]:
        configs = {
            "min.insync.replicas": str(self.shape.min_isr),
            "segment.bytes": str(self.shape.segment_bytes),
        }
        if self.shape.flushes:
            configs["flush.messages"] = "1"
        return configs

    def _has_rested(self, since: float) -> None:
        """L2: everybody was answered since then."""
        for producer in self.producers:
            if producer.answered_at < since:
                raise Violated(f"L2 {producer.name} was answered last at {producer.answered_at}")

    def _judge(self) -> None:
        """What clients were told, by Kafka's promises alone."""
        logs = {}
        for partition, state in self.witness.states():
            if self.checker.truth(partition).is_lossy:
                continue
            assert state is not None
            entries = self.witness.log(state.leader, partition).entries
            logs[partition] = [(at, entry.value.encode()) for at, entry in enumerate(entries)]
        found = [each for each in self.history.anomalies(logs) if each.partition in logs]
        if found:
            raise Violated("\n".join(str(each) for each in found[:20]))

    # -- what goes wrong -------------------------------------------------------------------

    def _fault(self) -> None:
        if self.world.now >= FAULTS_S:
            return
        random = self.world.random
        machine = random.choice(list(self.machines.values()))
        fault = random.choice(_FAULTS)
        if fault in ("kill", "power", "leave", "pause", "disk", "skew"):
            self._break(fault, machine)
        else:
            self._disconnect(fault, machine)
        self.world.at(random.choice((0.02, 0.1, 0.3, 0.8, 2.0)), self._fault)

    def _break(self, fault: str, machine: Machine) -> None:
        random, world = self.world.random, self.world
        match fault:
            case "kill" if machine.is_up:
                machine.crash()
                self._later(machine)
            case "power" if machine.is_up and self.shape.power_cuts:
                self.checker.lost[machine.broker_id] = None
                machine.crash(power=True)
                self._later(machine)
            case "leave" if machine.is_serving and not machine.is_paused:
                machine.terminate()
            case "pause" if machine.is_up and not machine.is_paused:
                machine.pause()
                world.at(random.choice((0.2, 1.0, 3.0, 6.0)), self._resume, machine, machine.lives)
            case "disk":
                machine.slow_s = random.choice((0.02, 0.2, 1.0))
                world.at(random.uniform(0.5, 3.0), self._speed_up, machine)
            case "skew":
                machine.skew_ms = random.choice((0, -5000, 300, 60_000))

    def _disconnect(self, fault: str, machine: Machine) -> None:
        random, network = self.world.random, self.network
        others = [each for each in self.world.processes if each != machine.name]
        peers = [*(each.name for each in self.machines.values()), self.coordinator.name]
        other = random.choice(peers)
        match fault:
            case "cut":
                self.world.tell(f"{machine.name} and {other} are cut off")
                network.cut(machine.name, other)
                network.cut(other, machine.name)
            case "cut_one_way":
                one, another = random.sample((machine.name, other), 2)
                self.world.tell(f"nothing goes from {one} to {another}")
                network.cut(one, another)
            case "island":
                self.world.tell(f"{machine.name} is an island")
                for name in others:
                    network.cut(machine.name, name)
                    network.cut(name, machine.name)
            case "slow":
                delay_s = random.choice((0.02, 0.2, 0.8))
                self.world.tell(f"{machine.name} is slow by {delay_s}")
                for name in others:
                    network.slow_down(machine.name, name, delay_s)
            case "reset":
                self.world.tell(f"{machine.name} and {other} are reset")
                network.reset(machine.name, other)
            case "heal":
                self.world.tell("the network heals")
                network.heal()
                network.loss = self.shape.loss
            case "coordinator" if self.coordinator.is_up:
                self.coordinator.crash()
                self.world.at(random.choice((0.05, 0.5, 2.5)), self._start_coordinator)
            case "move" if self.shape.moves:
                self._move()

    def _move(self) -> None:
        """Somebody wants a partition on other brokers, or gives up wanting it."""
        random = self.world.random
        partition = random.choice(list(self.partitions))
        target = tuple(random.sample(list(self.machines), self.shape.replicas))
        wanted = random.choice((target, target, None))
        self.admin.tell(lambda: self.admin.move(partition, wanted))

    def _later(self, machine: Machine) -> None:
        if self.world.now < FAULTS_S:
            delay_s = self.world.random.choice((0.01, 0.3, 1.5, 4.0))
        else:
            delay_s = 0.3
        self.world.at(delay_s, self._start, machine)

    def _start(self, machine: Machine) -> None:
        if not machine.is_up:
            machine.begin()

    def _start_coordinator(self) -> None:
        if not self.coordinator.is_up:
            self.coordinator.start(self.coordinator.main)

    def _resume(self, machine: Machine, life: int) -> None:
        if machine.is_up and machine.is_paused and machine.lives == life:
            machine.resume()

    def _speed_up(self, machine: Machine) -> None:
        machine.slow_s = 0.0

    def _heal(self) -> None:
        self.world.tell("everything heals")
        self.network.heal()
        self._start_coordinator()
        for machine in self.machines.values():
            machine.slow_s = 0.0
            self._resume(machine, machine.lives)
            self._start(machine)


# -- around a run ----------------------------------------------------------------------------


class _Noted(logging.Handler):
    """Puts what brokers log into the story.  What they did not expect is the end of it."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.INFO)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        loop = asyncio._get_running_loop()
        if not isinstance(loop, SimLoop) or loop.is_dead:
            return
        self._world.note(f"{loop.process.name} {record.levelname}: {record.getMessage()}")
        if record.exc_info and record.levelno >= logging.ERROR:
            failure = Failed(f"{loop.process.name}: {record.getMessage()}: {record.exc_info[1]!r}")
            failure.__cause__ = record.exc_info[1]
            self._world.fail(failure)


class _Inline:
    """An executor without threads."""

    def __init__(self, *_arguments: Any, **_keywords: Any) -> None:
        return

    def __enter__(self) -> _Inline:
        return self

    def __exit__(self, *_error: object) -> None:
        return

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Any:
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        try:
            future.set_result(function(*arguments))
        except Exception as error:
            future.set_exception(error)
        return future

    def map(self, function: Callable[..., Any], items: Any) -> list[Any]:
        return [function(item) for item in items]

    def shutdown(self, wait: bool = True) -> None:
        return


@contextmanager
def _controlled(simulation: Simulation) -> Iterator[None]:
    """No threads, no collector, and the witness where a leader learns of its followers."""
    noted = _Noted(simulation.world)
    logger = logging.getLogger("hightide")
    before = logger.level, logger.propagate, concurrent.futures.ThreadPoolExecutor
    fetched = Replica.fetched

    def witnessed(self: Replica, replica: int, offset: int, epoch: int, *rest: Any) -> None:
        simulation.witness.fetched(self, replica, epoch)
        fetched(self, replica, offset, epoch, *rest)

    had_collector = gc.isenabled()
    gc.disable()
    logger.addHandler(noted)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    concurrent.futures.ThreadPoolExecutor = _Inline  # type: ignore[misc, assignment]
    Replica.fetched = witnessed  # type: ignore[method-assign]
    try:
        yield
    finally:
        simulation.world.close()
        Replica.fetched = fetched  # type: ignore[method-assign]
        logger.removeHandler(noted)
        logger.level, logger.propagate, concurrent.futures.ThreadPoolExecutor = before  # type: ignore[misc]
        if had_collector:
            gc.enable()
        gc.collect()


@dataclass(frozen=True, slots=True)
class Result:
    seed: int
    events: int
    fingerprint: int
    virtual_s: float
    real_s: float


def run(seed: int, lines: int = 80) -> Result:
    """Run a seed; raise what it violates, with the story that led to it."""
    simulation = Simulation(seed)
    world, began = simulation.world, time.process_time()
    with _controlled(simulation):
        try:
            simulation.run()
        except Exception as violation:
            story = "\n".join(list(world.story)[-lines:])
            replay = f"HIGHTIDE_SEED={seed} HIGHTIDE_SEEDS=1 pytest tests/sim/test_shipped.py"
            raise AssertionError(
                f"seed {seed}: {violation!r}\n{story}\nreplay it with: {replay}"
            ) from violation
    return Result(seed, world.events, world.fingerprint, world.now, time.process_time() - began)


def fingerprint_of(seed: int) -> int:
    return run(seed).fingerprint
