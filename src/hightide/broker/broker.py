"""One broker: its parts, and the order in which they start and stop.

    coordinator ─▶ cluster id, broker id ─▶ topics ─▶ logs (recovered) ─▶ listeners bound
                ─▶ registered ─▶ controller known ─▶ leaders ─▶ served

A broker leads nothing before it is registered: until then its id may turn out to be another's.
Nobody is served before everything is there; and when the broker stops, the listeners go first and
the logs last, so that what was answered is kept.

The broker goes on serving while its coordinator is away: what it knows is then as of the last time
it could look.  After every reconnect everything is read anew, and in a new session the broker
registers again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from hightide.broker.admission import Admission
from hightide.broker.config_changes import Change, ConfigChanges, change_config, read_config
from hightide.broker.connection import Connection
from hightide.broker.coordination import (
    Opened,
    connection_timeout_ms,
    open_coordination,
    write_ticket,
)
from hightide.broker.dispatch import FIRST_PRIVATE, Dispatch, served_versions
from hightide.broker.election import Election
from hightide.broker.flusher import Flusher
from hightide.broker.handlers.produce import Shapes
from hightide.broker.handlers.producers import ProducerIds
from hightide.broker.hosting import Hosting
from hightide.broker.housekeeping import Housekeeping
from hightide.broker.identity import (
    Identity,
    Refused,
    check_cluster,
    identify,
    known_identity,
    remember,
)
from hightide.broker.live_brokers import LiveBrokers
from hightide.broker.metadata import BrokerAddress, Metadata
from hightide.broker.reading import Reading
from hightide.broker.registration import register
from hightide.broker.replicas import Replicas
from hightide.broker.server import Server
from hightide.broker.topics import Topics
from hightide.coordination import znodes
from hightide.coordination.errors import ConnectionLoss, SessionLost
from hightide.coordination.interface import SessionState
from hightide.coordination.watchdog import Watchdog
from hightide.core.sessions import FetchSessions
from hightide.log.disk import Disk, MemoryDisk, RealDisk
from hightide.log.store import LogStore
from hightide.settings import Broker as Settings
from hightide.settings import InvalidSetting, Scope
from hightide.settings import Topic as TopicSettings

log = logging.getLogger(__name__)

_SESSION_EVICTION_MS = 120_000
_REGISTER_AGAIN_S = 0.5


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
        self.advertised = {key: value for key, value in self.served.items() if key < FIRST_PRIVATE}
        self.broker_epoch = -1
        self.shapes = Shapes()
        self.replicas = Replicas()
        self.replicas.on_change = self.shapes.forget
        self.broker_id = settings.broker_id
        self._in_memory = in_memory
        self._is_stopping = False
        self._opened: Opened | None = None
        self._registered_in = 0
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
        self.store = LogStore(disks, self.settings, self._topic_settings)
        self.store.lock()
        try:
            return await self._start(disks)
        except BaseException:
            await self._give_up()
            raise

    async def _start(self, disks: list[Disk]) -> list[tuple[str, int]]:
        loop = asyncio.get_running_loop()
        self._directory = None if self._in_memory else Path(self.settings.directories()[0])
        known = known_identity(disks)
        self._opened = await open_coordination(
            self.settings,
            self._directory,
            lambda error: _from_thread(loop, self._fail, error),
            is_new=known is None,
        )
        client = self._client = self._opened.client
        await self._patiently(lambda: self._join(known))
        self.store.open(self.now_ms())
        bound = self._server.bind(
            self.settings.listening(), self.settings.socket_listen_backlog_size
        )
        self._registration = self._registration_at(bound)
        client.on_state(self._coordination_changed)
        await self._patiently(lambda: self._enter(disks))
        for reading in (self._session, *self._readings):
            reading.start()
        self._watchdog = Watchdog(loop, client.timeout_ms, self._hung)
        self._watchdog.start()
        self._housekeeping.start()
        await self._server.start()
        return bound

    async def _patiently(self, step: Callable[[], Awaitable[None]]) -> None:
        """Take a step of the start; from its begin, if the coordinator goes away in the middle."""
        while True:
            try:
                return await step()
            except (ConnectionLoss, SessionLost) as failure:
                log.warning("%s; waiting for it", failure)
                await self._client.connected(connection_timeout_ms(self.settings))

    async def _join(self, known: Identity | None) -> None:
        """Find out who this broker is, and what it needs to open its logs."""
        self._coordination = Admission(self._client, self._client.session_id)
        cluster_id, self.broker_id = await identify(self._coordination, known, self.settings)
        self._assemble(cluster_id)
        await self._changes.begin()
        await self._read_dynamic_settings()
        await self.topics.load()

    async def _enter(self, disks: list[Disk]) -> None:
        """Be a broker of the cluster, and lead what is this broker's to lead."""
        is_first_try = not self._registered_in
        await self._register()
        remember(disks, self.metadata.cluster_id, self.broker_id)
        await self.live_brokers.read()
        await self.election.look()
        if not is_first_try:
            await self.topics.load()  # some states may have been written
        await self.topics.lead()
        # What has changed since they were loaded; if that cannot be read now, it is when it can.
        with contextlib.suppress(ConnectionLoss, SessionLost):
            await self.topics.read()

    def _assemble(self, cluster_id: str) -> None:
        coordination = self._coordination
        self.metadata = Metadata(cluster_id, self.broker_id)
        self.producer_ids = ProducerIds(coordination, self.broker_id)
        self.election = Election(coordination, self.broker_id, self.now_ms)
        self.election.on_change = self._controller_changed
        self.live_brokers = LiveBrokers(coordination, self.metadata)
        self.topics = Topics(
            coordination,
            self.election,
            self.metadata,
            Hosting(self.broker_id, self.metadata, self.replicas, self.store),
            self._random,
            uuid.uuid4,
            lambda: self.settings.delete_topic_enable,
        )
        self._changes = ConfigChanges(coordination, self._config_changed, self.now_ms)
        self._session = Reading("the cluster after a reconnect", self._reconnected)
        self._readings = (
            self.election.reading,
            self.live_brokers.reading,
            self.topics.reading,
            self._changes.reading,
        )
        self._housekeeping = Housekeeping(self.store, self.now_ms)

    async def stop(self) -> None:
        """Answer what is waiting, then close everything in order."""
        self._is_stopping = True
        self._watchdog.stop()
        self._server.stop_reading()
        for replica in self.replicas:
            for waiter in list(replica.waiters):
                waiter.serve(is_last_try=True)
        await self.flusher.stop()
        await self._server.stop()
        await self._dispatch.stop()
        for reading in (self._session, *self._readings):
            await reading.stop()
        await self._housekeeping.stop()
        self.store.close(self.now_ms())
        if self._opened is not None:
            await self._opened.close()

    async def _give_up(self) -> None:
        """Let go of what a start that failed has taken.  No log is closed: none was written."""
        self._is_stopping = True
        self._server.stop_reading()
        if self._opened is not None:
            await self._opened.close()
        self.store.unlock()

    def _fail(self, error: Exception) -> None:
        """The broker cannot go on."""
        if not self._is_stopping and not self.failed.done():
            self.failed.set_exception(error)

    # -- the session -----------------------------------------------------------------------

    def _coordination_changed(self, state: SessionState) -> None:
        if self._is_stopping:
            return
        if state is SessionState.CONNECTED:
            self._session.wake()
        elif state is not SessionState.SUSPENDED:
            self.election.stand_down("its session with the coordinator may be over")

    async def _reconnected(self) -> None:
        try:
            if self._client.session_id != self._registered_in:
                # All brokers lose their sessions at once, and should not come back all at once.
                await asyncio.sleep(self._random.random() * _REGISTER_AGAIN_S)
                await self._register()
        except Refused as refused:
            self._fail(refused)
            return
        await self._changes.begin()
        await self._read_dynamic_settings()
        self.topics.reconnected()
        for reading in self._readings:
            reading.wake()

    async def _register(self) -> None:
        session_id = self._client.session_id
        here = Admission(self._client, session_id)
        await check_cluster(here, self.metadata.cluster_id)
        self.broker_epoch = await register(here, self.broker_id, self._registration)
        self._registered_in = session_id
        self._coordination.admit(session_id)
        log.info("registered as broker %d, in epoch %d", self.broker_id, self.broker_epoch)
        if self._directory is not None:
            write_ticket(self._directory, self._client.ticket)

    def _registration_at(self, bound: list[tuple[str, int]]) -> znodes.BrokerRegistration:
        endpoints = []
        for listener, (host, port) in zip(self.settings.listening(), bound, strict=True):
            told = self._advertised.get(listener.name)
            if told is not None:
                host, port = told.host, told.port
            elif host in ("0.0.0.0", "::"):
                host = socket.gethostname()
            endpoints.append(znodes.Endpoint(listener.name, host, port, listener.protocol))
        return znodes.BrokerRegistration(tuple(endpoints), self.now_ms(), self.settings.broker_rack)

    def _controller_changed(self) -> None:
        self.metadata.controller_id = self.election.controller_id
        if self.election.is_controller:
            self.topics.reading.wake()  # there may be something that only the controller does

    def _hung(self, silent_ms: int) -> None:
        """In the watchdog's thread: a broker that answers nobody must not look alive."""
        log.error("the event loop has not run for %d ms: giving up the session", silent_ms)
        self._client.abandon()

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
        dynamic = self.dynamic
        dynamic.cluster = await self._read_settings(
            znodes.DEFAULT_ENTITY, Scope.CLUSTER, dynamic.cluster
        )
        dynamic.own = await self._read_settings(str(self.broker_id), Scope.BROKER, dynamic.own)
        self._apply_settings()

    async def _read_settings(
        self, entity: str, scope: Scope, had: Mapping[str, str]
    ) -> dict[str, str]:
        return await read_config(
            self._coordination,
            f"brokers/{entity}",
            lambda settings: Settings.check_change(settings, scope),
            had,
        )

    async def _config_changed(self, entity_path: str) -> None:
        kind, _, name = entity_path.partition("/")
        if kind == "topics":
            await self.topics.read_settings(name)
        elif kind == "brokers" and name in (str(self.broker_id), znodes.DEFAULT_ENTITY):
            await self._read_dynamic_settings()

    async def configure(self, change: Change, own: bool) -> None:
        """Change what was set since the start, for this broker or for all."""
        entity = str(self.broker_id) if own else znodes.DEFAULT_ENTITY
        config = dict(await change_config(self._coordination, f"brokers/{entity}", change))
        if own:
            self.dynamic.own = config
        else:
            self.dynamic.cluster = config
        self._apply_settings()

    def _apply_settings(self) -> None:
        try:
            self.settings = self.settings.changed(self.dynamic.cluster, self.dynamic.own)
        except InvalidSetting as wrong:
            # Anybody may write to the tree; what worked so far goes on working.
            log.error("settings in the tree are ignored: %s", wrong)
            return
        self.store.settings = self.settings
        for topic in self.metadata:
            self.store.reconfigure(topic.name)

    # -- for handlers ----------------------------------------------------------------------

    def addresses(self, connection: Connection) -> list[BrokerAddress]:
        """The brokers, each at the address that this client can reach it at."""
        advertised = self._advertised.get(connection.listener)
        if advertised is not None:
            host, port = advertised.host, advertised.port
        else:
            host, port = connection.local_address
        own = BrokerAddress(self.broker_id, host, port, self.settings.broker_rack)
        found = {self.broker_id: own}
        for broker in self.metadata.brokers.values():
            address = broker.address(connection.listener)
            if address is not None:
                found.setdefault(broker.broker_id, address)
        return [found[broker_id] for broker_id in sorted(found)]

    def _wake(self) -> None:
        if self.replicas.grown:
            self.replicas.wake()


def _from_thread(
    loop: asyncio.AbstractEventLoop, function: Callable[[Exception], None], error: Exception
) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(function, error)
