"""A whole cluster of shipped brokers for one seed, which chooses its shape, faults and clients.

Faults happen for a while, then everything heals, and then the cluster must come to rest: every
partition has a leader, every replica is in sync and equal to the others, every write has a
response, nothing is lost.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

from hightide.settings import Broker as Settings
from hightide.zookeeper import znodes
from hightide.zookeeper.operation import Create, Multi, OpenSession
from tests.conformance.history import History
from tests.simulation.checkers import Violated
from tests.simulation.shipped.clients import Admin, Client, Consumer, Producer
from tests.simulation.shipped.faults import Faults
from tests.simulation.shipped.loop import Process, World
from tests.simulation.shipped.machine import PORT, Machine
from tests.simulation.shipped.network import Network
from tests.simulation.shipped.witness import Partition, Witness
from tests.simulation.shipped.zookeeper import ZooKeeperServer

FAULTS_S = 20.0
REST_S = 15.0
SESSION_MS = 2000
TOPIC, LATER = "t", "later"
"""The watched topics: one exists before the faults, and one is created during them."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The choices of a seed."""

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
    throttled: bool
    deletes: bool
    later_s: float
    """When the other topic is created."""
    is_reconfigured: bool = False


class Simulation:
    """One run."""

    def __init__(self, seed: int, story_lines: int = 1000) -> None:
        self.world = world = World(seed, story_lines)
        self.network = Network(world)
        random = world.random
        self.shape = self._choose()
        world.tell(f"{self.shape}")
        self.zookeeper = ZooKeeperServer(world)
        self.machines = {
            broker_id: Machine(world, broker_id, self._settings(broker_id))
            for broker_id in range(1, self.shape.brokers + 1)
        }
        self.witness = Witness(
            self.machines,
            self.zookeeper,
            topics=(TOPIC, LATER),
            shape=self.shape,
            session_ms=SESSION_MS,
        )
        self.checker = self.witness.checker
        self.history = History(lambda: world.now)
        self.partitions: dict[Partition, tuple[int, ...]] = {
            partition: tuple(random.sample(list(self.machines), self.shape.replicas))
            for partition in ((LATER, 0), *((TOPIC, at) for at in range(self.shape.partitions)))
        }
        self._make_clients()
        world.after_each = self._after_each
        self.faults = Faults(self, FAULTS_S)

    def _choose(self) -> Shape:
        random = self.world.random
        brokers = random.choice((2, 3, 3, 3, 4))
        replicas = min(brokers, random.choice((1, 2, 3, 3, 3)))
        return Shape(
            brokers,
            replicas,
            random.choice((1, 1, 2, 3)),
            random.randint(1, max(1, replicas - random.choice((0, 1, 1)))),
            random.choice((600, 1000, 2500)),
            random.random() < 0.1,
            random.random() < 0.5,
            random.choice((0.0, 0.0, 0.01, 0.05)),
            random.random() < 0.5,
            random.random() < 0.3,
            random.choice((1024, 4096, 1 << 30)),
            random.random() < 0.15,
            random.random() < 0.3,
            random.uniform(4.0, FAULTS_S),
        )

    def _settings(self, broker_id: int) -> Settings:
        return Settings(
            broker_id=broker_id,
            listeners=f"PLAINTEXT://broker-{broker_id}:{PORT}",
            zookeeper_connect="zookeeper:2181",
            zookeeper_session_timeout_ms=SESSION_MS,
            replica_lag_time_max_ms=self.shape.lag_ms,
            replica_fetch_wait_max_ms=min(500, self.shape.lag_ms // 3),
            replica_socket_timeout_ms=1500,
            controller_socket_timeout_ms=1500,
            controlled_shutdown_max_retries=2,
            replica_high_watermark_checkpoint_interval_ms=1000,
            log_flush_interval_ms=1500,
            log_dir_full_timeout_ms=1000,
            unclean_leader_election_enable=self.shape.unclean,
            auto_create_topics_enable=False,
            leader_replication_throttled_rate=50_000,
            follower_replication_throttled_rate=20_000,
            leader_imbalance_check_interval_seconds=5,
            **self._more_settings(),
        )

    def _more_settings(self) -> dict[str, Any]:
        return {}

    def _make_clients(self) -> None:
        world, random = self.world, self.world.random
        brokers = {machine.broker_id: (machine.name, PORT) for machine in self.machines.values()}
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
        self.zookeeper.start(self.zookeeper.main)
        world.run(0.0)
        self._found_cluster()
        for machine in self.machines.values():
            world.at(random.uniform(0.0, 0.3), machine.begin)
        self.admin.begin()
        self._create(TOPIC)
        world.at(self.shape.later_s, self._create, LATER)
        for client in self.clients:
            world.at(random.uniform(0.5, 1.0), client.begin)
        world.at(3.0, self.faults.begin)
        world.run(FAULTS_S)
        self.faults.heal()
        for client in self.clients:
            client.pause_s = 1.0
        world.run(FAULTS_S + REST_S)
        self._has_rested(FAULTS_S + REST_S / 2)
        for producer in self.producers:
            producer.is_stopping = True
        world.run(FAULTS_S + REST_S + 3.0)
        self.checker.finished()
        self._agree()
        self._judge()

    def _found_cluster(self) -> None:
        """Write the cluster id, which brokers would otherwise choose with real randomness."""
        self.zookeeper.write(OpenSession(1 << 40, 1 << 40), 1 << 40)
        found = znodes.ClusterId(znodes.id_text(uuid.UUID(int=self.world.seed)))
        self.zookeeper.write(
            Multi((Create("/cluster"), Create(znodes.CLUSTER_ID, found.encode()))), 1 << 40
        )

    def _create(self, topic: str) -> None:
        assignment = {
            index: replicas for (name, index), replicas in self.partitions.items() if name == topic
        }
        configs = {
            "min.insync.replicas": str(self.shape.min_isr),
            "segment.bytes": str(self.shape.segment_bytes),
        }
        if self.shape.flushes:
            configs["flush.messages"] = "1"
        if self.shape.throttled:
            configs["leader.replication.throttled.replicas"] = "*"
            configs["follower.replication.throttled.replicas"] = "*"
        self.admin.tell(lambda: self.admin.create(topic, assignment, configs))

    def _has_rested(self, since: float) -> None:
        """L2: every client has had a response since then."""
        for producer in self.producers:
            if producer.answered_at < since:
                raise Violated(f"L2 {producer.name} was answered last at {producer.answered_at}")

    def _agree(self) -> None:
        """Check that every broker has the state of ZooKeeper, and the right replicas."""
        tree = self.zookeeper.tree
        topics = set(tree.children(znodes.TOPICS))
        for machine in self.machines.values():
            broker = machine.broker
            if broker is None or not machine.is_serving:
                raise Violated(f"L5 {machine.name} does not serve")
            known = {topic.name for topic in broker.metadata_image}
            if known != topics:
                raise Violated(f"L5 {machine.name} knows of {known}, there are {topics}")
            for name, index in broker.log_manager.logs:
                state = broker.metadata_image.state(name, index)
                if state is None or machine.broker_id not in state.replicas:
                    raise Violated(f"L5 {machine.name} has a log of {name}-{index}: {state}")
            for partition, truth in self.checker.truths.items():
                image_state = broker.metadata_image.state(*partition)
                if image_state is None or truth.state is None:
                    raise Violated(f"L5 {machine.name} knows nothing of {partition}")
                if image_state.partition_epoch != truth.state.partition_epoch:
                    raise Violated(
                        f"L5 {machine.name} has {image_state}, decided was {truth.state}"
                    )

    def _judge(self) -> None:
        """Check the responses that clients got, by Kafka's guarantees alone."""
        logs: dict[Partition, list[tuple[int, bytes | None]]] = {}
        for partition, state in self.witness.states():
            if self.checker.truth(partition).is_lossy:
                continue
            assert state is not None
            log, known = self.witness.log(state.leader, partition), self.checker.truth(partition)
            # Deleted records were there before, too.
            start = log.start_offset
            entries = known.committed[:start] + log.entries[start:]
            logs[partition] = [(at, entry.value.encode()) for at, entry in enumerate(entries)]
        found = [anomaly for anomaly in self.history.anomalies(logs) if anomaly.partition in logs]
        if found:
            raise Violated("\n".join(str(anomaly) for anomaly in found[:20]))
