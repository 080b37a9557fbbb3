"""The page of transactions: what an open one blocks, its abort, and one that hangs."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from playwright.sync_api import Browser, expect

from hightide.testing import Cluster
from tests.conformance.raw_transactions import RawProducer
from tests.console.browsing import Tab, console, tab
from tests.console.test_groups_page import command, run

pytestmark = pytest.mark.extended

TOPIC = "payments"


@pytest.fixture(scope="module", autouse=True)
def topic(cluster: Cluster) -> None:
    cluster.create_topic(TOPIC, partitions=2)


@pytest.fixture
def name() -> str:
    return f"shop-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def producer(cluster: Cluster, name: str) -> Producer:
    """A producer with an open transaction of two records in partition 0."""
    made = Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "transactional.id": name,
            "transaction.timeout.ms": 300_000,
            "log_level": 0,
        }
    )
    made.init_transactions(20)
    made.begin_transaction()
    for value in ("one", "two"):
        made.produce(TOPIC, value, partition=0)
    assert made.flush(20) == 0
    return made


def end_of(cluster: Cluster) -> int:
    """The high watermark of partition 0."""
    settings = {"group.id": "ends", "isolation.level": "read_uncommitted"}
    reader = Consumer({"bootstrap.servers": cluster.bootstrap, **settings})
    _, end = reader.get_watermark_offsets(TopicPartition(TOPIC, 0), 20)
    reader.close()
    return int(end)


def test_an_open_transaction_shows_what_it_holds_and_is_aborted(
    cluster: Cluster, tab: Tab, name: str, producer: Producer
) -> None:
    plain = Producer({"bootstrap.servers": cluster.bootstrap})
    for _ in range(3):
        plain.produce(TOPIC, "after", partition=0)
    assert plain.flush(20) == 0
    end = end_of(cluster)
    page = tab.open("/txns")
    panel = page.locator("section.tx", has_text=name)
    cells = panel.locator("tbody tr td")
    expect(cells.nth(0)).to_have_text(f"{TOPIC}/0", timeout=30_000)
    expect(cells.nth(1)).to_contain_text("holds 5 records")
    expect(cells.nth(2)).to_have_text(str(end - 5))
    expect(cells.nth(3)).to_have_text(str(end - 5))
    expect(cells.nth(4)).to_have_text(str(end))
    expect(page.locator(".tx-summary")).to_contain_text("wait for 5 records")
    panel.get_by_role("button", name="Abort …").click()
    line = command(page)
    assert line.startswith(f"hightide txn abort {name} ")
    assert run(cluster, line, "--dry-run") == 0
    page.get_by_role("button", name="Abort the transaction").click()
    expect(page.locator("section.tx", has_text=name)).to_have_count(0, timeout=30_000)
    with pytest.raises(KafkaException):
        producer.commit_transaction(20)


def test_a_group_that_waits_for_a_transaction_is_told_so(
    cluster: Cluster, tab: Tab, name: str, producer: Producer
) -> None:
    group = f"reader-{name}"
    reader = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group})
    where = [TopicPartition(TOPIC, 0, end_of(cluster) - 2)]
    reader.commit(offsets=where, asynchronous=False)
    reader.close()
    page = tab.open(f"/g/{group}")
    expect(page.locator(".notice.warn")).to_contain_text(f"position in {TOPIC}/0")
    producer.abort_transaction(20)
    expect(page.locator(".notice.warn")).to_have_count(0, timeout=30_000)
    page.goto(page.url.replace(f"/g/{group}", "/txns"))
    expect(page.locator(".tx-summary")).to_have_text("No transaction is open.", timeout=30_000)


def test_one_that_hangs_is_found_and_aborted(browser: Browser, tmp_path: Path, name: str) -> None:
    """Without verification a late batch opens a transaction that no coordinator knows."""
    settings = {
        "transaction.partition.verification.enable": False,
        "transaction.state.log.num.partitions": 1,
        "transaction.state.log.replication.factor": 1,
    }
    with Cluster(settings=settings) as cluster, console(cluster, tmp_path) as url:
        cluster.create_topic(TOPIC)
        late = RawProducer(cluster, name)
        late.init()
        assert late.write(TOPIC, b"late").error_code == 0
        with tab(browser, url) as opened:
            page = opened.open("/txns")
            expect(page.locator(".tx-summary")).to_have_text("No transaction is open.")
            page.get_by_role("button", name="Look for them").click()
            row = page.locator(".tx-hanging tbody tr")
            expect(row.locator("td").first).to_have_text(f"{TOPIC}/0")
            row.get_by_role("button", name="Abort …").click()
            line = command(page)
            assert f"--topic {TOPIC}/0 --producer-id" in line
            assert run(cluster, line, "--dry-run") == 0
            page.get_by_role("button", name="Abort the transaction").click()
            expect(page.locator(".tx-hanging")).to_contain_text("No transaction hangs.")
