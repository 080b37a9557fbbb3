"""The simulated ZooKeeper client keeps the promises of the interface."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from hightide.zookeeper.interface import SessionState
from hightide.zookeeper.operation import Create, SetData
from hightide.zookeeper.zookeeper_errors import ConnectionLoss, NodeExists, NoNode, SessionLost
from tests.simulation.shipped.loop import Process, World
from tests.simulation.shipped.network import Network
from tests.simulation.shipped.zookeeper import NAME, SimZooKeeper, ZooKeeperServer

TIMEOUT_MS = 2000
CONNECTED, SUSPENDED = SessionState.CONNECTED, SessionState.SUSPENDED
DOUBTFUL, LOST = SessionState.DOUBTFUL, SessionState.LOST


class Cluster:
    def __init__(self) -> None:
        self.world = World(5)
        self.network = Network(self.world)
        self.zookeeper = ZooKeeperServer(self.world)
        self.one, self.other = Process(self.world, "one"), Process(self.world, "other")
        self.seen: list[Any] = []
        self.zookeeper.start(self.zookeeper.main)

    def run(self, *clients: Callable[[], Coroutine[Any, Any, None]]) -> None:
        for process, client in zip((self.one, self.other), clients, strict=False):
            process.start(client)
        self.world.run(60.0)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    made = Cluster()
    yield made
    made.world.close()


async def session(ends: Any = None) -> SimZooKeeper:
    loop: Any = asyncio.get_running_loop()
    client = SimZooKeeper(loop, TIMEOUT_MS, ends)
    await client.connected(5000)
    return client


def test_calls_are_answered_and_watches_fire_before_the_answer_that_shows_the_change(
    cluster: Cluster,
) -> None:
    seen = cluster.seen

    async def one() -> None:
        client = await session()
        with pytest.raises(NoNode):
            await client.get("/a")
        await client.exists("/a", lambda event: seen.append(event.type.name))
        await client.create("/a", b"1")
        seen.append("created")
        await client.children("/a", lambda event: seen.append(event.type.name))
        results = await client.multi([SetData("/a", b"2", 0), Create("/a/b", ephemeral=True)])
        seen.append(results[1])
        seen.append((await client.get("/a"))[0])
        with pytest.raises(NodeExists):
            await client.create("/a")
        seen.append(await client.children("/a"))

    cluster.run(one)
    assert seen == ["CREATED", "created", "CHILD", "/a/b", b"2", ["b"]]


def test_a_client_that_is_cut_off_doubts_before_others_see_its_session_end(
    cluster: Cluster,
) -> None:
    seen, world = cluster.seen, cluster.world

    async def one() -> None:
        client = await session()
        client.on_state(lambda state: seen.append((state, world.now)))
        await client.create("/one", ephemeral=True)
        cluster.network.cut(NAME, "one")
        await asyncio.sleep(10)
        cluster.network.heal()
        await asyncio.sleep(5)
        with pytest.raises(NoNode):
            await client.get("/one")

    async def other() -> None:
        client = await session()
        await asyncio.sleep(0.5)
        await client.exists("/one", lambda event: seen.append((event.type.name, world.now)))
        await asyncio.sleep(20)

    cluster.run(one, other)
    assert [what for what, _ in seen] == [SUSPENDED, DOUBTFUL, "DELETED", LOST, CONNECTED]


def test_a_session_survives_its_connection_and_its_zookeeper(cluster: Cluster) -> None:
    seen = cluster.seen

    async def one() -> None:
        client = await session()
        session_id = client.session_id
        client.on_state(seen.append)
        await client.create("/one", ephemeral=True)
        await client.exists("/one", lambda _event: seen.append("never"))
        cluster.network.reset("one", NAME)
        await asyncio.sleep(1)
        cluster.zookeeper.crash()
        with pytest.raises(ConnectionLoss):
            await client.get("/one")
        cluster.world.at(0.5, cluster.zookeeper.start, cluster.zookeeper.main)
        await asyncio.sleep(3)
        seen.append(client.session_id == session_id)
        await client.delete("/one")

    cluster.run(one)
    assert seen == [SUSPENDED, CONNECTED, SUSPENDED, CONNECTED, True]


def test_the_next_life_of_a_process_can_end_the_session_of_the_last(cluster: Cluster) -> None:
    seen = cluster.seen

    async def one() -> None:
        client = await session()
        await client.create("/one", ephemeral=True)
        seen.append(client.session_key)
        await asyncio.sleep(5)

    async def again() -> None:
        client = await session(seen[0])
        with pytest.raises(NoNode):
            await client.get("/one")
        await client.close()
        with pytest.raises(SessionLost):
            await client.get("/one")
        seen.append("closed")

    cluster.one.start(one)
    cluster.world.run(1.0)
    cluster.one.crash()
    cluster.run(again)
    assert seen[1:] == ["closed"]
