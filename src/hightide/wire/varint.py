"""Variable-length integers: seven bits a byte, lowest first, the high bit set on all but the last.

Signed numbers are zigzagged first, so that small negative ones stay short. Reading is total: it
gives a number inside its type or raises Corrupt, and looks at no more bytes than the type needs.
"""

from hightide.wire.errors import Corrupt


def encode_unsigned(value: int) -> bytes:
    """The shortest form of a number from 0 to 2**64 - 1."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode_signed(value: int) -> bytes:
    """The zigzag form, the same for a varint and for a varlong."""
    if not -(2**63) <= value < 2**63:
        raise ValueError(f"{value} does not fit in 64 bits")
    return encode_unsigned((value << 1) ^ (value >> 63))


def decode_unsigned(data: bytes | bytearray | memoryview, at: int, bits: int) -> tuple[int, int]:
    """The number that begins at `at`, and where the next thing begins; `bits` is 32 or 64."""
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
                raise Corrupt(f"a variable-length number goes on past its {bits} bits")
    except IndexError:
        raise Corrupt("the bytes end inside a variable-length number") from None
    if value >> bits:
        raise Corrupt(f"a variable-length number does not fit in {bits} bits")
    return value, at


def decode_signed(data: bytes | bytearray | memoryview, at: int, bits: int) -> tuple[int, int]:
    """As `decode_unsigned`, for a zigzagged number."""
    value, at = decode_unsigned(data, at, bits)
    return (value >> 1) ^ -(value & 1), at
