"""The librdkafka generator in Python, for machines without a C compiler or without the header.

Takes the same arguments and prints the same line of JSON as rdkafka.c. The Python client costs
several times the CPU of the C one, so the broker is loaded less: compare its figures only with
each other.
"""

import argparse
import json
import os
import random
import sys
import time
from typing import NoReturn

import confluent_kafka

GIVE_UP_AFTER_S = 30.0
POOL_BYTES = 4 << 20
POOL_LEAST = 64
AT_ONCE = 256

ACTIONS = ("view", "click", "purchase", "search", "sign-in")
COUNTRIES = ("de", "fr", "us", "jp", "br", "in", "gb", "za")
AGENTS = (
    "Mozilla/5.0 (X11; Linux x86_64) Firefox/128.0",
    "Mozilla/5.0 (Windows NT 10.0; Win64; x64) Chrome/126.0",
    "Mozilla/5.0 (iPhone; CPU iPhone OS 17_5 like Mac OS X) Safari/604.1",
)
LOOKS = ("blue", "red", "green", "small", "large", "striped")
STUFFS = ("leather", "cotton", "wooden", "steel", "paper")
THINGS = ("bag", "coat", "lamp", "chair", "kettle", "notebook")
STATES = ("in stock", "delayed", "shipped", "returned")


def die(why: object) -> NoReturn:
    print(f"rdkafka: {why}", file=sys.stderr, flush=True)
    os._exit(1)


# ---- messages ---------------------------------------------------------------------------------


def make_messages(message_bytes: int) -> list[bytes]:
    """Make JSON events like messages.h, which says why; the random numbers differ."""
    draw = random.Random(1)
    count = max(POOL_LEAST, POOL_BYTES // message_bytes)
    return [_message(draw, message_bytes) for _ in range(count)]


def _message(draw: random.Random, length: int) -> bytes:
    below, one_of = draw.randrange, draw.choice
    text = (
        f'{{"id":"{below(1 << 64):016x}","time":"2026-01-{1 + below(28):02}T{below(24):02}:'
        f'{below(60):02}:{below(60):02}.{below(1000):03}Z","user":{below(1000000)},'
        f'"action":"{one_of(ACTIONS)}","country":"{one_of(COUNTRIES)}",'
        f'"address":"10.{below(256)}.{below(256)}.{below(256)}","agent":"{one_of(AGENTS)}",'
        '"items":['
    )
    while len(text) < length:
        text += (
            f'{{"article":{below(50000)},"lot":"{below(1 << 24):06x}",'
            f'"name":"{one_of(LOOKS)} {one_of(STUFFS)} {one_of(THINGS)}","count":{1 + below(9)},'
            f'"price":{below(500)}.{below(100):02},"state":"{one_of(STATES)}"}},'
        )
    return text[:length].encode()


# ---- the part of a run that counts ------------------------------------------------------------


class Window:
    """Wall time and CPU of this process and of the broker, since its creation."""

    def __init__(self, broker_pids: list[int]) -> None:
        self._clocks = [(~pid << 3) | 2 for pid in broker_pids]
        self._opened = self._now()

    def _now(self) -> tuple[float, float, float]:
        broker = sum(time.clock_gettime(clock) for clock in self._clocks)
        return time.monotonic(), time.process_time(), broker

    def close(self) -> dict[str, float]:
        names = ("seconds", "client_cpu_s", "broker_cpu_s")
        return {n: b - a for n, a, b in zip(names, self._opened, self._now(), strict=True)}


# ---- produce ----------------------------------------------------------------------------------


class Producer:
    """A client that counts acknowledgements and keeps the first error."""

    def __init__(self, opt: argparse.Namespace) -> None:
        self.acknowledged = self.errors = 0
        self.first_error: object = None
        self._topic = opt.topic
        self._messages = make_messages(opt.message_bytes)
        settings = {
            "bootstrap.servers": f"127.0.0.1:{opt.port}",
            "batch.size": opt.batch_bytes,
            "linger.ms": opt.linger_ms,
            "acks": opt.acks,
            "compression.type": opt.compression,
            "enable.idempotence": opt.idempotence,
            "batch.num.messages": 1_000_000,
            "message.max.bytes": 4_000_000,
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 65_536,
            "on_delivery": self._on_delivery,
        }
        if opt.transaction_messages:
            settings["transactional.id"] = f"bench-{os.getpid()}"
        try:
            self.client = confluent_kafka.Producer(settings)
        except confluent_kafka.KafkaException as failure:
            die(failure.args[0].str())

    def _on_delivery(self, error: object, _message: object) -> None:
        if error is None:
            self.acknowledged += 1
            return
        self.errors += 1
        self.first_error = self.first_error or error

    def send(self, number: int, partition: int) -> None:
        """Queue a message; wait for responses while the queue is full."""
        give_up_at, seen = 0.0, -1
        while True:
            try:
                value = self._messages[number % len(self._messages)]
                self.client.produce(self._topic, value, partition=partition)
                return
            except BufferError:
                self.client.poll(0.005)
            if self.errors:
                die(self.first_error)
            if self.acknowledged != seen:
                give_up_at, seen = time.monotonic() + GIVE_UP_AFTER_S, self.acknowledged
            if time.monotonic() > give_up_at:
                waiting = len(self.client)
                die(f"no message was acknowledged in {GIVE_UP_AFTER_S:.0f} s, {waiting} wait")

    def send_first(self) -> None:
        """Send one message and wait: afterwards connections are open and the topic is known."""
        self.send(0, 0)
        self.client.flush(GIVE_UP_AFTER_S)
        if self.errors:
            die(f"the first message: {self.first_error}")
        if self.acknowledged != 1:
            die(f"the first message was not acknowledged in {GIVE_UP_AFTER_S:.0f} s")


def produce(opt: argparse.Namespace) -> dict[str, float]:
    producer = Producer(opt)
    producer.send_first()
    burst = opt.burst or max(1000, opt.batch_bytes // opt.message_bytes + 1)
    warm_at = time.monotonic() + opt.warm_up_seconds
    end_at = warm_at + opt.seconds
    window: Window | None = None
    sent = 0
    while sent < opt.messages if opt.messages else time.monotonic() < end_at:
        if window is None and time.monotonic() >= warm_at:
            producer.acknowledged = 0
            window = Window(opt.broker_pid)
        for _ in range(min(AT_ONCE, opt.messages - sent) if opt.messages else AT_ONCE):
            producer.send(sent, sent // burst % opt.partitions)
            sent += 1
        producer.client.poll(0)
    assert window is not None
    if opt.messages:
        producer.client.flush(GIVE_UP_AFTER_S)
    result = window.close() | {
        "records": producer.acknowledged,
        "bytes": producer.acknowledged * opt.message_bytes,
    }
    unacknowledged = producer.client.flush(GIVE_UP_AFTER_S)
    if producer.errors:
        first = producer.first_error
        print(f"{producer.errors} messages failed, the first: {first}", file=sys.stderr)
    if unacknowledged:
        late = f"{unacknowledged} messages were not acknowledged in {GIVE_UP_AFTER_S:.0f} s"
        print(late, file=sys.stderr)
    return result | {"errors": producer.errors + unacknowledged}


def produce_in_transactions(opt: argparse.Namespace) -> dict[str, float]:
    producer = Producer(opt)
    sent = 0

    def run_transaction() -> float:
        """Commit; return the time in µs."""
        nonlocal sent
        producer.client.begin_transaction()
        for _ in range(opt.transaction_messages):
            producer.send(sent, sent % opt.partitions)
            sent += 1
        began = time.monotonic()
        producer.client.commit_transaction(GIVE_UP_AFTER_S)
        return (time.monotonic() - began) * 1e6

    try:
        producer.client.init_transactions(GIVE_UP_AFTER_S)
        run_transaction()
        warm_at = time.monotonic() + opt.warm_up_seconds
        while time.monotonic() < warm_at:
            run_transaction()
        producer.acknowledged, commits = 0, []
        window = Window(opt.broker_pid)
        end_at = time.monotonic() + opt.seconds
        while producer.acknowledged < opt.messages if opt.messages else time.monotonic() < end_at:
            commits.append(run_transaction())
    except confluent_kafka.KafkaException as failure:
        die(failure)
    commits.sort()
    return window.close() | {
        "records": producer.acknowledged,
        "bytes": producer.acknowledged * opt.message_bytes,
        "errors": producer.errors,
        "transactions": len(commits),
        "commit_p50_us": commits[int((len(commits) - 1) * 0.5)],
        "commit_p99_us": commits[int((len(commits) - 1) * 0.99)],
    }


# ---- consume ----------------------------------------------------------------------------------


def consume(opt: argparse.Namespace) -> dict[str, float]:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": f"127.0.0.1:{opt.port}",
            "group.id": "bench",
            "enable.auto.commit": False,
            "queued.max.messages.kbytes": 65_536,
            "queued.min.messages": 1_000_000,
        }
    )
    assigned = [confluent_kafka.TopicPartition(opt.topic, p, 0) for p in range(opt.partitions)]
    for partition in assigned if opt.tail else ():
        _first, end = consumer.get_watermark_offsets(partition, GIVE_UP_AFTER_S)
        partition.offset = max(0, end - opt.tail)
    consumer.assign(assigned)
    give_up_at = time.monotonic() + GIVE_UP_AFTER_S
    end_at, window = 0.0, None
    tally = {"records": 0, "bytes": 0, "errors": 0}
    while True:
        messages = consumer.consume(10_000, 0.02)
        now = time.monotonic()
        if messages:
            give_up_at = now + GIVE_UP_AFTER_S
            if window is None:
                end_at = now + opt.seconds
                window = Window(opt.broker_pid)
        for message in messages:
            if message.error() is None:
                tally["records"] += 1
                tally["bytes"] += len(message)
        if window and (now >= end_at or (opt.messages and tally["records"] >= opt.messages)):
            return window.close() | tally
        if now >= give_up_at and (opt.messages or window is None):
            seen = tally["records"]
            die(f"no message came in {GIVE_UP_AFTER_S:.0f} s, after {seen} messages")


# ---- options ----------------------------------------------------------------------------------


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("mode", choices=["produce", "consume", "version"])
    add("--port", type=int)
    add("--topic", default="t")
    add("--partitions", type=int, default=6)
    add("--message-bytes", type=int, default=1024)
    add("--batch-bytes", type=int, default=65_536)
    add("--acks", default="1")
    add("--linger-ms", default="5")
    add("--compression", default="none")
    add("--idempotence", default="false")
    add("--transaction-messages", type=int, default=0)
    add("--seconds", type=float, default=1)
    add("--warm-up-seconds", type=float, default=0)
    add("--messages", type=int, default=0)
    add("--burst", type=int, default=0)
    add("--tail", type=int, default=0)
    add("--broker-pid", type=int, action="append", default=[])
    opt = parser.parse_args()
    if opt.transaction_messages:
        opt.acks, opt.idempotence = "all", "true"
    return opt


def main() -> None:
    opt = read_options()
    if opt.mode == "version":
        print("librdkafka", confluent_kafka.libversion()[0])
        return
    if opt.mode == "consume":
        result = consume(opt)
    else:
        result = produce_in_transactions(opt) if opt.transaction_messages else produce(opt)
    print(json.dumps(result), flush=True)
    # A clean close of the client takes longer than the measurement and changes nothing.
    os._exit(bool(result["errors"]))


main()
