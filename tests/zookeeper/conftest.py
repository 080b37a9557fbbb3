"""ZooKeeper servers for the tests of this package, each started once and shared by all tests.

A test gets a `Backend`: a running server, and a chroot in it that no other test uses. A test may
kill or pause the server; the next test gets it repaired. `embedded` is Hightide's embedded server,
`zookeeper` a single Apache ZooKeeper, `ensemble` three of them, and `backend` runs a test on all.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from kazoo.client import KazooClient

from tests.zookeeper import servers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

KINDS = {
    "embedded": servers.Embedded,
    "zookeeper": servers.ZooKeeper,
    "ensemble": servers.Ensemble,
}
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Backend:
    """A running server and a chroot for one test. It has the server's methods as well."""

    kind: str
    server: Any
    chroot: str

    @property
    def hosts(self) -> str:
        """The connect string of a client, with the chroot."""
        return self.server.hosts + self.chroot

    def __getattr__(self, name: str) -> Any:
        return getattr(self.server, name)


def start(kind: str, folder: Path) -> Any:
    """Start a server of this kind; skip the test if it is not installed."""
    if kind != "embedded" and (reason := servers.missing()):
        pytest.skip(reason)
    server = KINDS[kind](folder)
    server.start()
    return server


def fresh_chroot(hosts: str) -> str:
    """Create a chroot and wait until every member of `hosts` has it."""
    chroot = f"/test-{next(_numbers)}"
    for host in hosts.split(","):
        client = KazooClient(host, timeout=10)
        client.start(timeout=30)
        try:
            client.ensure_path(chroot)
            client.sync(chroot)
        finally:
            client.stop()
            client.close()
    return chroot


@pytest.fixture(scope="session")
def _shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Backend]]:
    running: dict[str, Any] = {}

    def borrow(kind: str) -> Backend:
        if kind in running:
            running[kind].heal()
        else:
            running[kind] = start(kind, tmp_path_factory.mktemp(kind))
        return Backend(kind, running[kind], fresh_chroot(running[kind].hosts))

    yield borrow
    for server in running.values():
        server.kill()


@pytest.fixture(params=list(KINDS))
def backend(request: pytest.FixtureRequest, _shared: Callable[[str], Backend]) -> Backend:
    return _shared(request.param)


@pytest.fixture
def embedded(_shared: Callable[[str], Backend]) -> Backend:
    return _shared("embedded")


@pytest.fixture
def zookeeper(_shared: Callable[[str], Backend]) -> Backend:
    return _shared("zookeeper")


@pytest.fixture
def ensemble(_shared: Callable[[str], Backend]) -> Backend:
    return _shared("ensemble")
