"""Pushing this program's metrics to real brokers in this process (KIP-714)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator

import pytest

from hightide.client.admin.configs import ConfigAdmin
from hightide.client.model.cluster import ResourceType
from hightide.client.routing import Router
from hightide.client.telemetry import Subscription, TelemetryPush, Value
from hightide.core.telemetry.client_values import families
from tests.support.broker_thread import BrokerThread
from tests.support.eventually import eventually_async

SPARK = "hightide-spark"


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerThread]:
    thread = BrokerThread(metrics_listeners="HTTP://127.0.0.1:0")
    yield thread
    thread.stop()


class World:
    """A pusher, and what the broker shows of it."""

    def __init__(self, broker: BrokerThread, client_id: str, **values: float) -> None:
        self.broker = broker
        self.values = values
        host, port = broker.address
        self.router = Router(f"{host}:{port}", client_id=client_id, long_running=True)
        self.push = TelemetryPush(self.router, self.collect)

    def collect(self) -> Iterator[Value]:
        for name, value in self.values.items():
            yield Value(name.replace("_", "."), {"query": "q"}, value, name.endswith("_total"))

    def shown(self) -> dict[str, float]:
        telemetry = self.broker.broker.client_telemetry
        clients = telemetry.snapshot(self.broker.broker.monotonic_ms())
        return {
            family.name: sample.value
            for family in families(clients)
            for sample in family.samples
            if ("client_id", self.router._client_id) in sample.labels
        }


def run(broker: BrokerThread, world: World, until: Callable[[], object]) -> None:
    """Push in the broker's loop until something is true; then push once more and end."""

    async def pushing() -> None:
        task = asyncio.create_task(world.push.run())
        await eventually_async(until)
        world.push.stop()
        await task
        world.router.close()

    broker.run(pushing())


def test_spark_pushes_without_a_subscription(broker: BrokerThread) -> None:
    world = World(broker, SPARK, spark_query_lag_records=7.0, spark_query_rows_total=3.0, other=1.0)
    instances = broker.broker.client_telemetry.instances
    # It is stopped while it waits for its first push, so this one is its last.
    run(broker, world, lambda: len(instances))
    assert world.shown() == {"spark_query_lag_records": 7, "spark_query_rows_total": 3}
    assert world.push.pushes == 1


def test_others_push_what_they_are_subscribed_to(broker: BrokerThread) -> None:
    world = World(broker, "shop", spark_query_lag=7.0, shop_orders=1.0)
    configs = ConfigAdmin(world.router)
    names = {"metrics": "shop.", "interval.ms": "100", "match": "client_id=shop"}
    broker.run(configs.alter(ResourceType.CLIENT_METRICS, "shop", values=names))
    run(broker, world, lambda: world.push.pushes > 3)
    assert world.shown() == {"kafka_client_shop_orders": 1}


def test_a_changed_subscription_is_followed(broker: BrokerThread) -> None:
    world = World(broker, "changing", a=1.0, b=2.0)
    configs = ConfigAdmin(world.router)

    def subscribe(metrics: str) -> None:
        names = {"metrics": metrics, "interval.ms": "100", "match": "client_id=changing"}
        broker.loop.create_task(
            configs.alter(ResourceType.CLIENT_METRICS, "changing", values=names)
        )

    async def both() -> None:
        subscribe("a")
        instances = broker.broker.client_telemetry.instances
        await eventually_async(lambda: "changing" in instances.subscriptions)
        task = asyncio.create_task(world.push.run())
        await eventually_async(lambda: world.shown() == {"kafka_client_a": 1})
        subscribe("b")
        await eventually_async(lambda: world.shown() == {"kafka_client_b": 2})
        world.push.stop()
        await task
        world.router.close()

    broker.run(both())


def test_a_client_without_a_subscription_pushes_nothing(broker: BrokerThread) -> None:
    world = World(broker, "unasked", a=1.0)
    instances = broker.broker.client_telemetry.instances
    before = len(instances)
    run(broker, world, lambda: len(instances) > before)
    assert world.push.pushes == 0
    assert world.shown() == {}


def test_a_broker_without_metrics_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    broker = BrokerThread()
    world = World(broker, SPARK, spark_query_lag=1.0)
    try:
        run(broker, world, lambda: world.router.nodes)
    finally:
        broker.stop()
    assert world.push.pushes == 0
    assert caplog.records == [r for r in caplog.records if r.levelno < logging.WARNING]


def test_a_broker_that_is_gone_is_one_line_in_the_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hightide.client.telemetry.RETRY_S", 0.01)
    tries = 0

    async def pushing() -> None:
        router = Router("127.0.0.1:1", client_id=SPARK)
        push = TelemetryPush(router, lambda: [])
        metadata = router.metadata

        async def counted(names: list[str]) -> object:
            nonlocal tries
            tries += 1
            return await metadata(names)

        monkeypatch.setattr(router, "metadata", counted)
        task = asyncio.create_task(push.run())
        await eventually_async(lambda: tries > 3)
        push.stop()
        await task

    asyncio.run(pushing())
    (line,) = [record.message for record in caplog.records if "not pushed" in record.message]
    assert "127.0.0.1:1" in line


@pytest.mark.parametrize(
    ("metrics", "wanted"), [(("*",), True), (("",), True), (("a.", "b"), True), (("b",), False)]
)
def test_names_are_subscribed_by_their_beginning(metrics: tuple[str, ...], wanted: bool) -> None:
    subscription = Subscription(None, 1, 1.0, metrics, 1)  # type: ignore[arg-type]
    assert subscription.wants("a.c") is wanted
