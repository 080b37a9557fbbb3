"""Reads a znode's JSON without trusting it.

Every accessor names the key and the expected type. The only error is MalformedZnode with the
znode's path: no JSON, no object, a missing key, another type, a number out of range. Kafka writes
some numbers as text, hence `number_text`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from hightide.zookeeper.zookeeper_errors import MalformedZnode

_INT32 = range(-(2**31), 2**31)
_INT64 = range(-(2**63), 2**63)
_NUMBER = re.compile("-?[0-9]{1,19}")
_SURROGATE = re.compile("[\ud800-\udfff]")
_REQUIRED: Any = object()


def to_json(value: dict[str, Any]) -> bytes:
    """Encode compact UTF-8, as Kafka's JSON library writes it."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


class Payload:
    """One JSON object of a znode."""

    __slots__ = ("_fields", "_path")

    def __init__(self, fields: dict[str, Any], path: str) -> None:
        self._fields = fields
        self._path = path

    @classmethod
    def parse(cls, data: bytes, path: str) -> Payload:
        try:
            fields = json.loads(data.decode())
        except (ValueError, RecursionError) as failure:
            raise MalformedZnode(path, f"not JSON: {failure}") from failure
        if not isinstance(fields, dict):
            raise MalformedZnode(path, "not a JSON object")
        return cls(fields, path)

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def text(self, key: str, default: str = _REQUIRED) -> str:
        value = self._get(key, default)
        if not _is_text(value):
            raise self._malformed(key, "text")
        return str(value)

    def int32(self, key: str, default: int = _REQUIRED) -> int:
        value = self._get(key, default)
        if not _is_int32(value):
            raise self._malformed(key, "a 32-bit number")
        return int(value)

    def int32s(self, key: str, default: list[int] = _REQUIRED) -> list[int]:
        value = self._get(key, default)
        if not isinstance(value, list) or not all(map(_is_int32, value)):
            raise self._malformed(key, "a list of 32-bit numbers")
        return value

    def int32_key(self, key: str) -> int:
        """Parse a key that is a number, such as a partition."""
        number = _number(key)
        if number is None or number not in _INT32:
            raise self._malformed(key, "a 32-bit number")
        return number

    def number_text(self, key: str, default: int = _REQUIRED) -> int:
        """Return a 64-bit number written as text; a plain number is accepted as well."""
        value = self._get(key, default)
        number = _number(value) if isinstance(value, str) else value
        if isinstance(number, bool) or not isinstance(number, int) or number not in _INT64:
            raise self._malformed(key, "a 64-bit number")
        return number

    def texts(self, key: str, default: list[str] = _REQUIRED) -> list[str]:
        value = self._get(key, default)
        if not isinstance(value, list) or not all(map(_is_text, value)):
            raise self._malformed(key, "a list of texts")
        return value

    def object(self, key: str, required: bool = True) -> Payload:
        """Return a nested object; an optional one is empty if it is missing."""
        value = self._get(key, _REQUIRED if required else {})
        if not isinstance(value, dict):
            raise self._malformed(key, "an object")
        return Payload(value, self._path)

    def objects(self, key: str) -> list[Payload]:
        value = self._get(key, _REQUIRED)
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise self._malformed(key, "a list of objects")
        return [Payload(item, self._path) for item in value]

    def _get(self, key: str, default: Any) -> Any:
        """Return the value or the default; null counts as missing."""
        value = self._fields.get(key)
        if value is not None:
            return value
        if default is _REQUIRED:
            raise MalformedZnode(self._path, f"{key!r} is missing")
        return default

    def _malformed(self, key: str, expected: str) -> MalformedZnode:
        return MalformedZnode(self._path, f"{key!r} is not {expected}")


def _is_int32(value: object) -> bool:
    # True and False are integers in Python but not in JSON.
    return isinstance(value, int) and not isinstance(value, bool) and value in _INT32


def _is_text(value: object) -> bool:
    # JSON can hold half of a surrogate pair, which UTF-8 cannot encode.
    return isinstance(value, str) and not _SURROGATE.search(value)


def _number(text: str) -> int | None:
    """Parse a number as Kafka writes it: no blanks, underscores or digits of other scripts."""
    return int(text) if _NUMBER.fullmatch(text) else None
