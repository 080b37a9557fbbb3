"""A whole cluster for one seed, which chooses its shape, scenario, faults and clients.

Faults happen for a while, then everything heals, and then the cluster must come to rest: every
partition has a leader, every replica is in sync, nothing is lost, and nothing is left to do.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from hightide.zookeeper.operation import Create, Multi, OpenSession
from tests.simulation.broker import Settings, SimBroker
from tests.simulation.checkers import Checker, Violated
from tests.simulation.clients import Client, Consumer, Deleter, Producer
from tests.simulation.controller_shell import decode
from tests.simulation.faults import Faults
from tests.simulation.messages import Partition
from tests.simulation.scenarios import SCENARIOS
from tests.simulation.shape import shape_of
from tests.simulation.world import World
from tests.simulation.zookeeper import ZooKeeperServer

FAULTS_MS = 16_000
REST_MS = 15_000
QUIET_MS = 1000
_ROOTS = ("/brokers", "/brokers/ids", "/topics")
_ROOT_SESSION = 1 << 40


class Simulation:
    """One run."""

    def __init__(self, seed: int, told: Callable[[str], None] | None = None) -> None:
        self.world = world = World(seed, told)
        self.shape = shape_of(world.random, {name: needs for name, (_, needs) in SCENARIOS.items()})
        world.tell(f"{self.shape}")
        self.brokers: dict[int, SimBroker] = {}
        self.checker = Checker(self.shape, self.brokers)
        self.zookeeper = ZooKeeperServer(world)
        self._make_brokers()
        self._make_clients()
        self.faults = Faults(self)
        self.zookeeper.on_written = self._written

    def _make_brokers(self) -> None:
        shape, random = self.shape, self.world.random
        ids = list(range(1, shape.brokers + 1))
        self.partitions: dict[Partition, tuple[int, ...]] = {
            ("t", index): tuple(random.sample(ids, shape.replicas))
            for index in range(shape.partitions)
        }
        settings = Settings(
            {"t": uuid.UUID(int=7)},
            self.partitions,
            shape.min_isr,
            shape.lag_ms,
            shape.unclean,
        )
        for broker_id in ids:
            broker = SimBroker(self.world, broker_id, self.checker, self.brokers, settings)
            broker.has_retention = shape.deletes
            if shape.are_clocks_wrong:
                broker.clock_percent = random.choice((90, 97, 100, 104, 115))
                broker.clock_offset_ms = random.randint(0, 10_000_000)

    def _make_clients(self) -> None:
        world, random = self.world, self.world.random
        names, partitions = [broker.name for broker in self.brokers.values()], list(self.partitions)
        self.producers = [
            Producer(
                world,
                f"producer-{nth}",
                names,
                self.checker,
                partitions,
                acks=-1 if nth == 0 else random.choice((-1, -1, 1, 0)),
                depth=random.choice((1, 1, 3)),
                pace_ms=self.shape.pace_ms,
            )
            for nth in range(3)
        ]
        kinds = ("leader", "nominated", "any")
        self.consumers = [
            Consumer(world, f"consumer-{nth}", names, self.checker, partition, kinds[nth % 3])
            for nth, partition in enumerate(partitions, random.randrange(3))
        ]
        self.clients: list[Client] = [*self.producers, *self.consumers]
        if self.shape.deletes:
            self.clients.append(Deleter(world, "deleter", names, self.checker, partitions))

    def _written(self, request: Any, owner: str) -> None:
        """Pass every decision to the checker when it is written to ZooKeeper."""
        for operation in getattr(request, "operations", ()):
            path = getattr(operation, "path", "")
            if path == "/controller":
                self.checker.controller = owner
                self.world.tell(f"{owner} is elected")
                continue
            node = self.zookeeper.tree.node(path)
            if node is None:
                continue
            if path.startswith("/brokers/ids/"):
                broker_id = int(path.removeprefix("/brokers/ids/"))
                self.checker.registered(broker_id, node.stat.czxid, int(node.data or b""))
            elif path.startswith("/topics/"):
                topic, _, index = path.removeprefix("/topics/").rpartition("-")
                state = decode(node.data or b"", node.stat.version)
                self.world.tell(f"{topic}-{index} {state}")
                self.checker.decided((topic, int(index)), state, owner)

    # -- the run ---------------------------------------------------------------------------

    def run(self) -> None:
        world, zookeeper = self.world, self.zookeeper
        zookeeper.write(OpenSession(_ROOT_SESSION, _ROOT_SESSION), _ROOT_SESSION)
        roots = [Create(path) for path in _ROOTS] + [Create("/controller_epoch", b"0")]
        zookeeper.write(Multi(tuple(roots)), _ROOT_SESSION)
        zookeeper.start()
        for broker in self.brokers.values():
            world.at(world.random.randint(0, 300), broker.start)
        for client in self.clients:
            world.at(world.random.randint(300, 900), client.start)
        world.network.loss = self.shape.loss
        world.at(1500, self._go_on, self._play())
        world.run(FAULTS_MS)
        self._heal()
        self._rest()

    def _play(self) -> Iterator[int]:
        anything = self.faults.anything()
        if not self.shape.story:
            yield from anything
        story, _ = SCENARIOS[self.shape.story]
        while True:
            yield from story(self.faults)
            if self.world.random.random() < 0.3:
                yield next(anything)

    def _go_on(self, play: Iterator[int]) -> None:
        if self.world.now_ms < FAULTS_MS:
            self.world.at(next(play), self._go_on, play)

    def _heal(self) -> None:
        self.world.tell(f"everything heals; {self.world.network.lost} messages were lost")
        self.world.network.heal()
        self.faults.start(self.zookeeper)
        for broker in self.brokers.values():
            broker.has_retention = False
            self.faults.mend_disk(broker)
            self.faults.resume(broker)
            self.faults.start(broker)
        for client in self.clients:
            client.is_stopping = isinstance(client, Deleter)

    def _rest(self) -> None:
        """Run until the cluster is healthy and nothing changes any more.  L2: meanwhile every
        partition serves every producer, and every consumer reads to the end."""
        deadline_ms = FAULTS_MS + REST_MS
        self._run_until(self._is_served, deadline_ms)
        for producer in self.producers:
            producer.is_stopping = True
        self._settle(deadline_ms)
        self.checker.finished()
        self._run_until(self._is_read, deadline_ms + QUIET_MS)
        if not self._is_read():
            raise Violated("L2 a consumer does not get to the end")

    def _settle(self, deadline_ms: int) -> None:
        """Run until the controller decides nothing more; events in flight may cause a decision."""
        while True:
            self._run_until(self._is_quiet, deadline_ms)
            before = self._epochs()
            self.world.run(self.world.now_ms + QUIET_MS)
            if self._epochs() == before:
                return
            if self.world.now_ms >= deadline_ms:
                raise Violated(f"decisions continue though nothing happens: {before}")

    def _run_until(self, is_done: Callable[[], bool], deadline_ms: int) -> None:
        while not is_done() and self.world.now_ms < deadline_ms:
            self.world.run(self.world.now_ms + 200)

    def _is_served(self) -> bool:
        served = [
            producer.answered.get(partition, 0) > FAULTS_MS
            for producer in self.producers
            if producer.acks != 0
            for partition in self.partitions
        ]
        if not all(served) and self.world.now_ms >= FAULTS_MS + REST_MS:
            raise Violated(f"L2 a producer is not served: {served}")
        return all(served) and self._is_quiet()

    def _is_quiet(self) -> bool:
        """Return whether nothing is left to do."""
        if not self.faults.is_whole() or any(broker.is_leaving for broker in self.brokers.values()):
            return False
        states = [truth.state for truth in self.checker.truths.values()]
        return not any(
            state is None or state.is_reassigning or set(state.isr) != set(state.replicas)
            for state in states
        )

    def _is_read(self) -> bool:
        return all(
            self.checker.truth(consumer.partition).is_lossy
            or consumer.offset >= self.checker.committed_offset(consumer.partition)
            for consumer in self.consumers
        )

    def _epochs(self) -> list[int]:
        return [
            -1 if truth.state is None else truth.state.partition_epoch
            for truth in self.checker.truths.values()
        ]


class Outcome(NamedTuple):
    """The outcome of a run without violations."""

    events: int
    virtual_ms: int
    digest: str
    happened: list[str]
    """The kinds of faults that happened, and the scenario."""


def run(seed: int) -> Outcome:
    """Run a seed; raise a violation together with the history that led to it."""
    simulation = Simulation(seed)
    world = simulation.world
    try:
        simulation.run()
    except AssertionError as violation:
        history = "\n".join(list(world.story)[-60:])
        raise AssertionError(
            f"{history}\nseed {seed}: {violation!r}\nreplay it: make sim SEED={seed}"
        ) from violation
    happened = list(simulation.faults.happened)
    if simulation.shape.story:
        happened.append(simulation.shape.story)
    return Outcome(world.events, world.now_ms, world.digest(), happened)


if __name__ == "__main__":
    Simulation(int(sys.argv[1]), told=print).run()
