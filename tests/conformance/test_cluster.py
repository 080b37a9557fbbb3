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
from hightide.process import BrokerFailed, environment
from hightide.testing import Cluster
from tests.conformance.adapters import Record, confluent, values
from tests.support.eventually import eventually
from tests.support.pages import ROOT

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


# Longer than any test: only the end of its session makes a dead broker's partitions move.
LONG_SESSIONS = {"zookeeper.session.timeout.ms": 40_000}


def test_leaders_move_at_once_when_a_broker_was_killed():
    with Cluster(brokers=3, settings=LONG_SESSIONS) as cluster:
        topic = cluster.create_topic()
        for kill in (cluster.kill, lambda broker: os.kill(cluster.pid(broker), signal.SIGKILL)):
            leader = cluster.leader(topic)
            kill(leader)
            eventually(lambda leader=leader: cluster.leader(topic) not in {-1, leader})
            eventually(lambda leader=leader: not cluster.is_running(leader))
            cluster.restart(leader)
            eventually(lambda: whole(cluster, topic))
        # The controller too.
        controller = cluster.controller()
        cluster.kill(controller)
        eventually(lambda: cluster.controller() not in {-1, controller})


def whole(cluster, topic):
    """Whether three replicas are in sync."""

    async def ask():
        async with Admin(cluster.bootstrap) as admin:
            (found,) = await admin.topics.describe([topic])
            return all(len(partition.isr) == 3 for partition in found.partitions)

    return asyncio.run(ask())


def test_leaders_wait_for_the_session_timeout_if_the_test_says_so():
    with Cluster(brokers=3, settings=LONG_SESSIONS, ends_sessions=False) as cluster:
        topic = cluster.create_topic()
        leader = cluster.leader(topic)
        cluster.kill(leader)
        time.sleep(1)
        assert cluster.leader(topic) == leader


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


def test_the_example_of_the_guide_passes(pytester, inner_pytest):
    page = (ROOT / "docs" / "guide" / "testing.md").read_text()
    example = page.partition("```python\n")[2].partition("```")[0]
    assert "def test_the_leader_dies(hightide_cluster)" in example
    pytester.makepyfile(example)
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


def test_the_report_of_a_failed_test_has_the_ends_of_the_logs_and_the_events(
    pytester, inner_pytest
):
    pytester.makepyfile(
        """
        def test_fails(hightide):
            assert False

        def test_passes(hightide):
            pass
        """
    )
    result = inner_pytest()
    result.assert_outcomes(failed=1, passed=1)
    text = result.stdout.str()
    assert text.count("hightide: the ends of the logs") == 1
    assert "-- broker 1 (running)" in text
    assert "listens on 127.0.0.1" in text
    assert text.count("hightide: the events") == 1
    assert "INFO    [broker 1] controller_elected: this broker is the controller" in text
    assert "X-rays" not in text, "no leader has changed"


def test_the_pytest_fixture_of_a_cluster_has_three_brokers(pytester, inner_pytest):
    pytester.makepyfile(
        """
        import time

        def test_cluster(hightide_cluster):
            assert hightide_cluster.brokers == [1, 2, 3]
            assert len(hightide_cluster.bootstrap.split(",")) == 3

        def test_leader_killed(hightide_cluster):
            topic = hightide_cluster.create_topic()
            leader = hightide_cluster.leader(topic)
            hightide_cluster.kill(leader)
            deadline = time.monotonic() + 20
            while hightide_cluster.leader(topic) in {-1, leader}:
                assert time.monotonic() < deadline
            hightide_cluster.restart(leader)
        """
    )
    inner_pytest().assert_outcomes(passed=2)
