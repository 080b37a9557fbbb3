"""Values of topics as columns and back, in a real session; dead letters through a real broker."""

from __future__ import annotations

import datetime
import enum
import importlib.util
import io
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Literal

import fastavro
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from hightide.spark.formats import (
    BadSchema,
    avro,
    bad_rows,
    decoded,
    encoded,
    json,
    protobuf,
    schema_of,
)
from hightide.spark.sink import exactly_once

pytestmark = pytest.mark.extended

RAW = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp,"
    " timestampType int, headers array<struct<key:string,value:binary>>"
)
AT = datetime.datetime(2024, 2, 3, 4, 5, 6, 789000, datetime.UTC)


class Currency(enum.Enum):
    EUR = "EUR"
    USD = "USD"


@dataclass
class Item:
    sku: str
    count: int = 1


@dataclass
class Address:
    city: str
    zip: str | None


@dataclass
class Order:
    user: str
    amount: float
    to: Address | None
    items: list[Item] = field(default_factory=list)
    currency: Currency = Currency.EUR
    kind: Literal["new", "old"] | None = None
    at: datetime.datetime | None = None


def raw(spark, *values):
    """Return records as a source does, each with its number as the key."""
    rows = [
        (b"%d" % at, value, "orders", 0, at, AT, 0, [("h", b"%d" % at)])
        for at, value in enumerate(values)
    ]
    return spark.createDataFrame(rows, RAW)


def reasons(bad) -> list[str]:
    return [
        {header.key: bytes(header.value).decode() for header in row.headers}["hightide.error"]
        for row in bad.collect()
    ]


class TestJson:
    BAD = (
        (b"nope", "the value is not a JSON object: nope"),
        (b"", "the value is not a JSON object: "),
        (b"null", "the value is not a JSON object: null"),
        (b'{"user":"u"', 'the value is not a JSON object: {"user":"u"'),
        (b'[{"user":"u","amount":1}]', 'the value is not a JSON object: [{"user":"u","amount":1}]'),
        (b'{"user":"\xff","amount":1}', "the value is not UTF-8"),
        (b'{"user":"u"}', "amount is missing"),
        (b'{"user":null}', "user is missing; amount is missing"),
        (b'{"user":"u","amount":"x"}', "amount should be double, but is x"),
        (b'{"user":"u","amount":1,"at":"now"}', "at should be timestamp, but is now"),
        (
            b'{"user":"u","amount":1}\n{"user":"v","amount":2}',
            'there is more than one JSON object: {"user":"u","amount":1} {"user":"v","amount":2}',
        ),
        (b'{"a":1} b', 'there is more than one JSON object: {"a":1} b'),
        (b'{"user":"u","amount":1,"currency":"X"}', "currency should be one of EUR, USD, but is X"),
        (b'{"user":"u","amount":1,"kind":"mid"}', "kind should be one of new, old, but is mid"),
        (b'{"user":"u","amount":1,"to":{"zip":"1"}}', "to.city is missing"),
        (b'{"user":"u","amount":1,"items":[{"sku":"a"},{"count":2}]}', "items[].sku is missing"),
        (
            b'{"user":"u","amount":1,"items":[{"sku":"a","count":"b"}]}',
            "a nested value does not have the type of the schema:"
            ' {"user":"u","amount":1,"items":[{"sku":"a","count":"b"}]}',
        ),
    )

    def test_that_fits_becomes_columns_with_defaults_filled_in(self, spark) -> None:
        frame = raw(
            spark,
            b'{"user":"a {x}{y}","amount":1,"extra":[1]}',
            b'\0\0\0\0\x07 {"user":"b","amount":2.5,"items":[{"sku":"s"},{"sku":"t","count":7}],'
            b'"to":{"city":"Ulm","zip":null},"currency":"USD","kind":"old",'
            b'"at":"2024-02-03T04:05:06.789Z"} \n',
            None,
        )
        good, bad = decoded(frame, schema_of(Order))
        assert bad is None
        first, second = good.orderBy("_meta.offset").collect()
        assert first.user == "a {x}{y}"
        assert (first.to, first.items, first.currency, first.kind) == (None, [], "EUR", None)
        assert [tuple(item) for item in second["items"]] == [("s", 1), ("t", 7)]
        assert (tuple(second.to), second.currency, second.kind) == (("Ulm", None), "USD", "old")
        assert second.at.astimezone(datetime.UTC) == AT
        assert (second._key, second._meta.topic, second._meta.offset) == ("1", "orders", 1)
        assert [tuple(header) for header in second._meta.headers] == [("h", b"1")]

    def test_that_does_not_fit_is_told_in_words(self, spark) -> None:
        frame = raw(spark, *(value for value, _ in self.BAD), b'{"user":"u","amount":1}', None)
        bad = bad_rows(frame, schema_of(Order), to="dead")
        assert reasons(bad) == [words for _, words in self.BAD]
        good, _ = decoded(frame, schema_of(Order), on_error="skip")
        assert [row.user for row in good.collect()] == ["u"]

    def test_that_does_not_fit_can_stop_the_query(self, spark) -> None:
        good, _ = decoded(raw(spark, b'{"user":"u","amount":1}', b"{}"), schema_of(Order))
        with pytest.raises(Exception, match=r"offset 1 of orders-0 .* as json: user is missing"):
            good.select("_key").collect()

    def test_without_a_value_can_be_kept_as_a_deletion(self, spark) -> None:
        good, _ = decoded(raw(spark, None), schema_of(Order), tombstones="keep", key="binary")
        (row,) = good.collect()
        assert (row.user, row["items"], row._key) == (None, None, b"0")

    def test_may_be_declared_by_ddl(self, spark) -> None:
        schema = json("user STRING NOT NULL, d DATE", dateFormat="dd.MM.yyyy")
        good, bad = decoded(
            raw(spark, b'{"user":"u","d":"03.02.2024"}', b'{"d":null}'), schema, on_error="dlq:x"
        )
        assert good.first().d == datetime.date(2024, 2, 3)
        assert reasons(bad) == ["user is missing"]
        # Batches are written in threads in which no session is active.
        with ThreadPoolExecutor(1) as elsewhere:
            assert elsewhere.submit(lambda: schema_of("n INT").type).result().names == ["n"]
        with pytest.raises(BadSchema, match="'user STRUNG' is invalid"):
            assert schema_of("user STRUNG").type

    def test_is_parsed_once_whatever_is_filtered(self, spark) -> None:
        good, _ = decoded(raw(spark, b"{}"), schema_of(Order), on_error="skip")
        plan = good.where("amount > 1")._jdf.queryExecution().executedPlan().toString()
        assert plan.count("from_json(StructField(user") == 1


class TestEncoded:
    def test_rows_are_json_with_their_key_unless_something_else_is_said(self, spark) -> None:
        rows = spark.createDataFrame(
            [("u", 1, AT, "k", None)], "user string, n int, at timestamp, _key string, _meta string"
        )
        (made,) = encoded(rows).collect()
        assert bytes(made.value) == b'{"user":"u","n":1,"at":"2024-02-03T04:05:06.789000Z"}'
        assert bytes(made.key) == b"k"
        assert bytes(encoded(rows, key="n").first().key) == b"1"
        assert bytes(encoded(rows, key=["user", "n"]).first().key) == b'{"user":"u","n":1}'
        assert bytes(encoded(rows, key=rows.n + 1).first().key) == b"2"
        with pytest.raises(BadSchema, match="key column who is missing; the columns are user, n"):
            encoded(rows, key="who")

    def test_headers_topic_and_partition_come_from_columns(self, spark) -> None:
        rows = spark.sql("SELECT 'x' value, array(struct('h' key, 'v' value)) _headers, 't' _topic")
        (made,) = encoded(rows, schema_of("text")).collect()
        assert made.asDict(recursive=True) == {
            "value": b"x",
            "headers": [{"key": "h", "value": b"v"}],
            "topic": "t",
        }


PRICE = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "user", "type": "string"},
        {"name": "n", "type": ["null", "long"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "price", "type": PRICE},
        {"name": "tags", "type": {"type": "map", "values": {"type": "array", "items": "int"}}},
    ],
}
ROW = {"user": "u", "n": 7, "at": AT, "price": Decimal("1.50"), "tags": {"a": [1, 2]}}


def as_avro(row) -> bytes:
    made = io.BytesIO()
    fastavro.schemaless_writer(made, fastavro.parse_schema(AVRO), row)
    return made.getvalue()


class TestAvro:
    def test_values_become_columns_and_bad_ones_dead_letters(self, spark) -> None:
        value = as_avro(ROW)
        frame = raw(spark, value, b"\0\0\0\0\x07" + value, b"oops", None)
        # Timestamps are instants, independent of the session's time zone.
        spark.conf.set("spark.sql.session.timeZone", "America/New_York")
        try:
            good, bad = decoded(frame, avro(AVRO), on_error="dlq:dead", app="shop", query="q")
            found = good.selectExpr("*", "unix_millis(at) ms").collect()
        finally:
            spark.conf.set("spark.sql.session.timeZone", "UTC")
        assert [(row.user, row.n, row.price, row.tags) for row in found] == [
            ("u", 7, Decimal("1.50"), {"a": [1, 2]})
        ] * 2
        assert [row.ms for row in found] == [AT.timestamp() * 1000] * 2
        (letter,) = bad.collect()
        assert (letter.topic, letter.key, letter.value) == ("dead", b"2", b"oops")
        answer = {header.key: bytes(header.value).decode() for header in letter.headers}
        assert answer.pop("hightide.error").startswith("the value does not fit the Avro schema")
        assert answer == {
            "h": "2",
            "hightide.source.topic": "orders",
            "hightide.source.partition": "0",
            "hightide.source.offset": "2",
            "hightide.source.timestamp": str(int(AT.timestamp() * 1000)),
            "hightide.app": "shop",
            "hightide.query": "q",
        }

    def test_rows_are_written_with_the_schema(self, spark) -> None:
        good, _ = decoded(raw(spark, as_avro(ROW)), avro(AVRO))
        made = encoded(good, avro(AVRO, prefix_id=7), key="user").first()
        assert bytes(made.value) == b"\0\0\0\0\x07" + as_avro(ROW)
        with pytest.raises(BadSchema, match="needs the column user"):
            encoded(good.drop("user"), avro(AVRO))

    def test_is_decoded_once_whatever_is_filtered(self, spark) -> None:
        good, _ = decoded(raw(spark, b"{}"), avro(AVRO), on_error="skip")
        plan = good.where("n > 1")._jdf.queryExecution().executedPlan().toString()
        assert plan.count("ArrowEvalPython") == 1


@pytest.fixture(scope="module")
def shop():
    """The descriptors and rows of the tests without Spark."""
    path = Path(__file__).parents[1] / "unit" / "spark" / "test_formats_protobuf.py"
    spec = importlib.util.spec_from_file_location("formats_protobuf", path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class TestProtobuf:
    def test_values_become_columns_and_columns_values(self, spark, shop) -> None:
        schema = protobuf(shop.SHOP, "shop.Order", prefix_id=7)
        value = shop.codec(prefix_id=7).encode(shop.ROW)
        good, bad = decoded(raw(spark, value, b"\xff", b""), schema, on_error="dlq:dead")
        first, second = good.drop("_key", "_meta").collect()
        assert first.asDict(recursive=True) | {"at": None} == shop.ROW | {"at": None}
        assert second.asDict(recursive=True) == shop.BARE
        assert "not a message shop.Order" in reasons(bad)[0]
        made = encoded(good.where("user = 'ada'"), schema).first()
        assert shop.rows(shop.codec().decode([bytes(made.value)])[0]) == [shop.ROW]


def records(cluster, topic, count):
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "any"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = []
    while len(found) < count:
        message = consumer.poll(30)
        assert message is not None, f"{len(found)} of {count} records"
        found.append(message)
    consumer.close()
    return found


def test_a_stream_of_dead_letters_reaches_its_topic_with_the_record_as_it_was(
    spark, broker, checkpoint
) -> None:
    topic = broker.create_topic("formats-orders")
    dead = broker.create_topic("formats-dead")
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    now_ms = int(time.time() * 1000)
    values = [as_avro(ROW), b"oops", as_avro(ROW), None, b"\xff\xff"]
    for at, value in enumerate(values):
        producer.produce(topic, value, f"k{at}", headers=[("h", b"1")], timestamp=now_ms + at)
    assert producer.flush(30) == 0
    stream = (
        spark.readStream.format("hightide")
        .option("kafka.bootstrap.servers", broker.bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("includeHeaders", "true")
        .load()
    )
    good, bad = decoded(stream, avro(AVRO), on_error=f"dlq:{dead}", app="shop", query="q")
    write = exactly_once(name="formats-dead", bootstrap=broker.bootstrap)
    for frame, output in ((good, None), (bad, write)):
        writer = frame.writeStream.trigger(availableNow=True)
        if output is None:
            writer = writer.format("memory").queryName("formats_good")
        else:
            writer = writer.foreachBatch(output)
        query = writer.option("checkpointLocation", f"{checkpoint}-{output is None}").start()
        assert query.awaitTermination(120)
    assert [row.user for row in spark.table("formats_good").collect()] == ["u", "u"]
    letters = records(broker, dead, 2)
    assert [(letter.key(), letter.value()) for letter in letters] == [
        (b"k1", b"oops"),
        (b"k4", b"\xff\xff"),
    ]
    headers = dict(letters[0].headers())
    assert headers["h"] == b"1"
    assert headers["hightide.source.offset"] == b"1"
    assert headers["hightide.source.timestamp"] == b"%d" % (now_ms + 1)
