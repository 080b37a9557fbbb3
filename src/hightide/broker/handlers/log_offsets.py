"""ListOffsets (2), DeleteRecords (21), OffsetForLeaderEpoch (23): positions in a log.

Errors per partition:
UNKNOWN_TOPIC_OR_PARTITION                    there is no such partition
NOT_LEADER_OR_FOLLOWER                        another broker leads the partition
FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH     the client's leader epoch is older or newer
OFFSET_NOT_AVAILABLE                          a new leader does not know the high watermark yet
REQUEST_TIMED_OUT                             DeleteRecords: not all replicas have deleted them yet
OFFSET_OUT_OF_RANGE                           DeleteRecords beyond the high watermark
POLICY_VIOLATION                              DeleteRecords on a topic that is only compacted
KAFKA_STORAGE_ERROR                           the log cannot be read
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from hightide.broker.handlers.fetch_plan import check_epoch
from hightide.broker.handlers.request_context import Context
from hightide.broker.replication.replica import Replica
from hightide.core.partition.leader import Leader
from hightide.log.disk import DiskFailed
from hightide.wire.errors import Corrupt, ErrorCode, KafkaError
from hightide.wire.messages.offsets import (
    EpochEndOffset,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)
from hightide.wire.messages.topics import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

if TYPE_CHECKING:
    from hightide.broker.broker import Broker

log = logging.getLogger(__name__)

# Timestamps with a special meaning.
LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL = -1, -2, -3, -4
_TIERED = (-5, -6)  # positions in tiered storage, which does not exist here
_TO_HIGH_WATERMARK = -1
_READ_COMMITTED = 1
_POLL_S = 0.01

Position = tuple[int, int, int]  # timestamp, offset, leader epoch
_NOWHERE: Position = (-1, -1, -1)


def list_offsets(
    broker: Broker, request: ListOffsetsRequest, context: Context
) -> ListOffsetsResponse:
    return ListOffsetsResponse(
        topics=[
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    _list_offset(broker, topic.name, partition, request, context.version)
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _list_offset(
    broker: Broker,
    topic: str,
    requested: ListOffsetsPartition,
    request: ListOffsetsRequest,
    version: int,
) -> ListOffsetsPartitionResponse:
    response = ListOffsetsPartitionResponse(
        partition_index=requested.partition_index, error_code=ErrorCode.NONE
    )
    try:
        replica = _replica(broker, topic, requested.partition_index, requested.current_leader_epoch)
        end_offset = replica.high_watermark
        if request.isolation_level == _READ_COMMITTED:
            end_offset = replica.log.last_stable_offset
        response.timestamp, response.offset, epoch = _position(
            replica, requested.timestamp, end_offset, version
        )
        if version >= 4:
            response.leader_epoch = epoch
    except KafkaError as error:
        response.error_code = error.code
    return response


def _position(replica: Replica, timestamp: int, end_offset: int, version: int) -> Position:
    """Return the position for a timestamp, before `end_offset`, the end that the client sees."""
    log_ = replica.log
    if timestamp == LATEST:
        if not _leader(replica).is_hw_trusted:
            # A former leader may have shown a higher one, and the end must not go backwards.
            raise KafkaError(
                ErrorCode.OFFSET_NOT_AVAILABLE if version >= 5 else ErrorCode.LEADER_NOT_AVAILABLE
            )
        return (-1, end_offset, replica.leader_epoch)
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return (-1, log_.start_offset, log_.epochs.epoch_for(log_.start_offset))
    if timestamp in _TIERED:
        return _NOWHERE
    if timestamp < MAX_TIMESTAMP:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"no such timestamp: {timestamp}")
    try:
        if timestamp == MAX_TIMESTAMP:
            found = log_.max_timestamp()
        else:
            found = log_.offset_for_timestamp(timestamp)
    except (DiskFailed, Corrupt) as error:
        log.error("cannot read %s-%d: %s", replica.topic, replica.partition, error)
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR) from None
    if found is None or found[1] >= end_offset:
        return _NOWHERE
    return found


def _replica(broker: Broker, topic: str, partition: int, epoch: int) -> Replica:
    replica = broker.replica_manager.get(topic.encode(), partition)
    if replica is None:
        raise KafkaError(broker.metadata.refusal(broker.metadata.get(topic), partition))
    check_epoch(replica, epoch)
    _leader(replica)
    if broker.replica_manager.in_doubt():
        replica.check_certain()
    return replica


def _leader(replica: Replica) -> Leader:
    if replica.leader is None:
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    return replica.leader


async def delete_records(
    broker: Broker, request: DeleteRecordsRequest, _context: Context
) -> DeleteRecordsResponse:
    """Respond when all live replicas have deleted the records, or after the timeout."""
    deadline = asyncio.get_running_loop().time() + max(request.timeout_ms, 0) / 1000
    deleted = [
        (
            topic.name,
            [
                _delete_before(broker, topic.name, partition.partition_index, partition.offset)
                for partition in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    return DeleteRecordsResponse(
        topics=[
            DeleteRecordsTopicResult(
                name=name,
                partitions=[
                    await _deleted_everywhere(broker, name, result, deadline) for result in results
                ],
            )
            for name, results in deleted
        ]
    )


async def _deleted_everywhere(
    broker: Broker, topic: str, here: DeleteRecordsPartitionResult, deadline: float
) -> DeleteRecordsPartitionResult:
    """Wait for all replicas: every fetch of a follower carries its log start offset."""
    if here.error_code:
        return here
    loop, partition = asyncio.get_running_loop(), here.partition_index
    while True:
        try:
            replica = _replica(broker, topic, partition, -1)
            low_watermark = _leader(replica).low_watermark(replica.log.start_offset)
            if low_watermark >= here.low_watermark:
                return here
            if loop.time() > deadline:
                raise KafkaError(ErrorCode.REQUEST_TIMED_OUT)
        except KafkaError as error:
            return DeleteRecordsPartitionResult(
                partition_index=partition, low_watermark=-1, error_code=error.code
            )
        await asyncio.sleep(_POLL_S)


def _delete_before(
    broker: Broker, topic: str, partition: int, offset: int
) -> DeleteRecordsPartitionResult:
    low_watermark, code = -1, ErrorCode.NONE
    try:
        replica = _replica(broker, topic, partition, -1)
        if offset == _TO_HIGH_WATERMARK:
            offset = replica.high_watermark
        if not 0 <= offset <= replica.high_watermark:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        if "delete" not in replica.log.config.cleanup_policy:
            raise KafkaError(ErrorCode.POLICY_VIOLATION)
        replica.delete_records(offset)
        low_watermark = replica.log.start_offset
    except KafkaError as error:
        if isinstance(error, DiskFailed):
            log.error("cannot delete records of %s-%d: %s", topic, partition, error)
        code = error.code
    return DeleteRecordsPartitionResult(
        partition_index=partition, low_watermark=low_watermark, error_code=code
    )


def offset_for_leader_epoch(
    broker: Broker, request: OffsetForLeaderEpochRequest, _context: Context
) -> OffsetForLeaderEpochResponse:
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[
                    _end_of_epoch(broker, topic.topic, partition) for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _end_of_epoch(
    broker: Broker, topic: str, requested: OffsetForLeaderPartition
) -> EpochEndOffset:
    code, epoch, end_offset = ErrorCode.NONE, -1, -1
    try:
        replica = _replica(broker, topic, requested.partition, requested.current_leader_epoch)
        epoch, end_offset = replica.log.epochs.end_offset_for(
            requested.leader_epoch, _leader(replica).end_offset
        )
    except KafkaError as error:
        code = error.code
    return EpochEndOffset(
        error_code=code, partition=requested.partition, leader_epoch=epoch, end_offset=end_offset
    )
