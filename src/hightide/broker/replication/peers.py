"""A broker's connections to other brokers: one per address and purpose, opened when first needed.

Responses come in the order of the requests, so requests that may wait long have their own
connection: a fetch that waits for records must not delay requests of the controller.

The first thing on a connection is a proof of both sides (`broker/membership/broker_proof.py`).  A
broker that has registered again, in another broker epoch, makes new connections.

A connection that the network has cut is closed within seconds, so that requests fail and are sent
again over a new one.  A broker that is only slow keeps its connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from hightide.client.broker_connection import Connection, ConnectionFailed
from hightide.wire.errors import KafkaError
from hightide.wire.messages.replication import PublishedEndpoint
from hightide.wire.types import api_of

CONTROL = "control"
# A batch may be larger than the limit of a fetch, up to any max.message.bytes.
MAX_RESPONSE_BYTES = 2**31 - 1
# Before the other side has proved to be a broker.
_UNPROVED_BYTES = 64 * 1024

_Key = tuple[str, int, str]


class Proof(Protocol):
    """Proves a new connection; see `BrokerProof`."""

    @property
    def broker_epoch(self) -> Callable[[], int]: ...

    async def prove(self, connection: Connection, timeout_ms: int) -> int: ...


class Peers:
    """This broker's connections to other brokers."""

    def __init__(
        self, client_id: str, proof: Proof, *, socket_timeout_ms: Callable[[], int]
    ) -> None:
        self._client_id = client_id
        self._proof = proof
        self._socket_timeout_ms = socket_timeout_ms
        self._open: dict[_Key, tuple[Connection, int]] = {}  # with the broker epoch proved
        self._opening: dict[_Key, asyncio.Task[Connection]] = {}
        self._is_closed = False

    async def connection(self, endpoint: PublishedEndpoint, purpose: str = CONTROL) -> Connection:
        """Return the connection to an address, opened if need be; ConnectionFailed if it fails."""
        key = (endpoint.host, endpoint.port, purpose)
        found = self._open.get(key)
        if found is not None and found[0].is_open():
            if found[1] == self._proof.broker_epoch():
                return found[0]
            found[0].close()
        if self._is_closed:
            raise ConnectionFailed(
                f"{endpoint.host}:{endpoint.port} is not connected to: this broker is stopping."
            )
        opening = self._opening.get(key)
        if opening is None:
            opening = asyncio.create_task(self._connect(key))
            # All waiters may give up before it fails; then its exception would go unretrieved.
            opening.add_done_callback(_retrieve_failure)
            self._opening[key] = opening
        # Several requests may wait for it; one that gives up must not cancel it for the others.
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            waiting = asyncio.current_task()
            if opening.cancelled() and waiting is not None and not waiting.cancelling():
                raise ConnectionFailed(
                    f"{endpoint.host}:{endpoint.port} is not connected to: this broker is stopping."
                ) from None
            raise

    async def send(
        self,
        endpoint: PublishedEndpoint,
        request: Any,
        *,
        timeout_ms: int,
        purpose: str = CONTROL,
    ) -> Any:
        """Send a request in our newest version and return its response.

        All brokers of a cluster are Hightide brokers, so the version is not looked up in
        ApiVersions, which lists no requests between brokers.  ConnectionFailed if there is no
        response in time; the request may have been carried out all the same.
        """
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                connection = await self.connection(endpoint, purpose)
        except TimeoutError:
            raise ConnectionFailed(
                f"{endpoint.host}:{endpoint.port} did not accept a connection in {timeout_ms} ms."
            ) from None
        _, version = api_of(type(request)).versions
        try:
            return await connection.send(request, version=version, timeout_ms=timeout_ms)
        except ConnectionFailed:
            # Responses come in order, so after a missing one there will be no other; and a network
            # that lost it may have lost the connection.
            connection.close()
            raise

    async def close(self) -> None:
        """Close all connections; requests that wait for a response get ConnectionFailed."""
        self._is_closed = True
        opening = list(self._opening.values())
        for task in opening:
            task.cancel()
        await asyncio.gather(*opening, return_exceptions=True)
        for connection, _ in self._open.values():
            connection.close()
        self._open.clear()

    async def _connect(self, key: _Key) -> Connection:
        host, port, _ = key
        timeout_ms = self._socket_timeout_ms()
        try:
            connection = await Connection.open(
                host,
                port,
                client_id=self._client_id,
                timeout_ms=timeout_ms,
                max_response_bytes=_UNPROVED_BYTES,
                is_peer=True,
            )
            try:
                epoch = await self._proof.prove(connection, timeout_ms)
            except BaseException:
                connection.close()
                raise
            connection.max_response_bytes = MAX_RESPONSE_BYTES
        except KafkaError as error:
            raise ConnectionFailed(f"{host}:{port} refused: {error}") from error
        finally:
            del self._opening[key]
        self._open[key] = (connection, epoch)
        return connection


def _retrieve_failure(opening: asyncio.Task[Connection]) -> None:
    if not opening.cancelled():
        opening.exception()
