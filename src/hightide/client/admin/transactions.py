"""Transactions: list, describe, fence, abort.

Two brokers know about a transaction: its coordinator knows the state and the partitions, and the
leader of each partition knows which producers have a transaction open there.  If only the leader
knows of a transaction, the transaction *hangs*: no coordinator will ever end it, and consumers that
read committed records wait at its first offset.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from hightide.client.broker_connection import Connection, check
from hightide.client.model.cluster import Partition, by_topic
from hightide.client.model.transactions import (
    ActiveProducer,
    TransactionDescription,
    TransactionListing,
    TransactionsListing,
)
from hightide.client.routing import CoordinatorKind, Router
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
"""The first version of ListTransactions with a filter by duration."""


class TransactionAdmin:
    """Requests about transactions."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._timeout_ms = router.timeout_ms

    # -- coordinators ----------------------------------------------------------------------

    async def list(
        self,
        states: Sequence[str] = (),
        producer_ids: Sequence[int] = (),
        longer_than_ms: int = -1,
    ) -> TransactionsListing:
        """The transactional ids with one of the states and one of the producer ids."""

        async def ask(connection: Connection) -> ListTransactionsResponse:
            version = connection.version_for(ListTransactionsRequest)
            if longer_than_ms >= 0 and version < TAKES_DURATION:
                raise KafkaError(
                    ErrorCode.UNSUPPORTED_VERSION,
                    f"{connection.address} cannot filter transactions by duration.",
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

        heard = await self._router.ask_every_broker(ask)
        found = [
            TransactionListing(
                state.transactional_id, state.transaction_state, state.producer_id, broker
            )
            for broker, answer in heard.answers.items()
            for state in answer.transaction_states
        ]
        unknown = {
            state for answer in heard.answers.values() for state in answer.unknown_state_filters
        }
        return TransactionsListing(
            sorted(found, key=lambda listing: listing.transactional_id),
            heard.silent,
            frozenset(unknown),
        )

    async def describe(self, transactional_id: str) -> TransactionDescription:
        """What the coordinator knows about a transactional id; an unknown one raises."""

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
                coordinator=self._router.broker_of(connection),
                producer_id=found.producer_id,
                producer_epoch=found.producer_epoch,
                timeout_ms=found.transaction_timeout_ms,
                started_ms=started_ms if started_ms >= 0 else None,
                partitions=tuple(
                    sorted(
                        (topic.topic, index) for topic in found.topics for index in topic.partitions
                    )
                ),
            )

        return await self._router.ask_coordinator(
            CoordinatorKind.TRANSACTION, transactional_id, ask
        )

    async def fence_producer(self, known: TransactionDescription) -> tuple[int, int]:
        """Take over a transactional id from its producer, which aborts its open transaction.

        Returns the producer id and the new epoch when the abort is decided.
        """
        request = InitProducerIdRequest(
            transactional_id=known.transactional_id,
            # The coordinator stores the timeout with the id, so fencing must not change it.
            transaction_timeout_ms=known.timeout_ms,
        )

        async def ask(connection: Connection) -> tuple[int, int]:
            answer = await connection.send(request, timeout_ms=self._timeout_ms)
            check(answer.error_code, about=known.transactional_id)
            return answer.producer_id, answer.producer_epoch

        kind = CoordinatorKind.TRANSACTION
        return await self._router.ask_coordinator(kind, known.transactional_id, ask, BUSY)

    # -- leaders ---------------------------------------------------------------------------

    async def producers(self, partitions: Iterable[Partition]) -> Sequence[ActiveProducer]:
        """The producers that the leaders of these partitions remember."""

        async def ask(
            connection: Connection, part: Mapping[Partition, int]
        ) -> dict[Partition, Sequence[ActiveProducer]]:
            request = DescribeProducersRequest(
                topics=[
                    TopicRequest(name=topic, partition_indexes=indexes)
                    for topic, indexes in by_topic(part).items()
                ]
            )
            answer = await connection.send(request, timeout_ms=self._timeout_ms)
            found: dict[Partition, Sequence[ActiveProducer]] = {}
            for topic in answer.topics:
                for partition in topic.partitions:
                    key = topic.name, partition.partition_index
                    check(partition.error_code, partition.error_message, about=f"{key[0]}/{key[1]}")
                    found[key] = [
                        ActiveProducer(
                            topic=topic.name,
                            partition=partition.partition_index,
                            producer_id=producer.producer_id,
                            producer_epoch=producer.producer_epoch,
                            last_sequence=_known(producer.last_sequence),
                            last_ms=_known(producer.last_timestamp),
                            coordinator_epoch=_known(producer.coordinator_epoch),
                            start_offset=_known(producer.current_txn_start_offset),
                        )
                        for producer in partition.active_producers
                    ]
            return found

        by_partition = await self._router.ask_leaders(dict.fromkeys(partitions, 0), ask)
        return [
            producer
            for _, producers in sorted(by_partition.items())
            for producer in sorted(producers, key=lambda producer: producer.producer_id)
        ]

    async def abort_hanging(self, producer: ActiveProducer) -> None:
        """Write an abort marker into one partition, without asking any coordinator."""
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
            for result in answer.markers[0].topics[0].partitions:
                check(result.error_code, about=f"{producer.topic}/{result.partition_index}")
            return {partition: None}

        await self._router.ask_leaders({partition: 0}, ask)


def _known(value: int) -> int | None:
    return None if value < 0 else value
