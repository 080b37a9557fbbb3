"""Who coordinates which transactional id, and what is asked of the coordinators here.

A transactional id is kept by one partition of `__transaction_state`, and whoever leads that
coordinates it.  What clients ask comes to the coordinator's broker, or is refused with
NOT_COORDINATOR; what the leaders of partitions ask (`verify`) goes there, over the network if it
must.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from hightide.broker.coordinator_log import CoordinatorLog
from hightide.broker.coordinator_lookup import Kind, known_coordinator
from hightide.broker.replication.replica import Replica
from hightide.broker.transactions.marker_delivery import Markers
from hightide.broker.transactions.marker_fencing import MarkerFencing
from hightide.broker.transactions.transaction_partition import TransactionPartition
from hightide.client.connection import CODES, ConnectionFailed
from hightide.core.controller.cluster_state import Partition
from hightide.core.metadata.internal_topics import partition_for
from hightide.core.metadata.topic_names import TRANSACTION_STATE
from hightide.core.transactions.transaction import Producer
from hightide.core.transactions.transaction_coordinator import (
    Answer,
    Changes,
    Limits,
    TransactionCoordinator,
)
from hightide.wire.errors import ErrorCode, KafkaError
from hightide.wire.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from hightide.zookeeper.errors import ZooKeeperError

if TYPE_CHECKING:
    from hightide.broker.broker import Broker

log = logging.getLogger(__name__)

_LANE = "verification"
_VERIFY_MS = 10_000
_FREE_S = 0.1

Asked = Answer | Awaitable[Answer]
"""An answer, or something to wait for that gives it."""
Decide = Callable[[TransactionCoordinator, int, int | None], Changes]
"""Asks a coordinator, at a time; once more with a new producer id, if it needs one."""


class TransactionPartitions:
    """The coordinators of this broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._hosted: dict[int, TransactionPartition] = {}
        self._markers = Markers(broker)
        self.lanes = MarkerFencing(lambda: broker.broker_epoch)
        # Questions to other coordinators: whose transaction, and who was asked.
        self._questions: dict[asyncio.Future[Any], tuple[str, int]] = {}

    # -- life ------------------------------------------------------------------------------

    def role_changed(self, replica: Replica) -> None:
        """A partition of the topic is led here from now on, or no more."""
        found = self._hosted.get(replica.partition)
        if found is not None:
            if found.led.replica is not replica and replica.leader is None:
                return  # of a former topic of that name
            del self._hosted[replica.partition]
            found.end()
        if replica.leader is not None:
            broker = self._broker
            self._hosted[replica.partition] = TransactionPartition(
                CoordinatorLog(replica, broker.flusher),
                self._markers,
                self._limits(),
                broker.now_ms,
                lambda: broker.settings.request_timeout_ms,
            )

    def cluster_changed(self) -> None:
        """Other brokers may be alive, or lead."""
        self._markers.cluster_changed()
        for question, (transactional_id, coordinator_id) in list(self._questions.items()):
            if self._coordinator_id(transactional_id) != coordinator_id:
                question.cancel()

    def settings_changed(self) -> None:
        for hosted in self._hosted.values():
            hosted.configured(self._limits())

    def _limits(self) -> Limits:
        settings = self._broker.settings
        return Limits(
            settings.transaction_max_timeout_ms,
            settings.transactional_id_expiration_ms,
            settings.transaction_abort_timed_out_transaction_cleanup_interval_ms,
            settings.transaction_remove_expired_transaction_cleanup_interval_ms,
        )

    async def stop(self) -> None:
        """Coordinate nothing any more; whoever waits is told."""
        hosted, self._hosted = self._hosted, {}
        for each in hosted.values():
            each.end()
        await self._markers.stop()

    # -- what clients ask ------------------------------------------------------------------

    @property
    def coordinators(self) -> list[TransactionCoordinator]:
        return [each.coordinator for each in self._hosted.values()]

    def coordinator(self, transactional_id: str) -> TransactionCoordinator | None:
        """The one of this id, if it is here."""
        hosted = self._find(transactional_id)
        return None if hosted is None else hosted.coordinator

    def _find(self, transactional_id: str) -> TransactionPartition | None:
        topic = self._broker.picture.topic(TRANSACTION_STATE)
        if topic is None or not topic.partitions:
            return None
        return self._hosted.get(partition_for(transactional_id, len(topic.partitions)))

    def ask(self, transactional_id: str, decide: Decide, *, is_patient: bool = False) -> Asked:
        """Let the coordinator of an id decide something, and have it carried out.

        Who is patient is not sent away while the end of the last transaction is being written, but
        waits a little: clients come again later than it takes.
        """
        hosted = self._find(transactional_id)
        if hosted is None:
            return self._elsewhere(decide)
        changes = decide(hosted.coordinator, self._broker.now_ms(), None)
        if changes.answer is not None and not self._broker.zookeeper.is_sure:
            # Another may coordinate and know better. What is written only the right one commits.
            return Answer(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if changes.needs_producer_id:
            return self._ask_with_id(transactional_id, decide)
        asked = hosted.carry_out(changes)
        if is_patient and _is_concurrent(asked):
            return self._ask_until_free(transactional_id, decide)
        return asked

    async def _ask_until_free(self, transactional_id: str, decide: Decide) -> Answer:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _FREE_S
        while True:
            asked = self.ask(transactional_id, decide)
            hosted, left_s = self._find(transactional_id), deadline - loop.time()
            if not _is_concurrent(asked) or hosted is None or left_s <= 0:
                return asked if isinstance(asked, Answer) else await asked
            await hosted.changed(transactional_id, left_s)

    def _elsewhere(self, decide: Decide) -> Answer:
        """What a broker says that is not the coordinator.  What cannot be right anywhere is told
        here as well, and not sent on."""
        answer = decide(TransactionCoordinator(-1, self._limits()), 0, None).answer
        if answer is None or answer.error == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            return Answer(ErrorCode.NOT_COORDINATOR)
        return answer

    async def _ask_with_id(self, transactional_id: str, decide: Decide) -> Answer:
        try:
            producer_id = await self._broker.producer_ids.next()
        except KafkaError as error:
            return Answer(error.code)
        except ZooKeeperError as error:
            log.error("cannot take a block of producer ids: %s", error)
            return Answer(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        # Another broker may coordinate by now, or this one in another epoch.
        hosted = self._find(transactional_id)
        if hosted is None:
            return self._elsewhere(decide)
        now_ms = self._broker.now_ms()
        asked = hosted.carry_out(decide(hosted.coordinator, now_ms, producer_id))
        return asked if isinstance(asked, Answer) else await asked

    # -- what leaders of partitions ask ----------------------------------------------------

    def verification(
        self, transactional_id: str, producer: Producer, partitions: Iterable[Partition]
    ) -> Mapping[Partition, ErrorCode]:
        """Whether a transaction that is coordinated here contains partitions."""
        hosted = self._find(transactional_id)
        if hosted is None:
            return dict.fromkeys(partitions, ErrorCode.NOT_COORDINATOR)
        if not self._broker.zookeeper.is_sure:
            # It may have been replaced without knowing it, and the transaction have ended.
            return dict.fromkeys(partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return hosted.coordinator.verification_asked(transactional_id, producer, partitions)

    def verify_now(
        self, transactional_id: str, producer: Producer, partition: Partition
    ) -> ErrorCode | None:
        """Whether a transaction contains a partition.  None: another broker has to be asked."""
        if self._coordinator_id(transactional_id) != self._broker.broker_id:
            return None
        return self.verification(transactional_id, producer, (partition,))[partition]

    async def verify(
        self, transactional_id: str, producer: Producer, partition: Partition
    ) -> ErrorCode:
        """The same, wherever the coordinator is."""
        broker, coordinator_id = self._broker, self._coordinator_id(transactional_id)
        if coordinator_id == broker.broker_id:
            return self.verification(transactional_id, producer, (partition,))[partition]
        listener = broker.settings.inter_broker_listener()
        endpoint = broker.picture.endpoint(coordinator_id, listener)
        if endpoint is None:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        question = asyncio.ensure_future(
            broker.peers.ask(
                endpoint,
                _question(transactional_id, producer, partition),
                timeout_ms=_VERIFY_MS,
                lane=_LANE,
            )
        )
        self._questions[question] = transactional_id, coordinator_id
        try:
            await asyncio.wait([question])
        finally:
            del self._questions[question]
            question.cancel()
        failure = None if question.cancelled() else question.exception()
        # Whoever took over may know better, and who hangs would be waited for in vain.
        if question.cancelled() or self._coordinator_id(transactional_id) != coordinator_id:
            return ErrorCode.NOT_COORDINATOR
        if isinstance(failure, ConnectionFailed):
            log.info("the coordinator of %r cannot be asked: %s", transactional_id, failure)
            return ErrorCode.NETWORK_EXCEPTION
        return _verdict(question.result())

    def _coordinator_id(self, transactional_id: str) -> int:
        return known_coordinator(self._broker, Kind.TRANSACTION, transactional_id)


def _is_concurrent(asked: Asked) -> bool:
    return isinstance(asked, Answer) and asked.error == ErrorCode.CONCURRENT_TRANSACTIONS


def _question(
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


def _verdict(answer: AddPartitionsToTxnResponse) -> ErrorCode:
    """What an answer to one question says."""
    code = answer.error_code
    for transaction in answer.results_by_transaction:
        for topic in transaction.topic_results:
            for each in topic.results_by_partition:
                code = code or each.partition_error_code
    return CODES.get(code, ErrorCode.UNKNOWN_SERVER_ERROR)
