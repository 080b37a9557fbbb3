"""The librdkafka generator in Python, for machines without a C compiler or without the header.

Takes the same arguments and prints the same line of JSON as rdkafka.c. The Python client costs
several times the CPU of the C one, so the broker is loaded less: compare its figures only with
each other.
"""

import argparse
import json
import os
import sys
import time

GIVE_UP_AFTER_S = 30.0


class Window:
    """The part of the run that counts: wall time and CPU of this process and of the broker."""

    def __init__(self, broker_pids: list[int]) -> None:
        self._clocks = [(~pid << 3) | 2 for pid in broker_pids]
        self._opened = self._now()

    def _now(self) -> tuple[float, float, float]:
        broker = sum(time.clock_gettime(clock) for clock in self._clocks)
        return time.monotonic(), time.process_time(), broker

    def close(self) -> dict[str, float]:
        names = ("seconds", "client_cpu_s", "broker_cpu_s")
        return {n: b - a for n, a, b in zip(names, self._opened, self._now(), strict=True)}


def produce(opt: argparse.Namespace) -> dict[str, float]:
    from confluent_kafka import Producer

    tally = {"records": 0, "errors": 0}

    def on_delivery(error: object, _message: object) -> None:
        tally["records"] += 1
        tally["errors"] += error is not None

    producer = Producer(
        {
            "bootstrap.servers": f"127.0.0.1:{opt.port}",
            "batch.size": opt.batch_bytes,
            "linger.ms": opt.linger_ms,
            "acks": opt.acks,
            "enable.idempotence": opt.idempotence,
            "batch.num.messages": 1_000_000,
            "message.max.bytes": 4_000_000,
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 65_536,
            "on_delivery": on_delivery,
        }
    )
    payload = b"x" * opt.message_bytes
    producer.produce(opt.topic, payload, partition=0)
    producer.flush(GIVE_UP_AFTER_S)
    if tally["records"] != 1 or tally["errors"]:
        sys.exit("rdkafka: the first message was not acknowledged")

    burst = max(1000, opt.batch_bytes // opt.message_bytes + 1)
    warm_at = time.monotonic() + opt.warm_up_seconds
    end_at = warm_at + opt.seconds
    window: Window | None = None
    sent = 0
    while sent < opt.messages if opt.messages else time.monotonic() < end_at:
        if window is None and time.monotonic() >= warm_at:
            tally["records"] = 0
            window = Window(opt.broker_pid)
        for _ in range(min(256, opt.messages - sent) if opt.messages else 256):
            partition = sent // burst % opt.partitions
            while True:
                try:
                    producer.produce(opt.topic, payload, partition=partition)
                    break
                except BufferError:
                    producer.poll(0.005)
            sent += 1
        producer.poll(0)
    assert window is not None
    if opt.messages:
        producer.flush(GIVE_UP_AFTER_S)
    result = window.close() | tally
    unsent = producer.flush(GIVE_UP_AFTER_S)
    return result | {
        "bytes": result["records"] * opt.message_bytes,
        "errors": tally["errors"] + unsent,
    }


def consume(opt: argparse.Namespace) -> dict[str, float]:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": f"127.0.0.1:{opt.port}",
            "group.id": "bench",
            "enable.auto.commit": False,
            "queued.max.messages.kbytes": 65_536,
            "queued.min.messages": 1_000_000,
        }
    )
    consumer.assign([TopicPartition(opt.topic, p, 0) for p in range(opt.partitions)])
    give_up_at = time.monotonic() + GIVE_UP_AFTER_S
    end_at, window = 0.0, None
    tally = {"records": 0, "bytes": 0, "errors": 0}
    while True:
        messages = consumer.consume(10_000, 0.02)
        now = time.monotonic()
        if messages and window is None:
            end_at = now + opt.seconds
            window = Window(opt.broker_pid)
        for message in messages:
            if message.error() is None:
                tally["records"] += 1
                tally["bytes"] += len(message)
        if window is None and now >= give_up_at:
            sys.exit("rdkafka: no message came")
        if window and (now >= end_at or (opt.messages and tally["records"] >= opt.messages)):
            return window.close() | tally


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mode", choices=["produce", "consume", "version"])
    parser.add_argument("--port", type=int)
    parser.add_argument("--topic", default="t")
    parser.add_argument("--partitions", type=int, default=6)
    parser.add_argument("--message-bytes", type=int, default=1024)
    parser.add_argument("--batch-bytes", type=int, default=65_536)
    parser.add_argument("--acks", default="1")
    parser.add_argument("--linger-ms", default="5")
    parser.add_argument("--idempotence", default="false")
    parser.add_argument("--seconds", type=float, default=1)
    parser.add_argument("--warm-up-seconds", type=float, default=0)
    parser.add_argument("--messages", type=int, default=0)
    parser.add_argument("--broker-pid", type=int, action="append", default=[])
    opt = parser.parse_args()
    if opt.mode == "version":
        import confluent_kafka

        print("librdkafka", confluent_kafka.libversion()[0])
        return
    result = produce(opt) if opt.mode == "produce" else consume(opt)
    print(json.dumps(result), flush=True)
    # Closing the client in order takes longer than the measurement and changes nothing.
    os._exit(bool(result["errors"]))


main()
