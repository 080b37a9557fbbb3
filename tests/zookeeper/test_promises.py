"""Where a single coordinator can do better than ZooKeeper does, and ours does.

Each is a real process, stopped, wiped or restarted. What ZooKeeper does instead is told, and shown
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
def coordinator(tmp_path):
    server = servers.Embedded(tmp_path)
    server.start()
    yield server
    server.kill()


def test_sessions_survive_a_coordinator_that_was_stopped_for_longer_than_their_timeout(coordinator):
    """A laptop's lid, a virtual machine that is moved: in ZooKeeper all of them would expire."""
    sessions = [Wire(coordinator.hosts, timeout_ms=SESSION_MS) for _ in range(SESSIONS)]
    for number, wire in enumerate(sessions):
        assert wire.call(jute.CREATE, create(f"/{number}", flags=1)).code == 0
    coordinator.pause()
    time.sleep(3 * SESSION_MS / 1000)
    coordinator.resume()
    for wire in sessions:
        assert wire.ping().code == 0
    with Wire(coordinator.hosts) as other:
        for number, wire in enumerate(sessions):
            reply = other.call(jute.EXISTS, text(f"/{number}") + boolean(False))
            assert jute.Reader(reply.body).stat().owner == wire.session[0]
    for wire in sessions:
        wire.close()


def test_a_session_that_stays_silent_after_such_a_stop_expires_all_the_same(coordinator):
    with (
        Wire(coordinator.hosts, timeout_ms=SESSION_MS) as silent,
        Wire(coordinator.hosts) as other,
    ):
        silent.call(jute.CREATE, create("/silent", flags=1))
        other.call(jute.EXISTS, text("/silent") + boolean(True))
        coordinator.pause()
        time.sleep(2 * SESSION_MS / 1000)
        coordinator.resume()
        event = other.receive()
        assert isinstance(event, jute.Event)
        assert (event.kind, event.path) == (2, "/silent")


def test_after_a_restart_every_session_has_its_whole_timeout_again(coordinator):
    with Wire(coordinator.hosts, timeout_ms=3 * SESSION_MS) as wire:
        wire.call(jute.CREATE, create("/mine", flags=1))
        coordinator.kill()
        # Longer than the session's timeout, most of which the coordinator is away.
        time.sleep(4 * SESSION_MS / 1000)
        coordinator.start()
        with Wire(coordinator.hosts, wire.session) as again:
            assert again.session == wire.session
            assert again.call(jute.EXISTS, text("/mine") + boolean(False)).code == 0


def test_clients_of_a_coordinator_that_lost_its_data_begin_anew(coordinator):
    """ZooKeeper would hang up on them for ever, waiting for a server that knows more."""
    with Wire(coordinator.hosts) as wire:
        for number in range(10):
            zxid = wire.call(jute.CREATE, create(f"/{number}")).zxid
        session = wire.session
    coordinator.kill()
    shutil.rmtree(coordinator.folder / "data")
    coordinator.start()
    with Wire(coordinator.hosts, session, last_zxid=zxid) as again:
        assert again.greeting.timeout_ms == 0
        assert again.greeting.session_id == 0
    with Wire(coordinator.hosts, last_zxid=zxid) as new:
        assert new.greeting.session_id != 0
        assert new.call(jute.EXISTS, text("/0") + boolean(False)).code == -101


def test_a_refused_write_takes_no_zxid(embedded, zookeeper):
    """So no client ever sees a zxid that a restart could take back. ZooKeeper's do take one."""

    def zxids_taken(backend):
        path = backend.chroot + "/x"
        with Wire(backend.server.hosts) as wire:
            before = wire.call(jute.CREATE, create(path)).zxid
            assert wire.call(jute.CREATE, create(path)).code == -110
            after = wire.call(jute.SET_DATA, text(path) + jute.buffer(b"") + int32(-1)).zxid
            return after - before

    assert zxids_taken(embedded) == 1
    assert zxids_taken(zookeeper) == 2


def test_a_zxid_that_a_client_has_seen_is_never_given_again(coordinator):
    """Not even when the coordinator is killed at any moment after it was told."""
    seen = 0
    for life in range(5):
        with Wire(coordinator.hosts) as wire:
            for number in range(20):
                path = f"/{life}-{number}"
                zxid = wire.call(jute.CREATE, create(path)).zxid
                assert zxid > seen
                refused = wire.call(jute.CREATE, create(path))
                assert (refused.code, refused.zxid) == (-110, zxid)
                seen = zxid
            wire.request(jute.CREATE, create(f"/{life}-under-way"))
            coordinator.kill()
            try:
                said = wire.receive()
            except HungUp:
                pass
            else:
                assert isinstance(said, jute.Reply)
                seen = said.zxid
        coordinator.start()
