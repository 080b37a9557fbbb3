"""The pages that this package makes, by name, and the parts that they share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "docs" / "reference"
PAGES = ("apis", "cli", "errors", "events", "python")


def page(name: str) -> str:
    """Return a page as it should be."""
    text: str = import_module(f"reference.{name}").page()
    return text


def head(title: str, source: str) -> list[str]:
    """Return the first lines of a page."""
    return [
        f"# {title}",
        "",
        f"<!-- Generated from {source} by `make docs`; changes here are lost. -->",
        "",
    ]


def table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return a table; cells may have several lines and vertical bars."""
    lines = [f"| {' | '.join(names)} |", "|" + " --- |" * len(names)]
    for row in rows:
        cells = [" ".join(cell.split()).replace("|", "\\|") for cell in row]
        lines.append(f"| {' | '.join(cells)} |")
    return lines
