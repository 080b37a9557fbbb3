"""Workloads that write or read as fast as possible: librdkafka clients and raw requests.

Client and brokers share all CPUs, as they would on a small machine. The brokers are standing ones,
warm; each round writes to a new topic, which is deleted at its end.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from bench.harness.broker import Candidate
from bench.harness.cluster import Cluster
from bench.harness.generator import Sample
from bench.harness.lab import OTHERS, TOPIC, Lab, Measure, Metric, Workload, held_to
from bench.harness.process import peak_rss_mb

KB = 1024
MB = 1_000_000
GB = 1_000_000_000
SIZES = {"100b": 100, "1kb": KB, "10kb": 10 * KB}
# A little under 1 MiB, as a whole batch must fit into max.message.bytes.
BATCHES = {"16kb": 16 * KB, "64kb": 64 * KB, "1mb": MB}

BYTE_METRICS = (
    Metric("mb_per_s", "MB/s", 0, more_is_better=True),
    Metric("broker_cpu_s_per_gb", "broker CPU, s/GB", 2),
    Metric("client_cpu_s_per_gb", "client CPU, s/GB", 2),
    Metric("peak_rss_mb", "brokers' peak RSS, MB", 0),
    OTHERS,
)
REQUEST_METRICS = (
    Metric("requests_per_s", "requests/s", 0, more_is_better=True),
    Metric("p50_us", "p50, µs", 0),
    Metric("p99_us", "p99, µs", 0),
    Metric("broker_cpu_us_per_request", "broker CPU, µs/request", 1),
    Metric("client_cpu_us_per_request", "client CPU, µs/request", 1),
    OTHERS,
)

# Bars and aims: ratios to Kafka that the project holds itself to.
PRODUCE_BARS = held_to(BYTE_METRICS, mb_per_s=(1.0, 1.3), broker_cpu_s_per_gb=(1.2, 1.0))
CONSUME_BARS = held_to(BYTE_METRICS, mb_per_s=(1.0, 1.3))
REQUEST_BARS = held_to(REQUEST_METRICS, requests_per_s=(0.8, 1.2))


@dataclass(frozen=True, slots=True)
class Load:
    """The arguments of a generator (`raw` or `rdkafka` first), and the topic.

    A load that reads needs a log filled with records of this size first.
    """

    arguments: tuple[str, ...]
    partitions: int = 6
    replicas: int = 1
    reads_record_bytes: int | None = None

    @property
    def words(self) -> list[str]:
        return [*self.arguments, "--topic", TOPIC, "--partitions", str(self.partitions)]


def with_rates(sample: Sample, cluster: Cluster) -> Sample:
    """Return the rates and shares of the report, computed from the generator's counts."""
    sample["mb_per_s"] = sample["bytes"] / sample["seconds"] / MB
    sample["records_per_s"] = sample["records"] / sample["seconds"]
    for side in ("broker", "client"):
        spent_s = sample[f"{side}_cpu_s"]
        if sample["bytes"]:
            sample[f"{side}_cpu_s_per_gb"] = spent_s / (sample["bytes"] / GB)
        if sample.get("requests"):
            sample[f"{side}_cpu_us_per_request"] = spent_s / sample["requests"] * 1e6
    if "requests" in sample:
        sample["requests_per_s"] = sample["requests"] / sample["seconds"]
    sample["peak_rss_mb"] = peak_rss_mb(cluster.pids)
    return sample


def put(lab: Lab, cluster: Cluster, load: Load) -> Sample:
    """Put the load on a cluster that has its topic, for one round."""
    words = [*load.words, "--seconds", str(lab.seconds)]
    if load.reads_record_bytes is None:
        words += ["--warm-up-seconds", str(lab.warm_up_s)]
    elif load.arguments[0] == "rdkafka":
        # No warm-up: the generator's window opens with the first messages.
        words += ["--messages", str(sum(cluster.end_offsets(TOPIC).values()))]
    return with_rates(lab.generators.run(cluster, words), cluster)


@contextmanager
def ready(lab: Lab, cluster: Cluster, load: Load) -> Iterator[None]:
    """Yield the topic of a load, filled if the load reads."""
    with cluster.topic(TOPIC, load.partitions, load.replicas):
        if load.reads_record_bytes:
            fill(lab, cluster, lab.fill_mb * MB, load.reads_record_bytes, load.partitions)
        yield


def workload(
    name: str, title: str, metrics: tuple[Metric, ...], load: Load, *, is_extra: bool = False
) -> Workload:
    """Writers get a fresh topic in each round, readers one that is filled once for all rounds."""

    @contextmanager
    def open_(lab: Lab, candidate: Candidate) -> Iterator[Measure]:
        cluster = lab.standing.cluster(candidate, load.replicas)

        def afresh() -> Sample:
            with ready(lab, cluster, load):
                return put(lab, cluster, load)

        if load.reads_record_bytes is None:
            yield afresh
        else:
            with ready(lab, cluster, load):
                yield lambda: put(lab, cluster, load)

    return Workload(name, title, metrics, open_, is_extra=is_extra)


def fill(lab: Lab, cluster: Cluster, size_bytes: int, record_bytes: int, partitions: int) -> None:
    """Write 64 KB batches over all partitions of the topic."""
    messages = 64 * KB // (record_bytes + 8)
    how = ["rdkafka", "produce", "--message-bytes", str(record_bytes), "--acks", "all"]
    how += ["--batch-bytes", str(64 * KB), "--messages", str(size_bytes // (64 * KB) * messages)]
    lab.generators.run(cluster, [*how, "--topic", TOPIC, "--partitions", str(partitions)])


def produce(
    size: str,
    batch: str,
    partitions: int = 6,
    acks: str = "1",
    replicas: int = 1,
    *more: str,
    name: str = "",
    is_extra: bool = False,
) -> Workload:
    what = ("--message-bytes", str(SIZES[size]), "--batch-bytes", str(BATCHES[batch]))
    arguments = ("rdkafka", "produce", "--acks", acks, *what, *more)
    return workload(
        f"produce-{size}-{batch}-p{partitions}-acks{acks}-rf{replicas}{name}",
        f"librdkafka produces {_said(size)} messages in {_said(batch)} batches,"
        f" {_counted(partitions, 'partition')}, acks={acks},"
        f" {_counted(replicas, 'replica')}{name.replace('-', ', ')}",
        PRODUCE_BARS if size == "1kb" and batch != "16kb" else BYTE_METRICS,
        Load(arguments, partitions, replicas),
        is_extra=is_extra,
    )


def consume(size: str, partitions: int = 6, *, is_extra: bool = False) -> Workload:
    return workload(
        f"consume-{size}-p{partitions}",
        f"librdkafka consumes {_said(size)} messages, {_counted(partitions, 'partition')},"
        " from the page cache",
        CONSUME_BARS,
        Load(("rdkafka", "consume"), partitions, reads_record_bytes=SIZES[size]),
        is_extra=is_extra,
    )


def requests(
    name: str,
    title: str,
    *arguments: str,
    partitions: int = 1,
    metrics: tuple[Metric, ...] = REQUEST_METRICS,
) -> Workload:
    shape = ("--records", "1", "--record-bytes", "100")
    return workload(
        name,
        f"raw: one-record produce requests of 100 B, {title}",
        metrics,
        Load(("raw", "produce", *shape, *arguments), partitions),
    )


def _raw_fetch(size: str, max_bytes: int) -> Workload:
    return workload(
        f"raw-fetch-{size}",
        f"raw: fetches of up to {_said(size)}, one partition, 1 in flight",
        (BYTE_METRICS[0], *REQUEST_METRICS),
        Load(("raw", "fetch", "--max-bytes", str(max_bytes)), 1, reads_record_bytes=KB),
        is_extra=True,
    )


def _raw_produce() -> Workload:
    shape = ("--records", "63", "--record-bytes", str(KB), "--in-flight", "5")
    return workload(
        "raw-produce-64kb",
        "raw: 64 KB batches of 1 KB records, 6 partitions, 5 in flight",
        (BYTE_METRICS[0], *REQUEST_METRICS),
        Load(("raw", "produce", *shape)),
        is_extra=True,
    )


def _said(size: str) -> str:
    """Return a size such as `64kb` for people."""
    number = size.rstrip("kmb")
    return f"{number} {size[len(number) :].upper()}"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'s' if count > 1 else ''}"


def _matrix(replicas: int) -> Iterator[Workload]:
    """Return every combination; the most usual ones are in each run, the rest on demand."""
    for size in SIZES:
        for batch in BATCHES:
            for partitions in (6, 1):
                for acks in ("1", "all"):
                    shape = (size, batch, partitions, acks)
                    is_extra = shape not in USUAL[replicas]
                    yield produce(size, batch, partitions, acks, replicas, is_extra=is_extra)


USUAL = {
    1: {
        ("1kb", "16kb", 6, "1"),
        ("1kb", "64kb", 6, "1"),
        ("1kb", "1mb", 6, "1"),
        ("1kb", "64kb", 1, "1"),
        ("100b", "64kb", 6, "1"),
        ("10kb", "64kb", 6, "1"),
    },
    3: {
        ("1kb", "64kb", 6, "all"),
        ("1kb", "1mb", 6, "all"),
        ("100b", "64kb", 6, "all"),
        ("1kb", "64kb", 6, "1"),
    },
}

ONE_BROKER = (
    *_matrix(1),
    consume("1kb"),
    consume("100b"),
    consume("10kb"),
    consume("1kb", 1, is_extra=True),
    consume("100b", 1, is_extra=True),
    requests("request-1", "1 in flight", "--in-flight", "1"),
    requests(
        "request-16",
        "16 in flight on one connection",
        "--in-flight",
        "16",
        metrics=REQUEST_BARS,
    ),
    requests(
        "request-16-connections",
        "16 connections with 1 in flight each",
        "--connections",
        "16",
        partitions=6,
    ),
    _raw_produce(),
    _raw_fetch("1mb", 1 << 20),
    _raw_fetch("64kb", 64 * KB),
)
THREE_BROKERS = tuple(_matrix(3))
