"""The schema that a declaration means: a dataclass, a DDL, a word, or a schema."""

from __future__ import annotations

import dataclasses
from typing import Any

from pyspark.sql.types import StructType

from hightide.spark.formats import dataclass_schema
from hightide.spark.formats.json_format import JsonSchema
from hightide.spark.formats.text_format import PlainSchema, TextSchema
from hightide.spark.formats.value_schema import BadSchema, Schema


def schema_of(given: Any) -> Schema:
    """Return JSON for a dataclass, a StructType or a DDL; `text` and `raw` parse nothing."""
    if isinstance(given, Schema):
        return given
    if given == "text":
        return TextSchema()
    if given == "raw":
        return PlainSchema()
    return json(given)


def json(given: type | StructType | str, **options: str) -> Schema:
    """Return the schema of JSON objects. Options are those of Spark's `from_json` and `to_json`."""
    if isinstance(given, type) and dataclasses.is_dataclass(given):
        return JsonSchema(dataclass_schema.struct_of(given), options)
    if isinstance(given, StructType):
        return JsonSchema(given, options)
    if isinstance(given, str) and given.strip():
        return JsonSchema(given, options)
    raise BadSchema(
        f"{given!r} is not a schema; expected a dataclass, a DDL such as 'name STRING, n BIGINT',"
        " 'text', 'raw', avro(…) or protobuf(…)."
    )
