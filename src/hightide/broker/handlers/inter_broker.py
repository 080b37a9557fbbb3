"""AlterPartition (56), ControlledShutdown (7), PublishState (30001), ReportFailures (30005),
ReplicaLogInfo (30006): requests between brokers.

NOT_CONTROLLER       this broker is not the controller
STALE_BROKER_EPOCH   the sender's session has expired, or the sender has restarted
REQUEST_TIMED_OUT    ZooKeeper is unreachable; the sender retries

AlterPartition per partition: UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC_OR_PARTITION, FENCED_LEADER_EPOCH,
INVALID_UPDATE_VERSION, INELIGIBLE_REPLICA, INVALID_REQUEST; see core/controller/alter_partition.py.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from hightide.broker.controller.controller_errors import CONTROLLER_ERRORS, kafka_error
from hightide.broker.handlers.request_context import Context
from hightide.wire.errors import ErrorCode
from hightide.wire.messages.replication import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    LogInfoResponseTopic,
    PartitionLogInfo,
    PublishStateRequest,
    PublishStateResponse,
    ReplicaLogInfoRequest,
    ReplicaLogInfoResponse,
    ReportFailuresRequest,
    ReportFailuresResponse,
)

if TYPE_CHECKING:
    from hightide.broker.broker import Broker


async def alter_partition(
    broker: Broker, request: AlterPartitionRequest, _context: Context
) -> AlterPartitionResponse:
    try:
        return await broker.controller.alter_partition(request)
    except CONTROLLER_ERRORS as error:
        return AlterPartitionResponse(error_code=kafka_error(error).code, topics=[])


async def controlled_shutdown(
    broker: Broker, request: ControlledShutdownRequest, _context: Context
) -> ControlledShutdownResponse:
    try:
        return await broker.controller.controlled_shutdown(request)
    except CONTROLLER_ERRORS as error:
        return ControlledShutdownResponse(
            error_code=kafka_error(error).code, remaining_partitions=[]
        )


async def report_failures(
    broker: Broker, request: ReportFailuresRequest, _context: Context
) -> ReportFailuresResponse:
    try:
        return await broker.controller.report_failures(request)
    except CONTROLLER_ERRORS as error:
        return ReportFailuresResponse(error_code=kafka_error(error).code)


def replica_log_info(
    broker: Broker, request: ReplicaLogInfoRequest, _context: Context | None = None
) -> ReplicaLogInfoResponse:
    topics = [
        LogInfoResponseTopic(
            topic_id=topic.topic_id,
            partitions=[_log_info(broker, topic.topic_id, index) for index in topic.partitions],
        )
        for topic in request.topics
    ]
    return ReplicaLogInfoResponse(broker_epoch=broker.broker_epoch, topics=topics)


def _log_info(broker: Broker, topic_id: uuid.UUID, index: int) -> PartitionLogInfo:
    replica = broker.replica_manager.get_by_id(topic_id.bytes, index)
    if replica is None or replica.leader is not None or replica.follower is not None:
        return PartitionLogInfo(partition_index=index, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    if replica.log.failure is not None:
        return PartitionLogInfo(partition_index=index, error_code=ErrorCode.KAFKA_STORAGE_ERROR)
    return PartitionLogInfo(
        partition_index=index,
        leader_epoch=replica.leader_epoch,
        last_epoch=replica.log.epochs.latest,
        end_offset=replica.log.end_offset,
    )


async def publish_state(
    broker: Broker, request: PublishStateRequest, _context: Context
) -> PublishStateResponse:
    return await broker.receive_state(request)
