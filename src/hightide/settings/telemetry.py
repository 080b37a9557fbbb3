"""Settings for the metrics that clients push (KIP-714): the broker's limits, and subscriptions.

A subscription is a resource of DescribeConfigs, CLIENT_METRICS: it says which clients push which
metrics, and how often.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hightide.settings.declaration import (
    DescribedSetting,
    InvalidSetting,
    Scope,
    Settings,
    Source,
    Synonym,
    long,
    names,
    setting,
)

CLUSTER = Scope.CLUSTER
LEAST_INTERVAL_MS, MOST_INTERVAL_MS = 100, 3_600_000
MOST_NAMES, MOST_NAME_LENGTH = 100, 255


class TelemetrySettings(Settings):
    """What a broker accepts of clients' metrics."""

    telemetry_max_bytes: int = setting(
        default=1024 * 1024,
        doc="Maximum size of the metrics that a client pushes at a time, as they are sent.",
        at_least=1,
    )
    telemetry_max_decompressed_bytes: int = setting(
        default=2 * 1024 * 1024,
        doc="Maximum size of the metrics that a client pushes at a time, decompressed. One MiB can"
        " keep the interpreter for 20 ms.",
        at_least=1,
        at_most=64 * 1024 * 1024,
    )
    telemetry_values_max_bytes: long = setting(
        default=16 * 1024 * 1024,
        doc="Maximum size of the clients' metrics that a broker keeps, as lines of /metrics. Past"
        " it, those of the client that has not pushed for longest are dropped.",
        at_least=0,
    )


class ClientMetrics(Settings):
    """A subscription: which clients push which metrics, and how often."""

    metrics: names = setting(
        default=(),
        doc="Metrics to push, by the beginnings of their names; * stands for all, and nothing for"
        " none.",
        scope=CLUSTER,
    )
    interval_ms: int = setting(
        default=300_000,
        doc="Time between two pushes of a client.",
        scope=CLUSTER,
    )
    match: names = setting(
        default=(),
        doc="Clients that push, as SELECTOR=EXPRESSION: every expression must match the whole"
        " value; nothing stands for all clients.",
        scope=CLUSTER,
    )

    @classmethod
    def _unknown(cls, name: str) -> str:
        return f"Unknown client metrics configuration: {name}"

    @classmethod
    def parse(
        cls, given: Mapping[str, str], origin: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Return attributes and values of texts; InvalidSetting in Kafka's words."""
        values = super().parse(given, origin)
        interval_ms = values.get("interval_ms", LEAST_INTERVAL_MS)
        if not LEAST_INTERVAL_MS <= interval_ms <= MOST_INTERVAL_MS:
            raise InvalidSetting(
                f"Invalid value {interval_ms} for interval.ms, interval must be between"
                f" {LEAST_INTERVAL_MS} and {MOST_INTERVAL_MS} (1 hour)"
            )
        listed = values.get("metrics", ())
        if len(listed) > MOST_NAMES or any(len(name) > MOST_NAME_LENGTH for name in listed):
            raise InvalidSetting(
                f"metrics may have {MOST_NAMES} entries of {MOST_NAME_LENGTH} characters"
            )
        return values

    def describe(self) -> Iterator[DescribedSetting]:
        """Yield every setting with its value and its synonyms."""
        for about, value in self._values():
            synonyms = [
                Synonym(about.name, given[about.name], source)
                for source, given in self.layers
                if about.name in given
            ]
            synonyms.append(Synonym(about.name, about.text(about.default), Source.DEFAULT))
            yield self._described(about, value, synonyms)

    @classmethod
    def described(cls, config: Mapping[str, str]) -> Iterator[DescribedSetting]:
        """Describe a subscription with this config."""
        subscription = cls(**cls.parse(config))
        subscription.__dict__["layers"] = ((Source.CLIENT_METRICS, dict(config)),)
        return subscription.describe()
