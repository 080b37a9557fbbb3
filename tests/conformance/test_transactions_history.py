"""The checker of transactions finds every anomaly, and none in a correct history."""

from __future__ import annotations

import pytest

from tests.conformance.history import AnomaliesFound
from tests.conformance.transaction_history import (
    Fate,
    TransactionHistory,
    check_copy,
    copy_anomalies,
)

LEFT, RIGHT = ("t", 0), ("t", 1)
SOURCE = ("source", 0)


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        self.now += 1.0
        return self.now


@pytest.fixture
def history():
    return TransactionHistory(Clock())


def producer(history, name="a"):
    made = history.producer(name)
    history.ready(made)
    return made


def transact(history, holder, fate=Fate.COMMITTED, *, asks=True, positions=None):
    """A transaction with one record to the left and one to the right; both values."""
    made = history.begin(holder)
    values = [history.send(made, *LEFT), history.send(made, *RIGHT)]
    made.positions.update(positions or {})
    if asks and fate is not Fate.ABORTED:
        history.commit_asked(made)
    history.ended(made, fate)
    return values


def logs(*transactions):
    """Return what readers see if these are committed, with a marker after each."""
    return {
        LEFT: [(2 * at, left) for at, (left, _) in enumerate(transactions)],
        RIGHT: [(2 * at, right) for at, (_, right) in enumerate(transactions)],
    }


def kinds(history, seen, positions=None):
    return {anomaly.kind for anomaly in history.anomalies(seen, positions)}


def test_what_was_committed_and_nothing_else_is_in_order(history):
    holder = producer(history)
    first = transact(history, holder)
    transact(history, holder, Fate.ABORTED)
    second = transact(history, holder)
    seen = logs(first, second)
    reading = history.reader("reader")
    for partition, log in seen.items():
        for offset, value in log:
            history.read(reading, partition, offset, value)
    history.checked(seen)


@pytest.mark.parametrize("is_done", [True, False])
def test_a_commit_without_an_answer_is_done_or_not(history, is_done):
    values = transact(history, producer(history), Fate.UNKNOWN)
    history.checked(logs(values) if is_done else logs())


def test_half_a_transaction_is_torn(history):
    values = transact(history, producer(history), Fate.UNKNOWN)
    seen = logs(values)
    assert kinds(history, {LEFT: seen[LEFT], RIGHT: []}) == {"torn-transaction"}
    with pytest.raises(AnomaliesFound, match="1 of the 2 records"):
        history.checked({LEFT: seen[LEFT]})


def test_a_commit_that_was_confirmed_is_there(history):
    transact(history, producer(history))
    assert kinds(history, logs()) == {"lost-transaction"}


@pytest.mark.parametrize("fate", [Fate.ABORTED, Fate.UNKNOWN])
def test_what_was_not_asked_to_commit_is_not_read(history, fate):
    values = transact(history, producer(history), fate, asks=False)
    assert kinds(history, logs(values)) == {"aborted-visible"}


def test_a_replaced_producer_commits_nothing(history):
    old = producer(history)
    begun = history.begin(old)
    value = history.send(begun, *LEFT)
    producer(history)
    history.commit_asked(begun)
    history.ended(begun, Fate.UNKNOWN)
    history.checked({LEFT: []})
    assert kinds(history, {LEFT: [(0, value)]}) == {"zombie"}
    begun.fate = Fate.COMMITTED
    assert kinds(history, {LEFT: [(0, value)]}) == {"zombie"}


def test_what_was_asked_before_another_took_over_may_be_done(history):
    values = transact(history, producer(history), Fate.UNKNOWN)
    others = transact(history, producer(history))
    history.checked(logs(values, others))


def test_a_record_is_there_once(history):
    left, right = transact(history, producer(history))
    seen = {LEFT: [(0, left), (1, left)], RIGHT: [(0, right)]}
    assert kinds(history, seen) == {"duplicate"}


def test_what_was_never_sent_is_not_there(history):
    values = transact(history, producer(history))
    seen = logs(values)
    assert kinds(history, {**seen, LEFT: [*seen[LEFT], (9, b"who?")]}) == {"phantom"}


def test_transactions_of_one_producer_come_in_their_order(history):
    holder = producer(history)
    first, second = transact(history, holder), transact(history, holder)
    assert kinds(history, logs(second, first)) == {"reordered"}


def test_a_transaction_comes_behind_what_was_committed_before_it_began(history):
    first = transact(history, producer(history, "a"))
    second = transact(history, producer(history, "b"))
    history.checked(logs(first, second))
    assert kinds(history, logs(second, first)) == {"reordered"}


@pytest.mark.parametrize(
    ("offsets", "expected"),
    [([0, 2], set()), ([0, 2, 2], {"reread"}), ([0], {"unseen"})],
)
def test_a_reader_is_given_all_that_is_committed_once(history, offsets, expected):
    holder = producer(history)
    seen = logs(transact(history, holder), transact(history, holder))
    reading = history.reader("reader")
    for offset in offsets:
        history.read(reading, LEFT, offset, dict(seen[LEFT])[offset])
    assert kinds(history, seen) == expected


def test_what_was_read_as_committed_stays(history):
    values = transact(history, producer(history), Fate.UNKNOWN)
    history.read(history.reader("reader"), LEFT, 0, values[0])
    assert kinds(history, logs()) == {"dirty-read"}


def test_nothing_is_read_before_its_commit_was_asked_for(history):
    begun = history.begin(producer(history))
    value = history.send(begun, *LEFT)
    history.read(history.reader("reader"), LEFT, 0, value)
    history.commit_asked(begun)
    history.ended(begun, Fate.COMMITTED)
    assert kinds(history, {LEFT: [(0, value)]}) == {"early-read"}


def test_offsets_share_the_fate_of_records(history):
    holder = producer(history)
    first = transact(history, holder, positions={SOURCE: 10})
    transact(history, holder, Fate.ABORTED, positions={SOURCE: 20})
    history.checked(logs(first), {SOURCE: 10})
    assert kinds(history, logs(first), {SOURCE: 20}) == {"unread-position"}
    assert kinds(history, logs(first), {}) == {"unread-position"}


@pytest.mark.parametrize(
    ("copied", "expected"),
    [
        ([b"0", b"1", b"2"], set()),
        ([b"0", b"2"], {"lost-copy"}),
        ([b"0", b"1", b"1", b"2"], {"duplicate"}),
        ([b"0", b"1", b"2", b"3"], {"phantom"}),
        ([b"0", b"2", b"1"], {"out-of-order"}),
        ([], {"lost-copy"}),
    ],
)
def test_a_copy_is_exact_or_it_is_none(copied, expected):
    source = {0: [b"0", b"1", b"2"], 1: []}
    assert {anomaly.kind for anomaly in copy_anomalies(source, {0: copied})} == expected
    if expected:
        with pytest.raises(AnomaliesFound, match=expected.pop()):
            check_copy(source, {0: copied})
