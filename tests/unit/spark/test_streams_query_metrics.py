"""The figures of queries as values to push."""

from __future__ import annotations

from typing import Any

import pytest

from hightide.client.telemetry import Value
from hightide.spark.streams.query_metrics import QueryFigures, QueryMetrics


def progress(query_id: str = "id-1", batch: int = 0, **more: Any) -> dict[str, Any]:
    """Return a progress report of Spark."""
    return {
        "id": query_id,
        "timestamp": f"2026-01-01T00:00:0{batch}.000Z",
        "batchId": batch,
        "numInputRows": 10,
        "durationMs": {"triggerExecution": 200},
        "stateOperators": [{"numRowsTotal": 7, "memoryUsedBytes": 900}],
        "sources": [{"endOffset": {"t": {"0": 5}}, "latestOffset": {"t": {"0": 8}}}],
        "observedMetrics": {"written": {"rows": 4}},
        **more,
    }


@pytest.fixture
def figures() -> QueryFigures:
    found = QueryFigures()
    found.add("revenue", "shop-revenue", "id-1")
    return found


def values(figures: QueryFigures) -> dict[str, float]:
    return {value.name.removeprefix("spark.query."): value.value for value in figures.values()}


def test_a_query_that_has_started_is_active(figures: QueryFigures) -> None:
    assert values(figures) == {"active": 1, "failed": 0, "input.rows.total": 0}


def test_a_report_becomes_values(figures: QueryFigures) -> None:
    figures.progressed(progress())
    assert values(figures) == {
        "input.rows.per.second": 50,
        "output.rows.per.second": 20,
        "lag.records": 3,
        "batch.duration.ms": 200,
        "batch.id": 0,
        "state.rows": 7,
        "state.bytes": 900,
        "active": 1,
        "failed": 0,
        "input.rows.total": 10,
        "output.rows.total": 4,
        "late.rows.total": 0,
    }
    first, *_ = figures.values()
    labels = {"query": "revenue", "group_id": "shop-revenue"}
    assert first == Value("spark.query.input.rows.per.second", labels, 50)


def test_totals_are_counters_and_grow(figures: QueryFigures) -> None:
    for batch in range(3):
        figures.progressed(progress(batch=batch))
    assert values(figures)["input.rows.total"] == 30
    for value in figures.values():
        assert value.is_counter == value.name.endswith(".total")


def test_an_idle_query_has_no_rate_and_keeps_its_lag(figures: QueryFigures) -> None:
    figures.progressed(progress())
    figures.idle("id-1")
    found = values(figures)
    assert (found["input.rows.per.second"], found["output.rows.per.second"]) == (0, 0)
    assert (found["lag.records"], found["active"]) == (3, 1)


@pytest.mark.parametrize(("error", "failed"), [(None, 0), ("division by zero", 1)])
def test_a_query_that_has_ended_is_not_active(
    figures: QueryFigures, error: str | None, failed: int
) -> None:
    figures.progressed(progress())
    figures.ended("id-1", error)
    found = values(figures)
    assert (found["active"], found["failed"], found["input.rows.per.second"]) == (0, failed, 0)


def test_queries_of_others_are_not_seen(figures: QueryFigures) -> None:
    before = values(figures)
    figures.progressed(progress("another"))
    figures.idle("another")
    figures.ended("another", None)
    assert values(figures) == before


def test_an_app_can_turn_its_metrics_off() -> None:
    no_session: Any = None
    assert QueryMetrics.start(no_session, {"enable.metrics.push": "False"}) is None


def test_a_failure_is_logged_once_and_not_raised(caplog: pytest.LogCaptureFixture) -> None:
    no_session: Any = None
    metrics = QueryMetrics.start(no_session, {"bootstrap.servers": "127.0.0.1:1"})
    assert metrics is not None
    no_event: Any = None
    metrics.onQueryProgress(no_event)
    metrics.stop(no_session, [])
    (line,) = [r.message for r in caplog.records if "are not pushed" in r.message]
    assert "NoneType" in line
