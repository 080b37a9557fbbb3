"""Leaders' proposals of an ISR, on their way to the controller.

Everything that is due goes in one request, and one request is under way at a time.  A proposal is
sent again until the leader has heard of a newer decision, which the controller publishes; only a
refusal of the proposal itself is told to the leader.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from hightide.broker.replication.replica import Replica
from hightide.client.connection import ConnectionFailed
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
_AGAIN_S = 0.2

Ask = Callable[[AlterPartitionRequest], Awaitable[AlterPartitionResponse]]


class IsrChanges:
    """Carries proposals to the controller."""

    def __init__(self, broker_id: int, broker_epoch: Callable[[], int], ask: Ask) -> None:
        """`ask` raises ConnectionFailed or KafkaError if the controller gives no answer."""
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._ask = ask
        self._pending: dict[Replica, Proposal] = {}
        self._task: asyncio.Task[None] | None = None
        self._is_unheard = False

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
                    self._is_unheard = False
                except (ConnectionFailed, KafkaError) as failure:
                    # It is asked again and again, and an operator wants to read it once.
                    if not self._is_unheard:
                        log.info("the controller did not answer a proposal: %s", failure)
                    self._is_unheard = True
                    for replica in self._due():
                        assert replica.leader is not None
                        replica.leader.unanswered()
                    answered = False
                # What was carried out is published a moment later.
                if self._due() == due or not answered:
                    await asyncio.sleep(_AGAIN_S)
        except Exception:
            log.exception("the proposals of leaders are not sent any more")
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
        """Whether the controller has taken the request as such."""
        topics: dict[bytes, AlterPartitionRequestTopic] = {}
        sent: dict[tuple[bytes, int], tuple[Replica, Proposal]] = {}
        for replica, proposal in due.items():
            key = replica.topic_id.bytes
            topic = topics.setdefault(
                key, AlterPartitionRequestTopic(topic_id=replica.topic_id, partitions=[])
            )
            topic.partitions.append(_partition(replica.partition, proposal))
            sent[key, replica.partition] = (replica, proposal)
        answer = await self._ask(
            AlterPartitionRequest(
                broker_id=self._broker_id,
                broker_epoch=self._broker_epoch(),
                topics=list(topics.values()),
            )
        )
        if answer.error_code != ErrorCode.NONE:
            return False
        for told in answer.topics:
            for each in told.partitions:
                found = sent.get((told.topic_id.bytes, each.partition_index))
                if found is not None and each.error_code in _REFUSALS:
                    found[0].refused(found[1])
        return True


def _partition(index: int, proposal: Proposal) -> AlterPartitionRequestPartition:
    return AlterPartitionRequestPartition(
        partition_index=index,
        leader_epoch=proposal.leader_epoch,
        new_isr_with_epochs=[
            BrokerState(broker_id=each, broker_epoch=proposal.broker_epochs[each])
            for each in proposal.isr
        ],
        partition_epoch=proposal.partition_epoch,
    )
