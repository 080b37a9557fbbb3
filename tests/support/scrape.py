"""Reads /metrics, /livez and /readyz as Prometheus and a probe do."""

from __future__ import annotations

import gzip
import urllib.error
import urllib.request
from typing import NamedTuple

from prometheus_client import Metric
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as open_metrics_families,
)
from prometheus_client.parser import text_string_to_metric_families

OPEN_METRICS = "application/openmetrics-text;version=1.0.0"
TIMEOUT_S = 30.0


class Page(NamedTuple):
    """A response."""

    status: int
    text: str
    content_type: str


class Scrape:
    """The samples of one scrape."""

    def __init__(self, text: str, *, is_open_metrics: bool = False) -> None:
        parse = open_metrics_families if is_open_metrics else text_string_to_metric_families
        self.families: dict[str, Metric] = {family.name: family for family in parse(text)}
        self._samples = [s for family in self.families.values() for s in family.samples]
        # Prometheus drops one of two samples with the same labels.
        series = [(s.name, *sorted(s.labels.items())) for s in self._samples]
        assert len({*series}) == len(series)

    def all(self, name: str, **labels: str) -> dict[tuple[tuple[str, str], ...], float]:
        """Values of a name by their labels: the samples that have at least the given ones."""
        return {
            tuple(sorted(sample.labels.items())): sample.value
            for sample in self._samples
            if sample.name == name and labels.items() <= sample.labels.items()
        }

    def value(self, name: str, **labels: str) -> float | None:
        """The value of the sample with exactly these labels, or None."""
        return self.all(name).get(tuple(sorted(labels.items())))

    def names(self) -> set[str]:
        return {sample.name for sample in self._samples}


def get(url: str, timeout_s: float = TIMEOUT_S, **headers: str) -> Page:
    """GET a page; a status of failure is no exception."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(url, headers=named)
    try:
        response = urllib.request.urlopen(request, timeout=timeout_s)
    except urllib.error.HTTPError as refused:
        response = refused
    with response:
        data = response.read()
        if response.headers.get("Content-Encoding") == "gzip":
            data = gzip.decompress(data)
        return Page(response.status, data.decode(), response.headers["Content-Type"])


def scrape(url: str, accept: str = "") -> Scrape:
    page = get(url, Accept=accept or "*/*")
    assert page.status == 200, page
    return Scrape(page.text, is_open_metrics="openmetrics" in page.content_type)
