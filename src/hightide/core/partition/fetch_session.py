"""Incremental fetch sessions (KIP-227): what a client still wants, remembered between its fetches.

    full fetch, epoch 0 ──▶ session, id and epoch 1 ──▶ fetch, epoch 1 ──▶ fetch, epoch 2 ──▶ …
                                      │  each names only what changed; so does each answer
                                      └─▶ closed by epoch -1, by having nothing left, or evicted

A client that reads a thousand partitions, three of them busy, then sends and gets three entries.
A session belongs to one client; requests that arrive out of step are refused and the client
begins anew, so losing a session costs one full fetch and never a record.
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
_LAST_EPOCH = 2**31 - 1

TopicPartition = tuple[bytes, int]


@dataclass(slots=True)
class SessionPartition:
    """A partition of a session: what is wanted, and what the client was last told."""

    requested: RequestedPartition
    high_watermark: int = -1
    log_start_offset: int = -1
    agreed: object = None
    """The leader in one epoch of its, whose log is known to be the same up to here."""

    def continues(self, requested: RequestedPartition) -> bool:
        """Whether the client only got on.  If not, it may not have used what it was told."""
        before = self.requested
        return (
            requested.current_leader_epoch == before.current_leader_epoch
            and requested.log_start_offset == before.log_start_offset
        )

    def has_news(self, result: FetchedPartition) -> bool:
        return (
            result.records is not None
            or result.error_code != 0
            or result.high_watermark != self.high_watermark
            or result.log_start_offset != self.log_start_offset
            or result.diverging_epoch is not None
            or result.preferred_read_replica != -1
        )

    def told(self, result: FetchedPartition) -> None:
        # After an error nothing is known: the next good answer must be told whole.
        failed = result.error_code != 0 or result.diverging_epoch is not None
        self.high_watermark = -1 if failed else result.high_watermark
        self.log_start_offset = -1 if failed else result.log_start_offset


class SessionOwner(Protocol):
    """Whoever asks in a session, if he has something to do when it ends."""

    def end_wait(self) -> None:
        """Answer the request that waits, with what there is."""

    def end(self) -> None:
        """The session is over."""


@dataclass(slots=True)
class Session:
    """One client's partitions, in the order in which they will next be served."""

    id: int
    by_topic_id: bool
    epoch: int
    used_ms: int
    touched_ms: int = 0
    """When it was last noted that a follower keeps up with all of them."""
    partitions: dict[TopicPartition, SessionPartition] = field(default_factory=dict)
    owner: SessionOwner | None = None

    def update(self, request: Fetch) -> None:
        for topic, requested in request.topics:
            for each in requested:
                key = (topic, each.partition)
                known = self.partitions.get(key)
                if known is None or not known.continues(each):
                    self.partitions[key] = SessionPartition(each)
                else:
                    known.requested = each
                    known.agreed = None
        for topic, indexes in request.forgotten:
            for index in indexes:
                self.partitions.pop((topic, index), None)

    def topics(self) -> list[tuple[bytes, list[RequestedPartition]]]:
        """Everything wanted, with neighbours of one topic together."""
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
        """Of an answer, what the client does not know yet; it is remembered as told.

        Partitions that gave records go to the end of the line, so that a busy partition cannot
        starve the ones after it when an answer is full.
        """
        kept: list[tuple[bytes, list[FetchedPartition]]] = []
        for topic, results in topics:
            told: list[FetchedPartition] = []
            for result in results:
                remembered = self.partitions.get((topic, result.partition))
                if remembered is None or not (everything or remembered.has_news(result)):
                    continue
                told.append(result)
                remembered.told(result)
                if result.records is not None:
                    self.partitions[topic, result.partition] = self.partitions.pop(
                        (topic, result.partition)
                    )
            if told:
                kept.append((topic, told))
        return kept


class FetchSessions:
    """All sessions of a broker, at most `slots` of them, least recently used first."""

    def __init__(self, slots: int, eviction_ms: int, random: Random) -> None:
        self._slots = slots
        self._eviction_ms = eviction_ms
        self._random = random
        self._sessions: dict[int, Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        return iter(self._sessions.values())

    def hurry(self, session_id: int) -> None:
        """A client that asks again waits for its last answer no longer."""
        session = self._sessions.get(session_id)
        if session is not None and session.owner is not None:
            session.owner.end_wait()

    def begin(self, request: Fetch, version: int, now_ms: int) -> Session | None:
        """The session a request belongs to, brought up to date; None for a fetch without one.

        Raises KafkaError when the request is out of step with its session.
        """
        if request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self._end(request.session_id)
            if request.session_epoch == FINAL_EPOCH:
                return None
            return self._open(request, version, now_ms)
        session = self._sessions.get(request.session_id)
        if session is None:
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, "no such fetch session")
        if request.session_epoch != session.epoch:
            raise KafkaError(
                ErrorCode.INVALID_FETCH_SESSION_EPOCH,
                f"session epoch {session.epoch} expected, not {request.session_epoch}",
            )
        if session.by_topic_id != (version >= TOPIC_IDS):
            raise KafkaError(
                ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
                "a session keeps to topic names or to topic ids",
            )
        session.epoch = 1 if session.epoch == _LAST_EPOCH else session.epoch + 1
        session.used_ms = now_ms
        self._sessions[session.id] = self._sessions.pop(session.id)
        session.update(request)
        if not session.partitions:
            self._end(session.id)
        return session

    def _open(self, request: Fetch, version: int, now_ms: int) -> Session | None:
        if not any(requested for _, requested in request.topics) or not self._make_room(now_ms):
            return None
        session = Session(self._new_id(), version >= TOPIC_IDS, 1, now_ms)
        session.update(request)
        self._sessions[session.id] = session
        return session

    def _make_room(self, now_ms: int) -> bool:
        if len(self._sessions) < self._slots:
            return True
        if not self._sessions:
            return False
        oldest = next(iter(self._sessions.values()))
        if now_ms - oldest.used_ms < self._eviction_ms:
            return False
        self._end(oldest.id)
        return True

    def _end(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None and session.owner is not None:
            session.owner.end()

    def _new_id(self) -> int:
        while True:
            chosen = self._random.randint(1, 2**31 - 1)
            if chosen not in self._sessions:
                return chosen
