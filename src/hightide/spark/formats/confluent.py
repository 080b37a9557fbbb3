"""The prefix that Confluent's serialisers put before a value, and the schema registry.

The prefix is a zero byte and the id of the writer's schema in four bytes. For Protobuf, a list of
indexes follows that selects a message of the schema; the list that means "the first" is one zero
byte.

The registry is asked once for each id, over HTTP. If it cannot be reached, the query fails and the
record is not bad: a dead-letter topic full of good records is worse than a stopped query.
"""

from __future__ import annotations

import base64
import json
import math
import struct
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
    """The registry gave no response, or an invalid one."""


class UnknownSchema(Exception):
    """The registry has no such schema."""


def prefixed(value: bytes) -> int | None:
    """Return the schema id in front of a value; None if it has no prefix."""
    if len(value) < PREFIX.size or value[0] != MAGIC:
        return None
    return int(PREFIX.unpack_from(value)[1])


def prefix(schema_id: int) -> bytes:
    return PREFIX.pack(MAGIC, schema_id)


def end_of_indexes(value: bytes, at: int) -> int:
    """Return the end of the list of message indexes that starts at a position."""
    count, at = _zigzag(value, at)
    for _ in range(count):
        _, at = _zigzag(value, at)
    return at


def indexes(path: list[int]) -> bytes:
    """Encode a list of message indexes."""
    if path == [0]:
        return b"\0"
    return b"".join(_varint(number * 2) for number in (len(path), *path))


def _zigzag(value: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        if at >= len(value) or shift > 28:
            raise ValueError("the list of message indexes is incomplete")
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
    """A schema registry, by its URL, which may contain user and password."""

    url: str
    known: dict[int, dict[str, Any]] = field(default_factory=dict)

    def schema(self, schema_id: int) -> dict[str, Any]:
        """Return what is registered under an id: `schema` as text, perhaps `references`."""
        if schema_id not in self.known:
            self.known[schema_id] = self._get(f"/schemas/ids/{schema_id}")
        return self.known[schema_id]

    def version(self, subject: str, version: int | str = "latest") -> dict[str, Any]:
        """Return what is registered under a subject: `schema`, `id`, perhaps `references`."""
        return self._get(f"/subjects/{urllib.parse.quote(subject, safe='')}/versions/{version}")

    def _get(self, path: str) -> dict[str, Any]:
        # Imported here, because most processes that decode never ask a registry.
        from hightide.client.retry import Backoff

        backoff = Backoff(PAUSE_S, math.inf, attempts=TRIES)
        while True:
            try:
                return self._get_once(path)
            except (OSError, ValueError) as error:
                if not backoff.sleep():
                    raise RegistryUnreachable(
                        f"The schema registry at {self._address()} did not return {path}: {error}."
                    ) from None

    def _get_once(self, path: str) -> dict[str, Any]:
        parts = urllib.parse.urlsplit(self.url)
        request = urllib.request.Request(self._address() + path)
        if parts.username is not None:
            pair = urllib.parse.unquote(f"{parts.username}:{parts.password or ''}")
            coded = base64.b64encode(pair.encode()).decode()
            request.add_header("Authorization", f"Basic {coded}")
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
                found = json.load(response)
        except urllib.error.HTTPError as error:
            with error:
                if error.code == 404:
                    raise UnknownSchema(f"the schema registry has no {path}") from None
                raise OSError(f"it responds {error.code} {error.reason}") from None
        if not isinstance(found, dict) or "schema" not in found:
            raise ValueError("the response has no schema")
        return found

    def _address(self) -> str:
        """Return the URL without user and password, for messages."""
        parts = urllib.parse.urlsplit(self.url)
        host = parts.netloc.rpartition("@")[2]
        return urllib.parse.urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", ""))
