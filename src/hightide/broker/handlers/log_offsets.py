"""ListOffsets (2), DeleteRecords (21), OffsetForLeaderEpoch (23): positions in a log.

Errors per partition:
UNKNOWN_TOPIC_OR_PARTITION                    there is no such partition
NOT_LEADER_OR_FOLLOWER                        another broker leads the partition
FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH     the client's leader epoch is older or newer
OFFSET_NOT_AVAILABLE                          a new leader does not know the high watermark yet
REQUEST_TIMED_OUT                             DeleteRecords: not all replicas have deleted them yet
OFFSET_OUT_OF_RANGE                           DeleteRecords beyond the high watermark
INVALID_REQUEST                               ListOffsets: the partition is named twice
POLICY_VIOLATION                              DeleteRecords on a topic that is only compacted
INVALID_TOPIC_EXCEPTION                       DeleteRecords on an internal topic
KAFKA_STORAGE_ERROR                           the log cannot be read
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, NamedTuple

from hightide.broker.handlers.fetch_plan import check_epoch
from hightide.broker.handlers.request_context import Context
from hightide.broker.network.turn import Steps, Turn
from hightide.broker.replication.replica import Replica
from hightide.core.metadata.topic_names import INTERNAL_TOPICS
from hightide.core.partition.leader import Leader
from hightide.log.disk import DiskFailed
from hightide.log.timestamp_search import Scan, TimestampSearch
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
) -> Steps[ListOffsetsResponse] | Coroutine[Any, Any, ListOffsetsResponse]:
    """A partition that is named twice gets INVALID_REQUEST, as in Kafka."""
    answers: list[_Answer] = []
    named = Counter(
        (topic.name, partition.partition_index)
        for topic in request.topics
        for partition in topic.partitions
    )
    steps = _list_offsets(broker, request, context.version, named, answers)
    searches = any(
        partition.timestamp >= 0 or partition.timestamp == MAX_TIMESTAMP
        for topic in request.topics
        for partition in topic.partitions
    )
    return _search_timestamps(broker, steps, answers, request, context) if searches else steps


class _Answer(NamedTuple):
    """A partition's place in the response, for a timestamp that must be searched for."""

    response: ListOffsetsPartitionResponse
    topic: str
    requested: ListOffsetsPartition


def _list_offsets(
    broker: Broker,
    request: ListOffsetsRequest,
    version: int,
    named: Counter[tuple[str, int]],
    searches: list[_Answer],
) -> Steps[ListOffsetsResponse]:
    """Answer everything but timestamps, which are added to `searches`."""
    topics = []
    for topic in request.topics:
        partitions = []
        for partition in topic.partitions:
            yield
            index, code = partition.partition_index, ErrorCode.NONE
            if named[topic.name, index] > 1:
                code = ErrorCode.INVALID_REQUEST
            response = ListOffsetsPartitionResponse(partition_index=index, error_code=code)
            partitions.append(response)
            if code is not ErrorCode.NONE:
                continue
            if partition.timestamp >= 0 or partition.timestamp == MAX_TIMESTAMP:
                searches.append(_Answer(response, topic.name, partition))
                continue
            try:
                replica, end_offset = _visible(broker, topic.name, partition, request)
                found = _position(replica, partition.timestamp, end_offset, version)
                _fill(response, found, version)
            except KafkaError as error:
                response.error_code = error.code
        topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=partitions))
    return ListOffsetsResponse(topics=topics)


async def _search_timestamps(
    broker: Broker,
    steps: Steps[ListOffsetsResponse],
    searches: list[_Answer],
    request: ListOffsetsRequest,
    context: Context,
) -> ListOffsetsResponse:
    response = await context.turn.finish(steps)
    for answer in searches:
        try:
            replica, _ = _visible(broker, answer.topic, answer.requested, request)
            found = await _find_timestamp(broker, replica, answer.requested.timestamp, context.turn)
            replica, end_offset = _visible(broker, answer.topic, answer.requested, request)
            if found is None or found[1] >= end_offset:
                found = _NOWHERE
            _fill(answer.response, found, context.version)
        except KafkaError as error:
            answer.response.error_code = error.code
    return response


async def _find_timestamp(
    broker: Broker, replica: Replica, timestamp: int, turn: Turn
) -> Position | None:
    """Search a log in short steps; batches that take long to decode are scanned in the pool."""
    log_ = replica.log
    search = TimestampSearch(log_, None if timestamp == MAX_TIMESTAMP else timestamp)
    try:
        while (scan := log_.look_up(search.next_batch)) is not None:
            result: tuple[int, int] | None = None
            if scan.batch is not None and scan.is_quick:
                result = log_.look_up(_result, _outcome(scan))
            elif scan.batch is not None:
                scanned = await broker.work_pool.run(turn.usage, len(scan.batch), _outcome, scan)
                result = log_.look_up(_result, scanned)
            search.scanned(result)
            await turn.pause()
    except (DiskFailed, Corrupt) as error:
        log.error("cannot read %s-%d: %s", replica.topic, replica.partition, error)
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR) from None
    return search.found


def _outcome(scan: Scan) -> tuple[int, int] | Corrupt | None:
    """Scan in a thread; damage is reported on the event loop."""
    try:
        return scan()
    except Corrupt as damage:
        return damage


def _result(outcome: tuple[int, int] | Corrupt | None) -> tuple[int, int] | None:
    if isinstance(outcome, Corrupt):
        raise outcome
    return outcome


def _visible(
    broker: Broker, topic: str, requested: ListOffsetsPartition, request: ListOffsetsRequest
) -> tuple[Replica, int]:
    """Return the replica, and the end of what the client sees."""
    replica = _replica(broker, topic, requested.partition_index, requested.current_leader_epoch)
    if request.isolation_level == _READ_COMMITTED:
        return replica, replica.log.last_stable_offset
    return replica, replica.high_watermark


def _fill(response: ListOffsetsPartitionResponse, found: Position, version: int) -> None:
    response.timestamp, response.offset, epoch = found
    if version >= 4:
        response.leader_epoch = epoch


def _position(replica: Replica, timestamp: int, end_offset: int, version: int) -> Position:
    """Return the position that a special timestamp stands for."""
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
    raise KafkaError(ErrorCode.INVALID_REQUEST, f"no such timestamp: {timestamp}")


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
    broker: Broker, request: DeleteRecordsRequest, context: Context
) -> DeleteRecordsResponse:
    """Respond when all live replicas have deleted the records, or after the timeout."""
    deadline = asyncio.get_running_loop().time() + max(request.timeout_ms, 0) / 1000
    deleted: list[tuple[str, list[DeleteRecordsPartitionResult]]] = []
    for topic in request.topics:
        here = []
        for partition in topic.partitions:
            index, offset = partition.partition_index, partition.offset
            here.append(_delete_before(broker, topic.name, index, offset, context.sender))
            await context.turn.pause()
        deleted.append((topic.name, here))
    topics = []
    for name, results in deleted:
        everywhere = []
        for result in results:
            everywhere.append(await _deleted_everywhere(broker, name, result, deadline))
            await context.turn.pause()
        topics.append(DeleteRecordsTopicResult(name=name, partitions=everywhere))
    return DeleteRecordsResponse(topics=topics)


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
    broker: Broker, topic: str, partition: int, offset: int, sender: str
) -> DeleteRecordsPartitionResult:
    low_watermark, code = -1, ErrorCode.NONE
    try:
        if topic in INTERNAL_TOPICS:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION)
        replica = _replica(broker, topic, partition, -1)
        if offset == _TO_HIGH_WATERMARK:
            offset = replica.high_watermark
        if not 0 <= offset <= replica.high_watermark:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        if "delete" not in replica.log.config.cleanup_policy:
            raise KafkaError(ErrorCode.POLICY_VIOLATION)
        before = replica.log.start_offset
        replica.delete_records(offset)
        if replica.log.start_offset != before:
            log.info(
                "%s-%d: deleted records before %d, asked by %s", topic, partition, offset, sender
            )
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
) -> Steps[OffsetForLeaderEpochResponse]:
    topics = []
    for topic in request.topics:
        partitions = []
        for partition in topic.partitions:
            yield
            partitions.append(_end_of_epoch(broker, topic.topic, partition))
        topics.append(OffsetForLeaderTopicResult(topic=topic.topic, partitions=partitions))
    return OffsetForLeaderEpochResponse(topics=topics)


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
