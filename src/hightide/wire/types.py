"""How a message is declared: one typed class for all its versions.

    @message(key=12, versions=(0, 4), flexible=4)
    class HeartbeatRequest:
        group_id: str
        generation_id: i32
        member_id: str
        group_instance_id: str | None = field(since=3, default=None)

The annotation gives the wire type, `field()` the versions that carry the field, and the
class is an ordinary slotted dataclass to programs and to type checkers.  Arrays are
`list[...]`, structs are `@part` classes, nullable is `| None`.

A tagged struct is annotated `| None` although the wire knows no null for it: None stands
for "not sent", which is how nearly every message has it, and costs no object.

What describes a declaration is a NamedTuple, since those are made seven times faster than
frozen dataclasses, and this module is part of every start.

This module knows declarations only.  How they become bytes is the business of `codec`.
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

# Record batches decode to a view of the frame they came in, so that they are not copied.
Records = Annotated[Buffer, "records"]

NO_UUID = uuid.UUID(int=0)

# Larger than any version that Kafka will give a message.
NEVER = 2**15 - 1


class Spec(NamedTuple):
    """Which versions of a message carry a field, and how."""

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
    """What every version of a message has in common."""

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
    """A field that not all versions carry, or not all in the same way.

    `nullable` is the first version in which null is allowed, and counts only where the
    annotation has `| None`.  A version that lacks the field drops its value silently when
    it is `ignorable`; otherwise only the default may be encoded.  A `secret` is not shown
    by repr, so that it does not end in a log.
    """
    spec = {"spec": Spec(since, until, nullable, tag, ignorable, secret)}
    if isinstance(default, list):
        return dataclasses.field(default_factory=list, metadata=spec)
    return dataclasses.field(default=default, metadata=spec)


@dataclass_transform(kw_only_default=True, field_specifiers=(field,))
def message(
    *, versions: tuple[int, int], key: int | None = None, flexible: int = NEVER
) -> Callable[[type[T]], type[T]]:
    """A request, an answer or a stored record; `flexible` is its first version with tags."""

    def declare(cls: type[T]) -> type[T]:
        made: Any = _slotted(cls)
        made.__api__ = Api(key, versions, flexible)
        return typing.cast("type[T]", made)

    return declare


@dataclass_transform(kw_only_default=True, field_specifiers=(field,))
def part(cls: type[T]) -> type[T]:
    """A struct inside a message; it is coded at its message's version."""
    return _slotted(cls)


def api_of(cls: type) -> Api:
    """The declaration of a message class as a whole."""
    api: Api = typing.cast(Any, cls).__api__
    return api


def _slotted(cls: type[T]) -> type[T]:
    # Equality and repr are shared functions: compiling them anew for each class would
    # double the time that importing the messages takes.
    made: Any = cls
    made.__eq__, made.__repr__, made.__hash__ = _equal, _show, None
    # For a class without a docstring, dataclass would compute one from its signature.
    made.__doc__ = made.__doc__ or "A part of a message."
    return dataclass(kw_only=True, slots=True, eq=False, repr=False)(cls)


def _equal(self: Any, other: Any) -> bool:
    return type(self) is type(other) and all(
        getattr(self, name) == getattr(other, name) for name in self.__slots__
    )


def _show(self: Any) -> str:
    shown = []
    for each in dataclasses.fields(self):
        secret = each.metadata.get("spec", ALWAYS).secret
        shown.append(f"{each.name}={'[hidden]' if secret else repr(getattr(self, each.name))}")
    return f"{type(self).__name__}({', '.join(shown)})"


# -- what the annotations say --------------------------------------------------------------


class Fixed(NamedTuple):
    """A value of fixed width, given by its letter in the `struct` module."""

    code: str
    size: int


class Text(NamedTuple):
    """A string: UTF-8 with its length in front."""


class Blob(NamedTuple):
    """Bytes with their length in front; `view` when they are not to be copied."""

    view: bool


class Array(NamedTuple):
    """Any number of one shape, with the count in front."""

    item: Shape


class Struct(NamedTuple):
    """The fields of a `@part` class, one after the other."""

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
    """One field of a declared class, with its annotation understood."""

    name: str
    shape: Shape
    optional: bool
    spec: Spec
    default: Any

    def nullable_in(self, version: int) -> bool:
        """Whether the wire has a null here, as opposed to None for a tag left out."""
        if self.spec.tag is not None and isinstance(self.shape, Struct):
            return False
        return self.optional and version >= self.spec.nullable


@cache
def fields_of(cls: type) -> tuple[Field, ...]:
    """The fields of a message or part, in the order of the wire."""
    # Annotations are read only when a codec is first made: doing it at import would cost
    # the broker a good part of its start.
    hints = typing.get_type_hints(cls, include_extras=True)
    return tuple(
        Field(
            name=each.name,
            shape=_shape(hints[each.name]),
            optional=NoneType in typing.get_args(hints[each.name]),
            spec=each.metadata.get("spec", ALWAYS),
            default=_default(each),
        )
        for each in dataclasses.fields(typing.cast(Any, cls))
    )


def _default(declared: dataclasses.Field[Any]) -> Any:
    if declared.default_factory is not dataclasses.MISSING:
        return declared.default_factory()
    return declared.default


def _shape(hint: Any) -> Shape:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (UnionType, typing.Union):
        (hint,) = (each for each in arguments if each is not NoneType)
        return _shape(hint)
    if origin is list:
        return Array(_shape(arguments[0]))
    if origin is Annotated:
        hint = arguments[1]
    if hint in _SCALARS:
        return _SCALARS[hint]
    if not dataclasses.is_dataclass(hint):
        raise TypeError(f"{hint!r} is no wire type")
    return Struct(typing.cast(type, hint))
