"""A Produce whose batches are checked in a thread is served again, and in order."""

import asyncio
from typing import Any, cast

import pytest

from hightide.broker.broker import Broker
from hightide.broker.environment import RealEnvironment
from hightide.broker.handlers.produce import produce
from hightide.broker.network.connection import CHECKING, NotYet
from hightide.broker.network.turn import Usage
from hightide.broker.record_checks import _verdict
from hightide.log.batch_validation import ValidationRules
from hightide.log.disk import MemoryDisk
from hightide.settings import Broker as Settings
from hightide.settings import Topic
from hightide.wire.batch import HEADER_BYTES, Record, build
from hightide.wire.codec import decode
from hightide.wire.compression import Codec
from hightide.wire.crc import crc32c
from hightide.wire.errors import ErrorCode
from hightide.wire.frame import encode_request
from hightide.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

NOW_MS = 1_700_000_000_000
VERSION = 7


class Connection:
    """The part of a connection that Produce and the checks use."""

    def __init__(self) -> None:
        self.produce_prefix = 0
        self.verified: dict[object, object] = {}
        self.checked: dict[int, object] = {}
        self.produced = None
        self.is_closed = False
        self.usage_of_checks = Usage()
        self.unblocked = asyncio.Event()

    def unblock(self, why: int) -> None:
        assert why == CHECKING
        self.unblocked.set()

    def abort(self, why: str) -> None:
        raise AssertionError(why)


def large(codec: Codec, **fields: Any) -> bytearray:
    return build([Record(0, NOW_MS, b"k", bytes(3_000_000))], codec=codec, **fields)


def poisoned() -> bytearray:
    """A large batch with a right CRC and one byte after its record."""
    batch = build([Record(i, NOW_MS, b"k", bytes(1_000_000)) for i in range(4)], codec=Codec.ZSTD)
    batch[57:61] = (3).to_bytes(4, "big")
    batch[23:27] = (2).to_bytes(4, "big")
    batch[17:21] = crc32c(memoryview(batch)[21:]).to_bytes(4, "big")
    return batch


async def started(configs: dict[str, str] | None = None) -> Broker:
    settings = Settings(listeners="PLAINTEXT://127.0.0.1:0", zookeeper_listen="127.0.0.1:0")
    broker = Broker(settings, environment=RealEnvironment(memory=MemoryDisk()))
    broker.now_ms = lambda: NOW_MS  # type: ignore[method-assign]
    await broker.start()
    assignment = {0: [broker.broker_id], 1: [broker.broker_id]}
    await broker.controller.create_topic("t", assignment, configs or {}, timeout_ms=5000)
    return broker


async def send(broker: Broker, batches: list[bytearray]) -> tuple[list[ErrorCode], int]:
    """Return the error of each batch, and how often the request had to wait."""
    request = ProduceRequest(
        transactional_id=None,
        acks=1,
        timeout_ms=1000,
        topic_data=[
            TopicProduceData(
                name="t",
                partition_data=[
                    PartitionProduceData(index=i, records=bytes(batch))
                    for i, batch in enumerate(batches)
                ],
            )
        ],
    )
    buf = bytearray(encode_request(request, VERSION, 1, "c")[4:])
    connection, waits = Connection(), 0
    while True:
        try:
            found = produce(broker, cast(Any, connection), buf, memoryview(buf), 0, len(buf))
        except NotYet:
            waits += 1
            await connection.unblocked.wait()
            continue
        assert found is not None
        assert not connection.checked
        response = decode(ProduceResponse, memoryview(found)[8:], VERSION)
        return [ErrorCode(p.error_code) for p in response.responses[0].partition_responses], waits


def ends(broker: Broker) -> list[int]:
    return [replica.log.end_offset for replica in broker.replica_manager if replica.topic == "t"]


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_large_batches_wait_for_a_thread_and_nothing_is_appended_twice(codec: Codec) -> None:
    async def run() -> None:
        broker = await started()
        small = build([Record(0, NOW_MS, None, b"v")])
        errors, waits = await send(broker, [small, large(codec)])
        assert (errors, waits) == ([ErrorCode.NONE, ErrorCode.NONE], 1)
        assert ends(broker) == [1, 1]
        await broker.stop()

    asyncio.run(run())


def test_a_large_poisoned_batch_is_refused_and_its_neighbour_stored() -> None:
    async def run() -> None:
        broker = await started()
        small = build([Record(0, NOW_MS, None, b"v")])
        errors, waits = await send(broker, [poisoned(), small])
        assert (errors, waits) == ([ErrorCode.INVALID_RECORD, ErrorCode.NONE], 1)
        await broker.stop()

    asyncio.run(run())


@pytest.mark.parametrize(
    "configs", [{"compression.type": "lz4"}, {"cleanup.policy": "compact"}], ids=["lz4", "compact"]
)
def test_compacted_and_recompressing_topics_inflate_in_a_thread(configs: dict[str, str]) -> None:
    async def run() -> None:
        broker = await started(configs)
        errors, waits = await send(broker, [large(Codec.ZSTD)])
        assert (errors, waits) == ([ErrorCode.NONE], 1)
        await broker.stop()

    asyncio.run(run())


def test_a_batch_with_a_wrong_crc_is_not_worth_a_thread() -> None:
    async def run() -> None:
        broker = await started()
        damaged = large(Codec.ZSTD)
        damaged[HEADER_BYTES + 3] ^= 1
        errors, waits = await send(broker, [damaged])
        assert (errors, waits) == ([ErrorCode.CORRUPT_MESSAGE], 0)
        await broker.stop()

    asyncio.run(run())


def test_a_kept_refusal_holds_no_buffers():
    """A traceback would keep the decompressed records until the next garbage collection."""
    refusal: Any = _verdict(poisoned(), ValidationRules.of(Topic()))
    assert refusal.code == ErrorCode.INVALID_RECORD
    assert (refusal.__traceback__, refusal.__context__, refusal.__cause__) == (None, None, None)
