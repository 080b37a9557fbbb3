"""A process that copies a topic exactly once: consume, transform, produce, in transactions.

It is what the documentation of each client recommends, and no more careful.  It may be killed at
any time: its supervisor starts another one with the same transactional id, which resumes from the
offsets that were committed together with the copies.

    python -m tests.conformance.copier '{"client": "aiokafka", "bootstrap": …, "source": …,
        "target": …, "group": …, "transactional_id": …, "size": 750, "partitions": [0, 2]}'

With `partitions` it assigns these to itself, and only the transactional id fences its predecessor.
Without, the group assigns partitions, and the generation of the group fences predecessors
(KIP-447); aiokafka cannot do that.  It exits only when it cannot continue, and logs to stderr.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import threading
import time
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

SESSION_MS = 1500
HEARTBEAT_MS = 300
IDLE_S = 1.0
"""An incomplete transaction is committed after no record has come for so long."""
HUNG_S = 6.0
PATIENCE_MS = 60_000


@dataclass(frozen=True, slots=True)
class Job:
    client: str
    bootstrap: str
    source: str
    target: str
    group: str
    transactional_id: str
    size: int = 750
    partitions: tuple[int, ...] | None = None
    protocol: str = "classic"
    """The group protocol; only confluent-kafka has another (KIP-848)."""
    transaction_timeout_ms: int = 10_000
    pause_s: float = 0.0
    """How long each transaction stays open before its commit, so that faults hit it."""


def say(text: object) -> None:
    print(f"{time.monotonic():.3f} {text}", file=sys.stderr, flush=True)


class Watchdog(threading.Thread):
    """Ends the process after a long time without progress, as a service supervisor does.

    A transactional producer of kafka-python drops a request when its coordinator is unreachable at
    that moment, and then waits for the response for ever.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._moved_s = time.monotonic()

    def moved(self) -> None:
        self._moved_s = time.monotonic()

    def run(self) -> None:
        while time.monotonic() - self._moved_s < HUNG_S:
            time.sleep(0.2)
        say("hangs, and is ended")
        os._exit(4)


WATCHDOG = Watchdog()


# -- confluent-kafka ---------------------------------------------------------------------------


class ConfluentCopier:
    def __init__(self, job: Job) -> None:
        import confluent_kafka

        self.kafka = confluent_kafka
        self.job = job
        shared = {
            "bootstrap.servers": job.bootstrap,
            "log_level": 0,
            "reconnect.backoff.ms": 50,
            "reconnect.backoff.max.ms": 300,
            "retry.backoff.ms": 50,
            "topic.metadata.refresh.fast.interval.ms": 50,
            "socket.timeout.ms": 6000,
        }
        self.producer = confluent_kafka.Producer(
            {
                **shared,
                "transactional.id": job.transactional_id,
                "transaction.timeout.ms": job.transaction_timeout_ms,
                "message.timeout.ms": job.transaction_timeout_ms,
                "linger.ms": 5,
            }
        )
        self.consumer = confluent_kafka.Consumer(
            {
                **shared,
                "group.id": job.group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                **self._protocol(),
                "fetch.error.backoff.ms": 50,
            }
        )
        self.was_shared_out = False

    def run(self) -> None:
        self._persist(self.producer.init_transactions)
        if self.job.partitions is not None:
            places = [self._place(partition) for partition in self.job.partitions]
            self.consumer.assign(self._committed(places))
        else:
            given = {"on_assign": self._shared_out, "on_revoke": self._shared_out}
            self.consumer.subscribe([self.job.source], **given, on_lost=self._shared_out)
        while True:
            batch = self._gather()
            if batch:
                self._copy(batch)

    def _protocol(self) -> dict[str, object]:
        if self.job.protocol == "consumer":
            return {"group.protocol": "consumer"}  # the broker sets the session timeout
        return {"session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": HEARTBEAT_MS}

    def _place(self, index: int, offset: int = -1001) -> Any:
        return self.kafka.TopicPartition(self.job.source, index, offset)

    def _shared_out(self, consumer: Any, partitions: Any) -> None:
        self.was_shared_out = True

    def _gather(self) -> list[Any]:
        """Return the messages of one transaction, from partitions that this member still owns."""
        found: list[Any] = []
        last_s = time.monotonic()
        while len(found) < self.job.size:
            WATCHDOG.moved()
            self.was_shared_out = False
            got = self.consumer.consume(self.job.size - len(found), 0.1)
            if self.was_shared_out:
                self._rewind()
                return []
            got = [message for message in got if message.error() is None]
            if got:
                last_s = time.monotonic()
                found += got
            elif found and time.monotonic() - last_s > IDLE_S:
                break
        return found

    def _copy(self, batch: list[Any]) -> None:
        ends = {record.partition(): record.offset() + 1 for record in batch}
        try:
            self.producer.begin_transaction()
            for record in batch:
                self.producer.produce(
                    self.job.target, record.value(), record.key(), partition=record.partition()
                )
                self.producer.poll(0)
            self._persist(
                self.producer.send_offsets_to_transaction,
                [self._place(index, offset) for index, offset in ends.items()],
                self.consumer.consumer_group_metadata(),
            )
            time.sleep(self.job.pause_s)
            self._persist(self.producer.commit_transaction)
        except self.kafka.KafkaException as error:
            say(f"aborts: {error}")
            if error.args[0].fatal():
                raise
            self._persist(self.producer.abort_transaction)
            self._rewind()

    def _persist(self, work: Any, *given: Any) -> None:
        """Call a function, again after a retriable error."""
        while True:
            WATCHDOG.moved()
            try:
                work(*given, 5)
                return
            except self.kafka.KafkaException as error:
                if not error.args[0].retriable():
                    raise
                say(f"again: {error}")

    def _committed(self, places: Iterable[Any]) -> list[Any]:
        while True:
            try:
                found = self.consumer.committed(list(places), 10)
                break
            except self.kafka.KafkaException as error:
                say(f"again: {error}")
        return [self._place(position.partition, max(position.offset, 0)) for position in found]

    def _rewind(self) -> None:
        for position in self._committed(self.consumer.assignment()):
            try:
                self.consumer.seek(position)
            except self.kafka.KafkaException as error:
                say(f"cannot seek: {error}")  # it was revoked meanwhile


# -- kafka-python ------------------------------------------------------------------------------


class KafkaPythonCopier:
    def __init__(self, job: Job) -> None:
        import kafka
        import kafka.errors
        from kafka.structs import OffsetAndMetadata

        self.kafka, self.errors, self.offset = kafka, kafka.errors, OffsetAndMetadata
        self.job = job
        shared = {
            "bootstrap_servers": job.bootstrap,
            "reconnect_backoff_max_ms": 300,
            "retry_backoff_ms": 50,
            "request_timeout_ms": 6000,
        }
        self.producer = kafka.KafkaProducer(
            **shared,
            transactional_id=job.transactional_id,
            transaction_timeout_ms=job.transaction_timeout_ms,
            delivery_timeout_ms=job.transaction_timeout_ms,
            max_block_ms=PATIENCE_MS,
            linger_ms=5,
        )
        self.consumer = kafka.KafkaConsumer(
            **shared,
            group_id=job.group,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
        )
        self.was_shared_out = False

    def run(self) -> None:
        self.producer.init_transactions()
        if self.job.partitions is not None:
            self.consumer.assign(
                [
                    self.kafka.TopicPartition(self.job.source, partition)
                    for partition in self.job.partitions
                ]
            )
            self._rewind()
        else:
            self.consumer.subscribe([self.job.source], listener=self._listener())
        while True:
            batch = self._gather()
            if batch:
                self._copy(batch)

    def _listener(self) -> Any:
        copier = self

        class Listener(self.kafka.ConsumerRebalanceListener):  # type: ignore[name-defined, misc]
            def on_partitions_revoked(self, revoked: Any) -> None:
                copier.was_shared_out = True

            def on_partitions_assigned(self, assigned: Any) -> None:
                copier.was_shared_out = True

        return Listener()

    def _gather(self) -> list[Any]:
        found: list[Any] = []
        last_s = time.monotonic()
        while len(found) < self.job.size:
            WATCHDOG.moved()
            self.was_shared_out = False
            got = self.consumer.poll(timeout_ms=100, max_records=self.job.size - len(found))
            if self.was_shared_out:
                self._rewind()
                return []
            if got:
                last_s = time.monotonic()
                found += [record for records in got.values() for record in records]
            elif found and time.monotonic() - last_s > IDLE_S:
                break
        return found

    def _copy(self, batch: list[Any]) -> None:
        ends = {record.partition: record.offset + 1 for record in batch}
        try:
            self.producer.begin_transaction()
            for record in batch:
                self.producer.send(
                    self.job.target, record.value, record.key, partition=record.partition
                )
            self.producer.send_offsets_to_transaction(
                {
                    self.kafka.TopicPartition(self.job.source, index): self.offset(offset, "", -1)
                    for index, offset in ends.items()
                },
                self.consumer.group_metadata(),
            )
            time.sleep(self.job.pause_s)
            self.producer.commit_transaction()
        except self.errors.KafkaError as error:
            say(f"aborts: {error!r}")
            self.producer.abort_transaction()
            self._rewind()

    def _rewind(self) -> None:
        for partition in self.consumer.assignment():
            self.consumer.seek(partition, self.consumer.committed(partition) or 0)


# -- aiokafka ----------------------------------------------------------------------------------


class AioCopier:
    def __init__(self, job: Job) -> None:
        assert job.partitions is not None, "aiokafka knows no generations"
        self.job = job

    def run(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

        producer = AIOKafkaProducer(
            bootstrap_servers=self.job.bootstrap,
            transactional_id=self.job.transactional_id,
            transaction_timeout_ms=self.job.transaction_timeout_ms,
            # It gives up on a record after its request timeout.
            request_timeout_ms=self.job.transaction_timeout_ms,
            retry_backoff_ms=50,
        )
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self.job.bootstrap,
            group_id=self.job.group,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            request_timeout_ms=6000,
            retry_backoff_ms=50,
        )
        # Fence the predecessor first, and then read the offsets that it committed.
        await producer.start()
        await consumer.start()
        places = [TopicPartition(self.job.source, index) for index in self.job.partitions or ()]
        consumer.assign(places)
        for place in places:
            consumer.seek(place, await consumer.committed(place) or 0)
        while True:
            batch = await self._gather(consumer)
            ends = {
                TopicPartition(record.topic, record.partition): record.offset + 1
                for record in batch
            }
            async with producer.transaction():
                for record in batch:
                    await producer.send(
                        self.job.target, record.value, record.key, partition=record.partition
                    )
                await producer.send_offsets_to_transaction(ends, self.job.group)
                await asyncio.sleep(self.job.pause_s)

    async def _gather(self, consumer: Any) -> list[Any]:
        found: list[Any] = []
        last_s = time.monotonic()
        while len(found) < self.job.size:
            WATCHDOG.moved()
            got = await consumer.getmany(timeout_ms=100, max_records=self.job.size - len(found))
            if got:
                last_s = time.monotonic()
                found += [record for records in got.values() for record in records]
            elif found and time.monotonic() - last_s > IDLE_S:
                break
        return found


COPIERS: dict[str, Any] = {
    "confluent-kafka": ConfluentCopier,
    "kafka-python": KafkaPythonCopier,
    "aiokafka": AioCopier,
}


def main() -> None:
    logging.disable(logging.CRITICAL)  # clients log every broken connection
    warnings.simplefilter("ignore")
    given = json.loads(sys.argv[1])
    if given.get("partitions") is not None:
        given["partitions"] = tuple(given["partitions"])
    job = Job(**given)
    say(f"{job.transactional_id} begins")
    WATCHDOG.start()
    COPIERS[job.client](job).run()


if __name__ == "__main__":
    main()
