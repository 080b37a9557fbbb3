"""The last values of clients, translated for Prometheus."""

from __future__ import annotations

import re
import uuid
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hightide.core.telemetry.client_instances import KEPT_MS, ClientInstance
from hightide.core.telemetry.client_values import (
    MOST_LABELS,
    ClientMetrics,
    Family,
    Labels,
    Point,
    families,
    labelled,
    labels_of,
    translate,
    translated,
)

LARGE = 1 << 20
SENT = "org.apache.kafka.producer.record.send.total"
TRANSLATED = "org_apache_kafka_producer_record_send_total"


def instance(number: int = 1, *metrics: str, **attributes: str) -> ClientInstance:
    return ClientInstance(uuid.UUID(int=number), attributes, metrics or ("*",), active_at_ms=0)


class Pushes:
    """Pushes values into one store."""

    def __init__(self, max_bytes: int = LARGE) -> None:
        self.store, self.max_bytes = ClientMetrics(), max_bytes

    def push(self, client: ClientInstance, *points: Point) -> None:
        common = labels_of(client.attributes)
        values = translate(points, client.wants, common, self.max_bytes)
        self.store.pushed(client, common, values, self.max_bytes)

    @property
    def families(self) -> dict[str, Family]:
        return {family.name: family for family in families(self.store.snapshot())}

    def values(self, name: str) -> list[float]:
        found = self.families.get(name)
        return [sample.value for sample in found.samples] if found else []


def point(name: str = SENT, value: float = 1.0, labels: Labels = (), **facts: Any) -> Point:
    return Point(
        **{"name": name, "type": "counter", "is_delta": False, **facts}, labels=labels, value=value
    )


@pytest.mark.parametrize(
    ("name", "kind", "expected"),
    [
        (SENT, "counter", TRANSLATED),
        (
            "org.apache.kafka.producer.node.request.latency.avg",
            "gauge",
            "org_apache_kafka_producer_node_request_latency_avg",
        ),
        ("org.apache.kafka.x.total", "gauge", "org_apache_kafka_x"),
        ("org.apache.kafka.x", "counter", "org_apache_kafka_x_total"),
        ("spark.query.input.rows", "gauge", "spark_query_input_rows"),
        (
            "kafka_server_brokertopicmetrics_bytesin_total",
            "counter",
            "kafka_client_kafka_server_brokertopicmetrics_bytesin_total",
        ),
        ("app/Größe (ms)", "gauge", "kafka_client_app_gr_e_ms"),
        ("", "gauge", "kafka_client_"),
    ],
)
def test_names_are_translated(name: str, kind: Any, expected: str) -> None:
    assert translated(name, kind) == expected


@given(st.text(max_size=200), st.sampled_from(["counter", "gauge"]))
@settings(max_examples=200)
def test_every_name_is_valid_and_no_client_passes_for_the_broker(name: str, kind: Any) -> None:
    found = translated(name, kind)
    assert re.fullmatch("[a-zA-Z_][a-zA-Z0-9_]*", found)
    assert found.startswith(("org_apache_kafka_", "spark_query_", "kafka_client_"))
    assert len(found) < 160


@given(st.lists(st.tuples(st.text(max_size=20), st.text(max_size=400)), max_size=40))
@settings(max_examples=200)
def test_every_label_is_valid_once_and_short(labels: list[tuple[str, str]]) -> None:
    found = labelled(labels)
    assert all(re.fullmatch("[a-zA-Z][a-zA-Z0-9_]*", name) for name, _ in found)
    assert all(len(value) <= 256 for _, value in found)
    assert len({name for name, _ in found}) == len(found) <= MOST_LABELS
    assert not {name for name, _ in found} & {"client_id", "le", "instance", "job"}


def test_a_sample_has_the_labels_of_its_client() -> None:
    pushes = Pushes()
    client = instance(client_id="shop", client_software_name="librdkafka", client_source_port="1")
    pushes.push(client, point(labels=(("topic", "orders"), ("client_id", "forged"))))
    (sample,) = pushes.families[TRANSLATED].samples
    assert dict(sample.labels) == {
        "client_id": "shop",
        "client_software_name": "librdkafka",
        "exported_client_id": "forged",
        "topic": "orders",
    }


def test_a_push_replaces_the_values_and_adds_deltas() -> None:
    pushes = Pushes()
    client = instance()
    pushes.push(client, point(value=5), point("a.total", 3, is_delta=True), point("b", 1))
    pushes.push(client, point(value=7), point("a.total", 4, is_delta=True))
    assert pushes.values(TRANSLATED) == [7]
    assert pushes.values("kafka_client_a_total") == [7]
    assert pushes.values("kafka_client_b_total") == []


def test_a_client_keeps_to_its_subscription() -> None:
    pushes = Pushes()
    pushes.push(instance(1, "org.apache.kafka.producer."), point(), point("org.apache.kafka.x"))
    assert [*pushes.families] == [TRANSLATED]


def test_two_clients_are_two_samples_and_the_first_type_counts() -> None:
    pushes = Pushes()
    pushes.push(instance(1, client_id="a"), point("x_total", 1, type="counter"))
    pushes.push(instance(2, client_id="b"), point("x_total", 2, type="counter"))
    pushes.push(instance(3, client_id="c"), point("x", 3, type="gauge"))
    assert [*pushes.families] == ["kafka_client_x_total"]
    family = pushes.families["kafka_client_x_total"]
    assert family.type == "counter"
    assert [sample.value for sample in family.samples] == [1, 2]


def test_values_expire() -> None:
    pushes = Pushes()
    pushes.push(instance(), point())
    pushes.store.expire(3 * 300_000 - 1)
    assert pushes.values(TRANSLATED) == [1]
    pushes.store.expire(3 * 300_000)
    assert pushes.values(TRANSLATED) == []
    assert pushes.store.size_bytes == 0


def test_the_values_of_a_client_that_is_gone_stay_for_a_minute_after_the_next_scrape() -> None:
    pushes = Pushes()
    pushes.push(instance(1), point())
    pushes.push(instance(2), point(value=2.0))
    pushes.store.disconnected(uuid.UUID(int=1))
    pushes.store.disconnected(uuid.UUID(int=3))
    now_ms = 100_000
    pushes.store.expire(now_ms)
    assert pushes.values(TRANSLATED) == [1, 2]
    pushes.store.expire(now_ms + KEPT_MS - 1)
    assert pushes.values(TRANSLATED) == [1, 2]
    pushes.store.expire(now_ms + KEPT_MS)
    assert pushes.values(TRANSLATED) == [2]


def test_a_client_that_connects_again_keeps_its_values() -> None:
    pushes = Pushes()
    pushes.push(instance(), point())
    pushes.store.disconnected(uuid.UUID(int=1))
    pushes.push(instance(), point(value=2.0))
    pushes.store.expire(0)
    pushes.store.expire(KEPT_MS + 1)
    assert pushes.values(TRANSLATED) == [2]


def test_one_client_has_a_limit() -> None:
    client = instance()
    points = [point(labels=(("partition", str(number)),)) for number in range(1000)]
    values = translate(points, client.wants, (), 10_000)
    assert values.size_bytes <= 10_000
    assert 50 < len(values.totals) < 1000
    assert values.dropped == 1000 - len(values.totals)


@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(0, 20)), max_size=30),
    st.integers(0, 3000),
)
@settings(max_examples=100)
def test_all_clients_together_have_a_limit(pushed: list[tuple[int, int]], max_bytes: int) -> None:
    pushes = Pushes(max_bytes)
    for client, count in pushed:
        pushes.push(
            instance(client), *(point(labels=(("at", str(number)),)) for number in range(count))
        )
        assert 0 <= pushes.store.size_bytes <= max_bytes
        found = pushes.store.snapshot()
        assert pushes.store.size_bytes == sum(client.size_bytes for client in found)
