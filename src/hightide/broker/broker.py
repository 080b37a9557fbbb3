"""One broker: its parts, and the order in which they start and stop.

    ZooKeeper ─▶ cluster id, broker id ─▶ logs (recovered) ─▶ listeners bound ─▶ registered
              ─▶ state of the cluster from the controller ─▶ leads and follows ─▶ serves clients

A broker leads nothing before it is registered and the controller has said so: until then its id may
turn out to be another broker's.  Clients are served when everything is ready.  When the broker
stops, other brokers take over its leaderships first, then the listeners close, and the logs last,
so that every acknowledged record is kept.

The broker continues to serve while ZooKeeper is away, with the state that the controller last
published.  After every reconnect it reads its settings again, and in a new session it registers
again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any

from hightide.broker.controller import ControllerService
from hightide.broker.controller.channel import ControllerChannel
from hightide.broker.controller.controller_election import ControllerElection
from hightide.broker.environment import Environment, OpenedZooKeeper, RealEnvironment
from hightide.broker.groups import GroupPartitions
from hightide.broker.handlers.init_producer_id import ProducerIds
from hightide.broker.handlers.produce import Shapes
from hightide.broker.handlers.prove_broker import Refusals
from hightide.broker.housekeeping_task import Housekeeping
from hightide.broker.membership.broker_proof import BrokerProof, ClusterSecret
from hightide.broker.membership.contact import Contact
from hightide.broker.membership.controlled_shutdown import transfer_leadership
from hightide.broker.membership.dynamic_configs import (
    BrokerConfigs,
    ClientMetricsConfigs,
    ConfigChanges,
    TopicConfigs,
)
from hightide.broker.membership.fenced_session import FencedSession
from hightide.broker.membership.identity import (
    Identity,
    StartupRefused,
    check_cluster,
    identify,
    known_identity,
    remember,
)
from hightide.broker.membership.registration import register
from hightide.broker.membership.watch_loop import WatchLoop
from hightide.broker.membership.zookeeper_connection import write_session_key
from hightide.broker.metadata_cache import BrokerAddress, MetadataCache
from hightide.broker.metrics.counters import Requests
from hightide.broker.network.connection import Connection
from hightide.broker.network.dispatch import Dispatch, advertised, served_versions
from hightide.broker.network.server import Server
from hightide.broker.record_checks import RecordChecks
from hightide.broker.replication.disk_monitor import DiskMonitor
from hightide.broker.replication.flusher import Flusher
from hightide.broker.replication.isr_changes import IsrChanges
from hightide.broker.replication.peers import Peers
from hightide.broker.replication.replica import Replica
from hightide.broker.replication.replica_fetcher import ReplicaFetchers
from hightide.broker.replication.replica_manager import ReplicaManager
from hightide.broker.replication.replica_repair import ReplicaRepair
from hightide.broker.replication.replication_throttle import ReplicationThrottle
from hightide.broker.replication.state_changes import StateChanges
from hightide.broker.telemetry.client_telemetry import ClientTelemetry, check_config
from hightide.broker.transactions import TransactionPartitions
from hightide.broker.transactions.partition_verifier import Verifier
from hightide.broker.work_pool import WorkPool
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
from hightide.zookeeper.interface import SessionState
from hightide.zookeeper.kazoo_thread import SessionKey
from hightide.zookeeper.watchdog import Watchdog
from hightide.zookeeper.zookeeper_errors import ConnectionLoss, SessionLost, ZooKeeperError

if TYPE_CHECKING:
    from hightide.broker.metrics.service import MetricsService

log = logging.getLogger(__name__)

_REGISTER_AGAIN_S = 0.5
_STATE_WARNING_S = 10.0
_HIGH_WATERMARKS_EVERY_S = 1.0


class Broker:
    """Connects the parts of a broker: logs, replicas, coordinators, controller and network."""

    def __init__(self, settings: Settings, *, environment: Environment | None = None) -> None:
        self.settings = settings
        self.environment: Environment = environment or RealEnvironment()
        self.now_ms = self.environment.now_ms
        """The time of day, for timestamps that are stored.  It may be set back."""
        self.monotonic_s = asyncio.get_running_loop().time
        # Done when the broker must stop; its exception says why.
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.served = served_versions(has_telemetry=bool(settings.metrics_listening()))
        self.advertised = advertised(self.served)
        self.broker_epoch = -1
        self.refusals = Refusals(self.monotonic_s)
        self.shapes = Shapes()
        self.replica_manager = ReplicaManager()
        self.replica_manager.on_change = self.shapes.forget
        self.broker_id = settings.broker_id
        self._is_assembled = False
        self._is_stopping = False
        self._opened: OpenedZooKeeper | None = None
        self._registered_in = 0
        self.report_session: Callable[[SessionKey | None], None] = lambda _: None
        """Called with the key of each session in which the broker registers, and with None when
        the session is closed."""
        self.on_configured: Callable[[Settings], None] = lambda _: None
        """Called with the settings when the broker has read them, and after each change."""
        self._random = self.environment.random
        self.fetch_sessions = FetchSessions(
            settings.max_incremental_fetch_session_cache_slots,
            settings.min_incremental_fetch_session_eviction_ms,
            self._random,
            settings.max_incremental_fetch_session_cache_partitions,
        )
        self.work_pool = WorkPool(
            settings.work_pool_max_bytes, self.environment.clock_s, self.environment.cpu_s
        )
        self.requests = Requests()
        self._metrics: MetricsService | None = None
        self._dispatch = Dispatch(self)
        wake = self.replica_manager.purgatory.wake
        self._server = Server(
            lambda: self.settings,
            self._dispatch.serve,
            wake,
            self.environment.listen,
            self.environment.clock_s,
            self.environment.cpu_s,
        )
        self.flusher = Flusher(wake, self.environment.clock_s)
        self._advertised = {listener.name: listener for listener in settings.advertising()}
        self._watchdog: Watchdog | None = None
        self._ticks: list[asyncio.Task[None]] = []

    # -- starting and stopping -------------------------------------------------------------

    async def start(self) -> list[tuple[str, int]]:
        """Recover the logs, join the cluster and serve; return the addresses listened on."""
        disks = self.environment.disks(self.settings)
        self.log_manager = LogManager(disks, self.settings, self._topic_settings)
        self.log_manager.lock()
        try:
            await self._serve_metrics()
            return await self._start(disks)
        except BaseException:
            await self._give_up()
            raise

    async def _serve_metrics(self) -> None:
        """Serve metrics and health from here on: they say why a start takes long."""
        listeners = self.settings.metrics_listening()
        if listeners:
            # Imported here: a broker without metrics starts sooner.
            from hightide.broker.metrics.service import MetricsService

            self._metrics = MetricsService(self, self._server)
            await self._metrics.start(listeners)

    async def _start(self, disks: list[Disk]) -> list[tuple[str, int]]:
        loop = asyncio.get_running_loop()
        self._directory = self.environment.directory(self.settings)
        known = known_identity(disks)
        self._opened = await self.environment.open_zookeeper(
            self.settings,
            self._directory,
            lambda error: _from_thread(loop, self._fail, error),
            is_new=known is None,
        )
        client = self._client = self._opened.client
        await self._until_connected(lambda: self._identify(known))
        self.log_manager.open(self.now_ms())
        self._measure_parts()
        bound = self._server.bind(
            self.settings.listening(), self.settings.socket_listen_backlog_size
        )
        self._registration = self._registration_at(bound)
        await self._server.start()
        client.on_state(self._session_changed)
        await self._until_connected(lambda: self._join_cluster(disks))
        for watch_loop in (self._reconnect_loop, *self._watch_loops):
            watch_loop.start()
        if self.environment.has_watchdog:
            self._watchdog = Watchdog(loop, client.timeout_ms, self._loop_hung)
            self._watchdog.start()
        self._housekeeping.start()
        self._disk_monitor.start()
        self._ticks = [
            loop.create_task(task) for task in (self._tick(), self._watch_high_watermarks())
        ]
        await self._wait_for_state()
        self.producer_ids.take_ahead()
        self._dispatch.open(self._server)
        return bound

    async def _until_connected(self, step: Callable[[], Awaitable[None]]) -> None:
        """Run a step of the start, and again from its beginning if ZooKeeper goes away."""
        while True:
            try:
                return await step()
            except (ConnectionLoss, SessionLost) as failure:
                log.warning("%s; waiting for ZooKeeper", failure)
                await self._client.connected(self.settings.zookeeper_connection_timeout_ms)

    async def _identify(self, known: Identity | None) -> None:
        """Find out the cluster id and the broker id, and read the settings."""
        self._zookeeper = zookeeper = FencedSession(self._client, self._client.session_id)
        self._contact = Contact(
            self._client, zookeeper, lambda: self._state_changes.applied_epoch == self.broker_epoch
        )
        self.replica_manager.in_doubt = self._contact.in_doubt
        self.replica_manager.now_ms = self.monotonic_ms
        self.replica_manager.since_ms = lambda: self.monotonic_ms() - self._client.timeout_ms
        cluster_id, self.broker_id = await identify(zookeeper, known, self.settings)
        self.cluster_secret = ClusterSecret(
            zookeeper,
            self.environment.secret_bytes,
            is_authenticated=self.settings.zookeeper_credentials is not None,
        )
        await self.cluster_secret.read()
        self._assemble(cluster_id)
        await self._config_changes.begin()
        await self.broker_configs.read()
        await self.topic_configs.read_all()
        await self.client_metrics_configs.read_all()

    async def _join_cluster(self, disks: list[Disk]) -> None:
        """Register, and perhaps become the controller."""
        await self._register()
        remember(disks, self.metadata.cluster_id, self.broker_id)
        await self.election.check()

    async def _wait_for_state(self) -> None:
        """Wait until the controller has published what this broker leads and follows."""
        published = asyncio.ensure_future(self._state_changes.is_initialized.wait())
        waits: list[asyncio.Future[Any]] = [published, self.failed]
        while not published.done():
            await asyncio.wait(waits, timeout=_STATE_WARNING_S, return_when=asyncio.FIRST_COMPLETED)
            if self.failed.done():
                published.cancel()
                self.failed.result()
            if not published.done():
                log.warning(
                    "waiting for the controller (broker %d) to publish the cluster's state",
                    self.election.controller_id,
                )

    def _assemble(self, cluster_id: str) -> None:
        zookeeper, settings = self._zookeeper, self._settings_now
        self._listener = self.settings.inter_broker_listener()
        self.controller_channel = ControllerChannel(self, self._listener)
        self.metadata_image = MetadataImage(self.broker_id, self._listener)
        self.metadata = MetadataCache(cluster_id, self.metadata_image, self.settings.broker_rack)
        self.producer_ids = ProducerIds(zookeeper, self.broker_id)
        self._assemble_configs()
        self.peers = Peers(
            f"broker-{self.broker_id}",
            BrokerProof(self.cluster_secret, cluster_id, self.broker_id, self._epoch),
            socket_timeout_ms=lambda: self.settings.replica_socket_timeout_ms,
        )
        self.throttle = ReplicationThrottle(self.broker_id, settings)
        self._fetchers = ReplicaFetchers(
            self.broker_id,
            self._epoch,
            self.peers,
            settings,
            self.now_ms,
            self.throttle,
            self.flusher,
        )
        self._state_changes = StateChanges(
            self.metadata_image,
            zookeeper,
            self.log_manager,
            self.replica_manager,
            self._fetchers,
            self.topic_configs,
            settings,
            self._epoch,
            self.monotonic_ms,
        )
        self.verifier = Verifier(self)
        self.record_checks = RecordChecks(self.work_pool)
        self.groups = GroupPartitions(self)
        self.transactions = TransactionPartitions(self)
        self.replica_manager.on_role = self._internal_role_changed
        self._state_changes.on_topics = self.groups.topics_changed
        self._connect_replicas()
        self.election = ControllerElection(zookeeper, self.broker_id, self.now_ms)
        self.election.on_change = self._controller_changed
        self.controller = ControllerService(
            zookeeper,
            self.election,
            self.broker_id,
            settings,
            self.controller_channel.publish,
            self.controller_channel.read_logs,
            self._listener,
            random=self._random,
            new_id=self.environment.new_id,
        )
        self._config_changes = ConfigChanges(zookeeper, self._config_changed, self.now_ms)
        self._reconnect_loop = WatchLoop("the cluster after a reconnect", self._reconnected)
        self._watch_loops = (self.election.watch_loop, self._config_changes.watch_loop)
        self._housekeeping = Housekeeping(self.log_manager, self.now_ms)
        self._watch_disks()
        self._is_assembled = True

    def _assemble_configs(self) -> None:
        """What is configured in ZooKeeper: this broker, topics, the metrics of clients."""
        zookeeper, settings = self._zookeeper, self._settings_now
        self.broker_configs = BrokerConfigs(zookeeper, self.broker_id, settings, self._configured)
        self.topic_configs = TopicConfigs(zookeeper, self._topic_configured)
        self.client_telemetry = ClientTelemetry()
        self.client_metrics_configs = ClientMetricsConfigs(
            zookeeper, check_config, self.client_telemetry.configured
        )

    def _settings_now(self) -> Settings:
        return self.settings

    def _connect_replicas(self) -> None:
        """Let replicas propose ISRs and report failures to the controller."""
        channel, failures = self.controller_channel, self.replica_manager.failures
        self._isr_changes = IsrChanges(self.broker_id, self._epoch, channel.alter_partition)
        self.replica_manager.on_proposal = self._isr_changes.propose
        failures.on_change = self._fetchers.resume
        failures.connect(self.broker_id, self._epoch, channel.report_failures)
        self._repair = ReplicaRepair(
            self.broker_id,
            self.replica_manager,
            self.peers,
            lambda broker_id: self.metadata_image.endpoint(broker_id, self._listener),
        )
        self.replica_manager.on_log = self._repair.watch
        reads = self._server.checked_reads
        reads.find_log, reads.now_ms = self.log_manager.log_of, self.now_ms

    def _watch_disks(self) -> None:
        self._disk_monitor = DiskMonitor(
            self.broker_id,
            self.log_manager,
            self.replica_manager,
            self._fetchers,
            lambda: self.settings,
            self.now_ms,
            self.monotonic_ms,
        )
        self._server.on_read_failure = self._disk_monitor.read_failed

    def _measure_parts(self) -> None:
        if self._metrics is not None:
            self._metrics.logs_opened(
                self._client,
                self._zookeeper,
                self._state_changes,
                self._disk_monitor,
                self._isr_changes,
                lambda: self._dispatch.is_open,
            )

    def monotonic_ms(self) -> int:
        """Milliseconds of a clock that is never set, for durations."""
        return int(self.monotonic_s() * 1000)

    async def stop(self) -> None:
        """Let other brokers lead, answer parked requests, then close everything in order."""
        if self._metrics is not None:
            self._metrics.is_stopping = True
        if self.settings.controlled_shutdown_enable and not self.failed.done():
            await transfer_leadership(self)
        self._is_stopping = True
        if self._metrics is not None:
            await self._metrics.stop()
        if self._watchdog is not None:
            self._watchdog.stop()
        self._server.stop_reading()
        await self._stop_replication()
        self.replica_manager.end_waits()
        await self.flusher.stop()
        await self._server.stop()
        await self._dispatch.stop()
        self.work_pool.stop()
        for watch_loop in (self._reconnect_loop, *self._watch_loops):
            await watch_loop.stop()
        await self._housekeeping.stop()
        await self._disk_monitor.stop()
        self.log_manager.close(self.now_ms(), self.broker_epoch)
        if self._opened is not None:
            await self._opened.close()
            self.report_session(None)

    async def _stop_replication(self) -> None:
        for task in self._ticks:
            task.cancel()
        await self.producer_ids.stop()
        await self.controller.stop()
        await self._isr_changes.stop()
        await self.replica_manager.failures.stop()
        await self._repair.stop()
        await self._state_changes.stop()
        await self._fetchers.stop()
        await self.groups.stop()
        await self.transactions.stop()
        await self.verifier.stop()
        await self.record_checks.stop()
        await self.peers.close()

    async def _give_up(self) -> None:
        """Release everything after a failed start.  No log is closed: none was written."""
        self._is_stopping = True
        if self._metrics is not None:
            await self._metrics.stop()
        self._server.stop_reading()
        if self._is_assembled:
            await self._stop_replication()
        if self._opened is not None:
            await self._opened.close()
            self.report_session(None)
        self.log_manager.unlock()

    def _fail(self, error: Exception) -> None:
        """Make the broker stop with this error."""
        if not self._is_stopping and not self.failed.done():
            self.failed.set_exception(error)

    async def _tick(self) -> None:
        """Check ISRs for late followers, and retry roles and settings that failed."""
        while True:
            await asyncio.sleep(self.settings.replica_lag_time_max_ms / 2000)
            now_ms = self.monotonic_ms()
            self.replica_manager.check_isrs(now_ms)
            try:
                await self._state_changes.retry()
                with contextlib.suppress(ZooKeeperError):
                    await self.topic_configs.read_missing()
            except Exception:
                log.exception("cannot retry role changes; they are retried later")

    async def _watch_high_watermarks(self) -> None:
        while True:
            await asyncio.sleep(_HIGH_WATERMARKS_EVERY_S)
            self.replica_manager.check_high_watermarks(self.monotonic_ms())

    # -- the ZooKeeper session -------------------------------------------------------------

    def _session_changed(self, state: SessionState) -> None:
        self._contact.changed()
        if self._is_stopping:
            return
        if state is SessionState.CONNECTED:
            self._reconnect_loop.wake()
        elif state is not SessionState.SUSPENDED:
            self.election.stand_down("its ZooKeeper session may have ended")

    async def _reconnected(self) -> None:
        try:
            if self._client.session_id != self._registered_in:
                # All brokers may lose their sessions at once; spread their registrations.
                await asyncio.sleep(self._random.random() * _REGISTER_AGAIN_S)
                await self._register()
        except StartupRefused as refused:
            self._fail(refused)
            return
        await self._config_changes.begin()
        await self.broker_configs.read()
        await self.topic_configs.read_all()
        await self.client_metrics_configs.read_all()
        self.controller.reconnected()
        for watch_loop in self._watch_loops:
            watch_loop.wake()

    async def _register(self) -> None:
        session_id = self._client.session_id
        here = FencedSession(self._client, session_id)
        await check_cluster(here, self.metadata.cluster_id)
        # The broker epoch that the logs belong to: this process's, or that of the last clean stop.
        former = self.broker_epoch if self.broker_epoch >= 0 else self.log_manager.previous_epoch
        registration = self._registration._replace(previous_epoch=former)
        self.broker_epoch = await register(here, self.broker_id, registration)
        self._registered_in = session_id
        self._zookeeper.admit(session_id)
        self.replica_manager.failures.controller_changed()
        self._contact.changed()
        log.info("registered as broker %d, in epoch %d", self.broker_id, self.broker_epoch)
        if self._directory is not None:
            write_session_key(self._directory, self._client.session_key)
        self.report_session(self._client.session_key)

    def _registration_at(self, bound: list[tuple[str, int]]) -> znodes.BrokerRegistration:
        endpoints = []
        for listener, (host, port) in zip(self.settings.listening(), bound, strict=True):
            advertised = self._advertised.get(listener.name)
            if advertised is not None:
                host, port = advertised.host, advertised.port
            elif host in ("0.0.0.0", "::"):
                host = socket.gethostname()
            endpoints.append(znodes.Endpoint(listener.name, host, port, listener.protocol))
        return znodes.BrokerRegistration(tuple(endpoints), self.now_ms(), self.settings.broker_rack)

    def address_among_brokers(self) -> str:
        """The address at which the other brokers connect to this one."""
        (own,) = (at for at in self._registration.endpoints if at.listener == self._listener)
        return f"{own.host}:{own.port}"

    def _epoch(self) -> int:
        return self.broker_epoch

    def _loop_hung(self, silent_ms: int) -> None:
        """Give up the session: a broker that serves no request must not look alive.

        Called in the watchdog's thread.
        """
        log.error("the event loop has not run for %d ms: closing the ZooKeeper session", silent_ms)
        self._client.abandon()

    # -- the controller --------------------------------------------------------------------

    def _controller_changed(self) -> None:
        self.metadata.controller_id = self.election.controller_id
        self.controller.election_changed()
        self.replica_manager.failures.controller_changed()

    async def receive_state(self, request: PublishStateRequest) -> PublishStateResponse:
        """Apply the state of the cluster that the controller publishes."""
        error_code = await self._state_changes.receive(request)
        self.transactions.cluster_changed()
        return PublishStateResponse(error_code=error_code)

    def _internal_role_changed(self, replica: Replica) -> None:
        """The leader of a partition of an internal topic is the coordinator of its content."""
        if replica.topic == CONSUMER_OFFSETS:
            self.groups.role_changed(replica)
        else:
            self.transactions.role_changed(replica)

    # -- settings --------------------------------------------------------------------------

    def _topic_settings(self, topic: str) -> TopicSettings:
        return TopicSettings.effective(self.settings, self.topic_configs.overrides(topic))

    def _topic_configured(self, topic: str) -> None:
        self.log_manager.reconfigure(topic)
        lag_ms = self.settings.replica_lag_time_max_ms
        for replica in self.replica_manager:
            if replica.topic == topic:
                replica.configured(lag_ms)

    async def _config_changed(self, entity_path: str) -> None:
        kind, _, name = entity_path.partition("/")
        if kind == "topics":
            await self.topic_configs.notified(name)
        elif kind == znodes.CLIENT_METRICS:
            await self.client_metrics_configs.notified(name)
        elif kind == "brokers" and self.broker_configs.concerns(name):
            await self.broker_configs.read()
        self.controller.configuration_changed(entity_path)

    def _configured(self, settings: Settings) -> None:
        """The broker's settings have changed."""
        self.settings = self.log_manager.settings = settings
        by_topic: dict[str, TopicSettings] = {}
        for (topic, _), log_ in self.log_manager.logs.items():
            config = by_topic.get(topic)
            if config is None:
                config = by_topic[topic] = self._topic_settings(topic)
            log_.reconfigure(config)
        for replica in self.replica_manager:
            replica.configured(settings.replica_lag_time_max_ms)
        self.groups.settings_changed()
        self.transactions.settings_changed()
        self.on_configured(settings)

    # -- for handlers ----------------------------------------------------------------------

    @property
    def connections(self) -> Iterable[Connection]:
        """The open connections, in the order of their numbers."""
        return self._server.connections

    @property
    def zookeeper(self) -> FencedSession:
        return self._zookeeper

    def addresses(self, connection: Connection) -> list[BrokerAddress]:
        """All brokers, at the addresses that this client can reach."""
        advertised = self._advertised.get(connection.listener)
        if advertised is not None:
            host, port = advertised.host, advertised.port
        else:
            host, port = connection.local_address
        own = BrokerAddress(self.broker_id, host, port, self.settings.broker_rack)
        found = {self.broker_id: own}
        for broker, endpoint in self.metadata_image.endpoints(connection.listener):
            address = BrokerAddress(broker.broker_id, endpoint.host, endpoint.port, broker.rack)
            found.setdefault(broker.broker_id, address)
        return [found[broker_id] for broker_id in sorted(found)]


def _from_thread(
    loop: asyncio.AbstractEventLoop, function: Callable[[Exception], None], error: Exception
) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(function, error)
