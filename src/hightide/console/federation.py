"""The metrics of all brokers of a local cluster as one page, in Prometheus's text format.

Each sample gets the label `broker`. The samples of a family stay together, under one HELP and TYPE,
as the format demands. `hightide_broker_up` says which brokers answered.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
UP = "hightide_broker_up"
SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?( .+)")
COMMENT = re.compile(r"# (?:HELP|TYPE) (\S+)")


@dataclass(slots=True)
class _Family:
    comments: list[str] = field(default_factory=list)
    samples: list[str] = field(default_factory=list)


def federate(pages: Mapping[str, str | None]) -> str:
    """Combine the pages of brokers, by broker id; None is the page of one that does not answer."""
    families: dict[str, _Family] = {}
    for broker, page in pages.items():
        _add(families, broker, page or "")
    lines = [f"# HELP {UP} Whether the broker answered this scrape.", f"# TYPE {UP} gauge"]
    lines += [
        f'{UP}{{broker="{broker}"}} {int(page is not None)}' for broker, page in pages.items()
    ]
    for family in families.values():
        lines += family.comments + family.samples
    return "\n".join(lines) + "\n"


def _add(families: dict[str, _Family], broker: str, page: str) -> None:
    family = _Family()  # for samples without a comment before them
    known = set(families)
    for line in page.splitlines():
        if comment := COMMENT.match(line):
            name = comment[1]
            family = families.setdefault(name, _Family())
            if name not in known:
                family.comments.append(line)
        elif sample := SAMPLE.fullmatch(line):
            name, labels, value = sample.groups()
            if not family.comments:
                family = families.setdefault(name, _Family())
            family.samples.append(f"{name}{{{_labels(broker, labels)}}}{value}")


def _labels(broker: str, labels: str | None) -> str:
    own = f'broker="{broker}"'
    return f"{own},{labels.rstrip(',')}" if labels else own
