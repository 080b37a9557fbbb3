"""AddPartitionsToTxn (24), AddOffsetsToTxn (25), EndTxn (26), DescribeTransactions (65) and
ListTransactions (66): what is asked of the coordinators of transactions.

AddPartitionsToTxn is told to clients in versions 0 to 3.  From version 4 on it carries several
transactions and is asked by brokers, mostly to find out whether a transaction contains a partition
(`verify_only`).

NOT_COORDINATOR                 another broker leads the partition that keeps the id
COORDINATOR_LOAD_IN_PROGRESS    this one does, and has not read it yet
COORDINATOR_NOT_AVAILABLE       the record could not be written, or is not committed yet
CONCURRENT_TRANSACTIONS         something else is being decided for the id; come again
INVALID_PRODUCER_ID_MAPPING     the id is unknown, or another producer's
PRODUCER_FENCED                 the producer has been replaced (INVALID_PRODUCER_EPOCH for clients
                                that do not know it)
INVALID_TXN_STATE               there is no transaction to end, or it ends the other way
TRANSACTION_ABORTABLE           the transaction does not contain the partition
UNKNOWN_TOPIC_OR_PARTITION      it is not there; OPERATION_NOT_ATTEMPTED for those beside it
TOPIC_AUTHORIZATION_FAILED      no client may write to an internal topic
TRANSACTIONAL_ID_NOT_FOUND      DescribeTransactions: nobody knows the id
INVALID_REQUEST                 an empty transactional id
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from itertools import groupby
from typing import TYPE_CHECKING, TypeVar

from hightide.broker.coordinator_lookup import CoordinatorType, coordinator_of
from hightide.broker.handlers.request_context import Context
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
"""Of transactions: without a bump of the epoch at each end."""


def answered(asked: PendingAnswer, make: Callable[[Answer], T]) -> T | Awaitable[T]:
    """The response to an answer that is there, or comes."""
    if isinstance(asked, Answer):
        return make(asked)
    return _later(asked, make)


async def _later(asked: Awaitable[Answer], make: Callable[[Answer], T]) -> T:
    return make(await asked)


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
    """Each transaction by itself; those that are only verified need not be waited for."""
    results: list[AddPartitionsToTxnResult] = []
    waits: list[Awaitable[None]] = []
    for each in transactions:
        result = AddPartitionsToTxnResult(transactional_id=each.transactional_id, topic_results=[])
        results.append(result)
        partitions = _partitions(each.topics)
        producer = Producer(each.producer_id, each.producer_epoch)
        if each.verify_only:
            found = broker.transactions.verification(each.transactional_id, producer, partitions)
            result.topic_results = _by_topic(_in_words(found, version))
        elif refused := _refusals(broker, partitions, is_client=False):
            result.topic_results = _by_topic(refused)
        else:
            asked = _add(broker, each.transactional_id, producer, partitions)
            if isinstance(asked, Answer):
                result.topic_results = _by_topic(dict.fromkeys(partitions, asked.error))
            else:
                waits.append(_fill(result, partitions, asked))
    response = AddPartitionsToTxnResponse(results_by_transaction=results)
    return _when_filled(response, waits) if waits else response


async def _fill(
    result: AddPartitionsToTxnResult, partitions: list[Partition], asked: Awaitable[Answer]
) -> None:
    answer = await asked
    result.topic_results = _by_topic(dict.fromkeys(partitions, answer.error))


async def _when_filled(
    response: AddPartitionsToTxnResponse, waits: list[Awaitable[None]]
) -> AddPartitionsToTxnResponse:
    for each in waits:
        await each
    return response


def _in_words(found: Mapping[Partition, ErrorCode], version: int) -> Mapping[Partition, ErrorCode]:
    """Version 4 does not know TRANSACTION_ABORTABLE."""
    if version >= _ABORTABLE_SINCE:
        return found
    return {
        each: ErrorCode.INVALID_TXN_STATE if error == ErrorCode.TRANSACTION_ABORTABLE else error
        for each, error in found.items()
    }


def _partitions(topics: list[AddPartitionsToTxnTopic]) -> list[Partition]:
    return [(topic.name, index) for topic in topics for index in topic.partitions]


def _refusals(
    broker: Broker, partitions: list[Partition], *, is_client: bool
) -> dict[Partition, ErrorCode]:
    """Why partitions cannot be added; nothing if all can."""
    refused = {}
    for each in partitions:
        if is_client and each[0] in INTERNAL_TOPICS:
            refused[each] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif broker.metadata_image.state(*each) is None:
            refused[each] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if not refused:
        return refused
    return {each: refused.get(each, ErrorCode.OPERATION_NOT_ATTEMPTED) for each in partitions}


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
        for name, group in groupby(errors, key=lambda each: each[0])
    ]


# -- adding offsets, and ending ----------------------------------------------------------------


def add_offsets_to_txn(
    broker: Broker, request: AddOffsetsToTxnRequest, context: Context
) -> AddOffsetsToTxnResponse | Awaitable[AddOffsetsToTxnResponse]:
    topic = broker.metadata_image.topic(CONSUMER_OFFSETS)
    if topic is None:
        return _add_first_offsets(broker, request, context)
    index = partition_for(request.group_id, len(topic.partitions))
    producer = Producer(request.producer_id, request.producer_epoch)
    asked = _add(broker, request.transactional_id, producer, [(CONSUMER_OFFSETS, index)])
    return answered(
        asked,
        lambda answer: AddOffsetsToTxnResponse(
            error_code=client_error(answer.error, 25, context.version)
        ),
    )


async def _add_first_offsets(
    broker: Broker, request: AddOffsetsToTxnRequest, context: Context
) -> AddOffsetsToTxnResponse:
    """No group has committed anything yet: the topic of offsets is made first."""
    with suppress(KafkaError):  # it shows below
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
    asked = broker.transactions.ask(
        request.transactional_id,
        lambda coordinator, now_ms, new_id: coordinator.end_asked(
            request.transactional_id, producer, request.committed, version, now_ms, new_id
        ),
    )
    return answered(
        asked,
        lambda answer: EndTxnResponse(
            error_code=client_error(answer.error, 26, context.version),
            producer_id=answer.producer.id,
            producer_epoch=answer.producer.epoch,
        ),
    )


# -- looking at them ---------------------------------------------------------------------------


def describe_transactions(
    broker: Broker, request: DescribeTransactionsRequest, _context: Context
) -> DescribeTransactionsResponse:
    return DescribeTransactionsResponse(
        transaction_states=[
            describe(broker.transactions.coordinator(each), each)
            for each in request.transactional_ids
        ]
    )


def list_transactions(
    broker: Broker, request: ListTransactionsRequest, _context: Context
) -> ListTransactionsResponse:
    return listed(broker.transactions.coordinators, request, broker.now_ms())


# -- among brokers -----------------------------------------------------------------------------


def open_marker_connection(
    broker: Broker, request: OpenMarkerConnectionRequest, context: Context
) -> OpenMarkerConnectionResponse:
    """OpenMarkerLane (30004): see `broker/transactions/marker_fencing.py`."""
    return OpenMarkerConnectionResponse(
        error_code=broker.transactions.marker_fencing.open(context.connection, request)
    )
