"""The purgatory: requests that cannot be answered yet, and what completes each of them.

    request                        parks until                                         or until
    Produce, acks=all              the high watermark reaches the end of its records   its timeout
    Produce, flush.messages        its records are on disk
    Fetch by a consumer            the high watermark has moved by the missing bytes   max_wait_ms
    Fetch, read_committed          the last stable offset has moved by them            max_wait_ms
    Fetch by a follower            the log end has moved by them                       max_wait_ms

A request parks on the thing that it waits for: each `Replica` has a `PartitionPurgatory`.  Delayed
writes are in heaps by the offset that they need, and are completed as soon as the high watermark
or a flush gets there.  Delayed fetches count bytes.  An append only adds to the partition's
counters; after the responses of the turn have left, `Purgatory.wake` gives the counted bytes to the
fetches and serves those that have enough.  So a producer does not wait for the consumers that its
records wake.

A delayed request keeps its place in the order of the connection's responses (`Slot`), and requests
behind it are served meanwhile.  A follower's fetch session stays on its partitions between its
fetches, so that a fetch looks only at partitions that have changed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from typing import TYPE_CHECKING, NamedTuple, Protocol

from hightide.core.partition.fetch_session import TopicPartition
from hightide.wire.errors import ErrorCode
from hightide.wire.hot import produce_codec as hot

if TYPE_CHECKING:
    from hightide.broker.network.connection import Connection, Slot
    from hightide.core.partition.leader import Leader
    from hightide.log.log import Log
    from hightide.wire.hot.fetch_codec import Part

log = logging.getLogger(__name__)

ENOUGH_BYTES = 1 << 31
"""Counted where the number of bytes is not known: it wakes every fetch."""

_NOT_PARKED = 1 << 62
_MOST_PARKED = 200_000
_FEW_PARTITIONS = 64
# Serving a woken fetch takes some 25 µs, and 3 µs more for each of its partitions. After these many
# partitions the other connections get a turn.
_PARTITIONS_PER_TURN = 1_000
_FETCH_AS_PARTITIONS = 9
# A follower learns a new high watermark with the next records. Without records it learns it this
# much later: sooner, each commit would cost every follower another fetch.
_FOLLOWER_NEWS_S = 0.01

ProduceResults = list[tuple[bytes, list[hot.ProducedPartition]]]


class DelayedWrite(Protocol):
    """Records that are appended and not yet committed or flushed."""

    def complete(self, code: ErrorCode) -> None:
        """The records are safe, or `code` says why that is not known or not so."""


class FollowerSession(Protocol):
    """A follower's fetch session, as the partitions in it see it."""

    delayed: DelayedFetch
    changed: dict[TopicPartition, None]
    """Partitions that have changed since the session last looked at them."""
    replica_id: int
    heard_ms: int
    """When the follower certainly followed the partitions of the session."""

    def follows(self, key: TopicPartition, leader: Leader) -> bool:
        """Whether the follower fetches a partition in this leader epoch."""

    def has_news(self, key: TopicPartition) -> bool:
        """Whether the partition's high watermark or log start is unknown to the follower."""


# -- produce -----------------------------------------------------------------------------------


class ProduceContext(NamedTuple):
    """What a Produce response needs besides its results."""

    connection: Connection
    correlation_id: int
    version: int
    acks: int
    timeout_ms: int


class DelayedBatch:
    """A Produce of one batch that waits to be committed.

    Most requests are one batch for one partition.  That takes one object instead of the three of a
    `DelayedProduce`.
    """

    __slots__ = ("_context", "_result", "_slot", "_template", "_timer", "_topic")

    def __init__(
        self,
        context: ProduceContext,
        topic: str,
        result: hot.ProducedPartition,
        template: hot.ResponseTemplate,
    ) -> None:
        self._context = context
        self._topic = topic
        self._result = result
        self._template = template
        self._slot: Slot | None = context.connection.defer(self._cancel)
        seconds = max(context.timeout_ms, 0) / 1000
        self._timer = asyncio.get_running_loop().call_later(
            seconds, self.complete, ErrorCode.REQUEST_TIMED_OUT
        )

    def complete(self, code: ErrorCode) -> None:
        slot, context, result = self._slot, self._context, self._result
        if slot is None:
            return
        self._cancel()
        if code is ErrorCode.NONE:
            _, _, base_offset, time_ms, log_start_offset, _, _ = result
            response = self._template.encode(
                context.correlation_id, base_offset, time_ms, log_start_offset
            )
        else:
            slot.counts.failed(code)
            results = [(self._topic.encode(), [_failed(result, code)])]
            response = hot.encode(context.correlation_id, context.version, results)
        context.connection.complete(slot, response)

    def _cancel(self) -> None:
        self._slot = None
        self._timer.cancel()


class DelayedProduce:
    """A Produce that waits for one or more of its partitions."""

    __slots__ = ("_context", "_incomplete", "_partitions", "_results", "_slot", "_timer")

    def __init__(self, context: ProduceContext, results: ProduceResults) -> None:
        self._context = context
        self._results = results
        self._partitions: list[DelayedPartition] = []
        self._incomplete = 0
        self._slot: Slot | None = None
        self._timer: asyncio.TimerHandle | None = None

    def partition(self, result: hot.ProducedPartition) -> DelayedPartition:
        """Add a partition to wait for; `result` is its part of the response if all goes well."""
        partition = DelayedPartition(self, result)
        self._partitions.append(partition)
        self._incomplete += 1
        return partition

    def park(self, has_timeout: bool) -> None:
        self._slot = self._context.connection.defer(self._cancel)
        if has_timeout:
            seconds = max(self._context.timeout_ms, 0) / 1000
            self._timer = asyncio.get_running_loop().call_later(seconds, self._time_out)

    def partition_completed(self) -> None:
        self._incomplete -= 1
        if self._incomplete == 0 and self._slot is not None:
            slot, context = self._slot, self._context
            for partition in self._partitions:
                if partition.code:
                    slot.counts.failed(partition.code)
            self._cancel()
            response = hot.encode(context.correlation_id, context.version, self._final_results())
            context.connection.complete(slot, response)

    def _time_out(self) -> None:
        for partition in self._partitions:
            partition.complete(ErrorCode.REQUEST_TIMED_OUT)

    def _cancel(self) -> None:
        self._slot = None
        if self._timer is not None:
            self._timer.cancel()

    def _final_results(self) -> ProduceResults:
        failed = {
            id(partition.result): partition.code for partition in self._partitions if partition.code
        }
        if not failed:
            return self._results
        return [
            (
                topic,
                [
                    _failed(result, failed[id(result)]) if id(result) in failed else result
                    for result in results
                ],
            )
            for topic, results in self._results
        ]


class DelayedPartition:
    """One partition of a `DelayedProduce`.  Only its first completion counts."""

    __slots__ = ("_produce", "code", "result")

    def __init__(self, produce: DelayedProduce, result: hot.ProducedPartition) -> None:
        self._produce = produce
        self.result = result
        self.code: ErrorCode | None = None

    def complete(self, code: ErrorCode) -> None:
        if self.code is None:
            self.code = code
            self._produce.partition_completed()


_MESSAGES = {
    ErrorCode.KAFKA_STORAGE_ERROR: "the disk did not keep the records",
    ErrorCode.REQUEST_TIMED_OUT: "the records are written, but not on all replicas yet",
    ErrorCode.NOT_LEADER_OR_FOLLOWER: "another broker leads now; it may have the records or not",
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: "the records are written, but on too few replicas",
}


def _failed(result: hot.ProducedPartition, code: ErrorCode | None) -> hot.ProducedPartition:
    assert code is not None
    return hot.ProducedPartition(result.partition, code, error_message=_MESSAGES.get(code))


# -- fetch -------------------------------------------------------------------------------------

Respond = Callable[[bool], "list[Part] | int"]
"""Makes a Fetch response, or returns how many bytes are missing.  True: respond in any case."""


class DelayedFetch:
    """A Fetch that waits for bytes.  A follower's session uses one for all its fetches."""

    __slots__ = (
        "_connection",
        "_on_end",
        "_partitions",
        "_respond",
        "_slot",
        "_timer",
        "missing_bytes",
    )

    def __init__(self, respond: Respond, on_end: Callable[[], None] | None = None) -> None:
        """`on_end` is called when a wait ends: with a response, or because the client is gone."""
        self._respond = respond
        self._on_end = on_end
        self._partitions: Sequence[PartitionPurgatory] = ()
        self._slot: Slot | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.missing_bytes = _NOT_PARKED

    @property
    def is_parked(self) -> bool:
        return self._slot is not None

    @property
    def partition_count(self) -> int:
        """The partitions that a consumer's fetch waits for."""
        return len(self._partitions)

    def park(
        self,
        connection: Connection,
        missing_bytes: int,
        timeout_ms: int,
        partitions: Sequence[PartitionPurgatory] = (),
        read_committed: bool = False,
    ) -> None:
        """Wait for bytes: a consumer on these partitions, a follower on those of its session."""
        self._connection = connection
        self.missing_bytes = missing_bytes
        self._slot = connection.defer(self._cancel)
        self._partitions = partitions
        if len(partitions) > _FEW_PARTITIONS:
            partitions[0].purgatory.parked_count += len(partitions)
        for partition in partitions:
            if read_committed:
                partition.park_for_stable(self)
            else:
                partition.consumers[self] = None
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(timeout_ms / 1000, self.end_wait)

    def try_complete(self, is_last: bool = False) -> None:
        """Respond if enough bytes have come, or if this is the last attempt."""
        slot = self._slot
        if slot is None or (self.missing_bytes > 0 and not is_last):
            return
        try:
            response = self._respond(is_last)
        except Exception:
            log.exception("a delayed Fetch failed")
            self._connection.abort("a delayed Fetch failed")
            return
        if isinstance(response, int):
            self.missing_bytes = response
        else:
            self._cancel()
            self._connection.complete(slot, response)

    def end_wait(self) -> None:
        """Respond with what there is."""
        self.try_complete(is_last=True)

    def _cancel(self) -> None:
        self._slot = None
        self.missing_bytes = _NOT_PARKED
        if self._timer is not None:
            self._timer.cancel()
        partitions, self._partitions = self._partitions, ()
        if len(partitions) > _FEW_PARTITIONS:
            partitions[0].purgatory.parked_count -= len(partitions)
        for partition in partitions:
            partition.consumers.pop(self, None)
            partition.stable_consumers.pop(self, None)
        if self._on_end is not None:
            self._on_end()


# -- one partition -----------------------------------------------------------------------------


class PartitionPurgatory:
    """What waits on one partition, and the bytes that its fetches have not been given yet."""

    __slots__ = (
        "_commits",
        "_flushes",
        "_stable_offset",
        "_write_count",
        "committed_bytes",
        "consumers",
        "end_bytes",
        "followers",
        "key",
        "log",
        "purgatory",
        "stable_bytes",
        "stable_consumers",
        "uncommitted_bytes",
    )

    def __init__(self, purgatory: Purgatory, key: TopicPartition, log: Log) -> None:
        self.key = key
        self.log = log
        self.consumers: dict[DelayedFetch, None] = {}
        self.stable_consumers: dict[DelayedFetch, None] = {}
        self.followers: dict[FollowerSession, None] = {}
        # Bytes not given yet: to consumers, to read_committed consumers, and to followers.
        self.committed_bytes = 0
        self.stable_bytes = 0
        self.end_bytes = 0
        self.uncommitted_bytes = 0
        """Appended since the high watermark last moved."""
        # (end offset, number, write); of equal offsets the first comes first.
        self._commits: list[tuple[int, int, DelayedWrite]] = []
        self._flushes: list[tuple[int, int, DelayedWrite]] = []
        self._write_count = 0
        self._stable_offset = 0
        self.purgatory = purgatory

    @property
    def write_count(self) -> int:
        """The writes that wait, with those that have timed out and are not removed yet."""
        return len(self._commits) + len(self._flushes)

    def waiting_fetches(self) -> set[int]:
        """The identities of the fetches that wait here; a fetch may wait on many partitions."""
        followers = (session.delayed for session in self.followers)
        parked = {id(fetch) for fetch in followers if fetch.is_parked}
        return parked.union(map(id, self.consumers), map(id, self.stable_consumers))

    # -- writes ----------------------------------------------------------------------------

    def when_committed(self, end_offset: int, write: DelayedWrite) -> None:
        """Complete the write when everything before `end_offset` is committed, or cannot be."""
        self._write_count += 1
        heappush(self._commits, (end_offset, self._write_count, write))

    def when_flushed(self, end_offset: int, write: DelayedWrite) -> None:
        """Complete the write when everything before `end_offset` is on disk, or cannot be."""
        self._write_count += 1
        heappush(self._flushes, (end_offset, self._write_count, write))

    def flushed(self, offset: int) -> None:
        """Everything before `offset` is on disk."""
        for _, _, write in _due(self._flushes, offset):
            write.complete(ErrorCode.NONE)

    def fail_writes(self, code: ErrorCode) -> None:
        """Complete all delayed writes with an error."""
        writes = sorted(self._commits) + sorted(self._flushes)
        self._commits, self._flushes = [], []
        for _, _, write in writes:
            write.complete(code)

    # -- growth ----------------------------------------------------------------------------

    def end_moved(self, byte_count: int) -> None:
        """Count bytes for the followers."""
        if not self.end_bytes:
            self.purgatory.grown.append(self)
        self.end_bytes += byte_count

    def committed(self, before: int, high_watermark: int, leader: Leader) -> None:
        """The high watermark has moved on the leader."""
        if self.consumers:
            if not self.committed_bytes:
                self.purgatory.grown.append(self)
            # How many of the bytes are committed is not counted. A fetch that finds too few waits
            # again.
            self.committed_bytes += self.uncommitted_bytes or 1
        if self.stable_consumers:
            self._count_stable(before, high_watermark)
        self.uncommitted_bytes = 0
        if self._commits:
            for end_offset, _, write in _due(self._commits, high_watermark):
                write.complete(leader.commit_result(end_offset) or ErrorCode.NONE)
        if self.followers:
            self.tell_followers()

    def _count_stable(self, before: int, high_watermark: int) -> None:
        """The high watermark has moved, and perhaps the last stable offset with it."""
        stable_offset = self.log.last_stable_offset
        if stable_offset == self._stable_offset:
            return
        if not self.stable_bytes:
            self.purgatory.grown.append(self)
        # With the end of a transaction all its records become visible, and those behind them.
        is_plain = self._stable_offset == before and stable_offset == high_watermark
        self.stable_bytes += (self.uncommitted_bytes or 1) if is_plain else ENOUGH_BYTES
        self._stable_offset = stable_offset

    def heard_ms(self, leader: Leader) -> dict[int, int]:
        """Return when each follower last certainly followed this leader."""
        heard: dict[int, int] = {}
        for session in self.followers:
            if session.follows(self.key, leader):
                known = heard.get(session.replica_id, session.heard_ms)
                heard[session.replica_id] = max(known, session.heard_ms)
        return heard

    def tell_followers(self) -> None:
        """The high watermark or the log start has moved: followers learn it soon."""
        for session in self.followers:
            session.changed[self.key] = None
        self.purgatory.tell_followers(self)

    # -- fetches ---------------------------------------------------------------------------

    def park_for_stable(self, fetch: DelayedFetch) -> None:
        """Park a read_committed fetch until the last stable offset moves from where it is now."""
        self.stable_consumers[fetch] = None
        self._stable_offset = self.log.last_stable_offset

    def wake_consumers(self) -> None:
        """The high watermark of a follower has moved."""
        is_stable_moved = (
            bool(self.stable_consumers) and self._stable_offset != self.log.last_stable_offset
        )
        if self.consumers or is_stable_moved:
            self.committed_bytes = ENOUGH_BYTES
            if is_stable_moved:
                self.stable_bytes = ENOUGH_BYTES
                self._stable_offset = self.log.last_stable_offset
            self.purgatory.grown.append(self)
            self.purgatory.wake_soon()

    def wake_all(self) -> None:
        """Let every fetch look again: the replica has another role."""
        if self.consumers or self.stable_consumers or self.followers:
            self.committed_bytes = self.stable_bytes = self.end_bytes = ENOUGH_BYTES
            self.purgatory.grown.append(self)
            self.purgatory.wake_soon()

    def give_bytes(self, woken: deque[DelayedFetch]) -> None:
        """Give the counted bytes to the fetches; those that have enough join `woken`."""
        if self.committed_bytes:
            _give(self.consumers, self.committed_bytes, woken)
            self.committed_bytes = 0
        if self.stable_bytes:
            _give(self.stable_consumers, self.stable_bytes, woken)
            self.stable_bytes = 0
        if self.end_bytes:
            key, byte_count = self.key, self.end_bytes
            for session in self.followers:
                session.changed[key] = None
                fetch = session.delayed
                fetch.missing_bytes -= byte_count
                if fetch.missing_bytes <= 0:
                    woken.append(fetch)
            self.end_bytes = 0

    def end_waits(self) -> None:
        """Respond to every fetch with what there is."""
        followers = [session.delayed for session in self.followers]
        for fetch in [*self.consumers, *self.stable_consumers, *followers]:
            fetch.end_wait()


def _due(
    writes: list[tuple[int, int, DelayedWrite]], offset: int
) -> Iterable[tuple[int, int, DelayedWrite]]:
    """Remove the writes that need no more than `offset`; the last one comes first.

    Responses leave a connection in order: when the first is completed last, all leave in one write.
    """
    due = []
    while writes and writes[0][0] <= offset:
        due.append(heappop(writes))
    return reversed(due)


def _give(fetches: Iterable[DelayedFetch], byte_count: int, woken: deque[DelayedFetch]) -> None:
    for fetch in fetches:
        fetch.missing_bytes -= byte_count
        if fetch.missing_bytes <= 0:
            woken.append(fetch)


# -- all partitions ----------------------------------------------------------------------------


class Purgatory:
    """Wakes the delayed fetches of a broker, a bounded number of them in each turn of the loop."""

    def __init__(self) -> None:
        self.grown: list[PartitionPurgatory] = []
        """Partitions with counted bytes."""
        self.parked_count = 0
        """The partitions of large consumer fetches that are parked."""
        self._woken: deque[DelayedFetch] = deque()
        self._is_serving = False
        self._is_waking = False
        self._with_news: dict[PartitionPurgatory, None] = {}

    def has_room(self, partitions: Sequence[object]) -> bool:
        """Whether a fetch of these partitions may park; if not, the client gets what there is.

        A parked fetch keeps some 300 bytes for each partition, until its client lets it end.
        """
        count = len(partitions)
        return count <= _FEW_PARTITIONS or self.parked_count + count <= _MOST_PARKED

    def wake(self) -> None:
        """Serve the fetches that have enough bytes now.  Called after the responses of a turn."""
        grown = self.grown
        if grown:
            woken = self._woken
            for partition in grown:
                partition.give_bytes(woken)
            grown.clear()
            if woken and not self._is_serving:
                self._serve_some()

    def wake_soon(self) -> None:
        """Wake fetches after something else than a request."""
        if self.grown and not self._is_waking:
            self._is_waking = True
            asyncio.get_running_loop().call_soon(self._wake_now)

    def _wake_now(self) -> None:
        self._is_waking = False
        self.wake()

    def _serve_some(self) -> None:
        self._is_serving = False
        woken = self._woken
        room = _PARTITIONS_PER_TURN
        while woken and room > 0:
            fetch = woken.popleft()
            room -= _FETCH_AS_PARTITIONS + fetch.partition_count
            fetch.try_complete()
        if woken:
            self._is_serving = True
            asyncio.get_running_loop().call_soon(self._serve_some)

    def tell_followers(self, partition: PartitionPurgatory) -> None:
        """Tell followers a new high watermark or log start, unless records bring it sooner."""
        if not self._with_news:
            asyncio.get_running_loop().call_later(_FOLLOWER_NEWS_S, self._tell_followers)
        self._with_news[partition] = None

    def _tell_followers(self) -> None:
        partitions, self._with_news = self._with_news, {}
        for partition in partitions:
            for session in list(partition.followers):
                if session.delayed.is_parked and session.has_news(partition.key):
                    session.delayed.end_wait()
