"""The metrics of clients (KIP-714): what a client pushes, and when."""

from __future__ import annotations

import uuid

from hightide.wire.types import NO_UUID, i8, i16, i32, message


@message(key=71, versions=(0, 0), flexible=0)
class GetTelemetrySubscriptionsRequest:
    """Request what to push; a client without an id gets one."""

    client_instance_id: uuid.UUID


@message(key=71, versions=(0, 0), flexible=0)
class GetTelemetrySubscriptionsResponse:
    """The metrics to push, by the beginnings of their names, and how often to push them."""

    throttle_time_ms: i32 = 0
    error_code: i16 = 0
    client_instance_id: uuid.UUID = NO_UUID
    subscription_id: i32 = 0
    accepted_compression_types: list[i8]
    push_interval_ms: i32 = 0
    telemetry_max_bytes: i32 = 0
    delta_temporality: bool = False
    requested_metrics: list[str]


@message(key=72, versions=(0, 0), flexible=0)
class PushTelemetryRequest:
    """Push metrics: MetricsData of OpenTelemetry (protobuf), compressed."""

    client_instance_id: uuid.UUID
    subscription_id: i32
    terminating: bool
    compression_type: i8
    metrics: bytes


@message(key=72, versions=(0, 0), flexible=0)
class PushTelemetryResponse:
    """Whether the broker has taken the metrics."""

    throttle_time_ms: i32 = 0
    error_code: i16 = 0
