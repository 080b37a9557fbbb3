"""Transactions that are aborted, as events: by their client, by a successor, by the timeout."""

from __future__ import annotations

from hightide.core.events import Severity
from hightide.core.transactions.transaction_coordinator import (
    Changes,
    TransactionAborted,
    abort_of,
)
from tests.unit.core.test_transaction_coordinator import P0, TIMEOUT_MS, TX, Driver


class Recording(Driver):
    """Keeps the aborts too."""

    def settle(self, changes: Changes):
        if changes.write is not None and (event := abort_of(changes.write)) is not None:
            self.aborts.append(event)
        return super().settle(changes)

    def __init__(self) -> None:
        self.aborts: list[TransactionAborted] = []
        super().__init__()


def test_an_abort_that_the_client_asks_for_is_a_detail() -> None:
    it = Recording()
    producer = it.begin()
    it.end(producer, commit=False)
    (event,) = it.aborts
    assert event == TransactionAborted(TX, producer.id, producer.epoch, 2, "its client asked", True)
    assert event.level is Severity.DEBUG


def test_a_transaction_that_takes_too_long_is_aborted_with_a_warning() -> None:
    it = Recording()
    producer = it.begin()
    it.now_ms += TIMEOUT_MS + 1
    for write in it.machine.tick(it.now_ms):
        it.settle(Changes(write=write))
    (event,) = it.aborts
    assert (event.producer_id, event.partitions) == (producer.id, 2)
    assert event.why == f"it has not ended within {TIMEOUT_MS} ms"
    assert event.level is Severity.WARNING
    assert not event.is_asked


def test_a_new_producer_aborts_the_transaction_of_the_one_before() -> None:
    it = Recording()
    it.begin()
    it.init()
    (event,) = it.aborts
    assert event.why == "another producer with this transactional id has begun"
    assert event.level is Severity.WARNING


def test_a_commit_is_no_abort() -> None:
    it = Recording()
    producer = it.init().producer
    it.add(producer, P0)
    it.end(producer)
    it.mark()
    assert it.aborts == []
