"""Two other implementations of the protocol, as oracles for Hightide's messages.

kafka-python ships Kafka's schemas and compiles codecs from them; kio has dataclasses generated from
the same schemas, and native decoders.
"""

import dataclasses
import datetime
import io
import warnings
from functools import cache
from importlib import import_module
from typing import Any

from hightide.wire.codec import decode, encode
from hightide.wire.types import Array, Struct, api_of
from tests.unit.wire.message_values import carried

with warnings.catch_warnings():
    # While it loads its schemas, kafka-python calls functions that Python 3.11 deprecates.
    warnings.simplefilter("ignore")
    from kafka.protocol.api_message import ApiMessage
    from kafka.protocol.schemas.fields.codecs import BitField

    for module in ("admin", "consumer", "metadata", "producer", "sasl"):
        import_module(f"kafka.protocol.{module}")
    from kio.index import KioIndexError, load_request_schema, load_response_schema
    from kio.serial import entity_reader, entity_writer

# -- kafka-python --------------------------------------------------------------------------


@cache
def kafka_python_classes() -> dict[str, Any]:
    found: dict[str, Any] = {}
    waiting = [ApiMessage]
    while waiting:
        for subclass in waiting.pop().__subclasses__():
            found.setdefault(subclass.__name__, subclass)
            waiting.append(subclass)
    return found


def kafka_python_knows(cls: type, version: int) -> bool:
    theirs = kafka_python_classes().get(cls.__name__)
    return theirs is not None and version <= theirs.max_version


def to_kafka_python(ours: Any, theirs: Any, version: int) -> Any:
    """Convert a message to an object of kafka-python; `theirs` is its class."""
    known = theirs._struct.fields
    values = {}
    for field in carried(type(ours), version):
        value = getattr(ours, field.name)
        if field.spec.tag is not None and value == field.default:
            continue
        # kafka-python has shorter names where it converts a number to a set of operations.
        name = field.name if field.name in known else "authorized_operations"
        assert name in known, f"kafka-python has no {field.name} in {theirs}"
        if getattr(known[name], "_type", None) is BitField:
            value = BitField.from_32_bit_field(value & 0xFFFFFFFF)
        elif isinstance(field.shape, Struct) and value is not None:
            value = to_kafka_python(value, known[name].data_class, version)
        elif isinstance(field.shape, Array) and isinstance(field.shape.item, Struct) and value:
            value = [to_kafka_python(one, known[name].data_class, version) for one in value]
        values[name] = value
    return theirs(**values)


def agrees_with_kafka_python(message: Any, version: int) -> None:
    cls = type(message)
    theirs = to_kafka_python(message, kafka_python_classes()[cls.__name__], version)
    data = bytes(theirs.encode(version=version))
    assert encode(message, version) == data
    assert decode(cls, data, version) == message


# -- kio -----------------------------------------------------------------------------------

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


@cache
def kio_class(cls: type, version: int) -> Any:
    key = api_of(cls).key
    assert key is not None
    load = load_request_schema if cls.__name__.endswith("Request") else load_response_schema
    try:
        return load(key, version)
    except KioIndexError:
        return None


def milliseconds(value: Any) -> Any:
    """Convert kio's times and intervals to the numbers of the wire."""
    if isinstance(value, datetime.datetime):
        value = value - EPOCH
    return value // datetime.timedelta(milliseconds=1) if is_interval(value) else value


def is_interval(value: Any) -> bool:
    return isinstance(value, datetime.timedelta)


def same_as_kio(ours: Any, theirs: Any, version: int, where: str) -> None:
    """Assert that two structs have the same fields with the same values."""
    known = [field.name for field in dataclasses.fields(theirs)]
    mine = carried(type(ours), version)
    # kio has types for times and intervals, and drops the unit from their names.
    assert [field.name.removesuffix("_ms") for field in mine] == [
        name.removesuffix("_ms") for name in known
    ], where
    for field, name in zip(mine, known, strict=True):
        value, other = getattr(ours, field.name), getattr(theirs, name)
        inside = f"{where}.{field.name}"
        if isinstance(field.shape, Struct) and field.spec.tag is not None and value is None:
            value = field.shape.cls()
        if isinstance(field.shape, Struct) and value is not None:
            same_as_kio(value, other, version, inside)
        elif isinstance(field.shape, Array) and isinstance(field.shape.item, Struct) and value:
            for one, another in zip(value, other, strict=True):
                same_as_kio(one, another, version, inside)
        else:
            assert plain_value(value) == plain_kio_value(other, value), inside


def plain_value(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def plain_kio_value(theirs: Any, ours: Any) -> Any:
    # kio has None for a time of -1 and for a uuid of zeros.
    if theirs is None and isinstance(ours, int):
        return -1
    if theirs is None and ours is not None:
        return type(ours)(int=0)
    return milliseconds(theirs)


def agrees_with_kio(message: Any, version: int) -> None:
    cls: Any = type(message)
    schema = kio_class(cls, version)
    data = encode(message, version)
    theirs, size = entity_reader(schema)(data, 0)
    assert size == len(data)
    same_as_kio(message, theirs, version, cls.__name__)
    out = io.BytesIO()
    entity_writer(schema)(out, theirs)
    assert out.getvalue() == data
    assert decode(cls, data, version) == message
