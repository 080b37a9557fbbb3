"""The sections of the page: their workloads, texts and plots."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch

from bench.harness.plots import Names, Panel, bars, curves, plain
from bench.harness.results import SPARK, Figure, Measured

Plot = Callable[[Sequence[Measured], Names], str | None]
"""Draws a plot of workloads, with the brokers that may be in it; empty if there is nothing."""


@dataclass(frozen=True, slots=True)
class Family:
    """A section of the page. A workload belongs to the first family that has its name."""

    title: str
    words: str
    patterns: tuple[str, ...]
    plots: tuple[tuple[str, Plot], ...] = ()
    """The plots by file name."""
    openings: tuple[str, ...] = ()
    """A prefix of titles that rows need not repeat."""
    leaves_out: tuple[str, ...] = ()
    """The keys of metrics that are left out here."""
    columns: tuple[str, ...] = ()
    """The keys of metrics that have a column. Without any, each metric of a workload has a row."""
    columns_without_ratio: tuple[str, ...] = ()

    def takes(self, name: str) -> bool:
        return any(fnmatch(name, pattern) for pattern in self.patterns)

    def said(self, workload: Measured) -> str:
        return without(workload.title, self.openings)


def without(title: str, openings: Sequence[str]) -> str:
    return next((title.removeprefix(one) for one in openings if title.startswith(one)), title)


# ---- kinds of plots ---------------------------------------------------------------------------


def compared(
    title: str, unit: str, key: str, openings: Sequence[str] = (), only: str = "*"
) -> Plot:
    """One figure of several workloads, as bars."""

    def plot(workloads: Sequence[Measured], names: Names) -> str | None:
        groups = {
            without(one.title, openings): series
            for one in workloads
            if fnmatch(one.name, only) and (series := one.series(key))
        }
        return bars(title, unit, groups, names) if groups else None

    return plot


def listed(title: str, unit: str, wanted: Sequence[tuple[str, str, str]]) -> Plot:
    """Figures of one unit from several workloads, as bars: name, key, label."""

    def plot(workloads: Sequence[Measured], names: Names) -> str | None:
        groups = {
            label: series
            for pattern, key, label in wanted
            for one in workloads
            if fnmatch(one.name, pattern) and (series := one.series(key))
        }
        return bars(title, unit, groups, names) if groups else None

    return plot


def distributed(title: str, unit: str, points: Sequence[tuple[str, str]], per_unit: float) -> Plot:
    """The points of a distribution as a curve, a panel for each workload: key and label."""

    def plot(workloads: Sequence[Measured], names: Names) -> str | None:
        panels = []
        for one in workloads:
            found = [(number, one.series(key)) for number, (key, _) in enumerate(points)]
            by_name = {
                name: [(at, family[name].over(per_unit)) for at, family in found if name in family]
                for name in names
                if any(name in family for _, family in found)
            }
            ticks = [(float(number), label) for number, (_, label) in enumerate(points)]
            if by_name:
                panels.append(Panel(_short(one), by_name, ticks))
        return curves(title, unit, panels, names, is_log_y=True) if panels else None

    return plot


def _short(workload: Measured) -> str:
    """Return a short title of a panel: the rate, and what is unusual."""
    rate, *more = workload.name.split("-")[1:]
    return ", ".join([f"{int(rate):,} messages/s", *map(_spelled, more)])


def _spelled(word: str) -> str:
    letters = re.match(r"(rf|linger)(\d+)$", word)
    if letters is None:
        return word
    return f"{letters[2]} replicas" if letters[1] == "rf" else f"linger {letters[2]} ms"


def grown(title: str, unit: str, axes: Sequence[tuple[str, str, str]]) -> Plot:
    """Curves over a number: at the end of keys (`mb_at_100`, `produce_at_0_1gb`), or of names.

    Each panel is a workload, or how the names of several begin, then the key and the axis' title.
    """

    def plot(workloads: Sequence[Measured], names: Names) -> str | None:
        panels = []
        for wanted, key, axis in axes:
            points = sorted(
                (point for one in workloads for point in _points(one, wanted, key)),
                key=lambda point: point[0],
            )
            by_name = {
                name: [(at, series[name]) for at, series in points if name in series]
                for name in names
                if any(name in series for _, series in points)
            }
            if len(points) > 1:
                ticks = [(at, plain(at)) for at, _ in points]
                panels.append(Panel(axis, by_name, ticks, is_log_x=True))
        return curves(title, unit, panels, names) if panels else None

    return plot


def _points(workload: Measured, wanted: str, key: str) -> Iterator[tuple[float, dict[str, Figure]]]:
    number = re.fullmatch(rf"{wanted}-(\d+)", workload.name)
    if number and (series := workload.series(key)):
        yield float(number[1]), series
    if workload.name == wanted:
        for measured in workload.keys:
            if at := re.fullmatch(rf"{key}_at_([\d_]+?)[a-z]*", measured):
                yield float(at[1].replace("_", ".")), workload.series(measured)


# ---- the page ---------------------------------------------------------------------------------

PRODUCES = ("librdkafka produces ",)
CONSUMES = ("librdkafka consumes ",)
SINGLE = ("raw: one-record produce requests of 100 B, ", "raw: ")
THROUGHPUT = "MB/s, more is better"
SECONDS = "seconds, less is better"
US_PER_MS = 1000.0
POINTS = (
    ("p50_us", "p50"),
    ("p90_us", "p90"),
    ("p99_us", "p99"),
    ("p999_us", "p99.9"),
)


def _bytes(file: str, title: str, openings: tuple[str, ...] = ()) -> tuple[str, Plot]:
    return file, compared(title, THROUGHPUT, "mb_per_s", openings)


PRODUCE_ONE = Family(
    "Produce, one broker",
    "What was acknowledged inside the window.",
    ("produce-*-rf1",),
    (_bytes("produce", "Produce, one broker", PRODUCES),),
    PRODUCES,
)
PRODUCE_THREE = Family(
    "Produce, three brokers",
    "The same to a cluster of three, which share the CPUs with each other and with the client.",
    ("produce-*-rf3",),
    (_bytes("produce-three", "Produce, three brokers", PRODUCES),),
    PRODUCES,
)
CONSUME = Family(
    "Consume",
    "One consumer without a group reads a log that is in the page cache.",
    ("consume-*-p[0-9]",),
    (_bytes("consume", "Consume", CONSUMES),),
    CONSUMES,
)
COLD = Family(
    "Catch-up on a cold log",
    "The log was dropped from the page cache before it is read, so that the disk is measured too.",
    ("catch-up*",),
    (_bytes("catch-up", "Catch-up on a cold log", CONSUMES),),
    CONSUMES,
)
COMPRESSED = Family(
    "Compressed streams",
    "The producer compresses, the broker checks every record and keeps the batch, the consumer"
    " unpacks."
    " Bytes are those of messages before compression.",
    ("*-lz4*", "*-zstd*"),
    (_bytes("compressed", "Compressed streams", ("librdkafka ",)),),
    ("librdkafka ",),
)
REQUESTS = Family(
    "Single records",
    "Produce requests with one record each, over plain sockets: what a request costs, without the"
    " share of a client library.",
    ("request-*", "replicated-*"),
    (
        (
            "requests",
            compared("One-record requests", "requests/s, more is better", "requests_per_s", SINGLE),
        ),
    ),
    SINGLE,
)
SOCKETS = Family(
    "Batches over plain sockets",
    "Produce and Fetch of whole batches, without the share of a client library.",
    ("raw-*",),
    (_bytes("sockets", "Batches over plain sockets", SINGLE),),
    SINGLE,
)
LATENCY = Family(
    "Latency from end to end",
    "Messages are due at even intervals, whatever happened to those before. What counts is from"
    " when one was due until a consumer has it.",
    ("latency-*",),
    (("latency", distributed("End-to-end latency", "ms, less is better", POINTS, US_PER_MS)),),
    ("from due to received: ",),
    ("max_us", "rate", "client_late_p99_us"),
)
FOOTPRINT = Family(
    "Start, memory, recovery",
    "What it takes to be there: fresh processes, and what they hold. What something adds is a"
    " difference of two states of the same broker.",
    ("start*", "memory*", "partitions*", "recovery*"),
    (
        (
            "start",
            listed(
                "Start",
                SECONDS,
                (
                    ("start", "first_answer_s", "first answer"),
                    ("start", "first_ack_s", "first acknowledged record"),
                    ("partitions", "ready_s", "with 1,000 partitions"),
                    ("recovery", "recovery_s", "after kill -9"),
                ),
            ),
        ),
        (
            "memory",
            listed(
                "Resident memory",
                "MB, less is better",
                (
                    ("memory", "idle_mb", "idle"),
                    ("memory", "loaded_mb", "peak under load"),
                    ("memory", "connections_mb", "1,000 connections add"),
                    ("partitions", "written_cost_mb", "1,000 partitions add"),
                ),
            ),
        ),
    ),
)
FAILOVER = Family(
    "Failover",
    "The leader is killed with SIGKILL. Most of the time is the silence that a cluster waits for"
    " before it believes in a death.",
    ("failover*",),
    (
        (
            "failover",
            listed(
                "Failover of a killed leader",
                SECONDS,
                (
                    ("failover-1", "acked_s", "1 partition, next record"),
                    ("failover-1000", "acked_s", "1,000 partitions, next record"),
                    ("failover-1000", "known_s", "1,000 partitions, all led again"),
                    ("failover-defaults", "acked_s", "default timeouts, next record"),
                    ("failover-controller", "acked_s", "the controller too, next record"),
                ),
            ),
        ),
    ),
)
GROWTH = Family(
    "Growth",
    "The same load on more and more of something. What counts is whether the curve stays flat"
    " where Kafka's does.",
    ("growth-*",),
    (
        (
            "growth",
            grown(
                "Throughput as things grow",
                THROUGHPUT,
                (
                    ("growth-partitions", "mb", "produce, by partitions"),
                    ("growth-log", "produce", "produce, by GB of log"),
                    ("growth-log", "tail", "consume the end, by GB of log"),
                    ("growth-fetch-connections", "mb", "consume, by connections"),
                ),
            ),
        ),
        (
            "growth-requests",
            grown(
                "Requests as connections grow",
                "requests/s, more is better",
                (("growth-connections", "requests", "connections"),),
            ),
        ),
    ),
)
IDEMPOTENT = tuple(
    (f"produce-1kb-{batch}-rf{replicas}-idempotent", key, f"{said}, {counted}, {kind}")
    for batch, said in (("64kb", "64 KB batches"), ("1mb", "1 MB batches"))
    for replicas, counted in ((1, "1 replica"), (3, "3 replicas"))
    for key, kind in (("mb_per_s", "idempotent"), ("plain_mb_per_s", "plain"))
)
EXACTLY_ONCE = Family(
    "Idempotent and transactional producers",
    "The same load from a producer that numbers its batches, and records in transactions.",
    ("*-idempotent*", "transactions-*"),
    (
        ("idempotent", listed("Idempotent producer, 1 KB messages", THROUGHPUT, IDEMPOTENT)),
        (
            "transactions",
            compared(
                "Transactions",
                "transactions/s, more is better",
                "transactions_per_s",
                ("librdkafka commits transactions of ",),
            ),
        ),
    ),
    ("librdkafka ",),
)
GROUPS = Family(
    "Groups",
    "How long a rebalance takes, against the number of members.",
    ("rebalance*", "group*"),
    (
        (
            "groups",
            grown(
                "Rebalance of a group",
                SECONDS,
                (
                    ("rebalance", "formed_s", "it forms, by members"),
                    ("rebalance", "rebalance_s", "one joins, by members"),
                    ("rebalance", "left_s", "one leaves, by members"),
                ),
            ),
        ),
    ),
)
TOOLS = Family(
    "Kafka's own tools",
    "kafka-producer-perf-test and kafka-consumer-perf-test, with Java's client, on both brokers.",
    ("kafka-*",),
    (_bytes("kafka-tools", "Kafka's own tools", ("Kafka's own ",)),),
    ("Kafka's own ",),
)
PIPELINE = Family(
    "The pipeline on Spark",
    "Hightide's source and sinks beside Spark's own Kafka connector, both on a Hightide broker and"
    " in Spark on two cores. Hightide's sink writes exactly once, the connector's at least once.",
    (f"{SPARK}*",),
    (
        (
            "spark",
            listed(
                "Pipeline on Spark",
                "million rows/s, more is better",
                (
                    (f"{SPARK}source-100b", "batch_rate", "source, 100 B, batch"),
                    (f"{SPARK}source-100b", "stream_rate", "source, 100 B, stream"),
                    (f"{SPARK}source-1kb", "batch_rate", "source, 1 KB, batch"),
                    (f"{SPARK}source-1kb", "stream_rate", "source, 1 KB, stream"),
                    (f"{SPARK}sink-100b", "rate", "sink, 100 B"),
                    (f"{SPARK}sink-1kb", "rate", "sink, 1 KB"),
                    (f"{SPARK}windows", "rate", "windows, 100 B"),
                ),
            ),
        ),
    ),
)
ABUSED = Family(
    "One client abuses a broker",
    "A bystander sends a Produce request of one record and a Metadata request every 5 ms, from its"
    " own process and connections, while another client sends legal requests that cost a broker"
    " much. Requests that are due during a wait count as sent then. The worst oversleep of a"
    " process that sleeps 1 ms at a time is what the machine itself adds. One broker runs at a"
    " time; memory is the peak of its RSS over what it had before the abuse. A closed connection is"
    " a request that the broker refuses. `make bench-bystander` measures it.",
    ("bystander-*",),
    columns=(
        "produce_worst_ms",
        "produce_p99_ms",
        "metadata_worst_ms",
        "metadata_p99_ms",
    ),
    columns_without_ratio=("oversleep_ms", "rss_growth_mb", "answered", "refused"),
)
OTHER = Family("Other workloads", "What belongs to none of the above.", ("*",))

FAMILIES = (
    PRODUCE_ONE,
    PRODUCE_THREE,
    CONSUME,
    COLD,
    COMPRESSED,
    REQUESTS,
    SOCKETS,
    LATENCY,
    FOOTPRINT,
    FAILOVER,
    GROWTH,
    EXACTLY_ONCE,
    GROUPS,
    TOOLS,
    PIPELINE,
    ABUSED,
    OTHER,
)
"""In the order of the page; the last one takes all other workloads."""
