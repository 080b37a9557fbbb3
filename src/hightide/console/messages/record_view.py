"""A record as JSON for the page: text, JSON, hex, Avro or Protobuf, cut to a size.  Pure.

    {"as": "json", "text": "{…", "size": 17, "cut": false}
    {"as": "null"}                                            no key, or a tombstone

Bytes that are not UTF-8 are shown as hex, unless a person asks for text: then they become
replacement characters, and `"invalid": true` says so.  The page escapes every text.
"""

from __future__ import annotations

import base64
import codecs
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hightide.console.messages.batches import FoundRecord

FORMATS = ("auto", "text", "json", "hex", "base64", "avro", "protobuf")
PREVIEW_BYTES = 2_000
WHOLE_BYTES = 4 * 1024 * 1024
PREVIEW_HEADERS = 20
PREVIEW_HEADER_BYTES = 200
WHOLE_HEADERS = 20_000
HEX_COLUMNS = 16

Decode = Callable[[bytes], Any]
"""Decodes a value to what JSON can hold; raises ValueError with the reason."""


@dataclass(frozen=True, slots=True)
class Shown:
    """How keys and values are shown, and up to which size."""

    key: str = "auto"
    value: str = "auto"
    most_bytes: int = PREVIEW_BYTES
    most_headers: int = PREVIEW_HEADERS
    most_header_bytes: int = PREVIEW_HEADER_BYTES
    decoders: Mapping[str, Decode] = field(default_factory=dict)
    """By format: avro, protobuf."""


PREVIEW = Shown()


def record_view(partition: int, found: FoundRecord, shown: Shown = PREVIEW) -> dict[str, Any]:
    record = found.record
    for_headers = replace(shown, most_bytes=shown.most_header_bytes, decoders={})
    headers = [
        [
            _cut(name.encode("utf-8", "surrogateescape").decode("utf-8", "replace"), for_headers)[
                0
            ],
            bytes_view(value, "auto", for_headers),
        ]
        for name, value in record.headers[: shown.most_headers]
    ]
    return {
        "partition": partition,
        "offset": record.offset,
        "time_ms": record.timestamp,
        "key": bytes_view(record.key, shown.key, shown),
        "value": bytes_view(record.value, shown.value, shown),
        "headers": headers,
        "header_count": len(record.headers),
        "codec": found.codec,
        "transactional": found.transactional,
        "producer_id": found.producer_id if found.producer_id >= 0 else None,
    }


def bytes_view(data: bytes | None, form: str, shown: Shown) -> dict[str, Any]:
    """Bytes in a form; a form that does not fit is replaced, and `problem` says why."""
    if data is None:
        return {"as": "null"}
    view: dict[str, Any] = {"size": len(data)}
    decode = shown.decoders.get(form)
    if decode is not None:
        try:
            text = json.dumps(decode(data), ensure_ascii=False, allow_nan=False)
        except (ValueError, RecursionError) as error:
            view["problem"] = str(error) or type(error).__name__
        else:
            return _finish(view, form, text, shown)
    elif form in ("avro", "protobuf"):
        view["problem"] = f"There is no schema to decode {form.capitalize()}."
    if form in ("hex", "base64"):
        return _binary(view, form, data, shown)
    text, is_valid = _text(data, shown)
    is_json = is_valid and _looks_like_json(text, is_whole=len(data) <= shown.most_bytes)
    if form == "json":
        if not is_json:
            view["problem"] = "The bytes are not JSON."
        return _finish(view, "json" if is_json else "text", text, shown)
    if form != "text":
        if not is_valid:
            return _binary(view, "hex", data, shown)
        return _finish(view, "json" if is_json and text[:1] in ("{", "[") else "text", text, shown)
    if not is_valid:
        view["invalid"] = True
    return _finish(view, "text", text, shown)


def _text(data: bytes, shown: Shown) -> tuple[str, bool]:
    """The text of bytes and whether they are UTF-8; of large ones, only what may be shown."""
    part = data[: shown.most_bytes]
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        # The cut may be in the middle of a character, which is left out then.
        return decoder.decode(part, final=len(part) == len(data)), True
    except UnicodeDecodeError:
        return part.decode("utf-8", "replace"), False


def _looks_like_json(text: str, *, is_whole: bool) -> bool:
    """Whether a text is JSON; of a part of a text, only how it begins is known."""
    if not is_whole:
        return text.lstrip()[:1] in ("{", "[")
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _binary(view: dict[str, Any], form: str, data: bytes, shown: Shown) -> dict[str, Any]:
    part = data[: shown.most_bytes]
    text = base64.b64encode(part).decode() if form == "base64" else part.hex()
    return {**view, "as": form, "text": text, "cut": len(part) < len(data)}


def _finish(view: dict[str, Any], form: str, text: str, shown: Shown) -> dict[str, Any]:
    text, is_cut = _cut(text, shown)
    return {**view, "as": form, "text": text, "cut": is_cut or view["size"] > shown.most_bytes}


def _cut(text: str, shown: Shown) -> tuple[str, bool]:
    return text[: shown.most_bytes], len(text) > shown.most_bytes
