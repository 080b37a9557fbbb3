"""Three shipped brokers on virtual time, and a producer whose transactions meet with faults.

The producer writes to two partitions with different leaders.  At a moment that a test names, such
as "the end is decided and no marker is written", brokers are killed or stopped, and come back some
seconds later.  The producer retries as clients do.  In the end every transaction must be complete,
once, with one marker in each partition, and none may be left open.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

from hightide.broker.replication.replica import Replica
from hightide.client.broker_connection import ConnectionFailed
from hightide.core.metadata.topic_names import TRANSACTION_STATE, partition_for
from hightide.core.transactions.transaction import Producer, State, Transaction
from hightide.core.transactions.transaction_coordinator import TransactionCoordinator
from hightide.settings import Broker as Settings
from hightide.wire import batch
from hightide.wire.control import Marker, parse_marker
from hightide.wire.errors import ErrorCode
from hightide.wire.messages.groups import FindCoordinatorRequest
from hightide.wire.messages.produce import (
    InitProducerIdRequest,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from hightide.wire.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
)
from hightide.zookeeper import znodes
from hightide.zookeeper.operation import Create, Multi, OpenSession
from tests.simulation.shipped.clients import Admin, Client
from tests.simulation.shipped.loop import Process, World
from tests.simulation.shipped.machine import PORT, Machine
from tests.simulation.shipped.network import Network
from tests.simulation.shipped.running import _controlled as controlled
from tests.simulation.shipped.zookeeper import ZooKeeperServer as Tree

TOPIC, ID = "t", "drill"
PARTITIONS = (0, 1)
BACK_S = 4.0
"""How long a broker is away: longer than the session timeout."""
_TRANSACTION = 1
_RETRIABLE = (
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
)


class Transactor(Client):
    """Runs one transaction after the other, according to a plan."""

    def __init__(self, world: World, brokers: dict[int, tuple[str, int]], plan: list[bool]) -> None:
        super().__init__(world, "transactor", brokers)
        self.plan = plan
        self.number = -1
        """The number of the current transaction."""
        self.is_done = False
        self.may_begin: Callable[[], bool] = lambda: True
        """Whether the next transaction may begin."""
        self._sequences = dict.fromkeys(PARTITIONS, 0)

    async def main(self) -> None:
        init = InitProducerIdRequest(transactional_id=ID, transaction_timeout_ms=60_000)
        answer = await self._coordinate(init, lambda answer: answer.error_code)
        self.producer = Producer(answer.producer_id, answer.producer_epoch)
        for number, is_commit in enumerate(self.plan):
            while not self.may_begin():
                await self.rest(0.2)
            self.number = number
            await self._transaction(f"{number}".encode(), is_commit)
        self.is_done = True

    async def _transaction(self, value: bytes, is_commit: bool) -> None:
        identity = {"producer_id": self.producer.id, "producer_epoch": self.producer.epoch}
        add = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=ID,
            v3_and_below_producer_id=self.producer.id,
            v3_and_below_producer_epoch=self.producer.epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=TOPIC, partitions=[*PARTITIONS])],
        )
        await self._coordinate(
            add,
            lambda answer: next(
                result.partition_error_code
                for topic in answer.results_by_topic_v3_and_below
                for result in topic.results_by_partition
            ),
        )
        for index in PARTITIONS:
            await self._produce(index, value)
        end = EndTxnRequest(transactional_id=ID, committed=is_commit, **identity)
        await self._coordinate(end, lambda answer: answer.error_code)
        self.world.tell(f"{value!r} is ended, {is_commit}")

    async def _coordinate(self, request: Any, error_of: Callable[[Any], int]) -> Any:
        find = FindCoordinatorRequest(key=ID, key_type=_TRANSACTION)
        while True:
            await self.rest(0.05)
            try:
                found = await self.ask(self.random.choice(list(self._brokers)), find, 3)
                if found.error_code != ErrorCode.NONE:
                    continue
                answer = await self.ask(found.node_id, request)
            except ConnectionFailed:
                continue
            error = ErrorCode(error_of(answer))
            if error == ErrorCode.NONE:
                return answer
            self._check(error, request)

    async def _produce(self, index: int, value: bytes) -> None:
        rows = [batch.Record(0, self.now_ms(), None, value, ())]
        data = batch.build(
            rows,
            producer_id=self.producer.id,
            producer_epoch=self.producer.epoch,
            base_sequence=self._sequences[index],
            transactional=True,
        )
        part = PartitionProduceData(index=index, records=bytes(data))
        request = ProduceRequest(
            transactional_id=ID,
            acks=-1,
            timeout_ms=1000,
            topic_data=[TopicProduceData(name=TOPIC, partition_data=[part])],
        )
        while True:
            leader = await self.leader((TOPIC, index))
            try:
                answer = await self.ask(leader, request, 9)
            except ConnectionFailed:
                self.forget((TOPIC, index))
                continue
            error = ErrorCode(answer.responses[0].partition_responses[0].error_code)
            if error == ErrorCode.NONE:
                self._sequences[index] += 1
                return
            self._check(error, request)
            self.forget((TOPIC, index))
            await self.rest(0.1)

    def _check(self, error: ErrorCode, request: Any) -> None:
        self.world.note(f"{type(request).__name__}: {error!r}")
        assert error in _RETRIABLE, f"{error!r} to {request}"


class Drill:
    """The cluster, the producer, and the faults."""

    def __init__(self, seed: int, plan: list[bool], **settings: Any) -> None:
        self.world = world = World(seed, 400)
        Network(world)
        self.tree = Tree(world)
        self.machines = {
            number: Machine(world, number, _settings(number, settings)) for number in (1, 2, 3)
        }
        brokers = {key: (machine.name, PORT) for key, machine in self.machines.items()}
        self.admin = Admin(world, "admin", brokers)
        self.producer = Transactor(world, brokers, plan)
        self.faults: list[tuple[int, str, Callable[[], bool], Callable[[], None]]] = []
        """In which transaction, at which condition, and what happens then."""
        self.met: list[str] = []
        self.witness = SimpleNamespace(fetched=lambda *_: None)
        self.producer.may_begin = self._has_recovered
        world.after_each = self._after_each

    def run(self, until_s: float = 120.0, rest_s: float = BACK_S + 6.0) -> None:
        with controlled(self):  # type: ignore[arg-type]
            try:
                self._run(until_s, rest_s)
            except BaseException as failure:
                story = "\n".join(self.world.story)
                raise AssertionError(f"{failure!r}\n{story}") from failure

    def _run(self, until_s: float, rest_s: float) -> None:
        world = self.world
        self.tree.start(self.tree.main)
        world.run(0.0)
        self.tree.write(OpenSession(1 << 40, 1 << 40), 1 << 40)
        found = znodes.ClusterId(znodes.id_text(uuid.UUID(int=world.seed)))
        named = Multi((Create("/cluster"), Create(znodes.CLUSTER_ID, found.encode())))
        self.tree.write(named, 1 << 40)
        for machine in self.machines.values():
            machine.begin()
        self.admin.begin()
        assignment: dict[int, tuple[int, ...]] = {0: (1, 2, 3), 1: (2, 3, 1)}
        configs = {"min.insync.replicas": "2"}
        self.admin.tell(lambda: self.admin.create(TOPIC, assignment, configs))
        world.run(2.0)
        self.producer.begin()
        while not self.producer.is_done:
            assert world.now < until_s, f"stuck in transaction {self.producer.number}"
            world.run(world.now + 1.0)
        world.run(world.now + rest_s)
        self._check()

    def _has_recovered(self) -> bool:
        """Whether the last transaction is over, all brokers are up and in sync, and the partitions
        have two different leaders again."""
        if not self.is_in(State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT):
            return False
        if not all(
            machine.is_serving and not machine.is_paused for machine in self.machines.values()
        ):
            return False
        replicas = [self.replica(TOPIC, index) for index in PARTITIONS]
        if not all(
            replica and replica.state and len(replica.state.isr) == 3 for replica in replicas
        ):
            return False
        return [self.leader(TOPIC, index) for index in PARTITIONS] == [
            self.machines[1],
            self.machines[2],
        ]

    # -- queries ---------------------------------------------------------------------------

    def replica(self, topic: str, index: int) -> Replica | None:
        """Return the replica that leads the partition in the newest epoch."""
        found = [
            replica
            for machine in self.machines.values()
            if machine.broker is not None
            and machine.is_serving
            and (replica := machine.broker.replica_manager.get(topic.encode(), index)) is not None
            and replica.leader is not None
        ]
        return max(found, key=lambda replica: replica.leader_epoch, default=None)

    def leader(self, topic: str, index: int) -> Machine | None:
        replica = self.replica(topic, index)
        return next(
            (
                machine
                for machine in self.machines.values()
                if machine.broker is not None
                and replica is not None
                and machine.broker.replica_manager.get(topic.encode(), index) is replica
            ),
            None,
        )

    @property
    def coordinating(self) -> Machine | None:
        return self.leader(TRANSACTION_STATE, partition_for(ID, 3))

    @property
    def coordinator(self) -> TransactionCoordinator | None:
        machine = self.coordinating
        assert machine is None or machine.broker is not None
        return None if machine is None else machine.broker.transactions.coordinator(ID)

    @property
    def known(self) -> Transaction | None:
        return None if self.coordinator is None else self.coordinator.transactions.get(ID)

    def writes(self, *states: State) -> bool:
        """Whether the coordinator is writing one of these states, not committed yet."""
        write = None if self.coordinator is None else self.coordinator._writes.get(ID)
        return write is not None and write.after is not None and write.after.state in states

    def is_in(self, *states: State) -> bool:
        return self.known is not None and self.known.state in states and not self.writes(*State)

    def open_in(self) -> list[int]:
        """Return the partitions whose logs have the transaction open."""
        replicas = {index: self.replica(TOPIC, index) for index in PARTITIONS}
        return [i for i, it in replicas.items() if it is not None and it.log.transactions.opened]

    def after(
        self, number: int, name: str, when: Callable[[], bool], do: Callable[[], None]
    ) -> None:
        self.faults.append((number, name, when, do))

    def _after_each(self, process: Process) -> None:
        if not self.faults or not isinstance(process, Machine):
            return
        number, name, when, do = self.faults[0]
        if self.producer.number == number and when():
            self.faults.pop(0)
            self.met.append(name)
            self.world.tell(f"now: {name}")
            do()

    # -- faults ----------------------------------------------------------------------------

    def kill(self, *victims: Machine | None) -> None:
        """Kill brokers; they come back some seconds later."""
        for machine in {victim for victim in victims if victim is not None and victim.is_up}:
            machine.crash()
            self.world.at(BACK_S, machine.begin)

    def stop(self, *victims: Machine | None) -> None:
        """Stop brokers so long that others take over; then they continue."""
        for machine in {victim for victim in victims if victim is not None and victim.is_up}:
            machine.pause()
            self.world.at(BACK_S, machine.resume)

    # -- checks ----------------------------------------------------------------------------

    def _check(self) -> None:
        assert not self.faults, f"never happened: {self.faults[0][1]}"
        wanted = []
        for number, is_commit in enumerate(self.producer.plan):
            end = "COMMIT" if is_commit else "ABORT"
            wanted += [f"{number}", end]
        for index in PARTITIONS:
            replica = self.replica(TOPIC, index)
            assert replica is not None
            assert list(entries(replica)) == wanted, (index, list(entries(replica)))
            assert replica.log.last_stable_offset == replica.high_watermark
            assert replica.high_watermark == replica.log.end_offset
        assert self.is_in(State.COMPLETE_COMMIT, State.COMPLETE_ABORT)
        for machine in self.machines.values():
            assert machine.broker is not None
            markers = machine.broker.transactions._marker_delivery
            assert not markers._owners, markers._owners
            assert not markers._marked_in_doubt


def entries(replica: Replica) -> Iterator[str]:
    """Yield the values and markers of a log.

    A new coordinator writes its own marker even if its predecessor's is there: from then on the
    partition refuses markers of the predecessor that may still arrive.
    """
    log = replica.log
    found = log.read(log.start_offset, 1 << 20, log.end_offset)
    if found is None:
        return
    data = found.file.read(found.position, found.length)
    last: Marker | None = None
    for at, header in batch.batches(data):
        for record in batch.records(data, at):
            marker = parse_marker(record) if header.is_control else None
            if marker is None:
                yield (record.value or b"").decode()
            elif last is None or last.type != marker.type:
                yield marker.type.name
            else:
                assert marker.coordinator_epoch > last.coordinator_epoch, "written twice"
            last = marker


def _settings(broker_id: int, more: dict[str, Any]) -> Settings:
    return Settings(
        broker_id=broker_id,
        listeners=f"PLAINTEXT://broker-{broker_id}:{PORT}",
        zookeeper_connect="zookeeper:2181",
        zookeeper_session_timeout_ms=2000,
        replica_lag_time_max_ms=1000,
        replica_fetch_wait_max_ms=300,
        replica_socket_timeout_ms=1500,
        controller_socket_timeout_ms=1500,
        transaction_state_log_num_partitions=3,
        offsets_topic_num_partitions=1,
        auto_create_topics_enable=False,
        leader_imbalance_check_interval_seconds=1,
        **more,
    )
