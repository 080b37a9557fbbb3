"""A replica: one partition's log on this broker, its role, and who waits for it.

    leads     producers append; followers fetch; the machine says what is committed
    follows   the leader's answers are carried out (`take`)
    neither   the log is kept, nobody is served

What is decided, the machines of the core decide (`core/partition/leader.py`,
`core/partition/follower.py`); here their facts are gathered and their decisions carried out.

Waits hang on the thing waited for.  A fetch that found too little waits on each replica that it
reads: a consumer for the high watermark, or for the last stable offset if it wants what is
committed of transactions, a follower for the end of the log.  A follower's session stays there
between its fetches, to be told what is news.  An append counts bytes into its replica,
and after the answers of the turn have left, the waiters that now have enough are served.  A write
that needs other replicas waits in a heap, by the offset that it needs.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping, Set
from heapq import heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

from hightide.broker.replication.purgatory import FollowerWaiter, Waiter, WaitingWrite
from hightide.client.connection import CODES
from hightide.core.metadata.topic_names import INTERNAL_TOPICS
from hightide.core.partition.fetch_session import TopicPartition
from hightide.core.partition.follower import Do, Follower, Position, Step
from hightide.core.partition.leader import Changes, Leader, Proposal
from hightide.core.partition.state import PartitionState
from hightide.core.transactions.transaction import Producer
from hightide.core.transactions.verification import Guard
from hightide.log.log import Log
from hightide.wire.errors import Corrupt, ErrorCode, KafkaError
from hightide.wire.hot.replica_fetch_codec import ReceivedPartition

if TYPE_CHECKING:
    from hightide.broker.coordinator_log import CoordinatorLog
    from hightide.broker.replication.replica_manager import ReplicaManager

log = logging.getLogger(__name__)

_BACK_OFF = Step(Do.BACK_OFF)
_EVERYTHING = 1 << 31
_COMPLAIN_MS = 10_000
_MARKER_BYTES = 78


class _Wait(NamedTuple):
    end_offset: int
    number: int  # of equal offsets the first comes first
    write: WaitingWrite


class Replica:
    """A partition on this broker."""

    __slots__ = (
        "_commits",
        "_flushes",
        "_replicas",
        "_uncommitted_bytes",
        "_wait_number",
        "complained_ms",
        "follower",
        "follower_waiters",
        "fresh_bytes",
        "fresh_end_bytes",
        "fresh_stable_bytes",
        "high_watermark",
        "is_internal",
        "key",
        "leader",
        "leader_epoch",
        "led_log",
        "log",
        "lost_records",
        "partition",
        "stable_offset",
        "stable_waiters",
        "state",
        "topic",
        "topic_id",
        "waiters",
    )

    def __init__(
        self, log: Log, topic_id: uuid.UUID, high_watermark: int, replicas: ReplicaManager
    ) -> None:
        self.topic = log.topic
        self.topic_id = topic_id
        self.partition = log.partition
        self.key: TopicPartition = (topic_id.bytes, log.partition)
        self.log = log
        self.is_internal = log.topic in INTERNAL_TOPICS
        self.state: PartitionState | None = None
        self.leader: Leader | None = None
        self.follower: Follower | None = None
        self.leader_epoch = -1
        # What the coordinator writes here whose records these are, if it is an internal topic.
        self.led_log: CoordinatorLog | None = None
        # Committed records that were truncated, with no election that explains it.
        self.lost_records = 0
        self.complained_ms = 0
        self.waiters: dict[Waiter, None] = {}
        self.stable_waiters: dict[Waiter, None] = {}
        self.follower_waiters: dict[FollowerWaiter, None] = {}
        # What waiters have not been told of yet: of what is committed, of what is also decided,
        # and of the log.
        self.fresh_bytes = 0
        self.fresh_stable_bytes = 0
        self.fresh_end_bytes = 0
        self._uncommitted_bytes = 0
        self._commits: list[_Wait] = []
        self._flushes: list[_Wait] = []
        self._wait_number = 0
        self._replicas = replicas
        self.stable_offset = 0
        # What was deleted had been committed; what is not here any more cannot be shown.
        self._set_high_watermark(min(max(high_watermark, log.start_offset), log.end_offset))

    def __repr__(self) -> str:
        role = "leads" if self.leader else "follows" if self.follower else "waits"
        return f"<Replica {self.topic}-{self.partition} {role} in epoch {self.leader_epoch}>"

    # -- roles -----------------------------------------------------------------------------

    def lead(
        self,
        state: PartitionState,
        broker_id: int,
        broker_epoch: int,
        live: Mapping[int, int],
        shutting_down: Set[int],
        lag_ms: int,
        now_ms: int,
    ) -> None:
        """Lead from now on, in the state's epoch."""
        self._end_role()
        log_ = self.log
        # Before any record of the epoch exists, so that the epoch's start is never in doubt.
        log_.epochs.assign(state.leader_epoch, log_.end_offset)
        self.leader = leader = Leader(
            broker_id,
            broker_epoch,
            state,
            end_offset=log_.end_offset,
            high_watermark=self.high_watermark,
            min_isr=log_.config.min_insync_replicas,
            lag_ms=lag_ms,
            live=live,
            shutting_down=shutting_down,
            now_ms=now_ms,
        )
        self._begin_role(state)
        if leader.high_watermark > self.high_watermark:
            self._committed(leader.high_watermark)

    def follow(self, state: PartitionState) -> None:
        """Follow the state's leader from now on."""
        self._end_role()
        self.follower = Follower(state, self.log, self.high_watermark)
        self._begin_role(state)

    def rest(self, state: PartitionState | None) -> None:
        """Neither lead nor follow: nobody leads, or the partition is not here any more."""
        self._end_role()
        self._begin_role(state)

    def _begin_role(self, state: PartitionState | None) -> None:
        self.state = state
        if state is not None:
            self.leader_epoch = state.leader_epoch
        # Whoever waits here waits for a role that is over.
        self.wake_all()
        self._replicas.on_change()
        if self.is_internal:
            self._replicas.on_role(self)

    def _end_role(self) -> None:
        self.leader = self.follower = None
        if self.led_log is not None:
            self.led_log.end()
            self.led_log = None
        # They are in the log, and the next leader may have them or not: the client asks again.
        self._settle_all(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def published(self, state: PartitionState) -> None:
        """The controller has decided something else in the same leader epoch."""
        self.state = state
        if self.leader is not None:
            self._follow_up(self.leader.published(state))
        elif self.follower is not None:
            self.follower.published(state)

    # -- leading ---------------------------------------------------------------------------

    def append(
        self,
        buf: bytearray,
        view: memoryview,
        start: int,
        end: int,
        now_ms: int,
        guard: Guard | None = None,
    ) -> tuple[int, int, int]:
        """Append a producer's batch; (base offset, next offset, log append time or -1).

        The first batch of a transaction is appended with a guard
        (`broker/transactions/partition_verifier.py`).
        """
        log_ = self.log
        result = log_.append(buf, view, start, end, self.leader_epoch, now_ms, guard)
        if log_.end_offset < log_.flush_at:
            self._grown(log_.end_offset, end - start)
        return result

    def append_own(
        self, batch: bytearray, now_ms: int, guard: Guard | None = None
    ) -> tuple[int, int]:
        """Append a batch that this broker has made; (base offset, next offset)."""
        log_ = self.log
        result = log_.append_own(batch, self.leader_epoch, now_ms, guard)
        if log_.end_offset < log_.flush_at:
            self._grown(log_.end_offset, len(batch))
        # It need not be a request that this comes of, whose end would wake them.
        if self._replicas.grown:
            self._replicas.wake_soon()
        return result

    def append_marker(
        self, producer: Producer, coordinator_epoch: int, is_commit: bool, version: int, now_ms: int
    ) -> int:
        """End a producer's transaction; the offset behind all that must be committed before it may
        be said that the marker is there.  After the last one of a request: `markers_appended`."""
        log_ = self.log
        offset = log_.append_marker(
            producer, coordinator_epoch, is_commit, version, self.leader_epoch, now_ms
        )
        end_offset = log_.end_offset
        if offset is not None:
            if end_offset < log_.flush_at:
                self._grown(end_offset, _MARKER_BYTES)
            if self.led_log is not None:
                self.led_log.marker_appended(end_offset, producer.id, is_commit)
        return end_offset

    def markers_appended(self) -> None:
        """Tell those whom markers concern."""
        if self.led_log is not None:
            self.led_log.settle()
        if self._replicas.grown:
            self._replicas.wake_soon()

    @property
    def needs_flush(self) -> bool:
        """Whether what was appended last may be answered for only after a flush."""
        return self.log.end_offset >= self.log.flush_at

    def flushed(self, offset: int) -> None:
        """Everything before `offset` is on disk, so it may be shown."""
        if self.leader is not None:
            self._grown(offset, _EVERYTHING)
        self._settle(self._flushes, offset)

    def flush_failed(self) -> None:
        """Nobody can say any more what of the rest is on disk."""
        self._settle_all(ErrorCode.KAFKA_STORAGE_ERROR)

    def _grown(self, end_offset: int, byte_count: int) -> None:
        """The log ends here for all who may see it: followers, and who counts what is committed."""
        leader = self.leader
        if leader is None or end_offset <= leader.end_offset:
            return
        self._uncommitted_bytes += byte_count
        if self.follower_waiters:
            if not self.fresh_end_bytes:
                self._replicas.grown.append(self)
            self.fresh_end_bytes += byte_count
        changes = leader.appended(end_offset)
        if changes.high_watermark is not None:
            self._committed(changes.high_watermark)

    def fetched(
        self, replica: int, offset: int, broker_epoch: int, now_ms: int, log_start_offset: int
    ) -> None:
        """A follower has everything before `offset`."""
        assert self.leader is not None
        own_start = self.log.start_offset
        self._follow_up(
            self.leader.fetched(replica, offset, broker_epoch, now_ms, log_start_offset, own_start)
        )

    def delete_records(self, before_offset: int) -> None:
        """Drop what is before an offset, here and, as they hear of it, on the followers."""
        self.log.delete_records(before_offset)
        for waiter in self.follower_waiters:
            waiter.fresh[self.key] = None
        self._replicas.tell_followers(self)

    def tick(self, now_ms: int) -> None:
        """Look for members of the ISR that are late."""
        self.log.transactions.high_watermark_moved(self.high_watermark)
        if self.leader is not None:
            self._follow_up(self.leader.tick(now_ms))

    def brokers_changed(self, live: Mapping[int, int], shutting_down: Set[int]) -> None:
        if self.leader is not None:
            self._follow_up(self.leader.brokers_changed(live, shutting_down))

    def configured(self, lag_ms: int) -> None:
        """The settings of the broker or of the topic, which the log has, are others now."""
        if self.leader is not None:
            self._follow_up(self.leader.configured(self.log.config.min_insync_replicas, lag_ms))

    def refused(self, proposal: Proposal) -> None:
        """The controller does not carry out a proposal."""
        if self.leader is not None:
            self._follow_up(self.leader.refused(proposal))

    def _follow_up(self, changes: Changes) -> None:
        if changes.high_watermark is not None:
            self._committed(changes.high_watermark)
        if changes.proposal is not None:
            self._replicas.on_proposal(self, changes.proposal)

    def _committed(self, high_watermark: int) -> None:
        """The high watermark has moved: tell everybody who waits for it."""
        before = self.high_watermark
        self._set_high_watermark(high_watermark)
        if self.waiters:
            if not self.fresh_bytes:
                self._replicas.grown.append(self)
            # How many bytes are committed nobody counts. Who finds too few goes on waiting.
            self.fresh_bytes += self._uncommitted_bytes or 1
        if self.stable_waiters:
            self._stable_offset_moved(before, self._uncommitted_bytes or 1)
        self._uncommitted_bytes = 0
        if self._commits:
            self._settle(self._commits, high_watermark)
        if self.led_log is not None:
            self.led_log.settle()
        if self.follower_waiters:
            for waiter in self.follower_waiters:
                waiter.fresh[self.key] = None
            self._replicas.tell_followers(self)

    def _stable_offset_moved(self, before: int, byte_count: int) -> None:
        """The high watermark has moved, and perhaps the last stable offset with it."""
        stable_offset = self.log.last_stable_offset
        if stable_offset == self.stable_offset:
            return
        if not self.fresh_stable_bytes:
            self._replicas.grown.append(self)
        # With the end of a transaction all of it is shown at once, and what waited behind it.
        is_plain = self.stable_offset == before and stable_offset == self.high_watermark
        self.fresh_stable_bytes += byte_count if is_plain else _EVERYTHING
        self.stable_offset = stable_offset

    def _set_high_watermark(self, high_watermark: int) -> None:
        self.high_watermark = self.log.high_watermark = high_watermark

    # -- writes that wait ------------------------------------------------------------------

    def when_committed(self, end_offset: int, write: WaitingWrite) -> None:
        """Settle the write when everything before `end_offset` is committed, or will not be."""
        self._wait_number += 1
        heappush(self._commits, _Wait(end_offset, self._wait_number, write))

    def when_flushed(self, end_offset: int, write: WaitingWrite) -> None:
        """Settle the write when everything before `end_offset` is on disk, or will not be."""
        self._wait_number += 1
        heappush(self._flushes, _Wait(end_offset, self._wait_number, write))

    def _settle(self, waits: list[_Wait], offset: int) -> None:
        leader = self.leader
        due = []
        while waits and waits[0].end_offset <= offset:
            due.append(heappop(waits))
        # A connection's answers leave in order: when the first is settled last, in one write.
        for wait in reversed(due):
            code = ErrorCode.NONE
            if waits is self._commits and leader is not None:
                code = leader.commit_verdict(wait.end_offset) or ErrorCode.NONE
            wait.write.settle(code)

    def _settle_all(self, code: ErrorCode) -> None:
        waits = sorted(self._commits) + sorted(self._flushes)
        self._commits, self._flushes = [], []
        for wait in waits:
            wait.write.settle(code)

    # -- following -------------------------------------------------------------------------

    def take(self, asked: Position, given: ReceivedPartition, now_ms: int) -> Step:
        """Carry out the leader's answer to a fetch; what the fetcher is to do next."""
        follower = self.follower
        assert follower is not None
        code = CODES.get(given.error_code)
        if code is None:
            return _BACK_OFF
        step = follower.answered(
            asked,
            code,
            diverging=given.diverging_epoch,
            leader_log_start_offset=given.log_start_offset,
        )
        try:
            if step.do is Do.APPEND:
                return self._copy(follower, given, now_ms, step)
            if step.do in (Do.TRUNCATE, Do.RESTART):
                self._cut(follower, step, now_ms)
        except Corrupt as damage:
            log.error(
                "%s-%d: the leader's answer is no use: %s", self.topic, self.partition, damage
            )
            return _BACK_OFF
        except KafkaError as failure:
            self.complain(failure, now_ms)
            return _BACK_OFF
        return step

    def _copy(self, follower: Follower, given: ReceivedPartition, now_ms: int, step: Step) -> Step:
        if given.records:
            # A leader that has lost its role may have cut its log under an answer, and copied what
            # its successor wrote: nothing newer than this epoch is taken from it.
            self.log.append_fetched(given.records, now_ms, follower.state.leader_epoch)
        moved = follower.appended(given.high_watermark, given.log_start_offset)
        if moved.high_watermark is not None:
            self._set_high_watermark(moved.high_watermark)
            self.wake_consumers()
        if moved.log_start_offset is not None:
            self.log.start_at(moved.log_start_offset)
        return step

    def _cut(self, follower: Follower, step: Step, now_ms: int) -> None:
        before = self.log.end_offset
        if step.lost:
            self._report_loss(follower, step)
        if step.do is Do.RESTART:
            self.log.restart_at(step.offset, now_ms)
        else:
            self.log.truncate_to(step.offset, now_ms)
        follower.truncated()
        self._set_high_watermark(follower.high_watermark)
        log.info(
            "%s-%d: cut from %d to %d, where it parts from the log of its leader",
            self.topic,
            self.partition,
            before,
            self.log.end_offset,
        )

    def _report_loss(self, follower: Follower, step: Step) -> None:
        state, high_watermark = follower.state, follower.high_watermark
        if follower.expects_loss:
            reason = (
                f"the leader elected in leader epoch {state.recovery_epoch} was not known to have"
                " all committed records"
            )
        else:
            self.lost_records += step.lost
            reason = (
                "no unclean election explains this: look for a disk of the leader that lost data,"
                " or for a log directory that was deleted or restored"
            )
        log.error(
            "%s-%d: %d committed records are lost, at offsets %d to %d: the leader, broker %d in"
            " leader epoch %d, does not have them; this replica truncates its log to the leader's."
            " Reason: %s",
            self.topic,
            self.partition,
            step.lost,
            high_watermark - step.lost,
            high_watermark - 1,
            state.leader,
            state.leader_epoch,
            reason,
        )

    # -- those who wait --------------------------------------------------------------------

    def wait_for_stable(self, waiter: Waiter) -> None:
        """Let the waiter know when the last stable offset moves, from where it is now."""
        self.stable_waiters[waiter] = None
        self.stable_offset = self.log.last_stable_offset

    def wake_consumers(self) -> None:
        has_stable_waiters = (
            bool(self.stable_waiters) and self.stable_offset != self.log.last_stable_offset
        )
        if self.waiters or has_stable_waiters:
            self.fresh_bytes = _EVERYTHING
            if has_stable_waiters:
                self.fresh_stable_bytes = _EVERYTHING
                self.stable_offset = self.log.last_stable_offset
            self._replicas.grown.append(self)
            self._replicas.wake_soon()

    def wake_all(self) -> None:
        """Let everybody who waits look again."""
        if self.waiters or self.stable_waiters or self.follower_waiters:
            self.fresh_bytes = self.fresh_stable_bytes = self.fresh_end_bytes = _EVERYTHING
            self._replicas.grown.append(self)
            self._replicas.wake_soon()

    def complain(self, failure: KafkaError, now_ms: int) -> None:
        """Tell an operator, now and then: a full disk refuses everything."""
        if now_ms - self.complained_ms > _COMPLAIN_MS:
            self.complained_ms = now_ms
            log.error("cannot write to %s-%d: %s", self.topic, self.partition, failure)
