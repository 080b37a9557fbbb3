"""Fetching as a follower does: one request, and its answer with the records left where they are."""

from __future__ import annotations

from hightide.client.connection import TIMEOUT_MS, Connection
from hightide.wire.errors import ErrorCode, KafkaError
from hightide.wire.hot import replica_fetch as hot
from hightide.wire.hot.fetch import Fetch


async def fetch(
    connection: Connection, request: Fetch, *, timeout_ms: int = TIMEOUT_MS
) -> hot.Answer:
    """Ask a leader; topics go by id.  The answer's error codes are data.

    `timeout_ms` must be longer than the leader is told to wait for records.
    """
    lowest, highest = connection.versions.get(hot.FETCH, (0, -1))
    if not lowest <= hot.VERSION <= highest:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"{connection.address} does not offer Fetch in version {hot.VERSION}, in which "
            "brokers fetch from each other.",
        )
    client_id = connection.client_id.encode()
    answer = await connection.exchange(
        lambda correlation_id: hot.encode(request, correlation_id, client_id), "Fetch", timeout_ms
    )
    return connection.read(lambda: hot.decode(answer))
