"""Every page of the console at both widths and in both themes: it loads, and anyone can use it."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from playwright.sync_api import Page, expect

from tests.console.browsing import NARROW, WIDE, Tab, violations
from tests.console.conftest import OpenTab

PAGES = """() => import("/static/js/pages.js").then((module) => module.pages.map(
  (page) => ({path: page.example ?? page.path, nav: page.nav ?? null})))"""


@pytest.fixture(scope="module", autouse=True)
def topic(cluster):
    """What the examples of the pages name: a topic with records, and a group that has read some."""

    cluster.create_topic("orders", partitions=3)
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for number in range(100):
        producer.produce("orders", key=str(number % 7), value=f'{{"number": {number}}}')
    assert producer.flush(20) == 0
    reader = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "billing"})
    reader.commit(offsets=[TopicPartition("orders", 0, 3)], asynchronous=False)
    reader.close()


def paths(page: Page) -> list[str]:
    found = [entry["path"] for entry in page.evaluate(PAGES)]
    patterns = [path for path in found if "/:" in path]
    assert not patterns, f"give these pages an `example`: {patterns}"
    return found


def wider_than_the_window(page: Page) -> int:
    return page.evaluate("document.documentElement.scrollWidth - innerWidth")


@pytest.mark.parametrize(
    ("width", "theme"),
    [
        pytest.param(width, theme, marks=() if is_quick else pytest.mark.extended)
        for width, theme, is_quick in (
            (NARROW, "dark", True),
            (WIDE, "light", True),
            (NARROW, "light", False),
            (WIDE, "dark", False),
        )
    ],
)
def test_every_page_is_whole(open_tab: OpenTab, axe: str, width: int, theme: str) -> None:
    wrong = []
    with open_tab(width=width, theme=theme) as tab:
        for path in paths(tab.open("/")):
            page = tab.open(path)
            page.wait_for_load_state("load")
            wrong += [f"{path}: {violation}" for violation in violations(page, axe)]
            excess = wider_than_the_window(page)
            if excess > 0:
                wrong.append(f"{path}: {excess} pixels wider than {width}")
            wrong += [f"{path}: {complaint}" for complaint in tab.complaints()]
            tab.problems.clear()
    assert not wrong, "\n".join(wrong)


def test_the_navigation_works_by_keyboard(tab: Tab) -> None:
    page = tab.open("/")
    names = page.locator("nav.pages a").all_inner_texts()
    assert names[0] == "Overview"
    reached: list[str] = []
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.innerText ?? ''").strip())
        if names[-1] in reached:
            break
    assert [name for name in names if name not in reached] == []
    page.keyboard.press("Enter")
    expect(page.locator("nav.pages [aria-current]")).to_have_text(names[-1])
    # The next Tab starts in the page, not at the top again.
    expect(page.locator("#main")).to_be_focused()


def test_the_first_tab_stop_skips_to_the_page(tab: Tab) -> None:
    page = tab.open("/")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.innerText") == "Skip to the page"
    page.keyboard.press("Enter")
    expect(page.locator("#main")).to_be_focused()


def test_the_chosen_theme_is_kept(tab: Tab) -> None:
    page = tab.open("/")
    background = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(background)
    page.get_by_role("button", name="Dark theme").click()
    dark = page.evaluate(background)
    assert dark != light
    page.reload()
    page.wait_for_selector("main .sentence")
    assert page.evaluate(background) == dark


def test_a_path_without_a_page_says_so(tab: Tab) -> None:
    page = tab.open("/no/such/page")
    assert page.locator("h1").inner_text() == "No such page"
    page.get_by_role("link", name="Go to the overview.").click()
    page.wait_for_selector("main .sentence")
