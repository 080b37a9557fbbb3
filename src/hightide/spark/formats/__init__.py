"""The formats of a topic's values: JSON, Avro, Protobuf or plain text; and bad records.

schema_of(Order)                          a dataclass: JSON
schema_of("user STRING NOT NULL, n INT")  a DDL: JSON
schema_of("text"), schema_of("raw")       values unchanged
avro("order.avsc"), protobuf("shop.desc", "shop.Order")
decoded(raw, schema, on_error="dlq:bad")  records to rows
encoded(rows, schema, key="user")         rows to records
"""

from hightide.spark.formats.avro_format import avro
from hightide.spark.formats.bad_records import OnError, bad_rows, decoded
from hightide.spark.formats.protobuf_format import protobuf
from hightide.spark.formats.record_encoder import encoded
from hightide.spark.formats.schema_choice import json, schema_of
from hightide.spark.formats.value_schema import BadSchema, Schema

__all__ = [
    "BadSchema",
    "OnError",
    "Schema",
    "avro",
    "bad_rows",
    "decoded",
    "encoded",
    "json",
    "protobuf",
    "schema_of",
]
