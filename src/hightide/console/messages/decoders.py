"""Avro and Protobuf values as JSON, for the page.

Avro needs the package fastavro, which only the extra `spark` installs; Protobuf's package is part
of the base install.  Both are imported when a person first asks for them.  A schema comes from the
page or, for Avro, from a schema registry by the id in Confluent's prefix:

    0 | schema id 4 | value            Protobuf has a list of message indexes before the value
"""

from __future__ import annotations

import base64
import datetime
import decimal
import importlib.util
import io
import json
import math
import struct
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections.abc import Callable
from typing import Any

PREFIX = struct.Struct(">bI")
REGISTRY_SECONDS = 5.0
REGISTRY_BYTES = 4 * 1024 * 1024
MOST_SCHEMAS = 500
WHOLE = "whole_value"
NO_FASTAVRO = (
    "Avro needs the package fastavro, which the base install does not have:"
    " pip install fastavro, then start the console again."
)
NO_PROTOBUF = "Protobuf needs the package protobuf: pip install protobuf."

Decode = Callable[[bytes], Any]


class BadSchema(ValueError):
    """A schema that cannot be used; the text is a sentence for people."""


def has_avro() -> bool:
    return importlib.util.find_spec("fastavro") is not None


def has_protobuf() -> bool:
    try:
        return importlib.util.find_spec("google.protobuf") is not None
    except ModuleNotFoundError:
        return False


def check_registry(url: str) -> None:
    """Raise BadSchema unless this is the URL of a registry; the text does not show it."""
    try:
        parts = urllib.parse.urlsplit(url)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_valid = False
    if not is_valid:
        raise BadSchema("A schema registry has a URL http://host:port or https://host:port.")


class Registry:
    """The writers' schemas of a schema registry, remembered by id."""

    def __init__(self, url: str) -> None:
        check_registry(url)
        self._parts = urllib.parse.urlsplit(url)
        self._known: dict[int, Any] = {}

    @property
    def address(self) -> str:
        """The URL without user and password."""
        host = self._parts.netloc.rpartition("@")[2]
        path = self._parts.path.rstrip("/")
        return urllib.parse.urlunsplit((self._parts.scheme, host, path, "", ""))

    def schema(self, schema_id: int) -> Any:
        """The parsed Avro schema of an id; waits for the registry, so call it in a thread."""
        if schema_id not in self._known:
            if len(self._known) >= MOST_SCHEMAS:
                self._known.clear()
            try:
                self._known[schema_id] = self._parsed(self._get(f"/schemas/ids/{schema_id}"))
            except BadSchema as error:
                # A registry that is away must not be asked once for each record.
                self._known[schema_id] = error
        found = self._known[schema_id]
        if isinstance(found, BadSchema):
            raise BadSchema(str(found))
        return found

    def forget_failures(self) -> None:
        """Ask again for the schemas that could not be read, as when a new scan begins."""
        for key in [key for key, found in self._known.items() if isinstance(found, BadSchema)]:
            del self._known[key]

    def _parsed(self, found: dict[str, Any]) -> Any:
        if found.get("schemaType", "AVRO") != "AVRO":
            raise BadSchema(f"The schema is not Avro but {found['schemaType']}.")
        named: dict[str, Any] = {}
        self._read_references(found, named, depth=0)
        return avro_schema(found["schema"], named)

    def _read_references(self, found: dict[str, Any], named: dict[str, Any], depth: int) -> None:
        if depth > 16:
            raise BadSchema("The references of the schema are too deep.")
        for reference in found.get("references") or ():
            subject = urllib.parse.quote(str(reference["subject"]), safe="")
            used = self._get(f"/subjects/{subject}/versions/{reference['version']}")
            self._read_references(used, named, depth + 1)
            _parse_avro(used["schema"], named)

    def _get(self, path: str) -> dict[str, Any]:
        request = urllib.request.Request(self.address + path)
        if self._parts.username is not None:
            user = urllib.parse.unquote(self._parts.username)
            pair = f"{user}:{urllib.parse.unquote(self._parts.password or '')}"
            coded = base64.b64encode(pair.encode()).decode()
            # Not sent on to another server that a redirect names.
            request.add_unredirected_header("Authorization", f"Basic {coded}")
        try:
            with urllib.request.urlopen(request, timeout=REGISTRY_SECONDS) as response:
                found = json.loads(response.read(REGISTRY_BYTES))
        except urllib.error.HTTPError as error:
            with error:
                if error.code == 404:
                    raise BadSchema(f"The schema registry has no {path}.") from None
                raise BadSchema(f"The schema registry answers {error.code} to {path}.") from None
        except (OSError, ValueError) as error:
            why = getattr(error, "reason", error)
            raise BadSchema(
                f"The schema registry at {self.address} cannot be read: {why}."
            ) from None
        if not isinstance(found, dict) or not isinstance(found.get("schema"), str):
            raise BadSchema(f"The schema registry answers {path} without a schema.")
        return found


def avro_schema(text: str, named: dict[str, Any] | None = None) -> Any:
    """The schema of a record whose only field has the given schema: its bytes are the same.

    Only a record of fastavro knows the named types of other schemas that it uses.
    """
    try:
        schema = json.loads(text)
    except ValueError as error:
        raise BadSchema(f"The Avro schema is not JSON: {error}.") from None
    whole = {"type": "record", "name": WHOLE, "fields": [{"name": WHOLE, "type": schema}]}
    return _parse_avro(json.dumps(whole), {} if named is None else named)


def _parse_avro(text: str, named: dict[str, Any]) -> Any:
    try:
        import fastavro
    except ImportError:
        raise BadSchema(NO_FASTAVRO) from None
    try:
        return fastavro.parse_schema(json.loads(text), named_schemas=named)
    except Exception as error:
        raise BadSchema(f"The Avro schema cannot be used: {error}.") from None


def avro_decoder(text: str | None, registry: Registry | None) -> Decode:
    """A decoder with a given schema, or with the registry's schema for each value."""
    if not has_avro():
        raise BadSchema(NO_FASTAVRO)
    given = avro_schema(text) if text else None
    if given is None and registry is None:
        raise BadSchema(
            "Avro needs a schema: paste one, or start the console with a schema registry."
        )

    def decode(data: bytes) -> Any:
        is_prefixed = len(data) >= PREFIX.size and data[0] == 0
        if given is not None:
            try:
                return _read_avro(given, data)
            except ValueError:
                if not is_prefixed:
                    raise
                return _read_avro(given, data[PREFIX.size :])
        if not is_prefixed or registry is None:
            raise ValueError("The bytes do not begin with the id of a schema.")
        (_, schema_id) = PREFIX.unpack_from(data)
        return _read_avro(registry.schema(schema_id), data[PREFIX.size :])

    return decode


def _read_avro(schema: Any, data: bytes) -> Any:
    import fastavro

    stream = io.BytesIO(data)
    try:
        found: Any = fastavro.schemaless_reader(stream, schema, None)
    except Exception as error:
        why = str(error) or type(error).__name__
        raise ValueError(f"The bytes do not fit the Avro schema: {why}.") from None
    if stream.tell() != len(data):
        left = len(data) - stream.tell()
        raise ValueError(f"The bytes do not fit the Avro schema: {left} bytes are left over.")
    return plain(found[WHOLE])


def protobuf_decoder(descriptors: bytes, message: str) -> Decode:
    """A decoder for a message of a descriptor set, as protoc --include_imports writes it."""
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, json_format
        from google.protobuf.message import DecodeError
        from google.protobuf.message_factory import GetMessageClass
    except ImportError:
        raise BadSchema(NO_PROTOBUF) from None
    pool = descriptor_pool.DescriptorPool()
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(descriptors).file
        for file in files:
            pool.Add(file)
        if not message:
            message = _only_message(files)
        make = GetMessageClass(pool.FindMessageTypeByName(message))
    except BadSchema:
        raise
    except DecodeError:
        raise BadSchema(
            "The file is not a set of descriptors; make it with"
            " protoc --include_imports --descriptor_set_out=FILE."
        ) from None
    except KeyError:
        raise BadSchema(
            f"The descriptors have no message {message}, or lack what it imports"
            " (protoc needs --include_imports)."
        ) from None
    except Exception as error:
        raise BadSchema(f"The descriptors cannot be used: {error}.") from None

    def decode(data: bytes) -> Any:
        try:
            # No message begins with a zero byte, so that is Confluent's prefix.
            bare = data[_end_of_indexes(data) :] if data[:1] == b"\0" else data
            found = make.FromString(bare)
            return plain(
                json_format.MessageToDict(
                    found, preserving_proto_field_name=True, descriptor_pool=pool
                )
            )
        except Exception as error:
            raise ValueError(f"The bytes are not a message {message}: {error}.") from None

    return decode


def _only_message(files: Any) -> str:
    found = [
        f"{file.package}.{message.name}" if file.package else message.name
        for file in files
        for message in file.message_type
    ]
    if len(found) != 1:
        listed = ", ".join(found[:20]) or "none"
        raise BadSchema(f"Name the message; the descriptors have {listed}.")
    return found[0]


def _end_of_indexes(data: bytes) -> int:
    """Where the message begins after Confluent's prefix and its list of indexes."""
    at = PREFIX.size
    count, at = _zigzag(data, at)
    for _ in range(count):
        _, at = _zigzag(data, at)
    return at


def _zigzag(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 28:
            raise ValueError("the list of message indexes is incomplete")
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at


def plain(value: Any) -> Any:
    """A decoded value as JSON can hold it."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case dict():
            return {str(key): plain(item) for key, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
        case bytes():
            return value.hex()
        case datetime.datetime() | datetime.date() | datetime.time():
            return value.isoformat()
        case decimal.Decimal() | uuid.UUID() | datetime.timedelta():
            return str(value)
    return str(value)
