"""Fetch (1), versions 4 to 17, with incremental sessions and long polls.

Answers per partition:
UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID   no such partition
NOT_LEADER_OR_FOLLOWER                         another broker leads it; the answer says who
FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH      the client's epoch is older or newer than ours
OFFSET_OUT_OF_RANGE                            below the log start or above the log end
KAFKA_STORAGE_ERROR                            the log cannot be read
for the whole request: FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH,
FETCH_SESSION_TOPIC_ID_ERROR.

Consumers and followers ask with the same request.  A consumer is shown what is below the high
watermark, by the leader or, if it says where it stands, by any replica.  A follower is given all
there is, and by asking tells how far it has got; that is noted once, when the request comes.

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
from hightide.core.follower import divergence
from hightide.core.picture import Topic
from hightide.core.replica import Leader
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
_ANY_REPLICA = 11  # from this version on a consumer may read from followers
_RACK_AWARE = "RackAwareReplicaSelector"
# A follower's session names only what has changed, but each of its requests says that it has kept
# up everywhere else too. That is noted no more often than this.
_TOUCH_MS = 100

Answered = list[tuple[bytes, list[hot.Fetched]]]
_WRONG_BROKER = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)


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

    @property
    def is_follower(self) -> bool:
        return self.request.replica_id >= 0

    def answer(self, is_last_try: bool) -> list[hot.Part] | None:
        """The answer if there is enough to say, else None and `need_bytes` is what is missing."""
        planned = Plan(self.broker, self.request, self.version)
        for topic, wanted in self.topics:
            planned.add(topic, wanted)
        least = self.request.min_bytes
        if planned.byte_count < least and not planned.is_urgent and not is_last_try:
            self.need_bytes = least - planned.byte_count
            self.replicas = planned.replicas
            return None
        answered, session_id = planned.topics, 0
        if self.session is not None:
            is_first = self.request.session_epoch == INITIAL_EPOCH
            answered = self.session.news(planned.topics, everything=is_first)
            session_id = self.session.id
        nodes = self._nodes(planned.leaders) if planned.leaders else []
        return hot.encode(self.correlation_id, self.version, answered, session_id, nodes=nodes)

    def _nodes(self, leaders: set[int]) -> list[hot.Node]:
        addresses = self.broker.addresses(self.connection)
        return [
            hot.Node(each.broker_id, each.host, each.port, each.rack)
            for each in addresses
            if each.broker_id in leaders
        ]

    def wait(self, max_wait_ms: int) -> None:
        self.slot = self.connection.defer(self.leave)
        for replica in self.replicas:
            if self.is_follower:
                replica.follower_waiters[self] = None
            else:
                replica.waiters[self] = None
        if self.session is not None:
            self.session.end_wait = self._give_up
        loop = asyncio.get_running_loop()
        self.timer = loop.call_later(max_wait_ms / 1000, self.serve, True)

    def _give_up(self) -> None:
        self.serve(is_last_try=True)

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

    def tell(self, replica: Replica) -> None:
        """Answer a follower that does not know the high watermark yet."""
        known = None
        if self.session is not None:
            known = self.session.partitions.get((replica.topic_id.bytes, replica.partition))
        if known is not None and known.high_watermark < replica.high_watermark:
            self.serve(is_last_try=True)

    def leave(self) -> None:
        """Wait no longer."""
        self.slot = None
        if self.timer is not None:
            self.timer.cancel()
        if self.session is not None:
            self.session.end_wait = None
        for replica in self.replicas:
            replica.waiters.pop(self, None)
            replica.follower_waiters.pop(self, None)


class Plan:
    """What a request gets: per partition a slice of its log, within the request's limits."""

    __slots__ = (
        "_broker",
        "_budget",
        "_by_id",
        "_from_leader_only",
        "_rack",
        "_read_committed",
        "_replica_epoch",
        "_replica_id",
        "byte_count",
        "is_urgent",
        "leaders",
        "replicas",
        "topics",
    )

    def __init__(self, broker: Broker, request: hot.Fetch, version: int) -> None:
        self._broker = broker
        self._by_id = version >= hot.TOPIC_IDS
        self._replica_id = request.replica_id
        self._replica_epoch = request.replica_epoch
        self._from_leader_only = version < _ANY_REPLICA
        self._rack = (request.rack_id or b"").decode(errors="replace")
        self._read_committed = request.isolation_level == _READ_COMMITTED
        self._budget = min(request.max_bytes, broker.settings.fetch_max_bytes)
        self.byte_count = 0
        self.is_urgent = False
        """Whether there is something else to say than records."""
        self.replicas: list[Replica] = []
        self.leaders: set[int] = set()
        self.topics: Answered = []

    def add(self, topic: bytes, wanted: list[hot.Wanted]) -> None:
        results = []
        replicas = self._broker.replicas
        find = replicas.get_by_id if self._by_id else replicas.get
        read = self._read_as_follower if self._replica_id >= 0 else self._read
        for each in wanted:
            replica = find(topic, each.partition)
            try:
                if replica is None:
                    raise _not_here(self._broker, topic, each.partition, self._by_id)
                check_epoch(replica, each.current_leader_epoch)
                results.append(read(replica, each))
            except KafkaError as error:
                self.is_urgent = True
                results.append(self._refused(topic, each.partition, replica, error))
        self.topics.append((topic, results))

    def _refused(
        self, topic: bytes, partition: int, replica: Replica | None, error: KafkaError
    ) -> hot.Fetched:
        leader = None
        if error.code in _WRONG_BROKER:
            leader = self._leader(topic, partition)
        start_offset = -1 if replica is None else replica.log.start_offset
        return hot.Fetched(partition, error.code, log_start_offset=start_offset, leader=leader)

    def _leader(self, topic: bytes, partition: int) -> tuple[int, int] | None:
        found = _find_topic(self._broker, topic, self._by_id)
        state = None if found is None else found.partitions.get(partition)
        if state is None:
            return None
        self.leaders.add(state.leader)
        return state.leader, state.leader_epoch

    # -- consumers -------------------------------------------------------------------------

    def _read(self, replica: Replica, wanted: hot.Wanted) -> hot.Fetched:
        leader = replica.leader
        if leader is None and (replica.follower is None or self._from_leader_only):
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        high_watermark = replica.high_watermark
        records = None
        preferred = -1
        if leader is not None and wanted.last_fetched_epoch >= 0:
            parts = _divergence(leader, replica, wanted)
            if parts is not None:
                return self._diverging(replica, wanted.partition, parts)
        if leader is not None and self._rack:
            preferred = self._preferred(leader, wanted.fetch_offset)
        if preferred != -1:
            self.is_urgent = True
        else:
            self.replicas.append(replica)
            if wanted.fetch_offset != high_watermark:
                records = self._slice(replica, wanted, high_watermark)
        return hot.Fetched(
            wanted.partition,
            0,
            high_watermark,
            high_watermark,
            replica.log.start_offset,
            records,
            self._read_committed,
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

    # -- followers -------------------------------------------------------------------------

    def _read_as_follower(self, replica: Replica, wanted: hot.Wanted) -> hot.Fetched:
        leader = _leader_for(replica, self._replica_id, self._replica_epoch)
        log_ = replica.log
        parts = _divergence(leader, replica, wanted)
        if parts is not None:
            return self._diverging(replica, wanted.partition, parts)
        self.replicas.append(replica)
        records = None
        if wanted.fetch_offset != leader.end_offset:
            throttle = self._broker.throttle
            if throttle.may_serve(replica, self._replica_id):
                records = self._slice(replica, wanted, leader.end_offset)
                if records is not None:
                    throttle.served(replica, self._replica_id, records.length)
        return hot.Fetched(
            wanted.partition,
            0,
            replica.high_watermark,
            replica.high_watermark,
            log_.start_offset,
            records,
        )

    # -- records ---------------------------------------------------------------------------

    def _diverging(self, replica: Replica, partition: int, parts: tuple[int, int]) -> hot.Fetched:
        """Whoever asks has something else before that offset than this log."""
        self.is_urgent = True
        return hot.Fetched(
            partition,
            0,
            replica.high_watermark,
            replica.high_watermark,
            replica.log.start_offset,
            diverging_epoch=parts,
        )

    def _slice(self, replica: Replica, wanted: hot.Wanted, end_offset: int) -> hot.Sized | None:
        limit = min(wanted.max_bytes, self._budget)
        if limit <= 0 and self.byte_count:
            return None
        try:
            found = replica.log.read(wanted.fetch_offset, max(limit, 0), end_offset)
        except (DiskFailed, Corrupt) as error:
            log.error("cannot read %s-%d: %s", replica.topic, replica.partition, error)
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR) from None
        # A batch larger than the limit is given only when nothing else is: clients must get on.
        if found is None or (found.length > limit and self.byte_count):
            return None
        self.byte_count += found.length
        self._budget -= found.length
        return found


def check_epoch(replica: Replica, epoch: int) -> None:
    """FENCED_LEADER_EPOCH or UNKNOWN_LEADER_EPOCH unless the client means the present epoch."""
    if epoch >= 0 and epoch != replica.leader_epoch:
        raise KafkaError(
            ErrorCode.FENCED_LEADER_EPOCH
            if epoch < replica.leader_epoch
            else ErrorCode.UNKNOWN_LEADER_EPOCH
        )


def _leader_for(replica: Replica, follower_id: int, broker_epoch: int) -> Leader:
    """The leader here, if this follower may ask it."""
    leader = replica.leader
    if leader is None:
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    verdict = leader.fetch_verdict(follower_id, broker_epoch)
    if verdict != ErrorCode.NONE:
        raise KafkaError(verdict)
    return leader


def _divergence(leader: Leader, replica: Replica, wanted: hot.Wanted) -> tuple[int, int] | None:
    """Where a follower's log parts from this one; OFFSET_OUT_OF_RANGE if it cannot be said."""
    offset, epochs = wanted.fetch_offset, replica.log.epochs
    parts = divergence(epochs, leader.end_offset, offset, wanted.last_fetched_epoch)
    if parts == (-1, -1) or (parts is None and not _is_within(leader, replica, offset)):
        raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
    return parts


def _is_within(leader: Leader, replica: Replica, offset: int) -> bool:
    return replica.log.start_offset <= offset <= leader.end_offset


def _note_positions(broker: Broker, pending: PendingFetch) -> None:
    """A follower's request says how far it has got."""
    request, session, now_ms = pending.request, pending.session, broker.now_ms()
    said = request.topics
    if session is not None and now_ms - session.touched_ms >= _TOUCH_MS:
        session.touched_ms = now_ms
        said = pending.topics
    for topic, wanted in said:
        for each in wanted:
            replica = broker.replicas.get_by_id(topic, each.partition)
            if replica is None or each.current_leader_epoch != replica.leader_epoch:
                continue
            try:
                leader = _leader_for(replica, request.replica_id, request.replica_epoch)
                if _divergence(leader, replica, each) is not None:
                    continue
            except KafkaError:
                continue  # the answer says why
            replica.fetched(
                request.replica_id,
                each.fetch_offset,
                request.replica_epoch,
                now_ms,
                each.log_start_offset,
            )


def _find_topic(broker: Broker, topic: bytes, by_id: bool) -> Topic | None:
    metadata = broker.metadata
    if by_id:
        return metadata.get_by_id(uuid.UUID(bytes=topic))
    return metadata.get(topic.decode(errors="replace"))


def _not_here(broker: Broker, topic: bytes, partition: int, by_id: bool) -> KafkaError:
    found = _find_topic(broker, topic, by_id)
    if found is None and by_id:
        return KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
    return KafkaError(broker.metadata.refusal(found, partition))


def fetch(
    broker: Broker, connection: Connection, buf: bytearray, view: memoryview, start: int, end: int
) -> list[hot.Part] | None:
    _, version, correlation_id = _HEAD.unpack_from(buf, start)
    at = body_at(buf, start, end, version >= hot.FLEXIBLE)
    request = hot.decode(buf, view, at, end, version)
    asked = sum(len(wanted) for _, wanted in request.topics)
    if asked > _MOST_PARTITIONS and request.replica_id < 0:
        raise WireError(f"more than {_MOST_PARTITIONS} partitions in one Fetch")
    session: Session | None = None
    if version >= 7:
        broker.fetch_sessions.hurry(request.session_id)
        try:
            session = broker.fetch_sessions.begin(request, version, broker.now_ms())
        except KafkaError as error:
            return hot.encode(correlation_id, version, [], error_code=error.code)
    topics = request.topics if session is None else session.topics()
    pending = PendingFetch(broker, connection, version, correlation_id, request, session, topics)
    if pending.is_follower and version >= hot.TOPIC_IDS:
        _note_positions(broker, pending)
    has_to_wait = request.max_wait_ms > 0 and any(wanted for _, wanted in topics)
    parts = pending.answer(not has_to_wait)
    if parts is None:
        pending.wait(request.max_wait_ms)
    return parts
