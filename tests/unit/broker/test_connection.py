"""Connections on real sockets, with a server that echoes instead of a broker."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from hightide.broker.network.connection import SERVING, Connection, Slot
from hightide.broker.network.server import Server
from hightide.log.disk import RealDisk
from hightide.log.segment import Slice
from hightide.settings import Broker, Listener
from tests.support.eventually import eventually_async
from tests.support.failing_disk import FailingDisk

HEADER = b"\0\0\0\0\0\0\0\1"
Serve = Callable[[Connection, bytes], object]


def frame(payload: bytes) -> bytes:
    return struct.pack(">i", len(HEADER) + len(payload)) + HEADER + payload


def echo(_connection: Connection, payload: bytes) -> bytes:
    return payload


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def read(self, count: int) -> bytes:
        return await asyncio.wait_for(self.reader.readexactly(count), 10)

    async def closed(self) -> bool:
        try:
            return await asyncio.wait_for(self.reader.read(), 10) == b""
        except ConnectionError:
            return True


class Serving:
    """A server under test, and its connections."""

    address: tuple[str, int]

    def __init__(self, serve: Serve, **settings: Any) -> None:
        self.connections: list[Connection] = []
        self.clients: list[Client] = []
        values = Broker(**settings)

        def serve_bytes(connection, _buf, view, start, end):
            if connection not in self.connections:
                self.connections.append(connection)
            return serve(connection, bytes(view[start + len(HEADER) : end]))

        self.server = Server(lambda: values, serve_bytes, lambda: None)

    async def connect(self) -> Client:
        client = Client(*await asyncio.open_connection(*self.address))
        self.clients.append(client)
        return client


@asynccontextmanager
async def serving(serve: Serve = echo, **settings: Any) -> AsyncIterator[Serving]:
    made = Serving(serve, **settings)
    (made.address,) = made.server.bind([Listener("PLAINTEXT", "PLAINTEXT", "127.0.0.1", 0)], 50)
    await made.server.start()
    try:
        yield made
    finally:
        for client in made.clients:
            client.writer.transport.abort()
        made.server.stop_reading()
        await made.server.stop()


def run(test: Callable[[], object]) -> None:
    asyncio.run(test())  # type: ignore[arg-type]


def test_a_frame_may_arrive_in_any_two_pieces():
    async def test():
        async with serving() as s:
            client = await s.connect()
            whole = frame(b"hello") + frame(b"world")
            for cut in range(1, len(whole)):
                await client.send(whole[:cut])
                await asyncio.sleep(0)  # most cuts then arrive as two reads
                await client.send(whole[cut:])
                assert await client.read(10) == b"helloworld"

    run(test)


@pytest.mark.parametrize("size", [1, 1_000, 70_000, 300_000, 3_000_000])
def test_frames_of_any_size_arrive_whole_and_leave_no_buffers_behind(size: int):
    async def test():
        async with serving() as s:
            client = await s.connect()
            payload = bytes(i % 251 for i in range(size))
            for _ in range(3):
                await client.send(frame(payload))
                assert await client.read(size) == payload
            assert s.server._request_bytes == 0

    run(test)


def test_responses_leave_in_order_though_a_later_one_is_ready_first():
    slots = []

    def serve(connection: Connection, payload: bytes):
        if payload == b"slow":
            slots.append((connection, connection.defer()))
            return None
        return payload

    async def test():
        async with serving(serve) as s:
            client = await s.connect()
            await client.send(frame(b"a") + frame(b"slow") + frame(b"b") + frame(b"slow"))
            assert await client.read(1) == b"a"
            await client.send(frame(b"c"))
            await eventually_async(lambda: len(s.connections[0]._slots) == 4)
            (connection, first), (_, second) = slots
            connection.complete(second, b"2")
            connection.complete(first, b"1")
            assert await client.read(4) == b"1b2c"

    run(test)


def test_requests_behind_a_slow_one_wait_for_it():
    served = []

    def serve(connection: Connection, payload: bytes):
        served.append(payload)
        if payload == b"slow":
            slot = connection.defer()
            connection.block(SERVING)

            def done():
                assert served[-1] == b"slow"
                connection.complete(slot, b"S")
                connection.unblock(SERVING)

            asyncio.get_running_loop().call_later(0.02, done)
            return None
        return payload

    async def test():
        async with serving(serve) as s:
            client = await s.connect()
            await client.send(
                frame(b"a") + frame(b"slow") + frame(b"b") + frame(b"slow") + frame(b"c")
            )
            assert await client.read(5) == b"aSbSc"

    run(test)


@pytest.mark.parametrize("size", [-(2**31), -1, 0, 7, 100 * 1024 * 1024 + 1, 2**31 - 1])
def test_an_impossible_size_closes_the_connection_and_no_other(size: int):
    async def test():
        async with serving() as s:
            bad, good = await s.connect(), await s.connect()
            await bad.send(frame(b"first") + struct.pack(">i", size) + b"x" * 20)
            assert await bad.read(5) == b"first"
            assert await bad.closed()
            await good.send(frame(b"ok"))
            assert await good.read(2) == b"ok"

    run(test)


def test_the_length_of_a_frame_alone_takes_no_memory():
    async def test():
        async with serving() as s:
            clients = [await s.connect() for _ in range(20)]
            for client in clients:
                await client.send(frame(b"x") + struct.pack(">i", 100 * 1024 * 1024) + b"abc")
                assert await client.read(1) == b"x"
            assert s.server._request_bytes <= 20 * 64 * 1024

    run(test)


def test_when_requests_take_too_much_memory_reading_stops_until_it_is_released():
    limit = 1024 * 1024

    async def test():
        settings: dict[str, Any] = {
            "socket_request_max_bytes": limit,
            "queued_max_request_bytes": limit,
        }
        async with serving(**settings) as s:
            clients = [await s.connect() for _ in range(4)]
            payload = b"y" * (limit - 100)
            whole = frame(payload)
            for client in clients:
                await client.send(whole[: len(whole) * 3 // 4])
            await eventually_async(lambda: s.server.starved)
            assert s.server._request_bytes < 4 * limit
            for client in clients:
                client.writer.write(whole[len(whole) * 3 // 4 :])
            for client in clients:
                assert await client.read(len(payload)) == payload
            assert s.server._request_bytes == 0

    run(test)


def test_a_client_that_reads_no_responses_is_sent_no_more_and_read_no_more(tmp_path: Path):
    disk = RealDisk(tmp_path)
    file = disk.create("log")
    chunk = bytes(range(256)) * 4096
    for _ in range(32):
        file.append(chunk)

    def serve(_connection: Connection, _payload: bytes):
        return [b"head", Slice(file, 0, 32 * len(chunk)), b"tail"]

    async def test():
        async with serving(serve) as s:
            client = await s.connect()
            cast(Any, client.writer.transport).pause_reading()
            await client.send(frame(b"") * 3)
            await eventually_async(lambda: s.connections and s.connections[0].is_blocked)
            for _ in range(50):
                await asyncio.sleep(0)
            assert s.connections[0]._transport.get_write_buffer_size() < 2 * 1024 * 1024
            cast(Any, client.writer.transport).resume_reading()
            for _ in range(3):
                assert await client.read(4) == b"head"
                for _ in range(32):
                    assert await client.read(len(chunk)) == chunk
                assert await client.read(4) == b"tail"

    run(test)


def test_a_log_that_is_truncated_under_a_response_drops_the_connection(tmp_path: Path):
    file = RealDisk(tmp_path).create("log")
    file.append(b"x" * 100)

    def serve(_connection: Connection, _payload: bytes):
        return [b"head", Slice(file, 0, 5_000)]

    async def test():
        async with serving(serve) as s:
            client = await s.connect()
            await client.send(frame(b""))
            await asyncio.wait_for(client.reader.read(), 10)
            assert s.connections[0].is_closed

    run(test)


def test_a_read_error_ends_only_the_connection_whose_response_is_sent():
    """Also if the request of another connection completes that response."""
    disk = FailingDisk()
    file = disk.create("log")
    file.append(b"x" * 10_000)
    waiting: list[tuple[Connection, Slot]] = []
    failed: list[str] = []

    def serve(connection: Connection, payload: bytes) -> object:
        if payload == b"wait":
            waiting.append((connection, connection.defer()))
            return None
        disk.fails = {"read"}
        for other, slot in waiting:
            other.complete(slot, [b"head", Slice(file, 0, 10_000)])
        return payload

    async def test():
        async with serving(serve) as it:
            it.server.on_read_failure = lambda path, _failure: failed.append(path)
            one, other = await it.connect(), await it.connect()
            await one.send(frame(b"wait"))
            await eventually_async(lambda: bool(waiting))
            await other.send(frame(b"hello"))
            assert await other.read(5) == b"hello"
            assert await one.closed()
            await other.send(frame(b"again"))
            assert await other.read(5) == b"again"
            assert failed == [file.path]

    run(test)


def test_more_connections_than_allowed_are_refused():
    async def test():
        async with serving(max_connections=2) as s:
            clients = [await s.connect() for _ in range(3)]
            for client in clients[:2]:
                await client.send(frame(b"x"))
                assert await client.read(1) == b"x"
            assert await clients[2].closed()
            clients[0].writer.close()
            await eventually_async(lambda: len(s.server._connections) == 1)
            again = await s.connect()
            await again.send(frame(b"y"))
            assert await again.read(1) == b"y"

    run(test)


def test_the_sweep_closes_a_connection_whose_request_arrives_too_slowly():
    async def test():
        async with serving() as s:
            client = await s.connect()
            await client.send(frame(b"x") + frame(b"half")[:9])
            assert await client.read(1) == b"x"
            await eventually_async(lambda: s.connections[0].frame_since is not None)
            connection: Any = s.connections[0]
            connection.frame_since -= 31
            s.server._sweep()
            assert await client.closed()

    run(test)


def test_the_sweep_limits_the_responses_that_clients_do_not_read():
    """Each connection may have one large response unread: hundreds would take gigabytes."""

    async def test():
        size, limit = 20_000_000, 50_000_000
        async with serving(lambda *_: bytes(size), queued_max_response_bytes=limit) as s:
            clients = []
            for count in range(1, 6):
                clients.append(await s.connect())
                cast(asyncio.Transport, clients[-1].writer.transport).pause_reading()
                await clients[-1].send(frame(b"x"))
                await eventually_async(lambda count=count: len(s.connections) == count)
            await eventually_async(lambda: len(s.server._connections) < 5)
            assert sum(c.unsent_bytes for c in s.server._connections) <= limit
            assert s.connections[-1] in s.server._connections, "the oldest are closed first"
            assert s.connections[0] not in s.server._connections

    run(test)


def test_the_sweep_closes_a_connection_that_is_idle_for_too_long():
    async def test():
        async with serving(connections_max_idle_ms=2_000) as s:
            client = await s.connect()
            await client.send(frame(b"x"))
            assert await client.read(1) == b"x"
            for _ in range(6):
                s.server._sweep()
            assert await client.closed()

    run(test)


def test_the_waits_of_a_client_that_goes_away_are_cancelled():
    cancelled = []

    def serve(connection: Connection, _payload: bytes):
        connection.defer(lambda: cancelled.append(1))

    async def test():
        async with serving(serve) as s:
            client = await s.connect()
            await client.send(frame(b"") * 3)
            await eventually_async(lambda: s.connections and len(s.connections[0]._slots) == 3)
            client.writer.close()
            await eventually_async(lambda: not s.server._connections)
            assert cancelled == [1, 1, 1]

    run(test)


def test_an_address_that_is_taken_is_named_in_the_error():
    async def test():
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            server = Server(Broker, lambda *_: None, lambda: None)
            with pytest.raises(OSError, match=f"127.0.0.1:{port}"):
                server.bind([Listener("PLAINTEXT", "PLAINTEXT", "127.0.0.1", port)], 5)

    run(test)


# -- turns and memory --------------------------------------------------------------------------


def test_a_connection_with_many_requests_lets_others_have_a_turn():
    order: list[str] = []

    async def test():
        now = 0.0

        def serve(_connection: Connection, payload: bytes):
            nonlocal now
            now += 0.004  # three requests and the turn is over
            order.append(payload.decode())
            return payload

        async with serving(serve) as s:
            s.server.clock = lambda: now
            greedy, modest = await s.connect(), await s.connect()
            await modest.send(frame(b"m"))
            assert await modest.read(1) == b"m"
            order.clear()
            greedy.writer.write(frame(b"g") * 100)
            modest.writer.write(frame(b"m"))
            assert await modest.read(1) == b"m"
            assert await greedy.read(100) == b"g" * 100
            assert len(order) == 101
            assert order.index("m") < 50

    run(test)


def test_clients_wait_in_a_full_iteration_of_the_loop_and_brokers_do_not():
    order: list[str] = []

    async def test():
        now = 0.0

        def serve(connection: Connection, payload: bytes):
            nonlocal now
            if payload == b"broker":
                connection.peer_broker_id = 2
            connection.check_turn()
            now += 0.02
            order.append(payload.decode())
            return payload[:1]

        async with serving(serve) as s:
            s.server.turns.clock = lambda: now
            clients = [await s.connect() for _ in range(4)]
            for client, name in zip(clients, ("a", "b", "c", "broker"), strict=True):
                client.writer.write(frame(name.encode()))
            assert [await client.read(1) for client in clients] == [b"a", b"b", b"c", b"b"]
            assert order.index("broker") < 3, "it came last, and passed those that wait"
            assert sorted(order) == ["a", "b", "broker", "c"]

    run(test)


def test_few_responses_wait_behind_one_that_is_not_ready():
    """A client could let the broker keep a thousand large responses behind a parked fetch."""
    served = 0
    slots: list[Slot] = []

    def serve(connection: Connection, payload: bytes):
        nonlocal served
        served += 1
        if payload == b"parked":
            slots.append(connection.defer())
            return None
        return bytes(100_000)

    async def test():
        async with serving(serve) as s:
            client, other = await s.connect(), await s.connect()
            await client.send(frame(b"parked") + frame(b"x") * 500)
            await other.send(frame(b"x"))
            assert len(await other.read(100_000)) == 100_000
            assert served < 10
            s.connections[0].complete(slots[0], b"parked")
            assert len(await client.read(6 + 500 * 100_000)) == 6 + 500 * 100_000
            assert s.connections[0]._waiting_bytes == 0

    run(test)


def test_requests_after_a_turn_are_served_in_order():
    async def test():
        now = 0.0

        def serve(_connection: Connection, payload: bytes):
            nonlocal now
            now += 0.02
            return payload

        async with serving(serve) as s:
            s.server.clock = lambda: now
            client = await s.connect()
            sent = b"".join(frame(bytes([number])) for number in range(200))
            for at in range(0, len(sent), 7):
                client.writer.write(sent[at : at + 7])
                await asyncio.sleep(0)
            assert await client.read(200) == bytes(range(200))
            assert s.server._request_bytes == 0

    run(test)


def test_a_request_that_keeps_the_loop_is_logged(caplog: pytest.LogCaptureFixture):
    async def test():
        now = 0.0

        def serve(_connection: Connection, payload: bytes):
            nonlocal now
            now += 0.5
            return payload

        async with serving(serve) as s:
            s.server.clock = lambda: now
            client = await s.connect()
            body = b"\x00\x20\x00\x01\x00\x00\x00\x07\x00\x03abc"
            await client.send(len(body).to_bytes(4, "big") + body)
            await client.read(len(body) - len(HEADER))
        assert "DescribeConfigs version 1 of client 'abc' at 127.0.0.1 kept the event loop" in (
            caplog.text
        )

    run(test)


def test_half_frames_of_many_connections_stay_near_the_memory_limit():
    async def test():
        limit = 1024 * 1024
        async with serving(queued_max_request_bytes=limit) as s:
            clients = [await s.connect() for _ in range(40)]
            half = frame(bytes(1024 * 1024))[: 512 * 1024]
            for client in clients:
                client.writer.write(half)
            await eventually_async(lambda: len(s.server.starved) >= 30)
            # Each may exceed the limit by what it receives at once while memory is short.
            assert s.server._request_bytes < 4 * limit
            for client in clients[1:]:
                client.writer.transport.abort()
            await clients[0].send(frame(bytes(1024 * 1024))[512 * 1024 :])
            assert await clients[0].read(1024 * 1024) == bytes(1024 * 1024)

    run(test)


def test_requests_that_wait_for_the_pool_count_as_memory():
    """Else every connection could have one more request in the pool's queue, without a limit."""
    size = 6 * 1024 * 1024  # the server keeps no spare buffer of this size
    held: list[Connection] = []

    def serve(connection: Connection, payload: bytes):
        if payload[:1] != b"h":
            return bytes(payload[:1])
        connection.hold(len(payload))
        held.append(connection)
        return b"held"

    async def test():
        async with serving(serve, queued_max_request_bytes=size // 2) as s:
            first, second = await s.connect(), await s.connect()
            await first.send(frame(b"h" * size))
            assert await first.read(4) == b"held"
            assert s.server._request_bytes == size
            second.writer.write(frame(b"x" * size))
            await eventually_async(lambda: len(s.server.starved) == 1)
            held[0].release(size)
            assert await second.read(1) == b"x"
            assert s.server._request_bytes == 0

    run(test)
