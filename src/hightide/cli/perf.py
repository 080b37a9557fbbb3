"""`hightide perf …`: how fast a cluster takes and gives records.

The figures are the client's: one process, through librdkafka.  A progress bar goes to
stderr when that is a terminal, the figures go to stdout.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from hightide.cli import librdkafka, render
from hightide.cli.consume import plan
from hightide.cli.options import (
    LOCALHOST,
    Bootstrap,
    ClientSettings,
    Failed,
    OutputOption,
    ask,
    pairs,
)
from hightide.cli.position import Beginning
from hightide.cli.produce import producer_settings
from hightide.cli.render import Output

app = typer.Typer(no_args_is_help=True, help="Measure how fast records go in and come out.")

MB = 1_000_000
PAYLOADS = 64
BATCH = 1_000


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


def percentile(ordered: list[float], share: float) -> float:
    """The value below which `share` of the sorted values lie (nearest rank)."""
    if not ordered:
        return 0.0
    return ordered[min(len(ordered) - 1, max(0, -int(-share * len(ordered) // 1) - 1))]


@app.command("produce")
def produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="How many records.")] = 100_000,
    size: Annotated[int, typer.Option("--size", min=1, help="Bytes of each value.")] = 1_000,
    rate: Annotated[
        int | None, typer.Option("--rate", min=1, help="Records a second. Default: no limit.")
    ] = None,
    acks: Annotated[str, typer.Option("--acks", help="0, 1 or all.")] = "all",
    compression: Annotated[
        str, typer.Option("--compression", "-z", help="none, gzip, snappy, lz4 or zstd.")
    ] = "none",
    settings: ClientSettings = None,
    bootstrap: Bootstrap = LOCALHOST,
    output: OutputOption = Output.TABLE,
) -> None:
    """Write records as fast as the cluster takes them, or at a rate, and time each answer."""
    ask(bootstrap, lambda admin: admin.ensure_topic(topic))
    producer = librdkafka.producer(
        bootstrap,
        {
            "queue.buffering.max.messages": 1_000_000,
            **producer_settings(acks, compression, settings),
        },
    )
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

    # A few different payloads, so that compression has something to do and not everything.
    letters = b"abcdefghijklmnopqrstuvwxyz0123456789"
    payloads = [bytes(random.choices(letters, k=size)) for _ in range(PAYLOADS)]
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
            while True:
                try:
                    producer.produce(topic, payloads[at % PAYLOADS], on_delivery=delivered)
                    break
                except BufferError:
                    producer.poll(0.1)
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
    """Serve callbacks until it is time for the next records."""
    while (left := moment - time.perf_counter()) > 0:
        producer.poll(left)


@app.command("consume")
def consume(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, help="Default: all that are there.")
    ] = None,
    settings: ClientSettings = None,
    bootstrap: Bootstrap = LOCALHOST,
    output: OutputOption = Output.TABLE,
) -> None:
    """Read a topic from its beginning as fast as the cluster gives."""
    spans = ask(bootstrap, lambda admin: plan(admin, topic, Beginning(), None))
    ends = {
        each.partition: each.end_offset for each in spans if each.first_offset < each.end_offset
    }
    there = sum(each.end_offset - each.first_offset for each in spans)
    if not there:
        raise Failed(f"Topic {topic!r} holds no records.")
    wanted = min(count or there, there)
    consumer = librdkafka.consumer(bootstrap, pairs(settings, "client setting"))
    firsts = {each.partition: each.first_offset for each in spans if each.partition in ends}
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
        for message in consumer.consume(BATCH, 0.1):
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


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on stderr, if a person is looking; otherwise nothing."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(show_speed=True),
        TextColumn("{task.completed:,.0f}/{task.total:,.0f}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    with bar:
        task = bar.add_task(what, total=total)
        yield lambda step: bar.advance(task, step)
