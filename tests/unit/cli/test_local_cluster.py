"""The supervisor of a local cluster: the end of every process is noticed, whenever it comes."""

from __future__ import annotations

import itertools

import pytest

from hightide.cli.local_cluster import LocalCluster
from hightide.process import BrokerProcess, ServiceProcess, ZooKeeperProcess

PIDS = itertools.count(1)


class NoChild(ServiceProcess):
    """A process without a child: it serves at once, and ends when the test says so."""

    _pid, _runs = 0, False

    @property
    def pid(self):
        return self._pid

    def is_running(self):
        return self._runs

    def launch(self):
        self._pid, self._runs = next(PIDS), True

    def listens_within(self, timeout_s):
        self.address = "127.0.0.1:9092"
        return self.address

    def end(self):
        self._runs = False
        self.on_end(self.pid)

    def wait(self, timeout_s=None):
        return -9


class Broker(NoChild, BrokerProcess):
    pass


class ZooKeeper(NoChild, ZooKeeperProcess):
    pass


@pytest.fixture
def cluster(tmp_path):
    brokers = [
        Broker(["--port", "0"], tmp_path / f"{name}.log", name) for name in ("broker 1", "broker 2")
    ]
    built = LocalCluster(ZooKeeper([], tmp_path / "zookeeper.log"), brokers, keeps_data=False)
    built.start()
    return built


def test_brokers_that_end_before_they_are_watched_are_not_overlooked(cluster, capsys):
    for broker in cluster.brokers:
        broker.end()
    cluster.watch()
    said = capsys.readouterr().err
    assert said.count("stopped with exit code -9") == 2
    assert said.count("is not restarted: the data was in memory") == 2
