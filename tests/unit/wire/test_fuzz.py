"""Any bytes for every decoder give a message or WireError, with bounded memory.

There are three kinds of bytes: random bytes, truncated valid messages, and mutated valid messages:
a byte changed, a length replaced by a hostile one, a part doubled or removed.
"""

import random
import struct
import tracemalloc
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hightide.wire.codec import OBJECT_BUDGET, decode, encode
from hightide.wire.errors import WireError
from hightide.wire.frame import decode_request_header, decode_response
from hightide.wire.messages import REQUESTS, RESPONSES
from hightide.wire.source import objects
from hightide.wire.types import Array, Field, Struct, Text, api_of
from tests.unit.wire.message_values import bare, carried, every_case, full

CASES = every_case()
HOSTILE = [struct.pack(">i", n) for n in (-(2**31), -2, -1, 0, 1, 2**16, 2**31 - 1)] + [
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\xff\xff",
    b"\x80\x80\x80\x80\x08",
    b"\x7f\xff",
    b"\xff\xff",
    b"\xff",
]
# No decoder may allocate more memory at once than this, for any declared length.
MOST_MEMORY_BYTES = 2_000_000
# The maximum memory for an object of the budget; for a message that is 16 MB.
MOST_OBJECT_BYTES = 16_000_000 // OBJECT_BUDGET
SMALL_BUDGET = OBJECT_BUDGET // 20


def survives(cls: type, data: bytes, version: int) -> bool:
    """Say whether the bytes are a message; any exception but WireError fails the test."""
    try:
        message = decode(cls, data, version)
    except WireError:
        return False
    # A decoded message can be encoded, but skipped tags are lost.
    assert decode(cls, encode(message, version), version) == message
    return True


def bent(data: bytes, luck: random.Random) -> bytes:
    """Return a message with one mutation."""
    at, to = sorted((luck.randrange(len(data) + 1), luck.randrange(len(data) + 1)))
    match luck.randrange(5):
        case 0:
            return data[:at] + bytes([luck.randrange(256)]) + data[at + 1 :]
        case 1:
            hostile = luck.choice(HOSTILE)
            return data[:at] + hostile + data[at + len(hostile) :]
        case 2:
            return data[:at] + luck.choice(HOSTILE) + data[at:]
        case 3:
            return data[:at] + data[to:]
        case _:
            return data[:to] + data[at:]


@pytest.mark.parametrize(("cls", "version"), CASES)
def test_bent_and_cut_messages_give_a_message_or_wire_error(cls: type, version: int) -> None:
    luck = random.Random(f"{cls.__name__} {version}")
    whole = encode(full(cls, version), version)
    assert survives(cls, whole, version)
    survives(cls, encode(bare(cls, version), version), version)
    tracemalloc.start()
    try:
        for to in {luck.randrange(len(whole) + 1) for _ in range(30)} - {len(whole)}:
            assert not survives(cls, whole[:to], version)
        for _ in range(60):
            survives(cls, bent(whole, luck), version)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MOST_MEMORY_BYTES


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    case=st.sampled_from([case.values for case in CASES]),
    data=st.binary(max_size=80) | st.lists(st.sampled_from(HOSTILE)).map(b"".join),
)
def test_random_bytes_give_a_message_or_wire_error(case: tuple[type, int], data: bytes) -> None:
    cls, version = case
    survives(cls, data, version)


@pytest.mark.parametrize("cut", range(12))
def test_every_decoder_refuses_what_is_cut_near_its_end(cut: int) -> None:
    for classes in (REQUESTS, RESPONSES):
        for cls in classes.values():
            version = api_of(cls).versions[1]
            data = encode(full(cls, version), version)
            if cut < len(data):
                assert not survives(cls, data[: len(data) - cut - 1], version)


@settings(max_examples=300, deadline=None)
@given(
    st.binary(max_size=60)
    | st.tuples(st.integers(0, 80), st.binary(max_size=40)).map(
        lambda pair: struct.pack(">hhi", pair[0], 9, 1) + pair[1]
    )
)
def test_any_bytes_are_a_request_header_or_wire_error(data: bytes) -> None:
    try:
        header, at = decode_request_header(memoryview(data))
    except WireError:
        return
    assert 8 <= at <= len(data)
    assert header.api_key == int.from_bytes(data[:2], "big", signed=True)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=40), st.sampled_from(sorted(RESPONSES)))
def test_any_bytes_are_an_answer_or_wire_error(data: bytes, key: int) -> None:
    cls: Any = RESPONSES[key]
    try:
        decode_response(cls, data, api_of(cls).versions[1])
    except WireError:
        return


def crowded(cls: type, version: int, array: Field, count: int) -> bytes:
    """Return a message whose array has many elements of minimum size."""
    assert isinstance(array.shape, Array)
    element: Any = "ab"
    if isinstance(array.shape.item, Struct):
        element = bare(array.shape.item.cls, version)
        for field in carried(type(element), version):
            if isinstance(field.shape, Text):
                setattr(element, field.name, "ab")
    message = bare(cls, version)
    setattr(message, array.name, [element] * count)
    return encode(message, version)


def peak_bytes(cls: type, data: bytes, version: int) -> tuple[bool, int]:
    """Return whether the bytes decode, and the peak memory without the frame."""
    tracemalloc.start()
    try:
        decode(cls, data, version, budget=SMALL_BUDGET)
    except WireError:
        return False, tracemalloc.get_traced_memory()[1]
    else:
        return True, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("key", [0, 1, 8, 19, 20, 32, 44])
def test_the_budget_of_objects_bounds_the_memory_of_a_message(key: int) -> None:
    cls = REQUESTS[key]
    version = api_of(cls).versions[1]
    array = next(field for field in carried(cls, version) if isinstance(field.shape, Array))
    assert isinstance(array.shape, Array)
    most = SMALL_BUDGET // objects(array.shape.item, version)
    fits, peak = peak_bytes(cls, crowded(cls, version, array, most), version)
    assert fits
    assert peak < SMALL_BUDGET * MOST_OBJECT_BYTES
    fits, peak = peak_bytes(cls, crowded(cls, version, array, most + 1), version)
    assert not fits
    assert peak < 100_000
