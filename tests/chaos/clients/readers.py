"""Readers of all partitions, members of groups, and the final reader."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from tests.chaos.clients.job import GAVE_UP, Control, Job, Notes, Watchdog
from tests.chaos.history import Recorder


class Reader:
    f = "poll"

    def __init__(self, job: Job, recorder: Recorder, control: Control) -> None:
        self.job = job
        self.recorder = recorder
        self.control = control
        self.notes = Notes(recorder, self.f)
        self.watchdog = Watchdog(recorder, limit_s=3 * job.patience_ms / 1000)

    def is_over(self) -> bool:
        return self.control.is_finishing.is_set() or self.control.is_stopping.is_set()

    def started(self, topic: str, index: int, offset: int = 0) -> None:
        self.recorder.note("ok", "assign", [f"{topic}-{index}", offset])

    def give_up(self, partition: str, offset: int, error: str) -> None:
        self.notes.flush()
        self.recorder.note("info", "poll", [partition, offset], error)
        raise SystemExit(GAVE_UP)


# -- confluent-kafka ---------------------------------------------------------------------------


def consumer(job: Job, **settings: object) -> Any:
    from confluent_kafka import Consumer

    return Consumer(
        {
            "bootstrap.servers": job.bootstrap,
            "group.id": job.group or "unused",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "isolation.level": job.isolation,
            "log_level": 0,
            "socket.timeout.ms": job.answer_ms,
            "reconnect.backoff.ms": 50,
            "reconnect.backoff.max.ms": 250,
            "retry.backoff.ms": 50,
            "fetch.error.backoff.ms": 50,
            "topic.metadata.refresh.fast.interval.ms": 50,
            "check.crcs": True,
            **settings,
        }
    )


class ConfluentReader(Reader):
    def run(self) -> None:
        from confluent_kafka import TopicPartition

        job = self.job
        source = consumer(job)
        source.assign([TopicPartition(job.topic, index, 0) for index in range(job.partitions)])
        for index in range(job.partitions):
            self.started(job.topic, index)
        while not self.is_over():
            self.take(source.consume(5000, 0.1))

    def take(self, messages: list[Any]) -> None:
        for message in messages:
            error = message.error()
            if error is None:
                where = (message.topic(), message.partition(), message.offset())
                self.notes.record(*where, message.value())
            else:
                self._failed(message, error)
        self.notes.flush()

    def _failed(self, message: Any, error: Any) -> None:
        partition, offset = f"{message.topic()}-{message.partition()}", message.offset() or -1
        if error.name() == "_BAD_MSG":  # librdkafka found a wrong CRC
            self.recorder.note("info", "poll", [partition, offset, str(error)], "damaged")
        elif error.name() in ("_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE"):
            self.give_up(partition, offset, str(error))
        else:
            self.notes.error(f"{partition}: {error.name()}")


class FinalReader(ConfluentReader):
    """Reads all topics from their first to their last record, after everything has healed."""

    f = "final"

    def run(self) -> None:
        from confluent_kafka import TopicPartition

        job = self.job
        sources = []
        for isolation in sorted(set(job.topics.values())):
            source = consumer(
                job, **{"isolation.level": isolation, "auto.offset.reset": "earliest"}
            )
            source.assign(
                [
                    TopicPartition(topic, index, 0)
                    for topic, level in job.topics.items()
                    if level == isolation
                    for index in range(job.partitions)
                ]
            )
            sources.append(source)
        wanted = {f"{topic}-{index}" for topic in job.topics for index in range(job.partitions)}
        while not self.control.is_stopping.is_set() and not wanted <= self.notes.ended:
            for source in sources:
                self.take(source.consume(5000, 0.05))


class ConfluentMember(ConfluentReader):
    """A member of a group that commits what it has read."""

    def run(self) -> None:
        from confluent_kafka import TopicPartition

        self._place = TopicPartition
        job = self.job
        limits = {"session.timeout.ms": job.session_ms, "max.poll.interval.ms": 60_000}
        if job.protocol == "consumer":
            limits = {"max.poll.interval.ms": 60_000}
        settings = {"group.protocol": job.protocol, "auto.offset.reset": "earliest", **limits}
        source = consumer(job, **settings)
        callbacks = {"on_assign": self._assigned, "on_revoke": self._revoked}
        source.subscribe([job.topic], **callbacks, on_lost=self._revoked)
        self._owned: set[int] = set()
        positions: dict[int, int] = {}
        committed_s = 0.0
        while not self.is_over():
            messages = source.consume(1000, 0.1)
            self.take(messages)
            for message in messages:
                if message.error() is None:
                    positions[message.partition()] = message.offset() + 1
            positions = {at: offset for at, offset in positions.items() if at in self._owned}
            if positions and time.monotonic() - committed_s > 0.2:
                committed_s = time.monotonic()
                self._commit(source, positions)
                positions = {}
        source.close()

    def _assigned(self, source: Any, partitions: list[Any]) -> None:
        from confluent_kafka import KafkaException

        names = [f"{found.topic}-{found.partition}" for found in partitions]
        while not self.control.is_stopping.is_set():
            self.recorder.note("invoke", "committed", names)
            try:
                found = source.committed(partitions, timeout=5)
            except KafkaException as error:
                self.recorder.note("info", "committed", names, error)
                continue
            if any(place.error is not None for place in found):
                self.recorder.note("info", "committed", names, [str(p.error) for p in found])
                continue
            offsets = {f"{place.topic}-{place.partition}": place.offset for place in found}
            offsets = {name: max(offset, -1) for name, offset in offsets.items()}
            self.recorder.note("ok", "committed", offsets)
            break
        else:
            return
        for place in found:
            place.offset = max(place.offset, 0)
            self.started(place.topic, place.partition, place.offset)
            self._owned.add(place.partition)
        if self.job.protocol == "consumer":
            source.incremental_assign(found)
        else:
            source.assign(found)

    def _revoked(self, source: Any, partitions: list[Any]) -> None:
        self._owned -= {found.partition for found in partitions}
        if self.job.protocol == "consumer":
            source.incremental_unassign(partitions)
        else:
            source.unassign()

    def _commit(self, source: Any, positions: dict[int, int]) -> None:
        from confluent_kafka import KafkaException

        topic = self.job.topic
        wanted = {f"{topic}-{index}": offset for index, offset in positions.items()}
        places = [self._place(topic, index, offset) for index, offset in positions.items()]
        self.recorder.note("invoke", "commit-offsets", wanted)
        try:
            done = source.commit(offsets=places, asynchronous=False)
        except KafkaException as error:
            name = error.args[0].name()
            kind = "fail" if name in NOT_COMMITTED else "info"
            self.recorder.note(kind, "commit-offsets", wanted, name)
            return
        errors = [str(place.error) for place in done if place.error is not None]
        self.recorder.note("info" if errors else "ok", "commit-offsets", wanted, " ".join(errors))


NOT_COMMITTED = frozenset(
    {
        "ILLEGAL_GENERATION",
        "UNKNOWN_MEMBER_ID",
        "FENCED_INSTANCE_ID",
        "STALE_MEMBER_EPOCH",
        "INVALID_GROUP_ID",
        "_NO_OFFSET",
    }
)


# -- kafka-python and aiokafka -----------------------------------------------------------------


class KafkaPythonReader(Reader):
    def run(self) -> None:
        from kafka import KafkaConsumer, TopicPartition
        from kafka.errors import KafkaError, OffsetOutOfRangeError

        job = self.job
        source: Any = None
        while source is None and not self.is_over():
            try:
                source = KafkaConsumer(
                    bootstrap_servers=job.bootstrap.split(","),
                    group_id=None,
                    enable_auto_commit=False,
                    auto_offset_reset="none",
                    request_timeout_ms=job.answer_ms,
                    fetch_max_wait_ms=min(500, job.answer_ms // 2),
                    reconnect_backoff_max_ms=250,
                )
            except KafkaError as error:
                self.notes.error(repr(error))
        places = [TopicPartition(job.topic, index) for index in range(job.partitions)]
        source.assign(places)
        for place in places:
            source.seek(place, 0)
            self.started(job.topic, place.partition)
        while not self.is_over():
            try:
                found = source.poll(timeout_ms=200, max_records=2000)
            except OffsetOutOfRangeError as error:
                self.give_up(f"{job.topic}-?", -1, repr(error))
            except (KafkaError, AssertionError) as error:
                self.notes.error(repr(error))
                continue
            for records in found.values():
                for record in records:
                    self.notes.record(record.topic, record.partition, record.offset, record.value)
            self.notes.flush()


class AioReader(Reader):
    def run(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        from aiokafka import AIOKafkaConsumer, TopicPartition
        from aiokafka.errors import ConsumerStoppedError, KafkaError, OffsetOutOfRangeError

        job = self.job
        source: Any = None
        while source is None and not self.is_over():
            source = AIOKafkaConsumer(
                bootstrap_servers=job.bootstrap.split(","),
                group_id=None,
                enable_auto_commit=False,
                auto_offset_reset="none",
                isolation_level=job.isolation,
                request_timeout_ms=job.answer_ms,
                retry_backoff_ms=50,
            )
            try:
                await source.start()
            except (KafkaError, OSError) as error:
                self.notes.error(repr(error))
                await source.stop()
                source = None
                await asyncio.sleep(0.2)
        places = [TopicPartition(job.topic, index) for index in range(job.partitions)]
        source.assign(places)
        for place in places:
            source.seek(place, 0)
            self.started(job.topic, place.partition)
        while not self.is_over():
            try:
                found = await source.getmany(timeout_ms=200, max_records=2000)
            except OffsetOutOfRangeError as error:
                self.give_up(f"{job.topic}-?", -1, repr(error))
            except ConsumerStoppedError:
                raise
            except KafkaError as error:
                self.notes.error(repr(error))
                await asyncio.sleep(0.1)
                continue
            for records in found.values():
                for record in records:
                    self.notes.record(record.topic, record.partition, record.offset, record.value)
            self.notes.flush()


READERS: dict[tuple[str, str], type[Reader]] = {
    ("reader", "confluent-kafka"): ConfluentReader,
    ("reader", "kafka-python"): KafkaPythonReader,
    ("reader", "aiokafka"): AioReader,
    ("member", "confluent-kafka"): ConfluentMember,
    ("final", "confluent-kafka"): FinalReader,
}
