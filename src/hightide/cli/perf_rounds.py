"""Rounds of `hightide perf run` on one cluster or two, and what they come to.

Two clusters take turns in every measurement, and the one that begins changes from round to round,
so that what else happens on the machine meets both.  Ratios are taken round by round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from hightide.cli.perf_suite import Amount, Measured, Measurement, Target

WARM_UP_SHARE = 0.25

NOT_SHOWN = (
    "What another client would see: this is one process, librdkafka called from Python.",
    "More than that process can do. Python runs on one core; where client-cores is near 1 or "
    "above, the client may be the limit, and two clusters look more alike than they are.",
    "CPU, memory and disks of the brokers. On the client's machine they share its CPUs with it.",
    "Reading from disk: what is consumed was written a moment ago and is in memory.",
    "Brokers that have just started, at their best: a JVM gets fast after minutes of load.",
    "Many clients, many partitions, long runs, failures. Records are made-up text.",
)

Values = dict[tuple[str, str], list[float]]
"""One value from each round, by measurement and figure."""


@dataclass(frozen=True, slots=True)
class FigureRow:
    """One figure of one cluster: the median of the rounds and its spread."""

    measurement: str
    figure: str
    median: float
    lowest: float
    highest: float
    client_cores: float


@dataclass(frozen=True, slots=True)
class RatioRow:
    """One figure of two clusters: their medians, and first / second with its spread."""

    measurement: str
    figure: str
    first: float
    second: float
    ratio: float
    lowest: float
    highest: float
    better: str
    client_cores: float


def rounds(
    targets: Sequence[Target],
    measurements: Sequence[Measurement],
    amount: Amount,
    count: int,
    advance: Callable[[int], None],
) -> list[list[Measured]]:
    """Everything measured, for each target.  A shorter round comes first and does not count."""
    found: list[list[Measured]] = [[] for _ in targets]
    short = Amount(
        amount.seconds * WARM_UP_SHARE,
        max(amount.size, int(amount.most_bytes * WARM_UP_SHARE)),
        amount.size,
        amount.rate,
    )
    for number in range(count + 1):
        order = range(len(targets)) if number % 2 else reversed(range(len(targets)))
        turns = list(order)
        for measurement in measurements:
            for at in turns:
                measured = measurement(targets[at], amount if number else short)
                if number:
                    found[at] += measured
                advance(1)
    return found


def values(measured: Iterable[Measured]) -> Values:
    found: Values = {}
    for each in measured:
        for figure, value in each.figures.items():
            found.setdefault((each.what, figure), []).append(value)
    return found


def most_cores(measured: Iterable[Measured]) -> dict[str, float]:
    """The most that the client used in any round of a measurement."""
    found: dict[str, float] = {}
    for each in measured:
        found[each.what] = max(found.get(each.what, 0.0), each.client_cores)
    return {what: round(cores, 2) for what, cores in found.items()}


def figure_rows(measured: Sequence[Measured]) -> list[FigureRow]:
    cores = most_cores(measured)
    return [
        FigureRow(
            measurement=what,
            figure=figure,
            median=_rounded(median(found)),
            lowest=_rounded(min(found)),
            highest=_rounded(max(found)),
            client_cores=cores[what],
        )
        for (what, figure), found in values(measured).items()
    ]


def ratio_rows(first: Sequence[Measured], second: Sequence[Measured]) -> list[RatioRow]:
    """Figures that both gave in the same number of rounds."""
    ours, theirs = values(first), values(second)
    cores = most_cores([*first, *second])
    rows = []
    for key, found in ours.items():
        other = theirs.get(key, [])
        if len(other) != len(found) or not all(other):
            continue
        ratios = [mine / its for mine, its in zip(found, other, strict=True)]
        rows.append(
            RatioRow(
                measurement=key[0],
                figure=key[1],
                first=_rounded(median(found)),
                second=_rounded(median(other)),
                ratio=_rounded(median(ratios)),
                lowest=_rounded(min(ratios)),
                highest=_rounded(max(ratios)),
                better="below 1" if key[1].endswith(" ms") else "above 1",
                client_cores=cores[key[0]],
            )
        )
    return rows


def _rounded(value: float) -> float:
    return round(value, 3)
