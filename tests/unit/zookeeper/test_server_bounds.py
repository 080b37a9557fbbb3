"""What one request or one client may cost the server: response size, operations, turns, words."""

import pytest

from hightide.zookeeper.quota import Quota
from hightide.zookeeper.server.options import Limits, ServerOptions
from hightide.zookeeper.server.traffic import Traffic
from tests.unit.zookeeper.raw_client import (
    ALL_CHILDREN,
    CHILD,
    CREATE,
    CREATED,
    EXISTS,
    GET_CHILDREN,
    GET_CHILDREN2,
    GET_DATA,
    MALFORMED,
    MULTI,
    MULTI_READ,
    PING,
    SET_WATCHES,
    Event,
    create,
    int32,
    multi,
    read,
    set_watches,
    text,
)


def test_a_multi_read_is_refused_while_its_response_is_built(world, monkeypatch):
    from hightide.zookeeper.server import requests

    built = []
    data = requests._data

    def counted(*arguments):
        built.append(part := data(*arguments))
        return part

    world.start(file=None)
    client = world.client()
    client.create("/big", bytes(1_000_000))
    monkeypatch.setattr(requests, "_data", counted)
    body = multi(*[(GET_DATA, read("/big"))] * 400)
    assert len(body) < 10_000
    assert client.error(MULTI_READ, body) == MALFORMED
    assert sum(map(len, built)) < Limits().response_bytes + 1_100_000
    assert client.ok(MULTI_READ, multi(*[(GET_DATA, read("/big"))] * 3)).data


def test_a_list_of_children_has_at_most_the_bytes_of_a_response(world):
    world.start(file=None, limits=Limits(response_bytes=1000))
    client = world.client()
    client.create("/few")
    for number in range(100):
        client.create(f"/few/{number:08}")
        if number == 50:
            assert len(client.ok(GET_CHILDREN, read("/few")).texts()) == 51
    for kind in (GET_CHILDREN, GET_CHILDREN2):
        assert client.error(kind, read("/few", watch=True)) == MALFORMED
    assert not len(world.committer().tree.watches), "a read that fails arms no watch"
    body = multi((GET_CHILDREN, read("/few")))
    assert client.error(MULTI_READ, body) == MALFORMED


@pytest.mark.parametrize("count", [5, 6])
def test_a_multi_has_at_most_so_many_operations(world, count):
    world.start(file=None, limits=Limits(operations=5))
    client = world.client()
    expected = 0 if count == 5 else MALFORMED
    writes = [(CREATE, create(f"/{number}")) for number in range(count)]
    assert client.error(MULTI, multi(*writes)) == expected
    assert client.error(MULTI_READ, multi(*[(GET_DATA, read("/"))] * count)) == expected
    assert client.exists("/0") is (count == 5)


def test_a_request_has_at_most_so_many_list_items(world):
    world.start(file=None, limits=Limits(items=10))
    client = world.client()
    paths = [f"/{number}" for number in range(11)]
    assert client.error(SET_WATCHES, set_watches(0, [], paths[:10])) == 0
    assert client.error(SET_WATCHES, set_watches(0, [], paths)) == MALFORMED
    assert client.error(SET_WATCHES, set_watches(0, paths[:6], paths[:5])) == MALFORMED
    entries = ((31, "world", "anyone"),) * 11
    assert client.error(CREATE, create("/a", entries=entries)) == MALFORMED


def test_a_path_that_is_watched_twice_is_one_watch(world):
    world.start(file=None, quota=Quota(session_watches=2))
    client = world.client()
    client.create("/a")
    client.ok(SET_WATCHES, set_watches(2**62, ["/a"] * 1000, [], ["/a"] * 1000))
    assert world.committer().tree.watches.count_of(client.session_id) == 2


def test_a_missed_event_comes_as_often_as_its_path_is_named(world):
    """As from ZooKeeper."""
    world.start(file=None)
    client = world.client()
    client.create("/a")
    client.ok(SET_WATCHES, set_watches(0, [], ["/a"] * 2, ["/"] * 3))
    assert client.events == [Event(CREATED, "/a")] * 2 + [Event(CHILD, "/")] * 3


def test_descendants_are_counted_without_a_look_at_the_other_znodes(world):
    world.start(file=None)
    client = world.client()
    for path in ("/a", "/a/b", "/a/b/c", "/a/d", "/ab", "/ab/x"):
        client.create(path)
    assert client.ok(ALL_CHILDREN, text("/a")).int32() == 3
    assert client.ok(ALL_CHILDREN, text("/a/d")).int32() == 0
    assert client.ok(ALL_CHILDREN, text("/")).int32() == len(world.committer().tree.nodes) - 1


def test_a_pipelining_client_gives_way_after_its_turn(world):
    world.start(file=None, limits=Limits(turn_s=0))
    busy, other = world.client(), world.client()
    frames = [int32(number, EXISTS) + read("/") for number in range(1, 2001)]
    busy.socket.sendall(b"".join(int32(len(frame)) + frame for frame in frames))
    assert busy.reply(1).error == 0
    (connection, _) = world.threads[0].server._traffic.connections
    other.send(PING, xid=-2)
    other.reply(-2)
    for number in range(2, 2001):
        assert busy.reply(number).error == 0, "in order, and none is lost between turns"
    assert connection.received == 2001


def test_words_of_other_hosts_are_those_of_the_whitelist():
    from hightide.zookeeper.committer import Committer
    from hightide.zookeeper.server.four_letter_words import Words

    def words(**options):
        return Words(ServerOptions(**options), Committer(), Traffic(Limits()))

    assert (words()("srvr", "10.0.0.1") or "").startswith("Zookeeper version")
    refusal = "mntr is not executed because it is not in the whitelist.\n"
    assert words()("mntr", "10.0.0.1") == refusal
    assert words()("mntr", "127.0.0.1") != refusal
    assert words(words=("ruok",))("ruok", "10.0.0.1") == "imok"
    assert words(words=("*",))("mntr", "10.0.0.1") != refusal
    assert words()("abcd", "10.0.0.1") is None
