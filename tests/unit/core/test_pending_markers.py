"""Markers in flight to the leaders of partitions, and the listing of transactions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hightide.core.controller.cluster_state import Partition
from hightide.core.partition.state import NO_BROKER
from hightide.core.transactions.listing import describe, listed
from hightide.core.transactions.pending_markers import (
    MOST_AT_ONCE,
    RETRY_MS,
    Due,
    PendingMarkers,
    Progress,
)
from hightide.core.transactions.transaction import Producer, State, Transaction
from hightide.core.transactions.transaction_coordinator import (
    Ending,
    Limits,
    TransactionCoordinator,
)
from hightide.wire.errors import ErrorCode
from hightide.wire.messages.transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopic,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

A0, A1, B0 = ("a", 0), ("a", 1), ("b", 0)
LEADERS: dict[Partition, int | None] = {A0: 1, A1: 1, B0: 2}


def ending(*partitions: Partition, producer_id: int = 7) -> Ending:
    return Ending(f"tx{producer_id}", Producer(producer_id, 3), True, 5, 1, frozenset(partitions))


def response(request: WriteTxnMarkersRequest, **errors: ErrorCode) -> WriteTxnMarkersResponse:
    """Return success, except for these topics."""
    return WriteTxnMarkersResponse(
        markers=[
            WritableTxnMarkerResult(
                producer_id=marker.producer_id,
                topics=[
                    WritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=[
                            WritableTxnMarkerPartitionResult(
                                partition_index=index,
                                error_code=errors.get(topic.name, ErrorCode.NONE),
                            )
                            for index in topic.partition_indexes
                        ],
                    )
                    for topic in marker.topics
                ],
            )
            for marker in request.markers
        ]
    )


def test_each_leader_gets_the_markers_of_its_partitions() -> None:
    pending_markers = PendingMarkers()
    pending_markers.add(ending(A0, A1, B0))
    due = pending_markers.due(LEADERS.get, 0)
    assert due.progress == []
    assert due.requests[1] == WriteTxnMarkersRequest(
        markers=[
            WritableTxnMarker(
                producer_id=7,
                producer_epoch=3,
                transaction_result=True,
                topics=[WritableTxnMarkerTopic(name="a", partition_indexes=[0, 1])],
                coordinator_epoch=5,
                transaction_version=1,
            )
        ]
    )
    assert [topic.name for topic in due.requests[2].markers[0].topics] == ["b"]
    assert pending_markers.due(LEADERS.get, 10**6) == Due({}, []), "they are on their way"
    assert pending_markers.deadline_ms() is None


def test_what_the_answer_says_is_told_to_the_coordinator() -> None:
    pending_markers = PendingMarkers()
    end = ending(A0, B0)
    pending_markers.add(end)
    due = pending_markers.due(LEADERS.get, 0)
    assert pending_markers.answered(1, response(due.requests[1]), 0) == [
        Progress(end, frozenset({A0}))
    ]
    assert pending_markers.answered(2, response(due.requests[2]), 0) == [
        Progress(end, frozenset({B0}))
    ]
    assert pending_markers.answered(2, response(due.requests[2]), 0) == [], "a second answer"


def test_a_marker_is_sent_again_to_the_leader_of_the_moment() -> None:
    pending_markers = PendingMarkers()
    end = ending(A0, B0)
    pending_markers.add(end)
    due = pending_markers.due({A0: 1, B0: 1}.get, 0)
    answer = response(due.requests[1], b=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert pending_markers.answered(1, answer, 10) == [Progress(end, frozenset({A0}))]
    assert pending_markers.deadline_ms() == 10 + RETRY_MS
    assert pending_markers.due(LEADERS.get, 10).requests == {}
    again = pending_markers.due(LEADERS.get, 10 + RETRY_MS)
    assert list(again.requests) == [2]
    pending_markers.unanswered(2, 100)
    assert list(pending_markers.due(LEADERS.get, 100 + RETRY_MS).requests) == [2]


def test_what_an_answer_leaves_out_was_not_done() -> None:
    pending_markers = PendingMarkers()
    pending_markers.add(ending(A0))
    pending_markers.due(LEADERS.get, 0)
    assert pending_markers.answered(1, WriteTxnMarkersResponse(markers=[]), 0) == []
    assert list(pending_markers.due(LEADERS.get, RETRY_MS).requests) == [1]


def test_a_newer_coordinator_ends_it() -> None:
    for error in (ErrorCode.TRANSACTION_COORDINATOR_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH):
        pending_markers = PendingMarkers()
        end = ending(A0, B0)
        pending_markers.add(end)
        due = pending_markers.due(LEADERS.get, 0)
        fenced = pending_markers.answered(1, response(due.requests[1], a=error), 0)
        assert fenced == [Progress(end, frozenset(), is_fenced=True)]
        assert pending_markers.answered(2, response(due.requests[2]), 0) == []
        assert pending_markers.due(LEADERS.get, RETRY_MS) == Due({}, [])


def test_partitions_that_are_gone_need_no_marker() -> None:
    pending_markers = PendingMarkers()
    end = ending(A0, B0)
    pending_markers.add(end)
    due = pending_markers.due({A0: 1}.get, 0)
    assert due.progress == [Progress(end, frozenset({B0}))]
    assert list(due.requests) == [1]


def test_partitions_without_a_leader_wait_and_hold_up_no_others() -> None:
    pending_markers = PendingMarkers()
    pending_markers.add(ending(B0))
    assert pending_markers.due({B0: NO_BROKER}.get, 0) == Due({}, [])
    pending_markers.add(ending(A0, producer_id=8))
    assert list(pending_markers.due({A0: 1, B0: NO_BROKER}.get, 1).requests) == [1]
    assert pending_markers.deadline_ms() == RETRY_MS
    assert list(pending_markers.due(LEADERS.get, RETRY_MS).requests) == [2]


def test_one_request_at_a_time_takes_what_has_gathered() -> None:
    pending_markers = PendingMarkers()
    pending_markers.add(ending(A0))
    due = pending_markers.due(LEADERS.get, 0)
    for producer_id in range(100, 103):
        pending_markers.add(ending(A1, producer_id=producer_id))
        assert pending_markers.due(LEADERS.get, 0).requests == {}
    pending_markers.answered(1, response(due.requests[1]), 0)
    assert len(pending_markers.due(LEADERS.get, 0).requests[1].markers) == 3


def test_a_request_has_a_limit() -> None:
    pending_markers = PendingMarkers()
    for producer_id in range(MOST_AT_ONCE + 1):
        pending_markers.add(ending(A0, producer_id=producer_id))
    due = pending_markers.due(LEADERS.get, 0)
    assert len(due.requests[1].markers) == MOST_AT_ONCE
    pending_markers.answered(1, response(due.requests[1]), 0)
    assert len(pending_markers.due(LEADERS.get, 0).requests[1].markers) == 1


def test_what_a_former_coordinator_left_is_dropped() -> None:
    pending_markers = PendingMarkers()
    sent, waiting = ending(A0), ending(B0, producer_id=8)
    pending_markers.add(sent)
    due = pending_markers.due(LEADERS.get, 0)
    pending_markers.add(waiting)
    pending_markers.drop([sent, waiting, replace(sent, coordinator_epoch=9)])
    assert pending_markers.answered(1, response(due.requests[1]), 0) == []
    assert pending_markers.due(LEADERS.get, 10**6) == Due({}, [])


# -- describing and listing --------------------------------------------------------------------


def coordinator() -> TransactionCoordinator:
    machine = TransactionCoordinator(1, Limits())
    machine.apply("idle", Transaction(Producer(1, 0), 1000, 0))
    machine.apply(
        "busy",
        Transaction(Producer(2, 4), 1000, 60, State.ONGOING, frozenset({A0, A1, B0}), 50),
    )
    return machine


def ask(machine: TransactionCoordinator, **filters: object) -> ListTransactionsResponse:
    fields: dict[str, Any] = {"state_filters": [], "producer_id_filters": [], **filters}
    return listed([machine], ListTransactionsRequest(**fields), 100)


def test_a_transaction_is_described_with_its_partitions() -> None:
    machine = coordinator()
    assert describe(machine, "busy").error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    machine.loaded(0)
    found = describe(machine, "busy")
    assert (found.error_code, found.transaction_state) == (ErrorCode.NONE, "Ongoing")
    assert (found.producer_id, found.producer_epoch) == (2, 4)
    assert (found.transaction_start_time_ms, found.transaction_timeout_ms) == (50, 1000)
    assert [(topic.topic, topic.partitions) for topic in found.topics] == [
        ("a", [0, 1]),
        ("b", [0]),
    ]
    assert describe(machine, "none").error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert describe(machine, "").error_code == ErrorCode.INVALID_REQUEST
    assert describe(None, "busy").error_code == ErrorCode.NOT_COORDINATOR


def test_transactions_are_listed_by_what_is_asked() -> None:
    machine = coordinator()
    assert ask(machine).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    machine.loaded(0)

    def names(**filters: object) -> list[str]:
        return [
            transaction.transactional_id
            for transaction in ask(machine, **filters).transaction_states
        ]

    assert names() == ["idle", "busy"]
    assert names(state_filters=["Ongoing", "PrepareCommit"]) == ["busy"]
    assert names(producer_id_filters=[1, 9]) == ["idle"]
    assert names(state_filters=["Ongoing"], duration_filter=49) == ["busy"]
    assert names(state_filters=["Ongoing"], duration_filter=50) == []
    unknown = ask(machine, state_filters=["Asleep"])
    assert unknown.unknown_state_filters == ["Asleep"]
    assert unknown.transaction_states == []


def test_states_have_kafkas_names() -> None:
    assert [state.title for state in State] == [
        "Empty",
        "Ongoing",
        "PrepareCommit",
        "PrepareAbort",
        "CompleteCommit",
        "CompleteAbort",
        "Dead",
        "PrepareEpochFence",
    ]
