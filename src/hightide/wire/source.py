"""A small builder of Python source for the generated codecs.

It handles indentation, creates unique names, and collects the objects (struct methods, classes,
defaults) that the generated function uses.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from hightide.wire.types import (
    UUID_SHAPE,
    Api,
    Array,
    Blob,
    Field,
    Fixed,
    Shape,
    Struct,
    Text,
    fields_of,
)

# Limits of declarations and of received messages.
MAX_DEPTH = 8
MAX_TAGS = 64
MAX_TEXT = 0x7FFF


class Source:
    """The source of one function, and the objects that it uses."""

    def __init__(self, title: str, known: dict[str, Any]) -> None:
        self.title = title
        self.known = dict(known)
        self.lines: list[str] = []
        self._indent = ""
        self._names = 0

    def line(self, text: str) -> None:
        self.lines.append(self._indent + text)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        self.line(head)
        outer, self._indent = self._indent, self._indent + "    "
        yield
        self._indent = outer

    def fresh(self, stem: str) -> str:
        """Return a name that is unique in the function."""
        self._names += 1
        return f"{stem}{self._names}"

    def refer(self, name: str, value: Any) -> str:
        """Return the name under which the function finds an object from outside it."""
        if self.known.setdefault(name, value) is not value:
            name = self.fresh(name + "_")
            self.known[name] = value
        return name

    def packing(self, method: str, codes: str) -> str:
        """Return the name of `struct.Struct(codes).method`, created once per function."""
        name = f"{method}_{codes.replace('?', 'bool')}"
        if name not in self.known:
            self.known[name] = getattr(struct.Struct(">" + codes), method)
        return name

    def compile(self, function: str) -> Callable[..., Any]:
        """Execute the source and return the function it defines."""
        text = "\n".join(self.lines)
        scope = self.known
        exec(compile(text, f"<{self.title}>", "exec"), scope)
        compiled: Callable[..., Any] = scope[function]
        return compiled


def split(cls: type, version: int) -> tuple[list[Field], list[Field], list[Field]]:
    """Return the fields that a version has inline, those it has as tags, and those it lacks."""
    inline, tagged, lacking = [], [], []
    for field in fields_of(cls):
        if not field.spec.carried_by(version):
            lacking.append(field)
        elif field.spec.tag is None:
            inline.append(field)
        else:
            tagged.append(field)
    tagged.sort(key=lambda field: field.spec.tag or 0)
    return inline, tagged, lacking


def is_flexible(api: Api, version: int) -> bool:
    return version >= api.flexible


def smallest(shape: Shape, version: int, flexible: bool) -> int:
    """Return the minimum size of a value of this shape in this version."""
    match shape:
        case Fixed():
            return shape.size
        case Text():
            return 1 if flexible else 2
        case Blob() | Array():
            return 1 if flexible else 4
        case Struct():
            inline, _, _ = split(shape.cls, version)
            sizes = (
                1
                if isinstance(field.shape, Struct) and field.nullable_in(version)
                else smallest(field.shape, version, flexible)
                for field in inline
            )
            return sum(sizes) + flexible


def objects(shape: Shape, version: int) -> int:
    """Return the number of objects in one value, without the elements of its arrays.

    Numbers do not count: they take more bytes on the wire than other values, so the size of the
    frame limits them well enough.
    """
    if not isinstance(shape, Struct):
        return 1
    inline, _, _ = split(shape.cls, version)
    return 1 + sum(
        objects(field.shape, version)
        for field in inline
        if not isinstance(field.shape, Fixed) or field.shape == UUID_SHAPE
    )
