"""Workloads, and what they use.

A workload is opened once for each broker and then measured round by round, with the brokers in
turns. Opening a workload returns a function that measures one round.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from bench.harness.broker import Candidate
from bench.harness.generator import Generators, Sample
from bench.harness.standing import Standing

TOPIC = "t"
PARTITIONS = 6

Measure = Callable[[], Sample]


@dataclass(frozen=True, slots=True)
class Lab:
    """The bench itself: generators, a directory for data, and how much to do."""

    generators: Generators
    directory: Path
    standing: Standing
    seconds: float = 0.6
    warm_up_s: float = 0.3
    fill_mb: int = 1000
    cold_gb: float = 5.0
    recovery_gb: float = 2.0
    recovery_cold: bool = False
    quiet_s: float = 0.0


Opener = Callable[[Lab, Candidate], AbstractContextManager[Measure]]


def afresh(measure: Callable[[Lab, Candidate], Sample]) -> Opener:
    """Return the opener of a workload that keeps nothing between rounds."""

    @contextmanager
    def open_(lab: Lab, candidate: Candidate) -> Iterator[Measure]:
        yield lambda: measure(lab, candidate)

    return open_


@dataclass(frozen=True, slots=True)
class Metric:
    """A figure that a round gives.

    `goal` is the worst value the project is content with; `ratio_goal` the worst ratio to what
    Hightide is measured beside, and `ratio_aim` the ratio it would like to have.
    """

    key: str
    title: str
    digits: int = 0
    more_is_better: bool = False
    goal: float | None = None
    ratio_goal: float | None = None
    ratio_aim: float | None = None

    @property
    def sign(self) -> str:
        return "≥" if self.more_is_better else "≤"

    def is_met(self, goal: float, value: float) -> bool:
        return value >= goal if self.more_is_better else value <= goal

    def best(self, values: list[float]) -> float:
        return max(values) if self.more_is_better else min(values)


def held_to(metrics: tuple[Metric, ...], **bars: tuple[float, float]) -> tuple[Metric, ...]:
    """The same metrics, some of them with a bar and an aim for their ratio, by key."""
    assert bars.keys() <= {metric.key for metric in metrics}
    return tuple(
        replace(one, ratio_goal=bars[one.key][0], ratio_aim=bars[one.key][1])
        if one.key in bars
        else one
        for one in metrics
    )


@dataclass(frozen=True, slots=True)
class Workload:
    name: str
    title: str
    metrics: tuple[Metric, ...]
    open: Opener
    most_rounds: int | None = None
    is_extra: bool = False
    """Measured only on request by name, or with all workloads."""


OTHERS = Metric("other_cores", "others on the machine, cores", 2)
