"""The client keeps the promises of `interface` with every kind of server."""

from __future__ import annotations

import asyncio
import socket
import threading
import time

import pytest

from hightide.zookeeper.client import ClientTls, SessionKey, ZooKeeperClient
from hightide.zookeeper.interface import SessionState, delete_recursively, ensure_path
from hightide.zookeeper.operation import Check, Create, Delete, SetData
from hightide.zookeeper.watch import EventType, WatchEvent
from hightide.zookeeper.zookeeper_errors import (
    BadArguments,
    BadVersion,
    ConnectionLoss,
    MultiFailed,
    NoChildrenForEphemerals,
    NodeExists,
    NoNode,
    NotConnected,
    NotEmpty,
    SessionLost,
    ZooKeeperError,
)
from tests.support.eventually import eventually_async
from tests.zookeeper.client_world import States, scenario, session, uvloop_scenario


@scenario
async def test_what_is_written_can_be_read(backend):
    async with session(backend.hosts) as client:
        assert client.state is SessionState.CONNECTED
        assert await client.create("/a", b"1") == "/a"
        data, stat = await client.get("/a")
        assert (data, stat.version, stat.data_length, stat.ephemeral_owner) == (b"1", 0, 1, 0)
        changed = await client.set("/a", b"22", version=0)
        assert await client.get("/a") == (b"22", changed)
        assert await client.exists("/a") == changed
        assert (changed.czxid, changed.version) == (stat.czxid, 1)
        await client.delete("/a", version=1)
        assert await client.exists("/a") is None


@scenario
async def test_children_are_sorted(backend):
    async with session(backend.hosts) as client:
        for name in ("c", "a", "b10", "b9"):
            await client.create(f"/{name}")
        assert await client.children("/") == ["a", "b10", "b9", "c"]


@scenario
async def test_paths_are_made_and_removed_with_what_is_around_them(backend):
    async with session(backend.hosts) as client:
        await ensure_path(client, "/a/b/c")
        await delete_recursively(client, "/a")
        assert await client.children("/") == []


@scenario
async def test_a_znode_without_data_reads_as_empty(backend):
    async with session(backend.hosts) as client:
        await client.multi([Create("/null", None)])
        assert (await client.get("/null"))[0] == b""


@scenario
async def test_refusals_are_ours_and_name_the_path(backend):
    async with session(backend.hosts) as client:
        await client.create("/a")
        await client.create("/a/b")
        await client.create("/e", ephemeral=True)
        for call, error, path in (
            (client.get("/none"), NoNode, "/none"),
            (client.children("/none"), NoNode, "/none"),
            (client.create("/none/child"), NoNode, "/none/child"),
            (client.create("/a"), NodeExists, "/a"),
            (client.set("/a", b"", version=7), BadVersion, "/a"),
            (client.delete("/a/b", version=7), BadVersion, "/a/b"),
            (client.delete("/a"), NotEmpty, "/a"),
            (client.create("/e/child"), NoChildrenForEphemerals, "/e/child"),
            (client.get("no-slash"), BadArguments, "no-slash"),
            (client.create("/a//b"), BadArguments, "/a//b"),
            (client.set("/a/", b""), BadArguments, "/a/"),
        ):
            with pytest.raises(error) as caught:
                await call
            assert type(caught.value) is error
            assert caught.value.path == path


@scenario
async def test_ephemerals_and_sequences_belong_to_the_session(backend):
    async with session(backend.hosts) as client:
        first = await client.create("/s-", b"", ephemeral=True, sequence=True)
        second = await client.create("/s-", b"", ephemeral=True, sequence=True)
        assert (first, second) == ("/s-0000000000", "/s-0000000001")
        await client.create("/q")
        assert await client.create("/q/", sequence=True) == "/q/0000000000"
        stat = await client.exists(first)
        assert stat is not None
        assert stat.ephemeral_owner == client.session_id != 0


@scenario
async def test_a_multi_answers_per_operation(backend):
    async with session(backend.hosts) as client:
        await client.create("/a")
        checked, made, stat, numbered, deleted = await client.multi(
            [
                Check("/a", 0),
                Create("/a/b", b"1"),
                SetData("/a/b", b"22", 0),
                Create("/a/n-", sequence=True),
                Delete("/a/b", 1),
            ]
        )
        assert (checked, made, numbered, deleted) == (None, "/a/b", "/a/n-0000000001", None)
        assert (stat.version, stat.data_length) == (1, 2)
        assert await client.multi([]) == []


@scenario
async def test_a_refused_multi_raises_and_changes_nothing(backend):
    async with session(backend.hosts) as client:
        await client.create("/a")
        with pytest.raises(MultiFailed) as caught:
            await client.multi([Create("/b"), Check("/a", 5), Delete("/a")])
        assert caught.value.index == 1
        assert isinstance(caught.value.cause, BadVersion)
        assert caught.value.cause.path == "/a"
        assert caught.value.codes == [0, BadVersion.code, -2]
        with pytest.raises(MultiFailed, match="operation 2 of 2") as caught:
            await client.multi([Check("/a", 0), SetData("/a//b", b"")])
        assert isinstance(caught.value.cause, BadArguments)
        assert await client.children("/") == ["a"]


@scenario
async def test_watches_fire_once_for_what_they_watch(backend):
    async with session(backend.hosts) as client:
        events: list[WatchEvent] = []
        assert await client.exists("/a", events.append) is None
        await client.children("/", events.append)
        with pytest.raises(NoNode):
            await client.get("/b", events.append)
        await client.create("/a")
        await client.create("/b")
        assert events == [WatchEvent(EventType.CREATED, "/a"), WatchEvent(EventType.CHILD, "/")]
        events.clear()
        await client.get("/a", events.append)
        await client.set("/a", b"1")
        await client.set("/a", b"2")
        assert events == [WatchEvent(EventType.CHANGED, "/a")]


@scenario
async def test_a_callback_armed_twice_is_called_once(backend):
    async with session(backend.hosts) as client:
        events: list[WatchEvent] = []
        await client.create("/a")
        await client.get("/a", events.append)
        await client.exists("/a", events.append)
        await client.children("/a", events.append)
        await client.delete("/a")
        await client.exists("/a")
        assert events == [WatchEvent(EventType.DELETED, "/a")]


@scenario
async def test_a_callback_that_fails_does_not_harm_the_others(backend):
    async with session(backend.hosts) as client:
        faults: list[dict[str, object]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, fault: faults.append(fault))
        events: list[WatchEvent] = []
        await client.create("/a")
        await client.get("/a", events.remove)
        await client.get("/a", events.append)
        await client.set("/a", b"1")
        assert events == [WatchEvent(EventType.CHANGED, "/a")]
        assert [type(fault["exception"]) for fault in faults] == [ValueError]


@scenario
async def test_an_event_comes_before_any_answer_that_shows_the_change(backend):
    async with session(backend.hosts) as reader, session(backend.hosts) as writer:
        await writer.create("/a", b"0")
        await eventually_exists(reader, "/a")
        writing = asyncio.create_task(write_numbers(writer, 300))
        events: list[WatchEvent] = []
        seen = 0
        while seen < 300:
            events.clear()
            data, _ = await reader.get("/a", events.append)
            seen = int(data)
            while int(data) == seen < 300:
                data, _ = await reader.get("/a")
                assert int(data) == seen or events, "the change was visible before its event"
        await writing


async def eventually_exists(client, path):
    """A member of an ensemble may lag."""
    async with asyncio.timeout(20):
        created = asyncio.Event()
        if await client.exists(path, lambda _: created.set()) is None:
            await created.wait()


async def write_numbers(client, count):
    for number in range(count):
        await client.set("/a", str(number + 1).encode())


async def answers_in_order(client):
    await client.create("/a")
    order: list[int] = []

    async def ask(number: int) -> None:
        if number % 3 == 0:
            await client.multi([Check("/a"), SetData("/a", str(number).encode())])
        elif number % 3 == 1:
            assert (await client.get("/a"))[0] == str(number - 1).encode()
        else:
            await client.create("/a/n-", sequence=True)
        order.append(number)

    await asyncio.gather(*(ask(number) for number in range(1000)))
    assert order == list(range(1000))
    assert len(await client.children("/a")) == 333


@scenario
async def test_a_thousand_calls_at_once_are_answered_in_order(backend):
    async with session(backend.hosts, call_timeout_ms=30_000) as client:
        await answers_in_order(client)


@uvloop_scenario
async def test_uvloop_serves_as_well(backend):
    async with session(backend.hosts, call_timeout_ms=30_000) as client:
        states = States(client)
        await answers_in_order(client)
        former = client.session_id
        async with session(backend.hosts, resume=client.session_key):
            await states.until(SessionState.LOST, SessionState.CONNECTED)
        assert client.session_id != former


@scenario
async def test_a_call_that_is_cancelled_only_forgets_its_answer(backend):
    async with session(backend.hosts) as client:
        call = asyncio.create_task(client.create("/a", b"1"))
        await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert (await client.get("/a"))[0] == b"1"


@scenario
async def test_a_chroot_is_created_and_hides_what_is_outside(backend):
    async with session(f"{backend.hosts}/deep/er/") as inner, session(backend.hosts) as outer:
        events: list[WatchEvent] = []
        await inner.children("/", events.append)
        assert await inner.create("/n-", b"1", sequence=True) == "/n-0000000000"
        assert events == [WatchEvent(EventType.CHILD, "/")]
        assert await inner.multi([Create("/m")]) == ["/m"]
        await eventually_exists(outer, "/deep/er/m")
        assert await outer.children("/deep/er") == ["m", "n-0000000000"]
        assert (await outer.get("/deep/er/n-0000000000"))[0] == b"1"


@scenario
async def test_the_timeout_is_the_one_that_the_server_grants(backend):
    async with session(backend.hosts, session_timeout_ms=1) as client:
        assert client.timeout_ms == 2 * backend.tick_ms
    async with session(backend.hosts, session_timeout_ms=5000) as client:
        assert client.timeout_ms == 5000
    async with session(backend.hosts, session_timeout_ms=10_000_000) as client:
        assert client.timeout_ms == 60_000


@scenario
async def test_closing_ends_the_session_at_once(backend):
    async with session(backend.hosts) as witness:
        client = await ZooKeeperClient.connect(backend.hosts, session_timeout_ms=30_000)
        states = States(client)
        events: list[WatchEvent] = []
        gone = asyncio.Event()
        await client.create("/e", ephemeral=True)
        await client.get("/e", events.append)
        await eventually_exists(witness, "/e")
        await witness.get("/e", lambda _: gone.set())
        started = time.monotonic()
        await client.close()
        await asyncio.wait_for(gone.wait(), 5)
        assert time.monotonic() - started < 5
        assert client.state is SessionState.LOST
        assert states == [SessionState.LOST]
        assert events == []
        for call in (client.get("/"), client.create("/x"), client.connected(1000)):
            with pytest.raises(SessionLost):
                await call
        await client.close()
        assert states == [SessionState.LOST]


@scenario
async def test_no_thread_is_left_of_a_client_that_was_closed(backend):
    before = threading.active_count()
    for _ in range(3):
        async with session(backend.hosts) as client:
            await client.exists("/")
            assert threading.active_count() == before + 1
    await eventually_async(lambda: threading.active_count() == before)


@scenario
async def test_a_former_session_is_ended_before_a_new_one_begins(backend):
    former = await ZooKeeperClient.connect(backend.hosts, session_timeout_ms=30_000)
    states = States(former)
    await former.create("/e", ephemeral=True)
    started = time.monotonic()
    async with session(backend.hosts, resume=former.session_key) as client:
        assert time.monotonic() - started < 5, "the client waited for the old session to expire"
        assert client.session_id not in (0, former.session_id)
        await client.create("/e", ephemeral=True)
        await states.until(SessionState.LOST, SessionState.CONNECTED)
        await former.close()


@scenario
async def test_a_former_session_that_is_over_is_no_hindrance(backend):
    async with session(backend.hosts) as former:
        session_key = former.session_key
    for gone in (session_key, SessionKey(12345, b"\0" * 16)):
        started = time.monotonic()
        async with session(backend.hosts, resume=gone) as client:
            assert time.monotonic() - started < 5
            assert await client.children("/") == []


@scenario
async def test_a_session_is_not_ended_by_one_who_does_not_know_its_password(backend):
    async with session(backend.hosts) as former:
        states = States(former)
        await former.create("/e", ephemeral=True)
        async with session(
            backend.hosts, resume=SessionKey(former.session_id, b"?" * 16)
        ) as client:
            await eventually_exists(client, "/e")
        assert SessionState.LOST not in states


def test_a_session_key_does_not_show_its_password():
    assert repr(SessionKey(0x1234, b"secret")) == "SessionKey(0x1234)"


@scenario
async def test_an_unreachable_server_is_reported_in_time_and_by_name():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        started = time.monotonic()
        with pytest.raises(NotConnected, match=f"{address}.*refused"):
            await ZooKeeperClient.connect(address, connection_timeout_ms=500)
        assert 0.4 < time.monotonic() - started < 4


@scenario
async def test_one_who_accepts_and_says_nothing_is_not_waited_for_longer():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        started = time.monotonic()
        with pytest.raises(ConnectionLoss):
            await ZooKeeperClient.connect(
                f"127.0.0.1:{silent.getsockname()[1]}", connection_timeout_ms=500
            )
        assert time.monotonic() - started < 5


@scenario
async def test_connecting_can_be_cancelled():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hosts = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(ZooKeeperClient.connect(hosts), 0.2)


@pytest.mark.parametrize("hosts", ["", ":2181", "host:port", "host:1/a//b", "host:70000"])
@scenario
async def test_hosts_that_cannot_be_are_refused(hosts):
    with pytest.raises(BadArguments):
        await ZooKeeperClient.connect(hosts)


@scenario
async def test_tls_files_that_cannot_be_used_are_named(tmp_path):
    missing = str(tmp_path / "ca.pem")
    with pytest.raises(ZooKeeperError, match=r"ca\.pem"):
        await ZooKeeperClient.connect("127.0.0.1:1", tls=ClientTls(ca=missing))


@scenario
async def test_a_session_outlives_the_server_it_was_connected_to(ensemble):
    async with session(ensemble.hosts, session_timeout_ms=20_000) as client:
        states = States(client)
        former = client.session_id
        await client.create("/e", ephemeral=True)
        await asyncio.to_thread(ensemble.kill, ensemble.leader())
        await states.until(SessionState.SUSPENDED, SessionState.CONNECTED)
        await eventually_exists(client, "/e")
        assert client.session_id == former
        assert client.timeout_ms == 20_000
        assert SessionState.LOST not in states
