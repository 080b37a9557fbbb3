"""Where the embedded server does better than ZooKeeper, because it is a single server.

The tests stop, wipe or restart real processes. They say what ZooKeeper does instead, and show it
where that is quick.
"""

from __future__ import annotations

import shutil
import time

import pytest

from tests.zookeeper import jute, servers
from tests.zookeeper.jute import HungUp, Wire, boolean, int32, text

SESSION_MS = 1000
SESSIONS = 5


def create(path: str, flags: int = 0) -> bytes:
    return text(path) + jute.buffer(b"") + jute.acl_list(jute.OPEN) + int32(flags)


@pytest.fixture
def server(tmp_path):
    server = servers.Embedded(tmp_path)
    server.start()
    yield server
    server.kill()


@pytest.mark.extended
def test_sessions_survive_a_server_that_was_paused_for_longer_than_their_timeout(server):
    """A suspended laptop, a virtual machine that moves: in ZooKeeper all sessions would expire."""
    sessions = [Wire(server.hosts, timeout_ms=SESSION_MS) for _ in range(SESSIONS)]
    for number, wire in enumerate(sessions):
        assert wire.call(jute.CREATE, create(f"/{number}", flags=1)).code == 0
    server.pause()
    time.sleep(3 * SESSION_MS / 1000)
    server.resume()
    for wire in sessions:
        assert wire.ping().code == 0
    with Wire(server.hosts) as other:
        for number, wire in enumerate(sessions):
            reply = other.call(jute.EXISTS, text(f"/{number}") + boolean(False))
            assert jute.Reader(reply.body).stat().owner == wire.session[0]
    for wire in sessions:
        wire.close()


@pytest.mark.extended
def test_a_session_that_stays_silent_after_such_a_stop_expires_all_the_same(server):
    with (
        Wire(server.hosts, timeout_ms=SESSION_MS) as silent,
        Wire(server.hosts) as other,
    ):
        silent.call(jute.CREATE, create("/silent", flags=1))
        other.call(jute.EXISTS, text("/silent") + boolean(True))
        server.pause()
        time.sleep(2 * SESSION_MS / 1000)
        server.resume()
        event = other.receive()
        assert isinstance(event, jute.Event)
        assert (event.kind, event.path) == (2, "/silent")


@pytest.mark.extended
def test_after_a_restart_every_session_has_its_whole_timeout_again(server):
    with Wire(server.hosts, timeout_ms=3 * SESSION_MS) as wire:
        wire.call(jute.CREATE, create("/mine", flags=1))
        server.kill()
        # Longer than the session timeout; for most of it the server is down.
        time.sleep(4 * SESSION_MS / 1000)
        server.start()
        with Wire(server.hosts, wire.session) as again:
            assert again.session == wire.session
            assert again.call(jute.EXISTS, text("/mine") + boolean(False)).code == 0


def test_clients_of_a_server_that_lost_its_data_open_new_sessions(server):
    """ZooKeeper would close their connections forever, since another server may have the data."""
    with Wire(server.hosts) as wire:
        for number in range(10):
            zxid = wire.call(jute.CREATE, create(f"/{number}")).zxid
        session = wire.session
    server.kill()
    shutil.rmtree(server.folder / "data")
    server.start()
    with Wire(server.hosts, session, last_zxid=zxid) as again:
        assert again.greeting.timeout_ms == 0
        assert again.greeting.session_id == 0
    with Wire(server.hosts, last_zxid=zxid) as new:
        assert new.greeting.session_id != 0
        assert new.call(jute.EXISTS, text("/0") + boolean(False)).code == -101


def test_a_refused_write_takes_no_zxid(embedded, zookeeper):
    """No client ever sees a zxid that a restart could take back. In ZooKeeper errors take one."""

    def zxids_taken(backend):
        path = backend.chroot + "/x"
        with Wire(backend.server.hosts) as wire:
            before = wire.call(jute.CREATE, create(path)).zxid
            assert wire.call(jute.CREATE, create(path)).code == -110
            after = wire.call(jute.SET_DATA, text(path) + jute.buffer(b"") + int32(-1)).zxid
            return after - before

    assert zxids_taken(embedded) == 1
    assert zxids_taken(zookeeper) == 2


def test_a_zxid_that_a_client_has_seen_is_never_given_again(server):
    """Not even if the server is killed right after the response."""
    seen = 0
    for round_number in range(5):
        with Wire(server.hosts) as wire:
            for number in range(20):
                path = f"/{round_number}-{number}"
                zxid = wire.call(jute.CREATE, create(path)).zxid
                assert zxid > seen
                refused = wire.call(jute.CREATE, create(path))
                assert (refused.code, refused.zxid) == (-110, zxid)
                seen = zxid
            wire.request(jute.CREATE, create(f"/{round_number}-under-way"))
            server.kill()
            try:
                message = wire.receive()
            except HungUp:
                pass
            else:
                assert isinstance(message, jute.Reply)
                seen = message.zxid
        server.start()
