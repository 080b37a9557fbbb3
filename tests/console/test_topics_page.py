"""The pages of topics in a real browser, over a real cluster."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from playwright.sync_api import Page, expect

from hightide.testing import Cluster
from tests.console.browsing import Tab

expect.set_options(timeout=20_000)


@pytest.fixture(scope="module", autouse=True)
def topics(cluster: Cluster) -> None:
    cluster.create_topic("orders", partitions=3)
    cluster.create_topic("payments", partitions=1)
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for number in range(300):
        producer.produce("orders", value=b"x" * 100, partition=number % 3)
    assert producer.flush(20) == 0


def row(page: Page, name: str):
    return page.locator("main tbody tr").filter(has_text=name)


def test_the_list_shows_filters_and_sorts(tab: Tab) -> None:
    page = tab.open("/t")
    names = page.locator("main tbody tr td:first-child a")
    expect(names).to_have_text(["orders", "payments"])
    expect(row(page, "orders")).to_contain_text("all in sync")
    expect(row(page, "orders").locator("td").nth(4)).to_have_text("300")
    page.get_by_role("button", name="Partitions").click()
    expect(names).to_have_text(["payments", "orders"])
    page.get_by_label("Filter by name").fill("pay")
    expect(names).to_have_text(["payments"])
    assert page.url.endswith("/t?q=pay")
    page.reload()
    expect(names).to_have_text(["payments"])


def test_a_topic_is_made_changed_and_deleted(tab: Tab) -> None:
    tab.expected = ("400",)  # nine replicas
    page = tab.open("/t")
    page.get_by_role("button", name="Create a topic").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("made here!")
    expect(dialog.get_by_role("button", name="Create")).to_be_disabled()
    dialog.get_by_label("Name").fill("made")
    dialog.get_by_label("Partitions").fill("2")
    dialog.get_by_label("Replicas").fill("9")
    expect(dialog.locator(".notice")).to_contain_text("9")
    dialog.get_by_label("Replicas").fill("3")
    dialog.get_by_role("button", name="Add a setting").click()
    dialog.get_by_label("Setting", exact=True).select_option("retention.ms")
    dialog.get_by_label("Value of retention.ms").fill("3600000")
    expect(dialog.locator(".command code")).to_contain_text(
        "hightide topic create made --partitions 2 --replication-factor 3"
        " --config retention.ms=3600000"
    )
    dialog.get_by_role("button", name="Create", exact=True).click()
    page.wait_for_url("**/t/made")
    expect(page.locator("h1")).to_have_text("made")
    expect(page.locator(".facts")).to_contain_text("1 h 0 min")

    page.get_by_role("button", name="Add partitions").click()
    expect(dialog.locator(".command code")).to_contain_text("topic alter made --partitions 3")
    dialog.get_by_role("button", name="Add", exact=True).click()
    expect(page.get_by_role("region", name="Partitions").locator("tbody tr")).to_have_count(3)

    page.get_by_role("button", name="Delete", exact=True).click()
    expect(dialog.locator(".command code")).to_contain_text("hightide topic delete made")
    expect(dialog.get_by_role("button", name="Delete", exact=True)).to_be_disabled()
    dialog.get_by_label("Type made to confirm").fill("made")
    dialog.get_by_role("button", name="Delete", exact=True).click()
    page.wait_for_url("**/t")
    expect(page.locator("main tbody tr td:first-child a")).to_have_text(["orders", "payments"])


def test_a_setting_is_explained_set_and_reset(tab: Tab) -> None:
    tab.expected = ("400",)  # a policy that is none
    page = tab.open("/t/payments")
    settings = page.get_by_role("region", name="Settings")
    page.get_by_label("Filter the settings").fill("cleanup.policy")
    expect(settings).to_contain_text("compact keeps the latest record of each key")
    expect(settings).to_contain_text("the built-in default")
    page.get_by_role("button", name="Edit cleanup.policy").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Value of cleanup.policy").fill("nothing")
    expect(dialog.locator(".notice")).to_contain_text("may contain only compact, delete")
    dialog.get_by_label("Value of cleanup.policy").fill("compact")
    expect(dialog.locator(".command code")).to_contain_text(
        "hightide topic alter payments --config cleanup.policy=compact"
    )
    dialog.get_by_role("button", name="Set").click()
    expect(settings).to_contain_text("this topic")
    page.get_by_role("button", name="Reset cleanup.policy").click()
    expect(dialog.locator(".command code")).to_contain_text("--delete-config cleanup.policy")
    dialog.get_by_role("button", name="Reset").click()
    expect(settings).to_contain_text("the built-in default")


def test_a_partition_leads_to_its_xray(tab: Tab) -> None:
    page = tab.open("/t/orders")
    page.get_by_role("link", name="X-ray of partition 1").click()
    page.wait_for_url("**/x/orders/1")


def test_a_topic_that_is_not_there_says_so(tab: Tab) -> None:
    tab.expected = ("404",)
    page = tab.page
    page.goto(f"{tab.url}/t/nowhere")
    expect(page.locator("main .notice")).to_contain_text("nowhere")


def test_a_group_that_reads_a_topic_is_shown_with_its_lag(tab: Tab, cluster: Cluster) -> None:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "billing"})
    consumer.commit(offsets=[TopicPartition("orders", 0, 40)], asynchronous=False)
    consumer.close()
    page = tab.open("/t/orders")
    groups = page.get_by_role("region", name="Groups")
    expect(groups.locator("tbody tr").filter(has_text="billing")).to_contain_text("60")


def test_the_pages_fit_a_telephone(narrow: Tab) -> None:
    for path in ("/t", "/t/orders"):
        page = narrow.open(path)
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
