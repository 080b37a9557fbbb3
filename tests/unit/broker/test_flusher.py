"""Group commit: `flush.messages` is respected, and one flush serves many requests."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from hightide.broker.broker import Broker
from hightide.broker.environment import RealEnvironment
from hightide.broker.handlers.produce import produce
from hightide.broker.network.connection import Slot
from hightide.log.disk import DiskFailed, MemoryDisk, MemoryFile
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

NOW_MS = 1_700_000_000_000


class SlowDisk(MemoryDisk):
    """A disk whose logs are synced only when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.may_sync = threading.Semaphore(0)
        self.is_held = False
        self.failure: DiskFailed | None = None
        self.syncs = 0

    def _new_file(self, path: str) -> MemoryFile:
        return SlowFile(path, self) if path.endswith(".log") else super()._new_file(path)


class SlowFile(MemoryFile):
    def __init__(self, path: str, disk: SlowDisk) -> None:
        super().__init__(path)
        self.disk = disk

    def sync(self) -> None:
        if self.disk.is_held:
            assert self.disk.may_sync.acquire(timeout=20)
        if self.disk.failure is not None:
            raise self.disk.failure
        self.disk.syncs += 1


class Connection:
    """Keeps responses in the order of their slots, as a connection does."""

    def __init__(self) -> None:
        self.produce_prefix = 0
        self.produced = None
        self.checked: dict[int, object] = {}
        self.slots: list[Slot] = []
        self.responses: list[bytes] = []
        self.answered = asyncio.Event()

    def defer(self, _cancel: object) -> Slot:
        self.slots.append(Slot())
        return self.slots[-1]

    def complete(self, slot: Slot, response: bytes) -> None:
        slot.response = response
        while self.slots and isinstance(first := self.slots[0].response, bytes):
            self.slots.pop(0)
            self.responses.append(first)
            self.answered.set()

    def close(self, why: str) -> None:
        raise AssertionError(why)


@asynccontextmanager
async def running(disk: SlowDisk) -> AsyncIterator[Broker]:
    broker = Broker(
        Settings(listeners="PLAINTEXT://127.0.0.1:0", zookeeper_listen="127.0.0.1:0"),
        environment=RealEnvironment(memory=disk),
    )
    await broker.start()
    own = {0: [broker.broker_id]}
    await broker.controller.create_topic("t", own, {"flush.messages": "1"}, timeout_ms=5000)
    await broker.controller.create_topic("lax", own, {}, timeout_ms=5000)
    disk.is_held = True
    disk.syncs = 0
    try:
        yield broker
    finally:
        disk.is_held = False
        disk.may_sync.release(100)
        await broker.stop()


def send(broker: Broker, connection: Connection, *topics: str, acks: int = 1) -> bytes | None:
    made = bytes(batch.build([batch.Record(0, NOW_MS, None, b"v" * 50, ())]))
    request = ProduceRequest(
        acks=acks,
        timeout_ms=1000,
        topic_data=[
            TopicProduceData(
                name=topic, partition_data=[PartitionProduceData(index=0, records=made)]
            )
            for topic in topics
        ],
    )
    buf = bytearray(encode_request(request, 9, 1, "c")[4:])
    return produce(broker, connection, buf, memoryview(buf), 0, len(buf))  # type: ignore[arg-type]


def results(response: bytes) -> list[tuple[int, int]]:
    _, decoded = decode_response(ProduceResponse, response[4:], 9)
    return [
        (partition.error_code, partition.base_offset)
        for topic in decoded.responses
        for partition in topic.partition_responses
    ]


def test_nothing_is_answered_or_shown_before_it_is_on_disk():
    async def test():
        disk = SlowDisk()
        async with running(disk) as broker:
            connection = Connection()
            replica = broker.replica_manager.get(b"t", 0)
            assert send(broker, connection, "t") is None
            await asyncio.sleep(0.02)
            assert connection.responses == []
            assert replica.log.end_offset == 1
            assert replica.high_watermark == 0
            disk.may_sync.release()
            await connection.answered.wait()
            assert [results(response) for response in connection.responses] == [[(0, 0)]]
            assert replica.high_watermark == replica.log.recovery_point == 1

    asyncio.run(test())


def test_requests_that_come_during_a_flush_share_the_next_one():
    async def test():
        disk = SlowDisk()
        async with running(disk) as broker:
            connection = Connection()
            for _ in range(50):
                assert send(broker, connection, "t") is None
                await asyncio.sleep(0)
            disk.may_sync.release(100)
            while len(connection.responses) < 50:
                connection.answered.clear()
                await connection.answered.wait()
            assert [results(response) for response in connection.responses] == [
                [(0, offset)] for offset in range(50)
            ]
            assert disk.syncs <= 3

    asyncio.run(test())


def test_a_flush_that_fails_acknowledges_nothing():
    async def test():
        disk = SlowDisk()
        async with running(disk) as broker:
            connection = Connection()
            assert send(broker, connection, "lax", "t") is None
            disk.failure = DiskFailed("t-0/0.log", "syncing", "input/output error")
            disk.may_sync.release()
            await connection.answered.wait()
            (response,) = connection.responses
            assert results(response) == [(0, 0), (ErrorCode.KAFKA_STORAGE_ERROR, -1)]
            assert broker.replica_manager.get(b"t", 0).high_watermark == 0
            again = send(broker, connection, "t")
            assert again is not None
            assert results(again) == [(ErrorCode.KAFKA_STORAGE_ERROR, -1)]
            disk.failure = None

    asyncio.run(test())


def test_other_topics_do_not_wait():
    async def test():
        disk = SlowDisk()
        async with running(disk) as broker:
            assert send(broker, Connection(), "t") is None
            response = send(broker, Connection(), "lax")
            assert response is not None
            assert results(response) == [(0, 0)]

    asyncio.run(test())


def test_acks_0_is_flushed_though_no_request_waits():
    async def test():
        disk = SlowDisk()
        async with running(disk) as broker:
            connection = Connection()
            assert send(broker, connection, "t", acks=0) is None
            disk.may_sync.release()
            await broker.flusher.stop()
            assert broker.replica_manager.get(b"t", 0).high_watermark == 1
            assert connection.responses == []

    asyncio.run(test())
