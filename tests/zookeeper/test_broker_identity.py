"""Cluster id and broker id: stored in ZooKeeper and in the log directories, and compared."""

from __future__ import annotations

import contextlib
import shutil
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from hightide.client.broker_connection import ConnectionFailed
from tests.support.eventually import eventually
from tests.zookeeper import servers
from tests.zookeeper.broker_world import (
    SESSION_MS,
    TOPIC,
    Brokers,
    Tree,
    end_of,
    lone_broker,
    read,
    write,
)

SHORT = {"zookeeper.session.timeout.ms": SESSION_MS}


def properties_of(folder: Path) -> dict[str, str]:
    lines = (folder / "meta.properties").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if not line.startswith("#"))


def test_three_brokers_that_start_at_once_agree_on_one_cluster(ensemble):
    with Brokers(ensemble.hosts, 3) as cluster:
        found = cluster.tree.json("/cluster/id")
        assert found.keys() == {"version", "id"}
        assert found["version"] == "1"
        assert len(found["id"]) == 22
        assert cluster.tree.stat("/cluster/id").version == 0
        for broker_id in cluster.brokers:
            assert cluster.metadata(broker_id).cluster_id == found["id"]
            properties = properties_of(cluster.data(broker_id))
            assert properties == {
                "version": "0",
                "broker.id": str(broker_id),
                "cluster.id": found["id"],
            }


def test_brokers_without_ids_are_given_different_ones_and_keep_them(ensemble, tmp_path):
    def ids_of_three() -> list[int]:
        with ExitStack() as running:
            brokers = [
                running.enter_context(
                    lone_broker(ensemble.hosts, tmp_path / str(number), SHORT, "--port", "0")
                )
                for number in range(3)
            ]
            for broker in brokers:
                broker.wait_until_it_listens()
            live = tree.children("/brokers/ids")
        ids = [int(properties_of(tmp_path / str(n) / "data")["broker.id"]) for n in range(3)]
        assert live == sorted(map(str, ids))
        return ids

    tree = Tree(ensemble.hosts)
    try:
        first = ids_of_three()
        assert sorted(first) == [1001, 1002, 1003]
        assert ids_of_three() == first
    finally:
        tree.close()


# -- the ZooKeeper of another cluster --------------------------------------------------------------


@pytest.fixture
def data_of_a_cluster(embedded, tmp_path):
    """The directory of a broker that has run, and the id of its cluster."""
    with Brokers(embedded.hosts, data=tmp_path / "data") as cluster:
        write(cluster.bootstrap, cluster.create_topic("kept"), 0, b"kept")
        cluster_id = cluster.tree.json("/cluster/id")["id"]
    return tmp_path / "data" / "broker-1", cluster_id


@pytest.mark.parametrize("chroot", ["", "/not/there/yet"])
def test_a_broker_with_data_refuses_an_empty_zookeeper_and_touches_nothing(
    data_of_a_cluster, zookeeper, tmp_path, chroot
):
    folder, cluster_id = data_of_a_cluster
    settings = SHORT | {"broker.id": 1, "log.dirs": folder}
    with lone_broker(zookeeper.hosts + chroot, tmp_path, settings, "--port", "0") as broker:
        code, log = end_of(broker)
    assert code == 1
    assert f"belong to cluster {cluster_id}, but ZooKeeper is empty" in log
    tree = Tree(zookeeper.hosts)
    try:
        assert tree.everything() == {}
    finally:
        tree.close()
    assert list(folder.glob("kept-0"))


def test_a_broker_with_data_refuses_another_cluster_and_touches_nothing(
    data_of_a_cluster, zookeeper, tmp_path
):
    folder, cluster_id = data_of_a_cluster
    with Brokers(zookeeper.hosts) as cluster:
        cluster.create_topic("theirs")
        before = cluster.tree.everything()
        other_id = cluster.tree.json("/cluster/id")["id"]
        settings = SHORT | {"broker.id": 2, "log.dirs": folder}
        with lone_broker(zookeeper.hosts, tmp_path, settings, "--port", "0") as broker:
            code, log = end_of(broker)
        assert code == 1
        assert f"belong to cluster {cluster_id}, but ZooKeeper belongs to cluster {other_id}" in log
        assert cluster.tree.everything() == before
        assert list(folder.glob("kept-0"))


def test_data_of_one_broker_is_refused_under_another_id(data_of_a_cluster, embedded, tmp_path):
    folder, _ = data_of_a_cluster
    tree = Tree(embedded.hosts)
    before = tree.everything()
    tree.close()
    settings = SHORT | {"broker.id": 5, "log.dirs": folder}
    with lone_broker(embedded.hosts, tmp_path, settings, "--port", "0") as broker:
        code, log = end_of(broker)
    assert code == 1
    assert "the log directories belong to broker 1, not to broker 5" in log
    tree = Tree(embedded.hosts)
    assert tree.everything() == before
    tree.close()


# -- a ZooKeeper that loses its data under running brokers ---------------------------------------


@contextmanager
def own_server(kind, folder):
    """A server for one test, which damages it."""
    if kind is not servers.Embedded and (reason := servers.missing()):
        pytest.skip(reason)
    server = kind(folder)
    server.start()
    try:
        yield server
    finally:
        server.kill()


def wipe(server) -> None:
    server.kill()
    shutil.rmtree(server.folder / "data")
    (server.folder / "data").mkdir()
    server.start()


def test_a_broker_ends_when_its_zookeeper_has_lost_the_cluster(tmp_path):
    with (
        own_server(servers.Embedded, tmp_path / "zookeeper") as server,
        Brokers(server.hosts, 2, data=tmp_path / "data") as cluster,
    ):
        topics = [cluster.create_topic(f"kept-{n}") for n in range(4)]
        write(cluster.bootstrap, topics[0], 0, b"kept")
        eventually(lambda: len(list(tmp_path.glob("data/broker-*/kept-*"))) == 4)
        logs = sorted(tmp_path.glob("data/broker-*/kept-*"))
        wipe(server)
        for broker_id in cluster.brokers:
            assert cluster.wait_until_it_ends(broker_id) == 1
            log = cluster.log(broker_id)
            assert "the broker must stop: the log directories belong to cluster" in log
            assert "ZooKeeper is empty" in log
        assert cluster.tree.everything() == {}
        assert sorted(tmp_path.glob("data/broker-*/kept-*")) == logs


def test_a_broker_ends_when_its_zookeeper_has_another_cluster(tmp_path):
    """Also while clients request changes: none of them may reach the wrong cluster."""
    with (
        own_server(servers.Embedded, tmp_path / "zookeeper") as server,
        Brokers(server.hosts, data=tmp_path / "data") as cluster,
    ):
        for number in range(3):
            cluster.create_topic(f"kept-{number}")
        write(cluster.bootstrap, "kept-0", 0, b"kept")
        cluster.pause()
        wipe(server)
        settings = SHORT | {"broker.id": 2}
        with lone_broker(server.hosts, tmp_path / "other", settings, "--port", "0") as other:
            other.wait_until_it_listens()
            before = cluster.tree.everything()
            cluster.resume()
            with contextlib.suppress(ConnectionFailed):
                while cluster.is_running():
                    cluster.configure(1, TOPIC, "kept-1", retention_ms="1000000")
            assert cluster.wait_until_it_ends(1) == 1
            assert "ZooKeeper belongs to cluster" in cluster.log()
            assert cluster.tree.everything() == before
            assert cluster.tree.json("/controller")["brokerid"] == 2
        assert len(list(tmp_path.glob("data/broker-1/kept-*"))) == 3


@pytest.mark.extended
def test_a_zookeeper_that_lost_its_data_is_reported_and_not_changed(tmp_path):
    """ZooKeeper closes the connections of clients that have seen a newer zxid."""
    with (
        own_server(servers.ZooKeeper, tmp_path / "zookeeper") as server,
        Brokers(server.hosts, data=tmp_path / "data") as cluster,
    ):
        write(cluster.bootstrap, cluster.create_topic("kept"), 0, b"kept")
        wipe(server)
        eventually(lambda: "was its data directory emptied" in cluster.log())
        assert read(cluster.bootstrap, "kept", 0) == b"kept"
        tree = Tree(server.hosts)
        try:
            assert tree.everything() == {}
        finally:
            tree.close()


def test_a_zookeeper_that_was_replaced_ends_the_broker(tmp_path):
    with (
        own_server(servers.ZooKeeper, tmp_path / "zookeeper") as server,
        Brokers(server.hosts, data=tmp_path / "data") as cluster,
    ):
        write(cluster.bootstrap, cluster.create_topic("kept"), 0, b"kept")
        cluster.pause()
        wipe(server)
        tree = Tree(server.hosts)
        try:
            # Until its zxid is above the zxid that the broker has seen.
            for _ in range(400):
                tree.client.create_async("/filler-", sequence=True)
            tree.client.create("/last")
            before = tree.everything()
            cluster.resume()
            assert cluster.wait_until_it_ends(1) == 1
            assert "ZooKeeper is empty" in cluster.log()
            assert tree.everything() == before
        finally:
            tree.close()
        assert list(tmp_path.glob("data/broker-1/kept-0"))
