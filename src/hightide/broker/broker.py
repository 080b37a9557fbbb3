"""One broker: its parts, and the order in which they start and stop.

    coordination tree ─▶ cluster id, broker id ─▶ topics ─▶ logs (recovered) ─▶ leaders ─▶ listeners

Nobody is served before everything is there; and when the broker stops, the listeners go first and
the logs last, so that what was answered is kept.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from hightide.broker.connection import Connection
from hightide.broker.dispatch import Dispatch, served_versions
from hightide.broker.flusher import Flusher
from hightide.broker.handlers.produce import Shapes
from hightide.broker.handlers.producers import ProducerIds
from hightide.broker.housekeeping import Housekeeping
from hightide.broker.identity import Refused, identify
from hightide.broker.metadata import BrokerAddress, Metadata
from hightide.broker.replicas import Replicas
from hightide.broker.server import Server
from hightide.broker.topics import Topics, write_config
from hightide.coordination import znodes
from hightide.coordination.errors import NoNode
from hightide.coordination.interface import SessionState, ensure_path
from hightide.coordination.memory import LocalCoordination
from hightide.core.sessions import FetchSessions
from hightide.log.disk import Disk, MemoryDisk, RealDisk
from hightide.log.store import LogStore
from hightide.settings import Broker as Settings
from hightide.settings import Topic as TopicSettings

log = logging.getLogger(__name__)

COORDINATION_FILE = "coordination.db"
_SESSION_EVICTION_MS = 120_000


@dataclass(slots=True)
class DynamicSettings:
    """What was set since the start: for all brokers, and for this one."""

    cluster: dict[str, str] = field(default_factory=dict)
    own: dict[str, str] = field(default_factory=dict)


class Broker:
    """The shell around logs, metadata and connections."""

    def __init__(self, settings: Settings, *, in_memory: bool = False) -> None:
        self.settings = settings
        # Done when the broker cannot go on; its exception says why.
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.dynamic = DynamicSettings()
        self.served = served_versions()
        self.shapes = Shapes()
        self.replicas = Replicas()
        self.replicas.on_change = self.shapes.forget
        self.broker_id = settings.broker_id
        self._in_memory = in_memory
        self._is_stopping = False
        self._random = Random()
        self.fetch_sessions = FetchSessions(
            settings.max_incremental_fetch_session_cache_slots, _SESSION_EVICTION_MS, self._random
        )
        self._dispatch = Dispatch(self)
        self._server = Server(lambda: self.settings, self._dispatch.serve, self._wake)
        self.flusher = Flusher(self._wake)
        self._advertised = {each.name: each for each in settings.advertising()}

    @staticmethod
    def now_ms() -> int:
        return int(time.time() * 1000)

    # -- life ------------------------------------------------------------------------------

    async def start(self) -> list[tuple[str, int]]:
        """Recover everything and serve; the addresses listened on."""
        disks = self._disks()
        directory = None if self._in_memory else Path(self.settings.directories()[0])
        self._coordination = await LocalCoordination.open(
            None if directory is None else directory / COORDINATION_FILE
        )
        self._coordination.on_state(self._coordination_changed)
        for path in znodes.PERSISTENT_ROOTS:
            await ensure_path(self._coordination, path)
        self.store = LogStore(disks, self.settings, self._topic_settings)
        cluster_id, self.broker_id = await identify(self._coordination, disks, self.settings)
        self.metadata = Metadata(cluster_id, self.broker_id)
        self.producer_ids = ProducerIds(self._coordination, self.broker_id)
        self.topics = Topics(
            self._coordination, self.metadata, self.replicas, self.store, self._random, uuid.uuid4
        )
        await self._read_dynamic_settings()
        await self.topics.load()
        self.store.open(self.now_ms())
        await self.topics.lead()
        self._housekeeping = Housekeeping(self.store, self.now_ms)
        self._housekeeping.start()
        return await self._server.start(
            self.settings.listening(), self.settings.socket_listen_backlog_size
        )

    def _coordination_changed(self, state: SessionState) -> None:
        # What the tree says can no longer be known, so nothing here may be answered for.
        if state is SessionState.LOST and not self._is_stopping and not self.failed.done():
            self.failed.set_exception(Refused("the coordination session is lost"))

    async def stop(self) -> None:
        """Answer what is waiting, then close everything in order."""
        self._is_stopping = True
        self._server.stop_reading()
        for replica in self.replicas:
            for waiter in list(replica.waiters):
                waiter.serve(is_last_try=True)
        await self.flusher.stop()
        await self._server.stop()
        await self._dispatch.stop()
        await self._housekeeping.stop()
        self.store.close(self.now_ms())
        await self._coordination.close()

    def _disks(self) -> list[Disk]:
        if self._in_memory:
            return [MemoryDisk()]
        directories = [Path(each) for each in self.settings.directories()]
        for directory in directories:
            directory.mkdir(parents=True, exist_ok=True)
        return [RealDisk(directory) for directory in directories]

    # -- settings --------------------------------------------------------------------------

    def _topic_settings(self, topic: str) -> TopicSettings:
        found = self.metadata.get(topic)
        return TopicSettings.effective(self.settings, {} if found is None else found.overrides)

    async def _read_dynamic_settings(self) -> None:
        self.dynamic.cluster = await self._config(znodes.broker_config_path(None))
        self.dynamic.own = await self._config(znodes.broker_config_path(self.broker_id))
        self._apply_settings()

    async def _config(self, path: str) -> dict[str, str]:
        try:
            data, _ = await self._coordination.get(path)
        except NoNode:
            return {}
        return dict(znodes.EntityConfig.decode(data, path).config)

    async def configure(self, config: Mapping[str, str], own: bool) -> None:
        """Replace what was set since the start, for this broker or for all."""
        entity = str(self.broker_id) if own else znodes.DEFAULT_ENTITY
        await write_config(self._coordination, f"brokers/{entity}", config)
        if own:
            self.dynamic.own = dict(config)
        else:
            self.dynamic.cluster = dict(config)
        self._apply_settings()
        self.store.settings = self.settings
        for topic in self.metadata:
            self.store.reconfigure(topic.name)

    def _apply_settings(self) -> None:
        self.settings = self.settings.changed(self.dynamic.cluster, self.dynamic.own)

    # -- for handlers ----------------------------------------------------------------------

    def addresses(self, connection: Connection) -> list[BrokerAddress]:
        """The brokers, each at the address that this client can reach it at."""
        advertised = self._advertised.get(connection.listener)
        if advertised is not None:
            host, port = advertised.host, advertised.port
        else:
            host, port = connection.local_address
        return [BrokerAddress(self.broker_id, host, port, self.settings.broker_rack)]

    def _wake(self) -> None:
        if self.replicas.grown:
            self.replicas.wake()
