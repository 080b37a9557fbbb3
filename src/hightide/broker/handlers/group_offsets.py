"""OffsetFetch (9), TxnOffsetCommit (28), OffsetDelete (47): committed offsets of groups.

The decisions are made in `core.groups`.  Besides, per partition:
UNKNOWN_TOPIC_OR_PARTITION    there is no such partition
COORDINATOR_NOT_AVAILABLE     too few replicas have the commit, so it may succeed later or not;
                              or __consumer_offsets does not exist, or cannot be read
COORDINATOR_LOAD_IN_PROGRESS  its partition is being read
NOT_COORDINATOR               another broker coordinates the group
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hightide.broker.handlers.request_context import Context, in_one_line
from hightide.broker.network.turn import Steps
from hightide.core.groups import offset_requests
from hightide.core.groups.offset_requests import CommitRequest
from hightide.core.groups.offsets import TopicPartition
from hightide.core.transactions.transaction import Producer
from hightide.wire.errors import ErrorCode, KafkaError
from hightide.wire.messages.offsets import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)
from hightide.wire.messages.transactions import TxnOffsetCommitRequest, TxnOffsetCommitResponse

if TYPE_CHECKING:
    from hightide.broker.broker import Broker

log = logging.getLogger(__name__)

_SEVERAL_GROUPS = 8
_REQUEST_ERROR = 2
_NO_OFFSET = -1
_NO_SEQUENCE = -1
_HAS_ABORTABLE = 4
# It is unknown whether the transaction contains the group.  NOT_COORDINATOR would make the client
# look for another group coordinator, which does not know either.
_TRANSACTION_UNKNOWN = (
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.NOT_COORDINATOR,
)


# -- commits ---------------------------------------------------------------------------------


async def txn_offset_commit(
    broker: Broker, request: TxnOffsetCommitRequest, context: Context
) -> TxnOffsetCommitResponse:
    """Commit offsets with a transaction, if its coordinator has the group in it."""
    unknown = unknown_partitions(broker, request)
    rest: TxnOffsetCommitRequest = without(request, unknown) if unknown else request
    response: Any = TxnOffsetCommitResponse(topics=[])
    if rest.topics:
        try:
            response = await _commit_in_transaction(broker, rest)
        except KafkaError as error:
            code = _client_error(error.code, context.version)
            response = offset_requests.commit_response(rest, code)
    answer: TxnOffsetCommitResponse = merged(request, response, unknown) if unknown else response
    return answer


async def _commit_in_transaction(broker: Broker, request: TxnOffsetCommitRequest) -> Any:
    found = broker.groups.find(request.group_id) if request.group_id else ErrorCode.INVALID_GROUP_ID
    if isinstance(found, ErrorCode):
        return offset_requests.commit_response(request, found)
    producer = Producer(request.producer_id, request.producer_epoch)
    replica, transactional_id = found.coordinator_log.replica, request.transactional_id
    guard = await broker.verifier.verify(replica, transactional_id, producer, _NO_SEQUENCE)
    # A change of leader since then fails in `ask`; a marker since then fails in the log.
    answer = found.ask(
        lambda coordinator, ticket, now_ms: coordinator.transactional_commit_asked(
            ticket, request, now_ms
        ),
        lambda error: offset_requests.commit_response(request, error),
        broker.settings.offsets_commit_timeout_ms,
        guard,
    )
    return await answer if isinstance(answer, asyncio.Future) else answer


def _client_error(error: ErrorCode, version: int) -> ErrorCode:
    """Translate an error of the transaction coordinator for a client of the group coordinator."""
    if error == ErrorCode.TRANSACTION_ABORTABLE and version < _HAS_ABORTABLE:
        return ErrorCode.INVALID_TXN_STATE
    if error in _TRANSACTION_UNKNOWN:
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    return ErrorCode.INVALID_PRODUCER_EPOCH if error == ErrorCode.PRODUCER_FENCED else error


def unknown_partitions(
    broker: Broker, request: CommitRequest | OffsetDeleteRequest
) -> set[TopicPartition]:
    """Return the partitions of a request that do not exist."""
    unknown = set()
    find = broker.metadata_image.topic
    for topic in request.topics:
        found = find(topic.name)
        existing = () if found is None else found.partitions
        for partition in topic.partitions:
            if partition.partition_index not in existing:
                unknown.add(TopicPartition(topic.name, partition.partition_index))
    return unknown


def without(request: Any, unknown: set[TopicPartition]) -> Any:
    """Return the request without the unknown partitions."""
    topics = []
    for topic in request.topics:
        known = [
            partition
            for partition in topic.partitions
            if (topic.name, partition.partition_index) not in unknown
        ]
        if known:
            topics.append(replace(topic, partitions=known))
    return replace(request, topics=topics)


def merged(request: CommitRequest, response: Any, unknown: set[TopicPartition]) -> Any:
    """Return the response for all partitions, in the order of the request."""
    refused: dict[TopicPartition, Any] = dict.fromkeys(
        unknown, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )
    for topic in response.topics:
        for partition in topic.partitions:
            refused[TopicPartition(topic.name, partition.partition_index)] = partition.error_code
    return offset_requests.commit_response(request, refused=refused)


# -- fetching --------------------------------------------------------------------------------


def offset_fetch(
    broker: Broker, request: OffsetFetchRequest, context: Context
) -> Steps[OffsetFetchResponse]:
    is_stable = request.require_stable
    if context.version >= _SEVERAL_GROUPS:
        groups = []
        for group in request.groups:
            yield
            groups.append(_fetch(broker, group, require_stable=is_stable))
        return OffsetFetchResponse(groups=groups)
    topics = None
    if request.topics is not None:
        topics = [
            OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)
            for topic in request.topics
        ]
    group = OffsetFetchRequestGroup(group_id=request.group_id, topics=topics)
    found = _fetch(broker, group, require_stable=is_stable)
    if found.error_code != ErrorCode.NONE and context.version < _REQUEST_ERROR:
        return OffsetFetchResponse(topics=_refused(request, found.error_code))
    return OffsetFetchResponse(error_code=found.error_code, topics=_as_topics(found))


def _fetch(
    broker: Broker, request: OffsetFetchRequestGroup, *, require_stable: bool
) -> OffsetFetchResponseGroup:
    found = broker.groups.find(request.group_id)
    if isinstance(found, ErrorCode):
        return OffsetFetchResponseGroup(group_id=request.group_id, topics=[], error_code=found)
    return found.coordinator.fetch_asked(request, require_stable=require_stable)


def _as_topics(found: OffsetFetchResponseGroup) -> list[OffsetFetchResponseTopic]:
    return [
        OffsetFetchResponseTopic(
            name=topic.name,
            partitions=[
                OffsetFetchResponsePartition(
                    partition_index=partition.partition_index,
                    committed_offset=partition.committed_offset,
                    committed_leader_epoch=partition.committed_leader_epoch,
                    metadata=partition.metadata,
                    error_code=partition.error_code,
                )
                for partition in topic.partitions
            ],
        )
        for topic in found.topics
    ]


def _refused(request: OffsetFetchRequest, error: int) -> list[OffsetFetchResponseTopic]:
    """Return an error of the whole request in a version that has only errors of partitions."""
    return [
        OffsetFetchResponseTopic(
            name=topic.name,
            partitions=[
                OffsetFetchResponsePartition(
                    partition_index=index,
                    committed_offset=_NO_OFFSET,
                    metadata="",
                    error_code=error,
                )
                for index in topic.partition_indexes
            ],
        )
        for topic in request.topics or []
    ]


# -- deleting --------------------------------------------------------------------------------


async def offset_delete(
    broker: Broker, request: OffsetDeleteRequest, context: Context
) -> OffsetDeleteResponse:
    if not request.group_id:
        return OffsetDeleteResponse(error_code=ErrorCode.INVALID_GROUP_ID, topics=[])
    unknown = unknown_partitions(broker, request)
    rest: OffsetDeleteRequest = without(request, unknown) if unknown else request
    if unknown and not rest.topics:
        return _deleted_topics(request, OffsetDeleteResponse(topics=[]), unknown)
    answer = broker.groups.ask(
        request.group_id,
        lambda coordinator, ticket, now_ms: coordinator.delete_offsets_asked(ticket, rest, now_ms),
        lambda error: OffsetDeleteResponse(error_code=error, topics=[]),
        broker.settings.offsets_commit_timeout_ms,
    )
    response: OffsetDeleteResponse = await answer if isinstance(answer, asyncio.Future) else answer
    if response.error_code == ErrorCode.NONE:
        topics = [topic.name for topic in rest.topics]
        log.info(
            "group %s: offsets of %d topics deleted, asked by %s: %s",
            *(in_one_line([request.group_id]), len(topics), context.sender, in_one_line(topics)),
        )
    if not unknown or response.error_code != ErrorCode.NONE:
        return response
    return _deleted_topics(request, response, unknown)


def _deleted_topics(
    request: OffsetDeleteRequest, response: OffsetDeleteResponse, unknown: set[TopicPartition]
) -> OffsetDeleteResponse:
    """Return the response for all partitions, in the order of the request."""
    codes: dict[TopicPartition, int] = dict.fromkeys(unknown, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    for topic in response.topics:
        for partition in topic.partitions:
            codes[TopicPartition(topic.name, partition.partition_index)] = partition.error_code
    return OffsetDeleteResponse(
        topics=[
            OffsetDeleteResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetDeleteResponsePartition(
                        partition_index=partition.partition_index,
                        error_code=codes[TopicPartition(topic.name, partition.partition_index)],
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
