"""Apps in YAML files: what they may contain, and errors that name the path."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from hightide.spark.streams import App, StreamsError
from hightide.spark.streams.document import parsed
from hightide.spark.streams.trial import matches

SHOP = """
app: shop
brokers: b:1
settings: {spark.sql.shuffle.partitions: 4, spark.speculation: false}
topics:
  orders: {schema: "id BIGINT, user STRING, ts TIMESTAMP", time: ts, late: 10 s}
  users: {schema: "user STRING, city STRING", key: user, start: 2026-01-31}
queries:
  totals:
    sql: SELECT city, count(*) AS n FROM orders JOIN users USING (user) GROUP BY city
    to: totals
    key: city
    mode: update
tests:
  counts:
    query: totals
    given: {orders: [], users: []}
    expect: []
"""


def test_a_file_of_yaml_is_an_app(tmp_path: Path) -> None:
    path = tmp_path / "shop.yaml"
    path.write_text(SHOP)
    app = App.load(path)
    assert (app.name, app.brokers) == ("shop", "b:1")
    assert app.settings == {"spark.sql.shuffle.partitions": "4", "spark.speculation": "false"}
    assert app.topics["orders"].late == "10 seconds"
    assert app.topics["users"].key == ("user",)
    assert app.topics["users"].start == "2026-01-31"
    assert app.queries["totals"].mode == "update"
    assert "JOIN users" in (app.queries["totals"].sql or "")
    assert list(app.tests) == ["counts"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("brokers:", "broker:"), "^broker is unknown. Did you mean brokers?"),
        (("late:", "lateness:"), "topics.orders.lateness is unknown. Did you mean late"),
        (("mode: update", "mode: [update]"), r"queries.totals.mode is .*; expected text"),
        (("    to: totals\n", ""), "queries.totals.to is missing"),
        (("app: shop\n", ""), "app is missing"),
        (("expect: []", "expected: []"), "tests.counts.expected is unknown"),
        (
            ("speculation: false", "speculation: [1]"),
            "settings.spark.speculation is .*; expected text",
        ),
        (("key: city\n", "key: city\n    key: user\n"), r"line \d+: key is there twice"),
        (("app: shop", "app: {"), "this is not YAML"),
    ],
)
def test_a_mistake_in_a_file_is_named_with_its_path(change: tuple[str, str], words: str) -> None:
    assert change[0] in SHOP
    with pytest.raises(StreamsError, match=words):
        parsed(SHOP.replace(*change))


@pytest.mark.parametrize("text", ["", "- a list", "just words"])
def test_what_is_no_app_is_said_to_be_none(text: str) -> None:
    with pytest.raises(StreamsError, match="an app starts with app: NAME"):
        parsed(text)


def test_an_error_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "shop.yaml"
    path.write_text("app: shop\nqueries: {q: {}}")
    with pytest.raises(StreamsError, match=r"shop.yaml: queries.q.sql is missing"):
        App.load(path)
    with pytest.raises(StreamsError, match="cannot be read: No such file"):
        App.load(tmp_path / "other.yaml")


def test_expected_rows_name_only_the_columns_that_matter() -> None:
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    found = [{"n": 1, "user": "ada", "window": {"start": noon}}, {"n": 2, "user": "bob"}]
    assert matches(found, [{"user": "bob", "n": 2}, {"n": 1}]) is None
    assert matches(found[:1], [{"window": {"start": "2026-01-01T12:00:00"}}]) is None
    assert "Missing row: {'n': 3}" in (matches(found, [{"n": 3}]) or "")
    assert "Unexpected rows: [{'n': 2" in (matches(found, [{"n": 1}]) or "")
