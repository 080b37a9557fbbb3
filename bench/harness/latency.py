"""How long a message takes from when it was due to be sent until a consumer has it.

Messages of 1 KB are due at even intervals, whatever happened to those before them. The client
waits 5 ms to fill a batch, which is librdkafka's default; with linger 0 a request carries little
more than one message. The brokers are standing ones, warm, and share the CPUs with the client;
`client late` is how much of a message's time had passed before librdkafka was given it.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from bench.harness.broker import Candidate
from bench.harness.generator import Sample
from bench.harness.lab import OTHERS, PARTITIONS, TOPIC, Lab, Measure, Metric, Workload, held_to

KB = 1024
MICROSECOND = 1e-6

# The points of the distribution that each sample has, as `p99_us`, in rising order.
POINTS = ("p10", "p25", "p50", "p75", "p90", "p95", "p99", "p999", "max")

METRICS = (
    Metric("p50_us", "p50, µs", 0),
    Metric("p99_us", "p99, µs", 0),
    Metric("p999_us", "p99.9, µs", 0),
    Metric("max_us", "longest, µs", 0),
    Metric("rate", "messages/s received", 0, more_is_better=True),
    Metric("broker_cpu_us_per_message", "broker CPU, µs/message", 1),
    Metric("client_cpu_us_per_message", "client CPU, µs/message", 1),
    Metric("client_late_p99_us", "client late, p99, µs", 0),
    OTHERS,
)

# librdkafka's default.
LINGER_MS = 5
# A rate whose p99 is held to a bar: at most Kafka's, and half of it is the aim.
HELD_RATE = 5_000
# The high percentiles of a slow stream need more messages than a round of the usual length has.
ROUND_FACTOR = 2.5


def latency(
    rate: int, replicas: int = 1, linger_ms: int = LINGER_MS, *, is_extra: bool = False
) -> Workload:
    acks = "all" if replicas > 1 else "1"
    how = ["latency", "--rate", str(rate), "--acks", acks, "--linger-ms", str(linger_ms)]
    how += ["--message-bytes", str(KB), "--topic", TOPIC, "--partitions", str(PARTITIONS)]

    @contextmanager
    def open_(lab: Lab, candidate: Candidate) -> Iterator[Measure]:
        cluster = lab.standing.cluster(candidate, replicas)
        window = ["--warm-up-seconds", str(lab.warm_up_s)]
        window += ["--seconds", str(lab.seconds * ROUND_FACTOR)]

        def measure() -> Sample:
            with cluster.topic(TOPIC, PARTITIONS, replicas):
                return with_shares(lab.generators.run(cluster, [*how, *window]))

        yield measure

    more = f"-rf{replicas}" if replicas > 1 else ""
    more += "" if linger_ms == LINGER_MS else f"-linger{linger_ms}"
    said = f", acks=all, {replicas} replicas" if replicas > 1 else ", acks=1"
    said += f", linger {linger_ms} ms"
    title = f"from due to received: {rate:,} messages of 1 KB a second, {PARTITIONS} partitions"
    is_held = rate == HELD_RATE and linger_ms == LINGER_MS
    metrics = held_to(METRICS, p99_us=(1.0, 0.5)) if is_held else METRICS
    return Workload(f"latency-{rate}{more}", title + said, metrics, open_, is_extra=is_extra)


def with_shares(sample: Sample) -> Sample:
    for side in ("broker", "client"):
        spent_us = sample[f"{side}_cpu_s"] / MICROSECOND
        sample[f"{side}_cpu_us_per_message"] = spent_us / sample["records"]
    return sample


ONE_BROKER = (
    latency(500),
    latency(5_000),
    latency(20_000),
    # Each message in a separate request: more than a Kafka on such a machine can take, so that
    # its latency here is the length of a queue.
    latency(5_000, linger_ms=0),
    latency(500, linger_ms=0, is_extra=True),
    latency(20_000, linger_ms=0, is_extra=True),
)
THREE_BROKERS = (
    latency(5_000, replicas=3),
    latency(500, replicas=3, is_extra=True),
)
