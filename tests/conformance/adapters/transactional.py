"""Transactional producers of three clients behind one small interface.

A producer takes its transactional id when it is created, which fences the previous producer.  An
error of the broker is raised as `Refused`.  `send` only queues a record; `flush` returns when all
records are acknowledged, and `commit` flushes first.
"""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import contextmanager

import confluent_kafka
import kafka
from aiokafka import AIOKafkaProducer
from aiokafka import TopicPartition as AioTopicPartition
from aiokafka.errors import KafkaError as AioKafkaError
from kafka.errors import KafkaError as PythonKafkaError
from kafka.structs import OffsetAndMetadata

from tests.conformance.adapters import DEADLINE_S, aio, confluent, kafka_python

PATIENCE_MS = int(DEADLINE_S * 1000)
FENCED = {"_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH", "ProducerFenced"}
"""The names of the error that another producer has taken over, by client."""


class Confluent:
    NAME = confluent.NAME

    def __init__(self, bootstrap, transactional_id, timeout_ms=60_000, **settings):
        self._failures = []
        # Consumers without a group and without a connection: only a consumer can name a group.
        self._strangers = {}
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": timeout_ms,
                "message.timeout.ms": min(timeout_ms, PATIENCE_MS),
                "linger.ms": 2,
                "retry.backoff.ms": 20,
                "log_level": 0,
                **settings,
            }
        )
        self._call(self._producer.init_transactions, DEADLINE_S)

    def _call(self, work, *given):
        try:
            return work(*given)
        except confluent_kafka.KafkaException as error:
            raise confluent.refused(error) from None

    def begin(self):
        self._call(self._producer.begin_transaction)

    def send(self, topic, value, partition=0, key=None):
        work = self._producer.produce
        self._call(lambda: work(topic, value, key, partition, self._delivered))

    def _delivered(self, error, _):
        if error is not None:
            self._failures.append(error)

    def flush(self):
        assert self._producer.flush(DEADLINE_S) == 0, "not all was delivered"
        if self._failures:
            raise confluent.refused(self._failures.pop(0))

    def offsets(self, positions, group):
        """Add offsets by (topic, partition) of a group id, or of a consumer that is its member."""
        places = [
            confluent_kafka.TopicPartition(topic, index, offset)
            for (topic, index), offset in positions.items()
        ]
        if isinstance(group, str):
            group = self._strangers.get(group) or self._strangers.setdefault(
                group, confluent_kafka.Consumer({"group.id": group})
            )
        given = (places, group.consumer_group_metadata(), DEADLINE_S)
        self._call(self._producer.send_offsets_to_transaction, *given)

    def commit(self):
        self._call(self._producer.commit_transaction, DEADLINE_S)

    def abort(self):
        self._call(self._producer.abort_transaction, DEADLINE_S)

    def close(self):
        """Close without a request to the broker: an open transaction stays open."""
        with contextlib.suppress(
            confluent_kafka.KafkaException
        ):  # it raises the fencing error again
            self._producer.purge()
            self._producer.poll(0)
        for stranger in self._strangers.values():
            stranger.close()


class KafkaPython:
    NAME = kafka_python.NAME

    def __init__(self, bootstrap, transactional_id, timeout_ms=60_000, **settings):
        self._futures = []
        self._producer = kafka.KafkaProducer(
            bootstrap_servers=bootstrap,
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            delivery_timeout_ms=PATIENCE_MS + 1000,
            request_timeout_ms=PATIENCE_MS,
            max_block_ms=PATIENCE_MS,
            retry_backoff_ms=20,
            linger_ms=2,
            **settings,
        )
        self._call(self._producer.init_transactions)

    def _call(self, work, *given):
        try:
            return work(*given)
        except PythonKafkaError as error:
            raise kafka_python.refused(error) from None

    def begin(self):
        self._call(self._producer.begin_transaction)

    def send(self, topic, value, partition=0, key=None):
        work = self._producer.send
        self._futures.append(self._call(lambda: work(topic, value, key, partition=partition)))

    def flush(self):
        self._call(self._producer.flush, DEADLINE_S)
        futures, self._futures = self._futures, []
        for future in futures:
            self._call(future.get, DEADLINE_S)

    def offsets(self, positions, group):
        places = {
            kafka.TopicPartition(*where): OffsetAndMetadata(at, "", -1)
            for where, at in positions.items()
        }
        member = group if isinstance(group, str) else group.group_metadata()
        self._call(self._producer.send_offsets_to_transaction, places, member)

    def commit(self):
        self._call(self._producer.commit_transaction)

    def abort(self):
        self._call(self._producer.abort_transaction)

    def close(self):
        self._producer.close(0)


class Aio:
    NAME = aio.NAME

    def __init__(self, bootstrap, transactional_id, timeout_ms=60_000, **settings):
        self._futures = []
        self._runner = asyncio.Runner()
        self._producer = self._runner.run(
            self._made(
                bootstrap_servers=bootstrap,
                transactional_id=transactional_id,
                transaction_timeout_ms=timeout_ms,
                request_timeout_ms=PATIENCE_MS,
                retry_backoff_ms=20,
                **settings,
            )
        )
        self._run(self._producer.start())

    async def _made(self, **settings):
        return AIOKafkaProducer(**settings)

    def _run(self, work):
        async def bounded():
            return await asyncio.wait_for(work, DEADLINE_S)

        try:
            return self._runner.run(bounded())
        except AioKafkaError as error:
            raise aio.refused(error) from None

    def begin(self):
        self._run(self._producer.begin_transaction())

    def send(self, topic, value, partition=0, key=None):
        work = self._producer.send(topic, value, key, partition)
        self._futures.append(self._run(work))

    def flush(self):
        futures, self._futures = self._futures, []
        for future in futures:
            self._run(future)

    def offsets(self, positions, group):
        """aiokafka has no group generations here: it sends only the id of the group."""
        places = {AioTopicPartition(*where): at for where, at in positions.items()}
        self._run(self._producer.send_offsets_to_transaction(places, group))

    def commit(self):
        self._run(self._producer.commit_transaction())

    def abort(self):
        self._run(self._producer.abort_transaction())

    def close(self):
        """Close without `stop`, which would wait for undeliverable records."""
        self._runner.run(self._ended())
        self._runner.close()

    async def _ended(self):
        await self._producer._sender.close()
        await self._producer.client.close()
        self._producer._closed = True


PRODUCERS = {client.NAME: client for client in (Confluent, KafkaPython, Aio)}


@contextmanager
def transactional(client, bootstrap, transactional_id, **given):
    """Yield a producer of the client with this name or adapter; close it at the end."""
    made = PRODUCERS[getattr(client, "NAME", client)](bootstrap, transactional_id, **given)
    try:
        yield made
    finally:
        made.close()
