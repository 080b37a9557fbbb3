"""Java's properties format, of `server.properties` and `meta.properties`.

A line is a name and a value, separated by ``=``, ``:`` or white space; ``#`` and ``!`` begin a
comment; a backslash at the end of a line joins the next line, and before a character it escapes the
character. Java reads the file as Latin-1. This module reads UTF-8, which is the same for ASCII
files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

_BLANK = " \t\f"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


class Property(NamedTuple):
    line: int
    name: str
    value: str


class BadProperties(ValueError):
    """A line that is not a valid property."""

    def __init__(self, line: int, problem: str) -> None:
        super().__init__(f"{line}: {problem}")
        self.line = line
        self.problem = problem


def parse(text: str) -> Iterator[Property]:
    """Yield the properties of a text in order; a name may come twice."""
    for line, joined in _logical_lines(text):
        at = _end_of_name(joined)
        rest = joined[at:].lstrip(_BLANK)
        if rest[:1] in ("=", ":"):
            rest = rest[1:].lstrip(_BLANK)
        yield Property(line, _unescape(line, joined[:at]), _unescape(line, rest))


def write(properties: Iterable[tuple[str, str]]) -> str:
    """Return a text that `parse` reads, with one property a line."""
    return "".join(f"{_escape(name, ' =:')}={_escape(value, '')}\n" for name, value in properties)


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines with content, continuations joined, each with its first line number."""
    parts: list[str] = []
    first = 0
    for number, line in enumerate(text.replace("\r\n", "\n").replace("\r", "\n").split("\n"), 1):
        line = line.lstrip(_BLANK)
        if not parts:
            if not line or line[0] in "#!":
                continue
            first = number
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            parts.append(line[:-1])
            continue
        yield first, "".join([*parts, line])
        parts = []
    if parts:
        yield first, "".join(parts)


def _end_of_name(line: str) -> int:
    at = 0
    while at < len(line) and line[at] not in "=: \t\f":
        at += 2 if line[at] == "\\" else 1
    return min(at, len(line))


def _unescape(line: int, text: str) -> str:
    if "\\" not in text:
        return text
    out = []
    at = 0
    while at < len(text):
        char = text[at]
        if char != "\\":
            out.append(char)
            at += 1
            continue
        escaped = text[at + 1 : at + 2]
        at += 2
        if escaped == "u":
            digits = text[at : at + 4]
            if len(digits) < 4 or not all(digit in "0123456789abcdefABCDEF" for digit in digits):
                raise BadProperties(line, r"\u must be followed by four hexadecimal digits")
            out.append(chr(int(digits, 16)))
            at += 4
        else:
            out.append(_ESCAPES.get(escaped, escaped))
    # Java writes a character above U+FFFF as two escapes, a surrogate pair.
    return "".join(out).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _escape(text: str, marks: str) -> str:
    back = {escaped: f"\\{letter}" for letter, escaped in _ESCAPES.items()} | {"\\": "\\\\"}
    back |= {mark: f"\\{mark}" for mark in marks}
    out = "".join(back.get(char, char) for char in text)
    # Escape a leading character that would begin a comment or belong to the separator.
    return f"\\{out}" if out[:1] in ("#", "!", " ", "=", ":") and out else out
