"""A simulated machine with a broker on it: the shipped one, in a simulated environment."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from hightide.broker.broker import Broker
from hightide.broker.membership.identity import StartupRefused
from hightide.log.disk import Disk
from hightide.settings import Broker as Settings
from hightide.wire.errors import Corrupt, KafkaError
from hightide.zookeeper.client import SessionKey
from hightide.zookeeper.zookeeper_errors import ZooKeeperError
from tests.simulation.shipped.disk import SimDisk
from tests.simulation.shipped.loop import Process, SimLoop, World
from tests.simulation.shipped.zookeeper import SimZooKeeper

PORT = 9092
_log = logging.getLogger("hightide.broker")


class OpenedSession:
    """A session with the simulated ZooKeeper."""

    def __init__(self, client: SimZooKeeper) -> None:
        self.client = client

    async def close(self) -> None:
        await self.client.close()


class SimEnvironment:
    """The environment of a broker on a simulated machine, for one start."""

    has_watchdog = False

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._looks = 0
        self.random = Random(machine.world.random.getrandbits(64))

    def now_ms(self) -> int:
        return self._machine.now_ms()

    def cpu_s(self) -> float:
        return self.clock_s()

    def clock_s(self) -> float:
        # Half a millisecond for each look: turns end after some requests, in every run alike.
        self._looks += 1
        return self._looks * 0.0005

    def new_id(self) -> uuid.UUID:
        return uuid.UUID(int=self.random.getrandbits(128), version=4)

    def secret_bytes(self, count: int) -> bytes:
        return self.random.randbytes(count)

    def directory(self, settings: Settings) -> Path | None:
        return None

    def disks(self, settings: Settings) -> list[Disk]:
        return [self._machine.disk]

    def listen(self, host: str, port: int, backlog: int) -> Any:
        return self._machine.world.network.listen(self._machine, port)

    async def open_zookeeper(
        self,
        settings: Settings,
        directory: Path | None,
        on_failure: Callable[[Exception], None],
        *,
        is_new: bool,
    ) -> OpenedSession:
        machine = self._machine
        loop: Any = asyncio.get_running_loop()
        # The key of the last session is stored beside the logs; now and then it is unreadable.
        last = machine.session_key if self.random.random() < 0.7 and not is_new else None
        client = SimZooKeeper(loop, settings.zookeeper_session_timeout_ms, last)
        client.on_session = machine.keep_session_key
        try:
            await client.connected(settings.zookeeper_session_timeout_ms * 2)
        except BaseException:
            await client.close()
            raise
        return OpenedSession(client)


class Machine(Process):
    """A broker, its disk, and the state that survives a restart."""

    def __init__(self, world: World, broker_id: int, settings: Settings) -> None:
        super().__init__(world, f"broker-{broker_id}")
        self.broker_id = broker_id
        self.settings = settings
        random = Random(world.random.getrandbits(64))
        self.disk = SimDisk(random, f"disk-{broker_id}", self._power_fails)
        self.on_power_cut: Callable[[], None] = lambda: None
        """Called when a planned power cut has happened."""
        self.session_key: SessionKey | None = None
        self.broker: Broker | None = None
        self.is_serving = False
        self._told_to_stop: tuple[SimLoop, asyncio.Event] | None = None

    def begin(self) -> None:
        self.start(self.main)

    def keep_session_key(self, session_key: SessionKey) -> None:
        self.session_key = session_key

    async def main(self) -> None:
        """Run a broker as `hightide broker start` does."""
        loop: Any = asyncio.get_running_loop()
        stopped = asyncio.Event()
        self._told_to_stop = (loop, stopped)
        broker = self.broker = Broker(self.settings, environment=SimEnvironment(self))
        try:
            await broker.start()
        except (StartupRefused, OSError, KafkaError, Corrupt, ZooKeeperError) as error:
            self.world.note(f"{self.name} cannot start: {error}")
            return
        self.is_serving = True
        self.world.tell(f"{self.name} serves")
        told = asyncio.ensure_future(stopped.wait())
        ends: list[asyncio.Future[Any]] = [told, broker.failed]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if broker.failed.done():
            told.cancel()
            self.world.note(f"{self.name} failed: {broker.failed.exception()}")
        self.is_serving = False
        await broker.stop()
        self.world.tell(f"{self.name} has stopped in order")

    def terminate(self) -> None:
        """SIGTERM."""
        self.world.tell(f"{self.name} gets SIGTERM")
        assert self._told_to_stop is not None
        loop, stopped = self._told_to_stop
        loop.arrived(stopped.set)

    def _end(self) -> None:
        super()._end()
        self.broker = None
        self.is_serving = False
        if not self.has_power:
            self.disk = self.disk.after_power_cut()

    def _power_fails(self) -> None:
        self.crash(power=True)
        self.on_power_cut()
