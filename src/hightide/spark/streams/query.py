"""A query as it is declared, before Spark has seen it.

Whatever can be found wrong in the declaration alone is reported when the app is loaded.

Targets are `to="revenue"`, `"delta:tables/big"`, `"memory:"`, `"print:"`. A word without a colon is
a topic, the most common target. A topic's name cannot have a colon, so a target is never ambiguous.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Literal, get_args

from hightide.spark.streams.durations import interval
from hightide.spark.streams.errors import StreamsError, listed, unknown

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TOPIC = "topic"
MEMORY = "memory"
PRINT = "print"
TABLES = ("parquet", "delta", "iceberg")
KINDS = (TOPIC, *TABLES, MEMORY, PRINT)
NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")
WORD = re.compile(r"[A-Za-z_]\w*")
Mode = Literal["append", "update", "complete"]
MODES: tuple[Mode, ...] = get_args(Mode)
EXACTLY_ONCE = "exactly-once"
AT_LEAST_ONCE = "at-least-once"
GUARANTEES = (EXACTLY_ONCE, AT_LEAST_ONCE)
BROKER_DECIDES = -1


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
    """Return a name that is valid in paths, transactional ids and Kafka; raise otherwise."""
    if not isinstance(name, str) or not NAME.fullmatch(name) or name in {".", ".."}:
        raise StreamsError(
            f"{name!r} cannot be the name of {what}: "
            "use letters, digits, dots, hyphens and underscores, at most 249."
        )
    return name


def target(to: str) -> Target:
    """Parse `to=`."""
    if not isinstance(to, str) or not to.strip():
        raise StreamsError(f"to= is {to!r}; expected a topic, or one of {listed(shapes())}.")
    kind, colon, place = to.strip().partition(":")
    if not colon:
        kind, place = TOPIC, kind
    if kind not in KINDS:
        raise unknown("kind of target", kind, KINDS)
    if kind == TOPIC:
        return Target(kind, name_of(place, "a topic"))
    if kind in TABLES and not place:
        raise StreamsError(f'to="{to}" has no path: write "{kind}:PATH".')
    if kind == MEMORY and place and not WORD.fullmatch(place):
        raise StreamsError(f"{place!r} cannot be the name of a table in memory: use one word.")
    if kind == PRINT and place:
        raise StreamsError(f'to="{to}" prints to the terminal: nothing may follow the colon.')
    return Target(kind, place)


def shapes() -> list[str]:
    return [f"{kind}:PATH" for kind in TABLES] + [f"{MEMORY}:", f"{PRINT}:"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    name: str
    build: Callable[[], DataFrame]
    to: Target
    key: str | tuple[str, ...] | None = None
    mode: Mode = "append"
    every: str = "1 second"
    guarantee: str = EXACTLY_ONCE
    # The column with the partition number, instead of Kafka's partitioner.
    partition: str | None = None
    # For an output topic that is created because it is missing.
    partitions: int = BROKER_DECIDES
    replication: int = BROKER_DECIDES
    # The partition columns of a table.
    partition_by: tuple[str, ...] = ()
    sql: str | None = None
    doc: str = ""

    @property
    def keys(self) -> tuple[str, ...]:
        if self.key is None:
            return ()
        return (self.key,) if isinstance(self.key, str) else self.key


def declared(
    name: str,
    build: Callable[[], DataFrame],
    to: str,
    *,
    key: str | Sequence[str] | None = None,
    mode: Mode = "append",
    every: str | timedelta = "1 second",
    guarantee: str = EXACTLY_ONCE,
    partition: str | None = None,
    partitions: int = BROKER_DECIDES,
    replication: int = BROKER_DECIDES,
    partition_by: str | Sequence[str] = (),
    sql: str | None = None,
    doc: str | None = None,
) -> Query:
    """Check a declaration, and return the query."""
    what = f"query {name}"
    if mode not in MODES:
        raise unknown(f"mode for {what}", mode, MODES)
    if guarantee not in GUARANTEES:
        raise unknown(f"guarantee for {what}", guarantee, GUARANTEES)
    place = target(to)
    if place.kind != TOPIC:
        only_topics = {
            "partition": partition is not None,
            "partitions": partitions != BROKER_DECIDES,
            "replication": replication != BROKER_DECIDES,
            "guarantee": guarantee != EXACTLY_ONCE,
        }
        for option, is_given in only_topics.items():
            if is_given:
                raise StreamsError(
                    f"{option}= of {what} applies to topics only, and the query writes to {place}."
                )
    if partition_by and not place.is_table:
        raise StreamsError(
            f"partition_by= of {what} applies to tables only, and the query writes to {place}."
        )
    return Query(
        name=name_of(name, "a query"),
        build=build,
        to=place,
        key=key if key is None or isinstance(key, str) else tuple(key),
        mode=mode,
        every=interval(every, f"every= of {what}", zero=True),
        guarantee=guarantee,
        partition=partition,
        partitions=partitions,
        replication=replication,
        partition_by=(partition_by,) if isinstance(partition_by, str) else tuple(partition_by),
        sql=sql,
        doc=(doc or "").strip(),
    )
