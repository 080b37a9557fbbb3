"""OffsetCommit, TxnOffsetCommit, OffsetFetch and OffsetDelete: who may, and what becomes a record.

A group that has members takes commits only of them, and only in their present generation: one that
was replaced must not take back the progress of its successor.  Whoever has no group to speak of (an
administrator, or a consumer that chose its partitions itself) may commit while nobody is a member.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from hightide.core.groups.classic.classic_group import ClassicGroup, State
from hightide.core.groups.consumer.consumer_group import ConsumerGroup
from hightide.core.groups.offsets import Committed, Offsets, TopicPartition, tombstone
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
# From this version of OffsetCommit on, clients know member epochs and groups that are not there.
EPOCHS_ARE_KNOWN = 9

CommitRequest = OffsetCommitRequest | TxnOffsetCommitRequest


class OffsetsWritten(NamedTuple):
    """An answer that waits for offset records."""

    ticket: Ticket
    request: CommitRequest | OffsetDeleteRequest
    response: Any


# -- who may -------------------------------------------------------------------------------


def commit_error(
    group: ClassicGroup,
    member_id: str,
    instance_id: str | None,
    generation: int,
    *,
    is_transactional: bool = False,
) -> ErrorCode:
    """Whether the group takes this commit."""
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
    # Old versions of TxnOffsetCommit do not say who sends them: its producer epoch fences them.
    if not is_transactional and group.state is State.COMPLETING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def consumer_commit_error(
    group: ConsumerGroup, member_id: str, epoch: int, *, is_transactional: bool = False
) -> ErrorCode:
    """Whether a group of the newer protocol takes this commit: of a member in its epoch."""
    is_nobody = epoch < 0 and (not group.members or (is_transactional and not member_id))
    if is_nobody:
        return ErrorCode.NONE
    member = group.members.get(member_id)
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if epoch != member.epoch:
        knows_epochs = member.classic is None and not is_transactional
        return ErrorCode.STALE_MEMBER_EPOCH if knows_epochs else ErrorCode.ILLEGAL_GENERATION
    return ErrorCode.NONE


def refused(
    group: ClassicGroup | ConsumerGroup | None, request: OffsetCommitRequest, version: int
) -> ErrorCode:
    """Why an OffsetCommit is not allowed, if it is not."""
    epoch = request.generation_id_or_member_epoch
    if isinstance(group, ConsumerGroup):
        member = group.members.get(request.member_id)
        if member is not None and member.classic is None and version < EPOCHS_ARE_KNOWN:
            return ErrorCode.UNSUPPORTED_VERSION
        return consumer_commit_error(group, request.member_id, epoch)
    if group is not None:
        return commit_error(group, request.member_id, request.group_instance_id, epoch)
    if epoch < 0:
        return ErrorCode.NONE
    not_found = ErrorCode.GROUP_ID_NOT_FOUND
    return not_found if version >= EPOCHS_ARE_KNOWN else ErrorCode.ILLEGAL_GENERATION


def refused_transactional(
    group: ClassicGroup | ConsumerGroup | None, request: TxnOffsetCommitRequest
) -> ErrorCode:
    """Why a TxnOffsetCommit is not allowed, if it is not."""
    member_id, epoch = request.member_id, request.generation_id
    if isinstance(group, ConsumerGroup):
        return consumer_commit_error(group, member_id, epoch, is_transactional=True)
    if group is not None:
        instance_id = request.group_instance_id
        return commit_error(group, member_id, instance_id, epoch, is_transactional=True)
    return ErrorCode.ILLEGAL_GENERATION if epoch >= 0 else ErrorCode.NONE


def fetch_error(group: ConsumerGroup | None, request: OffsetFetchRequestGroup) -> ErrorCode:
    """Whoever says that it is a member must be one."""
    epoch, member_id = request.member_epoch, request.member_id
    if group is None or (member_id is None and epoch < 0):
        return ErrorCode.NONE
    member = group.members.get(member_id or "")
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if epoch == member.epoch:
        return ErrorCode.NONE
    speaks_classic = member.classic is not None
    return ErrorCode.ILLEGAL_GENERATION if speaks_classic else ErrorCode.STALE_MEMBER_EPOCH


def delete_error(group: ClassicGroup | ConsumerGroup) -> ErrorCode:
    """Whether offsets of the group can be deleted one by one.

    Of consumers it is known what they subscribe to; the members of another kind of group may be
    at work anywhere.
    """
    if isinstance(group, ConsumerGroup) or group.state is State.EMPTY or group.is_consumer:
        return ErrorCode.NONE
    return ErrorCode.NON_EMPTY_GROUP


# -- commits -------------------------------------------------------------------------------


def commit(ticket: Ticket, request: CommitRequest, error: ErrorCode, turn: Turn) -> None:
    """Write what a commit says, or tell why not."""
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
    """The records of a commit that is allowed, and the partitions that are left out."""
    records = []
    refused = {}
    expires_ms = NO_EXPIRY
    if isinstance(request, OffsetCommitRequest) and request.retention_time_ms != NO_RETENTION:
        expires_ms = turn.now_ms + request.retention_time_ms
    group_id, now_ms, most = request.group_id, turn.now_ms, turn.rules.offset_metadata_max_bytes
    for topic in request.topics:
        name = topic.name
        for each in topic.partitions:
            metadata = each.committed_metadata or ""
            if len(metadata) > most:
                partition = TopicPartition(name, each.partition_index)
                refused[partition] = ErrorCode.OFFSET_METADATA_TOO_LARGE
                continue
            key = OffsetCommitKey(group=group_id, topic=name, partition=each.partition_index)
            value = OffsetCommitValue(
                offset=each.committed_offset,
                leader_epoch=each.committed_leader_epoch,
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
    """The answer to a commit; `refused` are the partitions with an error of their own."""
    response: OffsetCommitResponse | TxnOffsetCommitResponse
    if isinstance(request, TxnOffsetCommitRequest):
        response = TxnOffsetCommitResponse(
            topics=[
                TxnOffsetCommitResponseTopic(
                    name=topic.name,
                    partitions=[
                        TxnOffsetCommitResponsePartition(
                            partition_index=each.partition_index, error_code=error
                        )
                        for each in topic.partitions
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
                            partition_index=each.partition_index, error_code=error
                        )
                        for each in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )
    if refused:
        for topic in response.topics:
            for each in topic.partitions:
                partition = TopicPartition(topic.name, each.partition_index)
                each.error_code = refused.get(partition, error)
    return response


def refusal(request: CommitRequest | OffsetDeleteRequest, error: ErrorCode) -> Any:
    """The answer if nothing of it was done."""
    if isinstance(request, OffsetDeleteRequest):
        return OffsetDeleteResponse(error_code=error, topics=[])
    return commit_response(request, error)


# -- deletions -----------------------------------------------------------------------------


def delete(
    request: OffsetDeleteRequest, is_subscribed_to: Callable[[str], bool], offsets: Offsets
) -> tuple[list[GroupRecord], OffsetDeleteResponse]:
    """Tombstones for what there is, and the answer when they are written."""
    records = []
    topics = []
    known = offsets.of(request.group_id).keys() | offsets.unstable(request.group_id)
    for topic in request.topics:
        is_subscribed = is_subscribed_to(topic.name)
        error = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if is_subscribed else ErrorCode.NONE
        partitions = []
        for each in topic.partitions:
            partition = TopicPartition(topic.name, each.partition_index)
            partitions.append(
                OffsetDeleteResponsePartition(
                    partition_index=each.partition_index, error_code=error
                )
            )
            if not is_subscribed and partition in known:
                records.append(tombstone(request.group_id, partition))
        topics.append(OffsetDeleteResponseTopic(name=topic.name, partitions=partitions))
    return records, OffsetDeleteResponse(topics=topics)


# -- looking -------------------------------------------------------------------------------


def fetch(
    request: OffsetFetchRequestGroup, offsets: Offsets, *, require_stable: bool
) -> OffsetFetchResponseGroup:
    """What the group has committed in these partitions, or in all."""
    group_id = request.group_id
    asked: Iterable[TopicPartition]
    unstable = offsets.unstable(group_id) if require_stable else set()
    if request.topics is None:
        asked = sorted({*offsets.of(group_id), *unstable})
    else:
        asked = (
            TopicPartition(topic.name, index)
            for topic in request.topics
            for index in topic.partition_indexes
        )
    topics: dict[str, list[OffsetFetchResponsePartitions]] = {}
    for each in asked:
        found = _fetched(each, offsets.of(group_id).get(each), each in unstable)
        topics.setdefault(each.topic, []).append(found)
    return OffsetFetchResponseGroup(
        group_id=group_id,
        topics=[
            OffsetFetchResponseTopics(name=name, partitions=partitions)
            for name, partitions in topics.items()
        ],
    )


def _fetched(
    partition: TopicPartition, committed: Committed | None, is_unstable: bool
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
