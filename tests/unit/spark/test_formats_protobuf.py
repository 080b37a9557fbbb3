"""Protobuf without Spark: the types of a message in Spark, and values in whole batches."""

from __future__ import annotations

import datetime
import pickle
from decimal import Decimal
from typing import Any, cast

import pytest
from google.protobuf import descriptor_pb2 as described
from google.protobuf import duration_pb2, struct_pb2, timestamp_pb2, wrappers_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given
from hypothesis import strategies as st

from hightide.spark.formats import BadSchema, protobuf
from hightide.spark.formats.protobuf_format import ProtobufCodec

FIELD = described.FieldDescriptorProto
KNOWN = [timestamp_pb2, duration_pb2, wrappers_pb2, struct_pb2]


def field(name, number, kind, *, of=None, repeated=False, optional=False, message=None):
    made = FIELD(name=name, number=number, type=kind, label=3 if repeated else 1)
    if of:
        made.type_name = of
    if optional:
        made.proto3_optional = True
        made.oneof_index = len(message.oneof_decl)
        message.oneof_decl.add(name=f"_{name}")
    return made


def shop() -> bytes:
    """Return the file that protoc would make of a shop with orders."""
    file = described.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    file.dependency.extend(file.DESCRIPTOR.name for file in KNOWN)
    first = file.message_type.add(name="First")
    first.field.append(field("n", 1, FIELD.TYPE_INT32))
    order = file.message_type.add(name="Order")
    item = order.nested_type.add(name="Item")
    item.field.extend([field("sku", 1, FIELD.TYPE_STRING), field("n", 2, FIELD.TYPE_INT32)])
    entry = order.nested_type.add(name="StockEntry")
    entry.options.map_entry = True
    entry.field.append(field("key", 1, FIELD.TYPE_STRING))
    entry.field.append(field("value", 2, FIELD.TYPE_MESSAGE, of=".shop.Order.Item"))
    kind = file.enum_type.add(name="Kind")
    kind.value.add(name="NEW", number=0)
    kind.value.add(name="OLD", number=1)
    order.field.extend(
        [
            field("user", 1, FIELD.TYPE_STRING),
            field("amount", 2, FIELD.TYPE_DOUBLE),
            field("count", 3, FIELD.TYPE_INT64, optional=True, message=order),
            field("big", 4, FIELD.TYPE_UINT64),
            field("at", 5, FIELD.TYPE_MESSAGE, of=".google.protobuf.Timestamp"),
            field("took", 6, FIELD.TYPE_MESSAGE, of=".google.protobuf.Duration"),
            field("tags", 7, FIELD.TYPE_STRING, repeated=True),
            field("items", 8, FIELD.TYPE_MESSAGE, of=".shop.Order.Item", repeated=True),
            field("stock", 9, FIELD.TYPE_MESSAGE, of=".shop.Order.StockEntry", repeated=True),
            field("kind", 10, FIELD.TYPE_ENUM, of=".shop.Kind"),
            field("best", 11, FIELD.TYPE_MESSAGE, of=".shop.Order.Item"),
            field("note", 12, FIELD.TYPE_MESSAGE, of=".google.protobuf.StringValue"),
            field("more", 13, FIELD.TYPE_MESSAGE, of=".google.protobuf.Struct"),
            field("raw", 14, FIELD.TYPE_BYTES),
        ]
    )
    loop = file.message_type.add(name="Loop")
    loop.field.append(field("inner", 1, FIELD.TYPE_MESSAGE, of=".shop.Loop"))
    file.message_type.add(name="Empty")
    made = described.FileDescriptorSet()
    for known in KNOWN:
        known.DESCRIPTOR.CopyToProto(made.file.add())
    made.file.append(file)
    return made.SerializeToString()


SHOP = shop()
ROW = {
    "user": "ada",
    "amount": 1.5,
    "count": 0,
    "big": Decimal(2**64 - 1),
    "at": datetime.datetime(1969, 2, 3, 4, 5, 6, 789123, datetime.UTC),
    "took": datetime.timedelta(seconds=-1, microseconds=-500),
    "tags": ["a", "b"],
    "items": [{"sku": "x", "n": 1}, {"sku": "y", "n": -2}],
    "stock": {"k": {"sku": "z", "n": 3}},
    "kind": "OLD",
    "best": {"sku": "x", "n": 1},
    "note": "",
    "more": '{"a": 1.0}',
    "raw": b"\x00\xff",
}
BARE = {
    "user": "",
    "amount": 0.0,
    "count": None,
    "big": Decimal(0),
    "at": None,
    "took": None,
    "tags": [],
    "items": [],
    "stock": {},
    "kind": "NEW",
    "best": None,
    "note": None,
    "more": None,
    "raw": b"",
}


def codec(message="shop.Order", **settings) -> ProtobufCodec:
    return ProtobufCodec(cast(Any, protobuf(SHOP, message, **settings)))


def generated(message="shop.Order"):
    pool = DescriptorPool()
    for file in described.FileDescriptorSet.FromString(SHOP).file:
        pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName(message))


def rows(found) -> list:
    return found.to_pylist(maps_as_pydicts="strict")


def test_a_message_becomes_a_struct_with_spark_types() -> None:
    assert protobuf(SHOP, "shop.Order").type.simpleString() == (
        "struct<user:string,amount:double,count:bigint,big:decimal(20,0),at:timestamp,"
        "took:interval day to second,tags:array<string>,items:array<struct<sku:string,n:int>>,"
        "stock:map<string,struct<sku:string,n:int>>,kind:string,best:struct<sku:string,n:int>,"
        "note:string,more:string,raw:binary>"
    )


def test_every_type_survives_the_way_out_and_in() -> None:
    found, errors = codec().decode([codec().encode(ROW), None, codec().encode(ROW)])
    assert errors == [None] * 3
    assert rows(found) == [ROW, None, ROW]


def test_what_is_not_set_is_null_only_if_it_knows() -> None:
    found, errors = codec().decode([b"", codec().encode(ROW)])
    assert (rows(found), errors) == ([BARE, ROW], [None, None])
    assert codec().encode(BARE) == b""


def test_a_generated_class_is_a_schema_as_well(tmp_path) -> None:
    made = protobuf(generated())
    assert made.type == protobuf(SHOP, "shop.Order").type
    path = tmp_path / "shop.desc"
    path.write_bytes(SHOP)
    assert protobuf(path, "shop.Order").type == made.type
    found, _ = ProtobufCodec(cast(Any, made)).decode([generated()(user="bob").SerializeToString()])
    assert rows(found)[0]["user"] == "bob"


def test_bad_values_are_named_and_the_rest_is_read() -> None:
    good = codec().encode(ROW)
    found, errors = codec().decode([good, b"\xff", good[:-1], b"\0", good])
    assert [row is None for row in rows(found)] == [False, True, True, True, False]
    assert [error is None for error in errors] == [True, False, False, False, True]
    assert all("not a message shop.Order" in error for error in errors if error)


def test_a_moment_too_far_away_for_its_column_is_a_bad_record() -> None:
    good, far = codec().encode(ROW), generated()()
    far.at.seconds = 2**60
    found, errors = codec().decode([good, far.SerializeToString(), good])
    assert rows(found) == [ROW, None, ROW]
    assert "does not fit" in str(errors[1])


def test_an_enum_value_that_is_not_known_is_kept_as_its_number() -> None:
    value = generated()(kind=7).SerializeToString()
    found, _ = codec().decode([value])
    assert rows(found)[0]["kind"] == "7"
    assert codec().encode({**BARE, "kind": "7"}) == value


def test_the_prefix_with_message_indexes_is_understood_and_written() -> None:
    bare = codec("shop.First").encode({"n": 5})
    assert codec("shop.First", prefix_id=7).encode({"n": 5}) == b"\0\0\0\0\x07\0" + bare
    item = codec("shop.Order.Item", prefix_id=7)
    # The first nested message of the second message: two indexes, 1 and 0.
    assert item.encode({"n": 5})[:8] == b"\0\0\0\0\x07\x04\x02\x00"
    found, errors = item.decode([item.encode({"sku": "s", "n": 5})])
    assert (rows(found), errors) == ([{"sku": "s", "n": 5}], [None])


@given(st.lists(st.one_of(st.none(), st.binary(max_size=40)), max_size=8))
def test_no_bytes_make_the_decoder_fail(values) -> None:
    found, errors = codec().decode(values)
    assert len(found) == len(errors) == len(values)


@pytest.mark.parametrize(
    ("given", "message", "words"),
    [
        (SHOP, "shop.Loop", "itself"),
        (SHOP, "shop.Empty", "no fields"),
        (SHOP, "shop.Nothing", "shop.Nothing"),
        (SHOP, None, "name of the message"),
        (b"\xff\xff", "shop.Order", "not a set of Protobuf descriptors"),
        ("no/such.desc", "shop.Order", "No such file"),
        (dict, None, "not a generated message class"),
    ],
)
def test_a_schema_that_cannot_be_used_is_refused_in_words(given, message, words) -> None:
    with pytest.raises(BadSchema, match=words):
        protobuf(given, message)


def test_a_schema_travels() -> None:
    made = protobuf(SHOP, "shop.Order")
    assert pickle.loads(pickle.dumps(made)) == made
