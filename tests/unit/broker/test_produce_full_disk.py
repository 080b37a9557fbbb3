"""A full disk: producers get errors, consumers are served, and writing resumes with room."""

import asyncio

import pytest

from hightide.broker.broker import Broker
from hightide.broker.environment import RealEnvironment
from hightide.broker.handlers.produce import produce
from hightide.log.disk import Buffer, DiskFailed, MemoryDisk, MemoryFile
from hightide.settings import Broker as Settings
from hightide.wire import batch
from hightide.wire.errors import ErrorCode
from hightide.wire.frame import decode_response, encode_request
from hightide.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tests.support.eventually import eventually_async


class SmallDisk(MemoryDisk):
    is_full = False

    def _new_file(self, path: str) -> MemoryFile:
        return SmallFile(path, self)


class SmallFile(MemoryFile):
    def __init__(self, path: str, disk: SmallDisk) -> None:
        super().__init__(path)
        self.disk = disk

    def append(self, data: Buffer) -> None:
        if self.disk.is_full:
            raise DiskFailed(self.path, "writing to", "no space left", harmless=True)
        super().append(data)


class Connection:
    def __init__(self) -> None:
        self.produce_prefix = 0
        self.produced = None
        self.checked: dict[int, object] = {}
        self.closed = ""

    def close(self, why: str) -> None:
        self.closed = why


def send(
    broker: Broker, connection: Connection, acks: int = 1, sequence: int = -1, epoch: int = 0
) -> tuple[int, int] | None:
    made = bytes(
        batch.build(
            [batch.Record(0, broker.now_ms(), None, b"v" * 50, ())],
            producer_id=5 if sequence >= 0 else -1,
            producer_epoch=epoch if sequence >= 0 else -1,
            base_sequence=sequence,
        )
    )
    partition = PartitionProduceData(index=0, records=made)
    topic = TopicProduceData(name="t", partition_data=[partition])
    request = ProduceRequest(acks=acks, timeout_ms=1000, topic_data=[topic])
    buf = bytearray(encode_request(request, 9, 1, "c")[4:])
    response = produce(broker, connection, buf, memoryview(buf), 0, len(buf))  # type: ignore[arg-type]
    if response is None:
        return None
    _, decoded = decode_response(ProduceResponse, response[4:], 9)
    result = decoded.responses[0].partition_responses[0]
    return result.error_code, result.base_offset


@pytest.mark.parametrize("forgets", [False, True])
def test_a_full_disk_is_an_error_until_there_is_room(forgets: bool):
    async def test():
        disk = SmallDisk()
        broker = Broker(
            Settings(listeners="PLAINTEXT://127.0.0.1:0", zookeeper_listen="127.0.0.1:0"),
            environment=RealEnvironment(memory=disk),
        )
        await broker.start()
        await broker.controller.create_topic("t", {0: [broker.broker_id]}, {}, timeout_ms=5000)
        connection = Connection()
        assert send(broker, connection) == (0, 0)
        for _ in range(2):
            disk.is_full = True
            for _ in range(3):
                if forgets:
                    broker.shapes.forget()
                assert send(broker, connection) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)
            assert broker.replica_manager.get(b"t", 0).log.read(0, 1000, 1) is not None
            await empty(disk, broker)
            result = send(broker, connection)
            assert result is not None
            code, _ = result
            assert code == 0
        disk.is_full = True
        assert send(broker, connection, acks=0) is None
        assert "acks=0" in connection.closed
        await empty(disk, broker)
        assert broker.replica_manager.get(b"t", 0).log.end_offset == 3
        await broker.stop()

    asyncio.run(test())


async def started(disk: SmallDisk, **config: str) -> Broker:
    broker = Broker(
        Settings(listeners="PLAINTEXT://127.0.0.1:0", zookeeper_listen="127.0.0.1:0"),
        environment=RealEnvironment(memory=disk),
    )
    await broker.start()
    await broker.controller.create_topic("t", {0: [broker.broker_id]}, config, timeout_ms=5000)
    return broker


async def empty(disk: SmallDisk, broker: Broker) -> None:
    """Make space, and wait until the broker has noticed."""
    disk.is_full = False
    replica = broker.replica_manager.get(b"t", 0)
    assert replica is not None
    await eventually_async(lambda: replica.log.refusal is None)


REFUSED = (ErrorCode.KAFKA_STORAGE_ERROR, -1)


@pytest.mark.parametrize("first", [0, 7])
def test_batches_in_flight_behind_a_refused_one_wait_for_it(first: int):
    async def test():
        disk = SmallDisk()
        broker = await started(disk)
        connection = Connection()
        if first:
            for sequence in range(first):
                assert send(broker, connection, sequence=sequence) == (0, sequence)
        disk.is_full = True
        assert send(broker, connection, sequence=first) == REFUSED
        assert send(broker, connection, sequence=first + 1) == REFUSED
        await empty(disk, broker)
        assert send(broker, connection, sequence=first + 2) == REFUSED
        for sequence in range(first, first + 4):
            assert send(broker, connection, sequence=sequence) == (0, sequence)
        gap = send(broker, connection, sequence=first + 9)
        assert gap == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
        disk.is_full = True
        assert send(broker, connection, sequence=first + 4) == REFUSED
        await empty(disk, broker)
        assert send(broker, connection, sequence=0, epoch=1) == (0, first + 4)
        await broker.stop()

    asyncio.run(test())


def test_batches_in_flight_behind_a_failed_roll_wait_for_it():
    async def test():
        disk = SmallDisk()
        broker = await started(disk, **{"segment.bytes": "200"})
        connection = Connection()
        assert send(broker, connection, sequence=0) == (0, 0)
        create, disk.create = disk.create, refuse_to_create  # type: ignore[method-assign]
        assert send(broker, connection, sequence=1) == REFUSED
        disk.create = create  # type: ignore[method-assign]
        await empty(disk, broker)
        assert send(broker, connection, sequence=2) == REFUSED
        for sequence in range(1, 4):
            assert send(broker, connection, sequence=sequence) == (0, sequence)
        await broker.stop()

    asyncio.run(test())


def refuse_to_create(path: str) -> MemoryFile:
    raise DiskFailed(path, "opening", "no space left", harmless=True)
