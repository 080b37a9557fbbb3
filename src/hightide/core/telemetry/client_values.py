"""The last values that clients have pushed, as Prometheus has them.

Names are translated as OpenTelemetry says, without units: dots become underscores, and a counter
ends in `_total`.  The labels of a sample are what the client says of the value (the topic, the
node), some properties of the client (its group), and what the broker knows of the client.

    org.apache.kafka.producer.record.send.total {topic="orders"}
    org_apache_kafka_producer_record_send_total{client_id="shop",…,topic="orders"}

What a client sends is not trusted: names and labels are limited, names that are not Kafka's get a
prefix, so that no client can pass for the broker, and all values together have a limit in bytes.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Literal, NamedTuple
from uuid import UUID

from hightide.core.telemetry.client_instances import KEPT_MS, ClientInstance
from hightide.core.telemetry.subscription import SELECTORS, Attributes

Type = Literal["counter", "gauge"]
Labels = tuple[tuple[str, str], ...]

MOST_LABELS = 16
MOST_NAME_LENGTH = 128
MOST_VALUE_LENGTH = 256
SHARE = 16
"""One client may have a sixteenth of the limit in bytes."""
_SAMPLE_BYTES = 24
"""Of a line of /metrics beside names and labels."""

_KNOWN = ("org_apache_kafka_", "spark_query_")
_PREFIX = "kafka_client_"
_TOTAL = "_total"
"""The names of counters end so, and no others."""
_NOT_IN_NAMES = re.compile("[^A-Za-z0-9_]+")
_OF_THE_BROKER = tuple(name for name in SELECTORS if name != "client_source_port")
"""Labels from what the broker knows of a client.  A port would make a series per connection."""
_RESERVED = frozenset({*SELECTORS, "le", "quantile", "job", "instance"})
OF_THE_CLIENT = ("client_rack", "group_id", "group_instance_id", "transactional_id")
"""Properties of a client that become labels; the client sends them beside its values."""


class Point(NamedTuple):
    """One value, as a client has pushed it."""

    name: str
    type: Type
    is_delta: bool
    labels: Labels
    value: float


class Sample(NamedTuple):
    """One line of /metrics: labels and value."""

    labels: Labels
    value: float


class Family(NamedTuple):
    """All samples of one metric."""

    name: str
    type: Type
    help: str
    samples: list[Sample]


Series = tuple[str, Labels]
"""The translated name, and the labels without those of the client."""


class Values(NamedTuple):
    """What one push brings, translated and within the limits."""

    totals: Mapping[Series, float]
    """Values that replace the former ones."""
    deltas: Mapping[Series, float]
    """Values to add to the former ones."""
    size_bytes: int
    dropped: int


class ClientValues(NamedTuple):
    """The last values of one client; the next push replaces the whole."""

    labels: Labels
    values: Mapping[Series, float]
    size_bytes: int
    expires_at_ms: int


def translated(name: str, type: Type) -> str:
    """Return the name of a metric in Prometheus."""
    found = _NOT_IN_NAMES.sub("_", name[:MOST_NAME_LENGTH]).strip("_").lower()
    if not found.startswith(_KNOWN):
        found = _PREFIX + found
    found = found.removesuffix(_TOTAL)
    return found + _TOTAL if type == "counter" else found


def labelled(labels: Iterable[tuple[str, str]]) -> Labels:
    """Return labels with valid names, each once, in order."""
    found: dict[str, str] = {}
    for name, value in labels:
        plain = _NOT_IN_NAMES.sub("_", name[:MOST_NAME_LENGTH]).strip("_").lower() or "unnamed"
        if plain in _RESERVED or plain[0].isdigit():
            plain = f"exported_{plain}"
        if len(found) < MOST_LABELS:
            found.setdefault(plain, value[:MOST_VALUE_LENGTH])
    return tuple(sorted(found.items()))


def labels_of(attributes: Attributes) -> Labels:
    """Return the labels that all values of a client have."""
    found = ((name, attributes.get(name)) for name in _OF_THE_BROKER)
    return tuple((name, value) for name, value in found if value is not None)


def translate(
    points: Iterable[Point], wants: Callable[[str], bool], common: Labels, max_bytes: int
) -> Values:
    """Translate the values that a client is subscribed to; `common` are its labels."""
    common_bytes = _SAMPLE_BYTES + _size(common)
    totals: dict[Series, float] = {}
    deltas: dict[Series, float] = {}
    size_bytes = dropped = 0
    for point in points:
        if not wants(point.name):
            continue
        series = (translated(point.name, point.type), labelled(point.labels))
        if series not in totals and series not in deltas:
            line_bytes = common_bytes + len(series[0]) + _size(series[1])
            if size_bytes + line_bytes > max_bytes:
                dropped += 1
                continue
            size_bytes += line_bytes
        if point.is_delta:
            deltas[series] = deltas.get(series, 0.0) + point.value
        else:
            totals[series] = point.value
    return Values(totals, deltas, size_bytes, dropped)


class ClientMetrics:
    """The last values of all clients."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self.dropped = 0
        """Values that were not kept, because of the limits."""
        self._clients: OrderedDict[UUID, ClientValues] = OrderedDict()
        # Clients whose values expire soon: the next scrape says when.
        self._disconnected: set[UUID] = set()

    def __len__(self) -> int:
        return len(self._clients)

    def pushed(
        self, instance: ClientInstance, common: Labels, pushed: Values, max_bytes: int
    ) -> None:
        """A client has pushed values; the values of all clients have a limit in bytes."""
        former = self._take(instance.id)
        self.dropped += pushed.dropped
        sums = {series: former.get(series, 0.0) + value for series, value in pushed.deltas.items()}
        values = {**pushed.totals, **sums}
        if values:
            self._clients[instance.id] = ClientValues(
                common, values, pushed.size_bytes, instance.expires_at_ms
            )
            self.size_bytes += pushed.size_bytes
        while self.size_bytes > max_bytes:
            self.dropped += len(self._take(next(iter(self._clients))))

    def _take(self, client_instance_id: UUID) -> Mapping[Series, float]:
        """Remove the values of a client, and return them."""
        client = self._clients.pop(client_instance_id, None)
        self._disconnected.discard(client_instance_id)
        if client is None:
            return {}
        self.size_bytes -= client.size_bytes
        return client.values

    def disconnected(self, client_instance_id: UUID) -> None:
        """The connection of a client has closed.

        The next scrape finds its last values, and they stay for a minute then.  Longer would be
        wrong: a client that lives pushes to another broker now, which has its values too.
        """
        if client_instance_id in self._clients:
            self._disconnected.add(client_instance_id)

    def expire(self, now_ms: int) -> None:
        """Drop the values of clients that have stopped pushing."""
        for client_instance_id in self._disconnected:
            client = self._clients[client_instance_id]
            expires_at_ms = min(client.expires_at_ms, now_ms + KEPT_MS)
            self._clients[client_instance_id] = client._replace(expires_at_ms=expires_at_ms)
        self._disconnected.clear()
        late = [name for name, client in self._clients.items() if client.expires_at_ms <= now_ms]
        for client_instance_id in late:
            self._take(client_instance_id)

    def snapshot(self) -> list[ClientValues]:
        """Return all values as they are now, for `families` in any thread."""
        return [*self._clients.values()]


def families(clients: Iterable[ClientValues]) -> Iterator[Family]:
    """Yield the values of these clients by metric."""
    names: dict[str, str] = {}
    by_name: dict[str, list[Sample]] = {}
    for client in clients:
        for (name, labels), value in client.values.items():
            # A metric has one type, that of the client which pushed first.
            if names.setdefault(name.removesuffix(_TOTAL), name) == name:
                sample = Sample((*client.labels, *labels), value)
                by_name.setdefault(name, []).append(sample)
    for name, samples in sorted(by_name.items()):
        kind: Type = "counter" if name.endswith(_TOTAL) else "gauge"
        yield Family(name, kind, "Pushed by clients (KIP-714).", samples)


def _size(labels: Labels) -> int:
    return sum(len(name) + len(value) + 4 for name, value in labels)
