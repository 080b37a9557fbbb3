"""A replica: the log of one partition on this broker, and the replica's role.

    leader     producers append, followers fetch, and the high watermark moves
    follower   the leader's responses are applied (`apply_response`)
    neither    the log is kept, and no request is served

The state machines in `core/partition` decide.  This module passes them facts and carries out what
they decide.  Requests that wait for the replica are in its purgatory (`purgatory.py`).
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping, Set
from typing import TYPE_CHECKING

from hightide.broker.replication.purgatory import ENOUGH_BYTES, PartitionPurgatory
from hightide.client.broker_connection import CODES
from hightide.core.metadata.topic_names import INTERNAL_TOPICS
from hightide.core.partition.fetch_session import TopicPartition
from hightide.core.partition.follower import (
    Action,
    FetchPosition,
    Follower,
    LogTruncated,
    RecordsLost,
    Step,
)
from hightide.core.partition.isr import Proposal
from hightide.core.partition.leader import Changes, Leader
from hightide.core.partition.state import FirstWrite, PartitionState, Role, RoleChanged
from hightide.core.transactions.transaction import Producer
from hightide.core.transactions.verification import VerificationGuard
from hightide.event_log import record
from hightide.log.batch_validation import CheckedBatch
from hightide.log.log import Log
from hightide.wire.errors import Corrupt, ErrorCode, KafkaError
from hightide.wire.hot.replica_fetch_codec import ReceivedPartition

if TYPE_CHECKING:
    from hightide.broker.coordinator_log import CoordinatorLog
    from hightide.broker.replication.replica_failures import ReplicaFailure
    from hightide.broker.replication.replica_manager import ReplicaManager

log = logging.getLogger(__name__)

_BACK_OFF = Step(Action.BACK_OFF)
_REPORT_EVERY_MS = 10_000
_MARKER_BYTES = 78


class Replica:
    """A partition on this broker."""

    __slots__ = (
        "_counted",
        "_led_since_ms",
        "_manager",
        "_reported_ms",
        "coordinator_log",
        "failure",
        "follower",
        "high_watermark",
        "is_internal",
        "key",
        "leader",
        "leader_epoch",
        "log",
        "lost_records",
        "partition",
        "purgatory",
        "state",
        "topic",
        "topic_id",
        "traffic",
    )

    def __init__(
        self, log: Log, topic_id: uuid.UUID, high_watermark: int, manager: ReplicaManager
    ) -> None:
        self.topic = log.topic
        self.topic_id = topic_id
        self.partition = log.partition
        self.key: TopicPartition = (topic_id.bytes, log.partition)
        self.log = log
        self.purgatory = PartitionPurgatory(manager.purgatory, self.key, log)
        self.traffic = manager.traffic.replica_added(log.topic)
        self.is_internal = log.topic in INTERNAL_TOPICS
        self.state: PartitionState | None = None
        self.leader: Leader | None = None
        self.follower: Follower | None = None
        self.leader_epoch = -1
        # Of an internal topic: the group or transaction coordinator's access to this log.
        self.coordinator_log: CoordinatorLog | None = None
        # Set by `replica_failures.py`: why this replica cannot be served.
        self.failure: ReplicaFailure | None = None
        # Committed records that were truncated, with no election that explains it.
        self.lost_records = 0
        self._reported_ms = 0
        # The log end, and the bytes written, up to which the appends of a leader are counted.
        self._counted = (0, 0)
        # Until the first write of a leader that took over from another one; else 0.
        self._led_since_ms = 0
        self._manager = manager
        # Records before the log start were committed; records behind the log end cannot be shown.
        self.high_watermark = min(max(high_watermark, log.start_offset), log.end_offset)
        log.high_watermark = self.high_watermark

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
        """Become the leader in the state's leader epoch."""
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
        self._led_since_ms = now_ms if state.leader_epoch > 0 else 0
        self._counted = (log_.end_offset, log_.segments.written_bytes)
        self._begin_role(state)
        if leader.high_watermark > self.high_watermark:
            self._committed(leader, leader.high_watermark)

    def follow(self, state: PartitionState) -> None:
        """Become a follower of the state's leader."""
        self._end_role()
        self.follower = Follower(state, self.log, self.high_watermark)
        self._begin_role(state)

    def rest(self, state: PartitionState | None) -> None:
        """Neither lead nor follow: there is no leader, or the partition has left this broker."""
        self._end_role()
        self._begin_role(state)

    def _begin_role(self, state: PartitionState | None) -> None:
        self.state = state
        if state is not None:
            self.leader_epoch = state.leader_epoch
            role = Role.LEADS if self.leader else Role.FOLLOWS if self.follower else Role.WAITS
            where = (self.topic, self.partition)
            record(log, RoleChanged(*where, role, state.leader, state.leader_epoch))
        # Parked fetches wait for a role that has ended.
        self.purgatory.wake_all()
        self._manager.on_change()
        if self.is_internal:
            self._manager.on_role(self)

    def _end_role(self) -> None:
        self.count_appends()
        self.leader = self.follower = None
        if self.coordinator_log is not None:
            self.coordinator_log.close()
            self.coordinator_log = None
        # The records are in the log, and the next leader may have them or not: the client retries.
        self.purgatory.fail_writes(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def count_appends(self) -> None:
        """Add what has been appended, as a leader, to the traffic of the topic.

        The log knows it, so an append counts nothing.
        """
        if self.leader is not None:
            messages, size = self._counted
            end_offset, written = self._counted = (
                self.log.end_offset,
                self.log.segments.written_bytes,
            )
            self.traffic.messages_in += end_offset - messages
            self.traffic.bytes_in += written - size

    @property
    def has_others_in_sync(self) -> bool:
        """Whether another replica may lead, as far as this one knows."""
        return self.state is not None and len(self.state.isr) > 1

    def published(self, state: PartitionState) -> None:
        """The controller has published another state in the same leader epoch."""
        self.state = state
        if self.leader is not None:
            event = self.leader.isr_event(self.topic, self.partition, state)
            if event is not None:
                record(log, event)
            self._follow_up(self.leader.published(state))
        elif self.follower is not None:
            self.follower.published(state)

    # -- appending -------------------------------------------------------------------------

    def append(
        self,
        buf: bytearray,
        view: memoryview,
        start: int,
        end: int,
        now_ms: int,
        guard: VerificationGuard | None = None,
        checked: CheckedBatch | None = None,
    ) -> tuple[int, int, int]:
        """Append a producer's batch; return (base offset, next offset, log append time or -1).

        The first batch of a transaction is appended with a guard
        (`broker/transactions/partition_verifier.py`), and a batch whose records were checked in a
        thread with the result (`broker/record_checks.py`).
        """
        log_ = self.log
        result = log_.append(buf, view, start, end, self.leader_epoch, now_ms, guard, checked)
        if log_.end_offset < log_.flush_at:
            self._grown(log_.end_offset, end - start)
        return result

    def append_own(
        self, batch: bytearray, now_ms: int, guard: VerificationGuard | None = None
    ) -> tuple[int, int]:
        """Append a batch that this broker has made; return (base offset, next offset)."""
        log_ = self.log
        result = log_.append_own(batch, self.leader_epoch, now_ms, guard)
        if log_.end_offset < log_.flush_at:
            self._grown(log_.end_offset, len(batch))
        # The cause need not be a request, whose end would wake the parked fetches.
        self._manager.purgatory.wake_soon()
        return result

    def append_marker(
        self, producer: Producer, coordinator_epoch: int, is_commit: bool, version: int, now_ms: int
    ) -> int:
        """End a producer's transaction.

        Returns the offset up to which the log must be committed before the marker may be
        acknowledged.  Call `markers_appended` after the last marker of a request.
        """
        log_ = self.log
        offset = log_.append_marker(
            producer, coordinator_epoch, is_commit, version, self.leader_epoch, now_ms
        )
        end_offset = log_.end_offset
        if offset is not None:
            if end_offset < log_.flush_at:
                self._grown(end_offset, _MARKER_BYTES)
            if self.coordinator_log is not None:
                self.coordinator_log.marker_appended(end_offset, producer.id, is_commit)
        return end_offset

    def markers_appended(self) -> None:
        """Tell the coordinator of this log, and wake the parked fetches."""
        if self.coordinator_log is not None:
            self.coordinator_log.settle()
        self._manager.purgatory.wake_soon()

    @property
    def needs_flush(self) -> bool:
        """Whether the last append must be flushed before it is acknowledged."""
        return self.log.end_offset >= self.log.flush_at

    def flushed(self, offset: int) -> None:
        """Everything before `offset` is on disk, so followers and consumers may see it."""
        if self.leader is not None:
            self._grown(offset, ENOUGH_BYTES)
        self.purgatory.flushed(offset)

    def flush_failed(self) -> None:
        """It is not known any more which of the unflushed records are on disk."""
        self.purgatory.fail_writes(ErrorCode.KAFKA_STORAGE_ERROR)

    def _grown(self, end_offset: int, byte_count: int) -> None:
        """Move the log end that followers see, and that counts for the high watermark."""
        leader = self.leader
        if leader is None or end_offset <= leader.end_offset:
            return
        if self._led_since_ms:
            self._written_first()
        purgatory = self.purgatory
        purgatory.uncommitted_bytes += byte_count
        if purgatory.followers:
            purgatory.end_moved(byte_count)
        high_watermark = leader.appended(end_offset)
        if high_watermark >= 0:
            self._committed(leader, high_watermark)

    def _written_first(self) -> None:
        after_ms = self._manager.now_ms() - self._led_since_ms
        self._led_since_ms = 0
        record(log, FirstWrite(self.topic, self.partition, self.leader_epoch, after_ms))

    def delete_records(self, before_offset: int) -> None:
        """Delete the records before an offset; followers learn the new log start soon."""
        self.log.delete_records(before_offset)
        self.purgatory.tell_followers()

    # -- leading ---------------------------------------------------------------------------

    def check_certain(self) -> None:
        """Raise NOT_LEADER_OR_FOLLOWER if another replica may lead since a session timeout.

        Call this for clients' requests while the broker is in doubt (`ReplicaManager.in_doubt`).
        """
        leader = self.leader
        if leader is not None and not leader.is_certain(
            self.purgatory.heard_ms(leader),
            self._manager.since_ms(),
            any_replica=self.log.config.unclean_leader_election_enable,
        ):
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                "this broker has lost contact with ZooKeeper and with its followers",
            )

    def fetched(
        self, replica: int, offset: int, broker_epoch: int, now_ms: int, log_start_offset: int
    ) -> None:
        """A follower has everything before `offset`."""
        assert self.leader is not None
        own_start = self.log.start_offset
        self._follow_up(
            self.leader.fetched(replica, offset, broker_epoch, now_ms, log_start_offset, own_start)
        )

    def tick(self, now_ms: int) -> None:
        """Propose to remove followers from the ISR that are late."""
        self.log.transactions.high_watermark_moved(self.high_watermark)
        if self.leader is not None:
            self._follow_up(self.leader.tick(now_ms))

    def brokers_changed(self, live: Mapping[int, int], shutting_down: Set[int]) -> None:
        if self.leader is not None:
            self._follow_up(self.leader.brokers_changed(live, shutting_down))

    def configured(self, lag_ms: int) -> None:
        """The settings of the broker, or of the topic (which the log has), have changed."""
        if self.leader is not None:
            self._follow_up(self.leader.configured(self.log.config.min_insync_replicas, lag_ms))

    def refused(self, proposal: Proposal) -> None:
        """The controller has refused a proposal."""
        if self.leader is not None:
            self._follow_up(self.leader.refused(proposal))

    def _follow_up(self, changes: Changes) -> None:
        if changes.high_watermark is not None:
            assert self.leader is not None
            self._committed(self.leader, changes.high_watermark)
        if changes.proposal is not None:
            self._manager.on_proposal(self, changes.proposal)

    def _committed(self, leader: Leader, high_watermark: int) -> None:
        """Move the high watermark, and complete the requests that waited for it."""
        before = self.high_watermark
        self.high_watermark = self.log.high_watermark = high_watermark
        self.purgatory.committed(before, high_watermark, leader)
        if self.coordinator_log is not None:
            self.coordinator_log.settle()

    def _set_high_watermark(self, high_watermark: int) -> None:
        self.high_watermark = self.log.high_watermark = high_watermark

    # -- following -------------------------------------------------------------------------

    def apply_response(
        self, asked: FetchPosition, received: ReceivedPartition, now_ms: int
    ) -> Step:
        """Apply the leader's response to a fetch from `asked`; return the fetcher's next step."""
        follower = self.follower
        assert follower is not None
        code = CODES.get(received.error_code)
        if code is None:
            return _BACK_OFF
        step = follower.answered(
            asked,
            code,
            diverging=received.diverging_epoch,
            leader_log_start_offset=received.log_start_offset,
        )
        try:
            if step.action is Action.APPEND:
                return self._copy(follower, received, now_ms, step)
            if step.action in (Action.TRUNCATE, Action.RESTART):
                self._truncate(follower, step, now_ms)
        except Corrupt as damage:
            # The leader checks its log when it gets the same fetch again.
            if now_ms - self._reported_ms > _REPORT_EVERY_MS:
                self._reported_ms = now_ms
                log.error(
                    "%s-%d: the leader's response is damaged; it is fetched again: %s",
                    self.topic,
                    self.partition,
                    damage,
                )
            return _BACK_OFF
        except KafkaError as failure:
            follower.not_truncated()
            self.report(failure, now_ms)
            return _BACK_OFF
        return step

    def _copy(
        self, follower: Follower, received: ReceivedPartition, now_ms: int, step: Step
    ) -> Step:
        if received.records:
            # A leader that has lost its role may have truncated its log while its response was
            # sent, and copied records of its successor: nothing newer than this epoch is appended.
            self.log.append_fetched(received.records, now_ms, follower.state.leader_epoch)
            self._manager.traffic.replication_bytes_in += len(received.records)
        moved = follower.appended(received.high_watermark, received.log_start_offset)
        if moved.high_watermark is not None:
            self._set_high_watermark(moved.high_watermark)
            self.purgatory.wake_consumers()
        if moved.log_start_offset is not None:
            self.log.start_at(moved.log_start_offset)
        return step

    def _truncate(self, follower: Follower, step: Step, now_ms: int) -> None:
        high_watermark = follower.high_watermark
        before, last_epoch = self.log.end_offset, self.log.epochs.latest
        if step.lost:
            self._report_loss(follower, step)
        try:
            if step.action is Action.RESTART:
                self.log.restart_at(step.offset, now_ms)
            else:
                self.log.truncate_to(step.offset, now_ms)
        except KafkaError:
            follower.truncation_failed()
            raise
        except Corrupt as damage:
            follower.truncation_failed()
            self.log.damage.suspect(self.log.segments, str(damage))
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(damage)) from damage
        follower.truncated()
        self._set_high_watermark(follower.high_watermark)
        state = follower.state
        truncated = LogTruncated(
            self.topic,
            self.partition,
            before,
            last_epoch,
            self.log.end_offset,
            high_watermark,
            state.leader,
            state.leader_epoch,
            is_restart=step.action is Action.RESTART,
            may_be_committed=follower.expects_loss,
        )
        record(log, truncated)

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
        lost = RecordsLost(
            self.topic,
            self.partition,
            step.lost,
            high_watermark - step.lost,
            high_watermark - 1,
            state.leader,
            state.leader_epoch,
            reason,
        )
        record(log, lost)

    def reopened(self, opened: Log) -> None:
        """The log has been opened again after a failure, while this replica did not lead."""
        assert self.leader is None
        self.log = self.purgatory.log = opened
        self._set_high_watermark(opened.committed_offset)
        if self.follower is not None and self.state is not None:
            self.follow(self.state)

    def report(self, failure: KafkaError, now_ms: int) -> None:
        """Log a failed write, at most every ten seconds: a full disk refuses every append."""
        if now_ms - self._reported_ms > _REPORT_EVERY_MS:
            self._reported_ms = now_ms
            log.error("cannot write to %s-%d: %s", self.topic, self.partition, failure)
