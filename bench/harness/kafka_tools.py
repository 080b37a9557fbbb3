"""Kafka's measuring tools, against every broker.

Operators of Kafka measure with `kafka-producer-perf-test` and `kafka-consumer-perf-test`. They are
Java programs and run here as their scripts run them, with their defaults: a producer with acks=all
and idempotence, batches of 16 KB and 5 ms of linger; a consumer in a group of one. What the
client's virtual machine needs to get going is inside their figures, on both sides alike. Their MB
are MiB; here they are turned into millions of bytes, as everywhere else.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import count

from bench.harness.broker import BrokerFailure, Candidate, NotSupported
from bench.harness.candidates import ApacheKafka
from bench.harness.cluster import Cluster
from bench.harness.generator import Sample, run_and_account
from bench.harness.lab import OTHERS, PARTITIONS, TOPIC, Lab, Measure, Metric, Workload
from bench.harness.maven import NoMaven
from bench.harness.throughput import GB, KB, MB, fill

PRODUCER = "org.apache.kafka.tools.ProducerPerformance"
CONSUMER = "org.apache.kafka.tools.ConsumerPerformance"
# So much that the start of the client does not dominate the figures.
RECORDS_PER_SECOND_ASKED = 150_000
FEWEST_RECORDS = 50_000
MIB = 1024 * 1024
PATIENCE_S = 180.0
MOST_ROUNDS = 3

PRODUCER_METRICS = (
    Metric("mb_per_s", "MB/s", 0, more_is_better=True),
    Metric("mean_ms", "mean latency, ms", 0),
    Metric("p50_ms", "p50, ms", 0),
    Metric("p95_ms", "p95, ms", 0),
    Metric("p99_ms", "p99, ms", 0),
    Metric("p999_ms", "p99.9, ms", 0),
    Metric("broker_cpu_s_per_gb", "broker CPU, s/GB", 2),
    Metric("client_cpu_s_per_gb", "client CPU with its start, s/GB", 2),
    OTHERS,
)
CONSUMER_METRICS = (
    Metric("fetch_mb_per_s", "MB/s once in the group", 0, more_is_better=True),
    Metric("mb_per_s", "MB/s from the start", 0, more_is_better=True),
    Metric("rebalance_ms", "until in the group, ms", 0),
    Metric("broker_cpu_s_per_gb", "broker CPU, s/GB", 2),
    Metric("client_cpu_s_per_gb", "client CPU with its start, s/GB", 2),
    OTHERS,
)

PRODUCER_SAID = re.compile(
    r"(?P<records>\d+) records sent, (?P<records_per_s>[\d.]+) records/sec \([\d.]+ MB/sec\),"
    r" (?P<mean>[\d.]+) ms avg latency, (?P<max>[\d.]+) ms max latency,"
    r" (?P<p50>\d+) ms 50th, (?P<p95>\d+) ms 95th, (?P<p99>\d+) ms 99th, (?P<p999>\d+) ms 99\.9th"
)
CONSUMER_COLUMNS = (
    "start.time",
    "end.time",
    "data.consumed.in.MB",
    "MB.sec",
    "data.consumed.in.nMsg",
    "nMsg.sec",
    "rebalance.time.ms",
    "fetch.time.ms",
    "fetch.MB.sec",
    "fetch.nMsg.sec",
)


@cache
def _found() -> ApacheKafka | str:
    """Return Kafka with its tools, or the reason why not; cached, as Maven fails slowly."""
    try:
        return ApacheKafka.from_maven()
    except NoMaven as reason:
        return str(reason)


def _kafka() -> ApacheKafka:
    found = _found()
    if isinstance(found, str):
        raise NotSupported(f"Kafka's tools are not here: {found}")
    return found


def _run(cluster: Cluster, main_class: str, arguments: Sequence[str]) -> tuple[str, Sample]:
    """Return the output of the tool, and the CPU of tool and brokers."""
    name = main_class.rpartition(".")[2]
    command = _kafka().tool(main_class, "--bootstrap-server", cluster.bootstrap, *arguments)
    done, used = run_and_account(command, cluster.pids, timeout_s=PATIENCE_S)
    if done.returncode != 0:
        raise BrokerFailure(f"{name}: {_last_words(done.stderr or done.stdout)}")
    return done.stdout, used


def _last_words(text: str) -> str:
    return " / ".join(text.strip().splitlines()[-3:]) or "ended without a word"


# ---- produce ------------------------------------------------------------------------------------


def produce(cluster: Cluster, records: int) -> Sample:
    arguments = ["--topic", TOPIC, "--num-records", str(records), "--record-size", str(KB)]
    said, sample = _run(cluster, PRODUCER, [*arguments, "--throughput", "-1"])
    return _with_cpu_per_gb(sample | read_producer(said, records))


def read_producer(said: str, records: int) -> Sample:
    """Parse the last line, the summary; earlier lines are per reporting interval."""
    lines = [found for line in said.splitlines() if (found := PRODUCER_SAID.search(line))]
    if not lines or int(lines[-1]["records"]) != records:
        raise BrokerFailure(f"not all records were acknowledged: {_last_words(said)}")
    whole = lines[-1]
    sample = {f"{key}_ms": float(whole[key]) for key in ("max", "p50", "p95", "p99", "p999")}
    rate = float(whole["records_per_s"])
    return sample | {
        "mean_ms": float(whole["mean"]),
        "records": float(records),
        "bytes": float(records * KB),
        "records_per_s": rate,
        "mb_per_s": rate * KB / MB,
    }


@contextmanager
def open_producer(lab: Lab, candidate: Candidate) -> Iterator[Measure]:
    _kafka()
    cluster = lab.standing.cluster(candidate)
    records = max(FEWEST_RECORDS, int(lab.seconds * RECORDS_PER_SECOND_ASKED))

    def measure() -> Sample:
        with cluster.topic(TOPIC, PARTITIONS):
            return produce(cluster, records)

    yield measure


# ---- consume ------------------------------------------------------------------------------------


def consume(cluster: Cluster, records: int, group: str) -> Sample:
    arguments = ["--topic", TOPIC, "--num-records", str(records), "--group", group]
    said, sample = _run(cluster, CONSUMER, arguments)
    return _with_cpu_per_gb(sample | read_consumer(said, records))


def read_consumer(said: str, records: int) -> Sample:
    """Parse a line of titles and the line of figures below it."""
    lines = [[cell.strip() for cell in line.split(",")] for line in said.splitlines()]
    found = [line for line in lines if len(line) == len(CONSUMER_COLUMNS)]
    if len(found) < 2 or tuple(found[0]) != CONSUMER_COLUMNS:
        raise BrokerFailure(f"ConsumerPerformance said something new: {_last_words(said)}")
    figures = dict(zip(CONSUMER_COLUMNS, found[-1], strict=True))
    if int(figures["data.consumed.in.nMsg"]) < records:
        raise BrokerFailure(f"not all records came: {_last_words(said)}")
    return {
        "records": float(figures["data.consumed.in.nMsg"]),
        "bytes": float(figures["data.consumed.in.MB"]) * MIB,
        "mb_per_s": float(figures["MB.sec"]) * MIB / MB,
        "fetch_mb_per_s": float(figures["fetch.MB.sec"]) * MIB / MB,
        "fetch_records_per_s": float(figures["fetch.nMsg.sec"]),
        "rebalance_ms": float(figures["rebalance.time.ms"]),
    }


@contextmanager
def open_consumer(lab: Lab, candidate: Candidate) -> Iterator[Measure]:
    _kafka()
    cluster = lab.standing.cluster(candidate)
    groups = (f"perf-{number}" for number in count())
    with cluster.topic(TOPIC, PARTITIONS):
        fill(lab, cluster, lab.fill_mb * MB, KB, PARTITIONS)
        records = sum(cluster.end_offsets(TOPIC).values())
        # The first group of a cluster waits for the creation of the offsets topic.
        consume(cluster, 1, next(groups))
        yield lambda: consume(cluster, records, next(groups))


def _with_cpu_per_gb(sample: Sample) -> Sample:
    for side in ("broker", "client"):
        sample[f"{side}_cpu_s_per_gb"] = sample[f"{side}_cpu_s"] / (sample["bytes"] / GB)
    return sample


ONE_BROKER = (
    Workload(
        "kafka-producer-perf-test",
        f"Kafka's own kafka-producer-perf-test: 1 KB records, {PARTITIONS} partitions",
        PRODUCER_METRICS,
        open_producer,
        MOST_ROUNDS,
    ),
    Workload(
        "kafka-consumer-perf-test",
        f"Kafka's own kafka-consumer-perf-test: 1 KB records, {PARTITIONS} partitions",
        CONSUMER_METRICS,
        open_consumer,
        MOST_ROUNDS,
    ),
)
