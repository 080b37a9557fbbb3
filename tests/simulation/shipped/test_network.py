"""On the simulated loop and network, asyncio code runs as it does on sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from hightide.broker.network.connection import Connection as Served
from hightide.broker.network.server import Server
from hightide.client.broker_connection import Connection, ConnectionFailed
from hightide.settings import Broker as Settings
from hightide.settings import Listener
from hightide.wire import frame
from hightide.wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from tests.simulation.shipped.loop import Failed, Process, World
from tests.simulation.shipped.network import Network

PORT = 9092


class Cluster:
    """An echo server, and its client."""

    def __init__(self, seed: int = 1) -> None:
        self.world = World(seed)
        self.network = Network(self.world)
        self.server = Process(self.world, "server")
        self.client = Process(self.world, "client")
        self.seen: list[Any] = []

    def run(self, client: Callable[[], Coroutine[Any, Any, None]], until: float = 60.0) -> None:
        if not self.server.is_up:
            self.server.start(self.serve)
        self.client.start(client)
        self.world.run(until)

    async def serve(self) -> None:
        loop: Any = asyncio.get_running_loop()
        listening = self.network.listen(self.server, PORT)
        await loop.create_server(Echo, sock=listening)
        await asyncio.sleep(1e9)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    made = Cluster()
    yield made
    made.world.close()


class Echo(asyncio.Protocol):
    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)

    def pause_writing(self) -> None:
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        self.transport.resume_reading()


class Reader(asyncio.BufferedProtocol):
    """Collects received bytes, in a small buffer."""

    def __init__(self) -> None:
        self.got = b""
        self.buffer = bytearray(1000)
        self.lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self.writable = asyncio.Event()
        self.writable.set()

    def get_buffer(self, _sizehint: int) -> bytearray:
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.got += self.buffer[:nbytes]

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.set_result(error)


async def connect() -> tuple[Any, Reader]:
    return await asyncio.get_running_loop().create_connection(Reader, "server", PORT)


def test_bytes_arrive_in_order_and_writers_are_held_up(cluster: Cluster) -> None:
    data = bytes(range(256)) * 4000

    async def client() -> None:
        transport, reader = await connect()
        for at in range(0, len(data), 10_000):
            await reader.writable.wait()
            transport.write(data[at : at + 10_000])
        while len(reader.got) < len(data):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        cluster.seen.append(reader.got == data)
        transport.pause_reading()
        transport.write(data)
        transport.write(data)
        await asyncio.sleep(1)
        cluster.seen.append(reader.writable.is_set())
        transport.resume_reading()
        await reader.writable.wait()
        transport.close()
        cluster.seen.append(await reader.lost)

    cluster.run(client)
    assert cluster.seen == [True, False, None]


def test_time_is_virtual_and_each_process_has_its_own(cluster: Cluster) -> None:
    cluster.client.rate = 1.1

    async def client() -> None:
        loop = asyncio.get_running_loop()
        before = loop.time()
        await asyncio.sleep(11)
        cluster.seen.append((round(loop.time() - before, 6), round(cluster.world.now, 6)))

    cluster.run(client)
    assert cluster.seen == [(11.0, 10.0)]


def test_a_connection_without_a_listener_is_refused_and_a_machine_without_power_is_silent(
    cluster: Cluster,
) -> None:
    cluster.server.start(cluster.serve)
    cluster.world.run(0.1)

    async def client() -> None:
        for power in (False, True):
            cluster.server.crash(power=power)
            before = cluster.world.now
            with pytest.raises(ConnectionRefusedError):
                await connect()
            cluster.seen.append(cluster.world.now - before > 1)
            if not power:
                cluster.server.start(cluster.serve)

    cluster.run(client)
    assert cluster.seen == [False, True]


@pytest.mark.parametrize("power", [False, True])
def test_the_peer_of_a_dead_process_hears_of_it_at_once_or_when_it_is_back(
    cluster: Cluster, power: bool
) -> None:

    async def client() -> None:
        transport, reader = await connect()
        cluster.server.crash(power=power)
        await asyncio.sleep(5)
        cluster.seen.append(reader.lost.done())
        cluster.server.start(cluster.serve)
        transport.write(b"x")
        await asyncio.sleep(1)
        cluster.seen.append(reader.lost.done())

    cluster.run(client)
    assert cluster.seen == [not power, True]


def test_what_is_sent_over_a_cut_link_arrives_when_it_heals(cluster: Cluster) -> None:

    async def client() -> None:
        transport, reader = await connect()
        cluster.network.cut("server", "client")
        transport.write(b"abc")
        await asyncio.sleep(5)
        cluster.seen.append(reader.got)
        cluster.network.heal()
        await asyncio.sleep(1)
        cluster.seen.append(reader.got)

    cluster.run(client)
    assert cluster.seen == [b"", b"abc"]


def test_a_paused_process_takes_up_what_it_missed(cluster: Cluster) -> None:

    async def client() -> None:
        cluster.server.pause()
        transport, reader = await connect()
        transport.write(b"abc")
        await asyncio.sleep(5)
        cluster.seen.append(reader.got)
        cluster.server.resume()
        await asyncio.sleep(1)
        cluster.seen.append(reader.got)

    cluster.run(client)
    assert cluster.seen == [b"", b"abc"]


def test_a_thread_runs_later_and_a_dead_process_never_again(cluster: Cluster) -> None:

    async def client() -> None:
        cluster.seen.append(await asyncio.to_thread(lambda: "done"))
        try:
            cluster.world.at(1.0, cluster.client.crash)
            await asyncio.sleep(5)
        finally:
            cluster.seen.append("never")

    cluster.run(client)
    assert cluster.seen == ["done"]


def test_an_uncaught_error_ends_the_run(cluster: Cluster) -> None:

    async def client() -> None:
        asyncio.get_running_loop().call_later(1, lambda: 1 // 0)
        await asyncio.sleep(5)

    with pytest.raises(Failed, match="ZeroDivisionError"):
        cluster.run(client)


def test_the_shipped_client_talks_to_the_shipped_server(cluster: Cluster) -> None:
    settings = Settings()

    def serve(connection: Served, buf: bytearray, view: memoryview, start: int, end: int) -> bytes:
        correlation_id = int.from_bytes(view[start + 4 : start + 8], "big")
        offered = [ApiVersion(api_key=18, min_version=0, max_version=4)]
        answer = ApiVersionsResponse(api_keys=offered)
        return frame.encode_response(answer, 4, correlation_id)

    def listen(_host: str, port: int, _backlog: int) -> Any:
        return cluster.network.listen(cluster.server, port)

    async def run_server() -> None:
        server = Server(lambda: settings, serve, lambda: None, listen)
        server.bind([Listener("PLAINTEXT", "PLAINTEXT", "server", PORT)], 50)
        await server.start()
        await asyncio.sleep(20)
        server.stop_reading()
        await server.stop()

    async def client() -> None:
        connection = await Connection.open("server", PORT)
        cluster.seen.append(connection.versions)
        await asyncio.sleep(30)
        cluster.seen.append(connection.is_open())
        with pytest.raises(ConnectionFailed):
            await Connection.open("server", PORT)

    cluster.server.start(run_server)
    cluster.run(client)
    assert cluster.seen == [{18: (0, 4)}, False]


def test_equal_seeds_give_equal_histories() -> None:
    def fingerprint(seed: int) -> int:
        cluster = Cluster(seed)

        async def client() -> None:
            transport, _ = await connect()
            async with asyncio.TaskGroup() as group:
                for at in range(50):
                    group.create_task(asyncio.sleep(cluster.world.random.random()))
                    transport.write(b"%d" % at)

        cluster.run(client)
        cluster.world.close()
        return cluster.world.fingerprint

    assert fingerprint(1) == fingerprint(1)
    assert fingerprint(1) != fingerprint(2)
