"""DescribeConnections (30009): the open connections of this broker, in pages.

Kafka has no such request; there, it takes the metrics of every broker.  The response has what
clients say about themselves and what this broker counts: no contents and no credentials.

INVALID_REQUEST   the number or the limit is negative
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hightide.broker.handlers.request_context import Context
from hightide.broker.metrics.counters import FOLLOWER_FETCH
from hightide.broker.network.connection import Connection
from hightide.broker.network.turn import Steps
from hightide.wire.errors import ErrorCode
from hightide.wire.messages.connections import (
    DescribeConnectionsRequest,
    DescribeConnectionsResponse,
    DescribedConnection,
)

if TYPE_CHECKING:
    from hightide.broker.broker import Broker

MOST_CONNECTIONS = 1000
"""The limit of one response."""
_LOOKED_AT = 100
"""Connections between two places where other requests may have their turn."""
_FETCH, _NONE = 1, -1


def describe_connections(
    broker: Broker, request: DescribeConnectionsRequest, _context: Context
) -> Steps[DescribeConnectionsResponse]:
    if request.after < 0 or request.limit < 0:
        return DescribeConnectionsResponse(
            error_code=ErrorCode.INVALID_REQUEST,
            error_message="the number and the limit are at least 0",
            connections=[],
        )
    limit = min(request.limit, MOST_CONNECTIONS)
    # A copy: connections come and go between the steps.
    kept = list(broker.connections)
    keys = {id(counts): _FETCH if key == FOLLOWER_FETCH else key for key, counts in broker.requests}
    response = DescribeConnectionsResponse(open_connections=len(kept), connections=[])
    for count, connection in enumerate(kept):
        if count % _LOOKED_AT == 0:
            yield
        if connection.number <= request.after or connection.is_closed:
            continue
        if len(response.connections) >= limit:
            response.has_more = True
            break
        last_api = keys.get(id(connection.counts.api), _NONE)
        response.connections.append(_described(broker, connection, last_api))
    return response


def _described(broker: Broker, connection: Connection, last_api: int) -> DescribedConnection:
    name, version = connection.client_software
    return DescribedConnection(
        number=connection.number,
        client_id=connection.client_id,
        software_name=name,
        software_version=version,
        address=connection.client_address,
        port=connection.client_port,
        listener=connection.listener,
        connected_ms=broker.now_ms() - connection.age_ms,
        idle_ms=connection.idle_ms,
        requests=connection.requests,
        last_api=last_api,
        broker_id=connection.peer_broker_id,
    )
