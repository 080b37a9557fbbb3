"""`hightide.testing` and `hightide up`: brokers serve when they say so and leave nothing."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from hightide.client.admin import Admin
from hightide.process import BrokerFailed, environment, free_port, is_free
from hightide.testing import Cluster
from hightide.zookeeper import DATABASE
from tests.conformance.adapters import Record, confluent, values

pytest_plugins = ["pytester"]
PLUGIN = "hightide.testing.plugin"


def answers(address):
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        # ApiVersions version 0 with no client id.
        connection.sendall(bytes.fromhex("0000000a0012000000000007ffff"))
        return connection.recv(8)[4:8] == bytes.fromhex("00000007")


def wait_until_gone(pid):
    deadline = time.monotonic() + 25
    while Path(f"/proc/{pid}").exists():
        if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            return
        assert time.monotonic() < deadline, f"process {pid} is still there"
        time.sleep(0.01)


# -- Cluster -----------------------------------------------------------------------------------


def test_a_cluster_has_the_names_of_the_contract():
    with Cluster(brokers=1) as cluster:
        assert answers(cluster.bootstrap)
        assert cluster.brokers == [1]
        topic = cluster.create_topic(partitions=2)
        assert cluster.leader(topic, 1) == 1
        assert f"{cluster.port()}" in cluster.log(1)
        pid, folder = cluster.pid(), cluster.data()
        assert folder.exists()
    wait_until_gone(pid)
    assert not folder.exists()


def wait_until_it_knows(address, broker_ids):
    """A broker learns of the others a moment after they register."""
    deadline = time.monotonic() + 25
    while confluent.cluster(address)[1] != broker_ids:
        assert time.monotonic() < deadline, confluent.cluster(address)
        time.sleep(0.01)


def is_open(address):
    host, _, port = address.rpartition(":")
    with socket.socket() as connection:
        return connection.connect_ex((host, int(port))) == 0


def is_serving(address):
    """Return whether a ZooKeeper server responds there."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(b"ruok")
        return connection.recv(8) == b"imok"


def test_no_broker_is_no_cluster():
    with pytest.raises(ValueError, match="at least one broker, not 0"):
        Cluster(brokers=0)


def test_three_brokers_know_each_other():
    with Cluster(brokers=3) as cluster:
        assert cluster.brokers == [1, 2, 3]
        assert all(answers(address) for address in cluster.bootstrap.split(","))
        assert is_serving(cluster.zookeeper)
        for address in cluster.bootstrap.split(","):
            wait_until_it_knows(address, [1, 2, 3])
        assert cluster.controller() in cluster.brokers
        assert cluster.add_broker() == 4
        assert answers(cluster.bootstrap.split(",")[3])
        pids = [cluster.pid(broker_id) for broker_id in cluster.brokers]
    for pid in pids:
        wait_until_gone(pid)


def test_a_broker_can_be_added_to_one_with_an_embedded_zookeeper():
    with Cluster() as cluster:
        assert is_serving(cluster.zookeeper)
        assert cluster.add_broker() == 2
        assert answers(cluster.bootstrap.split(",")[1])


def test_zookeeper_can_be_killed_restarted_paused_and_resumed():
    with Cluster(zookeeper=True) as cluster:
        before = cluster.zookeeper
        cluster.kill_zookeeper()
        with pytest.raises(OSError, match="refused"):
            is_serving(before)
        assert answers(cluster.bootstrap)
        cluster.restart_zookeeper()
        assert cluster.zookeeper == before
        assert is_serving(before)
        cluster.pause_zookeeper()
        host, _, port = before.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(b"ruok")
            connection.settimeout(0.3)
            with pytest.raises(TimeoutError):
                connection.recv(1)
            cluster.resume_zookeeper()
            connection.settimeout(25)
            assert connection.recv(1)


def test_an_embedded_zookeeper_cannot_be_killed_alone():
    with Cluster() as cluster, pytest.raises(ValueError, match="inside broker 1"):
        cluster.kill_zookeeper()


def test_a_cluster_uses_a_zookeeper_that_the_test_runs():
    with (
        Cluster(zookeeper=True) as first,
        Cluster(settings={"broker.id": 7}, zookeeper_connect=first.zookeeper) as second,
    ):
        assert second.zookeeper == first.zookeeper
        wait_until_it_knows(second.bootstrap, [1, 7])


def test_a_killed_broker_comes_back_on_the_same_port():
    with Cluster() as cluster:
        before = cluster.bootstrap
        cluster.kill(1)
        assert not cluster.is_running()
        cluster.restart(1)
        assert cluster.bootstrap == before
        assert answers(before)


def test_a_paused_broker_is_there_but_silent_until_it_is_resumed():
    with Cluster() as cluster:
        cluster.pause(1)
        host, _, port = cluster.bootstrap.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(bytes.fromhex("0000000a0012000000000007ffff"))
            connection.settimeout(0.3)
            with pytest.raises(TimeoutError):
                connection.recv(1)
            cluster.resume(1)
            connection.settimeout(25)
            assert connection.recv(1)


def test_a_paused_broker_can_be_stopped():
    with Cluster() as cluster:
        pid = cluster.pid()
        cluster.pause()
    wait_until_gone(pid)


@pytest.mark.extended
def test_a_given_directory_is_kept_and_read_again(tmp_path):
    with Cluster(data=tmp_path) as cluster:
        topic = cluster.create_topic()
        confluent.produce(cluster.bootstrap, topic, [Record(b"x")])
    with Cluster(data=tmp_path) as cluster:
        assert values(confluent.read(cluster.bootstrap, topic, 1)) == [b"x"]


def test_settings_reach_the_broker():
    with Cluster(settings={"num.partitions": 5}) as cluster:
        confluent.produce(cluster.bootstrap, "made-by-itself", [Record(b"x")])
        assert len(confluent.describe_topic(cluster.bootstrap, "made-by-itself")) == 5


def test_a_broker_can_have_settings_of_its_own():
    racks = {broker_id: {"broker.rack": f"rack-{broker_id}"} for broker_id in (1, 2)}

    async def nodes(bootstrap):
        async with Admin(bootstrap) as admin:
            return (await admin.cluster.describe()).nodes

    with Cluster(brokers=2, broker_settings=racks) as cluster:
        wait_until_it_knows(cluster.bootstrap, [1, 2])
        found = asyncio.run(nodes(cluster.bootstrap))
    assert {node.id: node.rack for node in found} == {1: "rack-1", 2: "rack-2"}


def test_a_broker_that_cannot_start_says_why():
    with pytest.raises(BrokerFailed, match=r"num\.partitions"):
        Cluster(settings={"num.partitions": "many"}).start()


def test_a_cluster_can_be_asked_from_inside_an_event_loop(broker):
    async def inside():
        return broker.create_topic()

    assert asyncio.run(inside())


def test_a_broker_does_not_outlive_a_killed_test():
    code = textwrap.dedent(
        """
        import sys
        from hightide.testing import Cluster
        cluster = Cluster().start()
        print(cluster.pid(), flush=True)
        sys.stdin.read()
        """
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    pid = int(child.stdout.readline())
    child.kill()
    child.wait()
    child.stdin.close()
    child.stdout.close()
    wait_until_gone(pid)


def test_a_broker_outlives_the_thread_that_started_it():
    import threading

    cluster = Cluster()
    thread = threading.Thread(target=cluster.start)
    thread.start()
    thread.join()
    try:
        assert answers(cluster.bootstrap)
    finally:
        cluster.stop()


@pytest.fixture
def inner_pytest(pytester, monkeypatch):
    """Run a small suite with the plugin, whether it is installed or only on the path."""
    monkeypatch.setenv("PYTHONPATH", environment().get("PYTHONPATH", ""))
    installed = any(entry.value == PLUGIN for entry in entry_points(group="pytest11"))
    options = ["-q"] if installed else ["-q", "-p", PLUGIN]
    return lambda: pytester.runpytest_subprocess(*options)


def test_the_pytest_fixture_is_one_broker_for_the_session(pytester, inner_pytest):
    pytester.makeini("[pytest]\nhightide_settings =\n    num.partitions = 3\n")
    pytester.makepyfile(
        """
        seen = []

        def test_first(hightide):
            topic = hightide.create_topic()
            seen.append((hightide.bootstrap, topic))
            assert hightide.leader(topic) == 1

        def test_second(hightide):
            assert hightide.bootstrap == seen[0][0]
            assert hightide.create_topic() != seen[0][1]
        """
    )
    inner_pytest().assert_outcomes(passed=2)


@pytest.mark.extended
def test_the_pytest_fixture_can_be_fresh_for_each_test(pytester, inner_pytest):
    pytester.makeini("[pytest]\nhightide_scope = function\n")
    pytester.makepyfile(
        """
        seen = []

        def test_first(hightide):
            seen.append(hightide.pid())

        def test_second(hightide):
            assert hightide.pid() != seen[0]
        """
    )
    inner_pytest().assert_outcomes(passed=2)


@pytest.mark.extended
def test_the_pytest_fixture_of_a_cluster_has_three_brokers(pytester, inner_pytest):
    pytester.makepyfile(
        """
        def test_cluster(hightide_cluster):
            assert hightide_cluster.brokers == [1, 2, 3]
            assert len(hightide_cluster.bootstrap.split(",")) == 3
        """
    )
    inner_pytest().assert_outcomes(passed=1)


# -- up ----------------------------------------------------------------------------------------


class Up:
    """A `hightide up` process and its output."""

    def __init__(self, folder, *arguments):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "hightide", "up", *arguments],
            env=environment(),
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def bootstrap(self):
        line = self.process.stdout.readline()
        assert line.startswith("bootstrap: "), line + self.process.stderr.read()
        return line.removeprefix("bootstrap: ").strip()

    def pids(self, what):
        """Return the broker or ZooKeeper processes, in the order of their start."""
        listed = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        words = f"\0{what}\0start\0".encode()
        return [
            int(pid)
            for pid in sorted(listed.split(), key=int)
            if words in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]

    def broker_pid(self):
        (pid,) = self.pids("broker")
        return pid

    def zookeeper_pid(self):
        (pid,) = self.pids("zookeeper")
        return pid

    def hears(self, text):
        """Wait for a line on stderr that has this text, and return it."""
        for line in self.process.stderr:
            if text in line:
                return line
        raise AssertionError(f"{text!r} was never said")

    def zookeeper(self):
        return self.hears("zookeeper: ").removeprefix("zookeeper: ").strip()

    def end(self, number=None):
        if number is not None:
            self.process.send_signal(number)
        _, said = self.process.communicate(timeout=30)
        return self.process.returncode, said


@pytest.fixture
def up(tmp_path):
    started = []

    def start(*arguments):
        started.append(Up(tmp_path, *arguments))
        return started[-1]

    yield start
    for cluster in started:
        if cluster.process.poll() is None:
            cluster.end(signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_up_serves_when_it_says_so_and_stops_cleanly(up, number):
    run = up("--port", "0", "--memory")
    assert answers(run.bootstrap())
    assert is_serving(run.zookeeper())
    pids = [run.broker_pid(), run.zookeeper_pid()]
    code, said = run.end(number)
    assert code == 0, said
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert "Traceback" not in said


@pytest.mark.extended
def test_up_keeps_its_data_between_runs(up, tmp_path):
    run = up("--port", "0")
    bootstrap = run.bootstrap()
    confluent.create_topic(bootstrap, "kept")
    confluent.produce(bootstrap, "kept", [Record(b"x")])
    run.end(signal.SIGINT)
    assert (tmp_path / ".hightide").is_dir()
    run = up("--port", "0", "--data", str(tmp_path / ".hightide"), "--no-console")
    assert values(confluent.read(run.bootstrap(), "kept", 1)) == [b"x"]
    assert run.end(signal.SIGTERM)[0] == 0


@pytest.mark.extended
def test_up_takes_over_a_broker_with_an_embedded_zookeeper(up, tmp_path):
    with Cluster(data=tmp_path) as cluster:
        topic = cluster.create_topic()
        confluent.produce(cluster.bootstrap, topic, [Record(b"x")])
    assert (tmp_path / "broker-1" / DATABASE).exists()
    run = up("--port", "0", "--data", str(tmp_path))
    assert values(confluent.read(run.bootstrap(), topic, 1)) == [b"x"]
    assert not (tmp_path / "broker-1" / DATABASE).exists()
    assert run.end(signal.SIGTERM)[0] == 0


def test_up_with_memory_writes_nothing_where_it_runs(up, tmp_path):
    run = up("--port", "0", "--memory")
    run.bootstrap()
    run.end(signal.SIGTERM)
    assert list(tmp_path.iterdir()) == []


def test_up_ends_with_the_brokers_last_words_when_the_broker_dies(up):
    run = up("--port", "0", "--memory")
    run.bootstrap()
    os.kill(run.broker_pid(), signal.SIGKILL)
    code, said = run.end()
    assert code == 1
    assert "The broker stopped with exit code -9" in said
    assert "listens on" in said
    assert "Traceback" not in said


def test_up_says_why_when_the_broker_cannot_start(up, broker):
    run = up("--port", str(broker.port()), "--memory")
    code, said = run.end()
    assert code == 1
    assert "in use" in said
    assert "Traceback" not in said


def test_the_broker_of_an_up_that_was_killed_stops_too(up):
    run = up("--port", "0", "--memory")
    run.bootstrap()
    pids = [run.broker_pid(), run.zookeeper_pid()]
    run.end(signal.SIGKILL)
    for pid in pids:
        wait_until_gone(pid)


def test_up_passes_settings_on(up):
    run = up("--port", "0", "--memory", "--override", "auto.create.topics.enable=false")
    bootstrap = run.bootstrap()
    with pytest.raises(Exception, match="UNKNOWN_TOPIC"):
        confluent.produce(bootstrap, "not-there", [Record(b"x")], timeout_ms=3000)
    assert run.end(signal.SIGTERM)[0] == 0


def test_up_runs_several_brokers_on_ports_that_count_up(up):
    first = next(
        port for port in iter(free_port, None) if all(is_free(port + more) for more in range(3))
    )
    run = up("--brokers", "3", "--port", str(first), "--zookeeper-port", "0", "--memory")
    bootstrap = run.bootstrap()
    assert bootstrap == ",".join(f"127.0.0.1:{first + more}" for more in range(3))
    for address in bootstrap.split(","):
        wait_until_it_knows(address, [1, 2, 3])
    assert run.end(signal.SIGINT)[0] == 0


def test_up_goes_on_without_a_broker_that_died_until_none_is_left(up):
    run = up("--brokers", "2", "--port", "0", "--memory")
    first, second = run.bootstrap().split(",")
    pids = run.pids("broker")
    os.kill(pids[0], signal.SIGKILL)
    assert "Broker 1 stopped with exit code -9" in run.hears("exit code")
    with pytest.raises(OSError, match="refused"):
        answers(first)
    assert answers(second)
    zookeeper = run.zookeeper_pid()
    os.kill(pids[1], signal.SIGKILL)
    code, said = run.end()
    assert code == 1
    assert "Broker 2 stopped with exit code -9" in said
    assert not Path(f"/proc/{zookeeper}").exists()


def test_up_restarts_a_zookeeper_that_died_once_but_not_twice(up):
    run = up("--port", "0")
    bootstrap = run.bootstrap()
    address = run.zookeeper()
    first = run.zookeeper_pid()
    os.kill(first, signal.SIGKILL)
    run.hears("the ZooKeeper server is restarted")
    deadline = time.monotonic() + 25
    while not any(pid != first and is_open(address) for pid in run.pids("zookeeper")):
        assert time.monotonic() < deadline, "ZooKeeper did not come back"
        time.sleep(0.01)
    assert is_serving(address)
    assert answers(bootstrap)
    os.kill(run.zookeeper_pid(), signal.SIGKILL)
    code, said = run.end()
    assert code == 1
    assert "The ZooKeeper server stopped with exit code -9" in said


def test_up_ends_when_a_zookeeper_in_memory_dies(up):
    run = up("--port", "0", "--memory")
    run.bootstrap()
    pid = run.broker_pid()
    os.kill(run.zookeeper_pid(), signal.SIGKILL)
    code, said = run.end()
    assert code == 1
    assert "The ZooKeeper server stopped with exit code -9" in said
    assert not Path(f"/proc/{pid}").exists()


def test_up_refuses_a_zookeeper_port_that_is_in_use(up, broker):
    run = up("--port", "0", "--coordinator-port", str(broker.port()), "--memory")
    code, said = run.end()
    assert code == 1
    assert f"Port {broker.port()} is in use" in said
