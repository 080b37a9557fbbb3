"""Incremental fetch sessions (KIP-227), the follower's side: what its leader already knows.

    request ─▶ full, epoch 0: everything ─▶ response ─▶ session id ─▶ epoch 1, 2, …: what changed
                 ▲                                                          │
                 └──── the leader does not know the session (any more) ◀────┘

A thousand idle partitions are named once, and then each request is about the busy ones only.  The
leader's side is `fetch_session.py`.

Usually one request is in flight.  A second one of the same session may be sent behind it, so that a
partition that was just added need not wait for the first response: responses come in the order of
the requests.  Each request remembers the positions that its response is about, because a second
request may have sent another position of the same partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from hightide.core.partition.fetch_session import INITIAL_EPOCH, TopicPartition
from hightide.core.partition.follower import FetchPosition
from hightide.wire.errors import ErrorCode
from hightide.wire.hot.fetch_codec import RequestedPartition

NO_SESSION = 0
_LAST_EPOCH = 2**31 - 1

# The leader does not know the session, or not in this state: the follower starts a new one.
OUT_OF_STEP = frozenset(
    (
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    )
)


@dataclass(slots=True, eq=False)
class SessionRequest:
    """A request of a session, while it is in flight."""

    session_id: int
    session_epoch: int
    topics: list[tuple[bytes, list[RequestedPartition]]]
    forgotten: list[tuple[bytes, list[int]]]
    replaced: dict[TopicPartition, FetchPosition | None] = field(default_factory=dict)
    """Positions that a later request replaced, as they were in this request."""

    @property
    def is_full(self) -> bool:
        return self.session_epoch == INITIAL_EPOCH


class FetchSessionClient:
    """The fetch session with one leader over one connection."""

    __slots__ = ("_epoch", "_id", "_in_flight", "_sent", "is_refused")

    def __init__(self, former_id: int = NO_SESSION) -> None:
        """`former_id` is the session of a broken connection, which the leader may drop."""
        self._id = former_id
        self._epoch = INITIAL_EPOCH
        self._sent: dict[TopicPartition, FetchPosition] = {}
        self._in_flight: list[SessionRequest] = []
        # Whether the leader has no slot for a session of this follower.
        self.is_refused = False

    @property
    def session_id(self) -> int:
        return self._id

    @property
    def may_pipeline(self) -> bool:
        """Whether a second request may be sent now, behind the one in flight."""
        return self._epoch != INITIAL_EPOCH and len(self._in_flight) < 2

    def has_changes(self, positions: Mapping[TopicPartition, FetchPosition | None]) -> bool:
        """Return whether one of these positions has not been sent yet."""
        sent = self._sent
        return any(at is not None and at != sent.get(key) for key, at in positions.items())

    def next_request(
        self, positions: Mapping[TopicPartition, FetchPosition | None], max_bytes: int
    ) -> SessionRequest | None:
        """Return the next request; None if there is nothing to fetch, which ends the session.

        `positions` are those that may have changed; None stops fetching the partition.
        """
        sent = self._sent
        is_full = self._epoch == INITIAL_EPOCH
        replaced = self._in_flight[-1].replaced if self._in_flight else {}
        news: dict[TopicPartition, FetchPosition] = sent if is_full else {}
        forgotten: list[TopicPartition] = []
        for key, position in positions.items():
            before = sent.get(key)
            if position == before:
                continue
            replaced[key] = before
            if position is None:
                del sent[key]
                forgotten.append(key)
            else:
                sent[key] = news[key] = position
        if not sent:
            self._epoch = INITIAL_EPOCH
            return None
        made = SessionRequest(
            self._id,
            self._epoch,
            _requested(news, max_bytes),
            [] if is_full else _grouped(forgotten),
        )
        if not is_full:
            self._epoch = self._epoch % _LAST_EPOCH + 1
        self._in_flight.append(made)
        return made

    def answered(self, request: SessionRequest, error: ErrorCode, session_id: int) -> None:
        """The oldest request was answered.  After an error the next request is a full one."""
        assert request is self._in_flight[0], "responses come in order"
        del self._in_flight[0]
        if error is not ErrorCode.NONE:
            self._epoch = INITIAL_EPOCH
        elif request.is_full:
            self._id = session_id
            self.is_refused = session_id == NO_SESSION
            self._epoch = INITIAL_EPOCH if self.is_refused else INITIAL_EPOCH + 1

    def requested_position(
        self, request: SessionRequest, key: TopicPartition
    ) -> FetchPosition | None:
        """Return the position of a partition in `request`; None if it was not requested."""
        if request.replaced and key in request.replaced:
            return request.replaced[key]
        return self._sent.get(key)


def _requested(
    positions: Mapping[TopicPartition, FetchPosition], max_bytes: int
) -> list[tuple[bytes, list[RequestedPartition]]]:
    topics: dict[bytes, list[RequestedPartition]] = {}
    for (topic, partition), position in positions.items():
        offset, last_fetched_epoch, leader_epoch, log_start_offset = position
        topics.setdefault(topic, []).append(
            RequestedPartition(
                partition, leader_epoch, offset, last_fetched_epoch, log_start_offset, max_bytes
            )
        )
    return list(topics.items())


def _grouped(keys: Iterable[TopicPartition]) -> list[tuple[bytes, list[int]]]:
    topics: dict[bytes, list[int]] = {}
    for topic, partition in keys:
        topics.setdefault(topic, []).append(partition)
    return list(topics.items())
