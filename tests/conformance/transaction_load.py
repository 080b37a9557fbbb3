"""Producers that write transactions during faults of the brokers.

Each client has a producer in a thread.  A transaction has records for every partition and perhaps
the offset of a group, and every fourth one is aborted.  A producer that gets an error is closed,
and another one with the same transactional id continues.  Meanwhile a reader reads the committed
records.  A `TransactionHistory` notes every event, and checks them at the end.

    with TransactionLoad(cluster, topic, partitions=3) as load:
        cluster.kill(2)
        load.wait_for_commits()
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from typing import Any, Self

from confluent_kafka import Consumer, TopicPartition

from tests.conformance.adapters import Record, Refused, aio, confluent
from tests.conformance.adapters.transactional import PRODUCERS
from tests.conformance.raw_transactions import positions
from tests.conformance.transaction_history import Fate, TransactionHistory
from tests.conformance.workload import CONFLUENT_GETS_OVER

TIMEOUT_MS = 10_000
PATIENCE_S = 60.0
# Not kafka-python's: its producer waits for ever after its coordinator was unreachable once.
ENDURING = (confluent.NAME, aio.NAME)
# librdkafka waits without limit for a former coordinator of its group, until any broker joins or
# leaves; a supervisor ends copiers of confluent-kafka then.
WITHOUT_OFFSETS = confluent.NAME
CLIENTS_DURING_OUTAGES = (aio.NAME,)
LAST = b"the last record"


class TransactionalWriter(threading.Thread):
    def __init__(self, load: TransactionLoad, client: str) -> None:
        super().__init__(name=f"{client} transactions", daemon=True)
        self.client = client
        self.group = f"positions-{client}-{load.topic}"
        self.transactional_id = f"load-{client}-{load.topic}"
        self.starts = 0
        self.refusals: list[str] = []
        self.failure: BaseException | None = None
        self._load = load
        self._numbers = itertools.count(1)

    def run(self) -> None:
        try:
            while not self._load.is_stopping.is_set():
                self._live()
        except BaseException as failure:
            self.failure = failure

    def _live(self) -> None:
        history = self._load.history
        instance = history.producer(self.transactional_id)
        self.starts += 1
        made = PRODUCERS[self.client]
        try:
            producer = made(self._load.cluster.bootstrap, self.transactional_id, TIMEOUT_MS)
        except (Refused, TimeoutError) as refusal:
            self.refusals.append(f"init: {refusal}")
            return
        history.ready(instance)
        try:
            while not self._load.is_stopping.is_set():
                self._transact(producer, instance)
                time.sleep(self._load.pace_s)
        except (Refused, TimeoutError) as refusal:
            self.refusals.append(str(refusal))
        finally:
            producer.close()

    def _transact(self, producer: Any, instance: Any) -> None:
        load, history = self._load, self._load.history
        number = next(self._numbers)
        transaction = history.begin(instance)
        producer.begin()
        for _ in range(2):
            for index in load.indexes:
                producer.send(load.topic, history.send(transaction, load.topic, index), index)
        if self.client != WITHOUT_OFFSETS:
            transaction.positions[self.group, 0] = number
            producer.offsets({(load.topic, 0): number}, self.group)
        if number % 4 == 0:
            producer.abort()
            history.ended(transaction, Fate.ABORTED)
            return
        history.commit_asked(transaction)
        producer.commit()
        history.ended(transaction, Fate.COMMITTED)


class CommittedReader(threading.Thread):
    """Reads committed records as they come, up to the last record of each partition."""

    def __init__(self, load: TransactionLoad) -> None:
        super().__init__(name="committed reader", daemon=True)
        self.reading = load.history.reader("confluent-kafka")
        self.is_given_up = threading.Event()
        self.ended: set[int] = set()
        self.errors: list[str] = []
        self._load = load

    def run(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self._load.cluster.bootstrap,
                "group.id": "unused",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "isolation.level": "read_committed",
                "log_level": 2,
                "reconnect.backoff.max.ms": 500,
                "fetch.error.backoff.ms": 50,
                "topic.metadata.refresh.fast.interval.ms": 50,
            }
        )
        with closing(consumer):
            indexes = self._load.indexes
            consumer.assign([TopicPartition(self._load.topic, index, 0) for index in indexes])
            while len(self.ended) < len(indexes) and not self.is_given_up.is_set():
                for message in consumer.consume(1000, 0.1):
                    self._take(message)

    def _take(self, message: Any) -> None:
        error = message.error()
        if error is not None:
            if not error.retriable() and error.code() not in CONFLUENT_GETS_OVER:
                self.errors.append(str(error))
        elif message.value() == LAST:
            self.ended.add(message.partition())
        else:
            place = (self._load.topic, message.partition())
            self._load.history.read(self.reading, place, message.offset(), message.value())


class TransactionLoad:
    """The producers and the reader of one topic, until the end of the `with` block."""

    def __init__(
        self,
        cluster: Any,
        topic: str,
        partitions: int,
        *,
        clients: Iterable[str] = ENDURING,
        pace_s: float = 0.05,
    ) -> None:
        self.cluster = cluster
        self.topic = topic
        self.indexes = range(partitions)
        self.pace_s = pace_s
        self.history = TransactionHistory()
        self.is_stopping = threading.Event()
        self.writers = [TransactionalWriter(self, client) for client in clients]
        self.reader = CommittedReader(self)

    def __enter__(self) -> Self:
        # It logs every broken connection with a traceback, which keeps the socket open.
        logging.getLogger("kafka").setLevel(logging.CRITICAL)
        logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
        self.reader.start()
        for writer in self.writers:
            writer.start()
        self.wait_for_commits()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.is_stopping.set()
        for writer in self.writers:
            writer.join(PATIENCE_S if kind is None else 1)
        if kind is None:
            self._finish()
        self.reader.is_given_up.set()
        self.reader.join(5)

    def _finish(self) -> None:
        for writer in self.writers:
            assert not writer.is_alive(), f"{writer.name} does not come to an end"
            assert writer.failure is None, (writer.name, writer.failure)
        self._end_what_is_open()
        for index in self.indexes:
            confluent.produce(self.cluster.bootstrap, self.topic, [Record(LAST)], partition=index)
        self.reader.join(PATIENCE_S)
        assert not self.reader.is_alive(), f"the reader ended only in {self.reader.ended}"
        assert not self.reader.errors, self.reader.errors
        logs = {
            (self.topic, index): [
                record[:2] for record in self.reader.reading.records[self.topic, index]
            ]
            for index in self.indexes
        }
        groups = {}
        for writer in self.writers:
            ((offset, _),) = positions(self.cluster, writer.group, self.topic, 0, stable=True)
            if offset >= 0:
                groups[writer.group, 0] = offset
        self.history.checked(logs, groups)

    def _end_what_is_open(self) -> None:
        """Abort the transactions of stopped producers, through their successors."""
        for writer in self.writers:
            PRODUCERS[writer.client](self.cluster.bootstrap, writer.transactional_id).close()

    def wait_for_commits(
        self, count: int = 2, limit_s: float = 40.0, *, clients: Iterable[str] = ENDURING
    ) -> None:
        """Wait until these clients have committed so many transactions that begin from now on."""
        began_s = time.monotonic()
        wanted = {writer.transactional_id for writer in self.writers if writer.client in clients}
        while True:
            counts = Counter(
                transaction.producer.transactional_id
                for transaction in self.history.committed()
                if transaction.begun_s >= began_s
            )
            if all(counts[client] >= count for client in wanted):
                return
            told = {writer.client: (writer.starts, writer.refusals[-3:]) for writer in self.writers}
            assert time.monotonic() < began_s + limit_s, (counts, told)
            for writer in self.writers:
                assert writer.is_alive(), (writer.name, writer.failure)
            time.sleep(0.02)
