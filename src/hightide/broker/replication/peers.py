"""A broker's connections to the others: one per address and lane, opened when first needed.

A connection answers in the order of its requests, so what may wait long has a lane of its own: a
fetch that waits for records must not hold up what the controller says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from hightide.client.connection import Connection, ConnectionFailed
from hightide.wire.errors import KafkaError
from hightide.wire.messages.replication import PublishedEndpoint
from hightide.wire.types import api_of

CONTROL = "control"
# A batch may be larger than what a fetch asks for, up to any max.message.bytes.
MAX_ANSWER_BYTES = 2**31 - 1

_Key = tuple[str, int, str]


class Peers:
    """This broker's connections to other brokers."""

    def __init__(self, client_id: str, *, socket_timeout_ms: Callable[[], int]) -> None:
        self._client_id = client_id
        self._socket_timeout_ms = socket_timeout_ms
        self._open: dict[_Key, Connection] = {}
        self._opening: dict[_Key, asyncio.Task[Connection]] = {}
        self._is_closed = False

    async def connection(self, endpoint: PublishedEndpoint, lane: str = CONTROL) -> Connection:
        """The connection to an address; ConnectionFailed if there can be none."""
        key = (endpoint.host, endpoint.port, lane)
        found = self._open.get(key)
        if found is not None and found.is_open():
            return found
        if self._is_closed:
            raise ConnectionFailed(f"{endpoint.host}:{endpoint.port} is not asked any more.")
        opening = self._opening.get(key)
        if opening is None:
            opening = asyncio.create_task(self._connect(key))
            # Everybody who waits may give up before it fails, and then nobody asks why it did.
            opening.add_done_callback(_note_failure)
            self._opening[key] = opening
        # Several may wait for it, and one who gives up must not take it from the others.
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            asking = asyncio.current_task()
            if opening.cancelled() and asking is not None and not asking.cancelling():
                raise ConnectionFailed(f"{endpoint.host}:{endpoint.port} was given up.") from None
            raise

    async def ask(
        self,
        endpoint: PublishedEndpoint,
        request: Any,
        *,
        timeout_ms: int,
        lane: str = CONTROL,
    ) -> Any:
        """Send a request in our newest version and return its answer.

        Brokers of a cluster are of one kind, so the version is not looked up in what the other
        side offers to clients: what only brokers say is not there.  ConnectionFailed if there is
        no answer in time; the request may have been carried out all the same.
        """
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                connection = await self.connection(endpoint, lane)
        except TimeoutError:
            raise ConnectionFailed(
                f"{endpoint.host}:{endpoint.port} did not accept a connection in {timeout_ms} ms."
            ) from None
        _, version = api_of(type(request)).versions
        try:
            return await connection.send(request, version=version, timeout_ms=timeout_ms)
        except ConnectionFailed:
            # Answers come in order, so after one that is missing there will be no other; and a
            # network that lost it may have lost the connection.
            connection.close()
            raise

    async def close(self) -> None:
        """Close all; whoever waits for an answer gets ConnectionFailed."""
        self._is_closed = True
        opening = list(self._opening.values())
        for task in opening:
            task.cancel()
        await asyncio.gather(*opening, return_exceptions=True)
        for connection in self._open.values():
            connection.close()
        self._open.clear()

    async def _connect(self, key: _Key) -> Connection:
        host, port, _ = key
        try:
            connection = await Connection.open(
                host,
                port,
                client_id=self._client_id,
                timeout_ms=self._socket_timeout_ms(),
                max_answer_bytes=MAX_ANSWER_BYTES,
            )
        except KafkaError as error:
            raise ConnectionFailed(f"{host}:{port} refused: {error}") from error
        finally:
            del self._opening[key]
        self._open[key] = connection
        return connection


def _note_failure(opening: asyncio.Task[Connection]) -> None:
    if not opening.cancelled():
        opening.exception()
