"""The session of a process that died is ended by its parent."""

from hightide.process import free_port
from hightide.zookeeper.end_session import SessionKey, end_session
from tests.support.eventually import eventually
from tests.unit.zookeeper.raw_client import EXISTS, create, read


def hosts(world):
    host, port = world.address
    return f"{host}:{port}"


def key_of(client):
    return SessionKey(client.session_id, client.password)


def test_the_ephemerals_of_an_ended_session_are_gone(world):
    world.start(file=None, min_session_timeout_ms=60_000, max_session_timeout_ms=60_000)
    owner, other = world.client(timeout_ms=60_000), world.client(timeout_ms=60_000)
    owner.ok(1, create("/mine", flags=1))
    owner.socket.close()
    assert other.error(EXISTS, read("/mine")) == 0
    assert end_session(hosts(world), key_of(owner))
    eventually(lambda: other.error(EXISTS, read("/mine")) != 0)


def test_a_session_that_has_ended_already_is_left(world):
    world.start(file=None)
    owner = world.client()
    owner.close_session()
    assert end_session(hosts(world), key_of(owner))
    assert world.committer().tree.sessions == {}


def test_a_wrong_password_ends_no_session(world):
    world.start(file=None, min_session_timeout_ms=60_000, max_session_timeout_ms=60_000)
    owner = world.client(timeout_ms=60_000)
    end_session(hosts(world), SessionKey(owner.session_id, bytes(16)))
    assert list(world.committer().tree.sessions) == [owner.session_id]


def test_a_server_that_is_not_there_is_given_up():
    assert not end_session(f"127.0.0.1:{free_port()}", SessionKey(1, bytes(16)))
