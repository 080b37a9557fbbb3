"""Fetch as followers send it: they read to the log end, and their fetch offset is their progress.

    request ── partitions in which the follower has advanced ─┐
    Replica ── has grown, is committed, has another role ─────┴─▶ changed ─▶ the next response

A follower's session holds every partition that it copies from this leader, perhaps a thousand, and
few of them are busy.  So only partitions that may have news are looked at; a replica's purgatory
adds them to `changed` of the sessions that it is in.  Some changes are not announced, such as
deleted records.  They are seen when all partitions are looked at, several times in each
`replica.lag.time.max.ms`.  The same pass notes that the follower keeps up in every partition, so
that it is not taken for late.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hightide.broker.handlers.fetch_plan import FetchPlan, check_epoch, find_divergence, not_here
from hightide.broker.network.connection import Connection
from hightide.broker.replication.purgatory import DelayedFetch
from hightide.broker.replication.replica import Replica
from hightide.core.partition.fetch_session import (
    INITIAL_EPOCH,
    Session,
    SessionPartition,
    TopicPartition,
)
from hightide.core.partition.follower_progress import NEVER
from hightide.core.partition.leader import Leader
from hightide.wire.errors import ErrorCode, KafkaError
from hightide.wire.hot import fetch_codec as hot

if TYPE_CHECKING:
    from hightide.broker.broker import Broker

# A follower that keeps up is noted to do so this many times in `replica.lag.time.max.ms`.
_TOUCHES = 10
_DOUBT_AGAIN_MS = 60_000


def fetch_as_follower(
    broker: Broker,
    connection: Connection,
    version: int,
    correlation_id: int,
    request: hot.Fetch,
    session: Session | None,
) -> list[hot.Part] | None:
    if session is None:
        # The request has no session, or there is no room for one: make one for this request only.
        session = Session(0, version >= hot.TOPIC_IDS, 0, 0)
        session.update(request)
    fetches = session.owner
    if not isinstance(fetches, FollowerFetches):
        session.owner = fetches = FollowerFetches(broker, session)
    return fetches.fetch(connection, version, correlation_id, request)


class FollowerFetches:
    """The fetches of a follower's session, one after the other; the last may be parked."""

    __slots__ = (
        "_answered_last_ms",
        "_answered_ms",
        "_broker",
        "_connection",
        "_correlation_id",
        "_find",
        "_last_sent",
        "_not_in_sync",
        "_request",
        "_session",
        "_version",
        "changed",
        "delayed",
        "heard_ms",
        "replica_id",
    )

    def __init__(self, broker: Broker, session: Session) -> None:
        self._broker = broker
        self._session = session
        replicas = broker.replica_manager
        self._find = replicas.by_id.get if session.by_topic_id else replicas.by_name.get
        # Where the follower is not in the ISR: any of its requests may show that it has caught up.
        self._not_in_sync: dict[TopicPartition, None] = {}
        self.changed: dict[TopicPartition, None] = {}
        self.replica_id = -1
        self.heard_ms = self._answered_ms = self._answered_last_ms = NEVER
        """When the follower certainly followed: it had sent nothing but what arrived later.

        A request may have waited long in the network, or in a buffer while this process was paused.
        The follower sends at most one request before the response to the last.  So it has sent this
        one after the response before the last."""
        # The fetch offset for which records were last sent, how many times in a row, and when
        # records of the partition were last doubted.
        self._last_sent: dict[TopicPartition, tuple[int, int, int]] = {}
        # A session for one request ends with it.
        self.delayed = DelayedFetch(self._respond, None if session.id else self.end)

    # -- requests --------------------------------------------------------------------------

    def fetch(
        self, connection: Connection, version: int, correlation_id: int, request: hot.Fetch
    ) -> list[hot.Part] | None:
        """Serve a fetch; None if it is parked."""
        self._connection = connection
        self._version = version
        self._correlation_id = correlation_id
        self._request = request
        self.replica_id = request.replica_id
        self.heard_ms = self._answered_ms
        session, changed = self._session, self.changed
        for topic, indexes in request.forgotten:
            for index in indexes:
                self._leave((topic, index))
        now_ms = self._broker.monotonic_ms()
        touch_ms = self._broker.settings.replica_lag_time_max_ms // _TOUCHES
        if now_ms - session.touched_ms >= touch_ms:
            session.touched_ms = now_ms
            changed.update(dict.fromkeys(session.partitions))
        else:
            changed.update(self._not_in_sync)
            for topic, requested in request.topics:
                for partition in requested:
                    changed[topic, partition.partition] = None
        has_news = False
        for key in list(changed):
            if self._note_progress(key, now_ms):
                has_news = True
        may_wait = request.max_wait_ms > 0 and request.min_bytes > 0 and bool(session.partitions)
        response: list[hot.Part] | int = request.min_bytes
        if has_news or not may_wait:
            response = self._respond(not may_wait)
        if isinstance(response, int):
            self.delayed.park(connection, response, request.max_wait_ms)
            return None
        if session.id == 0:
            self.end()
        return response

    def _note_progress(self, key: TopicPartition, now_ms: int) -> bool:
        """Note what the follower has of a partition; return whether there is news besides offsets.

        A request comes after each append, and then there is usually nothing to send at once.
        """
        remembered, replica = self._session.partitions.get(key), self._find(key)
        if remembered is None:
            del self.changed[key]
            return False
        if replica is None:
            return True
        try:
            leader, diverging = self._check_log(replica, remembered)
        except KafkaError:
            return True  # the response has the error
        if diverging is not None:
            return True
        requested, request = remembered.requested, self._request
        if requested.current_leader_epoch >= 0 and self._session.by_topic_id:
            replica.fetched(
                request.replica_id,
                requested.fetch_offset,
                request.replica_epoch,
                now_ms,
                requested.log_start_offset,
            )
            if request.replica_id not in leader.state.isr:
                self._not_in_sync[key] = None
            elif self._not_in_sync:
                self._not_in_sync.pop(key, None)
        replica.purgatory.followers[self] = None
        if requested.fetch_offset != leader.end_offset:
            return True
        if (
            replica.high_watermark == remembered.high_watermark
            and replica.log.start_offset == remembered.log_start_offset
        ):
            del self.changed[key]
        return False

    def follows(self, key: TopicPartition, leader: Leader) -> bool:
        """Whether the follower fetches a partition in this leader epoch."""
        known = self._session.partitions.get(key)
        return known is not None and known.agreed is leader

    def _leave(self, key: TopicPartition) -> None:
        self._not_in_sync.pop(key, None)
        replica = self._find(key)
        if replica is not None:
            replica.purgatory.followers.pop(self, None)

    def end(self) -> None:
        """The session has ended."""
        for key in self._session.partitions:
            self._leave(key)

    def end_wait(self) -> None:
        """The follower has sent its next request: respond with what there is."""
        self.delayed.end_wait()

    def has_news(self, key: TopicPartition) -> bool:
        """Whether the follower does not know the partition's high watermark or log start."""
        if key not in self.changed:
            return False
        known, replica = self._session.partitions.get(key), self._find(key)
        return (
            known is not None
            and replica is not None
            and (
                known.high_watermark < replica.high_watermark
                or known.log_start_offset < replica.log.start_offset
            )
        )

    # -- responses -------------------------------------------------------------------------

    def _respond(self, is_last: bool) -> list[hot.Part] | int:
        """Make the response, or return how many bytes are missing.  `is_last`: make it anyway."""
        request, session, changed = self._request, self._session, self.changed
        is_first = request.session_epoch == INITIAL_EPOCH or session.id == 0
        plan = FetchPlan(self._broker, request, self._version)
        if not session.by_topic_id:
            changed.update(dict.fromkeys(session.partitions))  # replicas announce topic ids only
        news: list[tuple[TopicPartition, SessionPartition, hot.FetchedPartition]] = []
        held_back: set[TopicPartition] = set()
        for key in list(changed):
            remembered = session.partitions.get(key)
            if remembered is None:
                del changed[key]
                continue
            result = self._look(plan, key, remembered, held_back)
            if is_first or remembered.has_changed(result):
                news.append((key, remembered, result))
            elif key not in held_back:
                del changed[key]
        if not is_last and plan.byte_count < request.min_bytes and not plan.is_urgent:
            return request.min_bytes - plan.byte_count
        topics: dict[bytes, list[hot.FetchedPartition]] = {}
        for key, remembered, result in news:
            remembered.sent(result)
            if result.records is not None:
                self._broker.replica_manager.traffic.replication_bytes_out += result.records.length
                self._sent_again(key, remembered.requested.fetch_offset)
            topics.setdefault(key[0], []).append(result)
            # The follower asks for the next records of what it got, so its turn is after others.
            if key not in held_back:
                del changed[key]
        self._answered_ms = self._answered_last_ms
        self._answered_last_ms = self._broker.monotonic_ms()
        return hot.encode(
            self._correlation_id,
            self._version,
            list(topics.items()),
            session.id,
            nodes=plan.nodes(self._connection),
        )

    def _look(
        self,
        plan: FetchPlan,
        key: TopicPartition,
        remembered: SessionPartition,
        held_back: set[TopicPartition],
    ) -> hot.FetchedPartition:
        """What the response says of one partition; `held_back` if it must be looked at again."""
        requested = remembered.requested
        replica = self._find(key)
        try:
            if replica is None:
                raise not_here(self._broker, *key, self._session.by_topic_id)
            leader, diverging = self._check_log(replica, remembered)
            if diverging is not None:
                held_back.add(key)
                return plan.diverging(replica, requested.partition, diverging)
            records = None
            if requested.fetch_offset != leader.end_offset:
                records = self._slice(plan, replica, requested, leader.end_offset)
                if records is None:
                    held_back.add(key)
        except KafkaError as error:
            held_back.add(key)
            return plan.refused(*key, replica, error)
        high_watermark = replica.high_watermark
        return hot.FetchedPartition(
            requested.partition,
            0,
            high_watermark,
            high_watermark,
            replica.log.start_offset,
            records,
        )

    def _sent_again(self, key: TopicPartition, offset: int) -> None:
        """Doubt records that are sent twice: the follower may have found them damaged."""
        before, times, doubted_ms = self._last_sent.get(key, (-1, 0, -_DOUBT_AGAIN_MS))
        times = times + 1 if before == offset else 1
        # A request that is sent ahead may repeat an offset once.
        if times > 2:
            now_ms = self._broker.monotonic_ms()
            replica = self._find(key)
            if replica is not None and now_ms - doubted_ms >= _DOUBT_AGAIN_MS:
                doubted_ms = now_ms
                segments = replica.log.segments
                segment = segments[segments.index_of(offset)]
                why = f"broker {self._request.replica_id} fetches offset {offset} again and again"
                replica.log.damage.suspect([segment], why)
        self._last_sent[key] = (offset, times, doubted_ms)

    def _check_log(
        self, replica: Replica, remembered: SessionPartition
    ) -> tuple[Leader, tuple[int, int] | None]:
        """The leader, if this follower may fetch from it, and where their logs diverge, or None."""
        leader = replica.leader
        if leader is not None and remembered.agreed is leader:
            return leader, None
        requested, request = remembered.requested, self._request
        check_epoch(replica, requested.current_leader_epoch)
        if leader is None:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        verdict = leader.fetch_error(request.replica_id, request.replica_epoch)
        if verdict is not ErrorCode.NONE:
            raise KafkaError(verdict)
        diverging = find_divergence(leader, replica, requested)
        if diverging is None:
            remembered.agreed = leader
        return leader, diverging

    def _slice(
        self, plan: FetchPlan, replica: Replica, requested: hot.RequestedPartition, end_offset: int
    ) -> hot.Sized | None:
        throttle, follower_id = self._broker.throttle, self._request.replica_id
        if not throttle.may_serve(replica, follower_id):
            return None
        records = plan.slice(replica, requested, end_offset)
        if records is None:
            return None
        throttle.served(replica, follower_id, records.length)
        # A follower checks what it gets.
        return records if records.segment is None else records._replace(segment=None)
