"""The log of a coordinator: replay, appends, and the reports of committed records."""

import asyncio
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from hightide.broker.coordinator_log import CoordinatorLog, CoordinatorLogClosed
from hightide.broker.replication.flusher import Flusher
from hightide.broker.replication.replica import Replica
from hightide.broker.replication.replica_manager import ReplicaManager
from hightide.core.partition.state import PartitionState
from hightide.log.disk import MemoryDisk
from hightide.log.log import Log
from hightide.log.segment import OpenFiles
from hightide.settings import Broker as Settings
from hightide.settings import Topic as TopicSettings
from hightide.wire.batch import Record, build, records
from hightide.wire.errors import Corrupt, ErrorCode, KafkaError
from tests.support.failing_disk import FailingDisk

NOW_MS = 1_700_000_000_000
LIVE = {1: 10, 2: 20}
ALONE, PAIR = (1,), (1, 2)


def partition(replicas: ReplicaManager | None = None, disk: MemoryDisk | None = None) -> Replica:
    disk = disk or MemoryDisk()
    disk.make_directory("__consumer_offsets-0")
    settings = {"cleanup.policy": "compact", "segment.bytes": "1000"}
    config = TopicSettings.effective(Settings(), settings)
    log = Log.create(disk, "__consumer_offsets", 0, config, OpenFiles(10), NOW_MS)
    return (replicas or ReplicaManager()).add(log, uuid.UUID(int=7), 0)


def lead(replica: Replica, isr: tuple[int, ...] = ALONE, epoch: int = 0) -> None:
    state = PartitionState(PAIR, 1, epoch, isr, partition_epoch=0)
    replica.lead(state, 1, LIVE[1], LIVE, frozenset(), 1000, NOW_MS)


def coordinator_log_of(replica: Replica) -> CoordinatorLog:
    return CoordinatorLog(replica, Flusher(lambda: None))


def batch(value: bytes) -> bytearray:
    return build([Record(0, NOW_MS, b"k", value, ())])


def write(replica: Replica, *values: bytes) -> None:
    for value in values:
        replica.append_own(batch(value), NOW_MS)


async def replayed(log: CoordinatorLog) -> list[bytes | None]:
    seen: list[bytes | None] = []
    await log.replay(lambda _, data: seen.extend(record.value for record in records(data)))
    return seen


def report(reports: list[Any], name: str) -> Callable[[int], None]:
    return lambda base_offset: reports.append((name, base_offset))


def test_the_whole_log_is_replayed_over_all_segments():
    async def scenario() -> None:
        replica = partition()
        lead(replica)
        values = [b"%d" % i * 30 for i in range(50)]
        write(replica, *values)
        assert len(replica.log.segments) > 2
        assert await replayed(coordinator_log_of(replica)) == values

    asyncio.run(scenario())


def test_damaged_records_without_a_copy_are_left_out():
    async def scenario() -> None:
        replica = partition()
        lead(replica)
        values = [b"%d" % i * 30 for i in range(50)]
        write(replica, *values)
        replica.log.damage.lost(5, 10)
        assert await replayed(coordinator_log_of(replica)) == values[:5] + values[10:]

    asyncio.run(scenario())


def test_damaged_records_with_a_copy_are_waited_for():
    async def scenario() -> None:
        replica = partition()
        lead(replica, PAIR)
        write(replica, b"a", b"b")
        replica.log.damage.lost(1, 2)
        with pytest.raises(KafkaError) as caught:
            await replayed(coordinator_log_of(replica))
        assert caught.value.code is ErrorCode.CORRUPT_MESSAGE

    asyncio.run(scenario())


def test_a_batch_that_was_damaged_on_disk_is_not_replayed():
    async def scenario() -> None:
        disk = MemoryDisk()
        replica = partition(disk=disk)
        lead(replica)
        write(replica, *(b"%d" % i * 30 for i in range(50)))
        disk.open("__consumer_offsets-0/00000000000000000000.log").data[80] ^= 1
        with pytest.raises(Corrupt):
            await replayed(coordinator_log_of(replica))
        assert list(replica.log.damage.suspects) == [replica.log.segments[0]]

    asyncio.run(scenario())


def test_an_empty_log_is_replayed_at_once():
    async def scenario() -> None:
        replica = partition()
        lead(replica)
        assert await replayed(coordinator_log_of(replica)) == []

    asyncio.run(scenario())


def test_replay_ends_when_the_tail_is_committed():
    async def scenario() -> None:
        replica = partition()
        lead(replica, PAIR)
        write(replica, b"a", b"b")
        log = coordinator_log_of(replica)
        replay = asyncio.create_task(replayed(log))
        for _ in range(5):
            await asyncio.sleep(0)
        replica.fetched(2, 1, LIVE[2], NOW_MS, 0)
        await asyncio.sleep(0)
        assert not replay.done()
        replica.fetched(2, 2, LIVE[2], NOW_MS, 0)
        assert await replay == [b"a", b"b"]

    asyncio.run(scenario())


def test_losing_the_leadership_ends_the_replay():
    async def scenario() -> None:
        replica = partition()
        lead(replica, PAIR)
        write(replica, b"a")
        log = coordinator_log_of(replica)
        replay = asyncio.create_task(replayed(log))
        await asyncio.sleep(0)
        replica.rest(None)
        with pytest.raises(CoordinatorLogClosed):
            await replay
        assert log.is_closed
        assert replica.coordinator_log is None

    asyncio.run(scenario())


def test_committed_batches_are_reported_in_order_and_after_the_turn():
    async def scenario() -> None:
        replica = partition()
        lead(replica)
        log, reports = coordinator_log_of(replica), []
        await replayed(log)
        assert log.append(batch(b"a"), NOW_MS, report(reports, "a")) == 0
        log.append(batch(b"b"), NOW_MS, report(reports, "b"))
        assert reports == []
        log.settle()
        assert reports == [("a", 0), ("b", 1)]

    asyncio.run(scenario())


def test_a_batch_is_reported_when_followers_have_it_and_otherwise_never():
    async def scenario() -> None:
        replica = partition()
        lead(replica, PAIR)
        log, reports = coordinator_log_of(replica), []
        await replayed(log)
        log.append(batch(b"a"), NOW_MS, report(reports, "a"))
        log.append(batch(b"b"), NOW_MS, report(reports, "b"))
        log.settle()
        assert reports == []
        replica.fetched(2, 1, LIVE[2], NOW_MS, 0)
        assert reports == [("a", 0)]
        lead(replica, PAIR, epoch=1)
        replica.fetched(2, 2, LIVE[2], NOW_MS, 0)
        assert reports == [("a", 0)]
        with pytest.raises(KafkaError) as refused:
            log.append(batch(b"c"), NOW_MS, report(reports, "c"))
        assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER

    asyncio.run(scenario())


def test_reports_do_not_interrupt_each_other():
    async def scenario() -> None:
        replica = partition()
        lead(replica)
        log, reports = coordinator_log_of(replica), []
        await replayed(log)

        def then_another(base_offset: int) -> None:
            reports.append(("a begins", base_offset))
            log.append(batch(b"c"), NOW_MS, report(reports, "c"))
            log.settle()
            reports.append(("a ends", base_offset))

        log.append(batch(b"a"), NOW_MS, then_another)
        log.append(batch(b"b"), NOW_MS, report(reports, "b"))
        log.settle()
        assert reports == [("a begins", 0), ("a ends", 0), ("b", 1), ("c", 2)]

    asyncio.run(scenario())


def test_markers_are_reported_between_the_writes_unless_they_were_replayed():
    async def scenario() -> None:
        replica = partition()
        lead(replica, PAIR)
        write(replica, b"a")
        log = coordinator_log_of(replica)
        reports: list[Any] = []
        log.on_marker = lambda producer_id, is_commit: reports.append((producer_id, is_commit))
        log.marker_appended(1, 70, True)
        replay = asyncio.create_task(replayed(log))
        for _ in range(5):
            await asyncio.sleep(0)
        write(replica, b"a marker that came while the rest was waited for")
        log.marker_appended(2, 71, False)
        replica.fetched(2, 2, LIVE[2], NOW_MS, 0)
        await replay
        assert reports == []
        log.append(batch(b"b"), NOW_MS, report(reports, "b"))
        log.settle()
        assert reports == [(71, False)]
        replica.fetched(2, 3, LIVE[2], NOW_MS, 0)
        assert reports == [(71, False), ("b", 2)]

    asyncio.run(scenario())


def test_the_owner_is_notified_of_each_role_change():
    replicas = ReplicaManager()
    changes: list[tuple[bool, bool]] = []
    replicas.on_role = lambda changed: changes.append(
        (changed.leader is not None, changed.coordinator_log is None)
    )
    replica = partition(replicas)
    lead(replica)
    replica.follow(PartitionState(PAIR, 2, 1, PAIR, partition_epoch=1))
    replicas.remove(replica)
    assert changes == [(True, True), (False, True), (False, True)]


def test_a_log_that_fails_while_it_is_replayed_waits_for_the_end_of_the_role():
    async def scenario() -> None:
        disk = FailingDisk()
        replica = partition(disk=disk)
        lead(replica)
        write(replica, b"a", b"b")
        disk.fails = {"read"}
        loading = asyncio.create_task(replayed(coordinator_log_of(replica)))
        await asyncio.sleep(0.01)
        assert not loading.done()
        assert replica.log.failure is not None
        replica.rest(None)
        with pytest.raises(CoordinatorLogClosed):
            await loading

    asyncio.run(scenario())
