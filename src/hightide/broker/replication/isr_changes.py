"""Sends the leaders' ISR proposals to the controller (AlterPartition).

All pending proposals go in one request, and one request is in flight at a time.  A proposal is sent
again until the controller has published a newer state.  The leader learns only of a refusal of the
proposal itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from hightide.broker.replication.replica import Replica
from hightide.client.broker_connection import ConnectionFailed
from hightide.core.partition.isr import Proposal
from hightide.wire.errors import ErrorCode, KafkaError
from hightide.wire.messages.replication import (
    AlterPartitionRequest,
    AlterPartitionRequestPartition,
    AlterPartitionRequestTopic,
    AlterPartitionResponse,
    BrokerState,
)

log = logging.getLogger(__name__)

_REFUSALS = (ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED)
_RETRY_S = 0.2

AlterPartition = Callable[[AlterPartitionRequest], Awaitable[AlterPartitionResponse]]


class IsrChanges:
    """The proposals of this broker's leaders, until the controller has decided."""

    def __init__(
        self, broker_id: int, broker_epoch: Callable[[], int], alter_partition: AlterPartition
    ) -> None:
        """`alter_partition` raises ConnectionFailed or KafkaError if there is no response."""
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._alter_partition = alter_partition
        self._pending: dict[Replica, Proposal] = {}
        self._task: asyncio.Task[None] | None = None
        self._is_failing = False
        self.refused_count = 0

    def propose(self, replica: Replica, proposal: Proposal) -> None:
        self._pending[replica] = proposal
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            while due := self._due():
                try:
                    answered = await self._send(due)
                    self._is_failing = False
                except (ConnectionFailed, KafkaError) as failure:
                    # Retries are frequent; log the first failure only.
                    if not self._is_failing:
                        log.info("the controller did not answer AlterPartition: %s", failure)
                    self._is_failing = True
                    for replica in self._due():
                        assert replica.leader is not None
                        replica.leader.unanswered()
                    answered = False
                # The controller publishes its decision a moment after its response.
                if self._due() == due or not answered:
                    await asyncio.sleep(_RETRY_S)
        except Exception:
            log.exception("ISR proposals are not sent until the next change of an ISR")
        finally:
            self._task = None

    def _due(self) -> dict[Replica, Proposal]:
        self._pending = {
            replica: proposal
            for replica, proposal in self._pending.items()
            if replica.leader is not None and replica.leader.proposal is proposal
        }
        return dict(self._pending)

    async def _send(self, due: dict[Replica, Proposal]) -> bool:
        """Send proposals; return whether the controller has accepted the request as a whole."""
        topics: dict[bytes, AlterPartitionRequestTopic] = {}
        sent: dict[tuple[bytes, int], tuple[Replica, Proposal]] = {}
        for replica, proposal in due.items():
            key = replica.topic_id.bytes
            topic = topics.setdefault(
                key, AlterPartitionRequestTopic(topic_id=replica.topic_id, partitions=[])
            )
            topic.partitions.append(_partition(replica.partition, proposal))
            sent[key, replica.partition] = (replica, proposal)
        response = await self._alter_partition(
            AlterPartitionRequest(
                broker_id=self._broker_id,
                broker_epoch=self._broker_epoch(),
                topics=list(topics.values()),
            )
        )
        if response.error_code != ErrorCode.NONE:
            return False
        for answered in response.topics:
            for partition in answered.partitions:
                found = sent.get((answered.topic_id.bytes, partition.partition_index))
                if found is not None and partition.error_code in _REFUSALS:
                    self._refused(*found)
        return True

    def _refused(self, replica: Replica, proposal: Proposal) -> None:
        """Tell the leader, but not at once: it may propose the same replica with its next fetch,
        and a replica that is being repaired is refused for a long time."""
        self.refused_count += 1
        self._pending.pop(replica, None)
        asyncio.get_running_loop().call_later(_RETRY_S, replica.refused, proposal)


def _partition(index: int, proposal: Proposal) -> AlterPartitionRequestPartition:
    return AlterPartitionRequestPartition(
        partition_index=index,
        leader_epoch=proposal.leader_epoch,
        new_isr_with_epochs=[
            BrokerState(broker_id=broker_id, broker_epoch=proposal.broker_epochs[broker_id])
            for broker_id in proposal.isr
        ],
        partition_epoch=proposal.partition_epoch,
    )
