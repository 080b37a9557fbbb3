"""Fetch with read_committed: records up to the last stable offset, and the aborted transactions.

A model writes transactions of several producers, plain records between them, and markers.  A reader
that filters aborted transactions as clients do must get the committed records, in order, whatever
sizes it fetches.
"""

import asyncio
from collections import defaultdict
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hightide.broker.broker import Broker
from hightide.broker.handlers.fetch import fetch
from hightide.broker.network.fetch_sizing import FetchSizing
from hightide.core.transactions.transaction import Producer
from hightide.log.segment import Slice
from hightide.wire import batch
from hightide.wire.control import ControlType, control_type
from hightide.wire.errors import ErrorCode
from hightide.wire.frame import decode_response, encode_request
from hightide.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from hightide.wire.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from hightide.wire.messages.transactions import DescribeProducersRequest, TopicRequest
from tests.unit.broker.transactional_world import (
    NOW_MS,
    World,
    codes,
    marker_request,
    part,
    produce_request,
    results,
    world,
)

COMMITTED, UNCOMMITTED = 1, 0
A, B = Producer(7, 0), Producer(8, 0)


class Reader:
    """A connection without a socket, which never waits."""

    def __init__(self, broker: Broker, version: int) -> None:
        self.broker, self.version = broker, version
        self.fetch_sizing, self.fetch_next, self.peer_broker_id = FetchSizing(), None, -1

    def ask(self, offset: int, max_bytes: int, level: int):
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=1,
            max_bytes=max_bytes,
            isolation_level=level,
            topics=[
                FetchTopic(
                    topic="t",
                    partitions=[
                        FetchPartition(
                            partition=0, fetch_offset=offset, partition_max_bytes=max_bytes
                        )
                    ],
                )
            ],
        )
        if self.version >= 13:
            request.topics[0].topic = cast(Any, None)
            request.topics[0].topic_id = self.broker.replica_manager.get(b"t", 0).topic_id
        frame = bytearray(encode_request(request, self.version, 1, "c")[4:])
        parts = fetch(self.broker, self, frame, memoryview(frame), 0, len(frame))  # type: ignore[arg-type]
        assert isinstance(parts, list)
        whole = b"".join(
            item.file.read(item.position, item.length)
            if isinstance(item, Slice)
            else cast(bytes, item)
            for item in parts
        )
        _, answer = decode_response(FetchResponse, whole[4:], self.version)
        return answer.responses[0].partitions[0]


def read_all(broker: Broker, version: int, max_bytes: int) -> tuple[list[bytes | None], int]:
    """Return the committed records as a client reads them, and its last offset."""
    reader = Reader(broker, version)
    offset, found = 0, []
    while True:
        answer = reader.ask(offset, max_bytes, COMMITTED)
        assert answer.error_code == 0
        data = memoryview(answer.records or b"")
        if not data:
            assert answer.aborted_transactions == []
            return found, offset
        coming = sorted(answer.aborted_transactions, key=lambda aborted: aborted.first_offset)
        begun_at, passed_over = offset, set()
        for at, header in batch.batches(data):
            while coming and coming[0].first_offset <= header.last_offset:
                passed_over.add(coming.pop(0).producer_id)
            records = list(batch.records(data[at : at + header.size]))
            offset = header.last_offset + 1
            if header.is_control:
                if control_type(records[0]) == ControlType.ABORT:
                    passed_over.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in passed_over):
                found += [record.value for record in records if record.offset >= begun_at]
        assert coming == [], "aborted transactions beyond the returned records are useless"


written = st.tuples(st.just("write"), st.sampled_from([7, 8, -1]), st.integers(1, 3))
ended = st.tuples(st.just("end"), st.integers(0, 1), st.booleans())
steps = st.lists(st.tuples(written, written, ended), max_size=8).map(
    lambda drawn: [step for steps in drawn for step in steps]
)


class Model:
    """The written records, and which of them a read_committed reader may see."""

    def __init__(self, it: World) -> None:
        self.replica = it.replica()
        self.sequences: dict[int, int] = defaultdict(int)
        self.open: dict[int, int] = {}
        self.records: list[tuple[int, bytes | None, int]] = []  # offset, value, producer
        self.aborted: set[int] = set()

    def write(self, producer_id: int, count: int) -> None:
        values = [b"%d" % (len(self.records) + index) * 20 for index in range(count)]
        producer = None if producer_id < 0 else Producer(producer_id, 0)
        sequence = self.sequences[producer_id]
        made = part(sequence, *values, producer=producer, transactional=producer is not None)
        guard = None
        if producer is not None:
            self.sequences[producer_id] += count
            transactions = self.replica.log.transactions
            guard = transactions.begin_verification(producer, sequence, NOW_MS)
        buf = bytearray(made.records or b"")
        base, _, _ = self.replica.append(buf, memoryview(buf), 0, len(buf), NOW_MS, guard)
        if producer is not None:
            self.open.setdefault(producer_id, base)
        self.records += [(base + index, values[index], producer_id) for index in range(count)]

    def end(self, producer_id: int, is_commit: bool) -> None:
        end = self.replica.append_marker(Producer(producer_id, 0), 0, is_commit, 1, NOW_MS)
        first = self.open.pop(producer_id, None)
        if first is not None and not is_commit:
            self.aborted |= {
                offset
                for offset, _, producer in self.records
                if producer == producer_id and first <= offset < end
            }

    @property
    def stable_offset(self) -> int:
        return min(self.open.values(), default=self.replica.log.end_offset)

    @property
    def visible(self) -> list[bytes | None]:
        return [
            value
            for offset, value, _ in self.records
            if offset < self.stable_offset and offset not in self.aborted
        ]


@settings(max_examples=40, deadline=None)
@given(steps, st.sampled_from([1, 200, 500, 1 << 20]), st.sampled_from([4, 7, 11, 12, 17]))
def test_a_reader_finds_the_committed_records_and_nothing_else(drawn, max_bytes, version):
    async def run():
        async with world(log_segment_bytes=1024) as it:
            model = Model(it)
            for what, which, how in drawn:
                if what == "write":
                    model.write(which, how)
                elif model.open:
                    model.end(list(model.open)[which % len(model.open)], how)
            assert it.replica().log.last_stable_offset == model.stable_offset
            assert read_all(it.broker, version, max_bytes) == (model.visible, model.stable_offset)
            answer = Reader(it.broker, version).ask(0, 1 << 20, UNCOMMITTED)
            assert answer.aborted_transactions is None
            assert answer.last_stable_offset == model.stable_offset
            assert answer.high_watermark == it.replica().log.end_offset

    asyncio.run(run())


async def _latest(client, level: int, timestamp: int = -1):
    request = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=level,
        topics=[
            ListOffsetsTopic(
                name="t",
                partitions=[ListOffsetsPartition(partition_index=0, timestamp=timestamp)],
            )
        ],
    )
    (partition,) = (await client.send(request)).topics[0].partitions
    return partition.offset


def test_the_latest_offset_of_what_is_committed_is_the_last_stable_one():
    async def run():
        async with world() as it:
            client = await it.client()
            plain = part(0, producer=None, transactional=False)
            await client.send(produce_request(plain, name=None))
            await client.send(produce_request(part(0)))
            assert await _latest(client, UNCOMMITTED) == 2
            assert await _latest(client, COMMITTED) == 1
            assert await _latest(client, COMMITTED, timestamp=NOW_MS) == 0
            # The transaction of the newest record is open.
            client.close()
            client = await it.client()
            await client.send(marker_request(A, True))
            assert await _latest(client, COMMITTED) == 3
            client.close()

    asyncio.run(run())


def _fetch(level: int, offset: int = 0, min_bytes: int = 1, max_wait_ms: int = 4000):
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=1 << 20,
        isolation_level=level,
        session_id=0,
        session_epoch=0,
        topics=[
            FetchTopic(
                topic="t",
                partitions=[
                    FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
                ],
            )
        ],
    )


@pytest.mark.parametrize("min_bytes", [1, 1000])
def test_a_reader_that_waits_is_woken_by_the_end_of_the_transaction_and_not_before(
    min_bytes,
):
    """The bytes that the reader waits for came long before the marker, which is small."""

    async def run():
        async with world() as it:
            writer, reader = await it.client(), await it.client()
            waiting = asyncio.ensure_future(
                reader.send(_fetch(COMMITTED, min_bytes=min_bytes), version=12)
            )
            await it.until(lambda: it.replica().purgatory.stable_consumers)
            (waiter,) = it.replica().purgatory.stable_consumers
            await writer.send(produce_request(part(0, b"v" * 2000)))
            await writer.send(produce_request(part(1, b"w" * 2000)))
            assert waiter.missing_bytes == min_bytes, (
                "the reader was not woken, and no bytes are counted"
            )
            await writer.send(marker_request(A, True))
            async with asyncio.timeout(2):
                answer = await waiting
            (partition,) = answer.responses[0].partitions
            assert (partition.high_watermark, partition.last_stable_offset) == (3, 3)
            assert len(partition.records) > 4000
            assert it.replica().purgatory.stable_consumers == {}
            writer.close()
            reader.close()

    asyncio.run(run())


def test_the_isolation_level_may_change_within_a_session():
    async def run():
        async with world() as it:
            client = await it.client()
            await client.send(produce_request(part(0)))
            first = await client.send(_fetch(COMMITTED, max_wait_ms=0), version=12)
            assert not first.responses[0].partitions[0].records
            following = _fetch(UNCOMMITTED, max_wait_ms=0)
            following.session_id, following.session_epoch = first.session_id, 1
            following.topics = []
            second = await client.send(following, version=12)
            (partition,) = second.responses[0].partitions
            assert partition.records
            assert partition.aborted_transactions is None
            client.close()

    asyncio.run(run())


def test_the_producers_of_a_partition_are_described():
    async def run():
        async with world() as it:
            client = await it.client()
            await client.send(produce_request(part(0), part(0, partition=1)))
            await client.send(produce_request(part(1)))
            await client.send(marker_request(A, True, 1, coordinator_epoch=3))
            request = DescribeProducersRequest(
                topics=[
                    TopicRequest(name="t", partition_indexes=[0, 1, 9]),
                    TopicRequest(name="missing", partition_indexes=[0]),
                ]
            )
            topics = (await client.send(request)).topics
            first, second, ninth = topics[0].partitions
            assert [
                (
                    active_producer.producer_id,
                    active_producer.producer_epoch,
                    active_producer.last_sequence,
                    active_producer.coordinator_epoch,
                    active_producer.current_txn_start_offset,
                )
                for active_producer in first.active_producers + second.active_producers
            ] == [(7, 0, 1, -1, 0), (7, 0, 0, 3, -1)]
            unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert (ninth.error_code, topics[1].partitions[0].error_code) == (unknown, unknown)
            client.close()

    asyncio.run(run())


def test_a_marker_is_refused_without_a_leader():
    async def run():
        async with world() as it:
            client = await it.client()
            unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert codes(await client.send(marker_request(A, True, 0, 9))) == [0, unknown]
            assert codes(await client.send(marker_request(A, True, topic="missing"))) == [unknown]
            client.close()

    asyncio.run(run())


def test_a_marker_of_an_old_coordinator_is_refused_and_ends_nothing():
    async def run():
        async with world() as it:
            client = await it.client()
            newer = Producer(7, 3)
            await client.send(produce_request(part(0, producer=newer)))
            assert codes(await client.send(marker_request(A, True))) == [
                ErrorCode.INVALID_PRODUCER_EPOCH
            ]
            await client.send(marker_request(newer, True, coordinator_epoch=5))
            assert results(await client.send(produce_request(part(1, producer=newer)))) == [(0, 2)]
            assert codes(await client.send(marker_request(newer, True, coordinator_epoch=4))) == [
                ErrorCode.TRANSACTION_COORDINATOR_FENCED
            ]
            assert it.replica().log.last_stable_offset == 2
            client.close()

    asyncio.run(run())
