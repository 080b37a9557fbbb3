"""The latency of messages from a producer to a consumer, at a steady rate.

The loop is open: each message is due at a certain time, and its latency counts from then, even if
it was sent late because an earlier message took long.  A closed loop would leave out the messages
that are slowed down most.  Sending and receiving are two threads of this process.
"""

from __future__ import annotations

import random
import struct
import threading
import time
from array import array
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from hightide.cli import librdkafka
from hightide.cli.options import Failed, ask
from hightide.cli.perf.load import CREATES_NOTHING, Window, hand_over, payloads, percentile
from hightide.cli.position import End
from hightide.cli.record.consume import plan
from hightide.cli.record.produce import producer_settings

STAMP = struct.Struct(">QQ")
PROBE = (1 << 64) - 1
FIRST_WITHIN_S = 30.0
LAST_WITHIN_S = 10.0
MOST_MESSAGES = 20_000_000
BAR_STEP = 1_000
SHARES = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 0.9999)

# Messages are sent immediately.  Acknowledgements are not reported: a message arrives or not.
PRODUCER = {
    **CREATES_NOTHING,
    "linger.ms": 0,
    "socket.nagle.disable": True,
    "delivery.report.only.error": True,
    "queue.buffering.max.messages": 1_000_000,
}
CONSUMER = {"socket.nagle.disable": True, "enable.partition.eof": False}


@dataclass(frozen=True, slots=True)
class PercentileRow:
    percent: float
    ms: float


@dataclass(frozen=True, slots=True)
class LatencyFigures:
    topic: str
    records: int
    seconds: float
    records_per_s: float
    latency_p50_ms: float | None
    latency_p95_ms: float | None
    latency_p99_ms: float | None
    latency_p999_ms: float | None
    latency_max_ms: float | None
    sent_late_p99_ms: float
    failed: int
    unconsumed: int
    client_cores: float
    percentiles: list[PercentileRow]


@dataclass(frozen=True, slots=True)
class Pace:
    """The rate, duration and size of the messages; `due_s` is when each is due."""

    rate: int
    seconds: float
    size: int

    @property
    def count(self) -> int:
        return max(1, round(self.rate * self.seconds))

    def due_s(self, number: int) -> float:
        return number / self.rate


class Flight:
    """The messages of one run: when each was sent, and when it arrived first."""

    def __init__(self, count: int) -> None:
        self.run = random.getrandbits(64)
        self.sent = array("d", bytes(8 * count))
        self.arrived = array("d", bytes(8 * count))
        self.arrived_count = 0
        self.last_arrival = 0.0
        self.probed: set[int] = set()
        self.failures: list[str] = []
        self.over = threading.Event()
        """Set when sending and receiving have to stop."""

    def stamp(self, number: int) -> bytes:
        return STAMP.pack(self.run, number)

    def received(self, value: bytes | None, partition: int, now: float) -> None:
        """Record the arrival of a message of this run."""
        if value is None or len(value) < STAMP.size:
            return
        run, number = STAMP.unpack_from(value)
        if run != self.run:
            return
        if number == PROBE:
            self.probed.add(partition)
        elif number < len(self.arrived) and not self.arrived[number]:
            self.arrived[number] = self.last_arrival = now
            self.arrived_count += 1

    def failed(self, error: Any, _message: Any) -> None:
        if error is not None:
            self.failures.append(librdkafka.sentence(error))


def measure(
    bootstrap: str,
    topic: str,
    pace: Pace,
    acks: str,
    settings: Mapping[str, str],
    advance: Callable[[int], None] = lambda _: None,
) -> LatencyFigures:
    sending = {**producer_settings(acks, "none", None), **PRODUCER, **settings}
    producer = librdkafka.producer(bootstrap, sending)
    spans = ask(bootstrap, lambda admin: plan(admin, topic, End(), None))
    consumer = librdkafka.consumer(bootstrap, {**CONSUMER, **settings})
    flight = Flight(pace.count)
    partitions = [span.partition for span in spans]
    librdkafka.assign(consumer, topic, {span.partition: span.first_offset for span in spans})
    with receiving(consumer, flight):
        probe(producer, topic, partitions, flight, pace.size)
        window = Window()
        started = send(producer, topic, partitions, flight, pace, advance)
        await_last(producer, flight)
        seconds, cores = window.seconds(), window.cores()
    return figures(topic, pace, flight, started, seconds, cores)


@contextmanager
def receiving(consumer: Any, flight: Flight) -> Iterator[None]:
    """Receive in a thread; close the consumer at the end."""

    def receive() -> None:
        while not flight.over.is_set():
            # One by one, because the call for many messages waits until it has that many.
            message = consumer.poll(0.1)
            now = time.perf_counter()
            if message is None:
                continue
            error = message.error()
            if error is None:
                flight.received(message.value(), message.partition(), now)
            elif librdkafka.is_fatal(error):
                flight.failures.append(librdkafka.sentence(error))
                flight.over.set()

    thread = threading.Thread(target=receive, name="receive", daemon=True)
    thread.start()
    try:
        yield
    finally:
        flight.over.set()
        thread.join()
        consumer.close()


def probe(producer: Any, topic: str, partitions: list[int], flight: Flight, size: int) -> None:
    """Send one message through each partition, to open connections and start fetches."""
    value = (flight.stamp(PROBE) + bytes(size))[:size]
    for partition in partitions:
        hand_over(producer, topic, value, partition=partition, on_delivery=flight.failed)
    window = Window()
    while len(flight.probed) < len(partitions):
        producer.poll(0.01)
        if flight.failures:
            raise Failed(flight.failures[0])
        if window.seconds() > FIRST_WITHIN_S:
            raise Failed(
                f"{len(partitions) - len(flight.probed)} of {len(partitions)} partitions did not "
                f"return their first message within {FIRST_WITHIN_S:.0f} s."
            )


def send(
    producer: Any,
    topic: str,
    partitions: list[int],
    flight: Flight,
    pace: Pace,
    advance: Callable[[int], None],
) -> float:
    """Send each message when it is due, or as soon after as possible; return the start time."""
    tails = [payload[: pace.size - STAMP.size] for payload in payloads(pace.size)]
    started = time.perf_counter()
    shown = 0
    for number in range(pace.count):
        due = started + pace.due_s(number)
        while (left := due - time.perf_counter()) > 0:
            if number - shown >= BAR_STEP:
                advance(number - shown)
                shown = number
            elif flight.over.wait(left):
                raise Failed(flight.failures[0])
        flight.sent[number] = time.perf_counter()
        hand_over(
            producer,
            topic,
            flight.stamp(number) + tails[number % len(tails)],
            partition=partitions[number % len(partitions)],
            on_delivery=flight.failed,
        )
        producer.poll(0)
    advance(pace.count - shown)
    return started


def await_last(producer: Any, flight: Flight) -> None:
    """Wait until each message has arrived or failed, or until none arrives any more."""
    while producer.flush(0.1):
        pass
    asked = time.perf_counter()
    while flight.arrived_count + len(flight.failures) < len(flight.arrived):
        quiet_since = max(asked, flight.last_arrival)
        if time.perf_counter() > quiet_since + LAST_WITHIN_S or flight.over.wait(0.01):
            return


def figures(
    topic: str, pace: Pace, flight: Flight, started: float, seconds: float, cores: float
) -> LatencyFigures:
    latencies = sorted(
        (at - started - pace.due_s(number)) * 1000 for number, at in enumerate(flight.arrived) if at
    )
    late = sorted(
        (at - started - pace.due_s(number)) * 1000 for number, at in enumerate(flight.sent)
    )

    def known(share: float) -> float | None:
        """A percentile; None if there are so few values that it would be the maximum."""
        if len(latencies) * (1 - share) < 0.999:
            return None
        return round(percentile(latencies, share), 3)

    return LatencyFigures(
        topic=topic,
        records=len(latencies),
        seconds=round(seconds, 3),
        records_per_s=round(pace.count / max(flight.sent[-1] - started + 1 / pace.rate, 1e-9), 1),
        latency_p50_ms=known(0.5),
        latency_p95_ms=known(0.95),
        latency_p99_ms=known(0.99),
        latency_p999_ms=known(0.999),
        latency_max_ms=round(latencies[-1], 3) if latencies else None,
        sent_late_p99_ms=round(percentile(late, 0.99), 3),
        failed=len(flight.failures),
        # A message that failed because its response was lost may have arrived nevertheless.
        unconsumed=max(0, pace.count - len(latencies) - len(flight.failures)),
        client_cores=round(cores, 2),
        percentiles=[
            PercentileRow(round(share * 100, 2), value)
            for share in SHARES
            if (value := known(share)) is not None
        ],
    )


def fail_if_missing(found: LatencyFigures, pace: Pace) -> None:
    """Fail if messages are missing: their latencies are missing too, and would be the longest."""
    if found.failed:
        raise Failed(f"{found.failed} of {pace.count} messages were not written.")
    if found.unconsumed:
        raise Failed(
            f"{found.unconsumed} of {pace.count} messages were not consumed; "
            "the percentiles do not include them."
        )
