"""docs/reference/errors.md: Kafka's error codes, and which of them a broker of Hightide returns.

A code is returned if the source of the broker names it outside of a comparison: what compares a
code has received it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import hightide
from hightide.wire.errors import ErrorCode
from reference.pages import head, table

_SOURCE = Path(hightide.__file__).parent
_PARTS = ("broker", "core", "log", "wire")


def page() -> str:
    found = returned_codes()
    lines = head("Errors", "the declared codes and the broker's source")
    lines += [
        "What a broker answers, by Kafka's numbers. *Retriable*: clients repeat the request by"
        " themselves, within the time",
        "limits that they have. [Troubleshooting](../guide/troubleshooting.md) begins with what you"
        " see.",
        "",
        *table(
            ("code", "name", "retriable", "meaning"),
            (
                (str(int(code)), f"`{code.name}`", "yes" if code.retriable else "no", code.meaning)
                for code in ErrorCode
                if code in found
            ),
        ),
        "",
        "## Codes that brokers of Hightide do not return",
        "",
        "They belong to parts of Kafka that Hightide does not have, or clients use them among"
        " themselves:",
        ", ".join(f"`{code.name}`" for code in ErrorCode if code not in found and code) + ".",
    ]
    return "\n".join(lines) + "\n"


def returned_codes() -> set[ErrorCode]:
    """Return the codes that the source of the broker gives out."""
    found = set()
    for part in _PARTS:
        for path in (_SOURCE / part).rglob("*.py"):
            if path.name != "errors.py":
                found |= set(_named(ast.parse(path.read_text("utf-8"))))
    return found - {ErrorCode.NONE}


def _named(node: ast.AST) -> Iterator[ErrorCode]:
    if isinstance(node, ast.Compare | ast.MatchValue):
        return
    match node:
        case ast.Attribute(value=ast.Name(id="ErrorCode"), attr=name) if name in _NAMES:
            yield ErrorCode[name]
    for child in ast.iter_child_nodes(node):
        yield from _named(child)


_NAMES = {code.name for code in ErrorCode}
