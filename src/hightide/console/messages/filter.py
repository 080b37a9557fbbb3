"""The filter of a scan: a text in key, value or headers, or a whole key.  Pure."""

from __future__ import annotations

from dataclasses import dataclass

from hightide.wire.batch import Record

PLACES = ("key", "value", "headers")


@dataclass(frozen=True, slots=True)
class Filter:
    """Which records to show.

    A text is compared with the stored bytes, not with decoded Avro or Protobuf.  Without
    `match_case`, upper and lower case are the same, in all scripts.
    """

    text: str = ""
    places: tuple[str, ...] = PLACES
    match_case: bool = False
    key: bytes | None = None
    """The whole key, if only the records of one key are wanted."""

    @property
    def is_empty(self) -> bool:
        return not self.text and self.key is None

    def accepts(self, record: Record) -> bool:
        if self.key is not None and record.key != self.key:
            return False
        if not self.text:
            return True
        if "value" in self.places and self._is_in(record.value):
            return True
        if "key" in self.places and self._is_in(record.key):
            return True
        return "headers" in self.places and any(
            self._is_in(name.encode("utf-8", "surrogateescape")) or self._is_in(value)
            for name, value in record.headers
        )

    def _is_in(self, data: bytes | None) -> bool:
        if not data:
            return False
        if self.match_case:
            return self.text.encode() in data
        if self.text.isascii():
            return self.text.lower().encode() in data.lower()
        return self.text.casefold() in data.decode("utf-8", "replace").casefold()
