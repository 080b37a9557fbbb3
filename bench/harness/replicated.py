"""Workloads of single records on three replicas: what acks=all costs, one record at a time.

The partition is led by the first broker, to which the generator speaks; all three brokers, the
client and what the brokers need beside them share the machine.

Kafka takes the next request of a connection when it has answered the one before, so requests in
flight on one connection wait for each other there; on separate connections they do not.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from bench.harness.broker import Candidate
from bench.harness.generator import Sample
from bench.harness.lab import OTHERS, TOPIC, Lab, Measure, Metric, Workload
from bench.harness.throughput import REQUEST_METRICS, with_rates

REPLICAS = (1, 2, 3)
# Standing brokers are warm from large batches; a JIT compiler has not seen many small requests.
REHEARSAL_S = 4.0
# At a fixed rate, the rate itself is no result.
PACED_METRICS = (
    Metric("p50_us", "p50, µs", 0),
    Metric("p99_us", "p99, µs", 0),
    Metric("p999_us", "p99.9, µs", 0),
    Metric("broker_cpu_us_per_request", "brokers' CPU, µs/request", 1),
    OTHERS,
)


def _requests(
    name: str,
    title: str,
    metrics: tuple[Metric, ...],
    *arguments: str,
    acks: str = "all",
    is_extra: bool = False,
) -> Workload:
    @contextmanager
    def open_(lab: Lab, candidate: Candidate) -> Iterator[Measure]:
        cluster = lab.standing.cluster(candidate, len(REPLICAS))
        words = ["raw", "produce", "--topic", TOPIC, "--records", "1", "--record-bytes", "100"]
        words += ["--acks", "-1" if acks == "all" else acks, *arguments]
        words += ["--warm-up-seconds", str(lab.warm_up_s)]

        def measure(seconds: float) -> Sample:
            with cluster.topic(TOPIC, 1, assignment=[REPLICAS]):
                more = ["--seconds", str(seconds)]
                return with_rates(lab.generators.run(cluster, [*words, *more]), cluster)

        measure(REHEARSAL_S)
        yield lambda: measure(lab.seconds)

    full = f"raw: one-record produce requests of 100 B, 3 replicas, acks={acks}, {title}"
    return Workload(name, full, metrics, open_, is_extra=is_extra)


THREE_BROKERS = (
    _requests("replicated-500", "500 a second", PACED_METRICS, "--rate", "500"),
    _requests("replicated-1", "1 in flight", REQUEST_METRICS, "--in-flight", "1"),
    _requests(
        "replicated-16", "16 in flight on one connection", REQUEST_METRICS, "--in-flight", "16"
    ),
    _requests(
        "replicated-16-connections",
        "16 connections with 1 in flight each",
        REQUEST_METRICS,
        "--connections",
        "16",
    ),
    _requests(
        "replicated-500-acks1",
        "500 a second",
        PACED_METRICS,
        "--rate",
        "500",
        acks="1",
        is_extra=True,
    ),
)
