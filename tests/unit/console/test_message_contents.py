"""What the page of messages shows of bytes: pure parts, and the decoders of Avro and Protobuf."""

from __future__ import annotations

import io
import json
import struct
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import fastavro
import pytest
from google.protobuf import descriptor_pb2
from hypothesis import given
from hypothesis import strategies as st

from hightide.console.messages import copy_as, decoders, writing
from hightide.console.messages.batches import DamagedBatch, FoundRecord, records_of
from hightide.console.messages.copy_as import Reading
from hightide.console.messages.decoders import BadSchema, Registry
from hightide.console.messages.filter import Filter
from hightide.console.messages.positions import Position, first_offset, parse_at, parse_partitions
from hightide.console.messages.record_view import FORMATS, Shown, bytes_view, record_view
from hightide.wire.batch import Record, build
from hightide.wire.control import ControlType, Marker, build_marker

# -- views ---------------------------------------------------------------------------------


@given(st.binary(max_size=300), st.sampled_from(FORMATS), st.integers(0, 100))
def test_any_bytes_have_a_view_of_a_bounded_size(data: bytes, form: str, most: int) -> None:
    view = bytes_view(data, form, Shown(most_bytes=most))
    assert view["size"] == len(data)
    assert len(view["text"]) <= max(2 * most, most + 4)
    assert json.loads(json.dumps(view)) == view
    assert view["cut"] == (len(data) > most) or len(data) <= most


@given(st.text(max_size=50), st.integers(0, 60))
def test_a_cut_text_is_a_beginning_of_it(text: str, most: int) -> None:
    view = bytes_view(text.encode(), "auto", Shown(most_bytes=most))
    assert view["as"] in ("text", "json")
    assert text.startswith(view["text"])


def test_a_name_of_a_header_that_is_not_utf8_can_be_sent() -> None:
    name = b"\xff".decode("utf-8", "surrogateescape")
    view = record_view(0, FoundRecord(Record(0, 0, None, None, ((name, b""),)), "none", False, -1))
    assert view["headers"][0][0] == "�"
    json.dumps(view, ensure_ascii=False).encode()


def test_a_value_that_begins_like_json_is_json_only_if_it_is() -> None:
    assert bytes_view(b'{"a":1}', "auto", Shown())["as"] == "json"
    assert bytes_view(b'{"a":1', "auto", Shown())["as"] == "text"
    assert bytes_view(b"[" * 1500, "auto", Shown())["as"] == "text"
    assert bytes_view(b"17", "auto", Shown())["as"] == "text"
    assert bytes_view(b"17", "json", Shown())["as"] == "json"


# -- positions and filters -----------------------------------------------------------------


def test_a_position_stays_inside_of_the_partition() -> None:
    for position, wanted in (
        (Position("beginning"), 5),
        (Position("end"), 9),
        (Position("last", count=2), 7),
        (Position("last", count=50), 5),
        (Position("offset", offset=3), 5),
        (Position("offset", offset=30), 9),
        (Position("at", at={0: 6}), 6),
        (Position("at", at={1: 6}), 9),
        (Position("time"), 9),
    ):
        assert first_offset(position, 0, 5, 9, None) == wanted
    assert first_offset(Position("time"), 0, 5, 9, 8) == 8


@pytest.mark.parametrize("text", ["x", "1", "1:", ":1", "1:-1", "1:2:3"])
def test_a_wrong_place_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="partition:offset"):
        parse_at(text)


def test_partitions_are_numbers_with_commas() -> None:
    assert parse_partitions(" 3, 1,3 ") == [1, 3]
    assert parse_partitions("") == []
    with pytest.raises(ValueError, match="numbers"):
        parse_partitions("-1")


@given(st.binary(max_size=20), st.text(min_size=1, max_size=3), st.booleans())
def test_a_filter_accepts_any_bytes(data: bytes, text: str, match_case: bool) -> None:
    wanted = Filter(text, ("value",), match_case)
    record = Record(0, 0, None, data)
    if text.encode("utf-8", "replace") in data and match_case:
        assert wanted.accepts(record)
    wanted.accepts(record)


# -- batches -------------------------------------------------------------------------------


def batch_of(offset: int, value: bytes, producer: int = -1) -> bytes:
    data = build(
        [Record(offset, 0, None, value)],
        base_offset=offset,
        producer_id=producer,
        producer_epoch=0,
        base_sequence=0,
        transactional=producer >= 0,
    )
    return bytes(data)


def marker_of(offset: int, producer: int, kind: ControlType) -> bytes:
    marker = build_marker(
        Marker(kind, 0), offset=offset, timestamp=0, producer_id=producer, producer_epoch=0
    )
    return bytes(marker)


def found(data: bytes, aborted: list[tuple[int, int]], begin: int = 0, end: int = 99) -> list[int]:
    return [
        one.record.offset
        for one in records_of(memoryview(data), aborted, begin, end)
        if isinstance(one, FoundRecord)
    ]


def test_only_the_aborted_part_of_a_producer_is_hidden() -> None:
    data = (
        batch_of(0, b"a", 7)
        + batch_of(1, b"b", 8)
        + batch_of(2, b"plain")
        + marker_of(3, 7, ControlType.ABORT)
        + batch_of(4, b"again", 7)
        + marker_of(5, 8, ControlType.COMMIT)
        + marker_of(6, 7, ControlType.COMMIT)
        + batch_of(7, b"c", 7)
        + marker_of(8, 7, ControlType.ABORT)
    )
    assert found(data, [(7, 0), (7, 7)]) == [1, 2, 4]
    assert found(data, []) == [0, 1, 2, 4, 7]
    assert found(data, [(7, 0)], begin=2, end=7) == [2, 4]


def test_a_damaged_batch_is_named_and_the_next_is_read() -> None:
    broken = bytearray(batch_of(0, b"value"))
    broken[70] ^= 0xFF
    first, second = records_of(memoryview(bytes(broken) + batch_of(1, b"next")), [], 0, 9)
    assert isinstance(first, DamagedBatch)
    assert (first.first_offset, first.last_offset) == (0, 0)
    assert isinstance(second, FoundRecord)


# -- Avro ----------------------------------------------------------------------------------

PERSON = {
    "type": "record",
    "name": "Person",
    "fields": [
        {"name": "name", "type": "string"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "raw", "type": "bytes"},
        {"name": "x", "type": "double"},
    ],
}
ADA = {"name": "Ada", "at": 1_700_000_000_000, "raw": b"\xff", "x": float("nan")}
SHOWN_ADA = {"name": "Ada", "at": "2023-11-14T22:13:20+00:00", "raw": "ff", "x": "nan"}


def avro_of(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, value)
    return out.getvalue()


def test_avro_is_decoded_with_a_given_schema() -> None:
    decode = decoders.avro_decoder(json.dumps(PERSON), None)
    assert decode(avro_of(PERSON, ADA)) == SHOWN_ADA
    assert decode(struct.pack(">bI", 0, 5) + avro_of(PERSON, ADA)) == SHOWN_ADA
    shown = Shown(decoders={"avro": decode})
    assert json.loads(bytes_view(avro_of(PERSON, ADA), "avro", shown)["text"]) == SHOWN_ADA
    view = bytes_view(b"\xff\xff", "avro", shown)
    assert view["as"] == "hex"
    assert "do not fit" in view["problem"]
    with pytest.raises(ValueError, match="left over"):
        decode(avro_of(PERSON, ADA) + b"x")


@pytest.mark.parametrize("text", ["{", '"unknown"', '{"type": "record"}', "[]x"])
def test_a_wrong_avro_schema_is_refused_in_words(text: str) -> None:
    with pytest.raises(BadSchema, match="Avro schema"):
        decoders.avro_decoder(text, None)


def test_without_fastavro_the_page_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoders, "has_avro", lambda: False)
    with pytest.raises(BadSchema, match="pip install fastavro"):
        decoders.avro_decoder('"string"', None)


class Schemas(BaseHTTPRequestHandler):
    """A schema registry with three schemas; counts the requests."""

    asked: list[tuple[str, str | None]]

    def do_GET(self) -> None:
        self.asked.append((self.path, self.headers["Authorization"]))
        known: dict[str, dict[str, Any]] = {
            "/schemas/ids/1": {"schema": json.dumps(PERSON)},
            "/schemas/ids/2": {
                "schema": '{"type": "array", "items": "Person"}',
                "references": [{"name": "Person", "subject": "a/b", "version": 3}],
            },
            "/subjects/a%2Fb/versions/3": {"schema": json.dumps(PERSON)},
            "/schemas/ids/3": {"schema": "syntax", "schemaType": "PROTOBUF"},
        }
        text = json.dumps(known.get(self.path, {})).encode()
        self.send_response(200 if self.path in known else 404)
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def registry() -> Iterator[Registry]:
    Schemas.asked = []
    server = HTTPServer(("127.0.0.1", 0), Schemas)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield Registry(f"http://me:s%40cret@127.0.0.1:{server.server_port}/")
    server.shutdown()
    thread.join()
    server.server_close()


def prefixed(schema_id: int, data: bytes) -> bytes:
    return struct.pack(">bI", 0, schema_id) + data


def test_avro_is_decoded_with_the_schema_of_its_id(registry: Registry) -> None:
    decode = decoders.avro_decoder(None, registry)
    assert decode(prefixed(1, avro_of(PERSON, ADA))) == SHOWN_ADA
    assert decode(prefixed(1, avro_of(PERSON, ADA))) == SHOWN_ADA
    many = avro_of({"type": "array", "items": PERSON}, [ADA])
    assert decode(prefixed(2, many)) == [SHOWN_ADA]
    assert [path for path, _ in Schemas.asked].count("/schemas/ids/1") == 1
    assert Schemas.asked[0][1] == "Basic bWU6c0BjcmV0"
    assert "cret" not in registry.address


def test_a_schema_that_is_not_there_is_asked_for_once(registry: Registry) -> None:
    decode = decoders.avro_decoder(None, registry)
    for _ in range(3):
        with pytest.raises(ValueError, match="no /schemas/ids/9"):
            decode(prefixed(9, b""))
    assert len(Schemas.asked) == 1
    registry.forget_failures()
    with pytest.raises(ValueError, match="no /schemas/ids/9"):
        decode(prefixed(9, b""))
    assert len(Schemas.asked) == 2
    with pytest.raises(ValueError, match="PROTOBUF"):
        decode(prefixed(3, b""))
    with pytest.raises(ValueError, match="id of a schema"):
        decode(b"plain")


def test_a_registry_that_is_away_is_named_without_its_password() -> None:
    decode = decoders.avro_decoder(None, Registry("http://me:secret@127.0.0.1:1"))
    with pytest.raises(ValueError, match="cannot be read") as caught:
        decode(prefixed(1, b""))
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("url", ["", "host", "ftp://host", "http://", "http://h:x", "file:///etc"])
def test_a_wrong_registry_is_refused(url: str) -> None:
    with pytest.raises(BadSchema, match="http"):
        Registry(url)


# -- Protobuf ------------------------------------------------------------------------------


def descriptors() -> bytes:
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    order = file.message_type.add(name="Order")
    kind = descriptor_pb2.FieldDescriptorProto
    order.field.add(name="user_name", number=1, type=kind.TYPE_STRING, label=kind.LABEL_OPTIONAL)
    order.field.add(name="total", number=2, type=kind.TYPE_INT64, label=kind.LABEL_OPTIONAL)
    return descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()


def test_protobuf_is_decoded_with_descriptors() -> None:
    for message in ("shop.Order", ""):
        decode = decoders.protobuf_decoder(descriptors(), message)
        assert decode(b"\n\x03Ada\x10\x2a") == {"user_name": "Ada", "total": "42"}
        assert decode(prefixed(7, b"\x00") + b"\n\x03Ada") == {"user_name": "Ada"}
        with pytest.raises(ValueError, match="not a message"):
            decode(b"\xff\xff\xff")
        with pytest.raises(ValueError, match="incomplete"):
            decode(prefixed(7, b"\xff"))


@pytest.mark.parametrize(
    ("data", "message", "word"),
    [
        (b"\xff", "x", "descriptors"),
        (descriptors(), "shop.Missing", "no message"),
        (b"", "", "none"),
    ],
)
def test_wrong_descriptors_are_refused_in_words(data: bytes, message: str, word: str) -> None:
    with pytest.raises(BadSchema, match=word):
        decoders.protobuf_decoder(data, message)


# -- writing and copying -------------------------------------------------------------------


def test_runs_are_found_and_joined_over_small_gaps() -> None:
    assert list(writing.runs([1, 2, 3, 7, 9, 10])) == [(1, 3), (7, 1), (9, 2)]
    assert list(writing.joined_runs([1, 2, 50, 9000])) == [(1, 50), (9000, 1)]


def test_a_program_quotes_what_it_is_given() -> None:
    reading = Reading("to'pic", Position("offset", offset=3), (1,), 5)
    for program in (copy_as.as_python("h:1", reading), copy_as.as_kafka_python("h:1,g:2", reading)):
        compile(program, "program", "exec")
        assert '"to\'pic"' in program


@pytest.mark.parametrize("start", ["beginning", "end", "last", "time", "offset", "at"])
def test_every_position_is_a_program(start: Any) -> None:
    reading = Reading("t", Position(start, at={0: 3}), (), None, follow=True, read_committed=False)
    compile(copy_as.as_python("h:1", reading), "program", "exec")
    compile(copy_as.as_kafka_python("h:1", reading), "program", "exec")
    line = copy_as.as_command("h:1", reading)
    assert "-X isolation.level=read_uncommitted" in line
    assert ("--follow" in line) == (start != "end")
