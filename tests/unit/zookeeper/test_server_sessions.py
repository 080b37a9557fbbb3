"""Sessions over the wire: opened, moved to another connection, kept, expired."""

import contextlib
import itertools
import os
import signal
import socket
import time

import pytest

from hightide.zookeeper.in_memory import InMemoryZooKeeper
from tests.unit.zookeeper.raw_client import (
    CREATE,
    DELETED,
    EXISTS,
    GET_DATA,
    Body,
    Closed,
    Event,
    RawClient,
    RawSocket,
    create,
    int32,
    int64,
    read,
    wait_until,
)

EPHEMERAL = 1


def test_a_new_session_has_an_id_a_password_and_a_timeout(client):
    assert client.session_id > 0
    assert len(client.password) == 16
    assert any(client.password)
    assert client.timeout_ms == 2000, "20 ticks of 100 ms at most"
    assert client.last_byte == b"\0"


@pytest.mark.parametrize(("requested_ms", "granted_ms"), [(1, 4000), (9000, 9000), (90000, 40000)])
def test_the_timeout_is_between_2_and_20_ticks(world, requested_ms, granted_ms):
    world.start(file=None, tick_ms=2000, min_session_timeout_ms=None)
    assert world.client(timeout_ms=requested_ms).timeout_ms == granted_ms


def test_an_old_client_without_read_only_support_gets_no_such_byte(world):
    world.start()
    client = world.client(last_byte=b"")
    assert client.session_id
    assert client.last_byte == b""


def test_ids_and_passwords_cannot_be_guessed_from_others(world):
    world.start(file=None)
    clients = [world.client() for _ in range(20)]
    assert len({client.session_id for client in clients}) == 20
    assert len({client.password for client in clients}) == 20
    gaps = {b.session_id - a.session_id for a, b in itertools.pairwise(clients)}
    assert len(gaps) == 19
    assert min(map(abs, gaps)) > 1000


def test_a_session_is_taken_to_a_new_connection_and_the_old_one_is_closed(world, client):
    client.create("/here", flags=EPHEMERAL)
    second = world.client(session=client.key)
    assert second.key == client.key
    assert client.is_closed()
    assert second.exists("/here")


def test_watches_stay_behind_with_the_old_connection(world, client):
    client.create("/a")
    client.ok(GET_DATA, read("/a", watch=True))
    second = world.client(session=client.key)
    other = world.client()
    assert other.error(CREATE, create("/b")) == 0
    other.ok(5, b"\0\0\0\x02/a" + int32(0, -1))
    second.ping()
    assert second.events == []
    assert len(world.committer().tree.watches) == 0


@pytest.mark.parametrize("key", ["unknown", "wrong password", "short password"])
def test_a_session_cannot_be_resumed_with_a_wrong_id_or_password(world, client, key):
    session_id, password = client.key
    session = {
        "unknown": (session_id ^ 1, password),
        "wrong password": (session_id, password[::-1]),
        "short password": (session_id, b""),
    }[key]
    thief = world.client(session=session)
    assert (thief.timeout_ms, thief.session_id, thief.password) == (0, 0, bytes(16))
    assert thief.is_closed()
    client.ping()


def test_what_a_refused_client_sent_at_once_is_not_done(world, client):
    claim = int32(0) + int64(0) + int32(6000) + int64(client.session_id) + int32(0)
    with RawSocket(world.address) as thief:
        request = int32(1, CREATE) + create("/stolen")
        thief.socket.sendall(int32(len(claim)) + claim + int32(len(request)) + request)
        thief.frame()
        assert thief.is_closed()
    assert not client.exists("/stolen")


def test_requests_sent_with_the_first_frame_are_answered_after_it(world):
    world.start()
    claim = int32(0) + int64(0) + int32(6000) + int64(0) + int32(16) + bytes(16)
    request = int32(7, CREATE) + create("/eager")
    with RawSocket(world.address) as raw:
        raw.socket.sendall(int32(len(claim)) + claim + int32(len(request)) + request)
        assert len(raw.frame()) == 36
        reply = Body(raw.frame())
        assert reply.int32() == 7
    assert world.client().exists("/eager")


@pytest.mark.parametrize("tick_ms", [100, 2000])
def test_a_silent_session_expires_soon_after_its_timeout_however_long_a_tick_is(world, tick_ms):
    world.start(tick_ms=tick_ms)
    watcher = world.client()
    owner = world.client(timeout_ms=500)
    owner.create("/mine", flags=EPHEMERAL)
    watcher.ok(EXISTS, read("/mine", watch=True))
    silent_since = time.monotonic()
    while time.monotonic() < silent_since + 0.4:
        watcher.ping()
        time.sleep(0.05)
    assert watcher.events == []
    while not watcher.events:
        watcher.ping()
    assert watcher.events == [Event(DELETED, "/mine")]
    assert 0.5 <= time.monotonic() - silent_since < 0.5 + 0.2 + 0.8, (
        "the last term is for a busy host"
    )
    assert owner.is_closed()
    assert world.client(session=owner.key).session_id == 0


def test_whatever_a_client_sends_keeps_its_session(world):
    world.start(tick_ms=50)
    client = world.client(timeout_ms=300)
    client.create("/mine", flags=EPHEMERAL)
    for turn in range(12):
        time.sleep(0.06)
        client.ping() if turn % 2 else client.exists("/nothing")
    assert client.exists("/mine")


def test_closing_a_session_removes_its_ephemerals_then_replies_then_closes(world, client):
    watcher = world.client()
    client.create("/mine", flags=EPHEMERAL)
    watcher.ok(EXISTS, read("/mine", watch=True))
    zxid = client.call(EXISTS, read("/mine")).zxid
    client.close_session()
    assert not watcher.exists("/mine")
    assert watcher.events == [Event(DELETED, "/mine")]
    assert watcher.call(EXISTS, read("/")).zxid == zxid + 1
    assert world.client(session=client.key).session_id == 0


def test_a_lost_connection_leaves_the_session_alone(world, client):
    client.create("/mine", flags=EPHEMERAL)
    client.socket.close()
    other = world.client()
    assert other.exists("/mine")
    assert world.client(session=client.key).session_id == client.session_id


def test_a_restart_keeps_sessions_and_ephemerals_with_a_full_timeout(world):
    first = world.start(tick_ms=50)
    client = world.client(timeout_ms=1000)
    client.create("/mine", b"data", flags=EPHEMERAL)
    zxid = client.call(EXISTS, read("/mine")).zxid
    first.stop()
    assert client.is_closed()
    time.sleep(1.1)
    world.start(tick_ms=50)
    began = time.monotonic()
    other = world.client()
    assert other.exists("/mine")
    again = world.client(session=client.key, last_zxid=zxid)
    assert again.key == client.key
    assert again.ok(GET_DATA, read("/mine")).buffer() == b"data"
    again.socket.close()
    wait_until(lambda: not other.exists("/mine"))
    assert time.monotonic() - began > 0.9


def test_a_session_that_never_comes_back_after_a_restart_expires(world):
    first = world.start(tick_ms=50)
    client = world.client(timeout_ms=300)
    client.create("/mine", flags=EPHEMERAL)
    first.stop()
    world.start(tick_ms=50)
    other = world.client()
    wait_until(lambda: not other.exists("/mine"))


def test_at_a_wiped_server_a_session_has_expired(world):
    world.start(file=None)
    client = world.client()
    for number in range(10):
        client.create(f"/{number}")
    zxid = client.call(EXISTS, read("/")).zxid
    world.start(file=None)
    back = world.client(session=client.key, last_zxid=zxid)
    assert back.session_id == 0
    assert back.is_closed()
    assert world.client(last_zxid=zxid).session_id, "and it may open a new session"


def test_a_client_that_is_ahead_of_a_restored_file_must_open_a_new_session(world, client):
    client.create("/mine", flags=EPHEMERAL)
    back = world.client(session=client.key, last_zxid=1000)
    assert (back.timeout_ms, back.session_id) == (0, 0)
    assert not world.client().exists("/mine"), "so that it can be created again"


def test_a_session_without_a_password_cannot_be_taken(world):
    import asyncio

    async def leave_a_session():
        zookeeper = await InMemoryZooKeeper.open(world.file)
        await zookeeper.create("/mine", ephemeral=True)
        await zookeeper._committer.close()
        return zookeeper.session_id

    session_id = asyncio.run(leave_a_session())
    world.start()
    assert world.client().exists("/mine")
    assert world.client(session=(session_id, b"")).session_id == 0


def test_a_paused_server_expires_no_sessions(zookeeper_process):
    process = zookeeper_process("--tick-ms", "50", "--min-session-timeout-ms", "100")
    with RawClient(process.address, timeout_ms=500) as client:
        client.create("/mine", flags=EPHEMERAL)
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(1.5)
        os.kill(process.pid, signal.SIGCONT)
        assert client.exists("/mine")


def test_a_thousand_silent_connections_do_no_harm(world, client):
    silent = [socket.create_connection(world.address) for _ in range(1000)]
    try:
        began = time.monotonic()
        assert world.client().session_id
        client.ping()
        assert time.monotonic() - began < 2
    finally:
        for connection in silent:
            connection.close()


def test_a_connection_must_claim_a_session_in_time(world):
    from hightide.zookeeper.server.options import Limits

    world.start(limits=Limits(handshake_s=0.2))
    with RawSocket(world.address) as silent, RawSocket(world.address) as slow:
        slow.socket.sendall(b"\0\0\0\x2c\0")
        assert silent.is_closed()
        assert slow.is_closed()
    client = world.client()
    time.sleep(0.3)
    client.ping()


def test_a_stop_closes_no_session(world, client):
    client.create("/mine", flags=EPHEMERAL)
    for number in range(50):
        client.send(CREATE, create(f"/{number}"))
    world.threads[0].stop()
    with contextlib.suppress(Closed):
        while True:
            assert client.receive().error == 0
    world.start()
    assert world.client(session=client.key).exists("/mine")
