"""Variable-length integers: seven bits a byte, lowest first, the high bit set on all but the last.

Signed numbers use zigzag encoding, so small negative numbers are short. Decoding is total: it
returns a number in range or raises Corrupt, and reads no more bytes than the type needs.
"""

from hightide.wire.errors import Corrupt


def encode_unsigned(value: int) -> bytes:
    """Return the shortest encoding of a number from 0 to 2**64 - 1."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode_signed(value: int) -> bytes:
    """Return the zigzag encoding, which is the same for a varint and a varlong."""
    if not -(2**63) <= value < 2**63:
        raise ValueError(f"{value} does not fit in 64 bits")
    return encode_unsigned((value << 1) ^ (value >> 63))


def decode_unsigned(data: bytes | bytearray | memoryview, at: int, bits: int) -> tuple[int, int]:
    """Decode the number at `at`; return it and its end. `bits` is 32 or 64."""
    value = shift = 0
    try:
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift >= bits:
                raise Corrupt(f"a variable-length number is longer than {bits} bits")
    except IndexError:
        raise Corrupt("the bytes end inside a variable-length number") from None
    if value >> bits:
        raise Corrupt(f"a variable-length number does not fit in {bits} bits")
    return value, at


def decode_signed(data: bytes | bytearray | memoryview, at: int, bits: int) -> tuple[int, int]:
    """Decode a zigzag number as `decode_unsigned` does."""
    value, at = decode_unsigned(data, at, bits)
    return (value >> 1) ^ -(value & 1), at
