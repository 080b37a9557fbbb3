"""Windows and intervals of event time, as columns of PySpark.

    orders.stream().groupBy(tumbling("1 minute"), "user").count()
    orders.join(payments, (F.col("o.id") == F.col("p.id")) & within("5 minutes", "o.ts", "p.ts"))

Windows use the event time of the topic that the query reads, or the column `on=`. They are a column
`window` with `start` and `end`; the end is exclusive.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from hightide.spark.streams.durations import interval, milliseconds
from hightide.spark.streams.errors import StreamsError
from hightide.spark.streams.query_context import event_time

if TYPE_CHECKING:
    from pyspark.sql import Column


def tumbling(size: str | timedelta, *, on: str | None = None) -> Column:
    """Windows of one size that follow each other; each row is in one of them."""
    from pyspark.sql import functions as F

    length = interval(size, "The size of a window")
    return F.window(on or event_time("tumbling"), length).alias("window")


def sliding(size: str | timedelta, every: str | timedelta, *, on: str | None = None) -> Column:
    """Windows of one size, a new one every `every`; a row is in several."""
    from pyspark.sql import functions as F

    length, step = interval(size, "The size of a window"), interval(every, "The step of a window")
    if milliseconds(every, "") > milliseconds(size, ""):
        raise StreamsError(
            f"Windows of {length} every {step} would skip rows: every= must not exceed the size."
        )
    return F.window(on or event_time("sliding"), length, step).alias("window")


def session(gap: str | timedelta, *, on: str | None = None) -> Column:
    """Windows that end when no row has come for `gap`; group by a key as well."""
    from pyspark.sql import functions as F

    length = interval(gap, "The gap of a session")
    return F.session_window(on or event_time("session"), length).alias("window")


def within(
    size: str | timedelta,
    first: str | Column,
    second: str | Column,
    *,
    before: str | timedelta = "0 seconds",
) -> Column:
    """Return whether `second` is at most `size` after `first`, or at most `before` earlier.

    Both ends are inclusive. As the condition of a stream-stream join it tells Spark how long to
    keep each side.
    """
    from pyspark.sql import functions as F

    start = F.col(first) if isinstance(first, str) else first
    end = F.col(second) if isinstance(second, str) else second
    later = F.expr(f"INTERVAL {interval(size, 'The size of within', zero=True)}")
    earlier = F.expr(f"INTERVAL {interval(before, 'before= of within', zero=True)}")
    return (end >= start - earlier) & (end <= start + later)
