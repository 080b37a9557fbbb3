"""Fuzz targets: Avro and Protobuf values, with and without the prefix of a schema registry."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from functools import cache

from hightide.spark.formats import avro_format, confluent, protobuf_format
from tests.unit.spark import test_formats_avro as avro_values
from tests.unit.spark import test_formats_protobuf as protobuf_values


@cache
def _avro(prefix_id: int | None = None) -> avro_format.AvroCodec:
    return avro_values.codec(avro_values.ORDER, prefix_id=prefix_id)


@cache
def _protobuf(prefix_id: int | None = None) -> protobuf_format.ProtobufCodec:
    return protobuf_values.codec(prefix_id=prefix_id)


def fuzz_avro(data: bytes) -> None:
    """A value gives a row or an error, and does not disturb the values beside it."""
    good = _avro().encode(avro_values.ROW)
    rows, errors = _avro().decode([good, data, None])
    assert len(rows) == len(errors) == 3
    assert errors[0] is None
    assert rows[0].is_valid
    assert rows[1].is_valid == (errors[1] is None)


def seeds_avro() -> Iterator[bytes]:
    yield _avro().encode(avro_values.ROW)
    yield _avro(5).encode(avro_values.ROW)


def fuzz_protobuf(data: bytes) -> None:
    """A value gives a row or an error, and does not disturb the values beside it."""
    good = _protobuf().encode(protobuf_values.ROW)
    rows, errors = _protobuf().decode([good, data, None])
    assert len(rows) == len(errors) == 3
    assert errors[0] is None
    assert rows[0].is_valid
    assert rows[1].is_valid == (errors[1] is None)


def seeds_protobuf() -> Iterator[bytes]:
    for row in (protobuf_values.ROW, protobuf_values.BARE):
        yield _protobuf().encode(row)
        yield _protobuf(5).encode(row)
    yield confluent.prefix(5) + confluent.indexes([1, 2, 3])
    # A Struct with NaN, which JSON cannot hold.
    yield b"j\x10\n\x0e\n\x01a\x12\t\x11" + struct.pack("<d", math.nan)
