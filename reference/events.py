"""docs/reference/events.md: every kind of event with its facts and their types."""

from __future__ import annotations

import importlib
import inspect
import re
import typing
from dataclasses import fields
from enum import Enum
from pathlib import Path

import hightide
from hightide.core.events import KINDS, Event
from reference.pages import head, table

_SOURCE = Path(hightide.__file__).parent
_DECLARES = re.compile(r"(?m)^class \w+\(Event\):")


def page() -> str:
    lines = head("Events", "the declared kinds")
    lines += [
        "Every kind of event that brokers record, with the facts of `data` in JSON."
        " [Events](../guide/events.md) has a",
        "sentence of each, the levels of those whose level depends on the facts, and how to read"
        " them.",
    ]
    kinds = every_kind()
    for name in sorted(kinds):
        kind = kinds[name]
        level = "depends on the facts" if "level" in kind.__dict__ else kind.severity.value
        lines += [
            "",
            f"## `{name}`",
            "",
            f"{inspect.cleandoc(kind.__doc__ or '')} Level: {level}.",
            "",
            *table(("fact", "type"), _facts(kind)),
        ]
    return "\n".join(lines) + "\n"


def every_kind() -> dict[str, type[Event]]:
    """Import the modules that declare events, and return all kinds by name."""
    for path in sorted(_SOURCE.rglob("*.py")):
        if _DECLARES.search(path.read_text("utf-8")):
            parts = path.relative_to(_SOURCE).with_suffix("").parts
            importlib.import_module(".".join(("hightide", *parts)))
    return {name: kind for name, kind in KINDS.items() if kind.__module__.startswith("hightide.")}


def _facts(kind: type[Event]) -> list[tuple[str, str]]:
    types = typing.get_type_hints(kind)
    return [(f"`{part.name}`", _type(types[part.name])) for part in fields(kind)]


def _type(declared: object) -> str:
    """Name a type as JSON has it."""
    if isinstance(declared, type) and issubclass(declared, Enum):
        return "one of " + ", ".join(f"`{value.name.lower()}`" for value in declared)
    if typing.get_origin(declared) in (tuple, frozenset):
        return f"list of {_type(typing.get_args(declared)[0])}"
    names = {int: "integer", str: "string", bool: "boolean", float: "number", type(None): "null"}
    if declared in names:
        return names[declared]
    return " or ".join(_type(part) for part in typing.get_args(declared)) or str(declared)
