"""Fixtures: embedded ZooKeeper servers in threads and processes, and raw clients."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import hightide
from hightide.zookeeper.server.options import ServerOptions
from hightide.zookeeper.server.server_thread import ServerThread
from tests.unit.zookeeper.raw_client import RawClient


class World:
    """Servers on free ports and their clients, all closed at the end of the test."""

    def __init__(self, folder):
        self.file = folder / "zookeeper.db"
        self.threads = []
        self.clients = []
        self.address: tuple[str, int]  # of the server that started last

    def start(self, **options):
        """Start a server, by default with this world's file."""
        options = {"file": self.file, "tick_ms": 100, "min_session_timeout_ms": 100, **options}
        thread = ServerThread(ServerOptions(**{"port": 0, **options}))
        self.address = thread.start()
        self.threads.append(thread)
        return thread

    def client(self, **options):
        client = RawClient(self.address, **options)
        self.clients.append(client)
        return client

    def committer(self):
        return self.threads[-1].server._committer

    def end(self):
        for client in self.clients:
            client.socket.close()
        for thread in self.threads:
            thread.stop()


@pytest.fixture
def world(tmp_path):
    world = World(tmp_path)
    yield world
    world.end()


@pytest.fixture
def client(world):
    """A client of a server with a file."""
    world.start()
    return world.client()


class ZooKeeperProcess:
    """A `hightide zookeeper start` process."""

    def __init__(self, *arguments, environment=(), listens=True):
        self._child = subprocess.Popen(
            [sys.executable, "-P", "-m", "hightide", "zookeeper", "start", *arguments],
            env={**os.environ, "PYTHONPATH": SOURCE, **dict(environment)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.pid = self._child.pid
        self.address = None
        if listens:
            line = self._child.stdout.readline()
            assert line.startswith("listening: "), self.end()
            host, _, port = line.removeprefix("listening: ").strip().rpartition(":")
            self.address = host, int(port)

    def signal(self, number):
        self._child.send_signal(number)

    def end(self):
        """Wait for the end; return exit code, and the output after the first line."""
        output, errors = self._child.communicate(timeout=30)
        return self._child.returncode, output, errors

    def kill(self):
        if self._child.poll() is None:
            self._child.kill()
            self._child.communicate()


SOURCE = str(Path(hightide.__file__).parent.parent)


@pytest.fixture
def zookeeper_process(tmp_path):
    """Starts servers as processes on a free port, by default with a new data directory."""
    started = []

    def start(*arguments, **options):
        if "--memory" not in arguments and "--data" not in arguments:
            arguments = "--data", str(tmp_path / "data"), *arguments
        if "--listen" not in arguments:
            arguments = "--listen", "127.0.0.1:0", *arguments
        started.append(ZooKeeperProcess(*arguments, **options))
        return started[-1]

    yield start
    for process in started:
        process.kill()
