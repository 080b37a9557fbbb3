"""A broker that coordinates transactions: the responses to its clients, and its logs."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hightide.broker.broker import Broker
from hightide.broker.environment import RealEnvironment
from hightide.broker.transactions import TransactionPartitions
from hightide.client.broker_connection import Connection
from hightide.core.metadata.topic_names import TRANSACTION_STATE
from hightide.core.partition.state import NO_BROKER
from hightide.core.transactions.transaction import NO_PRODUCER, Producer, State
from hightide.core.transactions.transaction_coordinator import Answer
from hightide.log.disk import MemoryDisk
from hightide.settings import Broker as Settings
from hightide.wire import batch
from hightide.wire.control import parse_marker
from hightide.wire.errors import ErrorCode
from hightide.wire.messages.groups import FindCoordinatorRequest
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
from tests.support.proving import prove
from tests.unit.broker.transactional_world import part, produce_request, results

NAME = "payments"
MINUTE_MS = 60_000
_OTHER_BROKER = 5
INIT, ADD, OFFSETS, END = 5, 3, 4, 4


class Clock(RealEnvironment):
    """An environment whose clock a test can set forward."""

    ahead_ms = 0

    def now_ms(self) -> int:  # type: ignore[override]
        return RealEnvironment.now_ms() + self.ahead_ms


class Client:
    """Sends a broker the requests of a producer."""

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
        """Return the records of a partition, and the types of its markers."""
        replica = self.broker.replica_manager.get(topic.encode(), partition)
        assert replica is not None
        segments = replica.log.segments
        data = memoryview(b"".join(segment.opened().read(0, 1 << 20) for segment in segments))
        return [
            parse_marker(record).type.name if header.is_control else record  # type: ignore[union-attr]
            for at, header in batch.batches(data)
            for record in batch.records(data[at : at + header.size])
        ]

    def ends(self, partition: int = 0) -> list[str]:
        return [entry for entry in self.log(partition) if isinstance(entry, str)]


async def until(look: Callable[[], Awaitable[Any]], is_right: Callable[[Any], bool]) -> Any:
    async with asyncio.timeout(5):
        while not is_right(found := await look()):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    return found


def _codes(topics: Any) -> list[ErrorCode]:
    return [
        ErrorCode(result.partition_error_code)
        for topic in topics
        for result in topic.results_by_partition
    ]


@asynccontextmanager
async def serving(folder: Path | None = None, **overrides: Any) -> AsyncIterator[Client]:
    """Run a broker in memory, or in a folder that a later broker can use."""
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
    await prove(connection, broker, _OTHER_BROKER)  # for what the leaders of partitions send
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
        assert [(topic.topic, topic.partitions) for topic in state.topics] == [("t", [0, 1])]
        for partition in (0, 1):
            assert await client.produce(producer, partition=partition) == ErrorCode.NONE
        assert client.ends() == []
        assert await client.end(producer, is_commit) == ErrorCode.NONE
        await client.until_state(f"Complete{end.title()}")
        assert client.ends(0) == client.ends(1) == [end]
        # A repeated EndTxn gets the same response, and no second marker is written.
        assert await client.end(producer, is_commit) == ErrorCode.NONE
        assert await client.end(producer, not is_commit) == ErrorCode.INVALID_TXN_STATE
        assert client.ends(0) == [end]

    run(test)


def test_the_transactional_ids_of_all_partitions_count_together():
    async def test(client: Client):
        names = [f"id{n}" for n in range(5)]
        producers = [await client.begin(name) for name in names]
        assert all(coordinator.id_count for coordinator in client.broker.transactions.coordinators)
        refused = [(await client.init(f"id{n}")).error for n in range(5, 15)]
        assert refused == [ErrorCode.POLICY_VIOLATION] * 10
        again = [await client.begin(name) for name in names]
        assert [producer.id for producer in again] == [producer.id for producer in producers]

    run(test, transactional_id_max_count=5)


def test_the_records_are_those_of_kafka():
    async def test(client: Client):
        producer = await client.begin()
        await client.add(producer, 0)
        await client.end(producer, True)
        await client.until_state("CompleteCommit")
        records = client.log(0, TRANSACTION_STATE) + client.log(1, TRANSACTION_STATE)
        assert {decode_key(record.key) for record in records} == {NAME}
        states = [State(decode_value(record.value).transaction_status) for record in records]
        assert states == [
            State.EMPTY,
            State.ONGOING,
            State.PREPARE_COMMIT,
            State.COMPLETE_COMMIT,
        ]

    run(test)


def test_the_newest_producer_fences_the_others():
    async def test(client: Client):
        old = await client.begin()
        await client.add(old, 0)
        assert await client.produce(old) == ErrorCode.NONE
        # The open transaction is aborted first; then the new producer gets another epoch.
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
        assert await client.begin(expected=first) == second, "the response was lost"

    run(test)


def test_a_transaction_that_takes_too_long_is_aborted_and_its_producer_fenced():
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


def test_unused_transactional_ids_are_forgotten():
    async def test(client: Client):
        producer = await client.begin()
        client.clock.ahead_ms = 2000
        lost = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        await until(client.state, lambda state: state.error_code == lost)
        assert await client.add(producer) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]
        records = client.log(0, TRANSACTION_STATE) + client.log(1, TRANSACTION_STATE)
        assert [record.value is None for record in records] == [False, True]
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


# -- refusals ----------------------------------------------------------------------------------


def test_an_invalid_request_changes_nothing():
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


def test_a_broker_that_is_not_the_coordinator_says_so():
    async def test(client: Client):
        client.broker.transactions.partitions.clear()
        assert (await client.init()).error == ErrorCode.NOT_COORDINATOR
        assert (await client.init("")).error == ErrorCode.INVALID_REQUEST
        assert await client.end(Producer(1, 0), True) == ErrorCode.NOT_COORDINATOR
        assert (await client.state()).error_code == ErrorCode.NOT_COORDINATOR
        assert (await client.listed()).transaction_states == []

    run(test)


def test_list_transactions_filters():
    async def test(client: Client):
        producer = await client.begin()
        await client.begin("others")
        await client.add(producer)
        client.clock.ahead_ms = 1000
        assert len((await client.listed()).transaction_states) == 2
        answer = await client.listed(state_filters=["Ongoing", "Dancing"])
        assert answer.unknown_state_filters == ["Dancing"]
        assert [state.transactional_id for state in answer.transaction_states] == [NAME]
        answer = await client.listed(duration_filter=500, producer_id_filters=[producer.id])
        assert [state.transaction_state for state in answer.transaction_states] == ["Ongoing"]
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
            async def send(self, *_how: Any, **_more: Any) -> Any:
                await asyncio.get_running_loop().create_future()

        broker: Any = SimpleNamespace(
            broker_id=1,
            broker_epoch=5,
            settings=Settings(),
            metadata_image=SimpleNamespace(endpoint=lambda *_: "there", live={}),
            peers=Silent(),
        )
        transactions = TransactionPartitions(broker)
        coordinators = [2]
        transactions._coordinator_id = lambda _: coordinators[0]  # type: ignore[assignment]
        question = asyncio.create_task(transactions.verify("id", Producer(7, 0), ("t", 0)))
        await asyncio.sleep(0)
        transactions.cluster_changed()
        await asyncio.sleep(0)
        assert not question.done()
        coordinators[0] = 3
        transactions.cluster_changed()
        assert await question is ErrorCode.NOT_COORDINATOR

    asyncio.run(test())


def test_a_coordinator_that_may_have_been_replaced_confirms_nothing():
    async def test(client: Client):
        producer = await client.begin()
        await client.add(producer, 0)
        client.broker.zookeeper.admit(-1)  # the ZooKeeper session is another one
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
                for name in (NAME, "unknown")
            ]
        )
        results = (await client.ask(request, 5)).results_by_transaction
        assert _codes(results[0].topic_results) == [ErrorCode.NONE] * 2
        unknown = ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert _codes(results[1].topic_results) == [unknown] * 2
        assert (await client.state()).transaction_state == "Ongoing"

    run(test)


# -- markers -----------------------------------------------------------------------------------


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
        assert [topic.topic for topic in topics] == ["__consumer_offsets"]
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
        markers._leader_of = lambda _partition: NO_BROKER  # type: ignore[assignment]
        client.clock.ahead_ms = 3_600_000
        assert await client.end(producer, True) == ErrorCode.NONE
        await asyncio.sleep(0.1)
        assert (await client.state()).transaction_state == "PrepareCommit"
        client.clock.ahead_ms = 0
        markers._leader_of = leader_of  # type: ignore[method-assign]
        await client.until_state("CompleteCommit")
        assert client.ends() == ["COMMIT"]

    run(test)
