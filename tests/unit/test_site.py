"""The site has every page, and links between files become links between its pages."""

from __future__ import annotations

import re
from types import SimpleNamespace

from reference.site_links import PROJECT, on_page_markdown, place_of, source_of
from tests.support.pages import ROOT, pages

NAV = (ROOT / "mkdocs.yml").read_text("utf-8").partition("\nnav:\n")[2]
LISTED = re.findall(r": (\S+\.md)$", NAV, re.MULTILINE)


def linked(place: str, markdown: str) -> str:
    page = SimpleNamespace(file=SimpleNamespace(src_uri=place))
    return on_page_markdown(markdown, page=page)


def test_every_page_is_in_the_navigation_once() -> None:
    expected = [place for page in pages() if (place := place_of(page))]
    assert sorted(LISTED) == sorted(expected)


def test_a_page_of_the_site_knows_its_file() -> None:
    assert [place_of(source_of(place)) for place in LISTED] == LISTED
    assert source_of(f"project/{PROJECT[0].lower()}.md") == "README.md"


def test_links_lead_to_pages_of_the_site() -> None:
    assert linked("index.md", "[a](../README.md#b)") == "[a](project/readme.md#b)"
    assert linked("project/readme.md", "[a](docs/index.md)") == "[a](../index.md)"
    assert linked("project/readme.md", "[a](CHANGELOG.md)") == "[a](changelog.md)"
    assert linked("guide/groups.md", "[a](#b) [c](https://d.example)") == (
        "[a](#b) [c](https://d.example)"
    )
    assert linked("guide/groups.md", "![a](x.png)") == "![a](x.png)"


def test_a_link_to_a_source_file_is_text() -> None:
    assert linked("internals/classic.md", "see [a `b`](../../tests/x.py)!") == "see a `b`!"
