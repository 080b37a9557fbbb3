"""librdkafka clients that run while a test disturbs a cluster."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from tests.support.eventually import eventually
from tests.zookeeper.broker_world import Brokers

# librdkafka's reports of broken connections while it looks for another broker.
_PASSING = (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT)


class Traffic:
    """A producer and a consumer of three partitions, and the fate of every record."""

    def __init__(self, bootstrap: str, topic: str, *, shaken: bool) -> None:
        """In a `shaken` cluster brokers stop and start, and connections break."""
        self.errors: list[Any] = []
        self.sent: set[bytes] = set()
        self.read: list[bytes] = []
        self._topic = topic
        self._shaken = shaken
        self._stopped = threading.Event()
        common = {"bootstrap.servers": bootstrap, "error_cb": self._complained}
        if shaken:
            common |= {"socket.timeout.ms": 3000, "topic.metadata.refresh.interval.ms": 1000}
        self._producer = Producer(
            {**common, "enable.idempotence": True, "linger.ms": 5, "message.timeout.ms": 60_000}
        )
        self._consumer = Consumer({**common, "group.id": "g", "enable.auto.commit": False})
        self._consumer.assign([TopicPartition(topic, partition, 0) for partition in range(3)])
        self._threads = [
            threading.Thread(target=target) for target in (self._produce, self._consume)
        ]

    def _complained(self, error: KafkaError) -> None:
        if not self._shaken or error.code() not in _PASSING:
            self.errors.append(error)

    def _produce(self) -> None:
        number = 0
        while not self._stopped.is_set():
            number += 1
            value = b"%d" % number
            self._producer.produce(
                self._topic, value, partition=number % 3, on_delivery=self._delivered
            )
            self._producer.poll(0.005)
        self._producer.flush(60)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is None:
            self.sent.add(message.value())
        else:
            self.errors.append(error)

    def _consume(self) -> None:
        deadline = float("inf")
        while len(self.read) < len(self.sent) or self._threads[0].is_alive():
            if self._stopped.is_set():
                deadline = min(deadline, time.monotonic() + 30)
            message = self._consumer.poll(0.1)
            error = None if message is None else message.error()
            if error is not None:
                self._complained(error)
            elif message is not None:
                self.read.append(message.value() or b"")
            if time.monotonic() > deadline:
                break
        self._consumer.close()

    def goes_on(self) -> None:
        """Wait until records sent from now on have been read."""
        sent = len(self.sent)
        eventually(lambda: len(self.sent) > sent + 20)
        enough = len(self.sent)
        eventually(lambda: len(self.read) >= enough)

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join(90)
        # The clients refer to each other; without this librdkafka would look for dead brokers
        # until the tests end.
        del self._producer, self._consumer


@contextmanager
def traffic(cluster: Brokers, topic: str, *, shaken: bool = False) -> Iterator[Traffic]:
    """Traffic during the block; at the end every record was read once and there is no error."""
    running = Traffic(cluster.bootstrap, topic, shaken=shaken)
    running.start()
    try:
        running.goes_on()
        yield running
        running.goes_on()
    finally:
        running.stop()
    assert running.errors == []
    assert sorted(running.read) == sorted(running.sent)


class OneByOne:
    """A producer that sends a record when the last is committed, and the time of each."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self.took_s: list[float] = []
        self.errors: list[Any] = []
        self._topic = topic
        self._partitions = partitions
        self._stopped = threading.Event()
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "acks": "all", "message.timeout.ms": 30_000}
        )
        self._thread = threading.Thread(target=self._produce)

    def _produce(self) -> None:
        while not self._stopped.is_set():
            began = time.monotonic()
            for partition in range(self._partitions):
                self._producer.produce(
                    self._topic, b"x", partition=partition, on_delivery=self._delivered
                )
            self._producer.flush(40)
            self.took_s.append(time.monotonic() - began)

    def _delivered(self, error: Any, _message: Any) -> None:
        if error is not None:
            self.errors.append(error)

    def __enter__(self) -> OneByOne:
        self._thread.start()
        eventually(lambda: len(self.took_s) > 5)
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join(60)
        del self._producer
