"""A broker that coordinates transactions: what its clients are told, and what is in its logs."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hightide.broker.broker import Broker
from hightide.broker.environment import RealEnvironment
from hightide.broker.transactions import TransactionPartitions
from hightide.broker.transactions.marker_fencing import MarkerFencing
from hightide.broker.transactions.transaction_partition import TransactionPartition
from hightide.client.connection import Connection
from hightide.core.metadata.topic_names import TRANSACTION_STATE
from hightide.core.partition.state import NO_BROKER
from hightide.core.transactions.transaction import NO_PRODUCER, Producer, State
from hightide.core.transactions.transaction_coordinator import Answer, Limits
from hightide.log.disk import MemoryDisk
from hightide.settings import Broker as Settings
from hightide.wire import batch
from hightide.wire.control import parse_marker
from hightide.wire.errors import ErrorCode, KafkaError
from hightide.wire.messages.groups import FindCoordinatorRequest
from hightide.wire.messages.markers import OpenMarkerConnectionRequest
from hightide.wire.messages.produce import InitProducerIdRequest
from hightide.wire.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
    DescribeTransactionsRequest,
    EndTxnRequest,
    ListTransactionsRequest,
)
from hightide.wire.records.transaction_state import decode_key, decode_value
from tests.unit.broker.transactional_world import part, produce_request, results

NAME = "payments"
MINUTE_MS = 60_000
INIT, ADD, OFFSETS, END = 5, 3, 4, 4


class Clock(RealEnvironment):
    """A machine whose clock a test can put forward."""

    ahead_ms = 0

    def now_ms(self) -> int:  # type: ignore[override]
        return RealEnvironment.now_ms() + self.ahead_ms


class Client:
    """Asks a broker what producers ask."""

    def __init__(self, broker: Broker, clock: Clock, connection: Connection) -> None:
        self.broker = broker
        self.clock = clock
        self.connection = connection

    async def ask(self, request: Any, version: int) -> Any:
        return await self.connection.send(request, version=version)

    async def init(
        self,
        name: str = NAME,
        expected: Producer = NO_PRODUCER,
        timeout_ms: int = MINUTE_MS,
        version: int = INIT,
    ) -> Answer:
        request = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=timeout_ms)
        if version >= 3:
            request.producer_id, request.producer_epoch = expected
        answer = await self.ask(request, version)
        producer = Producer(answer.producer_id, answer.producer_epoch)
        return Answer(ErrorCode(answer.error_code), producer)

    async def begin(self, name: str = NAME, **given: Any) -> Producer:
        error, producer = await self.init(name, **given)
        assert error == ErrorCode.NONE
        return producer

    async def add(
        self, producer: Producer, *partitions: int, version: int = ADD, topic: str = "t"
    ) -> list[ErrorCode]:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=NAME,
            v3_and_below_producer_id=producer.id,
            v3_and_below_producer_epoch=producer.epoch,
            v3_and_below_topics=[
                AddPartitionsToTxnTopic(name=topic, partitions=list(partitions or (0,)))
            ],
        )
        return _codes((await self.ask(request, version)).results_by_topic_v3_and_below)

    async def verify(self, producer: Producer, *partitions: int, version: int = 5) -> Any:
        asked = AddPartitionsToTxnTransaction(
            transactional_id=NAME,
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            verify_only=True,
            topics=[AddPartitionsToTxnTopic(name="t", partitions=list(partitions))],
        )
        answer = await self.ask(AddPartitionsToTxnRequest(transactions=[asked]), version)
        assert answer.error_code == ErrorCode.NONE
        return _codes(answer.results_by_transaction[0].topic_results)

    async def produce(self, producer: Producer, sequence: int = 0, partition: int = 0) -> ErrorCode:
        request = produce_request(part(sequence, producer=producer, partition=partition), name=NAME)
        return ErrorCode(results(await self.ask(request, 9))[0][0])

    async def end(self, producer: Producer, is_commit: bool, version: int = END) -> ErrorCode:
        request = EndTxnRequest(
            transactional_id=NAME,
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            committed=is_commit,
        )
        return ErrorCode((await self.ask(request, version)).error_code)

    async def state(self, name: str = NAME) -> Any:
        request = DescribeTransactionsRequest(transactional_ids=[name])
        return (await self.ask(request, 0)).transaction_states[0]

    async def listed(self, **filters: Any) -> Any:
        request = ListTransactionsRequest(
            **{"state_filters": [], "producer_id_filters": [], **filters}
        )
        return await self.ask(request, 1)

    async def until_state(self, wanted: str, name: str = NAME) -> Any:
        return await until(lambda: self.state(name), lambda it: it.transaction_state == wanted)

    def log(self, partition: int = 0, topic: str = "t") -> list[Any]:
        """Values and markers."""
        replica = self.broker.replica_manager.get(topic.encode(), partition)
        assert replica is not None
        segments = replica.log.segments
        data = memoryview(b"".join(each.opened().read(0, 1 << 20) for each in segments))
        return [
            parse_marker(record).type.name if header.is_control else record  # type: ignore[union-attr]
            for at, header in batch.batches(data)
            for record in batch.records(data[at : at + header.size])
        ]

    def ends(self, partition: int = 0) -> list[str]:
        return [each for each in self.log(partition) if isinstance(each, str)]


async def until(look: Callable[[], Awaitable[Any]], is_right: Callable[[Any], bool]) -> Any:
    async with asyncio.timeout(5):
        while not is_right(found := await look()):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    return found


def _codes(topics: Any) -> list[ErrorCode]:
    return [
        ErrorCode(each.partition_error_code)
        for topic in topics
        for each in topic.results_by_partition
    ]


@asynccontextmanager
async def serving(folder: Path | None = None, **overrides: Any) -> AsyncIterator[Client]:
    """A broker in memory, or in a folder where it is found again."""
    settings = {
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "coordinator_listen": "127.0.0.1:0",
        "transaction_state_log_num_partitions": 2,
        "offsets_topic_num_partitions": 2,
        **overrides,
    }
    if folder is not None:
        settings["log_dirs"] = (str(folder),)
    clock = Clock(memory=MemoryDisk() if folder is None else None)
    broker = Broker(Settings(**settings), environment=clock)
    ((host, port),) = await broker.start()
    connection = await Connection.open(host, port)
    try:
        client = Client(broker, clock, connection)
        if broker.metadata_image.topic("t") is None:
            own = [broker.broker_id]
            await broker.controller.create_topic("t", {0: own, 1: own}, {}, timeout_ms=5000)
        await client.ask(FindCoordinatorRequest(key=NAME, key_type=1), 3)
        yield client
    finally:
        connection.close()
        await broker.stop()


def run(test: Callable[[Client], Awaitable[None]], **settings: Any) -> None:
    async def whole() -> None:
        async with serving(**settings) as client:
            await test(client)

    asyncio.run(whole())


# -- transactions ------------------------------------------------------------------------------


@pytest.mark.parametrize(("is_commit", "end"), [(True, "COMMIT"), (False, "ABORT")])
def test_a_transaction_is_ended_in_all_its_partitions(is_commit: bool, end: str):
    async def test(client: Client):
        producer = await client.begin()
        assert (await client.state()).transaction_state == "Empty"
        assert await client.add(producer, 0, 1) == [ErrorCode.NONE] * 2
        state = await client.state()
        assert state.transaction_state == "Ongoing"
        assert [(each.topic, each.partitions) for each in state.topics] == [("t", [0, 1])]
        for partition in (0, 1):
            assert await client.produce(producer, partition=partition) == ErrorCode.NONE
        assert client.ends() == []
        assert await client.end(producer, is_commit) == ErrorCode.NONE
        await client.until_state(f"Complete{end.title()}")
        assert client.ends(0) == client.ends(1) == [end]
        # Who repeats the question is told the same, and nothing is written again.
        assert await client.end(producer, is_commit) == ErrorCode.NONE
        assert await client.end(producer, not is_commit) == ErrorCode.INVALID_TXN_STATE
        assert client.ends(0) == [end]

    run(test)


def test_the_records_are_those_of_kafka():
    async def test(client: Client):
        producer = await client.begin()
        await client.add(producer, 0)
        await client.end(producer, True)
        await client.until_state("CompleteCommit")
        records = client.log(0, TRANSACTION_STATE) + client.log(1, TRANSACTION_STATE)
        assert {decode_key(each.key) for each in records} == {NAME}
        states = [State(decode_value(each.value).transaction_status) for each in records]
        assert states == [
            State.EMPTY,
            State.ONGOING,
            State.PREPARE_COMMIT,
            State.COMPLETE_COMMIT,
        ]

    run(test)


def test_the_newest_producer_shuts_out_the_others():
    async def test(client: Client):
        old = await client.begin()
        await client.add(old, 0)
        assert await client.produce(old) == ErrorCode.NONE
        # Its transaction is aborted first, and then there is another epoch.
        assert (await client.init()).error == ErrorCode.CONCURRENT_TRANSACTIONS
        await client.until_state("CompleteAbort")
        new = await client.begin()
        assert (new.id, new.epoch) == (old.id, old.epoch + 2)
        assert client.ends() == ["ABORT"]
        assert await client.add(old, 0, version=1) == [ErrorCode.INVALID_PRODUCER_EPOCH]
        assert await client.add(old, 0) == [ErrorCode.PRODUCER_FENCED]
        assert await client.end(old, True, version=1) == ErrorCode.INVALID_PRODUCER_EPOCH
        assert await client.end(old, True) == ErrorCode.PRODUCER_FENCED
        assert (await client.init(expected=old)).error == ErrorCode.PRODUCER_FENCED
        older = await client.init(expected=old, version=3)
        assert older.error == ErrorCode.INVALID_PRODUCER_EPOCH
        assert await client.produce(old, 1) == ErrorCode.INVALID_PRODUCER_EPOCH
        assert await client.end(Producer(old.id + 1, 0), True) == (
            ErrorCode.INVALID_PRODUCER_ID_MAPPING
        )
        assert (await client.state()).transaction_state == "Empty"

    run(test)


def test_a_producer_that_says_who_it_is_gets_the_next_epoch():
    async def test(client: Client):
        first = await client.begin()
        second = await client.begin(expected=first)
        assert second == (first.id, first.epoch + 1)
        assert await client.begin(expected=first) == second, "it did not hear the answer"

    run(test)


def test_what_takes_too_long_is_aborted_and_its_producer_shut_out():
    async def test(client: Client):
        producer = await client.begin(timeout_ms=1000)
        await client.add(producer, 0)
        assert await client.produce(producer) == ErrorCode.NONE
        await asyncio.sleep(0.05)
        assert (await client.state()).transaction_state == "Ongoing"
        client.clock.ahead_ms = 1100
        await client.until_state("CompleteAbort")
        assert client.ends() == ["ABORT"]
        assert await client.end(producer, True) == ErrorCode.PRODUCER_FENCED
        assert await client.produce(producer, 1) == ErrorCode.INVALID_PRODUCER_EPOCH

    run(test, transaction_abort_timed_out_transaction_cleanup_interval_ms=10)


def test_ids_that_nobody_uses_are_forgotten():
    async def test(client: Client):
        producer = await client.begin()
        client.clock.ahead_ms = 2000
        lost = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        await until(client.state, lambda state: state.error_code == lost)
        assert await client.add(producer) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]
        records = client.log(0, TRANSACTION_STATE) + client.log(1, TRANSACTION_STATE)
        assert [each.value is None for each in records] == [False, True]
        other = await client.begin()
        assert other.id != producer.id
        assert other.epoch == 0

    run(
        test,
        transactional_id_expiration_ms=1000,
        transaction_remove_expired_transaction_cleanup_interval_ms=10,
    )


def test_settings_of_limits_are_kept_to():
    async def test(client: Client):
        assert (await client.init(timeout_ms=5001)).error == ErrorCode.INVALID_TRANSACTION_TIMEOUT
        client.broker.settings = client.broker.settings.replace(transaction_max_timeout_ms=6000)
        client.broker.transactions.settings_changed()
        assert (await client.init(timeout_ms=5001)).error == ErrorCode.NONE

    run(test, transaction_max_timeout_ms=5000)


def test_after_a_restart_everything_is_as_it_was(tmp_path: Path):
    async def test():
        async with serving(tmp_path) as client:
            producer = await client.begin()
            assert await client.add(producer, 0) == [ErrorCode.NONE]
            assert await client.produce(producer) == ErrorCode.NONE
            before = await client.state()
        async with serving(tmp_path) as client:
            assert await until(client.state, lambda it: not it.error_code) == before
            assert await client.end(producer, True) == ErrorCode.NONE
            await client.until_state("CompleteCommit")
            assert client.ends() == ["COMMIT"]

    asyncio.run(test())


# -- what is refused ---------------------------------------------------------------------------


def test_what_cannot_be_right_changes_nothing():
    async def test(client: Client):
        assert (await client.init("")).error == ErrorCode.INVALID_REQUEST
        assert (await client.init(timeout_ms=0)).error == ErrorCode.INVALID_TRANSACTION_TIMEOUT
        half = Producer(7, -1)
        assert (await client.init(expected=half)).error == ErrorCode.INVALID_REQUEST
        unknown = Producer(7, 0)
        assert await client.add(unknown) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]
        assert await client.end(unknown, True) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert (await client.state("")).error_code == ErrorCode.INVALID_REQUEST
        missing = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        assert (await client.state()).error_code == missing
        producer = await client.begin()
        assert await client.end(producer, True) == ErrorCode.INVALID_TXN_STATE
        assert await client.add(producer, 0, 9) == [
            ErrorCode.OPERATION_NOT_ATTEMPTED,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ]
        internal = await client.add(producer, 0, topic=TRANSACTION_STATE)
        assert internal == [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
        assert (await client.state()).transaction_state == "Empty"

    run(test)


def test_who_is_not_the_coordinator_says_so():
    async def test(client: Client):
        client.broker.transactions.partitions.clear()
        assert (await client.init()).error == ErrorCode.NOT_COORDINATOR
        assert (await client.init("")).error == ErrorCode.INVALID_REQUEST
        assert await client.end(Producer(1, 0), True) == ErrorCode.NOT_COORDINATOR
        assert (await client.state()).error_code == ErrorCode.NOT_COORDINATOR
        assert (await client.listed()).transaction_states == []

    run(test)


def test_the_list_lets_through_what_its_filters_say():
    async def test(client: Client):
        producer = await client.begin()
        await client.begin("others")
        await client.add(producer)
        client.clock.ahead_ms = 1000
        assert len((await client.listed()).transaction_states) == 2
        answer = await client.listed(state_filters=["Ongoing", "Dancing"])
        assert answer.unknown_state_filters == ["Dancing"]
        assert [each.transactional_id for each in answer.transaction_states] == [NAME]
        answer = await client.listed(duration_filter=500, producer_id_filters=[producer.id])
        assert [each.transaction_state for each in answer.transaction_states] == ["Ongoing"]
        assert not (await client.listed(producer_id_filters=[999])).transaction_states

    run(test)


# -- verification ------------------------------------------------------------------------------


def test_partitions_ask_whether_they_are_part_of_a_transaction():
    async def test(client: Client):
        producer = await client.begin()
        await client.add(producer, 0)
        answers = [ErrorCode.NONE, ErrorCode.TRANSACTION_ABORTABLE]
        assert await client.verify(producer, 0, 1) == answers
        assert await client.verify(producer, 0, 1, version=4) == [
            ErrorCode.NONE,
            ErrorCode.INVALID_TXN_STATE,
        ]
        older = Producer(producer.id, producer.epoch - 1)
        assert await client.verify(older, 0) == [ErrorCode.PRODUCER_FENCED]
        assert await client.produce(producer, partition=1) == ErrorCode.INVALID_TXN_STATE
        assert client.log(1) == []
        ask = client.broker.transactions
        assert ask.verify_now(NAME, producer, ("t", 0)) == ErrorCode.NONE
        assert await ask.verify(NAME, producer, ("t", 1)) == ErrorCode.TRANSACTION_ABORTABLE

    run(test)


def test_a_coordinator_that_hangs_is_not_waited_for_when_it_has_been_replaced():
    async def test() -> None:
        class Silent:
            async def ask(self, *_how: Any, **_more: Any) -> Any:
                await asyncio.get_running_loop().create_future()

        broker: Any = SimpleNamespace(
            broker_id=1,
            broker_epoch=5,
            settings=Settings(),
            image=SimpleNamespace(endpoint=lambda *_: "there", live={}),
            peers=Silent(),
        )
        transactions = TransactionPartitions(broker)
        coordinators = [2]
        transactions._coordinator_id = lambda _: coordinators[0]  # type: ignore[method-assign]
        question = asyncio.create_task(transactions.verify("id", Producer(7, 0), ("t", 0)))
        await asyncio.sleep(0)
        transactions.cluster_changed()
        await asyncio.sleep(0)
        assert not question.done()
        coordinators[0] = 3
        transactions.cluster_changed()
        assert await question is ErrorCode.NOT_COORDINATOR

    asyncio.run(test())


def test_who_may_have_been_replaced_confirms_nothing():
    async def test(client: Client):
        producer = await client.begin()
        await client.add(producer, 0)
        client.broker.zookeeper.admit(-1)  # the session is another one
        unsure = ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert await client.verify(producer, 0) == [unsure]
        assert client.broker.transactions.verify_now(NAME, producer, ("t", 0)) == unsure

    run(test)


def test_brokers_may_add_partitions_of_several_transactions_at_once():
    async def test(client: Client):
        producer = await client.begin()
        topics = [AddPartitionsToTxnTopic(name="t", partitions=[0, 1])]
        request = AddPartitionsToTxnRequest(
            transactions=[
                AddPartitionsToTxnTransaction(
                    transactional_id=name,
                    producer_id=producer.id,
                    producer_epoch=producer.epoch,
                    topics=topics,
                )
                for name in (NAME, "nobody")
            ]
        )
        results = (await client.ask(request, 5)).results_by_transaction
        assert _codes(results[0].topic_results) == [ErrorCode.NONE] * 2
        unknown = ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert _codes(results[1].topic_results) == [unknown] * 2
        assert (await client.state()).transaction_state == "Ongoing"

    run(test)


# -- other partitions --------------------------------------------------------------------------


def test_offsets_of_a_group_are_part_of_a_transaction():
    async def test(client: Client):
        producer = await client.begin()
        request = AddOffsetsToTxnRequest(
            transactional_id=NAME,
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            group_id="readers",
        )
        assert (await client.ask(request, OFFSETS)).error_code == ErrorCode.NONE
        topics = (await client.state()).topics
        assert [each.topic for each in topics] == ["__consumer_offsets"]
        assert await client.end(producer, True) == ErrorCode.NONE
        await client.until_state("CompleteCommit")
        request.producer_epoch -= 1
        answer = await client.ask(request, OFFSETS)
        assert answer.error_code == ErrorCode.PRODUCER_FENCED
        assert (await client.ask(request, 1)).error_code == ErrorCode.INVALID_PRODUCER_EPOCH

    run(test)


def test_partitions_that_are_deleted_need_no_marker():
    async def test(client: Client):
        producer = await client.begin()
        await client.add(producer, 0)
        assert await client.produce(producer) == ErrorCode.NONE
        await client.broker.controller.delete_topic("t", timeout_ms=5000)
        await until(_now, lambda _: client.broker.metadata_image.topic("t") is None)
        assert await client.end(producer, True) == ErrorCode.NONE
        await client.until_state("CompleteCommit")

    async def _now() -> None:
        return None

    run(test)


def test_markers_are_sent_again_although_the_clock_was_set_back():
    async def test(client: Client):
        markers = client.broker.transactions._marker_delivery
        leader_of = markers._leader_of
        producer = await client.begin()
        await client.add(producer, 0)
        assert await client.produce(producer) == ErrorCode.NONE
        markers._leader_of = lambda _partition: NO_BROKER  # type: ignore[method-assign]
        client.clock.ahead_ms = 3_600_000
        assert await client.end(producer, True) == ErrorCode.NONE
        await asyncio.sleep(0.1)
        assert (await client.state()).transaction_state == "PrepareCommit"
        client.clock.ahead_ms = 0
        markers._leader_of = leader_of  # type: ignore[method-assign]
        await client.until_state("CompleteCommit")
        assert client.ends() == ["COMMIT"]

    run(test)


# -- a log that is slow or full ----------------------------------------------------------------


class SlowLog:
    """A led log whose records are committed when the test says so."""

    def __init__(self) -> None:
        self.epoch = 3
        self.is_over = False
        self.refusal: KafkaError | None = None
        self.waiting: list[Callable[[], None]] = []
        self.replica = SimpleNamespace(
            topic=TRANSACTION_STATE, partition=0, complain=lambda *_: None
        )

    async def replay(self, _visit: Any) -> None:
        return None

    def append(self, _batch: bytearray, _now_ms: int, committed: Callable[[int], None]) -> int:
        if self.refusal is not None:
            raise self.refusal
        self.waiting.append(lambda: committed(0))
        return 0

    def commit(self) -> None:
        waiting, self.waiting = self.waiting, []
        for each in waiting:
            each()

    def settle(self) -> None:
        return None

    def end(self) -> None:
        self.is_over = True


class Ends:
    """Whoever sends markers."""

    def __init__(self) -> None:
        self.endings: list[Any] = []

    def add(self, ending: Any, _owner: TransactionPartition) -> None:
        self.endings.append(ending)

    def drop(self, endings: Any) -> None:
        for ending in endings:
            self.endings.remove(ending)


async def host(timeout_ms: int = 10_000) -> tuple[TransactionPartition, SlowLog, Ends]:
    coordinator_log, ends = SlowLog(), Ends()
    partition = TransactionPartition(
        coordinator_log, ends, Limits(), lambda: 1_000, lambda: timeout_ms
    )  # type: ignore[arg-type]
    await asyncio.sleep(0)
    assert partition.coordinator.is_loaded
    return partition, coordinator_log, ends


def asked(partition: TransactionPartition, producer_id: int = 7) -> Any:
    """InitProducerId, as somebody waits for its answer."""
    init = partition.coordinator.init_asked(NAME, 1000, NO_PRODUCER, 1_000, producer_id)
    return asyncio.ensure_future(_wait(partition.carry_out(init)))


async def _wait(answer: Any) -> Answer:
    return answer if isinstance(answer, Answer) else await answer


def test_nobody_is_answered_before_the_record_is_committed():
    async def test():
        partition, coordinator_log, _ = await host()
        waiting = asked(partition)
        await asyncio.sleep(0.01)
        assert not waiting.done()
        coordinator_log.commit()
        assert await waiting == Answer(ErrorCode.NONE, Producer(7, 0))
        partition.end()

    asyncio.run(test())


def test_who_has_waited_long_enough_is_told_to_ask_again_and_the_record_counts_all_the_same():
    async def test():
        partition, coordinator_log, _ = await host(timeout_ms=10)
        assert (await asked(partition)).error == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert (await asked(partition)).error == ErrorCode.CONCURRENT_TRANSACTIONS
        coordinator_log.commit()
        assert partition.coordinator.transactions[NAME].producer == Producer(7, 0)
        partition.end()

    asyncio.run(test())


@pytest.mark.parametrize(
    ("refusal", "told"),
    [
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_what_cannot_be_written_is_not_decided(refusal: ErrorCode, told: ErrorCode):
    async def test():
        partition, coordinator_log, _ = await host()
        coordinator_log.refusal = KafkaError(refusal)
        assert (await asked(partition)).error == told
        coordinator_log.refusal = None
        waiting = asked(partition)
        await asyncio.sleep(0)
        coordinator_log.commit()
        assert (await waiting).error == ErrorCode.NONE
        partition.end()

    asyncio.run(test())


def test_whoever_waits_when_the_role_ends_is_sent_elsewhere():
    async def test():
        partition, coordinator_log, _ = await host()
        waiting = asked(partition)
        await asyncio.sleep(0)
        partition.end()
        assert (await waiting).error == ErrorCode.NOT_COORDINATOR
        assert coordinator_log.is_over

    asyncio.run(test())


def test_a_completion_that_is_refused_is_written_later():
    async def test():
        partition, coordinator_log, ends = await host()
        machine, producer = partition.coordinator, Producer(7, 0)
        for decide in (
            lambda: machine.init_asked(NAME, 1000, NO_PRODUCER, 1_000, 7),
            lambda: machine.partitions_asked(NAME, producer, [("t", 0)], 1_000),
            lambda: machine.end_asked(NAME, producer, True, 1, 1_000),
        ):
            waiting = partition.carry_out(decide())
            coordinator_log.commit()
            assert (await _wait(waiting)).error == ErrorCode.NONE
        (ending,) = ends.endings
        coordinator_log.refusal = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
        partition.marked(ending, [("t", 0)])
        coordinator_log.refusal = None
        assert not partition.is_ending(ending)
        partition._now_ms = lambda: 2_000
        async with asyncio.timeout(5):
            while not coordinator_log.waiting:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        coordinator_log.commit()
        assert machine.transactions[NAME].state == State.COMPLETE_COMMIT
        partition.end()
        assert ends.endings == [ending]

    asyncio.run(test())


# -- lanes -------------------------------------------------------------------------------------


def lane(
    number: int, *, sender_epoch: int = 5, broker_epoch: int = 9
) -> OpenMarkerConnectionRequest:
    return OpenMarkerConnectionRequest(
        sender_id=2, sender_epoch=sender_epoch, number=number, broker_epoch=broker_epoch
    )


def connection() -> Any:
    class Hashed(SimpleNamespace):
        __hash__ = object.__hash__

    return Hashed(is_closed=False)


def test_only_the_newest_lane_of_a_sender_brings_markers():
    marker_fencing, old, new, tool = (
        MarkerFencing(lambda: 9),
        connection(),
        connection(),
        connection(),
    )
    assert marker_fencing.open(old, lane(1)) == ErrorCode.NONE
    assert marker_fencing.admits(old)
    assert marker_fencing.open(new, lane(2)) == ErrorCode.NONE
    assert not marker_fencing.admits(old)
    assert marker_fencing.admits(new)
    assert marker_fencing.admits(tool)
    # An opening that comes late is one of an old lane too.
    assert marker_fencing.open(connection(), lane(1)) == ErrorCode.STALE_BROKER_EPOCH
    assert marker_fencing.open(connection(), lane(1, sender_epoch=6)) == ErrorCode.NONE
    assert not marker_fencing.admits(new)


def test_what_was_meant_for_a_former_life_is_refused():
    epoch = [9]
    marker_fencing, one = MarkerFencing(lambda: epoch[0]), connection()
    assert marker_fencing.open(one, lane(1, broker_epoch=8)) == ErrorCode.STALE_BROKER_EPOCH
    assert marker_fencing.open(one, lane(1)) == ErrorCode.NONE
    epoch[0] = 10
    assert not marker_fencing.admits(one)


def test_lanes_that_are_closed_are_forgotten():
    marker_fencing, all_of_them = MarkerFencing(lambda: 9), [connection() for _ in range(4)]
    for number, each in enumerate(all_of_them, 1):
        assert marker_fencing.open(each, lane(number)) == ErrorCode.NONE
    for before, after in pairwise(all_of_them):
        assert not marker_fencing.admits(before)
        before.is_closed = True
        assert after.is_closed is False
    assert marker_fencing.open(connection(), lane(5)) == ErrorCode.NONE
    assert len(marker_fencing._senders) == 2
