"""Members of consumer groups, of three clients behind one small interface.

Each does what a user of that client would write: subscribe, poll, commit, close.  One thread at a
time uses a member; the client sends heartbeats.  `changes` are the assigned and revoked partitions,
in order, as the client reported them to its listener.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, ClassVar, NamedTuple, Self

import aiokafka
import kafka
from aiokafka.coordinator.assignors.range import RangePartitionAssignor as AioRange
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor as AioRoundRobin
from aiokafka.errors import KafkaError as AioError
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka import KafkaError as ConfluentError
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.errors import KafkaError as PythonError
from kafka.errors import UnknownBrokerIdError

from tests.conformance.adapters import DEADLINE_S, Refused, aio, confluent, kafka_python

Partition = tuple[str, int]

HEARTBEAT_MS = 300
"""So short that a member learns of a rebalance soon."""
SESSION_MS = 6000
ASKED_MS = 5000
"""The request timeout of a client."""


class Delivered(NamedTuple):
    topic: str
    partition: int
    offset: int
    value: bytes | None

    @property
    def place(self) -> Partition:
        return self.topic, self.partition


class Change(NamedTuple):
    kind: str
    partitions: frozenset[Partition]
    generation: int
    """The generation in which the member learned of it."""


class Member:
    """The part that all clients share."""

    client: ClassVar[str]
    ASSIGNORS: ClassVar[frozenset[str]]

    def __init__(
        self,
        bootstrap: str,
        group: str,
        topics: Iterable[str],
        *,
        assignor: str = "range",
        instance: str | None = None,
        session_ms: int = SESSION_MS,
        poll_interval_ms: int = 60_000,
        reset: str = "earliest",
        auto_commit: bool = False,
        on_change: Callable[[Change], None] | None = None,
        **settings: Any,
    ) -> None:
        self.bootstrap = bootstrap
        self.group = group
        self.topics = list(topics)
        self.assignor = assignor
        self.instance = instance
        self.session_ms = session_ms
        self.poll_interval_ms = poll_interval_ms
        self.reset = reset
        self.auto_commit = auto_commit
        self.settings = settings
        self.changes: list[Change] = []
        self._on_change = on_change
        self._start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> None:
        raise NotImplementedError

    def poll(self, timeout_s: float = 0.1, at_most: int = 500) -> list[Delivered]:
        raise NotImplementedError

    def assignment(self) -> set[Partition]:
        raise NotImplementedError

    def generation(self) -> int:
        """Return the group's generation; in the consumer protocol, the member epoch."""
        raise NotImplementedError

    def joined_generation(self) -> int:
        """Return the generation, also within a callback of the rebalance listener."""
        return self.generation()

    def member_id(self) -> str:
        raise NotImplementedError

    def commit(self, offsets: Mapping[Partition, int] | None = None, note: str = "") -> None:
        """Commit these offsets, or the member's positions; raise Refused with Kafka's error."""
        raise NotImplementedError

    def committed(self, partitions: Iterable[Partition]) -> dict[Partition, int | None]:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def changed(self, kind: str, partitions: Iterable[Partition]) -> None:
        change = Change(kind, frozenset(partitions), self.joined_generation())
        self.changes.append(change)
        if self._on_change is not None:
            self._on_change(change)

    # -- conditions to wait for ------------------------------------------------------------

    def read(self, count: int, limit_s: float = DEADLINE_S) -> list[Delivered]:
        """Return at least so many records, and no more if the client allows it."""
        found: list[Delivered] = []
        deadline = time.monotonic() + limit_s
        while len(found) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count} in {limit_s} s"
            found += self.poll(0.2, at_most=count - len(found))
        return found

    def join(self, count: int | None = None, limit_s: float = DEADLINE_S) -> list[Delivered]:
        """Poll until any, or so many, partitions are assigned; return the records."""
        found: list[Delivered] = []
        deadline = time.monotonic() + limit_s
        while not self.assignment() or (count is not None and len(self.assignment()) != count):
            assert time.monotonic() < deadline, f"{self.client} has {self.assignment()}"
            found += self.poll(0.05)
        return found


# -- confluent-kafka ---------------------------------------------------------------------------


class ConfluentMember(Member):
    client = confluent.NAME
    ASSIGNORS = frozenset({"range", "roundrobin", "cooperative-sticky"})
    GETS_OVER: ClassVar[set[int]] = {
        ConfluentError._TRANSPORT,
        ConfluentError._ALL_BROKERS_DOWN,
        ConfluentError._TIMED_OUT,
    }

    def _start(self) -> None:
        settings = {
            "bootstrap.servers": self.bootstrap,
            "group.id": self.group,
            "max.poll.interval.ms": self.poll_interval_ms,
            "auto.offset.reset": self.reset,
            "enable.auto.commit": self.auto_commit,
            "enable.auto.offset.store": True,
            "topic.metadata.refresh.fast.interval.ms": 50,
            "reconnect.backoff.max.ms": 500,
            "retry.backoff.ms": 50,
            "socket.timeout.ms": ASKED_MS,
            "log_level": 2,
        }
        if self.settings.get("group.protocol") != "consumer":
            settings |= {
                "partition.assignment.strategy": self.assignor,
                "session.timeout.ms": self.session_ms,
                "heartbeat.interval.ms": HEARTBEAT_MS,
            }
        if self.instance is not None:
            settings["group.instance.id"] = self.instance
        self.errors: list[ConfluentError] = []
        self._is_closed = False
        self._consumer = Consumer(settings | self.settings)
        self._consumer.subscribe(
            self.topics, on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost
        )

    def _assigned(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self.changed(
            "assigned", ((partition.topic, partition.partition) for partition in partitions)
        )

    def _revoked(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self.changed(
            "revoked", ((partition.topic, partition.partition) for partition in partitions)
        )

    def _lost(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self.changed("lost", ((partition.topic, partition.partition) for partition in partitions))

    def poll(self, timeout_s: float = 0.1, at_most: int = 500) -> list[Delivered]:
        found = []
        for message in self._consumer.consume(at_most, timeout_s):
            error = message.error()
            if error is None:
                topic, index, offset = message.topic(), message.partition(), message.offset()
                assert topic is not None
                assert index is not None
                assert offset is not None
                found.append(Delivered(topic, index, offset, message.value()))
            elif not error.retriable() and error.code() not in self.GETS_OVER:
                self.errors.append(error)
                if error.fatal():
                    raise confluent.refused(error)
        return found

    def assignment(self) -> set[Partition]:
        return {(partition.topic, partition.partition) for partition in self._consumer.assignment()}

    def generation(self) -> int:
        # It has no other way to report it: the metadata for producers begins with the generation.
        found = bytes(self._consumer.consumer_group_metadata() or b"")
        assert found.startswith(b"CGMDv2:"), found
        return int(struct.unpack_from("<i", found, 7)[0])

    def member_id(self) -> str:
        return str(self._consumer.memberid() or "")

    def commit(self, offsets: Mapping[Partition, int] | None = None, note: str = "") -> None:
        wanted: dict[str, Any] = {"asynchronous": False}
        if offsets is not None:
            wanted["offsets"] = [
                TopicPartition(topic, index, offset, metadata=note)
                for (topic, index), offset in offsets.items()
            ]
        try:
            for partition in self._consumer.commit(**wanted):
                if partition.error is not None:
                    raise confluent.refused(partition.error)
        except KafkaException as error:
            if error.args[0].code() != ConfluentError._NO_OFFSET:
                raise confluent.refused(error) from None

    def committed(self, partitions: Iterable[Partition]) -> dict[Partition, int | None]:
        wanted = [TopicPartition(topic, index) for topic, index in partitions]
        try:
            found = self._consumer.committed(wanted, timeout=DEADLINE_S)
        except KafkaException as error:
            raise confluent.refused(error) from None
        return {
            (partition.topic, partition.partition): partition.offset
            if partition.offset >= 0
            else None
            for partition in found
        }

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._consumer.close()


# -- kafka-python ------------------------------------------------------------------------------


class KafkaPythonMember(Member):
    client = kafka_python.NAME
    ASSIGNORS = frozenset({"range", "roundrobin", "cooperative-sticky"})
    STRATEGIES: ClassVar[dict[str, Any]] = {
        "range": RangePartitionAssignor,
        "roundrobin": RoundRobinPartitionAssignor,
        "cooperative-sticky": CooperativeStickyAssignor,
    }

    def _start(self) -> None:
        self._consumer = kafka.KafkaConsumer(
            bootstrap_servers=self.bootstrap,
            group_id=self.group,
            group_instance_id=self.instance,
            partition_assignment_strategy=[self.STRATEGIES[self.assignor]],
            session_timeout_ms=self.session_ms,
            heartbeat_interval_ms=HEARTBEAT_MS,
            max_poll_interval_ms=self.poll_interval_ms,
            auto_offset_reset={"error": "none"}.get(self.reset, self.reset),
            enable_auto_commit=self.auto_commit,
            reconnect_backoff_max_ms=500,
            request_timeout_ms=ASKED_MS,
            **self.settings,
        )
        listener = listener_for(self, kafka.ConsumerRebalanceListener)
        self._consumer.subscribe(self.topics, listener=listener)

    def poll(self, timeout_s: float = 0.1, at_most: int = 500) -> list[Delivered]:
        # A poll that is too short restarts the join.
        timeout_ms = int(timeout_s * 1000) if self._consumer.assignment() else 1000
        try:
            found = self._consumer.poll(timeout_ms=timeout_ms, max_records=at_most)
        except PythonError as error:
            # It also logs errors about brokers that have just left the metadata.
            if error.retriable or isinstance(error, UnknownBrokerIdError):
                return []
            raise kafka_python.refused(error) from None
        return [
            Delivered(record.topic, record.partition, record.offset, record.value)
            for records in found.values()
            for record in records
        ]

    def assignment(self) -> set[Partition]:
        return pairs(self._consumer.assignment())

    def generation(self) -> int:
        found = self._consumer._coordinator.generation_if_stable()
        return -1 if found is None else found.generation_id

    def joined_generation(self) -> int:
        return int(self._consumer._coordinator._generation.generation_id)

    def member_id(self) -> str:
        found = self._consumer._coordinator.generation_if_stable()
        return "" if found is None else found.member_id

    def commit(self, offsets: Mapping[Partition, int] | None = None, note: str = "") -> None:
        wanted = None
        if offsets is not None:
            wanted = {
                kafka.TopicPartition(*place): kafka.OffsetAndMetadata(offset, note, -1)
                for place, offset in offsets.items()
            }
        try:
            self._consumer.commit(wanted, timeout_ms=DEADLINE_S * 1000)
        except PythonError as error:
            raise kafka_python.refused(error) from None

    def committed(self, partitions: Iterable[Partition]) -> dict[Partition, int | None]:
        return {
            place: self._consumer.committed(kafka.TopicPartition(*place)) for place in partitions
        }

    def close(self) -> None:
        self._consumer.close(autocommit=self.auto_commit)


def pairs(partitions: Iterable[Any]) -> set[Partition]:
    return {(partition.topic, partition.partition) for partition in partitions}


def listener_for(member: Member, base: type) -> Any:
    """Return a listener of the client's class that reports to the member."""
    told = {
        f"on_partitions_{kind}": lambda _, them, kind=kind: member.changed(kind, pairs(them))
        for kind in ("assigned", "revoked", "lost")
    }
    return type("Listener", (base,), told)()


# -- aiokafka ----------------------------------------------------------------------------------


class AioMember(Member):
    """Its event loop runs in a thread, since heartbeats need a running loop."""

    client = aio.NAME
    ASSIGNORS = frozenset({"range", "roundrobin"})
    STRATEGIES: ClassVar[dict[str, Any]] = {"range": AioRange, "roundrobin": AioRoundRobin}

    def _start(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._consumer: Any = None
        try:
            self._run(self._open())
        except BaseException:
            self.close()
            raise

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result(DEADLINE_S * 2)
        except AioError as error:
            raise aio.refused(error) from None

    async def _open(self) -> None:
        self._consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=self.bootstrap,
            group_id=self.group,
            group_instance_id=self.instance,
            partition_assignment_strategy=(self.STRATEGIES[self.assignor],),
            session_timeout_ms=self.session_ms,
            heartbeat_interval_ms=HEARTBEAT_MS,
            max_poll_interval_ms=self.poll_interval_ms,
            auto_offset_reset={"error": "none"}.get(self.reset, self.reset),
            enable_auto_commit=self.auto_commit,
            request_timeout_ms=ASKED_MS,
            retry_backoff_ms=50,
            **self.settings,
        )
        listener = listener_for(self, aiokafka.ConsumerRebalanceListener)
        self._consumer.subscribe(self.topics, listener=listener)
        await self._consumer.start()

    def poll(self, timeout_s: float = 0.1, at_most: int = 500) -> list[Delivered]:
        work = self._consumer.getmany(timeout_ms=int(timeout_s * 1000), max_records=at_most)
        return [
            Delivered(record.topic, record.partition, record.offset, record.value)
            for records in self._run(work).values()
            for record in records
        ]

    def assignment(self) -> set[Partition]:
        return pairs(self._consumer.assignment())

    def generation(self) -> int:
        return int(self._consumer._coordinator.generation)

    def member_id(self) -> str:
        return str(self._consumer._coordinator.member_id)

    def commit(self, offsets: Mapping[Partition, int] | None = None, note: str = "") -> None:
        wanted = None
        if offsets is not None:
            wanted = {
                aiokafka.TopicPartition(*place): (offset, note) for place, offset in offsets.items()
            }
        self._run(self._consumer.commit(wanted))

    def committed(self, partitions: Iterable[Partition]) -> dict[Partition, int | None]:
        return {
            place: self._run(self._consumer.committed(aiokafka.TopicPartition(*place)))
            for place in partitions
        }

    def close(self) -> None:
        if not self._thread.is_alive():
            return
        try:
            if self._consumer is not None:
                with contextlib.suppress(Refused):
                    self._run(self._consumer.stop())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(DEADLINE_S)
            self._loop.close()


MEMBERS: dict[str, type[Member]] = {
    member.client: member for member in (ConfluentMember, KafkaPythonMember, AioMember)
}
