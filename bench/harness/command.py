"""The command of a benchmark that has only Hightide to measure: its options, rounds and report."""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from bench.harness.lab import Measure, Metric
from bench.harness.machine import facts
from bench.harness.report import Outcome, as_data, as_text, environment_text

HIGHTIDE = "hightide"


@dataclass(frozen=True, slots=True)
class Bench:
    """How much to do, and where."""

    folder: Path
    seconds: float
    quiet_s: float


@dataclass(frozen=True, slots=True)
class Workload:
    name: str
    title: str
    metrics: tuple[Metric, ...]
    open: Callable[[Bench], AbstractContextManager[Measure]]
    most_rounds: int | None = None


def _measure(bench: Bench, workload: Workload, rounds: int) -> Outcome:
    outcome = Outcome(workload, {HIGHTIDE: []})  # type: ignore[arg-type]
    with outcome.attempt(HIGHTIDE), workload.open(bench) as one_round:
        for _ in range(min(rounds, workload.most_rounds or rounds)):
            outcome.rounds[HIGHTIDE].append(one_round())
    return outcome


def _parse_arguments(about: str, seconds: float) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=about)
    add = parser.add_argument
    add("--only", action="append", default=[], metavar="PATTERN", help="workloads by name")
    add("--rounds", type=int, default=5)
    add("--seconds", type=float, default=seconds, help="length of a turn")
    add("--data", type=Path, default=Path(tempfile.gettempdir()), help="where brokers write")
    add("--json", type=Path, help="write all figures to this file")
    add("--quiet", type=float, default=0.0, help="wait up to so many seconds for a calm machine")
    return parser.parse_args()


def run(workloads: Sequence[Workload], about: str | None, seconds: float) -> None:
    """Measure the requested workloads; `seconds` is the default length of a turn."""
    options = _parse_arguments((about or "").partition("\n")[0], seconds)
    environment = facts(options.data)
    print(environment_text(environment, []), flush=True)
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="bench-", dir=options.data) as folder:
        bench = Bench(Path(folder), options.seconds, options.quiet)
        for workload in workloads:
            if options.only and not any(fnmatch(workload.name, one) for one in options.only):
                continue
            outcomes.append(_measure(bench, workload, options.rounds))
            print("\n" + as_text(outcomes[-1], HIGHTIDE), flush=True)
    if options.json:
        result: dict[str, Any] = {
            "environment": environment,
            "workloads": [as_data(outcome, HIGHTIDE) for outcome in outcomes],
        }
        options.json.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    if any(outcome.failures for outcome in outcomes):
        sys.exit(1)
