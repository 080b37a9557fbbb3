"""FindCoordinator (10), versions 0 to 6: the coordinator of a group or a transactional id.

Errors per key; a request has several keys from version 4 on:
COORDINATOR_NOT_AVAILABLE  there is none, or not yet
INVALID_REQUEST            the key is neither a group nor a transactional id
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hightide.broker.coordinator_lookup import CoordinatorType, coordinator_of
from hightide.broker.handlers.request_context import Context
from hightide.broker.network.turn import gather_in_turns
from hightide.wire.errors import ErrorCode, KafkaError
from hightide.wire.messages.groups import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

if TYPE_CHECKING:
    from hightide.broker.broker import Broker

_SEVERAL_KEYS = 4
_NONE = -1


async def find_coordinator(
    broker: Broker, request: FindCoordinatorRequest, context: Context
) -> FindCoordinatorResponse:
    keys = request.coordinator_keys if context.version >= _SEVERAL_KEYS else [request.key]
    work = (_find(broker, request.key_type, key, context) for key in keys)
    found = await gather_in_turns(context.turn, work)
    if context.version >= _SEVERAL_KEYS:
        return FindCoordinatorResponse(coordinators=[*found])
    (only,) = found
    return FindCoordinatorResponse(
        error_code=only.error_code,
        error_message=only.error_message,
        node_id=only.node_id,
        host=only.host,
        port=only.port,
    )


async def _find(broker: Broker, key_type: int, key: str, context: Context) -> Coordinator:
    try:
        if key_type not in tuple(CoordinatorType):
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"there are no keys of type {key_type}")
        broker_id = await coordinator_of(broker, CoordinatorType(key_type), key)
        for address in broker.addresses(context.connection):
            if address.broker_id == broker_id:
                return Coordinator(key=key, node_id=broker_id, host=address.host, port=address.port)
        raise KafkaError(
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
            f"broker {broker_id} has no listener {context.connection.listener}",
        )
    except KafkaError as error:
        return Coordinator(
            key=key,
            node_id=_NONE,
            host="",
            port=_NONE,
            error_code=error.code,
            error_message=error.detail or error.code.meaning,
        )
