"""Reading primitives for the hand-tuned decoders.

A request is inside a larger receive buffer, so Python does not notice a read past its end. Every
length is therefore compared with the end of the request before it is used.
"""

from __future__ import annotations

from struct import Struct

from hightide.wire.errors import WireError

# A request is in a receive buffer; a response has its own view.
Bytes = bytearray | memoryview

INT16 = Struct(">h")
INT32 = Struct(">i")

_MOST_TAGS = 64


def uvarint(buf: Bytes, at: int) -> tuple[int, int]:
    """Decode an unsigned varint of at most five bytes; return it and its end."""
    byte = buf[at]
    if byte < 0x80:
        return byte, at + 1
    value = byte & 0x7F
    shift = 7
    while shift <= 28:
        at += 1
        byte = buf[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > 0xFFFFFFFF:
                raise WireError("an unsigned varint exceeds 32 bits")
            return value, at + 1
        shift += 7
    raise WireError("an unsigned varint is longer than five bytes")


def put_uvarint(value: int) -> bytes:
    """Encode an unsigned varint."""
    if value < 0x80:
        return _SMALL[value]
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_SMALL = tuple(bytes([value]) for value in range(0x80))


def skip_tags(buf: Bytes, at: int, end: int) -> int:
    """Skip tagged fields, all of them unknown; return their end."""
    if buf[at] == 0:
        return at + 1
    return tags(buf, at, end)[1]


def tags(buf: Bytes, at: int, end: int) -> tuple[list[tuple[int, int, int]], int]:
    """Return the tagged fields at `at`, each as (tag, start, end), and their end."""
    count, at = uvarint(buf, at)
    if count > _MOST_TAGS:
        raise WireError(f"one struct has {count} tagged fields, more than {_MOST_TAGS}")
    found: list[tuple[int, int, int]] = []
    before = -1
    for _ in range(count):
        tag, at = uvarint(buf, at)
        size, at = uvarint(buf, at)
        if tag <= before:
            raise WireError("the tagged fields are not in ascending order")
        if size > end - at:
            raise WireError(f"a tagged field has {size} bytes, but {max(end - at, 0)} are left")
        found.append((tag, at, at + size))
        before = tag
        at += size
    return found, at


def string(buf: bytearray, view: memoryview, at: int, end: int) -> tuple[bytes | None, int]:
    """Read a nullable string with a 16-bit length, as bytes."""
    (length,) = INT16.unpack_from(buf, at)
    at += 2
    if length == -1:
        return None, at
    return _bytes(view, at, length, end)


def compact_string(buf: bytearray, view: memoryview, at: int, end: int) -> tuple[bytes | None, int]:
    """Read a nullable compact string, as bytes."""
    length, at = uvarint(buf, at)
    if length == 0:
        return None, at
    return _bytes(view, at, length - 1, end)


def _bytes(view: memoryview, at: int, length: int, end: int) -> tuple[bytes, int]:
    if not 0 <= length <= end - at:
        raise WireError(f"a string has {length} bytes, but {max(end - at, 0)} are left")
    stop = at + length
    return bytes(view[at:stop]), stop


def count_of(buf: Bytes, at: int, end: int, flexible: bool, least: int) -> tuple[int, int]:
    """Read the length of an array whose elements have at least `least` bytes; null is -1."""
    if flexible:
        count, at = uvarint(buf, at)
        count -= 1
    else:
        (count,) = INT32.unpack_from(buf, at)
        at += 4
    if count < -1 or count * least > end - at:
        raise WireError(f"an array of {count} does not fit into {max(end - at, 0)} bytes")
    return count, at


MAX_PARTITIONS = 10_000
"""The usual maximum of topics, and of partitions, in a Produce or Fetch of a client."""


def room_after(room: int, count: int) -> int:
    """Return the room left after `count` topics or partitions; WireError if there is none."""
    if count > room:
        raise WireError("more topics or partitions in one request than request.max.names")
    return room - count


def body_at(buf: bytearray, start: int, end: int, flexible: bool) -> int:
    """Return where the body of a request begins whose header begins at `start`."""
    (length,) = INT16.unpack_from(buf, start + 8)
    at = start + 10 + (length if length > 0 else 0)
    if length < -1 or at > end:
        raise WireError(f"a client id of {length} bytes exceeds its request")
    if not flexible:
        return at
    try:
        return skip_tags(buf, at, end)
    except IndexError:
        raise WireError("the request header ends too early") from None
