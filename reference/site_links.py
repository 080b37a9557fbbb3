"""A hook of mkdocs: pages outside of docs/ become pages of the site, and links follow them.

The pages are written to be read as files. Links to source files have no place in the site, so only
their text stays.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.structure.files import Files

ROOT = Path(__file__).parents[1]
PROJECT = ("README", "ARCHITECTURE", "CHANGELOG", "CONTRIBUTING", "SECURITY")
LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")


def on_files(files: Files, *, config: Any) -> Files:
    """Add the pages of the root."""
    from mkdocs.structure.files import File

    for name in PROJECT:
        text = (ROOT / f"{name}.md").read_text("utf-8")
        files.append(File.generated(config, place_of(f"{name}.md"), content=text))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Turn links between files into links between pages of the site."""
    place = page.file.src_uri
    source = source_of(place)

    def linked(found: re.Match[str]) -> str:
        text, target = found.groups()
        if re.match(r"[a-z]+:|#", target):
            return found[0]
        file, mark, heading = target.partition("#")
        goal = place_of(posixpath.normpath(posixpath.join(posixpath.dirname(source), file)))
        if not goal:
            return text
        return (
            f"[{text}]({posixpath.relpath(goal, posixpath.dirname(place) or '.')}{mark}{heading})"
        )

    return LINK.sub(linked, markdown)


def source_of(place: str) -> str:
    """Return the file, from the root, of a page of the site."""
    folder, _, name = place.partition("/")
    if folder == "project":
        return name.removesuffix(".md").upper() + ".md"
    return f"docs/{place}"


def place_of(source: str) -> str:
    """Return the page of the site for a file; an empty text if it has none."""
    if source.startswith("docs/"):
        return source.removeprefix("docs/")
    name = source.removesuffix(".md")
    return f"project/{name.lower()}.md" if name in PROJECT else ""
