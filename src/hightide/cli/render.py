"""The only file of the command line that prints.

Commands return dataclasses; this turns them into a table for people or JSON for programs.
Data goes to stdout and talk to stderr.  Tables are plain text with no colour, no frame and
no cut-off cell, so that they can be piped into `awk` as they are.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


class Output(StrEnum):
    """The forms in which every command can answer."""

    TABLE = "table"
    JSON = "json"


def show(rows: Sequence[DataclassInstance], output: Output, columns: Sequence[str] = ()) -> None:
    """Print rows; `columns` picks what a table shows, JSON always has everything."""
    if output is Output.JSON:
        _print_json([plain(row) for row in rows])
    elif rows:
        write(table(rows, columns))


def show_one(value: DataclassInstance, output: Output, leave_out: Collection[str] = ()) -> None:
    """Print one thing: its plain fields as `name: value`, its lists of rows as tables.

    JSON has also what is left out for people.
    """
    if output is Output.JSON:
        _print_json(plain(value))
        return
    names = [each.name for each in dataclasses.fields(value) if each.name not in leave_out]
    fields = [(name, getattr(value, name)) for name in names]
    single = [(name, found) for name, found in fields if not _is_rows(found)]
    width = max((len(name) for name, _ in single), default=0)
    write("".join(f"{_heading(name):<{width}}  {cell(found)}\n" for name, found in single))
    for _, found in fields:
        if _is_rows(found):
            write("\n" + table(found))


def table(
    rows: Sequence[DataclassInstance],
    columns: Sequence[str] = (),
    headings: Mapping[str, str] | None = None,
) -> str:
    """Columns as wide as their widest cell, numbers to the right.

    `headings` picks columns too, and has shorter names for them.
    """
    names = list(columns or headings or [f.name for f in dataclasses.fields(rows[0])])
    values = [[getattr(row, name) for name in names] for row in rows]
    cells = [[(headings or {}).get(name, _heading(name)).upper() for name in names]]
    cells += [[cell(value) for value in line] for line in values]
    widths = [max(len(line[at]) for line in cells) for at in range(len(names))]
    right = [_is_numeric([line[at] for line in values]) for at in range(len(names))]
    out = []
    for line in cells:
        padded = [
            text.rjust(width) if to_right else text.ljust(width)
            for text, width, to_right in zip(line, widths, right, strict=True)
        ]
        out.append("  ".join(padded).rstrip() + "\n")
    return "".join(out)


def cell(value: Any) -> str:
    """One value as a person reads it."""
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:,.2f}"
        case Enum():
            return value.name.lower()
        case list() | tuple():
            return ",".join(cell(each) for each in value) or "-"
        case dict():
            return " ".join(f"{key}={cell(each)}" for key, each in value.items()) or "-"
        case _:
            return str(value)


def say(text: str) -> None:
    """Talk: what a person wants to know and a program must not have to skip."""
    print(text, file=sys.stderr, flush=True)


def write(text: str) -> None:
    """Data, flushed so that a reader at the other end of a pipe sees it now."""
    sys.stdout.write(text)
    sys.stdout.flush()


def fresh_page(text: str) -> str:
    """Text that stands alone on a terminal, and apart from what came before in a file."""
    return f"\x1b[H\x1b[2J{text}" if sys.stdout.isatty() else f"{text}\n"


def write_bytes(data: bytes) -> None:
    """Data that need not be text; it is seen after `push`."""
    sys.stdout.buffer.write(data)


def push() -> None:
    """Hand on what was written so far."""
    sys.stdout.flush()


def json_line(value: Any) -> str:
    """One line of JSON Lines."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n"


def _print_json(value: Any) -> None:
    write(json.dumps(value, ensure_ascii=False, indent=2) + "\n")


def plain(value: Any) -> Any:
    """What JSON makes of a value: dataclasses become objects, enums their names."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.name.lower()
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        return value
    return [plain(each) for each in value]


def _is_rows(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and dataclasses.is_dataclass(value[0])


def _is_numeric(values: list[Any]) -> bool:
    """Numbers, though some may be unknown."""
    known = [each for each in values if each is not None]
    return bool(known) and all(
        isinstance(each, int | float) and not isinstance(each, bool | Enum) for each in known
    )


def _heading(name: str) -> str:
    return name.replace("_", "-")
