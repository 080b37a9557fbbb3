"""A follower's Fetch: one request, and its response with the records left in the frame."""

from __future__ import annotations

import asyncio

from hightide.client.broker_connection import TIMEOUT_MS, Connection
from hightide.wire.errors import ErrorCode, KafkaError
from hightide.wire.hot import replica_fetch_codec as hot
from hightide.wire.hot.fetch_codec import Fetch


async def fetch(
    connection: Connection, request: Fetch, *, timeout_ms: int = TIMEOUT_MS
) -> hot.ReplicaFetchResponse:
    """Fetch from a leader, with topic ids.  The response's error codes are data.

    `timeout_ms` must be longer than the request's `max_wait_ms`.
    """
    return read(connection, await ask(connection, request, timeout_ms=timeout_ms))


def ask(
    connection: Connection, request: Fetch, *, timeout_ms: int = TIMEOUT_MS
) -> asyncio.Future[memoryview]:
    """Send a Fetch; pass the frame of the response to `read`."""
    lowest, highest = connection.versions.get(hot.FETCH, (0, -1))
    if not lowest <= hot.VERSION <= highest:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"{connection.address} does not offer Fetch in version {hot.VERSION}, in which "
            "brokers fetch from each other.",
        )
    client_id = connection.client_id.encode()
    return connection.submit(
        lambda correlation_id: hot.encode(request, correlation_id, client_id), "Fetch", timeout_ms
    )


def read(connection: Connection, frame: memoryview) -> hot.ReplicaFetchResponse:
    """Decode the response; its records are views of the frame."""
    return connection.read(lambda: hot.decode(frame))
