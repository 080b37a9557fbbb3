"""Topics that a Metadata request creates: how many, and for how long."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from hightide.broker.broker import Broker
from hightide.broker.environment import RealEnvironment
from hightide.broker.handlers import metadata
from hightide.client.broker_connection import Connection
from hightide.log.disk import MemoryDisk
from hightide.settings import Broker as Settings
from hightide.wire.errors import ErrorCode, KafkaError
from hightide.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.support.eventually import eventually_async

LATER = ErrorCode.LEADER_NOT_AVAILABLE


@asynccontextmanager
async def started(**settings: Any) -> AsyncIterator[tuple[Broker, Connection]]:
    broker = Broker(
        Settings(listeners="PLAINTEXT://127.0.0.1:0", zookeeper_listen="127.0.0.1:0", **settings),
        environment=RealEnvironment(memory=MemoryDisk()),
    )
    (address,) = await broker.start()
    client = await Connection.open(*address)
    try:
        yield broker, client
    finally:
        client.close()
        await broker.stop()


def request_for(*names: str) -> MetadataRequest:
    topics = [MetadataRequestTopic(name=name) for name in names]
    return MetadataRequest(topics=topics, allow_auto_topic_creation=True)


def test_a_request_creates_a_few_topics_and_a_client_that_asks_again_gets_the_others() -> None:
    async def test() -> None:
        async with started(auto_create_topics_max_per_request=2) as (broker, client):
            request = request_for("a", "not valid", "b", "c", "d", "e")
            invalid = ErrorCode.INVALID_TOPIC_EXCEPTION
            first = [topic.error_code for topic in (await client.send(request)).topics]
            assert first == [0, invalid, 0, LATER, LATER, LATER]
            assert broker.metadata.names() == ["a", "b"]
            second = [topic.error_code for topic in (await client.send(request)).topics]
            assert second == [0, invalid, 0, 0, 0, LATER]
            third = [topic.error_code for topic in (await client.send(request)).topics]
            assert third == [0, invalid, 0, 0, 0, 0]

    asyncio.run(test())


def test_names_that_no_request_creates_get_the_same_error_past_the_limit() -> None:
    async def test() -> None:
        settings = {"auto_create_topics_max_per_request": 1, "auto_create_topics_enable": False}
        async with started(**settings) as (_, client):
            answer = await client.send(request_for("a", "b", "__consumer_offsets"))
            unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert [topic.error_code for topic in answer.topics] == [unknown] * 3

    asyncio.run(test())


def test_a_request_creates_topics_for_a_limited_time(monkeypatch: pytest.MonkeyPatch) -> None:
    announced = []

    async def announce_to_no_controller(_zookeeper: Any, name: str, *_args: Any) -> None:
        announced.append(name)

    monkeypatch.setattr(metadata, "announce_topic", announce_to_no_controller)
    monkeypatch.setattr(metadata, "_CREATION_S", 0.1)

    async def test() -> None:
        async with started() as (_, client):
            answer = await client.send(request_for("a", "b", "c"))
            assert [topic.error_code for topic in answer.topics] == [LATER] * 3
            assert announced == ["a"]

    asyncio.run(test())


def test_no_more_topics_are_created_once_the_connection_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    announced = []
    may_continue = asyncio.Event()

    async def announce_slowly(_zookeeper: Any, name: str, *_args: Any) -> None:
        announced.append(name)
        await may_continue.wait()
        raise KafkaError(LATER)

    monkeypatch.setattr(metadata, "announce_topic", announce_slowly)

    async def test() -> None:
        async with started() as (broker, client):
            waiting = asyncio.create_task(client.send(request_for("a", "b", "c")))
            await eventually_async(lambda: announced == ["a"])
            for connection in broker._server._connections:
                connection.close("of the test")
            may_continue.set()
            await asyncio.gather(waiting, return_exceptions=True)
            await eventually_async(lambda: not broker._dispatch._tasks)
            assert announced == ["a"]

    asyncio.run(test())
