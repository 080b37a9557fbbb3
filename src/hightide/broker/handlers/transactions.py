"""AddPartitionsToTxn (24), AddOffsetsToTxn (25), EndTxn (26), DescribeTransactions (65),
ListTransactions (66), OpenMarkerConnection (30004): requests to transaction coordinators.

Clients send AddPartitionsToTxn in versions 0 to 3.  From version 4 on it carries several
transactions and is sent by brokers, mostly to find out whether a transaction contains a partition
(`verify_only`).

NOT_COORDINATOR                 another broker leads the partition of the transactional id
COORDINATOR_LOAD_IN_PROGRESS    this broker leads it, and has not read it yet
COORDINATOR_NOT_AVAILABLE       the record could not be written, or is not committed yet
CONCURRENT_TRANSACTIONS         another decision for the transactional id is in progress; retry
INVALID_PRODUCER_ID_MAPPING     the transactional id is unknown, or another producer's
PRODUCER_FENCED                 the producer has been replaced (INVALID_PRODUCER_EPOCH for clients
                                that do not know this error)
INVALID_TXN_STATE               there is no transaction to end, or it ends the other way
TRANSACTION_ABORTABLE           the transaction does not contain the partition
UNKNOWN_TOPIC_OR_PARTITION      there is no such partition; the others of the request then get
                                OPERATION_NOT_ATTEMPTED
TOPIC_AUTHORIZATION_FAILED      no client may write to an internal topic
TRANSACTIONAL_ID_NOT_FOUND      DescribeTransactions: the transactional id is unknown
INVALID_REQUEST                 an empty transactional id
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from itertools import groupby
from typing import TYPE_CHECKING, TypeVar

from hightide.broker.coordinator_lookup import CoordinatorType, coordinator_of
from hightide.broker.handlers.request_context import Context
from hightide.broker.network.turn import Steps
from hightide.core.controller.cluster_state import Partition
from hightide.core.metadata.topic_names import CONSUMER_OFFSETS, INTERNAL_TOPICS, partition_for
from hightide.core.transactions.listing import describe, listed
from hightide.core.transactions.transaction import EPOCH_BUMPS, Producer
from hightide.core.transactions.transaction_coordinator import Answer, client_error
from hightide.wire.errors import ErrorCode, KafkaError
from hightide.wire.messages.markers import OpenMarkerConnectionRequest, OpenMarkerConnectionResponse
from hightide.wire.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)

if TYPE_CHECKING:
    from hightide.broker.broker import Broker
    from hightide.broker.transactions.transaction_partitions import PendingAnswer

T = TypeVar("T")

_BATCHED = 4
_ABORTABLE_SINCE = 5
_FIRST_VERSION = 1
"""The transaction version without a new producer epoch at every end."""


def answered(pending: PendingAnswer, make: Callable[[Answer], T]) -> T | Awaitable[T]:
    """Build the response from an answer, now or when it comes."""
    if isinstance(pending, Answer):
        return make(pending)
    return _later(pending, make)


async def _later(pending: Awaitable[Answer], make: Callable[[Answer], T]) -> T:
    return make(await pending)


# -- adding partitions -------------------------------------------------------------------------


def add_partitions_to_txn(
    broker: Broker, request: AddPartitionsToTxnRequest, context: Context
) -> AddPartitionsToTxnResponse | Awaitable[AddPartitionsToTxnResponse]:
    if context.version >= _BATCHED:
        return _add_all(broker, request.transactions, context.version)
    producer = Producer(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
    partitions = _partitions(request.v3_and_below_topics)
    refused = _refusals(broker, partitions, is_client=True)
    if refused:
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=_by_topic(refused))

    def respond(answer: Answer) -> AddPartitionsToTxnResponse:
        error = client_error(answer.error, 24, context.version)
        results = _by_topic(dict.fromkeys(partitions, error))
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results)

    transactional_id = request.v3_and_below_transactional_id
    return answered(_add(broker, transactional_id, producer, partitions), respond)


def _add(
    broker: Broker, transactional_id: str, producer: Producer, partitions: Iterable[Partition]
) -> PendingAnswer:
    return broker.transactions.ask(
        transactional_id,
        lambda coordinator, now_ms, _: coordinator.partitions_asked(
            transactional_id, producer, partitions, now_ms
        ),
        waits_for_completion=True,
    )


def _add_all(
    broker: Broker, transactions: list[AddPartitionsToTxnTransaction], version: int
) -> AddPartitionsToTxnResponse | Awaitable[AddPartitionsToTxnResponse]:
    """Handle each transaction separately; a verification has its answer at once."""
    results: list[AddPartitionsToTxnResult] = []
    waits: list[Awaitable[None]] = []
    for transaction in transactions:
        transactional_id = transaction.transactional_id
        result = AddPartitionsToTxnResult(transactional_id=transactional_id, topic_results=[])
        results.append(result)
        partitions = _partitions(transaction.topics)
        producer = Producer(transaction.producer_id, transaction.producer_epoch)
        if transaction.verify_only:
            found = broker.transactions.verification(transactional_id, producer, partitions)
            result.topic_results = _by_topic(_in_version(found, version))
        elif refused := _refusals(broker, partitions, is_client=False):
            result.topic_results = _by_topic(refused)
        else:
            pending = _add(broker, transactional_id, producer, partitions)
            if isinstance(pending, Answer):
                result.topic_results = _by_topic(dict.fromkeys(partitions, pending.error))
            else:
                waits.append(_fill(result, partitions, pending))
    response = AddPartitionsToTxnResponse(results_by_transaction=results)
    return _when_filled(response, waits) if waits else response


async def _fill(
    result: AddPartitionsToTxnResult, partitions: list[Partition], pending: Awaitable[Answer]
) -> None:
    answer = await pending
    result.topic_results = _by_topic(dict.fromkeys(partitions, answer.error))


async def _when_filled(
    response: AddPartitionsToTxnResponse, waits: list[Awaitable[None]]
) -> AddPartitionsToTxnResponse:
    for wait in waits:
        await wait
    return response


def _in_version(
    found: Mapping[Partition, ErrorCode], version: int
) -> Mapping[Partition, ErrorCode]:
    """Version 4 does not know TRANSACTION_ABORTABLE."""
    if version >= _ABORTABLE_SINCE:
        return found
    return {
        key: ErrorCode.INVALID_TXN_STATE if error == ErrorCode.TRANSACTION_ABORTABLE else error
        for key, error in found.items()
    }


def _partitions(topics: list[AddPartitionsToTxnTopic]) -> list[Partition]:
    return [(topic.name, index) for topic in topics for index in topic.partitions]


def _refusals(
    broker: Broker, partitions: list[Partition], *, is_client: bool
) -> dict[Partition, ErrorCode]:
    """Return why partitions cannot be added; empty if all can."""
    refused = {}
    for topic, index in partitions:
        if is_client and topic in INTERNAL_TOPICS:
            refused[topic, index] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif broker.metadata_image.state(topic, index) is None:
            refused[topic, index] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if not refused:
        return refused
    return {key: refused.get(key, ErrorCode.OPERATION_NOT_ATTEMPTED) for key in partitions}


def _by_topic(errors: Mapping[Partition, ErrorCode]) -> list[AddPartitionsToTxnTopicResult]:
    return [
        AddPartitionsToTxnTopicResult(
            name=name,
            results_by_partition=[
                AddPartitionsToTxnPartitionResult(
                    partition_index=index, partition_error_code=errors[name, index]
                )
                for _, index in group
            ],
        )
        for name, group in groupby(errors, key=lambda partition: partition[0])
    ]


# -- adding offsets and ending -----------------------------------------------------------------


def add_offsets_to_txn(
    broker: Broker, request: AddOffsetsToTxnRequest, context: Context
) -> AddOffsetsToTxnResponse | Awaitable[AddOffsetsToTxnResponse]:
    topic = broker.metadata_image.topic(CONSUMER_OFFSETS)
    if topic is None:
        return _add_first_offsets(broker, request, context)
    index = partition_for(request.group_id, len(topic.partitions))
    producer = Producer(request.producer_id, request.producer_epoch)
    pending = _add(broker, request.transactional_id, producer, [(CONSUMER_OFFSETS, index)])
    return answered(
        pending,
        lambda answer: AddOffsetsToTxnResponse(
            error_code=client_error(answer.error, 25, context.version)
        ),
    )


async def _add_first_offsets(
    broker: Broker, request: AddOffsetsToTxnRequest, context: Context
) -> AddOffsetsToTxnResponse:
    """Create __consumer_offsets first: no group has committed an offset yet."""
    with suppress(KafkaError):  # the check below sees it
        await coordinator_of(broker, CoordinatorType.GROUP, request.group_id)
    if broker.metadata_image.topic(CONSUMER_OFFSETS) is None:
        return AddOffsetsToTxnResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
    result = add_offsets_to_txn(broker, request, context)
    return result if isinstance(result, AddOffsetsToTxnResponse) else await result


def end_txn(
    broker: Broker, request: EndTxnRequest, context: Context
) -> EndTxnResponse | Awaitable[EndTxnResponse]:
    producer = Producer(request.producer_id, request.producer_epoch)
    version = EPOCH_BUMPS if context.version >= 5 else _FIRST_VERSION
    pending = broker.transactions.ask(
        request.transactional_id,
        lambda coordinator, now_ms, new_id: coordinator.end_asked(
            request.transactional_id, producer, request.committed, version, now_ms, new_id
        ),
    )
    return answered(
        pending,
        lambda answer: EndTxnResponse(
            error_code=client_error(answer.error, 26, context.version),
            producer_id=answer.producer.id,
            producer_epoch=answer.producer.epoch,
        ),
    )


# -- describing --------------------------------------------------------------------------------


def describe_transactions(
    broker: Broker, request: DescribeTransactionsRequest, _context: Context
) -> Steps[DescribeTransactionsResponse]:
    states = []
    for transactional_id in request.transactional_ids:
        yield
        coordinator = broker.transactions.coordinator(transactional_id)
        states.append(describe(coordinator, transactional_id))
    return DescribeTransactionsResponse(transaction_states=states)


def list_transactions(
    broker: Broker, request: ListTransactionsRequest, _context: Context
) -> ListTransactionsResponse:
    return listed(broker.transactions.coordinators, request, broker.now_ms())


# -- between brokers ----------------------------------------------------------------------------


def open_marker_connection(
    broker: Broker, request: OpenMarkerConnectionRequest, context: Context
) -> OpenMarkerConnectionResponse:
    """See `broker/transactions/marker_fencing.py`."""
    return OpenMarkerConnectionResponse(
        error_code=broker.transactions.marker_fencing.open(context.connection, request)
    )
