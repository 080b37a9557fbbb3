"""`hightide perf …`: how fast a cluster writes and reads records.

The figures are those of one client process with librdkafka.  They go to stdout.  A progress bar
goes to stderr if that is a terminal.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from hightide.cli import completion, librdkafka, render
from hightide.cli.options import (
    LOCALHOST,
    Bootstrap,
    ClientSettings,
    Failed,
    OutputOption,
    ask,
    client_settings,
    spelt,
    wrong_usage,
)
from hightide.cli.perf import latency as perf_latency
from hightide.cli.perf.latency import MOST_MESSAGES, STAMP, Pace
from hightide.cli.perf.load import BATCH, MB, hand_over, payloads, percentile, progress
from hightide.cli.perf.rounds import (
    NOT_SHOWN,
    FigureRow,
    RatioRow,
    figure_rows,
    ratio_rows,
    rounds,
)
from hightide.cli.perf.suite import Amount, Target, suite
from hightide.cli.perf.temporary_topic import await_writable, temporary_topic
from hightide.cli.position import Beginning
from hightide.cli.record.consume import plan
from hightide.cli.record.produce import producer_settings
from hightide.cli.render import Output
from hightide.client.admin import Admin
from hightide.client.routing import addresses

app = typer.Typer(no_args_is_help=True, help="Measure how fast a cluster writes and reads records.")

CODECS = ("gzip", "snappy", "lz4", "zstd")


@dataclass(frozen=True, slots=True)
class ProduceFigures:
    topic: str
    records: int
    bytes: int
    seconds: float
    records_per_s: float
    mb_per_s: float
    latency_p50_ms: float
    latency_p95_ms: float
    latency_p99_ms: float
    latency_p999_ms: float
    latency_max_ms: float
    failed: int


@dataclass(frozen=True, slots=True)
class ConsumeFigures:
    topic: str
    records: int
    bytes: int
    seconds: float
    records_per_s: float
    mb_per_s: float
    first_record_ms: float


@app.command("produce")
def produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", autocompletion=completion.topics)],
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="How many records.")] = 100_000,
    size: Annotated[int, typer.Option("--size", min=1, help="Bytes of each value.")] = 1_000,
    rate: Annotated[
        int | None, typer.Option("--rate", min=1, help="Records per second. Default: no limit.")
    ] = None,
    acks: Annotated[str, typer.Option("--acks", help="0, 1 or all.")] = "all",
    compression: Annotated[
        str, typer.Option("--compression", "-z", help="none, gzip, snappy, lz4 or zstd.")
    ] = "none",
    settings: ClientSettings = None,
    bootstrap: Bootstrap = LOCALHOST,
    output: OutputOption = Output.TABLE,
) -> None:
    """Write records as fast as possible, or at a rate, and measure the latency of each response."""
    client = {
        "queue.buffering.max.messages": 1_000_000,
        **producer_settings(acks, compression, settings),
    }
    ask(bootstrap, lambda admin: admin.topics.ensure(topic))
    producer = librdkafka.producer(bootstrap, client)
    with progress(f"produce {topic}", count) as advance:
        figures = run_produce(producer, topic, count, size, rate, advance)
    render.show_one(figures, output)
    if figures.failed:
        raise Failed(f"{figures.failed} of {count} records were not written.")


def run_produce(
    producer: Any,
    topic: str,
    count: int,
    size: int,
    rate: int | None,
    advance: Callable[[int], None],
) -> ProduceFigures:
    latencies: list[float] = []
    failures: list[Any] = []

    def delivered(error: Any, message: Any) -> None:
        if error is None:
            latencies.append(message.latency())
        else:
            failures.append(error)

    values = payloads(size)
    started = time.perf_counter()
    sent = shown = 0

    def show() -> None:
        nonlocal shown
        answered = len(latencies) + len(failures)
        advance(answered - shown)
        shown = answered

    while sent < count:
        batch = min(BATCH if rate is None else max(1, rate // 100), count - sent)
        for at in range(sent, sent + batch):
            hand_over(producer, topic, values[at % len(values)], on_delivery=delivered)
        sent += batch
        producer.poll(0)
        show()
        if rate is not None:
            _wait_until(producer, started + sent / rate)
    while producer.flush(0.1):
        show()
    seconds = time.perf_counter() - started
    if failures and not latencies:
        raise Failed(librdkafka.sentence(failures[0]))
    latencies.sort()
    written = len(latencies)
    return ProduceFigures(
        topic=topic,
        records=written,
        bytes=written * size,
        seconds=round(seconds, 3),
        records_per_s=round(written / seconds, 1),
        mb_per_s=round(written * size / seconds / MB, 2),
        latency_p50_ms=round(percentile(latencies, 0.5) * 1000, 3),
        latency_p95_ms=round(percentile(latencies, 0.95) * 1000, 3),
        latency_p99_ms=round(percentile(latencies, 0.99) * 1000, 3),
        latency_p999_ms=round(percentile(latencies, 0.999) * 1000, 3),
        latency_max_ms=round((latencies or [0.0])[-1] * 1000, 3),
        failed=len(failures),
    )


def _wait_until(producer: Any, moment: float) -> None:
    """Serve callbacks until the next records are due."""
    while (left := moment - time.perf_counter()) > 0:
        producer.poll(left)


@app.command("consume")
def consume(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", autocompletion=completion.topics)],
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, help="How many records. Default: all.")
    ] = None,
    settings: ClientSettings = None,
    bootstrap: Bootstrap = LOCALHOST,
    output: OutputOption = Output.TABLE,
) -> None:
    """Read a topic from its beginning as fast as possible."""
    client = client_settings(settings)
    spans = ask(bootstrap, lambda admin: plan(admin, topic, Beginning(), None))
    ends = {
        span.partition: span.end_offset for span in spans if span.first_offset < span.end_offset
    }
    available = sum(span.end_offset - span.first_offset for span in spans)
    if not available:
        raise Failed(f"Topic {topic!r} has no records.")
    wanted = min(count or available, available)
    consumer = librdkafka.consumer(bootstrap, client)
    firsts = {span.partition: span.first_offset for span in spans if span.partition in ends}
    try:
        with progress(f"consume {topic}", wanted) as advance:
            figures = run_consume(consumer, topic, firsts, ends, wanted, advance)
    finally:
        consumer.close()
    render.show_one(figures, output)


def run_consume(
    consumer: Any,
    topic: str,
    firsts: dict[int, int],
    ends: dict[int, int],
    wanted: int,
    advance: Callable[[int], None],
) -> ConsumeFigures:
    started = time.perf_counter()
    first_record = 0.0
    librdkafka.assign(consumer, topic, firsts)
    records = size = 0
    open_partitions = set(ends)
    while records < wanted and open_partitions:
        before = records
        # Do not ask for more than there are: the call waits until it has that many.
        for message in consumer.consume(min(BATCH, wanted - records), 0.1):
            error = message.error()
            if error is None:
                records += 1
                size += len(message)
            elif librdkafka.is_end_of_partition(error):
                open_partitions.discard(message.partition())
            elif librdkafka.is_fatal(error):
                raise Failed(librdkafka.sentence(error))
        if records and not first_record:
            first_record = time.perf_counter() - started
        advance(records - before)
    seconds = time.perf_counter() - started
    return ConsumeFigures(
        topic=topic,
        records=records,
        bytes=size,
        seconds=round(seconds, 3),
        records_per_s=round(records / seconds, 1),
        mb_per_s=round(size / seconds / MB, 2),
        first_record_ms=round(first_record * 1000, 3),
    )


@app.command("latency")
def latency(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", autocompletion=completion.topics)],
    rate: Annotated[
        int, typer.Option("--rate", min=1, max=1_000_000, help="Messages per second.")
    ] = 5_000,
    seconds: Annotated[
        float, typer.Option("--seconds", min=0.01, max=86_400, help="How long to send.")
    ] = 10.0,
    size: Annotated[
        int, typer.Option("--size", min=STAMP.size, help="Bytes of each value.")
    ] = 1_000,
    acks: Annotated[str, typer.Option("--acks", help="0, 1 or all.")] = "all",
    percentiles: Annotated[
        bool, typer.Option("--percentiles", help="Print the whole distribution too.")
    ] = False,
    settings: ClientSettings = None,
    bootstrap: Bootstrap = LOCALHOST,
    output: OutputOption = Output.TABLE,
) -> None:
    """Measure the latency from a producer through the cluster to a consumer, at a steady rate.

    Each message is due at a certain time, and its latency counts from then, even if it was sent
    late. The consumer reads from the end, ignores other messages, and counts those that did not
    arrive. linger.ms is 0 unless -X sets it. Producer and consumer are threads of this process:
    SENT-LATE is how late the process itself was, and is part of the latencies.
    """
    pace = Pace(rate, seconds, size)
    acks = spelt(acks, ("all", "1", "0", "-1"), "value of --acks")
    if pace.count > MOST_MESSAGES:
        wrong_usage(f"{pace.count} messages are too many; the maximum is {MOST_MESSAGES}")
    client_config = client_settings(settings)

    async def prepare(admin: Admin) -> None:
        await admin.topics.ensure(topic)
        await await_writable(admin, topic, acks)

    ask(bootstrap, prepare)
    with progress(f"latency {topic}", pace.count) as advance:
        figures = perf_latency.measure(bootstrap, topic, pace, acks, client_config, advance)
    render.show_one(figures, output, leave_out=() if percentiles else ("percentiles",))
    if figures.records_per_s < rate * 0.95:
        render.say(f"This client sent {figures.records_per_s:.0f} of {rate} messages per second.")
    perf_latency.fail_if_missing(figures, pace)


@dataclass(frozen=True, slots=True)
class ClusterRow:
    cluster: str
    bootstrap: str
    brokers: int


@dataclass(frozen=True, slots=True)
class Report:
    partitions: int
    replication_factor: int
    record_bytes: int
    rounds: int
    clusters: list[ClusterRow]
    figures: list[FigureRow] | list[RatioRow]
    not_shown: list[str]


@app.command("run")
def run(
    compare: Annotated[
        str | None,
        typer.Option(
            "--compare",
            metavar="A,B",
            help="Two clusters to compare, instead of --bootstrap: a HOST:PORT of each.",
        ),
    ] = None,
    round_count: Annotated[
        int,
        typer.Option("--rounds", min=1, max=1_000, help="How often to repeat all measurements."),
    ] = 3,
    seconds: Annotated[
        float,
        typer.Option("--seconds", min=0.05, max=3_600, help="The longest time of a measurement."),
    ] = 2.0,
    most_mb: Annotated[
        int, typer.Option("--mb", min=1, help="The most megabytes that a measurement writes.")
    ] = 100,
    size: Annotated[
        int, typer.Option("--size", min=STAMP.size, max=500_000, help="Bytes of each value.")
    ] = 1_000,
    rate: Annotated[
        int, typer.Option("--rate", min=1, max=100_000, help="Messages per second for latencies.")
    ] = 1_000,
    partitions: Annotated[
        int, typer.Option("--partitions", "-p", min=1, help="Partitions of the topic.")
    ] = 6,
    replication_factor: Annotated[
        int | None,
        typer.Option(
            "--replication-factor", "-r", min=1, help="Default: 3, or all brokers if fewer."
        ),
    ] = None,
    compression: Annotated[
        str | None,
        typer.Option("--compression", "-z", help="Measure these codecs too, e.g. lz4,zstd."),
    ] = None,
    topic: Annotated[
        str | None,
        typer.Option("--topic", help="The name of the new topic. Default: a random name."),
    ] = None,
    settings: ClientSettings = None,
    bootstrap: Bootstrap = LOCALHOST,
    output: OutputOption = Output.TABLE,
) -> None:
    """Measure a running cluster, Hightide or Kafka, or two of them side by side.

    Writes streams of 16 KB, 64 KB and 1 MB batches with acks=1 and acks=all (idempotent) and reads
    them back, sends one record at a time, and measures end-to-end latency at a steady rate. All of
    this uses a new topic, which is deleted at the end, also after Ctrl-C; an existing topic is
    refused.

    With --compare the clusters take turns in every measurement. RATIO is first / second, the median
    of the rounds; LOWEST and HIGHEST are the extreme rounds. A cluster compared with itself (A,A)
    shows the noise.
    """
    codecs = (
        [spelt(codec, CODECS, "codec") for codec in compression.split(",")] if compression else []
    )
    places = two_clusters(compare) if compare is not None else [bootstrap]
    client_config = client_settings(settings)
    brokers = [len(ask(place, lambda admin: admin.cluster.describe()).nodes) for place in places]
    replicas = replication_factor or min(3, *brokers)
    measurements = suite(codecs)
    amount = Amount(seconds, most_mb * MB, size, rate)
    with ExitStack() as topics:
        targets = []
        for place in places:
            name = topic or f"hightide-perf-{uuid.uuid4().hex[:12]}"
            topics.enter_context(temporary_topic(place, name, partitions, replicas))
            targets.append(Target(place, name, client_config))
            render.say(f"Measuring {place} with the new topic {name}; Ctrl-C stops and deletes it.")
        total = (round_count + 1) * len(measurements) * len(targets)
        with progress("perf", total) as advance:
            found = rounds(targets, measurements, amount, round_count, advance)
        names = ("first", "second")
        report = Report(
            partitions=partitions,
            replication_factor=replicas,
            record_bytes=size,
            rounds=round_count,
            clusters=[ClusterRow(*row) for row in zip(names, places, brokers, strict=False)],
            figures=figure_rows(found[0]) if len(found) == 1 else ratio_rows(found[0], found[1]),
            not_shown=list(NOT_SHOWN),
        )
        render.show_one(report, output, leave_out=("not_shown",))
        if output is Output.TABLE:
            render.write("\nNot shown:\n" + "".join(f"- {line}\n" for line in NOT_SHOWN))


def two_clusters(text: str) -> list[str]:
    found = [address.strip() for address in text.split(",")]
    if len(found) != 2 or not all(found):
        wrong_usage(f"--compare {text} should be two addresses, HOST:PORT,HOST:PORT")
    for address in found:
        try:
            addresses(address)
        except ValueError as error:
            wrong_usage(str(error))
    return found
