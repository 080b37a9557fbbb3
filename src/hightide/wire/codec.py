"""Encoding and decoding of messages, for every declared class and version.

The codec functions of a class and version are generated and compiled on first use (see `decoder`
and `encoder`), so a broker pays only for the versions that its clients use.

`decode` is total: any bytes give a message or raise WireError. The number of bytes and a budget of
objects limit its time and memory.
"""

from __future__ import annotations

import struct
from typing import Any, TypeVar, cast

from hightide.wire.decoder import Decoder, write_decoder
from hightide.wire.encoder import Encoder, write_encoder
from hightide.wire.errors import WireError
from hightide.wire.types import Buffer, api_of

T = TypeVar("T")

# The maximum number of objects in one decoded message: structs, strings, byte strings, lists and
# their elements. A few bytes of a frame can declare many objects, each much larger than its bytes,
# so a limit on the frame alone does not limit the memory.
OBJECT_BUDGET = 200_000

_LARGEST_FRAME = 2**31 - 1

_decoders: dict[tuple[type, int], Decoder] = {}
_encoders: dict[tuple[type, int], Encoder] = {}


def decode(
    cls: type[T],
    data: Buffer,
    version: int,
    *,
    budget: int = OBJECT_BUDGET,
    exact: bool = True,
) -> T:
    """Decode a message that takes up all of `data`.

    Fields of type `Records` are views of `data`; everything else is copied. Brokers pass
    `exact=False` for requests, because librdkafka sends some with bytes after their end.
    """
    read = _decoders.get((cls, version))
    if read is None:
        read = _decoders[cls, version] = write_decoder(_checked(cls, version), version)
    try:
        return cast(T, read(memoryview(data), budget, exact))
    except WireError as error:
        raise WireError(f"{cls.__name__} v{version}: {error}") from None
    except (struct.error, IndexError):
        raise WireError(f"{cls.__name__} v{version} ends too early") from None
    except UnicodeDecodeError:
        raise WireError(f"{cls.__name__} v{version} has text that is not UTF-8") from None


def encode(message: object, version: int) -> bytes:
    """Return the bytes of a message in one of its versions."""
    out = bytearray()
    encode_into(out, message, version)
    return bytes(out)


def encode_into(out: bytearray, message: object, version: int, limit: int = _LARGEST_FRAME) -> None:
    """Append the bytes of a message; after an error `out` may hold a part of them.

    TooLarge if `out` grows beyond `limit` between two elements of an array.
    """
    cls: Any = type(message)
    write = _encoders.get((cls, version))
    if write is None:
        write = _encoders[cls, version] = write_encoder(_checked(cls, version), version)
    try:
        write(out, message, limit)
    except (struct.error, UnicodeEncodeError, AttributeError, TypeError, WireError) as error:
        raise WireError(f"{cls.__name__} v{version} cannot be encoded: {error}") from error


def _checked(cls: type, version: int) -> type:
    low, high = api_of(cls).versions
    if not low <= version <= high:
        raise WireError(f"{cls.__name__} has versions {low} to {high}, not {version}")
    return cls
