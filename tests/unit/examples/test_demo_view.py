"""The live view, drawn into a string."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

import pytest
from rich.cells import cell_len
from rich.console import Console

from examples.demo.observer import ClusterState, PartitionState
from examples.demo.snapshot import Event, Snapshot, line
from examples.demo.view import render
from hightide.spark.pipelines.status import AppStatus, QueryStatus, State

QUERY = QueryStatus("enriched", "orders-enriched", rows_in_per_s=49.6, lag=12, batch_ms=431)
SNAPSHOT = Snapshot(
    bootstrap="127.0.0.1:9092",
    elapsed_s=61.2,
    rates={"orders": 50.1, "clicks": 150.4},
    silent_s=3.2,
    acknowledged=3000,
    read_back=2980,
    outstanding=20,
    duplicates=0,
    cluster=ClusterState(
        frozenset({1, 3}),
        1,
        {
            ("orders", 0): PartitionState(1, 4, (1, 2, 3), (1, 3), 1000, 1010),
            ("orders", 1): PartitionState(None, 4, (1, 2, 3), (2,), None, None),
        },
    ),
    dead=[2],
    pipeline="running",
    app=AppStatus("shop", "f", "b", "m", 1, State.RUNNING, 0, 0, queries=(QUERY,)),
    revenue=[
        {"start": "2026-11-16T11:10:10.000Z", "product": "kite", "orders": 1, "amount": 5.0},
        {"start": "2026-11-16T11:10:20.000Z", "product": "kite", "orders": 7, "amount": 1123.4},
    ],
    events=[Event("11:10:00", "Broker 2 was killed; it led orders/1.")],
)
# More partitions, queries, rows and events than fit, and words longer than a line.
LONG = replace(
    SNAPSHOT,
    bootstrap=",".join(f"broker-with-a-long-name.example.org:{port}" for port in range(9092, 9099)),
    acknowledged=123_456_789_012,
    cluster=ClusterState(
        frozenset(range(1, 10)),
        1,
        {
            ("a-topic-with-a-long-name" * 4, index): PartitionState(
                1, 4, tuple(range(1, 10)), (1, 3), 10**12, 10**12
            )
            for index in range(60)
        },
    ),
    app=AppStatus("shop", "f", "b", "m", 1, State.RUNNING, 0, 0, queries=(QUERY,) * 30),
    revenue=[
        {
            "start": f"2026-11-16T11:10:{n:02}.000Z",
            "product": "kite" * 9,
            "orders": 1,
            "amount": 5e9,
        }
        for n in range(60)
    ],
    events=[Event("11:10:00", "Broker 2 was killed; it led " + "orders/1," * 40)] * 50,
)


@pytest.mark.parametrize(
    ("width", "height"), [(80, 24), (120, 24), (80, 50), (120, 50), (160, 50), (40, 10)]
)
def test_the_view_fits_any_terminal(width, height):
    file = StringIO()
    Console(file=file, width=width, height=height).print(render(LONG, height))
    lines = file.getvalue().splitlines()
    assert len(lines) <= height
    assert max(cell_len(line) for line in lines) <= width


def drawn(snapshot, width, height=40):
    file = StringIO()
    Console(file=file, width=width, height=height).print(render(snapshot, height))
    return file.getvalue()


@pytest.mark.parametrize("width", [80, 120, 160])
def test_the_view_shows_everything_that_counts(width):
    text = drawn(SNAPSHOT, width, 24)
    for words in (
        "127.0.0.1:9092",
        "partition",
        "orders/0",
        "leader",
        "1 · 3",
        "1,000",
        "1,010",
        "none",
        "no acknowledgement for 3.2 s",
        "3000 acknowledged",
        "0 duplicated",
        "No order was read back twice",
        "enriched → ",
        "rows/s",
        "431 ms",
        "11:10:20",
        "kite",
        "1,123.40",
        "Broker 2 was killed",
    ):
        assert words in text
    title = text.splitlines()[1]
    assert title.endswith("│")
    assert all(word in title for word in ("kill a broker", "restart it", "quit"))


@pytest.mark.parametrize("width", [80, 120])
def test_a_killed_broker_is_marked_before_the_cluster_notices(width):
    before = replace(SNAPSHOT, dead=[])
    text = drawn(before, width)
    assert "down" not in text
    assert "· 2 ·" in text
    text = drawn(replace(before, dead=[1]), width)
    assert "1 down" in text
    assert "1*" not in text
    assert "· · 3" in text  # neither leader nor in sync


def test_a_line_says_the_same_in_short():
    assert line(SNAPSHOT) == (
        "orders 50/s, clicks 150/s | orders: 3000 acknowledged, 2980 read back, 20 in flight, "
        "0 duplicated | broker 2 down | pipeline: running, lag 12"
    )
