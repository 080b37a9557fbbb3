"""A broker's environment: clock, randomness, sockets, disks and ZooKeeper.

In production that is the operating system's (`RealEnvironment`).  The simulator passes another one,
so that the same code runs on virtual time and every run can be repeated.
"""

from __future__ import annotations

import secrets
import socket
import time
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Protocol

from hightide import private_files
from hightide.broker.network.server import listening_socket
from hightide.log.disk import Disk, MemoryDisk, RealDisk
from hightide.settings import Broker as Settings
from hightide.zookeeper.client import SessionKey
from hightide.zookeeper.interface import Lease, ZooKeeper


class ZooKeeperSession(ZooKeeper, Lease, Protocol):
    """A ZooKeeper session, with the methods for the broker that opened it."""

    @property
    def session_key(self) -> SessionKey: ...

    def abandon(self, timeout_ms: int = 1000) -> bool: ...

    async def connected(self, timeout_ms: int | None) -> None: ...


class OpenedZooKeeper(Protocol):
    """A session, and an embedded ZooKeeper if there is one; both are closed together."""

    @property
    def client(self) -> ZooKeeperSession: ...

    async def close(self) -> None: ...


class Environment(Protocol):
    """Everything outside the process that a broker uses."""

    random: Random
    has_watchdog: bool
    """Whether a thread watches the event loop, and closes the session if the loop hangs."""

    def now_ms(self) -> int: ...

    def clock_s(self) -> float:
        """A clock that never goes back, for the length of a turn on the event loop."""

    def cpu_s(self) -> float:
        """The CPU time of the calling thread."""

    def new_id(self) -> uuid.UUID: ...

    def secret_bytes(self, count: int) -> bytes:
        """Bytes that no other process can guess."""

    def listen(self, host: str, port: int, backlog: int) -> socket.socket:
        """Open a socket that accepts connections."""

    def directory(self, settings: Settings) -> Path | None:
        """The directory for small files beside the logs; None if nothing is kept."""

    def disks(self, settings: Settings) -> list[Disk]: ...

    def open_zookeeper(
        self,
        settings: Settings,
        directory: Path | None,
        on_failure: Callable[[Exception], None],
        *,
        is_new: bool,
    ) -> Awaitable[OpenedZooKeeper]: ...


class RealEnvironment:
    """The operating system that the process runs on."""

    has_watchdog = True

    def __init__(self, *, memory: MemoryDisk | None = None) -> None:
        """With `memory`, everything is kept in memory only."""
        self.random = Random()
        self._memory = memory

    @staticmethod
    def now_ms() -> int:
        return int(time.time() * 1000)

    @staticmethod
    def clock_s() -> float:
        return time.perf_counter()

    @staticmethod
    def cpu_s() -> float:
        return time.thread_time()

    @staticmethod
    def new_id() -> uuid.UUID:
        return uuid.uuid4()

    @staticmethod
    def secret_bytes(count: int) -> bytes:
        return secrets.token_bytes(count)

    @staticmethod
    def listen(host: str, port: int, backlog: int) -> socket.socket:
        return listening_socket(host, port, backlog)

    def directory(self, settings: Settings) -> Path | None:
        return None if self._memory is not None else Path(settings.directories()[0])

    def disks(self, settings: Settings) -> list[Disk]:
        if self._memory is not None:
            return [self._memory]
        directories = [Path(directory) for directory in settings.directories()]
        for directory in directories:
            private_files.make_directory(directory)
        return [RealDisk(directory) for directory in directories]

    async def open_zookeeper(
        self,
        settings: Settings,
        directory: Path | None,
        on_failure: Callable[[Exception], None],
        *,
        is_new: bool,
    ) -> OpenedZooKeeper:
        from hightide.broker.membership.zookeeper_connection import open_zookeeper

        return await open_zookeeper(settings, directory, on_failure, is_new=is_new)
