"""The parts of the demo with logic: the order check, the traffic, the events."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from examples.demo.observer import ClusterState, PartitionState, changes
from examples.demo.order_check import OrderCheck
from examples.demo.output_reader import committed
from examples.demo.snapshot import Rate, Snapshot, banner, verdict
from examples.demo.topics import CLICKS, ORDERS, USERS
from examples.demo.traffic import Traffic, order_number
from hightide.spark.blocking_client import FetchedBatches
from hightide.wire import batch

steps = st.lists(st.tuples(st.sampled_from(["acknowledged", "read back"]), st.integers(0, 3000)))


@given(steps)
def test_the_check_counts_missing_and_duplicate_orders(taken):
    check, acknowledged, read_back = OrderCheck(), set(), Counter()
    for step, number in taken:
        if step == "acknowledged":
            check.add_acknowledged(number)
            acknowledged.add(number)
        else:
            check.add_read_back(number)
            read_back[number] += 1
    assert check.acknowledged == len(acknowledged)
    assert check.read_back == len(read_back)
    assert check.outstanding == len(acknowledged - read_back.keys())
    assert check.duplicates == sum(read_back.values()) - len(read_back)


def test_an_order_that_comes_hundreds_of_times_stays_that_order():
    check = OrderCheck()
    for _ in range(300):
        check.add_read_back(7)
    assert (check.read_back, check.duplicates) == (1, 299)


def test_the_last_word_says_what_was_lost():
    check = OrderCheck()
    check.add_acknowledged(0)
    assert "1 missing, 0 duplicated" in verdict(check, is_drained=True)
    assert "1 still in flight" in verdict(check, is_drained=False)
    check.add_read_back(0)
    assert verdict(check, is_drained=True).startswith("Nothing was lost: 1 orders")
    check.add_read_back(0)
    assert "1 duplicated" in verdict(check, is_drained=True)


def test_the_banner_is_the_ledger():
    snapshot = Snapshot(
        bootstrap="",
        elapsed_s=0,
        rates={},
        silent_s=0,
        acknowledged=19_380,
        read_back=19_380,
        outstanding=0,
        duplicates=0,
        cluster=ClusterState(),
        dead=[],
        pipeline="none",
        app=None,
        revenue=[],
        events=[],
    )
    assert banner(snapshot) == (
        "Orders: 19,380 acknowledged, 19,380 read back, 0 missing, 0 duplicated",
        "ok",
    )
    later = replace(snapshot, outstanding=12, silent_s=3.4)
    assert banner(later) == (
        "Orders: 19,380 acknowledged, 19,380 read back, 12 on their way, 0 duplicated;"
        " none acknowledged for 3 s",
        "warn",
    )
    assert banner(replace(snapshot, duplicates=1))[1] == "bad"


def test_traffic_keeps_its_rate_and_numbers_its_orders():
    traffic = Traffic("run0", rate=50)
    sent = [message for tick in range(100) for message in traffic.pass_time(0.1, 1_000 * tick)]
    orders = [message for message in sent if message.topic == ORDERS]
    assert [order.number for order in orders] == list(range(traffic.orders))
    assert abs(traffic.orders - 500) <= 1
    assert len([message for message in sent if message.topic == CLICKS]) == 3 * len(orders)
    assert [order_number(order.value, "run0") for order in orders] == list(range(len(orders)))
    assert order_number(orders[0].value, "another") is None
    assert order_number(None, "run0") is None
    users = {user.key for user in traffic.users()}
    assert {user.topic for user in traffic.users()} == {USERS}
    assert {order.key for order in orders} - users == {b"guest"}


def test_a_few_orders_cannot_be_read():
    traffic = Traffic("run0", rate=1000)
    broken = 0
    for message in traffic.pass_time(1, 0):
        if message.topic == ORDERS:
            try:
                broken += not isinstance(json.loads(message.value)["amount"], float)
            except ValueError:
                broken += 1
    assert 5 <= broken <= 50


def cluster(live, **partitions):
    states = {
        ("t", int(name[1:])): PartitionState(*[*fields, None, None])
        for name, fields in partitions.items()
    }
    return ClusterState(frozenset(live), 1, states)


def test_a_failover_is_told_in_a_few_sentences():
    before = cluster([1, 2, 3], p0=(1, 0, (1, 2), (1, 2)), p1=(1, 0, (1, 2), (1, 2)))
    after = cluster([2, 3], p0=(2, 1, (1, 2), (2,)), p1=(None, 1, (1, 2), (2,)), p2=(1, 0, (), ()))
    assert changes(before, after) == [
        "Broker 1 is gone.",
        "Broker 2 leads t/0 now.",
        "No broker leads t/1 now.",
        "ISR is 2, was 1,2: t/0, t/1.",
    ]
    assert changes(after, after) == []
    assert changes(ClusterState(), before) == []
    assert before.is_fully_replicated
    assert not after.is_fully_replicated
    assert before.led_by(1) == [("t", 0), ("t", 1)]
    assert not after.is_in_any_isr(1)


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
    fetched = FetchedBatches(memoryview(data), [(5, 0), (5, 4)], 8, 8, 0)
    assert [record.value for record in committed(fetched, 0, 7)] == [b"kept", b"plain"]
