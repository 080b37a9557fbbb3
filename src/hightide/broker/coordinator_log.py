"""The log of a coordinator: a partition of an internal topic, in one leader epoch of this broker.

    replay ──▶ the whole log is committed ──▶ append ──▶ committed, in the order of the log
                                                    └──▶ on_marker

A coordinator exists as long as this broker leads its partition.  It starts with the whole log, the
uncommitted tail included: as the leader, this broker commits the tail with the rest or loses both.
A record counts once the high watermark has passed it.  Committed records are reported in the order
of the log, and only between two facts: a coordinator that appends gets the reports after its last
append, when it calls `settle`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from hightide.log.disk import DiskFailed
from hightide.wire.batch import BatchHeader, batches, check
from hightide.wire.errors import Corrupt, ErrorCode, KafkaError

if TYPE_CHECKING:
    from hightide.broker.replication.flusher import Flusher
    from hightide.broker.replication.replica import Replica
    from hightide.core.transactions.verification import VerificationGuard

# Replaying a record takes some microseconds; after this much, other tasks get a turn.
_CHUNK_BYTES = 64 * 1024

Visit = Callable[[BatchHeader, memoryview], None]

log_ = logging.getLogger(__name__)


class CoordinatorLogClosed(Exception):
    """This broker does not lead the partition in this epoch any more."""


class _Callback(NamedTuple):
    """Called when everything before `end_offset` is committed."""

    end_offset: int
    call: Callable[[], None]


class CoordinatorLog:
    """Replays a partition for its coordinator, and appends the coordinator's records."""

    def __init__(self, replica: Replica, flusher: Flusher) -> None:
        assert replica.leader is not None
        self.replica = replica
        self.epoch = replica.leader_epoch
        self.is_closed = False
        self.on_marker: Callable[[int, bool], None] | None = None
        """Called with the producer id, and whether it is a commit, when a marker is committed."""
        self._flusher = flusher
        self._callbacks: deque[_Callback] = deque()
        self._is_replayed = False
        self._is_appending = False
        self._is_settling = False
        self._waiter: asyncio.Future[None] | None = None
        replica.coordinator_log = self

    # -- loading ---------------------------------------------------------------------------

    async def replay(self, visit: Visit) -> None:
        """Visit all batches in order; return when they are committed.

        CoordinatorLogClosed if this broker loses the leadership before.
        """
        log = self.replica.log
        offset = log.start_offset
        while offset < log.end_offset:
            try:
                offset = self._replay_chunk(offset, visit)
            except KafkaError as failure:
                if isinstance(failure, DiskFailed):
                    log.disk_failed(failure)
                if log.failure is None:
                    raise
                await self._until(lambda: False)  # another replica leads soon
            await asyncio.sleep(0)
            self._raise_if_closed()
        await self._until(lambda: self.replica.high_watermark >= offset)
        # Markers before `offset` have been replayed; the later ones are reported.
        while self._callbacks and self._callbacks[0].end_offset <= offset:
            self._callbacks.popleft()
        self._is_replayed = True

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
            self._raise_if_closed()

    def _replay_chunk(self, offset: int, visit: Visit) -> int:
        """Visit the next batches; return the offset after them."""
        log = self.replica.log
        try:
            found = log.read(max(offset, log.start_offset), _CHUNK_BYTES, log.end_offset)
        except KafkaError as refusal:
            return self._after_hole(offset, refusal)
        if found is None:
            return log.end_offset  # compaction has removed all records up to the end
        data = memoryview(found.file.read(found.position, found.length))
        for at, header in batches(data):
            if found.segment is not None:
                self._check(data, at, header)
            visit(header, data[at : at + header.size])
            offset = header.last_offset + 1
        return offset

    def _check(self, data: memoryview, at: int, header: BatchHeader) -> None:
        """Check a batch that comes from the disk."""
        log = self.replica.log
        try:
            check(data, at, at + header.size, stored=True)
        except Corrupt as damage:
            log.damage.suspect(
                [log.segments[log.segments.index_of(header.base_offset)]], str(damage)
            )
            raise

    def _after_hole(self, offset: int, refusal: KafkaError) -> int:
        """Return where to continue after records that are damaged here.

        Another replica is about to lead if there is one in sync.  Without one, the state without
        these records is the best that there is, and a coordinator that waits helps no client.
        """
        replica = self.replica
        hole = replica.log.damage.hole_at(offset)
        if hole is None or replica.has_others_in_sync:
            raise refusal
        log_.error(
            "%s-%d: the coordinator goes on without the records at %s, which are damaged: commits"
            " and transactions in them are lost",
            replica.topic,
            replica.partition,
            hole,
        )
        return hole.end

    def _raise_if_closed(self) -> None:
        if self.is_closed:
            raise CoordinatorLogClosed

    # -- writing ---------------------------------------------------------------------------

    def append(
        self,
        batch: bytearray,
        now_ms: int,
        committed: Callable[[int], None],
        guard: VerificationGuard | None = None,
    ) -> int:
        """Append a batch and return its base offset; `committed` gets it when it is committed.

        Call `settle` after the last append of a turn.  A batch that opens a producer's transaction
        carries the `guard` of its verification.  After a KafkaError the batch is not in the log and
        never will be.
        """
        replica = self.replica
        if self.is_closed or replica.leader is None:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "another broker is the leader now")
        assert self._is_replayed, "a coordinator writes only after it has replayed the log"
        if (verdict := replica.leader.write_error()) is not ErrorCode.NONE:
            raise KafkaError(verdict, "fewer replicas are in sync than min.insync.replicas")
        self._is_appending = True
        try:
            base_offset, end_offset = replica.append_own(batch, now_ms, guard)
        finally:
            self._is_appending = False
        self._callbacks.append(_Callback(end_offset, lambda: committed(base_offset)))
        if replica.needs_flush:
            self._flusher.flush(replica)
        return base_offset

    def marker_appended(self, end_offset: int, producer_id: int, is_commit: bool) -> None:
        """Report a transaction marker in this partition.  Call `settle` after the last one."""

        def call() -> None:
            if self.on_marker is not None:
                self.on_marker(producer_id, is_commit)

        self._callbacks.append(_Callback(end_offset, call))

    def settle(self) -> None:
        """Report what is committed now."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        if self._is_appending or self._is_settling or not self._is_replayed:
            return
        self._is_settling = True
        try:
            while self._callbacks and self._callbacks[0].end_offset <= self.replica.high_watermark:
                self._callbacks.popleft().call()
        finally:
            self._is_settling = False

    def close(self) -> None:
        """Stop all reports: only the next leader can know whether the last records count."""
        self.is_closed = True
        self._callbacks.clear()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
