"""Replica fetchers: one task, one connection and one fetch session for each leader.

    ReplicaFetchers ─┬─▶ fetcher of broker 2 ── request ─▶ response ─▶ Replica.apply_response ─┐
                     │                            ▲                                            │
                     │                            └── next position of each partition ─────────┘
                     └─▶ fetcher of broker 3 …

Requests follow one another without a pause, except after an error: the leader holds a request while
it has nothing to send.  A request names only the partitions whose position has changed since the
last one (`core/partition/fetch_session_client.py`), and only those are looked at; idle partitions
cost nothing.

A partition that is added while a request waits at the leader is fetched at once, by a second
request behind it on the same connection, upon which the leader answers the first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from hightide.broker.replication.flusher import Flusher
from hightide.broker.replication.peers import Peers
from hightide.broker.replication.replica import Replica
from hightide.broker.replication.replication_throttle import ReplicationThrottle
from hightide.client import replica_fetch
from hightide.client.broker_connection import CODES, Connection, ConnectionFailed
from hightide.core.partition.fetch_session import TopicPartition
from hightide.core.partition.fetch_session_client import (
    OUT_OF_STEP,
    FetchSessionClient,
    SessionRequest,
)
from hightide.core.partition.follower import Action, FetchPosition, Follower, Step
from hightide.log.disk import DiskFailed
from hightide.settings import Broker as Settings
from hightide.wire.errors import Corrupt, ErrorCode, KafkaError
from hightide.wire.hot.fetch_codec import Fetch
from hightide.wire.hot.replica_fetch_codec import ReceivedPartition, ReplicaFetchResponse
from hightide.wire.messages.replication import PublishedEndpoint

log = logging.getLogger(__name__)

PURPOSE = "fetch"
_FIRST_PAUSE_MS = 50
# The leader of a new partition may learn of it a little later than its followers.
_FIRST_COPY_PAUSE_MS = 10
# While records come in, the next request is soon sent; one ahead of it would fetch them twice.
_BUSY_PATIENCE_S = 0.02
# Bytes that are copied before other tasks get a turn.
_TURN_BYTES = 1024 * 1024
# A leader may take this much longer than the request's max_wait_ms.
_GRACE_MS = 1000
_READ_UNCOMMITTED = 0


class FollowedPartition:
    """A replica that this broker follows, under one leader."""

    __slots__ = (
        "follower",
        "is_flushing",
        "is_reported",
        "key",
        "must_rejoin",
        "pause_ms",
        "replica",
        "timer",
    )

    def __init__(self, key: TopicPartition, replica: Replica, follower: Follower) -> None:
        self.key = key
        self.replica = replica
        self.follower = follower
        self.pause_ms = 0
        self.timer: asyncio.TimerHandle | None = None
        self.must_rejoin = False
        self.is_reported = False
        self.is_flushing = False

    @property
    def is_current(self) -> bool:
        """Whether the replica still has the role in which it is copied."""
        return self.replica.follower is self.follower

    @property
    def name(self) -> str:
        return f"{self.replica.topic}-{self.replica.partition}"

    def position(self) -> FetchPosition | None:
        if self.timer is not None or self.is_flushing or not self.is_current:
            return None
        failure = self.replica.failure
        if failure is not None and not failure.is_copying:
            return None
        return self.follower.position()

    def end(self) -> None:
        if self.timer is not None:
            self.timer.cancel()


class ReplicaFetchers:
    """The fetchers of this broker, by leader, and which of them copies each partition."""

    def __init__(
        self,
        broker_id: int,
        broker_epoch: Callable[[], int],
        peers: Peers,
        settings: Callable[[], Settings],
        now_ms: Callable[[], int],
        throttle: ReplicationThrottle,
        flusher: Flusher | None = None,
    ) -> None:
        self.broker_id = broker_id
        self.broker_epoch = broker_epoch
        self.peers = peers
        self.settings = settings
        self.now_ms = now_ms
        self.throttle = throttle
        self.flusher = flusher or Flusher(lambda: None)
        self._by_leader: dict[int, ReplicaFetcher] = {}
        self._by_partition: dict[TopicPartition, ReplicaFetcher] = {}

    def follow(self, replica: Replica, endpoint: PublishedEndpoint | None) -> None:
        """Copy a replica from its leader; not at all while the leader's `endpoint` is None."""
        key = _key(replica)
        former = self._by_partition.pop(key, None)
        fetcher = None
        if endpoint is not None:
            assert replica.state is not None
            fetcher = self._by_leader.get(replica.state.leader)
            if fetcher is None:
                fetcher = ReplicaFetcher(self, replica.state.leader, endpoint)
                self._by_leader[fetcher.leader_id] = fetcher
            fetcher.move(endpoint)
        if former is not None and former is not fetcher:
            former.leave(key)
        if fetcher is not None:
            self._by_partition[key] = fetcher
            fetcher.follow(key, replica)

    def leave(self, replica: Replica) -> None:
        """Stop copying a replica."""
        key = _key(replica)
        fetcher = self._by_partition.pop(key, None)
        if fetcher is not None:
            fetcher.leave(key)

    def refollow(self, replica: Replica) -> None:
        """The replica has another log: fetch from its end."""
        key = _key(replica)
        if key in self._by_partition and replica.follower is not None:
            self._by_partition[key].follow(key, replica)

    def resume(self, replica: Replica) -> None:
        """The replica's failure has changed or ended: look whether to fetch it."""
        key = _key(replica)
        if key in self._by_partition:
            self._by_partition[key].resume(key)

    async def stop(self) -> None:
        fetchers = list(self._by_leader.values())
        self._by_leader.clear()
        self._by_partition.clear()
        for fetcher in fetchers:
            await fetcher.stop()


class ReplicaFetcher:
    """Copies all replicas that follow one leader."""

    def __init__(
        self, shared: ReplicaFetchers, leader_id: int, endpoint: PublishedEndpoint
    ) -> None:
        self.leader_id = leader_id
        self._shared = shared
        self._endpoint = endpoint
        self._connection: Connection | None = None
        self._session = FetchSessionClient()
        self._followed: dict[TopicPartition, FollowedPartition] = {}
        # Partitions whose position may have changed since the last request.
        self._changed: dict[TopicPartition, None] = {}
        self._is_waiting = False
        self._is_busy = False
        self._hurry_timer: asyncio.TimerHandle | None = None
        self._ahead: tuple[SessionRequest, asyncio.Future[memoryview]] | None = None
        self._has_work = asyncio.Event()
        self._pause_ms = 0
        self._task = asyncio.get_running_loop().create_task(self._run())

    # -- partitions ------------------------------------------------------------------------

    def follow(self, key: TopicPartition, replica: Replica) -> None:
        follower = replica.follower
        assert follower is not None
        followed = self._followed.get(key)
        if followed is not None:
            if followed.replica is replica and followed.follower is follower:
                return
            followed.end()
        self._followed[key] = FollowedPartition(key, replica, follower)
        self._mark_changed(key)

    def leave(self, key: TopicPartition) -> None:
        self._followed.pop(key).end()
        # The next request tells the leader; until then its records for the partition are ignored.
        self._changed[key] = None

    def resume(self, key: TopicPartition) -> None:
        self._mark_changed(key)

    def move(self, endpoint: PublishedEndpoint) -> None:
        """The leader has this address."""
        if endpoint != self._endpoint:
            self._endpoint = endpoint
            self._pause_ms = 0
            self._has_work.set()
            if self._connection is not None:
                self._connection.close()

    async def stop(self) -> None:
        self._task.cancel()
        for followed in self._followed.values():
            followed.end()
        await asyncio.gather(self._task, return_exceptions=True)

    def _mark_changed(self, key: TopicPartition) -> None:
        """Put the partition's position into the next request, and send that soon."""
        self._changed[key] = None
        if self._is_waiting:
            self._hurry()
        else:
            self._has_work.set()

    # -- the connection --------------------------------------------------------------------

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._has_work.clear()
            if not self._followed:
                await self._has_work.wait()
                continue
            began_s = loop.time()
            try:
                await self._fetch(self._endpoint)
            except (ConnectionFailed, KafkaError) as error:
                if self._pause_ms == 0:
                    log.warning("cannot fetch from broker %d: %s", self.leader_id, error)
                await self._pause(began_s)
            except Exception:
                log.exception("fetching from broker %d failed", self.leader_id)
                await self._pause(began_s)

    async def _pause(self, began_s: float) -> None:
        """Back off, longer each time, unless the leader moves or there is something new to copy.

        The pause counts from the beginning of the failed attempt: one that waited for a host that
        is cut off was a pause already, and the next must notice soon that the network has healed.
        """
        most = self._shared.settings().replica_fetch_backoff_ms
        self._pause_ms = min(max(_FIRST_PAUSE_MS, 2 * self._pause_ms), most)
        try:
            async with asyncio.timeout_at(began_s + self._pause_ms / 1000):
                await self._has_work.wait()
        except TimeoutError:
            pass

    async def _fetch(self, endpoint: PublishedEndpoint) -> None:
        """Fetch over one connection until it fails or the leader has another address."""
        connection = await self._shared.peers.connection(endpoint, PURPOSE)
        self._connection = connection
        self._session = FetchSessionClient(self._session.session_id)
        self._changed = dict.fromkeys(self._followed)
        try:
            while endpoint is self._endpoint:
                await self._round(connection)
        except ConnectionFailed:
            connection.close()
            if endpoint == self._endpoint:
                raise
        finally:
            self._connection = None
            self._drop_ahead()

    # -- requests --------------------------------------------------------------------------

    async def _round(self, connection: Connection) -> None:
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            self._has_work.clear()
            request = self._next_request(self._positions())
            if request is None:
                if not self._changed:
                    await self._has_work.wait()
                return
            coming = self._send(connection, request)
        else:
            request, coming = ahead
        self._is_waiting = True
        if self._changed:
            self._hurry()
        try:
            frame = await coming
        finally:
            self._is_waiting = False
            if self._hurry_timer is not None:
                self._hurry_timer.cancel()
                self._hurry_timer = None
        await self._apply_response(request, replica_fetch.read(connection, frame))
        connection.recycle(frame)

    def _hurry(self) -> None:
        """Send the new partitions now, and not when the leader answers the waiting request."""
        if self._hurry_timer is None and self._ahead is None:
            patience = _BUSY_PATIENCE_S if self._is_busy else 0
            loop = asyncio.get_running_loop()
            self._hurry_timer = loop.call_later(patience, self._send_ahead)

    def _send_ahead(self) -> None:
        self._hurry_timer = None
        connection = self._connection
        if connection is None or not connection.is_open() or not self._session.may_pipeline:
            return
        positions = self._positions()
        if not self._session.has_changes(positions):
            self._changed.update(dict.fromkeys(positions))
            return
        request = self._next_request(positions)
        assert request is not None
        self._ahead = request, self._send(connection, request)

    def _drop_ahead(self) -> None:
        if self._ahead is not None:
            _, coming = self._ahead
            self._ahead = None
            if not coming.cancel() and not coming.cancelled():
                coming.exception()  # retrieved; the reason is known already

    def _positions(self) -> dict[TopicPartition, FetchPosition | None]:
        """The positions of changed partitions; None for those not to be fetched now."""
        changed, self._changed = self._changed, {}
        return {key: self._position(key) for key in changed}

    def _position(self, key: TopicPartition) -> FetchPosition | None:
        followed = self._followed.get(key)
        if followed is None:
            return None
        if followed.must_rejoin:
            followed.must_rejoin = False
            self._changed[key] = None
            return None
        throttle = self._shared.throttle
        if followed.timer is None and not throttle.may_copy(followed.replica):
            self._pause_copy(followed, throttle.copy_delay_ms())
        try:
            return followed.position()
        except Exception:
            # One broken log must not keep the other partitions from being copied.
            if not followed.is_reported:
                log.exception("cannot determine the fetch position of %s", followed.name)
            self._retry(followed, "an error inside this broker")
            return None

    def _next_request(
        self, positions: dict[TopicPartition, FetchPosition | None]
    ) -> SessionRequest | None:
        return self._session.next_request(
            positions, self._shared.settings().replica_fetch_max_bytes
        )

    def _send(self, connection: Connection, request: SessionRequest) -> asyncio.Future[memoryview]:
        shared, settings = self._shared, self._shared.settings()
        # The request that opens a session must be answered at once: partitions can only be added
        # to a session that exists.
        is_patient = not request.is_full or self._session.is_refused
        wait_ms = settings.replica_fetch_wait_max_ms if is_patient else 0
        fetch = Fetch(
            shared.broker_id,
            wait_ms,
            settings.replica_fetch_min_bytes,
            settings.replica_fetch_response_max_bytes,
            _READ_UNCOMMITTED,
            request.session_id,
            request.session_epoch,
            request.topics,
            request.forgotten,
            None,
            shared.broker_epoch(),
        )
        timeout_ms = max(settings.replica_socket_timeout_ms, wait_ms + _GRACE_MS)
        return replica_fetch.ask(connection, fetch, timeout_ms=timeout_ms)

    # -- responses -------------------------------------------------------------------------

    async def _apply_response(
        self, request: SessionRequest, response: ReplicaFetchResponse
    ) -> None:
        code = CODES.get(response.error_code, ErrorCode.UNKNOWN_SERVER_ERROR)
        self._session.answered(request, code, response.session_id)
        if code is not ErrorCode.NONE:
            if code in OUT_OF_STEP and not request.is_full:
                return
            raise KafkaError(code, f"its response is {code.name}")
        if self._pause_ms:
            log.info("fetching from broker %d works again", self.leader_id)
            self._pause_ms = 0
        self._is_busy = False
        copied = 0
        for topic, results in response.topics:
            for received in results:
                if copied >= _TURN_BYTES:
                    await asyncio.sleep(0)
                    copied = 0
                if received.records:
                    copied += len(received.records)
                    self._is_busy = True
                self._apply_partition((topic, received.partition), request, received)

    def _apply_partition(
        self, key: TopicPartition, request: SessionRequest, received: ReceivedPartition
    ) -> None:
        followed = self._followed.get(key)
        asked = self._session.requested_position(request, key)
        if followed is None or asked is None or not followed.is_current:
            return
        self._changed[key] = None
        if asked.leader_epoch != followed.follower.state.leader_epoch:
            # The request was sent in a role that has ended.
            return
        try:
            step = followed.replica.apply_response(asked, received, self._shared.now_ms())
        except (Corrupt, DiskFailed, KafkaError) as error:
            self._retry(followed, str(error))
        except Exception:
            if not followed.is_reported:
                log.exception(
                    "cannot append records of %s from broker %d", followed.name, self.leader_id
                )
            self._retry(followed, "an error inside this broker")
        else:
            self._carry_out(followed, received, step)

    def _carry_out(
        self, followed: FollowedPartition, received: ReceivedPartition, step: Step
    ) -> None:
        match step.action:
            case Action.APPEND:
                followed.pause_ms = 0
                followed.is_reported = False
                if received.records:
                    self._shared.throttle.copied(followed.replica, len(received.records))
                    if followed.replica.needs_flush:
                        self._flush(followed)
            case Action.ASK_AGAIN:
                # The response was ignored, but the leader takes its content for received. So the
                # partition leaves the fetch session and joins it again.
                followed.must_rejoin = True
            case Action.BACK_OFF:
                self._retry(followed, _why(received.error_code))

    def _flush(self, followed: FollowedPartition) -> None:
        """Flush before the next fetch, whose offset tells the leader what this replica has."""
        followed.is_flushing = True

        def flushed(_task: asyncio.Task[None]) -> None:
            followed.is_flushing = False
            if self._followed.get(followed.key) is followed:
                self._mark_changed(followed.key)

        self._shared.flusher.flush(followed.replica).add_done_callback(flushed)

    def _retry(self, followed: FollowedPartition, why: str) -> None:
        """Leave a partition out of requests for a while, longer each time."""
        most = self._shared.settings().replica_fetch_backoff_ms
        followed.pause_ms = min(max(_FIRST_COPY_PAUSE_MS, 2 * followed.pause_ms), most)
        self._pause_copy(followed, followed.pause_ms)
        # Just after an election, leader and followers do not learn of it at the same time.
        if followed.pause_ms >= most and not followed.is_reported:
            followed.is_reported = True
            log.warning(
                "cannot copy %s from broker %d: %s; retrying every %d ms",
                followed.name,
                self.leader_id,
                why,
                most,
            )

    def _pause_copy(self, followed: FollowedPartition, delay_ms: int) -> None:
        if followed.timer is None:
            loop = asyncio.get_running_loop()
            followed.timer = loop.call_later(delay_ms / 1000, self._resume, followed)

    def _resume(self, followed: FollowedPartition) -> None:
        followed.timer = None
        self._mark_changed(followed.key)


def _key(replica: Replica) -> TopicPartition:
    return replica.topic_id.bytes, replica.partition


def _why(error_code: int) -> str:
    code = CODES.get(error_code)
    if code is None:
        return f"the unknown error code {error_code}"
    return "its response cannot be applied" if code is ErrorCode.NONE else code.name
