"""Samples: the values of one collection, and the text that Prometheus reads.

Collection appends plain tuples.  `prometheus_client` makes the text of them, in a thread, and is
imported there with the first scrape: a broker that starts does not pay for it.
"""

from __future__ import annotations

import gzip
from array import array
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from hightide.broker.metrics.declarations import METRICS, Metric
from hightide.core.telemetry import client_values
from hightide.core.telemetry.client_values import ClientValues

if TYPE_CHECKING:
    from prometheus_client import Metric as Family

_QUANTILES = (0.5, 0.75, 0.95, 0.98, 0.99, 0.999)
_PROCESS = "process_"
_COMPRESSION = 1  # half a second for 10 MB, instead of two


class Samples:
    """The values of one collection, by metric."""

    def __init__(self) -> None:
        self.values: dict[Metric, list[tuple[tuple[str, ...], float]]] = {
            metric: [] for metric in METRICS.values()
        }
        self._summaries: list[
            tuple[Metric, Sequence[float], int, float | None, tuple[str, ...]]
        ] = []
        self.clients: list[ClientValues] = []
        """What clients have pushed; it is translated later, in the thread."""

    def add(self, metric: Metric, value: float, *labels: str) -> None:
        """Add a value; labels at the end of the metric's labels may be left out."""
        self.values[metric].append((labels, value))

    def add_summary(
        self,
        metric: Metric,
        recent: Sequence[float],
        count: int,
        total: float | None,
        *labels: str,
    ) -> None:
        """Add the quantiles of recent values, how many there were in all, and perhaps their sum.

        The values are sorted later, in the thread.
        """
        self._summaries.append((metric, recent, count, total, labels))

    # -- in a thread -----------------------------------------------------------------------

    def text(self, accept: str, is_packed: bool) -> tuple[bytes, list[tuple[str, str]]]:
        """Return the text in the format that a client accepts, and its headers."""
        from prometheus_client.exposition import choose_encoder

        encode, content_type = choose_encoder(accept)
        data = encode(self)
        headers = [("Content-Type", content_type)]
        if is_packed:
            data = gzip.compress(data, _COMPRESSION)
            headers.append(("Content-Encoding", "gzip"))
        return data, headers

    def collect(self) -> Iterator[Family]:
        """Yield the families, as the encoders of `prometheus_client` want them."""
        from prometheus_client import Metric as Family

        families: dict[Metric, Family] = {}
        for metric, recent, count, total, labels in self._summaries:
            family = families.get(metric)
            if family is None:
                family = families[metric] = Family(metric.name, metric.help, metric.kind.value)
            _add_summary(family, metric, recent, count, total, labels)
        for metric, values in self.values.items():
            found = families.get(metric)
            if found is None:
                found = Family(metric.family, metric.help, metric.kind.value)
                name, names = metric.name, metric.labels
                for labels, value in values:
                    found.add_sample(name, dict(zip(names, labels, strict=False)), value)
            if found.samples:
                yield found
        for pushed in client_values.families(self.clients):
            found = Family(pushed.name.removesuffix("_total"), pushed.help, pushed.type)
            for sample in pushed.samples:
                found.add_sample(pushed.name, dict(sample.labels), sample.value)
            yield found


def _add_summary(
    family: Family,
    metric: Metric,
    recent: Sequence[float],
    count: int,
    total: float | None,
    values: tuple[str, ...],
) -> None:
    labels = dict(zip(metric.labels, values, strict=True))
    ordered = sorted(recent)
    for quantile in _QUANTILES if ordered else ():
        at = min(len(ordered) - 1, int(quantile * len(ordered)))
        family.add_sample(metric.name, {**labels, "quantile": str(quantile)}, ordered[at])
    family.add_sample(f"{metric.name}_count", labels, count)
    if total is not None:
        family.add_sample(f"{metric.name}_sum", labels, total)


def add_process(samples: Samples) -> None:
    """Add what the operating system knows of the process.  In a thread: it reads files."""
    from prometheus_client import CollectorRegistry, ProcessCollector

    for family in ProcessCollector(registry=CollectorRegistry(auto_describe=False)).collect():
        for sample in family.samples:
            metric = METRICS.get(sample.name)
            if metric is not None and sample.name.startswith(_PROCESS):
                samples.add(metric, sample.value)


def recent_of(ring: array[float], count: int) -> array[float]:
    """Copy the values of a ring that has been written `count` times."""
    return ring[:count] if count < len(ring) else ring[:]
