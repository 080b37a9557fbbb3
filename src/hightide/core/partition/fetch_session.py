"""Incremental fetch sessions (KIP-227), the broker's side.

A session remembers which partitions a client fetches, so that each fetch names only changes:

    full fetch, epoch 0 ──▶ session id, epoch 1 ──▶ fetch, epoch 1 ──▶ fetch, epoch 2 ──▶ …
                                      │  each names only what changed; so does each response
                                      └─▶ closed by epoch -1, with its last partition, or evicted

A client that reads a thousand partitions, three of them busy, then sends and receives three
entries.  A session belongs to one client.  A request that is out of step with its session is
refused, and the client starts a new one: losing a session costs one full fetch and never a record.
The follower's side is `fetch_session_client.py`.

Sessions are bounded in number and in the partitions that all of them remember.  Past a bound a
client is served without a session.  Sessions of followers are privileged: they take the place of
the longest unused session of a consumer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from hightide.wire.errors import ErrorCode, KafkaError
from hightide.wire.hot.fetch_codec import TOPIC_IDS, Fetch, FetchedPartition, RequestedPartition

if TYPE_CHECKING:
    from random import Random

INITIAL_EPOCH = 0
FINAL_EPOCH = -1
MOST_PARTITIONS = 10_000
"""Maximum number of partitions of a consumer's session: as many as one fetch may name."""
FEW_PARTITIONS = 64
_LONGEST_NAME = 249
_LAST_EPOCH = 2**31 - 1

TopicPartition = tuple[bytes, int]


@dataclass(slots=True)
class SessionPartition:
    """A partition of a session: what the client requests, and what it was last sent."""

    requested: RequestedPartition
    high_watermark: int = -1
    log_start_offset: int = -1
    agreed: object = None
    """The `Leader` (one leader epoch) whose log is known to agree with the client's up to here."""

    def continues(self, requested: RequestedPartition) -> bool:
        """Return whether the client merely advanced.  If not, it may not have used the last
        response."""
        before = self.requested
        return (
            requested.current_leader_epoch == before.current_leader_epoch
            and requested.log_start_offset == before.log_start_offset
        )

    def has_changed(self, result: FetchedPartition) -> bool:
        """Return whether the client does not know all of `result` yet."""
        return (
            result.records is not None
            or result.error_code != 0
            or result.high_watermark != self.high_watermark
            or result.log_start_offset != self.log_start_offset
            or result.diverging_epoch is not None
            or result.preferred_read_replica != -1
        )

    def sent(self, result: FetchedPartition) -> None:
        """The client was sent `result`."""
        # After an error the client's state is unknown: the next good result must be sent whole.
        failed = result.error_code != 0 or result.diverging_epoch is not None
        self.high_watermark = -1 if failed else result.high_watermark
        self.log_start_offset = -1 if failed else result.log_start_offset


class SessionOwner(Protocol):
    """Owner of a fetch session; notified when the session ends."""

    def end_wait(self) -> None:
        """Answer the waiting request with what is available now."""

    def end(self) -> None:
        """The session has ended."""


@dataclass(slots=True)
class Session:
    """One client's partitions, in the order in which they are served next."""

    id: int
    by_topic_id: bool
    epoch: int
    used_ms: int
    replica_id: int = -1
    """The follower that the session belongs to; -1 for a consumer's."""
    touched_ms: int = 0
    """When the leaders of all partitions were last informed that this follower keeps up."""
    partitions: dict[TopicPartition, SessionPartition] = field(default_factory=dict)
    owner: SessionOwner | None = None

    @property
    def is_privileged(self) -> bool:
        return self.replica_id >= 0

    def update(self, request: Fetch) -> None:
        for topic, requested in request.topics:
            for partition in requested:
                key = (topic, partition.partition)
                known = self.partitions.get(key)
                if known is None or not known.continues(partition):
                    self.partitions[key] = SessionPartition(partition)
                else:
                    known.requested = partition
                    known.agreed = None
        for topic, indexes in request.forgotten:
            for index in indexes:
                self.partitions.pop((topic, index), None)

    def topics(self) -> list[tuple[bytes, list[RequestedPartition]]]:
        """Return all requested partitions, neighbours of one topic together."""
        grouped: list[tuple[bytes, list[RequestedPartition]]] = []
        last: bytes | None = None
        for (topic, _), remembered in self.partitions.items():
            if topic != last:
                grouped.append((topic, []))
                last = topic
            grouped[-1][1].append(remembered.requested)
        return grouped

    def news(
        self, topics: list[tuple[bytes, list[FetchedPartition]]], everything: bool
    ) -> list[tuple[bytes, list[FetchedPartition]]]:
        """Return the results that the client does not know yet, and remember them as sent.

        Partitions with records move to the end of the order, so that a busy partition cannot
        starve the ones after it when a response is full.
        """
        kept: list[tuple[bytes, list[FetchedPartition]]] = []
        for topic, results in topics:
            changed: list[FetchedPartition] = []
            for result in results:
                remembered = self.partitions.get((topic, result.partition))
                if remembered is None or not (everything or remembered.has_changed(result)):
                    continue
                changed.append(result)
                remembered.sent(result)
                if result.records is not None:
                    self.partitions[topic, result.partition] = self.partitions.pop(
                        (topic, result.partition)
                    )
            if changed:
                kept.append((topic, changed))
        return kept


class FetchSessions:
    """All sessions of a broker, least recently used first.

    At most `slots` of them, with at most `most_partitions` partitions in total.
    """

    def __init__(
        self, slots: int, eviction_ms: int, random: Random, most_partitions: int = 200_000
    ) -> None:
        self._slots = slots
        self._eviction_ms = eviction_ms
        self._random = random
        self._most_partitions = most_partitions
        self._sessions: dict[int, Session] = {}
        self.partition_count = 0
        """The number of partitions in all sessions."""

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        return iter(self._sessions.values())

    def hurry(self, session_id: int) -> None:
        """Answer a session's waiting request now, because its client sent another request."""
        session = self._sessions.get(session_id)
        if session is not None and session.owner is not None:
            session.owner.end_wait()

    def is_large(self, session_id: int) -> bool:
        """Whether a fetch in this session looks at many partitions."""
        session = self._sessions.get(session_id)
        return session is not None and len(session.partitions) > FEW_PARTITIONS

    def begin(self, request: Fetch, version: int, now_ms: int) -> Session | None:
        """Return the updated session of a request, or None for a fetch without a session.

        Raise KafkaError if the request is out of step with its session, or if the session would
        remember too many partitions.
        """
        session = self._sessions.get(request.session_id)
        if session is not None and session.replica_id != request.replica_id:
            session = None  # a client must not write into, or end, the session of a follower
        if request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            if session is not None:
                self._end(session.id)
            if request.session_epoch == FINAL_EPOCH:
                return None
            return self._open(request, version, now_ms)
        if session is None:
            raise KafkaError(
                ErrorCode.FETCH_SESSION_ID_NOT_FOUND, "no such fetch session; send a full fetch"
            )
        if request.session_epoch != session.epoch:
            raise KafkaError(
                ErrorCode.INVALID_FETCH_SESSION_EPOCH,
                f"expected session epoch {session.epoch}, got {request.session_epoch}",
            )
        if session.by_topic_id != (version >= TOPIC_IDS):
            raise KafkaError(
                ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
                "a fetch session uses either topic names or topic ids, not both",
            )
        session.epoch = 1 if session.epoch == _LAST_EPOCH else session.epoch + 1
        session.used_ms = now_ms
        self._sessions[session.id] = self._sessions.pop(session.id)
        before = len(session.partitions)
        session.update(request)
        count = len(session.partitions)
        if count != before:
            self.partition_count += count - before
            if count > before:
                self._check_growth(session, request, now_ms)
            elif not count:
                self._end(session.id)
        return session

    def _check_growth(self, session: Session, request: Fetch, now_ms: int) -> None:
        """End a session that remembers too many partitions.

        Its client sends a full fetch then, which is served without a session if it must be.
        """
        if (
            _has_long_name(request)
            or (not session.is_privileged and len(session.partitions) > MOST_PARTITIONS)
            or not self._make_room(0, session.is_privileged, now_ms, session)
        ):
            self._end(session.id)
            raise KafkaError(
                ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
                "the fetch session has too many partitions; send a full fetch",
            )

    def _open(self, request: Fetch, version: int, now_ms: int) -> Session | None:
        count = sum(len(requested) for _, requested in request.topics)
        is_privileged = request.replica_id >= 0
        if not count or not self._slots or _has_long_name(request):
            return None
        if not is_privileged and count > MOST_PARTITIONS:
            return None
        if not self._make_room(count, is_privileged, now_ms):
            return None
        session = Session(self._new_id(), version >= TOPIC_IDS, 1, now_ms, request.replica_id)
        session.update(request)
        if session.partitions:
            self._sessions[session.id] = session
            self.partition_count += len(session.partitions)
        return session

    def _make_room(
        self, count: int, is_privileged: bool, now_ms: int, growing: Session | None = None
    ) -> bool:
        """Evict sessions until there is room for another session with `count` partitions, or for
        what `growing` has taken.  Return whether there is."""
        if count > self._most_partitions:
            return False
        while (
            growing is None and len(self._sessions) >= self._slots
        ) or self.partition_count + count > self._most_partitions:
            evicted: Session | None = next(iter(self._sessions.values()))
            assert evicted is not None
            if now_ms - evicted.used_ms < self._eviction_ms:
                consumers = (session for session in self if not session.is_privileged)
                evicted = next(consumers, None) if is_privileged else None
            if evicted is None or evicted is growing:
                return False
            self._end(evicted.id)
        return True

    def _end(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is None:
            return
        self.partition_count -= len(session.partitions)
        if session.owner is not None:
            session.owner.end()

    def _new_id(self) -> int:
        while True:
            chosen = self._random.randint(1, 2**31 - 1)
            if chosen not in self._sessions:
                return chosen


def _has_long_name(request: Fetch) -> bool:
    """Return whether a topic cannot exist: its name would only cost memory."""
    return any(len(topic) > _LONGEST_NAME for topic, _ in request.topics)
