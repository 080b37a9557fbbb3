"""Producers, consumers and an administrator, with the shipped connection and real bytes.

Each is a process.  They know as much as real clients, and record in the history what they sent, got
as responses, and read.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from hightide.client.broker_connection import Connection, ConnectionFailed
from hightide.core.partition.state import NO_BROKER
from hightide.wire import batch
from hightide.wire.errors import ErrorCode, KafkaError
from hightide.wire.messages.controller import ResignControllerRequest
from hightide.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from hightide.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from hightide.wire.messages.produce import (
    InitProducerIdRequest,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from hightide.wire.messages.replicas import (
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
    ReassignablePartition,
    ReassignableTopic,
    TopicPartitions,
)
from hightide.wire.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from hightide.wire.types import NO_UUID
from tests.conformance.history import History, Send, Writer
from tests.simulation.checkers import Checker, Violated
from tests.simulation.disk import Entry
from tests.simulation.shipped.loop import Process, World

Partition = tuple[str, int]
CALL_MS = 1500


class Client(Process):
    """Finds leaders and the controller by a Metadata request to any broker."""

    def __init__(self, world: World, name: str, brokers: dict[int, tuple[str, int]]) -> None:
        super().__init__(world, name)
        self._brokers = brokers
        self._call_ms = world.random.choice((CALL_MS, CALL_MS, 3 * CALL_MS))
        self.pause_s = 0.3
        """The longest pause between two requests."""
        self.is_stopping = False

    def begin(self) -> None:
        self._connections: dict[int, Connection] = {}
        self._leaders: dict[Partition, int] = {}
        self._epochs: dict[Partition, int] = {}
        self._topic_ids: dict[str, Any] = {}
        self._controller = NO_BROKER
        self.start(self.main)

    async def main(self) -> None:
        """Run the client until its process ends."""

    @property
    def random(self) -> Any:
        return self.world.random

    async def rest(self, most_s: float) -> None:
        await asyncio.sleep(self.random.uniform(0.0, most_s))

    async def ask(
        self, broker_id: int, request: Any, version: int | None = None, wait_ms: int = 0
    ) -> Any:
        """Return the response, or raise ConnectionFailed."""
        connection = self._connections.get(broker_id)
        try:
            if connection is None or not connection.is_open():
                host, port = self._brokers[broker_id]
                connection = await Connection.open(
                    host, port, client_id=self.name, timeout_ms=CALL_MS
                )
                self._connections[broker_id] = connection
            timeout_ms = wait_ms or self._call_ms
            return await connection.send(request, version=version, timeout_ms=timeout_ms)
        except (ConnectionFailed, KafkaError) as failure:
            if connection is not None:
                connection.close()
            self._connections.pop(broker_id, None)
            if isinstance(failure, KafkaError):
                raise ConnectionFailed(str(failure)) from failure
            raise

    async def refresh(self, topic: str) -> None:
        """Ask a broker for metadata."""
        broker_id = self.random.choice(list(self._brokers))
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False
        )
        answer = await self.ask(broker_id, request)
        self._controller = answer.controller_id
        for found in answer.topics:
            if found.error_code == ErrorCode.NONE:
                self._topic_ids[topic] = found.topic_id
                for partition in found.partitions:
                    self._found(
                        (topic, partition.partition_index),
                        partition.leader_id,
                        partition.leader_epoch,
                    )

    def _found(self, partition: Partition, leader: int, epoch: int) -> None:
        # As other clients do: a broker that is cut off may still believe that it is the leader.
        if epoch >= self._epochs.get(partition, -1):
            self._epochs[partition] = epoch
            self._leaders[partition] = leader

    async def leader(self, partition: Partition) -> int:
        """Wait until the leader is known, and return it."""
        while True:
            if self._leaders.get(partition, NO_BROKER) != NO_BROKER:
                return self._leaders[partition]
            try:
                await self.refresh(partition[0])
            except ConnectionFailed:
                await self.rest(0.1)
            if self._leaders.get(partition, NO_BROKER) == NO_BROKER:
                await self.rest(0.2)

    def forget(self, partition: Partition) -> None:
        self._leaders.pop(partition, None)


class Producer(Client):
    """Sends one batch after the other to each partition.

    An idempotent producer sends a batch again until it gets a clear response.  Another continues
    with the next batch: one without a clear response may be in the log or not.
    """

    def __init__(
        self,
        world: World,
        name: str,
        brokers: dict[int, tuple[str, int]],
        checker: Checker,
        history: History,
        partitions: list[Partition],
        acks: int,
        idempotent: bool,
    ) -> None:
        super().__init__(world, name, brokers)
        self._checker = checker
        self._history = history
        self._partitions = partitions
        self._acks = acks
        self._writer = Writer(name, is_durable=acks == -1, is_idempotent=idempotent)
        self.answered_at = 0.0

    async def main(self) -> None:
        async with asyncio.TaskGroup() as group:
            for partition in self._partitions:
                # Where order does not matter, several batches are in flight at a time.
                for _ in range(1 if self._writer.is_idempotent else 2):
                    group.create_task(self._produce(partition))

    async def _take_id(self) -> tuple[int, int]:
        """Get a producer id and its epoch."""
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
        while True:
            await self.rest(0.2)
            try:
                answer = await self.ask(self.random.choice(list(self._brokers)), request)
            except ConnectionFailed:
                continue
            if answer.error_code == ErrorCode.NONE:
                return answer.producer_id, answer.producer_epoch

    async def _produce(self, partition: Partition) -> None:
        # A value names its writer and its partition, but not its topic.
        writer = replace(self._writer, name=f"{self.name}@{partition[0]}")
        sequence, identity = 0, (-1, -1)
        while not self.is_stopping:
            if self._writer.is_idempotent and sequence == 0:
                identity = await self._take_id()
            await self.rest(self.pause_s)
            count = self.random.choice((1, 1, 1, 2, 5))
            sends = [self._history.send(writer, *partition) for _ in range(count)]
            for send in sends:
                self._checker.sends(partition, send.value.decode(), self._now_ms())
            is_in_order = await self._settle(partition, sends, sequence, identity)
            sequence = sequence + count if is_in_order else 0

    async def _settle(
        self, partition: Partition, sends: list[Send], sequence: int, identity: tuple[int, int]
    ) -> bool:
        """Send the records, again if necessary; return whether the next ones may follow."""
        while True:
            code, offset = await self._try(partition, sends, sequence, identity)
            if code == ErrorCode.NONE:
                self._acked(partition, sends, offset)
                return True
            self.world.note(f"{self.name} {partition} {sends[0].value!r}: {ErrorCode(code)!r}")
            self.forget(partition)
            if not self._writer.is_idempotent:
                for send in sends:
                    self._history.failed(send, code)
                return True
            if code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
                # It was written, and too many others since, so its offset is unknown.
                for send in sends:
                    self._history.acked(send)
                return True
            if code in (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.INVALID_PRODUCER_EPOCH):
                self._broke_off(partition, sends, code)
                return False
            await self.rest(0.1)

    def _broke_off(self, partition: Partition, sends: list[Send], code: int) -> None:
        """The producer's records have a gap, which only an allowed loss explains."""
        if not self._checker.truth(partition).is_lossy:
            raise Violated(f"{self.name} {partition} {sends[0].value!r}: {ErrorCode(code)!r}")
        for send in sends:
            self._history.failed(send, code)

    def _acked(self, partition: Partition, sends: list[Send], offset: int) -> None:
        self.answered_at = self.world.now
        for nth, send in enumerate(sends):
            self._history.acked(send, offset + nth)
            if self._acks == -1:
                value = send.value.decode()
                self._checker.acks(partition, value, offset + nth, self._now_ms())
        first = sends[0].value.decode()
        self.world.tell(f"{self.name} {partition} {first}… is acknowledged at {offset}")

    async def _try(
        self, partition: Partition, sends: list[Send], sequence: int, identity: tuple[int, int]
    ) -> tuple[int, int]:
        """Return the error code and the offset."""
        leader = await self.leader(partition)
        records = [
            batch.Record(nth, self.now_ms(), None, send.value, ()) for nth, send in enumerate(sends)
        ]
        data = batch.build(
            records,
            producer_id=identity[0],
            producer_epoch=identity[1],
            base_sequence=sequence if self._writer.is_idempotent else -1,
        )
        topic, index = partition
        request = ProduceRequest(
            acks=self._acks,
            timeout_ms=self._call_ms,
            topic_data=[
                TopicProduceData(
                    name=topic,
                    partition_data=[PartitionProduceData(index=index, records=bytes(data))],
                )
            ],
        )
        try:
            answer = await self.ask(leader, request)
        except ConnectionFailed:
            return ErrorCode.REQUEST_TIMED_OUT, -1
        found = answer.responses[0].partition_responses[0]
        return found.error_code, found.base_offset

    def _now_ms(self) -> int:
        return round(self.world.now * 1000)


class Consumer(Client):
    """Reads a partition from its beginning, over and over, from its leader or from any replica."""

    def __init__(
        self,
        world: World,
        name: str,
        brokers: dict[int, tuple[str, int]],
        checker: Checker,
        partition: Partition,
        from_followers: bool,
    ) -> None:
        super().__init__(world, name, brokers)
        self._checker = checker
        self._partition = partition
        self._from_followers = from_followers
        self.read = 0

    async def main(self) -> None:
        offset = 0
        while not self.is_stopping:
            await self.rest(self.pause_s)
            broker_id = await self.leader(self._partition)
            if self._from_followers and self.random.random() < 0.6:
                broker_id = self.random.choice(list(self._brokers))
            try:
                entries = await self._fetch(broker_id, offset)
            except ConnectionFailed:
                self.forget(self._partition)
                continue
            if entries is None:
                offset = self._checker.truth(self._partition).deleted_offset
                continue
            self._checker.reads(self._partition, offset, entries)
            self.read += len(entries)
            offset += len(entries)
            if self.random.random() < 0.02:
                offset = 0

    async def _fetch(self, broker_id: int, offset: int) -> list[Entry] | None:
        """Return records from an offset on; None if the offset is out of range."""
        topic, index = self._partition
        request = FetchRequest(
            max_wait_ms=self.random.choice((0, 100, 500)),
            min_bytes=1,
            max_bytes=1 << 20,
            topics=[
                FetchTopic(
                    topic_id=self._topic_ids[topic],
                    partitions=[
                        FetchPartition(
                            partition=index, fetch_offset=offset, partition_max_bytes=1 << 16
                        )
                    ],
                )
            ],
        )
        answer = await self.ask(broker_id, request)
        found = answer.responses[0].partitions[0] if answer.responses else None
        if found is not None and found.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            return None
        if found is None or found.error_code != ErrorCode.NONE:
            self.forget(self._partition)
            return []
        entries: list[Entry] = []
        data = bytes(found.records or b"")
        for at, header in batch.batches(data):
            for record in batch.records(data, at):
                if record.offset >= found.high_watermark:
                    raise Violated(f"I9 {self.name} {self._partition} was shown {record} {found}")
                if record.offset >= offset + len(entries):
                    value = (record.value or b"").decode()
                    entries.append(Entry(header.leader_epoch, value))
        return entries


class Admin(Client):
    """An administrator that retries a request until it succeeds or cannot succeed."""

    def __init__(self, world: World, name: str, brokers: dict[int, tuple[str, int]]) -> None:
        super().__init__(world, name, brokers)
        self._tasks: list[Callable[[], Awaitable[None]]] = []
        self._wanted: asyncio.Event | None = None

    async def main(self) -> None:
        self._wanted = asyncio.Event()
        while True:
            while self._tasks:
                await self._tasks.pop(0)()
            self._wanted.clear()
            await self._wanted.wait()

    def tell(self, task: Callable[[], Awaitable[None]]) -> None:
        self._tasks.append(task)
        if self._wanted is not None and self.loop is not None:
            self.loop.arrived(self._wanted.set)

    async def _ask_controller(self, topic: str, request: Any) -> Any:
        while True:
            try:
                if self._controller == NO_BROKER:
                    await self.refresh(topic)
                if self._controller == NO_BROKER:
                    await self.rest(0.5)
                    continue
                return await self.ask(self._controller, request)
            except ConnectionFailed:
                self._controller = NO_BROKER
                await self.rest(0.3)

    async def create(
        self, topic: str, assignment: dict[int, tuple[int, ...]], configs: dict[str, str]
    ) -> None:
        request = CreateTopicsRequest(
            topics=[
                CreatableTopic(
                    name=topic,
                    num_partitions=-1,
                    replication_factor=-1,
                    assignments=[
                        CreatableReplicaAssignment(partition_index=index, broker_ids=list(ids))
                        for index, ids in assignment.items()
                    ],
                    configs=[CreatableTopicConfig(name=k, value=v) for k, v in configs.items()],
                )
            ],
            timeout_ms=1000,
        )
        while True:
            answer = await self._ask_controller(topic, request)
            code = answer.topics[0].error_code
            self.world.tell(f"creating {topic}: {code}")
            if code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                return
            self._controller = NO_BROKER
            await self.rest(0.5)

    async def _code(self, topic: str, request: Any, code_of: Callable[[Any], int]) -> int:
        """Return the controller's response to a request, which it may have executed before."""
        answer = await self._ask_controller(topic, request)
        code = code_of(answer)
        self.world.tell(f"{type(request).__name__} {topic}: {code}")
        if code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            self._controller = NO_BROKER
        return code

    async def toggle(self, topic: str) -> None:
        """Create a topic, or delete it if it exists."""
        made = CreatableTopic(
            name=topic, num_partitions=2, replication_factor=2, assignments=[], configs=[]
        )
        create = CreateTopicsRequest(topics=[made], timeout_ms=500)
        code = await self._code(topic, create, lambda answer: answer.topics[0].error_code)
        if code == ErrorCode.TOPIC_ALREADY_EXISTS:
            gone = DeleteTopicState(name=topic, topic_id=NO_UUID)
            delete = DeleteTopicsRequest(topics=[gone], topic_names=[topic], timeout_ms=500)
            await self._code(topic, delete, lambda answer: answer.responses[0].error_code)

    async def elect(self, partition: Partition) -> None:
        """Elect the preferred replica."""
        topic, index = partition
        which = [TopicPartitions(topic=topic, partitions=[index])]
        request = ElectLeadersRequest(topic_partitions=which, timeout_ms=500)
        await self._code(topic, request, lambda answer: answer.error_code)

    async def delete_records(self, partition: Partition, offset: int) -> None:
        """Delete the records before an offset."""
        topic, index = partition
        which = DeleteRecordsPartition(partition_index=index, offset=offset)
        request = DeleteRecordsRequest(
            topics=[DeleteRecordsTopic(name=topic, partitions=[which])], timeout_ms=500
        )
        await self.refresh_quietly(topic)
        leader = self._leaders.get(partition, NO_BROKER)
        if leader != NO_BROKER:
            with contextlib.suppress(ConnectionFailed):
                answer = await self.ask(leader, request)
                found = answer.topics[0].partitions[0]
                self.world.tell(
                    f"{partition} must begin at {offset}: {found.error_code},"
                    f" it begins at {found.low_watermark}"
                )

    async def resign(self) -> None:
        """Make the controller resign."""
        await self.refresh_quietly("t")
        if self._controller != NO_BROKER:
            with contextlib.suppress(ConnectionFailed):
                answer = await self.ask(self._controller, ResignControllerRequest(), version=0)
                self.world.tell(f"the controller resigns: {answer.error_code}")
            self._controller = NO_BROKER

    async def refresh_quietly(self, topic: str) -> None:
        with contextlib.suppress(ConnectionFailed):
            await self.refresh(topic)

    async def move(self, partition: Partition, target: tuple[int, ...] | None) -> None:
        topic, index = partition
        request = AlterPartitionReassignmentsRequest(
            timeout_ms=1000,
            topics=[
                ReassignableTopic(
                    name=topic,
                    partitions=[
                        ReassignablePartition(
                            partition_index=index, replicas=None if target is None else list(target)
                        )
                    ],
                )
            ],
        )
        answer = await self._ask_controller(topic, request)
        codes = [
            partition.error_code for found in answer.responses for partition in found.partitions
        ]
        self.world.tell(f"moving {partition} to {target}: {answer.error_code} {codes}")
        if answer.error_code == ErrorCode.NOT_CONTROLLER:
            self._controller = NO_BROKER
