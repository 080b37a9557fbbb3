"""The only file of the command line that prints.

Commands return dataclasses, and this file prints them as a table for people or as JSON for
programs.  Data goes to stdout, messages to stderr.  Tables are plain text without colours, frames
or cut-off cells, so that they can be piped into `awk` as they are.

Control characters are escaped in all text but the raw output of `consume`: names, keys and errors
come from other clients, and must not drive the terminal of the reader.
"""

from __future__ import annotations

import dataclasses
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


CONTROLS = re.compile(
    # C0, DEL and C1; marks that reverse text; line separators; halves of pairs in UTF-16.
    r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
SHORT_ESCAPES = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}


def visible(text: str, keep: str = "") -> str:
    """Text with control characters escaped, as Python writes them; those in `keep` stay."""

    def escaped(found: re.Match[str]) -> str:
        character = found[0]
        if character in keep:
            return character
        if character in SHORT_ESCAPES:
            return SHORT_ESCAPES[character]
        number = ord(character)
        return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"

    return CONTROLS.sub(escaped, text)


Part = tuple[str, str]
"""A text, and the name of its style."""
Line = list[Part]

STYLES = {
    "title": "bold",
    "bold": "bold",
    "dim": "dim",
    "ok": "green",
    "warn": "yellow",
    "bad": "bold red",
    "leads": "bold green",
    "in_sync": "green",
    "eligible": "yellow",
    "out": "red",
    "silent": "magenta",
    "gone": "red",
    "committed": "blue",
    "open": "yellow",
    "mark": "bold",
    "all": "green",
    "fewer": "yellow",
    "too_few": "red",
    "unknown": "magenta",
    "offline": "bold red",
}
SIGNS = "█▄░·╌✕★⏸▲✓┃┆▒…→"
ASCII_SIGNS = str.maketrans(SIGNS, "#=e.zx*z!+|:-~>")


class Output(StrEnum):
    """The output formats of every command."""

    TABLE = "table"
    JSON = "json"


def show(rows: Sequence[DataclassInstance], output: Output, columns: Sequence[str] = ()) -> None:
    """Print rows; `columns` selects the columns of a table, JSON always has all fields."""
    if output is Output.JSON:
        _print_json([plain(row) for row in rows])
    elif rows:
        write(table(rows, columns))


def show_one(value: DataclassInstance, output: Output, leave_out: Collection[str] = ()) -> None:
    """Print one value: its plain fields as `name  value`, its lists of rows as tables.

    `leave_out` names fields that only JSON has.
    """
    if output is Output.JSON:
        _print_json(plain(value))
        return
    names = [field.name for field in dataclasses.fields(value) if field.name not in leave_out]
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
    """A table with columns as wide as their widest cell, and numbers aligned right.

    `headings` selects columns too, and gives them shorter names.
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
    """One value as text for people."""
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
            return ",".join(map(cell, value)) or "-"
        case dict():
            return " ".join(f"{cell(key)}={cell(item)}" for key, item in value.items()) or "-"
        case _:
            return visible(str(value))


def counted(number: int, what: str) -> str:
    """A number of things: `1 record`, `2,000 records`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def say(text: str) -> None:
    """Print a message for people to stderr, so that programs need not skip it."""
    print(visible(text, keep="\n\t"), file=sys.stderr, flush=True)


def write(text: str) -> None:
    """Print data, and flush it so that the reader of a pipe sees it now."""
    sys.stdout.write(visible(text, keep="\n\t"))
    sys.stdout.flush()


def write_page(text: str) -> None:
    """Print text on a cleared screen; in a file, text with an empty line after it."""
    if sys.stdout.isatty():
        sys.stdout.write("\x1b[H\x1b[2J")
        write(text)
    else:
        write(f"{text}\n")


def is_interactive() -> bool:
    """Whether stdout is a terminal on which the cursor can be moved."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in ("", "dumb", "unknown")


@contextmanager
def screen(fill: Callable[[int, int], list[Line]]) -> Iterator[Callable[[], None]]:
    """Yield a function that fills the terminal with the lines for its width and height.

    A line that stays the same is drawn over itself, so that nothing flickers.  The terminal shows
    what it showed before when the context ends.
    """
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(highlight=False)
    has_signs = _is_encodable(SIGNS)

    def text() -> Text:
        lines = fill(*console.size)
        found = Text(no_wrap=True, overflow="crop")
        for number, line in enumerate(lines):
            found.append("\n" if number else "")
            for part, style in line:
                found.append(part if has_signs else in_ascii(part), STYLES.get(style, ""))
        return found

    with Live(
        console=console,
        screen=True,
        auto_refresh=False,
        redirect_stdout=False,
        redirect_stderr=False,
    ) as live:
        yield lambda: live.update(text(), refresh=True)


def write_lines(lines: Iterable[Line]) -> None:
    """Print lines without styles; in ASCII if the encoding of stdout does not have their signs."""
    text = "".join(f"{line_text(line).rstrip()}\n" for line in lines)
    write(text if _is_encodable(text) else in_ascii(text))


def line_text(line: Line) -> str:
    return "".join(part for part, _ in line)


def in_ascii(text: str) -> str:
    return text.translate(ASCII_SIGNS).encode("ascii", "replace").decode("ascii")


def _is_encodable(text: str) -> bool:
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True


def write_bytes(data: bytes) -> None:
    """Print bytes, without a flush; see `push`."""
    sys.stdout.buffer.write(data)


def push() -> None:
    """Flush what `write_bytes` has written."""
    sys.stdout.flush()


def json_line(value: Any) -> str:
    """One line of JSON Lines."""
    import json  # imported here, because `hightide up` prints no JSON and must start fast

    return _for_json(json.dumps(value, ensure_ascii=False, separators=(",", ":"))) + "\n"


def _print_json(value: Any) -> None:
    import json

    write(_for_json(json.dumps(value, ensure_ascii=False, indent=2)) + "\n")


def _for_json(text: str) -> str:
    """JSON with the control characters escaped that `json` leaves; it means the same."""
    return CONTROLS.sub(
        lambda found: found[0] if found[0] == "\n" else f"\\u{ord(found[0]):04x}", text
    )


def plain(value: Any) -> Any:
    """A value for JSON: dataclasses become objects, and enums their names."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.name.lower()
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        return value
    return [plain(item) for item in value]


def _is_rows(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and dataclasses.is_dataclass(value[0])


def _is_numeric(values: list[Any]) -> bool:
    """Whether all values are numbers; None is allowed."""
    known = [value for value in values if value is not None]
    return bool(known) and all(
        isinstance(value, int | float) and not isinstance(value, bool | Enum) for value in known
    )


def _heading(name: str) -> str:
    return name.replace("_", "-")
