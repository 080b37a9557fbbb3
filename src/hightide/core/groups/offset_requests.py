"""OffsetCommit, TxnOffsetCommit, OffsetFetch and OffsetDelete: checks, records and responses.

A group with members accepts commits only from them, and only in their current generation or epoch:
a member that was replaced must not overwrite the progress of its successor.  A client that is not a
member (an administrator, or a consumer that assigned its partitions itself) may commit while the
group has no members.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from hightide.core.groups.classic.classic_group import ClassicGroup, State
from hightide.core.groups.consumer.consumer_group import ConsumerGroup
from hightide.core.groups.offsets import CommittedOffset, Offsets, TopicPartition, tombstone
from hightide.core.groups.turn import Ticket, Turn, Write
from hightide.wire.errors import ErrorCode
from hightide.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
    OffsetFetchRequestGroup,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from hightide.wire.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from hightide.wire.records.consumer_offsets import (
    NO_EXPIRY,
    GroupRecord,
    OffsetCommitKey,
    OffsetCommitValue,
)

NO_OFFSET = -1
NO_RETENTION = -1
# Since this version of OffsetCommit clients know STALE_MEMBER_EPOCH and GROUP_ID_NOT_FOUND.
MEMBER_EPOCH_VERSION = 9

CommitRequest = OffsetCommitRequest | TxnOffsetCommitRequest


class OffsetsWritten(NamedTuple):
    """A response that waits for offset records to be committed."""

    ticket: Ticket
    request: CommitRequest | OffsetDeleteRequest
    response: Any


# -- checks --------------------------------------------------------------------------------


def classic_commit_error(
    group: ClassicGroup,
    member_id: str,
    instance_id: str | None,
    generation: int,
    *,
    is_transactional: bool = False,
) -> ErrorCode:
    """Return why a classic group refuses a commit, or NONE."""
    if generation < 0 and group.state is State.EMPTY:
        return ErrorCode.NONE
    if generation >= 0 or member_id or instance_id is not None:
        error = group.member_error(member_id, instance_id)
        if error is not ErrorCode.NONE:
            return error
        if generation != group.generation:
            return ErrorCode.ILLEGAL_GENERATION
    elif not is_transactional:
        return ErrorCode.UNKNOWN_MEMBER_ID
    # Old versions of TxnOffsetCommit carry no member id: the producer epoch fences them.
    if not is_transactional and group.state is State.COMPLETING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def consumer_commit_error(
    group: ConsumerGroup, member_id: str, epoch: int, *, is_transactional: bool = False
) -> ErrorCode:
    """Return why a consumer group refuses a commit, or NONE: members commit in their own epoch."""
    is_from_outside = epoch < 0 and (not group.members or (is_transactional and not member_id))
    if is_from_outside:
        return ErrorCode.NONE
    member = group.members.get(member_id)
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if epoch != member.epoch:
        knows_epochs = member.classic is None and not is_transactional
        return ErrorCode.STALE_MEMBER_EPOCH if knows_epochs else ErrorCode.ILLEGAL_GENERATION
    return ErrorCode.NONE


def offset_commit_error(
    group: ClassicGroup | ConsumerGroup | None, request: OffsetCommitRequest, version: int
) -> ErrorCode:
    """Return why an OffsetCommit is refused, or NONE."""
    epoch = request.generation_id_or_member_epoch
    if isinstance(group, ConsumerGroup):
        member = group.members.get(request.member_id)
        if member is not None and member.classic is None and version < MEMBER_EPOCH_VERSION:
            return ErrorCode.UNSUPPORTED_VERSION
        return consumer_commit_error(group, request.member_id, epoch)
    if group is not None:
        return classic_commit_error(group, request.member_id, request.group_instance_id, epoch)
    if epoch < 0:
        return ErrorCode.NONE
    not_found = ErrorCode.GROUP_ID_NOT_FOUND
    return not_found if version >= MEMBER_EPOCH_VERSION else ErrorCode.ILLEGAL_GENERATION


def txn_offset_commit_error(
    group: ClassicGroup | ConsumerGroup | None, request: TxnOffsetCommitRequest
) -> ErrorCode:
    """Return why a TxnOffsetCommit is refused, or NONE."""
    member_id, epoch = request.member_id, request.generation_id
    if isinstance(group, ConsumerGroup):
        return consumer_commit_error(group, member_id, epoch, is_transactional=True)
    if group is not None:
        instance_id = request.group_instance_id
        return classic_commit_error(group, member_id, instance_id, epoch, is_transactional=True)
    return ErrorCode.ILLEGAL_GENERATION if epoch >= 0 else ErrorCode.NONE


def fetch_error(group: ConsumerGroup | None, request: OffsetFetchRequestGroup) -> ErrorCode:
    """Return why an OffsetFetch is refused, or NONE: a client that names a member must be one."""
    epoch, member_id = request.member_epoch, request.member_id
    if group is None or (member_id is None and epoch < 0):
        return ErrorCode.NONE
    member = group.members.get(member_id or "")
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if epoch == member.epoch:
        return ErrorCode.NONE
    is_classic = member.classic is not None
    return ErrorCode.ILLEGAL_GENERATION if is_classic else ErrorCode.STALE_MEMBER_EPOCH


def delete_error(group: ClassicGroup | ConsumerGroup) -> ErrorCode:
    """Return why single offsets of the group cannot be deleted, or NONE.

    The subscriptions of consumers are known.  The members of another protocol type may use any
    topic, so such a group must be empty.
    """
    if isinstance(group, ConsumerGroup) or group.state is State.EMPTY or group.is_consumer:
        return ErrorCode.NONE
    return ErrorCode.NON_EMPTY_GROUP


# -- commits -------------------------------------------------------------------------------


def commit(ticket: Ticket, request: CommitRequest, error: ErrorCode, turn: Turn) -> None:
    """Write the offsets of a commit, or answer with the error."""
    if error is not ErrorCode.NONE:
        turn.answer(ticket, commit_response(request, error))
        return
    records, refused = commit_records(request, turn)
    response = commit_response(request, refused=refused)
    purpose = OffsetsWritten(ticket, request, response)
    if not records:
        turn.answer(ticket, response)
    elif isinstance(request, TxnOffsetCommitRequest):
        producer = request.producer_id, request.producer_epoch
        turn.writes.append(Write(tuple(records), purpose, *producer))
    else:
        turn.write(purpose, *records)


def commit_records(
    request: CommitRequest, turn: Turn
) -> tuple[list[GroupRecord], dict[TopicPartition, ErrorCode]]:
    """Return the records of an accepted commit, and the errors of partitions left out."""
    records = []
    refused = {}
    expires_ms = NO_EXPIRY
    if isinstance(request, OffsetCommitRequest) and request.retention_time_ms != NO_RETENTION:
        expires_ms = turn.now_ms + request.retention_time_ms
    group_id, now_ms = request.group_id, turn.now_ms
    max_bytes = turn.rules.offset_metadata_max_bytes
    for topic in request.topics:
        name = topic.name
        for partition in topic.partitions:
            index = partition.partition_index
            metadata = partition.committed_metadata or ""
            if len(metadata) > max_bytes:
                refused[TopicPartition(name, index)] = ErrorCode.OFFSET_METADATA_TOO_LARGE
                continue
            key = OffsetCommitKey(group=group_id, topic=name, partition=index)
            value = OffsetCommitValue(
                offset=partition.committed_offset,
                leader_epoch=partition.committed_leader_epoch,
                metadata=metadata,
                commit_timestamp=now_ms,
                expire_timestamp=expires_ms,
            )
            records.append(GroupRecord(key, value))
    return records, refused


def commit_response(
    request: CommitRequest,
    error: ErrorCode = ErrorCode.NONE,
    refused: dict[TopicPartition, ErrorCode] | None = None,
) -> OffsetCommitResponse | TxnOffsetCommitResponse:
    """Build the response to a commit; `refused` holds the partitions with a different error."""
    response: OffsetCommitResponse | TxnOffsetCommitResponse
    if isinstance(request, TxnOffsetCommitRequest):
        response = TxnOffsetCommitResponse(
            topics=[
                TxnOffsetCommitResponseTopic(
                    name=topic.name,
                    partitions=[
                        TxnOffsetCommitResponsePartition(
                            partition_index=partition.partition_index, error_code=error
                        )
                        for partition in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )
    else:
        response = OffsetCommitResponse(
            topics=[
                OffsetCommitResponseTopic(
                    name=topic.name,
                    partitions=[
                        OffsetCommitResponsePartition(
                            partition_index=partition.partition_index, error_code=error
                        )
                        for partition in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )
    if refused:
        for topic in response.topics:
            for partition in topic.partitions:
                key = TopicPartition(topic.name, partition.partition_index)
                partition.error_code = refused.get(key, error)
    return response


def error_response(request: CommitRequest | OffsetDeleteRequest, error: ErrorCode) -> Any:
    """Build the response to a request of which nothing was done."""
    if isinstance(request, OffsetDeleteRequest):
        return OffsetDeleteResponse(error_code=error, topics=[])
    return commit_response(request, error)


# -- deletions -----------------------------------------------------------------------------


def delete(
    request: OffsetDeleteRequest, is_subscribed_to: Callable[[str], bool], offsets: Offsets
) -> tuple[list[GroupRecord], OffsetDeleteResponse]:
    """Return tombstones for the offsets that exist, and the response for when they are written."""
    records = []
    topics = []
    known = offsets.of(request.group_id).keys() | offsets.unstable(request.group_id)
    for topic in request.topics:
        is_subscribed = is_subscribed_to(topic.name)
        error = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if is_subscribed else ErrorCode.NONE
        partitions = []
        for partition in topic.partitions:
            index = partition.partition_index
            partitions.append(
                OffsetDeleteResponsePartition(partition_index=index, error_code=error)
            )
            key = TopicPartition(topic.name, index)
            if not is_subscribed and key in known:
                records.append(tombstone(request.group_id, key))
        topics.append(OffsetDeleteResponseTopic(name=topic.name, partitions=partitions))
    return records, OffsetDeleteResponse(topics=topics)


# -- fetching ------------------------------------------------------------------------------


def fetch(
    request: OffsetFetchRequestGroup, offsets: Offsets, *, require_stable: bool
) -> OffsetFetchResponseGroup:
    """Return the group's committed offsets in the requested partitions, or in all partitions."""
    group_id = request.group_id
    requested: Iterable[TopicPartition]
    unstable = offsets.unstable(group_id) if require_stable else set()
    if request.topics is None:
        requested = sorted({*offsets.of(group_id), *unstable})
    else:
        requested = (
            TopicPartition(topic.name, index)
            for topic in request.topics
            for index in topic.partition_indexes
        )
    topics: dict[str, list[OffsetFetchResponsePartitions]] = {}
    for partition in requested:
        found = _fetched(partition, offsets.of(group_id).get(partition), partition in unstable)
        topics.setdefault(partition.topic, []).append(found)
    return OffsetFetchResponseGroup(
        group_id=group_id,
        topics=[
            OffsetFetchResponseTopics(name=name, partitions=partitions)
            for name, partitions in topics.items()
        ],
    )


def _fetched(
    partition: TopicPartition, committed: CommittedOffset | None, is_unstable: bool
) -> OffsetFetchResponsePartitions:
    if is_unstable or committed is None:
        return OffsetFetchResponsePartitions(
            partition_index=partition.partition,
            committed_offset=NO_OFFSET,
            metadata="",
            error_code=ErrorCode.UNSTABLE_OFFSET_COMMIT if is_unstable else ErrorCode.NONE,
        )
    return OffsetFetchResponsePartitions(
        partition_index=partition.partition,
        committed_offset=committed.offset,
        committed_leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
    )
