"""One broker: its parts, and the order in which they start and stop.

    coordinator ─▶ cluster id, broker id ─▶ logs (recovered) ─▶ listeners bound ─▶ registered
                ─▶ told the cluster by the controller ─▶ leads and follows ─▶ clients are served

A broker leads nothing before it is registered and told to: until then its id may turn out to be
another's.  Nobody is served before everything is there; and when the broker stops, others lead
first, then the listeners go, and the logs last, so that what was answered is kept.

The broker goes on serving while its coordinator is away: what it knows is then as of the last time
it was told.  After every reconnect everything is read anew, and in a new session the broker
registers again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import Any

from hightide.broker.controller import ControllerService
from hightide.broker.controller.channel import ControllerChannel
from hightide.broker.controller.controller_election import ControllerElection
from hightide.broker.environment import Environment, OpenedZooKeeper, RealEnvironment
from hightide.broker.groups import GroupPartitions
from hightide.broker.handlers.init_producer_id import ProducerIds
from hightide.broker.handlers.produce import Shapes
from hightide.broker.housekeeping_task import Housekeeping
from hightide.broker.membership.controlled_shutdown import hand_over
from hightide.broker.membership.dynamic_configs import ConfigChanges, DynamicSettings, TopicConfigs
from hightide.broker.membership.fenced_session import FencedSession
from hightide.broker.membership.identity import (
    Identity,
    Refused,
    check_cluster,
    identify,
    known_identity,
    remember,
)
from hightide.broker.membership.registration import register
from hightide.broker.membership.watch_loop import WatchLoop
from hightide.broker.membership.zookeeper_connection import connection_timeout_ms, write_session_key
from hightide.broker.metadata_cache import BrokerAddress, MetadataCache
from hightide.broker.network.connection import Connection
from hightide.broker.network.dispatch import Dispatch, advertised, served_versions
from hightide.broker.network.server import Server
from hightide.broker.replication.flusher import Flusher
from hightide.broker.replication.isr_changes import IsrChanges
from hightide.broker.replication.peers import Peers
from hightide.broker.replication.replica import Replica
from hightide.broker.replication.replica_fetcher import Fetchers
from hightide.broker.replication.replica_manager import ReplicaManager
from hightide.broker.replication.replication_throttle import ReplicationThrottle
from hightide.broker.replication.state_changes import StateChanges
from hightide.broker.transactions import TransactionPartitions
from hightide.broker.transactions.partition_verifier import Verifier
from hightide.core.metadata.image import MetadataImage
from hightide.core.metadata.topic_names import CONSUMER_OFFSETS
from hightide.core.partition.fetch_session import FetchSessions
from hightide.log.disk import Disk
from hightide.log.log_manager import LogManager
from hightide.settings import Broker as Settings
from hightide.settings import Topic as TopicSettings
from hightide.wire.messages.replication import (
    PublishStateRequest,
    PublishStateResponse,
)
from hightide.zookeeper import znodes
from hightide.zookeeper.errors import ConnectionLoss, SessionLost, ZooKeeperError
from hightide.zookeeper.interface import SessionState
from hightide.zookeeper.watchdog import Watchdog

log = logging.getLogger(__name__)

_SESSION_EVICTION_MS = 120_000
_REGISTER_AGAIN_S = 0.5
_TELL_S = 10.0


class Broker:
    """The shell around logs, roles and connections."""

    def __init__(self, settings: Settings, *, surroundings: Environment | None = None) -> None:
        self.settings = settings
        self.surroundings: Environment = surroundings or RealEnvironment()
        self.now_ms = self.surroundings.now_ms
        """The time of day, for what is kept: somebody may set it."""
        self.monotonic_s = asyncio.get_running_loop().time
        # Done when the broker cannot go on; its exception says why.
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.served = served_versions()
        self.advertised = advertised(self.served)
        self.broker_epoch = -1
        self.shapes = Shapes()
        self.replicas = ReplicaManager()
        self.replicas.on_change = self.shapes.forget
        self.broker_id = settings.broker_id
        self._is_assembled = False
        self._is_stopping = False
        self._opened: OpenedZooKeeper | None = None
        self._registered_in = 0
        self._random = self.surroundings.random
        self.fetch_sessions = FetchSessions(
            settings.max_incremental_fetch_session_cache_slots, _SESSION_EVICTION_MS, self._random
        )
        self._dispatch = Dispatch(self)
        wake = self.replicas.purgatory.wake
        self._server = Server(
            lambda: self.settings, self._dispatch.serve, wake, self.surroundings.listen
        )
        self.flusher = Flusher(wake)
        self._advertised = {each.name: each for each in settings.advertising()}
        self._watchdog: Watchdog | None = None
        self._ticks: asyncio.Task[None] | None = None

    # -- life ------------------------------------------------------------------------------

    async def start(self) -> list[tuple[str, int]]:
        """Recover everything and serve; the addresses listened on."""
        disks = self.surroundings.disks(self.settings)
        self.store = LogManager(disks, self.settings, self._topic_settings)
        self.store.lock()
        try:
            return await self._start(disks)
        except BaseException:
            await self._give_up()
            raise

    async def _start(self, disks: list[Disk]) -> list[tuple[str, int]]:
        loop = asyncio.get_running_loop()
        self._directory = self.surroundings.directory(self.settings)
        known = known_identity(disks)
        self._opened = await self.surroundings.open_zookeeper(
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
        await self._server.start()
        client.on_state(self._session_changed)
        await self._patiently(lambda: self._enter(disks))
        for reading in (self._session, *self._readings):
            reading.start()
        if self.surroundings.has_watchdog:
            self._watchdog = Watchdog(loop, client.timeout_ms, self._hung)
            self._watchdog.start()
        self._housekeeping.start()
        self._ticks = loop.create_task(self._tick())
        await self._be_told()
        self._dispatch.open(self._server)
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
        self._zookeeper = FencedSession(self._client, self._client.session_id)
        cluster_id, self.broker_id = await identify(self._zookeeper, known, self.settings)
        self._assemble(cluster_id)
        await self._changes.begin()
        await self.dynamic.read()
        await self.topic_configs.read_all()

    async def _enter(self, disks: list[Disk]) -> None:
        """Be a broker of the cluster, and perhaps its controller."""
        await self._register()
        remember(disks, self.metadata.cluster_id, self.broker_id)
        await self.election.check()

    async def _be_told(self) -> None:
        """Wait until the controller has told what this broker is to lead and to follow."""
        told = asyncio.ensure_future(self._roles.are_known.wait())
        waits: list[asyncio.Future[Any]] = [told, self.failed]
        while not told.done():
            await asyncio.wait(waits, timeout=_TELL_S, return_when=asyncio.FIRST_COMPLETED)
            if self.failed.done():
                told.cancel()
                self.failed.result()
            if not told.done():
                log.warning("waiting for the controller, broker %d", self.election.controller_id)

    def _assemble(self, cluster_id: str) -> None:
        zookeeper, settings = self._zookeeper, lambda: self.settings
        self._listener = self.settings.inter_broker_listener()
        self.controller_channel = ControllerChannel(self, self._listener)
        self.picture = MetadataImage(self.broker_id, self._listener)
        self.metadata = MetadataCache(cluster_id, self.picture, self.settings.broker_rack)
        self.producer_ids = ProducerIds(zookeeper, self.broker_id)
        self.dynamic = DynamicSettings(zookeeper, self.broker_id, settings, self._configured)
        self.topic_configs = TopicConfigs(zookeeper, self._topic_configured)
        self.peers = Peers(
            f"broker-{self.broker_id}",
            socket_timeout_ms=lambda: self.settings.replica_socket_timeout_ms,
        )
        self.throttle = ReplicationThrottle(self.broker_id, settings)
        self._fetchers = Fetchers(
            self.broker_id,
            self._epoch,
            self.peers,
            settings,
            self.now_ms,
            self.throttle,
            self.flusher,
        )
        self._roles = StateChanges(
            self.picture,
            zookeeper,
            self.store,
            self.replicas,
            self._fetchers,
            self.topic_configs,
            settings,
            self._epoch,
            self.monotonic_ms,
        )
        self.verifier = Verifier(self)
        self.groups = GroupPartitions(self)
        self.transactions = TransactionPartitions(self)
        self.replicas.on_role = self._internal_role_changed
        self._roles.on_topics = self.groups.topics_changed
        self._proposals = IsrChanges(
            self.broker_id, self._epoch, self.controller_channel.alter_partition
        )
        self.replicas.on_proposal = self._proposals.propose
        self.election = ControllerElection(zookeeper, self.broker_id, self.now_ms)
        self.election.on_change = self._controller_changed
        self.controller = ControllerService(
            zookeeper,
            self.election,
            self.broker_id,
            settings,
            self.controller_channel.publish,
            self._listener,
            random=self._random,
            new_id=self.surroundings.new_id,
        )
        self._changes = ConfigChanges(zookeeper, self._config_changed, self.now_ms)
        self._session = WatchLoop("the cluster after a reconnect", self._reconnected)
        self._readings = (self.election.watch_loop, self._changes.watch_loop)
        self._housekeeping = Housekeeping(self.store, self.now_ms)
        self._is_assembled = True

    def monotonic_ms(self) -> int:
        """For what only measures how long something takes, or how long ago it was."""
        return int(self.monotonic_s() * 1000)

    async def stop(self) -> None:
        """Let others lead, answer what is waiting, then close everything in order."""
        if self.settings.controlled_shutdown_enable and not self.failed.done():
            await hand_over(self)
        self._is_stopping = True
        if self._watchdog is not None:
            self._watchdog.stop()
        self._server.stop_reading()
        await self._stop_replication()
        self.replicas.end_waits()
        await self.flusher.stop()
        await self._server.stop()
        await self._dispatch.stop()
        for reading in (self._session, *self._readings):
            await reading.stop()
        await self._housekeeping.stop()
        self.store.close(self.now_ms(), self.broker_epoch)
        if self._opened is not None:
            await self._opened.close()

    async def _stop_replication(self) -> None:
        if self._ticks is not None:
            self._ticks.cancel()
        await self.controller.stop()
        await self._proposals.stop()
        await self._fetchers.stop()
        await self.groups.stop()
        await self.transactions.stop()
        await self.verifier.stop()
        await self.peers.close()

    async def _give_up(self) -> None:
        """Let go of what a start that failed has taken.  No log is closed: none was written."""
        self._is_stopping = True
        self._server.stop_reading()
        if self._is_assembled:
            await self._stop_replication()
        if self._opened is not None:
            await self._opened.close()
        self.store.unlock()

    def _fail(self, error: Exception) -> None:
        """The broker cannot go on."""
        if not self._is_stopping and not self.failed.done():
            self.failed.set_exception(error)

    async def _tick(self) -> None:
        """Look after what nobody asks for: members of an ISR that are late, disks that failed."""
        while True:
            await asyncio.sleep(self.settings.replica_lag_time_max_ms / 2000)
            now_ms = self.monotonic_ms()
            self.replicas.check_isrs(now_ms)
            try:
                await self._roles.try_again()
                with contextlib.suppress(ZooKeeperError):
                    await self.topic_configs.read_missing()
            except Exception:
                log.exception("carrying out roles again failed")

    # -- the session -----------------------------------------------------------------------

    def _session_changed(self, state: SessionState) -> None:
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
        await self.dynamic.read()
        await self.topic_configs.read_all()
        self.controller.reconnected()
        for reading in self._readings:
            reading.wake()

    async def _register(self) -> None:
        session_id = self._client.session_id
        here = FencedSession(self._client, session_id)
        await check_cluster(here, self.metadata.cluster_id)
        # Its logs are as its former life left them: in this process, or at its clean end.
        former = self.broker_epoch if self.broker_epoch >= 0 else self.store.previous_epoch
        registration = self._registration._replace(previous_epoch=former)
        self.broker_epoch = await register(here, self.broker_id, registration)
        self._registered_in = session_id
        self._zookeeper.admit(session_id)
        log.info("registered as broker %d, in epoch %d", self.broker_id, self.broker_epoch)
        if self._directory is not None:
            write_session_key(self._directory, self._client.session_key)

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

    def _epoch(self) -> int:
        return self.broker_epoch

    def _hung(self, silent_ms: int) -> None:
        """In the watchdog's thread: a broker that answers nobody must not look alive."""
        log.error("the event loop has not run for %d ms: giving up the session", silent_ms)
        self._client.abandon()

    # -- the controller --------------------------------------------------------------------

    def _controller_changed(self) -> None:
        self.metadata.controller_id = self.election.controller_id
        self.controller.election_changed()

    async def receive_state(self, request: PublishStateRequest) -> PublishStateResponse:
        """The controller tells what the cluster is."""
        error_code = await self._roles.receive(request)
        self.transactions.cluster_changed()
        return PublishStateResponse(error_code=error_code)

    def _internal_role_changed(self, replica: Replica) -> None:
        """Whoever leads a partition of an internal topic is the coordinator of what is in it."""
        if replica.topic == CONSUMER_OFFSETS:
            self.groups.role_changed(replica)
        else:
            self.transactions.role_changed(replica)

    # -- settings --------------------------------------------------------------------------

    def _topic_settings(self, topic: str) -> TopicSettings:
        return TopicSettings.effective(self.settings, self.topic_configs.overrides(topic))

    def _topic_configured(self, topic: str) -> None:
        self.store.reconfigure(topic)
        lag_ms = self.settings.replica_lag_time_max_ms
        for replica in self.replicas:
            if replica.topic == topic:
                replica.configured(lag_ms)

    async def _config_changed(self, entity_path: str) -> None:
        kind, _, name = entity_path.partition("/")
        if kind == "topics":
            await self.topic_configs.notified(name)
        elif kind == "brokers" and self.dynamic.concerns(name):
            await self.dynamic.read()
        self.controller.configuration_changed(entity_path)

    def _configured(self, settings: Settings) -> None:
        """The broker's own settings are others now."""
        self.settings = self.store.settings = settings
        by_topic: dict[str, TopicSettings] = {}
        for (topic, _), each in self.store.logs.items():
            config = by_topic.get(topic)
            if config is None:
                config = by_topic[topic] = self._topic_settings(topic)
            each.reconfigure(config)
        for replica in self.replicas:
            replica.configured(settings.replica_lag_time_max_ms)
        self.groups.settings_changed()
        self.transactions.settings_changed()

    # -- for handlers ----------------------------------------------------------------------

    @property
    def zookeeper(self) -> FencedSession:
        return self._zookeeper

    def addresses(self, connection: Connection) -> list[BrokerAddress]:
        """The brokers, each at the address that this client can reach it at."""
        advertised = self._advertised.get(connection.listener)
        if advertised is not None:
            host, port = advertised.host, advertised.port
        else:
            host, port = connection.local_address
        own = BrokerAddress(self.broker_id, host, port, self.settings.broker_rack)
        found = {self.broker_id: own}
        for broker, endpoint in self.picture.endpoints(connection.listener):
            address = BrokerAddress(broker.broker_id, endpoint.host, endpoint.port, broker.rack)
            found.setdefault(broker.broker_id, address)
        return [found[broker_id] for broker_id in sorted(found)]


def _from_thread(
    loop: asyncio.AbstractEventLoop, function: Callable[[Exception], None], error: Exception
) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(function, error)
