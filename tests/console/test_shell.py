"""The shell around the pages: logging in, read-only, a console that is away and comes back."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from hightide.process import ConsoleProcess
from hightide.testing import Cluster
from tests.console.browsing import Tab, console, violations
from tests.console.browsing import tab as opened

SECRET = "correct horse"


def test_the_login_is_in_the_page_and_leads_back_to_it(
    browser: Browser, cluster: Cluster, tmp_path: Path, axe: str
) -> None:
    file = tmp_path / "password"
    file.write_text(SECRET)
    file.chmod(0o600)
    with (
        console(cluster, tmp_path, "--password-file", str(file)) as url,
        opened(browser, url) as tab,
    ):
        tab.expected = ("403 (Forbidden)",)
        page = tab.page
        page.goto("/events")
        password = page.get_by_role("textbox", name="Password")
        password.fill("wrong")
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("alert")).to_contain_text("The password is wrong.")
        assert violations(page, axe) == []
        password.fill(SECRET)
        password.press("Enter")
        expect(page.locator(".connection")).to_contain_text("live")
        expect(page.locator("nav.pages [aria-current]")).to_have_text("Events")
        # A script cannot read the session, so a script of another cannot take it.
        assert page.evaluate("document.cookie") == ""
        page.reload()
        expect(page.locator(".connection")).to_contain_text("live")


def test_read_only_is_said_on_every_page(
    browser: Browser, cluster: Cluster, tmp_path: Path
) -> None:
    with console(cluster, tmp_path, "--read-only") as url, opened(browser, url) as tab:
        page = tab.open("/")
        expect(page.locator("header .badge", has_text="read-only")).to_be_visible()


@pytest.mark.extended
def test_a_page_survives_a_restart_of_the_console(
    browser: Browser, cluster: Cluster, tmp_path: Path
) -> None:
    process = ConsoleProcess(["--bootstrap", cluster.bootstrap, "--port", "0"], tmp_path / "log")
    address = process.start()
    try:
        with opened(browser, f"http://{address}") as tab:
            # The browser reports each try that fails, and the change with the old token.
            tab.expected = ("net::", "403 (Forbidden)")
            page = tab.open("/")
            process.kill()
            expect(page.locator(".connection")).to_contain_text("no connection")
            process.arguments[-1] = address.rpartition(":")[2]
            process.start()
            expect(page.locator(".connection")).to_contain_text("live", timeout=30_000)
            # The new process has another token: a change gets it by itself.
            status = page.evaluate(
                """() => import("/static/js/api.js")
                  .then((api) => api.post("logout"))
                  .then(() => "done", (error) => error.message)"""
            )
            assert status == "done"
    finally:
        if process.has_pipes:
            process.stop()


@pytest.mark.extended
def test_a_tab_that_is_hidden_lets_its_stream_go(tab: Tab) -> None:
    page = tab.open("/")
    hide = "value => { Object.defineProperty(document, 'hidden', {value, configurable: true});"
    hide += " document.dispatchEvent(new Event('visibilitychange')); }"
    page.evaluate(hide, True)
    expect(page.locator(".connection")).to_have_text(re.compile("paused"), timeout=20_000)
    page.evaluate(hide, False)
    expect(page.locator(".connection")).to_contain_text("live")


def test_text_of_the_cluster_is_never_markup(tab: Tab, cluster: Cluster) -> None:
    page = tab.open("/")
    shown = page.evaluate(
        """async () => {
          const { html, render } = await import("/static/js/lib.js");
          const parts = await import("/static/js/parts.js");
          const evil = "<img src=x onerror='window.evil = 1'>";
          const place = document.createElement("div");
          document.body.append(place);
          render(html`<${parts.Sentence} level="bad" text=${evil} next=${evil} />
            <${parts.Table} columns=${[{ name: "a", title: evil }]} rows=${[{ a: evil }]} />
            <${parts.Badge} level="ok" text=${evil} />
            <${parts.Failed} error=${new Error(evil)} />`, place);
          await new Promise((done) => setTimeout(done, 50));
          const times = place.textContent.split(evil).length - 1;
          const found = [place.querySelectorAll("img").length, window.evil ?? 0, times];
          place.remove();
          return found;
        }"""
    )
    assert shown == [0, 0, 6]
