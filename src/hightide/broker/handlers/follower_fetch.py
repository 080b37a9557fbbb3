"""Fetch as followers ask it: they get all there is, and by asking tell how far they have got.

    request ── the partitions that the follower has got on with ──┐
    Replica ── has grown, is committed, has another role ─────────┴─▶ fresh ─▶ the next answer

A follower's session has all that it copies from this leader, a thousand partitions perhaps, and a
few of them are busy.  So only those are looked at of which there may be news, and a replica tells
the sessions that it is in.  What nobody tells of, such as records that are deleted, is seen when
all are looked at, which happens from time to time: each request says that the follower has kept up
everywhere, and that has to be noted often enough for nobody to be taken for late.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from hightide.broker.handlers.fetch_plan import Plan, check_epoch, not_here, parting
from hightide.broker.network.connection import Connection, Slot
from hightide.broker.replication.replica import Replica
from hightide.core.partition.fetch_session import INITIAL_EPOCH, Remembered, Session, TopicPartition
from hightide.core.partition.leader import Leader
from hightide.wire.errors import ErrorCode, KafkaError
from hightide.wire.hot import fetch_codec as hot

if TYPE_CHECKING:
    from hightide.broker.broker import Broker

log = logging.getLogger(__name__)

_NOT_WAITING = 1 << 62
# Of `replica.lag.time.max.ms`: a follower that keeps up is noted to do so this many times.
_TOUCHES = 10


def fetch_as_follower(
    broker: Broker,
    connection: Connection,
    version: int,
    correlation_id: int,
    request: hot.Fetch,
    session: Session | None,
) -> list[hot.Part] | None:
    if session is None:
        # There is none, or no room for it: one that ends with this request.
        session = Session(0, version >= hot.TOPIC_IDS, 0, 0)
        session.update(request)
    fetches = session.reader
    if not isinstance(fetches, FollowerFetches):
        session.reader = fetches = FollowerFetches(broker, session)
    return fetches.ask(connection, version, correlation_id, request)


class FollowerFetches:
    """The fetches of a session: one after the other, the last one may wait."""

    __slots__ = (
        "_broker",
        "_connection",
        "_correlation_id",
        "_find",
        "_outside",
        "_request",
        "_session",
        "_slot",
        "_timer",
        "_version",
        "fresh",
        "need_bytes",
    )

    def __init__(self, broker: Broker, session: Session) -> None:
        self._broker = broker
        self._session = session
        replicas = broker.replicas
        self._find = (replicas.by_id if session.by_topic_id else replicas.by_name).get
        self._slot: Slot | None = None
        self._timer: asyncio.TimerHandle | None = None
        # Where the follower is not in sync: it may join with any of its requests.
        self._outside: dict[TopicPartition, None] = {}
        self.fresh: dict[TopicPartition, None] = {}
        self.need_bytes = _NOT_WAITING

    # -- requests --------------------------------------------------------------------------

    def ask(
        self, connection: Connection, version: int, correlation_id: int, request: hot.Fetch
    ) -> list[hot.Part] | None:
        """The answer, or None if there is nothing to say yet."""
        self._connection = connection
        self._version = version
        self._correlation_id = correlation_id
        self._request = request
        session, fresh = self._session, self.fresh
        for topic, indexes in request.forgotten:
            for index in indexes:
                self._leave((topic, index))
        now_ms = self._broker.monotonic_ms()
        touch_ms = self._broker.settings.replica_lag_time_max_ms // _TOUCHES
        if now_ms - session.touched_ms >= touch_ms:
            session.touched_ms = now_ms
            fresh.update(dict.fromkeys(session.partitions))
        else:
            fresh.update(self._outside)
            for topic, wanted in request.topics:
                for each in wanted:
                    fresh[topic, each.partition] = None
        has_something = False
        for key in list(fresh):
            if self._note(key, now_ms):
                has_something = True
        may_wait = request.max_wait_ms > 0 and request.min_bytes > 0 and bool(session.partitions)
        parts = None
        if has_something or not may_wait:
            parts = self._answer(may_wait)
        else:
            self.need_bytes = request.min_bytes
        if parts is None:
            self._slot = connection.defer(self._stop_waiting)
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(request.max_wait_ms / 1000, self.end_wait)
        elif session.id == 0:
            self.end()
        return parts

    def _note(self, key: TopicPartition, now_ms: int) -> bool:
        """Note what the follower has of a partition; whether there is more to tell than offsets.

        A request comes after each append, and then there is usually nothing to answer at once.
        """
        remembered, replica = self._session.partitions.get(key), self._find(key)
        if remembered is None:
            del self.fresh[key]
            return False
        if replica is None:
            return True
        try:
            leader, parts = self._agree(replica, remembered)
        except KafkaError:
            return True  # the answer says why
        if parts is not None:
            return True
        wanted, request = remembered.wanted, self._request
        if wanted.current_leader_epoch >= 0 and self._session.by_topic_id:
            replica.fetched(
                request.replica_id,
                wanted.fetch_offset,
                request.replica_epoch,
                now_ms,
                wanted.log_start_offset,
            )
            if request.replica_id not in leader.state.isr:
                self._outside[key] = None
            elif self._outside:
                self._outside.pop(key, None)
        replica.follower_waiters[self] = None
        if wanted.fetch_offset != leader.end_offset:
            return True
        if (
            replica.high_watermark == remembered.high_watermark
            and replica.log.start_offset == remembered.log_start_offset
        ):
            del self.fresh[key]
        return False

    def _leave(self, key: TopicPartition) -> None:
        self._outside.pop(key, None)
        replica = self._find(key)
        if replica is not None:
            replica.follower_waiters.pop(self, None)

    def end(self) -> None:
        for key in self._session.partitions:
            self._leave(key)

    # -- waiting ---------------------------------------------------------------------------

    def serve(self, is_last_try: bool = False) -> None:
        """Look again: replicas have grown, or the time is up."""
        slot = self._slot
        if slot is None or (self.need_bytes > 0 and not is_last_try):
            return
        try:
            parts = self._answer(not is_last_try)
        except Exception:
            log.exception("a follower's waiting Fetch failed")
            self._connection.abort("a waiting Fetch failed")
            return
        if parts is not None:
            self._stop_waiting()
            self._connection.complete(slot, parts)

    def end_wait(self) -> None:
        self.serve(is_last_try=True)

    def tell(self, replica: Replica) -> None:
        """Answer if the high watermark or the start is news, though nothing else is."""
        if self._slot is not None and replica.key in self.fresh:
            known = self._session.partitions.get(replica.key)
            if known is not None and (
                known.high_watermark < replica.high_watermark
                or known.log_start_offset < replica.log.start_offset
            ):
                self.serve(is_last_try=True)

    def _stop_waiting(self) -> None:
        self._slot = None
        self.need_bytes = _NOT_WAITING
        if self._timer is not None:
            self._timer.cancel()
        if self._session.id == 0:
            self.end()

    # -- answers ---------------------------------------------------------------------------

    def _answer(self, may_wait: bool) -> list[hot.Part] | None:
        """The answer if there is enough to say, else None and `need_bytes` is what is missing."""
        request, session, fresh = self._request, self._session, self.fresh
        is_first = request.session_epoch == INITIAL_EPOCH or session.id == 0
        plan = Plan(self._broker, request, self._version)
        if not session.by_topic_id:
            fresh.update(dict.fromkeys(session.partitions))  # replicas tell of ids only
        news: list[tuple[TopicPartition, Remembered, hot.FetchedPartition]] = []
        held_back: set[TopicPartition] = set()
        for key in list(fresh):
            remembered = session.partitions.get(key)
            if remembered is None:
                del fresh[key]
                continue
            result = self._look(plan, key, remembered, held_back)
            if is_first or remembered.has_news(result):
                news.append((key, remembered, result))
            elif key not in held_back:
                del fresh[key]
        if may_wait and plan.byte_count < request.min_bytes and not plan.is_urgent:
            self.need_bytes = request.min_bytes - plan.byte_count
            return None
        topics: dict[bytes, list[hot.FetchedPartition]] = {}
        for key, remembered, result in news:
            remembered.told(result)
            topics.setdefault(key[0], []).append(result)
            # What was given the follower asks on from, and so it has its next turn after others.
            if key not in held_back:
                del fresh[key]
        return hot.encode(
            self._correlation_id,
            self._version,
            list(topics.items()),
            session.id,
            nodes=plan.nodes(self._connection),
        )

    def _look(
        self,
        plan: Plan,
        key: TopicPartition,
        remembered: Remembered,
        held_back: set[TopicPartition],
    ) -> hot.FetchedPartition:
        """What there is to say of one partition; `held_back` if it must be looked at again."""
        wanted = remembered.wanted
        replica = self._find(key)
        try:
            if replica is None:
                raise not_here(self._broker, *key, self._session.by_topic_id)
            leader, parts = self._agree(replica, remembered)
            if parts is not None:
                held_back.add(key)
                return plan.diverging(replica, wanted.partition, parts)
            records = None
            if wanted.fetch_offset != leader.end_offset:
                records = self._slice(plan, replica, wanted, leader.end_offset)
                if records is None:
                    held_back.add(key)
        except KafkaError as error:
            held_back.add(key)
            return plan.refused(*key, replica, error)
        high_watermark = replica.high_watermark
        return hot.FetchedPartition(
            wanted.partition, 0, high_watermark, high_watermark, replica.log.start_offset, records
        )

    def _agree(
        self, replica: Replica, remembered: Remembered
    ) -> tuple[Leader, tuple[int, int] | None]:
        """The leader here, if this follower may ask it, and where their logs part if they do."""
        leader = replica.leader
        if leader is not None and remembered.agreed is leader:
            return leader, None
        wanted, request = remembered.wanted, self._request
        check_epoch(replica, wanted.current_leader_epoch)
        if leader is None:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        verdict = leader.fetch_verdict(request.replica_id, request.replica_epoch)
        if verdict is not ErrorCode.NONE:
            raise KafkaError(verdict)
        parts = parting(leader, replica, wanted)
        if parts is None:
            remembered.agreed = leader
        return leader, parts

    def _slice(
        self, plan: Plan, replica: Replica, wanted: hot.RequestedPartition, end_offset: int
    ) -> hot.Sized | None:
        throttle, follower_id = self._broker.throttle, self._request.replica_id
        if not throttle.may_serve(replica, follower_id):
            return None
        records = plan.slice(replica, wanted, end_offset)
        if records is not None:
            throttle.served(replica, follower_id, records.length)
        return records
