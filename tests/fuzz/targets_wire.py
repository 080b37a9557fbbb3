"""Fuzz targets: requests, responses and their headers, as brokers and clients decode them."""

from __future__ import annotations

import contextlib
import math
import struct
from collections.abc import Iterator
from dataclasses import is_dataclass
from typing import Any

from hightide.wire.codec import OBJECT_BUDGET, decode, encode
from hightide.wire.errors import WireError
from hightide.wire.frame import decode_request_header, decode_response, encode_request
from hightide.wire.hot import fetch_codec, produce_codec, replica_fetch_codec
from hightide.wire.hot.read_cursor import body_at
from hightide.wire.messages import REQUESTS, RESPONSES
from hightide.wire.messages.fetch import FetchRequest, FetchResponse
from hightide.wire.messages.produce import ProduceRequest
from hightide.wire.types import Struct, api_of, fields_of
from tests.unit.wire.message_values import bare, full, versions_of
from tests.unit.wire.test_hot import in_a_buffer, plain_fetch, plain_hot_produce, plain_produce

KEYS = sorted(REQUESTS)
# What the hot codecs do not check: they leave names as bytes, skip the content of tags, and take a
# null rack for no rack.
UNCHECKED_BY_HOT = ("UTF-8", "tag", "cluster_id", "rack_id is null")


def chosen(data: bytes, classes: Any) -> tuple[type[Any], int, bytes]:
    """Return a message class and a version, by the first two bytes, and the rest of the bytes."""
    cls = classes[KEYS[data[0] % len(KEYS)]]
    versions = versions_of(cls)
    return cls, versions[data[1] % len(versions)], data[2:]


def is_same(left: Any, right: Any) -> bool:
    """Compare two decoded values. NaN is NaN, and a tagged struct of defaults is not sent."""
    if isinstance(left, float) and isinstance(right, float):
        return left == right or (math.isnan(left) and math.isnan(right))
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(is_same, left, right))
    if type(left) is not type(right) or not is_dataclass(left):
        return bool(left == right)
    cls: Any = type(left)
    for field in fields_of(cls):
        one, other = getattr(left, field.name), getattr(right, field.name)
        if isinstance(field.shape, Struct) and field.spec.tag is not None:
            one, other = (value or field.shape.cls() for value in (one, other))
        if not is_same(one, other):
            return False
    return True


def decode_and_encode(cls: type[Any], body: bytes, version: int) -> None:
    """Decode as a broker does. A decoded message can be encoded, and decodes to the same."""
    try:
        message = decode(cls, body, version, exact=False, budget=OBJECT_BUDGET)
    except WireError:
        return
    encoded = encode(message, version)
    again = decode(cls, encoded, version)
    assert is_same(again, message), (again, message)
    assert encode(again, version) == encoded


def _seeds(classes: Any) -> Iterator[bytes]:
    for at, key in enumerate(KEYS):
        versions = versions_of(classes[key])
        for number in sorted({0, len(versions) // 2, len(versions) - 1}):
            version = versions[number]
            for make in (full, bare):
                yield bytes([at, number]) + encode(make(classes[key], version), version)


def fuzz_requests(data: bytes) -> None:
    if len(data) > 2:
        decode_and_encode(*_request(data))


def _request(data: bytes) -> tuple[type[Any], bytes, int]:
    cls, version, body = chosen(data, REQUESTS)
    return cls, body, version


def seeds_requests() -> Iterator[bytes]:
    return _seeds(REQUESTS)


def fuzz_responses(data: bytes) -> None:
    """Decode as a client does, with the header of a response."""
    if len(data) < 3:
        return
    cls, version, frame = chosen(data, RESPONSES)
    with contextlib.suppress(WireError):
        decode_response(cls, frame, version)
    decode_and_encode(cls, frame, version)


def seeds_responses() -> Iterator[bytes]:
    return _seeds(RESPONSES)


def fuzz_request_header(data: bytes) -> None:
    """The two decoders of a request header find the same body."""
    try:
        header, at = decode_request_header(memoryview(data))
    except WireError:
        return
    assert 8 <= at <= len(data)
    assert (header.api_key, header.api_version, header.correlation_id) == struct.unpack_from(
        ">hhi", data
    )
    if header.api_key in REQUESTS and header.api_key != 7:
        api = api_of(REQUESTS[header.api_key])
        if api.versions[0] <= header.api_version <= api.versions[1]:
            flexible = header.api_version >= api.flexible
            assert body_at(bytearray(data), 0, len(data), flexible) == at


def seeds_request_header() -> Iterator[bytes]:
    for key in KEYS:
        cls = REQUESTS[key]
        version = versions_of(cls)[-1]
        for client_id in (None, "", "fuzz"):
            yield encode_request(bare(cls, version), version, 7, client_id)[4:40]


# -- the codecs of the hot path --------------------------------------------------------------


def _compare(hot: Any, cls: type[Any], version: int, body: bytes) -> None:
    """Decode a request with both codecs: both refuse it, or both give the same."""
    buf, view, start, end = in_a_buffer(body)
    found = wanted = None
    with contextlib.suppress(WireError):
        found = hot.decode(buf, view, start, end, version)
    try:
        wanted = decode(cls, body, version, exact=False)
    except WireError as error:
        if found is not None and not any(word in str(error) for word in UNCHECKED_BY_HOT):
            raise AssertionError("only the hot codec accepts this") from error
        return
    assert found is not None, "only the declared codec accepts this"
    if hot is produce_codec:
        assert plain_hot_produce(found, buf) == plain_produce(wanted)
    else:
        assert tuple(found) == plain_fetch(wanted, version)


def fuzz_hot_produce(data: bytes) -> None:
    if data:
        versions = range(produce_codec.LOWEST, produce_codec.HIGHEST + 1)
        _compare(produce_codec, ProduceRequest, versions[data[0] % len(versions)], data[1:])


def seeds_hot_produce() -> Iterator[bytes]:
    for at, version in enumerate(range(produce_codec.LOWEST, produce_codec.HIGHEST + 1)):
        for make in (full, bare):
            yield bytes([at]) + encode(make(ProduceRequest, version), version)


def fuzz_hot_fetch(data: bytes) -> None:
    if data:
        versions = range(fetch_codec.LOWEST, fetch_codec.HIGHEST + 1)
        _compare(fetch_codec, FetchRequest, versions[data[0] % len(versions)], data[1:])


def seeds_hot_fetch() -> Iterator[bytes]:
    for at, version in enumerate(range(fetch_codec.LOWEST, fetch_codec.HIGHEST + 1)):
        for make in (full, bare):
            yield bytes([at]) + encode(make(FetchRequest, version), version)


def fuzz_replica_fetch_request(data: bytes) -> None:
    """The shortcut for the requests of followers gives what the full decoder gives, or None."""
    buf, view, start, end = in_a_buffer(data)
    found = replica_fetch_codec.decode_request(buf, view, start, end)
    if found is not None:
        wanted = fetch_codec.decode(buf, view, start, end, replica_fetch_codec.VERSION)
        assert found == wanted


def seeds_replica_fetch_request() -> Iterator[bytes]:
    for count in (1, 2, 5):
        wanted = [fetch_codec.RequestedPartition(at, 3, 100, 2, 0, 1000) for at in range(count)]
        request = fetch_codec.Fetch(
            1, 500, 1, 10_000, 0, 5, 6, [(b"0123456789abcdef", wanted)], [], b"", 7
        )
        frame = replica_fetch_codec.encode(request, 7, b"")
        _, at = decode_request_header(memoryview(frame)[4:])
        yield frame[4 + at :]


def fuzz_replica_fetch_response(data: bytes) -> None:
    """The follower's decoder gives what the declared codec gives, if both accept the bytes.

    The follower's decoder skips what only consumers need, so it accepts more.
    """
    try:
        found = replica_fetch_codec.decode(memoryview(data))
        _, wanted = decode_response(FetchResponse, data, replica_fetch_codec.VERSION)
    except WireError:
        return
    assert (found.error_code, found.session_id) == (wanted.error_code, wanted.session_id)
    assert [
        (topic, [(part.partition, part.error_code, bytes(part.records)) for part in partitions])
        for topic, partitions in found.topics
    ] == [
        (
            topic.topic_id.bytes,
            [
                (part.partition_index, part.error_code, bytes(part.records or b""))
                for part in topic.partitions
            ],
        )
        for topic in wanted.responses
    ]


def seeds_replica_fetch_response() -> Iterator[bytes]:
    version = replica_fetch_codec.VERSION
    for make in (full, bare):
        yield b"\0\0\0\7\0" + encode(make(FetchResponse, version), version)
