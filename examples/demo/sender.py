"""Sends the traffic: one idempotent producer per partition, each following the partition's leader.

A leader acknowledges batches in the order in which they were sent, so the number of acknowledged
records says which records those are.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterable
from zlib import crc32

from examples.demo.order_check import OrderCheck
from examples.demo.traffic import Message, Traffic
from hightide.spark.blocking_client import BlockingClient, Identity, PartitionWriter
from hightide.wire import batch

TICK_S = 0.1


class Sender:
    """A thread that sends traffic until it is stopped."""

    def __init__(self, brokers: BlockingClient, traffic: Traffic, check: OrderCheck) -> None:
        self._brokers = brokers
        self._traffic = traffic
        self._check = check
        self._partition_counts: dict[str, int] = {}
        self._producers: dict[tuple[str, int], _PartitionProducer] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="demo-sender", daemon=True)
        self.failure: Exception | None = None
        self.last_acknowledged = time.monotonic()

    def start(self, partition_counts: dict[str, int]) -> None:
        """Start sending to topics with these numbers of partitions."""
        self._partition_counts = partition_counts
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """Stop sending, and wait for the batches in flight."""
        self._stopped.set()
        self._thread.join(timeout_s)

    @property
    def is_sending(self) -> bool:
        return self._thread.is_alive() and not self._stopped.is_set()

    def acknowledged(self, topic: str) -> int:
        """Return how many records of a topic its leaders have acknowledged."""
        producers = [*self._producers.items()]
        return sum(producer.done for partition, producer in producers if partition[0] == topic)

    def _run(self) -> None:
        try:
            identity = self._brokers.producer()
            self._send(self._traffic.users(), identity)
            before = self.last_acknowledged = time.monotonic()
            while not self._stopped.wait(TICK_S):
                now = time.monotonic()
                self._send(self._traffic.pass_time(now - before, _now_ms()), identity)
                self._count()
                before = now
            for producer in self._producers.values():
                producer.writer.flush()
            self._count()
        except Exception as error:
            self.failure = error
        finally:
            for producer in self._producers.values():
                producer.writer.close()

    def _send(self, messages: Iterable[Message], identity: Identity) -> None:
        parts: dict[tuple[str, int], list[Message]] = defaultdict(list)
        for message in messages:
            index = crc32(message.key) % self._partition_counts[message.topic]
            parts[message.topic, index].append(message)
        for partition, part in parts.items():
            producer = self._producers.get(partition)
            if producer is None:
                writer = self._brokers.writer(*partition, identity=identity)
                producer = self._producers[partition] = _PartitionProducer(writer)
            producer.send(part, identity)

    def _count(self) -> None:
        for producer in self._producers.values():
            for message in producer.newly_acknowledged():
                self.last_acknowledged = time.monotonic()
                if message.number is not None:
                    self._check.add_acknowledged(message.number)


class _PartitionProducer:
    """The messages of one partition that are sent and not acknowledged."""

    def __init__(self, writer: PartitionWriter) -> None:
        self.writer = writer
        self.done = 0
        self._in_flight: deque[Message] = deque()

    def send(self, messages: list[Message], identity: Identity) -> None:
        now_ms = _now_ms()
        data = batch.build(
            [
                (delta, now_ms, message.key, message.value, ())
                for delta, message in enumerate(messages)
            ],
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            base_sequence=self.writer.next_sequence,
        )
        self._in_flight.extend(messages)
        self.writer.append(bytes(data), len(messages))

    def newly_acknowledged(self) -> list[Message]:
        """Return the messages that were acknowledged since the last call."""
        fresh = self.writer.written - self.done
        self.done += fresh
        return [self._in_flight.popleft() for _ in range(fresh)]


def _now_ms() -> int:
    return int(time.time() * 1000)
