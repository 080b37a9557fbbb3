"""Requests between the controller and the brokers.

If this broker is the controller, a request to the controller is a function call; everything else is
the same.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from hightide.broker.handlers.inter_broker import replica_log_info
from hightide.client.broker_connection import ConnectionFailed
from hightide.wire.errors import ErrorCode, KafkaError
from hightide.wire.messages.replication import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    PublishedEndpoint,
    PublishStateRequest,
    PublishStateResponse,
    ReplicaLogInfoRequest,
    ReplicaLogInfoResponse,
    ReportFailuresRequest,
    ReportFailuresResponse,
)

if TYPE_CHECKING:
    from hightide.broker.broker import Broker

_CONTROLLER_TIMEOUT_MS = 5_000
_LOGS_TIMEOUT_MS = 3_000


class ControllerChannel:
    """One broker's channel to the other brokers and to the controller."""

    def __init__(self, broker: Broker, listener: str) -> None:
        self._broker = broker
        self._listener = listener
        self._receiving: dict[asyncio.Task[PublishStateResponse], None] = {}

    async def publish(
        self, broker_id: int, endpoint: PublishedEndpoint | None, message: PublishStateRequest
    ) -> PublishStateResponse:
        """As the controller: send state to a broker, which may be this one."""
        broker = self._broker
        if broker_id == broker.broker_id:
            # Shielded: like another broker, this one applies the whole message even if the event
            # queue that sent it closes meanwhile.
            receiving = asyncio.ensure_future(broker.receive_state(message))
            self._receiving[receiving] = None
            receiving.add_done_callback(self._receiving.pop)
            return await asyncio.shield(receiving)
        if endpoint is None:
            raise ConnectionFailed(f"broker {broker_id} has no listener {self._listener}")
        response: PublishStateResponse = await broker.peers.send(
            endpoint, message, timeout_ms=broker.settings.controller_socket_timeout_ms
        )
        return response

    async def read_logs(
        self, broker_id: int, endpoint: PublishedEndpoint | None, request: ReplicaLogInfoRequest
    ) -> ReplicaLogInfoResponse:
        """As the controller: ask a broker, which may be this one, how far its logs reach."""
        broker = self._broker
        if broker_id == broker.broker_id:
            return replica_log_info(broker, request)
        if endpoint is None:
            raise ConnectionFailed(f"broker {broker_id} has no listener {self._listener}")
        response: ReplicaLogInfoResponse = await broker.peers.send(
            endpoint, request, timeout_ms=_LOGS_TIMEOUT_MS
        )
        return response

    async def alter_partition(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        """Propose changes of ISRs to the controller."""
        if self._broker.election.is_controller:
            return await self._broker.controller.alter_partition(request)
        response: AlterPartitionResponse = await self._request(request)
        return response

    async def report_failures(self, request: ReportFailuresRequest) -> ReportFailuresResponse:
        """Report the replicas that this broker cannot serve to the controller."""
        if self._broker.election.is_controller:
            return await self._broker.controller.report_failures(request)
        response: ReportFailuresResponse = await self._request(request)
        return response

    async def controlled_shutdown(self) -> ControlledShutdownResponse:
        """Ask the controller to move leadership away from this broker."""
        broker = self._broker
        request = ControlledShutdownRequest(
            broker_id=broker.broker_id, broker_epoch=broker.broker_epoch
        )
        if broker.election.is_controller:
            return await broker.controller.controlled_shutdown(request)
        response: ControlledShutdownResponse = await self._request(request)
        return response

    async def _request(self, request: Any) -> Any:
        controller_id = self._broker.election.controller_id
        endpoint = self._broker.metadata_image.endpoint(controller_id, self._listener)
        if endpoint is None:
            raise KafkaError(
                ErrorCode.NOT_CONTROLLER,
                f"the address of the controller, broker {controller_id}, is not known yet",
            )
        return await self._broker.peers.send(endpoint, request, timeout_ms=_CONTROLLER_TIMEOUT_MS)
