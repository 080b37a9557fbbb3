"""`hightide up`: it serves when it says so, keeps its brokers running, and leaves nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hightide.control import is_running
from hightide.process import environment, free_port, is_free
from hightide.testing import Cluster
from hightide.zookeeper import DATABASE
from tests.conformance.adapters import Record, confluent, values
from tests.conformance.test_cluster import (
    answers,
    is_open,
    is_serving,
    wait_until_gone,
    wait_until_it_knows,
)
from tests.support.eventually import eventually
from tests.support.scrape import get, scrape


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


def test_two_clusters_at_once_have_metrics_of_their_own(up):
    urls = []
    for run in (up("--port", "0", "--memory"), up("--port", "0", "--memory", "--brokers", "2")):
        run.bootstrap()
        urls += run.hears("metrics: ").removeprefix("metrics: ").split()
    assert len({*urls}) == 3
    for url in urls:
        assert scrape(url).value("kafka_server_kafkaserver_brokerstate") == 3
        assert get(url.replace("/metrics", "/livez")).status == 200


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


def test_up_ends_when_all_brokers_in_memory_have_died(up):
    run = up("--brokers", "2", "--port", "0", "--memory")
    run.bootstrap()
    pids, zookeeper = run.pids("broker"), run.zookeeper_pid()
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    code, said = run.end()
    assert code == 1
    for broker_id in (1, 2):
        assert f"Broker {broker_id} stopped with exit code -9" in said
        assert f"broker {broker_id} is not restarted: the data was in memory" in said
    assert not Path(f"/proc/{zookeeper}").exists()


@pytest.mark.parametrize("where", [[], ["--memory"]])
def test_up_restarts_a_broker_that_died_on_its_port(up, where):
    run = up("--brokers", "2", "--port", "0", *where)
    first, second = run.bootstrap().split(",")
    os.kill(run.pids("broker")[0], signal.SIGKILL)
    assert "Broker 1 stopped with exit code -9" in run.hears("exit code")
    run.hears("broker 1 is restarted in 1 s")
    assert answers(second)
    run.hears(f"broker 1 serves on {first}")
    wait_until_it_knows(second, [1, 2])
    assert run.end(signal.SIGTERM)[0] == 0


def test_the_only_broker_that_died_is_restarted_with_its_data(up):
    run = up("--port", "0")
    bootstrap = run.bootstrap()
    confluent.create_topic(bootstrap, "kept")
    confluent.produce(bootstrap, "kept", [Record(b"x")])
    os.kill(run.broker_pid(), signal.SIGKILL)
    run.hears("broker 1 serves on")
    assert values(confluent.read(bootstrap, "kept", 1)) == [b"x"]
    assert run.end(signal.SIGTERM)[0] == 0


# -- commands ----------------------------------------------------------------------------------


def control(command, broker_id, bootstrap):
    """Run `hightide broker COMMAND`; return the exit code and the output."""
    done = subprocess.run(
        [sys.executable, "-m", "hightide", "broker", command, str(broker_id), "-b", bootstrap],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr


def test_brokers_of_an_up_are_killed_stopped_and_restarted_by_command(up):
    run = up("--brokers", "3", "--port", "0", "--memory")
    bootstrap = run.bootstrap()
    first, second, third = bootstrap.split(",")
    # Any address of the cluster names it.
    assert control("kill", 2, third) == (0, "broker 2 has ended; `restart` starts it again.\n")
    assert control("stop", 3, bootstrap)[0] == 0
    for gone in (second, third):
        with pytest.raises(OSError, match="refused"):
            answers(gone)
    code, said = control("kill", 2, first)
    assert (code, said) == (1, "hightide: broker 2 is not running; `restart` starts it.\n")
    for broker_id, address in ((2, second), (3, third), (1, first)):
        code, said = control("restart", broker_id, first)
        assert (code, said) == (0, f"broker {broker_id} serves on {address}.\n")
    wait_until_it_knows(first, [1, 2, 3])
    assert run.end(signal.SIGTERM)[0] == 0


def health(bootstrap):
    """The exit code of `hightide cluster health`, and the causes that it finds."""
    done = subprocess.run(
        [sys.executable, "-m", "hightide", "cluster", "health", "-b", bootstrap, "-o", "json"],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, json.loads(done.stdout)["causes"]


def test_the_next_command_that_health_names_brings_a_broker_back(up):
    run = up("--brokers", "3", "--port", "0", "--memory")
    first, second, _ = run.bootstrap().split(",")
    create = ("hightide", "topic", "create", "orders", "--bootstrap", first)
    subprocess.run([sys.executable, "-m", *create], env=environment(), check=True)
    assert control("kill", 2, first)[0] == 0
    eventually(lambda: health(first)[1])
    code, [cause] = health(first)
    assert (code, cause["kind"], cause["address"]) == (3, "broker_not_alive", second)
    command = cause["next"]["command"]
    assert command == f"hightide broker restart 2 --bootstrap {first}"
    subprocess.run([sys.executable, "-m", *command.split()], env=environment(), check=True)
    assert eventually(lambda: health(first) == (0, []))
    assert run.end(signal.SIGTERM)[0] == 0
    assert not is_running(first)


def test_a_broker_of_an_up_is_paused_and_resumed_by_command(up):
    run = up("--port", "0", "--memory")
    bootstrap = run.bootstrap()
    state = Path(f"/proc/{run.broker_pid()}/stat")
    assert control("pause", 1, bootstrap)[0] == 0
    assert state.read_text().rpartition(")")[2].split()[0] == "T"
    assert control("resume", 1, bootstrap)[0] == 0
    assert answers(bootstrap)
    assert run.end(signal.SIGTERM)[0] == 0


def test_a_command_for_a_cluster_or_broker_that_is_not_there_says_so(up):
    run = up("--port", "0", "--memory")
    bootstrap = run.bootstrap()
    code, said = control("kill", 7, bootstrap)
    assert (code, said) == (1, "hightide: there is no broker 7; the brokers are 1.\n")
    elsewhere = bootstrap.replace("127.0.0.1", "192.0.2.1")
    code, said = control("kill", 1, elsewhere)
    assert code == 1
    assert "does not listen on 192.0.2.1" in said
    assert answers(bootstrap)
    run.end(signal.SIGTERM)
    code, said = control("kill", 1, bootstrap)
    assert code == 1
    assert f"No `hightide up` of this user has a broker at {bootstrap}" in said


def test_an_up_takes_over_what_a_killed_one_left(up):
    run = up("--port", "0", "--memory")
    bootstrap = run.bootstrap()
    pid = run.broker_pid()
    run.end(signal.SIGKILL)
    wait_until_gone(pid)
    assert "No `hightide up`" in control("pause", 1, bootstrap)[1]
    again = up("--port", bootstrap.rpartition(":")[2], "--zookeeper-port", "0", "--memory")
    assert again.bootstrap() == bootstrap
    assert control("kill", 1, bootstrap)[0] == 0
    assert control("restart", 1, bootstrap)[0] == 0
    assert again.end(signal.SIGTERM)[0] == 0


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
