"""Four Kafka clients behind one small set of verbs, so that one behaviour is written once.

Each adapter does what a user of that client would write, and nothing clever: a fresh client
per call, explicit offsets, no groups.  What a client cannot express is missing from `can`,
and the behaviour is then not run with it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hightide.wire.errors import ErrorCode

# How long a client may take for what should be prompt. It is reached only when a test fails.
DEADLINE_S = 25.0

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
ERROR_NAMES = {code.value: code.name for code in ErrorCode}


@dataclass(frozen=True)
class Record:
    """What is sent."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()
    timestamp: int | None = None


@dataclass(frozen=True)
class Read:
    """What is received."""

    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]


class Refused(Exception):
    """The client was told an error; `name` is Kafka's name for it, or the client's own."""

    def __init__(self, name: str, detail: object = "") -> None:
        super().__init__(f"{name} {detail}")
        self.name = name


def name_of(code: int) -> str:
    return ERROR_NAMES.get(code, str(code))


def values(records: Iterable[Record | Read]) -> list[bytes | None]:
    return [record.value for record in records]
