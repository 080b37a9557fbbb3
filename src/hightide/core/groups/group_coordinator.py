"""The coordinator of the groups of one partition of `__consumer_offsets`.

    replay(record)* ──▶ loaded ──▶ requests, time_passed ──▶ answers and writes
                                          ▲                            │
                                          └── written, write_failed ◀──┘

Replying and persisting are separate steps.  The coordinator decides a *write*; the shell appends it
to the partition and reports when it is committed.  Only then does the coordinator send the answers
that depend on it.  Offsets take effect when they are committed.  Classic membership takes effect at
once and is lost with the coordinator, except for written generations: members that the next
coordinator does not know join again.

A failed write is not in the log and never will be.  If the outcome of a write is unknown, the shell
keeps waiting.  It may time out the client, but must not report a failure here.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from hightide.core.groups import migration, offset_requests, responses
from hightide.core.groups.administration import Administration, GroupsDeleted
from hightide.core.groups.classic import join_group, leave_group, rebalance
from hightide.core.groups.classic.classic_group import ClassicGroup, State
from hightide.core.groups.consumer import classic_members, heartbeat
from hightide.core.groups.consumer.consumer_group import ConsumerGroup, Topic
from hightide.core.groups.consumer.consumer_groups import ConsumerGroups, ConsumerGroupWritten
from hightide.core.groups.consumer.topic_pattern import PatternCompiler
from hightide.core.groups.deadlines import Deadline, Deadlines, Kind
from hightide.core.groups.group_rules import MAX_ID_CHARACTERS, Rules
from hightide.core.groups.offset_retention import is_empty
from hightide.core.groups.offsets import Offsets
from hightide.core.groups.request_limits import (
    LARGE_BYTES,
    heartbeat_problem,
    is_sync_too_large,
    kept_bytes,
    large_bytes,
    requested_bytes,
)
from hightide.core.groups.turn import (
    NO_PRODUCER,
    Client,
    Outcome,
    Ticket,
    Turn,
    Write,
    client_error,
)
from hightide.wire.errors import ErrorCode, KafkaError
from hightide.wire.messages.consumer_groups import ConsumerGroupHeartbeatRequest
from hightide.wire.messages.groups import (
    DeleteGroupsRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
)
from hightide.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponseGroup,
)
from hightide.wire.messages.transactions import TxnOffsetCommitRequest
from hightide.wire.records.consumer_offsets import (
    ConsumerGroupKey,
    GroupMetadataKey,
    GroupMetadataValue,
    GroupRecord,
    OffsetCommitKey,
    OffsetCommitValue,
)

if TYPE_CHECKING:
    from random import Random


class GroupCoordinator:
    """All groups of one partition, and their offsets.

    `count_groups` returns the number of groups of all coordinators of the broker, and `count_bytes`
    what their large members store.  Without them, this coordinator counts alone.
    """

    def __init__(
        self,
        rules: Rules,
        random: Random,
        compile_pattern: PatternCompiler,
        count_groups: Callable[[], int] | None = None,
        count_bytes: Callable[[], int] | None = None,
    ) -> None:
        self.rules = rules
        self.classic_groups: dict[str, ClassicGroup] = {}
        self.consumer_groups = ConsumerGroups(self.classic_groups, compile_pattern)
        # In the order of the log, which is the order in which they were decided.
        self._in_flight: dict[Write, None] = {}
        # Commits in flight that create a simple group, by group.
        self._creating: dict[str, set[Write]] = {}
        self.offsets = Offsets(self._in_flight.keys())
        self.administration = Administration(
            self.classic_groups, self.consumer_groups, self.offsets
        )
        self._random = random
        self._deadlines = Deadlines()
        self._count_groups = count_groups or (lambda: self.group_count)
        self._count_bytes = count_bytes or (lambda: self.large_bytes)

    @property
    def group_count(self) -> int:
        """The number of groups, with those that commits in flight create."""
        return len(self.classic_groups) + len(self.consumer_groups.groups) + len(self._creating)

    @property
    def large_bytes(self) -> int:
        """What large members store."""
        return sum(large_bytes(group.members.values()) for group in self.administration.all())

    # -- loading ---------------------------------------------------------------------------

    def replay(
        self, record: GroupRecord, record_offset: int, producer_id: int = NO_PRODUCER
    ) -> None:
        """Apply a record of the log, committed or not.  Called in the order of the log."""
        match record:
            case GroupRecord(OffsetCommitKey() as key, OffsetCommitValue() | None as value):
                self._apply_offset(key, value, record_offset, producer_id)
            case GroupRecord(GroupMetadataKey() as key, GroupMetadataValue() as value):
                self.classic_groups[key.group] = ClassicGroup.replayed(key.group, value)
                self.consumer_groups.forget(key.group)
            case GroupRecord(GroupMetadataKey() as key, None):
                self.classic_groups.pop(key.group, None)
                self._keep_offsets(key.group)
            case GroupRecord(key):
                assert isinstance(key, ConsumerGroupKey), f"value of another type: {record}"
                self.consumer_groups.replay(key, record)
                # A group has one protocol: the later record wins.
                if key.group in self.consumer_groups.groups:
                    self.classic_groups.pop(key.group, None)
                else:
                    self._keep_offsets(key.group)

    def _keep_offsets(self, group_id: str) -> None:
        """Keep the offsets of a removed group in a simple group, where they can expire."""
        if not self.offsets.is_void(group_id):
            self.classic_groups.setdefault(group_id, ClassicGroup(group_id))

    def replay_marker(self, producer_id: int, is_committed: bool) -> None:
        """Apply a transaction marker of the log."""
        for group_id in self.offsets.transaction_ended(producer_id, is_committed):
            self._forget_if_unused(group_id)

    def loaded(self, now_ms: int) -> Outcome:
        """Start the sessions: the whole log has been replayed."""
        turn = self._turn(now_ms)
        self._deadlines.set(
            Deadline(Kind.EXPIRY), now_ms + self.rules.offsets_retention_check_interval_ms
        )
        self.consumer_groups.loaded(turn)
        for group in self.classic_groups.values():
            for member in group.members.values():
                rebalance.keep_session(group, member, turn)
            if len(group.members) > self.rules.max_size:
                size = f"{len(group.members)} members are more than {self.rules.max_size}"
                rebalance.prepare(group, f"loaded: {size}", turn)
            elif group.is_converted:
                rebalance.prepare(group, "loaded: the group used the consumer protocol", turn)
        return self._finish(turn)

    def resigned(self, error: ErrorCode = ErrorCode.NOT_COORDINATOR) -> Outcome:
        """Answer all waiting requests: another broker takes over.  The last call."""
        turn = self._turn(0)
        for group in self.classic_groups.values():
            for member in group.members.values():
                if member.joining is not None:
                    turn.answer(member.joining, responses.join_error(error, member.id))
                if member.syncing is not None:
                    turn.answer(member.syncing, responses.sync_error(error))
        for ticket, response in self.consumer_groups.waiting():
            turn.answer(ticket, responses.error_response(response, error))
        for write in self._in_flight:
            match write.purpose:
                case offset_requests.OffsetsWritten(ticket, request):
                    turn.answer(ticket, offset_requests.error_response(request, error))
                case GroupsDeleted(ticket=int(ticket)) as deleted:
                    turn.answer(ticket, deleted.response(error))
        return Outcome(turn.answers, [])

    # -- members ---------------------------------------------------------------------------

    def join_asked(
        self, ticket: Ticket, request: JoinGroupRequest, version: int, client: Client, now_ms: int
    ) -> Outcome:
        turn = self._turn(now_ms)
        error = join_group.request_error(request, client, self.rules)
        group = self.classic_groups.get(request.group_id)
        consumer_group = self.consumer_groups.get(request.group_id)
        if error is ErrorCode.NONE and group is None and consumer_group is None:
            unknown = ErrorCode.UNKNOWN_MEMBER_ID
            error = unknown if request.member_id else self._creation_error(request.group_id)
        if error is ErrorCode.NONE and self._has_no_room_for(request):
            error = ErrorCode.GROUP_MAX_SIZE_REACHED
        if error is not ErrorCode.NONE:
            turn.answer(ticket, responses.join_error(error, request.member_id))
            return self._finish(turn)
        prefix = client.id if request.group_instance_id is None else request.group_instance_id
        new_id = f"{prefix}-{self._new_id()}"
        attempt = join_group.JoinAttempt(ticket, request, version, client, new_id)
        if consumer_group is None or self._join_consumer_group(consumer_group, attempt, turn):
            group = self.classic_groups.get(request.group_id)
            if group is None:
                group = self.classic_groups[request.group_id] = ClassicGroup(request.group_id)
            join_group.join(group, attempt, turn)
        return self._finish(turn, request.group_id)

    def _join_consumer_group(
        self, group: ConsumerGroup, attempt: join_group.JoinAttempt, turn: Turn
    ) -> bool:
        """Join a consumer group; return True if it is a classic one now, to be joined as such."""
        member_id = attempt.request.member_id
        try:
            if not is_empty(group):
                return not classic_members.join(self.consumer_groups, attempt, turn)
            if member_id:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        except KafkaError as error:
            if error.code is ErrorCode.MEMBER_ID_REQUIRED:
                member_id = attempt.new_member_id
            turn.answer(attempt.ticket, responses.join_error(error.code, member_id))
            return False
        self.consumer_groups.convert_empty(group, turn)
        return True

    def _new_id(self) -> str:
        return str(uuid.UUID(int=self._random.getrandbits(128), version=4))

    def consumer_heartbeat_asked(
        self,
        ticket: Ticket,
        request: ConsumerGroupHeartbeatRequest,
        client: Client,
        now_ms: int,
    ) -> Outcome:
        """Handle ConsumerGroupHeartbeat: a member joins, leaves, or reports its state."""
        turn = self._turn(now_ms)
        try:
            problem = heartbeat_problem(request, client, self.rules)
            if problem is not None:
                raise KafkaError(ErrorCode.INVALID_REQUEST, problem)
            if self._has_no_room_for(request):
                limit = f"group.metadata.max.bytes is {self.rules.metadata_max_bytes}"
                raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, limit)
            heartbeat.check_request(
                request, self.rules.consumer_assignors, self.consumer_groups.compile_pattern
            )
            classic = self.classic_groups.get(request.group_id)
            conversion = None
            is_known = classic is not None or request.group_id in self.consumer_groups.groups
            if not is_known and request.member_epoch == heartbeat.JOIN:
                self._check_creation(request.group_id)
            if classic is not None and request.member_epoch == heartbeat.JOIN:
                conversion = migration.upgrade(classic, self.consumer_groups.topics, self.rules)
            elif classic is not None and request.member_epoch > 0:
                # The member is late: the group has become a classic one.  Kafka answers with
                # GROUP_ID_NOT_FOUND, which clients take for fatal; with this error they join again.
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"{classic.id} is a classic group")
            topics, compile_pattern = (
                self.consumer_groups.topics,
                self.consumer_groups.compile_pattern,
            )
            beat = heartbeat.MemberHeartbeat(request, client, topics, compile_pattern, now_ms)
            self.consumer_groups.beat(ticket, beat, self._new_id(), conversion, turn)
            if conversion is not None:
                migration.release_waiting(conversion.replaced, turn)
                self.administration.delete_classic(conversion.replaced, turn)
        except KafkaError as error:
            turn.answer(ticket, responses.consumer_heartbeat_error(error.code, error.detail))
        return self._finish(turn)

    def topics_changed(self, topics: Mapping[str, Topic]) -> None:
        """Set the topics of the cluster, which consumer groups assign."""
        self.consumer_groups.topics_changed(topics)

    def sync_asked(self, ticket: Ticket, request: SyncGroupRequest, now_ms: int) -> Outcome:
        turn = self._turn(now_ms)
        group = self.classic_groups.get(request.group_id)
        if is_sync_too_large(request, self.rules):
            turn.answer(ticket, responses.sync_error(ErrorCode.INVALID_REQUEST))
        elif group is not None:
            rebalance.sync(group, ticket, request, turn)
        elif self.consumer_groups.get(request.group_id) is not None:
            try:
                classic_members.sync(self.consumer_groups, ticket, request, turn)
            except KafkaError as error:
                turn.answer(ticket, responses.sync_error(error.code))
        else:
            turn.answer(ticket, responses.sync_error(_unknown_group_error(request.group_id)))
        return self._finish(turn)

    def heartbeat_asked(self, ticket: Ticket, request: HeartbeatRequest, now_ms: int) -> Outcome:
        turn = self._turn(now_ms)
        group = self.classic_groups.get(request.group_id)
        if group is None and self.consumer_groups.get(request.group_id) is not None:
            error = classic_members.beat(self.consumer_groups, request, turn)
        elif group is None:
            error = _unknown_group_error(request.group_id)
        else:
            error = group.member_error(request.member_id, request.group_instance_id)
            if error is ErrorCode.NONE and request.generation_id != group.generation:
                error = ErrorCode.ILLEGAL_GENERATION
            if error is ErrorCode.NONE:
                rebalance.keep_session(group, group.members[request.member_id], turn)
                if group.state is State.PREPARING_REBALANCE:
                    error = ErrorCode.REBALANCE_IN_PROGRESS
        turn.answer(ticket, responses.heartbeat_response(error))
        return self._finish(turn)

    def leave_asked(
        self, ticket: Ticket, request: LeaveGroupRequest, version: int, now_ms: int
    ) -> Outcome:
        turn = self._turn(now_ms)
        group = self.classic_groups.get(request.group_id)
        if not request.group_id:
            turn.answer(ticket, LeaveGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID))
        elif group is not None:
            leave_group.leave(group, ticket, request, version, turn)
        elif self.consumer_groups.get(request.group_id) is not None:
            classic_members.leave(self.consumer_groups, ticket, request, version, turn)
        else:
            turn.answer(ticket, responses.unknown_members_response(request, version))
        return self._finish(turn, request.group_id)

    # -- offsets ---------------------------------------------------------------------------

    def commit_asked(
        self, ticket: Ticket, request: OffsetCommitRequest, version: int, now_ms: int
    ) -> Outcome:
        turn = self._turn(now_ms)
        group = self.administration.find(request.group_id)
        error = offset_requests.offset_commit_error(group, request, version)
        if error is ErrorCode.NONE and isinstance(group, ClassicGroup):
            member = group.members.get(request.member_id)
            if member is not None:
                rebalance.keep_session(group, member, turn)
        if group is None:
            self._commit_to_new_group(ticket, request, error, turn)
        else:
            offset_requests.commit(ticket, request, error, turn)
        return self._finish(turn)

    def transactional_commit_asked(
        self, ticket: Ticket, request: TxnOffsetCommitRequest, now_ms: int
    ) -> Outcome:
        """Handle TxnOffsetCommit.

        The shell has verified that the transaction is open and the producer epoch is current.
        """
        turn = self._turn(now_ms)
        group = self.administration.find(request.group_id)
        error = offset_requests.txn_offset_commit_error(group, request)
        if group is None:
            self._commit_to_new_group(ticket, request, error, turn)
        else:
            offset_requests.commit(ticket, request, error, turn)
        return self._finish(turn)

    def _commit_to_new_group(
        self, ticket: Ticket, request: offset_requests.CommitRequest, error: ErrorCode, turn: Turn
    ) -> None:
        """Handle a commit that creates a simple group once it is written."""
        group_id = request.group_id
        if error is ErrorCode.NONE:
            error = self._creation_error(group_id)
        offset_requests.commit(ticket, request, error, turn)
        if turn.writes:
            self._creating.setdefault(group_id, set()).update(turn.writes)

    def transaction_ended(self, producer_id: int, is_committed: bool, now_ms: int) -> Outcome:
        """Apply a transaction marker that is committed in this partition."""
        self.replay_marker(producer_id, is_committed)
        return self._finish(self._turn(now_ms))

    def fetch_asked(
        self, request: OffsetFetchRequestGroup, *, require_stable: bool
    ) -> OffsetFetchResponseGroup:
        """Handle OffsetFetch of one group.  It changes nothing and waits for nothing."""
        error = offset_requests.fetch_error(self.consumer_groups.get(request.group_id), request)
        if error is not ErrorCode.NONE:
            return OffsetFetchResponseGroup(group_id=request.group_id, topics=[], error_code=error)
        return offset_requests.fetch(request, self.offsets, require_stable=require_stable)

    def delete_offsets_asked(
        self, ticket: Ticket, request: OffsetDeleteRequest, now_ms: int
    ) -> Outcome:
        turn = self._turn(now_ms)
        group = self.administration.find(request.group_id)
        error = (
            ErrorCode.GROUP_ID_NOT_FOUND if group is None else offset_requests.delete_error(group)
        )
        if group is None or error is not ErrorCode.NONE:
            turn.answer(ticket, offset_requests.error_response(request, error))
            return self._finish(turn)
        records, response = offset_requests.delete(request, group.is_subscribed_to, self.offsets)
        if records:
            turn.write(offset_requests.OffsetsWritten(ticket, request, response), *records)
        else:
            turn.answer(ticket, response)
        return self._finish(turn)

    def topic_deleted(self, topic: str, now_ms: int) -> Outcome:
        """Delete the offsets of a deleted topic: they mean nothing in a new topic of that name."""
        turn = self._turn(now_ms)
        records = [*self.offsets.tombstones_of(topic)]
        if records:
            turn.write(None, *records)
        return self._finish(turn)

    def delete_groups_asked(
        self, ticket: Ticket, request: DeleteGroupsRequest, now_ms: int
    ) -> Outcome:
        """Handle DeleteGroups for the groups of this partition."""
        turn = self._turn(now_ms)
        self.administration.delete(ticket, request, turn)
        return self._finish(turn)

    # -- time ------------------------------------------------------------------------------

    @property
    def deadline_ms(self) -> int | None:
        """When `time_passed` must be called at the latest."""
        return self._deadlines.next_ms

    def time_passed(self, now_ms: int) -> Outcome:
        turn = self._turn(now_ms)
        touched = set()
        while (deadline := self._deadlines.due(now_ms)) is not None:
            if deadline.kind is Kind.EXPIRY:
                self.administration.expire(turn)
            elif deadline.kind >= Kind.CONSUMER_SESSION:
                self.consumer_groups.timed_out(deadline, turn)
                continue
            group = self.classic_groups.get(deadline.group_id)
            if group is None:
                continue
            touched.add(group.id)
            match deadline.kind:
                case Kind.SESSION:
                    rebalance.session_ended(group, deadline.member_id, turn)
                case Kind.JOIN:
                    rebalance.join_timed_out(group, turn)
                case Kind.SYNC:
                    rebalance.sync_timed_out(group, turn)
        return self._finish(turn, *sorted(touched))

    # -- writes ----------------------------------------------------------------------------

    def written(self, write: Write, base_offset: int, now_ms: int) -> Outcome:
        """Handle a write whose records are committed, from `base_offset` on."""
        turn = self._turn(now_ms)
        assert next(iter(self._in_flight)) is write, "writes are reported in the order of the log"
        self._ended(write)
        # Groups with a tombstone: they may be unused now.
        touched = set()
        for record_offset, (key, value) in enumerate(write.records, base_offset):
            if isinstance(key, OffsetCommitKey):
                self._apply_offset(key, value, record_offset, write.producer_id)
                if value is None:
                    touched.add(key.group)
        match write.purpose:
            case offset_requests.OffsetsWritten(ticket, _, response):
                turn.answer(ticket, response)
            case rebalance.AssignmentWritten() as assignment:
                rebalance.assignment_written(assignment, turn)
            case join_group.ReplacementWritten() as replacement:
                join_group.replacement_written(replacement, turn)
            case ConsumerGroupWritten() as purpose:
                self.consumer_groups.written(purpose, turn)
            case GroupsDeleted() as deleted:
                for decision in deleted.decisions:
                    self.consumer_groups.written(decision, turn)
                if deleted.ticket is not None:
                    turn.answer(deleted.ticket, deleted.response())
        return self._finish(turn, *sorted(touched))

    def write_failed(self, write: Write, error: ErrorCode, now_ms: int) -> Outcome:
        """Handle a write whose records are not in the log and never will be."""
        turn = self._turn(now_ms)
        self._ended(write)
        match write.purpose:
            case offset_requests.OffsetsWritten(ticket, request):
                refusal = offset_requests.error_response(
                    request, client_error(error, of_offsets=True)
                )
                turn.answer(ticket, refusal)
            case rebalance.AssignmentWritten() as assignment:
                rebalance.assignment_failed(assignment, error, turn)
            case join_group.ReplacementWritten() as replacement:
                join_group.replacement_failed(replacement, error, turn)
            case ConsumerGroupWritten() as purpose:
                self.consumer_groups.write_failed(purpose, error, turn)
                if (
                    purpose.replaced is not None
                    and purpose.group_id not in self.consumer_groups.groups
                ):
                    self.administration.restore(purpose.replaced)
                    migration.restore_classic(purpose.replaced, turn)
            case GroupsDeleted() as deleted:
                for decision in deleted.decisions:
                    self.consumer_groups.write_failed(decision, error, turn)
                for group in deleted.groups:
                    if isinstance(group, ClassicGroup):
                        self.administration.restore(group)
                if deleted.ticket is not None:
                    turn.answer(deleted.ticket, deleted.response(client_error(error)))
        return self._finish(turn, *(_groups_of(write)))

    def _ended(self, write: Write) -> None:
        assert write in self._in_flight, "a write ends once"
        del self._in_flight[write]
        if self._creating:
            group_id = write.records[0].key.group
            creating = self._creating.get(group_id, set())
            creating.discard(write)
            if not creating:
                self._creating.pop(group_id, None)

    def _has_no_room_for(self, request: JoinGroupRequest | ConsumerGroupHeartbeatRequest) -> bool:
        """Whether a large member would store more than all large members together may."""
        size = requested_bytes(request)
        if size <= LARGE_BYTES:
            return False
        group = self.administration.find(request.group_id)
        before = kept_bytes(group.members.get(request.member_id)) if group is not None else 0
        if size <= before:
            return False
        return self._count_bytes() + size - before > self.rules.metadata_max_bytes

    # -- new groups ------------------------------------------------------------------------

    def _creation_error(self, group_id: str) -> ErrorCode:
        """Return why a request must not create this group, or NONE.

        The log may hold more groups and longer ids than requests may create.
        """
        if len(group_id) > MAX_ID_CHARACTERS:
            return ErrorCode.INVALID_GROUP_ID
        if group_id not in self._creating and self._count_groups() >= self.rules.max_count:
            return ErrorCode.POLICY_VIOLATION
        return ErrorCode.NONE

    def _check_creation(self, group_id: str) -> None:
        error = self._creation_error(group_id)
        if error is ErrorCode.INVALID_GROUP_ID:
            raise KafkaError(error, f"the group id has more than {MAX_ID_CHARACTERS} characters")
        if error is not ErrorCode.NONE:
            detail = f"the broker has {self.rules.max_count} groups or more (group.max.count)"
            raise KafkaError(error, detail)

    # -- turns -----------------------------------------------------------------------------

    def _turn(self, now_ms: int) -> Turn:
        return Turn(now_ms, self.rules, self._deadlines)

    def _finish(self, turn: Turn, *group_ids: str) -> Outcome:
        for write in turn.writes:
            self._in_flight[write] = None
        for group_id in group_ids:
            self._forget_if_unused(group_id)
        return Outcome(turn.answers, turn.writes, turn.events)

    def _apply_offset(
        self, key: OffsetCommitKey, value: Any, record_offset: int, producer_id: int
    ) -> None:
        self.offsets.apply(key, value, record_offset, producer_id)
        group_id = key.group
        if value is None:
            self._forget_if_unused(group_id)
        elif group_id not in self.classic_groups and group_id not in self.consumer_groups.groups:
            # A client that commits without being a member creates a simple group.
            self.classic_groups[group_id] = ClassicGroup(group_id)

    def _forget_if_unused(self, group_id: str) -> None:
        """Forget an empty group that has no offsets and no record in the log."""
        group = self.classic_groups.get(group_id)
        if (
            group is not None
            and group.state is State.EMPTY
            and not group.is_stored
            and not group.pending
            and self.offsets.is_void(group_id)
        ):
            del self.classic_groups[group_id]

    def check(self) -> None:
        """Assert the invariants that hold between any two facts."""
        assert not self.classic_groups.keys() & self.consumer_groups.groups.keys()
        self.consumer_groups.check(self._deadlines)
        for group in self.classic_groups.values():
            group.check()
            for member_id in group.pending:
                assert self._deadlines.get(Deadline(Kind.SESSION, group.id, member_id)) is not None
            for member in group.members.values():
                at_ms = self._deadlines.get(Deadline(Kind.SESSION, group.id, member.id))
                assert at_ms is not None or member.is_waiting, "the member would never expire"
            if group.state is State.PREPARING_REBALANCE:
                assert self._deadlines.get(Deadline(Kind.JOIN, group.id)) is not None
            if group.awaiting_sync:
                assert self._deadlines.get(Deadline(Kind.SYNC, group.id)) is not None


def _unknown_group_error(group_id: str) -> ErrorCode:
    return ErrorCode.UNKNOWN_MEMBER_ID if group_id else ErrorCode.INVALID_GROUP_ID


def _groups_of(write: Write) -> Iterator[str]:
    return (key.group for key, _ in write.records)
