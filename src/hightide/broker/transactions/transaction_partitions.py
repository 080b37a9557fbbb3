"""The partitions of `__transaction_state` that this broker leads, and so coordinates.

The transactional id determines the partition.  A broker that does not lead it answers clients with
NOT_COORDINATOR.  The leaders of data partitions send their verifications (`verify`) to the
coordinator, over the network if it is another broker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from hightide.broker.coordinator_log import CoordinatorLog
from hightide.broker.coordinator_lookup import CoordinatorType, known_coordinator
from hightide.broker.replication.replica import Replica
from hightide.broker.transactions.marker_delivery import MarkerDelivery
from hightide.broker.transactions.marker_fencing import MarkerFencing
from hightide.broker.transactions.transaction_partition import TransactionPartition
from hightide.client.broker_connection import CODES, ConnectionFailed
from hightide.core.controller.cluster_state import Partition
from hightide.core.metadata.topic_names import TRANSACTION_STATE, partition_for
from hightide.core.transactions.transaction import Producer
from hightide.core.transactions.transaction_coordinator import (
    Answer,
    Changes,
    Limits,
    TransactionCoordinator,
)
from hightide.settings import Broker as Settings
from hightide.wire.errors import ErrorCode, KafkaError
from hightide.wire.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)

if TYPE_CHECKING:
    from hightide.broker.broker import Broker

log = logging.getLogger(__name__)

_PURPOSE = "verification"
_VERIFY_MS = 10_000
_COMPLETION_S = 0.1

PendingAnswer = Answer | Awaitable[Answer]
"""An answer, or an awaitable of it."""
Decide = Callable[[TransactionCoordinator, int, int | None], Changes]
"""Passes a request to the coordinator, with the time and, if it asked for one, a producer id."""


class TransactionPartitions:
    """The transaction coordinators of this broker, by partition."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.partitions: dict[int, TransactionPartition] = {}
        self._marker_delivery = MarkerDelivery(broker)
        self.marker_fencing = MarkerFencing(lambda: broker.broker_epoch)
        # Verifications sent to other brokers: the transactional id, and the broker's id.
        self._verifications: dict[asyncio.Future[Any], tuple[str, int]] = {}

    # -- changes ---------------------------------------------------------------------------

    def role_changed(self, replica: Replica) -> None:
        """Start, restart or stop the coordinator of a partition whose leader has changed."""
        former = self.partitions.get(replica.partition)
        if former is not None:
            if former.coordinator_log.replica is not replica and replica.leader is None:
                return  # the replica belongs to a deleted topic of the same name
            del self.partitions[replica.partition]
            former.resign()
        if replica.leader is not None:
            broker = self._broker
            self.partitions[replica.partition] = TransactionPartition(
                CoordinatorLog(replica, broker.flusher),
                self._marker_delivery,
                _limits(self._broker.settings),
                broker.now_ms,
                lambda: broker.settings.request_timeout_ms,
                self._count_ids,
            )

    def _count_ids(self) -> int:
        return sum(coordinator.id_count for coordinator in self.coordinators)

    def cluster_changed(self) -> None:
        """Send markers and verifications elsewhere if other brokers lead now."""
        self._marker_delivery.cluster_changed()
        for sent, (transactional_id, coordinator_id) in list(self._verifications.items()):
            if self._coordinator_id(transactional_id) != coordinator_id:
                sent.cancel()

    def settings_changed(self) -> None:
        for partition in self.partitions.values():
            partition.configured(_limits(self._broker.settings))

    async def stop(self) -> None:
        """Stop coordinating; pending requests get NOT_COORDINATOR."""
        partitions, self.partitions = self.partitions, {}
        for partition in partitions.values():
            partition.resign()
        await self._marker_delivery.stop()

    # -- requests of clients ----------------------------------------------------------------

    @property
    def coordinators(self) -> list[TransactionCoordinator]:
        return [partition.coordinator for partition in self.partitions.values()]

    def coordinator(self, transactional_id: str) -> TransactionCoordinator | None:
        """Return the coordinator of a transactional id, if this broker has it."""
        partition = self.find(transactional_id)
        return None if partition is None else partition.coordinator

    def find(self, transactional_id: str) -> TransactionPartition | None:
        topic = self._broker.metadata_image.topic(TRANSACTION_STATE)
        if topic is None or not topic.partitions:
            return None
        return self.partitions.get(partition_for(transactional_id, len(topic.partitions)))

    def ask(
        self, transactional_id: str, decide: Decide, *, waits_for_completion: bool = False
    ) -> PendingAnswer:
        """Let the coordinator of a transactional id decide a request, and carry it out.

        With `waits_for_completion`, a request that comes while the last transaction is still being
        completed waits a little before it gets CONCURRENT_TRANSACTIONS: clients back off for longer
        than the completion takes.
        """
        partition = self.find(transactional_id)
        if partition is None:
            return self._answer_as_other_broker(decide)
        changes = decide(partition.coordinator, self._broker.now_ms(), None)
        if changes.answer is not None and not self._broker.zookeeper.is_sure:
            # Another broker may be the coordinator now.  A write would show that, an answer from
            # memory does not.
            return Answer(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if changes.needs_producer_id:
            return self._ask_with_producer_id(transactional_id, decide)
        answer = partition.carry_out(changes)
        if waits_for_completion and _is_concurrent(answer):
            return self._retry_while_concurrent(transactional_id, decide)
        return answer

    async def _retry_while_concurrent(self, transactional_id: str, decide: Decide) -> Answer:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _COMPLETION_S
        while True:
            answer = self.ask(transactional_id, decide)
            partition, left_s = self.find(transactional_id), deadline - loop.time()
            if not _is_concurrent(answer) or partition is None or left_s <= 0:
                return answer if isinstance(answer, Answer) else await answer
            await partition.changed(transactional_id, left_s)

    def _answer_as_other_broker(self, decide: Decide) -> Answer:
        """Answer as a broker that is not the coordinator.

        A request that every coordinator refuses gets that error, the others NOT_COORDINATOR.
        """
        answer = decide(TransactionCoordinator(-1, _limits(self._broker.settings)), 0, None).answer
        if answer is None or answer.error == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            return Answer(ErrorCode.NOT_COORDINATOR)
        return answer

    async def _ask_with_producer_id(self, transactional_id: str, decide: Decide) -> Answer:
        try:
            producer_id = await self._broker.producer_ids.next()
        except KafkaError as error:
            return Answer(error.code)
        # Another broker may be the coordinator by now, or this one in another leader epoch.
        partition = self.find(transactional_id)
        if partition is None:
            return self._answer_as_other_broker(decide)
        now_ms = self._broker.now_ms()
        answer = partition.carry_out(decide(partition.coordinator, now_ms, producer_id))
        return answer if isinstance(answer, Answer) else await answer

    # -- verification by leaders of partitions ----------------------------------------------

    def verification(
        self, transactional_id: str, producer: Producer, partitions: Iterable[Partition]
    ) -> Mapping[Partition, ErrorCode]:
        """Return for each partition whether a transaction coordinated here contains it."""
        partition = self.find(transactional_id)
        if partition is None:
            return dict.fromkeys(partitions, ErrorCode.NOT_COORDINATOR)
        if not self._broker.zookeeper.is_sure:
            # Another broker may be the coordinator now, and may have ended the transaction.
            return dict.fromkeys(partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return partition.coordinator.verification_asked(transactional_id, producer, partitions)

    def verify_now(
        self, transactional_id: str, producer: Producer, partition: Partition
    ) -> ErrorCode | None:
        """Verify that a transaction contains a partition; None if another broker coordinates it."""
        if self._coordinator_id(transactional_id) != self._broker.broker_id:
            return None
        return self.verification(transactional_id, producer, (partition,))[partition]

    async def verify(
        self, transactional_id: str, producer: Producer, partition: Partition
    ) -> ErrorCode:
        """Verify that a transaction contains a partition, wherever the coordinator is."""
        broker, coordinator_id = self._broker, self._coordinator_id(transactional_id)
        if coordinator_id == broker.broker_id:
            return self.verification(transactional_id, producer, (partition,))[partition]
        listener = broker.settings.inter_broker_listener()
        endpoint = broker.metadata_image.endpoint(coordinator_id, listener)
        if endpoint is None:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        sent = asyncio.ensure_future(
            broker.peers.send(
                endpoint,
                _verify_request(transactional_id, producer, partition),
                timeout_ms=_VERIFY_MS,
                purpose=_PURPOSE,
            )
        )
        self._verifications[sent] = transactional_id, coordinator_id
        try:
            await asyncio.wait([sent])
        finally:
            del self._verifications[sent]
            sent.cancel()
        failure = None if sent.cancelled() else sent.exception()
        # A new coordinator may know better.  `cluster_changed` cancels requests to the old one.
        if sent.cancelled() or self._coordinator_id(transactional_id) != coordinator_id:
            return ErrorCode.NOT_COORDINATOR
        if isinstance(failure, ConnectionFailed):
            log.info("the coordinator of %r cannot be reached: %s", transactional_id, failure)
            return ErrorCode.NETWORK_EXCEPTION
        return _verdict(sent.result())

    def _coordinator_id(self, transactional_id: str) -> int:
        return known_coordinator(self._broker, CoordinatorType.TRANSACTION, transactional_id)


def _limits(settings: Settings) -> Limits:
    return Limits(
        settings.transaction_max_timeout_ms,
        settings.transactional_id_expiration_ms,
        settings.transaction_abort_timed_out_transaction_cleanup_interval_ms,
        settings.transaction_remove_expired_transaction_cleanup_interval_ms,
        settings.transactional_id_max_count,
    )


def _is_concurrent(answer: PendingAnswer) -> bool:
    return isinstance(answer, Answer) and answer.error == ErrorCode.CONCURRENT_TRANSACTIONS


def _verify_request(
    transactional_id: str, producer: Producer, partition: Partition
) -> AddPartitionsToTxnRequest:
    name, index = partition
    return AddPartitionsToTxnRequest(
        transactions=[
            AddPartitionsToTxnTransaction(
                transactional_id=transactional_id,
                producer_id=producer.id,
                producer_epoch=producer.epoch,
                verify_only=True,
                topics=[AddPartitionsToTxnTopic(name=name, partitions=[index])],
            )
        ]
    )


def _verdict(response: AddPartitionsToTxnResponse) -> ErrorCode:
    """Return the error of a response about one partition, or NONE."""
    code = response.error_code
    for transaction in response.results_by_transaction:
        for topic in transaction.topic_results:
            for result in topic.results_by_partition:
                code = code or result.partition_error_code
    return CODES.get(code, ErrorCode.UNKNOWN_SERVER_ERROR)
