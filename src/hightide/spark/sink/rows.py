"""What a DataFrame must look like to be written: the columns of Spark's Kafka sink.

    value       text or bytes; null is a tombstone
    key         the same; it chooses the partition; null, or no column: any partition
    headers     array<struct<key: string, value: binary>>
    topic       where there is no one topic for all
    partition   where the key shall not choose
    timestamp   of the record; without it, the time when it is written

Other columns are not written.  What is wrong is said before anything runs, where the types show it.
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
    """Rows that cannot be written or made, however often one tries; the text says why."""


def checked(types: Mapping[str, str], topic: str | None) -> list[str]:
    """The columns to write of those there are, by the names that Spark has for their types.

    `topic` is the one that all rows go to, if there is one.  Then nobody asks the rows.
    """
    if "value" not in types:
        raise Unwritable(
            f"There is no column value, only {', '.join(types) or 'none at all'}. Make one of "
            "text or bytes, for example with to_json(struct('*')).alias('value')."
        )
    if topic is None and "topic" not in types:
        raise Unwritable("Where to? Name a topic, or add a column topic.")
    wanted = [name for name in TYPES if name in types and not (name == "topic" and topic)]
    for name in wanted:
        pattern, words = TYPES[name]
        if not pattern.fullmatch(types[name]):
            raise Unwritable(f"The column {name} is {types[name]}; it must be {words}.")
    return wanted
