"""Transactions as their producer drives them, apart from any producer object.

A transaction belongs to a transactional id with a producer id and epoch, and not to a connection
or a process.  So one process may begin and end it while others write in it, which is what a driver
and its executors need.  Whoever asks for the producer id anew gets a higher epoch, and fences all
who hold an older one.

The requests are those of the first transaction protocol: partitions are added before they are
written to, and an end keeps the epoch.  Brokers of the second take them as well, and with those a
writer in another process would not learn of the new epoch that each end brings.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from hightide.client.connection import Connection, ConnectionFailed, check
from hightide.client.coordinator_admin import CoordinatorAdmin, CoordinatorKind
from hightide.client.groups import by_topic
from hightide.client.replicas import Partition
from hightide.client.retry import PATIENCE_MS
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
# The last versions that speak the first protocol.
ADD_PARTITIONS_VERSION = 3
ADD_OFFSETS_VERSION = 3
END_VERSION = 4
OFFSET_COMMIT_VERSION = 4
INIT_VERSION = 4

PASSING = frozenset(
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
    """What stands in every batch of a producer."""

    producer_id: int
    epoch: int


class Fenced(KafkaError):
    """A newer producer has taken over the transactional id; this one must stop."""


def fencing(error: KafkaError) -> KafkaError:
    """The same, as what it means."""
    return Fenced(error.code, error.detail) if error.code in FENCING else error


class Transactional(CoordinatorAdmin):
    """The requests to a coordinator that move a transaction on."""

    _wait_s = PATIENCE_MS / 1000
    # The markers of the transaction before take milliseconds, and every transaction waits for them.
    _pause_s = 0.005

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._found: dict[tuple[CoordinatorKind, str], int] = {}

    async def init_producer(
        self, transactional_id: str | None, timeout_ms: int = 60_000
    ) -> Identity:
        """A producer id; that of a transactional id when its earlier transactions have ended."""
        request = InitProducerIdRequest(
            transactional_id=transactional_id, transaction_timeout_ms=timeout_ms
        )

        async def ask(connection: Connection) -> Identity:
            answer = await self._send(connection, request, INIT_VERSION)
            check(answer.error_code, about=transactional_id or "")
            return Identity(answer.producer_id, answer.producer_epoch)

        async def ask_any() -> Identity:
            return await ask(await self._routes.any())

        if transactional_id is None:
            return await self._until_found(ask_any, PASSING)
        return await self._of(transactional_id, ask)

    async def add_partition(
        self, transactional_id: str, identity: Identity, partition: Partition
    ) -> None:
        topic, index = partition
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=transactional_id,
            v3_and_below_producer_id=identity.producer_id,
            v3_and_below_producer_epoch=identity.epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=topic, partitions=[index])],
        )

        async def ask(connection: Connection) -> None:
            answer = await self._send(connection, request, ADD_PARTITIONS_VERSION)
            for each in answer.results_by_topic_v3_and_below:
                for told in each.results_by_partition:
                    check(told.partition_error_code, about=f"{topic}/{index}")

        await self._of(transactional_id, ask)

    async def commit_in_transaction(
        self,
        transactional_id: str,
        identity: Identity,
        group_id: str,
        offsets: Mapping[Partition, tuple[int, str]],
    ) -> None:
        """Offsets of a group without members that count when the transaction commits."""
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
                for each in topic.partitions:
                    check(each.error_code, about=f"{topic.name}/{each.partition_index}")

        await self._of(transactional_id, join)
        await self._of(group_id, commit, CoordinatorKind.GROUP)

    async def end_transaction(
        self, transactional_id: str, identity: Identity, *, commit: bool
    ) -> None:
        """Commit or abort; returns when that is decided.

        Asking again is safe: who has ended a transaction with this epoch is told that it is done.
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

        await self._of(transactional_id, ask)

    async def _of(
        self,
        name: str,
        ask: Callable[[Connection], Awaitable[T]],
        kind: CoordinatorKind = CoordinatorKind.TRANSACTION,
    ) -> T:
        try:
            return await self._at_coordinator(kind, name, ask, PASSING)
        except KafkaError as error:
            raise fencing(error) from error.__cause__

    async def _send(self, connection: Connection, request: object, newest: int) -> Any:
        version = min(newest, connection.version_for(type(request)))
        try:
            return await connection.send(request, version=version, timeout_ms=self._timeout_ms)
        except ConnectionFailed:
            # One that hangs is still open, and would be asked for the next coordinator.
            connection.close()
            raise

    # -- coordinators ------------------------------------------------------------------------

    async def find_coordinator(self, kind: CoordinatorKind, name: str) -> int:
        """The same, remembered until it fails: a transaction has several requests to one."""
        found = self._found.pop((kind, name), None)
        return await super().find_coordinator(kind, name) if found is None else found

    async def _at_coordinator(
        self,
        kind: CoordinatorKind,
        name: str,
        ask: Callable[[Connection], Awaitable[T]],
        again: frozenset[ErrorCode] = frozenset(),
    ) -> T:
        async def attempt(connection: Connection) -> T:
            answer = await ask(connection)
            self._found[kind, name] = self._broker_at(connection)
            return answer

        return await super()._at_coordinator(kind, name, attempt, again)

    async def _is_anybody_there(self) -> bool:
        # Whoever has known brokers waits for them, also when all of them are away.
        return bool(self._routes.nodes) or await super()._is_anybody_there()
