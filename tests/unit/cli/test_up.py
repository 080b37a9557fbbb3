"""`hightide up` before anything is started: its options, and the data of earlier versions."""

from __future__ import annotations

import itertools
import socket
from pathlib import Path

import pytest

from hightide.cli import up
from hightide.process import ServiceFailed, is_free


def options(*words: str):
    return up.parse(list(words))


def overrides(arguments: list[str]) -> list[str]:
    pairs = itertools.pairwise(arguments)
    return [value for name, value in pairs if name == "--override"]


@pytest.fixture
def used_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_each_broker_has_its_own_port_id_and_directory(tmp_path):
    chosen = options("--brokers", "3", "--port", "19092")
    arguments_of = [up.broker_arguments(chosen, tmp_path, number, 2181) for number in (1, 2, 3)]
    assert [arguments[3] for arguments in arguments_of] == ["19092", "19093", "19094"]
    assert overrides(arguments_of[2]) == [
        "broker.id=3",
        "zookeeper.connect=127.0.0.1:2181",
        "default.replication.factor=3",
        "group.initial.rebalance.delay.ms=100",
        "group.consumer.heartbeat.interval.ms=300",
        f"log.dirs={tmp_path / 'broker-3'}",
    ]


def test_port_zero_lets_every_broker_pick(tmp_path):
    chosen = options("--brokers", "2", "--port", "0", "--memory")
    for number in (1, 2):
        assert up.broker_arguments(chosen, tmp_path, number, 2181)[3] == "0"
    assert up.zookeeper_arguments(chosen, tmp_path, 5) == ["--listen", "127.0.0.1:5", "--memory"]


def test_an_override_counts_more_than_what_up_says_itself(tmp_path):
    chosen = options("--override", "zookeeper.connect=zk:2181/x")
    assert overrides(up.broker_arguments(chosen, tmp_path, 1, 2181))[-1] == chosen.override[0]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--brokers", "0"], "--brokers 0 is too few"),
        (["--port", "65536"], "--port 65536 is not a port number"),
        (["--zookeeper-port", "-1"], "--zookeeper-port -1 is not a port number"),
        (["--port", "65535", "--brokers", "2"], "no room for 2 brokers"),
        (["--brokers", "3", "--coordinator-port", "9094"], "9094 is the port of a broker"),
        (["--metrics-port", "70000"], "--metrics-port 70000 is not a port number"),
        (["--metrics-port", "65534", "--brokers", "3"], "--metrics-port 65534 leaves no room"),
        (["--brokers", "2", "--metrics-port", "9091"], "--metrics-port 9091 has the port of"),
        (["--console-port", "70000"], "--console-port 70000 is not a port number"),
        (["--console-port", "9092"], "--console-port 9092 is the port of another server"),
        (["--console-port", "1", "--no-console"], "not allowed with argument"),
        (["--override", "nonsense"], "'nonsense' is not a setting; it should be NAME=VALUE"),
        (["--override", "=5"], "'=5' is not a setting"),
    ],
)
def test_a_cluster_that_cannot_be_is_wrong_usage(capsys, words, sentence):
    with pytest.raises(SystemExit) as stopped:
        options(*words)
    assert stopped.value.code == 2
    assert sentence in capsys.readouterr().err


def test_zookeeper_takes_another_port_when_its_own_is_in_use(monkeypatch, capsys, used_port):
    monkeypatch.setattr(up, "ZOOKEEPER_PORT", used_port)
    assert up.zookeeper_port(options()) != used_port
    assert f"port {used_port} is in use" in capsys.readouterr().err


def test_zookeeper_keeps_away_from_the_ports_of_the_brokers(monkeypatch, capsys):
    monkeypatch.setattr(up, "ZOOKEEPER_PORT", 9093)
    assert up.zookeeper_port(options("--brokers", "3")) not in range(9092, 9095)
    assert capsys.readouterr().err == ""


def test_a_zookeeper_port_that_was_asked_for_and_is_in_use_is_an_error(used_port):
    with pytest.raises(ServiceFailed, match=f"Port {used_port} is in use"):
        up.zookeeper_port(options("--coordinator-port", str(used_port)))


def test_metrics_are_served_on_the_next_free_ports(monkeypatch, used_port, tmp_path):
    monkeypatch.setattr(up, "METRICS_PORT", used_port)
    chosen = options("--brokers", "2")
    first, second = ports = up.metrics_ports(chosen)
    assert used_port < first < second
    arguments = up.broker_arguments(chosen, tmp_path, 2, 2181, ports[1:])
    assert f"metrics.listeners=HTTP://127.0.0.1:{second}" in overrides(arguments)


def test_metrics_keep_away_from_the_ports_of_the_other_servers(monkeypatch):
    monkeypatch.setattr(up, "METRICS_PORT", 9092)
    monkeypatch.setattr(up, "is_free", lambda _port: True)
    assert up.metrics_ports(options("--brokers", "2", "--zookeeper-port", "9095")) == [9094, 9096]


@pytest.mark.parametrize("words", [["--port", "0"], ["--metrics-port", "0"]])
def test_metrics_take_free_ports_where_zero_is_asked_for(words):
    ports = up.metrics_ports(options("--brokers", "3", *words))
    assert len({*ports}) == 3
    assert up.METRICS_PORT not in ports


def test_a_metrics_port_that_was_asked_for_and_is_in_use_is_an_error(used_port):
    with pytest.raises(ServiceFailed, match=f"Port {used_port} is in use"):
        up.metrics_ports(options("--metrics-port", str(used_port)))


def test_metrics_listeners_of_the_user_stay():
    assert up.metrics_ports(options("--override", "metrics.listeners=")) == []


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:9404/metrics"),
        ("0.0.0.0", "http://127.0.0.1:9404/metrics"),
        ("::1", "http://[::1]:9404/metrics"),
    ],
)
def test_up_says_where_metrics_are(host, url):
    assert up.metrics_url(host, 9404) == url


class EarlierVersion:
    """A broker's folder of an earlier version, with ZooKeeper's database in it."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.broker = folder / "broker-1"
        self.broker.mkdir()
        (self.broker / "coordination.db").write_text("database")
        (self.broker / "coordination.db-wal").write_text("log")
        (self.broker / "meta.properties").write_text("broker.id=1")

    def is_moved(self) -> bool:
        texts = {path.name: path.read_text() for path in (self.folder / "zookeeper").iterdir()}
        assert texts == {"coordination.db": "database", "coordination.db-wal": "log"}
        return [path.name for path in self.broker.iterdir()] == ["meta.properties"]


@pytest.fixture
def earlier(tmp_path):
    return EarlierVersion(tmp_path)


def test_the_database_of_an_earlier_version_becomes_zookeepers(earlier, tmp_path):
    up.move_old_zookeeper_data(tmp_path)
    assert earlier.is_moved()
    up.move_old_zookeeper_data(tmp_path)
    assert earlier.is_moved()


@pytest.mark.parametrize("folder", ["zookeeper.moving", "coordinator.moving"])
@pytest.mark.parametrize("moved", [0, 1, 2])
def test_a_move_that_was_cut_short_is_finished(earlier, tmp_path, moved, folder):
    (tmp_path / folder).mkdir()
    names = ["coordination.db-wal", "coordination.db"][:moved]
    for name in names:
        (earlier.broker / name).rename(tmp_path / folder / name)
    up.move_old_zookeeper_data(tmp_path)
    assert earlier.is_moved()


@pytest.mark.parametrize("folder", ["zookeeper", "coordinator"])
def test_a_zookeeper_that_has_data_keeps_it(earlier, tmp_path, folder):
    (tmp_path / folder).mkdir()
    (tmp_path / folder / "newer.db").write_text("database")
    up.move_old_zookeeper_data(tmp_path)
    assert (earlier.broker / "coordination.db").exists()
    assert [path.name for path in (tmp_path / "zookeeper").iterdir()] == ["newer.db"]
    assert not (tmp_path / "coordinator").exists()


def test_a_new_cluster_has_nothing_to_move(tmp_path):
    up.move_old_zookeeper_data(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_console_is_on_the_next_free_port(monkeypatch, used_port):
    monkeypatch.setattr(up, "CONSOLE_PORT", used_port)
    port = up.console_port(options())
    assert port > used_port
    # A broker or its metrics may be there next.
    assert up.console_port(options("--zookeeper-port", str(port))) > port
    assert up.console_port(options(), [port]) > port


@pytest.mark.parametrize("words", [["--port", "0"], ["--console-port", "0"]])
def test_the_console_takes_a_free_port_where_zero_is_asked_for(words):
    assert is_free(up.console_port(options(*words)))


def test_a_console_port_that_was_asked_for_and_is_in_use_is_an_error(used_port):
    with pytest.raises(ServiceFailed, match="choose another --console-port"):
        up.console_port(options("--console-port", str(used_port)))


def test_there_may_be_no_console():
    assert up.console_port(options("--no-console")) == 0
