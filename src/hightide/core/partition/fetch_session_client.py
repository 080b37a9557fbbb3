"""A follower's half of a fetch session: what its leader was told, and so need not be told again.

    request ─▶ full, epoch 0: everything ─▶ answered ─▶ session id ─▶ epoch 1, 2, …: what changed
                 ▲                                                          │
                 └──── the leader does not know the session (any more) ◀────┘

The leader's half is `sessions`.  A thousand idle partitions are named once, and then each request
is about the busy ones only.

Usually one request is under way.  A second one of the same session may be sent behind it, so that
a partition that has just come need not wait until the first is answered: answers come in the order
of the requests.  What each answer is about is remembered with its request, because the second one
may have told something else of the same partition.
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

# The leader does not know the session, or not in this state: it has to be begun anew.
OUT_OF_STEP = frozenset(
    (
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    )
)


@dataclass(slots=True, eq=False)
class SessionRequest:
    """A request of a session, until it is answered."""

    session_id: int
    session_epoch: int
    topics: list[tuple[bytes, list[RequestedPartition]]]
    forgotten: list[tuple[bytes, list[int]]]
    overtaken: dict[TopicPartition, FetchPosition | None] = field(default_factory=dict)
    """What a request behind this one told anew, as it was in this one."""

    @property
    def is_full(self) -> bool:
        return self.session_epoch == INITIAL_EPOCH


class FetchSessionClient:
    """What is fetched from one leader over one connection."""

    __slots__ = ("_epoch", "_id", "_said", "_under_way", "is_refused")

    def __init__(self, former_id: int = NO_SESSION) -> None:
        """`former_id` is the session on a connection that broke: the leader may drop it."""
        self._id = former_id
        self._epoch = INITIAL_EPOCH
        self._said: dict[TopicPartition, FetchPosition] = {}
        self._under_way: list[SessionRequest] = []
        # The leader keeps as many sessions as it can, and this is not one of them.
        self.is_refused = False

    @property
    def session_id(self) -> int:
        return self._id

    @property
    def may_overtake(self) -> bool:
        """Whether another request may be sent now, behind the one under way."""
        return self._epoch != INITIAL_EPOCH and len(self._under_way) < 2

    def has_changes(self, positions: Mapping[TopicPartition, FetchPosition | None]) -> bool:
        """Whether one of these has not been asked for yet."""
        said = self._said
        return any(at is not None and at != said.get(key) for key, at in positions.items())

    def next_request(
        self, positions: Mapping[TopicPartition, FetchPosition | None], max_bytes: int
    ) -> SessionRequest | None:
        """The next request; None if there is nothing to ask for, which ends the session.

        `positions` are those that may have changed; None: not to be fetched any more.
        """
        said = self._said
        is_full = self._epoch == INITIAL_EPOCH
        overtaken = self._under_way[-1].overtaken if self._under_way else {}
        news: dict[TopicPartition, FetchPosition] = said if is_full else {}
        forgotten: list[TopicPartition] = []
        for key, position in positions.items():
            before = said.get(key)
            if position == before:
                continue
            overtaken[key] = before
            if position is None:
                del said[key]
                forgotten.append(key)
            else:
                said[key] = news[key] = position
        if not said:
            self._epoch = INITIAL_EPOCH
            return None
        made = SessionRequest(
            self._id,
            self._epoch,
            _wanted(news, max_bytes),
            [] if is_full else _grouped(forgotten),
        )
        if not is_full:
            self._epoch = self._epoch % _LAST_EPOCH + 1
        self._under_way.append(made)
        return made

    def answered(self, request: SessionRequest, error: ErrorCode, session_id: int) -> None:
        """The oldest request was answered.  After an error everything is told again."""
        assert request is self._under_way[0], "answers come in order"
        del self._under_way[0]
        if error is not ErrorCode.NONE:
            self._epoch = INITIAL_EPOCH
        elif request.is_full:
            self._id = session_id
            self.is_refused = session_id == NO_SESSION
            self._epoch = INITIAL_EPOCH if self.is_refused else INITIAL_EPOCH + 1

    def requested_position(self, request: SessionRequest, key: TopicPartition) -> FetchPosition | None:
        """Where `request` asked for a partition; None if it did not."""
        if request.overtaken and key in request.overtaken:
            return request.overtaken[key]
        return self._said.get(key)


def _wanted(
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
