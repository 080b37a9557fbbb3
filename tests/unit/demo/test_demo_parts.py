"""The parts of the demonstration that decide something: the ledger, the traffic, the events."""

from __future__ import annotations

import json
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from hightide.demo.ledger import Ledger
from hightide.demo.names import CLICKS, ORDERS, USERS
from hightide.demo.observer import Picture, Seen, changes
from hightide.demo.results import committed
from hightide.demo.scene import Rate, verdict
from hightide.demo.traffic import Traffic, number_in
from hightide.spark.blocking_client import Fetched
from hightide.wire import batch

steps = st.lists(st.tuples(st.sampled_from(["acknowledge", "arrive"]), st.integers(0, 3000)))


@given(steps)
def test_the_ledger_knows_what_is_missing_and_what_is_there_twice(taken):
    ledger, acknowledged, arrived = Ledger(), set(), Counter()
    for step, number in taken:
        if step == "acknowledge":
            ledger.acknowledge(number)
            acknowledged.add(number)
        else:
            ledger.arrive(number)
            arrived[number] += 1
    assert ledger.acknowledged == len(acknowledged)
    assert ledger.read_back == len(arrived)
    assert ledger.outstanding == len(acknowledged - arrived.keys())
    assert ledger.duplicates == sum(arrived.values()) - len(arrived)


def test_an_order_that_comes_hundreds_of_times_stays_that_order():
    ledger = Ledger()
    for _ in range(300):
        ledger.arrive(7)
    assert (ledger.read_back, ledger.duplicates) == (1, 299)


def test_the_last_word_says_what_was_lost():
    ledger = Ledger()
    ledger.acknowledge(0)
    assert "1 missing, 0 duplicated" in verdict(ledger, is_complete=True)
    assert "1 still on the way" in verdict(ledger, is_complete=False)
    ledger.arrive(0)
    assert verdict(ledger, is_complete=True).startswith("Nothing was lost: 1 orders")
    ledger.arrive(0)
    assert "1 duplicated" in verdict(ledger, is_complete=True)


def test_traffic_keeps_its_rate_and_numbers_its_orders():
    traffic = Traffic("run0", rate=50)
    sent = [each for tick in range(100) for each in traffic.pass_time(0.1, 1_000 * tick)]
    orders = [each for each in sent if each.topic == ORDERS]
    assert [each.number for each in orders] == list(range(traffic.orders))
    assert abs(traffic.orders - 500) <= 1
    assert len([each for each in sent if each.topic == CLICKS]) == 3 * len(orders)
    assert [number_in(each.value, "run0") for each in orders] == list(range(len(orders)))
    assert number_in(orders[0].value, "another") is None
    assert number_in(None, "run0") is None
    users = {each.key for each in traffic.users()}
    assert {each.topic for each in traffic.users()} == {USERS}
    assert {each.key for each in orders} - users == {b"guest"}


def test_a_few_orders_cannot_be_read():
    traffic = Traffic("run0", rate=1000)
    broken = 0
    for each in traffic.pass_time(1, 0):
        if each.topic == ORDERS:
            try:
                broken += not isinstance(json.loads(each.value)["amount"], float)
            except ValueError:
                broken += 1
    assert 5 <= broken <= 50


def picture(live, **partitions):
    return Picture(
        frozenset(live),
        1,
        {("t", int(name[1:])): Seen(*each, None, None) for name, each in partitions.items()},
    )


def test_a_failover_is_told_in_a_few_sentences():
    before = picture([1, 2, 3], p0=(1, 0, (1, 2), (1, 2)), p1=(1, 0, (1, 2), (1, 2)))
    after = picture([2, 3], p0=(2, 1, (1, 2), (2,)), p1=(None, 1, (1, 2), (2,)), p2=(1, 0, (), ()))
    assert changes(before, after) == [
        "Broker 1 is gone.",
        "Broker 2 leads t/0 now.",
        "Nobody leads t/1 now.",
        "In sync: 2, before 1,2, in t/0, t/1.",
    ]
    assert changes(after, after) == []
    assert changes(Picture(), before) == []
    assert before.is_whole
    assert not after.is_whole
    assert before.led_by(1) == [("t", 0), ("t", 1)]
    assert not after.is_in_sync_anywhere(1)


def test_a_rate_is_that_of_the_last_seconds():
    rate = Rate()
    assert rate.at(0, 0) == 0
    assert rate.at(1, 10) == 10
    for second in range(2, 20):
        rate.at(second, 10 + second)
    assert rate.at(20, 30) == 1


def test_what_a_transaction_aborted_is_no_result():
    def part(base, value, **named):
        return bytes(
            batch.build(
                [(base, 0, None, value, ())],
                base_offset=base,
                producer_id=5,
                producer_epoch=0,
                base_sequence=base,
                **named,
            )
        )

    marker = {"transactional": True, "control": True}
    data = b"".join(
        [
            part(0, b"aborted", transactional=True),
            part(1, b"", **marker),
            part(2, b"kept", transactional=True),
            part(3, b"", **marker),
            part(4, b"aborted", transactional=True),
            part(5, b"plain"),
            part(6, b"", **marker),
            part(7, b"beyond"),
        ]
    )
    fetched = Fetched(memoryview(data), [(5, 0), (5, 4)], 8, 8, 0)
    assert [each.value for each in committed(fetched, 0, 7)] == [b"kept", b"plain"]
