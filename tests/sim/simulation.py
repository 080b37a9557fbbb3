"""A whole cluster for one seed: chance chooses its shape, its faults and its clients.

First a time of faults, then everything heals, and then the cluster must come to rest: every
partition led, every replica in sync, nothing lost.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from broker import SimBroker
from checkers import Checker
from clients import Client, Consumer, Producer
from control import decode
from coordinator import Coordinator
from disk import SimLog
from messages import Partition
from world import World

from hightide.coordination.operation import Create, Multi, OpenSession
from hightide.core.partition import PartitionState

FAULTS_MS = 20_000
REST_MS = 15_000
_FAULTS = (
    *("kill", "kill", "power", "power", "leave", "pause", "slow", "coordinator"),
    *("cut", "cut", "cut_one_way", "island", "heal", "heal", "move", "move"),
)
_ROOTS = ("/brokers", "/brokers/ids", "/topics")


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


class Simulation:
    """One run."""

    def __init__(self, seed: int) -> None:
        self.world = world = World(seed)
        random = world.random
        brokers = random.choice((2, 3, 3, 3, 4))
        replicas = min(brokers, random.choice((1, 2, 3, 3, 3)))
        min_isr = random.randint(1, max(1, replicas - random.choice((0, 1, 1))))
        self.shape = Shape(
            brokers,
            replicas,
            random.choice((1, 1, 2, 3)),
            min_isr,
            random.choice((300, 600, 1500)),
            random.random() < 0.1,
            min_isr > 1 and random.random() < 0.5,
            random.choice((0.0, 0.0, 0.01, 0.05)),
            random.random() < 0.5,
        )
        world.tell(f"{self.shape}")
        self.checker = Checker(min_isr, self._members)
        self.coordinator = Coordinator(world)
        self.brokers: dict[int, SimBroker] = {}
        self._lossy_until_whole = False
        self._make_cluster()
        self._watch_states()

    def _make_cluster(self) -> None:
        shape, random = self.shape, self.world.random
        ids = list(range(1, shape.brokers + 1))
        self.partitions: dict[Partition, tuple[int, ...]] = {
            ("t", index): tuple(random.sample(ids, shape.replicas))
            for index in range(shape.partitions)
        }
        topic_ids = {"t": uuid.UUID(int=7)}
        for broker_id in ids:
            SimBroker(
                self.world,
                broker_id,
                self.checker,
                self.brokers,
                topic_ids,
                self.partitions,
                min_isr=shape.min_isr,
                lag_ms=shape.lag_ms,
                unclean=shape.unclean,
            )
        names = [broker.name for broker in self.brokers.values()]
        self.clients: list[Client] = [
            Producer(
                self.world,
                f"producer-{nth}",
                names,
                self.checker,
                list(self.partitions),
                random.choice((-1, -1, -1, 1)),
            )
            for nth in range(3)
        ]
        for nth, partition in enumerate(self.partitions):
            self.clients.append(
                Consumer(
                    self.world, f"consumer-{nth}", names, self.checker, partition, nth % 2 == 0
                )
            )

    def _watch_states(self) -> None:
        """Let the checker see every decision in the moment that it is written."""
        coordinator, checker = self.coordinator, self.checker
        do_write = coordinator._do_write
        paths = {f"/topics/{topic}-{index}": (topic, index) for topic, index in self.partitions}

        def watched(request: Any, session_id: int) -> Any:
            outcome = do_write(request, session_id)
            for operation in getattr(request, "operations", ()):
                partition = paths.get(getattr(operation, "path", ""))
                node = coordinator.tree.node(operation.path) if partition else None
                if partition is not None and node is not None:
                    state = decode(node.data or b"", node.stat.version)
                    if state != checker.truth(partition).state:
                        self.world.tell(f"{partition} {state}")
                        checker.decided(partition, state)
            return outcome

        coordinator._do_write = watched  # type: ignore[method-assign]

    def _members(self, partition: Partition, state: PartitionState) -> Iterator[tuple[int, SimLog]]:
        for member in (*state.isr, *state.elr):
            broker = self.brokers[member]
            if broker.is_up and broker.epoch == state.broker_epochs.get(member):
                yield member, broker.logs.get(partition) or SimLog()

    def run(self) -> None:
        world = self.world
        self.coordinator._do_write(OpenSession(1 << 40, 1 << 40), 1 << 40)
        roots = [Create(path) for path in _ROOTS] + [Create("/controller_epoch", b"0")]
        self.coordinator._do_write(Multi(tuple(roots)), 1 << 40)
        self.coordinator.start()
        for broker in self.brokers.values():
            world.at(world.random.randint(0, 300), broker.start)
        for client in self.clients:
            world.at(world.random.randint(300, 900), client.start)
        world.network.loss = self.shape.loss
        world.at(1500, self._fault)
        world.run(FAULTS_MS)
        self._heal()
        world.run(FAULTS_MS + REST_MS)
        for client in self.clients:
            if isinstance(client, Producer):
                client.is_stopping = True
        world.run(FAULTS_MS + REST_MS + 3000)
        self.checker.finished(
            {
                partition: {
                    broker_id: (broker, broker.logs[partition])
                    for broker_id, broker in self.brokers.items()
                    if partition in broker.logs
                }
                for partition in self.partitions
            }
        )

    # -- what goes wrong -------------------------------------------------------------------

    def _fault(self) -> None:
        random, network = self.world.random, self.world.network
        if self.world.now_ms >= FAULTS_MS:
            return
        broker = random.choice(list(self.brokers.values()))
        match random.choice(_FAULTS):
            case "kill" if broker.is_up:
                broker.crash()
                self._later(broker)
            case "power" if broker.is_up and self._may_lose_power():
                self._lossy_until_whole = True
                broker.lose_power()
                self._later(broker)
            case "leave" if broker.is_up and not broker.is_paused and broker.epoch >= 0:
                broker.leave()
                self.world.at(random.randint(1500, 4000), self._start, broker)
            case "pause" if broker.is_up and not broker.is_paused:
                broker.pause()
                self.world.at(random.choice((200, 1000, 3000, 6000)), self._resume, broker)
            case "cut":
                other = random.choice([*self.brokers.values(), self.coordinator]).name
                network.cut(broker.name, other)
                network.cut(other, broker.name)
            case "cut_one_way":
                other = random.choice([*self.brokers.values(), self.coordinator]).name
                network.cut(*random.sample((broker.name, other), 2))
            case "island":
                for name in list(self.world.processes):
                    network.cut(broker.name, name)
                    network.cut(name, broker.name)
            case "slow":
                for other in self.brokers.values():
                    network.slow_down(broker.name, other.name, random.choice((20, 200, 800)))
            case "move" if self.shape.moves:
                self._move()
            case "heal":
                network.heal()
                network.loss = self.shape.loss
            case "coordinator" if self.coordinator.is_up:
                self.coordinator.crash()
                self.world.at(random.choice((50, 500, 2500)), self._start, self.coordinator)
        self.world.at(random.choice((20, 100, 300, 800, 2000)), self._fault)

    def _move(self) -> None:
        """Somebody wants a partition on other brokers, or gives up wanting it."""
        random = self.world.random
        partition = random.choice(list(self.partitions))
        target = tuple(random.sample(list(self.brokers), self.shape.replicas))
        for broker in self.brokers.values():
            if broker.is_up and broker.control is not None:
                self.world.tell(f"{partition} shall move to {target}")
                broker.control.moves(partition, random.choice((target, target, None)))
                return

    def _may_lose_power(self) -> bool:
        """One replica may lose data at a time: the next only when all are in sync again."""
        if not self.shape.power_cuts:
            return False
        if self._lossy_until_whole:
            if not all(self._is_whole(truth.state) for truth in self.checker.truths.values()):
                return False
            self._lossy_until_whole = False
        return True

    def _is_whole(self, state: PartitionState | None) -> bool:
        return state is not None and all(
            self.brokers[each].is_up and state.broker_epochs.get(each) == self.brokers[each].epoch
            for each in state.replicas
        )

    def _later(self, broker: SimBroker) -> None:
        delay_ms = self.world.random.choice((10, 300, 1500, 4000))
        self.world.at(delay_ms, self._start, broker)

    def _start(self, process: SimBroker | Coordinator) -> None:
        if not process.is_up:
            process.start()

    def _resume(self, broker: SimBroker) -> None:
        if broker.is_up and broker.is_paused:
            broker.resume()

    def _heal(self) -> None:
        self.world.tell("everything heals")
        self.world.network.heal()
        self._start(self.coordinator)
        for broker in self.brokers.values():
            self._resume(broker)
            self._start(broker)


def run(seed: int) -> Simulation:
    """Run a seed; raise what it violates, with the story that led to it."""
    simulation = Simulation(seed)
    try:
        simulation.run()
    except AssertionError as violation:
        story = "\n".join(list(simulation.world.story)[-60:])
        raise AssertionError(f"seed {seed}: {violation!r}\n{story}") from violation
    return simulation


# Here rather than in a test, so that other processes can import them.


def events_of(seed: int) -> int:
    return run(seed).world.events


def fingerprint_of(seed: int) -> int:
    return run(seed).world.fingerprint
