"""Measure Hightide and Apache Kafka in alternating rounds of the same run.

    python -m bench.run                                   the common workloads, about an hour
    python -m bench.run --all                             every workload
    python -m bench.run --only 'produce-*' --rounds 5
    python -m bench.run --alone                           without Kafka
    python -m bench.run --alone --against old=checkout:../old

See bench/README.md for what the figures show and what they do not.
"""

import argparse
import json
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from bench.harness import (
    cold,
    compressed,
    exactly_once,
    failover,
    footprint,
    groups,
    growth,
    kafka_tools,
    latency,
    replicated,
    throughput,
)
from bench.harness.broker import Candidate
from bench.harness.candidates import ApacheKafka, Hightide, parse
from bench.harness.generator import Generators, prepare
from bench.harness.lab import Lab, Measure, Workload
from bench.harness.machine import facts
from bench.harness.maven import NoMaven
from bench.harness.process import wait_for_quiet
from bench.harness.report import Outcome, as_data, as_text, environment_text
from bench.harness.standing import Standing

# In the order of cluster sizes: a standing cluster is ended when one of another size is asked for.
# Workloads that start separate brokers come where none is standing.
WORKLOADS = (
    *throughput.ONE_BROKER,
    *compressed.WORKLOADS,
    *exactly_once.ONE_BROKER,
    *latency.ONE_BROKER,
    *kafka_tools.ONE_BROKER,
    *growth.WORKLOADS,
    *cold.WORKLOADS,
    *groups.ONE_BROKER,
    *footprint.FRESH,
    *failover.FRESH,
    *throughput.THREE_BROKERS,
    *exactly_once.THREE_BROKERS,
    *latency.THREE_BROKERS,
    *replicated.THREE_BROKERS,
)
RESULTS = Path(__file__).resolve().parent / ".results"


def measure(lab: Lab, workload: Workload, candidates: list[Candidate], most_rounds: int) -> Outcome:
    """All rounds of one workload. The order turns round every time, so that no one is first."""
    rounds = min(most_rounds, workload.most_rounds or most_rounds)
    outcome = Outcome(workload, {one.name: [] for one in candidates})
    with ExitStack() as stack:
        measures: dict[str, Measure] = {}
        for one in candidates:
            with outcome.attempt(one.name):
                measures[one.name] = stack.enter_context(workload.open(lab, one))
        for number in range(rounds):
            names = [name for name in measures if outcome.is_in(name)]
            for name in names if number % 2 == 0 else reversed(names):
                wait_for_quiet(lab.quiet_s)
                with outcome.attempt(name):
                    outcome.rounds[name].append(measures[name]())
    return outcome


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Measure Hightide, and other brokers beside it, in alternating rounds.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add(
        "--against",
        metavar="NAME=WHAT",
        type=parse,
        action="append",
        default=[],
        help="another broker in the same run: checkout:DIRECTORY is another Hightide; "
        "everything else is a command in which {id}, {port} and {data} are replaced",
    )
    add("--subject", metavar="NAME=WHAT", type=parse, help="measure this instead of Hightide")
    add(
        "--override",
        metavar="K=V",
        action="append",
        default=[],
        help="a setting for Hightide's broker",
    )
    add(
        "--only",
        metavar="PATTERN",
        action="append",
        default=[],
        help="workloads by name, with wildcards; several may be given",
    )
    add("--all", action="store_true", help="also workloads that are measured only on demand")
    add("--alone", action="store_true", help="do not measure Apache Kafka")
    add("--list", action="store_true", help="name the workloads and stop")
    add("--rounds", type=int, default=5, help="rounds of each workload")
    add("--seconds", type=float, default=2.0, help="length of a round")
    add("--warm-up", type=float, default=1.0, help="seconds before it that do not count")
    add(
        "--warm-brokers",
        type=float,
        default=40.0,
        metavar="SECONDS",
        help="load on each broker that has been started, before anything is measured",
    )
    add("--fill-mb", type=int, default=1000, help="data to read in consume and fetch workloads")
    add("--cold-gb", type=float, default=5.0, help="size of the log that is read from disk")
    add("--recovery-gb", type=float, default=2.0, help="size of the log that is recovered")
    add(
        "--recovery-cold",
        action="store_true",
        help="drop the log from the page cache before recovery",
    )
    add(
        "--data",
        type=Path,
        default=Path(tempfile.gettempdir()),
        help="where to make the data directory, which is removed at the end",
    )
    add(
        "--json",
        type=Path,
        default=RESULTS / time.strftime("%Y-%m-%d-%H%M%S.json"),
        help="write everything, every round, to this file",
    )
    add(
        "--quiet",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="wait up to this long before each round for the machine to be quiet",
    )
    add(
        "--autogroup-nice",
        type=int,
        help="nice value of the run's own scheduling group (below 0 needs root)",
    )
    return parser.parse_args()


def enter_own_autogroup(nice: int) -> None:
    """Give the run, brokers and clients alike, more weight than others on the machine."""
    # The leader of a process group (a shell's job) cannot; then its whole session gains.
    with suppress(PermissionError):
        os.setsid()
    Path("/proc/self/autogroup").write_text(str(nice))


def raise_file_limit() -> None:
    """A thousand connections must not fail on a shell's limit; the brokers inherit this."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def chosen(patterns: list[str], *, everything: bool) -> list[Workload]:
    found = [
        one
        for one in WORKLOADS
        if any(fnmatch(one.name, pattern) for pattern in patterns)
        or (not patterns and (everything or not one.is_extra))
    ]
    if not found:
        sys.exit(f"no workload is named {' or '.join(patterns)}; see --list")
    return found


def beside(options: argparse.Namespace) -> tuple[list[Candidate], list[str]]:
    """The other brokers, and in words why Kafka is not among them if it is not."""
    others: list[Candidate] = list(options.against)
    if options.alone:
        return others, []
    try:
        return [ApacheKafka.from_maven(), *others], []
    except NoMaven as reason:
        return others, [f"{reason} Hightide is measured alone."]


def main() -> None:
    options = parse_arguments()
    workloads = chosen(options.only, everything=options.all)
    if options.list:
        print("\n".join(f"{one.name:36} {one.title}" for one in workloads))
        return
    subject = options.subject or Hightide(tuple(options.override))
    others, notes = beside(options)
    candidates = [subject, *others]
    if len({one.name for one in candidates}) < len(candidates):
        sys.exit("each broker needs a different name")
    raise_file_limit()
    # Brokers and their data are removed also when a run is ended from outside.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if options.autogroup_nice is not None:
        enter_own_autogroup(options.autogroup_nice)
    generators = prepare()
    about = facts(options.data) | {"librdkafka client": generators.rdkafka_is}
    about |= {one.name: one.about for one in candidates}
    notes += generators.notes
    print(environment_text(about, notes), flush=True)
    arguments = json.loads(json.dumps(vars(options), default=str))
    result: dict[str, Any] = {
        "environment": about | {"notes": notes},
        "arguments": arguments,
        "subject": subject.name,
        "workloads": [],
    }
    with laboratory(options, generators) as lab:
        for workload in workloads:
            outcome = measure(lab, workload, candidates, options.rounds)
            print("\n" + as_text(outcome, subject.name), flush=True)
            result["workloads"].append(as_data(outcome, subject.name))
            # After each, so that a run that is broken off leaves what it had.
            write(options.json, result)
    print(f"\nall rounds: {options.json}")
    if any(subject.name in workload["failures"] for workload in result["workloads"]):
        sys.exit(1)


@contextmanager
def laboratory(options: argparse.Namespace, generators: Generators) -> Iterator[Lab]:
    with tempfile.TemporaryDirectory(prefix="bench-", dir=options.data) as directory:
        standing = Standing(generators, Path(directory), options.warm_brokers)
        with closing(standing):
            yield Lab(
                generators,
                directory=Path(directory),
                standing=standing,
                seconds=options.seconds,
                warm_up_s=options.warm_up,
                fill_mb=options.fill_mb,
                cold_gb=options.cold_gb,
                recovery_gb=options.recovery_gb,
                recovery_cold=options.recovery_cold,
                quiet_s=options.quiet,
            )


def write(path: Path, result: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
