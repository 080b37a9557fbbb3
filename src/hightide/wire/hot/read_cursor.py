"""Reading primitives for the hand-tuned decoders.

A request lies somewhere inside a larger receive buffer, so reading past its end is not an error
that Python would notice: every length is compared with the request's own end before it is used.
"""

from __future__ import annotations

from struct import Struct

from hightide.wire.errors import WireError

# A request lies in a receive buffer; an answer is looked at through a view of its own.
Bytes = bytearray | memoryview

INT16 = Struct(">h")
INT32 = Struct(">i")

_MOST_TAGS = 64


def uvarint(buf: Bytes, at: int) -> tuple[int, int]:
    """An unsigned varint of at most five bytes, and where it ends."""
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
                raise WireError("unsigned varint does not fit 32 bits")
            return value, at + 1
        shift += 7
    raise WireError("unsigned varint is longer than five bytes")


def put_uvarint(value: int) -> bytes:
    """`value` as an unsigned varint."""
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
    """Step over a section of tagged fields that nobody here knows."""
    if buf[at] == 0:
        return at + 1
    return tags(buf, at, end)[1]


def tags(buf: Bytes, at: int, end: int) -> tuple[list[tuple[int, int, int]], int]:
    """The tagged fields that begin at `at`, each (tag, first byte, end), and where they end."""
    count, at = uvarint(buf, at)
    if count > _MOST_TAGS:
        raise WireError(f"{count} tagged fields in one struct, {_MOST_TAGS} are allowed")
    found: list[tuple[int, int, int]] = []
    before = -1
    for _ in range(count):
        tag, at = uvarint(buf, at)
        size, at = uvarint(buf, at)
        if tag <= before:
            raise WireError("tagged fields must come in ascending order")
        if size > end - at:
            raise WireError(f"tagged field of {size} bytes, {max(end - at, 0)} left")
        found.append((tag, at, at + size))
        before = tag
        at += size
    return found, at


def string(buf: bytearray, view: memoryview, at: int, end: int) -> tuple[bytes | None, int]:
    """A nullable string with a 16-bit length, as bytes."""
    (length,) = INT16.unpack_from(buf, at)
    at += 2
    if length == -1:
        return None, at
    return _bytes(view, at, length, end)


def compact_string(buf: bytearray, view: memoryview, at: int, end: int) -> tuple[bytes | None, int]:
    """A nullable compact string, as bytes."""
    length, at = uvarint(buf, at)
    if length == 0:
        return None, at
    return _bytes(view, at, length - 1, end)


def _bytes(view: memoryview, at: int, length: int, end: int) -> tuple[bytes, int]:
    if not 0 <= length <= end - at:
        raise WireError(f"string of {length} bytes, {max(end - at, 0)} left")
    stop = at + length
    return bytes(view[at:stop]), stop


def count_of(buf: Bytes, at: int, end: int, flexible: bool, least: int) -> tuple[int, int]:
    """The length of an array whose elements take at least `least` bytes; null reads as -1."""
    if flexible:
        count, at = uvarint(buf, at)
        count -= 1
    else:
        (count,) = INT32.unpack_from(buf, at)
        at += 4
    if count < -1 or count * least > end - at:
        raise WireError(f"array of {count} cannot fit in {max(end - at, 0)} bytes")
    return count, at


def body_at(buf: bytearray, start: int, end: int, flexible: bool) -> int:
    """Where the body of a request begins whose header begins at `start`."""
    (length,) = INT16.unpack_from(buf, start + 8)
    at = start + 10 + (length if length > 0 else 0)
    if length < -1 or at > end:
        raise WireError(f"a client id of {length} bytes does not fit its request")
    if not flexible:
        return at
    try:
        return skip_tags(buf, at, end)
    except IndexError:
        raise WireError("the request header is cut short") from None
