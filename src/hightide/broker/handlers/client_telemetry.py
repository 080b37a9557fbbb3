"""GetTelemetrySubscriptions (71), PushTelemetry (72), ListConfigResources (74): KIP-714, KIP-1142.

Both telemetry requests are served only with `metrics.listeners`: without, nothing reads the values.

THROTTLING_QUOTA_EXCEEDED      the request is earlier than the client's interval
INVALID_REQUEST                no client instance id, or a push after the one that said it is last
UNKNOWN_SUBSCRIPTION_ID        the subscriptions have changed; the client requests its new one
UNSUPPORTED_COMPRESSION_TYPE   no codec has this number
TELEMETRY_TOO_LARGE            above telemetry.max.bytes, or telemetry.max.decompressed.bytes
INVALID_RECORD                 the metrics cannot be read
UNSUPPORTED_VERSION            ListConfigResources names a type that has no resources
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeVar

from hightide.broker.handlers.request_context import Context
from hightide.broker.membership.dynamic_configs import NO_ENTITY, Change
from hightide.broker.network.turn import Steps, Turn
from hightide.broker.telemetry import otlp
from hightide.broker.telemetry.client_telemetry import check_config
from hightide.core.telemetry.client_instances import ACCEPTED_CODECS, ClientInstance, Push
from hightide.core.telemetry.client_values import SHARE, labels_of
from hightide.core.telemetry.subscription import MOST_SUBSCRIPTIONS
from hightide.settings import DescribedSetting
from hightide.settings.telemetry import MOST_NAME_LENGTH, ClientMetrics
from hightide.wire.compression import Codec, InflatedTooLarge
from hightide.wire.errors import Corrupt, ErrorCode, KafkaError
from hightide.wire.messages.configs import (
    CLIENT_METRICS,
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from hightide.wire.messages.telemetry import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
    PushTelemetryRequest,
    PushTelemetryResponse,
)

if TYPE_CHECKING:
    from hightide.broker.broker import Broker

Value = TypeVar("Value")

_RESERVED_IDS = (0, 1)
_PARSED_RATIO = 16
"""A parsed payload takes so many times its bytes in memory."""

TOPIC, BROKER, BROKER_LOGGER, GROUP = 2, 4, 8, 32
_NAMES_PER_STEP = 1_000


# -- what clients push -----------------------------------------------------------------------


def get_telemetry_subscriptions(
    broker: Broker, request: GetTelemetrySubscriptionsRequest, context: Context
) -> Steps[GetTelemetrySubscriptionsResponse]:
    telemetry = broker.client_telemetry
    client_instance_id = request.client_instance_id
    while not client_instance_id.int:
        new_id = broker.environment.new_id()
        if new_id not in telemetry.instances:
            client_instance_id = new_id
    instance = yield from telemetry.find(
        client_instance_id, context.connection, context.client_id, broker.monotonic_ms()
    )
    error = telemetry.instances.subscribed(instance, broker.monotonic_ms())
    if error:
        return GetTelemetrySubscriptionsResponse(
            error_code=error, accepted_compression_types=[], requested_metrics=[]
        )
    return GetTelemetrySubscriptionsResponse(
        client_instance_id=client_instance_id,
        subscription_id=instance.subscription_id,
        accepted_compression_types=[*ACCEPTED_CODECS],
        push_interval_ms=instance.interval_ms,
        telemetry_max_bytes=broker.settings.telemetry_max_bytes,
        # A sum since the client's start survives a lost push and another broker.
        delta_temporality=False,
        requested_metrics=[*instance.metrics],
    )


async def push_telemetry(
    broker: Broker, request: PushTelemetryRequest, context: Context
) -> PushTelemetryResponse:
    if request.client_instance_id.int in _RESERVED_IDS:
        return PushTelemetryResponse(error_code=ErrorCode.INVALID_REQUEST)
    telemetry = broker.client_telemetry
    steps = telemetry.find(
        request.client_instance_id, context.connection, context.client_id, broker.monotonic_ms()
    )
    instance = await _in_turns(context.turn, steps)
    push = Push(
        request.subscription_id,
        request.compression_type,
        len(request.metrics),
        request.terminating,
    )
    max_bytes = broker.settings.telemetry_max_bytes
    error = telemetry.instances.pushed(instance, push, max_bytes, broker.monotonic_ms())
    if not error:
        if request.metrics and instance.metrics:
            error = await _read(broker, request, context, instance)
        telemetry.instances.has_read(instance, error)
    return PushTelemetryResponse(error_code=error)


async def _read(
    broker: Broker, request: PushTelemetryRequest, context: Context, instance: ClientInstance
) -> ErrorCode:
    """Read the pushed values, and keep them."""
    settings, common = broker.settings, labels_of(instance.attributes)
    max_bytes, max_kept_bytes = (
        settings.telemetry_max_decompressed_bytes,
        settings.telemetry_values_max_bytes,
    )
    try:
        values = await broker.work_pool.run(
            context.connection.usage,
            _PARSED_RATIO * max_bytes,
            otlp.read,
            request.metrics,
            Codec(request.compression_type),
            max_bytes,
            instance.wants,
            common,
            max_kept_bytes // SHARE,
        )
    except InflatedTooLarge:
        return ErrorCode.TELEMETRY_TOO_LARGE
    except Corrupt:
        return ErrorCode.INVALID_RECORD
    broker.client_telemetry.metrics.pushed(instance, common, values, max_kept_bytes)
    return ErrorCode.NONE


async def _in_turns(turn: Turn, steps: Steps[Value]) -> Value:
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            value: Value = stop.value
            return value
        await turn.pause()


# -- resources -------------------------------------------------------------------------------


def list_config_resources(
    broker: Broker, request: ListConfigResourcesRequest, context: Context
) -> Steps[ListConfigResourcesResponse]:
    supported = (
        (TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP)
        if context.version >= 1
        else (CLIENT_METRICS,)
    )
    types = request.resource_types or supported
    if not set(types) <= set(supported):
        return ListConfigResourcesResponse(
            error_code=ErrorCode.UNSUPPORTED_VERSION, config_resources=[]
        )
    found = []
    for kind in types:
        for number, name in enumerate(_names(broker, kind)):
            found.append(ConfigResource(resource_name=name, resource_type=kind))
            if not number % _NAMES_PER_STEP:
                yield
    return ListConfigResourcesResponse(config_resources=found)


def _names(broker: Broker, kind: int) -> Iterable[str]:
    if kind == TOPIC:
        return broker.metadata.names()
    if kind in (BROKER, BROKER_LOGGER):
        return [str(broker_id) for broker_id in broker.metadata.broker_ids]
    return sorted(broker.client_metrics_configs.configs) if kind == CLIENT_METRICS else ()


def describe_subscription(broker: Broker, name: str) -> Iterable[DescribedSetting]:
    """Describe the configs of a subscription; one that does not exist has the defaults."""
    if not name:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, "Client metrics subscription name must not be empty"
        )
    return ClientMetrics.described(broker.client_metrics_configs.configs.get(name, {}))


async def alter_subscription(
    broker: Broker, name: str, change: Change, validate_only: bool
) -> None:
    """Change the configs of a subscription; InvalidSetting if it may not have them."""
    configs = broker.client_metrics_configs
    if name in NO_ENTITY or len(name) > MOST_NAME_LENGTH:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"a subscription's name has 1 to {MOST_NAME_LENGTH} characters, and is not . or ..",
        )
    if name not in configs.configs and len(configs.configs) >= MOST_SUBSCRIPTIONS:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"there are {MOST_SUBSCRIPTIONS} subscriptions of client metrics; delete one first",
        )

    def checked(before: dict[str, str]) -> dict[str, str]:
        config = change(before)
        check_config(config)
        return config

    checked(dict(configs.configs.get(name, {})))
    if not validate_only:
        await configs.configure(name, checked)
