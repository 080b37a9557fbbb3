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
        self.closed = ""

    def close(self, why: str) -> None:
        self.closed = why


def send(broker: Broker, connection: Connection, acks: int = 1) -> tuple[int, int] | None:
    made = bytes(batch.build([batch.Record(0, broker.now_ms(), None, b"v" * 50, ())]))
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
            disk.is_full = False
            result = send(broker, connection)
            assert result is not None
            code, _ = result
            assert code == 0
        disk.is_full = True
        assert send(broker, connection, acks=0) is None
        assert "acks=0" in connection.closed
        disk.is_full = False
        assert broker.replica_manager.get(b"t", 0).log.end_offset == 3
        await broker.stop()

    asyncio.run(test())
