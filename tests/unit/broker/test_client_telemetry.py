"""Clients' metrics at a broker: payloads, requests, subscriptions (KIP-714)."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

from hightide.broker.telemetry import otlp
from hightide.client.broker_connection import Connection
from hightide.core.telemetry.client_values import Values, families
from hightide.wire.compression import Codec, InflatedTooLarge, compress
from hightide.wire.errors import Corrupt, ErrorCode, KafkaError
from hightide.wire.messages.api_versions import ApiVersionsRequest
from hightide.wire.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    ListConfigResourcesRequest,
)
from hightide.wire.messages.telemetry import (
    GetTelemetrySubscriptionsRequest,
    PushTelemetryRequest,
)
from hightide.wire.types import NO_UUID
from tests.support.broker_thread import BrokerThread
from tests.support.eventually import eventually

LIMIT = 1 << 21
KEPT = 1 << 20
SENT = "org.apache.kafka.producer.record.send.total"


def metrics(name: str = SENT, value: float = 1, points: int = 1, **facts: Any) -> MetricsData:
    """Build a payload as clients do."""
    data = MetricsData()
    resource = data.resource_metrics.add()
    group = resource.resource.attributes.add(key="group_id")
    group.value.string_value = "readers"
    resource.resource.attributes.add(key="service.name").value.string_value = "left out"
    metric = resource.scope_metrics.add().metrics.add(name=name, **facts)
    metric.sum.is_monotonic, metric.sum.aggregation_temporality = True, 2
    for number in range(points):
        point = metric.sum.data_points.add(as_double=value)
        point.attributes.add(key="partition").value.int_value = number
    return data


def read(payload: bytes, codec: Codec = Codec.NONE, limit: int = LIMIT, kept: int = KEPT) -> Values:
    return otlp.read(payload, codec, limit, lambda _: True, (), kept)


# -- payloads ------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", Codec)
def test_a_payload_is_read(codec: Codec) -> None:
    values = read(compress(codec, metrics(value=7).SerializeToString()), codec)
    ((series, value),) = values.totals.items()
    assert series == (
        "org_apache_kafka_producer_record_send_total",
        (("group_id", "readers"), ("partition", "0")),
    )
    assert value == 7


def test_gauges_whole_numbers_and_deltas_are_read() -> None:
    data = MetricsData()
    found = data.resource_metrics.add().scope_metrics.add().metrics
    found.add(name="a").gauge.data_points.add(as_int=-3)
    delta = found.add(name="b").sum
    delta.aggregation_temporality = 1
    delta.data_points.add(as_double=0.5)
    found.add(name="c").histogram.data_points.add(count=1)
    values = read(data.SerializeToString())
    assert [*values.totals.values()] == [-3]
    assert [*values.deltas.values()] == [0.5]


@given(st.binary(max_size=300), st.sampled_from(Codec))
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_read_or_refused(payload: bytes, codec: Codec) -> None:
    with contextlib.suppress(Corrupt):
        read(payload, codec)


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_a_damaged_payload_is_read_or_refused(data: st.DataObject) -> None:
    payload = bytearray(metrics(points=5).SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(Corrupt):
        read(bytes(payload))


def test_a_payload_that_inflates_too_much_is_refused() -> None:
    payload = compress(Codec.ZSTD, metrics(points=20_000).SerializeToString())
    assert len(payload) < 100_000
    with pytest.raises(InflatedTooLarge):
        read(payload, Codec.ZSTD, limit=100_000)


def nested(payload: bytes, *fields: int) -> bytes:
    """Wrap bytes into protobuf messages, the last field outermost."""
    for field in fields:
        size, head = len(payload), bytearray([field << 3 | 2])
        while size > 127:
            head.append(size & 127 | 128)
            size >>= 7
        payload = bytes([*head, size]) + payload
    return payload


@pytest.mark.parametrize(
    "payload",
    [
        b"\x0a\0" * (LIMIT // 2),
        nested(b"\x12\0" * (LIMIT // 2 - 10), 1),
        nested(b"\x12\0" * (LIMIT // 2 - 10), 2, 1),
        nested(b"\x0a\0" * (LIMIT // 2 - 20), 5, 2, 2, 1),
        nested(b"\x3a\0" * (LIMIT // 2 - 20), 1, 5, 2, 2, 1),
    ],
    ids=["resources", "scopes", "metrics", "points", "attributes"],
)
def test_a_payload_of_very_many_parts_is_read_soon(payload: bytes) -> None:
    read(b"")  # imports the parser
    began_s = time.thread_time()
    read(payload)
    assert time.thread_time() - began_s < 1


def test_the_values_of_a_push_have_a_limit() -> None:
    values = read(metrics(points=20_000).SerializeToString(), kept=100_000)
    assert 0 < len(values.totals) < 2_000
    assert values.size_bytes <= 100_000
    assert values.dropped > 7_000


# -- requests ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerThread]:
    thread = BrokerThread(metrics_listeners="HTTP://127.0.0.1:0", telemetry_max_bytes=10_000)
    yield thread
    thread.stop()


@pytest.fixture
def client(broker: BrokerThread) -> Iterator[Client]:
    found = Client(broker)
    found.configure("all", {"metrics": SENT, "interval.ms": "100"})
    yield found
    found.configure("all", {"metrics": None, "interval.ms": None})


class Client:
    """A client that sends one request after the other."""

    def __init__(self, broker: BrokerThread, client_id: str = "shop") -> None:
        self.broker = broker
        self.connection = broker.run(Connection.open(*broker.address, client_id=client_id))

    def send(self, request: Any, **how: Any) -> Any:
        return self.broker.run(self.connection.send(request, **how))

    def configure(self, name: str, values: dict[str, str | None], kind: int = 16) -> Any:
        configs = [
            IncrementalAlterableConfig(
                name=key, config_operation=1 if value is None else 0, value=value
            )
            for key, value in values.items()
        ]
        resource = IncrementalAlterConfigsResource(
            resource_type=kind, resource_name=name, configs=configs
        )
        request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
        (answer,) = self.send(request).responses
        return answer

    def names(self) -> list[str]:
        answer = self.send(ListConfigResourcesRequest(), version=0)
        return [found.resource_name for found in answer.config_resources]

    def push(self, got: Any, **values: Any) -> ErrorCode:
        given = {
            "client_instance_id": got.client_instance_id,
            "subscription_id": got.subscription_id,
            "terminating": False,
            "compression_type": 0,
            "metrics": metrics().SerializeToString(),
        }
        return ErrorCode(self.send(PushTelemetryRequest(**{**given, **values})).error_code)

    def get(self, client_instance_id: uuid.UUID = NO_UUID) -> Any:
        return self.send(GetTelemetrySubscriptionsRequest(client_instance_id=client_instance_id))


def exposed(broker: BrokerThread) -> dict[str, list[dict[str, str]]]:
    async def snapshot() -> Any:
        return broker.broker.client_telemetry.snapshot(broker.broker.monotonic_ms())

    found = families(broker.run(snapshot()))
    return {family.name: [dict(sample.labels) for sample in family.samples] for family in found}


def test_a_client_gets_an_id_and_its_subscription(client: Client) -> None:
    got = client.get()
    assert got.error_code == 0
    assert got.client_instance_id.int
    assert (got.requested_metrics, got.push_interval_ms) == ([SENT], 100)
    assert got.accepted_compression_types == [4, 3, 1, 2]
    assert got.telemetry_max_bytes == 10_000


def test_what_a_client_pushes_is_kept(client: Client, broker: BrokerThread) -> None:
    got = client.get()
    assert client.push(got) == ErrorCode.NONE
    (labels,) = exposed(broker)["org_apache_kafka_producer_record_send_total"]
    assert labels["client_id"] == "shop"
    assert labels["client_source_address"] == "127.0.0.1"
    assert labels["partition"] == "0"
    assert len(labels["client_instance_id"]) == 22


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"metrics": b"\xff\xff"}, ErrorCode.INVALID_RECORD),
        ({"metrics": b"x", "compression_type": 4}, ErrorCode.INVALID_RECORD),
        ({"metrics": b"x" * 10_001}, ErrorCode.TELEMETRY_TOO_LARGE),
        ({"metrics": b"x" * 100_000}, ErrorCode.TELEMETRY_TOO_LARGE),
        (
            {"metrics": compress(Codec.ZSTD, bytes(3_000_000)), "compression_type": 4},
            ErrorCode.TELEMETRY_TOO_LARGE,
        ),
        ({"compression_type": 9}, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        ({"client_instance_id": uuid.UUID(int=0)}, ErrorCode.INVALID_REQUEST),
        ({"subscription_id": 7}, ErrorCode.UNKNOWN_SUBSCRIPTION_ID),
        ({"metrics": b""}, ErrorCode.NONE),
        ({"terminating": True}, ErrorCode.NONE),
    ],
)
def test_a_push_is_checked(client: Client, values: dict[str, Any], error: ErrorCode) -> None:
    assert client.push(client.get(), **values) == error


def test_requests_that_are_too_early_are_throttled(client: Client) -> None:
    client.configure("all", {"interval.ms": "60000"})
    got = client.get()
    assert client.push(got) == ErrorCode.NONE
    assert client.push(got) == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    early = client.get(got.client_instance_id)
    assert early.error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED


def test_an_instance_is_forgotten_when_its_connection_closes(
    client: Client, broker: BrokerThread
) -> None:
    other = Client(broker)
    got = other.get()
    instances = broker.broker.client_telemetry.instances
    assert got.client_instance_id in instances
    broker.loop.call_soon_threadsafe(other.connection.close)
    eventually(lambda: got.client_instance_id not in instances)


def test_a_selector_sees_the_software_of_a_client(client: Client) -> None:
    client.configure("all", {"match": "client_software_name=spark.*"})
    assert client.get().requested_metrics == []
    spark = Client(client.broker)
    hello = ApiVersionsRequest(client_software_name="spark-sql", client_software_version="4.3")
    spark.send(hello, version=3)
    assert spark.get().requested_metrics == [SENT]
    client.configure("all", {"match": None})


# -- subscriptions -------------------------------------------------------------------------------


def test_a_subscription_is_listed_described_and_deleted_with_its_last_config(
    client: Client,
) -> None:
    assert client.configure("a/b", {"interval.ms": "5000"}).error_code == 0
    assert client.names() == ["a/b", "all"]
    wanted = DescribeConfigsResource(resource_type=16, resource_name="a/b", configuration_keys=None)
    (described,) = client.send(DescribeConfigsRequest(resources=[wanted])).results
    assert {entry.name: (entry.value, entry.config_source) for entry in described.configs} == {
        "metrics": ("", 5),
        "interval.ms": ("5000", 7),
        "match": ("", 5),
    }
    assert client.configure("a/b", {"interval.ms": None}).error_code == 0
    assert client.names() == ["all"]


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"interval.ms": "10"}, "Invalid value 10 for interval.ms"),
        ({"topic": "a"}, "Unknown client metrics configuration: topic"),
        ({"match": "client_id=[a"}, "Illegal client matching pattern: client_id=[a"),
    ],
)
def test_an_invalid_config_is_refused(
    client: Client, values: dict[str, str | None], text: str
) -> None:
    answer = client.configure("wrong", values)
    assert answer.error_code == ErrorCode.INVALID_CONFIG
    assert answer.error_message.startswith(text)
    assert client.names() == ["all"]


@pytest.mark.parametrize("name", ["", ".", "..", "x" * 256])
def test_an_invalid_name_is_refused(client: Client, name: str) -> None:
    assert client.configure(name, {"metrics": "a"}).error_code == ErrorCode.INVALID_REQUEST


def test_there_are_at_most_a_hundred_subscriptions(client: Client) -> None:
    for number in range(99):
        assert client.configure(f"n{number}", {"metrics": "a"}).error_code == 0
    assert client.configure("one more", {"metrics": "a"}).error_code == ErrorCode.POLICY_VIOLATION
    for number in range(99):
        client.configure(f"n{number}", {"metrics": None})


def test_all_types_of_resources_are_listed(client: Client) -> None:
    answer = client.send(ListConfigResourcesRequest())
    broker_id = str(client.broker.broker.broker_id)
    found = {(found.resource_type, found.resource_name) for found in answer.config_resources}
    assert found == {(4, broker_id), (8, broker_id), (16, "all")}
    unknown = client.send(ListConfigResourcesRequest(resource_types=[16, 99]))
    assert unknown.error_code == ErrorCode.UNSUPPORTED_VERSION


def test_without_a_listener_for_metrics_the_requests_are_not_served() -> None:
    thread = BrokerThread()
    try:
        client = Client(thread)
        assert client.configure("all", {"metrics": "*"}).error_code == 0
        assert client.names() == ["all"]
        with pytest.raises(KafkaError, match="does not offer GetTelemetrySubscriptions"):
            client.get()
    finally:
        thread.stop()
