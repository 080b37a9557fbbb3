"""The arithmetic of `hightide perf`, with made-up messages and rounds."""

from __future__ import annotations

import uuid

import pytest

from hightide.cli.options import Failed
from hightide.cli.perf.commands import two_clusters
from hightide.cli.perf.latency import PROBE, Flight, Pace, fail_if_missing, figures
from hightide.cli.perf.load import payloads, percentile
from hightide.cli.perf.rounds import figure_rows, ratio_rows, rounds
from hightide.cli.perf.suite import Amount, Measurement, Target, suite
from hightide.cli.perf.temporary_topic import what_prevents_writing
from hightide.client.model.cluster import PartitionDescription, TopicDescription

AMOUNT = Amount(seconds=2.0, most_bytes=4_000, size=100, rate=1_000)


def flown(pace, latencies_s, sent_late_s=0.0):
    """A run that began at time 100, with these latencies; None is a message that did not arrive."""
    flight = Flight(pace.count)
    for number, latency_s in enumerate(latencies_s):
        due = 100.0 + pace.due_s(number)
        flight.sent[number] = due + sent_late_s
        if latency_s is not None:
            flight.received(flight.stamp(number), 0, due + latency_s)
    return flight


def test_percentiles_are_of_the_nearest_rank():
    values = [float(n) for n in range(1, 101)]
    assert [percentile(values, share) for share in (0.5, 0.99, 0.999)] == [50, 99, 100]
    assert percentile([7.0], 0.5) == 7
    assert percentile([], 0.5) == 0


def test_latency_counts_from_the_moment_a_message_was_due():
    pace = Pace(rate=1_000, seconds=0.1, size=16)
    flight = flown(pace, [0.005] * 99 + [0.2], sent_late_s=0.003)
    found = figures("t", pace, flight, 100.0, 1.0, 0.5)
    assert (found.records, found.unconsumed, found.failed) == (100, 0, 0)
    assert found.latency_p50_ms == pytest.approx(5.0, abs=0.01)
    assert found.latency_p99_ms == pytest.approx(5.0, abs=0.01)
    assert found.latency_max_ms == pytest.approx(200.0, abs=0.01)
    assert found.sent_late_p99_ms == pytest.approx(3.0, abs=0.01)


def test_a_percentile_of_too_few_messages_is_not_told():
    pace = Pace(rate=1_000, seconds=0.1, size=16)
    found = figures("t", pace, flown(pace, [0.001] * 100), 100.0, 1.0, 0.5)
    assert found.latency_p999_ms is None
    assert [row.percent for row in found.percentiles] == [10, 25, 50, 75, 90, 95, 99]


def test_messages_that_did_not_arrive_are_counted_and_said():
    pace = Pace(rate=10, seconds=1, size=16)
    found = figures("t", pace, flown(pace, [0.001] * 7 + [None] * 3), 100.0, 1.0, 0.5)
    assert (found.records, found.unconsumed) == (7, 3)
    with pytest.raises(Failed, match="3 of 10 messages were not consumed"):
        fail_if_missing(found, pace)


def test_nothing_that_arrived_gives_no_latency_rather_than_none_at_all():
    pace = Pace(rate=10, seconds=0.5, size=16)
    found = figures("t", pace, flown(pace, [None] * 5), 100.0, 1.0, 0.5)
    assert (found.latency_p50_ms, found.latency_max_ms, found.percentiles) == (None, None, [])


def test_only_new_messages_of_this_run_are_counted():
    flight, other = Flight(3), Flight(3)
    flight.received(None, 0, 1.0)
    flight.received(b"short", 0, 1.0)
    flight.received(other.stamp(1), 0, 1.0)
    flight.received(flight.stamp(7), 0, 1.0)
    assert flight.arrived_count == 0
    flight.received(flight.stamp(PROBE), 4, 1.0)
    assert (flight.arrived_count, flight.probed) == (0, {4})
    flight.received(flight.stamp(1) + b"payload", 0, 2.0)
    flight.received(flight.stamp(1) + b"payload", 0, 9.0)
    assert (flight.arrived_count, list(flight.arrived)) == (1, [0.0, 2.0, 0.0])


@pytest.mark.parametrize("size", [1, 16, 1_000, 3_000_000])
def test_payloads_have_the_size_asked_for_and_differ(size):
    found = payloads(size)
    assert {len(payload) for payload in found} == {size}
    assert len(set(found)) > 8
    assert found == payloads(size)


# -- rounds ------------------------------------------------------------------------------------


def test_clusters_take_turns_and_the_one_that_begins_changes():
    turns = []

    def measurement(target, amount):
        turns.append((target.bootstrap, amount.seconds))
        return [Measurement("m", {"MB/s": float(len(turns))}, 0.5)]

    steps = []
    found = rounds([Target("a", "t"), Target("b", "t")], [measurement], AMOUNT, 2, steps.append)
    assert turns == [("b", 0.5), ("a", 0.5), ("a", 2.0), ("b", 2.0), ("b", 2.0), ("a", 2.0)]
    assert [[result.figures["MB/s"] for result in one] for one in found] == [[3.0, 6.0], [4.0, 5.0]]
    assert sum(steps) == 6


def measured(*values, what="m", figure="MB/s", cores=0.5):
    return [Measurement(what, {figure: value}, cores) for value in values]


def test_one_cluster_gives_medians_and_their_spread():
    (row,) = figure_rows([*measured(10.0, 30.0), *measured(20.0, cores=0.9)])
    assert (row.median, row.lowest, row.highest, row.client_cores) == (20.0, 10.0, 30.0, 0.9)


def test_ratios_are_those_of_each_round():
    (row,) = ratio_rows(measured(10.0, 40.0, 30.0), measured(10.0, 20.0, 60.0))
    assert (row.first, row.second) == (30.0, 20.0)
    # Not 30 / 20: the ratios of the rounds are 1, 2 and a half.
    assert (row.ratio, row.lowest, row.highest, row.better) == (1.0, 0.5, 2.0, "above 1")


def test_less_is_better_of_times():
    (row,) = ratio_rows(measured(1.0, figure="p99 ms"), measured(2.0, figure="p99 ms"))
    assert (row.ratio, row.better) == (0.5, "below 1")


def test_a_figure_that_one_cluster_did_not_always_give_has_no_ratio():
    assert ratio_rows(measured(1.0, 2.0), measured(1.0)) == []
    assert ratio_rows(measured(1.0), measured(1.0, what="other")) == []
    assert ratio_rows(measured(1.0), measured(0.0)) == []


def test_compression_adds_measurements():
    assert len(suite(["lz4", "zstd"])) == len(suite([])) + 2


def test_two_clusters_are_two():
    assert two_clusters("a:1, b:2") == ["a:1", "b:2"]


# -- replicas ----------------------------------------------------------------------------------


def topic(leader, isr):
    at = PartitionDescription(
        partition=0, leader=leader, leader_epoch=1, replicas=[1, 2, 3], isr=isr, offline=[]
    )
    return TopicDescription(name="t", topic_id=uuid.UUID(int=1), internal=False, partitions=[at])


def test_what_prevents_writing_is_said_beforehand():
    assert what_prevents_writing(topic(1, [1, 2]), 2) is None
    assert what_prevents_writing(topic(1, [1]), 0) is None
    assert what_prevents_writing(topic(-1, []), 0) == "Partition t/0 has no leader."
    assert "1 of 3 replicas in sync, but min.insync.replicas is 2" in (
        what_prevents_writing(topic(1, [1]), 2) or ""
    )
