"""A real browser for the console's tests: pages that keep what went wrong in them, and axe-core."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page

from fetch_libraries import NotVendored, Package, vendor
from hightide.process import ConsoleProcess
from hightide.testing import Cluster

ROOT = Path(__file__).parents[2]
CHROMIUM = Path("/usr/bin/chromium")
STATIC = ROOT / "src/hightide/console/static"
NARROW, WIDE = 375, 1440
SERIOUS = {"serious", "critical"}
AXE = Package(
    "axe-core",
    "4.14.0",
    "sha512-9WTZxEjsZ7b13TH8JPmbV2z8CHbl80/2hm3XPEG4JgNdQLK81IBRXmSxHfMAOkSqQeRxT/0dwNDz2GOm3zzpcQ==",
    {"axe.min.js": "axe.js"},
    "axe-core",
)
# Says what the policy of the page has refused; a page of the console asks for nothing of the kind.
VIOLATIONS = """
window.refusedByPolicy = [];
document.addEventListener("securitypolicyviolation", (event) => {
  window.refusedByPolicy.push(`${event.violatedDirective} ${event.blockedURI}`);
});
"""


@dataclass(slots=True)
class Tab:
    """A page, and what its scripts and the browser complained about."""

    page: Page
    url: str
    """Of the console."""
    problems: list[str] = field(default_factory=list)
    expected: tuple[str, ...] = ()
    """Parts of complaints that the test means to cause."""

    def open(self, path: str) -> Page:
        """Open a page of the console and wait until it is live and shows what it has loaded."""
        self.page.goto(self.url + path)
        self.page.wait_for_selector(".connection .badge.ok")
        self.page.wait_for_selector("main :is(h1, h2, .sentence, .panel)")
        self.page.wait_for_selector("main .loading", state="detached")
        return self.page

    def note(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            self.problems.append(f"{message.type}: {message.text} {message.location['url']}")

    def complaints(self) -> list[str]:
        """What should not have been there."""
        found = [
            *self.problems,
            *(f"policy: {one}" for one in self.page.evaluate("window.refusedByPolicy ?? []")),
        ]
        return [one for one in found if not any(part in one for part in self.expected)]


@contextmanager
def tab(browser: Browser, url: str, *, width: int = WIDE, theme: Any = "light") -> Iterator[Tab]:
    """A new tab without history; its complaints fail the test at the end."""
    context = browser.new_context(
        base_url=url,
        viewport={"width": width, "height": 900},
        color_scheme=theme,
        reduced_motion="reduce",
    )
    context.set_default_timeout(20_000)
    context.add_init_script(VIOLATIONS)
    try:
        page = context.new_page()
        opened = Tab(page, url)

        def note(
            message: ConsoleMessage,
        ) -> None:  # Playwright keeps something on a method's object
            opened.note(message)

        page.on("console", note)
        page.on("pageerror", lambda error: opened.problems.append(f"uncaught: {error}"))
        yield opened
        complaints = opened.complaints()
        assert not complaints, "\n".join(complaints)
    finally:
        context.close()


@contextmanager
def console(cluster: Cluster | str, folder: Path, *more: str) -> Iterator[str]:
    """A console process for a cluster; gives its URL."""
    bootstrap = cluster if isinstance(cluster, str) else cluster.bootstrap
    arguments = ["--bootstrap", bootstrap, "--port", "0", *more]
    process = ConsoleProcess(arguments, folder / "console.log")
    try:
        yield f"http://{process.start()}"
    finally:
        if process.has_pipes:
            process.stop()


def axe_script() -> str:
    """The script of axe-core, fetched once into `build/`."""
    folder = ROOT / "build" / "axe-core"
    try:
        vendor(folder, (AXE,))
    except NotVendored as problem:
        pytest.skip(f"axe-core cannot be fetched: {problem}")
    return (folder / "axe.js").read_text()


def violations(page: Page, script: str) -> list[str]:
    """The serious and critical violations that axe finds in a page, a line each.

    The script comes through the debugger, since the page's policy allows none from elsewhere.
    """
    page.evaluate(f"() => {{ {script}\n }}")
    found = page.evaluate("() => axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{violation['id']} ({violation['impact']}): {violation['help']}: "
        + json.dumps([node["target"] for node in violation["nodes"]][:5])
        for violation in found["violations"]
        if violation["impact"] in SERIOUS
    ]
