"""Fetch (1), versions 4 to 17, with incremental sessions and long polls.

Errors per partition:
UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID   no such partition
NOT_LEADER_OR_FOLLOWER                         another broker leads it; the response says which
FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH      the client's leader epoch is older or newer than ours
OFFSET_OUT_OF_RANGE                            below the log start or above the log end
KAFKA_STORAGE_ERROR                            the log cannot be read here
CORRUPT_MESSAGE                                the records are damaged, without another copy
Errors for the whole request: FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH,
FETCH_SESSION_TOPIC_ID_ERROR, and CLUSTER_AUTHORIZATION_FAILED for a replica id on a connection that
has not proved to be that broker's.

A consumer reads below the high watermark, from the leader or, if it names its rack, from any
replica.  A read_committed consumer reads below the last stable offset, and its response lists the
aborted transactions among the records.

If a plan has less than `min_bytes`, it is dropped and the request parks on its partitions until
they have grown by the missing bytes or `max_wait_ms` is over; then it is planned again.  Followers
send the same request (`follower_fetch.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from struct import Struct
from typing import TYPE_CHECKING

from hightide.broker.handlers.fetch_plan import FetchPlan, check_epoch, find_divergence, not_here
from hightide.broker.handlers.follower_fetch import fetch_as_follower
from hightide.broker.handlers.prove_broker import REFUSED
from hightide.broker.metrics.counters import FOLLOWER_FETCH
from hightide.broker.network.connection import Connection
from hightide.broker.network.fetch_sizing import LEAST_BYTES, PARTITION_BYTES, UNLIMITED
from hightide.broker.network.turn import TURN_S
from hightide.broker.replication.purgatory import DelayedFetch
from hightide.broker.replication.replica import Replica
from hightide.core.partition.fetch_session import INITIAL_EPOCH, Session, TopicPartition
from hightide.core.partition.leader import Leader
from hightide.wire.errors import ErrorCode, KafkaError
from hightide.wire.frame import decode_request_header
from hightide.wire.hot import fetch_codec as hot
from hightide.wire.hot import replica_fetch_codec
from hightide.wire.hot.read_cursor import body_at

if TYPE_CHECKING:
    from hightide.broker.broker import Broker

_HEAD = Struct(">hhi")  # api key, version, correlation id
_FEW_PARTITIONS = 64  # repeats among these cost little
_REPLICA_PARTITIONS = 200_000  # in one fetch of another broker
_READ_COMMITTED = 1
_HAS_ERROR_CODE = 7  # from this version on a response has an error for the whole request
_ANY_REPLICA = 11  # from this version on a consumer may read from followers
_RACK_AWARE = "RackAwareReplicaSelector"

RequestedTopics = list[tuple[bytes, list[hot.RequestedPartition]]]
FetchedTopics = list[tuple[bytes, list[hot.FetchedPartition]]]


@dataclass(slots=True, eq=False)
class ConsumerFetch:
    """A consumer's request: planned at once, and again when it has been parked."""

    broker: Broker
    connection: Connection
    version: int
    correlation_id: int
    request: hot.Fetch
    session: Session | None
    topics: RequestedTopics
    replicas: list[Replica] = field(default_factory=list)
    delayed: DelayedFetch | None = None

    def respond(self, is_last: bool) -> list[hot.Part] | int:
        """Make the response, or return how many bytes are missing.  `is_last`: make it anyway."""
        least, sizing = self.request.min_bytes, self.connection.fetch_sizing
        enough = UNLIMITED
        if self.request.max_wait_ms > 0:  # a client that does not wait does not come back for more
            # Looking at many partitions takes time too, so a response to many may be larger.
            count = sum(len(requested) for _, requested in self.topics)
            enough = max(sizing.enough_bytes, count * PARTITION_BYTES, least)
        plan = ConsumerPlan(self.broker, self.request, self.version, enough)
        for topic, requested in self._in_turn():
            plan.add(topic, requested)
        if plan.byte_count < least and not plan.is_urgent and not is_last:
            self.replicas = plan.replicas
            return least - plan.byte_count
        plan.count()
        fetched, session_id = plan.topics, 0
        if self.session is not None:
            is_first = self.request.session_epoch == INITIAL_EPOCH
            fetched = self.session.news(plan.topics, everything=is_first)
            session_id = self.session.id
        else:
            self.connection.fetch_next = plan.left_out
            fetched = _merge_first_topic(plan.topics)
        if plan.left_out is not None or plan.byte_count > LEAST_BYTES:
            sizing.gave(plan.byte_count, self.broker.monotonic_s())
        nodes = plan.nodes(self.connection)
        return hot.encode(self.correlation_id, self.version, fetched, session_id, nodes=nodes)

    def _in_turn(self) -> RequestedTopics:
        """The requested partitions, starting with the one that the last response left out.

        A session keeps its own order, in which every partition has its turn.
        """
        following = self.connection.fetch_next
        if self.session is not None or following is None:
            return self.topics
        for i, (topic, requested) in enumerate(self.topics):
            if topic == following[0]:
                for j, partition in enumerate(requested):
                    if partition.partition == following[1]:
                        before = [(topic, requested[:j])] if j else []
                        rest = [*self.topics[i + 1 :], *self.topics[:i]]
                        return [(topic, requested[j:]), *rest, *before]
        return self.topics

    def park(self, missing_bytes: int) -> None:
        """Wait for the missing bytes, or until `max_wait_ms` is over."""
        self.delayed = DelayedFetch(self.respond, self._wait_ended)
        if self.session is not None:
            self.session.owner = self
        self.delayed.park(
            self.connection,
            missing_bytes,
            self.request.max_wait_ms,
            [replica.purgatory for replica in self.replicas],
            self.request.isolation_level == _READ_COMMITTED,
        )

    def _wait_ended(self) -> None:
        self.delayed = None  # or each would keep the other until the garbage is collected
        if self.session is not None:
            self.session.owner = None

    def end_wait(self) -> None:
        """The session's client has sent its next request: respond with what there is."""
        if self.delayed is not None:
            self.delayed.end_wait()

    def end(self) -> None:
        """The session has ended; the request stays parked."""


class ConsumerPlan(FetchPlan):
    """What a consumer's request gets."""

    __slots__ = (
        "_ends_at",
        "_enough",
        "_from_leader_only",
        "_in_doubt",
        "_rack",
        "_read_committed",
        "given",
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
        self._ends_at = broker.environment.clock_s() + TURN_S
        self._in_doubt = broker.replica_manager.in_doubt()
        self.left_out: TopicPartition | None = None
        """The first partition that has records but gets none, because there are enough bytes."""
        self.replicas: list[Replica] = []
        self.given: list[tuple[Replica, int]] = []
        """The replicas whose records are in the response, and how many bytes."""
        self.topics: FetchedTopics = []

    def add(self, topic: bytes, requested: list[hot.RequestedPartition]) -> None:
        results = []
        replicas = self._broker.replica_manager
        find = replicas.get_by_id if self._by_id else replicas.get
        for partition in requested:
            index = partition.partition
            replica = find(topic, index)
            try:
                if replica is None:
                    raise not_here(self._broker, topic, index, self._by_id)
                check_epoch(replica, partition.current_leader_epoch)
                results.append(self._read(replica, topic, partition))
            except KafkaError as error:
                results.append(self.refused(topic, index, replica, error))
        self.topics.append((topic, results))

    def _read(
        self, replica: Replica, topic: bytes, requested: hot.RequestedPartition
    ) -> hot.FetchedPartition:
        leader = replica.leader
        if self._in_doubt:
            replica.check_certain()
        if leader is None and (replica.follower is None or self._from_leader_only):
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if leader is None and not self._rack and requested.fetch_offset > replica.log.end_offset:
            # A consumer without a rack was not sent here by the leader. It takes this broker for
            # the leader that it was before it restarted. It must find the new leader, and not reset
            # its offset.
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        log_ = replica.log
        high_watermark, stable_offset = replica.high_watermark, log_.last_stable_offset
        end_offset = stable_offset if self._read_committed else high_watermark
        records = None
        aborted: list[tuple[int, int]] | None = [] if self._read_committed else None
        preferred = -1
        if leader is not None and requested.last_fetched_epoch >= 0:
            diverging = find_divergence(leader, replica, requested)
            if diverging is not None:
                return self.diverging(replica, requested.partition, diverging)
        if leader is not None and self._rack:
            preferred = self._preferred(leader, requested.fetch_offset)
        if preferred != -1:
            self.is_urgent = True
        else:
            self.replicas.append(replica)
            if requested.fetch_offset == end_offset:
                pass
            elif self.byte_count >= self._enough or self._is_late:
                self.left_out = self.left_out or (topic, requested.partition)
            else:
                records = self.slice(replica, requested, end_offset)
                if records is not None:
                    self.given.append((replica, records.length))
                if records is not None and self._read_committed:
                    found = log_.aborted_between(requested.fetch_offset, records.end_offset)
                    aborted = [(entry.producer_id, entry.first_offset) for entry in found]
        return hot.FetchedPartition(
            requested.partition,
            0,
            high_watermark,
            stable_offset,
            log_.start_offset,
            records,
            aborted,
            preferred,
        )

    def count(self) -> None:
        """Count the response, which is sent."""
        for replica in self.replicas:
            replica.traffic.fetches += 1
        for replica, size in self.given:
            replica.traffic.bytes_out += size

    @property
    def _is_late(self) -> bool:
        """Whether the turn is over: partitions that have no records yet get theirs next time."""
        return self.byte_count > 0 and self._broker.environment.clock_s() > self._ends_at

    def _preferred(self, leader: Leader, offset: int) -> int:
        """A replica in the consumer's rack if the leader is in another, or -1 (KIP-392)."""
        selector = self._broker.settings.replica_selector_class
        if selector is None or not selector.endswith(_RACK_AWARE):
            return -1
        racks = self._broker.metadata.racks
        if racks.get(leader.broker_id) == self._rack:
            return -1
        near = (
            broker_id
            for broker_id in leader.readable_from(offset)
            if racks.get(broker_id) == self._rack
        )
        return next(near, -1)


def _merge_first_topic(topics: FetchedTopics) -> FetchedTopics:
    """Put each topic into the response once.

    Only the first topic may be there twice: when the plan started in the middle of its partitions.
    """
    if len(topics) > 1 and topics[0][0] == topics[-1][0]:
        (topic, results), *between, (_, before) = topics
        return [(topic, before + results), *between]
    return topics


def _once(topics: RequestedTopics) -> RequestedTopics:
    """Name each partition once; of repeats, the last one counts, as in Kafka."""
    if sum(len(requested) for _, requested in topics) <= _FEW_PARTITIONS:
        return topics
    merged: dict[bytes, dict[int, hot.RequestedPartition]] = {}
    for topic, requested in topics:
        partitions = merged.setdefault(topic, {})
        for partition in requested:
            partitions[partition.partition] = partition
    return [(topic, list(partitions.values())) for topic, partitions in merged.items()]


def _refuse_follower(version: int, correlation_id: int, request: hot.Fetch) -> list[hot.Part]:
    """Refuse a fetch that claims to be a broker's: only brokers may say how far they are."""
    if version >= _HAS_ERROR_CODE:
        return hot.encode(correlation_id, version, [], error_code=REFUSED)
    refused = [
        (topic, [hot.FetchedPartition(partition.partition, REFUSED) for partition in requested])
        for topic, requested in request.topics
    ]
    return hot.encode(correlation_id, version, refused)


def fetch(
    broker: Broker, connection: Connection, buf: bytearray, view: memoryview, start: int, end: int
) -> list[hot.Part] | None:
    """Serve the Fetch in buf[start:end]; None if it is parked."""
    _, version, correlation_id = _HEAD.unpack_from(buf, start)
    at = body_at(buf, start, end, version >= hot.FLEXIBLE)
    request = None
    if version == replica_fetch_codec.VERSION:
        request = replica_fetch_codec.decode_request(buf, view, at, end)
    if request is None:
        is_broker = connection.peer_broker_id >= 0
        room = _REPLICA_PARTITIONS if is_broker else broker.settings.request_max_names
        request = hot.decode(buf, view, at, end, version, room)
    if request.replica_id >= 0 and request.replica_id != connection.peer_broker_id:
        client_id = decode_request_header(view[start:end])[0].client_id
        broker.refusals.note(connection, client_id, f"a fetch as replica {request.replica_id}")
        return _refuse_follower(version, correlation_id, request)
    session: Session | None = None
    if request.session_id and broker.fetch_sessions.is_large(request.session_id):
        connection.check_turn()
    if version >= 7:
        broker.fetch_sessions.hurry(request.session_id)
        try:
            session = broker.fetch_sessions.begin(request, version, broker.monotonic_ms())
        except KafkaError as error:
            key = FOLLOWER_FETCH if request.replica_id >= 0 else replica_fetch_codec.FETCH
            broker.requests.of(key).failed(error.code)
            return hot.encode(correlation_id, version, [], error_code=error.code)
    if request.replica_id >= 0:
        connection.counts = broker.requests.of_followers.at(version)
        return fetch_as_follower(broker, connection, version, correlation_id, request, session)
    connection.fetch_sizing.asked(broker.monotonic_s())
    topics = _once(request.topics) if session is None else session.topics()
    consumer = ConsumerFetch(broker, connection, version, correlation_id, request, session, topics)
    may_wait = request.max_wait_ms > 0 and any(requested for _, requested in topics)
    response = consumer.respond(not may_wait)
    if isinstance(response, int):
        if session is not None or broker.replica_manager.purgatory.has_room(consumer.replicas):
            consumer.park(response)
            return None
        response = consumer.respond(True)
        assert not isinstance(response, int)
    return response
