"""The X-ray of a partition in a real browser, while brokers die, hang and come back."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from playwright.sync_api import Browser, Locator, Page, expect

from hightide.process import environment
from hightide.testing import Cluster
from tests.console.browsing import Tab, console
from tests.console.browsing import tab as opened
from tests.console.conftest import OpenTab

PATH = "/x/orders/0"
WAIT_MS = 30_000
SHIFTS = """() => {
  window.shifted = 0;
  window.shiftedBy = [];
  new PerformanceObserver((list) => {
    for (const entry of list.getEntries()) {
      window.shifted += entry.value;
      const nodes = entry.sources.map((source) => source.node);
      window.shiftedBy.push(...nodes.map((node) => node?.className ?? node?.parentNode?.className));
    }
  }).observe({type: "layout-shift", buffered: false});
}"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    # A paused broker stays a member for longer than a test looks at it.
    with Cluster(brokers=3, settings={"zookeeper.session.timeout.ms": "45000"}) as started:
        started.create_topic("orders", partitions=3, config={"min.insync.replicas": 2})
        write(started, 100)
        yield started


def write(cluster: Cluster, count: int, acks: str = "all") -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": acks})
    for number in range(count):
        producer.produce("orders", value=f"record {number}", partition=0)
    assert producer.flush(30) == 0


@contextmanager
def load(cluster: Cluster, acks: str = "1") -> Iterator[None]:
    """A record every few milliseconds, without waiting for an acknowledgement."""
    done = threading.Event()

    def run() -> None:
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": acks})
        while not done.wait(0.02):
            producer.produce("orders", value="one more", partition=0)
            producer.poll(0)
        producer.flush(1)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def row(page: Page, broker: int) -> Locator:
    return page.locator(".xb-row").filter(has_text=f"broker {broker}")


def fact(page: Page, name: str) -> Locator:
    return page.locator(".xp-fact").filter(has_text=name).locator("dd")


def test_the_bars_show_each_replica(page: Page, cluster: Cluster) -> None:
    page.goto(PATH)
    leader = cluster.leader("orders", 0)
    for broker in cluster.brokers:
        expect(row(page, broker).locator(".xb-numbers b")).to_have_text("100")
        expect(row(page, broker)).to_contain_text("leader" if broker == leader else "in sync")
    expect(row(page, leader).locator(".xb-sign")).to_have_text("★")
    expect(page.locator(".xb-line-hw")).to_contain_text("100")
    expect(fact(page, "acks=all")).to_contain_text("accepted")
    expect(page.locator(".sentence")).to_contain_text("All 3 replicas are in sync.")


def test_a_table_has_the_same_numbers_for_screen_readers(page: Page, cluster: Cluster) -> None:
    page.goto(PATH)
    table = page.get_by_role("table", name="Replicas of orders/0")
    for broker in cluster.brokers:
        expect(
            table.get_by_role("row").filter(has=page.get_by_role("rowheader", name=str(broker)))
        ).to_contain_text("100")


def test_live_frames_shift_nothing(page: Page, cluster: Cluster) -> None:
    page.goto(PATH)
    expect(page.locator(".xb-row")).to_have_count(3)
    expect(page.locator(".xr-row")).not_to_have_count(0)
    page.wait_for_timeout(1500)
    page.evaluate(SHIFTS)
    before = page.locator(".xb-line-hw").inner_text()
    with load(cluster):
        expect(page.locator(".xb-line-hw")).not_to_have_text(before, use_inner_text=True)
        page.wait_for_timeout(2000)
    assert page.evaluate("window.shifted") < 0.001, set(page.evaluate("window.shiftedBy"))


def test_the_other_partitions_are_a_click_away(page: Page) -> None:
    page.goto(PATH)
    page.get_by_role("navigation", name="Partitions of orders").get_by_role(
        "link", name="2"
    ).click()
    expect(page).to_have_url(re.compile("/x/orders/2$"))
    expect(page.locator(".xb-row")).to_have_count(3)


def test_a_partition_that_is_not_there_says_so(page: Page, tab: Tab) -> None:
    tab.expected = ("404 (Not Found)",)
    page.goto("/x/orders/77")
    expect(page.locator("main")).to_contain_text("There is no partition orders/77.")


def window(page: Page, ends: list[int], before: object = None, watermark: int = 0) -> Any:
    """The window of the tail for replicas in sync with these log ends."""
    return page.evaluate(
        """async ({ends, before, watermark}) => {
          const { nextWindow } = await import("/static/js/xray/scale.js");
          const replicas = ends.map((end_offset) => ({end_offset, in_sync: true, start_offset: 0}));
          return nextWindow(before, {replicas, high_watermark: watermark}, "tail");
        }""",
        {"ends": ends, "before": before, "watermark": watermark or min(ends)},
    )


def test_the_tail_stands_still_until_an_end_reaches_its_edge(page: Page) -> None:
    page.goto(PATH)
    first = window(page, [1000, 998, 1000])
    assert first["start"] < 998
    assert first["end"] > 1000
    assert window(page, [1002, 1002, 1001], first) == first
    later = window(page, [1026, 1025, 1026], first)
    assert later["start"] > first["start"]
    assert later["start"] < 1025
    assert later["end"] > 1026


def test_the_tail_grows_so_that_it_holds_a_high_watermark_that_waits(page: Page) -> None:
    page.goto(PATH)
    narrow = window(page, [1000, 1000])
    wide = window(page, [9000, 1000], narrow)
    assert wide["start"] < 1000
    assert wide["end"] > 9000


def test_the_scrubber_shows_the_past(page: Page, cluster: Cluster) -> None:
    page.goto(PATH)
    expect(page.locator(".xr-span").first).to_be_visible()
    before = page.locator(".xb-line-hw").inner_text()
    write(cluster, 50)
    expect(page.locator(".xb-line-hw")).not_to_have_text(before, use_inner_text=True)
    page.get_by_role("slider").focus()
    page.keyboard.press("PageDown")
    expect(page.locator(".xp-past")).to_be_visible()
    expect(page.locator(".xp-at")).to_contain_text("ago")
    page.get_by_role("button", name="Back to live").click()
    expect(page.locator(".xp-past")).to_have_count(0)


def test_a_probe_shows_its_journey(page: Page) -> None:
    page.goto(PATH)
    page.get_by_role("button", name="Send a probe").click()
    expect(page.locator(".xj-step.xj-end, .xj-step").last).to_contain_text("ms")
    assert page.locator(".xj-step").count() >= 4


@pytest.mark.parametrize("width", [375, 1440])
def test_a_paused_follower_holds_the_high_watermark(
    open_tab: OpenTab, cluster: Cluster, width: int
) -> None:
    leader = cluster.leader("orders", 0)
    follower = next(broker for broker in cluster.brokers if broker != leader)
    with open_tab(width=width) as tab, load(cluster):
        page = tab.open(PATH)
        cluster.pause(follower)
        try:
            held = page.locator(".xp-held")
            expect(held).to_contain_text(f"broker {follower} holds", timeout=WAIT_MS)
            expect(page.locator(".sentence")).to_contain_text(f"Replica {follower} holds the high")
            expect(fact(page, "Not committed")).to_have_text(re.compile(r"^[1-9]"))
            expect(row(page, follower)).to_contain_text("‖", timeout=WAIT_MS)
        finally:
            cluster.resume(follower)
        expect(held).not_to_contain_text("holds", timeout=WAIT_MS)


def test_a_failover_is_shown_by_its_phases(page: Page, cluster: Cluster) -> None:
    page.goto(PATH)
    leader = cluster.leader("orders", 0)
    expect(row(page, leader).locator(".xb-sign")).to_have_text("★")
    epoch = int(fact(page, "Epoch").inner_text())
    with load(cluster, acks="all"):
        cluster.kill(leader)
        try:
            expect(fact(page, "Epoch")).to_have_text(str(epoch + 1), timeout=WAIT_MS)
            new = cluster.leader("orders", 0)
            assert new != leader
            expect(row(page, new).locator(".xb-sign")).to_have_text("★")
            expect(row(page, leader)).to_contain_text("not alive")
            expect(page.locator(".sentence")).to_contain_text(f"Broker {leader} is not alive.")
            failover = page.locator(".xf")
            expect(failover).to_contain_text(f"epoch {epoch} → {epoch + 1}", timeout=WAIT_MS)
            expect(failover).to_contain_text("first write after", timeout=WAIT_MS)
            expect(failover.locator(".xf-phase.xf-elected")).to_contain_text(str(new))
            expect(failover.locator(".xf-phase.xf-first_write")).to_be_visible()
            ribbon = page.locator(".xr-row").filter(has_text=re.compile(rf"^{leader}\b"))
            expect(ribbon.locator(".xr-gone")).not_to_have_count(0, timeout=WAIT_MS)
        finally:
            cluster.restart(leader)
        expect(failover.locator(".xf-phase.xf-in_sync")).to_be_visible(timeout=WAIT_MS)
        expect(page.locator(".sentence")).to_contain_text("All 3", timeout=WAIT_MS)


def test_a_console_that_does_not_own_the_brokers_has_no_buttons(page: Page) -> None:
    page.goto(PATH)
    expect(page.locator(".xb-row")).to_have_count(3)
    expect(page.locator(".xo")).to_have_count(0)


@contextmanager
def up(folder: Path) -> Iterator[str]:
    """`hightide up` with three brokers and a topic; gives the bootstrap."""
    log = folder / "up.log"
    command = [sys.executable, "-m", "hightide", "up", "--brokers", "3", "--port", "0"]
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            [*command, "--memory", "--no-console"],
            env=environment(),
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("bootstrap: "), log.read_text()
        bootstrap = line.removeprefix("bootstrap: ").strip()
        create = [sys.executable, "-m", "hightide", "topic", "create", "orders"]
        subprocess.run([*create, "--bootstrap", bootstrap], env=environment(), check=True)
        yield bootstrap
    finally:
        process.terminate()
        process.communicate(timeout=30)


def test_the_owner_kills_and_restarts_a_broker(browser: Browser, tmp_path: Path) -> None:
    with (
        up(tmp_path) as bootstrap,
        console(bootstrap, tmp_path, "--owner") as url,
        opened(browser, url) as tab,
    ):
        page = tab.open("/x/orders/0")
        leader = page.locator(".xb-is-leads .xb-id")
        expect(leader).to_be_visible()
        name = leader.inner_text()
        page.get_by_role("button", name=f"Kill {name}").click()
        expect(row(page, int(name[-1]))).to_contain_text("not alive", timeout=WAIT_MS)
        expect(page.locator(".xo .command").first).to_contain_text(
            f"hightide broker kill {name[-1]}"
        )
        expect(leader).not_to_have_text(name)
        page.get_by_role("button", name=f"Restart {name}").click()
        expect(page.locator(".sentence")).to_contain_text("All 3", timeout=WAIT_MS)
