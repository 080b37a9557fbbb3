"""Requests about transactions, to coordinators and to the leaders of partitions."""

from __future__ import annotations

import asyncio

import pytest

from hightide.client import routing
from hightide.client.model.transactions import ActiveProducer, TransactionDescription
from hightide.wire.errors import ErrorCode, KafkaError
from hightide.wire.messages.groups import Coordinator, FindCoordinatorResponse
from hightide.wire.messages.produce import InitProducerIdResponse
from hightide.wire.messages.transactions import (
    DescribeProducersResponse,
    DescribeTransactionsResponse,
    ListedTransactionState,
    ListTransactionsResponse,
    PartitionResponse,
    ProducerState,
    TopicData,
    TopicResponse,
    TransactionState,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersResponse,
)
from tests.unit.client.fake_broker import FakeBroker, cluster

FIND, INIT, MARKERS, PRODUCERS, DESCRIBE, LIST = 10, 22, 27, 61, 65, 66
KNOWN = TransactionDescription("pay", "Ongoing", 1, 7, 3, 60_000, 500, (("orders", 0),))
HANGING = ActiveProducer("orders", 0, 7, 3, 12, 900, None, 40)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(routing, "COORDINATOR_PAUSE_S", 0.001)
    monkeypatch.setattr(routing, "LONGEST_PAUSE_S", 0.002)


def broker():
    broker = FakeBroker(1)
    broker.answers[FIND] = lambda request: FindCoordinatorResponse(
        coordinators=[
            Coordinator(key=key, node_id=1, host="x", port=1) for key in request.coordinator_keys
        ]
    )
    return broker


def run(question, *brokers):
    async def ask():
        async with cluster(*brokers) as admin:
            return await question(admin)

    return asyncio.run(ask())


def asked(one, name):
    return [request for request in one.asked if type(request).__name__ == name + "Request"]


def test_transactions_are_listed_by_state_producer_and_duration():
    one = broker()
    one.answers[LIST] = lambda _: ListTransactionsResponse(
        unknown_state_filters=["Odd"],
        transaction_states=[
            ListedTransactionState(
                transactional_id=name, producer_id=7, transaction_state="Ongoing"
            )
            for name in ("b", "a")
        ],
    )
    found = run(lambda admin: admin.transactions.list(["Ongoing", "Odd"], [7], 500), one)
    assert [listing.transactional_id for listing in found.transactions] == ["a", "b"]
    assert (found.unknown_states, found.silent) == ({"Odd"}, {})
    (question,) = asked(one, "ListTransactions")
    assert (question.state_filters, question.duration_filter) == (["Ongoing", "Odd"], 500)


def test_an_older_broker_cannot_tell_durations():
    one = broker()
    one.highest[LIST] = 0
    one.answers[LIST] = lambda _: None
    with pytest.raises(KafkaError, match="cannot filter transactions by duration"):
        run(lambda admin: admin.transactions.list(longer_than_ms=5), one)


def test_a_transaction_is_described_and_one_that_is_unknown_is_said():
    one = broker()
    state = TransactionState(
        transactional_id="pay",
        transaction_state="Ongoing",
        transaction_timeout_ms=60_000,
        transaction_start_time_ms=500,
        producer_id=7,
        producer_epoch=3,
        topics=[TopicData(topic="orders", partitions=[0])],
    )
    one.answers[DESCRIBE] = lambda _: DescribeTransactionsResponse(transaction_states=[state])
    assert run(lambda admin: admin.transactions.describe("pay"), one) == KNOWN
    assert KNOWN.is_open
    state.error_code, state.transaction_start_time_ms = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, -1
    with pytest.raises(KafkaError, match="There is no transactional id 'pay'"):
        run(lambda admin: admin.transactions.describe("pay"), one)


def test_fencing_keeps_the_timeout_and_waits_for_the_abort():
    one = broker()
    codes = iter([51, 51, 0])
    one.answers[INIT] = lambda _: InitProducerIdResponse(
        error_code=next(codes), producer_id=7, producer_epoch=4
    )
    assert run(lambda admin: admin.transactions.fence_producer(KNOWN), one) == (7, 4)
    questions = asked(one, "InitProducerId")
    assert len(questions) == 3
    assert (questions[0].transactional_id, questions[0].transaction_timeout_ms) == ("pay", 60_000)
    assert (questions[0].producer_id, questions[0].producer_epoch) == (-1, -1)


def test_the_leader_tells_which_producers_have_something_open():
    one = broker()
    states = [
        ProducerState(producer_id=9, producer_epoch=0, coordinator_epoch=-1),
        ProducerState(
            producer_id=7,
            producer_epoch=3,
            last_sequence=12,
            last_timestamp=900,
            coordinator_epoch=-1,
            current_txn_start_offset=40,
        ),
    ]
    one.answers[PRODUCERS] = lambda _: DescribeProducersResponse(
        topics=[
            TopicResponse(
                name="orders",
                partitions=[PartitionResponse(partition_index=0, active_producers=states)],
            )
        ]
    )
    found = run(lambda admin: admin.transactions.producers([("orders", 0)]), one)
    assert found == [HANGING, ActiveProducer("orders", 0, 9, 0, None, None, None, None)]


@pytest.mark.parametrize("code", [0, 47])
def test_a_marker_ends_what_hangs_in_one_partition(code):
    one = broker()
    result = WritableTxnMarkerPartitionResult(partition_index=0, error_code=code)
    one.answers[MARKERS] = lambda _: WriteTxnMarkersResponse(
        markers=[
            WritableTxnMarkerResult(
                producer_id=7,
                topics=[WritableTxnMarkerTopicResult(name="orders", partitions=[result])],
            )
        ]
    )
    if code:
        with pytest.raises(KafkaError, match="orders/0"):
            run(lambda admin: admin.transactions.abort_hanging(HANGING), one)
    else:
        run(lambda admin: admin.transactions.abort_hanging(HANGING), one)
    (marker,) = asked(one, "WriteTxnMarkers")[0].markers
    assert (marker.producer_id, marker.producer_epoch, marker.coordinator_epoch) == (7, 3, 0)
    assert marker.transaction_result is False
