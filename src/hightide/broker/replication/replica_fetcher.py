"""Copying from the leaders: for each of them one task, one connection, one fetch session.

    Fetchers ──┬─▶ Fetcher of broker 2 ── request ─▶ answer ─▶ Replica, for each partition ──────┐
               │                            ▲                                                    │
               │                            └── where each of those is now ──────────────────────┘
               └─▶ Fetcher of broker 3 …

Requests go back to back: the leader holds one while it has nothing to give, so there is no pause
but after an error.  A request names only the partitions whose position has changed since the last
one (`core/partition/fetch_session_client.py`), and only those are looked at;
idle ones cost nothing.

A partition that comes while a request waits at the leader is asked for at once, by a second request
behind it on the same connection, upon which the leader answers the first.
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
from hightide.core.partition.fetch_session_client import OUT_OF_STEP, FetchSessionClient, Round
from hightide.core.partition.follower import Do, Follower, Position, Step
from hightide.log.disk import DiskFailed
from hightide.settings import Broker as Settings
from hightide.wire.errors import Corrupt, ErrorCode, KafkaError
from hightide.wire.hot.fetch_codec import Fetch
from hightide.wire.hot.replica_fetch_codec import ReceivedPartition, ReplicaFetchResponse
from hightide.wire.messages.replication import PublishedEndpoint

log = logging.getLogger(__name__)

LANE = "fetch"
_FIRST_PAUSE_MS = 50
# A new partition's leader may hear of it a little later than its followers.
_FIRST_REST_MS = 10
# An answer that brings records is followed by another, and to overtake it would bring them twice.
_BUSY_PATIENCE_S = 0.02
# What is copied without letting others have a turn.
_TURN_BYTES = 1024 * 1024
# A leader may take this much longer than it was told to wait.
_GRACE_MS = 1000
_READ_UNCOMMITTED = 0


class Copy:
    """A replica that is followed, under one leader."""

    __slots__ = (
        "follower",
        "is_afresh",
        "is_flushing",
        "is_reported",
        "key",
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
        self.is_afresh = False
        self.is_reported = False
        self.is_flushing = False

    @property
    def is_current(self) -> bool:
        """Whether the replica still has the role in which it was to be copied."""
        return self.replica.follower is self.follower

    @property
    def name(self) -> str:
        return f"{self.replica.topic}-{self.replica.partition}"

    def position(self) -> Position | None:
        if self.timer is not None or self.is_flushing or not self.is_current:
            return None
        return self.follower.position()

    def end(self) -> None:
        if self.timer is not None:
            self.timer.cancel()


class Fetchers:
    """All that this broker follows."""

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
        """Begin to copy, or go on with another leader; nobody is asked if `endpoint` is None."""
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
        """Copy it no more."""
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
    """Copies from one leader."""

    def __init__(self, shared: Fetchers, leader_id: int, endpoint: PublishedEndpoint) -> None:
        self.leader_id = leader_id
        self._shared = shared
        self._endpoint = endpoint
        self._connection: Connection | None = None
        self._following = FetchSessionClient()
        self._copies: dict[TopicPartition, Copy] = {}
        # Whose position may have changed since the leader was told of it.
        self._due: dict[TopicPartition, None] = {}
        self._is_waiting = False
        self._is_busy = False
        self._hurrying: asyncio.TimerHandle | None = None
        self._ahead: tuple[Round, asyncio.Future[memoryview]] | None = None
        self._woken = asyncio.Event()
        self._pause_ms = 0
        self._task = asyncio.get_running_loop().create_task(self._run())

    # -- what is to be copied --------------------------------------------------------------

    def follow(self, key: TopicPartition, replica: Replica) -> None:
        follower = replica.follower
        assert follower is not None
        copy = self._copies.get(key)
        if copy is not None:
            if copy.replica is replica and copy.follower is follower:
                return
            copy.end()
        self._copies[key] = Copy(key, replica, follower)
        self._notice(key)

    def leave(self, key: TopicPartition) -> None:
        self._copies.pop(key).end()
        # The leader is told with the next request; until then what it sends is passed over.
        self._due[key] = None

    def move(self, endpoint: PublishedEndpoint) -> None:
        """The leader is reached here."""
        if endpoint != self._endpoint:
            self._endpoint = endpoint
            self._pause_ms = 0
            self._woken.set()
            if self._connection is not None:
                self._connection.close()

    async def stop(self) -> None:
        self._task.cancel()
        for copy in self._copies.values():
            copy.end()
        await asyncio.gather(self._task, return_exceptions=True)

    def _notice(self, key: TopicPartition) -> None:
        """Look where this partition is, and ask for it soon."""
        self._due[key] = None
        if self._is_waiting:
            self._hurry()
        else:
            self._woken.set()

    # -- the connection --------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            self._woken.clear()
            if not self._copies:
                await self._woken.wait()
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
        """Wait a little, and longer each time, unless there is news of the leader."""
        most = self._shared.settings().replica_fetch_backoff_ms
        self._pause_ms = min(max(_FIRST_PAUSE_MS, 2 * self._pause_ms), most)
        try:
            async with asyncio.timeout(self._pause_ms / 1000):
                await self._woken.wait()
        except TimeoutError:
            pass

    async def _fetch(self, endpoint: PublishedEndpoint) -> None:
        """Fetch over one connection until it fails, or the leader is to be found elsewhere."""
        connection = await self._shared.peers.connection(endpoint, LANE)
        self._connection = connection
        self._following = FetchSessionClient(self._following.session_id)
        self._due = dict.fromkeys(self._copies)
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
            self._woken.clear()
            request = self._tell(self._positions())
            if request is None:
                if not self._due:
                    await self._woken.wait()
                return
            coming = self._ask(connection, request)
        else:
            request, coming = ahead
        self._is_waiting = True
        if self._due:
            self._hurry()
        try:
            frame = await coming
        finally:
            self._is_waiting = False
            if self._hurrying is not None:
                self._hurrying.cancel()
                self._hurrying = None
        await self._take(request, replica_fetch.read(connection, frame))
        connection.recycle(frame)

    def _hurry(self) -> None:
        """What has come meanwhile shall not wait until the leader has something to give."""
        if self._hurrying is None and self._ahead is None:
            patience = _BUSY_PATIENCE_S if self._is_busy else 0
            loop = asyncio.get_running_loop()
            self._hurrying = loop.call_later(patience, self._send_ahead)

    def _send_ahead(self) -> None:
        self._hurrying = None
        connection = self._connection
        if connection is None or not connection.is_open() or not self._following.may_overtake:
            return
        positions = self._positions()
        if not self._following.is_wanting(positions):
            self._due.update(dict.fromkeys(positions))
            return
        request = self._tell(positions)
        assert request is not None
        self._ahead = request, self._ask(connection, request)

    def _drop_ahead(self) -> None:
        if self._ahead is not None:
            _, coming = self._ahead
            self._ahead = None
            if not coming.cancel() and not coming.cancelled():
                coming.exception()  # it is known already why there is no answer

    def _positions(self) -> dict[TopicPartition, Position | None]:
        """Where the partitions are that may have moved; None of those not to be fetched now."""
        due, self._due = self._due, {}
        return {key: self._position(key) for key in due}

    def _position(self, key: TopicPartition) -> Position | None:
        copy = self._copies.get(key)
        if copy is None:
            return None
        if copy.is_afresh:
            copy.is_afresh = False
            self._due[key] = None
            return None
        throttle = self._shared.throttle
        if copy.timer is None and not throttle.may_copy(copy.replica):
            self._rest(copy, throttle.copy_delay_ms())
        try:
            return copy.position()
        except Exception:
            # One log that is in no state to be copied must not keep the others from it.
            if not copy.is_reported:
                log.exception("cannot tell where %s is", copy.name)
            self._retry(copy, "a fault of this broker")
            return None

    def _tell(self, positions: dict[TopicPartition, Position | None]) -> Round | None:
        return self._following.tell(positions, self._shared.settings().replica_fetch_max_bytes)

    def _ask(self, connection: Connection, request: Round) -> asyncio.Future[memoryview]:
        shared, settings = self._shared, self._shared.settings()
        # What begins a session is answered at once: before that no partition can be added to it.
        is_patient = not request.is_full or self._following.is_refused
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

    # -- answers ---------------------------------------------------------------------------

    async def _take(self, request: Round, answer: ReplicaFetchResponse) -> None:
        code = CODES.get(answer.error_code, ErrorCode.UNKNOWN_SERVER_ERROR)
        self._following.answered(request, code, answer.session_id)
        if code is not ErrorCode.NONE:
            if code in OUT_OF_STEP and not request.is_full:
                return
            raise KafkaError(code, f"its answer is {code.name}")
        if self._pause_ms:
            log.info("fetching from broker %d again", self.leader_id)
            self._pause_ms = 0
        self._is_busy = False
        copied = 0
        for topic, results in answer.topics:
            for given in results:
                if copied >= _TURN_BYTES:
                    await asyncio.sleep(0)
                    copied = 0
                if given.records:
                    copied += len(given.records)
                    self._is_busy = True
                self._take_partition((topic, given.partition), request, given)

    def _take_partition(
        self, key: TopicPartition, request: Round, given: ReceivedPartition
    ) -> None:
        copy = self._copies.get(key)
        asked = self._following.asked(request, key)
        if copy is None or asked is None or not copy.is_current:
            return
        self._due[key] = None
        if asked.leader_epoch != copy.follower.state.leader_epoch:
            # It was asked in a role that has ended.
            return
        try:
            step = copy.replica.apply_response(asked, given, self._shared.now_ms())
        except (Corrupt, DiskFailed, KafkaError) as error:
            self._retry(copy, str(error))
        except Exception:
            if not copy.is_reported:
                log.exception("cannot take what broker %d sent of %s", self.leader_id, copy.name)
            self._retry(copy, "a fault of this broker")
        else:
            self._go_on(copy, given, step)

    def _go_on(self, copy: Copy, given: ReceivedPartition, step: Step) -> None:
        match step.do:
            case Do.APPEND:
                copy.pause_ms = 0
                copy.is_reported = False
                if given.records:
                    self._shared.throttle.copied(copy.replica, len(given.records))
                    if copy.replica.needs_flush:
                        self._flush(copy)
            case Do.ASK_AGAIN:
                # An answer was passed over, and the leader takes for told what was in it. So the
                # partition leaves the session, and comes again.
                copy.is_afresh = True
            case Do.BACK_OFF:
                self._retry(copy, _why(given.error_code))

    def _flush(self, copy: Copy) -> None:
        """What the topic wants on disk is there before the leader hears that it is here."""
        copy.is_flushing = True

        def flushed(_task: asyncio.Task[None]) -> None:
            copy.is_flushing = False
            if self._copies.get(copy.key) is copy:
                self._notice(copy.key)

        self._shared.flusher.flush(copy.replica).add_done_callback(flushed)

    def _retry(self, copy: Copy, why: str) -> None:
        """Leave it out for a while, and longer each time."""
        most = self._shared.settings().replica_fetch_backoff_ms
        copy.pause_ms = min(max(_FIRST_REST_MS, 2 * copy.pause_ms), most)
        self._rest(copy, copy.pause_ms)
        # Just after an election leader and followers do not know of it at the same time.
        if copy.pause_ms >= most and not copy.is_reported:
            copy.is_reported = True
            log.warning(
                "%s cannot be copied from broker %d: %s; it is tried every %d ms",
                copy.name,
                self.leader_id,
                why,
                most,
            )

    def _rest(self, copy: Copy, delay_ms: int) -> None:
        if copy.timer is None:
            loop = asyncio.get_running_loop()
            copy.timer = loop.call_later(delay_ms / 1000, self._resume, copy)

    def _resume(self, copy: Copy) -> None:
        copy.timer = None
        self._notice(copy.key)


def _key(replica: Replica) -> TopicPartition:
    return replica.topic_id.bytes, replica.partition


def _why(error_code: int) -> str:
    code = CODES.get(error_code)
    if code is None:
        return f"it answers with the unknown error code {error_code}"
    return "its answer is of no use" if code is ErrorCode.NONE else code.name
