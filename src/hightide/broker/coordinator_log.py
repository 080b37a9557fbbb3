"""A partition of an internal topic while this broker leads it, in one leader epoch.

    replay ──▶ all that is in the log, committed ──▶ append ──▶ committed, in the order of the log
                                                          └──▶ on_marker

A coordinator lives as long as its partition is led here.  It begins with everything that the log
has, the uncommitted tail included: that tail is the new leader's own now, and is committed with the
rest or not at all.  What it writes counts when the high watermark has passed it.  Whatever is
committed is told in the order of the log, and between two facts, never in the middle of one: who is
appending is told when it has appended all that it wanted to (`settle`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from hightide.wire.batch import BatchHeader, batches
from hightide.wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from hightide.broker.replication.flusher import Flusher
    from hightide.broker.replication.replica import Replica
    from hightide.core.transactions.verification import Guard

# A record takes some microseconds to be replayed; after this much others get a turn.
_CHUNK_BYTES = 64 * 1024

Visit = Callable[[BatchHeader, memoryview], None]


class CoordinatorLogClosed(Exception):
    """This broker does not lead the partition in that epoch any more."""


class _Notice(NamedTuple):
    """Something to tell when everything before `end_offset` is committed."""

    end_offset: int
    tell: Callable[[], None]


class CoordinatorLog:
    """What the coordinator of a partition reads at first, and writes."""

    def __init__(self, replica: Replica, flusher: Flusher) -> None:
        assert replica.leader is not None
        self.replica = replica
        self.epoch = replica.leader_epoch
        self.is_over = False
        self.on_marker: Callable[[int, bool], None] | None = None
        """Called with the producer id, and whether it is committed, when a marker is."""
        self._flusher = flusher
        self._notices: deque[_Notice] = deque()
        self._is_replayed = False
        self._is_appending = False
        self._is_settling = False
        self._waiter: asyncio.Future[None] | None = None
        replica.coordinator_log = self

    # -- loading ---------------------------------------------------------------------------

    async def replay(self, visit: Visit) -> None:
        """Visit all batches, in order; returns when they are committed.  LedLogOver if the role
        ends before."""
        log = self.replica.log
        offset = log.start_offset
        while offset < log.end_offset:
            offset = self._replay_some(offset, visit)
            await asyncio.sleep(0)
            self._check()
        while self.replica.high_watermark < offset:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
            self._check()
        # Markers that came meanwhile are replayed already, or told from here on.
        while self._notices and self._notices[0].end_offset <= offset:
            self._notices.popleft()
        self._is_replayed = True

    def _replay_some(self, offset: int, visit: Visit) -> int:
        """Visit the next batches; the offset behind them."""
        log = self.replica.log
        found = log.read(max(offset, log.start_offset), _CHUNK_BYTES, log.end_offset)
        if found is None:
            return log.end_offset  # nothing is left behind it, but offsets of what was compacted
        data = memoryview(found.file.read(found.position, found.length))
        for at, header in batches(data):
            visit(header, data[at : at + header.size])
            offset = header.last_offset + 1
        return offset

    def _check(self) -> None:
        if self.is_over:
            raise CoordinatorLogClosed

    # -- writing ---------------------------------------------------------------------------

    def append(
        self,
        batch: bytearray,
        now_ms: int,
        committed: Callable[[int], None],
        guard: Guard | None = None,
    ) -> int:
        """Append the coordinator's own batch; its base offset, which `committed` is called with
        when it is.  After the last append of a turn: `settle`.  If the batch opens a producer's
        transaction here, it comes with the `guard` of its verification.

        KafkaError: it is not in the log, and never will be.
        """
        replica = self.replica
        if self.is_over or replica.leader is None:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "another broker leads since")
        assert self._is_replayed, "nobody may write before it knows what is there"
        if (verdict := replica.leader.write_error()) is not ErrorCode.NONE:
            raise KafkaError(verdict, "too few replicas are in sync")
        self._is_appending = True
        try:
            base_offset, end_offset = replica.append_own(batch, now_ms, guard)
        finally:
            self._is_appending = False
        self._notices.append(_Notice(end_offset, lambda: committed(base_offset)))
        if replica.needs_flush:
            self._flusher.flush(replica)
        return base_offset

    def marker_appended(self, end_offset: int, producer_id: int, is_commit: bool) -> None:
        """Somebody's transaction ends in this partition.  After the last one: `settle`."""

        def tell() -> None:
            if self.on_marker is not None:
                self.on_marker(producer_id, is_commit)

        self._notices.append(_Notice(end_offset, tell))

    def settle(self) -> None:
        """Tell what is committed now."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        if self._is_appending or self._is_settling or not self._is_replayed:
            return
        self._is_settling = True
        try:
            while self._notices and self._notices[0].end_offset <= self.replica.high_watermark:
                self._notices.popleft().tell()
        finally:
            self._is_settling = False

    def end(self) -> None:
        """The role is over.  What becomes of the last records, others will know."""
        self.is_over = True
        self._notices.clear()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
