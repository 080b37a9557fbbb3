"""Kafka's messages, one typed class each for all the versions that are served.

`REQUESTS` and `RESPONSES` lead from an API key to the class.  The modules are imported
when a key is first looked up: a broker starts before it has read them all, and a client
never needs most of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

# API key → the name that its request and answer share, and the module of both.
APIS: dict[int, tuple[str, str]] = {}


class _ByKey(Mapping[int, type[Any]]):
    """API key → message class, importing the class's module when it is asked for."""

    def __init__(self, suffix: str) -> None:
        self._suffix = suffix
        self._found: dict[int, type[Any]] = {}

    def __getitem__(self, key: int) -> type[Any]:
        found = self._found.get(key)
        if found is None:
            name, module = APIS[key]
            found = getattr(import_module(f"{__name__}.{module}"), name + self._suffix)
            self._found[key] = found
        return found

    def __contains__(self, key: object) -> bool:
        return key in APIS

    def __iter__(self) -> Iterator[int]:
        return iter(APIS)

    def __len__(self) -> int:
        return len(APIS)


REQUESTS: Mapping[int, type[Any]] = _ByKey("Request")
RESPONSES: Mapping[int, type[Any]] = _ByKey("Response")
