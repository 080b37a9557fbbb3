"""A browser for all tests of a process, and for each test file a cluster and its console.

browser         Debian's Chromium
cluster         three brokers in memory
console_url     a console of them
tab             opens a page at 1440 pixels; `narrow` at 375; both fail on a complaint at the end
page            Playwright's page of `tab`: page.goto("/t/orders")
open_tab        makes tabs of any width and theme
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from hightide.testing import Cluster
from tests.console.browsing import CHROMIUM, STATIC, Tab, axe_script, console
from tests.console.browsing import tab as opened

OpenTab = Callable[..., AbstractContextManager[Tab]]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if not CHROMIUM.exists():
        pytest.skip(f"{CHROMIUM} is missing: `make programs` installs it")
    if not (STATIC / "vendor" / "preact.js").exists():
        pytest.skip("the console's libraries are missing: `make programs` fetches them")
    with sync_playwright() as playwright:
        # Chromium's own sandbox needs a user other than root.
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="session")
def axe() -> str:
    return axe_script()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=3, memory=True) as started:
        yield started


@pytest.fixture(scope="module")
def console_url(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder: Path = tmp_path_factory.mktemp("console")
    with console(cluster, folder) as url:
        yield url


@pytest.fixture
def open_tab(browser: Browser, console_url: str) -> OpenTab:
    return partial(opened, browser, console_url)


@pytest.fixture
def tab(open_tab: OpenTab) -> Iterator[Tab]:
    with open_tab() as one:
        yield one


@pytest.fixture
def narrow(open_tab: OpenTab) -> Iterator[Tab]:
    with open_tab(width=375) as one:
        yield one


@pytest.fixture
def page(tab: Tab) -> Page:
    return tab.page
