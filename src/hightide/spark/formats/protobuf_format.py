"""Protobuf values, decoded and encoded by the protobuf package in Arrow batches: no jar.

A schema is a set of file descriptors (`protoc --include_imports --descriptor_set_out=…`) and the
name of a message, or the class of a generated module. The descriptors are sent to executors, so
these need no generated code. Confluent's prefix is recognised: no Protobuf message starts with a
zero byte.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, json_format
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from pyspark.sql.types import StructType

from hightide.spark.formats import confluent, protobuf_columns
from hightide.spark.formats.arrow_rows import decoded_by, encoded_by, spread
from hightide.spark.formats.value_schema import BadSchema, Schema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# What a message raises that its columns cannot hold. JSON has no NaN, so a Struct with one is
# among them.
UNFIT = (pa.ArrowException, OverflowError, ValueError, json_format.Error)


@dataclass(frozen=True)
class ProtobufSchema(Schema):
    """The descriptors and the message among them."""

    descriptors: bytes = field(repr=False)
    message: str
    prefix_id: int | None = None
    format = "protobuf"

    @property
    def type(self) -> StructType:
        return _codec(self).type

    def decode(self, rows: DataFrame, *, with_reasons: bool = True) -> DataFrame:  # noqa: ARG002
        return decoded_by(rows, self.type, lambda: _codec(self).decode)

    def encode(self, row: Column) -> Column:
        return encoded_by(row, lambda: _codec(self).encode, self.message)


def protobuf(
    given: str | Path | bytes | type, message: str | None = None, *, prefix_id: int | None = None
) -> Schema:
    """Return the schema of Protobuf values.

    It is a file of descriptors (or its bytes) and the name of the message, or a generated class.
    With `prefix_id`, encoded values get Confluent's prefix.
    """
    if isinstance(given, type):
        descriptor = getattr(given, "DESCRIPTOR", None)
        if descriptor is None:
            raise BadSchema(f"{given.__name__} is not a generated message class.")
        files: dict[str, Any] = {}
        _collect(descriptor.file, files)
        found = descriptor_pb2.FileDescriptorSet(file=files.values()).SerializeToString()
        return _checked(ProtobufSchema(found, descriptor.full_name, prefix_id))
    if isinstance(given, str | Path):
        path = Path(given)
        try:
            given = path.read_bytes()
        except OSError as error:
            raise BadSchema(f"The descriptors {path} cannot be read: {error.strerror}.") from None
    if message is None:
        raise BadSchema("protobuf() needs the name of the message, such as 'shop.Order'.")
    return _checked(ProtobufSchema(given, message, prefix_id))


def _checked(schema: ProtobufSchema) -> Schema:
    _codec(schema)  # Report a wrong schema where it is declared.
    return schema


def _collect(file: Any, files: dict[str, Any]) -> None:
    """Add a file's descriptor after those it depends on."""
    for dependency in file.dependencies:
        _collect(dependency, files)
    if file.name not in files:
        made = descriptor_pb2.FileDescriptorProto()
        file.CopyToProto(made)
        files[file.name] = made


@lru_cache(maxsize=64)
def _codec(schema: ProtobufSchema) -> ProtobufCodec:
    return ProtobufCodec(schema)


class ProtobufCodec:
    """A message type with its columns."""

    def __init__(self, schema: ProtobufSchema) -> None:
        self.name = schema.message
        descriptor = _descriptor(schema)
        self.make = GetMessageClass(descriptor)
        self.columns = protobuf_columns.columns_of(descriptor)
        self.type = protobuf_columns.struct_of(self.columns)
        # Only proto2 has required fields.
        self.has_required = any(field.is_required for field in descriptor.fields)
        self.prefix = b""
        if schema.prefix_id is not None:
            path = confluent.indexes(_path(descriptor))
            self.prefix = confluent.prefix(schema.prefix_id) + path

    def decode(self, values: list[bytes | None]) -> tuple[pa.Array, list[str | None]]:
        try:
            return self._decode(values, fit=False)
        except UNFIT:
            # Some value does not fit into its column: find out which.
            return self._decode(values, fit=True)

    def _decode(
        self, values: list[bytes | None], *, fit: bool
    ) -> tuple[pa.Array, list[str | None]]:
        messages = []
        errors: list[str | None] = [None] * len(values)
        make = self.make.FromString
        for at, value in enumerate(values):
            if value is None:
                continue
            try:
                message = make(value if value[:1] != b"\0" else _bare(value))
            except (DecodeError, ValueError) as error:
                errors[at] = f"the value is not a message {self.name}: {error}"
                continue
            try:
                if fit:
                    protobuf_columns.array_of(self.columns, [message])
            except UNFIT as error:
                errors[at] = f"a value does not fit into its column: {error}"
                continue
            if self.has_required and not message.IsInitialized():
                lacking = ", ".join(message.FindInitializationErrors())
                errors[at] = f"the message {self.name} lacks {lacking}"
                continue
            messages.append(message)
        found = protobuf_columns.array_of(self.columns, messages)
        if len(found) < len(values):
            found = spread(found, errors, [value is None for value in values])
        return found, errors

    def encode(self, row: dict[str, Any]) -> bytes:
        message = self.make(**protobuf_columns.arguments_of(self.columns, row))
        return self.prefix + bytes(message.SerializeToString())


def _bare(value: bytes) -> bytes:
    if confluent.prefixed(value) is None:
        raise ValueError("it starts with a zero byte")
    return value[confluent.end_of_indexes(value, confluent.PREFIX.size) :]


def _descriptor(schema: ProtobufSchema) -> Any:
    pool = descriptor_pool.DescriptorPool()
    try:
        for file in descriptor_pb2.FileDescriptorSet.FromString(schema.descriptors).file:
            pool.Add(file)
        return pool.FindMessageTypeByName(schema.message)
    except DecodeError:
        raise BadSchema("The bytes are not a set of Protobuf descriptors.") from None
    except (KeyError, TypeError) as error:
        reason = str(error).strip("'\"")
        raise BadSchema(
            f"The message {schema.message} is not among the descriptors: {reason}"
            " (protoc needs --include_imports)."
        ) from None


def _path(message: Any) -> list[int]:
    """Return the indexes of a message within its file, outer messages first."""
    if message.containing_type is None:
        return [list(message.file.message_types_by_name.values()).index(message)]
    outer = message.containing_type
    return [*_path(outer), list(outer.nested_types).index(message)]
