"""Limits: malformed input, too many connections or sessions, clients that do not read."""

import contextlib
import random
import struct

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hightide.zookeeper.server import jute, requests
from hightide.zookeeper.server.jute import Reader
from hightide.zookeeper.server.options import MAX_FRAME_BYTES, Limits
from hightide.zookeeper.zookeeper_errors import MalformedRequest, ZooKeeperError
from tests.unit.zookeeper.raw_client import (
    CREATE,
    DELETE,
    EXISTS,
    GET_DATA,
    MALFORMED,
    MULTI,
    NO_NODE,
    SET_ACL,
    SET_DATA,
    SET_WATCHES,
    SYNC,
    Body,
    Closed,
    RawClient,
    RawSocket,
    acl,
    buffer,
    create,
    int32,
    int64,
    multi,
    read,
    set_data,
    set_watches,
    text,
    texts,
    wait_until,
)


@pytest.mark.parametrize("length", [-1, -(2**31), MAX_FRAME_BYTES + 1, 2**31 - 1])
def test_a_frame_of_impossible_length_closes_the_connection(world, client, length):
    for raw in (RawSocket(world.address), world.client()):
        with raw:
            raw.socket.sendall(int32(length) + b"x" * 100)
            assert raw.is_closed()
    client.ping()


def test_the_largest_frame_is_taken_and_kept(world, client):
    room = MAX_FRAME_BYTES - 8 - len(create("/a"))
    data = random.Random(1).randbytes(room)
    client.create("/a", data)
    assert client.ok(GET_DATA, read("/a")).buffer() == data
    world.threads[0].stop()
    world.start()
    assert world.client().ok(GET_DATA, read("/a")).buffer() == data


@pytest.mark.parametrize("frame", [b"", b"\0", bytes(7), bytes(27)])
def test_a_claim_that_is_too_short_closes_the_connection(world, client, frame):
    with RawSocket(world.address) as raw:
        raw.send_frame(frame)
        assert raw.is_closed()
    client.ping()


@pytest.mark.parametrize("frame", [b"", b"\0" * 7])
def test_a_request_without_a_header_closes_the_connection(client, frame):
    client.send_frame(frame)
    assert client.is_closed()


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (CREATE, b""),
        (CREATE, text("/a")),
        (CREATE, create("/a")[:-1]),
        (CREATE, buffer(None) + create("/a")[6:]),
        (CREATE, text("/a") + int32(2**31 - 1)),
        (CREATE, text("/a") + int32(-2) + create("/a")[10:]),
        (CREATE, text("/a") + buffer(b"") + int32(2**31 - 1)),
        (CREATE, text("/a") + buffer(b"") + int32(-2) + int32(0)),
        (CREATE, buffer(b"/\xff\xfe") + create("/a")[6:]),
        (SET_DATA, set_data("/a", b"x")[:-2]),
        (DELETE, text("/a")),
        (EXISTS, text("/a")),
        (EXISTS, buffer(None) + b"\0"),
        (GET_DATA, int32(100) + b"/a"),
        (SYNC, b"\0"),
        (SET_ACL, text("/") + int32(1000000) + bytes(100)),
        (SET_ACL, text("/") + acl([(31, "world", "anyone")])),
        (MULTI, b""),
        (MULTI, multi((CREATE, create("/a")))[:-9]),
        (MULTI, multi((CREATE, create("/a")))[:-1]),
        (SET_WATCHES, int64(0) + int32(2**30)),
        (SET_WATCHES, set_watches(0)[:-2]),
        (SET_WATCHES, int64(0) + texts(["/a"]) + texts([]) + int32(1) + int32(-1)),
    ],
)
def test_a_body_that_is_not_understood_is_said_so_and_changes_nothing(client, kind, body):
    before = client.call(EXISTS, read("/")).zxid
    assert client.error(kind, body) == MALFORMED
    assert client.call(EXISTS, read("/")).zxid == before
    assert not client.exists("/a")


def test_bytes_after_a_body_are_ignored(client):
    assert client.error(CREATE, create("/a") + b"more") == 0
    assert client.error(EXISTS, read("/a") + b"more") == 0


class _Requester:
    """A requester with an empty tree."""

    def __init__(self):
        from hightide.zookeeper.acl import Identity
        from hightide.zookeeper.tree import Tree

        self.tree = Tree()
        self.session_id = 1
        self.response_bytes, self.operations = 1000, 100
        self.identity = Identity((("ip", "127.0.0.1"),))
        self.events = []

    def watch_fired(self, event, acl):
        self.events.append(event)


BODIES = st.binary(max_size=60) | st.lists(
    st.sampled_from([text("/"), int32(0), int32(-1), int32(1), text("/a/b"), b"\1", bytes(8)]),
    max_size=8,
).map(b"".join)


@given(st.sampled_from(sorted(requests.READS)), BODIES)
def test_any_bytes_are_a_read_or_malformed(kind, body):
    requester = _Requester()
    with contextlib.suppress(ZooKeeperError):
        assert isinstance(requests.READS[kind](requester, Reader(body)), bytes)
    assert requester.tree.zxid == 0
    requester.tree.check()


@given(st.integers(0, 30), BODIES)
def test_any_bytes_are_a_write_or_malformed(kind, body):
    requester = _Requester()
    try:
        request = requests.decode_write(kind, Reader(body))
        outcome = requester.tree.decide(request, 1, 0, requester.identity).outcome
    except ZooKeeperError as refusal:
        outcome = refusal
    assert isinstance(outcome, ZooKeeperError), "there is no session"


@given(BODIES)
def test_any_bytes_are_a_multi_or_malformed(body):
    try:
        kinds, request = requests.decode_multi(Reader(body), 100)
    except ZooKeeperError:
        return
    assert len(kinds) == len(request.operations)


@given(st.binary(max_size=40), st.integers(-(2**31), 2**31 - 1))
def test_a_list_never_holds_more_than_its_frame_could(data, count):
    reader = Reader(struct.pack(">i", count) + data)
    try:
        assert len(reader.strings()) <= len(data) // 4
    except MalformedRequest:
        assert reader.remaining <= len(data)


@given(st.none() | st.binary(), st.text(), st.lists(st.text()), st.booleans())
def test_what_is_written_is_read_again(data, words, many, flag):
    listed = jute.int32(len(many)) + b"".join(map(jute.string, many))
    reader = Reader(jute.buffer(data) + jute.string(words) + listed + bytes([flag]))
    assert reader.buffer() == data
    assert reader.string() == words
    assert reader.strings() == many
    assert reader.boolean() is flag
    assert reader.remaining == 0


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.binary(min_size=1, max_size=300), st.booleans(), st.booleans())
def test_garbage_does_no_harm(garbage_world, garbage, is_framed, has_session):
    try:
        raw = RawClient if has_session else RawSocket
        with raw(garbage_world.address) as socket:
            socket.send_frame(garbage) if is_framed else socket.socket.sendall(garbage)
    except (Closed, OSError):
        pass
    garbage_world.clients[0].ping()


@pytest.fixture
def garbage_world(world):
    world.start(file=None)
    world.client()
    return world


def test_the_number_of_connections_is_limited(world):
    world.start(limits=Limits(connections=3))
    clients = [world.client() for _ in range(3)]
    with RawSocket(world.address) as fourth:
        assert fourth.is_closed()
    clients[0].close_session()
    wait_until(lambda: len(world.threads[0].server._traffic.connections) == 2)
    assert world.client().session_id


def test_connections_of_another_host_are_counted():
    from hightide.zookeeper.server.traffic import Traffic

    class Peer:
        address, session_id, received, sent = "", 0, 0, 0
        counted_bytes = input_bytes = held_bytes = 0
        used_s = 0.0

        def __init__(self, host: str) -> None:
            self.host = host

        def serve(self) -> bool:
            raise AssertionError("the test sends nothing")

        def abort(self) -> None:
            raise AssertionError("the test aborts no connection")

    traffic = Traffic(Limits(connections=10, connections_per_address=2))
    away = [Peer("10.0.0.1") for _ in range(3)]
    assert [traffic.admit(peer) for peer in away] == [True, True, False]
    assert traffic.admit(Peer("10.0.0.2"))
    assert all(traffic.admit(Peer("127.0.0.1")) for _ in range(5))
    for peer in away:
        traffic.leave(peer)
        traffic.leave(peer)
    assert traffic.admit(Peer("10.0.0.1"))


def test_the_number_of_sessions_is_limited(world):
    world.start(limits=Limits(sessions=2))
    first, second = world.client(), world.client()
    with pytest.raises(Closed):
        world.client()
    assert world.client(session=first.key).session_id == first.session_id
    second.close_session()
    assert world.client().session_id


def test_a_client_that_does_not_read_its_events_is_disconnected(world):
    world.start(file=None, limits=Limits(output_bytes=200_000))
    deaf, writer = world.client(), world.client()
    names = [f"/{'x' * 100_000}{number}" for number in range(200)]
    for name in names:
        assert deaf.error(EXISTS, read(name, watch=True)) == NO_NODE
    connections = world.threads[0].server._traffic.connections
    for name in names:
        writer.create(name)
        if len(connections) == 1:
            break
    assert len(connections) == 1, "20 MB do not fit into the socket buffers"
    writer.ping()


def test_a_client_that_does_not_read_its_answers_is_not_read_either(world):
    world.start(file=None)
    client = world.client()
    client.create("/big", bytes(500_000))
    for _ in range(2000):
        client.send(GET_DATA, read("/big"), xid=1)
    (connection,) = world.threads[0].server._traffic.connections
    wait_until(lambda: not connection._transport.is_reading())
    assert connection.sent < 50
    world.client().ping()
    assert len(client.frame()) == 16 + 4 + 500_000 + 68


def test_many_large_answers_all_arrive(world):
    world.start(file=None)
    client = world.client()
    data = random.Random(1).randbytes(300_000)
    client.create("/big", data)
    xids = [client.send(GET_DATA, read("/big")) for _ in range(100)]
    for xid in xids:
        assert Body(client.reply(xid).body).buffer() == data


def test_a_large_frame_that_comes_in_crumbs_is_put_together(client):
    frame = int32(1, CREATE) + create("/a", bytes(10_000))
    data = int32(len(frame)) + frame
    for start in range(0, len(data), 97):
        client.socket.sendall(data[start : start + 97])
    assert client.reply(1).error == 0


def test_a_burst_of_frames_in_one_write_is_taken_apart(client):
    frames = [int32(number, EXISTS) + read("/") for number in range(1, 5001)]
    client.socket.sendall(b"".join(int32(len(frame)) + frame for frame in frames))
    for number in range(1, 5001):
        assert client.reply(number).error == 0
