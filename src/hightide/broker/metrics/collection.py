"""Collects the values of all metrics from the parts of a broker.

The collection runs on the event loop, where the parts live, and gives other connections a turn
after each bounded step.  So the values of different partitions are from slightly different times.
What reads files, and the text, come after it in a thread (`samples.py`).
"""

from __future__ import annotations

import platform
from array import array
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import hightide
from hightide import event_log
from hightide.broker.metrics import declarations as m
from hightide.broker.metrics.counters import FOLLOWER_FETCH, RECENT, ApiCounts, TopicTraffic
from hightide.broker.metrics.declarations import Metric
from hightide.broker.metrics.samples import Samples, add_process, recent_of
from hightide.broker.network.server import Server
from hightide.broker.network.turn import Turn
from hightide.broker.replication.replica import Replica
from hightide.core.partition.leader import Leader
from hightide.core.partition.state import NO_BROKER, PartitionState, effective_min_isr
from hightide.log.disk import Disk, DiskFailed
from hightide.log.disk_state import DiskStatus
from hightide.wire.errors import ErrorCode
from hightide.wire.hot.replica_fetch_codec import FETCH
from hightide.wire.messages import APIS
from hightide.zookeeper.interface import SessionState

if TYPE_CHECKING:
    from hightide.broker.broker import Broker
    from hightide.broker.metrics.group_lag import GroupLags
    from hightide.broker.metrics.health import Parts
    from hightide.broker.metrics.loop_watch import LoopWatch

_STEPS = 16  # partitions, topics or offsets between two looks at the clock
_MS = 1000
_FETCHES = {FETCH: "FetchConsumer", FOLLOWER_FETCH: "FetchFollower"}
_STARTING, _RUNNING, _STOPPING = 1, 3, 6
_TRAFFIC: tuple[tuple[Metric, str], ...] = (
    (m.MESSAGES_IN, "messages_in"),
    (m.BYTES_IN, "bytes_in"),
    (m.BYTES_OUT, "bytes_out"),
    (m.PRODUCE_REQUESTS, "produces"),
    (m.FAILED_PRODUCE_REQUESTS, "failed_produces"),
    (m.FETCH_REQUESTS, "fetches"),
    (m.FAILED_FETCH_REQUESTS, "failed_fetches"),
)


class Collector:
    """Makes one collection after the other."""

    def __init__(
        self, broker: Broker, server: Server, loop_watch: LoopWatch, group_lags: GroupLags
    ) -> None:
        self._broker = broker
        self._server = server
        self._loop_watch = loop_watch
        self._group_lags = group_lags

    async def collect(self, parts: Parts | None, turn: Turn, *, is_stopping: bool) -> Samples:
        """Return the values of all metrics; without parts, of the little that a start has."""
        samples = Samples()
        began_s = self._broker.environment.clock_s()
        is_running = parts is not None and parts.is_serving()
        samples.add(
            m.BROKER_STATE, _STOPPING if is_stopping else _RUNNING if is_running else _STARTING
        )
        self._collect_process(samples)
        self._collect_requests(samples)
        await turn.pause()
        await self._collect_traffic(samples, turn)
        if parts is not None:
            self._collect_zookeeper(samples, parts)
            await self._collect_partitions(samples, turn)
            await self._collect_cluster(samples, turn)
            flushes = self._broker.flusher.durations
            recent = [seconds * _MS for seconds in flushes.recent_s]
            samples.add_summary(m.FLUSH_TIME, recent, flushes.count, flushes.sum_s * _MS)
            samples.add(m.FAILED_ISR_UPDATES, parts.isr_changes.refused_count)
            await self._collect_coordinators(samples, turn)
            await self._group_lags.collect(samples, turn)
            self._collect_clients(samples)
            for disk, status in parts.disk_monitor.statuses():
                samples.add(m.DIRECTORY_OFFLINE, status is DiskStatus.FAILED, disk.name)
            samples.add(m.OFFLINE_DIRECTORIES, parts.disk_monitor.failed_count)
        samples.add(m.COLLECTION_SECONDS, self._broker.environment.clock_s() - began_s)
        return samples

    # -- process and network ---------------------------------------------------------------

    def _collect_process(self, samples: Samples) -> None:
        broker_id = str(self._broker.broker_id)
        labels = (hightide.__version__, platform.python_version(), broker_id)
        samples.add(m.BUILD_INFO, 1, *labels)
        counts = event_log.ring.counts
        for kind, count in sorted(counts.items()):
            samples.add(m.EVENTS, count, kind)
        samples.add(m.ISR_SHRINKS, counts["isr_shrunk"])
        samples.add(m.ISR_EXPANDS, counts["isr_grown"])
        unclean = counts["unclean_leader_elected"]
        samples.add(m.UNCLEAN_ELECTIONS, unclean)
        samples.add(m.LEADER_ELECTIONS, counts["leader_elected"] + unclean)
        watch = self._loop_watch
        samples.add(m.NETWORK_IDLE, watch.idle)
        samples.add(m.HANDLER_IDLE, watch.idle)
        samples.add_summary(m.LOOP_LAG, list(watch.lags_s), watch.count, watch.lag_sum_s)

    def _collect_requests(self, samples: Samples) -> None:
        broker = self._broker
        for key, counts in broker.requests:
            name = _FETCHES.get(key) or (APIS[key][0] if key in APIS else str(key))
            for version, counted in sorted(counts.versions.items()):
                if counted.requests:
                    samples.add(m.REQUESTS, counted.requests, name, str(version))
            for code, count in sorted(counts.errors.items()):
                samples.add(m.ERRORS, count, name, error_name(code))
            if counts.samples:
                _add_times(samples, counts, name)
        server = self._server
        for listener, count in server.per_listener.items():
            samples.add(m.CONNECTIONS, count, listener)
        samples.add(m.CONNECTIONS_CREATED, server.accepted)
        samples.add(m.CONNECTIONS_REFUSED, server.refused)
        samples.add(m.FETCH_SESSIONS, len(broker.fetch_sessions))

    async def _collect_traffic(self, samples: Samples, turn: Turn) -> None:
        traffic = self._broker.replica_manager.traffic
        for at, replica in enumerate(list(self._broker.replica_manager)):
            if at % _STEPS == 0:
                await turn.pause()
            replica.count_appends()
        total = TopicTraffic()
        total.add(traffic.elsewhere)
        for at, (topic, counted) in enumerate(list(traffic.topics.items())):
            if at % _STEPS == 0:
                await turn.pause()
            total.add(counted)
            for metric, name in _TRAFFIC:
                samples.add(metric, getattr(counted, name), topic)
        for metric, name in _TRAFFIC:
            samples.add(metric, getattr(total, name))
        samples.add(m.REPLICATION_BYTES_IN, traffic.replication_bytes_in)
        samples.add(m.REPLICATION_BYTES_OUT, traffic.replication_bytes_out)

    def _collect_zookeeper(self, samples: Samples, parts: Parts) -> None:
        client = parts.zookeeper
        for state in SessionState:
            samples.add(m.ZOOKEEPER_STATE, client.state is state, state.value)
        samples.add(m.ZOOKEEPER_DISCONNECTS, parts.disconnects)
        samples.add(m.ZOOKEEPER_EXPIRES, parts.expires)
        # A ZooKeeper that the simulator replaces does not measure its calls.
        calls = getattr(client, "call_times", None)
        if calls is not None:
            recent = [seconds * _MS for seconds in calls.recent_s]
            samples.add_summary(m.ZOOKEEPER_LATENCY, recent, calls.count, calls.sum_s * _MS)

    # -- partitions ------------------------------------------------------------------------

    async def _collect_partitions(self, samples: Samples, turn: Turn) -> None:
        replicas = list(self._broker.replica_manager)
        totals: Counter[Metric] = Counter()
        waiting: set[int] = set()
        writes = max_lag = 0
        now_ms = self._broker.monotonic_ms()
        for at, replica in enumerate(replicas):
            if at % _STEPS == 0:
                await turn.pause()
                now_ms = self._broker.monotonic_ms()
            index = str(replica.partition)
            _add_log(samples, replica, index)
            purgatory = replica.purgatory
            writes += purgatory.write_count
            waiting |= purgatory.waiting_fetches()
            totals[m.OFFLINE_REPLICAS] += replica.failure is not None
            totals[m.PRODUCER_IDS] += len(replica.log.producers)
            leader = replica.leader
            if leader is not None:
                totals[m.OPEN_TRANSACTIONS] += len(replica.log.transactions.opened)
                max_lag = max(max_lag, _add_followers(samples, replica, leader, index, now_ms))
                totals.update(_add_led(samples, replica, leader, index))
        samples.add(m.PARTITION_COUNT, len(replicas))
        for metric in (
            m.LEADER_COUNT,
            m.UNDER_REPLICATED,
            m.UNDER_MIN_ISR_COUNT,
            m.AT_MIN_ISR_COUNT,
            m.OFFLINE_REPLICAS,
            m.REASSIGNING,
            m.PRODUCER_IDS,
            m.OPEN_TRANSACTIONS,
        ):
            samples.add(metric, totals[metric])
        samples.add(m.MAX_LAG, max_lag)
        samples.add(m.PURGATORY_SIZE, writes, "Produce")
        samples.add(m.PURGATORY_SIZE, len(waiting), "Fetch")

    async def _collect_cluster(self, samples: Samples, turn: Turn) -> None:
        broker = self._broker
        image, is_controller = broker.metadata_image, broker.election.is_controller
        samples.add(m.ACTIVE_CONTROLLER, is_controller)
        topics = list(image) if is_controller else []
        partitions = offline = not_preferred = 0
        for at, topic in enumerate(topics):
            if at % _STEPS == 0:
                await turn.pause()
            samples.add(m.TOPIC_PARTITIONS, len(topic.partitions), topic.name)
            partitions += len(topic.partitions)
            for index, state in topic.partitions.items():
                leader = image.leader(state)
                not_preferred += leader != state.replicas[0]
                if leader == NO_BROKER:
                    offline += 1
                    replica = broker.replica_manager.get(topic.name.encode(), index)
                    if replica is None or replica.leader is None:  # else it was added above
                        _add_state(samples, state, leader, topic.name, str(index))
        samples.add(m.GLOBAL_TOPICS, len(topics))
        samples.add(m.GLOBAL_PARTITIONS, partitions)
        samples.add(m.OFFLINE_PARTITIONS, offline)
        samples.add(m.PREFERRED_IMBALANCE, not_preferred)
        samples.add(m.ACTIVE_BROKERS, len(image.live) if is_controller else 0)
        if is_controller:
            samples.add(m.BROKERS, len(image.live))
            for broker_id, published in sorted(image.brokers.items()):
                for endpoint in published.endpoints[:1]:
                    address = f"{endpoint.host}:{endpoint.port}"
                    samples.add(m.BROKER_INFO, 1, str(broker_id), address)

    # -- coordinators ----------------------------------------------------------------------

    async def _collect_coordinators(self, samples: Samples, turn: Turn) -> None:
        states: Counter[str] = Counter()
        waiting = 0
        for partition in list(self._broker.groups):
            waiting += partition.pending_count
            for at, group in enumerate(partition.coordinator.administration.all()):
                if at % _STEPS == 0:
                    await turn.pause()
                states[group.state.value] += 1
                samples.add(m.GROUP_MEMBERS, len(group.members), group.id)
        samples.add(m.GROUPS, states.total())
        for state, metric in m.GROUP_STATES.items():
            samples.add(metric, states[state])
        samples.add(m.PURGATORY_SIZE, waiting, "Rebalance")
        ids: Counter[str] = Counter()
        for coordinator in self._broker.transactions.coordinators:
            for at, transaction in enumerate(list(coordinator.transactions.values())):
                if at % _STEPS == 0:
                    await turn.pause()
                ids[transaction.state.title] += 1
        for state, count in sorted(ids.items()):
            samples.add(m.TRANSACTIONAL_IDS, count, state)

    def _collect_clients(self, samples: Samples) -> None:
        telemetry = self._broker.client_telemetry
        samples.clients = telemetry.snapshot(self._broker.monotonic_ms())
        counts = telemetry.instances.counts
        samples.add(m.CLIENTS, len(telemetry.instances))
        for result, count in (
            ("taken", counts.pushed),
            ("throttled", counts.throttled),
            ("unknown_subscription", counts.unknown_subscription),
            ("invalid", counts.invalid),
        ):
            samples.add(m.CLIENT_PUSHES, count, result)
        samples.add(m.CLIENT_VALUES_BYTES, telemetry.metrics.size_bytes)
        samples.add(m.CLIENT_VALUES_DROPPED, telemetry.metrics.dropped)


def add_from_system(samples: Samples, disks: Iterable[Disk]) -> None:
    """Add what the operating system knows.  Runs in a thread: a file system may hang."""
    add_process(samples)
    for disk in disks:
        try:
            total, free = disk.space()
        except DiskFailed:
            continue
        if total >= 0:  # a disk in memory has no size
            samples.add(m.DIRECTORY_TOTAL_BYTES, total, disk.name)
            samples.add(m.DIRECTORY_FREE_BYTES, free, disk.name)
    try:
        with open("/proc/self/io", encoding="ascii") as file:
            counted = dict(line.split(": ") for line in file)
    except (OSError, ValueError):
        return
    samples.add(m.DISK_READ_BYTES, int(counted["read_bytes"]))
    samples.add(m.DISK_WRITE_BYTES, int(counted["write_bytes"]))


def error_name(code: int) -> str:
    """Return Kafka's name of an error."""
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)


class _Times(NamedTuple):
    """The times of the last samples of an API, in milliseconds."""

    queued: array[float]
    local: array[float]
    remote: array[float]
    behind: array[float]
    total: array[float]


def _add_times(samples: Samples, counts: ApiCounts, name: str) -> None:
    times = _times(counts)
    versions = counts.versions.values()
    local_ms = sum(version.local_s for version in versions) * _MS
    remote_ms = counts.remote_s * _MS
    count = sum(version.requests for version in versions)
    for metric, recent, total in (
        (m.TOTAL_TIME, times.total, local_ms + remote_ms),
        (m.QUEUE_TIME, times.queued, None),
        (m.LOCAL_TIME, times.local, local_ms),
        (m.REMOTE_TIME, times.remote, remote_ms),
        (m.RESPONSE_QUEUE_TIME, times.behind, None),
    ):
        samples.add_summary(metric, recent, count, total, name)
    if counts.sent:
        sent = array("d", (seconds * _MS for seconds in counts.send_s))
        samples.add_summary(m.RESPONSE_SEND_TIME, sent, counts.sent, None, name)


def _times(counts: ApiCounts) -> _Times:
    count = counts.samples
    queued = array("d", (seconds * _MS for seconds in recent_of(counts.queued, count)))
    local = array("d", (seconds * _MS for seconds in recent_of(counts.local, count)))
    remote, behind = array("d", bytes(8 * len(local))), array("d", bytes(8 * len(local)))
    for ring, waits in ((remote, counts.remote), (behind, counts.behind)):
        for at, (number, seconds) in waits.items():
            if count - RECENT <= number < count:
                ring[at] = seconds * _MS
    total = array("d", map(sum, zip(queued, local, remote, behind, strict=True)))
    return _Times(queued, local, remote, behind, total)


def _add_log(samples: Samples, replica: Replica, index: str) -> None:
    log, topic = replica.log, replica.topic
    samples.add(m.LOG_SIZE, log.size_bytes, topic, index)
    samples.add(m.LOG_START, log.start_offset, topic, index)
    samples.add(m.LOG_END, log.end_offset, topic, index)
    samples.add(m.LOG_SEGMENTS, len(log.segments), topic, index)


def _add_led(samples: Samples, replica: Replica, leader: Leader, index: str) -> dict[Metric, int]:
    """Add what the leader of a partition reports; return what counts in the totals."""
    topic, state = replica.topic, leader.state
    is_under = len(state.isr) < len(state.replicas)
    least = effective_min_isr(replica.log.config.min_insync_replicas, state.replicas)
    is_under_min, is_at_min = len(state.isr) < least, len(state.isr) == least
    samples.add(m.PARTITION_UNDER_REPLICATED, is_under, topic, index)
    samples.add(m.PARTITION_UNDER_MIN_ISR, is_under_min, topic, index)
    samples.add(m.PARTITION_AT_MIN_ISR, is_at_min, topic, index)
    samples.add(m.CURRENT_OFFSET, replica.high_watermark, topic, index)
    samples.add(m.OLDEST_OFFSET, replica.log.start_offset, topic, index)
    _add_state(samples, state, leader.broker_id, topic, index)
    samples.add(m.LEADER_IS_PREFERRED, state.replicas[0] == leader.broker_id, topic, index)
    return {
        m.LEADER_COUNT: 1,
        m.UNDER_REPLICATED: is_under,
        m.UNDER_MIN_ISR_COUNT: is_under_min,
        m.AT_MIN_ISR_COUNT: is_at_min,
        m.REASSIGNING: state.is_reassigning,
    }


def _add_state(
    samples: Samples, state: PartitionState, leader: int, topic: str, index: str
) -> None:
    samples.add(m.PARTITION_LEADER, leader, topic, index)
    samples.add(m.REPLICAS, len(state.replicas), topic, index)
    samples.add(m.IN_SYNC_REPLICAS, len(state.isr), topic, index)
    is_under = leader == NO_BROKER or len(state.isr) < len(state.replicas)
    samples.add(m.UNDER_REPLICATED_PARTITION, is_under, topic, index)


def _add_followers(
    samples: Samples, replica: Replica, leader: Leader, index: str, now_ms: int
) -> int:
    """Add how far each follower is; return how many records the last of them lacks."""
    worst = 0
    for broker_id in leader.state.replicas:
        progress = leader.progress(broker_id, now_ms)
        labels = (replica.topic, index, str(broker_id))
        if progress.end_offset is not None:
            samples.add(m.REPLICA_END_OFFSET, progress.end_offset, *labels)
        if progress.lag_records is not None:
            samples.add(m.REPLICA_LAG_RECORDS, progress.lag_records, *labels)
            worst = max(worst, progress.lag_records)
        if progress.lag_ms is not None:
            samples.add(m.REPLICA_LAG_SECONDS, progress.lag_ms / _MS, *labels)
    return worst
