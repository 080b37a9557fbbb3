"""Generates the function that encodes one version of one message.

Like the decoders, the functions are straight-line Python with structs and arrays inline, and one
pack for adjacent values of fixed width. A tagged field with its default value is left out. A value
that the version cannot carry is an error unless its field is ignorable: a response must not lose
content silently.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from hightide.wire.errors import WireError
from hightide.wire.source import MAX_DEPTH, MAX_TEXT, Source, is_flexible, split
from hightide.wire.types import UUID_SHAPE, Array, Blob, Field, Fixed, Shape, Struct, Text, api_of

Encoder = Callable[[bytearray, Any, int], None]


_MESSAGE_CHARACTERS = 4_000  # of an error message; the rest is not sent


class TooLarge(Exception):
    """The encoded message would exceed its limit of bytes."""


# -- helpers of the generated functions ----------------------------------------------------


def put_uvarint(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def put_long_text(out: bytearray, value: int) -> None:
    """Append the length prefix of a string that is too long for a prefix of one byte."""
    if value > MAX_TEXT + 1:
        raise WireError(f"a string of {value - 1} bytes is longer than {MAX_TEXT}")
    put_uvarint(out, value)


def put_tagged(out: bytearray, tag: int, content: bytearray) -> None:
    put_uvarint(out, tag)
    put_uvarint(out, len(content))
    out += content


def lacking(where: str) -> WireError:
    return WireError(f"{where} has a value that this version cannot carry")


def no_null(where: str) -> WireError:
    return WireError(f"{where} is null, which this version cannot carry")


def too_large(limit: int) -> TooLarge:
    return TooLarge(f"the message exceeds {limit} bytes")


_KNOWN: dict[str, Any] = {
    "too_large": too_large,
    "put_uvarint": put_uvarint,
    "put_long_text": put_long_text,
    "put_tagged": put_tagged,
    "lacking": lacking,
    "no_null": no_null,
    "pack": struct.pack,
}


# -- the writer ----------------------------------------------------------------------------


def write_encoder(cls: type, version: int) -> Encoder:
    """Generate `encode(out, message, limit)` for one version of a message."""
    api = api_of(cls)
    source = Source(f"encode {cls.__name__} v{version}", _KNOWN)
    with source.block("def encode(out, message, limit):"):
        writer = _Writer(source, version, is_flexible(api, version))
        writer.struct(cls, "message", cls.__name__, 0)
        writer.flush()
        source.line("return")
    return source.compile("encode")


class _Writer:
    """Generates the code that writes values, in order, into one function."""

    def __init__(self, source: Source, version: int, flexible: bool) -> None:
        self.source = source
        self.version = version
        self.flexible = flexible
        # The name of the current buffer: the message's, or that of a tagged field.
        self.out = "out"
        # Fixed-width values not yet written: the expression and the struct letter of each.
        self.run: list[tuple[str, str]] = []

    def line(self, text: str) -> None:
        self.source.line(text)

    def flush(self) -> None:
        """Generate one pack for the collected values of fixed width."""
        if not self.run:
            return
        codes = "".join(code for _, code in self.run)
        values = ", ".join(value for value, _ in self.run if value)
        self.run = []
        if not values:
            self.line(f"{self.out} += {bytes(len(codes))!r}")
        else:
            self.line(f"{self.out} += {self.source.packing('pack', codes)}({values})")

    def struct(self, cls: type, value: str, where: str, depth: int) -> None:
        """Generate code that writes the fields of the struct named `value`."""
        if depth > MAX_DEPTH:
            raise TypeError(f"{where} is nested more than {MAX_DEPTH} deep")
        inline, tagged, missing = split(cls, self.version)
        for field in missing:
            if not field.spec.ignorable:
                differs = self.differs(field, f"{value}.{field.name}")
                self.line(f"if {differs}: raise lacking('{where}.{field.name}')")
        for field in inline:
            nullable, inner = field.nullable_in(self.version), f"{where}.{field.name}"
            if field.optional and not nullable:
                self.line(f"if {value}.{field.name} is None: raise no_null({inner!r})")
            self.value(field.shape, nullable, f"{value}.{field.name}", inner, depth)
        if self.flexible:
            self.tags(tagged, value, where, depth)

    def differs(self, field: Field, value: str) -> str:
        """Return an expression that is true unless the field has its default."""
        if field.default is None and isinstance(field.shape, Struct):
            fresh = self.source.refer(f"default_{field.name}", field.shape.cls())
            return f"{value} is not None and {value} != {fresh}"
        if field.default is None:
            return f"{value} is not None"
        if isinstance(field.default, list | int | str | float):
            return f"{value} != {field.default!r}"
        return f"{value} != {self.source.refer(f'default_{field.name}', field.default)}"

    def value(self, shape: Shape, nullable: bool, value: str, where: str, depth: int) -> None:
        """Generate code that writes one value of any shape."""
        match shape:
            case Fixed():
                self.run.append((f"{value}.bytes" if shape == UUID_SHAPE else value, shape.code))
            case Text():
                # An error message may quote what a client has sent.
                cut = f"[:{_MESSAGE_CHARACTERS}]" if value.endswith(".error_message") else ""
                self.sized(f"{value}{cut}.encode()", nullable, value, 2)
            case Blob():
                self.sized(value, nullable, value, 4)
            case Array(item=item):
                self.array(item, nullable, value, where, depth)
            case Struct(cls=cls):
                self.nested(cls, nullable, value, where, depth)

    def length(self, n: str, width: int) -> None:
        """Generate code that writes a length; flexible versions store the length plus one."""
        if not self.flexible:
            self.run.append((n, "h" if width == 2 else "i"))
            self.flush()
            return
        self.flush()
        long = "put_long_text" if width == 2 else "put_uvarint"
        self.line(f"if {n} < 127: {self.out}.append({n} + 1)")
        self.line(f"else: {long}({self.out}, {n} + 1)")

    def sized(self, data: str, nullable: bool, value: str, width: int) -> None:
        raw = self.source.fresh("raw")
        if nullable:
            null = b"\0" if self.flexible else b"\xff" * width
            self.flush()
            self.line(f"if {value} is None: {self.out} += {null!r}")
            with self.source.block("else:"):
                self.content(raw, data, width)
        else:
            self.content(raw, data, width)

    def content(self, raw: str, data: str, width: int) -> None:
        n = self.source.fresh("n")
        self.line(f"{raw} = {data}")
        self.line(f"{n} = len({raw})")
        self.length(n, width)
        self.line(f"{self.out} += {raw}")

    def array(self, item: Shape, nullable: bool, value: str, where: str, depth: int) -> None:
        items = self.source.fresh("items")
        self.line(f"{items} = {value}")
        if nullable:
            null = b"\0" if self.flexible else b"\xff\xff\xff\xff"
            self.flush()
            self.line(f"if {items} is None: {self.out} += {null!r}")
            with self.source.block("else:"):
                self.elements(item, items, where, depth)
        else:
            self.elements(item, items, where, depth)

    def elements(self, item: Shape, items: str, where: str, depth: int) -> None:
        n, element = self.source.fresh("n"), self.source.fresh("element")
        self.line(f"{n} = len({items})")
        self.length(n, 4)
        if isinstance(item, Fixed) and item != UUID_SHAPE:
            self.line(f'{self.out} += pack(f">{{{n}}}{item.code}", *{items})')
            return
        with self.source.block(f"for {element} in {items}:"):
            self.value(item, False, element, where, depth)
            self.flush()
            if isinstance(item, Struct) and self.out == "out":
                self.line("if len(out) > limit: raise too_large(limit)")

    def nested(self, cls: type, nullable: bool, value: str, where: str, depth: int) -> None:
        inner = value
        if not value.isidentifier():
            inner = self.source.fresh("part")
            self.line(f"{inner} = {value}")
        if not nullable:
            self.struct(cls, inner, where, depth + 1)
            return
        self.flush()
        self.line(f"if {inner} is None: {self.out} += b'\\xff'")
        with self.source.block("else:"):
            self.line(f"{self.out} += b'\\x01'")
            self.struct(cls, inner, where, depth + 1)
            self.flush()

    def tags(self, tagged: list[Field], value: str, where: str, depth: int) -> None:
        """Generate code that writes the tagged fields of a struct (flexible versions)."""
        if not tagged:
            self.run.append(("", "x"))
            return
        self.flush()
        wanted = [self.differs(field, f"{value}.{field.name}") for field in tagged]
        with self.source.block(f"if {' or '.join(wanted)}:"):
            count, tail, content = (self.source.fresh(s) for s in ("tags", "tail", "content"))
            self.line(f"{count} = 0")
            self.line(f"{tail} = bytearray()")
            for field, differs in zip(tagged, wanted, strict=True):
                with self.source.block(f"if {differs}:"):
                    self.line(f"{count} += 1")
                    self.line(f"{content} = bytearray()")
                    outer, self.out = self.out, content
                    nullable, inner = field.nullable_in(self.version), f"{where}.{field.name}"
                    self.value(field.shape, nullable, f"{value}.{field.name}", inner, depth)
                    self.flush()
                    self.out = outer
                    self.line(f"put_tagged({tail}, {field.spec.tag}, {content})")
            self.line(f"{self.out}.append({count})")
            self.line(f"{self.out} += {tail}")
        self.line(f"else: {self.out}.append(0)")
