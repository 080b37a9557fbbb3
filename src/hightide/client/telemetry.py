"""Push metrics of this program to a broker, as every Kafka client can (KIP-714).

    GetTelemetrySubscriptions ─▶ what to push, and how often
    PushTelemetry ─▶ the values now ─▶ … ─▶ the last values, marked as the last

The broker shows them beside its own metrics.  A cluster without metrics offers neither request, and
then nothing is pushed; the client looks again later.  Failures are logged once in a row and never
raised: metrics are not worth a program's end.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple
from uuid import UUID

from hightide.client.broker_connection import Connection, ConnectionFailed, check
from hightide.client.routing import Router
from hightide.wire.errors import ErrorCode, KafkaError, WireError
from hightide.wire.messages.telemetry import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
    PushTelemetryRequest,
)
from hightide.wire.types import NO_UUID

log = logging.getLogger(__name__)

LOOK_AGAIN_S = 60.0
"""How long a cluster that takes no metrics is left alone."""
RETRY_S = 5.0
LAST_PUSH_S = 1.0
_TIMEOUT_MS = 10_000
_UNCOMPRESSED = 0
_CUMULATIVE = 2
_ALL = ("*", "")
_ASK_AGAIN = (ErrorCode.UNKNOWN_SUBSCRIPTION_ID, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)


class Value(NamedTuple):
    """One value: a gauge, or a counter since the start of the program."""

    name: str
    labels: Mapping[str, str]
    value: float
    is_counter: bool = False


class Subscription(NamedTuple):
    """What a broker wants from this client."""

    connection: Connection
    id: int
    interval_s: float
    metrics: tuple[str, ...]
    max_bytes: int

    def wants(self, name: str) -> bool:
        return any(wanted in _ALL or name.startswith(wanted) for wanted in self.metrics)


class TelemetryPush:
    """Pushes what `collect` returns, until `run` is cancelled or `stop` is called."""

    def __init__(self, router: Router, collect: Callable[[], Iterable[Value]]) -> None:
        self._router = router
        self._collect = collect
        self._client_instance_id = NO_UUID
        self._stopping = asyncio.Event()
        self._has_failed = False
        self.pushes = 0

    def stop(self) -> None:
        """Make `run` push the last values and return."""
        self._stopping.set()

    async def run(self) -> None:
        while not self._stopping.is_set():
            try:
                await self._push_to_one_broker()
            except (ConnectionFailed, KafkaError, WireError, OSError) as error:
                if not self._has_failed:
                    log.warning("metrics are not pushed for now: %s", error)
                self._has_failed = True
                await self._pause(RETRY_S)

    async def _push_to_one_broker(self) -> None:
        """Push to a broker as long as it is there and its subscription stays."""
        subscription = await self._subscribe()
        if subscription is None:
            await self._pause(LOOK_AGAIN_S)
            return
        # At random, so that clients that start together do not push together.
        part = random.uniform(0.5, 1.5) if subscription.metrics else 1.0
        await self._pause(subscription.interval_s * part)
        while subscription.metrics:
            is_last = self._stopping.is_set()
            async with asyncio.timeout(LAST_PUSH_S if is_last else None):
                code = await self._push(subscription, is_last=is_last)
            if is_last or code in _ASK_AGAIN:
                return
            if code not in (ErrorCode.NONE, ErrorCode.THROTTLING_QUOTA_EXCEEDED):
                check(code, about=subscription.connection.address)
            self._has_failed = False
            await self._pause(subscription.interval_s)

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            pass

    # -- requests --------------------------------------------------------------------------

    async def _subscribe(self) -> Subscription | None:
        """Ask a broker what it wants; None if no broker takes metrics."""
        connection = await self._connection()
        if connection is None:
            return None
        request = GetTelemetrySubscriptionsRequest(client_instance_id=self._client_instance_id)
        response: GetTelemetrySubscriptionsResponse = await connection.send(
            request, timeout_ms=_TIMEOUT_MS
        )
        if response.error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED:
            return None
        check(response.error_code, about=connection.address)
        self._client_instance_id = UUID(int=response.client_instance_id.int)
        return Subscription(
            connection,
            response.subscription_id,
            response.push_interval_ms / 1000,
            tuple(response.requested_metrics),
            response.telemetry_max_bytes,
        )

    async def _connection(self) -> Connection | None:
        """A connection to a broker that takes metrics."""
        await self._router.metadata([])
        broker_ids = list(self._router.nodes)
        random.shuffle(broker_ids)
        for broker_id in broker_ids:
            try:
                connection = await self._router.broker(broker_id)
                connection.version_for(PushTelemetryRequest)
            except (ConnectionFailed, KafkaError):
                continue
            return connection
        return None

    async def _push(self, subscription: Subscription, *, is_last: bool) -> ErrorCode:
        wanted = [value for value in self._collect() if subscription.wants(value.name)]
        payload = encoded(wanted)
        while len(payload) > subscription.max_bytes:
            wanted = wanted[: len(wanted) // 2]
            payload = encoded(wanted)
        response = await subscription.connection.send(
            PushTelemetryRequest(
                client_instance_id=self._client_instance_id,
                subscription_id=subscription.id,
                terminating=is_last,
                compression_type=_UNCOMPRESSED,
                metrics=payload,
            ),
            timeout_ms=_TIMEOUT_MS,
        )
        self.pushes += 1
        return ErrorCode(response.error_code)


def encoded(values: Iterable[Value]) -> bytes:
    """Return values as MetricsData of OpenTelemetry."""
    from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

    data = MetricsData()
    metrics = data.resource_metrics.add().scope_metrics.add().metrics
    for value in values:
        metric = metrics.add(name=value.name)
        if value.is_counter:
            metric.sum.is_monotonic = True
            metric.sum.aggregation_temporality = _CUMULATIVE
        points = metric.sum.data_points if value.is_counter else metric.gauge.data_points
        point = points.add(as_double=value.value)
        for name, text in value.labels.items():
            point.attributes.add(key=name).value.string_value = text
    payload: bytes = data.SerializeToString()
    return payload
