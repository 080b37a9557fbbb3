"""The columns that a DataFrame must have to be written: those of Spark's Kafka sink.

    value       text or bytes; null is a tombstone
    key         text or bytes; it chooses the partition; null or no column: any partition
    headers     array<struct<key: string, value: binary>>
    topic       required if the sink has no topic
    partition   overrides the partition that the key would choose
    timestamp   of the record; by default the time of writing

Other columns are not written. Wrong types are reported before anything runs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

HEADERS = re.compile(r"array<struct<key:string,value:binary>>")
TYPES: Mapping[str, tuple[re.Pattern[str], str]] = {
    "key": (re.compile(r"(string|binary|void|varchar|char)\b.*"), "string or binary"),
    "value": (re.compile(r"(string|binary|void|varchar|char)\b.*"), "string or binary"),
    "headers": (HEADERS, "array<struct<key: string, value: binary>>"),
    "topic": (re.compile(r"(string|varchar|char)\b.*"), "string"),
    "partition": (re.compile(r"int"), "int"),
    "timestamp": (re.compile(r"timestamp(_ntz)?"), "timestamp"),
}


class Unwritable(Exception):
    """Rows that cannot be written or computed, however often it is tried; the text says why."""


def checked(types: Mapping[str, str], topic: str | None) -> list[str]:
    """Return the columns to write, given Spark's names of their types.

    `topic` is the topic of all rows, if there is one; then a column `topic` is ignored.
    """
    if "value" not in types:
        raise Unwritable(
            f"There is no column value; the columns are {', '.join(types) or 'none'}. Add one of "
            "text or bytes, for example with to_json(struct('*')).alias('value')."
        )
    if topic is None and "topic" not in types:
        raise Unwritable("There is no topic to write to: set one, or add a column topic.")
    wanted = [name for name in TYPES if name in types and not (name == "topic" and topic)]
    for name in wanted:
        pattern, expected = TYPES[name]
        if not pattern.fullmatch(types[name]):
            raise Unwritable(f"The column {name} is {types[name]}; it must be {expected}.")
    return wanted
