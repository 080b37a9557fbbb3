"""Jute, ZooKeeper's serialization: big-endian integers, and bytes and lists with a length.

Lengths come from the client and are not trusted: nothing is allocated beyond what the frame holds.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TypeVar

from hightide.zookeeper.acl import Entry
from hightide.zookeeper.node import Stat
from hightide.zookeeper.zookeeper_errors import MalformedRequest

T = TypeVar("T")

_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")
_STAT = struct.Struct(">qqqqIIIqiIq")
_WORD = 0xFFFF_FFFF


class Missing(MalformedRequest):
    """A required string is null."""


class Reader:
    """Reads one frame; raises MalformedRequest if it ends too early."""

    __slots__ = ("_data", "_items", "_position")

    def __init__(self, data: bytes, items: int = 1 << 31) -> None:
        self._data = data
        self._position = 0
        self._items = items  # that the lists of this frame may still have

    @property
    def size(self) -> int:
        return len(self._data)

    @property
    def remaining(self) -> int:
        return len(self._data) - self._position

    def int32(self) -> int:
        try:
            (value,) = _INT.unpack_from(self._data, self._position)
        except struct.error:
            raise MalformedRequest(detail="the frame ends too early") from None
        self._position += 4
        return value  # type: ignore[no-any-return]

    def int64(self) -> int:
        try:
            (value,) = _LONG.unpack_from(self._data, self._position)
        except struct.error:
            raise MalformedRequest(detail="the frame ends too early") from None
        self._position += 8
        return value  # type: ignore[no-any-return]

    def boolean(self) -> bool:
        if not self.remaining:
            raise MalformedRequest(detail="the frame ends too early")
        self._position += 1
        return self._data[self._position - 1] != 0

    def buffer(self) -> bytes | None:
        length = self.int32()
        if length == -1:
            return None
        if not 0 <= length <= self.remaining:
            raise MalformedRequest(detail=f"length {length}, but {self.remaining} bytes are left")
        start = self._position
        self._position += length
        return self._data[start : self._position]

    def optional_string(self) -> str | None:
        data = self.buffer()
        try:
            return None if data is None else data.decode()
        except UnicodeDecodeError:
            raise MalformedRequest(detail="a string is not UTF-8") from None

    def string(self) -> str:
        text = self.optional_string()
        if text is None:
            raise Missing
        return text

    def vector(self, item: Callable[[], T]) -> list[T]:
        """Read a list; null counts as empty. No item is shorter than 4 bytes."""
        count = self.int32()
        if not -1 <= count <= self.remaining // 4:
            raise MalformedRequest(detail=f"{count} items, but {self.remaining} bytes are left")
        self._items -= max(count, 0)
        if self._items < 0:
            raise MalformedRequest(detail="too many list items in one request")
        return [item() for _ in range(count)]

    def strings(self) -> list[str]:
        return self.vector(self.string)

    def acl(self) -> list[Entry]:
        return self.vector(self._entry)

    def _entry(self) -> Entry:
        return Entry(self.int32(), self.optional_string() or "", self.optional_string() or "")


def int32(value: int) -> bytes:
    return _INT.pack(value)


def buffer(data: bytes | None) -> bytes:
    return b"\xff\xff\xff\xff" if data is None else _INT.pack(len(data)) + data


def string(text: str) -> bytes:
    data = text.encode()
    return _INT.pack(len(data)) + data


def stat(value: Stat) -> bytes:
    """Encode a Stat. Versions are 32 bits on the wire and wrap around, as in ZooKeeper."""
    czxid, mzxid, ctime, mtime, version, cversion, aversion, owner, length, children, pzxid = value
    return _STAT.pack(
        czxid, mzxid, ctime, mtime, version & _WORD, cversion & _WORD, aversion & _WORD,
        owner, length, children, pzxid,
    )  # fmt: skip
