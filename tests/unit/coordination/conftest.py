"""A coordinator to talk to, and the raw client to do it: there are no test packages."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from raw_client import RawClient

from hightide.coordination.server.options import ServerOptions
from hightide.coordination.server.thread import CoordinatorThread


class World:
    """Coordinators on free ports and their clients, all gone at the end of the test."""

    def __init__(self, folder):
        self.file = folder / "coordination.db"
        self.threads = []
        self.clients = []
        self.address = None

    def start(self, **options):
        """Start a coordinator, by default with this world's file."""
        options = {"file": self.file, "tick_ms": 100, "min_session_timeout_ms": 100, **options}
        thread = CoordinatorThread(ServerOptions(**{"port": 0, **options}))
        self.address = thread.start()
        self.threads.append(thread)
        return thread

    def client(self, **options):
        client = RawClient(self.address, **options)
        self.clients.append(client)
        return client

    def committer(self):
        return self.threads[-1].coordinator._committer

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
    """A client of a coordinator with a file."""
    world.start()
    return world.client()
