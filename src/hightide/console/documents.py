"""The documentation as HTML: the same pages that a reader of the files has.

    docs/guide/metrics.md ──▶ the page "guide/metrics" ──▶ /docs/guide/metrics in the console

An installation has the files beside this module; a checkout has them in its own folders. Links
between pages stay links; links to files that are not pages, such as sources, become plain text.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

INSTALLED = Path(__file__).parent / "documents"
CHECKOUT = Path(__file__).parents[3]
FIRST = "index"
PICTURES = (".png", ".svg")
_WEB = re.compile(r"https?://")


@dataclass(frozen=True, slots=True)
class Document:
    """A page: its title, its text, and the names of what it links to are those of pages."""

    name: str
    title: str
    html: str


@dataclass(frozen=True, slots=True)
class Documents:
    """All pages and pictures, by their names."""

    pages: dict[str, Path]
    pictures: dict[str, Path]
    names: dict[str, str]
    """The name of a page by its path from the root, such as docs/guide/metrics.md."""

    @classmethod
    def of(cls, root: Path) -> Documents:
        files = [*root.glob("*.md"), *root.glob("docs/**/*.md")]
        paths = {file.relative_to(root).as_posix(): file for file in files}
        names = {path: path.removeprefix("docs/").removesuffix(".md") for path in paths}
        folder = root / "docs"
        pictures = {
            file.relative_to(folder).as_posix(): file
            for file in folder.glob("**/*")
            if file.suffix in PICTURES
        }
        return cls({names[path]: file for path, file in paths.items()}, pictures, names)

    def document(self, name: str) -> Document | None:
        file = self.pages.get(name)
        if file is None:
            return None
        path = next(path for path, known in self.names.items() if known == name)
        tokens = _markdown().parse(file.read_text("utf-8"))
        title = name
        slugs: dict[str, int] = {}
        for at, token in enumerate(tokens):
            if token.type == "heading_open":
                text = _text(tokens[at + 1])
                if token.tag == "h1":
                    title = text
                token.attrSet("id", _anchor(text, slugs))
            for child in token.children or ():
                self._rewrite(child, posixpath.dirname(path))
        html = _markdown().renderer.render(tokens, _markdown().options, {})
        # What may be wider than the page scrolls, also by keyboard. Text has no such tags: its
        # angle brackets are escaped.
        for tag in ("pre", "table"):
            html = html.replace(f"<{tag}>", f'<{tag} tabindex="0">')
        return Document(name, title, html)

    def _rewrite(self, token: Token, folder: str) -> None:
        """Let a link or a picture lead to the console's own paths."""
        attribute = {"link_open": "href", "image": "src"}.get(token.type)
        if attribute is None:
            return
        target = str(token.attrs.get(attribute, ""))
        if _WEB.match(target):
            token.attrSet("rel", "noopener noreferrer")
            token.attrSet("target", "_blank")
            return
        given, _, fragment = target.partition("#")
        if not given:
            return
        path = posixpath.normpath(posixpath.join(folder, given))
        picture = path.removeprefix("docs/")
        if path in self.names:
            name = self.names[path]
            place = "/docs" if name == FIRST else f"/docs/{name}"
            token.attrSet(attribute, f"{place}#{fragment}" if fragment else place)
        elif picture in self.pictures:
            token.attrSet(attribute, f"/api/v1/pictures/{picture}")
        else:
            token.attrs.pop(attribute, None)


@cache
def documents() -> Documents:
    return Documents.of(INSTALLED if INSTALLED.is_dir() else CHECKOUT)


@cache
def _markdown() -> MarkdownIt:
    return MarkdownIt("commonmark", {"html": False}).enable("table")


def _text(inline: Token) -> str:
    return "".join(child.content for child in inline.children or ())


def _anchor(title: str, slugs: dict[str, int]) -> str:
    """The anchor of a heading, as GitHub makes it."""
    slug = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
    count = slugs.get(slug, 0)
    slugs[slug] = count + 1
    return f"{slug}-{count}" if count else slug
