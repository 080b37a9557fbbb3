"""A query run on lists of dicts: as a batch, without brokers, in a second once Spark runs.

    app.test(revenue, orders=[{"user": "ada", "amount": 2.0, "ts": "2026-01-01T00:00:05"}])

The rows pass through bytes and the topic's schema like records, so a row that a topic would refuse
is refused here too. A batch sees all rows at once: there is no late data, and an aggregation gives
its final result only. `_key` in a dict is the record's key and `_time` its timestamp; a dict with
nothing else is a deletion.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from hightide.spark.explain import in_words
from hightide.spark.streams.errors import StreamsError, listed, unknown
from hightide.spark.streams.output import check, results
from hightide.spark.streams.query_context import building
from hightide.spark.streams.topic import KEY, RECORD_TIME, Topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from hightide.spark.streams.app import App
    from hightide.spark.streams.query import Query

RAW = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, "
    "timestampType INT, headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)
BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)
Rows = Sequence[Mapping[str, Any]]


def run_trial(app: App, query: Query, given: Mapping[str, Rows]) -> list[dict[str, Any]]:
    """Return the rows that the query makes of these rows, in no particular order."""
    for name in given:
        if name not in app.topics:
            raise unknown("topic", name, app.topics)
    raw = {name: raw_rows(app, app.topics[name], rows) for name, rows in given.items()}
    try:
        with building(query.name, raw):
            found = query.build()
        check(app, found, query)
        # Through Arrow, times are in UTC, and not in the local time zone.
        rows: list[dict[str, Any]] = (
            results(found, query).drop(KEY).toArrow().to_pylist(maps_as_pydicts="strict")
        )
        return rows
    except StreamsError:
        raise
    except Exception as error:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        if not isinstance(error, PySparkException | Py4JError):
            raise
        raise StreamsError(f"Query {query.name}: {in_words(error)}") from None


def raw_rows(app: App, topic: Topic, rows: Rows) -> DataFrame:
    """Return the rows as the source would."""
    fields = topic.schema.type.names
    records = [record(topic, fields, index, row) for index, row in enumerate(rows)]
    return app.spark.createDataFrame(records, RAW)


def record(
    topic: Topic, fields: Sequence[str], index: int, row: Mapping[str, Any]
) -> tuple[Any, ...]:
    """Return one dict as a record."""
    for name in row:
        if name not in (*fields, KEY, RECORD_TIME):
            raise StreamsError(
                f"Row {index} of {topic.name} has {name!r}; the topic has {listed(fields)}."
            )
    values = {name: value for name, value in row.items() if name not in (KEY, RECORD_TIME)}
    if KEY not in row and topic.key and all(name in values for name in topic.key):
        key: Any = key_text([values[name] for name in topic.key], topic.key)
    else:
        key = row.get(KEY)
    is_plain = topic.schema.format in ("text", "raw")
    value = values.get("value") if is_plain else (json_text(values) if values else None)
    when = row.get(RECORD_TIME) or (topic.time and values.get(topic.time))
    stamp = moment(when) if when else BEGINNING + timedelta(seconds=index)
    return (as_bytes(key), as_bytes(value), topic.name, 0, index, stamp, 0, None)


def key_text(values: Sequence[Any], names: Sequence[str]) -> str:
    """Return a key as the sink would write it."""
    if len(values) == 1:
        return str(values[0])
    return json.dumps(dict(zip(names, values, strict=True)), separators=(",", ":"), default=plain)


def json_text(values: Mapping[str, Any]) -> str:
    return json.dumps(values, default=plain)


def plain(value: Any) -> Any:
    """Return a value that JSON lacks in the form that Spark reads."""
    match value:
        case datetime() | date():
            return value.isoformat()
        case Decimal():
            return str(value)
        case bytes():
            return base64.b64encode(value).decode()
    raise StreamsError(f"{value!r} is a {type(value).__name__}, which a row cannot hold.")


def moment(when: Any) -> datetime:
    """Return a time of a row; without a time zone it is in UTC."""
    found = datetime.fromisoformat(when) if isinstance(when, str) else when
    if not isinstance(found, datetime):
        raise StreamsError(f"{when!r} is not a time; write it like 2026-01-31T12:00:00.")
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def as_bytes(value: Any) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    return str(value).encode()


def matches(found: Rows, expected: Rows) -> str | None:
    """Return None if the rows are the expected ones, in any order; else the difference.

    An expected row needs only the columns that matter, and times may be text.
    """
    left = [dict(row) for row in found]
    for row in expected:
        fitting = next((candidate for candidate in left if _fits(candidate, row)), None)
        if fitting is None:
            return f"Missing row: {dict(row)}. Other rows: {left}."
        left.remove(fitting)
    return f"Unexpected rows: {left}." if left else None


def _fits(found: Any, expected: Any) -> bool:
    if isinstance(expected, Mapping) and isinstance(found, Mapping):
        return all(name in found and _fits(found[name], value) for name, value in expected.items())
    if isinstance(found, datetime) and isinstance(expected, str | datetime):
        return moment(found) == moment(expected)
    if isinstance(found, Decimal | date) and isinstance(expected, str):
        return str(found) == expected
    return bool(found == expected)
