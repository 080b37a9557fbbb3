"""AlterPartitionReassignments (45), ListPartitionReassignments (46): moving replicas.

For the whole request: NOT_CONTROLLER, REQUEST_TIMED_OUT.  Errors per partition:
UNKNOWN_TOPIC_OR_PARTITION      there is no such partition
INVALID_REPLICA_ASSIGNMENT      the partition cannot be on these brokers
INVALID_REPLICATION_FACTOR      the number of replicas would change, which the request forbids
NO_REASSIGNMENT_IN_PROGRESS     there is no reassignment to cancel
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from hightide.broker.controller.controller_errors import CONTROLLER_ERRORS, kafka_error
from hightide.broker.handlers.request_context import Context
from hightide.wire.errors import ErrorCode
from hightide.wire.messages.replicas import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)

if TYPE_CHECKING:
    from hightide.broker.broker import Broker

log = logging.getLogger(__name__)


async def alter_partition_reassignments(
    broker: Broker, request: AlterPartitionReassignmentsRequest, context: Context
) -> AlterPartitionReassignmentsResponse:
    targets = {
        (topic.name, partition.partition_index): (
            None if partition.replicas is None else tuple(partition.replicas)
        )
        for topic in request.topics
        for partition in topic.partitions
    }
    allows = request.allow_replication_factor_change
    try:
        verdicts = await broker.controller.alter_reassignments(
            targets, keeps_counts=not allows, timeout_ms=request.timeout_ms
        )
    except CONTROLLER_ERRORS as error:
        failure = kafka_error(error)
        return AlterPartitionReassignmentsResponse(
            allow_replication_factor_change=allows,
            error_code=failure.code,
            error_message=failure.detail or None,
            responses=[],
        )
    accepted = sum(verdict.error == ErrorCode.NONE for verdict in verdicts.values())
    if accepted:
        log.info("reassignment of %d partitions, asked by %s", accepted, context.sender)
    topics: dict[str, list[ReassignablePartitionResponse]] = {}
    for name, index in targets:
        verdict = verdicts[name, index]
        topics.setdefault(name, []).append(
            ReassignablePartitionResponse(
                partition_index=index,
                error_code=verdict.error,
                error_message=verdict.detail or None,
            )
        )
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=allows,
        responses=[
            ReassignableTopicResponse(name=name, partitions=partitions)
            for name, partitions in topics.items()
        ],
    )


async def list_partition_reassignments(
    broker: Broker, request: ListPartitionReassignmentsRequest, _context: Context
) -> ListPartitionReassignmentsResponse:
    partitions = None
    if request.topics is not None:
        partitions = [
            (topic.name, index) for topic in request.topics for index in topic.partition_indexes
        ]
    try:
        moves = await broker.controller.list_reassignments(
            partitions, timeout_ms=request.timeout_ms
        )
    except CONTROLLER_ERRORS as error:
        failure = kafka_error(error)
        return ListPartitionReassignmentsResponse(
            error_code=failure.code, error_message=failure.detail or None, topics=[]
        )
    topics: dict[str, list[OngoingPartitionReassignment]] = {}
    for (name, index), state in sorted(moves.items()):
        topics.setdefault(name, []).append(
            OngoingPartitionReassignment(
                partition_index=index,
                replicas=list(state.replicas),
                adding_replicas=list(state.adding),
                removing_replicas=list(state.removing),
            )
        )
    return ListPartitionReassignmentsResponse(
        topics=[
            OngoingTopicReassignment(name=name, partitions=partitions)
            for name, partitions in topics.items()
        ]
    )
