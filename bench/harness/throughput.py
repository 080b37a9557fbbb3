"""Workloads that push or pull data as fast as it goes: librdkafka clients and raw requests.

The librdkafka workloads run unpinned, client and broker sharing all CPUs as they would on a small
machine. The raw ones give the broker one CPU and the generator another, so that they show what
the broker can do and not how the scheduler shares.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from harness.broker import Broker, Candidate, running
from harness.generator import Sample
from harness.lab import OTHERS, PARTITIONS, TOPIC, Lab, Load, Measure, Metric, Workload
from harness.process import peak_rss_mb, pinning

KB = 1024
MB = 1_000_000
GB = 1_000_000_000

BYTE_METRICS = (
    Metric("mb_per_s", "MB/s", 0, more_is_better=True),
    Metric("broker_cpu_s_per_gb", "broker CPU, s/GB", 2),
    Metric("client_cpu_s_per_gb", "client CPU, s/GB", 2),
    Metric("peak_rss_mb", "broker peak RSS, MB", 0),
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


def _with_rates(sample: Sample, broker: Broker) -> Sample:
    """The rates and shares that the report speaks of, beside what the generator counted."""
    sample["mb_per_s"] = sample["bytes"] / sample["seconds"] / MB
    sample["records_per_s"] = sample["records"] / sample["seconds"]
    for who in ("broker", "client"):
        spent_s = sample[f"{who}_cpu_s"]
        if sample["bytes"]:
            sample[f"{who}_cpu_s_per_gb"] = spent_s / (sample["bytes"] / GB)
        if sample.get("requests"):
            sample[f"{who}_cpu_us_per_request"] = spent_s / sample["requests"] * 1e6
    if "requests" in sample:
        sample["requests_per_s"] = sample["requests"] / sample["seconds"]
    sample["peak_rss_mb"] = peak_rss_mb(broker.pids)
    return sample


@contextmanager
def loaded(lab: Lab, candidate: Candidate, load: Load) -> Iterator[tuple[Broker, Measure]]:
    """A broker ready for the load, and a function that puts the load on it for a while."""
    broker_cpu, client_cpu = pinning() if load.is_pinned else (None, None)
    with running(candidate, lab.directory, broker_cpu) as broker:
        broker.ensure_topic(TOPIC, PARTITIONS)
        arguments = [*load.arguments, "--topic", TOPIC, "--seconds", str(lab.seconds)]
        if load.reads_record_bytes:
            records = fill(lab, broker, lab.fill_mb * MB, load.reads_record_bytes)
            if load.arguments[0] == "rdkafka":
                arguments += ["--messages", str(records)]
        if load.warms_up:
            arguments += ["--warm-up-seconds", str(lab.warm_up_s)]

        def measure() -> Sample:
            return _with_rates(lab.generators.run(broker, arguments, client_cpu), broker)

        yield broker, measure


def _workload(name: str, title: str, metrics: tuple[Metric, ...], load: Load) -> Workload:
    """Writers get a fresh broker in each round, readers one broker filled once for all rounds.

    So no round writes on top of what others left behind, and what is read is in the page cache.
    """

    @contextmanager
    def open_(lab: Lab, candidate: Candidate) -> Iterator[Measure]:
        if load.reads_record_bytes:
            with loaded(lab, candidate, load) as (_broker, measure):
                yield measure
        else:
            yield lambda: _once(lab, candidate, load)

    return Workload(name.lower().replace(" ", ""), title, metrics, open_, load=load)


def _once(lab: Lab, candidate: Candidate, load: Load) -> Sample:
    with loaded(lab, candidate, load) as (_broker, measure):
        return measure()


def fill(lab: Lab, broker: Broker, size_bytes: int, record_bytes: int) -> int:
    """Write 64 KB batches over all partitions; returns how many records were acknowledged."""
    each = 64 * KB // (record_bytes + 8)
    requests = max(1, size_bytes // (64 * KB))
    where = ["--topic", TOPIC, "--partitions", str(PARTITIONS)]
    if lab.generators.raw:
        shape = ["--records", str(each), "--record-bytes", str(record_bytes), "--in-flight", "5"]
        how = ["raw", "produce", *shape, "--requests", str(requests)]
    else:
        how = ["rdkafka", "produce", "--message-bytes", str(record_bytes)]
        how += ["--batch-bytes", str(64 * KB), "--messages", str(requests * each)]
    return int(lab.generators.run(broker, [*how, *where])["records"])


def _produce(message: str, message_bytes: int, batch: str, batch_bytes: int) -> Workload:
    where = ("--partitions", str(PARTITIONS))
    sizes = ("--message-bytes", str(message_bytes), "--batch-bytes", str(batch_bytes))
    return _workload(
        f"produce-{message}-{batch}",
        f"librdkafka produces {message} messages in {batch} batches, 6 partitions, acks=1",
        BYTE_METRICS,
        Load(("rdkafka", "produce", *where, *sizes)),
    )


def _consume(message: str, message_bytes: int) -> Workload:
    arguments = ("rdkafka", "consume", "--partitions", str(PARTITIONS))
    # No warm-up: the generator's window opens by itself, with the first messages.
    load = Load(arguments, reads_record_bytes=message_bytes, warms_up=False)
    return _workload(
        f"consume-{message}",
        f"librdkafka consumes {message} messages, 6 partitions, from the page cache",
        BYTE_METRICS,
        load,
    )


def _requests(name: str, title: str, *arguments: str) -> Workload:
    shape = ("--records", "1", "--record-bytes", "100")
    return _workload(
        name,
        f"raw: one-record produce requests of 100 B, {title}",
        REQUEST_METRICS,
        Load(("raw", "produce", *shape, *arguments), is_pinned=True),
    )


def _raw_fetch(size: str, max_bytes: int) -> Workload:
    arguments = ("raw", "fetch", "--max-bytes", str(max_bytes))
    return _workload(
        f"raw-fetch-{size}",
        f"raw: fetches of up to {size}, one partition, 1 in flight",
        (BYTE_METRICS[0], *REQUEST_METRICS),
        Load(arguments, is_pinned=True, reads_record_bytes=KB),
    )


def _raw_produce() -> Workload:
    shape = ("--records", "63", "--record-bytes", str(KB), "--in-flight", "5")
    where = ("--partitions", str(PARTITIONS))
    return _workload(
        "raw-produce-64kb",
        "raw: 64 KB batches of 1 KB records, 6 partitions, 5 in flight",
        (BYTE_METRICS[0], *REQUEST_METRICS),
        Load(("raw", "produce", *shape, *where), is_pinned=True),
    )


WORKLOADS = (
    _produce("1 KB", KB, "64 KB", 64 * KB),
    _produce("1 KB", KB, "16 KB", 16 * KB),
    # A little under 1 MiB, as a whole batch must fit into max.message.bytes.
    _produce("1 KB", KB, "1 MB", MB),
    _produce("100 B", 100, "64 KB", 64 * KB),
    _consume("1 KB", KB),
    _consume("100 B", 100),
    _requests("request-1", "1 in flight", "--in-flight", "1"),
    _requests("request-16", "16 in flight on one connection", "--in-flight", "16"),
    _requests(
        "request-16-connections",
        "16 connections with 1 in flight each",
        "--connections",
        "16",
        "--partitions",
        str(PARTITIONS),
    ),
    _raw_produce(),
    _raw_fetch("1 MB", 1 << 20),
    _raw_fetch("64 KB", 64 * KB),
)
