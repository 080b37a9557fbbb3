"""What a broker knows of its clients' metrics (KIP-714): subscriptions, instances, last values.

    GetTelemetrySubscriptions ─▶ handler ─▶ instances ─▶ what to push, and when
    PushTelemetry ─▶ handler ─▶ instances ─▶ otlp.read, in the work pool ─▶ last values
    GET /metrics  ─▶ snapshot, on the loop ─▶ families, in any thread ◀──────────┘

`/config/client-metrics` has the subscriptions; one for the pipelines of Spark is built in.  A
broker without `metrics.listeners` has nothing that reads the values, so it does not serve the two
requests, and clients push elsewhere.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from functools import partial
from uuid import UUID

from hightide.broker.groups.re2_patterns import compile_pattern
from hightide.broker.network.connection import Connection
from hightide.core.telemetry.client_instances import ClientInstance, ClientInstances
from hightide.core.telemetry.client_values import ClientMetrics, ClientValues
from hightide.core.telemetry.subscription import (
    MOST_ATTRIBUTE_LENGTH,
    Subscription,
    parse,
)
from hightide.zookeeper.znodes import id_text

_PIPELINES = {
    "metrics": "spark.query.",
    "interval.ms": "5000",
    "match": "client_id=hightide-spark",
}
"""What the pipelines of `hightide.spark` push without a subscription."""
_BUILT_IN = ""
"""The name of that subscription; others have a name."""


def check_config(config: Mapping[str, str]) -> None:
    """Raise InvalidSetting unless a subscription may have this config."""
    parse(config, compile_pattern)


class ClientTelemetry:
    """Subscriptions, client instances, and the last values of clients."""

    def __init__(self) -> None:
        self.instances = ClientInstances()
        self.instances.configured(_BUILT_IN, parse(_PIPELINES, compile_pattern))
        self.metrics = ClientMetrics()

    # -- subscriptions ---------------------------------------------------------------------

    def configured(self, name: str, config: Mapping[str, str]) -> None:
        """The config of a subscription has changed; an empty one means that it is deleted."""
        self.instances.configured(name, parse(config, compile_pattern) if config else None)

    @property
    def subscriptions(self) -> Mapping[str, Subscription]:
        return self.instances.subscriptions

    # -- clients ---------------------------------------------------------------------------

    def find(
        self, client_instance_id: UUID, connection: Connection, client_id: str | None, now_ms: int
    ) -> Generator[None, None, ClientInstance]:
        """Return the instance of a client, in steps."""
        if connection.client_instance_id != client_instance_id:
            connection.client_instance_id = client_instance_id
            connection.on_close = partial(self._disconnected, client_instance_id)
        software_name, software_version = connection.client_software
        known = {
            "client_instance_id": id_text(client_instance_id),
            "client_id": client_id,
            "client_software_name": software_name,
            "client_software_version": software_version,
            "client_source_address": connection.client_address,
            "client_source_port": str(connection.client_port),
        }
        attributes = {
            name: value[:MOST_ATTRIBUTE_LENGTH]
            for name, value in known.items()
            if value is not None
        }
        return (yield from self.instances.find(client_instance_id, attributes, now_ms))

    def _disconnected(self, client_instance_id: UUID) -> None:
        self.instances.disconnected(client_instance_id)
        self.metrics.disconnected(client_instance_id)

    # -- for /metrics ----------------------------------------------------------------------

    def snapshot(self, now_ms: int) -> list[ClientValues]:
        """Return the last values of all clients; `client_values.families` yields them by metric."""
        self.metrics.expire(now_ms)
        return self.metrics.snapshot()
