"""The order of responses and events, and that none is sent before its commit."""

import contextlib
import threading
import time

import pytest

from tests.unit.zookeeper.raw_client import (
    CHANGED,
    CHILD,
    CLOSE,
    CREATE,
    CREATED,
    DELETE,
    DELETED,
    EXISTS,
    GET_CHILDREN,
    GET_DATA,
    MULTI,
    PING,
    SET_DATA,
    SYNC,
    Body,
    Event,
    create,
    multi,
    read,
    set_data,
    text,
    versioned,
    wait_until,
)


class SlowDisk:
    """Commits of the world's server wait while this is held."""

    def __init__(self, world):
        self._gate = threading.Event()
        self._gate.set()
        self.waits = threading.Event()
        database = world.committer()._store._db
        self._thread = world.committer()._thread
        self._thread.submit(database.set_trace_callback, self._on_statement).result()

    def _on_statement(self, statement):
        if statement == "COMMIT" and not self._gate.is_set():
            self.waits.set()
            assert self._gate.wait(10)

    @contextlib.contextmanager
    def held(self):
        self._gate.clear()
        self.waits.clear()
        try:
            yield self
        finally:
            self._gate.set()


@pytest.fixture
def disk(world, client):
    return SlowDisk(world)


def silence(client, seconds=0.15):
    """Assert that the client receives nothing for a while."""
    client.socket.settimeout(seconds)
    with pytest.raises(TimeoutError):
        client.frame()
    client.socket.settimeout(10)


def test_nothing_leaves_before_the_commit(world, client, disk):
    other = world.client()
    other.call(EXISTS, read("/a", watch=True))
    with disk.held():
        write = client.send(CREATE, create("/a"))
        assert disk.waits.wait(10)
        reading = client.send(EXISTS, read("/a"))
        silence(client)
        silence(other)
    assert client.reply(write).error == 0
    assert client.reply(reading).error == 0
    assert other.receive() == Event(CREATED, "/a")


def test_a_read_is_not_answered_before_a_write_of_the_same_client(client, disk):
    client.create("/a", b"0")
    with disk.held():
        requests = []
        for number in range(1, 4):
            requests.append(client.send(SET_DATA, set_data("/a", b"%d" % number)))
            requests.append(client.send(GET_DATA, read("/a")))
            requests.append(client.send(PING, xid=-2))
        silence(client)
    replies = [client.reply(xid) for xid in requests]
    assert [Body(reply.body).buffer() for reply in replies[1::3]] == [b"1", b"2", b"3"]
    zxids = [reply.zxid for reply in replies]
    assert zxids == sorted(zxids)


def test_others_are_answered_while_one_client_waits_for_the_disk(world, client, disk):
    client.create("/a", b"old")
    other = world.client()
    with disk.held():
        write = client.send(SET_DATA, set_data("/a", b"new"))
        assert disk.waits.wait(10)
        before = other.call(GET_DATA, read("/a"))
        other.ping()
        synced = other.send(SYNC, text("/"))
        reading = other.send(GET_DATA, read("/a"))
        silence(other)
    written = client.reply(write)
    assert Body(before.body).buffer() == b"old"
    assert before.zxid < written.zxid, "no client sees a zxid that could be taken back"
    assert other.reply(synced).error == 0
    assert Body(other.reply(reading).body).buffer() == b"new"


def test_a_watch_armed_by_a_queued_read_hears_of_the_next_write_of_the_same_commit(
    world, client, disk
):
    """The reply that arms a watch comes before its event, or a client would drop the event."""
    other = world.client()
    client.create("/a", b"0")
    with disk.held():
        first = client.send(SET_DATA, set_data("/a", b"1"))
        assert disk.waits.wait(10)
        # These three share one commit.
        mine = client.send(SET_DATA, set_data("/a", b"2"))
        reading = client.send(GET_DATA, read("/a", watch=True))
        wait_until(lambda: world.committer().queued == 2)
        other_write = other.send(SET_DATA, set_data("/a", b"3"))
        wait_until(lambda: world.committer().queued == 3)
    assert client.reply(first).error == 0
    assert client.reply(mine).error == 0
    answer = client.reply(reading)
    assert client.events == []
    assert client.receive() == Event(CHANGED, "/a")
    assert Body(answer.body).buffer() == b"2"
    assert other.reply(other_write).error == 0


def test_a_writer_hears_its_own_event_before_its_own_reply(client):
    client.call(EXISTS, read("/a", watch=True))
    client.ok(GET_CHILDREN, read("/", watch=True))
    xid = client.send(CREATE, create("/a"))
    messages = [client.receive() for _ in range(3)]
    assert messages[:2] == [Event(CREATED, "/a"), Event(CHILD, "/")]
    assert messages[2].xid == xid


def test_an_event_comes_before_any_reply_that_shows_the_change(world, client):
    other = world.client()
    client.create("/a", b"0")
    for number in range(1, 30):
        data = b"%d" % number
        assert Body(other.call(GET_DATA, read("/a", watch=True)).body).buffer() is not None
        client.send(SET_DATA, set_data("/a", data))
        while True:
            xid = other.send(GET_DATA, read("/a"))
            message = other.receive()
            if isinstance(message, Event):
                assert message == Event(CHANGED, "/a")
                assert Body(other.reply(xid).body).buffer() == data
                break
            assert Body(message.body).buffer() != data, "the reply overtook the event"
        client.receive()


def test_a_deletion_is_one_event_per_client_and_then_one_of_its_parent(client):
    client.create("/a")
    client.ok(GET_DATA, read("/a", watch=True))
    client.ok(GET_CHILDREN, read("/a", watch=True))
    client.ok(GET_CHILDREN, read("/", watch=True))
    client.ok(DELETE, versioned("/a"))
    client.ping()
    assert client.events == [Event(DELETED, "/a"), Event(CHILD, "/")]


def test_a_watch_fires_once(client):
    client.create("/a")
    client.ok(GET_DATA, read("/a", watch=True))
    client.ok(GET_DATA, read("/a", watch=True))
    for _ in range(3):
        client.ok(SET_DATA, set_data("/a", b"x"))
    assert client.events == [Event(CHANGED, "/a")]


@pytest.mark.parametrize("kind", [GET_DATA, GET_CHILDREN])
def test_a_read_of_a_missing_znode_arms_nothing_but_exists_does(client, kind):
    assert client.error(kind, read("/a", watch=True)) == -101
    client.create("/a")
    client.ok(DELETE, versioned("/a"))
    assert client.events == []
    assert client.error(EXISTS, read("/a", watch=True)) == -101
    client.create("/a")
    assert client.events == [Event(CREATED, "/a")]


def test_hundreds_of_pipelined_requests_are_answered_in_order(client):
    xids = []
    for number in range(300):
        xids.append(client.send(CREATE, create(f"/{number:03d}", b"%d" % number)))
        xids.append(client.send(GET_DATA, read(f"/{number:03d}")))
        xids.append(client.send(SET_DATA, set_data(f"/{number:03d}", b"", version=7)))
        xids.append(client.send(PING, xid=-2))
    replies = [client.reply(xid) for xid in xids]
    assert {reply.error for reply in replies[2::4]} == {-103}
    data = [Body(reply.body).buffer() for reply in replies[1::4]]
    assert data == [b"%d" % number for number in range(300)]


def test_a_flood_of_requests_is_taken_in_portions(world):
    from hightide.zookeeper.server.options import Limits

    world.start(limits=Limits(requests=5))
    client = world.client()
    xids = [client.send(CREATE, create(f"/{number}")) for number in range(200)]
    assert all(client.reply(xid).error == 0 for xid in xids)


def test_two_clients_that_count_together_agree(world, client):
    """Compare-and-set by several clients at once: every success is a different version."""
    client.create("/n", b"0")
    others = [world.client() for _ in range(4)]
    won = []

    def count(one):
        for _ in range(40):
            body = one.ok(GET_DATA, read("/n"))
            value, stat = int(body.buffer()), body.stat()
            reply = one.call(SET_DATA, set_data("/n", b"%d" % (value + 1), stat.version))
            if reply.error == 0:
                won.append(value + 1)

    threads = [threading.Thread(target=count, args=(other,)) for other in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == list(range(1, len(won) + 1))
    assert client.ok(GET_DATA, read("/n")).buffer() == b"%d" % len(won)


def test_the_events_of_a_multi_come_together_and_none_if_it_fails(world, client):
    other = world.client()
    other.call(EXISTS, read("/a", watch=True))
    other.ok(GET_CHILDREN, read("/", watch=True))
    failing = multi((CREATE, create("/a")), (DELETE, versioned("/missing")))
    assert client.call(MULTI, failing).error == 0
    other.ping()
    assert other.events == []
    client.ok(MULTI, multi((CREATE, create("/a")), (SET_DATA, set_data("/a", b"1"))))
    other.ping()
    assert other.events == [Event(CREATED, "/a"), Event(CHILD, "/")]


def test_writes_of_a_client_that_is_gone_still_happen(world, client, disk):
    other = world.client()
    with disk.held():
        client.send(CREATE, create("/first"))
        assert disk.waits.wait(10)
        client.send(CREATE, create("/second"))
        client.send(EXISTS, read("/second", watch=True))
        wait_until(lambda: world.committer().queued == 2)
        client.socket.close()
        wait_until(lambda: len(world.threads[0].server._traffic.connections) == 1)
    assert other.error(SYNC, text("/")) == 0
    assert other.exists("/second")
    assert len(world.committer().tree.watches) == 0, "the watches are gone with their connection"


def test_a_session_that_moves_reads_what_it_wrote_before(world, client, disk):
    with disk.held():
        client.send(CREATE, create("/a"))
        assert disk.waits.wait(10)
        threading.Timer(0.2, disk._gate.set).start()
        second = world.client(session=client.key)
    assert second.exists("/a")


def test_a_request_after_close_session_is_not_answered(world, client):
    closing = client.send(CLOSE)
    client.send(CREATE, create("/late"))
    assert client.reply(closing).error == 0
    assert client.is_closed()
    assert not world.client().exists("/late")


def test_a_session_does_not_expire_while_the_server_does_not_read_from_it(world):
    from hightide.zookeeper.server.options import Limits

    world.start(tick_ms=50, limits=Limits(requests=3))
    client = world.client(timeout_ms=300)
    disk = SlowDisk(world)
    with disk.held():
        xids = [client.send(CREATE, create(f"/{number}", flags=1)) for number in range(10)]
        time.sleep(1.0)
        client.send(PING, xid=-2)
    assert all(client.reply(xid).error == 0 for xid in xids)
    assert client.reply(-2).error == 0


def test_large_requests_that_wait_are_bounded_by_their_size(world, client, disk):
    (connection,) = world.threads[0].server._traffic.connections
    client.create("/a")
    received = connection.received
    with disk.held():
        sender = threading.Thread(
            target=lambda: [client.send(SET_DATA, set_data("/a", bytes(900_000)), 7)
                            for _ in range(40)]
        )  # fmt: skip
        sender.start()
        wait_until(lambda: not connection._transport.is_reading())
        assert connection.received - received < 10
    for _ in range(40):
        assert client.reply(7).error == 0
    sender.join()
