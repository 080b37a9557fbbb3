"""A dataclass as the schema of a topic.

A field is required if it is not Optional and has no default: a record without it is bad. A default
replaces a missing field. `Literal` and `Enum` become strings (or integers) whose values are
checked. Defaults and allowed values are metadata of Spark's fields, so a schema is just a
`StructType`.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime
import enum
import json
import types
import typing
import uuid
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from hightide.spark.formats.value_schema import BadSchema

# Names in the metadata of a field.
DEFAULT = "hightide.default"
ALLOWED = "hightide.allowed"

PLAIN: dict[Any, DataType] = {
    str: StringType(),
    int: LongType(),
    float: DoubleType(),
    bool: BooleanType(),
    bytes: BinaryType(),
    datetime.datetime: TimestampType(),
    datetime.date: DateType(),
    # PySpark's default for a Decimal.
    Decimal: DecimalType(38, 18),
    uuid.UUID: StringType(),
}
LISTS = (list, set, frozenset, Sequence)
SUPPORTED = (
    "str, int, float, bool, bytes, datetime, date, Decimal, UUID, Literal, Enum, list, dict with"
    " str keys, Optional, or another dataclass"
)


def struct_of(declared: type) -> StructType:
    """Return the Spark type of a dataclass."""
    return _struct(declared, ())


def _struct(declared: type, inside: tuple[type, ...]) -> StructType:
    if declared in inside:
        raise BadSchema(f"{declared.__name__} contains itself; Spark has no recursive types.")
    try:
        hints = typing.get_type_hints(declared, include_extras=True)
    except NameError as error:
        raise BadSchema(f"{declared.__name__} has a type that cannot be found: {error}.") from None
    fields = dataclasses.fields(declared)
    if not fields:
        raise BadSchema(f"{declared.__name__} has no fields.")
    return StructType([_field(declared, field, hints[field.name], inside) for field in fields])


def _field(
    owner: type, field: dataclasses.Field[Any], hint: Any, inside: tuple[type, ...]
) -> StructField:
    where = f"{owner.__name__}.{field.name}"
    hint, optional = _without_none(hint, where)
    metadata: dict[str, Any] = {}
    allowed = _allowed(hint)
    if allowed:
        metadata[ALLOWED] = allowed
    default = _default(field, where)
    if default is not None:
        metadata[DEFAULT] = default
    has_default = (
        field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
    )
    return StructField(
        field.name,
        _type(hint, where, (*inside, owner)),
        nullable=optional or has_default,
        metadata=metadata,
    )


def _type(hint: Any, where: str, inside: tuple[type, ...]) -> DataType:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _annotated(arguments[0], arguments[1:], where, inside)
    if hint in PLAIN:
        return PLAIN[hint]
    allowed = _allowed(hint)
    if allowed:
        return LongType() if isinstance(allowed[0], int) else StringType()
    if origin in LISTS:
        element, optional = _without_none(arguments[0], where)
        return ArrayType(_type(element, where, inside), optional)
    if origin in (dict, Mapping):
        if arguments[0] is not str:
            raise BadSchema(f"{where}: the keys of a dict must be str, as in JSON.")
        element, optional = _without_none(arguments[1], where)
        return MapType(StringType(), _type(element, where, inside), optional)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _struct(hint, inside)
    name = getattr(hint, "__name__", None) if isinstance(hint, type) else None
    raise BadSchema(f"{where} has the type {name or hint}; expected {SUPPORTED}.")


def _annotated(hint: Any, notes: tuple[Any, ...], where: str, inside: tuple[type, ...]) -> DataType:
    """Return the type of `Annotated[Decimal, (12, 2)]` (precision and scale), or a given Spark
    type.
    """
    for note in notes:
        if isinstance(note, DataType):
            return note
        match note:
            case (int(precision), int(scale)) if hint is Decimal:
                return DecimalType(precision, scale)
    return _type(hint, where, inside)


def _without_none(hint: Any, where: str) -> tuple[Any, bool]:
    """Return the type inside of an Optional, and whether it was one."""
    if get_origin(hint) not in (Union, types.UnionType):
        return hint, False
    rest = [argument for argument in get_args(hint) if argument is not types.NoneType]
    if len(rest) != 1:
        raise BadSchema(f"{where} is a union of several types; a column has one.")
    return rest[0], True


def _allowed(hint: Any) -> list[Any]:
    """Return the values of a Literal or an Enum: all strings, or all integers."""
    if get_origin(hint) is Literal:
        values = list(get_args(hint))
    elif isinstance(hint, type) and issubclass(hint, enum.Enum):
        values = [member.value for member in hint]
        # An Enum of other values is written by the names of its members.
        if not _are_all(values, str) and not _are_all(values, int):
            values = [member.name for member in hint]
    else:
        return []
    if not _are_all(values, str) and not _are_all(values, int):
        raise BadSchema(f"{hint} mixes types; expected strings only, or integers only.")
    return values


def _are_all(values: list[Any], kind: type) -> bool:
    return all(isinstance(value, kind) and not isinstance(value, bool) for value in values)


def _default(field: dataclasses.Field[Any], where: str) -> str | None:
    """Return a field's default as JSON; None if it is null or missing."""
    if field.default is not dataclasses.MISSING:
        value = field.default
    elif field.default_factory is not dataclasses.MISSING:
        value = field.default_factory()
    else:
        return None
    if value is None:
        return None
    try:
        return json.dumps(_plain(value))
    except TypeError:
        raise BadSchema(f"{where}: the default {value!r} cannot be written as JSON.") from None


def _plain(value: Any) -> Any:
    match value:
        case enum.Enum():
            allowed = _allowed(type(value))
            return value.value if value.value in allowed else value.name
        case bytes():
            return base64.b64encode(value).decode()
        case datetime.datetime() | datetime.date():
            return value.isoformat()
        case Decimal() | uuid.UUID():
            return str(value)
        case dict():
            return {key: _plain(item) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_plain(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    return value
