"""The pages of groups, with a real group that rebalances, is reset and deleted."""

from __future__ import annotations

import asyncio
import shlex
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from playwright.sync_api import Page, expect

from hightide.__main__ import main
from hightide.client.admin import Admin
from hightide.testing import Cluster
from tests.console.browsing import Tab
from tests.support.eventually import eventually

pytestmark = pytest.mark.extended

TOPIC, PARTITIONS, RECORDS = "orders", 4, 400
EMPTY_CHART = """async () => {
  const { html, render } = await import("/static/js/lib.js");
  const { Chart } = await import("/static/js/parts.js");
  const place = document.querySelector("main").appendChild(document.createElement("div"));
  render(html`<${Chart} title="empty" data=${[[], []]} series=${[{ label: "a" }]} />`, place);
}"""
SHIFTS = """async () => {
  let moved = 0;
  const add = (list) => list.getEntries().forEach((one) => (moved += one.value));
  new PerformanceObserver(add).observe({ type: "layout-shift" });
  await new Promise((done) => setTimeout(done, 5000));
  return moved;
}"""


@pytest.fixture(scope="module", autouse=True)
def topic(cluster: Cluster) -> None:
    cluster.create_topic(TOPIC, partitions=PARTITIONS)
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for number in range(RECORDS):
        producer.produce(TOPIC, f"{number}", partition=number % PARTITIONS)
    assert producer.flush(20) == 0


@pytest.fixture
def group() -> str:
    return f"billing-{uuid.uuid4().hex[:8]}"


class Reader:
    """A consumer that polls in a thread, so that it takes part in rebalances."""

    def __init__(self, cluster: Cluster, group: str, name: str, most: int, **more: object) -> None:
        settings = {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": group,
            "client.id": name,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **more,
        }
        self._consumer = Consumer(settings)
        self._consumer.subscribe([TOPIC])
        self._most = most
        self._stopping = threading.Event()
        self.read = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.is_set():
            # One that has read enough still polls, and reads no further.
            if self.read >= self._most and (assigned := self._consumer.assignment()):
                self._consumer.pause(assigned)
            record = self._consumer.poll(0.1)
            if record is None or record.error():
                continue
            self.read += 1
            self._consumer.commit(message=record, asynchronous=False)
        self._consumer.close()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(20)


@contextmanager
def readers(
    cluster: Cluster, group: str, *names: str, most: int = 3, **more: Any
) -> Iterator[list[Reader]]:
    started = [Reader(cluster, group, name, most, **more) for name in names]
    try:
        yield started
    finally:
        for one in started:
            one.stop()


def hightide(*words: str) -> int:
    """Run a command in a thread of its own: Playwright's has a running event loop."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(main, [*words]).result()


def reset(cluster: Cluster, group: str, *to: str) -> None:
    words = ("group", "reset", group, "--topic", TOPIC, *to, "--bootstrap", cluster.bootstrap)
    assert hightide(*words) == 0


def run(cluster: Cluster, line: str, *more: str) -> int:
    """Run a command that a page shows."""
    program, *words = shlex.split(line)
    assert program == "hightide"
    assert words[-2:] == ["--bootstrap", cluster.bootstrap]
    return hightide(*words, *more)


def command(page: Page) -> str:
    text = page.locator("dialog .command code").inner_text()
    assert text
    return text


def row_of(page: Page, group: str) -> Callable[[str], str]:
    """The cells of a group in the list, by their headings."""
    names = [text.strip("↑↓ ") for text in page.locator(".gr-groups th").all_inner_texts()]
    cells = page.locator(".gr-groups tr", has_text=group).locator("td").all_inner_texts()
    return dict(zip(names, cells, strict=True)).__getitem__


def test_the_list_shows_how_far_a_group_is_behind(cluster: Cluster, tab: Tab, group: str) -> None:
    with readers(cluster, group, "one"):
        page = tab.open("/g")
        row = page.locator(".gr-groups tr", has_text=group)
        expect(row.locator("td").nth(5)).to_contain_text("Stable", timeout=30_000)
        # The records are older than the page, so the lag in seconds is not zero.
        expect(row.locator("td").nth(1)).to_contain_text("s", timeout=30_000)
        cell = row_of(page, group)
        assert cell("Members") == "1"
        assert cell("Topics") == TOPIC
        assert 0 < int(cell("Records")) < RECORDS
        page.get_by_label("Filter").fill("no such group")
        expect(page.locator(".gr-groups")).to_contain_text("No group matches.")
        page.get_by_label("Filter").fill(group)
        page.get_by_role("link", name=group).click()
        expect(page.locator("h1")).to_have_text(group)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_member_that_joins_is_a_rebalance_with_its_reason(
    cluster: Cluster, tab: Tab, group: str, protocol: str
) -> None:
    more: dict[str, Any] = {"group.protocol": protocol}
    with readers(cluster, group, "first", **more):
        page = tab.open("/g")
        page.locator(".gr-groups tr", has_text=group).wait_for(timeout=30_000)
        page = tab.open(f"/g/{group}")
        has = page.locator(".gr-members td.gr-has")
        expect(has).to_have_count(PARTITIONS, timeout=30_000)
        with readers(cluster, group, "second", **more):
            rows = page.locator(".gr-members tbody tr")
            expect(rows).to_have_count(2, timeout=30_000)
            for name in ("first", "second"):
                mine = rows.filter(has_text=name).locator("td.gr-has")
                expect(mine).to_have_count(PARTITIONS // 2, timeout=30_000)
            reasons = page.locator(".gr-rebalances tbody")
            expect(reasons).to_contain_text("joined", timeout=30_000)
            if protocol == "classic":
                # A group of the newer protocol has no moment at which all members are ready.
                expect(reasons).to_contain_text("rebalanced")
            expect(page.locator(".gr-facts")).to_contain_text("joined")
            expect(page.locator(".gr-facts")).to_contain_text("2")


def test_the_lag_has_a_history(cluster: Cluster, tab: Tab, group: str) -> None:
    with readers(cluster, group, "one"):
        tab.open("/g").locator(".gr-groups tr", has_text=group).wait_for(timeout=30_000)
        page = tab.open(f"/g/{group}")
        expect(page.locator(".chart canvas")).to_have_count(2, timeout=30_000)
        expect(page.get_by_text("A point every five seconds")).to_be_visible(timeout=40_000)


def test_a_group_without_a_history_yet_is_whole(tab: Tab) -> None:
    """Charts that have never had data draw nothing, in either theme."""
    page = tab.open("/txns")
    page.evaluate(EMPTY_CHART)
    expect(page.locator("main .chart canvas")).to_have_count(1)
    page.get_by_role("button", name="Dark theme").click()
    expect(page.locator("main .chart canvas")).to_have_count(1)


def test_a_reset_is_refused_while_members_are_there_and_done_when_they_are_gone(
    cluster: Cluster, tab: Tab, group: str
) -> None:
    tab.expected = ("409",)
    page = tab.open("/g")
    with readers(cluster, group, "reading", most=RECORDS) as (reader,):
        eventually(lambda: reader.read == RECORDS, 30)
        page = tab.open(f"/g/{group}")
        page.get_by_role("button", name="Reset …").click(timeout=30_000)
        refusal = page.locator("dialog .notice.bad")
        expect(refusal).to_contain_text("1 member: reading at 127.0.0.1")
        expect(page.locator("dialog .button.danger")).to_be_disabled()
        assert command(page).startswith(f"hightide group reset {group} --to-earliest")
        page.get_by_role("button", name="Cancel").click()
    expect(page.locator(".gr-facts")).to_contain_text("Empty", timeout=30_000)

    page.get_by_label(f"Choose {TOPIC}/1").check()
    page.get_by_role("button", name="Reset 1 …").click()
    page.get_by_label("Where to").select_option("shift")
    page.get_by_label("By how many offsets").fill("-40")
    expect(page.locator("dialog tbody")).to_contain_text("−40")
    line = command(page)
    assert f"group reset {group} --topic {TOPIC}/1 --shift -40" in line
    assert run(cluster, line, "--dry-run", "-o", "json") == 0
    page.get_by_role("button", name="Reset 1 offset").click()
    expect(page.locator("dialog tbody td").last).to_have_text("reset")
    page.get_by_role("button", name="Close").last.click()
    moved = page.locator(".gr-offsets tr", has_text=f"{TOPIC}/1")
    expect(moved.locator("td").nth(4)).to_have_text("60")
    expect(moved.locator("td").nth(3)).to_have_text("40")
    others = page.locator(".gr-offsets tr", has_text=f"{TOPIC}/2")
    expect(others.locator("td").nth(4)).to_have_text("100")


@pytest.mark.parametrize(
    ("to", "label", "value", "after"),
    [
        ("earliest", None, None, "0"),
        ("latest", None, None, "100"),
        ("offset", "Offset in each partition", "7", "7"),
        ("duration", "How long ago", "2h", "0"),
        ("time", "Time (yours)", "2020-01-02T03:04:05", "0"),
    ],
)
def test_every_reset_is_tried_and_its_command_does_the_same(
    cluster: Cluster, tab: Tab, to: str, label: str | None, value: str | None, after: str, capfd
) -> None:
    name = "a group/with odd.names"
    reset(cluster, name, "--to-offset", "50")
    tab.open("/g").locator(".gr-groups tr", has_text=name).wait_for(timeout=30_000)
    tab.page.get_by_role("link", name=name).click()
    page = tab.page
    page.get_by_role("button", name="Reset …").click()
    page.get_by_label("Where to").select_option(to)
    if label is not None and value is not None:
        page.get_by_label(label).fill(value)
    expect(page.locator("dialog tbody tr")).to_have_count(PARTITIONS)
    expect(page.locator("dialog tbody tr").first.locator("td").nth(2)).to_have_text(after)
    capfd.readouterr()
    assert run(cluster, command(page), "--dry-run", "-o", "json") == 0
    assert f'"after": {after}' in capfd.readouterr().out


def test_offsets_and_then_the_group_are_deleted(cluster: Cluster, tab: Tab, group: str) -> None:
    reset(cluster, group, "--to-latest")
    tab.open("/g").locator(".gr-groups tr", has_text=group).wait_for(timeout=30_000)
    page = tab.open(f"/g/{group}")
    page.get_by_label(f"Choose {TOPIC}/3").check()
    page.get_by_role("button", name="Delete offsets …").click()
    line = command(page)
    assert f"group offset-delete {group} {TOPIC}/3" in line
    assert run(cluster, line, "--dry-run") == 0
    page.get_by_role("button", name="Delete the offsets").click()
    expect(page.locator(".gr-offsets tbody tr")).to_have_count(PARTITIONS - 1)

    page.get_by_role("button", name="Delete …", exact=True).click()
    line = command(page)
    assert f"group delete {group}" in line
    assert run(cluster, line, "--dry-run") == 0
    action = page.get_by_role("button", name="Delete the group")
    expect(action).to_be_disabled()
    page.get_by_label(f"Type {group} to confirm").fill(group)
    action.click()
    expect(page.locator("h1")).to_have_text("Groups")
    expect(page.locator(".gr-groups")).not_to_contain_text(group, timeout=30_000)


def test_two_hundred_groups_stay_smooth(cluster: Cluster, tab: Tab) -> None:
    """All are shown, found and sorted, and nothing moves while they are live."""
    many = 200

    async def commit() -> None:
        async with Admin(cluster.bootstrap) as admin:
            for number in range(many):
                offsets = {(TOPIC, index): number % 90 for index in range(PARTITIONS)}
                await admin.groups.commit(f"many-{number:03}", offsets)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, commit()).result()
    page = tab.open("/g")
    page.get_by_label("Filter").fill("many-")
    rows = page.locator(".gr-groups tbody tr")
    expect(rows).to_have_count(many, timeout=60_000)
    page.get_by_role("button", name="Records").click()
    page.get_by_role("button", name="Records").click()
    # Those that committed the lowest offsets have the most records left.
    expect(rows.first).to_contain_text("400")
    # Two looks later nothing has moved, although every row was drawn again.
    shifts = page.evaluate(SHIFTS)
    assert shifts < 0.01
