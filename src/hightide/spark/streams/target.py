"""Where the results of a query go: `to="revenue"`, `"delta:tables/big"`, `"memory:"`, `"print:"`.

A word without a colon is a topic, because that is what most results become; a topic's name cannot
have a colon, so nothing can be meant two ways.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from hightide.spark.streams.errors import StreamsError, listed, unknown

TOPIC = "topic"
MEMORY = "memory"
PRINT = "print"
TABLES = ("parquet", "delta", "iceberg")
KINDS = (TOPIC, *TABLES, MEMORY, PRINT)
NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")
WORD = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True)
class Target:
    kind: str
    place: str

    @property
    def is_table(self) -> bool:
        return self.kind in TABLES

    def __str__(self) -> str:
        return self.place if self.kind == TOPIC else f"{self.kind}:{self.place}"


def name_of(name: str, what: str) -> str:
    """A name that can stand in a path, in a transactional id and in Kafka."""
    if not isinstance(name, str) or not NAME.fullmatch(name) or name in {".", ".."}:
        raise StreamsError(
            f"{name!r} cannot be the name of {what}: "
            "letters, digits, dots, hyphens and underscores, at most 249."
        )
    return name


def target(to: str) -> Target:
    """What `to=` means."""
    if not isinstance(to, str) or not to.strip():
        raise StreamsError(f"to= is {to!r}; wanted is a topic, or one of {listed(shapes())}.")
    kind, colon, place = to.strip().partition(":")
    if not colon:
        kind, place = TOPIC, kind
    if kind not in KINDS:
        raise unknown("kind of target", kind, KINDS)
    if kind == TOPIC:
        return Target(kind, name_of(place, "a topic"))
    if kind in TABLES and not place:
        raise StreamsError(f'to="{to}" does not say where: write "{kind}:PATH".')
    if kind == MEMORY and place and not WORD.fullmatch(place):
        raise StreamsError(f"{place!r} cannot be the name of a table in memory: use one word.")
    if kind == PRINT and place:
        raise StreamsError(f'to="{to}" prints to the terminal: nothing may follow the colon.')
    return Target(kind, place)


def shapes() -> list[str]:
    return [f"{kind}:PATH" for kind in TABLES] + [f"{MEMORY}:", f"{PRINT}:"]
