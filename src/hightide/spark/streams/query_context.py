"""Which query is being built, and what it has read so far.

A query is a function without arguments. So this context tells a topic about the query that reads it
(its group, the rows of a test), and a window about the topics (their event time). Outside of
queries, in a notebook, there is one context for the whole process.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hightide.spark.streams.errors import StreamsError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(slots=True)
class QueryContext:
    query: str = ""
    # In a test: the rows of topics, instead of those of the brokers.
    given: Mapping[str, DataFrame] | None = None
    # The event times of the topics that were read as streams.
    times: dict[str, str] = field(default_factory=dict)


_outside = QueryContext()
_current: ContextVar[QueryContext] = ContextVar("query_context", default=_outside)


def current_context() -> QueryContext:
    return _current.get()


@contextmanager
def building(query: str, given: Mapping[str, DataFrame] | None = None) -> Iterator[QueryContext]:
    token = _current.set(QueryContext(query, given))
    try:
        yield _current.get()
    finally:
        _current.reset(token)


def event_time(window: str) -> str:
    """Return the column of a window without `on=`: the event time of the topics that are read."""
    times = current_context().times
    if len(set(times.values())) == 1:
        return next(iter(times.values()))
    if not times:
        raise StreamsError(
            f"{window} needs an event time: declare the topic with time=COLUMN and late=, "
            "or name a column of timestamps with on=."
        )
    found = ", ".join(f"{topic}.{column}" for topic, column in times.items())
    raise StreamsError(f"{window} could use {found}: choose one with on=.")
