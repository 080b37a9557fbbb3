"""Curves: throughput as partitions, connections or the log grow.

One round measures all points of a curve, one after the other. `flatness` is the last point divided
by the first: it is lower for a broker whose cost grows with its data.
"""

import shutil
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from bench.harness.broker import Candidate, NotSupported
from bench.harness.cluster import Cluster
from bench.harness.generator import Sample
from bench.harness.lab import PARTITIONS, TOPIC, Lab, Measure, Metric, Workload
from bench.harness.throughput import GB, KB, MB, fill, with_rates

PARTITION_COUNTS = (1, 10, 100, 1000)
CONNECTION_COUNTS = (1, 10, 100, 1000)
LOG_SIZES_GB = (0.1, 1.0, 10.0)
FETCH_FILL_MB = 200
# Each partition gets one batch at a time, as many messages of 1 KB as 64 KB hold, so that a second
# of load reaches all of them. The client waits long enough for a batch to be whole: pieces of
# batches are more requests, which a slow broker answers slower, which makes smaller pieces.
BATCH_BY_BATCH = ("--burst", "63", "--linger-ms", "50")
TAIL_MESSAGES = 20_000
TAIL_READS = 3

MEASURED = ("--message-bytes", str(KB), "--batch-bytes", str(64 * KB), "--acks", "1")


def _key(what: str, at: float) -> str:
    """Return the key of a point, such as `mb_at_10` or `mb_at_0_1gb`, for a curve."""
    return f"{what}_at_{at:g}".replace(".", "_")


def _curve(what: str, title: str, points: Sequence[float], unit: str) -> Iterator[Metric]:
    """A metric for each point; `title` has a place for the point."""
    for at in points:
        named = f"{at:,g} {unit.rstrip('s') if at == 1 else unit}"
        key = _key(what, at) + ("gb" if unit == "GB" else "")
        yield Metric(key, title.format(named), 0, more_is_better=True)


def _last_over_first(found: Sample, what: str, points: Sequence[float], unit: str = "") -> float:
    first, last = (found[_key(what, at) + unit] for at in (points[0], points[-1]))
    return last / first


def _flat(key: str, title: str) -> Metric:
    return Metric(key, title, 2, more_is_better=True)


def _run(lab: Lab, cluster: Cluster, topic: str, partitions: int, *words: str) -> Sample:
    """One point; its length is that of a round, or a second, as a round has several."""
    how = [*words, "--topic", topic, "--partitions", str(partitions)]
    how += ["--seconds", str(min(lab.seconds, 1.0))]
    if words[1] != "consume":
        how += ["--warm-up-seconds", str(min(lab.warm_up_s, 0.5))]
    return with_rates(lab.generators.run(cluster, how), cluster)


# ---- partitions -------------------------------------------------------------------------------


def _write_first(lab: Lab, cluster: Cluster, topic: str, partitions: int) -> float:
    """Write a record to each partition, one after the other; return the seconds.

    The first record of a partition may cost more than those that follow: Kafka notes the leader's
    epoch in a file and syncs it. On a busy disk that is tens of milliseconds for each partition.
    """
    how = ["raw", "produce", "--topic", topic, "--partitions", str(partitions)]
    return lab.generators.run(cluster, [*how, "--requests", str(partitions)])["seconds"]


def _by_partitions(lab: Lab, cluster: Cluster) -> Sample:
    found: Sample = {}
    for count in PARTITION_COUNTS:
        with cluster.topic(f"{TOPIC}-{count}", count) as topic:
            found[_key("first_s", count)] = _write_first(lab, cluster, topic, count)
            how = ("rdkafka", "produce", *MEASURED, *BATCH_BY_BATCH)
            sample = _run(lab, cluster, topic, count, *how)
        found[_key("mb", count)] = sample["mb_per_s"]
        found[_key("broker_cpu", count)] = sample["broker_cpu_s_per_gb"]
    found["flatness"] = _last_over_first(found, "mb", PARTITION_COUNTS)
    return found


# ---- connections ------------------------------------------------------------------------------


def _requests_by_connections(lab: Lab, cluster: Cluster) -> Sample:
    found: Sample = {}
    for count in CONNECTION_COUNTS:
        with cluster.topic(TOPIC, PARTITIONS):
            how = ("raw", "produce", "--connections", str(count))
            sample = _run(lab, cluster, TOPIC, PARTITIONS, *how)
        found[_key("requests", count)] = sample["requests_per_s"]
        found[_key("p99_us", count)] = sample["p99_us"]
        found[_key("broker_cpu", count)] = sample["broker_cpu_us_per_request"]
    found["flatness"] = _last_over_first(found, "requests", CONNECTION_COUNTS)
    return found


def _fetches_by_connections(lab: Lab, cluster: Cluster) -> Sample:
    found: Sample = {}
    for count in CONNECTION_COUNTS:
        how = ("raw", "fetch", "--max-bytes", str(64 * KB), "--connections", str(count))
        sample = _run(lab, cluster, TOPIC, PARTITIONS, *how)
        found[_key("mb", count)] = sample["mb_per_s"]
        found[_key("broker_cpu", count)] = sample["broker_cpu_s_per_gb"]
    found["flatness"] = _last_over_first(found, "mb", CONNECTION_COUNTS)
    return found


# ---- the log ----------------------------------------------------------------------------------


def _by_log_size(lab: Lab, cluster: Cluster) -> Sample:
    """Measure one growing topic: at each size, write to it and read its end."""
    free_gb = shutil.disk_usage(lab.directory).free / GB
    if free_gb < 1.5 * LOG_SIZES_GB[-1]:
        raise NotSupported(f"needs {1.5 * LOG_SIZES_GB[-1]:.0f} GB on the disk")
    found: Sample = {}
    with cluster.topic(TOPIC, PARTITIONS):
        for size_gb in LOG_SIZES_GB:
            written = sum(cluster.end_offsets(TOPIC).values()) * KB
            fill(lab, cluster, max(int(size_gb * GB) - written, 64 * KB), KB, PARTITIONS)
            produced = _run(lab, cluster, TOPIC, PARTITIONS, "rdkafka", "produce", *MEASURED)
            found[_key("produce", size_gb) + "gb"] = produced["mb_per_s"]
            found[_key("tail", size_gb) + "gb"] = _read_tail(lab, cluster)
    for what in ("produce", "tail"):
        found[f"{what}_flatness"] = _last_over_first(found, what, LOG_SIZES_GB, "gb")
    return found


def _read_tail(lab: Lab, cluster: Cluster) -> float:
    """Return MB/s of a consumer that begins near the end; a run is short, so repeat it."""
    how = ["rdkafka", "consume", "--tail", str(TAIL_MESSAGES)]
    how += ["--messages", str(TAIL_MESSAGES * PARTITIONS)]
    reads = [_run(lab, cluster, TOPIC, PARTITIONS, *how) for _ in range(TAIL_READS)]
    return statistics.median(read["mb_per_s"] for read in reads)


# ---- the workloads ----------------------------------------------------------------------------


def _workload(
    name: str,
    title: str,
    metrics: tuple[Metric, ...],
    measure: Callable[[Lab, Cluster], Sample],
    most_rounds: int,
    *,
    fill_mb: int = 0,
    is_extra: bool = False,
) -> Workload:
    @contextmanager
    def open_(lab: Lab, candidate: Candidate) -> Iterator[Measure]:
        cluster = lab.standing.cluster(candidate)
        if not fill_mb:
            yield lambda: measure(lab, cluster)
            return
        with cluster.topic(TOPIC, PARTITIONS):
            fill(lab, cluster, fill_mb * MB, KB, PARTITIONS)
            yield lambda: measure(lab, cluster)

    return Workload(name, title, metrics, open_, most_rounds, is_extra)


WORKLOADS = (
    _workload(
        "growth-partitions",
        "librdkafka produces 1 KB messages in 64 KB batches, acks=1, to more and more partitions",
        (
            *_curve("mb", "MB/s with {}", PARTITION_COUNTS, "partitions"),
            _flat("flatness", "MB/s with 1,000 partitions over 1"),
            Metric("first_s_at_1000", "a first record to each of 1,000 partitions, s", 2),
            Metric("broker_cpu_at_1", "broker CPU with 1 partition, s/GB", 2),
            Metric("broker_cpu_at_1000", "broker CPU with 1,000 partitions, s/GB", 2),
        ),
        _by_partitions,
        most_rounds=2,
    ),
    _workload(
        "growth-connections",
        "raw: one-record produce requests of 100 B, 1 in flight on each of many connections",
        (
            *_curve("requests", "requests/s with {}", CONNECTION_COUNTS, "connections"),
            _flat("flatness", "requests/s with 1,000 connections over 1"),
            Metric("broker_cpu_at_1", "broker CPU with 1 connection, µs/request", 1),
            Metric("broker_cpu_at_1000", "broker CPU with 1,000 connections, µs/request", 1),
            Metric("p99_us_at_1000", "p99 with 1,000 connections, µs", 0),
        ),
        _requests_by_connections,
        most_rounds=2,
    ),
    _workload(
        "growth-fetch-connections",
        f"raw: fetches of up to 64 KB, 1 in flight on each of many connections, {PARTITIONS}"
        " partitions, from the page cache",
        (
            *_curve("mb", "MB/s with {}", CONNECTION_COUNTS, "connections"),
            _flat("flatness", "MB/s with 1,000 connections over 1"),
            Metric("broker_cpu_at_1", "broker CPU with 1 connection, s/GB", 2),
            Metric("broker_cpu_at_1000", "broker CPU with 1,000 connections, s/GB", 2),
        ),
        _fetches_by_connections,
        most_rounds=2,
        fill_mb=FETCH_FILL_MB,
    ),
    _workload(
        "growth-log",
        "librdkafka produces 1 KB messages in 64 KB batches, acks=1, to a log that grows, and"
        " consumes its end",
        (
            *_curve("produce", "produced at {}, MB/s", LOG_SIZES_GB, "GB"),
            _flat("produce_flatness", "produced, MB/s at 10 GB over 0.1"),
            *_curve("tail", "consumed at {}, MB/s", LOG_SIZES_GB, "GB"),
            _flat("tail_flatness", "consumed, MB/s at 10 GB over 0.1"),
        ),
        _by_log_size,
        most_rounds=1,
        is_extra=True,
    ),
)
