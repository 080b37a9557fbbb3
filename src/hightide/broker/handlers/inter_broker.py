"""AlterPartition (56), ControlledShutdown (7), PublishState (30001): requests between brokers.

NOT_CONTROLLER       this broker is not the controller
STALE_BROKER_EPOCH   the sender's session has expired, or the sender has restarted
REQUEST_TIMED_OUT    ZooKeeper is unreachable; the sender retries

AlterPartition per partition: UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC_OR_PARTITION, FENCED_LEADER_EPOCH,
INVALID_UPDATE_VERSION, INELIGIBLE_REPLICA, INVALID_REQUEST; see core/controller/alter_partition.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hightide.broker.controller.controller_errors import CONTROLLER_ERRORS, kafka_error
from hightide.broker.handlers.request_context import Context
from hightide.wire.messages.replication import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    PublishStateRequest,
    PublishStateResponse,
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


async def publish_state(
    broker: Broker, request: PublishStateRequest, _context: Context
) -> PublishStateResponse:
    return await broker.receive_state(request)
