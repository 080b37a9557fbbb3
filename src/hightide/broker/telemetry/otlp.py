"""The payload of PushTelemetry: MetricsData of OpenTelemetry, in protobuf.

All of this runs in the work pool.  Parsing keeps the interpreter for up to 20 ms per MiB, which is
why `telemetry.max.decompressed.bytes` is small.  Histograms and summaries are left out: Kafka's
clients push none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from hightide.core.telemetry.client_values import (
    MOST_NAME_LENGTH,
    OF_THE_CLIENT,
    Labels,
    Point,
    Type,
    Values,
    translate,
)
from hightide.wire.compression import Codec, inflate
from hightide.wire.errors import Corrupt

if TYPE_CHECKING:
    from opentelemetry.proto.common.v1.common_pb2 import KeyValue
    from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric, MetricsData, NumberDataPoint

MOST_PARTS = 10_000
"""Resources, scopes, metrics and values in a push; the rest is not looked at."""
_MOST_ATTRIBUTES = 32
_DELTA = 1


def read(
    payload: bytes,
    codec: Codec,
    max_bytes: int,
    wants: Callable[[str], bool],
    common: Labels,
    max_kept_bytes: int,
) -> Values:
    """Return the values in a payload; Corrupt, or InflatedTooLarge, if it cannot be read."""
    from google.protobuf.message import DecodeError
    from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

    data = inflate(codec, payload, max_bytes)
    try:
        metrics = MetricsData.FromString(bytes(data))
    except DecodeError as error:
        raise Corrupt(f"the metrics are not MetricsData: {error}") from None
    return translate(_points(metrics), wants, common, max_kept_bytes)


def _points(metrics: MetricsData) -> Iterator[Point]:
    """Yield the values, up to a limit; empty parts count too."""
    left = MOST_PARTS
    for resource in metrics.resource_metrics[:left]:
        left -= 1
        properties = tuple(
            label for label in _labels(resource.resource.attributes) if label[0] in OF_THE_CLIENT
        )
        for scope in resource.scope_metrics[: max(left, 0)]:
            left -= 1
            for metric in scope.metrics[: max(left, 0)]:
                left -= 1
                name = metric.name[:MOST_NAME_LENGTH]
                for point, type, is_delta in _of_metric(metric, max(left, 0)):
                    left -= 1
                    labels = (*properties, *_labels(point.attributes))
                    yield Point(name, type, is_delta, labels, _value(point))


def _of_metric(metric: Metric, most: int) -> Iterator[tuple[NumberDataPoint, Type, bool]]:
    match metric.WhichOneof("data"):
        case "gauge":
            for point in metric.gauge.data_points[:most]:
                yield point, "gauge", False
        case "sum":
            found = metric.sum
            type: Type = "counter" if found.is_monotonic else "gauge"
            is_delta = found.aggregation_temporality == _DELTA
            for point in found.data_points[:most]:
                yield point, type, is_delta


def _value(point: NumberDataPoint) -> float:
    return float(point.as_int if point.WhichOneof("value") == "as_int" else point.as_double)


def _labels(attributes: list[KeyValue]) -> Labels:
    return tuple((pair.key, _text(pair)) for pair in attributes[:_MOST_ATTRIBUTES])


def _text(pair: KeyValue) -> str:
    match pair.value.WhichOneof("value"):
        case "string_value":
            return pair.value.string_value
        case "bool_value":
            return str(pair.value.bool_value).lower()
        case "int_value":
            return str(pair.value.int_value)
        case "double_value":
            return str(pair.value.double_value)
    return ""
