"""DescribeProducers (61), version 0: the producers of a partition, and their open transactions.

Errors per partition:
UNKNOWN_TOPIC_OR_PARTITION  there is no such partition
NOT_LEADER_OR_FOLLOWER      another broker leads the partition
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hightide.broker.handlers.request_context import Context
from hightide.broker.network.turn import Steps
from hightide.core.partition.producer_state import ProducerState
from hightide.wire.errors import ErrorCode
from hightide.wire.messages import transactions as messages
from hightide.wire.messages.transactions import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    TopicResponse,
)

if TYPE_CHECKING:
    from hightide.broker.broker import Broker


def describe_producers(
    broker: Broker, request: DescribeProducersRequest, _context: Context
) -> Steps[DescribeProducersResponse]:
    topics = []
    for topic in request.topics:
        partitions = []
        for index in topic.partition_indexes:
            partitions.append((yield from _describe(broker, topic.name, index)))
        topics.append(TopicResponse(name=topic.name, partitions=partitions))
    return DescribeProducersResponse(topics=topics)


def _describe(broker: Broker, topic: str, partition: int) -> Steps[PartitionResponse]:
    yield
    replica = broker.replica_manager.get(topic.encode(), partition)
    if replica is None or replica.leader is None:
        code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        if replica is None:
            code = broker.metadata.refusal(broker.metadata.get(topic), partition)
        return PartitionResponse(
            partition_index=partition,
            error_code=code,
            error_message=code.meaning,
            active_producers=[],
        )
    producers = []
    for producer_id, state in list(replica.log.producers):
        producers.append(_producer(producer_id, state))
        yield
    return PartitionResponse(partition_index=partition, active_producers=producers)


def _producer(producer_id: int, state: ProducerState) -> messages.ProducerState:
    return messages.ProducerState(
        producer_id=producer_id,
        producer_epoch=state.epoch,
        last_sequence=state.batches[-1].last_sequence if state.batches else -1,
        last_timestamp=state.timestamp,
        coordinator_epoch=state.coordinator_epoch,
        current_txn_start_offset=state.transaction_first_offset,
    )
