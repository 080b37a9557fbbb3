"""Declarations of messages: one typed class for all versions of a message.

    @message(key=12, versions=(0, 4), flexible=4)
    class HeartbeatRequest:
        group_id: str
        generation_id: i32
        member_id: str
        group_instance_id: str | None = field(since=3, default=None)

The annotation gives the wire type, and `field()` the versions that have the field. To programs and
type checkers the class is an ordinary slotted dataclass. Arrays are `list[...]`, structs are
`@part` classes, nullable is `| None`.

A tagged struct is annotated `| None` although the wire has no null for it: None means "not sent",
which is the usual case, and costs no object.

Descriptions of declarations are NamedTuples, which are created seven times faster than frozen
dataclasses; this module is part of every start.

This module has declarations only; `codec` turns them into bytes.
"""

from __future__ import annotations

import dataclasses
import struct
import typing
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, NamedTuple, TypeVar, dataclass_transform

T = TypeVar("T")

Buffer = bytes | bytearray | memoryview

i8 = Annotated[int, "b"]
i16 = Annotated[int, "h"]
i32 = Annotated[int, "i"]
i64 = Annotated[int, "q"]
u16 = Annotated[int, "H"]
u32 = Annotated[int, "I"]
f64 = Annotated[float, "d"]

# Record batches decode to a view of their frame, without a copy.
Records = Annotated[Buffer, "records"]

NO_UUID = uuid.UUID(int=0)

# Larger than any version of a message.
NEVER = 2**15 - 1


class Spec(NamedTuple):
    """Which versions of a message have a field, and in which form."""

    since: int = 0
    until: int = NEVER
    nullable: int = 0
    tag: int | None = None
    ignorable: bool = False
    secret: bool = False

    def carried_by(self, version: int) -> bool:
        return self.since <= version <= self.until


ALWAYS = Spec()


class Api(NamedTuple):
    """The properties that all versions of a message share."""

    key: int | None
    versions: tuple[int, int]
    flexible: int


def field(
    *,
    since: int = 0,
    until: int = NEVER,
    nullable: int = 0,
    tag: int | None = None,
    ignorable: bool = False,
    secret: bool = False,
    default: Any = dataclasses.MISSING,
) -> Any:
    """Declare a field that not all versions have, or not all in the same form.

    `nullable` is the first version that allows null, if the annotation has `| None`. A version
    without the field drops the value of an `ignorable` field silently; otherwise only the default
    can be encoded. repr does not show a `secret`, so it does not get into a log.
    """
    spec = {"spec": Spec(since, until, nullable, tag, ignorable, secret)}
    if isinstance(default, list):
        return dataclasses.field(default_factory=list, metadata=spec)
    return dataclasses.field(default=default, metadata=spec)


@dataclass_transform(kw_only_default=True, field_specifiers=(field,))
def message(
    *, versions: tuple[int, int], key: int | None = None, flexible: int = NEVER
) -> Callable[[type[T]], type[T]]:
    """Declare a request, response or stored record; `flexible` is its first version with tags."""

    def declare(cls: type[T]) -> type[T]:
        slotted: Any = _slotted(cls)
        slotted.__api__ = Api(key, versions, flexible)
        return typing.cast("type[T]", slotted)

    return declare


@dataclass_transform(kw_only_default=True, field_specifiers=(field,))
def part(cls: type[T]) -> type[T]:
    """Declare a struct inside a message; it has the version of its message."""
    return _slotted(cls)


def api_of(cls: type) -> Api:
    """Return the API of a message class."""
    api: Api = typing.cast(Any, cls).__api__
    return api


def _slotted(cls: type[T]) -> type[T]:
    # Equality and repr are shared functions: to compile them for each class would double the time
    # that the import of the messages takes.
    plain: Any = cls
    plain.__eq__, plain.__repr__, plain.__hash__ = _equal, _show, None
    # For a class without a docstring, dataclass would compute one from its signature.
    plain.__doc__ = plain.__doc__ or "A part of a message."
    return dataclass(kw_only=True, slots=True, eq=False, repr=False)(cls)


def _equal(self: Any, other: Any) -> bool:
    return type(self) is type(other) and all(
        getattr(self, name) == getattr(other, name) for name in self.__slots__
    )


def _show(self: Any) -> str:
    shown = []
    for field_ in dataclasses.fields(self):
        secret = field_.metadata.get("spec", ALWAYS).secret
        value = "[hidden]" if secret else repr(getattr(self, field_.name))
        shown.append(f"{field_.name}={value}")
    return f"{type(self).__name__}({', '.join(shown)})"


# -- the wire types of the annotations -----------------------------------------------------


class Fixed(NamedTuple):
    """A value of fixed width, given by its letter in the `struct` module."""

    code: str
    size: int


class Text(NamedTuple):
    """A string: UTF-8 after its length."""


class Blob(NamedTuple):
    """Bytes after their length; `view` if they are not copied."""

    view: bool


class Array(NamedTuple):
    """Any number of values of one shape, after their count."""

    item: Shape


class Struct(NamedTuple):
    """The fields of a `@part` class, in order."""

    cls: type


Shape = Fixed | Text | Blob | Array | Struct

UUID_SHAPE = Fixed("16s", 16)
_SCALARS: dict[Any, Shape] = {
    **{code: Fixed(code, struct.calcsize(">" + code)) for code in "bhiqHId"},
    bool: Fixed("?", 1),
    uuid.UUID: UUID_SHAPE,
    str: Text(),
    bytes: Blob(view=False),
    "records": Blob(view=True),
}


class Field(NamedTuple):
    """One field of a declared class, with its annotation resolved."""

    name: str
    shape: Shape
    optional: bool
    spec: Spec
    default: Any

    def nullable_in(self, version: int) -> bool:
        """Say whether the wire has a null here, as opposed to None for a tag that is not sent."""
        if self.spec.tag is not None and isinstance(self.shape, Struct):
            return False
        return self.optional and version >= self.spec.nullable


@cache
def fields_of(cls: type) -> tuple[Field, ...]:
    """Return the fields of a message or part, in wire order."""
    # Annotations are resolved when a codec is first generated: at import they would cost a large
    # part of the broker's start.
    hints = typing.get_type_hints(cls, include_extras=True)
    return tuple(
        Field(
            name=declared.name,
            shape=_shape(hints[declared.name]),
            optional=NoneType in typing.get_args(hints[declared.name]),
            spec=declared.metadata.get("spec", ALWAYS),
            default=_default(declared),
        )
        for declared in dataclasses.fields(typing.cast(Any, cls))
    )


def _default(declared: dataclasses.Field[Any]) -> Any:
    if declared.default_factory is not dataclasses.MISSING:
        return declared.default_factory()
    return declared.default


def _shape(hint: Any) -> Shape:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (UnionType, typing.Union):
        (hint,) = (argument for argument in arguments if argument is not NoneType)
        return _shape(hint)
    if origin is list:
        return Array(_shape(arguments[0]))
    if origin is Annotated:
        hint = arguments[1]
    if hint in _SCALARS:
        return _SCALARS[hint]
    if not dataclasses.is_dataclass(hint):
        raise TypeError(f"{hint!r} is not a wire type")
    return Struct(typing.cast(type, hint))
