"""The kind and the path of a table: `parquet:./tables/clicks`, `delta:…`, `iceberg:…`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class TableError(Exception):
    """A table cannot be created, read or written as asked; the text is for the user."""


class Kind(StrEnum):
    PARQUET = "parquet"
    DELTA = "delta"
    ICEBERG = "iceberg"


@dataclass(frozen=True, slots=True)
class Target:
    kind: Kind
    path: Path

    def __str__(self) -> str:
        return f"{self.kind}:{self.path}"


def is_table(text: str) -> bool:
    """Return whether this names a table, and not a topic."""
    kind, colon, path = text.partition(":")
    return bool(colon and path) and kind in set(Kind)


def parse(text: str) -> Target:
    """Parse `KIND:PATH`. The path may be `file://…`, and is made absolute."""
    if not is_table(text):
        raise TableError(
            f"{text!r} is not a table; expected parquet:PATH, delta:PATH or iceberg:PATH"
        )
    kind, _, path = text.partition(":")
    path = path.removeprefix("file://")
    if "://" in path:
        raise TableError(
            f"{text!r} is not on a mounted file system; tables are folders that the driver and all"
            " executors see under one path"
        )
    # Not resolved: the path of a Parquet table is a link, and the link itself is meant.
    return Target(Kind(kind), Path(path).expanduser().absolute())
