"""Blocks of producer ids from ZooKeeper: none is used twice, and the next is taken ahead."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from hightide.broker.handlers.init_producer_id import ProducerIds
from hightide.wire.errors import ErrorCode, KafkaError
from hightide.zookeeper.interface import SessionState
from hightide.zookeeper.zookeeper_errors import BadVersion, ConnectionLoss


class FakeZooKeeper:
    """One znode, which may be out of reach."""

    def __init__(self) -> None:
        self.data = b""
        self.version = 0
        self.is_away = False
        self.session_id, self.timeout_ms = 1, 6000
        self.state = SessionState.CONNECTED

    async def get(self, _path: str) -> tuple[bytes, Any]:
        await self._travel()
        return self.data, SimpleNamespace(version=self.version)

    async def set(self, _path: str, data: bytes, version: int = -1) -> Any:
        await self._travel()
        if version != self.version:
            raise BadVersion("changed")
        self.data, self.version = data, self.version + 1
        return SimpleNamespace(version=self.version)

    async def _travel(self) -> None:
        await asyncio.sleep(0)
        if self.is_away:
            raise ConnectionLoss("not connected")


def ids_of(zookeeper: FakeZooKeeper, broker_id: int = 1) -> ProducerIds:
    return ProducerIds(zookeeper, broker_id)  # type: ignore[arg-type]


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def take(ids: ProducerIds, count: int) -> list[int]:
    return [await ids.next() for _ in range(count)]


def test_brokers_that_ask_at_once_get_different_ids() -> None:
    async def test() -> None:
        zookeeper = FakeZooKeeper()
        brokers = [ids_of(zookeeper, number) for number in range(3)]
        found = await asyncio.gather(*(ids.next() for ids in brokers for _ in range(2500)))
        assert len(set(found)) == 7500

    asyncio.run(test())


def test_a_broker_that_has_just_started_gives_ids_without_zookeeper() -> None:
    async def test() -> None:
        zookeeper = FakeZooKeeper()
        ids = ids_of(zookeeper)
        ids.take_ahead()
        await settle()
        zookeeper.is_away = True
        assert await take(ids, 1000) == list(range(1000))

    asyncio.run(test())


def test_the_next_block_is_taken_before_the_last_one_ends() -> None:
    async def test() -> None:
        zookeeper = FakeZooKeeper()
        ids = ids_of(zookeeper)
        await take(ids, 950)
        await settle()
        zookeeper.is_away = True
        assert await take(ids, 1050) == list(range(950, 2000))

    asyncio.run(test())


def test_without_ids_clients_ask_again_and_the_log_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test() -> None:
        zookeeper = FakeZooKeeper()
        ids = ids_of(zookeeper)
        zookeeper.is_away = True
        for _ in range(5):
            with pytest.raises(KafkaError) as caught:
                await ids.next()
            assert caught.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        zookeeper.is_away = False
        assert await ids.next() == 0

    with caplog.at_level(logging.INFO):
        asyncio.run(test())
    assert caplog.text.count("producer ids") == 1


def test_stopping_ends_what_is_under_way() -> None:
    async def test() -> None:
        ids = ids_of(FakeZooKeeper())
        ids.take_ahead()
        await ids.stop()
        await ids.stop()

    asyncio.run(test())
