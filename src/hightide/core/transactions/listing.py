"""DescribeTransactions and ListTransactions: the state of a coordinator, for people and tools."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import groupby

from hightide.core.transactions.transaction import State
from hightide.core.transactions.transaction_coordinator import TransactionCoordinator
from hightide.wire.errors import ErrorCode
from hightide.wire.messages.transactions import (
    ListedTransactionState,
    ListTransactionsRequest,
    ListTransactionsResponse,
    TopicData,
    TransactionState,
)

_BY_TITLE = {state.title: state for state in State}


def describe(coordinator: TransactionCoordinator | None, transactional_id: str) -> TransactionState:
    """Describe a transactional id.  None stands for a coordinator on another broker."""
    if not transactional_id:
        return not_described(transactional_id, ErrorCode.INVALID_REQUEST)
    if coordinator is None:
        return not_described(transactional_id, ErrorCode.NOT_COORDINATOR)
    if not coordinator.is_loaded:
        return not_described(transactional_id, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    known = coordinator.transactions.get(transactional_id)
    if known is None:
        return not_described(transactional_id, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
    return TransactionState(
        transactional_id=transactional_id,
        transaction_state=known.state.title,
        transaction_timeout_ms=known.timeout_ms,
        transaction_start_time_ms=known.started_ms,
        producer_id=known.producer.id,
        producer_epoch=known.producer.epoch,
        topics=[
            TopicData(topic=topic, partitions=[index for _, index in group])
            for topic, group in groupby(
                sorted(known.partitions), key=lambda partition: partition[0]
            )
        ],
    )


def not_described(transactional_id: str, error: ErrorCode) -> TransactionState:
    return TransactionState(
        error_code=error,
        transactional_id=transactional_id,
        transaction_state="",
        transaction_timeout_ms=0,
        transaction_start_time_ms=0,
        producer_id=0,
        producer_epoch=0,
        topics=[],
    )


def listed(
    coordinators: Iterable[TransactionCoordinator], request: ListTransactionsRequest, now_ms: int
) -> ListTransactionsResponse:
    """List the transactions of these coordinators that match the request's filters.

    The response names unknown states of the filter.  While a coordinator is loading, the list would
    be incomplete without saying so: answer COORDINATOR_LOAD_IN_PROGRESS.
    """
    coordinators = list(coordinators)
    unknown = [title for title in request.state_filters if title not in _BY_TITLE]
    if not all(coordinator.is_loaded for coordinator in coordinators):
        return ListTransactionsResponse(
            error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
            unknown_state_filters=unknown,
            transaction_states=[],
        )
    found = [
        transaction
        for coordinator in coordinators
        for transaction in _matching(coordinator, request, {*request.state_filters}, now_ms)
    ]
    return ListTransactionsResponse(unknown_state_filters=unknown, transaction_states=found)


def _matching(
    coordinator: TransactionCoordinator,
    request: ListTransactionsRequest,
    titles: Collection[str],
    now_ms: int,
) -> list[ListedTransactionState]:
    ids, duration_ms = {*request.producer_id_filters}, request.duration_filter
    return [
        ListedTransactionState(
            transactional_id=transactional_id,
            producer_id=known.producer.id,
            transaction_state=known.state.title,
        )
        for transactional_id, known in coordinator.transactions.items()
        if (not titles or known.state.title in titles)
        and (not ids or known.producer.id in ids)
        and (duration_ms < 0 or now_ms - known.started_ms > duration_ms)
    ]
