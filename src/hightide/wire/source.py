"""A small writer of Python source, for the codecs that are generated.

It keeps the indentation, hands out names that do not clash, and collects the objects
(struct methods, classes, defaults) that the written function refers to.
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

# Bounds of what may be declared and of what may come over the wire.
MAX_DEPTH = 8
MAX_TAGS = 64
MAX_TEXT = 0x7FFF


class Source:
    """The text of one function as it grows, and what it will need to run."""

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
        """A name that nothing else in the function has."""
        self._names += 1
        return f"{stem}{self._names}"

    def refer(self, name: str, value: Any) -> str:
        """The name by which the function reaches an object from outside it."""
        if self.known.setdefault(name, value) is not value:
            name = self.fresh(name + "_")
            self.known[name] = value
        return name

    def packing(self, method: str, codes: str) -> str:
        """The name of `struct.Struct(codes).method`, made once per function."""
        name = f"{method}_{codes.replace('?', 'bool')}"
        if name not in self.known:
            self.known[name] = getattr(struct.Struct(">" + codes), method)
        return name

    def compile(self, function: str) -> Callable[..., Any]:
        """Runs the text and returns the function it defines."""
        text = "\n".join(self.lines)
        scope = self.known
        exec(compile(text, f"<{self.title}>", "exec"), scope)
        made: Callable[..., Any] = scope[function]
        return made


def split(cls: type, version: int) -> tuple[list[Field], list[Field], list[Field]]:
    """The fields a version carries in line, those it carries as tags, and those it lacks."""
    inline, tagged, lacking = [], [], []
    for each in fields_of(cls):
        if not each.spec.carried_by(version):
            lacking.append(each)
        elif each.spec.tag is None:
            inline.append(each)
        else:
            tagged.append(each)
    tagged.sort(key=lambda each: each.spec.tag or 0)
    return inline, tagged, lacking


def is_flexible(api: Api, version: int) -> bool:
    return version >= api.flexible


def smallest(shape: Shape, version: int, flexible: bool) -> int:
    """The fewest bytes that a value of this shape takes in this version."""
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
                if isinstance(each.shape, Struct) and each.nullable_in(version)
                else smallest(each.shape, version, flexible)
                for each in inline
            )
            return sum(sizes) + flexible


def objects(shape: Shape, version: int) -> int:
    """How many objects one value makes, not counting what its own arrays hold.

    Numbers are not counted: they take more room on the wire than others do, so the bytes
    of the frame bound them well enough.
    """
    if not isinstance(shape, Struct):
        return 1
    inline, _, _ = split(shape.cls, version)
    return 1 + sum(
        objects(each.shape, version)
        for each in inline
        if not isinstance(each.shape, Fixed) or each.shape == UUID_SHAPE
    )
