"""The prefix that Confluent's serialisers put before a value, and the registry it refers to.

A zero byte, then the id of the writer's schema in four bytes.  Protobuf has a list of indexes
behind it that says which message of the schema it is; the list that means "the first" is one zero
byte.

The registry is asked once for each id, over HTTP.  That it cannot be reached is an error of its own
and never the fault of a record: a dead-letter topic full of good records is worse than a query that
stops.
"""

from __future__ import annotations

import base64
import json
import struct
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from typing import Any

MAGIC = 0
PREFIX = struct.Struct(">bI")
TRIES = 4
PAUSE_S = 0.5
TIMEOUT_S = 10


class RegistryUnreachable(Exception):
    """The registry gave no answer, or none that can be understood."""


class UnknownSchema(Exception):
    """The registry knows no such schema."""


def prefixed(value: bytes) -> int | None:
    """The schema id in front of a value; None if it does not begin with a prefix."""
    if len(value) < PREFIX.size or value[0] != MAGIC:
        return None
    return int(PREFIX.unpack_from(value)[1])


def prefix(schema_id: int) -> bytes:
    return PREFIX.pack(MAGIC, schema_id)


def end_of_indexes(value: bytes, at: int) -> int:
    """Where the list of message indexes that begins at a position ends."""
    count, at = _zigzag(value, at)
    for _ in range(count):
        _, at = _zigzag(value, at)
    return at


def indexes(path: list[int]) -> bytes:
    """The list of message indexes, written."""
    if path == [0]:
        return b"\0"
    return b"".join(_varint(number * 2) for number in (len(path), *path))


def _zigzag(value: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        if at >= len(value) or shift > 28:
            raise ValueError("the list of message indexes is torn")
        byte = value[at]
        number |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at
        shift += 7


def _varint(number: int) -> bytes:
    made = bytearray()
    while number > 0x7F:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    made.append(number)
    return bytes(made)


@dataclass(slots=True)
class Registry:
    """A schema registry, by its address; user and password may be in it."""

    url: str
    known: dict[int, dict[str, Any]] = field(default_factory=dict)

    def schema(self, schema_id: int) -> dict[str, Any]:
        """What is registered under an id: `schema` as text, perhaps `references`."""
        if schema_id not in self.known:
            self.known[schema_id] = self._get(f"/schemas/ids/{schema_id}")
        return self.known[schema_id]

    def version(self, subject: str, version: int | str = "latest") -> dict[str, Any]:
        """What is registered under a subject: `schema`, `id`, perhaps `references`."""
        return self._get(f"/subjects/{urllib.parse.quote(subject, safe='')}/versions/{version}")

    def _get(self, path: str) -> dict[str, Any]:
        for attempt in range(TRIES):
            if attempt:
                time.sleep(PAUSE_S * 2 ** (attempt - 1))
            try:
                return self._get_once(path)
            except (OSError, ValueError) as error:
                reason = error
        raise RegistryUnreachable(
            f"The schema registry at {self._address()} cannot be asked for {path}: {reason}."
        )

    def _get_once(self, path: str) -> dict[str, Any]:
        parts = urllib.parse.urlsplit(self.url)
        request = urllib.request.Request(self._address() + path)
        if parts.username is not None:
            pair = urllib.parse.unquote(f"{parts.username}:{parts.password or ''}")
            coded = base64.b64encode(pair.encode()).decode()
            request.add_header("Authorization", f"Basic {coded}")
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                found = json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                if error.code == 404:
                    raise UnknownSchema(f"the schema registry has no {path}") from None
                raise OSError(f"it answers {error.code} {error.reason}") from None
        if not isinstance(found, dict) or "schema" not in found:
            raise ValueError("the answer has no schema in it")
        return found

    def _address(self) -> str:
        """The address as it may be shown: without user and password."""
        parts = urllib.parse.urlsplit(self.url)
        host = parts.netloc.rpartition("@")[2]
        return urllib.parse.urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", ""))
