"""A broker's registration: created at the start, kept while it runs, deleted when it is gone."""

from __future__ import annotations

import re
import socket
import time

import pytest

from hightide.broker.membership.zookeeper_connection import SESSION_FILE
from hightide.testing.cluster import free_port
from hightide.wire.errors import ErrorCode
from tests.support.eventually import eventually
from tests.zookeeper import servers
from tests.zookeeper.broker_world import (
    HOST,
    SESSION_MS,
    SESSION_S,
    Brokers,
    Tree,
    end_of,
    lone_broker,
)

TICK_S = 0.2


INSIDE = {
    "listeners": f"INSIDE://{HOST}:0,OUTSIDE://{HOST}:0",
    "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT",
    "inter.broker.listener.name": "INSIDE",
}


def test_a_broker_is_registered_as_kafka_registers_one(backend, tmp_path):
    plain = INSIDE | {"broker.id": 1, "zookeeper.session.timeout.ms": SESSION_MS}
    settings = plain | {
        "broker.id": 7,
        "broker.rack": "attic",
        "advertised.listeners": "OUTSIDE://broker.example:19092",
    }
    tree = Tree(backend.hosts)
    try:
        with (
            lone_broker(backend.hosts, tmp_path / "1", plain) as first,
            lone_broker(backend.hosts, tmp_path / "7", settings) as broker,
        ):
            first.wait_until_it_listens()
            host, _, port = broker.wait_until_it_listens().rpartition(":")
            found = tree.json("/brokers/ids/7")
            assert time.time() - int(found.pop("timestamp")) / 1000 < 30
            assert found == {
                "version": 5,
                "host": HOST,
                "port": int(port),
                "endpoints": [f"INSIDE://{HOST}:{port}", "OUTSIDE://broker.example:19092"],
                "listener_security_protocol_map": {"INSIDE": "PLAINTEXT", "OUTSIDE": "PLAINTEXT"},
                "jmx_port": -1,
                "rack": "attic",
                "features": {},
            }
            with socket.create_connection((host, int(port)), timeout=5):
                pass
            assert "rack" not in tree.json("/brokers/ids/1")
            epoch = tree.stat("/brokers/ids/7").czxid
            assert f"registered as broker 7, in epoch {epoch}" in broker.log.read_text()
    finally:
        tree.close()


def test_a_broker_that_others_cannot_reach_is_reported_and_waits(embedded, tmp_path):
    """All brokers of a cluster have a listener of the same name for requests between brokers."""
    settings = INSIDE | {"broker.id": 7, "zookeeper.session.timeout.ms": SESSION_MS}
    with (
        Brokers(embedded.hosts) as cluster,
        lone_broker(embedded.hosts, tmp_path, settings) as broker,
    ):
        eventually(lambda: "broker 7 has no listener PLAINTEXT" in cluster.log())
        assert cluster.create(1, "goes-on") == ErrorCode.NONE
        assert broker.is_running()
        assert "listens on" not in broker.log.read_text()
        began = time.monotonic()
        assert broker.stop() == 0
        assert time.monotonic() - began < 5
        eventually(lambda: cluster.registration(7) is None, 1)


def test_a_broker_is_gone_at_once_when_it_stops_and_soon_when_it_dies(
    backend, record_testsuite_property
):
    with Brokers(backend.hosts) as cluster:
        epochs = [cluster.epoch()]
        assert cluster.terminate() == 0
        assert cluster.registration() is None

        cluster.restart()
        epochs.append(cluster.epoch())
        cluster.kill()
        died = time.monotonic()
        assert cluster.registration() is not None
        eventually(lambda: cluster.registration() is None)
        gone_s = time.monotonic() - died
        record_testsuite_property(f"{backend.kind}: broker gone after s", round(gone_s, 2))
        assert SESSION_S / 2 < gone_s < SESSION_S + 2 * TICK_S + 1

        cluster.restart()
        epochs.append(cluster.epoch())
        assert epochs == sorted(set(epochs)) == cluster.epochs_logged()
        assert "waiting until" not in cluster.log()


def test_a_broker_that_was_killed_takes_over_its_old_session(backend):
    with Brokers(backend.hosts, session_ms=30_000) as cluster:
        before = cluster.epoch()
        session_key = cluster.data() / SESSION_FILE
        assert session_key.stat().st_mode & 0o077 == 0, "the session key is as good as a password"
        for _ in range(2):
            cluster.kill()
            began = time.monotonic()
            cluster.restart()
            assert time.monotonic() - began < 10
            assert cluster.epoch() > before
            before = cluster.epoch()
        assert "waiting until" not in cluster.log()


@pytest.mark.extended
def test_without_its_session_file_a_broker_waits_for_its_old_session_to_end(backend):
    with Brokers(backend.hosts) as cluster:
        before = cluster.epoch()
        cluster.kill()
        (cluster.data() / SESSION_FILE).unlink()
        cluster.restart()
        assert cluster.epoch() > before
        waiting = f"broker id 1 is taken by the broker at {cluster.address(1)}; waiting until"
        assert cluster.log().count(waiting) == 1


def test_a_damaged_session_file_is_reported_and_ignored(embedded):
    with Brokers(embedded.hosts) as cluster:
        cluster.terminate()
        (cluster.data() / SESSION_FILE).write_text('{"session_id": "not a number"}')
        cluster.restart()
        assert re.search(rf"ignoring the unreadable .*{SESSION_FILE}", cluster.log())


@pytest.mark.extended
def test_a_second_broker_with_the_same_id_is_refused_and_harms_nothing(backend, tmp_path):
    with Brokers(backend.hosts) as cluster:
        topic = cluster.create_topic(partitions=3)
        before, epoch = cluster.tree.everything(), cluster.epoch()
        settings = {"broker.id": 1, "zookeeper.session.timeout.ms": SESSION_MS}
        with lone_broker(backend.hosts, tmp_path, settings, "--port", "0") as second:
            code, log = end_of(second)
        assert code == 1
        assert f"broker id 1 is taken by the broker at {cluster.address(1)}, which is alive" in log
        assert cluster.tree.everything() == before
        assert cluster.epoch() == epoch
        assert set(cluster.partitions(1, topic).values()) == {(1, 0)}
        assert not list((tmp_path / "data").glob("*-[0-9]")), "it created logs of the other broker"
        settings["broker.id"] = 2
        with lone_broker(backend.hosts, tmp_path, settings, "--port", "0") as second:
            assert second.wait_until_it_listens(), "it may have an id of its own"


@pytest.mark.extended
def test_a_broker_whose_id_was_taken_while_it_slept_gives_way(embedded, tmp_path):
    with Brokers(embedded.hosts) as cluster:
        cluster.pause()
        eventually(lambda: cluster.registration() is None)
        settings = {"broker.id": 1, "zookeeper.session.timeout.ms": SESSION_MS}
        with lone_broker(embedded.hosts, tmp_path, settings, "--port", "0") as second:
            address = second.wait_until_it_listens()
            cluster.resume()
            assert cluster.wait_until_it_ends(1) == 1
            assert f"broker id 1 is taken by the broker at {address}" in cluster.log()
            assert second.is_running()
            assert cluster.registration()["port"] == int(address.rpartition(":")[2])


# -- a ZooKeeper that is not up yet -------------------------------------------------------------


def test_a_broker_without_zookeeper_names_the_address_and_ends(tmp_path):
    hosts = f"{HOST}:{free_port()},{HOST}:{free_port()}"
    settings = {"broker.id": 1, "zookeeper.connection.timeout.ms": 1500}
    began = time.monotonic()
    with lone_broker(f"{hosts}/kafka", tmp_path, settings, "--port", "0") as broker:
        code, log = end_of(broker)
    assert code == 1
    assert 1.5 < time.monotonic() - began < 10
    assert f"tried {hosts} for 1500 ms" in log


def test_a_broker_waits_for_a_zookeeper_that_starts_late_and_says_so(tmp_path):
    server = servers.Embedded(tmp_path / "zookeeper")
    settings = {"broker.id": 1, "zookeeper.session.timeout.ms": 1000}
    try:
        with lone_broker(server.hosts, tmp_path, settings, "--port", "0") as broker:
            # Five sessions long.
            waiting = f"waiting for ZooKeeper at {server.hosts} for 5 s, last error: "
            eventually(lambda: waiting in broker.log.read_text())
            server.start()
            assert broker.wait_until_it_listens()
    finally:
        server.kill()


def test_a_broker_that_waits_for_zookeeper_stops_promptly(tmp_path):
    with lone_broker(f"{HOST}:{free_port()}", tmp_path, {"broker.id": 1}, "--port", "0") as broker:
        # Its logs are locked, so it is about to connect to ZooKeeper.
        eventually((tmp_path / "data" / ".lock").exists)
        began = time.monotonic()
        assert broker.stop() == 0
        assert time.monotonic() - began < 5
        assert "stopped during the start" in broker.log.read_text()
