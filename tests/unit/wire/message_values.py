"""Test values: messages of any declared class and version, generated from the declaration.

`drawn` returns a hypothesis strategy, `full` a message in which every field has a distinct value,
and `bare` a message with as little in it as its version allows. Where other libraries restrict a
field more than the wire does (error codes, times), the values obey the restriction, because the
same values must go through those libraries too.
"""

import itertools
import uuid
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from hypothesis import strategies as st

from hightide.wire.errors import ErrorCode
from hightide.wire.messages import REQUESTS, RESPONSES
from hightide.wire.types import (
    UUID_SHAPE,
    Array,
    Blob,
    Field,
    Fixed,
    Shape,
    Struct,
    Text,
    api_of,
    fields_of,
)

BITS = {"b": 8, "h": 16, "i": 32, "q": 64}
A_LONG_TIME_MS = 10**12


def every_message() -> Iterator[type]:
    for classes in (REQUESTS, RESPONSES):
        yield from classes.values()


def every_case() -> list[Any]:
    """Return every declared message in every version, as pytest parameters."""
    import pytest

    return [
        pytest.param(cls, version, id=f"{cls.__name__}-{version}")
        for cls in every_message()
        for version in versions_of(cls)
    ]


def versions_of(cls: type) -> range:
    low, high = api_of(cls).versions
    return range(low, high + 1)


def carried(cls: type, version: int) -> list[Field]:
    return [field for field in fields_of(cls) if field.spec.carried_by(version)]


# -- for hypothesis ------------------------------------------------------------------------


@cache
def drawn(cls: type, version: int) -> st.SearchStrategy[Any]:
    """Generate messages or parts of a class, with the fields of a version."""
    return st.builds(
        cls, **{field.name: _drawn_field(field, version) for field in carried(cls, version)}
    )


def _drawn_field(field: Field, version: int) -> st.SearchStrategy[Any]:
    if isinstance(field.shape, Struct) and field.spec.tag is not None:
        # A tagged struct with only defaults is decoded as None.
        default = field.shape.cls()
        values = drawn(field.shape.cls, version)
        return st.none() | values.map(lambda value: None if value == default else value)
    values = _drawn_shape(field.shape, field.name, version)
    return st.none() | values if field.nullable_in(version) else values


def _drawn_shape(shape: Shape, name: str, version: int) -> st.SearchStrategy[Any]:
    match shape:
        case Text():
            return st.text(max_size=5) | st.sampled_from(["", "x" * 126, "y" * 127, "é" * 100])
        case Blob():
            return st.binary(max_size=5) | st.sampled_from([b"", b"x" * 126, b"y" * 300])
        case Array(item=item):
            return st.lists(_drawn_shape(item, name, version), max_size=2)
        case Struct(cls=cls):
            return drawn(cls, version)
        case Fixed():
            return _drawn_fixed(shape, name)


def _drawn_fixed(shape: Fixed, name: str) -> st.SearchStrategy[Any]:
    if shape == UUID_SHAPE:
        return st.uuids() | st.just(uuid.UUID(int=0))
    if shape.code == "?":
        return st.booleans()
    if shape.code == "d":
        return st.floats(allow_nan=False, allow_infinity=False)
    if name.endswith("error_code"):
        return st.sampled_from([int(code) for code in ErrorCode])
    if shape.code == "q" and name.endswith("_ms"):
        return st.integers(0, A_LONG_TIME_MS)
    if shape.code in "HI":
        return st.integers(0, 2 ** (8 * shape.size) - 1)
    bits = BITS[shape.code]
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


# -- without hypothesis --------------------------------------------------------------------


def full(cls: type, version: int) -> Any:
    """Return a message in which every field has a distinct value, and every array two elements."""
    counter = itertools.count(1)
    return _made(cls, version, lambda field: _full_shape(field.shape, field.name, version, counter))


def bare(cls: type, version: int) -> Any:
    """Return a message with null, empty or default for every field."""

    def emptiest(field: Field) -> Any:
        if field.nullable_in(version):
            return None
        if field.spec.tag is not None:
            return field.default
        return {Text: "", Blob: b"", Array: []}.get(type(field.shape), _zero(field.shape))

    return _made(cls, version, emptiest)


def _made(cls: type, version: int, value: Callable[[Field], Any]) -> Any:
    return cls(**{field.name: value(field) for field in carried(cls, version)})


def _zero(shape: Shape) -> Any:
    if shape == UUID_SHAPE:
        return uuid.UUID(int=0)
    return False if isinstance(shape, Fixed) and shape.code == "?" else 0


def _full_shape(shape: Shape, name: str, version: int, counter: Iterator[int]) -> Any:
    n = next(counter)
    match shape:
        case Text():
            return f"{name} {n}"
        case Blob():
            return f"{name} {n}".encode()
        case Array(item=item):
            return [_full_shape(item, name, version, counter) for _ in range(2)]
        case Struct(cls=cls):
            return _made(
                cls, version, lambda field: _full_shape(field.shape, field.name, version, counter)
            )
        case Fixed():
            return _full_fixed(shape, name, n)


def _full_fixed(shape: Fixed, name: str, n: int) -> Any:
    if shape == UUID_SHAPE:
        return uuid.UUID(int=n)
    if name.endswith("error_code"):
        return n % 120
    if shape.code == "?":
        return n % 2 == 0
    return n % 127
