"""Fetch (1), versions 4 to 17, with incremental sessions and long polls.

Answers per partition:
UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID   no such partition
NOT_LEADER_OR_FOLLOWER                         another broker leads it; the answer says who
FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH      the client's epoch is older or newer than ours
OFFSET_OUT_OF_RANGE                            below the log start or above the log end
KAFKA_STORAGE_ERROR                            the log cannot be read
for the whole request: FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH,
FETCH_SESSION_TOPIC_ID_ERROR.

A consumer is shown what is below the high watermark, by the leader or, if it says where it stands,
by any replica.  One that reads what is committed of transactions is shown what is below the last
stable offset, and told which transactions in there were aborted.

A plan with less than `min_bytes` is thrown away, and the request waits on its replicas until they
have grown by what is missing or the time is up; then it is planned again.  Followers ask with the
same request (`follower_fetch`).
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from struct import Struct
from typing import TYPE_CHECKING

from hightide.broker.handlers.fetch_plan import Plan, check_epoch, not_here, parting
from hightide.broker.handlers.follower_fetch import fetch_as_follower
from hightide.broker.network.connection import Connection, Slot
from hightide.broker.network.fetch_sizing import LEAST_BYTES, PARTITION_BYTES, UNLIMITED
from hightide.broker.replication.replica import Replica
from hightide.core.partition.fetch_session import INITIAL_EPOCH, Session, TopicPartition
from hightide.core.partition.leader import Leader
from hightide.wire.errors import ErrorCode, KafkaError, WireError
from hightide.wire.hot import fetch_codec as hot
from hightide.wire.hot import replica_fetch_codec
from hightide.wire.hot.read_cursor import body_at

if TYPE_CHECKING:
    from hightide.broker.broker import Broker

log = logging.getLogger(__name__)

_HEAD = Struct(">hhi")  # api key, version, correlation id
_MOST_PARTITIONS = 10_000
_READ_COMMITTED = 1
_ANY_REPLICA = 11  # from this version on a consumer may read from followers
_RACK_AWARE = "RackAwareReplicaSelector"

Answered = list[tuple[bytes, list[hot.FetchedPartition]]]


@dataclass(slots=True, eq=False)
class PendingFetch:
    """A consumer's request, and while it waits, what it waits for."""

    broker: Broker
    connection: Connection
    version: int
    correlation_id: int
    request: hot.Fetch
    session: Session | None
    topics: list[tuple[bytes, list[hot.RequestedPartition]]]
    need_bytes: int = 0
    replicas: list[Replica] = field(default_factory=list)
    slot: Slot | None = None
    timer: asyncio.TimerHandle | None = None

    def answer(self, is_last_try: bool) -> list[hot.Part] | None:
        """The answer if there is enough to say, else None and `need_bytes` is what is missing."""
        least, pace = self.request.min_bytes, self.connection.pace
        enough = UNLIMITED
        if self.request.max_wait_ms > 0:  # who does not wait looks once, and does not come for more
            # To look at many partitions takes its time too, so they are given more.
            count = sum(len(wanted) for _, wanted in self.topics)
            enough = max(pace.enough_bytes, count * PARTITION_BYTES, least)
        planned = ConsumerPlan(self.broker, self.request, self.version, enough)
        for topic, wanted in self._in_turn():
            planned.add(topic, wanted)
        if planned.byte_count < least and not planned.is_urgent and not is_last_try:
            self.need_bytes = least - planned.byte_count
            self.replicas = planned.replicas
            return None
        answered, session_id = planned.topics, 0
        if self.session is not None:
            is_first = self.request.session_epoch == INITIAL_EPOCH
            answered = self.session.news(planned.topics, everything=is_first)
            session_id = self.session.id
        else:
            self.connection.fetch_next = planned.left_out
            answered = _together(planned.topics)
        if planned.left_out is not None or planned.byte_count > LEAST_BYTES:
            pace.gave(planned.byte_count, self.broker.monotonic_s())
        nodes = planned.nodes(self.connection)
        return hot.encode(self.correlation_id, self.version, answered, session_id, nodes=nodes)

    def _in_turn(self) -> list[tuple[bytes, list[hot.RequestedPartition]]]:
        """What is wanted, beginning with what the last answer had no room for.

        A session has an order of its own, in which all have their turns.
        """
        following = self.connection.fetch_next
        if self.session is not None or following is None:
            return self.topics
        for i, (topic, wanted) in enumerate(self.topics):
            if topic == following[0]:
                for j, each in enumerate(wanted):
                    if each.partition == following[1]:
                        before = [(topic, wanted[:j])] if j else []
                        rest = [*self.topics[i + 1 :], *self.topics[:i]]
                        return [(topic, wanted[j:]), *rest, *before]
        return self.topics

    def wait(self, max_wait_ms: int) -> None:
        self.slot = self.connection.defer(self.leave)
        reads_committed = self.request.isolation_level == _READ_COMMITTED
        for replica in self.replicas:
            if reads_committed:
                replica.wait_for_stable(self)
            else:
                replica.waiters[self] = None
        if self.session is not None:
            self.session.reader = self
        loop = asyncio.get_running_loop()
        self.timer = loop.call_later(max_wait_ms / 1000, self.serve, True)

    def end_wait(self) -> None:
        self.serve(is_last_try=True)

    def end(self) -> None:
        """The session is over; the request waits on."""

    def serve(self, is_last_try: bool = False) -> None:
        """Look again: the replicas have grown, or the time is up."""
        if self.slot is None or (self.need_bytes > 0 and not is_last_try):
            return
        try:
            parts = self.answer(is_last_try)
        except Exception:
            log.exception("a waiting Fetch failed")
            self.connection.abort("a waiting Fetch failed")
            return
        if parts is not None:
            slot = self.slot
            self.leave()
            self.connection.complete(slot, parts)

    def leave(self) -> None:
        """Wait no longer."""
        self.slot = None
        if self.timer is not None:
            self.timer.cancel()
        if self.session is not None:
            self.session.reader = None
        for replica in self.replicas:
            replica.waiters.pop(self, None)
            replica.stable_waiters.pop(self, None)


class ConsumerPlan(Plan):
    """What a consumer gets."""

    __slots__ = (
        "_enough",
        "_from_leader_only",
        "_rack",
        "_read_committed",
        "left_out",
        "replicas",
        "topics",
    )

    def __init__(self, broker: Broker, request: hot.Fetch, version: int, enough: int) -> None:
        super().__init__(broker, request, version)
        self._from_leader_only = version < _ANY_REPLICA
        self._rack = (request.rack_id or b"").decode(errors="replace")
        self._read_committed = request.isolation_level == _READ_COMMITTED
        self._enough = enough
        self.left_out: TopicPartition | None = None
        """The first that has records, and gets none because there is enough."""
        self.replicas: list[Replica] = []
        self.topics: Answered = []

    def add(self, topic: bytes, wanted: list[hot.RequestedPartition]) -> None:
        results = []
        replicas = self._broker.replicas
        find = replicas.get_by_id if self._by_id else replicas.get
        for each in wanted:
            replica = find(topic, each.partition)
            try:
                if replica is None:
                    raise not_here(self._broker, topic, each.partition, self._by_id)
                check_epoch(replica, each.current_leader_epoch)
                results.append(self._read(replica, topic, each))
            except KafkaError as error:
                results.append(self.refused(topic, each.partition, replica, error))
        self.topics.append((topic, results))

    def _read(
        self, replica: Replica, topic: bytes, wanted: hot.RequestedPartition
    ) -> hot.FetchedPartition:
        leader = replica.leader
        if leader is None and (replica.follower is None or self._from_leader_only):
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if leader is None and not self._rack and wanted.fetch_offset > replica.log.end_offset:
            # Who names no rack was sent here by nobody, and takes this broker for the leader that
            # it was before it restarted. It must look for another and not begin anew.
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        log_ = replica.log
        high_watermark, stable_offset = replica.high_watermark, log_.last_stable_offset
        end_offset = stable_offset if self._read_committed else high_watermark
        records = None
        aborted: list[tuple[int, int]] | None = [] if self._read_committed else None
        preferred = -1
        if leader is not None and wanted.last_fetched_epoch >= 0:
            parts = parting(leader, replica, wanted)
            if parts is not None:
                return self.diverging(replica, wanted.partition, parts)
        if leader is not None and self._rack:
            preferred = self._preferred(leader, wanted.fetch_offset)
        if preferred != -1:
            self.is_urgent = True
        else:
            self.replicas.append(replica)
            if wanted.fetch_offset == end_offset:
                pass
            elif self.byte_count >= self._enough:
                self.left_out = self.left_out or (topic, wanted.partition)
            else:
                records = self.slice(replica, wanted, end_offset)
                if records is not None and self._read_committed:
                    found = log_.aborted_between(wanted.fetch_offset, records.end_offset)
                    aborted = [(each.producer_id, each.first_offset) for each in found]
        return hot.FetchedPartition(
            wanted.partition,
            0,
            high_watermark,
            stable_offset,
            log_.start_offset,
            records,
            aborted,
            preferred,
        )

    def _preferred(self, leader: Leader, offset: int) -> int:
        """A replica that is nearer to the consumer than the leader, or -1 (KIP-392)."""
        selector = self._broker.settings.replica_selector_class
        if selector is None or not selector.endswith(_RACK_AWARE):
            return -1
        racks = self._broker.metadata.racks
        if racks.get(leader.broker_id) == self._rack:
            return -1
        near = (each for each in leader.readable_from(offset) if racks.get(each) == self._rack)
        return next(near, -1)


def _together(topics: Answered) -> Answered:
    """Each topic once. Only the first may be there twice: when it was begun with in its middle."""
    if len(topics) > 1 and topics[0][0] == topics[-1][0]:
        (topic, results), *between, (_, before) = topics
        return [(topic, before + results), *between]
    return topics


def _count(request: hot.Fetch) -> int:
    return sum(len(wanted) for _, wanted in request.topics)


def fetch(
    broker: Broker, connection: Connection, buf: bytearray, view: memoryview, start: int, end: int
) -> list[hot.Part] | None:
    _, version, correlation_id = _HEAD.unpack_from(buf, start)
    at = body_at(buf, start, end, version >= hot.FLEXIBLE)
    request = None
    if version == replica_fetch_codec.VERSION:
        request = replica_fetch_codec.decode_request(buf, view, at, end)
    if request is None:
        request = hot.decode(buf, view, at, end, version)
        if request.replica_id < 0 and _count(request) > _MOST_PARTITIONS:
            raise WireError(f"more than {_MOST_PARTITIONS} partitions in one Fetch")
    session: Session | None = None
    if version >= 7:
        broker.fetch_sessions.hurry(request.session_id)
        try:
            session = broker.fetch_sessions.begin(request, version, broker.monotonic_ms())
        except KafkaError as error:
            return hot.encode(correlation_id, version, [], error_code=error.code)
    if request.replica_id >= 0:
        return fetch_as_follower(broker, connection, version, correlation_id, request, session)
    connection.pace.asked(broker.monotonic_s())
    topics = request.topics if session is None else session.topics()
    pending = PendingFetch(broker, connection, version, correlation_id, request, session, topics)
    has_to_wait = request.max_wait_ms > 0 and any(wanted for _, wanted in topics)
    parts = pending.answer(not has_to_wait)
    if parts is None:
        pending.wait(request.max_wait_ms)
    return parts
