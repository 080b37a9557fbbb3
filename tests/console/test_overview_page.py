"""The overview and the events in a real browser."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect

from hightide.testing import Cluster
from tests.console.conftest import OpenTab

WAIT_MS = 30_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=3, memory=True) as started:
        started.create_topic("orders", partitions=4)
        started.create_topic("payments", partitions=2)
        yield started


def focused(page: Page) -> str:
    name = page.evaluate("document.activeElement.dataset.name ?? ''")
    assert isinstance(name, str)
    return name


def test_all_is_well(page: Page) -> None:
    page.goto("/")
    expect(page.locator(".sentence")).to_contain_text("All is well")
    expect(page.locator(".ov-broker")).to_have_count(3)
    expect(page.locator(".ov-broker").filter(has_text="controller")).to_have_count(1)
    expect(page.locator(".ov-cell")).to_have_count(6)
    expect(page.locator(".ov-cell.ov-level-ok")).to_have_count(6)


def test_arrow_keys_walk_the_cells_and_enter_opens_one(page: Page) -> None:
    page.goto("/")
    page.locator(".ov-cell[tabindex='0']").focus()
    assert focused(page) == "orders/0"
    for key, name in (
        ("ArrowRight", "orders/1"),
        ("ArrowDown", "payments/1"),
        ("ArrowUp", "orders/1"),
        ("End", "payments/1"),
        ("ArrowLeft", "payments/0"),
        ("Home", "orders/0"),
    ):
        page.keyboard.press(key)
        assert focused(page) == name
    expect(page.locator(".ov-told")).to_contain_text("orders/0: in sync, leader")
    expect(page.locator(".ov-cell[tabindex='0']")).to_have_count(1)
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("/x/orders/0$"))


@pytest.mark.parametrize("width", [375, 1440])
def test_a_dead_broker_is_named_with_the_next_command(
    open_tab: OpenTab, cluster: Cluster, width: int
) -> None:
    with open_tab(width=width) as tab:
        page = tab.open("/")
        expect(page.locator(".ov-broker")).to_have_count(3)
        cluster.kill(3)
        try:
            sentence = page.locator(".sentence")
            expect(sentence).to_contain_text("Broker 3", timeout=WAIT_MS)
            expect(sentence).to_contain_text("not alive")
            expect(sentence.locator(".command")).to_contain_text(re.compile("hightide|systemctl"))
            card = page.locator(".ov-broker").filter(has_text="Broker 3")
            expect(card).to_contain_text("not alive")
            expect(page.locator(".ov-cell.ov-level-warn")).to_have_count(6, timeout=WAIT_MS)
            expect(page.locator(".ov-cell.ov-level-warn").first).to_contain_text("▲")
            expect(page.locator(".ov-events")).to_contain_text("broker 3", timeout=WAIT_MS)
        finally:
            cluster.restart(3)
        expect(sentence).to_contain_text("All is well", timeout=WAIT_MS)


def test_events_are_chosen_by_level_and_text(page: Page, cluster: Cluster) -> None:
    page.goto("/events")
    lines = page.locator(".ef-line")
    expect(lines.filter(has_text="created topic orders")).to_have_count(1)
    page.get_by_role("button", name="errors").click()
    expect(lines.filter(has_text="created topic orders")).to_have_count(0)
    page.get_by_role("button", name="info").click()
    page.get_by_role("searchbox").fill("topic payments")
    expect(lines).to_have_count(1)
    cluster.create_topic("topic-payments-too")
    expect(lines.filter(has_text="topic-payments-too")).to_have_count(0)
    page.get_by_role("searchbox").fill("topic-payments-too")
    expect(lines.first).to_be_visible(timeout=WAIT_MS)


def large_overview(partitions: int) -> dict[str, Any]:
    """An overview of a cluster that would take long to start."""
    levels = ["ok"] * 97 + ["warn", "bad", "off"]
    return {
        "type": "overview",
        "time_ms": 1_700_000_000_000,
        "controller": 1,
        "is_foreign": False,
        "title": "large",
        "sentence": {"level": "bad", "text": "42 problems", "next": None, "count": 42},
        "brokers": [],
        "partitions": [
            {
                "topic": f"topic-{number // 25:03}",
                "partition": number % 25,
                "level": levels[number % 100],
                "leader": 1,
                "leader_epoch": 0,
                "replicas": [1, 2, 3],
                "isr": [1, 2, 3],
                "high_watermark": number,
                "end_offset": number,
                "internal": False,
            }
            for number in range(partitions)
        ],
        "totals": {
            "messages_in_s": 1.0,
            "bytes_in_s": 1.0,
            "under_replicated": 0,
            "under_min_isr": 0,
            "offline": 0,
        },
    }


def test_a_thousand_partitions_are_cells_with_signs(open_tab: OpenTab) -> None:
    def answer(route: Route) -> None:
        body = f"data: {json.dumps(large_overview(1000))}\n\n"
        route.fulfill(body=body, content_type="text/event-stream")

    with open_tab() as tab:
        page = tab.page
        page.route("**/api/v1/live*", answer)
        page.goto("/")
        expect(page.locator(".ov-cell")).to_have_count(1000)
        for level, sign in (("ok", "✓"), ("warn", "▲"), ("bad", "✕"), ("off", "◼")):
            expect(page.locator(f".ov-cell.ov-level-{level}").first).to_have_text(sign)
        page.locator(".ov-cell[tabindex='0']").focus()
        for _ in range(10):
            page.keyboard.press("ArrowDown")
        assert focused(page) == "topic-010/0"
