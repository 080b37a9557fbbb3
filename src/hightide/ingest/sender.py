"""Records to a topic, in rounds: a round is delivered whole before its positions are stored.

At least once: every record of the round is acknowledged, then the positions go to a file. If the
process dies between the two, the round is sent again.

Exactly once: records and positions, which are records of a compacted topic, are one transaction.
The transactional id is the name of the collector: a second collector of that name fences the first,
and the open transaction of a dead one is aborted before positions are read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from hightide.client import librdkafka
from hightide.client.librdkafka import library, raised, sentence
from hightide.ingest.records import Record

ROUND_RETRIES = 20
TRANSACTION_MS = 60_000
# How much librdkafka queues before `send` waits.
QUEUE_KBYTES = 64 << 10


class IngestError(Exception):
    """Collecting cannot continue; the text is for the user."""


class Refused(IngestError):
    """The brokers rejected some records."""


class Stopped(Exception):
    """The collector is to stop while brokers cannot be reached."""


class Sender:
    """Sends records at least once."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        settings: Mapping[str, Any],
        *,
        say: Callable[[str], None],
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self.topic = topic
        self._say = say
        self._is_stopping = is_stopping
        self._refusals: list[Any] = []
        self._producer = producer(
            bootstrap,
            {
                # Errors only: a callback for each record would cost more than producing it.
                "delivery.report.only.error": True,
                **settings,
            },
            say,
        )

    def send(self, records: Iterable[Record], positions: Mapping[str, bytes | None]) -> None:  # noqa: ARG002
        """Deliver a round; this sender does not store the positions."""
        self.queue(records)
        self.flush()

    def flush(self) -> None:
        """Wait until all records are acknowledged, without a time limit."""
        while self._in_words(lambda: self._producer.flush(0.5)):
            if self._is_stopping():
                raise Stopped
        self._check()

    def queue(self, records: Iterable[Record]) -> None:
        def queue() -> None:
            for record in records:
                self._queue_one(self.topic, record)
            self._producer.poll(0)

        self._in_words(queue)

    def _queue_one(self, topic: str, record: Record) -> None:
        while True:
            try:
                self._producer.produce(
                    topic,
                    record.value,
                    record.key,
                    headers=record.headers,
                    on_delivery=self._delivered,
                )
                return
            except BufferError:
                # The queue is full: wait until some records are acknowledged.
                self._producer.poll(0.2)
                self._check()
                if self._is_stopping():
                    raise Stopped from None

    def _in_words(self, call: Callable[[], Any]) -> Any:
        """Call librdkafka, and turn its exceptions into sentences."""
        try:
            return call()
        except (library().KafkaException, SystemError) as error:
            raise self._judged(raised(error) or self._asked(error)) from None

    def _asked(self, error: BaseException) -> Any:
        """Return why librdkafka has ended the producer, if a call did not say."""
        if not self._refusals:
            raise error
        return self._refusals[0]

    def _judged(self, error: Any) -> Exception:
        return IngestError(sentence(error))

    def _delivered(self, error: Any, _: Any) -> None:
        if error is not None:
            self._refusals.append(error)

    def _check(self) -> None:
        if self._refusals:
            count = len(self._refusals)
            raise Refused(f"{count} records were rejected: {sentence(self._refusals[0])}")


class ExactlyOnceSender(Sender):
    """Sends records and positions in transactions."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        settings: Mapping[str, Any],
        *,
        name: str,
        positions_topic: str,
        say: Callable[[str], None],
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        made = {
            "transaction.timeout.ms": TRANSACTION_MS,
            # A record must not outlive its transaction, which an abort ends.
            "message.timeout.ms": TRANSACTION_MS,
            **settings,
            "transactional.id": f"hightide-ingest-{name}",
        }
        super().__init__(bootstrap, topic, made, say=say, is_stopping=is_stopping)
        self.name = name
        self._positions_topic = positions_topic
        self._in_words(lambda: self._retry(self._producer.init_transactions))

    def send(self, records: Iterable[Record], positions: Mapping[str, bytes | None]) -> None:
        round = list(records)
        for attempt in range(ROUND_RETRIES):
            try:
                self._in_words(lambda: self._send_once(round, positions))
                return
            except _Abortable as error:
                if attempt == 0:
                    self._say(f"Repeating a transaction: {error}")
                self._refusals.clear()
                self._in_words(lambda: self._retry(self._producer.abort_transaction))
        raise IngestError(f"A transaction failed {ROUND_RETRIES} times.")

    def _send_once(self, round: list[Record], positions: Mapping[str, bytes | None]) -> None:
        self._producer.begin_transaction()
        try:
            self.queue(round)
            for place, value in positions.items():
                key = f"{self.name}/{place}".encode()
                self._producer.produce(self._positions_topic, value, key)
            self.flush()
        except Refused as error:
            raise _Abortable(str(error)) from None
        except Stopped:
            with contextlib.suppress(library().KafkaException):
                self._producer.abort_transaction(5)
            raise
        self._retry(self._producer.commit_transaction)

    def _retry(self, call: Callable[[float], Any]) -> None:
        """Repeat a transactional call until it succeeds or cannot be retried."""
        kafka = library()
        while True:
            try:
                call(10)
                return
            except kafka.KafkaException as error:
                if not error.args[0].retriable():
                    raise
                if self._is_stopping():
                    raise Stopped from None

    def _asked(self, error: BaseException) -> Any:
        """Ask a fenced producer for the reason, by an abort, which it refuses with it."""
        try:
            self._producer.abort_transaction(0)
        except library().KafkaException as refused:
            return refused.args[0]
        return super()._asked(error)

    def _judged(self, error: Any) -> Exception:
        kafka = library().KafkaError
        if error.txn_requires_abort():
            return _Abortable(sentence(error))
        if error.code() in (kafka._FENCED, kafka.INVALID_PRODUCER_EPOCH):
            return IngestError(
                f"Another `hightide ingest` has started as {self.name}; this one stops."
            )
        return IngestError(sentence(error))


class _Abortable(Exception):
    """The transaction must be aborted, and can be repeated."""


def producer(bootstrap: str, settings: Mapping[str, Any], say: Callable[[str], None]) -> Any:
    made = {
        "client.id": "hightide-ingest",
        "enable.idempotence": True,
        "acks": "all",
        "linger.ms": 5,
        "queue.buffering.max.kbytes": QUEUE_KBYTES,
        # A collector waits for brokers without limit.
        "message.timeout.ms": 0,
        **settings,
    }
    try:
        return librdkafka.producer(bootstrap, made, say)
    except librdkafka.Unusable as error:
        raise IngestError(str(error)) from None
