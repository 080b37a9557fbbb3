"""Streams joined to streams and to tables, running apps, and apps that cannot run."""

from __future__ import annotations

import sys
import time
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import ModuleType

import pytest
from pyspark.sql import functions as F

import hightide.spark.streams as st
from hightide.spark import tables
from hightide.spark.formats import avro
from hightide.testing import Cluster
from tests.spark.shop_data import NOON, at, order, received, send, values
from tests.support.eventually import eventually

# The queries that these tests look at take most of a minute.
pytestmark = pytest.mark.extended

EXAMPLES = Path(__file__).parents[2] / "examples"

ORDERS = "id BIGINT, user STRING, amount DOUBLE, ts TIMESTAMP"
PAYMENTS = "order_id BIGINT, paid DOUBLE, at TIMESTAMP"
USERS = "user STRING, city STRING"
# Orders of one minute, and payments that come after none, some, or too many minutes.
SOLD = [order(n, "ada", float(n), n) for n in range(60)]
PAID = [
    {"order_id": n, "paid": float(n), "at": at(n + n * 10).isoformat()}
    for n in range(0, 60, 2)  # Every other order is paid, each later than the one before.
]
# Moves both watermarks far ahead, so that unpaid orders are final.
LAST_ORDER = order(1000, "eve", 1.0, 7200)
LAST_PAYMENT = {"order_id": -1, "paid": 0.0, "at": at(7200).isoformat()}
WITHIN_S = 300


@dataclass
class Order:
    id: int
    user: str
    amount: float
    ts: datetime


@pytest.fixture(scope="module", autouse=True)
def lightly(spark):
    """Settings for few rows: Spark would spend most of its time compiling code."""
    name = "spark.sql.codegen.wholeStage"
    spark.conf.set(name, "false")
    yield
    spark.conf.unset(name)


@pytest.fixture(scope="module")
def joined(spark, broker, tmp_path_factory):
    """Orders joined to payments, and to a table of users."""
    folder = tmp_path_factory.mktemp("joins")
    app = st.App("joins", brokers=broker.bootstrap, state=folder / "state")
    for name in ("sold", "paid", "sold-users"):
        broker.create_topic(name)
    # The last rows are in a separate micro-batch.
    first = {"maxOffsetsPerTrigger": str(len(SOLD))}
    sold = app.topic("sold", ORDERS, time="ts", late="10 s", options=first)
    first = {"maxOffsetsPerTrigger": str(len(PAID))}
    paid = app.topic("paid", PAYMENTS, time="at", late="10 s", options=first)
    users = app.topic("sold-users", USERS, key="user")

    @app.query(to="joined-outer", key="id")
    def outer():
        orders, payments = sold.stream().alias("o"), paid.stream().alias("p")
        same = F.col("o.id") == F.col("p.order_id")
        in_time = st.within("5 minutes", "o.ts", "p.at")
        return orders.join(payments, same & in_time, "left_outer").select("id", "paid")

    @app.query(to=f"parquet:{folder}/cities", key="id")
    def cities():
        return sold.stream().join(users.table(), "user").select("id", "city")

    app.sql(
        "in_sql",
        "SELECT id, city FROM sold LEFT JOIN `sold-users` USING (user) WHERE id % 10 = 0",
        to="joined-sql",
    )
    send(broker, "sold", [*SOLD, LAST_ORDER, order(1001, "ada", 1.0, 7200)], key="user")
    send(broker, "paid", [*PAID, LAST_PAYMENT])
    send(broker, "sold-users", [{"user": "ada", "city": "Paris"}], key="user")
    send(broker, "sold-users", [{"user": "ada", "city": "London"}], key="user")
    send(broker, "sold-users", [{"user": "eve", "city": "Rome"}], key="user")
    send(broker, "sold-users", [("eve", None)])
    app.run(once=True)
    return folder


def test_rows_of_two_streams_meet_within_an_interval_or_are_told_alone(broker, joined):
    met = {row["order_id"] for row in PAID if row["order_id"] * 10 <= WITHIN_S}
    assert 2 < len(met) < len(PAID)
    found = received(broker, "joined-outer")
    assert all(key == str(row["id"]) for key, row in found)
    # The last orders may still be paid.
    assert Counter((row["id"], row["paid"]) for _, row in found) == Counter(
        (row["id"], float(row["id"]) if row["id"] in met else None) for row in SOLD
    )


def test_a_table_has_the_latest_of_each_key_until_it_is_deleted(spark, joined):
    found = tables.read(spark, f"parquet:{joined}/cities").collect()
    # Eve is deleted; ada was written twice, and the last record counts.
    expected = {row["id"]: "London" for row in SOLD} | {1001: "London"}
    assert Counter((row["id"], row["city"]) for row in found) == Counter(expected.items())


def test_a_topic_with_a_key_is_a_table_in_sql(broker, joined):
    found = [(row["id"], row["city"]) for row in values(broker, "joined-sql")]
    expected = [(row["id"], "London") for row in SOLD if row["id"] % 10 == 0]
    assert Counter(found) == Counter([*expected, (1000, None)])


@pytest.fixture
def live(spark, broker, tmp_path):
    """An app that runs until it is stopped, with a function that is slow for order 3."""
    broker.create_topic("live-users", partitions=2)
    broker.create_topic("live")
    app = st.App("live", brokers=broker.bootstrap, state=tmp_path / "state")
    orders = app.topic("live", ORDERS)
    users = app.topic("live-users", "city STRING")
    begun = tmp_path / "begun"

    @app.query(to="live-out", key="id", every="0 s")
    def out():
        def slowly(number):
            if number == 3:
                begun.touch()
                time.sleep(1)
            return number

        # The schema has no such column, so it is the record's key.
        rows = orders.stream().join(users.table("user"), "user")
        return rows.select(F.udf(slowly, "bigint")("id").alias("id"), "city")

    return app, begun


def test_a_running_query_sees_a_table_change_and_is_stopped_between_batches(broker, live):
    app, begun = live
    messages: list[str] = []
    send(broker, "live-users", [("ada", {"city": "Oslo"}), ("bob", {"city": "Kyiv"})])
    send(broker, "live", [order(1, "ada", 1.0, 0)])
    running = app.start(say=messages.append)
    try:
        assert messages == ["Created topic live-out."]
        eventually(lambda: values(broker, "live-out") == [{"id": 1, "city": "Oslo"}])
        send(broker, "live-users", [("ada", {"city": "Bergen"}), ("bob", None)])
        send(broker, "live", [order(2, "bob", 1.0, 0), order(3, "ada", 2.0, 0)])
        eventually(begun.exists)
        assert not running.wait(0)
    finally:
        running.stop()
    assert not running.is_active
    assert running.queries["out"].exception() is None
    # Bob is deleted from the table, and the current batch was finished.
    assert values(broker, "live-out")[1:] == [{"id": 3, "city": "Bergen"}]


def test_when_a_query_fails_all_stop_and_it_is_said_why(spark, broker, tmp_path, capsys):
    broker.create_topic("failing")
    app = st.App("failing", brokers=broker.bootstrap, state=tmp_path)
    orders = app.topic("failing", ORDERS)

    @app.query(to="print:")
    def fine():
        return orders.stream().select("id")

    @app.query(to="memory:wrong")
    def wrong():
        return orders.stream().select(F.udf(lambda amount: 1 / amount, "double")("amount"))

    send(broker, "failing", [order(1, "ada", 0.0, 0)])
    app.run(once=True, only=["fine"])
    assert capsys.readouterr().out == 'fine\t{"id":1}\n'
    running = app.start()
    with pytest.raises(st.StreamsError, match=r"Query wrong has failed: .*division by zero"):
        running.wait()
    assert not running.is_active


def test_what_an_app_reads_has_to_be_there(spark, broker, tmp_path):
    app = st.App("missing", brokers=broker.bootstrap, state=tmp_path)
    app.topic("nowhere", ORDERS)
    app.sql("all", "SELECT * FROM nowhere", to="memory:")
    with pytest.raises(st.StreamsError, match=r"reads nowhere, which .* does not have: create it"):
        app.run(once=True)


MISTAKES = {
    "no window without event time": (
        lambda app: app.topics["plain"].stream().groupBy(st.tumbling("1 minute")).count(),
        {},
        "tumbling needs an event time: declare the topic with time=",
    ),
    "append needs a watermark": (
        lambda app: app.topics["plain"].stream().groupBy("user").count(),
        {},
        'cannot run with mode="append"',
    ),
    "the key is a column": (
        lambda app: app.topics["plain"].stream(),
        {"key": "usr"},
        "no column of query q 'usr'.*Did you mean user",
    ),
    "the partition is a number": (
        lambda app: app.topics["plain"].stream(),
        {"partition": "user"},
        "names user, which is a string",
    ),
    "a query returns rows": (lambda _: None, {}, "returns NoneType"),
    "a query reads a stream": (
        lambda app: app.topics["plain"].table("user"),
        {},
        "Query q reads no stream",
    ),
    "columns have one name each": (
        lambda app: app.topics["plain"].stream().select("id", F.lit(1).alias("id")),
        {},
        "two columns named id",
    ),
    "columns exist": (
        lambda app: app.topics["plain"].stream().select("amuont"),
        {},
        "Query q: .*amuont",
    ),
    "an event time is a timestamp": (
        lambda app: app.topics["text-time"].stream(),
        {},
        "event time ts of topic text-time is a string",
    ),
    "an event time is a column": (
        lambda app: app.topics["no-time"].stream(),
        {},
        "no column for time= of topic no-time 'when'",
    ),
    "a schema can be read": (
        lambda app: app.topics["bad-schema"].stream(),
        {},
        "Query q: Topic bad-schema: The schema 'id BIGINTEGER' is invalid",
    ),
    "a table that changes has a key": (
        lambda app: app.topics["plain"].stream().groupBy("user").count(),
        {"to": "delta:somewhere", "mode": "update"},
        "needs a key",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda name: name.replace(" ", "-"))
def test_a_mistake_is_found_before_anything_runs(spark, mistake):
    build, declaration, words = MISTAKES[mistake]
    app = st.App("mistakes", brokers="nowhere:1")
    app.topic("plain", "id BIGINT, user STRING, ts TIMESTAMP")
    app.topic("text-time", "ts STRING", time="ts")
    app.topic("no-time", "ts TIMESTAMP", time="when")
    app.topic("bad-schema", "id BIGINTEGER")

    @app.query(**({"to": "out"} | declaration))
    def q():
        return build(app)

    with pytest.raises(st.StreamsError, match=words):
        app.plan()


def test_a_query_is_tried_on_dicts_without_brokers(spark):
    app = st.App("tried", brokers="nowhere:1")
    orders = app.topic("orders", Order, time="ts", on_error="skip")
    users = app.topic("users", "user STRING, city STRING", key="user")

    @app.query(to="out", key="city")
    def sums():
        rows = orders.stream().join(users.table(), "user")
        return rows.groupBy(st.tumbling("1 minute"), "city").agg(F.sum("amount").alias("total"))

    people = [
        {"user": "ada", "city": "Paris"},
        {"user": "ada", "city": "London"},
        {"user": "bob", "city": "Rome"},
        {"_key": "bob"},
    ]
    sold = [
        {"id": 1, "user": "ada", "amount": 2.0, "ts": NOON},
        {"id": 2, "user": "ada", "amount": 3.0, "ts": "2026-01-31T12:00:59"},
        {"id": 3, "user": "ada", "amount": 4.0, "ts": at(60)},
        {"id": 4, "user": "bob", "amount": 5.0, "ts": NOON},
        {"id": 5, "user": "ada", "ts": NOON},  # Without an amount it is not an order.
    ]
    found = app.test(sums, orders=sold, users=people)
    totals = sorted((row["window"]["start"], row["total"]) for row in found)
    assert totals == [(NOON, 5.0), (at(60), 4.0)]
    assert {row["city"] for row in found} == {"London"}
    with pytest.raises(st.StreamsError, match=r"has no rows for it: pass users=\[…\]"):
        app.test("sums", orders=sold)
    with pytest.raises(st.StreamsError, match="Row 0 of users has 'usr'"):
        app.test("sums", orders=[], users=[{"usr": "ada"}])


@pytest.fixture
def example(spark, monkeypatch, tmp_path):
    """The documentation's app, alone in a folder."""
    monkeypatch.chdir(tmp_path)
    module = ModuleType("shop_example")
    # Dataclasses are looked up in their module, and functions are pickled by value.
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec((EXAMPLES / "shop.py").read_text(), module.__dict__)
    return module


def test_the_example_of_the_documentation_passes_its_own_tests(example):
    example.test_orders_of_a_minute_add_up()
    example.test_an_order_has_the_city_where_its_user_lives_now()


def test_the_example_in_yaml_passes_its_own_tests(spark):
    app = st.App.load(EXAMPLES / "shop.yaml")
    assert [plan.query.name for plan in app.plan()] == ["per_minute", "by_city"]
    (check,) = app.tests.values()
    check()


def test_the_example_of_the_documentation_runs(spark, example, tmp_path):
    app = example.app
    with Cluster() as cluster:
        app.configure(brokers=cluster.bootstrap, state=tmp_path / "state")
        for topic in ("orders", "payments", "users"):
            cluster.create_topic(topic)
        send(cluster, "users", [{"user": "ada", "city": "London"}], key="user")
        send(cluster, "orders", [order(n, "ada", float(n), n) for n in range(5)] + [b"{"])
        payment = {"order_id": 3, "method": "card", "paid_at": at(4).isoformat()}
        send(
            cluster,
            "payments",
            [payment, payment | {"order_id": 4, "paid_at": at(900).isoformat()}],
        )
        app.run(once=True)
        assert [row["total"] for row in values(cluster, "revenue")] == [10.0]
        assert received(cluster, "paid-orders") == [
            ("3", {"id": 3, "user": "ada", "amount": 3.0, "method": "card"})
        ]
        found = tables.read(spark, f"parquet:{tmp_path}/tables/orders").collect()
        assert sorted((row["id"], row["city"]) for row in found) == [
            (n, "London") for n in range(5)
        ]


def test_a_declared_topic_is_written_in_its_schema_and_read_as_a_batch(spark, broker, tmp_path):
    broker.create_topic("plain-json")
    app = st.App("coding", brokers=broker.bootstrap, state=tmp_path)
    plain = app.topic("plain-json", "id BIGINT NOT NULL, user STRING")
    fields = [{"name": "id", "type": "long"}, {"name": "user", "type": ["null", "string"]}]
    coded = app.topic("coded-avro", avro({"type": "record", "name": "Order", "fields": fields}))

    @app.query(to=coded, key="user")
    def encode():
        return plain.stream()

    send(broker, "plain-json", [{"id": 1, "user": "ada"}, {"id": 2, "user": None}])
    app.run(once=True)
    found = [(row["id"], row["user"], row["_key"]) for row in coded.batch().collect()]
    assert sorted(found) == [(1, "ada", "ada"), (2, None, None)]
    assert coded.batch(end="2026-01-31T12:00:00").count() == 0
