"""The output of `hightide txn`, and which transactions hang."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
import typer

from hightide.cli.options import Failed
from hightide.cli.transaction import (
    _fence,
    _hanging,
    _owner,
    duration,
    matching,
    transaction_details,
)
from hightide.client.model.transactions import (
    ActiveProducer,
    TransactionDescription,
    TransactionListing,
    TransactionsListing,
)
from hightide.wire.errors import ErrorCode, KafkaError

PLACE = "orders", 0
OPEN = ActiveProducer(*PLACE, 7, 3, 12, 900, None, 0)
DONE = ActiveProducer(*PLACE, 8, 0, 5, 900, 1, None)


class FakeAdmin:
    """An admin with some transactions, and partitions that change between requests."""

    def __init__(self, looks, known=(), silent=None):
        self.transactions = self
        self.looks = iter(looks)
        self.known = {transaction.transactional_id: transaction for transaction in known}
        self.silent = silent or {}

    async def producers(self, partitions):
        return [
            producer
            for producer in next(self.looks)
            if (producer.topic, producer.partition) in partitions
        ]

    async def list(self, producer_ids):
        found = [
            TransactionListing(
                transaction.transactional_id, transaction.state, transaction.producer_id, 1
            )
            for transaction in self.known.values()
            if transaction.producer_id in producer_ids
        ]
        return TransactionsListing(found, self.silent, frozenset())

    async def describe(self, name):
        if self.known[name].state == "Dead":
            raise KafkaError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
        return self.known[name]


def transaction(state="Ongoing", partitions=(PLACE,)):
    return TransactionDescription("pay", state, 1, 7, 3, 60_000, 500, tuple(partitions))


def hanging(*looks, known=()):
    return asyncio.run(_hanging(cast(Any, FakeAdmin(looks, known)), [PLACE]))


def test_a_transaction_hangs_that_no_coordinator_has():
    assert hanging([OPEN, DONE], [OPEN]) == [OPEN]
    assert hanging([DONE]) == []


@pytest.mark.parametrize("state", ["Ongoing", "PrepareCommit", "PrepareAbort"])
def test_one_that_a_coordinator_has_does_not_hang(state):
    assert hanging([OPEN], known=[transaction(state)]) == []


def test_one_that_was_ended_while_coordinators_were_asked_does_not_hang():
    ended = transaction("CompleteCommit", ())
    assert hanging([OPEN], [DONE], known=[ended]) == []
    assert hanging([OPEN], [OPEN], known=[ended]) == [OPEN]


def test_one_that_left_a_partition_out_hangs_there():
    assert hanging([OPEN], [OPEN], known=[transaction(partitions=[("orders", 1)])]) == [OPEN]
    assert hanging([OPEN], [OPEN], known=[transaction("Dead")]) == [OPEN]


def test_nothing_is_said_to_hang_while_a_broker_is_silent():
    with pytest.raises(Failed, match="when all brokers answer"):
        asyncio.run(_owner(cast(Any, FakeAdmin([], silent={2: "It is away."})), OPEN))


def test_the_transaction_that_is_meant_is_found_by_offset_or_producer():
    assert matching([DONE, OPEN], 0, None) == OPEN
    assert matching([DONE, OPEN], None, 7) == OPEN
    assert matching([DONE, OPEN], 0, 8) is None
    assert matching([DONE], None, 8) is None


class FencingAdmin(FakeAdmin):
    def __init__(self, failure, after):
        super().__init__([], [after])
        self.failure = failure

    async def fence_producer(self, known):
        if self.failure is not None:
            raise KafkaError(self.failure)
        return 7, 4


def test_an_abort_that_cannot_reach_a_partition_yet_is_under_way():
    busy = ErrorCode.CONCURRENT_TRANSACTIONS

    def fenced(failure, state):
        return asyncio.run(
            _fence(cast(Any, FencingAdmin(failure, transaction(state))), transaction())
        )

    assert fenced(None, "Empty")
    assert not fenced(busy, "PrepareAbort")
    for failure, state in ((busy, "Ongoing"), (ErrorCode.INVALID_TXN_STATE, "PrepareAbort")):
        with pytest.raises(KafkaError):
            fenced(failure, state)


def test_durations_are_read():
    assert duration("5m") == 300_000
    with pytest.raises(typer.BadParameter, match="is not a duration"):
        duration("long")


def test_details_tell_how_long_it_has_been_open():
    found = transaction_details(transaction(), 4_500)
    assert (found.started, found.open_for) == ("1970-01-01T00:00:00.500Z", "4s")
    assert found.partitions == {"orders": [0]}
    assert transaction_details(transaction("CompleteAbort"), 4_500).open_for is None
