"""Measure the pipeline on Spark, beside Spark's own Kafka connector in alternating rounds.

    python -m bench.spark                                    everything; minutes
    python -m bench.spark --only 'source-*' --rounds 8 --json result.json
    python -m bench.spark --soak 30                          half an hour of a windowed query

Both sides read the same topic of one broker in the same session, local[2]; only `latency` gives
each a separate Spark, Hightide's with its settings and the connector's with Spark's defaults. Maven
downloads the connector; without it, Hightide is measured alone.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

from bench.harness.generator import Sample
from bench.harness.lab import OTHERS, Measure, Metric
from bench.harness.machine import facts
from bench.harness.process import cpu_s, machine_busy_s, wait_for_quiet, with_descendants
from bench.harness.report import Outcome, as_data, as_text, environment_text
from bench.pipeline import topics
from bench.pipeline.latency import open_latency, serve
from bench.pipeline.sides import (
    AT_LEAST_ONCE,
    CONNECTOR,
    HIGHTIDE,
    Stand,
    connector_jars,
    our_session,
    watched_memory,
)
from bench.pipeline.soak import soak
from hightide.spark.blocking_client import shared_client
from hightide.testing import Cluster

RESULTS = Path(__file__).resolve().parent / ".results"
PARTITIONS = 4
MB = 1_000_000


@dataclass(frozen=True, slots=True)
class Workload:
    name: str
    title: str
    sides: tuple[str, ...]
    metrics: tuple[Metric, ...]
    open: Callable[["Lab", Sequence[str]], Any]
    most_rounds: int | None = None


@dataclass(frozen=True, slots=True)
class Lab:
    stand: Stand
    jars: list[Path]
    scale: float

    def records(self, count: int) -> int:
        return max(PARTITIONS * 100, int(count * self.scale))


# ---- source ------------------------------------------------------------------------------------


@contextmanager
def open_source(
    records: int, value_bytes: int, lab: Lab, sides: Sequence[str]
) -> Iterator[dict[str, Measure]]:
    stand = lab.stand
    topic, count = f"source-{value_bytes}", lab.records(records)
    topics.fill(stand.bootstrap, topic, PARTITIONS, count, value_bytes)
    count = sum(topics.counted(stand.bootstrap, topic).values())

    def measure(side: str) -> Sample:
        batch = stand.batch(side, topic).write.format("noop").mode("overwrite")
        batch_s, batch_cpu_s = stand.timed(batch.save)
        stream = stand.stream(side, topic).writeStream.format("noop")
        done: list[dict[str, Any]] = []
        whole_s, stream_cpu_s = stand.timed(lambda: done.extend(stand.run(stream).recentProgress))
        stream_s = sum(row["durationMs"]["triggerExecution"] for row in done) / 1000
        return {
            "batch_rate": count / batch_s / 1e6,
            "stream_rate": count / stream_s / 1e6,
            "start_s": whole_s - stream_s,
            "batch_cpu": batch_cpu_s / count * 1e6,
            "stream_cpu": stream_cpu_s / count * 1e6,
        }

    for side in sides:
        measure(side)  # The JVM compiles code that runs often.
    yield {side: partial(measure, side) for side in sides}


def source_workload(records: int, value_bytes: int, name: str) -> Workload:
    return Workload(
        f"source-{name}",
        f"a topic of {PARTITIONS} partitions → noop, {value_bytes} B",
        (HIGHTIDE, CONNECTOR),
        (
            Metric("batch_rate", "batch, M rows/s", 2, more_is_better=True, ratio_goal=1.0),
            Metric(
                "stream_rate",
                "stream availableNow, M rows/s",
                2,
                more_is_better=True,
                ratio_goal=1.0,
            ),
            Metric("start_s", "stream, start and end of the query, s", 2),
            Metric("batch_cpu", "batch, CPU-s by M rows", 2),
            Metric("stream_cpu", "stream, CPU-s by M rows", 2),
            OTHERS,
        ),
        partial(open_source, records, value_bytes),
    )


# ---- sink --------------------------------------------------------------------------------------


@contextmanager
def open_sink(
    records: int, value_bytes: int, lab: Lab, sides: Sequence[str]
) -> Iterator[dict[str, Measure]]:
    """Write rows from Parquet, which costs little and the same for all sides."""
    stand, count = lab.stand, lab.records(records)
    folder = stand.folder / f"rows-{value_bytes}"
    letters = value_bytes // 32 + 1
    made = stand.spark.range(0, count, 1, PARTITIONS).selectExpr(
        "string(id % 100000) key",
        f"left(repeat(md5(string(id)), {letters}), {value_bytes}) value",
    )
    made.write.parquet(str(folder))
    topic = f"sink-{value_bytes}"

    def measure(side: str) -> Sample:
        # A new topic, so that no side has a longer log than the other.
        name = f"{topic}-{stand.new_name()}"
        shared_client({"bootstrap.servers": stand.bootstrap}).create_topic(name, PARTITIONS)
        rows = stand.spark.readStream.schema("key string, value string").parquet(str(folder))
        writer = stand.write(side, rows, name)
        taken_s, used_s = stand.timed(lambda: stand.run(writer))
        written = sum(topics.counted(stand.bootstrap, name).values())
        if written < count:
            raise OSError(f"{written} of {count} records were written")
        return {
            "rate": count / taken_s / 1e6,
            "mb": count * (value_bytes + 5) / taken_s / MB,
            "cpu": used_s / count * 1e6,
        }

    for side in sides:
        measure(side)
    yield {side: partial(measure, side) for side in sides}


def sink_workload(records: int, value_bytes: int, name: str) -> Workload:
    return Workload(
        f"sink-{name}",
        f"Parquet → a topic, {value_bytes} B; hightide exactly once, the others at least once",
        (HIGHTIDE, CONNECTOR, AT_LEAST_ONCE),
        (
            Metric("rate", "M rows/s", 2, more_is_better=True, ratio_goal=0.7),
            Metric("mb", "MB/s", 0, more_is_better=True),
            Metric("cpu", "CPU-s by M rows", 2),
            OTHERS,
        ),
        partial(open_sink, records, value_bytes),
    )


# ---- windows -----------------------------------------------------------------------------------

WINDOW_RECORDS, WINDOW_BYTES, WINDOW_SPAN_S = 10_000_000, 100, 600.0


@contextmanager
def open_windows(lab: Lab, sides: Sequence[str]) -> Iterator[dict[str, Measure]]:
    from pyspark.sql import functions as f

    stand, count = lab.stand, lab.records(WINDOW_RECORDS)
    topic, first = "windows", "windows-first"
    topics.fill_in_time(stand.bootstrap, topic, PARTITIONS, count, WINDOW_BYTES, WINDOW_SPAN_S)
    topics.fill_in_time(
        stand.bootstrap, first, PARTITIONS, count // 10, WINDOW_BYTES, WINDOW_SPAN_S
    )

    def measure(side: str, topic: str) -> Sample:
        total = sum(topics.counted(stand.bootstrap, topic).values())
        rows = stand.stream(side, topic, maxOffsetsPerTrigger=str(max(1000, total // 5)))
        totals = (
            rows.withWatermark("timestamp", "10 seconds")
            .groupBy(f.window("timestamp", "10 seconds"), "key")
            .agg(f.count("*").alias("records"), f.sum(f.length("value")).alias("bytes"))
            .select("key", f.to_json(f.struct("window", "records", "bytes")).alias("value"))
        )
        name = stand.new_name()
        shared_client({"bootstrap.servers": stand.bootstrap}).create_topic(name, PARTITIONS)
        writer = stand.write(side, totals, name).outputMode("update")
        with watched_memory(stand) as peak:
            taken_s, used_s = stand.timed(lambda: stand.run(writer))
        return {
            "rate": total / taken_s / 1e6,
            "mb": total * (WINDOW_BYTES + 8) / taken_s / MB,
            "cpu": used_s / total * 1e6,
            "jvm": peak["jvm"],
            "python": peak["python"],
        }

    for side in sides:
        measure(side, first)
    yield {side: partial(measure, side, topic) for side in sides}


WINDOWS = Workload(
    "windows",
    "10 M records of 100 B by key and window of 10 s → a topic, in update mode, state in RocksDB",
    (HIGHTIDE, CONNECTOR),
    (
        Metric("rate", "M rows/s", 2, more_is_better=True, ratio_goal=0.7),
        Metric("mb", "MB/s", 0, more_is_better=True),
        Metric("cpu", "CPU-s by M rows", 2),
        Metric("jvm", "peak memory of the JVM (heap of 2 GB), MB"),
        Metric("python", "peak memory of Python workers, MB"),
        OTHERS,
    ),
    open_windows,
    most_rounds=1,
)

LATENCY = Workload(
    "latency",
    "one micro-batch of a few records, trigger as soon as possible, each in a Spark of its own",
    (HIGHTIDE, CONNECTOR),
    (
        Metric("median_ms", "median, ms", ratio_goal=0.8),
        Metric("best_ms", "best tenth, ms"),
        Metric("worst_ms", "worst tenth, ms"),
        OTHERS,
    ),
    lambda lab, sides: open_latency(lab.stand.bootstrap, sides),
)

WORKLOADS = (
    source_workload(3_000_000, 100, "100b"),
    source_workload(1_000_000, 1_000, "1kb"),
    sink_workload(1_000_000, 100, "100b"),
    sink_workload(300_000, 1_000, "1kb"),
    LATENCY,
    WINDOWS,
)


# ---- the command -------------------------------------------------------------------------------


def measured(lab: Lab, workload: Workload, rounds: int, quiet_s: float) -> Outcome:
    """Run all rounds; the order of the sides alternates, so that no side is always first."""
    sides = [side for side in workload.sides if lab.jars or side != CONNECTOR]
    outcome = Outcome(workload, {side: [] for side in sides})  # type: ignore[arg-type]
    with ExitStack() as stack:
        measures = stack.enter_context(workload.open(lab, sides))
        for number in range(min(rounds, workload.most_rounds or rounds)):
            for side in sides if number % 2 == 0 else reversed(sides):
                if not outcome.is_in(side):
                    continue
                wait_for_quiet(quiet_s)
                with outcome.attempt(side):
                    outcome.rounds[side].append(with_others(measures[side]))
    return outcome


def with_others(measure: Measure) -> Sample:
    """Run a round; also measure the cores of processes other than Spark, broker and this one."""
    mine, busy, began = cpu_s(with_descendants(os.getpid())), machine_busy_s(), time.monotonic()
    sample = measure()
    used = cpu_s(with_descendants(os.getpid())) - mine
    others = machine_busy_s() - busy - used
    sample[OTHERS.key] = max(0.0, others) / (time.monotonic() - began)
    return sample


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("--only", action="append", default=[], metavar="PATTERN", help="workloads by name")
    add("--list", action="store_true", help="name the workloads and stop")
    add("--rounds", type=int, default=5)
    add("--scale", type=float, default=1.0, help="so many times the usual records")
    add("--data", type=Path, default=Path(tempfile.gettempdir()), help="where brokers write")
    add(
        "--json",
        type=Path,
        default=RESULTS / time.strftime("%Y-%m-%d-%H%M%S-spark.json"),
        help="write all figures to this file",
    )
    add("--quiet", type=float, default=0.0, help="wait up to so many seconds for a calm machine")
    add("--soak", type=float, metavar="MINUTES", help="run one windowed query for so long instead")
    add("--serve", nargs=2, metavar=("SIDE", "BOOTSTRAP"), help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    options = parse_arguments()
    if options.serve:
        serve(*options.serve)
        return
    if options.list:
        print("\n".join(workload.name for workload in WORKLOADS))
        return
    environment = facts(options.data)
    jars, reason = connector_jars()
    notes = [] if jars else [f"Spark's own connector is not compared with: {reason}"]
    print(environment_text(environment, notes), flush=True)
    outcomes: list[Outcome] = []
    with (
        tempfile.TemporaryDirectory(prefix="bench-", dir=options.data) as folder,
        Cluster(brokers=1) as cluster,
    ):
        stand = Stand(our_session(jars), cluster.bootstrap, Path(folder))
        if options.soak:
            sys.exit(soak(stand, options.soak))
        lab = Lab(stand, jars, options.scale)
        for workload in WORKLOADS:
            if options.only and not any(fnmatch(workload.name, one) for one in options.only):
                continue
            outcomes.append(measured(lab, workload, options.rounds, options.quiet))
            print("\n" + as_text(outcomes[-1], HIGHTIDE), flush=True)
        stand.spark.stop()
    result = {
        "environment": environment,
        "workloads": [as_data(outcome, HIGHTIDE) for outcome in outcomes],
    }
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    if any(outcome.failures for outcome in outcomes):
        sys.exit(1)


if __name__ == "__main__":
    main()
