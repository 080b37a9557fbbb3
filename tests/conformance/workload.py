"""Writers and readers that run through faults of the brokers until they are stopped.

Each client has a writer and a reader, each in a thread, that note every event in a `History`.
Their settings are those of a careful user: acks=all, idempotence, and timeouts longer than any
fault.

    with Load(cluster.bootstrap, topic, partitions=3) as load:
        cluster.kill(2)
        ...
    # now all clients have stopped and read to the end, and the history is checked
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from functools import partial
from typing import Any, ClassVar, Self

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioTopicPartition
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as PythonTopicPartition
from kafka.errors import KafkaError as PythonKafkaError
from kafka.errors import UnknownBrokerIdError

from tests.conformance.adapters import aio, confluent, kafka_python, kcat
from tests.conformance.history import History, Partition, Reading, Send, Writer

PACE_S = 0.02
PATIENCE_S = 90.0
"""How long a client tries to deliver a record, and a reader to reach the end."""
ANSWER_MS = 6000
"""The request timeout, after which a client tries another broker."""
GAVE_UP = "kcat gave up: "


class Worker(threading.Thread):
    """A client in a thread; `ended` raises the error that ended it."""

    client: ClassVar[str]

    def __init__(self, name: str, bootstrap: str, topic: str, indexes: Iterable[int]) -> None:
        super().__init__(name=name, daemon=True)
        self.bootstrap = bootstrap
        self.topic = topic
        self.indexes = tuple(indexes)
        self.is_stopping = threading.Event()
        self._failure: BaseException | None = None

    def run(self) -> None:
        try:
            self.work()
        except BaseException as failure:  # `ended` raises it
            self._failure = failure

    def work(self) -> None:
        raise NotImplementedError

    def ended(self, timeout_s: float = PATIENCE_S + 15) -> None:
        """Wait for the end of the thread; raise its error."""
        self.join(timeout_s)
        assert not self.is_alive(), f"{self.name} does not come to an end"
        if self._failure is not None:
            raise AssertionError(f"{self.name} failed: {self._failure!r}") from self._failure


# -- writers -----------------------------------------------------------------------------------


class Writing(Worker):
    """Sends a record now and then, to each partition in turn."""

    def __init__(
        self,
        history: History,
        bootstrap: str,
        topic: str,
        indexes: Iterable[int],
        *,
        name: str = "",
        pace_s: float = PACE_S,
    ) -> None:
        super().__init__(f"{name or self.client} writer", bootstrap, topic, indexes)
        self.history = history
        self.writer = Writer(name or self.client)
        self.pace_s = pace_s

    def sends(self) -> Iterator[Send]:
        """Yield the next record to send, until the writer is stopped."""
        for index in itertools.cycle(self.indexes):
            if self.is_stopping.is_set():
                return
            yield self.history.send(self.writer, self.topic, index)


class ConfluentWriting(Writing):
    client = confluent.NAME
    promises: ClassVar[dict[str, object]] = {"enable.idempotence": True}

    def work(self) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                **self.promises,
                "message.timeout.ms": int(PATIENCE_S * 1000),
                "request.timeout.ms": ANSWER_MS,
                "socket.timeout.ms": ANSWER_MS,
                "log_level": 2,
                "reconnect.backoff.ms": 50,
                "reconnect.backoff.max.ms": 500,
                "retry.backoff.ms": 50,
                "retry.backoff.max.ms": 500,
                "topic.metadata.refresh.fast.interval.ms": 50,
                "linger.ms": 5,
            }
        )
        for send in self.sends():
            delivered = partial(self._delivered, send)
            producer.produce(
                self.topic, send.value, partition=send.partition[1], on_delivery=delivered
            )
            producer.poll(self.pace_s)
        producer.flush(PATIENCE_S)

    def _delivered(self, send: Send, error: KafkaError | None, message: Any) -> None:
        if error is None:
            self.history.acked(send, message.offset())
        else:
            self.history.failed(send, error)


class CarelessWriting(ConfluentWriting):
    """acks=1: its records may be lost, but not once a consumer has read them."""

    client = "careless"
    promises: ClassVar[dict[str, object]] = {"acks": 1, "enable.idempotence": False}

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.writer = Writer(self.writer.name, is_durable=False, is_idempotent=False)


class KafkaPythonWriting(Writing):
    client = kafka_python.NAME

    def work(self) -> None:
        producer = KafkaProducer(
            bootstrap_servers=self.bootstrap,
            acks="all",
            enable_idempotence=True,
            delivery_timeout_ms=int(PATIENCE_S * 1000),
            request_timeout_ms=ANSWER_MS,
            max_block_ms=int(PATIENCE_S * 1000),
            reconnect_backoff_max_ms=500,
            linger_ms=5,
        )
        with closing(producer):
            for send in self.sends():
                try:
                    future = producer.send(
                        self.topic, value=send.value, partition=send.partition[1]
                    )
                except PythonKafkaError as error:
                    self.history.failed(send, error)
                    continue
                future.add_callback(self._acked, send)
                future.add_errback(partial(self.history.failed, send))
                time.sleep(self.pace_s)
            producer.flush(PATIENCE_S)

    def _acked(self, send: Send, metadata: Any) -> None:
        self.history.acked(send, metadata.offset)


class AioWriting(Writing):
    client = aio.NAME

    def work(self) -> None:
        asyncio.run(self._work())

    async def _work(self) -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=self.bootstrap,
            acks="all",
            enable_idempotence=True,
            # It gives up on a record after its request timeout.
            request_timeout_ms=int(PATIENCE_S * 1000),
            linger_ms=5,
        )
        await producer.start()
        try:
            for send in self.sends():
                future = await producer.send(
                    self.topic, value=send.value, partition=send.partition[1]
                )
                future.add_done_callback(partial(self._delivered, send))
                await asyncio.sleep(self.pace_s)
            await asyncio.wait_for(producer.flush(), PATIENCE_S)
        finally:
            await producer.stop()

    def _delivered(self, send: Send, future: asyncio.Future[Any]) -> None:
        error = None if future.cancelled() else future.exception()
        if future.cancelled() or error is not None:
            self.history.failed(send, error or "cancelled")
        else:
            self.history.acked(send, future.result().offset)


class KcatWriting(Writing):
    """A kcat per partition, fed by a pipe.  At its end it reports whether all was delivered.

    kcat exits when it has lost its connections to all brokers, even one after the other.  Then a
    new kcat continues as another writer: records of the first may still be written.
    """

    client = kcat.NAME
    SETTINGS: ClassVar[dict[str, object]] = {
        "enable.idempotence": "true",
        "message.timeout.ms": int(PATIENCE_S * 1000),
        "request.timeout.ms": ANSWER_MS,
        "socket.timeout.ms": ANSWER_MS,
        "reconnect.backoff.max.ms": 500,
        "linger.ms": 5,
    }

    def work(self) -> None:
        children = {index: self._start(index) for index in self.indexes}
        sent: dict[int, list[Send]] = {index: [] for index in self.indexes}
        generations = itertools.count(2)
        for send in self.sends():
            index = send.partition[1]
            sent[index].append(send)
            try:
                children[index].stdin.write(send.value + b"\n")
                children[index].stdin.flush()
            except BrokenPipeError:
                self._settle(children[index], sent[index])
                self.writer = Writer(f"{self.client}-{next(generations)}")
                children[index], sent[index] = self._start(index), []
            time.sleep(self.pace_s)
        for index in self.indexes:
            self._settle(children[index], sent[index])

    def _settle(self, child: subprocess.Popen[bytes], sent: list[Send]) -> None:
        with contextlib.suppress(BrokenPipeError):
            child.stdin.close()
        said = child.stderr.read()
        code = child.wait(PATIENCE_S + 5)
        child.stderr.close()
        for send in sent:
            if code != 0 or b"Delivery failed" in said:
                reason = GAVE_UP if b"brokers are down: terminating" in said else ""
                self.history.failed(send, reason + said.decode(errors="replace")[-500:])
            else:
                self.history.acked(send)

    def _start(self, index: int) -> subprocess.Popen[bytes]:
        command = ["kcat", "-P", "-b", self.bootstrap, "-t", self.topic, "-p", str(index)]
        for name, value in self.SETTINGS.items():
            command += ["-X", f"{name}={value}"]
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )


# -- readers -----------------------------------------------------------------------------------


class Reader(Worker):
    """Reads all partitions from their start."""

    def __init__(
        self, history: History, bootstrap: str, topic: str, indexes: Iterable[int]
    ) -> None:
        super().__init__(f"{self.client} reader", bootstrap, topic, indexes)
        self.reading: Reading = history.reader(self.client)
        self._ends: dict[Partition, int] = {}
        self._deadline_s = float("inf")

    def finish_at(self, ends: dict[Partition, int]) -> None:
        """Read to these ends, within a limit, and stop."""
        self._ends = ends
        self._deadline_s = time.monotonic() + PATIENCE_S
        self.is_stopping.set()

    def is_done(self) -> bool:
        if not self.is_stopping.is_set():
            return False
        if time.monotonic() > self._deadline_s:
            return True
        return all(
            self.reading.next_offset(partition) >= end for partition, end in self._ends.items()
        )

    def note(self, index: int, offset: int, value: bytes | None) -> None:
        self.reading.records[self.topic, index].append((offset, value))


class ConfluentReader(Reader):
    client = confluent.NAME

    def work(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": "unused",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "auto.offset.reset": "error",
                "log_level": 2,
                "socket.timeout.ms": ANSWER_MS,
                "reconnect.backoff.max.ms": 500,
                "retry.backoff.ms": 50,
                "fetch.error.backoff.ms": 50,
                "topic.metadata.refresh.fast.interval.ms": 50,
                "check.crcs": True,
            }
        )
        with closing(consumer):
            consumer.assign([TopicPartition(self.topic, index, 0) for index in self.indexes])
            while not self.is_done():
                for message in consumer.consume(1000, 0.1):
                    error = message.error()
                    if error is None:
                        partition, offset = message.partition(), message.offset()
                        assert partition is not None
                        assert offset is not None
                        self.note(partition, offset, message.value())
                    elif not error.retriable() and error.code() not in CONFLUENT_GETS_OVER:
                        self.reading.errors.append(str(error))


CONFLUENT_GETS_OVER = {KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT}


class KafkaPythonReader(Reader):
    client = kafka_python.NAME

    def work(self) -> None:
        consumer = KafkaConsumer(
            bootstrap_servers=self.bootstrap,
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="none",
            request_timeout_ms=ANSWER_MS,
            reconnect_backoff_max_ms=500,
        )
        with closing(consumer):
            wanted = [PythonTopicPartition(self.topic, index) for index in self.indexes]
            consumer.assign(wanted)
            for partition in wanted:
                consumer.seek(partition, 0)
            while not self.is_done():
                try:
                    found = consumer.poll(timeout_ms=200, max_records=1000)
                except UnknownBrokerIdError:
                    # The broker left the metadata between two steps of the client.
                    continue
                except PythonKafkaError as error:
                    if not error.retriable:
                        self.reading.errors.append(repr(error))
                        return
                    continue
                for records in found.values():
                    for record in records:
                        self.note(record.partition, record.offset, record.value)


class AioReader(Reader):
    client = aio.NAME

    def work(self) -> None:
        asyncio.run(self._work())

    async def _work(self) -> None:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self.bootstrap,
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="none",
            request_timeout_ms=ANSWER_MS,
        )
        await consumer.start()
        try:
            wanted = [AioTopicPartition(self.topic, index) for index in self.indexes]
            consumer.assign(wanted)
            for partition in wanted:
                consumer.seek(partition, 0)
            while not self.is_done():
                found = await consumer.getmany(timeout_ms=200, max_records=1000)
                for records in found.values():
                    for record in records:
                        self.note(record.partition, record.offset, record.value)
        finally:
            await consumer.stop()


class KcatReader(Reader):
    """A kcat per partition, read line by line; the values contain no line ends.

    kcat exits when no broker can be reached; then a new kcat continues from there.
    """

    client = kcat.NAME
    BROKERS_ARE_DOWN = ("connections are down", "Failed to query metadata")
    SETTINGS: ClassVar[dict[str, object]] = {
        "topic.auto.offset.reset": "error",
        "socket.timeout.ms": ANSWER_MS,
        "reconnect.backoff.max.ms": 500,
        "check.crcs": "true",
    }

    def work(self) -> None:
        parts = [threading.Thread(target=self._read, args=(index,)) for index in self.indexes]
        for part in parts:
            part.start()
        for part in parts:
            part.join()

    def _read(self, index: int) -> None:
        while not self.is_done():
            child = self._start(index)
            lines = threading.Thread(target=self._take, args=(child.stdout,))
            lines.start()
            while not self.is_done() and child.poll() is None:
                time.sleep(0.05)
            has_ended = child.poll() is not None
            child.kill()
            child.wait()
            lines.join()
            said = child.stderr.read().decode(errors="replace")
            child.stdout.close()
            child.stderr.close()
            if has_ended and not any(text in said for text in self.BROKERS_ARE_DOWN):
                self.reading.errors.append(f"kcat ended with {child.returncode}: {said[-500:]}")
                return

    def _start(self, index: int) -> subprocess.Popen[bytes]:
        first = self.reading.next_offset((self.topic, index))
        command = ["kcat", "-C", "-q", "-u", "-b", self.bootstrap, "-t", self.topic]
        command += ["-p", str(index), "-o", str(first), "-f", r"%p %o %s\n"]
        for name, value in self.SETTINGS.items():
            command += ["-X", f"{name}={value}"]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def _take(self, pipe: Any) -> None:
        for line in pipe:
            if line.endswith(b"\n"):
                index, offset, value = line.rstrip(b"\n").split(b" ", 2)
                self.note(int(index), int(offset), value)


WRITERS: dict[str, type[Writing]] = {
    writer.client: writer
    for writer in (ConfluentWriting, KafkaPythonWriting, AioWriting, KcatWriting, CarelessWriting)
}
READERS: dict[str, type[Reader]] = {
    reader.client: reader for reader in (ConfluentReader, KafkaPythonReader, AioReader, KcatReader)
}


def installed() -> list[str]:
    """Return the clients that are installed on this machine."""
    return [name for name in READERS if name != kcat.NAME or kcat.is_installed()]


# -- all clients -------------------------------------------------------------------------------


class Load:
    """Every client writes and reads one topic, until the end of the `with` block.

    Then the writers stop and check that all sends were acknowledged (except for clients that
    `may_fail`, and for kcat where it exited), the readers reach the end, and the history is
    checked. After a failure of the test, the history is not checked.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        partitions: int,
        *,
        clients: Iterable[str] | None = None,
        pace_s: float = PACE_S,
        may_fail: Iterable[str] = (),
    ) -> None:
        self.bootstrap = bootstrap
        self.topic = topic
        self.indexes = range(partitions)
        self.history = History()
        self.may_fail = tuple(may_fail)
        names = list(clients if clients is not None else installed())
        given = (self.history, bootstrap, topic, self.indexes)
        self.writers = [WRITERS[name](*given, pace_s=pace_s) for name in names]
        self.readers = [READERS[name](*given) for name in names if name in READERS]

    def __enter__(self) -> Self:
        # It logs every broken connection with a traceback, which keeps the socket open.
        logging.getLogger("kafka").setLevel(logging.CRITICAL)
        for worker in (*self.readers, *self.writers):
            worker.start()
        self.wait_for_acks()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for writer in self.writers:
            writer.is_stopping.set()
        if kind is not None:
            for reader in self.readers:
                reader.finish_at({})
            for worker in (*self.writers, *self.readers):
                worker.join(5)
            return
        self._finish()

    def _finish(self) -> None:
        for writer in self.writers:
            writer.ended()
        logs = {
            (self.topic, index): read_log(self.bootstrap, self.topic, index, self.history)
            for index in self.indexes
        }
        ends = {partition: len(log) for partition, log in logs.items()}
        for reader in self.readers:
            reader.finish_at(ends)
        for reader in self.readers:
            reader.ended()
        self.history.checked(logs)
        unacked = [
            (send.value, send.error)
            for send in self.history.unacked_sends()
            if not send.writer.name.startswith(self.may_fail) and not send.error.startswith(GAVE_UP)
        ]
        assert not unacked, f"{len(unacked)} were not acknowledged: {unacked[:10]}"

    def wait_for_acks(self, limit_s: float = 30.0) -> None:
        """Wait until every partition has acknowledged a send that began from now on."""
        began = time.monotonic()
        while True:
            acked = {
                send.partition[1]
                for send in self.history.acked_sends()
                if send.begun_s >= began and send.offset is not None and send.writer.is_durable
            }
            if acked.issuperset(self.indexes):
                return
            missing = sorted(set(self.indexes) - acked)
            assert time.monotonic() < began + limit_s, f"no acknowledgements in {missing}"
            for writer in self.writers:
                if not writer.is_alive():
                    writer.ended()  # raises its error
            time.sleep(0.02)

    def longest_stall_s(self, since_s: float = 0.0) -> float:
        return max(self.history.stalls_s(since_s).values(), default=0.0)


def read_log(
    bootstrap: str, topic: str, index: int, history: History | None = None
) -> list[tuple[int, bytes | None]]:
    """Return a partition from its first offset to its end, read by a new client.

    Acknowledged records must become readable, so it waits for them, within a limit.
    """
    expected = history.ends().get((topic, index), 0) if history is not None else 0
    where = TopicPartition(topic, index)
    deadline = time.monotonic() + 30
    found: list[tuple[int, bytes | None]] = []
    with confluent.consumer(bootstrap) as consumer:
        end = -1
        while end < expected and time.monotonic() < deadline:
            try:
                first, end = consumer.get_watermark_offsets(where, timeout=5)
            except KafkaException:
                time.sleep(0.1)
        assert end >= 0, f"no broker tells where {topic}/{index} ends"
        consumer.assign([TopicPartition(topic, index, first)])
        while (not found or found[-1][0] + 1 < end) and first < end:
            assert time.monotonic() < deadline, f"read {len(found)} of {end} in {topic}/{index}"
            for message in consumer.consume(1000, 0.5):
                assert message.error() is None, message.error()
                offset = message.offset()
                assert offset is not None
                found.append((offset, message.value()))
    return found
