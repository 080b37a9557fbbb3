"""Frames: the size, the header and the body of every request and response.

    request    size i32 | api_key i16 | api_version i16 | correlation_id i32 | client_id | tags
    response   size i32 | correlation_id i32 | tags

Flexible versions of an API have the tags. Two details differ from the rest of the protocol: the
client id is never compact, and an ApiVersions response never has tags in its header, because a
client must be able to read it before it knows the versions of the broker.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TypeVar

from hightide.wire.codec import OBJECT_BUDGET, decode, encode_into
from hightide.wire.decoder import skip_tags
from hightide.wire.errors import WireError
from hightide.wire.messages import REQUESTS
from hightide.wire.types import Api, api_of

T = TypeVar("T")

API_VERSIONS = 18
CONTROLLED_SHUTDOWN = 7

# Responses come from brokers that the client trusts, and those of a large cluster are large.
RESPONSE_BUDGET = 20 * OBJECT_BUDGET

_HEADER = struct.Struct(">hhih")
_OLDEST_HEADER = struct.Struct(">hhi")
_SIZE_AND_ID = struct.Struct(">ii")
_INT = struct.Struct(">i")

_apis: dict[int, Api] = {}


@dataclass(slots=True)
class RequestHeader:
    """The API, its version, the client, and the correlation id of the response."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


def decode_request_header(frame: memoryview) -> tuple[RequestHeader, int]:
    """Decode the header of a frame without its size; return it and the position of the body.

    For an API or a version that is not declared the position is unknown, and only the end of the
    part that all headers share. That is enough to respond with UNSUPPORTED_VERSION.
    """
    try:
        key, version, correlation_id = _OLDEST_HEADER.unpack_from(frame, 0)
        if key == CONTROLLED_SHUTDOWN and version == 0:
            return RequestHeader(key, version, correlation_id, None), _OLDEST_HEADER.size
        key, version, correlation_id, length = _HEADER.unpack_from(frame, 0)
        at = _HEADER.size
        client_id = None
        if length >= 0:
            client_id = str(frame[at : at + length], "utf-8")
            at += length
            if at > len(frame):
                raise WireError(f"the client id has {length} bytes, which exceeds the frame")
        elif length != -1:
            raise WireError(f"the client id has the impossible length {length}")
        if _has_tags(key, version):
            at = skip_tags(frame, at, len(frame))
    except (struct.error, IndexError):
        raise WireError("the request header ends too early") from None
    except UnicodeDecodeError:
        raise WireError("the client id is not UTF-8") from None
    return RequestHeader(key, version, correlation_id, client_id), at


def encode_request(
    message: object, version: int, correlation_id: int, client_id: str | None
) -> bytes:
    """Encode a complete request frame, size included."""
    api = api_of(type(message))
    out = bytearray(4)
    if client_id is None:
        out += _HEADER.pack(api.key, version, correlation_id, -1)
    else:
        raw = client_id.encode()
        out += _HEADER.pack(api.key, version, correlation_id, len(raw))
        out += raw
    if version >= api.flexible:
        out.append(0)
    encode_into(out, message, version)
    _INT.pack_into(out, 0, len(out) - 4)
    return bytes(out)


def encode_response(
    message: object, version: int, correlation_id: int, limit: int = 2**31 - 1
) -> bytes:
    """Encode a complete response frame, size included; TooLarge if it exceeds `limit` bytes."""
    api = api_of(type(message))
    out = bytearray(8)
    if version >= api.flexible and api.key != API_VERSIONS:
        out.append(0)
    encode_into(out, message, version, limit)
    _SIZE_AND_ID.pack_into(out, 0, len(out) - 4, correlation_id)
    return bytes(out)


def decode_response(
    cls: type[T], frame: bytes | bytearray | memoryview, version: int, budget: int = RESPONSE_BUDGET
) -> tuple[int, T]:
    """Decode a response frame without its size; return correlation id and message."""
    view = memoryview(frame)
    api = api_of(cls)
    try:
        (correlation_id,) = _INT.unpack_from(view, 0)
        at = _INT.size
        if version >= api.flexible and api.key != API_VERSIONS:
            at = skip_tags(view, at, len(view))
    except (struct.error, IndexError):
        raise WireError("the response header ends too early") from None
    return correlation_id, decode(cls, view[at:], version, budget=budget)


def _has_tags(key: int, version: int) -> bool:
    """Say whether a request has a flexible header, if its API is declared."""
    api = _apis.get(key)
    if api is None:
        if key not in REQUESTS:
            return False
        api = _apis[key] = api_of(REQUESTS[key])
    return api.flexible <= version <= api.versions[1]
