"""Generates the function that decodes one version of one message.

The function is straight-line Python with nested structs and arrays inline: function calls and
closures would cost more than the work they do. Adjacent values of fixed width are read with one
unpack, together with the length of the string or array after them.

The generated function is total. For any bytes it returns a message or raises WireError,
struct.error, IndexError or UnicodeDecodeError; `codec.decode` turns the last three into WireError.
Before a list is created, its count is checked against the remaining bytes and the object budget.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from dataclasses import MISSING
from typing import Any

from hightide.wire.errors import WireError
from hightide.wire.source import (
    MAX_DEPTH,
    MAX_TAGS,
    MAX_TEXT,
    Source,
    is_flexible,
    objects,
    smallest,
    split,
)
from hightide.wire.types import UUID_SHAPE, Array, Blob, Field, Fixed, Shape, Struct, Text, api_of

Decoder = Callable[[memoryview, int, bool], Any]


# -- helpers of the generated functions ----------------------------------------------------


def uvarint(buf: memoryview, at: int) -> tuple[int, int]:
    """Decode an unsigned varint of at most five bytes; return it and its end."""
    value = shift = 0
    while True:
        byte = buf[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > 0xFFFFFFFF:
                raise WireError("a varint exceeds 32 bits")
            return value, at
        shift += 7
        if shift > 28:
            raise WireError("a varint is longer than five bytes")


def skip_tags(buf: memoryview, at: int, end: int) -> int:
    """Skip the tagged fields at `at`, all of them unknown; return their end."""
    count, at = uvarint(buf, at)
    if count > MAX_TAGS:
        raise many_tags(count)
    last = -1
    for _ in range(count):
        tag, at = uvarint(buf, at)
        size, at = uvarint(buf, at)
        if tag <= last:
            raise bad_tag(tag, last)
        last = tag
        at += size
        if at > end:
            raise WireError(f"tag {tag} has {size} bytes, but {end - at + size} are left")
    return at


def cut(where: str, promised: int, left: int) -> WireError:
    return WireError(f"{where} has {promised} bytes, but {left} are left")


def crowded(where: str, count: int, left: int) -> WireError:
    return WireError(f"{where} has {count} elements, which do not fit into {left} bytes")


def costly(where: str) -> WireError:
    return WireError(f"{where} exceeds the limit of objects in one message")


def bad_length(where: str, length: int) -> WireError:
    if length == -1:
        return WireError(f"{where} is null, but must not be")
    return WireError(f"{where} has the impossible length {length}")


def many_tags(count: int) -> WireError:
    return WireError(f"one struct has {count} tagged fields, more than {MAX_TAGS}")


def bad_tag(tag: int, last: int) -> WireError:
    return WireError(f"tag {tag} comes after tag {last}")


def bad_tag_size(where: str, unread: int) -> WireError:
    return WireError(f"{where} differs by {unread} bytes from the size of its tag")


def trailing(unread: int) -> WireError:
    return WireError(f"{unread} bytes follow the end of the message")


_KNOWN: dict[str, Any] = {
    function.__name__: function
    for function in (uvarint, skip_tags, cut, crowded, costly, bad_length, many_tags, bad_tag)
} | {
    "bad_tag_size": bad_tag_size,
    "trailing": trailing,
    "new": object.__new__,
    "UUID": uuid.UUID,
    "unpack_from": struct.unpack_from,
}


# -- the writer ----------------------------------------------------------------------------


def write_decoder(cls: type, version: int) -> Decoder:
    """Generate `decode(buf, left, exact) -> message` for one version of a message."""
    api = api_of(cls)
    source = Source(f"decode {cls.__name__} v{version}", _KNOWN)
    with source.block("def decode(buf, left, exact):"):
        source.line("at = 0")
        source.line("end = len(buf)")
        _Writer(source, version, is_flexible(api, version)).struct(cls, "message", cls.__name__, 0)
        source.line("if at != end and (exact or at > end): raise trailing(end - at)")
        source.line("return message")
    return source.compile("decode")


class _Writer:
    """Generates the code that reads values, in order, into one function."""

    def __init__(self, source: Source, version: int, flexible: bool) -> None:
        self.source = source
        self.version = version
        self.flexible = flexible
        # Fixed-width values not yet read: the target and the struct letter of each.
        self.run: list[tuple[str, str]] = []
        self.run_bytes = 0
        # Lines that convert the values of a run to their final form.
        self.after_run: list[str] = []

    def line(self, text: str) -> None:
        self.source.line(text)

    def read(self, target: str, code: str, size: int) -> None:
        self.run.append((target, code))
        self.run_bytes += size

    def flush(self) -> None:
        """Generate one unpack for the collected values of fixed width."""
        if not self.run:
            return
        targets = ", ".join(target for target, _ in self.run)
        codes = "".join(code for _, code in self.run)
        if codes == "B":
            self.line(f"{targets} = buf[at]")
        else:
            unpack = self.source.packing("unpack_from", codes)
            self.line(f"{targets}{',' * (len(self.run) == 1)} = {unpack}(buf, at)")
        self.line(f"at += {self.run_bytes}")
        for line in self.after_run:
            self.line(line)
        self.run, self.run_bytes, self.after_run = [], 0, []

    def struct(self, cls: type, target: str, where: str, depth: int) -> None:
        """Generate code that reads the fields of a struct into a new object named `target`."""
        if depth > MAX_DEPTH:
            raise TypeError(f"{where} is nested more than {MAX_DEPTH} deep")
        inline, tagged, lacking = split(cls, self.version)
        self.flush()
        self.line(f"{target} = new({self.source.refer(cls.__name__, cls)})")
        for field in lacking + tagged:
            self.line(f"{target}.{field.name} = {self.default(field)}")
        for field in inline:
            nullable = field.nullable_in(self.version)
            self.value(
                field.shape, nullable, f"{target}.{field.name}", f"{where}.{field.name}", depth
            )
        if self.flexible:
            self.tags(tagged, target, where, depth)
        self.flush()

    def default(self, field: Field) -> str:
        if field.default is MISSING:
            raise TypeError(f"{field.name} is not in every version, so it needs a default")
        if isinstance(field.default, list):
            return "[]"
        if field.default is None or isinstance(field.default, int | str | float):
            return repr(field.default)
        return self.source.refer(f"default_{field.name}", field.default)

    def value(self, shape: Shape, nullable: bool, target: str, where: str, depth: int) -> None:
        """Generate code that reads one value of any shape into `target`."""
        match shape:
            case Fixed():
                self.fixed(shape, target)
            case Text():
                self.sized(target, nullable, where, 2, "text")
            case Blob(view=view):
                self.sized(target, nullable, where, 4, "view" if view else "bytes")
            case Array(item=item):
                self.array(item, nullable, target, where, depth)
            case Struct(cls=cls):
                self.nested(cls, nullable, target, where, depth)

    def fixed(self, shape: Fixed, target: str) -> None:
        if shape == UUID_SHAPE:
            raw = self.source.fresh("raw")
            self.after_run.append(f"{target} = UUID(bytes={raw})")
            target = raw
        self.read(target, shape.code, shape.size)

    def length(self, width: int) -> str:
        """Generate code that reads a length; flexible versions store the length plus one."""
        n = self.source.fresh("n")
        if self.flexible:
            self.read(n, "B", 1)
            self.flush()
            self.line(f"if {n} > 127: {n}, at = uvarint(buf, at - 1)")
            self.line(f"{n} -= 1")
        else:
            self.read(n, "h" if width == 2 else "i", width)
            self.flush()
        return n

    def sized(self, target: str, nullable: bool, where: str, width: int, kind: str) -> None:
        n, to = self.length(width), self.source.fresh("to")
        too_long = f"{to} > end"
        if kind == "text" and self.flexible:
            too_long += f" or {n} > {MAX_TEXT}"
        take = {
            "text": 'str(buf[at:{to}], "utf-8")',
            "bytes": "buf[at:{to}].tobytes()",
            "view": "buf[at:{to}]",
        }[kind].format(to=to)
        with self.source.block(f"if {n} >= 0:"):
            self.line(f"{to} = at + {n}")
            self.line(f"if {too_long}: raise cut({where!r}, {n}, end - at)")
            self.line(f"{target} = {take}")
            self.line(f"at = {to}")
        self.without(n, nullable, target, where)

    def without(self, n: str, nullable: bool, target: str, where: str) -> None:
        """Generate the handling of a negative length: null where null is allowed."""
        if nullable:
            self.line(f"elif {n} == -1: {target} = None")
        self.line(f"else: raise bad_length({where!r}, {n})")

    def array(self, item: Shape, nullable: bool, target: str, where: str, depth: int) -> None:
        n = self.length(4)
        least = smallest(item, self.version, self.flexible)
        if least < 1:
            raise TypeError(f"{where} has elements of zero bytes, so its count cannot be checked")
        cost = objects(item, self.version)
        with self.source.block(f"if {n} >= 0:"):
            self.line(f"if {n} * {least} > end - at: raise crowded({where!r}, {n}, end - at)")
            self.line(f"left -= {n} * {cost}" if cost > 1 else f"left -= {n}")
            self.line(f"if left < 0: raise costly({where!r})")
            if isinstance(item, Fixed) and item != UUID_SHAPE:
                self.line(f'{target} = list(unpack_from(f">{{{n}}}{item.code}", buf, at))')
                self.line(f"at += {n} * {item.size}")
            else:
                self.elements(item, n, target, where, depth)
        self.without(n, nullable, target, where)

    def elements(self, item: Shape, n: str, target: str, where: str, depth: int) -> None:
        items, element = self.source.fresh("items"), self.source.fresh("element")
        self.line(f"{target} = {items} = []")
        with self.source.block(f"for _ in range({n}):"):
            self.value(item, False, element, where, depth)
            self.flush()
            self.line(f"{items}.append({element})")

    def nested(self, cls: type, nullable: bool, target: str, where: str, depth: int) -> None:
        if not nullable and target.isidentifier():
            self.struct(cls, target, where, depth + 1)
            return
        inner = self.source.fresh("part")
        if not nullable:
            self.struct(cls, inner, where, depth + 1)
            self.line(f"{target} = {inner}")
            return
        there = self.source.fresh("there")
        self.read(there, "b", 1)
        self.flush()
        with self.source.block(f"if {there} == 1:"):
            self.struct(cls, inner, where, depth + 1)
            self.line(f"{target} = {inner}")
        self.without(there, nullable, target, where)

    def tags(self, tagged: list[Field], target: str, where: str, depth: int) -> None:
        """Generate code that reads the tagged fields of a struct (flexible versions)."""
        count = self.source.fresh("tags")
        self.read(count, "B", 1)
        self.flush()
        if not tagged:
            self.line(f"if {count}: at = skip_tags(buf, at - 1, end)")
            return
        tag, last, size, stop = (self.source.fresh(s) for s in ("tag", "last", "size", "stop"))
        with self.source.block(f"if {count}:"):
            self.line(f"{count}, at = uvarint(buf, at - 1)")
            self.line(f"if {count} > {MAX_TAGS}: raise many_tags({count})")
            self.line(f"{last} = -1")
            with self.source.block(f"for _ in range({count}):"):
                self.line(f"{tag}, at = uvarint(buf, at)")
                self.line(f"{size}, at = uvarint(buf, at)")
                self.line(f"if {tag} <= {last}: raise bad_tag({tag}, {last})")
                self.line(f"{last} = {tag}")
                self.line(f"{stop} = at + {size}")
                self.line(f"if {stop} > end: raise cut({where!r}, {size}, end - at)")
                for nth, field in enumerate(tagged):
                    inside = f"{where}.{field.name}"
                    with self.source.block(f"{'el' * (nth > 0)}if {tag} == {field.spec.tag}:"):
                        self.value(
                            field.shape,
                            field.nullable_in(self.version),
                            f"{target}.{field.name}",
                            inside,
                            depth,
                        )
                        self.flush()
                        self.line(f"if at != {stop}: raise bad_tag_size({inside!r}, {stop} - at)")
                self.line(f"else: at = {stop}")
