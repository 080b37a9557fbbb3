"""Replica fetchers: one task, one connection and one fetch session for each leader.

    Fetchers ──┬─▶ Fetcher of broker 2 ── request ─▶ response ─▶ Replica.apply_response ─┐
               │                            ▲                                            │
               │                            └── next position of each partition ─────────┘
               └─▶ Fetcher of broker 3 …

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
from hightide.client.connection import CODES, Connection, ConnectionFailed
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


class Copy:
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
        return self.follower.position()

    def end(self) -> None:
        if self.timer is not None:
            self.timer.cancel()


class Fetchers:
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
        self._by_leader: dict[int, Fetcher] = {}
        self._by_partition: dict[TopicPartition, Fetcher] = {}

    def follow(self, replica: Replica, endpoint: PublishedEndpoint | None) -> None:
        """Copy a replica from its leader; not at all while the leader's `endpoint` is None."""
        key = _key(replica)
        former = self._by_partition.pop(key, None)
        fetcher = None
        if endpoint is not None:
            assert replica.state is not None
            fetcher = self._by_leader.get(replica.state.leader)
            if fetcher is None:
                fetcher = Fetcher(self, replica.state.leader, endpoint)
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

    async def stop(self) -> None:
        fetchers = list(self._by_leader.values())
        self._by_leader.clear()
        self._by_partition.clear()
        for fetcher in fetchers:
            await fetcher.stop()


class Fetcher:
    """Copies all replicas that follow one leader."""

    def __init__(self, shared: Fetchers, leader_id: int, endpoint: PublishedEndpoint) -> None:
        self.leader_id = leader_id
        self._shared = shared
        self._endpoint = endpoint
        self._connection: Connection | None = None
        self._session = FetchSessionClient()
        self._copies: dict[TopicPartition, Copy] = {}
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
        copy = self._copies.get(key)
        if copy is not None:
            if copy.replica is replica and copy.follower is follower:
                return
            copy.end()
        self._copies[key] = Copy(key, replica, follower)
        self._mark_changed(key)

    def leave(self, key: TopicPartition) -> None:
        self._copies.pop(key).end()
        # The next request tells the leader; until then its records for the partition are ignored.
        self._changed[key] = None

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
        for copy in self._copies.values():
            copy.end()
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
        while True:
            self._has_work.clear()
            if not self._copies:
                await self._has_work.wait()
                continue
            try:
                await self._fetch(self._endpoint)
            except (ConnectionFailed, KafkaError) as error:
                if self._pause_ms == 0:
                    log.warning("cannot fetch from broker %d: %s", self.leader_id, error)
                await self._pause()
            except Exception:
                log.exception("fetching from broker %d failed", self.leader_id)
                await self._pause()

    async def _pause(self) -> None:
        """Back off, longer each time, unless the leader moves or there is something new to copy."""
        most = self._shared.settings().replica_fetch_backoff_ms
        self._pause_ms = min(max(_FIRST_PAUSE_MS, 2 * self._pause_ms), most)
        try:
            async with asyncio.timeout(self._pause_ms / 1000):
                await self._has_work.wait()
        except TimeoutError:
            pass

    async def _fetch(self, endpoint: PublishedEndpoint) -> None:
        """Fetch over one connection until it fails or the leader has another address."""
        connection = await self._shared.peers.connection(endpoint, PURPOSE)
        self._connection = connection
        self._session = FetchSessionClient(self._session.session_id)
        self._changed = dict.fromkeys(self._copies)
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
        copy = self._copies.get(key)
        if copy is None:
            return None
        if copy.must_rejoin:
            copy.must_rejoin = False
            self._changed[key] = None
            return None
        throttle = self._shared.throttle
        if copy.timer is None and not throttle.may_copy(copy.replica):
            self._pause_copy(copy, throttle.copy_delay_ms())
        try:
            return copy.position()
        except Exception:
            # One broken log must not keep the other partitions from being copied.
            if not copy.is_reported:
                log.exception("cannot determine the fetch position of %s", copy.name)
            self._retry(copy, "an error inside this broker")
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

    async def _apply_response(self, request: SessionRequest, answer: ReplicaFetchResponse) -> None:
        code = CODES.get(answer.error_code, ErrorCode.UNKNOWN_SERVER_ERROR)
        self._session.answered(request, code, answer.session_id)
        if code is not ErrorCode.NONE:
            if code in OUT_OF_STEP and not request.is_full:
                return
            raise KafkaError(code, f"its response is {code.name}")
        if self._pause_ms:
            log.info("fetching from broker %d works again", self.leader_id)
            self._pause_ms = 0
        self._is_busy = False
        copied = 0
        for topic, results in answer.topics:
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
        copy = self._copies.get(key)
        asked = self._session.requested_position(request, key)
        if copy is None or asked is None or not copy.is_current:
            return
        self._changed[key] = None
        if asked.leader_epoch != copy.follower.state.leader_epoch:
            # The request was sent in a role that has ended.
            return
        try:
            step = copy.replica.apply_response(asked, received, self._shared.now_ms())
        except (Corrupt, DiskFailed, KafkaError) as error:
            self._retry(copy, str(error))
        except Exception:
            if not copy.is_reported:
                log.exception(
                    "cannot append records of %s from broker %d", copy.name, self.leader_id
                )
            self._retry(copy, "an error inside this broker")
        else:
            self._carry_out(copy, received, step)

    def _carry_out(self, copy: Copy, received: ReceivedPartition, step: Step) -> None:
        match step.action:
            case Action.APPEND:
                copy.pause_ms = 0
                copy.is_reported = False
                if received.records:
                    self._shared.throttle.copied(copy.replica, len(received.records))
                    if copy.replica.needs_flush:
                        self._flush(copy)
            case Action.ASK_AGAIN:
                # The response was ignored, but the leader takes its content for received. So the
                # partition leaves the fetch session and joins it again.
                copy.must_rejoin = True
            case Action.BACK_OFF:
                self._retry(copy, _why(received.error_code))

    def _flush(self, copy: Copy) -> None:
        """Flush before the next fetch, whose offset tells the leader what this replica has."""
        copy.is_flushing = True

        def flushed(_task: asyncio.Task[None]) -> None:
            copy.is_flushing = False
            if self._copies.get(copy.key) is copy:
                self._mark_changed(copy.key)

        self._shared.flusher.flush(copy.replica).add_done_callback(flushed)

    def _retry(self, copy: Copy, why: str) -> None:
        """Leave a partition out of requests for a while, longer each time."""
        most = self._shared.settings().replica_fetch_backoff_ms
        copy.pause_ms = min(max(_FIRST_COPY_PAUSE_MS, 2 * copy.pause_ms), most)
        self._pause_copy(copy, copy.pause_ms)
        # Just after an election, leader and followers do not learn of it at the same time.
        if copy.pause_ms >= most and not copy.is_reported:
            copy.is_reported = True
            log.warning(
                "cannot copy %s from broker %d: %s; retrying every %d ms",
                copy.name,
                self.leader_id,
                why,
                most,
            )

    def _pause_copy(self, copy: Copy, delay_ms: int) -> None:
        if copy.timer is None:
            loop = asyncio.get_running_loop()
            copy.timer = loop.call_later(delay_ms / 1000, self._resume, copy)

    def _resume(self, copy: Copy) -> None:
        copy.timer = None
        self._mark_changed(copy.key)


def _key(replica: Replica) -> TopicPartition:
    return replica.topic_id.bytes, replica.partition


def _why(error_code: int) -> str:
    code = CODES.get(error_code)
    if code is None:
        return f"the unknown error code {error_code}"
    return "its response cannot be applied" if code is ErrorCode.NONE else code.name
