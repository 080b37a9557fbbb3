"""The measurements of `hightide perf run`: streams, single records, and latency.

Every measurement opens its clients and lets them connect before its time window begins.  It returns
the figures of one round; `rounds` repeats and compares them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hightide.cli import librdkafka
from hightide.cli.options import Failed, ask
from hightide.cli.perf import latency as perf_latency
from hightide.cli.perf.latency import Pace
from hightide.cli.perf.load import (
    BATCH,
    CREATES_NOTHING,
    MB,
    Window,
    hand_over,
    payloads,
    percentile,
)
from hightide.cli.position import End
from hightide.cli.record.consume import Span, plan
from hightide.cli.record.produce import producer_settings

# The largest leaves room for the batch header below the default max.message.bytes.
BATCHES = {"16 KB": 16 * 1024, "64 KB": 64 * 1024, "1 MB": MB}
CODEC_BATCH = "64 KB"
NOTHING_FOR_S = 30.0

STREAM = {
    # Enough for batches to fill, and a queue that empties quickly at the end.
    "linger.ms": 10,
    "batch.num.messages": 1_000_000,
    "queue.buffering.max.messages": 1_000_000,
    "queue.buffering.max.kbytes": 65_536,
    "delivery.report.only.error": True,
}


@dataclass(frozen=True, slots=True)
class Amount:
    """The size of a measurement: a stream ends at the time or at the bytes, whichever is first."""

    seconds: float
    most_bytes: int
    size: int
    rate: int


@dataclass(frozen=True, slots=True)
class Target:
    """A cluster, and the temporary topic on it."""

    bootstrap: str
    topic: str
    settings: dict[str, str] = field(default_factory=dict)

    def producer(self, acks: str, codec: str, settings: dict[str, Any]) -> Any:
        config = {**producer_settings(acks, codec, None), **CREATES_NOTHING, **settings}
        return librdkafka.producer(self.bootstrap, config | self.settings)

    def ends(self) -> list[Span]:
        return ask(self.bootstrap, lambda admin: plan(admin, self.topic, End(), None))


@dataclass(frozen=True, slots=True)
class Measurement:
    """The result of one measurement: figures by name and unit, and the CPUs of the client."""

    what: str
    figures: dict[str, float]
    client_cores: float


Measure = Callable[[Target, Amount], list[Measurement]]


def suite(codecs: Sequence[str]) -> list[Measure]:
    """All measurements, in order."""
    return [
        *(stream(batch, "1") for batch in BATCHES),
        *(stream(batch, "all") for batch in BATCHES),
        *(stream(CODEC_BATCH, "all", codec) for codec in codecs),
        round_trips("1"),
        round_trips("all"),
        latency,
    ]


def stream(batch: str, acks: str, codec: str = "none") -> Measure:
    """Write as fast as possible; records written with acks=all are read back too."""

    def measurement(target: Target, amount: Amount) -> list[Measurement]:
        name = f"{batch} batches" + ("" if codec == "none" else f", {codec}")
        settings = {**STREAM, "batch.size": BATCHES[batch]}
        producer = target.producer(acks, codec, settings)
        found = connect(producer, target, amount)
        written = write(producer, target.topic, amount, f"produce, {name}, acks={acks}")
        return [written] if acks == "1" else [written, read(target, amount, found, name)]

    return measurement


def connect(producer: Any, target: Target, amount: Amount) -> list[Span]:
    """Open connections with one record for each partition; return the end offsets after that."""
    failures: list[Any] = []
    for span in target.ends():
        hand_over(
            producer,
            target.topic,
            bytes(amount.size),
            partition=span.partition,
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
    finish(producer, failures)
    return target.ends()


def finish(producer: Any, failures: list[Any]) -> None:
    while producer.flush(0.1) and not failures:
        pass
    if failures:
        raise Failed(librdkafka.sentence(failures[0]))


def write(producer: Any, topic: str, amount: Amount, what: str) -> Measurement:
    values = payloads(amount.size)
    failures: list[Any] = []

    def delivered(error: Any, _message: Any) -> None:
        if error is not None:
            failures.append(error)

    most = amount.most_bytes // amount.size
    sent = 0
    window = Window()
    while not failures and sent < most and window.seconds() < amount.seconds:
        step = min(BATCH, most - sent)
        for at in range(sent, sent + step):
            hand_over(producer, topic, values[at % len(values)], on_delivery=delivered)
        sent += step
        producer.poll(0)
    finish(producer, failures)
    return streamed(what, sent * amount.size, window)


def streamed(what: str, size: int, window: Window) -> Measurement:
    cores = window.cores()
    return Measurement(what, {"MB/s": size / window.seconds() / MB}, cores)


def read(target: Target, amount: Amount, begins: list[Span], name: str) -> Measurement:
    """Read what was written since `begins`; the window begins with the first record."""
    ends = {span.partition: span.end_offset for span in target.ends()}
    firsts = {span.partition: span.end_offset for span in begins}
    wanted = sum(ends[at] - first for at, first in firsts.items())
    consumer = librdkafka.consumer(
        target.bootstrap, {"enable.partition.eof": False, **target.settings}
    )
    waited = Window()
    window: Window | None = None
    records = size = 0
    try:
        librdkafka.assign(consumer, target.topic, firsts)
        while records < wanted and (window is None or window.seconds() < amount.seconds):
            sizes = [
                len(message) for message in consumed(consumer, wanted - records, window is not None)
            ]
            if window is None and sizes:
                window = Window()
                wanted -= len(sizes)
            else:
                records += len(sizes)
                size += sum(sizes)
            if waited.seconds() > amount.seconds + NOTHING_FOR_S:
                raise Failed(f"Reading the records back took longer than {waited.seconds():.0f} s.")
    finally:
        consumer.close()
    return streamed(f"consume, {name}", size, window or waited)


def consumed(consumer: Any, wanted: int, is_open: bool) -> list[Any]:
    """The next messages: the first one alone, then many at a time, at most `wanted`."""
    messages = consumer.consume(min(BATCH, wanted) if is_open else 1, 0.1)
    for message in messages:
        if message.error() is not None and librdkafka.is_fatal(message.error()):
            raise Failed(librdkafka.sentence(message.error()))
    return [message for message in messages if message.error() is None]


def round_trips(acks: str) -> Measure:
    """Send one record, wait for its response, send the next."""

    def measurement(target: Target, amount: Amount) -> list[Measurement]:
        producer = target.producer(acks, "none", {"linger.ms": 0, "socket.nagle.disable": True})
        connect(producer, target, amount)
        value = payloads(amount.size)[0]
        answers: list[Any] = []
        times: list[float] = []
        window = Window()
        while window.seconds() < amount.seconds:
            sent = time.perf_counter()
            hand_over(
                producer, target.topic, value, on_delivery=lambda error, _: answers.append(error)
            )
            while len(answers) == len(times):
                producer.poll(0.1)
            times.append((time.perf_counter() - sent) * 1000)
            if answers[-1] is not None:
                raise Failed(librdkafka.sentence(answers[-1]))
        return [trips(f"one record at a time, acks={acks}", times, window)]

    return measurement


def trips(what: str, times: list[float], window: Window) -> Measurement:
    seconds, cores = window.seconds(), window.cores()
    times.sort()
    figures = {
        "requests/s": len(times) / seconds,
        "p50 ms": percentile(times, 0.5),
        "p99 ms": percentile(times, 0.99),
    }
    return Measurement(what, figures, cores)


def latency(target: Target, amount: Amount) -> list[Measurement]:
    """Measure the latency from producer to consumer at a steady rate, with acks=all."""
    pace = Pace(amount.rate, amount.seconds, amount.size)
    found = perf_latency.measure(target.bootstrap, target.topic, pace, "all", target.settings)
    perf_latency.fail_if_missing(found, pace)
    named = {
        "p50 ms": found.latency_p50_ms,
        "p99 ms": found.latency_p99_ms,
        "p99.9 ms": found.latency_p999_ms,
        "max ms": found.latency_max_ms,
    }
    figures = {name: value for name, value in named.items() if value is not None}
    return [Measurement(f"end to end at {amount.rate}/s, acks=all", figures, found.client_cores)]
