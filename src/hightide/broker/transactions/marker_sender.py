"""The way that markers go to one other broker, in one of its lives.

One request at a time, over a connection of its own whose number the broker has confirmed.  After a
request without an answer nobody knows whether its markers are there, or still on their way: the
connection is replaced, and until the broker has confirmed the next, or is in another life, the
endings that were in it are in doubt (`transactions/lanes.py` is the other side).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from hightide.client.connection import Connection, ConnectionFailed
from hightide.core.transactions.transaction_coordinator import Ending
from hightide.wire.errors import ErrorCode
from hightide.wire.messages.markers import OpenMarkerLaneRequest, OpenMarkerLaneResponse
from hightide.wire.messages.transactions import WriteTxnMarkersRequest, WriteTxnMarkersResponse
from hightide.wire.types import api_of

if TYPE_CHECKING:
    from hightide.broker.broker import Broker

_LANE = "markers"
_OPEN_MS = 5_000


class MarkerSender:
    """The connection to a broker, and what may still be on its way over older ones."""

    def __init__(self, broker: Broker, broker_id: int, epoch: int, numbers: Iterator[int]) -> None:
        self.broker_id = broker_id
        self.epoch = epoch
        self.doubts: set[Ending] = set()
        self._broker = broker
        self._connection: Connection | None = None
        self._numbers = numbers
        self._one_at_a_time = asyncio.Lock()
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def open(self) -> Connection:
        """A connection that the broker knows to be the newest; ConnectionFailed if there is none.
        Whatever went over others before is refused there from now on."""
        async with self._one_at_a_time:
            if self._connection is not None and self._connection.is_open():
                return self._connection
            opening = asyncio.ensure_future(self._open())
            waits: list[asyncio.Future[Any]] = [opening, self._over]
            try:
                await asyncio.wait(
                    waits, timeout=_OPEN_MS / 1000, return_when=asyncio.FIRST_COMPLETED
                )
                if not opening.done():
                    raise ConnectionFailed(f"broker {self.broker_id} takes no markers")
                self._connection = opening.result()
            finally:
                opening.cancel()
            return self._connection

    async def _open(self) -> Connection:
        broker = self._broker
        endpoint = broker.picture.endpoint(self.broker_id, broker.settings.inter_broker_listener())
        if endpoint is None or self._over.done():
            raise ConnectionFailed(f"broker {self.broker_id} is not there")
        connection = await broker.peers.connection(endpoint, _LANE)
        request = OpenMarkerLaneRequest(
            sender_id=broker.broker_id,
            sender_epoch=broker.broker_epoch,
            number=next(self._numbers),
            broker_epoch=self.epoch,
        )
        try:
            answer: OpenMarkerLaneResponse = await connection.send(
                request, version=0, timeout_ms=_OPEN_MS
            )
            if answer.error_code != ErrorCode.NONE:
                raise ConnectionFailed(f"broker {self.broker_id} is in another life")
        except BaseException:
            connection.close()
            raise
        return connection

    async def send(
        self, connection: Connection, request: WriteTxnMarkersRequest
    ) -> WriteTxnMarkersResponse:
        """Deliver markers.  ConnectionFailed: nobody knows whether they are there."""
        _, version = api_of(WriteTxnMarkersRequest).versions
        try:
            response: WriteTxnMarkersResponse = await connection.send(
                request,
                version=version,
                timeout_ms=self._broker.settings.replica_socket_timeout_ms,
            )
        except BaseException:
            connection.close()
            raise
        return response

    def close(self) -> None:
        """The broker is in another life, or this one sends nothing any more."""
        if not self._over.done():
            self._over.set_result(None)
        if self._connection is not None:
            self._connection.close()
