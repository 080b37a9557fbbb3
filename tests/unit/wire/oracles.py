"""Two other implementations of the protocol, brought to where ours can be compared with them.

kafka-python ships Kafka's own schemas and compiles codecs from them; kio has dataclasses
generated from the same schemas, read by native code.
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
    # Loading its schemas, kafka-python calls what Python 3.11 has deprecated.
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
        for each in waiting.pop().__subclasses__():
            found.setdefault(each.__name__, each)
            waiting.append(each)
    return found


def kafka_python_knows(cls: type, version: int) -> bool:
    theirs = kafka_python_classes().get(cls.__name__)
    return theirs is not None and version <= theirs.max_version


def to_kafka_python(ours: Any, theirs: Any, version: int) -> Any:
    """The same message as an object of kafka-python; `theirs` is its class."""
    known = theirs._struct.fields
    values = {}
    for each in carried(type(ours), version):
        value = getattr(ours, each.name)
        if each.spec.tag is not None and value == each.default:
            continue
        # kafka-python has shorter names where it turns a number into a set of operations.
        name = each.name if each.name in known else "authorized_operations"
        assert name in known, f"kafka-python has no {each.name} in {theirs}"
        if getattr(known[name], "_type", None) is BitField:
            value = BitField.from_32_bit_field(value & 0xFFFFFFFF)
        elif isinstance(each.shape, Struct) and value is not None:
            value = to_kafka_python(value, known[name].data_class, version)
        elif isinstance(each.shape, Array) and isinstance(each.shape.item, Struct) and value:
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
    """kio's times and intervals as the numbers that the wire has."""
    if isinstance(value, datetime.datetime):
        value = value - EPOCH
    return value // datetime.timedelta(milliseconds=1) if is_interval(value) else value


def is_interval(value: Any) -> bool:
    return isinstance(value, datetime.timedelta)


def same_as_kio(ours: Any, theirs: Any, version: int, where: str) -> None:
    """Asserts that two structs have the same fields with the same values."""
    known = [each.name for each in dataclasses.fields(theirs)]
    mine = carried(type(ours), version)
    # kio drops the unit from the names of times and intervals, which it gives types.
    assert [each.name.removesuffix("_ms") for each in mine] == [
        name.removesuffix("_ms") for name in known
    ], where
    for each, name in zip(mine, known, strict=True):
        value, other = getattr(ours, each.name), getattr(theirs, name)
        inside = f"{where}.{each.name}"
        if isinstance(each.shape, Struct) and each.spec.tag is not None and value is None:
            value = each.shape.cls()
        if isinstance(each.shape, Struct) and value is not None:
            same_as_kio(value, other, version, inside)
        elif isinstance(each.shape, Array) and isinstance(each.shape.item, Struct) and value:
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
    cls = type(message)
    schema = kio_class(cls, version)
    data = encode(message, version)
    theirs, size = entity_reader(schema)(data, 0)
    assert size == len(data)
    same_as_kio(message, theirs, version, cls.__name__)
    out = io.BytesIO()
    entity_writer(schema)(out, theirs)
    assert out.getvalue() == data
    assert decode(cls, data, version) == message
