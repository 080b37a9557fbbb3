"""The parts that pages are made of, each on its own in a real browser."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Page

from tests.console.browsing import Tab
from tests.console.browsing import tab as opened


def formatted(page: Page, function: str, *given: Any) -> str:
    return page.evaluate(
        "([name, given]) => import('/static/js/format.js').then((all) => all[name](...given))",
        [function, list(given)],
    )


@pytest.fixture(scope="module")
def shared(browser, console_url):
    with opened(browser, console_url) as tab:
        tab.open("/")
        yield tab


@pytest.mark.parametrize(
    ("function", "given", "text"),
    [
        ("count", [None], "–"),
        ("count", [0], "0"),
        ("count", [1234567], "1,234,567"),
        ("count", [0.25], "0.3"),
        ("count", [1234.6], "1,235"),
        ("count", [-12.34], "-12"),
        ("bytes", [None], "–"),
        ("bytes", [0], "0 B"),
        ("bytes", [1023], "1,023 B"),
        ("bytes", [1024], "1 KiB"),
        ("bytes", [1536], "1.5 KiB"),
        ("bytes", [-2048], "−2 KiB"),
        ("bytes", [5 * 2**40], "5 TiB"),
        ("rate", [12], "12/s"),
        ("rate", [None], "–"),
        ("duration", [None], "–"),
        ("duration", [0.44], "0.4 ms"),
        ("duration", [999], "999 ms"),
        ("duration", [8000], "8.0 s"),
        ("duration", [184_000], "3 min 4 s"),
        ("duration", [7_260_000], "2 h 1 min"),
        ("duration", [604_800_000], "7 days"),
        ("counted", [1, "record"], "1 record"),
        ("counted", [2000, "record"], "2,000 records"),
        ("time", [None], "–"),
        ("time", [-1], "–"),
    ],
)
def test_numbers_are_written_for_people(shared: Tab, function, given, text):
    assert formatted(shared.page, function, *given) == text


def test_a_time_of_another_day_has_its_date(shared: Tab):
    text = formatted(shared.page, "time", 86_400_000 * 20)
    assert text.startswith("1970-01-2")
    assert formatted(shared.page, "time", 86_400_000 * 20, {"now": 86_400_000 * 20}) in text


@pytest.mark.parametrize(
    ("pattern", "path", "params"),
    [
        ("/", "/", {}),
        ("/t/:topic", "/t/orders", {"topic": "orders"}),
        ("/t/:topic", "/t/a%2Fb%20c", {"topic": "a/b c"}),
        ("/t/:topic", "/t/orders/", {"topic": "orders"}),
        ("/t/:topic", "/t/orders/m", None),
        ("/t/:topic", "/t/%E0%A4%A", None),
        ("/t", "/T", None),
    ],
)
def test_a_path_matches_its_page(shared: Tab, pattern, path, params):
    found = shared.page.evaluate(
        "([pattern, path]) => import('/static/js/router.js')"
        ".then((router) => router.match(pattern, path))",
        [pattern, path],
    )
    assert found == params


def test_a_table_is_sorted_by_its_headings(tab: Tab):
    page = tab.open("/t")
    page.evaluate(
        """async () => {
          const { html, render } = await import("/static/js/lib.js");
          const { Table } = await import("/static/js/parts.js");
          const place = document.querySelector("main");
          place.replaceChildren();
          const columns = [{ name: "a", title: "Name" }, { name: "n", title: "Number" }];
          const rows = Array.from({ length: 500 }, (_, n) => ({ a: `t-${n}`, n: (n * 7) % 500 }));
          render(html`<${Table} columns=${columns} rows=${rows} label="Test" />`, place);
        }"""
    )
    first = page.locator("tbody tr:first-child td:last-child")
    page.get_by_role("button", name="Number").click()
    assert first.inner_text() == "0"
    assert page.locator("th[aria-sort=ascending]").inner_text().startswith("Number")
    page.get_by_role("button", name="Number").click()
    assert first.inner_text() == "499"
    page.get_by_role("button", name="Name").click()
    assert page.locator("tbody td:first-child").all_inner_texts()[:3] == ["t-0", "t-1", "t-2"]
    # Many rows are shown in steps.
    assert page.locator("tbody tr").count() == 200
    page.get_by_role("button", name="Show more").click()
    assert page.locator("tbody tr").count() == 500


def test_a_change_is_confirmed_by_typing_the_name_and_shows_its_command(tab: Tab):
    page = tab.open("/t")
    page.evaluate(
        """async () => {
          const { html, render } = await import("/static/js/lib.js");
          const { Confirm } = await import("/static/js/parts.js");
          const place = document.querySelector("main");
          place.replaceChildren();
          let tries = 0;
          const confirm = async () => { if (++tries === 1) throw new Error("not yet"); };
          const close = () => render(null, place);
          render(html`<${Confirm} title="Delete orders" typed="orders" action="Delete"
            command="hightide topic delete orders" onConfirm=${confirm}
            onClose=${close} />`, place);
        }"""
    )
    dialog = page.get_by_role("dialog", name="Delete orders")
    delete = dialog.get_by_role("button", name="Delete", exact=True)
    assert "hightide topic delete orders" in dialog.inner_text()
    assert delete.is_disabled()
    dialog.get_by_label("Type orders to confirm").fill("order")
    assert delete.is_disabled()
    dialog.get_by_label("Type orders to confirm").fill("orders")
    delete.click()
    dialog.get_by_text("not yet").wait_for()
    delete.click()
    dialog.wait_for(state="hidden")


def test_escape_closes_a_dialog(tab: Tab):
    page = tab.open("/t")
    page.evaluate(
        """async () => {
          const { html, render } = await import("/static/js/lib.js");
          const { Dialog } = await import("/static/js/parts.js");
          const place = document.querySelector("main");
          place.replaceChildren();
          const show = (open) => render(html`<${Dialog} title="One" open=${open}
            onClose=${() => show(false)}><p>content</p></${Dialog}>`, place);
          show(true);
        }"""
    )
    page.get_by_role("dialog", name="One").wait_for()
    page.keyboard.press("Escape")
    page.get_by_role("dialog", name="One").wait_for(state="hidden")


def test_a_long_list_has_only_the_rows_in_view(tab: Tab):
    page = tab.open("/t")
    page.evaluate(
        """async () => {
          const { html, render } = await import("/static/js/lib.js");
          const { Virtual } = await import("/static/js/parts.js");
          const place = document.querySelector("main");
          place.replaceChildren();
          const rows = Array.from({ length: 100000 }, (_, n) => n);
          render(html`<${Virtual} rows=${rows} rowHeight=${20} height=${400} label="Long"
            row=${(n) => html`<span>row ${n}</span>`} />`, place);
        }"""
    )
    box = page.get_by_role("region", name="Long")
    assert box.locator(".virtual-row").count() < 60
    box.evaluate("element => { element.scrollTop = 50000 * 20 }")
    box.get_by_text("row 50010", exact=True).wait_for()
    assert box.locator(".virtual-row").count() < 60
