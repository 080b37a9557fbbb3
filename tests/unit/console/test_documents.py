"""The documentation in the console: every page is shown, and every link leads somewhere."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from hightide.console.documents import Documents, documents
from hightide.console.routes.docs import routes

PAGES = documents()


@pytest.fixture(scope="module")
def client() -> TestClient:
    console: Any = SimpleNamespace()
    return TestClient(Starlette(routes=routes(console)))


@pytest.mark.parametrize("name", sorted(PAGES.pages))
def test_a_page_has_a_title_and_its_links_lead_to_pages_and_headings(name: str) -> None:
    page = PAGES.document(name)
    assert page is not None
    assert page.title != name
    for target in re.findall(r'(?:href|src)="([^"]+)"', page.html):
        if re.match(r"https?://", target):
            continue
        path, _, anchor = target.partition("#")
        if path.startswith("/api/v1/pictures/"):
            assert path.removeprefix("/api/v1/pictures/") in PAGES.pictures
            continue
        linked = name if not path else path.removeprefix("/docs").lstrip("/") or "index"
        found = PAGES.document(linked)
        assert found is not None, target
        assert not anchor or f'id="{anchor}"' in found.html, target


def test_the_server_gives_pages_and_pictures(client: TestClient) -> None:
    page = client.get("/api/v1/docs/guide/metrics").json()
    assert page["title"] == "Metrics and health"
    assert '<h2 id="health">' in page["html"]
    picture = client.get("/api/v1/pictures/pictures/overview.png")
    assert picture.headers["content-type"] == "image/png"


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/docs/nothing",
        "/api/v1/docs/%2e%2e/pyproject",
        "/api/v1/docs//etc/passwd",
        "/api/v1/pictures/%2e%2e/%2e%2e/LICENSE",
        "/api/v1/pictures/index.md",
    ],
)
def test_only_known_files_are_given(client: TestClient, path: str) -> None:
    assert client.get(path).status_code == 404


def test_tags_are_text_and_unknown_files_are_no_links(tmp_path: Path) -> None:
    (tmp_path / "docs" / "guide").mkdir(parents=True)
    page = tmp_path / "docs" / "guide" / "page.md"
    page.write_text(
        "# One\n\n<script>alert(1)</script>\n\n[source](../../src/x.py) [top](#one) [web](https://a.b)\n"
        "\n[bad](javascript:alert(1)) [up](../../README.md)\n\n## One\n"
    )
    (tmp_path / "README.md").write_text("# Read me\n")
    found = Documents.of(tmp_path).document("guide/page")
    assert found is not None
    assert "<script>" not in found.html
    assert "javascript:" not in found.html or 'href="javascript:' not in found.html
    assert "<a>source</a>" in found.html
    assert '<a href="#one">' in found.html
    assert 'href="https://a.b" rel="noopener noreferrer" target="_blank"' in found.html
    assert '<a href="/docs/README">up</a>' in found.html
    assert [*re.findall(r'id="([^"]+)"', found.html)] == ["one", "one-1"]
