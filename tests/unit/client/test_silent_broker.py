"""A broker that is silent costs a client no longer than its time for connecting."""

from __future__ import annotations

import asyncio

import pytest

from hightide.client.admin import Admin
from hightide.client.broker_connection import ConnectionFailed
from tests.unit.client.fake_broker import METADATA, FakeBroker


def test_a_broker_that_starts_and_answers_only_api_versions_is_given_up_soon():
    async def test():
        broker = FakeBroker(1)
        broker.answers[METADATA] = lambda _request: None
        server = await asyncio.start_server(broker.serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server, Admin(f"127.0.0.1:{port}", connect_timeout_ms=100) as admin:
            with pytest.raises(ConnectionFailed, match="did not answer Metadata within 100 ms"):
                await admin.topics.list()

    asyncio.run(test())
