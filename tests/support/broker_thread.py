"""A broker in a thread of the test's process, with an event loop whose turns can be measured."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from hightide.broker.broker import Broker
from hightide.broker.environment import RealEnvironment
from hightide.log.disk import MemoryDisk
from hightide.settings import Broker as Settings

Value = TypeVar("Value")

NAME = "broker"


class BrokerThread:
    """Runs a broker with its embedded ZooKeeper until `stop`."""

    def __init__(self, **settings: Any) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name=NAME, daemon=True)
        self._thread.start()
        self.run(self._start(settings))

    async def _start(self, settings: dict[str, Any]) -> None:
        given = {"listeners": "PLAINTEXT://127.0.0.1:0", "zookeeper_listen": "127.0.0.1:0"}
        environment = RealEnvironment(memory=MemoryDisk())
        self.broker = Broker(Settings(**{**given, **settings}), environment=environment)
        (self.address,) = await self.broker.start()

    def run(self, work: Coroutine[Any, Any, Value]) -> Value:
        """Await a coroutine in the broker's event loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(120)

    def stop(self) -> None:
        self.run(self.broker.stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(30)
        self.loop.close()
