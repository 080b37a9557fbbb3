"""Read the documents as tests need them: code blocks, and the table of the classic description."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
CLASSIC = ROOT / "docs" / "internals" / "classic.md"

BLOCK = re.compile(r"(?ms)^( *)```(\w+)\n(.*?)^\1```")


class Statement(NamedTuple):
    """One row of docs/internals/classic.md."""

    number: int
    files: list[str]
    tests: list[str]
    command: str


class Block(NamedTuple):
    """A code block of a page that names its language."""

    page: str
    """The path from the root of the project."""
    language: str
    text: str


def statements() -> list[Statement]:
    found = []
    for line in CLASSIC.read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("| ").split(" | ")]
        if cells[0].isdigit():
            files, tests, commands = (re.findall(r"`([^`]+)`", cell) for cell in cells[-3:])
            found.append(Statement(int(cells[0]), files, tests, commands[0]))
    return found


def pages() -> list[str]:
    """Return the paths of all pages."""
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    return sorted(str(path.relative_to(ROOT)) for path in found)


def blocks(page: str, *languages: str) -> list[Block]:
    """Return the code blocks of a page that are in these languages, or in any."""
    text = (ROOT / page).read_text("utf-8")
    found = [Block(page, match[2], match[3]) for match in BLOCK.finditer(text)]
    return [block for block in found if not languages or block.language in languages]


def shell_blocks(page: Path) -> list[str]:
    """Return the blocks of a page that are marked as `sh`."""
    return re.findall(r"(?ms)^```sh\n(.*?)^```", page.read_text("utf-8"))


def commands(block: str) -> list[str]:
    """Return the lines of a block without their comments."""
    lines = (re.sub(r"\s+#.*", "", line).strip() for line in block.splitlines())
    return [line for line in lines if line]
