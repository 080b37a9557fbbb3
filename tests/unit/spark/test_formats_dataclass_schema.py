"""A dataclass as a schema, without Spark."""

from __future__ import annotations

import datetime
import enum
import pickle
import uuid
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Annotated, Literal, Optional

import pytest
from pyspark.sql.types import ByteType, StructType

from hightide.spark.formats import BadSchema, OnError, schema_of
from hightide.spark.formats.dataclass_schema import ALLOWED, DEFAULT


class Currency(enum.Enum):
    EUR = "EUR"
    USD = "USD"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Shape(enum.Enum):
    ROUND = object()


@dataclass
class Address:
    city: str
    zip: str | None


@dataclass(frozen=True, slots=True)
class Order:
    user: str
    amount: float
    count: int
    paid: bool
    at: datetime.datetime
    day: datetime.date
    price: Annotated[Decimal, (12, 2)]
    exact: Decimal
    raw: bytes
    id: uuid.UUID
    to: Address
    back: Optional[Address]  # noqa: UP045
    tags: list[str]
    stock: dict[str, int | None]
    small: Annotated[int, ByteType()]
    kind: Literal["new", "old"]
    level: Level
    shape: Shape
    currency: Currency = Currency.EUR
    more: list[Address] = field(default_factory=lambda: [Address("Bern", None)])
    note: str | None = None


def fields(declared) -> dict:
    return {field.name: field for field in schema_of(declared).type.fields}


def test_every_type_has_one_in_spark() -> None:
    assert schema_of(Order).type.simpleString() == (
        "struct<user:string,amount:double,count:bigint,paid:boolean,at:timestamp,day:date,"
        "price:decimal(12,2),exact:decimal(38,18),raw:binary,id:string,"
        "to:struct<city:string,zip:string>,back:struct<city:string,zip:string>,"
        "tags:array<string>,stock:map<string,bigint>,small:tinyint,kind:string,level:bigint,"
        "shape:string,currency:string,more:array<struct<city:string,zip:string>>,note:string>"
    )


def test_a_field_is_required_unless_it_is_optional_or_has_a_default() -> None:
    optional = [name for name, field in fields(Order).items() if field.nullable]
    assert optional == ["back", "currency", "more", "note"]
    assert not fields(Order)["to"].dataType["city"].nullable
    assert fields(Order)["to"].dataType["zip"].nullable


def test_defaults_and_listed_values_are_kept_with_the_field() -> None:
    assert fields(Order)["currency"].metadata == {ALLOWED: ["EUR", "USD"], DEFAULT: '"EUR"'}
    assert fields(Order)["more"].metadata == {DEFAULT: '[{"city": "Bern", "zip": null}]'}
    assert fields(Order)["note"].metadata == {}
    assert fields(Order)["kind"].metadata == {ALLOWED: ["new", "old"]}
    assert fields(Order)["level"].metadata == {ALLOWED: [1, 2]}
    # Members with other values are written by name.
    assert fields(Order)["shape"].metadata == {ALLOWED: ["ROUND"]}


def test_a_schema_travels() -> None:
    assert pickle.loads(pickle.dumps(schema_of(Order))) == schema_of(Order)


def test_text_and_raw_have_one_column() -> None:
    assert schema_of("text").type.simpleString() == "struct<value:string>"
    assert schema_of("raw").type.simpleString() == "struct<value:binary>"
    assert schema_of(schema_of("raw")) == schema_of("raw")


@dataclass
class Loop:
    inner: Loop | None


@dataclass
class Mixed:
    it: int | str


@dataclass
class Odd:
    it: complex


@dataclass
class Keyed:
    it: dict[int, str]


@dataclass
class Empty:
    pass


@dataclass
class Lost:
    it: Nowhere  # type: ignore[name-defined]  # noqa: F821


@dataclass
class Listed:
    it: Literal["a", 1]


@dataclass
class Defaulted:
    it: list[str] = field(default_factory=lambda: [object()])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (Loop, "Loop contains itself"),
        (Mixed, r"Mixed\.it is a union of several types"),
        (Odd, r"Odd\.it has the type complex; expected str, int"),
        (Keyed, r"Keyed\.it: the keys of a dict"),
        (Empty, "Empty has no fields"),
        (Lost, "Lost has a type that cannot be found"),
        (Listed, "mixes types"),
        (Defaulted, "cannot be written as JSON"),
        (17, "17 is not a schema"),
        ("", "is not a schema"),
        (str, "is not a schema"),
    ],
)
def test_what_cannot_be_a_schema_is_refused_in_words(given, words) -> None:
    with pytest.raises(BadSchema, match=words):
        schema_of(given)


def test_a_struct_type_is_taken_as_it_is() -> None:
    given = StructType().add("n", "long", nullable=False)
    assert schema_of(given).type is given


def test_on_error_is_one_of_three() -> None:
    assert OnError.parse("fail") == OnError("fail")
    assert OnError.parse("skip") == OnError("skip")
    assert OnError.parse("dlq:bad.orders") == OnError("dlq", "bad.orders")
    for wrong in ("dlq", "dlq:", "stop", "skip:this", ""):
        with pytest.raises(BadSchema, match="fail, skip or dlq:TOPIC"):
            OnError.parse(wrong)
