"""Bytes into lines, and lines into events of several lines.

Both hold incomplete data back. Every line has its position in the file, because a position may be
stored only at the end of a delivered line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

LINE_BYTES = 900_000


class Line(NamedTuple):
    """Text without its newline, and its start and end in the file, including the newline."""

    start: int
    end: int
    text: bytes


@dataclass(slots=True)
class Splitter:
    """Splits pieces of a file into lines. A line that is too long is cut; nothing is lost."""

    position: int = 0
    line_bytes: int = LINE_BYTES
    pending: bytearray = field(default_factory=bytearray)

    def feed(self, data: bytes) -> list[Line]:
        self.pending += data
        whole = self.pending.rfind(b"\n") + 1
        found: list[Line] = []
        if whole:
            # The last piece, after the last newline, is empty.
            for text in bytes(self.pending[:whole]).split(b"\n")[:-1]:
                self._take(text, 1, found)
            del self.pending[:whole]
        while len(self.pending) > self.line_bytes:
            text = bytes(self.pending[: self.line_bytes])
            del self.pending[: self.line_bytes]
            self._take(text, 0, found)
        return found

    def finish(self) -> list[Line]:
        """Return the rest when no more data can come."""
        found: list[Line] = []
        if self.pending:
            text = bytes(self.pending)
            self.pending.clear()
            self._take(text, 0, found)
        return found

    def _take(self, text: bytes, newline: int, found: list[Line]) -> None:
        while len(text) > self.line_bytes:
            found.append(
                Line(self.position, self.position + self.line_bytes, text[: self.line_bytes])
            )
            text = text[self.line_bytes :]
            self.position += self.line_bytes
        end = self.position + len(text) + newline
        found.append(Line(self.position, end, text.removesuffix(b"\r") if newline else text))
        self.position = end


@dataclass(slots=True)
class Joiner:
    """Joins lines to events: an event starts with a matching line and has all lines up to the next.

    The last event is held back until another starts or `finish` is called, so its lines are not
    delivered yet and are read again after a restart.
    """

    begins: re.Pattern[bytes]
    event_bytes: int = LINE_BYTES
    held: list[Line] = field(default_factory=list)
    size: int = 0

    def feed(self, lines: list[Line]) -> list[Line]:
        found = []
        for line in lines:
            if self.held and (
                self.begins.search(line.text) or self.size + len(line.text) > self.event_bytes
            ):
                found += self.finish()
            self.held.append(line)
            self.size += len(line.text) + 1
        return found

    def finish(self) -> list[Line]:
        if not self.held:
            return []
        text = b"\n".join(line.text for line in self.held)
        made = Line(self.held[0].start, self.held[-1].end, text)
        self.held.clear()
        self.size = 0
        return [made]
