"""Copiers: consume, produce and commit offsets, in transactions; some are aborted on purpose."""

from __future__ import annotations

import asyncio
import time
from typing import Any, NamedTuple

from tests.chaos.clients.job import GAVE_UP, Acks, Control, Job, Watchdog
from tests.chaos.clients.readers import consumer
from tests.chaos.history import END_MARKER, Payload, Recorder, decode, encode

HUNG_S = 8.0
ABORTED = 6
"""Every so manyeth transaction is aborted."""
IDLE_S = 0.3


class Source(NamedTuple):
    partition: int
    offset: int
    value: bytes | None


class Copier:
    def __init__(self, job: Job, recorder: Recorder, control: Control) -> None:
        self.job = job
        self.recorder = recorder
        self.control = control
        self.acks = Acks(recorder, job.target, job.partitions)
        self.watchdog = Watchdog(recorder, HUNG_S)
        self.transaction = 0
        self._ended: set[int] = set()

    def is_over(self) -> bool:
        return self.control.is_finishing.is_set() or self.control.is_stopping.is_set()

    def values(self, batch: list[Source]) -> list[tuple[int, bytes]]:
        """Note the sends of a transaction; return partition and value of each copy."""
        found = []
        for index in sorted({source.partition for source in batch}):
            sources = [source for source in batch if source.partition == index]
            kept = [source for source in sources if self._is_copied(source)]
            if not kept:
                continue
            numbers = self.acks.begin(index, len(kept), self.transaction)
            for number, source in zip(numbers, kept, strict=True):
                name = f"{self.job.target}-{index}"
                payload = Payload(self.job.process, name, number, self.transaction, source.offset)
                found.append((index, encode(payload, self.job.size)))
        return found

    def _is_copied(self, source: Source) -> bool:
        """End markers are not copied; damage is noted, and copied so that it is not lost twice."""
        found = decode(source.value)
        partition = f"{self.job.topic}-{source.partition}"
        if found is None:
            self.recorder.note("info", "poll", [partition, source.offset], "damaged")
        return found is None or found.writer != END_MARKER

    def note_ends(self, batch: list[Source]) -> None:
        """The copies of everything before the end markers are committed."""
        for source in batch:
            found = decode(source.value)
            if (
                found is not None
                and found.writer == END_MARKER
                and source.partition not in self._ended
            ):
                self._ended.add(source.partition)
                value = [f"{self.job.topic}-{source.partition}", source.offset]
                self.recorder.note("ok", "end", value)

    def positions(self, batch: list[Source]) -> dict[int, int]:
        return {source.partition: source.offset + 1 for source in batch}

    def committing(self, positions: dict[int, int]) -> list[Any]:
        """The value of a commit: the transaction and the offsets in it."""
        offsets = {f"{self.job.topic}-{index}": at for index, at in positions.items()}
        return [self.transaction, offsets]

    def committed(self, source: Any, partitions: int) -> dict[int, int]:
        """Return the position of each partition that is committed, asked of librdkafka."""
        from confluent_kafka import KafkaException, TopicPartition

        topic = self.job.topic
        places = [TopicPartition(topic, index) for index in range(partitions)]
        names = [f"{topic}-{index}" for index in range(partitions)]
        while not self.control.is_stopping.is_set():
            self.watchdog.moved()
            self.recorder.note("invoke", "committed", names)
            try:
                found = source.committed(places, 5)
            except KafkaException as error:
                self.recorder.note("info", "committed", names, error)
                continue
            if errors := [str(place.error) for place in found if place.error is not None]:
                self.recorder.note("info", "committed", names, errors)
                continue
            offsets = {f"{topic}-{place.partition}": max(place.offset, -1) for place in found}
            self.recorder.note("ok", "committed", offsets)
            return {place.partition: max(place.offset, 0) for place in found}
        raise SystemExit(GAVE_UP)

    def is_to_be_aborted(self) -> bool:
        return self.transaction % ABORTED == ABORTED - 1


# -- confluent-kafka ---------------------------------------------------------------------------


class ConfluentCopier(Copier):
    def run(self) -> None:
        import confluent_kafka

        job = self.job
        self.kafka = confluent_kafka
        self.watchdog.start()
        self.producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": job.bootstrap,
                "log_level": 0,
                "reconnect.backoff.ms": 50,
                "reconnect.backoff.max.ms": 250,
                "retry.backoff.ms": 50,
                "topic.metadata.refresh.fast.interval.ms": 50,
                "socket.timeout.ms": job.answer_ms,
                "transactional.id": job.transactional_id,
                "transaction.timeout.ms": job.transaction_timeout_ms,
                "message.timeout.ms": job.transaction_timeout_ms,
                "linger.ms": 5,
            }
        )
        self.source = consumer(
            job, **{"isolation.level": "read_committed", "auto.offset.reset": "earliest"}
        )
        try:
            self._persist(self.producer.init_transactions)
            self.recorder.note("ok", "init", job.transactional_id)
            self.source.assign(self._committed())
            while not self.is_over():
                batch = self._gather()
                if batch:
                    self._copy(batch)
        except confluent_kafka.KafkaException as error:
            self.recorder.note("info", "died", str(error))
            raise SystemExit(GAVE_UP) from None

    def _place(self, index: int, offset: int = -1001) -> Any:
        return self.kafka.TopicPartition(self.job.topic, index, offset)

    def _gather(self) -> list[Source]:
        found: list[Source] = []
        last_s = time.monotonic()
        while len(found) < self.job.transaction_records and not self.is_over():
            self.watchdog.moved()
            for message in self.source.consume(self.job.transaction_records - len(found), 0.1):
                if message.error() is None:
                    found.append(Source(message.partition(), message.offset(), message.value()))
                    last_s = time.monotonic()
            if found and time.monotonic() - last_s > IDLE_S:
                break
        return found

    def _copy(self, batch: list[Source]) -> None:
        self.transaction += 1
        committing = self.committing(self.positions(batch))
        try:
            self.recorder.note("invoke", "begin", self.transaction)
            self.producer.begin_transaction()
            for index, value in self.values(batch):
                self.producer.produce(self.job.target, value, partition=index)
            self.producer.poll(0)
            self._persist(
                self.producer.send_offsets_to_transaction,
                [self._place(index, offset) for index, offset in self.positions(batch).items()],
                self.source.consumer_group_metadata(),
            )
            if self.is_to_be_aborted():
                self._abort()
                return
            self.recorder.note("invoke", "commit", committing)
            self._persist(self.producer.commit_transaction)
            self.recorder.note("ok", "commit", committing)
            self.note_ends(batch)
        except self.kafka.KafkaException as error:
            self.recorder.note("info", "commit", committing, error)
            if error.args[0].fatal() or not error.args[0].txn_requires_abort():
                raise
            self._abort()

    def _abort(self) -> None:
        self._persist(self.producer.abort_transaction)
        self.recorder.note("ok", "abort", self.transaction)
        for place in self._committed():
            self.source.seek(place)

    def _persist(self, work: Any, *given: Any) -> None:
        """Call a function, again after a retriable error."""
        while True:
            self.watchdog.moved()
            try:
                work(*given, 5)
                return
            except self.kafka.KafkaException as error:
                if not error.args[0].retriable() or self.control.is_stopping.is_set():
                    raise

    def _committed(self) -> list[Any]:
        found = self.committed(self.source, self.job.partitions)
        return [self._place(index, offset) for index, offset in found.items()]


# -- aiokafka ----------------------------------------------------------------------------------


class AioCopier(Copier):
    def run(self) -> None:
        from aiokafka.errors import KafkaError

        self.watchdog.start()
        try:
            asyncio.run(self._run())
        except (KafkaError, OSError) as error:
            self.recorder.note("info", "died", repr(error))
            raise SystemExit(GAVE_UP) from None

    async def _run(self) -> None:
        from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

        job = self.job
        self._librdkafka = consumer(job, **{"auto.offset.reset": "earliest"})
        shared = {"bootstrap_servers": job.bootstrap.split(","), "retry_backoff_ms": 50}
        producer = AIOKafkaProducer(
            **shared,
            transactional_id=job.transactional_id,
            transaction_timeout_ms=job.transaction_timeout_ms,
            # It gives up on a record after its request timeout.
            request_timeout_ms=job.transaction_timeout_ms,
        )
        source = AIOKafkaConsumer(
            **shared,
            group_id=job.group,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            request_timeout_ms=max(job.answer_ms, 6000),
        )
        # Fence the predecessor first, and then read the offsets that it committed.
        await producer.start()
        self.recorder.note("ok", "init", job.transactional_id)
        await source.start()
        places = [TopicPartition(job.topic, index) for index in range(job.partitions)]
        source.assign(places)
        await self._rewind(source, places)
        while not self.is_over():
            batch = await self._gather(source)
            if batch:
                await self._copy(producer, source, places, batch)

    async def _rewind(self, source: Any, places: list[Any]) -> None:
        """Go back to the committed offsets, which librdkafka fetches.

        aiokafka ignores the error of a whole OffsetFetch response, such as NOT_COORDINATOR, and
        reports that the group has no offsets.
        """
        found = await asyncio.to_thread(self.committed, self._librdkafka, len(places))
        for index, offset in found.items():
            source.seek(places[index], offset)

    async def _gather(self, source: Any) -> list[Source]:
        found: list[Source] = []
        last_s = time.monotonic()
        while len(found) < self.job.transaction_records and not self.is_over():
            self.watchdog.moved()
            wanted = self.job.transaction_records - len(found)
            for records in (await source.getmany(timeout_ms=100, max_records=wanted)).values():
                found += [
                    Source(record.partition, record.offset, record.value) for record in records
                ]
                last_s = time.monotonic()
            if found and time.monotonic() - last_s > IDLE_S:
                break
        return found

    async def _copy(
        self, producer: Any, source: Any, places: list[Any], batch: list[Source]
    ) -> None:
        self.transaction += 1
        committing = self.committing(self.positions(batch))
        self.recorder.note("invoke", "begin", self.transaction)
        await producer.begin_transaction()
        for index, value in self.values(batch):
            await producer.send(self.job.target, value, partition=index)
        ends = {places[index]: offset for index, offset in self.positions(batch).items()}
        await producer.send_offsets_to_transaction(ends, self.job.group)
        if self.is_to_be_aborted():
            await producer.abort_transaction()
            self.recorder.note("ok", "abort", self.transaction)
            await self._rewind(source, places)
            return
        self.recorder.note("invoke", "commit", committing)
        await producer.commit_transaction()
        self.recorder.note("ok", "commit", committing)
        self.note_ends(batch)


COPIERS: dict[str, type[Copier]] = {"confluent-kafka": ConfluentCopier, "aiokafka": AioCopier}
