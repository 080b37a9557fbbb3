"""Rounds turned into figures: medians, best rounds, and ratios of rounds that ran side by side.

A ratio is taken round by round, between runs that were neighbours in time, and then the median of
those ratios is shown with the smallest and the largest. On a machine that others use as well, that
says far more than the ratio of two medians.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Protocol

from bench.harness.broker import BrokerFailure, NotSupported
from bench.harness.generator import Sample
from bench.harness.lab import OTHERS, Metric
from bench.harness.process import QUIET_CORES
from bench.harness.wire import WireFailure

BESIDE = ("kafka", "connector")
"""The reference of the bars: Apache Kafka, and in the pipeline Spark's own connector."""


class Workload(Protocol):
    """What a report needs to know of a workload."""

    @property
    def name(self) -> str: ...

    @property
    def title(self) -> str: ...

    @property
    def metrics(self) -> tuple[Metric, ...]: ...


@dataclass(slots=True)
class Outcome:
    """All rounds of one workload. A broker that dropped out has a reason in place of rounds."""

    workload: Workload
    rounds: dict[str, list[Sample]]
    gaps: dict[str, str] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    @contextmanager
    def attempt(self, name: str) -> Iterator[None]:
        """Note a broker that does not support the block, or fails in it, and leave it out."""
        try:
            yield
        except NotSupported as reason:
            self.gaps[name] = str(reason)
        except (BrokerFailure, WireFailure, OSError) as reason:
            self.failures[name] = str(reason) or type(reason).__name__

    def is_in(self, name: str) -> bool:
        return name not in self.gaps and name not in self.failures

    def values(self, name: str, metric: Metric) -> list[float]:
        return [one[metric.key] for one in self.rounds.get(name, []) if metric.key in one]

    def ratios(self, subject: str, other: str, metric: Metric) -> list[float]:
        """Return the subject's figure over the other's, for each round that both ran."""
        key = metric.key
        pairs = zip(self.rounds.get(subject, []), self.rounds.get(other, []), strict=False)
        return [
            mine[key] / theirs[key]
            for mine, theirs in pairs
            if key in mine and theirs.get(key, 0) > 0
        ]

    def ratio_to_bar(self, subject: str, metric: Metric) -> float | None:
        """Return the ratio that is compared with the goal, if there is a reference."""
        for other in BESIDE:
            if other != subject and (ratios := self.ratios(subject, other, metric)):
                return median(ratios)
        return None


def as_data(outcome: Outcome, subject: str) -> dict[str, Any]:
    """Return the outcome for the JSON file: the summary first, then every round."""
    summary: dict[str, Any] = {}
    for metric in outcome.workload.metrics:
        row = _about(metric)
        for name in outcome.rounds:
            if values := outcome.values(name, metric):
                row["brokers"][name] = _spread(values) | {"best": metric.best(values)}
            if name != subject and (ratios := outcome.ratios(subject, name, metric)):
                row["ratios"][f"{subject}/{name}"] = _spread(ratios)
        summary[metric.key] = row
    return {
        "name": outcome.workload.name,
        "title": outcome.workload.title,
        "summary": summary,
        "rounds": outcome.rounds,
        "gaps": outcome.gaps,
        "failures": outcome.failures,
    }


def _about(metric: Metric) -> dict[str, Any]:
    """Return the description of a metric, without figures."""
    row: dict[str, Any] = {
        "title": metric.title,
        "digits": metric.digits,
        "more_is_better": metric.more_is_better,
    }
    for name in ("goal", "ratio_goal", "ratio_aim"):
        if (value := getattr(metric, name)) is not None:
            row[name] = value
    return row | {"brokers": {}, "ratios": {}}


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": median(values), "min": min(values), "max": max(values)}


def as_text(outcome: Outcome, subject: str) -> str:
    """Return the outcome as text: a line for each metric, a column for each broker."""
    names = [name for name, rounds in outcome.rounds.items() if rounds]
    others = [name for name in names if name != subject] if subject in names else []
    metrics = outcome.workload.metrics
    count = max((len(rounds) for rounds in outcome.rounds.values()), default=0)
    rounds = "1 round" if count == 1 else f"{count} rounds"
    lines = [f"{outcome.workload.name}: {outcome.workload.title} ({rounds})"]
    if names:
        titles = ("", *names, *(f"{subject}/{other}" for other in others), "")
        rows = (_row(outcome, metric, subject, names, others) for metric in metrics)
        lines += _table([titles, *rows])
    lines += [f"  {name}: left out, {why}" for name, why in outcome.gaps.items()]
    lines += [f"  {name}: FAILED, {why}" for name, why in outcome.failures.items()]
    return "\n".join(lines)


def _row(
    outcome: Outcome, metric: Metric, subject: str, names: list[str], others: list[str]
) -> tuple[str, ...]:
    figures = [_figure(metric, outcome.values(name, metric)) for name in names]
    ratios = [_ratio(outcome.ratios(subject, other, metric)) for other in others]
    if metric is OTHERS:
        ratios = [""] * len(others)
    verdict = _verdict(
        metric, outcome.values(subject, metric), outcome.ratio_to_bar(subject, metric)
    )
    return (metric.title, *figures, *ratios, verdict)


def _table(rows: list[tuple[str, ...]]) -> list[str]:
    """Align columns: the first to the left, the others to the right."""
    count = max(len(row) for row in rows)
    full = [row + ("",) * (count - len(row)) for row in rows]
    widths = [max(len(row[i]) for row in full) for i in range(count)]
    return [
        "  "
        + "   ".join(
            cell.ljust(width) if i in (0, count - 1) else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in full
    ]


def _figure(metric: Metric, values: list[float]) -> str:
    if not values:
        return ""
    middle = f"{median(values):,.{metric.digits}f}"
    if len(values) == 1 or metric is OTHERS:
        return middle
    return f"{middle} (best {metric.best(values):,.{metric.digits}f})"


def _ratio(ratios: list[float]) -> str:
    if not ratios:
        return ""
    if len(ratios) == 1:
        return f"{ratios[0]:.2f}"
    return f"{median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})"


def _verdict(metric: Metric, values: list[float], ratio: float | None) -> str:
    if not values:
        return ""
    if metric is OTHERS:
        return "the machine was not quiet" if median(values) > QUIET_CORES else ""
    found = []
    if metric.goal is not None:
        verdict = verdict_of(metric.is_met(metric.goal, median(values)))
        found.append(f"goal {metric.sign} {metric.goal:g}: {verdict}")
    if metric.ratio_goal is not None and ratio is not None:
        verdict = verdict_of(metric.is_met(metric.ratio_goal, ratio))
        found.append(f"bar {metric.sign} {bound(metric.ratio_goal)}: {verdict}, {ratio:.2f}")
    return "; ".join(found)


def verdict_of(is_met: bool) -> str:
    return "met" if is_met else "MISSED"


def bound(ratio: float) -> str:
    """Format a ratio that is a bound, always with a decimal."""
    return f"{ratio:.1f}" if ratio == round(ratio, 1) else f"{ratio:g}"


def environment_text(facts: Mapping[str, Any], notes: Sequence[str]) -> str:
    lines = [f"{name}: {value}" for name, value in facts.items()]
    return "\n".join([*lines, *(f"note: {note}" for note in notes)])
