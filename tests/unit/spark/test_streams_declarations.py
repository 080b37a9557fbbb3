"""Declarations of apps: names, targets, durations, queries, all without Spark."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hightide.spark.streams import App, StreamsError
from hightide.spark.streams.app import mentioned
from hightide.spark.streams.durations import UNITS_MS, interval, milliseconds
from hightide.spark.streams.query import Target, declared, target
from hightide.spark.streams.topic import position


def nothing() -> Any:
    raise AssertionError("a query is not built by being declared")


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("10 s", "10 seconds"),
        ("10s", "10 seconds"),
        ("1 Minute", "1 minute"),
        ("90 min", "90 minutes"),
        ("120 minutes", "2 hours"),
        ("1 hour 30 minutes", "90 minutes"),
        ("500ms", "500 milliseconds"),
        ("7 days", "1 week"),
        ("2 secs", "2 seconds"),
        (timedelta(minutes=5), "5 minutes"),
    ],
)
def test_lengths_of_time_are_written_as_people_write_them(text: Any, meant: str) -> None:
    assert interval(text, "late=") == meant


@pytest.mark.parametrize("text", ["", "soon", "10", "s", "10 fortnights", "10 s and more", "-1 s"])
def test_what_is_no_length_of_time_is_said_to_be_none(text: str) -> None:
    with pytest.raises(StreamsError, match=r"late= of topic orders is .*10 seconds"):
        interval(text, "late= of topic orders")


def test_only_a_trigger_may_take_no_time() -> None:
    assert interval("0 s", "every=", zero=True) == "0 seconds"
    with pytest.raises(StreamsError, match="longer than zero"):
        interval("0 minutes", "The size of a window")


@given(st.lists(st.tuples(st.integers(0, 10_000), st.sampled_from(sorted(UNITS_MS))), min_size=1))
def test_a_length_of_time_in_sparks_words_is_as_long_as_it_was(
    parts: list[tuple[int, str]],
) -> None:
    text = " ".join(f"{count} {unit}s" for count, unit in parts)
    total = sum(count * UNITS_MS[unit] for count, unit in parts)
    assert milliseconds(text, "it") == total
    assert milliseconds(interval(text, "it", zero=True), "it") == total


@pytest.mark.parametrize(
    ("to", "meant"),
    [
        ("revenue", Target("topic", "revenue")),
        ("topic:my.out-1", Target("topic", "my.out-1")),
        ("delta:./tables/big", Target("delta", "./tables/big")),
        ("parquet:s3://bucket/x", Target("parquet", "s3://bucket/x")),
        ("memory:", Target("memory", "")),
        ("memory:totals", Target("memory", "totals")),
        ("print:", Target("print", "")),
    ],
)
def test_a_target_is_a_topic_unless_it_says_otherwise(to: str, meant: Target) -> None:
    assert target(to) == meant


@pytest.mark.parametrize(
    ("to", "words"),
    [
        ("", "expected a topic, or one of parquet:PATH"),
        ("parket:x", "no kind of target 'parket'.*Did you mean parquet"),
        ("delta:", 'write "delta:PATH"'),
        ("my topic", "cannot be the name of a topic"),
        ("..", "cannot be the name of a topic"),
        ("memory:a b", "use one word"),
        ("print:x", "nothing may follow"),
    ],
)
def test_a_target_that_cannot_be_meant_is_refused_in_words(to: str, words: str) -> None:
    with pytest.raises(StreamsError, match=words):
        target(to)


def test_the_words_of_a_target_are_those_it_was_written_with() -> None:
    for text in ("revenue", "delta:./x", "memory:", "print:"):
        assert str(target(text)) == text


@pytest.mark.parametrize(
    ("declaration", "words"),
    [
        (
            {"mode": "upsert"},
            "no mode for query q 'upsert'; expected one of: append, update, complete",
        ),
        ({"guarantee": "hopefully"}, "guarantee"),
        ({"every": "often"}, "every= of query q"),
        ({"to": "delta:x", "partition": "p"}, "partition= of query q applies to topics.*delta:x"),
        ({"to": "print:", "guarantee": "at-least-once"}, "guarantee= of query q applies to topics"),
        ({"partition_by": "day"}, "partition_by= of query q applies to tables"),
    ],
)
def test_a_declaration_that_makes_no_sense_is_refused_when_it_is_made(
    declaration: dict[str, Any], words: str
) -> None:
    with pytest.raises(StreamsError, match=words):
        declared("q", nothing, **({"to": "out"} | declaration))


def test_keys_are_one_column_or_several() -> None:
    assert declared("q", nothing, "out").keys == ()
    assert declared("q", nothing, "out", key="user").keys == ("user",)
    assert declared("q", nothing, "out", key=["a", "b"]).keys == ("a", "b")


def test_declaring_an_app_starts_nothing() -> None:
    app = App("shop", brokers="nowhere:1")
    orders = app.topic("orders", "id BIGINT, ts TIMESTAMP", time="ts", late="10 s", key="id")

    @app.query(to="big", key="id", every="2 s")
    def big() -> Any:
        """Orders that are big."""
        return nothing()

    app.sql("counts", "SELECT count(*) FROM orders", to="memory:", mode="complete")
    assert list(app.queries) == ["big", "counts"]
    assert app.queries["big"].doc == "Orders that are big."
    assert app.queries["big"].every == "2 seconds"
    assert (orders.late, orders.key) == ("10 seconds", ("id",))
    assert app.find(big) is app.queries["big"]


def test_places_and_names_follow_from_the_names_of_app_and_query() -> None:
    app = App("shop", state="s3://bucket/state/")
    assert app.place("big") == "s3://bucket/state/shop/big"
    assert app.group("big") == "shop-big"


def test_an_app_takes_its_surroundings_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HIGHTIDE_BOOTSTRAP", "b1:9092,b2:9092")
    monkeypatch.setenv("HIGHTIDE_STATE", "/var/state")
    monkeypatch.setenv("HIGHTIDE_MASTER", "spark://m:7077")
    app = App("shop")
    assert (app.brokers, app.state, app.master) == (
        "b1:9092,b2:9092",
        "/var/state",
        "spark://m:7077",
    )
    assert App("shop", brokers="x:1").brokers == "x:1"


def test_a_command_line_has_the_last_word_before_an_app_starts() -> None:
    app = App("shop", settings={"spark.a": "1", "spark.b": "1"})
    app.configure(brokers="x:1", settings={"spark.b": "2"})
    assert app.brokers == "x:1"
    assert app.settings == {"spark.a": "1", "spark.b": "2"}
    assert app.master == App("other").master


def test_a_topic_is_read_committed_with_the_options_of_app_and_topic() -> None:
    app = App("shop", brokers="b:1", options={"kafka.security.protocol": "SSL"})
    orders = app.topic(
        "orders", "id BIGINT", on_error="dlq:bad", options={"maxOffsetsPerTrigger": "5"}
    )
    assert app.source_options(orders) == {
        "kafka.bootstrap.servers": "b:1",
        "subscribe": "orders",
        "kafka.isolation.level": "read_committed",
        "includeHeaders": "true",
        "kafka.security.protocol": "SSL",
        "maxOffsetsPerTrigger": "5",
    }


@pytest.mark.parametrize(
    ("declare", "words"),
    [
        (lambda app: app.topic("orders", "id INT"), "Topic orders is declared twice"),
        (lambda app: app.topic("a b", "id INT"), "'a b' cannot be the name of a topic"),
        (lambda app: app.topic("x", ""), "Topic x: '' is not a schema"),
        (lambda app: app.topic("x", "id INT", on_error="ignore"), "on_error is 'ignore'"),
        (lambda app: app.topic("x", "id INT", late="soon"), "late= of topic x"),
        (lambda app: app.sql("q", "SELECT 1", to="out"), "Query q is declared twice"),
        (lambda app: app.sql("r", "SELECT 1", to="out", kye="x"), "Query r: .*'kye'"),
        (lambda app: app.find("p"), "no query 'p'; expected one of: q"),
    ],
)
def test_what_is_wrong_with_an_app_is_said_where_it_is_declared(declare: Any, words: str) -> None:
    app = App("shop")
    app.topic("orders", "id INT")
    app.sql("q", "SELECT 1", to="out")
    with pytest.raises(StreamsError, match=words):
        declare(app)


def test_an_app_without_queries_has_nothing_to_run() -> None:
    with pytest.raises(StreamsError, match="App shop has no queries"):
        App("shop").plan()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("SELECT * FROM orders", ["orders"]),
        ("SELECT * FROM Orders o JOIN `user.list` u", ["orders", "user.list"]),
        ("SELECT * FROM orders_old", []),
        ("SELECT orders.id FROM orders", ["orders"]),
        ("SELECT * FROM my-orders", []),
    ],
)
def test_sql_has_views_of_the_topics_that_it_names(text: str, found: list[str]) -> None:
    assert mentioned(text, ["orders", "user.list"]) == found


def test_a_place_in_a_topic_is_a_word_or_a_time() -> None:
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    at_ms = str(int(noon.timestamp() * 1000))
    assert position("starting", "earliest") == {"startingOffsets": "earliest"}
    assert position("ending", "latest") == {"endingOffsets": "latest"}
    assert position("ending", noon) == {"endingTimestamp": at_ms}
    assert position("starting", "2026-01-31T12:00:00")["startingTimestamp"] == at_ms
    assert position("starting", '{"t": {"0": 5}}') == {"startingOffsets": '{"t": {"0": 5}}'}
    with pytest.raises(StreamsError, match="'yesterday' is not a position"):
        position("starting", "yesterday")
