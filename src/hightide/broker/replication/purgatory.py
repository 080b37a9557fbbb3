"""Who waits on a replica: what it must know of those that hang themselves on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from hightide.core.partition.fetch_session import TopicPartition
from hightide.wire.errors import ErrorCode

if TYPE_CHECKING:
    from hightide.broker.replication.replica import Replica


class Waiter(Protocol):
    """Somebody who needs more bytes."""

    need_bytes: int

    def serve(self, is_last_try: bool = False) -> None:
        """Called when there are enough, or when there will be no more."""


class FollowerWaiter(Waiter, Protocol):
    """A follower, as long as it has the replica in its session.  It waits now and then."""

    fresh: dict[TopicPartition, None]
    """What has changed since it was looked at."""

    def tell(self, replica: Replica) -> None:
        """Its high watermark or start has moved, and there were no records to tell it with."""


class WaitingWrite(Protocol):
    """A part of a Produce that is answered when its records are safe."""

    def settle(self, code: ErrorCode) -> None: ...
