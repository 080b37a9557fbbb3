"""Legal requests that cost a broker as much as possible, derived from the declared messages.

    largest     as many different names as one request may have, at each array of the message
    repeated    the same name, as often
    small       one name per array, to be sent many times

A field of text takes its value from what it names: topics, groups and so on that a test has created
get numbers from 0 on, so a large request names all of them, and then others that do not exist.
"""

from __future__ import annotations

import dataclasses
import itertools
import uuid
from collections.abc import Iterator
from typing import Any

from hightide.wire.types import NO_UUID, Array, Blob, Field, Fixed, Shape, Struct, Text, fields_of

NAMES = 9_000
"""Just under `request.max.names`, because a few names surround the large array."""


def topic(number: int) -> str:
    return f"topic-{number}"


def group(number: int) -> str:
    return f"group-{number}"


def transaction(number: int) -> str:
    return f"transaction-{number}"


# Fields whose values are fixed, so that the request is about something that exists.
_FIXED: dict[str, Any] = {
    "resource_type": 2,
    "coordinator_type": 0,
    "key_type": 0,
    "acks": 1,
    "timeout_ms": 5_000,
    "transaction_timeout_ms": 60_000,
    "session_timeout_ms": 30_000,
    "rebalance_timeout_ms": 30_000,
    "replication_factor": 1,
    "num_partitions": 1,
    "count": 2,
    "protocol_type": "consumer",
    "timestamp": 0,
    "current_leader_epoch": -1,
    "leader_epoch": 0,
    "max_bytes": 1 << 20,
    "partition_max_bytes": 1 << 20,
    "max_wait_ms": 0,
    "session_epoch": -1,
    "replica_id": -1,
    "response_partition_limit": 2_000,
    "offset": 0,
    "fetch_offset": 0,
    "member_epoch": 0,
    "generation_id_or_member_epoch": -1,
    "generation_id": -1,
    "producer_id": -1,
    "producer_epoch": -1,
    "election_type": 0,
    "config_operation": 0,
    "validate_only": True,
    "cursor": None,
    "replica_state": None,
}


def largest(cls: type, version: int) -> Iterator[Any]:
    """Yield the largest requests, one for each array of the message that can be large."""
    paths = list(_arrays(cls, version))
    for path in paths:
        yield _Filler(version, path, _count(paths, path), distinct=True).build(cls)


def repeated(cls: type, version: int) -> Iterator[Any]:
    """Yield requests that repeat one name."""
    paths = list(_arrays(cls, version))
    for path in paths:
        yield _Filler(version, path, _count(paths, path), distinct=False).build(cls)


def small(cls: type, version: int) -> Any:
    """Return a request with one element in each array."""
    return _Filler(version, (), 1, distinct=True).build(cls)


def _count(paths: list[tuple[str, ...]], path: tuple[str, ...]) -> int:
    """How many elements an array may have if each has one element in each of its arrays."""
    return NAMES // sum(1 for below in paths if below[: len(path)] == path)


def _arrays(cls: type, version: int, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for field in fields_of(cls):
        if field.spec.carried_by(version) and isinstance(field.shape, Array):
            here = (*path, field.name)
            yield here
            if isinstance(field.shape.item, Struct):
                yield from _arrays(field.shape.item.cls, version, here)


class _Filler:
    """Fills a message; the array at `path` gets `count` elements, all others one."""

    def __init__(self, version: int, path: tuple[str, ...], count: int, *, distinct: bool) -> None:
        self._version = version
        self._path = path
        self._count = count
        self._distinct = distinct

    def build(self, cls: type, path: tuple[str, ...] = (), number: int = 0) -> Any:
        fields = {field.name: field for field in fields_of(cls)}
        values = {}
        for attribute in dataclasses.fields(cls):
            field = fields[attribute.name]
            if field.spec.carried_by(self._version):
                values[field.name] = self._value(field, (*path, field.name), number)
            elif (
                attribute.default is dataclasses.MISSING
                and attribute.default_factory is dataclasses.MISSING
            ):
                values[field.name] = _unsent(field)
        return cls(**values)

    def _value(self, field: Field, path: tuple[str, ...], number: int) -> Any:
        if field.name in _FIXED:
            return _FIXED[field.name]
        if field.spec.tag is not None and not isinstance(field.shape, Array):
            return _unsent(field)
        if not isinstance(field.shape, Array):
            return self._item(field.shape, field.name, path, number)
        numbers = [number]
        if path == self._path:
            numbers = list(range(self._count)) if self._distinct else [0] * self._count
        return [self._item(field.shape.item, field.name, path, each) for each in numbers]

    def _item(self, shape: Shape, name: str, path: tuple[str, ...], number: int) -> Any:
        match shape:
            case Struct(cls=cls):
                return self.build(cls, path, number)
            case Text():
                return _text(name, number)
            case Blob():
                return b""
            case Fixed(code="?"):
                return True
            case Fixed(size=16):
                return uuid.UUID(int=number + 1)
            case Fixed(code="b"):
                return 0
            case _:
                return number


def _unsent(field: Field) -> Any:
    match field.shape:
        case Array():
            return []
        case Text():
            return ""
        case Blob():
            return b""
        case Fixed(size=16):
            return NO_UUID
        case Struct():
            return None
        case _:
            return 0


def _text(name: str, number: int) -> str:
    if "group" in name or name == "key" or "coordinator_keys" in name:
        return group(number)
    if "transactional" in name:
        return transaction(number)
    if name in ("value", "rack_id", "host"):
        return "1"
    return topic(number)


def pipelined(frame: bytes, size: int = 256 * 1024) -> bytes:
    """Repeat a frame up to a number of bytes."""
    return b"".join(itertools.repeat(frame, max(1, size // len(frame))))
