"""Writers: they send records at a rate, and note what becomes of each."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Any

from tests.chaos.clients.job import Acks, Control, Job, Pace
from tests.chaos.history import Payload, Recorder, encode, outcome


class Writer:
    def __init__(self, job: Job, recorder: Recorder, control: Control) -> None:
        self.job = job
        self.recorder = recorder
        self.control = control
        self.acks = Acks(recorder, job.topic, job.partitions)
        self.pace = Pace(control, self.acks, job.partitions)
        self._names = [f"{job.topic}-{index}" for index in range(job.partitions)]

    def is_over(self) -> bool:
        return self.control.is_finishing.is_set() or self.control.is_stopping.is_set()

    def value(self, index: int, number: int) -> bytes:
        payload = Payload(self.job.process, self._names[index], number)
        return encode(payload, self.job.size)

    def key(self, number: int) -> bytes | None:
        keys = self.job.keys
        return f"{self.job.process}/{number % keys}".encode() if keys else None

    def finish_s(self) -> float:
        """How long to wait for the last acknowledgements."""
        return self.job.patience_ms / 1000 + 5


class ConfluentWriter(Writer):
    def run(self) -> None:
        from confluent_kafka import KafkaException, Producer

        job = self.job
        producer = Producer(
            {
                "bootstrap.servers": job.bootstrap,
                "acks": "all" if job.durable else "1",
                "enable.idempotence": job.idempotent,
                "message.timeout.ms": job.patience_ms,
                "request.timeout.ms": job.answer_ms,
                "socket.timeout.ms": job.answer_ms,
                "compression.type": job.compression,
                "log_level": 0,
                "reconnect.backoff.ms": 50,
                "reconnect.backoff.max.ms": 250,
                "retry.backoff.ms": 50,
                "retry.backoff.max.ms": 250,
                "topic.metadata.refresh.fast.interval.ms": 50,
                "linger.ms": 5,
            }
        )
        try:
            while not self.is_over():
                for index, count in self.pace.due():
                    self._send(producer, index, count)
                producer.poll(self.pace.wait_s())
                self.acks.flush()
            deadline_s = time.monotonic() + self.finish_s()
            while producer.flush(0.5) and time.monotonic() < deadline_s:
                self.acks.flush()
                if self.control.is_stopping.is_set():
                    break
        except KafkaException as error:  # a fatal error of the producer
            producer.flush(1)
            self.acks.flush()
            self.recorder.note("info", "died", str(error))
            raise SystemExit(3) from None
        self.acks.flush()

    def _send(self, producer: Any, index: int, count: int) -> None:
        topic = self.job.topic
        numbers = self.acks.begin(index, count)
        for number in numbers:
            done = partial(self._delivered, index, number)
            try:
                value, key = self.value(index, number), self.key(number)
                producer.produce(topic, value, key, partition=index, on_delivery=done)
            except BufferError:
                self.acks.failed(index, number, "fail", "_QUEUE_FULL")

    def _delivered(self, index: int, number: int, error: Any, message: Any) -> None:
        if error is None:
            self.acks.acked(index, number, message.offset())
        else:
            name = error.name()
            self.acks.failed(index, number, outcome(name), name)


class KafkaPythonWriter(Writer):
    def run(self) -> None:
        from kafka import KafkaProducer
        from kafka.errors import KafkaError

        job = self.job
        producer: Any = None
        while producer is None and not self.is_over():
            try:
                producer = KafkaProducer(
                    bootstrap_servers=job.bootstrap.split(","),
                    acks="all" if job.durable else 1,
                    enable_idempotence=job.idempotent,
                    delivery_timeout_ms=job.patience_ms,
                    request_timeout_ms=job.answer_ms,
                    max_block_ms=job.patience_ms,
                    reconnect_backoff_max_ms=250,
                    retry_backoff_ms=50,
                    linger_ms=5,
                )
            except KafkaError as error:
                self.recorder.note("info", "error", repr(error))
        while not self.is_over():
            for index, count in self.pace.due():
                self._send(producer, index, count)
            time.sleep(self.pace.wait_s())
            self.acks.flush()
        deadline_s = time.monotonic() + self.finish_s()
        while any(self.acks.outstanding) and time.monotonic() < deadline_s:
            time.sleep(0.1)
            self.acks.flush()
            if self.control.is_stopping.is_set():
                break
        self.acks.flush()
        if producer is not None:
            producer.close(1)

    def _send(self, producer: Any, index: int, count: int) -> None:
        from kafka.errors import KafkaError

        for number in self.acks.begin(index, count):
            value, key = self.value(index, number), self.key(number)
            try:
                future = producer.send(self.job.topic, value, key, partition=index)
            except KafkaError as error:
                self._failed(index, number, error)
                continue
            future.add_callback(partial(self._acked, index, number))
            future.add_errback(partial(self._failed, index, number))

    def _acked(self, index: int, number: int, metadata: Any) -> None:
        self.acks.acked(index, number, metadata.offset)

    def _failed(self, index: int, number: int, error: Any) -> None:
        self.acks.failed(index, number, outcome(name_of(error)), name_of(error))


class AioWriter(Writer):
    def run(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        from aiokafka import AIOKafkaProducer
        from aiokafka.errors import KafkaError

        producer: Any = None
        while producer is None and not self.is_over():
            producer = AIOKafkaProducer(
                bootstrap_servers=self.job.bootstrap.split(","),
                acks="all" if self.job.durable else 1,
                enable_idempotence=self.job.idempotent,
                # It gives up on a record after its request timeout.
                request_timeout_ms=self.job.patience_ms,
                retry_backoff_ms=50,
                linger_ms=5,
            )
            try:
                await producer.start()
            except (KafkaError, OSError, TimeoutError) as error:
                self.recorder.note("info", "error", repr(error))
                await producer.stop()
                producer = None
                await asyncio.sleep(0.2)
        while not self.is_over():
            for index, count in self.pace.due():
                await self._send(producer, index, count)
            await asyncio.sleep(self.pace.wait_s())
            self.acks.flush()
        deadline_s = time.monotonic() + self.finish_s()
        while any(self.acks.outstanding) and time.monotonic() < deadline_s:
            await asyncio.sleep(0.1)
            self.acks.flush()
            if self.control.is_stopping.is_set():
                break
        self.acks.flush()
        # Not `stop`, which waits for records that cannot be delivered.

    async def _send(self, producer: Any, index: int, count: int) -> None:
        from aiokafka.errors import KafkaError

        numbers = self.acks.begin(index, count)
        for number in numbers:
            value, key = self.value(index, number), self.key(number)
            try:
                # A full buffer would hold up the records of all partitions.
                sending = producer.send(self.job.topic, value, key, partition=index)
                future = await asyncio.wait_for(sending, 1.0)
            except (KafkaError, TimeoutError) as error:
                self._failed(index, number, error)
                continue
            future.add_done_callback(partial(self._delivered, index, number))

    def _failed(self, index: int, number: int, error: Any) -> None:
        self.acks.failed(index, number, outcome(name_of(error)), name_of(error))

    def _delivered(self, index: int, number: int, future: asyncio.Future[Any]) -> None:
        if future.cancelled():
            self.acks.failed(index, number, "info", "cancelled")
        elif (error := future.exception()) is not None:
            self._failed(index, number, error)
        else:
            self.acks.acked(index, number, future.result().offset)


def name_of(error: Any) -> str:
    """Return Kafka's name of an error of kafka-python or aiokafka, or the name of its type."""
    return str(getattr(error, "message", "") or type(error).__name__)


WRITERS: dict[str, type[Writer]] = {
    "confluent-kafka": ConfluentWriter,
    "kafka-python": KafkaPythonWriter,
    "aiokafka": AioWriter,
}
