"""A query as it is declared, before Spark has seen it.

What can be found wrong by looking at the declaration alone is found here, when the app is read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Literal, get_args

from hightide.spark.streams.durations import interval
from hightide.spark.streams.errors import StreamsError, unknown
from hightide.spark.streams.target import TOPIC, Target, name_of, target

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Mode = Literal["append", "update", "complete"]
MODES: tuple[Mode, ...] = get_args(Mode)
EXACTLY_ONCE = "exactly-once"
AT_LEAST_ONCE = "at-least-once"
GUARANTEES = (EXACTLY_ONCE, AT_LEAST_ONCE)
BROKER_DECIDES = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    name: str
    build: Callable[[], DataFrame]
    to: Target
    key: str | tuple[str, ...] | None = None
    mode: Mode = "append"
    every: str = "1 second"
    guarantee: str = EXACTLY_ONCE
    # The column that holds the number of the partition, if Kafka's partitioner shall not decide.
    partition: str | None = None
    # What an output topic is made with if it is missing.
    partitions: int = BROKER_DECIDES
    replication: int = BROKER_DECIDES
    # Columns that a table is laid out by.
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
    """A query whose declaration makes sense."""
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
                raise StreamsError(f"{option}= of {what} is about topics, and it goes to {place}.")
    if partition_by and not place.is_table:
        raise StreamsError(f"partition_by= of {what} is about tables, and it goes to {place}.")
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
