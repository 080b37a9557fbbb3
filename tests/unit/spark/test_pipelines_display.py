"""How a running app is shown."""

from __future__ import annotations

import dataclasses

from rich.console import Console

from hightide.spark.pipelines import display
from hightide.spark.pipelines.status import AppStatus, QueryStatus, State

BUSY = QueryStatus(
    name="revenue",
    to="revenue",
    state=State.RUNNING,
    batch=12,
    rows_in=1000,
    rows_out=90,
    rows_in_per_s=1234.4,
    rows_out_per_s=3.21,
    lag=17,
    batch_ms=210,
    watermark="2026-01-01T11:59:50.000Z",
    state_rows=1200,
    state_bytes=2_100_000,
)
NEW = QueryStatus(name="big", to="delta:./big")


def an_app(*queries: QueryStatus, **changes) -> AppStatus:
    made = AppStatus(
        "shop", "shop.py", "localhost:9092", "local[2]", 1, State.RUNNING, 0, 61_000, None, queries
    )
    return dataclasses.replace(made, **changes)


def test_a_query_in_one_line_has_all_its_figures() -> None:
    assert display.line(BUSY) == (
        "revenue: running, batch 12, 1,234 rows/s in, 3.2 out, lag 17, 210 ms, "
        "watermark 2026-01-01 11:59:50, state 1,200 rows, 2.1 MB"
    )


def test_lines_come_when_something_happened_but_not_all_the_time() -> None:
    messages: list[str] = []
    now = [0.0]
    show = display.lines(messages.append, lambda: now[0])
    show(an_app(BUSY, NEW))
    show(an_app(BUSY, NEW))
    assert messages == ["shop: running", display.line(BUSY)]
    later = dataclasses.replace(BUSY, batch=13)
    show(an_app(later))
    assert len(messages) == 2
    now[0] += display.LINE_EVERY_S
    show(an_app(later))
    assert messages[2:] == [display.line(later)]


def test_the_end_of_a_query_is_said_at_once() -> None:
    messages: list[str] = []
    show = display.lines(messages.append, lambda: 0.0)
    show(an_app(BUSY))
    show(an_app(dataclasses.replace(BUSY, state=State.FAILED), state=State.FAILED))
    assert messages[2] == "shop: failed"
    assert messages[3].startswith("revenue: failed")


def test_the_table_shows_every_query_and_the_error() -> None:
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(display.table(an_app(BUSY, NEW, error="The sink said no.")))
    text = console.export_text()
    for each in ("shop", "0:01:01", "revenue", "1,234", "17", "2.1 MB", "big", "The sink said no."):
        assert each in text
    console.file.close()


def test_a_table_of_queries_without_state_has_no_columns_for_it() -> None:
    columns = [column.header for column in display.table(an_app(NEW)).columns]
    assert "state size" not in columns
    assert "lag" in columns


def test_figures_are_written_for_people() -> None:
    assert [display.size(value) for value in (None, 12, 1500, 2_500_000)] == [
        "-",
        "12 B",
        "1.5 kB",
        "2.5 MB",
    ]
    assert [display.duration(value) for value in (None, 90, 12_340)] == ["-", "90 ms", "12.3 s"]
    assert [display.rate(value) for value in (None, 0.0, 0.25, 99.6)] == ["-", "0", "0.2", "100"]
