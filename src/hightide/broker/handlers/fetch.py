"""Fetch (1), versions 4 to 17, with incremental sessions and long polls.

Answers per partition:
UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID   no such partition
NOT_LEADER_OR_FOLLOWER                         another broker leads it
FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH      the client's epoch is older or newer than ours
OFFSET_OUT_OF_RANGE                            below the log start or above the log end
KAFKA_STORAGE_ERROR                            the log cannot be read
for the whole request: FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH,
FETCH_SESSION_TOPIC_ID_ERROR.

Planning looks only at indexes.  The records themselves are read when the socket takes them.  A plan
with less than `min_bytes` is thrown away, and the request waits on its replicas until they have
grown by what is missing or the time is up; then it is planned again.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from dataclasses import dataclass, field
from struct import Struct
from typing import TYPE_CHECKING

from hightide.broker.connection import Connection, Slot
from hightide.broker.replica import Replica
from hightide.core.sessions import INITIAL_EPOCH, Session
from hightide.log.disk import DiskFailed
from hightide.wire.errors import Corrupt, ErrorCode, KafkaError, WireError
from hightide.wire.hot import fetch as hot
from hightide.wire.hot.read import body_at

if TYPE_CHECKING:
    from hightide.broker.broker import Broker

log = logging.getLogger(__name__)

_HEAD = Struct(">hhi")  # api key, version, correlation id
_MOST_PARTITIONS = 10_000
_READ_COMMITTED = 1

Answered = list[tuple[bytes, list[hot.Fetched]]]


@dataclass(slots=True, eq=False)
class PendingFetch:
    """A request, and while it waits, what it waits for."""

    broker: Broker
    connection: Connection
    version: int
    correlation_id: int
    request: hot.Fetch
    session: Session | None
    topics: list[tuple[bytes, list[hot.Wanted]]]
    need_bytes: int = 0
    replicas: list[Replica] = field(default_factory=list)
    slot: Slot | None = None
    timer: asyncio.TimerHandle | None = None

    def answer(self, is_last_try: bool) -> list[hot.Part] | None:
        """The answer if there is enough to say, else None and `need_bytes` is what is missing."""
        planned = Plan(self.broker, self.request, self.version)
        for topic, wanted in self.topics:
            planned.add(topic, wanted)
        least = self.request.min_bytes
        if planned.byte_count < least and not planned.has_error and not is_last_try:
            self.need_bytes = least - planned.byte_count
            self.replicas = planned.replicas
            return None
        answered, session_id = planned.topics, 0
        if self.session is not None:
            is_first = self.request.session_epoch == INITIAL_EPOCH
            answered = self.session.news(planned.topics, everything=is_first)
            session_id = self.session.id
        return hot.encode(self.correlation_id, self.version, answered, session_id)

    def wait(self, max_wait_ms: int) -> None:
        self.slot = self.connection.defer(self.leave)
        for replica in self.replicas:
            replica.waiters[self] = None
        loop = asyncio.get_running_loop()
        self.timer = loop.call_later(max_wait_ms / 1000, self.serve, True)

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
        for replica in self.replicas:
            replica.waiters.pop(self, None)


class Plan:
    """What a request gets: per partition a slice of its log, within the request's limits."""

    __slots__ = (
        "_broker",
        "_budget",
        "_by_id",
        "_is_replica",
        "_read_committed",
        "byte_count",
        "has_error",
        "replicas",
        "topics",
    )

    def __init__(self, broker: Broker, request: hot.Fetch, version: int) -> None:
        self._broker = broker
        self._by_id = version >= hot.TOPIC_IDS
        self._is_replica = request.replica_id >= 0
        self._read_committed = request.isolation_level == _READ_COMMITTED
        self._budget = min(request.max_bytes, broker.settings.fetch_max_bytes)
        self.byte_count = 0
        self.has_error = False
        self.replicas: list[Replica] = []
        self.topics: Answered = []

    def add(self, topic: bytes, wanted: list[hot.Wanted]) -> None:
        results = []
        find = self._broker.replicas.get_by_id if self._by_id else self._broker.replicas.get
        for each in wanted:
            try:
                replica = find(topic, each.partition)
                if replica is None:
                    raise self._not_here(topic, each.partition)
                results.append(self._read(replica, each))
            except KafkaError as error:
                self.has_error = True
                results.append(hot.Fetched(each.partition, error.code))
        self.topics.append((topic, results))

    def _read(self, replica: Replica, wanted: hot.Wanted) -> hot.Fetched:
        epoch = wanted.current_leader_epoch
        if epoch >= 0 and epoch != replica.leader_epoch:
            raise KafkaError(
                ErrorCode.FENCED_LEADER_EPOCH
                if epoch < replica.leader_epoch
                else ErrorCode.UNKNOWN_LEADER_EPOCH
            )
        if self._is_replica:
            raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH, "no other broker holds a replica")
        self.replicas.append(replica)
        log_ = replica.log
        high_watermark = replica.high_watermark
        records = None
        if wanted.fetch_offset != high_watermark:
            limit = min(wanted.max_bytes, self._budget)
            if limit > 0 or not self.byte_count:
                records = self._slice(replica, wanted.fetch_offset, limit, high_watermark)
        return hot.Fetched(
            wanted.partition,
            0,
            high_watermark,
            high_watermark,
            log_.start_offset,
            records,
            self._read_committed,
        )

    def _slice(
        self, replica: Replica, offset: int, limit: int, high_watermark: int
    ) -> hot.Sized | None:
        try:
            found = replica.log.read(offset, max(limit, 0), high_watermark)
        except (DiskFailed, Corrupt) as error:
            log.error("cannot read %s-%d: %s", replica.topic, replica.partition, error)
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR) from None
        # A batch larger than the limit is given only when nothing else is: clients must get on.
        if found is None or (found.length > limit and self.byte_count):
            return None
        self.byte_count += found.length
        self._budget -= found.length
        return found

    def _not_here(self, topic: bytes, partition: int) -> KafkaError:
        metadata = self._broker.metadata
        if not self._by_id:
            found = metadata.get(topic.decode(errors="replace"))
        elif metadata.knows_id(topic):
            found = metadata.get_by_id(uuid.UUID(bytes=topic))
        else:
            return KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
        return KafkaError(metadata.refusal(found, partition))


def fetch(
    broker: Broker, connection: Connection, buf: bytearray, view: memoryview, start: int, end: int
) -> list[hot.Part] | None:
    _, version, correlation_id = _HEAD.unpack_from(buf, start)
    at = body_at(buf, start, end, version >= hot.FLEXIBLE)
    request = hot.decode(buf, view, at, end, version)
    if sum(len(wanted) for _, wanted in request.topics) > _MOST_PARTITIONS:
        raise WireError(f"more than {_MOST_PARTITIONS} partitions in one Fetch")
    session: Session | None = None
    if version >= 7:
        try:
            session = broker.fetch_sessions.begin(request, version, broker.now_ms())
        except KafkaError as error:
            return hot.encode(correlation_id, version, [], error_code=error.code)
    topics = request.topics if session is None else session.topics()
    pending = PendingFetch(broker, connection, version, correlation_id, request, session, topics)
    has_to_wait = request.max_wait_ms > 0 and any(wanted for _, wanted in topics)
    parts = pending.answer(not has_to_wait)
    if parts is None:
        pending.wait(request.max_wait_ms)
    return parts
