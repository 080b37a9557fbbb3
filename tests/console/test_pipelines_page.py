"""The page of pipelines: the graph and the figures of a status file, with the brokers' lag."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Producer
from playwright.sync_api import Browser, expect

from hightide.spark.pipelines import status
from hightide.spark.pipelines.status import AppStatus, QueryStatus, State
from hightide.testing import Cluster
from tests.console.browsing import Tab, console, tab

pytestmark = pytest.mark.extended

TOPIC, RECORDS = "sales", 20


@pytest.fixture(scope="module", autouse=True)
def topic(cluster: Cluster) -> None:
    cluster.create_topic(TOPIC)
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for number in range(RECORDS):
        producer.produce(TOPIC, str(number))
    assert producer.flush(20) == 0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "pipelines"


@pytest.fixture
def opened(browser: Browser, cluster: Cluster, tmp_path: Path, folder: Path) -> Iterator[Tab]:
    with (
        console(cluster, tmp_path, "--pipelines", str(folder)) as url,
        tab(browser, url) as found,
    ):
        yield found


def app(cluster: Cluster) -> AppStatus:
    revenue = QueryStatus(
        "revenue",
        "totals",
        State.RUNNING,
        batch=4,
        rows_in_per_s=812.4,
        batch_ms=212,
        watermark="2026-01-31T12:00:00.000Z",
        state_rows=7,
        state_bytes=4096,
        positions={TOPIC: {"0": 5}},
    )
    archive = QueryStatus("archive", "delta:tables/totals", positions={"totals": {"0": 1}})
    now_ms = int(time.time() * 1000)
    return AppStatus(
        *("shop", "shop.py", cluster.bootstrap, "local[2]", 7, State.RUNNING, now_ms, now_ms),
        queries=(revenue, archive),
    )


def test_an_app_is_a_graph_and_a_table_and_changes_without_a_reload(
    cluster: Cluster, opened: Tab, folder: Path
) -> None:
    page = opened.open("/pipelines")
    expect(page.locator(".pl-none")).to_contain_text("There is no folder")
    found = app(cluster)
    with status.app_lock(folder / "shop", "shop"):
        status.write(folder / "shop", found)
        row = page.locator(".pl-app tbody tr").first
        expect(row).to_contain_text("revenue", timeout=30_000)
        expect(row).to_contain_text("running")
        for text in ("812", f"{RECORDS - 5}", "212 ms", "4 KiB"):
            expect(row).to_contain_text(text)
        expect(page.locator(".pl-node")).to_have_count(5)
        expect(page.locator(".pl-edge")).to_have_count(4)
        expect(page.locator(".pl-node.pl-query.ok")).to_contain_text("revenue")
        left = [box.bounding_box() for box in page.locator(".pl-node").all()]
        assert len({(box["x"], box["y"]) for box in left if box}) == 5

        page.set_viewport_size({"width": 375, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0

        error = "shop.py:26: KeyError: 'amount' <script>alert(1)</script>"
        failed = replace(found.queries[0], state=State.FAILED, error=error)
        status.write(folder / "shop", replace(found, queries=(failed, found.queries[1])))
        expect(page.locator(".pl-app .notice.bad")).to_contain_text(error, timeout=30_000)
        expect(page.locator(".pl-node.pl-query.bad")).to_contain_text("failed")
    # Without its lock the app has died.
    expect(page.locator(".pl-app .badge").first).to_contain_text("died", timeout=30_000)
