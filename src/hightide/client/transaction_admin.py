"""What an administrator asks about transactions: the part of `Admin` that is about them.

A transaction is known twice: its coordinator knows its state and its partitions, and the leader of
each partition knows which producers have one open there.  Where the second says so and the first
does not, the transaction *hangs*: nobody will ever end it, and readers of committed records wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hightide.client.connection import Connection, check
from hightide.client.coordinator_admin import CoordinatorAdmin, CoordinatorKind
from hightide.client.groups import by_topic
from hightide.client.record_admin import RecordAdmin
from hightide.client.replicas import Partition
from hightide.wire.errors import ErrorCode, KafkaError
from hightide.wire.messages.produce import InitProducerIdRequest
from hightide.wire.messages.transactions import (
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    ListTransactionsRequest,
    ListTransactionsResponse,
    TopicRequest,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from hightide.wire.types import api_of

BUSY = frozenset({ErrorCode.CONCURRENT_TRANSACTIONS})
TAKES_DURATION = 1
COMMITTING, ABORTING = frozenset({"PrepareCommit"}), frozenset({"PrepareAbort"})
ENDED = frozenset({"Empty", "CompleteCommit", "CompleteAbort", "Dead"})


@dataclass(frozen=True, slots=True)
class TransactionListing:
    transactional_id: str
    state: str
    producer_id: int
    coordinator: int


@dataclass(frozen=True, slots=True)
class TransactionsListing:
    transactions: list[TransactionListing]
    silent: Mapping[int, str]
    unknown_states: frozenset[str]
    """Of those asked for."""


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    transactional_id: str
    state: str
    coordinator: int
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    started_ms: int | None
    """None while none is open."""
    partitions: tuple[Partition, ...]

    @property
    def is_open(self) -> bool:
        return self.state not in ENDED


@dataclass(frozen=True, slots=True)
class ActiveProducer:
    """A producer that a partition remembers; None is not known."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    last_sequence: int | None
    last_ms: int | None
    coordinator_epoch: int | None
    start_offset: int | None
    """Where its open transaction begins, if it has one."""


class TransactionAdmin(CoordinatorAdmin, RecordAdmin):
    """The questions about transactions."""

    async def list_transactions(
        self,
        states: Sequence[str] = (),
        producer_ids: Sequence[int] = (),
        longer_than_ms: int = -1,
    ) -> TransactionsListing:
        """The transactional ids of the cluster that have one of the states and of the producers."""

        async def ask(connection: Connection) -> ListTransactionsResponse:
            version = connection.version_for(ListTransactionsRequest)
            if longer_than_ms >= 0 and version < TAKES_DURATION:
                raise KafkaError(
                    ErrorCode.UNSUPPORTED_VERSION,
                    f"{connection.address} cannot tell how long transactions have been open.",
                )
            request = ListTransactionsRequest(
                state_filters=[*states],
                producer_id_filters=[*producer_ids],
                duration_filter=longer_than_ms,
            )
            answer: ListTransactionsResponse = await connection.send(
                request, timeout_ms=self._timeout_ms
            )
            check(answer.error_code, about=connection.address)
            return answer

        heard = await self._at_every_broker(ask)
        found = [
            TransactionListing(
                each.transactional_id, each.transaction_state, each.producer_id, broker
            )
            for broker, answer in heard.answers.items()
            for each in answer.transaction_states
        ]
        unknown = {state for each in heard.answers.values() for state in each.unknown_state_filters}
        return TransactionsListing(
            sorted(found, key=lambda each: each.transactional_id), heard.silent, frozenset(unknown)
        )

    async def describe_transaction(self, transactional_id: str) -> TransactionDescription:
        """What the coordinator knows of an id; one that it does not know raises."""

        async def ask(connection: Connection) -> TransactionDescription:
            request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
            answer = await connection.send(request, timeout_ms=self._timeout_ms)
            (found,) = answer.transaction_states
            if found.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                raise KafkaError(
                    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
                    f"There is no transactional id {transactional_id!r}.",
                )
            check(found.error_code, about=transactional_id)
            started_ms = found.transaction_start_time_ms
            return TransactionDescription(
                transactional_id=transactional_id,
                state=found.transaction_state,
                coordinator=self._broker_at(connection),
                producer_id=found.producer_id,
                producer_epoch=found.producer_epoch,
                timeout_ms=found.transaction_timeout_ms,
                started_ms=started_ms if started_ms >= 0 else None,
                partitions=tuple(
                    sorted(
                        (each.topic, index) for each in found.topics for index in each.partitions
                    )
                ),
            )

        return await self._at_coordinator(CoordinatorKind.TRANSACTION, transactional_id, ask)

    async def fence_producer(self, known: TransactionDescription) -> tuple[int, int]:
        """Take a transactional id over from whoever uses it, which aborts what it has open.

        Returns when the id has a new epoch, and the abort is decided.
        """
        request = InitProducerIdRequest(
            transactional_id=known.transactional_id,
            # It is remembered for the id, so it must not change by this.
            transaction_timeout_ms=known.timeout_ms,
        )

        async def ask(connection: Connection) -> tuple[int, int]:
            answer = await connection.send(request, timeout_ms=self._timeout_ms)
            check(answer.error_code, about=known.transactional_id)
            return answer.producer_id, answer.producer_epoch

        kind = CoordinatorKind.TRANSACTION
        return await self._at_coordinator(kind, known.transactional_id, ask, BUSY)

    # -- partitions ------------------------------------------------------------------------

    async def describe_producers(self, partitions: Iterable[Partition]) -> list[ActiveProducer]:
        """The producers that these partitions remember, by the word of their leaders."""

        async def ask(
            connection: Connection, part: Mapping[Partition, int]
        ) -> dict[Partition, list[ActiveProducer]]:
            request = DescribeProducersRequest(
                topics=[
                    TopicRequest(name=topic, partition_indexes=indexes)
                    for topic, indexes in by_topic(part).items()
                ]
            )
            answer = await connection.send(request, timeout_ms=self._timeout_ms)
            found = {}
            for topic in answer.topics:
                for each in topic.partitions:
                    about = f"{topic.name}/{each.partition_index}"
                    check(each.error_code, each.error_message, about=about)
                    found[topic.name, each.partition_index] = [
                        ActiveProducer(
                            topic=topic.name,
                            partition=each.partition_index,
                            producer_id=told.producer_id,
                            producer_epoch=told.producer_epoch,
                            last_sequence=_known(told.last_sequence),
                            last_ms=_known(told.last_timestamp),
                            coordinator_epoch=_known(told.coordinator_epoch),
                            start_offset=_known(told.current_txn_start_offset),
                        )
                        for told in each.active_producers
                    ]
            return found

        found = await self._at_leaders(dict.fromkeys(partitions, 0), ask)
        return [
            each
            for _, producers in sorted(found.items())
            for each in sorted(producers, key=lambda producer: producer.producer_id)
        ]

    async def abort_hanging(self, producer: ActiveProducer) -> None:
        """Write an abort marker into one partition, whatever any coordinator thinks of it."""
        partition = producer.topic, producer.partition

        async def ask(
            connection: Connection, _part: Mapping[Partition, int]
        ) -> dict[Partition, None]:
            marker = WritableTxnMarker(
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                transaction_result=False,
                topics=[
                    WritableTxnMarkerTopic(
                        name=producer.topic, partition_indexes=[producer.partition]
                    )
                ],
                coordinator_epoch=producer.coordinator_epoch or 0,
            )
            lowest, _ = api_of(WriteTxnMarkersRequest).versions
            answer = await connection.send(
                WriteTxnMarkersRequest(markers=[marker]),
                version=lowest,
                timeout_ms=self._timeout_ms,
            )
            for each in answer.markers[0].topics[0].partitions:
                check(each.error_code, about=f"{producer.topic}/{each.partition_index}")
            return {partition: None}

        await self._at_leaders({partition: 0}, ask)


def _known(value: int) -> int | None:
    return None if value < 0 else value
