"""FindCoordinator (10), versions 0 to 6: who coordinates a group or a transactional id.

Answers per key, of which there are several from version 4 on:
COORDINATOR_NOT_AVAILABLE  nobody, or not yet
INVALID_REQUEST            something that is neither a group nor a transactional id
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from hightide.broker.coordinator_lookup import CoordinatorType, coordinator_of
from hightide.broker.handlers.request_context import Context
from hightide.wire.errors import ErrorCode, KafkaError
from hightide.wire.messages.groups import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

if TYPE_CHECKING:
    from hightide.broker.broker import Broker

_SEVERAL = 4
_NOBODY = -1


async def find_coordinator(
    broker: Broker, request: FindCoordinatorRequest, context: Context
) -> FindCoordinatorResponse:
    keys = request.coordinator_keys if context.version >= _SEVERAL else [request.key]
    found = await asyncio.gather(*(_find(broker, request.key_type, each, context) for each in keys))
    if context.version >= _SEVERAL:
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
        for each in broker.addresses(context.connection):
            if each.broker_id == broker_id:
                return Coordinator(key=key, node_id=broker_id, host=each.host, port=each.port)
        raise KafkaError(
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
            f"broker {broker_id} has no listener {context.connection.listener}",
        )
    except KafkaError as error:
        return Coordinator(
            key=key,
            node_id=_NOBODY,
            host="",
            port=_NOBODY,
            error_code=error.code,
            error_message=error.detail or error.code.meaning,
        )
