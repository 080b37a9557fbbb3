"""Busy, greedy and deaf clients take neither the memory nor the turns of the others."""

import contextlib
import socket

import pytest

from hightide.zookeeper.server.options import MAX_FRAME_BYTES, Limits
from hightide.zookeeper.server.traffic import Traffic
from tests.support.turns import measured_turns
from tests.unit.zookeeper import raw_client as raw
from tests.unit.zookeeper.raw_client import (
    CREATE,
    EXISTS,
    GET_CHILDREN,
    GET_DATA,
    MULTI,
    MULTI_READ,
    SET_DATA,
    SET_WATCHES,
    Closed,
    create,
    int32,
    multi,
    read,
    set_data,
    set_watches,
    text,
    versioned,
    wait_until,
)
from tests.unit.zookeeper.test_server_order import SlowDisk

TURN_S = 0.1
STORAGE = pytest.mark.parametrize("options", [{"file": None}, {}], ids=["memory", "file"])


def many_creates(parent, count, **more):
    return multi(*[(CREATE, create(f"{parent}/{n:04}", **more)) for n in range(count)])


@STORAGE
def test_a_multi_that_fires_many_watches_takes_no_long_turn(world, options):
    world.start(tick_ms=2000, **options)
    clients = [world.client(timeout_ms=10_000) for _ in range(40)]
    writer = clients[0]
    writer.create("/f")
    writer.ok(MULTI, many_creates("/f", 2000))
    paths = [f"/f/{n:04}" for n in range(2000)]
    for client in clients:
        client.ok(SET_WATCHES, set_watches(2**62, paths))
    writes = multi(*[(SET_DATA, set_data(path, b"")) for path in paths])
    with measured_turns() as turns:
        writer.ok(MULTI, writes)
        for client in clients:
            assert client.error(EXISTS, read("/f")) == 0
            assert [event.path for event in client.events] == paths, "before the response"
    assert turns.worst_s < TURN_S, turns.worst


@STORAGE
def test_many_different_acls_take_no_long_turn(world, options):
    world.start(tick_ms=2000, **options)
    client = world.client(timeout_ms=10_000)
    client.create("/f")
    for number in range(2000):
        networks = [f"10.{number >> 8}.{number & 255}.{n}" for n in range(31)]
        entries = [*((31, "ip", network) for network in networks), (31, "world", "anyone")]
        client.create(f"/f/{number}", entries=entries)
    checks = multi(*[(raw.CHECK, versioned(f"/f/{n}")) for n in range(2000)])
    reads = multi(*[(GET_DATA, read(f"/f/{n}")) for n in range(2000)])
    with measured_turns() as turns:
        assert client.error(MULTI, checks) == 0
        assert client.error(MULTI_READ, reads) == raw.MALFORMED
    assert turns.worst_s < TURN_S, turns.worst


def test_sessions_with_many_ephemerals_that_end_together_take_no_long_turn(world):
    world.start(tick_ms=2000)
    clients = [world.client(timeout_ms=10_000) for _ in range(20)]
    clients[0].create("/e")
    for number, client in enumerate(clients):
        client.create(f"/e/{number}")
        for part in range(2):
            client.ok(MULTI, many_creates(f"/e/{number}", 500, flags=1 + 2 * part))
    with measured_turns() as turns:
        for client in clients:
            client.send(raw.CLOSE)
        for client in clients:
            assert client.is_closed() is False
    assert turns.worst_s < TURN_S, turns.worst
    assert world.client().ok(raw.ALL_CHILDREN, text("/e")).int32() == len(clients)


def test_a_list_of_ephemerals_has_at_most_the_bytes_of_a_response(world):
    world.start(tick_ms=2000, file=None, limits=Limits(response_bytes=1000))
    client = world.client()
    client.create("/" + "x" * 500, flags=1)
    assert client.error(raw.GET_EPHEMERALS, text("/")) == 0
    client.create("/" + "y" * 500, flags=1)
    assert client.error(raw.GET_EPHEMERALS, text("/")) == raw.MALFORMED
    assert client.error(raw.GET_EPHEMERALS, text("/x")) == 0


def test_an_identity_is_short(world):
    world.start(tick_ms=2000, file=None)
    client = world.client()
    assert client.authenticate("u" * 900 + ":password") == 0
    assert client.authenticate("u" * 1100 + ":password") == raw.AUTH_FAILED


def test_the_acl_that_auth_stands_for_is_limited(world):
    world.start(tick_ms=2000, file=None)
    client = world.client()
    for number in range(40):
        assert client.authenticate(f"user{number}:password") == 0
    assert client.error(CREATE, create("/a", entries=[(31, "auth", "")])) == raw.INVALID_ACL
    assert not client.exists("/a")


def test_reads_that_wait_for_a_write_count_as_pending_bytes(world):
    world.start(tick_ms=2000, limits=Limits(request_bytes=200_000))
    client = world.client(timeout_ms=10_000)
    with SlowDisk(world).held():
        client.send(CREATE, create("/a"))
        sent = [client.send(EXISTS, read("/" + "x" * 50_000)) for _ in range(20)]
        (connection,) = world.threads[0].server._traffic.connections
        wait_until(lambda: connection._is_paused)
        assert connection.pending_bytes < 300_000
    assert client.reply(sent[0] - 1).error == 0
    for xid in sent:
        assert client.reply(xid).error == raw.NO_NODE
    assert connection.pending_bytes == 0


def test_half_requests_of_many_connections_are_limited_together(world):
    world.start(tick_ms=2000, file=None, limits=Limits(held_bytes=4_000_000))
    bystander = world.client()
    greedy = [world.client(timeout_ms=10_000) for _ in range(10)]
    traffic = world.threads[0].server._traffic
    for client in greedy:
        with contextlib.suppress(OSError):
            client.socket.sendall(int32(MAX_FRAME_BYTES) + bytes(900_000))
    wait_until(lambda: len(traffic.connections) < 10)
    assert traffic._held_bytes <= 4_000_000
    bystander.ping()
    bystander.create("/a")
    for client in greedy:
        client.socket.close()
    wait_until(lambda: len(traffic.connections) == 1)
    assert traffic._held_bytes < 1000


def test_clients_that_do_not_read_are_limited_together(world):
    world.start(tick_ms=2000, file=None, limits=Limits(held_bytes=4_000_000))
    bystander = world.client()
    bystander.create("/big", bytes(1_000_000))
    deaf = [world.client(timeout_ms=10_000) for _ in range(10)]
    traffic = world.threads[0].server._traffic
    for client in deaf:
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        with contextlib.suppress(OSError, Closed):
            for _ in range(20):
                client.send(GET_DATA, read("/big"), xid=1)
    wait_until(lambda: len(traffic.connections) < 10)
    bystander.ping()
    assert traffic._held_bytes <= 4_000_000


class _Peer:
    address, session_id, received, sent = "", 0, 0, 0

    def __init__(self, host: str) -> None:
        self.host = host
        self.used_s = 0.0
        self.counted_bytes = self.input_bytes = self.held_bytes = 0
        self.served = 0

    def serve(self) -> bool:
        self.served += 1
        return True

    def abort(self) -> None:
        raise AssertionError("the test aborts no connection")


def test_neither_this_host_nor_the_others_take_all_connections():
    traffic = Traffic(Limits(connections=80, connections_per_address=50))
    local = [_Peer(f"127.0.0.{number % 3}") for number in range(80)]
    assert sum(map(traffic.admit, local)) == 70
    assert traffic.admit(_Peer("10.0.0.1"))
    for peer in local:
        traffic.leave(peer)
    away = [_Peer(f"10.0.1.{number}") for number in range(80)]
    assert sum(map(traffic.admit, away)) == 69
    assert traffic.admit(_Peer("127.0.0.1"))


def test_strangers_leave_sessions_for_brokers(world):
    world.start(tick_ms=2000, limits=Limits(sessions=8))
    (sessions,) = (connection._sessions for connection in connections(world))
    for _ in range(6):
        world.client()
    assert not sessions.is_full(is_stranger=False)
    assert sessions.is_full(is_stranger=True)


def connections(world):
    world.client()
    return list(world.threads[0].server._traffic.connections)


def test_the_next_turn_is_for_the_connection_that_has_used_the_least(world):
    world.start(tick_ms=2000, file=None)
    other = world.client(timeout_ms=10_000)
    busy = [world.client(timeout_ms=10_000) for _ in range(10)]
    busy[0].create("/many")
    for part in range(5):
        names = [(CREATE, create(f"/many/{part}{n:04}")) for n in range(2000)]
        busy[0].ok(MULTI, multi(*names))
    frame = int32(1, GET_CHILDREN) + read("/many")
    waits = []
    traffic = world.threads[0].server._traffic
    (lightest, *_) = traffic.connections
    served = []

    def noted(peer, serve):
        def run():
            served.append(peer)
            return serve()

        return run

    for peer in traffic.connections:
        peer.serve = noted(peer, peer.serve)
    for client in busy:
        client.socket.sendall((int32(len(frame)) + frame) * 200)
    wait_until(lambda: len(served) > 30)
    for _ in range(20):
        before = len(served)
        other.ping()
        waits.append(served.index(lightest, before) - before)
    assert sorted(waits)[10] <= 3, waits


def test_a_small_write_does_not_wait_for_the_multis_of_others(world):
    world.start(tick_ms=2000)
    other = world.client(timeout_ms=10_000)
    other.create("/a")
    busy = [world.client(timeout_ms=10_000) for _ in range(10)]
    writes = multi(*[(SET_DATA, set_data("/a", b""))] * 2000)
    with SlowDisk(world).held() as disk:
        busy[0].send(CREATE, create("/b"))
        assert disk.waits.wait(10)
        sent = [client.send(MULTI, writes) for client in busy]
        wait_until(lambda: world.committer().queued == len(busy))
        written = other.send(SET_DATA, set_data("/a", b"mine"))
        wait_until(lambda: world.committer().queued == len(busy) + 1)
    zxid = other.reply(written).zxid
    busy[0].reply(sent[0] - 1)
    assert all(client.reply(xid).zxid > zxid for client, xid in zip(busy, sent, strict=True))
