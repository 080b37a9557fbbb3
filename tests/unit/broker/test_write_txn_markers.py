"""WriteTxnMarkers at the leader of a partition with three replicas.

A marker is written once, acknowledged when it is committed, and reported to the coordinator whose
log it is.
"""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hightide.broker.coordinator_log import CoordinatorLog
from hightide.broker.handlers.prove_broker import Refusals
from hightide.broker.handlers.request_context import Context
from hightide.broker.handlers.write_txn_markers import write_markers, write_txn_markers
from hightide.broker.replication.flusher import Flusher
from hightide.broker.replication.replica import Replica
from hightide.broker.replication.replica_manager import ReplicaManager
from hightide.core.transactions.transaction import Producer
from hightide.log.disk import MemoryDisk
from hightide.log.log import Log
from hightide.log.segment import OpenFiles
from hightide.settings import Broker as Settings
from hightide.settings import Topic as TopicSettings
from hightide.wire.errors import ErrorCode
from tests.unit.broker.replica_world import (
    NOW_MS,
    Fetch,
    Write,
    fetched,
    lead,
    make,
    received,
    state,
)
from tests.unit.broker.transactional_world import FIRST, codes, marker_request, part


def write(replica: Replica, sequence: int, producer: Producer = FIRST) -> int:
    """Append a batch of the producer's transaction; return the offset after it."""
    buf = bytearray(part(sequence, producer=producer).records or b"")
    guard = replica.log.transactions.begin_verification(producer, sequence, NOW_MS)
    return replica.append(buf, memoryview(buf), 0, len(buf), NOW_MS, guard)[1]


def broker_of(replica: Replica, replicas: ReplicaManager, admits: bool = True):
    """Return the part of a broker that the handler uses."""
    return SimpleNamespace(
        replica_manager=replicas,
        now_ms=lambda: NOW_MS,
        settings=Settings(request_timeout_ms=50),
        flusher=Flusher(lambda: None),
        refusals=Refusals(lambda: NOW_MS / 1000),
        transactions=SimpleNamespace(
            marker_fencing=SimpleNamespace(admits=lambda _connection: admits)
        ),
        metadata=SimpleNamespace(
            get=lambda _topic: None,
            refusal=lambda *_: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ),
    )


def sent_by(broker_id: int = -1) -> Context:
    """The context of a request, from a broker or from another client."""
    connection: Any = SimpleNamespace(peer_broker_id=broker_id, client_address="192.0.2.7")
    return Context(connection, 1, "admin-1")


def led_partition(**overrides: str):
    replicas = ReplicaManager()
    replica = make(replicas, **overrides)
    lead(replica)
    return replica, broker_of(replica, replicas)


def test_a_marker_is_acknowledged_when_it_is_committed_and_so_is_its_repetition():
    async def run():
        replica, broker = led_partition()
        write(replica, 0)
        first = asyncio.ensure_future(
            cast(Any, write_markers(broker, marker_request(FIRST, False)))
        )
        again = asyncio.ensure_future(
            cast(Any, write_markers(broker, marker_request(FIRST, False)))
        )
        await asyncio.sleep(0)
        assert replica.log.end_offset == 2, "it is written once"
        fetched(replica, 2, 2)
        fetched(replica, 3, 1)
        await asyncio.sleep(0)
        assert (first.done(), again.done(), replica.log.last_stable_offset) == (False, False, 0)
        fetched(replica, 3, 2)
        assert codes(await first) == codes(await again) == [0]
        assert replica.log.last_stable_offset == 2
        assert codes(write_markers(broker, marker_request(FIRST, False))) == [0], "at once"
        assert replica.log.end_offset == 2

    asyncio.run(run())


def test_the_outcome_of_a_marker_is_unknown_when_another_broker_leads():
    async def run():
        replica, broker = led_partition()
        write(replica, 0)
        waiting = asyncio.ensure_future(
            cast(Any, write_markers(broker, marker_request(FIRST, True)))
        )
        await asyncio.sleep(0)
        replica.follow(state(leader=2, epoch=1))
        assert codes(await waiting) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
        response = write_markers(broker, marker_request(FIRST, True))
        assert codes(response) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]

    asyncio.run(run())


def test_a_marker_that_is_not_committed_in_time_is_not_acknowledged():
    async def run():
        replica, broker = led_partition()
        write(replica, 0)
        waiting: Any = write_markers(broker, marker_request(FIRST, True))
        assert codes(await waiting) == [ErrorCode.REQUEST_TIMED_OUT]

    asyncio.run(run())


def test_no_marker_is_written_with_too_few_replicas():
    replica, broker = led_partition(**{"min.insync.replicas": "2"})
    write(replica, 0)
    lead(replica, state(isr=(1,), epoch=1))
    response = write_markers(broker, marker_request(FIRST, True))
    assert codes(response) == [ErrorCode.NOT_ENOUGH_REPLICAS]
    assert replica.log.end_offset == 1


def test_markers_over_an_old_connection_are_not_written():
    replica, broker = led_partition()
    write(replica, 0)
    broker.transactions.marker_fencing.admits = lambda _connection: False
    response = write_txn_markers(broker, marker_request(FIRST, True), sent_by(broker_id=2))
    assert codes(response) == [ErrorCode.STALE_BROKER_EPOCH]
    assert replica.log.end_offset == 1


def test_a_read_committed_fetch_is_woken_when_the_marker_is_committed():
    async def run():
        replica, broker = led_partition()
        reader, plain = Fetch(), Fetch()
        replica.purgatory.park_for_stable(reader)
        replica.purgatory.consumers[plain] = None
        write(replica, 0)
        for follower in (2, 3):
            fetched(replica, follower, 1)
        broker.replica_manager.purgatory.wake()
        assert (plain.served, reader.served) == (1, 0)
        waiting: Any = write_markers(broker, marker_request(FIRST, True))
        broker.replica_manager.purgatory.wake()
        assert reader.served == 0, "it could still be lost"
        for follower in (2, 3):
            fetched(replica, follower, 2)
        broker.replica_manager.purgatory.wake()
        assert reader.served == 1
        await waiting

    asyncio.run(run())


def test_a_follower_serves_decided_records_up_to_its_high_watermark():
    async def run():
        replica, broker = led_partition()
        write(replica, 0)
        waiting: Any = write_markers(broker, marker_request(FIRST, True))
        copied = replica.log.segments[-1].opened().read(0, 1 << 20)
        replicas = ReplicaManager()
        follower = make(replicas)
        follower.follow(state())
        reader: Any = Fetch()
        follower.purgatory.park_for_stable(reader)
        for high_watermark, stable_offset in ((0, 0), (1, 0), (2, 2)):
            position = follower.follower.position()
            assert position is not None
            records = memoryview(copied) if follower.log.end_offset == 0 else memoryview(b"")
            follower.apply_response(
                position, received(records=records, high_watermark=high_watermark), NOW_MS
            )
            await asyncio.sleep(0)
            assert follower.log.last_stable_offset == stable_offset
            assert reader.served == (stable_offset == 2)
        await waiting

    asyncio.run(run())


def test_a_coordinator_gets_the_committed_markers_of_its_log():
    async def run():
        disk = MemoryDisk()
        disk.make_directory("__consumer_offsets-0")
        config = TopicSettings.effective(Settings(), {})
        log = Log.create(disk, "__consumer_offsets", 0, config, OpenFiles(10), NOW_MS)
        replicas = ReplicaManager()
        replica = replicas.add(log, make().topic_id, 0)
        lead(replica)
        broker = broker_of(replica, replicas)
        coordinator_log = CoordinatorLog(replica, broker.flusher)
        await coordinator_log.replay(lambda _header, _view: None)
        markers: list[tuple[int, bool]] = []
        coordinator_log.on_marker = lambda producer_id, is_commit: markers.append(
            (producer_id, is_commit)
        )
        write(replica, 0)
        request = marker_request(FIRST, True, topic="__consumer_offsets")
        waiting: Any = write_markers(broker, request)
        assert markers == []
        for follower in (2, 3):
            fetched(replica, follower, 2)
        assert markers == [(FIRST.id, True)]
        assert codes(await waiting) == [0]
        write_markers(broker, request)
        assert markers == [(FIRST.id, True)], "a repeated marker is not reported again"

    asyncio.run(run())


@pytest.mark.parametrize("is_transactional", [False, True])
def test_a_repeated_batch_is_acknowledged_when_the_first_copy_is_committed(is_transactional):
    """Not earlier: the first copy may still be lost with this leader."""
    replica, _ = led_partition()
    buf = bytearray(part(0, transactional=is_transactional).records or b"")
    guard = replica.log.transactions.begin_verification(FIRST, 0, NOW_MS)
    ends = []
    for _ in range(2):
        copy = bytearray(buf)
        ends.append(replica.append(copy, memoryview(copy), 0, len(copy), NOW_MS, guard)[:2])
    assert ends == [(0, 1), (0, 1)]
    write_ = Write()
    replica.purgatory.when_committed(ends[1][1], write_)
    fetched(replica, 2, 1)
    assert (write_.codes, replica.high_watermark) == ([], 0)
    fetched(replica, 3, 1)
    assert write_.codes == [ErrorCode.NONE]


# -- markers of a tool -------------------------------------------------------------------------


def test_a_tool_aborts_the_open_transaction_and_is_logged(caplog):
    async def run():
        replica, broker = led_partition()
        write(replica, 0)
        waiting: Any = write_txn_markers(broker, marker_request(FIRST, False), sent_by())
        assert replica.log.end_offset == 2
        assert not replica.log.transactions.is_open(FIRST.id)
        fetched(replica, 2, 2)
        fetched(replica, 3, 2)
        assert codes(await waiting) == [0]
        repeated = write_txn_markers(broker, marker_request(FIRST, False), sent_by())
        assert codes(repeated) == [0]
        assert replica.log.end_offset == 2

    asyncio.run(run())
    asked = "asks to abort the transaction of producer 7, epoch 0, in t-0"
    assert f"192.0.2.7 (client id 'admin-1'), not a broker, {asked}" in caplog.text


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (marker_request(FIRST, True), ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
        (marker_request(Producer(7, 1), False), ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
        (
            marker_request(FIRST, False, coordinator_epoch=1),
            ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ),
        (marker_request(Producer(8, 0), False), ErrorCode.INVALID_TXN_STATE),
        (marker_request(FIRST, False, topic="missing"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_a_client_that_is_no_broker_writes_no_other_marker(request_, code):
    async def run():
        replica, broker = led_partition()
        write(replica, 0)
        assert codes(write_txn_markers(broker, request_, sent_by())) == [code]
        assert replica.log.end_offset == 1
        assert replica.log.transactions.is_open(FIRST.id)

    asyncio.run(run())


def test_a_tool_ends_one_transaction_in_one_partition():
    async def run():
        replica, broker = led_partition()
        write(replica, 0)
        refused = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        response = write_txn_markers(broker, marker_request(FIRST, False, 0, 1), sent_by())
        assert codes(response) == [refused, refused]
        assert replica.log.end_offset == 1

    asyncio.run(run())


def test_nothing_is_written_where_no_transaction_is_open():
    async def run():
        replica, broker = led_partition()
        write(replica, 0)
        waiting: Any = write_txn_markers(broker, marker_request(FIRST, True), sent_by(broker_id=2))
        end_offset = replica.log.end_offset
        fetched(replica, 2, end_offset)
        fetched(replica, 3, end_offset)
        assert codes(await waiting) == [0]
        stale = marker_request(FIRST, False, coordinator_epoch=-1)
        response = write_txn_markers(broker, stale, sent_by())
        assert codes(response) == [ErrorCode.INVALID_TXN_STATE]
        assert replica.log.end_offset == end_offset

    asyncio.run(run())
