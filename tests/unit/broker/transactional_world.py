"""A broker in memory with a scripted transaction coordinator, and its clients.

The test writes the markers too: only the leader of a partition is under test.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from hightide.broker.broker import Broker
from hightide.broker.environment import RealEnvironment
from hightide.broker.replication.replica import Replica
from hightide.client.broker_connection import Connection
from hightide.core.transactions.transaction import Producer
from hightide.log.disk import MemoryDisk
from hightide.settings import Broker as Settings
from hightide.wire import batch
from hightide.wire.errors import ErrorCode
from hightide.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from hightide.wire.messages.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from tests.support.proving import prove

NOW_MS = 1_700_000_000_000
NAME = "payments"
FIRST = Producer(7, 0)
_COORDINATOR = 5


class Verdicts:
    """A coordinator on another broker, which answers at once or when the test says so."""

    def __init__(self) -> None:
        self.code = ErrorCode.NONE
        self.is_here = False
        self.requests: list[tuple[str, Producer, tuple[str, int]]] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    def verify_now(self, name: str, producer: Producer, partition: tuple[str, int]):
        if not self.is_here:
            return None
        self.requests.append((name, producer, partition))
        return self.code

    async def verify(self, name: str, producer: Producer, partition: tuple[str, int]):
        self.requests.append((name, producer, partition))
        await self.may_answer.wait()
        return self.code


class World:
    def __init__(self, broker: Broker, address: tuple[str, int]) -> None:
        self.broker = broker
        self.address = address
        self.verdicts = verdicts = Verdicts()
        broker.transactions.verify = verdicts.verify  # type: ignore[assignment]
        broker.transactions.verify_now = verdicts.verify_now  # type: ignore[assignment]

    def replica(self, topic: str = "t", partition: int = 0) -> Replica:
        found = self.broker.replica_manager.get(topic.encode(), partition)
        assert found is not None
        return found

    def values(self, topic: str = "t", partition: int = 0) -> list[bytes]:
        """Return the values in the log, without markers."""
        segments = self.replica(topic, partition).log.segments
        found = memoryview(b"".join(segment.opened().read(0, 1 << 20) for segment in segments))
        return [
            record.value or b""
            for at, header in batch.batches(found)
            if not header.is_control
            for record in batch.records(found[at : at + header.size])
        ]

    async def client(self) -> Connection:
        """Return a connection that may also send what coordinators send."""
        connection = await Connection.open(*self.address)
        await prove(connection, self.broker, _COORDINATOR)
        return connection

    async def until(self, condition) -> None:
        async with asyncio.timeout(5):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.001)


@asynccontextmanager
async def world(**overrides: Any) -> AsyncIterator[World]:
    settings = Settings(
        listeners="PLAINTEXT://127.0.0.1:0", zookeeper_listen="127.0.0.1:0", **overrides
    )
    broker = Broker(settings, environment=RealEnvironment(memory=MemoryDisk()))
    (address,) = await broker.start()
    await broker.controller.create_topic(
        "t", {0: [broker.broker_id], 1: [broker.broker_id]}, {}, timeout_ms=5000
    )
    try:
        yield World(broker, address)
    finally:
        await broker.stop()


def part(
    sequence: int,
    *values: bytes,
    producer: Producer | None = FIRST,
    partition: int = 0,
    transactional: bool = True,
) -> PartitionProduceData:
    records = [
        batch.Record(i, NOW_MS, None, value, ()) for i, value in enumerate(values or (b"v",))
    ]
    made = batch.build(
        records,
        producer_id=-1 if producer is None else producer.id,
        producer_epoch=-1 if producer is None else producer.epoch,
        base_sequence=-1 if producer is None else sequence,
        transactional=transactional,
    )
    return PartitionProduceData(index=partition, records=bytes(made))


def produce_request(
    *parts: PartitionProduceData, name: str | None = NAME, acks: int = -1, topic: str = "t"
) -> ProduceRequest:
    return ProduceRequest(
        transactional_id=name,
        acks=acks,
        timeout_ms=5000,
        topic_data=[TopicProduceData(name=topic, partition_data=list(parts))],
    )


def results(response) -> list[tuple[int, int]]:
    """Return error code and base offset of each partition."""
    return [
        (partition_response.error_code, partition_response.base_offset)
        for topic in response.responses
        for partition_response in topic.partition_responses
    ]


def marker_request(
    producer: Producer,
    is_commit: bool,
    *partitions: int,
    topic: str = "t",
    coordinator_epoch: int = 0,
) -> WriteTxnMarkersRequest:
    return WriteTxnMarkersRequest(
        markers=[
            WritableTxnMarker(
                producer_id=producer.id,
                producer_epoch=producer.epoch,
                transaction_result=is_commit,
                topics=[
                    WritableTxnMarkerTopic(name=topic, partition_indexes=list(partitions or (0,)))
                ],
                coordinator_epoch=coordinator_epoch,
            )
        ]
    )


def codes(response) -> list[int]:
    return [
        partition.error_code
        for marker in response.markers
        for topic in marker.topics
        for partition in topic.partitions
    ]
