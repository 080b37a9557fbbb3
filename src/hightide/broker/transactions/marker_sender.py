"""Sends transaction markers to one other broker, in one of its broker epochs.

Markers go one request at a time over a dedicated connection, whose number the receiver has
confirmed.  After a request without a response its markers may be written, or may still arrive.  So
the connection is replaced, and the transactions of the request are in doubt until the receiver has
confirmed the next connection or has another broker epoch.  `marker_fencing.py` is the receiver's
side.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from hightide.client.broker_connection import Connection, ConnectionFailed
from hightide.core.transactions.transaction_coordinator import Ending
from hightide.wire.errors import ErrorCode
from hightide.wire.messages.markers import OpenMarkerConnectionRequest, OpenMarkerConnectionResponse
from hightide.wire.messages.transactions import WriteTxnMarkersRequest, WriteTxnMarkersResponse
from hightide.wire.types import api_of

if TYPE_CHECKING:
    from hightide.broker.broker import Broker

_PURPOSE = "markers"
_OPEN_TIMEOUT_MS = 5_000


class MarkerSender:
    """The connection to a broker, and the transactions whose markers may still arrive there."""

    def __init__(self, broker: Broker, broker_id: int, epoch: int, numbers: Iterator[int]) -> None:
        self.broker_id = broker_id
        self.epoch = epoch
        self.in_doubt: set[Ending] = set()
        self._broker = broker
        self._connection: Connection | None = None
        self._numbers = numbers
        self._opening_lock = asyncio.Lock()
        self._closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def open(self) -> Connection:
        """Return a connection that the receiver has confirmed as the newest, or ConnectionFailed.

        From then on the receiver refuses markers over earlier connections.
        """
        async with self._opening_lock:
            if self._connection is not None and self._connection.is_open():
                return self._connection
            opening = asyncio.ensure_future(self._open())
            waits: list[asyncio.Future[Any]] = [opening, self._closed]
            try:
                await asyncio.wait(
                    waits, timeout=_OPEN_TIMEOUT_MS / 1000, return_when=asyncio.FIRST_COMPLETED
                )
                if not opening.done():
                    raise ConnectionFailed(
                        f"broker {self.broker_id} did not confirm a connection for markers"
                    )
                self._connection = opening.result()
            finally:
                opening.cancel()
            return self._connection

    async def _open(self) -> Connection:
        broker = self._broker
        endpoint = broker.metadata_image.endpoint(
            self.broker_id, broker.settings.inter_broker_listener()
        )
        if endpoint is None or self._closed.done():
            raise ConnectionFailed(f"broker {self.broker_id} is down")
        connection = await broker.peers.connection(endpoint, _PURPOSE)
        request = OpenMarkerConnectionRequest(
            sender_id=broker.broker_id,
            sender_epoch=broker.broker_epoch,
            number=next(self._numbers),
            broker_epoch=self.epoch,
        )
        try:
            response: OpenMarkerConnectionResponse = await connection.send(
                request, version=0, timeout_ms=_OPEN_TIMEOUT_MS
            )
            if response.error_code != ErrorCode.NONE:
                raise ConnectionFailed(f"broker {self.broker_id} refused it: another broker epoch")
        except BaseException:
            connection.close()
            raise
        return connection

    async def send(
        self, connection: Connection, request: WriteTxnMarkersRequest
    ) -> WriteTxnMarkersResponse:
        """Send markers.  After ConnectionFailed it is unknown whether they are written."""
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
        """Close the sender: the receiver has another broker epoch, or this broker stops."""
        if not self._closed.done():
            self._closed.set_result(None)
        if self._connection is not None:
            self._connection.close()
