"""The page of clients: a real client is named, counted, and gone when it has closed."""

from __future__ import annotations

import uuid

import pytest
from confluent_kafka import Producer
from playwright.sync_api import expect

from hightide.testing import Cluster
from tests.console.browsing import Tab
from tests.console.test_groups_page import hightide, run

pytestmark = pytest.mark.extended

TOPIC = "greetings"


@pytest.fixture(scope="module", autouse=True)
def topic(cluster: Cluster) -> None:
    cluster.create_topic(TOPIC, partitions=3)


def test_a_client_is_listed_with_its_software_while_it_is_connected(
    cluster: Cluster, tab: Tab
) -> None:
    name = f"greeter-{uuid.uuid4().hex[:8]}"
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "client.id": name})
    producer.produce(TOPIC, "hello")
    assert producer.flush(20) == 0
    page = tab.open("/clients")
    page.get_by_label("Filter").fill(name)
    rows = page.locator(".cl-connections tbody tr")
    expect(rows.first).to_contain_text("confluent-kafka-python", timeout=30_000)
    expect(rows.filter(has_text="Produce").first).to_contain_text("127.0.0.1")
    expect(page.locator(".cl-software")).to_contain_text("confluent-kafka-python")
    # Connections between brokers are listed apart.
    page.get_by_label("Filter").fill("")
    expect(rows.filter(has_text="hightide-console").first).to_be_visible()
    assert rows.filter(has_text="broker ").count() == 0
    page.get_by_label("between brokers").check()
    expect(rows.filter(has_text="broker 2").first).to_be_visible()
    line = page.locator(".cl-connections .command code").inner_text()
    assert run(cluster, line) == 0
    page.get_by_label("Filter").fill(name)
    del producer
    expect(page.locator(".cl-connections")).to_contain_text(
        "No connection matches.", timeout=30_000
    )


def test_subscriptions_of_client_metrics_are_listed(cluster: Cluster, tab: Tab) -> None:
    page = tab.open("/clients")
    offered = page.locator(".cl-metrics .command code")
    expect(offered).to_contain_text("hightide config set client-metrics/all")
    words = offered.inner_text().split()[1:]
    assert hightide(*words, "--bootstrap", cluster.bootstrap) == 0
    expect(page.locator(".cl-metrics h3")).to_have_text("all", timeout=40_000)
    expect(page.locator(".cl-metrics")).to_contain_text("10000")
