"""ResignController (30000): hand the controller's task to another broker.

Kafka has no request for it; there, people delete a znode and hope.

NOT_CONTROLLER         this broker is not the controller
BROKER_NOT_AVAILABLE   there is no other broker, or none took over: this one is the controller again
REQUEST_TIMED_OUT      the coordinator cannot be reached
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hightide.broker.handlers.refusals import REFUSALS, refusal
from hightide.broker.handlers.request_context import Context
from hightide.core.partition.state import NOBODY
from hightide.wire.errors import ErrorCode, KafkaError
from hightide.wire.messages.controller import ResignControllerRequest, ResignControllerResponse

if TYPE_CHECKING:
    from hightide.broker.broker import Broker


async def resign_controller(
    broker: Broker, _request: ResignControllerRequest, _context: Context
) -> ResignControllerResponse:
    try:
        controller_id = await _resign(broker)
    except REFUSALS as error:
        told = refusal(error)
        return ResignControllerResponse(
            error_code=told.code, error_message=told.detail or None, controller_id=NOBODY
        )
    return ResignControllerResponse(controller_id=controller_id)


async def _resign(broker: Broker) -> int:
    if not broker.election.is_controller:
        raise KafkaError(ErrorCode.NOT_CONTROLLER, "another broker is the controller")
    if broker.metadata.broker_ids == [broker.broker_id]:
        raise KafkaError(
            ErrorCode.BROKER_NOT_AVAILABLE,
            f"broker {broker.broker_id} is the only one; nobody could take over",
        )
    controller_id = await broker.election.resign()
    if controller_id in (NOBODY, broker.broker_id):
        raise KafkaError(
            ErrorCode.BROKER_NOT_AVAILABLE,
            f"no other broker took over; broker {broker.broker_id} stands again",
        )
    return controller_id
