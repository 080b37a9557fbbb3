"""The fast path of Produce, which knows a request by its bytes, against the general path.

Two brokers in memory get the same requests; one forgets every shape before each of them.  Their
responses and their logs must be the same bytes.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from hightide.broker.broker import Broker
from hightide.broker.environment import RealEnvironment
from hightide.broker.handlers.produce import produce
from hightide.core.transactions.transaction import Producer
from hightide.log.disk import MemoryDisk
from hightide.settings import Broker as Settings
from hightide.wire import batch
from hightide.wire.errors import ErrorCode, WireError
from hightide.wire.frame import encode_request
from hightide.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)

NOW_MS = 1_700_000_000_000


class Connection:
    """The part of a connection that Produce uses."""

    def __init__(self) -> None:
        self.produce_prefix = 0
        self.verified: dict[object, object] = {}
        self.produced = None
        self.checked: dict[int, object] = {}
        self.closed: list[str] = []

    def close(self, why: str) -> None:
        self.closed.append(why)


@st.composite
def batches(draw) -> bytes:
    count = draw(st.integers(1, 3))
    sizes = st.sampled_from([0, 1, 40, 150, 20_000])
    records = [batch.Record(i, NOW_MS, None, b"v" * draw(sizes), ()) for i in range(count)]
    idempotent = draw(st.booleans())
    made = batch.build(
        records,
        producer_id=draw(st.integers(1, 2)) if idempotent else -1,
        producer_epoch=0 if idempotent else -1,
        base_sequence=draw(st.integers(0, 3)) if idempotent else -1,
        transactional=idempotent and draw(st.booleans()),
    )
    if draw(st.integers(0, 9)) == 0:
        made[draw(st.integers(0, len(made) - 1))] ^= 1 << draw(st.integers(0, 7))
    return bytes(made)


@st.composite
def requests(draw) -> tuple[int, bytes]:
    version = draw(st.sampled_from([3, 5, 7, 8, 9, 10, 12]))
    topics = draw(st.sampled_from([["t"], ["t"], ["t"], ["u"], ["missing"], ["t", "u"]]))
    request = ProduceRequest(
        transactional_id=draw(st.sampled_from([None, None, "one", "two"])),
        acks=draw(st.sampled_from([1, 1, -1, 0, 7])),
        timeout_ms=1000,
        topic_data=[
            TopicProduceData(
                name=topic,
                partition_data=[
                    PartitionProduceData(index=draw(st.integers(0, 2)), records=draw(batches()))
                    for _ in range(draw(st.sampled_from([1, 1, 1, 2])))
                ],
            )
            for topic in topics
        ],
    )
    client_id = draw(st.sampled_from(["c", "other", None]))
    frame = bytearray(encode_request(request, version, draw(st.integers(0, 9)), client_id)[4:])
    if draw(st.integers(0, 9)) == 0:
        frame[draw(st.integers(8, len(frame) - 1))] = draw(st.integers(0, 255))
    return version, bytes(frame)


def verdict(transactional_id: str, _producer: Producer, partition: tuple[str, int]) -> ErrorCode:
    """The verdict of a transaction coordinator on the same broker."""
    is_refused = transactional_id == "two" and partition[1] == 1
    return ErrorCode.TRANSACTION_ABORTABLE if is_refused else ErrorCode.NONE


def end_transactions(broker: Broker) -> None:
    for replica in broker.replica_manager:
        for producer_id in list(replica.log.transactions.opened):
            replica.append_marker(Producer(producer_id, 0), 0, True, 1, NOW_MS)


async def served(
    frames: Sequence[bytes | None], forgets: bool
) -> tuple[list[object], dict[str, bytes]]:
    settings_ = Settings(listeners="PLAINTEXT://127.0.0.1:0", zookeeper_listen="127.0.0.1:0")
    broker = Broker(settings_, environment=RealEnvironment(memory=MemoryDisk()))
    broker.now_ms = lambda: NOW_MS  # type: ignore[method-assign]
    await broker.start()
    broker.transactions.verify_now = verdict  # type: ignore[assignment]
    for topic in ("t", "u"):
        assignment = {0: [broker.broker_id], 1: [broker.broker_id]}
        await broker.controller.create_topic(topic, assignment, {}, timeout_ms=5000)
    connection = Connection()
    responses: list[object] = []
    for frame in frames:
        if frame is None:
            end_transactions(broker)
            continue
        if forgets:
            broker.shapes.forget()
        buf = bytearray(b"\x05" * 9 + frame + b"\x05" * 40)
        try:
            responses.append(
                produce(broker, cast(Any, connection), buf, memoryview(buf), 9, 9 + len(frame))
            )
        except WireError as error:
            responses.append(str(error))
    responses += connection.closed
    logs = {
        f"{replica.topic}-{replica.partition}": replica.log.segments[-1].opened().read(0, 1 << 20)
        for replica in broker.replica_manager
        if replica.log.end_offset
    }
    await broker.stop()
    return responses, logs


@settings(max_examples=50, deadline=None)
@given(st.lists(requests() | st.none(), min_size=1, max_size=8))
def test_both_paths_give_the_same_responses_and_the_same_logs(drawn):
    """Some requests are transactional; None ends the open transactions."""
    frames = [request and request[1] for request in drawn for _ in range(2)]

    async def both():
        return await served(frames, forgets=False), await served(frames, forgets=True)

    fast, general = asyncio.run(both())
    assert fast == general
