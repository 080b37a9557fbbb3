"""Copiers: members of a group that read one topic and write another, exactly once.

Each read, the records written for it, and the position behind it are one transaction.  A copier
whose transaction fails starts again: it takes the next producer epoch, which ends its open
transaction, joins its group again and continues from the committed offsets.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from hightide.client.broker_connection import ConnectionFailed
from hightide.core.partition.state import NO_BROKER
from hightide.wire import batch
from hightide.wire.errors import ErrorCode
from hightide.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from hightide.wire.messages.groups import FindCoordinatorRequest
from hightide.wire.messages.offsets import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from hightide.wire.messages.produce import (
    InitProducerIdRequest,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from hightide.wire.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tests.simulation.checkers import Checker, Violated
from tests.simulation.shipped.clients import Client, Partition
from tests.simulation.shipped.loop import World

GROUP, COPY = "copiers", "copy"
GROUP_KIND, TRANSACTION_KIND = 0, 1
READ_COMMITTED = 1
TRIES = 12

AGAIN = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NETWORK_EXCEPTION,
    }
)
"""Errors after which a client sends its request again."""


class GiveUp(Exception):
    """The copier must start again, with a new producer epoch."""


class Unsure(GiveUp):
    """The outcome of its records is unknown."""


class Rejoin(Exception):
    """The group rebalances."""


class Groups:
    """The assignments that members got: the owner of each partition, by generation."""

    def __init__(self) -> None:
        self.newest = -1
        self._owners: dict[tuple[int, Partition], str] = {}

    def shared_out(self, asked_at: int, generation: int, member: str, share: list[int]) -> None:
        """Record the assignment of a member that joined when `asked_at` was newest."""
        if generation < asked_at:
            raise Violated(f"I20 {member} is in generation {generation} after {asked_at}")
        for index in share:
            owner = self._owners.setdefault((generation, ("", index)), member)
            if owner != member:
                raise Violated(f"I18 {owner} and {member} own {index} in generation {generation}")
        self.newest = max(self.newest, generation)


class Coordinated(Client):
    """A client that knows how to find coordinators."""

    def begin(self) -> None:
        self._coordinators: dict[tuple[int, str], int] = {}
        super().begin()

    async def ask_coordinator(self, kind: int, key: str, request: Any, wait_ms: int = 0) -> Any:
        """Return the coordinator's response, or raise ConnectionFailed."""
        broker_id = self._coordinators.get((kind, key), NO_BROKER)
        if broker_id == NO_BROKER:
            find = FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])
            found = await self.ask(self.random.choice(list(self._brokers)), find)
            (answer,) = found.coordinators
            if answer.error_code != ErrorCode.NONE:
                raise ConnectionFailed(f"{key} has no coordinator: {answer.error_code}")
            broker_id = self._coordinators[kind, key] = answer.node_id
        try:
            return await self.ask(broker_id, request, wait_ms=wait_ms)
        except ConnectionFailed:
            self.lose_coordinator(kind, key)
            raise

    def lose_coordinator(self, kind: int, key: str) -> None:
        self._coordinators.pop((kind, key), None)

    async def fetch(
        self, partition: Partition, offset: int, max_bytes: int
    ) -> tuple[Any, bytes] | None:
        """Return the records that a read_committed consumer gets."""
        leader = await self.leader(partition)
        topic, index = partition
        wanted = FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=max_bytes)
        request = FetchRequest(
            max_wait_ms=self.random.choice((0, 100)),
            min_bytes=1,
            isolation_level=READ_COMMITTED,
            topics=[FetchTopic(topic_id=self._topic_ids[topic], partitions=[wanted])],
        )
        answer = await self.ask(leader, request)
        found = answer.responses[0].partitions[0] if answer.responses else None
        if found is None or found.error_code != ErrorCode.NONE:
            self.forget(partition)
            return None
        if not found.last_stable_offset <= found.high_watermark:
            raise Violated(f"I9 {partition}: {found.last_stable_offset} > {found.high_watermark}")
        return found, bytes(found.records or b"")


@dataclass(slots=True)
class TransactionalProducer:
    """A producer in one epoch."""

    producer_id: int
    epoch: int
    sequences: dict[int, int] = field(default_factory=dict)


class Copier(Coordinated):
    """Copies until its process ends."""

    def __init__(
        self,
        world: World,
        name: str,
        brokers: dict[int, tuple[str, int]],
        checker: Checker,
        source: str,
        membership: Any,
    ) -> None:
        super().__init__(world, name, brokers)
        self._checker = checker
        self._source = source
        self._membership = membership
        self._timeout_ms = world.random.choice((1500, 4000, 8000))
        self.commits = 0
        self.hurries = False
        """Whether it copies without pauses and without voluntary aborts."""

    async def main(self) -> None:
        while True:
            try:
                await self._live()
            except (GiveUp, ConnectionFailed) as reason:
                self.world.note(f"{self.name} starts again: {reason}")
            await self.rest(0.5)

    async def _live(self) -> None:
        producer = await self._initialize()
        member = self._membership(self)
        positions: dict[int, int] | None = None
        while True:
            try:
                if positions is None:
                    await member.join()
                    positions = await self._positions(member)
                await member.keep()
                if not await self._copy_from_one(producer, member, positions):
                    await self.rest(self.pause_s)
            except Rejoin:
                positions = None

    # -- steps -----------------------------------------------------------------------------

    async def _initialize(self) -> TransactionalProducer:
        request = InitProducerIdRequest(
            transactional_id=self.name, transaction_timeout_ms=self._timeout_ms
        )
        answer = await self._insist(TRANSACTION_KIND, self.name, request, tries=60)
        return TransactionalProducer(answer.producer_id, answer.producer_epoch)

    async def _insist(self, kind: int, key: str, request: Any, tries: int = TRIES) -> Any:
        """Send a request until the response is final.

        After no response at all, a producer does not repeat its request: the first copy may arrive
        late, and would count as a part of the next transaction.
        """
        for _ in range(tries):
            answer = await self.ask_coordinator(kind, key, request)
            if answer.error_code == ErrorCode.NONE:
                return answer
            if answer.error_code not in AGAIN:
                raise GiveUp(f"{type(request).__name__}: {ErrorCode(answer.error_code)!r}")
            if answer.error_code != ErrorCode.CONCURRENT_TRANSACTIONS:
                self.lose_coordinator(kind, key)
            await self.rest(0.1)
        raise GiveUp(f"{type(request).__name__}: no use")

    async def _positions(self, member: Any) -> dict[int, int]:
        """Return the group's committed offsets of this member's partitions."""
        topics = [OffsetFetchRequestTopics(name=self._source, partition_indexes=member.share)]
        group = OffsetFetchRequestGroup(
            group_id=GROUP,
            member_id=member.fetch_identity[0],
            member_epoch=member.fetch_identity[1],
            topics=topics,
        )
        request = OffsetFetchRequest(groups=[group], require_stable=True)
        for _ in range(60):
            answer = await self.ask_coordinator(GROUP_KIND, GROUP, request)
            (found,) = answer.groups
            parts = [partition for topic in found.topics for partition in topic.partitions]
            codes = {found.error_code, *(part.error_code for part in parts)} - {ErrorCode.NONE}
            if not codes:
                return {part.partition_index: max(part.committed_offset, 0) for part in parts}
            if codes - AGAIN:
                raise GiveUp(f"OffsetFetch: {codes}")
            if codes != {ErrorCode.UNSTABLE_OFFSET_COMMIT}:
                self.lose_coordinator(GROUP_KIND, GROUP)
            await member.keep()
            await self.rest(0.2)
        raise GiveUp("its offsets are not stable")

    async def _copy_from_one(
        self, producer: TransactionalProducer, member: Any, positions: dict[int, int]
    ) -> bool:
        """Copy from one of the partitions; without pauses, from one that has records."""
        indexes = self.random.sample(list(positions), len(positions))
        for index in indexes if self.hurries else indexes[:1]:
            if await self._copy_some(producer, member, index, positions):
                return True
        return False

    async def _copy_some(
        self, producer: TransactionalProducer, member: Any, index: int, positions: dict[int, int]
    ) -> bool:
        """Copy some records in a transaction; return whether there were any."""
        source = (self._source, index)
        max_bytes = 4000 if self.hurries else self.random.choice((1, 400, 4000))
        got = await self.fetch(source, positions[index], max_bytes)
        values = [] if got is None else _values(got[1], positions[index])
        if not values:
            return False
        await self._add(producer, index)
        try:
            await self._produce(producer, index, [value for _, value in values])
        except Unsure:
            # Duplicates of its records may still be in flight when this transaction has ended.
            await self._end_transaction(producer, is_commit=False)
            raise
        await self._insist(
            TRANSACTION_KIND,
            self.name,
            AddOffsetsToTxnRequest(
                transactional_id=self.name,
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                group_id=GROUP,
            ),
        )
        behind = values[-1][0] + 1
        is_commit = self.hurries or self.random.random() < 0.85
        try:
            await self._commit_position(producer, member, index, behind)
        except Rejoin:
            await self._end_transaction(producer, is_commit=False)
            raise
        if not self.hurries and self.random.random() < 0.1:
            await self.rest(3.0)  # it may take too long
        await self._end_transaction(producer, is_commit)
        if is_commit:
            positions[index] = behind
            self.commits += 1
            self.world.tell(f"{self.name} has copied {source} up to {behind}")
        return True

    async def _add(self, producer: TransactionalProducer, index: int) -> None:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=producer.producer_id,
            v3_and_below_producer_epoch=producer.epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=COPY, partitions=[index])],
        )
        for _ in range(TRIES):
            answer = await self.ask_coordinator(TRANSACTION_KIND, self.name, request)
            (topic,) = answer.results_by_topic_v3_and_below
            (result,) = topic.results_by_partition
            code = result.partition_error_code
            if code == ErrorCode.NONE:
                return
            if code not in AGAIN:
                raise GiveUp(f"AddPartitionsToTxn: {ErrorCode(code)!r}")
            if code != ErrorCode.CONCURRENT_TRANSACTIONS:
                self.lose_coordinator(TRANSACTION_KIND, self.name)
            await self.rest(0.1)
        raise GiveUp("its partition is not added")

    async def _produce(
        self, producer: TransactionalProducer, index: int, values: list[bytes]
    ) -> None:
        sequence = producer.sequences.get(index, 0)
        data = batch.build(
            [batch.Record(nth, self.now_ms(), None, value, ()) for nth, value in enumerate(values)],
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            base_sequence=sequence,
            transactional=True,
        )
        part = PartitionProduceData(index=index, records=bytes(data))
        request = ProduceRequest(
            transactional_id=self.name,
            acks=-1,
            timeout_ms=self._call_ms,
            topic_data=[TopicProduceData(name=COPY, partition_data=[part])],
        )
        for _ in range(self.random.choice((1, TRIES))):
            try:
                answer = await self.ask(await self.leader((COPY, index)), request)
                code = answer.responses[0].partition_responses[0].error_code
            except ConnectionFailed:
                code = ErrorCode.REQUEST_TIMED_OUT
            if code == ErrorCode.NONE:
                producer.sequences[index] = sequence + len(values)
                return
            if code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                raise Violated(f"I14 {self.name} {(COPY, index)}: sequence {sequence} is refused")
            if code not in AGAIN:
                raise GiveUp(f"Produce: {ErrorCode(code)!r}")
            self.forget((COPY, index))
            await self.rest(0.1)
        raise Unsure("its records are not taken")

    async def _commit_position(
        self, producer: TransactionalProducer, member: Any, index: int, offset: int
    ) -> None:
        part = TxnOffsetCommitRequestPartition(
            partition_index=index, committed_offset=offset, committed_metadata=None
        )
        request = TxnOffsetCommitRequest(
            transactional_id=self.name,
            group_id=GROUP,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            generation_id=member.generation,
            member_id=member.id,
            topics=[TxnOffsetCommitRequestTopic(name=self._source, partitions=[part])],
        )
        for _ in range(TRIES):
            answer = await self.ask_coordinator(GROUP_KIND, GROUP, request)
            code = answer.topics[0].partitions[0].error_code
            if code == ErrorCode.NONE:
                return
            if code in member.lost:
                raise Rejoin
            if code not in AGAIN:
                raise GiveUp(f"TxnOffsetCommit: {ErrorCode(code)!r}")
            self.lose_coordinator(GROUP_KIND, GROUP)
            await self.rest(0.1)
        raise GiveUp("its position is not taken")

    async def _end_transaction(self, producer: TransactionalProducer, is_commit: bool) -> None:
        request = EndTxnRequest(
            transactional_id=self.name,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            committed=is_commit,
        )
        await self._insist(TRANSACTION_KIND, self.name, request)


class Reader(Coordinated):
    """Reads the committed copies, and compares them with the source."""

    def __init__(
        self,
        world: World,
        name: str,
        brokers: dict[int, tuple[str, int]],
        checker: Checker,
        source: Partition,
    ) -> None:
        super().__init__(world, name, brokers)
        self._checker = checker
        self._source = source
        self.seen = 0
        """Return how many records of the source have been copied."""

    async def main(self) -> None:
        offset, aborted = 0, dict[int, None]()
        partition = (COPY, self._source[1])
        while True:
            await self.rest(self.pause_s)
            try:
                got = await self.fetch(partition, offset, 4000)
            except ConnectionFailed:
                self.forget(partition)
                continue
            if got is None:
                continue
            found, data = got
            told = sorted(
                (transaction.first_offset, transaction.producer_id)
                for transaction in found.aborted_transactions or ()
            )
            for at, header in batch.batches(data):
                if header.last_offset < offset:
                    continue
                if header.last_offset >= found.last_stable_offset:
                    raise Violated(f"I9 {partition}: {header} is behind {found.last_stable_offset}")
                while told and told[0][0] <= header.last_offset:
                    aborted[told.pop(0)[1]] = None
                if header.is_control:
                    aborted.pop(header.producer_id, None)
                elif header.producer_id not in aborted:
                    for record in batch.records(data, at):
                        self._saw(partition, record.offset, record.value or b"")
                offset = header.last_offset + 1

    def _saw(self, partition: Partition, offset: int, value: bytes) -> None:
        committed = self._checker.truth(self._source).committed
        due = committed[self.seen].value.encode() if self.seen < len(committed) else None
        if value != due:
            raise Violated(
                f"I16 {partition} {offset}: copy {self.seen} is {value!r}, due was {due!r}"
            )
        self.seen += 1


def _values(data: bytes, offset: int) -> list[tuple[int, bytes]]:
    """Return offsets and values from an offset on."""
    return [
        (record.offset, record.value or b"")
        for at, _ in batch.batches(data)
        for record in batch.records(data, at)
        if record.offset >= offset
    ]


async def beat(copier: Copier, request: Any) -> int:
    """Send a heartbeat of a member; return the error code."""
    try:
        answer = await copier.ask_coordinator(GROUP_KIND, GROUP, request)
    except ConnectionFailed:
        return ErrorCode.NOT_COORDINATOR
    if answer.error_code in AGAIN:
        copier.lose_coordinator(GROUP_KIND, GROUP)
    code: int = answer.error_code
    return code


async def pause(copier: Copier) -> None:
    await asyncio.sleep(0.1)
    await copier.rest(0.1)
