"""Avro without Spark: the types of a schema in Spark, and values in whole batches."""

from __future__ import annotations

import datetime
import io
import json
import pickle
import struct
import threading
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hightide.spark.formats import BadSchema, avro
from hightide.spark.formats.avro_format import AvroCodec
from hightide.spark.formats.confluent import Registry, RegistryUnreachable

ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "user", "type": "string"},
        {"name": "amount", "type": "double"},
        {"name": "count", "type": ["null", "long"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {
            "name": "price",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2},
        },
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "more", "type": {"type": "map", "values": "int"}},
        {
            "name": "to",
            "type": {
                "type": "record",
                "name": "Address",
                "fields": [{"name": "city", "type": "string"}, {"name": "zip", "type": "int"}],
            },
        },
        {"name": "back", "type": ["null", "Address"], "default": None},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["NEW", "OLD"]}},
        {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
    ],
}
ROW = {
    "user": "ada",
    "amount": 1.5,
    "count": None,
    "at": datetime.datetime(2024, 2, 3, 4, 5, 6, 789000, datetime.UTC),
    "day": datetime.date(2024, 2, 3),
    "price": Decimal("12.30"),
    "tags": ["a", "b"],
    "more": {"x": 1},
    "to": {"city": "Bern", "zip": 3000},
    "back": {"city": "Ulm", "zip": 1},
    "kind": "NEW",
    "id": "0b7a9c4e-9d6e-4f0c-8f7e-0a5b8c3d2e1f",
}


def codec(schema, **settings) -> AvroCodec:
    return AvroCodec(cast(Any, avro(schema, **settings)))


def written(schema, row) -> bytes:
    made = io.BytesIO()
    fastavro.schemaless_writer(made, fastavro.parse_schema(schema), row)
    return made.getvalue()


def rows(found) -> list:
    return found.to_pylist(maps_as_pydicts="strict")


def test_a_record_becomes_a_struct_with_spark_types() -> None:
    assert avro(ORDER).type.simpleString() == (
        "struct<user:string,amount:double,count:bigint,at:timestamp,day:date,price:decimal(10,2),"
        "tags:array<string>,more:map<string,int>,to:struct<city:string,zip:int>,"
        "back:struct<city:string,zip:int>,kind:string,id:string>"
    )
    nullable = [field.name for field in avro(ORDER).type.fields if field.nullable]
    assert nullable == ["count", "back"]


def test_a_schema_may_be_json_or_a_file(tmp_path) -> None:
    path = tmp_path / "order.avsc"
    path.write_text(json.dumps(ORDER))
    assert avro(str(path)).type == avro(path).type == avro(json.dumps(ORDER)).type


def test_every_type_survives_the_way_out_and_in() -> None:
    found, errors = codec(ORDER).decode([codec(ORDER).encode(ROW), None])
    assert errors == [None, None]
    assert rows(found) == [ROW, None]
    assert found.type.field("at").type.unit == "us"


def test_what_others_wrote_is_read() -> None:
    found, errors = codec(ORDER).decode([written(ORDER, ROW)])
    assert (rows(found), errors) == ([ROW], [None])


def test_bad_values_are_named_and_the_rest_is_read() -> None:
    good = written(ORDER, ROW)
    found, errors = codec(ORDER).decode([good, b"\xff", good + b"!", good[:-3], b"", good])
    assert [row is None for row in rows(found)] == [False, True, True, True, True, False]
    assert errors[0] is errors[5] is None
    assert "1 bytes are left over" in str(errors[2])
    assert all("does not fit the Avro schema" in str(errors[at]) for at in (1, 3, 4))


def test_a_number_too_big_for_its_column_is_a_bad_record() -> None:
    schema = {
        "type": "record",
        "name": "T",
        "fields": [
            {"name": "d", "type": {"type": "bytes", "logicalType": "decimal", "precision": 4}}
        ],
    }
    wide = json.loads(json.dumps(schema).replace("4}", "9}"))
    values: list[bytes | None] = [
        written(wide, {"d": Decimal(7)}),
        written(wide, {"d": Decimal(123456)}),
    ]
    found, errors = codec(schema).decode(values)
    assert rows(found) == [{"d": Decimal(7)}, None]
    assert "does not fit" in str(errors[1])


@given(st.lists(st.one_of(st.none(), st.binary(max_size=60)), max_size=8))
def test_no_bytes_make_the_decoder_fail(values) -> None:
    found, errors = codec(ORDER).decode(values)
    assert len(found) == len(errors) == len(values)


class TestPrefix:
    def test_is_understood_without_being_told(self) -> None:
        plain = written(ORDER, ROW)
        found, errors = codec(ORDER).decode([b"\0\0\0\0\x07" + plain, plain])
        assert errors == [None, None]
        assert rows(found) == [ROW, ROW]

    def test_is_not_seen_in_avro_that_begins_with_zero(self) -> None:
        schema = {
            "type": "record",
            "name": "N",
            "fields": [{"name": "n", "type": "long"}, {"name": "s", "type": "string"}],
        }
        row = {"n": 0, "s": "something"}
        found, errors = codec(schema).decode([written(schema, row)])
        assert (rows(found), errors) == ([row], [None])

    def test_can_be_wanted_or_not(self) -> None:
        plain = written(ORDER, ROW)
        _, errors = codec(ORDER, prefix="confluent").decode([plain, b"\0\0\0\0\x07" + plain])
        assert errors == ["the value has no prefix with a schema id", None]
        _, errors = codec(ORDER, prefix="none").decode([plain, b"\0\0\0\0\x07" + plain])
        assert errors[0] is None
        assert errors[1] is not None

    def test_is_written_if_there_is_an_id(self) -> None:
        made = codec(ORDER, prefix_id=258).encode(ROW)
        assert made == b"\0\0\0\1\2" + written(ORDER, ROW)


OLD = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "gone", "type": "int"},
        {"name": "n", "type": "int"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}
NEW = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "n", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "currency", "type": "string", "default": "EUR"},
    ],
}


@pytest.fixture
def registry():
    """A registry with the old schema as 1 and the new one as 2, which counts requests."""
    asked: list[str] = []

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            known = {
                "/schemas/ids/1": {"schema": json.dumps(OLD)},
                "/schemas/ids/2": {"schema": json.dumps(NEW)},
                "/subjects/orders-value/versions/latest": {"schema": json.dumps(NEW), "id": 2},
            }
            body = json.dumps(known.get(self.path, {"error_code": 40403})).encode()
            self.send_response(200 if self.path in known else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_) -> None:
            pass

    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    server.asked = asked
    server.url = f"http://127.0.0.1:{server.server_address[1]}"
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


class TestRegistry:
    AT = datetime.datetime(2024, 2, 3, 4, 5, 6, 789000, datetime.UTC)

    def test_leads_from_the_writers_schema_to_the_readers(self, registry) -> None:
        value = struct.pack(">bI", 0, 1) + written(OLD, {"gone": 1, "n": 7, "at": self.AT})
        found, errors = codec(NEW, registry=registry.url).decode([value] * 3)
        assert errors == [None] * 3
        # The unit of the timestamp has changed as well, and the instant has not.
        assert rows(found) == [{"n": 7, "at": self.AT, "currency": "EUR"}] * 3
        assert registry.asked == ["/schemas/ids/1"]

    def test_without_the_schema_makes_a_bad_record(self, registry) -> None:
        value = struct.pack(">bI", 0, 9) + written(NEW, {"n": 7, "at": self.AT, "currency": ""})
        _, errors = codec(NEW, registry=registry.url).decode([value])
        assert errors == ["the schema registry has no /schemas/ids/9"]

    def test_gives_the_schema_of_a_subject(self, registry) -> None:
        made: Any = avro(registry=registry.url, subject="orders-value")
        assert made.type.names == ["n", "at", "currency"]
        assert made.prefix_id == 2

    def test_that_is_away_is_no_fault_of_the_record(self, monkeypatch) -> None:
        monkeypatch.setattr("hightide.spark.formats.confluent.PAUSE_S", 0)
        away = codec(NEW, registry="http://user:secret@127.0.0.1:9")
        with pytest.raises(RegistryUnreachable, match=r"127\.0\.0\.1:9") as raised:
            away.decode([struct.pack(">bI", 0, 1) + b"x"])
        assert "secret" not in str(raised.value)

    def test_gets_user_and_password_from_the_address(self, registry) -> None:
        assert Registry(registry.url.replace("//", "//u:p@")).schema(2)["schema"]


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (
            {"type": "record", "name": "A", "fields": [{"name": "a", "type": ["null", "A"]}]},
            "itself",
        ),
        (
            {"type": "record", "name": "A", "fields": [{"name": "a", "type": ["int", "string"]}]},
            "union",
        ),
        ({"type": "record", "name": "A", "fields": [{"name": "a", "type": "Nothing"}]}, "Nothing"),
        ("{oops", "not JSON"),
        ("no/such.avsc", "No such file"),
        ({"type": "record", "name": "A"}, "fields"),
    ],
)
def test_a_schema_that_cannot_be_used_is_refused_in_words(schema, words) -> None:
    with pytest.raises(BadSchema, match=words):
        avro(schema)


def test_a_schema_that_is_no_record_has_one_column() -> None:
    assert avro("string").type.simpleString() == "struct<value:string>"
    found, errors = codec("string").decode([codec("string").encode({"value": "x"})])
    assert (rows(found), errors) == ([{"value": "x"}], [None])


def test_a_schema_travels() -> None:
    assert pickle.loads(pickle.dumps(avro(ORDER))) == avro(ORDER)
