"""Delayed requests: completed once, in order, and when what they wait for has happened."""

import asyncio
from typing import Any, cast

import pytest

from hightide.broker.network.connection import Slot
from hightide.broker.replication.purgatory import (
    DelayedBatch,
    DelayedFetch,
    DelayedProduce,
    ProduceContext,
)
from hightide.broker.replication.replica import Replica
from hightide.broker.replication.replica_manager import ReplicaManager
from hightide.settings import Broker as Settings
from hightide.settings import Topic as TopicSettings
from hightide.wire import batch
from hightide.wire.errors import ErrorCode
from hightide.wire.hot import fetch_codec as hot_fetch
from hightide.wire.hot import produce_codec as hot
from tests.unit.broker.replica_world import NOW_MS, Fetch, Write, append, fetched, lead, make, state

RESULT = hot.ProducedPartition(3, 0, 17, -1, 5)


class Connection:
    def __init__(self) -> None:
        self.responses: list[object] = []
        self.slot = Slot()

    def defer(self, cancel) -> Slot:
        self.slot.cancel = cancel
        return self.slot

    def complete(self, _slot: Slot, response: object) -> None:
        self.responses.append(response)


def one_batch(context: ProduceContext):
    return DelayedBatch(
        context, "t", RESULT, hot.ResponseTemplate(context.version, b"t", RESULT.partition)
    )


def any_request(context: ProduceContext):
    delayed = DelayedProduce(context, [(b"t", [RESULT])])
    partition = delayed.partition(RESULT)
    delayed.park(has_timeout=True)
    return partition


def responses(
    wait, version: int, *codes: ErrorCode, timeout_ms: int = 60_000, leaves: bool = False
):
    """The responses to a write that is completed with these codes, or times out."""

    async def run() -> list[object]:
        connection = Connection()
        write = wait(ProduceContext(cast(Any, connection), 9, version, -1, timeout_ms))
        if leaves:
            assert connection.slot.cancel is not None
            connection.slot.cancel()
        for code in codes:
            write.complete(code)
        await asyncio.sleep(0.02)
        return connection.responses

    return asyncio.run(run())


@pytest.mark.parametrize("version", [3, 5, 8, 9, 12])
@pytest.mark.parametrize(
    "code", [ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR]
)
def test_one_batch_is_answered_as_any_request_is(version, code):
    (response,) = responses(one_batch, version, code)
    assert responses(any_request, version, code) == [response]
    if code is ErrorCode.NONE:
        assert response == hot.encode(9, version, [(b"t", [RESULT])])


@pytest.mark.parametrize("wait", [one_batch, any_request])
def test_an_answer_is_given_once(wait):
    late = ErrorCode.REQUEST_TIMED_OUT
    first = responses(wait, 9, ErrorCode.NONE)
    assert responses(wait, 9, ErrorCode.NONE, late) == first
    assert responses(wait, 9, timeout_ms=0) == responses(wait, 9, late, ErrorCode.NONE)
    assert responses(wait, 9, ErrorCode.NONE, leaves=True, timeout_ms=0) == []


# -- waits on a partition -----------------------------------------------------------------------


def test_a_write_is_answered_when_the_whole_isr_has_it():
    replica = make()
    lead(replica)
    first, second = Write(), Write()
    end = append(replica)
    replica.purgatory.when_committed(end, first)
    replica.purgatory.when_committed(append(replica), second)
    fetched(replica, 2, 2)
    assert (first.codes, second.codes, replica.high_watermark) == ([], [], 0)
    fetched(replica, 3, 1)
    assert (first.codes, second.codes, replica.high_watermark) == ([ErrorCode.NONE], [], 1)
    fetched(replica, 3, 2)
    assert (second.codes, replica.log.committed_offset) == ([ErrorCode.NONE], 2)


def test_of_writes_that_complete_together_the_first_is_completed_last():
    """The responses behind it are ready then, and the connection sends all in one write."""
    replica = make()
    lead(replica)
    order: list[int] = []

    class Numbered:
        def __init__(self, number: int) -> None:
            self.number = number

        def complete(self, _code: ErrorCode) -> None:
            order.append(self.number)

    for number in range(4):
        replica.purgatory.when_committed(append(replica), Numbered(number))
    fetched(replica, 2, 3)
    fetched(replica, 3, 3)
    assert order == [2, 1, 0]


def test_a_write_is_not_lost_nor_sure_when_another_leads():
    replica = make()
    lead(replica)
    write = Write()
    replica.purgatory.when_committed(append(replica), write)
    replica.follow(state(leader=2, epoch=1))
    assert write.codes == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert replica.leader is None
    assert replica.log.end_offset == 1


def test_a_write_with_too_few_replicas_is_not_committed():
    replica = make(None, **{"min.insync.replicas": "2"})
    lead(replica, state(isr=(1, 2)))
    write = Write()
    replica.purgatory.when_committed(append(replica), write)
    replica.log.reconfigure(TopicSettings.effective(Settings(), {"min.insync.replicas": "3"}))
    fetched(replica, 2, 1)
    replica.configured(1000)
    assert write.codes == [ErrorCode.NONE]
    late = Write()
    replica.purgatory.when_committed(append(replica), late)
    fetched(replica, 2, 2)
    assert late.codes == [], "nothing is committed with too few"


def test_consumers_wait_for_the_high_watermark_and_followers_for_the_end():
    replicas = ReplicaManager()
    replica = make(replicas)
    lead(replica)
    consumer: Any = Fetch()
    follower: Any = Fetch()
    replica.purgatory.consumers[consumer] = None
    replica.purgatory.followers[follower] = None
    append(replica)
    replicas.purgatory.wake()
    assert (consumer.served, follower.served) == (0, 1)
    assert list(follower.changed) == [replica.key]
    replica.purgatory.followers.clear()
    fetched(replica, 2, 1)
    fetched(replica, 3, 1)
    replicas.purgatory.wake()
    assert consumer.served == 1


def test_a_fetch_that_misses_many_bytes_is_not_woken_by_few():
    replicas = ReplicaManager()
    replica = make(replicas)
    lead(replica, state(isr=(1,)))
    consumer: Any = Fetch(missing_bytes=100_000)
    replica.purgatory.consumers[consumer] = None
    append(replica)
    replicas.purgatory.wake()
    assert consumer.served == 0
    append(replica, b"v" * 100_000)
    replicas.purgatory.wake()
    assert consumer.served == 1


# -- delayed fetches ----------------------------------------------------------------------------


class Reader:
    """The handler of a fetch: it misses `missing` bytes until that is set to 0."""

    def __init__(self, missing: int) -> None:
        self.missing = missing
        self.connection = Connection()
        self.ended = 0
        self.delayed = DelayedFetch(self.respond, self.end)

    def respond(self, is_last: bool) -> list[hot_fetch.Part] | int:
        return [b"records"] if is_last or not self.missing else self.missing

    def end(self) -> None:
        self.ended += 1

    def park(self, replica: Replica, timeout_ms: int = 60_000, times: int = 1) -> None:
        self.delayed.park(
            self.connection,  # type: ignore[arg-type]
            self.missing,
            timeout_ms,
            [replica.purgatory] * times,
        )


def leading_alone() -> tuple[ReplicaManager, Replica]:
    manager = ReplicaManager()
    replica = make(manager)
    lead(replica, state(isr=(1,)))
    return manager, replica


def test_a_fetch_that_finds_too_few_bytes_when_woken_waits_for_the_rest():
    async def run() -> None:
        manager, replica = leading_alone()
        reader = Reader(missing=1)
        reader.park(replica)
        reader.missing = 5_000
        append(replica)
        manager.purgatory.wake()
        assert (reader.connection.responses, reader.delayed.missing_bytes) == ([], 5_000)
        reader.missing = 0
        append(replica, b"v" * 5_000)
        manager.purgatory.wake()
        assert reader.connection.responses == [[b"records"]]
        assert (reader.ended, dict(replica.purgatory.consumers)) == (1, {})

    asyncio.run(run())


def test_a_fetch_gets_what_there_is_after_its_timeout_and_when_the_broker_stops():
    async def run() -> None:
        manager, replica = leading_alone()
        impatient, patient = Reader(missing=10), Reader(missing=10)
        impatient.park(replica, timeout_ms=1)
        patient.park(replica)
        await asyncio.sleep(0.02)
        assert (len(impatient.connection.responses), patient.connection.responses) == (1, [])
        manager.end_waits()
        assert (len(impatient.connection.responses), len(patient.connection.responses)) == (1, 1)

    asyncio.run(run())


def test_a_fetch_whose_client_is_gone_is_parked_no_more():
    async def run() -> None:
        manager, replica = leading_alone()
        reader = Reader(missing=1)
        reader.park(replica)
        assert reader.connection.slot.cancel is not None
        reader.connection.slot.cancel()
        append(replica)
        manager.purgatory.wake()
        manager.end_waits()
        assert (reader.connection.responses, reader.ended) == ([], 1)
        assert not replica.purgatory.consumers

    asyncio.run(run())


def test_woken_fetches_are_served_in_order_and_a_bounded_number_in_each_turn():
    async def run() -> None:
        manager, replica = leading_alone()
        readers = [Reader(missing=1) for _ in range(250)]
        for reader in readers:
            reader.park(replica)
            reader.missing = 0
        append(replica)
        manager.purgatory.wake()
        for served in (100, 200, 250):
            is_served = [bool(reader.connection.responses) for reader in readers]
            assert is_served == [True] * served + [False] * (250 - served)
            await asyncio.sleep(0)

    asyncio.run(run())


def test_woken_fetches_of_many_partitions_get_a_turn_each():
    """Each is planned again, which takes a whole turn of the event loop."""

    async def run() -> None:
        manager, replica = leading_alone()
        readers = [Reader(missing=1) for _ in range(5)]
        for reader in readers:
            reader.park(replica, times=5_000)
            reader.missing = 0
        append(replica)
        manager.purgatory.wake()
        for served in range(1, 6):
            assert sum(bool(reader.connection.responses) for reader in readers) == served
            await asyncio.sleep(0)

    asyncio.run(run())


def test_large_fetches_park_on_a_bounded_number_of_partitions():
    async def run() -> None:
        manager, replica = leading_alone()
        purgatory, partitions = manager.purgatory, range(10_000)
        readers = []
        while purgatory.has_room(partitions):
            readers.append(Reader(missing=1))
            readers[-1].park(replica, times=len(partitions))
        assert len(readers) == 20
        assert purgatory.has_room(range(64)), "small fetches park in any case"
        readers[0].connection.slot.cancel()  # type: ignore[misc]
        readers[1].delayed.end_wait()
        readers[1].connection.slot.cancel()  # type: ignore[misc]
        assert purgatory.parked_count == 18 * len(partitions)
        assert purgatory.has_room(partitions)

    asyncio.run(run())


def test_bytes_that_grow_outside_a_request_wake_fetches_in_the_next_turn():
    async def run() -> None:
        _, replica = leading_alone()
        reader = Reader(missing=1)
        reader.park(replica)
        reader.missing = 0
        replica.append_own(batch.build([batch.Record(0, NOW_MS, None, b"v", ())]), NOW_MS)
        assert reader.connection.responses == []
        await asyncio.sleep(0)
        assert reader.connection.responses == [[b"records"]]

    asyncio.run(run())
