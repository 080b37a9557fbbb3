"""Mutations of bytes, for the places where no coverage-guided fuzzer runs."""

from __future__ import annotations

import random
import struct

# The lengths that decoders must survive: as 32 bits, as 16 bits and as a varint.
HOSTILE_INTS = (-(2**31), -2, -1, 0, 1, 2**16, 2**31 - 1)
HOSTILE = (
    *(struct.pack(">i", number) for number in HOSTILE_INTS),
    *(struct.pack(">h", number) for number in (-(2**15), -2, -1, 0, 2**15 - 1)),
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\xff\xff",
    b"\x80\x80\x80\x80\x08",
    b"\xff",
    b"\0",
)


def mutated(data: bytes, chance: random.Random) -> bytes:
    """Return the bytes with one to three changes."""
    for _ in range(chance.randint(1, 3)):
        data = _changed(data, chance)
    return data


def _changed(data: bytes, chance: random.Random) -> bytes:
    at, to = sorted((chance.randrange(len(data) + 1), chance.randrange(len(data) + 1)))
    match chance.randrange(7):
        case 0:
            return data[:at] + bytes([chance.randrange(256)]) + data[at + 1 :]
        case 1:
            hostile = chance.choice(HOSTILE)
            return data[:at] + hostile + data[at + len(hostile) :]
        case 2:
            return data[:at] + chance.choice(HOSTILE) + data[at:]
        case 3:
            return data[:at] + data[to:]
        case 4:
            return data[:to] + data[at:]
        case 5:
            # One more than the bytes that are left.
            return data[:at] + struct.pack(">i", max(len(data) - at - 3, 0)) + data[at + 4 :]
        case _:
            return data[:at] + chance.randbytes(chance.randrange(1, 9)) + data[at:]


def next_input(seeds: list[bytes], chance: random.Random) -> bytes:
    """Return one input: random bytes, a seed, or a mutated seed."""
    if not seeds or chance.randrange(8) == 0:
        return chance.randbytes(chance.randrange(120))
    seed = chance.choice(seeds)
    return seed if chance.randrange(50) == 0 else mutated(seed, chance)
