"""A line as a record: its key, value and headers."""

from __future__ import annotations

import datetime
import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from hightide.ingest.lines import Line

FILE = "hightide.file"
POSITION = "hightide.position"
HOST = "hightide.host"


class Record(NamedTuple):
    """A record to produce. Like a line, it is a tuple because there are many of them."""

    value: bytes
    key: bytes | None = None
    headers: list[tuple[str, bytes]] | None = None


@dataclass(frozen=True, slots=True)
class RecordFormat:
    """How lines become records.

    The key is the path of the file, which keeps a file's lines in order; or a member of the JSON
    object in the line (`json:user`); or none, and lines are spread over all partitions.
    """

    host: str
    key: str = "path"
    format: Literal["raw", "json"] = "raw"

    def record(self, path: str, line: Line, now_s: float) -> Record:
        file = encoded(path)
        headers = [(FILE, file), (POSITION, b"%d" % line.start), (HOST, encoded(self.host))]
        value = line.text if self.format == "raw" else self._envelope(path, line, now_s)
        return Record(value, key_of(self.key, line.text, file), headers)

    def _envelope(self, path: str, line: Line, now_s: float) -> bytes:
        made = {
            "file": path,
            "position": line.start,
            "host": self.host,
            "at": datetime.datetime.fromtimestamp(now_s, datetime.UTC).isoformat(),
            # Bytes that are not UTF-8 are escaped, so that they can be read back.
            "line": line.text.decode(errors="backslashreplace"),
        }
        return json.dumps(made, ensure_ascii=False).encode(errors="backslashreplace")


def check_key(key: str, *words: str) -> None:
    """Raise ValueError if a key rule is neither one of the words nor a JSON field."""
    if key not in words and (not key.startswith("json:") or key == "json:"):
        raise ValueError(f"{key!r} is not a key; expected {', '.join(words)} or json:FIELD")


@lru_cache(maxsize=1024)
def encoded(name: str) -> bytes:
    """Return a path as the file system's bytes; cached, because the same few paths recur."""
    return name.encode(errors="surrogateescape")


def key_of(key: str, value: bytes, path: bytes | None = None) -> bytes | None:
    """Return the key of a record by its rule; None if the rule finds none."""
    if key == "path":
        return path
    if key == "none":
        return None
    try:
        found: Any = json.loads(value)
    except (ValueError, RecursionError):
        return None
    for name in key.removeprefix("json:").split("."):
        found = found.get(name) if isinstance(found, dict) else None
    if found is None:
        return None
    # JSON can escape half of a surrogate pair, which UTF-8 cannot encode.
    text = found if isinstance(found, str) else json.dumps(found)
    return text.encode(errors="backslashreplace")
