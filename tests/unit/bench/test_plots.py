"""Plots are well-formed, small, and the same for the same figures."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from bench.harness.plots import Panel, bars, curves, plain, powers, steps
from bench.harness.results import Figure

NAMES = {"hightide": "Hightide", "kafka": "Apache <Kafka> & more"}
SVG = "{http://www.w3.org/2000/svg}"


def words(svg: str) -> list[str]:
    return [each.text or "" for each in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def one(value: float) -> Figure:
    return Figure(value, value * 0.9, value * 1.1)


def test_bars_say_who_and_how_much():
    svg = bars("T", "MB/s", {"a & b": {"hightide": one(457), "kafka": one(100)}}, NAMES)
    assert {"T", "MB/s", "a & b", "457", "100", *NAMES.values()} <= set(words(svg))


def test_who_was_not_measured_is_not_in_the_legend():
    svg = bars("T", "MB/s", {"a": {"hightide": one(1)}}, NAMES)
    assert NAMES["kafka"] not in words(svg)


def test_a_figure_below_zero_is_written_and_has_no_width():
    svg = bars("T", "MB", {"a": {"hightide": Figure(-3.5, -4, -3), "kafka": one(2)}}, NAMES)
    assert "-3.5" in words(svg)
    assert 'width="-' not in svg


def test_long_labels_are_broken_at_a_comma():
    label = "1 KB messages in 64 KB batches, 6 partitions, acks=1, 1 replica"
    svg = bars("T", "MB/s", {label: {"hightide": one(1)}}, NAMES)
    assert "1 KB messages in 64 KB batches" in words(svg)
    assert "6 partitions, acks=1, 1 replica" in words(svg)


@pytest.mark.parametrize("is_log_y", [False, True])
@pytest.mark.parametrize("value", [0.0, 0.004, 5.0, 123_456.0])
def test_curves_of_any_size_are_drawn(value, is_log_y):
    points = [(1.0, one(value)), (1000.0, one(value * 3))]
    panel = Panel("partitions", {"hightide": points}, [(1, "1"), (1000, "1,000")], is_log_x=True)
    svg = curves("T", "ms", [panel] * 4, NAMES, is_log_y=is_log_y)
    assert words(svg).count("partitions") == 4
    assert "nan" not in svg
    assert "inf" not in svg


def test_the_same_figures_give_the_same_file():
    groups = {f"g{i}": {"hightide": one(i + 1), "kafka": one(7)} for i in range(72)}
    assert bars("T", "u", groups, NAMES) == bars("T", "u", groups, NAMES)
    assert len(bars("T", "u", groups, NAMES)) < 60_000


def test_ticks_are_round_numbers():
    assert steps(602) == [0, 200, 400, 600, 800]
    assert steps(0) == [0, 1]
    assert powers(0.2, 30) == [0.1, 1, 10, 100]
    assert powers(2, 40) == [2, 5, 10, 20, 50]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (14_382, "14,382"), (1.72, "1.72"), (12.0, "12"), (0.0412, "0.0412"), (200, "200")],
)
def test_numbers_are_short(value, text):
    assert plain(value) == text
