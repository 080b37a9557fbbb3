"""Records as text: what `produce` reads and what `consume` prints.

The JSON form is the same in both directions, so records can be piped from one topic into another:
 `hightide consume a -o json | hightide produce b --json`.

    {"topic":"a","partition":0,"offset":7,"timestamp":1731664800000,
     "key":"k","value":"v","headers":[{"key":"h","value":"x"}]}

`dump-log --records -o json` prints the same fields in the `records` of each batch, and `produce`
reads these lines too.  Bytes that are not UTF-8 are base64 under `key_base64` or `value_base64`
instead.  Templates use kcat's letters.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Headers = tuple[tuple[str, bytes | None], ...]


class Damaged(ValueError):
    """A line of `dump-log` reports damage; its records cannot be trusted."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A record to produce; the client chooses what is None."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    partition: int | None = None
    timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Incoming:
    """A consumed record."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


def parse_header(text: str) -> tuple[str, bytes | None]:
    """Parse `name=value`; `name` alone is a header without a value."""
    name, equals, value = text.partition("=")
    if not name:
        raise ValueError(f"{text!r} is not a header; it should be name=value")
    return name, value.encode() if equals else None


def parse_line(
    line: bytes,
    *,
    key: bytes | None,
    separator: bytes | None,
    headers: Headers,
    null_if_empty: bool,
) -> Outgoing:
    """Parse a line of text: the value, or key and value around the first separator."""
    value: bytes | None = line
    if separator is not None:
        before, found, after = line.partition(separator)
        if found:
            key, value = before, after
    if null_if_empty and not value:
        value = None
    return Outgoing(value=value, key=key, headers=headers)


def parse_json(line: bytes, *, key: bytes | None, headers: Headers) -> Iterator[Outgoing]:
    """Parse a line of JSON: an object with `value` and the record's other fields, or a batch as
    `dump-log --records -o json` prints it."""
    try:
        found = json.loads(line)
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError('a line of JSON should be an object such as {"key": "k", "value": "v"}')
    if "damaged" in found or (_is_batch(found) and found["problems"]):
        raise Damaged(found.get("damaged") or "; ".join(map(str, found["problems"])))
    if not _is_batch(found):
        yield _outgoing(found, key, headers)
    elif "control" not in found["flags"]:
        # The markers of transactions are not records of a producer.
        for record in found["records"]:
            yield _outgoing(record, key, headers)


def _is_batch(found: Mapping[str, Any]) -> bool:
    return all(isinstance(found.get(name), list) for name in ("records", "flags", "problems"))


def _outgoing(found: Mapping[str, Any], key: bytes | None, headers: Headers) -> Outgoing:
    if "value" not in found and "value_base64" not in found:
        raise ValueError('the object has no "value"; null is a value too')
    own_key = _bytes_of(found, "key")
    return Outgoing(
        value=_bytes_of(found, "value"),
        key=key if own_key is None else own_key,
        headers=headers + _headers_of(found.get("headers")),
        partition=_whole(found, "partition"),
        timestamp_ms=_whole(found, "timestamp"),
    )


def as_json(record: Incoming) -> dict[str, Any]:
    """A record as an object for one line of JSON."""
    fields: dict[str, Any] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
    }
    return fields | fields_of(record.key, record.value, record.headers)


def fields_of(key: bytes | None, value: bytes | None, headers: Headers) -> dict[str, Any]:
    """What a producer gave a record, as fields of JSON."""
    return {
        **_text("key", key),
        **_text("value", value),
        "headers": [{"key": _utf8(name), **_text("value", value)} for name, value in headers],
    }


LETTERS = re.compile(r"%([topkKsSTh%])")
ESCAPES = {r"\n": "\n", r"\t": "\t", r"\r": "\r", r"\0": "\0", r"\\": "\\"}


def unescape(template: str) -> str:
    """Replace `\\n`, `\\t` and so on, which a shell passes as two characters."""
    return re.sub(r"\\[ntr0\\]", lambda found: ESCAPES[found[0]], template)


def check_template(template: str) -> None:
    """Raise ValueError if a template has a letter that `fill` does not know."""
    for found in re.finditer(r"%(.?)", template, re.DOTALL):
        if not LETTERS.fullmatch(found[0]):
            raise ValueError(
                f"{found[0]!r} is not a letter of the format: use %t %p %o %k %s %K %S %T %h, "
                "and %% for a percent sign"
            )


def fill(template: str, record: Incoming) -> bytes:
    """Fill in a template with kcat's letters: %t topic, %p partition, %o offset, %k key, %s value,
    %K and %S their lengths (-1 for null), %T timestamp, %h headers, %% a percent sign."""
    values: Mapping[str, bytes] = {
        "t": record.topic.encode(),
        "p": str(record.partition).encode(),
        "o": str(record.offset).encode(),
        "k": record.key or b"",
        "s": record.value or b"",
        "K": str(-1 if record.key is None else len(record.key)).encode(),
        "S": str(-1 if record.value is None else len(record.value)).encode(),
        "T": str(record.timestamp).encode(),
        "h": b",".join(
            key.encode() + b"=" + (b"" if value is None else value) for key, value in record.headers
        ),
        "%": b"%",
    }
    out, at = bytearray(), 0
    for found in LETTERS.finditer(template):
        out += template[at : found.start()].encode() + values[found[1]]
        at = found.end()
    return bytes(out + template[at:].encode())


def _utf8(name: str) -> str:
    """A header's name, with replacement characters for bytes that are not UTF-8."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _text(name: str, data: bytes | None) -> dict[str, str | None]:
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def _bytes_of(found: Mapping[str, Any], name: str) -> bytes | None:
    coded = found.get(f"{name}_base64")
    if coded is not None:
        try:
            return base64.b64decode(coded, validate=True)
        except (binascii.Error, TypeError, ValueError):
            raise ValueError(f'"{name}_base64" is not base64') from None
    value = found.get(name)
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    # A value may also be a JSON object.
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _headers_of(found: Any) -> Headers:
    if found is None:
        return ()
    if isinstance(found, dict):
        return tuple((key, _bytes_of({"value": value}, "value")) for key, value in found.items())
    if isinstance(found, list) and all(isinstance(h, dict) and "key" in h for h in found):
        return tuple((str(h["key"]), _bytes_of(h, "value")) for h in found)
    raise ValueError('"headers" should be an object, or a list of {"key": …, "value": …}')


def _whole(found: Mapping[str, Any], name: str) -> int | None:
    value = found.get(name)
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise ValueError(f'"{name}" should be a whole number, not {value!r}')
