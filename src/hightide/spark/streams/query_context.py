"""Which query is being put together, and what it has read so far.

A query is a function without arguments, so what a topic must know of the query that reads it (its
group, the rows of a test) and what a window must know of the topics (their event time) comes this
way.  Outside of queries, in a notebook, one reading goes on for as long as the process.
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
    # In a test: what topics give instead of what brokers have.
    given: Mapping[str, DataFrame] | None = None
    # Topics that were read as streams, with their event times.
    times: dict[str, str] = field(default_factory=dict)


_outside = QueryContext()
_current: ContextVar[QueryContext] = ContextVar("reading", default=_outside)


def reading() -> QueryContext:
    return _current.get()


@contextmanager
def building(query: str, given: Mapping[str, DataFrame] | None = None) -> Iterator[QueryContext]:
    token = _current.set(QueryContext(query, given))
    try:
        yield _current.get()
    finally:
        _current.reset(token)


def event_time(window: str) -> str:
    """The column by which a window goes if nobody says it: the event time of what is read."""
    times = reading().times
    if len(set(times.values())) == 1:
        return next(iter(times.values()))
    if not times:
        raise StreamsError(
            f"{window} needs an event time: declare the topic with time=COLUMN and late=, "
            "or name a column of timestamps with on=."
        )
    found = ", ".join(f"{topic}.{column}" for topic, column in times.items())
    raise StreamsError(f"{window} could go by {found}: say which with on=.")
