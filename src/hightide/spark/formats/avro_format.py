"""Avro values, decoded and encoded by fastavro in Arrow batches: no jar.

The given schema is the reader's. With a registry, the writer's schema is looked up by the id in
front of each value, and Avro's rules of resolution apply; without one, the writer's schema is
assumed to be the same.

A value that starts with a zero byte may have Confluent's prefix, or be Avro that starts so. With
`prefix="auto"` it is decoded with the prefix, to its last byte, and if that fails, without.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import fastavro
import pyarrow as pa
from pyspark.sql.types import StructField, StructType

from hightide.spark.formats import avro_types, confluent
from hightide.spark.formats.arrow_rows import BadRecord, decoded_by, encoded_by
from hightide.spark.formats.value_schema import BadSchema, Schema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

Prefix = Literal["auto", "confluent", "none"]
# What fastavro raises for bytes that do not fit the schema.
UNREADABLE = (
    EOFError, ValueError, TypeError, IndexError, KeyError, OverflowError, ArithmeticError,
    fastavro.read.SchemaResolutionError,
)  # fmt: skip


@dataclass(frozen=True)
class AvroSchema(Schema):
    """An Avro schema; its text is sent to executors and parsed there once."""

    text: str
    registry: str | None = field(default=None, repr=False)  # it may have a password
    prefix: Prefix = "auto"
    prefix_id: int | None = None
    format = "avro"

    @property
    def type(self) -> StructType:
        return _codec(self).type

    def decode(self, rows: DataFrame, *, with_reasons: bool = True) -> DataFrame:  # noqa: ARG002
        return decoded_by(rows, self.type, lambda: _codec(self).decode)

    def encode(self, row: Column) -> Column:
        return encoded_by(row, lambda: _codec(self).encode, "Avro")


def avro(
    schema: dict[str, Any] | str | Path | None = None,
    *,
    registry: str | None = None,
    subject: str | None = None,
    prefix: Prefix = "auto",
    prefix_id: int | None = None,
) -> Schema:
    """Return the schema of Avro values.

    It is a dict, JSON or the path of an .avsc file, or the latest of a subject in a registry. With
    `prefix_id`, encoded values get Confluent's prefix.
    """
    if registry is not None:
        try:
            confluent.check_url(registry)
        except ValueError as error:
            raise BadSchema(f"avro(): {error}.") from None
    if schema is None:
        if registry is None or subject is None:
            raise BadSchema("avro() needs a schema, or a registry and a subject.")
        found = confluent.Registry(registry).version(subject)
        schema, prefix_id = found["schema"], prefix_id or found.get("id")
    if prefix not in ("auto", "confluent", "none"):
        raise BadSchema(f"prefix is {prefix!r}; expected auto, confluent or none.")
    made = AvroSchema(json.dumps(avro_types.read_schema(schema)), registry, prefix, prefix_id)
    _codec(made)  # Report a wrong schema where it is declared.
    return made


@lru_cache(maxsize=64)
def _codec(schema: AvroSchema) -> AvroCodec:
    return AvroCodec(schema)


class AvroCodec:
    """A parsed schema, with the writers' schemas seen so far."""

    def __init__(self, schema: AvroSchema) -> None:
        self.schema = schema
        self.whole = _parsed(json.loads(schema.text))
        kind = avro_types.kind_of(self.whole)
        # A schema that is not a record has one column.
        self.is_record = isinstance(kind.spark, StructType)
        self.type = (
            kind.spark
            if isinstance(kind.spark, StructType)
            else StructType([StructField("value", kind.spark, kind.is_nullable)])
        )
        self.arrow = kind.arrow if self.is_record else pa.struct([("value", kind.arrow)])
        self.target = _spark_arrow(self.type)
        self.plain = _parsed(_plain(self.whole, *avro_types.TIMES, *avro_types.UNUSED))
        self.reader = _parsed(_plain(self.whole, *avro_types.UNUSED))
        self.registry = None if schema.registry is None else confluent.Registry(schema.registry)
        self.writers: dict[int, Any] = {}

    def decode(self, values: list[bytes | None]) -> tuple[pa.Array, list[str | None]]:
        rows, errors = self._rows(values, self._read)
        try:
            return self._array(rows), errors
        except (pa.ArrowException, OverflowError, TypeError, ValueError):
            # Some value does not fit into its column: find out which.
            rows, errors = self._rows(values, self._read_and_fit)
            return self._array(rows), errors

    def encode(self, row: dict[str, Any]) -> bytes:
        made = io.BytesIO()
        if self.schema.prefix_id is not None:
            made.write(confluent.prefix(self.schema.prefix_id))
        fastavro.schemaless_writer(made, self.whole, row if self.is_record else row["value"])
        return made.getvalue()

    def _rows(
        self, values: list[bytes | None], read: Callable[[bytes], Any]
    ) -> tuple[list[Any], list[str | None]]:
        rows: list[Any] = []
        errors: list[str | None] = [None] * len(values)
        for at, value in enumerate(values):
            try:
                rows.append(None if value is None else read(value))
            except BadRecord as error:
                rows.append(None)
                errors[at] = str(error)
        return rows, errors

    def _read(self, value: bytes) -> Any:
        schema_id = None if self.schema.prefix == "none" else confluent.prefixed(value)
        if schema_id is None:
            if self.schema.prefix == "confluent":
                raise BadRecord("the value has no prefix with a schema id")
            return self._read_as(value, self.plain, None)
        bare = value[confluent.PREFIX.size :]
        try:
            if self.registry is None:
                return self._read_as(bare, self.plain, None)
            return self._read_as(bare, self._writer(schema_id), self.reader)
        except BadRecord as first:
            if self.schema.prefix == "confluent":
                raise
            try:
                return self._read_as(value, self.plain, None)
            except BadRecord:
                raise first from None

    def _read_as(self, value: bytes, writer: Any, reader: Any) -> Any:
        stream = io.BytesIO(value)
        try:
            row = fastavro.schemaless_reader(stream, writer, reader)
        except UNREADABLE as error:
            words = str(error) or type(error).__name__
            raise BadRecord(f"the value does not fit the Avro schema: {words}") from None
        if stream.tell() != len(value):
            more = len(value) - stream.tell()
            raise BadRecord(f"the value does not fit the Avro schema: {more} bytes are left over")
        return row if self.is_record else {"value": row}

    def _read_and_fit(self, value: bytes) -> Any:
        row = self._read(value)
        try:
            self._array([row])
        except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
            raise BadRecord(f"a value does not fit into its column: {error}") from None
        return row

    def _array(self, rows: list[Any]) -> pa.Array:
        found = pa.array(rows, self.arrow)
        # Spark has no nanoseconds; the cast loses nothing else.
        return found if found.type == self.target else found.cast(self.target, safe=False)

    def _writer(self, schema_id: int) -> Any:
        assert self.registry is not None
        if schema_id not in self.writers:
            try:
                found = self.registry.schema(schema_id)
                named = self._references(found)
            except confluent.UnknownSchema as error:
                raise BadRecord(str(error)) from None
            written = _plain(json.loads(found["schema"]), *avro_types.UNUSED)
            self.writers[schema_id] = _parsed(written, named)
        return self.writers[schema_id]

    def _references(self, found: dict[str, Any]) -> dict[str, Any]:
        """Return the named types of other subjects that a schema uses."""
        assert self.registry is not None
        named: dict[str, Any] = {}
        for reference in found.get("references") or ():
            used = self.registry.version(reference["subject"], reference["version"])
            named |= self._references(used)
            _parsed(json.loads(used["schema"]), named)
        return named


def _parsed(schema: Any, named: dict[str, Any] | None = None) -> Any:
    try:
        return fastavro.parse_schema(
            schema, named_schemas={} if named is None else named, _force=True
        )
    except (fastavro.schema.SchemaParseException, fastavro.schema.UnknownType) as error:
        raise BadSchema(f"The Avro schema cannot be used: {error}.") from None
    except (KeyError, TypeError, AttributeError) as error:
        raise BadSchema(f"The Avro schema is incomplete: {error}.") from None


def _plain(schema: Any, *names: str) -> Any:
    return avro_types.without_logical(schema, frozenset(names))


def _spark_arrow(struct: StructType) -> pa.DataType:
    from pyspark.sql.pandas.types import to_arrow_type

    from hightide.spark.formats.value_schema import relaxed

    return to_arrow_type(relaxed(struct), timezone="UTC")
