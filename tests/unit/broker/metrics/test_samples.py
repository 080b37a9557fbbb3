"""The text of a collection: formats, quantiles, hostile labels, values of clients."""

from __future__ import annotations

from array import array
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hightide.broker.metrics import declarations as m
from hightide.broker.metrics.samples import Samples, recent_of
from hightide.broker.metrics.service import accepted_format
from hightide.core.telemetry.client_instances import ClientInstance
from hightide.core.telemetry.client_values import ClientMetrics, Point, translate
from tests.support.scrape import OPEN_METRICS, Scrape


def read(samples: Samples, accept: str = "") -> Scrape:
    data, headers = samples.text(accepted_format(accept), False)
    is_open = "openmetrics" in dict(headers)["Content-Type"]
    return Scrape(data.decode(), is_open_metrics=is_open)


@given(st.text(st.characters(codec="utf-8")), st.floats(0, 1e300))
def test_any_label_comes_through(label: str, value: float) -> None:
    samples = Samples()
    samples.add(m.GROUP_MEMBERS, value, label)
    samples.add(m.EVENTS, value, label)
    for accept in ("", OPEN_METRICS):
        found = read(samples, accept)
        assert found.value("kafka_consumergroup_members", consumergroup=label) == value
        assert found.value("hightide_events_total", kind=label) == value


def test_a_summary_has_quantiles_a_count_and_a_sum() -> None:
    samples = Samples()
    samples.add_summary(m.LOOP_LAG, [3.0, 1.0, 2.0, 4.0], 10, 25.0)
    found = read(samples)
    assert found.value("hightide_event_loop_lag_seconds", quantile="0.5") == 3
    assert found.value("hightide_event_loop_lag_seconds", quantile="0.999") == 4
    assert found.value("hightide_event_loop_lag_seconds_count") == 10
    assert found.value("hightide_event_loop_lag_seconds_sum") == 25
    assert found.families["hightide_event_loop_lag_seconds"].type == "summary"


def test_a_summary_of_nothing_has_no_quantiles() -> None:
    samples = Samples()
    samples.add_summary(m.LOOP_LAG, [], 0, 0.0)
    assert read(samples).names() == {
        "hightide_event_loop_lag_seconds_count",
        "hightide_event_loop_lag_seconds_sum",
    }


def test_a_metric_without_samples_is_left_out() -> None:
    assert read(Samples()).names() == set()


def test_a_ring_gives_its_values_once_it_has_them() -> None:
    ring = array("d", [5, 6, 0, 0])
    assert [*recent_of(ring, 2)] == [5, 6]
    assert [*recent_of(ring, 9)] == [5, 6, 0, 0]


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("", ""),
        ("text/html", ""),
        ("application/openmetrics-text; version=0.0.1", OPEN_METRICS),
        (f"text/html, {OPEN_METRICS};q=0.5", OPEN_METRICS),
        ("text/plain; version=1.0.0", "text/plain;version=1.0.0"),
        ("text/plain;version=0.0.4;q=0.2", ""),
    ],
)
def test_one_of_three_formats_is_chosen(accept: str, expected: str) -> None:
    assert accepted_format(accept) == expected


def test_what_clients_push_stands_beside_ours() -> None:
    store = ClientMetrics()
    for number, client_id in enumerate(["a", 'b"\\\n']):
        points = [
            Point("org.apache.kafka.producer.record.send.total", "counter", False, (), number + 5),
            Point("kafka.brokers", "gauge", False, (("topic", "t"),), 99),
        ]
        common = (("client_id", client_id),)
        pushed = translate(points, lambda _: True, common, 10_000)
        store.pushed(ClientInstance(UUID(int=number + 2), {}), common, pushed, 100_000)
    samples = Samples()
    samples.add(m.BROKERS, 3)
    samples.clients = store.snapshot()
    for accept in ("", OPEN_METRICS):
        found = read(samples, accept)
        sent = "org_apache_kafka_producer_record_send_total"
        assert found.value(sent, client_id="a") == 5
        assert found.value(sent, client_id='b"\\\n') == 6
        assert found.value("kafka_brokers") == 3
        assert found.value("kafka_client_kafka_brokers", client_id="a", topic="t") == 99
