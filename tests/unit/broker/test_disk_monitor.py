"""A broker whose disk is full or fails: what it serves, what it reports, and how it heals."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from hightide.broker.broker import Broker
from hightide.broker.environment import RealEnvironment
from hightide.broker.replication.replica import Replica
from hightide.core.partition.state import FailureKind
from hightide.log.disk import DiskFailed
from hightide.settings import Broker as Settings
from hightide.wire import batch
from hightide.wire.errors import ErrorCode, KafkaError
from tests.support.failing_disk import FailingDisk

MIB = 1 << 20


@asynccontextmanager
async def running(disk: FailingDisk, partitions: int = 2) -> AsyncIterator[Broker]:
    broker = Broker(
        Settings(
            listeners="PLAINTEXT://127.0.0.1:0",
            zookeeper_listen="127.0.0.1:0",
            log_dir_reserve_bytes=MIB,
        ),
        environment=RealEnvironment(memory=disk),
    )
    await broker.start()
    here = {index: [broker.broker_id] for index in range(partitions)}
    await broker.controller.create_topic("t", here, {}, timeout_ms=5000)
    try:
        yield broker
    finally:
        await broker.stop()


def replica_of(broker: Broker, index: int = 0) -> Replica:
    replica = broker.replica_manager.get(b"t", index)
    assert replica is not None
    return replica


def send(broker: Broker, index: int = 0) -> ErrorCode:
    """Append a record, as Produce does."""
    replica = replica_of(broker, index)
    if replica.leader is None:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    buf = batch.build([batch.Record(0, broker.now_ms(), None, b"v" * 50, ())])
    try:
        replica.append(buf, memoryview(buf), 0, len(buf), broker.now_ms())
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def failure_of(replica: Replica) -> FailureKind | None:
    return None if replica.failure is None else replica.failure.kind


def test_a_full_disk_is_full_for_all_of_its_logs_until_there_is_space():
    async def test():
        disk = FailingDisk()
        async with running(disk) as broker:
            await until(lambda: disk.exists(".reserve"))
            assert [send(broker, 0), send(broker, 1)] == [0, 0]
            disk.capacity = disk.used() + 20
            assert send(broker, 0) == ErrorCode.KAFKA_STORAGE_ERROR
            assert not disk.exists(".reserve"), "checkpoints have its space"
            assert disk.space()[1] > 0
            assert send(broker, 1) == ErrorCode.KAFKA_STORAGE_ERROR, "although there is space"
            assert replica_of(broker, 1).log.read(0, 1000, 1) is not None
            await until(lambda: failure_of(replica_of(broker, 1)) is FailureKind.FULL)
            assert replica_of(broker, 1).leader is not None, "the only replica leads on"
            disk.capacity += MIB // 2
            await asyncio.sleep(1)
            assert send(broker, 1) == ErrorCode.KAFKA_STORAGE_ERROR, "too little space came back"
            disk.capacity += 2 * MIB
            await until(lambda: failure_of(replica_of(broker, 1)) is None)
            assert [send(broker, 0), send(broker, 1)] == [0, 0]
            await until(lambda: disk.exists(".reserve"))

    asyncio.run(test())


@pytest.mark.parametrize("operation", ["write", "sync", "read"])
def test_one_error_of_a_file_takes_its_log_offline_for_a_moment(operation: str):
    async def test():
        disk = FailingDisk()
        async with running(disk) as broker:
            assert [send(broker, 0) for _ in range(5)] == [0] * 5
            failed = replica_of(broker).log
            disk.fails, disk.only = {operation}, "t-0/"
            if operation == "write":
                assert send(broker, 0) == ErrorCode.KAFKA_STORAGE_ERROR
            else:
                failed.disk_failed(DiskFailed("t-0", operation, "input/output error"))
            assert failure_of(replica_of(broker)) is FailureKind.OFFLINE
            await until(lambda: replica_of(broker).leader is None)
            disk.fails = set()
            await until(lambda: send(broker, 0) == ErrorCode.NONE)
            assert replica_of(broker).log is not failed
            assert replica_of(broker).log.end_offset >= 6
            assert failure_of(replica_of(broker)) is None
            assert send(broker, 1) == ErrorCode.NONE
            assert replica_of(broker, 1).leader_epoch == 0, "the other log was not concerned"

    asyncio.run(test())


def test_when_the_disk_fails_all_of_its_logs_fail_and_come_back_with_it():
    async def test():
        disk = FailingDisk()
        async with running(disk, partitions=3) as broker:
            assert [send(broker, index) for index in range(3)] == [0, 0, 0]
            disk.fails = {"write"}
            assert send(broker, 0) == ErrorCode.KAFKA_STORAGE_ERROR
            await until(lambda: all(replica_of(broker, i).log.failure for i in range(3)))
            await until(lambda: all(replica_of(broker, i).leader is None for i in range(3)))
            disk.fails = set()
            await until(lambda: [send(broker, index) for index in range(3)] == [0, 0, 0])

    asyncio.run(test())


def test_a_read_error_while_a_response_is_sent_takes_the_log_offline():
    async def test():
        disk = FailingDisk()
        async with running(disk) as broker:
            assert send(broker, 0) == ErrorCode.NONE
            found = replica_of(broker).log.read(0, 1000, 1)
            assert found is not None
            failure = DiskFailed(found.file.path, "reading", "input/output error")
            broker._server.on_read_failure(found.file.path, failure)
            assert failure_of(replica_of(broker)) is FailureKind.OFFLINE
            assert failure_of(replica_of(broker, 1)) is None
            await until(lambda: send(broker, 0) == ErrorCode.NONE)

    asyncio.run(test())
