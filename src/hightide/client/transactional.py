"""The requests of a transactional producer, without a producer object.

A transaction belongs to a transactional id with a producer id and epoch, not to a connection or a
process.  So one process can begin and end a transaction while others write in it, as a Spark driver
and its executors do.  The next InitProducerId for the transactional id returns a higher epoch and
fences all producers with an older one.

The requests are those of the first transaction protocol: a partition is added before it is written
to, and EndTxn keeps the epoch.  Brokers of the second protocol (KIP-890) accept them too.  With the
requests of the second protocol every EndTxn raises the epoch, and writers in other processes would
not learn of it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from hightide.client.broker_connection import Connection, ConnectionFailed, check
from hightide.client.model.cluster import Partition, by_topic
from hightide.client.routing import CoordinatorKind, Router
from hightide.wire.errors import ErrorCode, KafkaError
from hightide.wire.messages.produce import InitProducerIdRequest
from hightide.wire.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

T = TypeVar("T")
# The last versions of the first protocol.
ADD_PARTITIONS_VERSION = 3
ADD_OFFSETS_VERSION = 3
END_VERSION = 4
OFFSET_COMMIT_VERSION = 4
INIT_VERSION = 4

TRANSIENT = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
FENCING = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    }
)


class Identity(NamedTuple):
    """The producer id and epoch in every batch of a producer."""

    producer_id: int
    epoch: int


class Fenced(KafkaError):
    """A newer producer has taken over the transactional id; this producer must stop."""


def fencing(error: KafkaError) -> KafkaError:
    """The error as `Fenced` if it means that; otherwise the error itself."""
    return Fenced(error.code, error.detail) if error.code in FENCING else error


class Transactional:
    """The requests that begin, extend and end a transaction.

    The router should be a `long_running` one: it waits for coordinators and remembers them.
    """

    def __init__(self, router: Router) -> None:
        self._router = router

    async def init_producer(
        self, transactional_id: str | None, timeout_ms: int = 60_000
    ) -> Identity:
        """Get a producer id and epoch.

        With a transactional id this waits until its earlier transactions have ended.
        """
        request = InitProducerIdRequest(
            transactional_id=transactional_id, transaction_timeout_ms=timeout_ms
        )

        async def ask(connection: Connection) -> Identity:
            answer = await self._send(connection, request, INIT_VERSION)
            check(answer.error_code, about=transactional_id or "")
            return Identity(answer.producer_id, answer.producer_epoch)

        async def ask_any() -> Identity:
            return await ask(await self._router.any())

        if transactional_id is None:
            return await self._router.retry_coordinator(ask_any, TRANSIENT)
        return await self._ask(transactional_id, ask)

    async def add_partition(
        self, transactional_id: str, identity: Identity, partition: Partition
    ) -> None:
        """Add a partition to the transaction, before the first write to it."""
        topic, index = partition
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=transactional_id,
            v3_and_below_producer_id=identity.producer_id,
            v3_and_below_producer_epoch=identity.epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=topic, partitions=[index])],
        )

        async def ask(connection: Connection) -> None:
            answer = await self._send(connection, request, ADD_PARTITIONS_VERSION)
            for result in answer.results_by_topic_v3_and_below:
                for partition_result in result.results_by_partition:
                    check(partition_result.partition_error_code, about=f"{topic}/{index}")

        await self._ask(transactional_id, ask)

    async def commit_in_transaction(
        self,
        transactional_id: str,
        identity: Identity,
        group_id: str,
        offsets: Mapping[Partition, tuple[int, str]],
    ) -> None:
        """Commit offsets of a group without members as part of the transaction."""
        joining = AddOffsetsToTxnRequest(
            transactional_id=transactional_id,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            group_id=group_id,
        )
        committing = TxnOffsetCommitRequest(
            transactional_id=transactional_id,
            group_id=group_id,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            topics=[
                TxnOffsetCommitRequestTopic(
                    name=topic,
                    partitions=[
                        TxnOffsetCommitRequestPartition(
                            partition_index=index,
                            committed_offset=offsets[topic, index][0],
                            committed_metadata=offsets[topic, index][1],
                        )
                        for index in indexes
                    ],
                )
                for topic, indexes in by_topic(offsets).items()
            ],
        )

        async def join(connection: Connection) -> None:
            answer = await self._send(connection, joining, ADD_OFFSETS_VERSION)
            check(answer.error_code, about=group_id)

        async def commit(connection: Connection) -> None:
            answer = await self._send(connection, committing, OFFSET_COMMIT_VERSION)
            for topic in answer.topics:
                for result in topic.partitions:
                    check(result.error_code, about=f"{topic.name}/{result.partition_index}")

        await self._ask(transactional_id, join)
        await self._ask(group_id, commit, CoordinatorKind.GROUP)

    async def end_transaction(
        self, transactional_id: str, identity: Identity, *, commit: bool
    ) -> None:
        """Commit or abort; returns when the outcome is decided.

        A retry is safe: the coordinator answers a second EndTxn of the same epoch with success.
        """
        request = EndTxnRequest(
            transactional_id=transactional_id,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            committed=commit,
        )

        async def ask(connection: Connection) -> None:
            answer = await self._send(connection, request, END_VERSION)
            check(answer.error_code, about=transactional_id)

        await self._ask(transactional_id, ask)

    async def _ask(
        self,
        name: str,
        ask: Callable[[Connection], Awaitable[T]],
        kind: CoordinatorKind = CoordinatorKind.TRANSACTION,
    ) -> T:
        try:
            return await self._router.ask_coordinator(kind, name, ask, TRANSIENT)
        except KafkaError as error:
            raise fencing(error) from error.__cause__

    async def _send(self, connection: Connection, request: object, newest: int) -> Any:
        version = min(newest, connection.version_for(type(request)))
        try:
            return await connection.send(
                request, version=version, timeout_ms=self._router.timeout_ms
            )
        except ConnectionFailed:
            # A connection that hangs is still open, and the router would use it again.
            connection.close()
            raise
