"""The sentence at the top, levels of partitions, and rates."""

from __future__ import annotations

import uuid

import pytest

from hightide.client.model.cluster import Node, PartitionDescription, TopicDescription
from hightide.client.model.replicas import ReplicasDescription, combine_reports
from hightide.console import summary

TOPIC = TopicDescription("orders", uuid.UUID(int=7), False, [])


def partition(leader=1, isr=(1, 2, 3), *, live=(1, 2, 3), silent=()):
    described = PartitionDescription(0, leader, 0, [1, 2, 3], list(isr), [])
    topic = TopicDescription("orders", TOPIC.topic_id, False, [described])
    (found,) = combine_reports([topic], [], live=live, eligible={}, silent=silent)
    return found


def cluster(one, *, live=(1, 2, 3), silent=None):
    return ReplicasDescription(1, frozenset(live), [one], silent or {})


def sentence(one, **more):
    return summary.sentence_of(
        cluster(one, **more), {"orders": 2}, "localhost:9092", is_local=True, now_ms=0
    )


def test_all_is_well():
    found = sentence(partition())
    assert (found["level"], found["next"], found["count"]) == ("ok", None, 0)
    assert found["text"].startswith("All is well: 3 brokers answer")


def test_a_broker_that_is_silent_is_a_warning_with_the_command_that_resumes_it():
    silent = {2: "It did not answer within 1.5 s."}
    found = sentence(partition(silent=[2]), silent=silent)
    assert (found["level"], found["next"]) == ("warn", "hightide broker resume 2")


def test_a_partition_that_refuses_writes_is_bad():
    found = sentence(partition(isr=[1], live=[1]), live=[1])
    assert found["level"] == "bad"
    assert found["count"] == 2


@pytest.mark.parametrize(
    ("given", "level"),
    [
        (partition(), "ok"),
        (partition(isr=[1, 2]), "warn"),
        (partition(isr=[1]), "bad"),
        (partition(silent=[1]), "bad"),
        (partition(leader=-1, isr=[]), "off"),
        (partition(live=[2, 3]), "off"),
    ],
)
def test_the_level_of_a_partition(given, level):
    assert summary.level(given, 2) == level


def rate(rates: summary.Rates) -> tuple[float | None, float | None]:
    return rates.messages_in_s, rates.bytes_in_s


def test_rates_are_what_leaders_took_in_over_the_time_between_looks():
    rates = summary.Rates()
    key = "orders", 0
    rates.appended(key, 100, 1_000)
    rates.looked(1_000)
    assert rate(rates)[0] is None
    rates.appended(key, 130, 1_600)
    rates.looked(4_000)
    assert rate(rates) == (10.0, 200.0)
    # Retention makes a log smaller, and a new leader may have less.
    rates.appended(key, 120, 100)
    rates.looked(7_000)
    assert rate(rates) == (0.0, 0.0)


def test_a_broker_that_is_gone_keeps_its_row():
    one = partition(live=[1, 2], isr=[1, 2])
    nodes = {broker: Node(broker, "h", 9092, "rack") for broker in (1, 2)}
    rows = {("orders", 0): summary.partition_row(one, 2)}
    found = summary.broker_rows(nodes, cluster(one, live=[1, 2]), rows, {1: "0.1"}, {}, {})
    assert [(row["id"], row["alive"], row["leads"], row["in_sync"]) for row in found] == [
        (1, True, 1, 1),
        (2, True, 0, 1),
        (3, False, 0, 0),
    ]
    assert [row["version"] for row in found] == ["0.1", None, None]
