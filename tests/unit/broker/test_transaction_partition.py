"""The transaction coordinator of a partition whose log is slow, or refuses writes."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hightide.broker.transactions.transaction_partition import TransactionPartition
from hightide.core.metadata.topic_names import TRANSACTION_STATE
from hightide.core.transactions.transaction import NO_PRODUCER, Producer, State
from hightide.core.transactions.transaction_coordinator import Answer, Limits
from hightide.wire.errors import ErrorCode, KafkaError

NAME = "payments"


class SlowLog:
    """A coordinator log whose records are committed when the test says so."""

    def __init__(self) -> None:
        self.epoch = 3
        self.is_closed = False
        self.refusal: KafkaError | None = None
        self.waiting: list[Callable[[], None]] = []
        self.replica = SimpleNamespace(topic=TRANSACTION_STATE, partition=0, report=lambda *_: None)

    async def replay(self, _visit: Any) -> None:
        return None

    def append(self, _batch: bytearray, _now_ms: int, committed: Callable[[int], None]) -> int:
        if self.refusal is not None:
            raise self.refusal
        self.waiting.append(lambda: committed(0))
        return 0

    def commit(self) -> None:
        waiting, self.waiting = self.waiting, []
        for report in waiting:
            report()

    def settle(self) -> None:
        return None

    def close(self) -> None:
        self.is_closed = True


class Deliveries:
    """Collects the transactions whose markers are to be delivered."""

    def __init__(self) -> None:
        self.endings: list[Any] = []

    def add(self, ending: Any, _owner: TransactionPartition) -> None:
        self.endings.append(ending)

    def drop(self, endings: Any) -> None:
        for ending in endings:
            self.endings.remove(ending)


async def loaded_partition(
    timeout_ms: int = 10_000,
) -> tuple[TransactionPartition, SlowLog, Deliveries]:
    coordinator_log, delivery = SlowLog(), Deliveries()
    partition = TransactionPartition(
        cast(Any, coordinator_log),
        cast(Any, delivery),
        Limits(),
        lambda: 1_000,
        lambda: timeout_ms,
    )
    await asyncio.sleep(0)
    assert partition.coordinator.is_loaded
    return partition, coordinator_log, delivery


def init(partition: TransactionPartition, producer_id: int = 7) -> Any:
    """Start an InitProducerId; return a future of its answer."""
    changes = partition.coordinator.init_asked(NAME, 1000, NO_PRODUCER, 1_000, producer_id)
    return asyncio.ensure_future(_wait(partition.carry_out(changes)))


async def _wait(answer: Any) -> Answer:
    return answer if isinstance(answer, Answer) else await answer


def test_a_request_is_answered_when_its_record_is_committed():
    async def test():
        partition, coordinator_log, _ = await loaded_partition()
        waiting = init(partition)
        await asyncio.sleep(0.01)
        assert not waiting.done()
        coordinator_log.commit()
        assert await waiting == Answer(ErrorCode.NONE, Producer(7, 0))
        partition.resign()

    asyncio.run(test())


def test_a_request_times_out_and_its_record_still_counts():
    async def test():
        partition, coordinator_log, _ = await loaded_partition(timeout_ms=10)
        assert (await init(partition)).error == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert (await init(partition)).error == ErrorCode.CONCURRENT_TRANSACTIONS
        coordinator_log.commit()
        assert partition.coordinator.transactions[NAME].producer == Producer(7, 0)
        partition.resign()

    asyncio.run(test())


@pytest.mark.parametrize(
    ("refusal", "answer"),
    [
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_a_decision_that_cannot_be_written_has_no_effect(refusal: ErrorCode, answer: ErrorCode):
    async def test():
        partition, coordinator_log, _ = await loaded_partition()
        coordinator_log.refusal = KafkaError(refusal)
        assert (await init(partition)).error == answer
        coordinator_log.refusal = None
        waiting = init(partition)
        await asyncio.sleep(0)
        coordinator_log.commit()
        assert (await waiting).error == ErrorCode.NONE
        partition.resign()

    asyncio.run(test())


def test_requests_that_wait_when_the_partition_resigns_are_sent_elsewhere():
    async def test():
        partition, coordinator_log, _ = await loaded_partition()
        waiting = init(partition)
        await asyncio.sleep(0)
        partition.resign()
        assert (await waiting).error == ErrorCode.NOT_COORDINATOR
        assert coordinator_log.is_closed

    asyncio.run(test())


def test_a_completion_that_is_refused_is_written_later():
    async def test():
        partition, coordinator_log, delivery = await loaded_partition()
        coordinator, producer = partition.coordinator, Producer(7, 0)
        for decide in (
            lambda: coordinator.init_asked(NAME, 1000, NO_PRODUCER, 1_000, 7),
            lambda: coordinator.partitions_asked(NAME, producer, [("t", 0)], 1_000),
            lambda: coordinator.end_asked(NAME, producer, True, 1, 1_000),
        ):
            waiting = partition.carry_out(decide())
            coordinator_log.commit()
            assert (await _wait(waiting)).error == ErrorCode.NONE
        (ending,) = delivery.endings
        coordinator_log.refusal = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
        partition.marked(ending, [("t", 0)])
        coordinator_log.refusal = None
        assert not partition.is_ending(ending)
        partition._now_ms = lambda: 2_000
        async with asyncio.timeout(5):
            while not coordinator_log.waiting:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        coordinator_log.commit()
        assert coordinator.transactions[NAME].state == State.COMPLETE_COMMIT
        partition.resign()
        assert delivery.endings == [ending]

    asyncio.run(test())
