"""The coordinator of the groups that live in one partition of `__consumer_offsets`.

    replay(record)* ──▶ loaded ──▶ requests, time_passed ──▶ answers and writes
                                          ▲                            │
                                          └── written, write_failed ◀──┘

What is told to be done and what is not forgotten are two things.  A *write* is decided here, the
shell appends it to the partition and says when it is committed; only then is told what depends on
it.  Offsets take effect when they are written.  Membership is decided at once and is lost with the
coordinator, but for what generations have been written: members that a successor does not know
join again.

A write that failed is one that is not in the log and never will be.  Of one whose outcome is not
known the shell goes on to wait: it may answer the client, but not this machine.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from hightide.core.groups import answers, commits, joining, leaving, looking, rebalance
from hightide.core.groups.classic import ClassicGroup, State
from hightide.core.groups.deadlines import Deadline, Deadlines, Kind
from hightide.core.groups.offsets import Offsets
from hightide.core.groups.retention import GroupsDeleted, expired, is_forgettable
from hightide.core.groups.rules import Rules
from hightide.core.groups.turn import (
    NO_PRODUCER,
    Client,
    Outcome,
    Ticket,
    Turn,
    Write,
    told_as,
)
from hightide.wire.errors import ErrorCode
from hightide.wire.messages.groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DescribedGroup,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListedGroup,
    ListGroupsRequest,
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
    GroupMetadataKey,
    GroupMetadataValue,
    GroupRecord,
    OffsetCommitKey,
    OffsetCommitValue,
)

if TYPE_CHECKING:
    from random import Random

# From this version on, a commit to a group that is not there is told so.
GROUP_ID_NOT_FOUND = 9


class Coordinator:
    """All groups of one partition."""

    def __init__(self, rules: Rules, random: Random) -> None:
        self.rules = rules
        self.groups: dict[str, ClassicGroup] = {}
        self.offsets = Offsets()
        self._random = random
        self._deadlines = Deadlines()
        # In the order in which they were decided, which is that of the log.
        self._under_way: dict[Write, None] = {}

    # -- loading ---------------------------------------------------------------------------

    def replay(
        self, record: GroupRecord, record_offset: int, producer_id: int = NO_PRODUCER
    ) -> None:
        """A record that is in the log, committed or not.  In the order of the log."""
        match record:
            case GroupRecord(OffsetCommitKey() as key, OffsetCommitValue() | None as value):
                self._apply_offset(key, value, record_offset, producer_id)
            case GroupRecord(GroupMetadataKey() as key, GroupMetadataValue() as value):
                self.groups[key.group] = ClassicGroup.replayed(key.group, value)
            case GroupRecord(GroupMetadataKey() as key, None):
                self.groups.pop(key.group, None)
            case _:
                raise AssertionError(f"the value does not belong to the key: {record}")

    def replay_marker(self, producer_id: int, is_committed: bool) -> None:
        """A control record of the log that ends a transaction."""
        for group_id in self.offsets.transaction_ended(producer_id, is_committed):
            self._settle(group_id)

    def loaded(self, now_ms: int) -> Outcome:
        """All of the log has been replayed: sessions begin."""
        turn = self._turn(now_ms)
        self._deadlines.set(
            Deadline(Kind.EXPIRY), now_ms + self.rules.offsets_retention_check_interval_ms
        )
        for group in self.groups.values():
            for member in group.members.values():
                rebalance.keep_session(group, member, turn)
            if len(group.members) > self.rules.max_size:
                size = f"{len(group.members)} members are more than {self.rules.max_size}"
                rebalance.prepare(group, f"loaded: {size}", turn)
        return self._finish(turn)

    def resigned(self, error: ErrorCode = ErrorCode.NOT_COORDINATOR) -> Outcome:
        """Another broker takes over: everybody who waits is told.  Nothing is asked after this."""
        turn = self._turn(0)
        for group in self.groups.values():
            for member in group.members.values():
                if member.joining is not None:
                    turn.answer(member.joining, answers.not_joined(error, member.id))
                if member.syncing is not None:
                    turn.answer(member.syncing, answers.not_synced(error))
        for write in self._under_way:
            match write.purpose:
                case commits.OffsetsWritten(ticket, request):
                    turn.answer(ticket, commits.refusal(request, error))
                case GroupsDeleted(ticket=int(ticket)) as deleted:
                    turn.answer(ticket, deleted.response(error))
        return Outcome(turn.answers, [])

    # -- members ---------------------------------------------------------------------------

    def join_asked(
        self, ticket: Ticket, request: JoinGroupRequest, version: int, client: Client, now_ms: int
    ) -> Outcome:
        turn = self._turn(now_ms)
        error = ErrorCode.NONE
        rules = self.rules
        if not request.group_id:
            error = ErrorCode.INVALID_GROUP_ID
        elif not (
            rules.min_session_timeout_ms
            <= request.session_timeout_ms
            <= rules.max_session_timeout_ms
        ):
            error = ErrorCode.INVALID_SESSION_TIMEOUT
        group = self.groups.get(request.group_id)
        if group is None and request.member_id and error is ErrorCode.NONE:
            error = ErrorCode.UNKNOWN_MEMBER_ID
        if error is not ErrorCode.NONE:
            turn.answer(ticket, answers.not_joined(error, request.member_id))
            return self._finish(turn)
        if group is None:
            group = self.groups[request.group_id] = ClassicGroup(request.group_id)
        prefix = client.id if request.group_instance_id is None else request.group_instance_id
        new_id = f"{prefix}-{uuid.UUID(int=self._random.getrandbits(128), version=4)}"
        joining.join(group, joining.Join(ticket, request, version, client, new_id), turn)
        return self._finish(turn, group.id)

    def sync_asked(self, ticket: Ticket, request: SyncGroupRequest, now_ms: int) -> Outcome:
        turn = self._turn(now_ms)
        group = self.groups.get(request.group_id)
        if group is None:
            turn.answer(ticket, answers.not_synced(_not_there(request.group_id)))
        else:
            rebalance.sync(group, ticket, request, turn)
        return self._finish(turn)

    def heartbeat_asked(self, ticket: Ticket, request: HeartbeatRequest, now_ms: int) -> Outcome:
        turn = self._turn(now_ms)
        group = self.groups.get(request.group_id)
        if group is None:
            error = _not_there(request.group_id)
        else:
            error = group.member_error(request.member_id, request.group_instance_id)
            if error is ErrorCode.NONE and request.generation_id != group.generation:
                error = ErrorCode.ILLEGAL_GENERATION
            if error is ErrorCode.NONE:
                rebalance.keep_session(group, group.members[request.member_id], turn)
                if group.state is State.PREPARING_REBALANCE:
                    error = ErrorCode.REBALANCE_IN_PROGRESS
        turn.answer(ticket, answers.heartbeat(error))
        return self._finish(turn)

    def leave_asked(
        self, ticket: Ticket, request: LeaveGroupRequest, version: int, now_ms: int
    ) -> Outcome:
        turn = self._turn(now_ms)
        group = self.groups.get(request.group_id)
        if not request.group_id:
            turn.answer(ticket, LeaveGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID))
        elif group is None:
            turn.answer(ticket, answers.nobody_left(request, version))
        else:
            leaving.leave(group, ticket, request, version, turn)
        return self._finish(turn, request.group_id)

    # -- offsets ---------------------------------------------------------------------------

    def commit_asked(
        self, ticket: Ticket, request: OffsetCommitRequest, version: int, now_ms: int
    ) -> Outcome:
        turn = self._turn(now_ms)
        generation = request.generation_id_or_member_epoch
        group = self.groups.get(request.group_id)
        error = ErrorCode.NONE
        if group is not None:
            error = commits.commit_error(
                group, request.member_id, request.group_instance_id, generation
            )
            member = group.members.get(request.member_id)
            if error is ErrorCode.NONE and member is not None:
                rebalance.keep_session(group, member, turn)
        elif generation >= 0:
            error = ErrorCode.ILLEGAL_GENERATION
            if version >= GROUP_ID_NOT_FOUND:
                error = ErrorCode.GROUP_ID_NOT_FOUND
        self._commit(ticket, request, error, turn)
        return self._finish(turn)

    def transactional_commit_asked(
        self, ticket: Ticket, request: TxnOffsetCommitRequest, now_ms: int
    ) -> Outcome:
        """TxnOffsetCommit.  That the transaction is open, and its epoch the current one, has been
        seen to."""
        turn = self._turn(now_ms)
        group = self.groups.get(request.group_id)
        error = ErrorCode.NONE
        if group is not None:
            error = commits.commit_error(
                group,
                request.member_id,
                request.group_instance_id,
                request.generation_id,
                is_transactional=True,
            )
        elif request.generation_id >= 0:
            error = ErrorCode.ILLEGAL_GENERATION
        self._commit(ticket, request, error, turn)
        return self._finish(turn)

    def _commit(
        self, ticket: Ticket, request: commits.CommitRequest, error: ErrorCode, turn: Turn
    ) -> None:
        if error is not ErrorCode.NONE:
            turn.answer(ticket, commits.commit_response(request, error))
            return
        records, refused = commits.commit_records(request, turn)
        response = commits.commit_response(request, refused=refused)
        purpose = commits.OffsetsWritten(ticket, request, response)
        if not records:
            turn.answer(ticket, response)
        elif isinstance(request, TxnOffsetCommitRequest):
            producer = request.producer_id, request.producer_epoch
            turn.writes.append(Write(tuple(records), purpose, *producer))
        else:
            turn.write(purpose, *records)

    def transaction_ended(self, producer_id: int, is_committed: bool, now_ms: int) -> Outcome:
        """The marker that ends a transaction is committed in this partition."""
        self.replay_marker(producer_id, is_committed)
        return self._finish(self._turn(now_ms))

    def fetch_asked(
        self, request: OffsetFetchRequestGroup, *, require_stable: bool
    ) -> OffsetFetchResponseGroup:
        """OffsetFetch of one group.  Changes nothing and waits for nothing."""
        return commits.fetch(request, self.offsets, require_stable=require_stable)

    def delete_offsets_asked(
        self, ticket: Ticket, request: OffsetDeleteRequest, now_ms: int
    ) -> Outcome:
        turn = self._turn(now_ms)
        group = self.groups.get(request.group_id)
        error = ErrorCode.GROUP_ID_NOT_FOUND if group is None else commits.delete_error(group)
        if group is None or error is not ErrorCode.NONE:
            turn.answer(ticket, commits.refusal(request, error))
            return self._finish(turn)
        records, response = commits.delete(request, group.is_subscribed_to, self.offsets)
        if records:
            turn.write(commits.OffsetsWritten(ticket, request, response), *records)
        else:
            turn.answer(ticket, response)
        return self._finish(turn)

    def topic_deleted(self, topic: str, now_ms: int) -> Outcome:
        """Offsets in a topic of the same name that may come later mean nothing."""
        turn = self._turn(now_ms)
        records = [*self.offsets.tombstones_of(topic)]
        if records:
            turn.write(None, *records)
        return self._finish(turn)

    # -- administration --------------------------------------------------------------------

    def describe_asked(self, group_id: str, version: int) -> DescribedGroup:
        return looking.described(group_id, self.groups.get(group_id), version)

    def list_asked(self, request: ListGroupsRequest) -> list[ListedGroup]:
        return looking.listed(self.groups.values(), request)

    def delete_groups_asked(
        self, ticket: Ticket, request: DeleteGroupsRequest, now_ms: int
    ) -> Outcome:
        """Of the groups of this partition.  A group is gone at once; whoever joins founds another,
        and its records come after these."""
        turn = self._turn(now_ms)
        results = []
        deleted = []
        records: list[GroupRecord] = []
        for group_id in dict.fromkeys(request.groups_names):
            group = self.groups.get(group_id)
            error = ErrorCode.NONE
            if group is None:
                error = ErrorCode.GROUP_ID_NOT_FOUND
            elif group.state is not State.EMPTY:
                error = ErrorCode.NON_EMPTY_GROUP
            else:
                records += self._dissolve(group)
                deleted.append(group)
            results.append(DeletableGroupResult(group_id=group_id, error_code=error))
        purpose = GroupsDeleted(tuple(deleted), ticket, tuple(results))
        if records:
            turn.write(purpose, *records)
        else:
            turn.answer(ticket, purpose.response())
        return self._finish(turn)

    def _dissolve(self, group: ClassicGroup) -> list[GroupRecord]:
        """Take an empty group out, and what takes it out of the log."""
        for member_id in group.pending:
            self._deadlines.cancel(Deadline(Kind.SESSION, group.id, member_id))
        del self.groups[group.id]
        records = self.offsets.tombstones(group.id)
        if group.is_stored:
            records.append(GroupRecord(GroupMetadataKey(group=group.id), None))
        return records

    # -- time ------------------------------------------------------------------------------

    @property
    def deadline_ms(self) -> int | None:
        """When to tell of the time at the latest."""
        return self._deadlines.next_ms

    def time_passed(self, now_ms: int) -> Outcome:
        turn = self._turn(now_ms)
        touched = set()
        while (deadline := self._deadlines.due(now_ms)) is not None:
            if deadline.kind is Kind.EXPIRY:
                self._expire(turn)
                continue
            group = self.groups.get(deadline.group_id)
            if group is None:
                continue
            touched.add(group.id)
            match deadline.kind:
                case Kind.SESSION:
                    rebalance.session_ended(group, deadline.member_id, turn)
                case Kind.JOIN:
                    rebalance.join_time_is_up(group, turn)
                case Kind.SYNC:
                    rebalance.sync_time_is_up(group, turn)
        return self._finish(turn, *sorted(touched))

    def _expire(self, turn: Turn) -> None:
        interval_ms = self.rules.offsets_retention_check_interval_ms
        self._deadlines.set(Deadline(Kind.EXPIRY), turn.now_ms + interval_ms)
        for group in [*self.groups.values()]:
            old = expired(group, self.offsets, turn.now_ms, self.rules.offsets_retention_ms)
            if is_forgettable(group, self.offsets, len(old)):
                records = self._dissolve(group)
                if records:
                    turn.write(GroupsDeleted((group,)), *records)
            elif old:
                turn.write(None, *old)

    # -- writes ----------------------------------------------------------------------------

    def written(self, write: Write, base_offset: int, now_ms: int) -> Outcome:
        """Its records are committed from `base_offset` on."""
        turn = self._turn(now_ms)
        assert next(iter(self._under_way)) is write, "they are written in the order of the log"
        self._ended(write)
        touched = []
        for record_offset, (key, value) in enumerate(write.records, base_offset):
            if isinstance(key, OffsetCommitKey):
                assert value is None or isinstance(value, OffsetCommitValue)
                self._apply_offset(key, value, record_offset, write.producer_id)
                touched.append(key.group)
        match write.purpose:
            case commits.OffsetsWritten(ticket, _, response):
                turn.answer(ticket, response)
            case rebalance.Assigned() as assigned:
                rebalance.assigned(assigned, turn)
            case joining.Replaced() as replaced:
                joining.replaced(replaced, turn)
            case GroupsDeleted(ticket=int(ticket)) as deleted:
                turn.answer(ticket, deleted.response())
        return self._finish(turn, *touched)

    def write_failed(self, write: Write, error: ErrorCode, now_ms: int) -> Outcome:
        """Its records are not in the log, and never will be."""
        turn = self._turn(now_ms)
        self._ended(write)
        match write.purpose:
            case commits.OffsetsWritten(ticket, request):
                refusal = commits.refusal(request, told_as(error, of_offsets=True))
                turn.answer(ticket, refusal)
            case rebalance.Assigned() as assigned:
                rebalance.not_assigned(assigned, error, turn)
            case joining.Replaced() as replaced:
                joining.not_replaced(replaced, error, turn)
            case GroupsDeleted() as deleted:
                for group in deleted.groups:
                    group.pending.clear()
                    # If another was founded, the log has a record of the one before it.
                    there = self.groups.setdefault(group.id, group)
                    there.is_stored = there.is_stored or group.is_stored
                if deleted.ticket is not None:
                    turn.answer(deleted.ticket, deleted.response(told_as(error)))
        return self._finish(turn, *(_groups_of(write)))

    def _ended(self, write: Write) -> None:
        assert write in self._under_way, "a write ends once"
        del self._under_way[write]
        for key, _ in write.records:
            if isinstance(key, OffsetCommitKey):
                self.offsets.ended(key)

    # -- turns -----------------------------------------------------------------------------

    def _turn(self, now_ms: int) -> Turn:
        return Turn(now_ms, self.rules, self._deadlines)

    def _finish(self, turn: Turn, *group_ids: str) -> Outcome:
        for write in turn.writes:
            self._under_way[write] = None
            for key, _ in write.records:
                if isinstance(key, OffsetCommitKey):
                    self.offsets.begun(key)
        for group_id in group_ids:
            self._settle(group_id)
        return Outcome(turn.answers, turn.writes)

    def _apply_offset(
        self, key: OffsetCommitKey, value: Any, record_offset: int, producer_id: int
    ) -> None:
        self.offsets.apply(key, value, record_offset, producer_id)
        if value is not None:
            # Whoever commits without being a member has a group all the same, a simple one.
            self.groups.setdefault(key.group, ClassicGroup(key.group))
        else:
            self._settle(key.group)

    def _settle(self, group_id: str) -> None:
        """Forget a group of which nothing is left, and of which the log has no record either."""
        group = self.groups.get(group_id)
        if (
            group is not None
            and group.state is State.EMPTY
            and not group.is_stored
            and not group.pending
            and self.offsets.is_void(group_id)
        ):
            del self.groups[group_id]

    def check(self) -> None:
        """Assert what must hold between any two facts."""
        for group in self.groups.values():
            group.check()
            session = {each: Deadline(Kind.SESSION, group.id, each) for each in group.pending}
            assert all(self._deadlines.get(each) is not None for each in session.values())
            for member in group.members.values():
                at_ms = self._deadlines.get(Deadline(Kind.SESSION, group.id, member.id))
                assert at_ms is not None or member.is_waiting, "nobody would miss it"
            if group.state is State.PREPARING_REBALANCE:
                assert self._deadlines.get(Deadline(Kind.JOIN, group.id)) is not None
            if group.awaiting_sync:
                assert self._deadlines.get(Deadline(Kind.SYNC, group.id)) is not None


def _not_there(group_id: str) -> ErrorCode:
    return ErrorCode.UNKNOWN_MEMBER_ID if group_id else ErrorCode.INVALID_GROUP_ID


def _groups_of(write: Write) -> Iterator[str]:
    return (key.group for key, _ in write.records)
