"""An app as a YAML file: topics, and queries in SQL. SQL is the only query language in it.

    app: shop
    topics:
      orders: {schema: "id BIGINT, user STRING, amount DOUBLE, ts TIMESTAMP", time: ts, late: 10 s}
    queries:
      totals:
        sql: SELECT window(ts, '1 minute') AS window, sum(amount) AS total FROM orders GROUP BY 1
        to: totals
        mode: update
    tests:
      adds up:
        query: totals
        given: {orders: [{amount: 2, ts: "2026-01-01T00:00:05"}]}
        expect: [{total: 2}]

An unknown key, or a value of the wrong type, is an error that names the path of the key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from hightide.spark.streams.errors import StreamsError, listed

TEXT = (str,)
TEXTS = (str, list)
TOPIC_KEYS = {
    "schema": (str, dict),
    "time": TEXT,
    "late": TEXT,
    "key": TEXTS,
    "on_error": TEXT,
    "start": (str, datetime, date),
    "options": (dict,),
}
QUERY_KEYS = {
    "sql": TEXT,
    "to": TEXT,
    "key": TEXTS,
    "mode": TEXT,
    "every": TEXT,
    "guarantee": TEXT,
    "partition": TEXT,
    "partitions": (int,),
    "replication": (int,),
    "partition_by": TEXTS,
}
TEST_KEYS = {"query": TEXT, "given": (dict,), "expect": (list,)}
APP_KEYS = {
    "app": TEXT,
    "brokers": TEXT,
    "master": TEXT,
    "state": TEXT,
    "settings": (dict,),
    "options": (dict,),
    "topics": (dict,),
    "queries": (dict,),
    "tests": (dict,),
}
WORDS = {str: "text", int: "a number", list: "a list", dict: "a mapping", datetime: "a time"}


@dataclass(frozen=True, slots=True)
class Document:
    """The content of a file, with known keys only."""

    app: dict[str, Any]
    topics: dict[str, dict[str, Any]] = field(default_factory=dict)
    queries: dict[str, dict[str, Any]] = field(default_factory=dict)
    tests: dict[str, dict[str, Any]] = field(default_factory=dict)


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """A YAML loader that refuses a key that is written twice; YAML would take the last."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            name = self.construct_object(key, deep=True)
            if name in seen:
                raise StreamsError(f"line {key.start_mark.line + 1}: {name} is there twice.")
            seen.add(name)
        found: dict[Any, Any] = super().construct_mapping(node, deep)
        return found


def read(path: str | Path) -> Document:
    try:
        text = Path(path).read_text("utf-8")
    except OSError as error:
        raise StreamsError(f"{path} cannot be read: {error.strerror}.") from None
    try:
        return parsed(text)
    except StreamsError as error:
        raise StreamsError(f"{path}: {error}") from None


def parsed(text: str) -> Document:
    """Parse a YAML text."""
    try:
        # _Loader is a SafeLoader that only refuses more.
        given = yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark is not None else ""
        raise StreamsError(
            f"{where}this is not YAML: {getattr(error, 'problem', error)}."
        ) from None
    if not isinstance(given, dict):
        raise StreamsError("an app starts with app: NAME.")
    top = checked(given, APP_KEYS, "", needed=("app", "queries"))
    topics = section(top, "topics", TOPIC_KEYS, needed=("schema",))
    queries = section(top, "queries", QUERY_KEYS, needed=("sql", "to"))
    tests = section(top, "tests", TEST_KEYS, needed=("query", "given", "expect"))
    for key in ("settings", "options"):
        if key in top:
            top[key] = scalars(top[key], key)
    for name, topic in topics.items():
        if "options" in topic:
            topic["options"] = scalars(topic["options"], f"topics.{name}.options")
    return Document(top, topics, queries, tests)


def section(
    top: dict[str, Any], key: str, known: Mapping[str, tuple[type, ...]], *, needed: tuple[str, ...]
) -> dict[str, dict[str, Any]]:
    """Return the checked entries of a mapping."""
    found = {}
    for name, entry in top.pop(key, {}).items():
        path = f"{key}.{name}"
        if not isinstance(entry, dict):
            raise StreamsError(f"{path} must be a mapping with {listed(needed)}.")
        found[str(name)] = checked(entry, known, path, needed=needed)
    return found


def checked(
    entry: Mapping[Any, Any],
    known: Mapping[str, tuple[type, ...]],
    path: str,
    *,
    needed: tuple[str, ...],
) -> dict[str, Any]:
    where = f"{path}." if path else ""
    for key, value in entry.items():
        if key not in known:
            near = get_close_matches(str(key), known, 1)
            meant = f" Did you mean {near[0]}?" if near else f" Expected one of {listed(known)}."
            raise StreamsError(f"{where}{key} is unknown.{meant}")
        if not isinstance(value, known[key]) or isinstance(value, bool):
            wanted = " or ".join(WORDS[kind] for kind in known[key] if kind in WORDS)
            raise StreamsError(f"{where}{key} is {value!r}; expected {wanted}.")
    for key in needed:
        if key not in entry:
            raise StreamsError(f"{where}{key} is missing.")
    return dict(entry)


def scalars(entry: Mapping[Any, Any], path: str) -> dict[str, str]:
    """Return options as text, as Spark takes them."""
    found = {}
    for key, value in entry.items():
        if isinstance(value, dict | list) or value is None:
            raise StreamsError(f"{path}.{key} is {value!r}; expected text or a number.")
        found[str(key)] = str(value).lower() if isinstance(value, bool) else str(value)
    return found


def schema_in(given: str | Mapping[str, Any], folder: Path) -> Any:
    """Return a schema of a file: a DDL, `{avro: FILE}` or `{protobuf: FILE, message: NAME}`."""
    if isinstance(given, str):
        return given
    from hightide.spark.formats import avro, protobuf

    if given.keys() == {"avro"}:
        return avro(folder / given["avro"])
    if given.keys() == {"protobuf", "message"}:
        return protobuf(folder / given["protobuf"], given["message"])
    raise StreamsError(
        f"{given!r} is not a schema: write columns, {{avro: FILE}} "
        "or {protobuf: FILE, message: NAME}."
    )
