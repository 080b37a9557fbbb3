"""Rounds turned into figures: medians, best rounds, and ratios of rounds that ran side by side.

A ratio is taken round by round, between runs that were neighbours in time, and then the median of
those ratios is shown with the smallest and the largest. On a machine that others use as well, that
says far more than the ratio of two medians.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from harness.broker import BrokerFailure, NotSupported
from harness.generator import Sample
from harness.lab import OTHERS, Metric, Workload
from harness.process import QUIET_CORES
from harness.wire import WireFailure


@dataclass(slots=True)
class Outcome:
    """All rounds of one workload. A broker that dropped out has a reason in place of rounds."""

    workload: Workload
    rounds: dict[str, list[Sample]]
    gaps: dict[str, str] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    @contextmanager
    def attempt(self, name: str) -> Iterator[None]:
        """A broker that cannot do what the block does, or fails at it, is out of the workload."""
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
        """The subject's figure over the other's, for each round that both ran."""
        pairs = zip(self.values(subject, metric), self.values(other, metric), strict=False)
        return [mine / theirs for mine, theirs in pairs if theirs > 0]


def as_data(outcome: Outcome, subject: str) -> dict[str, Any]:
    """The outcome for the JSON file: the summary first, then every round as it was measured."""
    summary: dict[str, Any] = {}
    for metric in outcome.workload.metrics:
        row: dict[str, Any] = {"title": metric.title, "brokers": {}, "ratios": {}}
        if metric.goal is not None:
            row["goal"] = metric.goal
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


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": median(values), "min": min(values), "max": max(values)}


def as_text(outcome: Outcome, subject: str) -> str:
    """The outcome for a person: a line for each metric, a column for each broker."""
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
    verdict = _verdict(metric, outcome.values(subject, metric))
    return (metric.title, *figures, *ratios, verdict)


def _table(rows: list[tuple[str, ...]]) -> list[str]:
    """Columns as wide as they must be, the first to the left, the others to the right."""
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


def _verdict(metric: Metric, values: list[float]) -> str:
    if not values:
        return ""
    if metric is OTHERS:
        return "the machine was not quiet" if median(values) > QUIET_CORES else ""
    if metric.goal is None:
        return ""
    sign = "≥" if metric.more_is_better else "≤"
    verdict = "met" if metric.is_met_by(median(values)) else "MISSED"
    return f"goal {sign} {metric.goal:g}: {verdict}"


def environment_text(facts: Mapping[str, Any], notes: Sequence[str]) -> str:
    lines = [f"{name}: {value}" for name, value in facts.items()]
    return "\n".join([*lines, *(f"note: {note}" for note in notes)])
