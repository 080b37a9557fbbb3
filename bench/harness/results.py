"""Reads the JSON results of runs, from one file or several, for the page.

A run may be done in parts. Of two workloads of the same name, that of the later file counts. Files
of the pipeline on Spark have no subject; their workloads get a prefix, because both have one called
`latency`.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from bench.harness.generator import Sample
from bench.harness.lab import OTHERS, Metric
from bench.harness.process import QUIET_CORES
from bench.harness.report import BESIDE

SPARK = "spark-"


class UnreadableResults(Exception):
    """A file that is not what a run writes; the text names it."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A median over the rounds, with the smallest and the largest."""

    median: float
    low: float
    high: float

    @staticmethod
    def of(data: Mapping[str, float]) -> "Figure":
        return Figure(data["median"], data["min"], data["max"])

    def over(self, unit: float) -> "Figure":
        return Figure(self.median / unit, self.low / unit, self.high / unit)

    @property
    def has_spread(self) -> bool:
        return self.low < self.high


@dataclass(frozen=True, slots=True)
class Row:
    """One metric of a workload: the figures of every broker, and the subject's ratios to others."""

    metric: Metric
    brokers: dict[str, Figure]
    ratios: dict[str, Figure]

    @staticmethod
    def of(key: str, data: Mapping[str, Any]) -> "Row":
        kept = ("goal", "ratio_goal", "ratio_aim")
        metric = Metric(
            key,
            data["title"],
            data.get("digits", 2),
            data.get("more_is_better", False),
            **{name: data[name] for name in kept if name in data},
        )
        brokers = {name: Figure.of(broker) for name, broker in data["brokers"].items()}
        # Kept as `subject/other`, and there is one subject only.
        ratios = {
            name.partition("/")[2]: Figure.of(ratio) for name, ratio in data["ratios"].items()
        }
        return Row(metric, brokers, ratios)

    @property
    def ratio(self) -> Figure | None:
        """Return the ratio that is compared with the goal."""
        return next((self.ratios[name] for name in BESIDE if name in self.ratios), None)


@dataclass(frozen=True, slots=True)
class Measured:
    """One workload with all its figures, and why brokers are missing from it."""

    name: str
    title: str
    rows: dict[str, Row]
    rounds: dict[str, list[Sample]]
    gaps: dict[str, str]
    failures: dict[str, str]

    @staticmethod
    def of(data: Mapping[str, Any], prefix: str = "") -> "Measured":
        return Measured(
            prefix + data["name"],
            data["title"],
            {key: Row.of(key, row) for key, row in data["summary"].items()},
            data["rounds"],
            data["gaps"],
            data["failures"],
        )

    @property
    def is_empty(self) -> bool:
        return not any(row.brokers for row in self.rows.values()) and not self.failures

    @property
    def was_disturbed(self) -> bool:
        row = self.rows.get(OTHERS.key)
        return row is not None and any(
            figure.median > QUIET_CORES for figure in row.brokers.values()
        )

    @property
    def keys(self) -> list[str]:
        """Everything that a round gives."""
        found = (key for rounds in self.rounds.values() for sample in rounds for key in sample)
        return list(dict.fromkeys(found))

    def gain(self, name: str) -> float:
        """Return how much better the second half of the rounds was, in the first metric.

        A broker that still improves was not warm yet, and its median is too low.
        """
        metric = next(row.metric for row in self.rows.values())
        values = [sample[metric.key] for sample in self.rounds[name] if metric.key in sample]
        half = len(values) // 2
        if half < 2 or min(values) <= 0:
            return 0.0
        early, late = median(values[:half]), median(values[-half:])
        return (late / early if metric.more_is_better else early / late) - 1

    def series(self, key: str) -> dict[str, Figure]:
        """The figure of every candidate, also if it is not one of the metrics."""
        found = {}
        for name, samples in self.rounds.items():
            if values := [sample[key] for sample in samples if key in sample]:
                found[name] = Figure(median(values), min(values), max(values))
        return found

    def shown(self) -> Iterator[Row]:
        """The rows that are about brokers and not about the machine."""
        return (row for key, row in self.rows.items() if key != OTHERS.key and row.brokers)


@dataclass(slots=True)
class Results:
    """Return all workloads of all files, in the order of their first occurrence."""

    subject: str = "hightide"
    workloads: dict[str, Measured] = field(default_factory=dict)
    environments: list[dict[str, Any]] = field(default_factory=list)
    arguments: list[dict[str, Any]] = field(default_factory=list)

    def add(self, data: Mapping[str, Any]) -> None:
        prefix = "" if "subject" in data else SPARK
        self.subject = data.get("subject", self.subject)
        self.environments.append(data["environment"])
        if "arguments" in data:
            self.arguments.append(data["arguments"])
        for workload in data["workloads"]:
            measured = Measured.of(workload, prefix)
            if not measured.is_empty:
                self.workloads[measured.name] = measured

    @property
    def names(self) -> list[str]:
        """All candidates, the subject first, then in the order of the files."""
        found = dict.fromkeys([self.subject])
        for workload in self.workloads.values():
            for row in workload.rows.values():
                found |= dict.fromkeys(row.brokers)
        return list(found)

    def fact(self, name: str) -> str:
        """Return the environments of the files; all of them, if they differ."""
        return "; ".join(dict.fromkeys(one[name] for one in self.environments if one.get(name)))

    @property
    def notes(self) -> list[str]:
        return list(
            dict.fromkeys(note for one in self.environments for note in one.get("notes", ()))
        )

    def argument(self, name: str) -> str:
        return " or ".join(dict.fromkeys(f"{one[name]:g}" for one in self.arguments if name in one))


def read(paths: Sequence[Path]) -> Results:
    results = Results()
    for path in paths:
        try:
            results.add(json.loads(path.read_text("utf-8")))
        except OSError as reason:
            raise UnreadableResults(f"{path}: {reason.strerror}") from reason
        except (ValueError, KeyError, TypeError, AttributeError) as reason:
            raise UnreadableResults(
                f"{path} is not what bench/run.py or bench/spark.py writes with --json: {reason!r}"
            ) from reason
    return results
