"""The live view, drawn on a terminal that is a text."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from hightide.demo.observer import Picture, Seen
from hightide.demo.scene import Event, Scene, line
from hightide.demo.view import drawn
from hightide.spark.pipelines.status import AppStatus, QueryStatus, State

QUERY = QueryStatus("enriched", "orders-enriched", rows_in_per_s=49.6, lag=12, batch_ms=431)
SCENE = Scene(
    bootstrap="127.0.0.1:9092",
    elapsed_s=61.2,
    rates={"orders": 50.1, "clicks": 150.4},
    silent_s=3.2,
    acknowledged=3000,
    read_back=2980,
    outstanding=20,
    duplicates=0,
    picture=Picture(
        frozenset({1, 3}),
        1,
        {
            ("orders", 0): Seen(1, 4, (1, 2, 3), (1, 3), 1000, 1010),
            ("orders", 1): Seen(None, 4, (1, 2, 3), (2,), None, None),
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


@pytest.mark.parametrize(("width", "height"), [(80, 24), (160, 50), (40, 10)])
def test_the_view_fits_any_terminal(width, height):
    console = Console(file=StringIO(), width=width, height=height, force_terminal=True)
    console.print(drawn(SCENE, height))


def test_the_view_shows_who_leads_who_is_in_sync_and_that_nothing_is_lost():
    file = StringIO()
    Console(file=file, width=160, height=40).print(drawn(SCENE, 40))
    text = file.getvalue()
    for words in (
        "127.0.0.1:9092",
        "orders/0",
        "1 · 3",
        "1,010",
        "none",
        "no acknowledgement for 3.2 s",
        "3000 acknowledged, 2980 read back, 20 on the way, 0 duplicated",
        "enriched → orders-enriched",
        "431 ms",
        "11:10:20",
        "kite",
        "1,123.40",
        "Broker 2 was killed",
    ):
        assert words in text


def test_a_line_says_the_same_in_short():
    assert line(SCENE) == (
        "orders 50/s, clicks 150/s | orders: 3000 acknowledged, 2980 read back, 20 on the way, "
        "0 duplicated | broker 2 down | pipeline: running, lag 12"
    )
