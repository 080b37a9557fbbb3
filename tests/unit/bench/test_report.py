"""Rounds become ratios of neighbours, and ratios are held to bars."""

from __future__ import annotations

import pytest

from bench.harness.lab import Metric, Workload, afresh, held_to
from bench.harness.report import Outcome, as_data, as_text, bound

RATE = Metric("rate", "records/s", more_is_better=True, ratio_goal=1.0, ratio_aim=1.3)
TIME = Metric("time_s", "time, s", 2, goal=5, ratio_goal=0.2)


def outcome(rounds, *metrics: Metric) -> Outcome:
    workload = Workload("w", "a workload", metrics, afresh(lambda *_: {}))
    return Outcome(workload, rounds)


def test_a_ratio_is_of_one_round():
    found = outcome(
        {"hightide": [{"rate": 10}, {"rate": 60}], "kafka": [{"rate": 20}, {"rate": 30}]}, RATE
    )
    assert found.ratios("hightide", "kafka", RATE) == [0.5, 2.0]


def test_a_round_without_the_figure_does_not_shift_the_others():
    found = outcome(
        {
            "hightide": [{}, {"rate": 60}, {"rate": 9}],
            "kafka": [{"rate": 20}, {"rate": 30}, {"rate": 0}],
        },
        RATE,
    )
    assert found.ratios("hightide", "kafka", RATE) == [2.0]


@pytest.mark.parametrize(("mine", "verdict"), [(30, "met, 1.50"), (10, "MISSED, 0.50")])
def test_a_bar_is_held_against_kafka_alone(mine, verdict):
    rounds = {"hightide": [{"rate": mine}], "old": [{"rate": 1000}], "kafka": [{"rate": 20}]}
    assert f"bar ≥ 1.0: {verdict}" in as_text(outcome(rounds, RATE), "hightide")
    del rounds["kafka"]
    assert "bar" not in as_text(outcome(rounds, RATE), "hightide")


def test_a_goal_and_a_bar_stand_side_by_side():
    rounds = {"hightide": [{"time_s": 4}], "kafka": [{"time_s": 10}]}
    text = as_text(outcome(rounds, TIME), "hightide")
    assert "goal ≤ 5: met; bar ≤ 0.2: MISSED, 0.40" in text


def test_bars_are_kept_in_the_data():
    row = as_data(outcome({"hightide": [{"rate": 1}]}, RATE), "hightide")["summary"]["rate"]
    assert row["ratio_goal"] == 1.0
    assert row["ratio_aim"] == 1.3
    assert row["more_is_better"] is True
    assert "goal" not in row


def test_metrics_get_bars_by_their_keys():
    one, other = held_to((Metric("a", "A"), Metric("b", "B")), b=(0.2, 0.1))
    assert one.ratio_goal is None
    assert (other.ratio_goal, other.ratio_aim) == (0.2, 0.1)


@pytest.mark.parametrize(("value", "text"), [(1, "1.0"), (0.2, "0.2"), (0.05, "0.05")])
def test_a_bound_is_seen_to_be_a_ratio(value, text):
    assert bound(value) == text
