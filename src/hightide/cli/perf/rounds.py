"""The rounds of `hightide perf run` on one cluster or two, and their results.

Two clusters take turns in every measurement, and the first one changes from round to round, so that
other load on the machine affects both.  Ratios are computed within each round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from hightide.cli.perf.suite import Amount, Measure, Measurement, Target

WARM_UP_SHARE = 0.25

NOT_SHOWN = (
    "The speed of other clients: this is one process, librdkafka called from Python.",
    "More than this process can do. Python runs on one core; if client-cores is near 1 or "
    "above, the client may be the limit, and two clusters look more alike than they are.",
    "CPU, memory and disks of the brokers. On the same machine, brokers and client share CPUs.",
    "Reading from disk: the consumed records were written just before and are in memory.",
    "The best speed of brokers that have just started: a JVM gets fast after minutes of load.",
    "Many clients, many partitions, long runs, failures. Records are generated text.",
)

Values = dict[tuple[str, str], list[float]]
"""The values of all rounds, by measurement and figure."""


@dataclass(frozen=True, slots=True)
class FigureRow:
    """One figure of one cluster: the median of the rounds, and the extremes."""

    measurement: str
    figure: str
    median: float
    lowest: float
    highest: float
    client_cores: float


@dataclass(frozen=True, slots=True)
class RatioRow:
    """One figure of two clusters: their medians, and first / second with its extremes."""

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
    measurements: Sequence[Measure],
    amount: Amount,
    count: int,
    advance: Callable[[int], None],
) -> list[list[Measurement]]:
    """Run all rounds, and return the results of each target.  A short warm-up round comes first."""
    found: list[list[Measurement]] = [[] for _ in targets]
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


def values(measured: Iterable[Measurement]) -> Values:
    found: Values = {}
    for result in measured:
        for figure, value in result.figures.items():
            found.setdefault((result.what, figure), []).append(value)
    return found


def most_cores(measured: Iterable[Measurement]) -> dict[str, float]:
    """The most CPUs that the client used in any round of a measurement."""
    found: dict[str, float] = {}
    for result in measured:
        found[result.what] = max(found.get(result.what, 0.0), result.client_cores)
    return {what: round(cores, 2) for what, cores in found.items()}


def figure_rows(measured: Sequence[Measurement]) -> list[FigureRow]:
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


def ratio_rows(first: Sequence[Measurement], second: Sequence[Measurement]) -> list[RatioRow]:
    """The figures that both clusters have in all rounds."""
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
