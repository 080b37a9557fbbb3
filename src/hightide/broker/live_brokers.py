"""The brokers that are alive: those with a znode in `/brokers/ids`, and where they are reached."""

from __future__ import annotations

import asyncio
import logging

from hightide.broker.metadata import LiveBroker, Metadata
from hightide.broker.reading import Reading
from hightide.coordination import znodes
from hightide.coordination.errors import MalformedZnode, NoNode
from hightide.coordination.interface import Coordination

log = logging.getLogger(__name__)


class LiveBrokers:
    """Keeps the metadata's picture of the brokers up to date."""

    def __init__(self, coordination: Coordination, metadata: Metadata) -> None:
        self.reading = Reading(znodes.BROKER_IDS, self.read)
        self._coordination = coordination
        self._metadata = metadata

    async def read(self) -> None:
        names = await self._coordination.children(znodes.BROKER_IDS, self.reading.wake)
        found = await asyncio.gather(*(self._read_one(name) for name in names))
        live = {broker.broker_id: broker for broker in found if broker is not None}
        known = self._metadata.brokers
        for broker_id in sorted(live.keys() - known.keys()):
            log.info("broker %d is up, in broker epoch %d", broker_id, live[broker_id].epoch)
        for broker_id in sorted(known.keys() - live.keys()):
            log.info("broker %d is gone", broker_id)
        self._metadata.brokers = live

    async def _read_one(self, name: str) -> LiveBroker | None:
        path = f"{znodes.BROKER_IDS}/{name}"
        try:
            data, stat = await self._coordination.get(path, self.reading.wake)
            registration = znodes.BrokerRegistration.decode(data, path)
            return LiveBroker(znodes.broker_id_of(path), stat.czxid, registration)
        except NoNode:
            return None  # its going has been seen, or will be
        except MalformedZnode as damage:
            log.error("%s", damage)
            return None
