"""Four Kafka clients behind one small interface, so that each behaviour is tested by one test.

Each adapter does what a user of that client would write: a new client per call, explicit offsets,
no groups.  `CAN` names the abilities of a client; a test that needs another does not run with it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hightide.wire.errors import ErrorCode

# The limit for calls that should be prompt. It is reached only when a test fails.
DEADLINE_S = 25.0

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
ERROR_NAMES = {code.value: code.name for code in ErrorCode}


@dataclass(frozen=True)
class Record:
    """A record to send."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()
    timestamp: int | None = None


@dataclass(frozen=True)
class Read:
    """A received record."""

    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]


class Refused(Exception):
    """The client raised an error; `name` is Kafka's name of it, or the client's."""

    def __init__(self, name: str, detail: object = "") -> None:
        super().__init__(f"{name} {detail}")
        self.name = name


def name_of(code: int) -> str:
    return ERROR_NAMES.get(code, str(code))


def values(records: Iterable[Record | Read]) -> list[bytes | None]:
    return [record.value for record in records]
