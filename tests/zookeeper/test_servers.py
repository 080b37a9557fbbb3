"""The servers that the other tests use work as those tests expect."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from kazoo.client import KazooClient


def client_of(backend, **options):
    client = KazooClient(backend.hosts, timeout=10, **options)
    client.start(timeout=30)
    return client


def test_a_chroot_is_empty_and_can_be_written(backend):
    client = client_of(backend)
    try:
        assert client.get_children("/") == []
        client.create("/a", b"1")
        assert client.get("/a")[0] == b"1"
    finally:
        client.stop()
        client.close()


@pytest.mark.extended
def test_what_was_written_is_there_after_a_kill(backend):
    client = client_of(backend)
    client.create("/a", b"1")
    client.stop()
    client.close()
    backend.kill()
    backend.restart()
    client = client_of(backend)
    try:
        assert client.get("/a")[0] == b"1"
    finally:
        client.stop()
        client.close()


def test_an_ensemble_elects_another_leader(ensemble):
    leader = ensemble.leader()
    ensemble.kill(leader)
    assert ensemble.leader() != leader
    ensemble.restart(leader)
    assert ensemble.members[leader].mode() == "follower"


def test_a_server_dies_with_a_test_run_that_is_killed(tmp_path):
    program = (
        "import os, sys; from pathlib import Path; from tests.zookeeper.servers import Child;"
        f"child = Child(['sleep', '1000'], Path({str(tmp_path / 'log')!r})); child.start();"
        "print(child.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": ":".join(sys.path)},
        stdout=subprocess.PIPE,
        check=False,
    )
    assert ended.returncode == -9
    status = Path("/proc", ended.stdout.decode().strip())
    deadline = time.monotonic() + 10
    while status.exists():
        assert time.monotonic() < deadline, "the server outlived the test run that started it"
        time.sleep(0.01)
