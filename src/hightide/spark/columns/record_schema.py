"""The columns of Spark's Kafka source: their order, their names and their types.

Spark compares the schema of the first Arrow batch of a Python source with its own, field by field,
so the types here are exactly those that PySpark makes of the DDL.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
HEADERS = "headers"

HEADER_TYPE = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
HEADERS_TYPE = pa.list_(pa.field("element", HEADER_TYPE))
_TYPES: dict[str, tuple[pa.DataType, str]] = {
    "key": (pa.binary(), "BINARY"),
    "value": (pa.binary(), "BINARY"),
    "topic": (pa.string(), "STRING"),
    "partition": (pa.int32(), "INT"),
    "offset": (pa.int64(), "BIGINT"),
    "timestamp": (pa.timestamp("us", tz="UTC"), "TIMESTAMP"),
    "timestampType": (pa.int32(), "INT"),
    HEADERS: (HEADERS_TYPE, "ARRAY<STRUCT<key: STRING, value: BINARY>>"),
}


def chosen(*, headers: bool = False, columns: Sequence[str] | None = None) -> tuple[str, ...]:
    """The columns that are wanted, in Spark's order; ValueError for a name that is none of them."""
    every = (*COLUMNS, HEADERS) if headers else COLUMNS
    if columns is None:
        return every
    for name in columns:
        if name not in _TYPES:
            known = ", ".join((*COLUMNS, HEADERS))
            raise ValueError(f"{name!r} is no column of a topic; these are: {known}")
    return tuple(name for name in (*COLUMNS, HEADERS) if name in columns)


def arrow_schema(*, headers: bool = False, columns: Sequence[str] | None = None) -> pa.Schema:
    """What a decoder with the same arguments yields."""
    names = chosen(headers=headers, columns=columns)
    return pa.schema([pa.field(name, _TYPES[name][0]) for name in names])


def ddl(*, headers: bool = False, columns: Sequence[str] | None = None) -> str:
    """The same for Spark."""
    names = chosen(headers=headers, columns=columns)
    return ", ".join(f"{name} {_TYPES[name][1]}" for name in names)
