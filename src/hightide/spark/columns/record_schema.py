"""The columns of Spark's Kafka source: their order, names and types.

Spark compares the schema of a Python source's first Arrow batch with its own, field by field, so
the types here are exactly those that PySpark makes of the DDL.
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
    """Return the wanted columns in Spark's order; raise ValueError for an unknown name."""
    every = (*COLUMNS, HEADERS) if headers else COLUMNS
    if columns is None:
        return every
    for name in columns:
        if name not in _TYPES:
            known = ", ".join((*COLUMNS, HEADERS))
            raise ValueError(f"{name!r} is not a column of a topic; expected one of {known}")
    return tuple(name for name in (*COLUMNS, HEADERS) if name in columns)


def arrow_schema(*, headers: bool = False, columns: Sequence[str] | None = None) -> pa.Schema:
    """Return the schema of a decoder with the same arguments."""
    names = chosen(headers=headers, columns=columns)
    return pa.schema([pa.field(name, _TYPES[name][0]) for name in names])


def ddl(*, headers: bool = False, columns: Sequence[str] | None = None) -> str:
    """Return the same schema as DDL, for Spark."""
    names = chosen(headers=headers, columns=columns)
    return ", ".join(f"{name} {_TYPES[name][1]}" for name in names)
