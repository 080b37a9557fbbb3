"""A consumer catches up on a log that is on disk and not in the page cache.

The log is written once for all rounds, synced, and dropped from the page cache before each round;
the harness checks that it is gone. A virtual disk may still have it in its host's cache, which is
invisible here: the rate of a plain reader of the same files stands beside the figures.

The first process that copies a page from the disk pays for fetching it into the CPU's caches, and
in a virtual machine often for more. A Hightide broker copies the page itself. A Kafka broker uses
sendfile, and over loopback the client is the first to copy it. So compare the CPU of broker and
client together.
"""

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.harness.broker import BrokerFailure, Candidate, NotSupported
from bench.harness.cluster import Cluster
from bench.harness.generator import Sample
from bench.harness.lab import PARTITIONS, TOPIC, Lab, Measure, Metric, Workload, held_to
from bench.harness.page_cache import cached_share, drop_from_cache
from bench.harness.throughput import BYTE_METRICS, GB, KB, MB, fill, with_rates

PATIENCE_S = 600
READ_AT_ONCE = 1 << 20
MOST_LEFT_CACHED = 0.01

METRICS = (
    *held_to(BYTE_METRICS, mb_per_s=(1.0, 1.3)),
    Metric("cpu_s_per_gb", "CPU of broker and client together, s/GB", 2),
    Metric("seconds", "time to catch up, s", 1),
    Metric("file_mb_per_s", "a plain reader of one partition's file, MB/s", 0, more_is_better=True),
)


def read_rate_mb_per_s(path: Path) -> float:
    """Measure the disk: read the file from beginning to end and do nothing else."""
    buffer, size, began = bytearray(READ_AT_ONCE), 0, time.perf_counter()
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            size += count
    return size / (time.perf_counter() - began) / MB


def segments(cluster: Cluster, topic: str) -> list[Path]:
    """Return the files with the records of a topic, on all brokers."""
    folders = [broker.data for broker in cluster.brokers.values()]
    found = [path for data in folders for path in sorted(data.glob(f"{topic}-[0-9]*/*.log"))]
    if not found:
        raise NotSupported("keeps its log where it cannot be found")
    return found


def make_cold(paths: list[Path]) -> None:
    for path in paths:
        drop_from_cache(path)
    whole = sum(path.stat().st_size for path in paths)
    left = sum(path.stat().st_size * cached_share(path) for path in paths)
    if left > whole * MOST_LEFT_CACHED:
        raise BrokerFailure(f"{left / whole:.0%} of the log would not leave the page cache")


def _catch_up(lab: Lab, cluster: Cluster, written: int) -> Sample:
    paths = segments(cluster, TOPIC)
    make_cold(paths)
    file_rate = read_rate_mb_per_s(paths[0])
    make_cold(paths)
    how = ["rdkafka", "consume", "--topic", TOPIC, "--partitions", str(PARTITIONS)]
    how += ["--messages", str(written), "--seconds", str(PATIENCE_S)]
    sample = with_rates(lab.generators.run(cluster, how), cluster)
    if sample["records"] < written:
        read = int(sample["records"])
        raise BrokerFailure(f"{read} of {written} records were read in {PATIENCE_S} s")
    together = sample["broker_cpu_s_per_gb"] + sample["client_cpu_s_per_gb"]
    return sample | {"cpu_s_per_gb": together, "file_mb_per_s": file_rate}


@contextmanager
def _cold(lab: Lab, candidate: Candidate) -> Iterator[Measure]:
    cluster = lab.standing.cluster(candidate)
    free_gb = shutil.disk_usage(lab.directory).free / GB
    need_gb = 1.5 * lab.cold_gb
    if free_gb < need_gb:
        raise NotSupported(f"needs {need_gb:.0f} GB on the disk, there are {free_gb:.0f}")
    with cluster.topic(TOPIC, PARTITIONS):
        fill(lab, cluster, int(lab.cold_gb * GB), KB, PARTITIONS)
        written = sum(cluster.end_offsets(TOPIC).values())
        yield lambda: _catch_up(lab, cluster, written)


WORKLOADS = (
    Workload(
        "catch-up-cold",
        f"librdkafka catches up on 5 GB (--cold-gb) of 1 KB messages in 64 KB batches,"
        f" {PARTITIONS} partitions, none of them in the page cache",
        METRICS,
        _cold,
        most_rounds=3,
    ),
)
