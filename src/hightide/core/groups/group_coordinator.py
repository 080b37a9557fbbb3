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
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from hightide.core.groups import migration, offset_requests, responses
from hightide.core.groups.administration import Administration
from hightide.core.groups.classic import join_group, leave_group, rebalance
from hightide.core.groups.classic.classic_group import ClassicGroup, State
from hightide.core.groups.consumer import classic_members, heartbeat
from hightide.core.groups.consumer.consumer_group import ConsumerGroup, Topic
from hightide.core.groups.consumer.consumer_groups import ConsumerGroups, ConsumerGroupWritten
from hightide.core.groups.consumer.topic_pattern import PatternCompiler
from hightide.core.groups.deadlines import Deadline, Deadlines, Kind
from hightide.core.groups.group_rules import Rules
from hightide.core.groups.offset_retention import GroupsDeleted, is_empty
from hightide.core.groups.offsets import Offsets
from hightide.core.groups.turn import (
    NO_PRODUCER,
    Client,
    Outcome,
    Ticket,
    Turn,
    Write,
    told_as,
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
    """All groups of one partition."""

    def __init__(self, rules: Rules, random: Random, compile_pattern: PatternCompiler) -> None:
        self.rules = rules
        self.groups: dict[str, ClassicGroup] = {}
        self.consumers = ConsumerGroups(self.groups, compile_pattern)
        # In the order in which they were decided, which is that of the log.
        self._under_way: dict[Write, None] = {}
        self.offsets = Offsets(self._under_way.keys())
        self.administration = Administration(self.groups, self.consumers, self.offsets)
        self._random = random
        self._deadlines = Deadlines()

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
                self.consumers.forget(key.group)
            case GroupRecord(GroupMetadataKey() as key, None):
                self.groups.pop(key.group, None)
                self._keep_simple(key.group)
            case GroupRecord(key):
                assert isinstance(key, ConsumerGroupKey), f"the value does not suit: {record}"
                self.consumers.replay(key, record)
                # Of two kinds of one name the later record is right.
                if key.group in self.consumers.groups:
                    self.groups.pop(key.group, None)
                else:
                    self._keep_simple(key.group)

    def _keep_simple(self, group_id: str) -> None:
        """Offsets that a group leaves behind belong to a simple one, or would stay for ever."""
        if not self.offsets.is_void(group_id):
            self.groups.setdefault(group_id, ClassicGroup(group_id))

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
        self.consumers.loaded(turn)
        for group in self.groups.values():
            for member in group.members.values():
                rebalance.keep_session(group, member, turn)
            if len(group.members) > self.rules.max_size:
                size = f"{len(group.members)} members are more than {self.rules.max_size}"
                rebalance.prepare(group, f"loaded: {size}", turn)
            elif group.is_converted:
                rebalance.prepare(group, "loaded: it was of the newer protocol", turn)
        return self._finish(turn)

    def resigned(self, error: ErrorCode = ErrorCode.NOT_COORDINATOR) -> Outcome:
        """Another broker takes over: everybody who waits is told.  Nothing is asked after this."""
        turn = self._turn(0)
        for group in self.groups.values():
            for member in group.members.values():
                if member.joining is not None:
                    turn.answer(member.joining, responses.not_joined(error, member.id))
                if member.syncing is not None:
                    turn.answer(member.syncing, responses.not_synced(error))
        for ticket, response in self.consumers.waiting():
            turn.answer(ticket, responses.instead_of(response, error))
        for write in self._under_way:
            match write.purpose:
                case offset_requests.OffsetsWritten(ticket, request):
                    turn.answer(ticket, offset_requests.refusal(request, error))
                case GroupsDeleted(ticket=int(ticket)) as deleted:
                    turn.answer(ticket, deleted.response(error))
        return Outcome(turn.answers, [])

    # -- members ---------------------------------------------------------------------------

    def join_asked(
        self, ticket: Ticket, request: JoinGroupRequest, version: int, client: Client, now_ms: int
    ) -> Outcome:
        turn = self._turn(now_ms)
        error = join_group.request_error(request, self.rules)
        group = self.groups.get(request.group_id)
        other = self.consumers.get(request.group_id)
        if error is ErrorCode.NONE and group is None and other is None and request.member_id:
            error = ErrorCode.UNKNOWN_MEMBER_ID
        if error is not ErrorCode.NONE:
            turn.answer(ticket, responses.not_joined(error, request.member_id))
            return self._finish(turn)
        prefix = client.id if request.group_instance_id is None else request.group_instance_id
        new_id = f"{prefix}-{self._new_id()}"
        asked = join_group.Join(ticket, request, version, client, new_id)
        if other is None or self._join_consumers(other, asked, turn):
            group = self.groups.get(request.group_id)
            if group is None:
                group = self.groups[request.group_id] = ClassicGroup(request.group_id)
            join_group.join(group, asked, turn)
        return self._finish(turn, request.group_id)

    def _join_consumers(self, group: ConsumerGroup, asked: join_group.Join, turn: Turn) -> bool:
        """Whether there is no such consumer group any more, and a classic one is to be joined."""
        member_id = asked.request.member_id
        try:
            if not is_empty(group):
                return not classic_members.join(self.consumers, asked, turn)
            if member_id:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        except KafkaError as error:
            given = error.code is ErrorCode.MEMBER_ID_REQUIRED
            named = asked.new_member_id if given else member_id
            turn.answer(asked.ticket, responses.not_joined(error.code, named))
            return False
        self.consumers.give_way(group, turn)
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
        """A member of the newer protocol joins, leaves, or is there."""
        turn = self._turn(now_ms)
        try:
            heartbeat.check_request(
                request, self.rules.consumer_assignors, self.consumers.compile_pattern
            )
            classic = self.groups.get(request.group_id)
            conversion = None
            if classic is not None and request.member_epoch == heartbeat.JOIN:
                conversion = migration.upgraded(classic, self.consumers.topics, self.rules)
            elif classic is not None and request.member_epoch > 0:
                # It was late, and the group has become a classic one.  Kafka says that there is no
                # such group, which clients take for the end; so they join anew.
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"{classic.id} is a classic group")
            topics, compile_pattern = self.consumers.topics, self.consumers.compile_pattern
            beat = heartbeat.Beat(request, client, topics, compile_pattern, now_ms)
            self.consumers.beat(ticket, beat, self._new_id(), conversion, turn)
            if conversion is not None:
                migration.released(conversion.replaced, turn)
                self.administration.dissolve_classic(conversion.replaced, turn)
        except KafkaError as error:
            turn.answer(ticket, responses.not_beaten(error.code, error.detail))
        return self._finish(turn)

    def topics_changed(self, topics: Mapping[str, Topic]) -> None:
        """All topics of the cluster, which groups of the newer protocol share out."""
        self.consumers.topics_changed(topics)

    def sync_asked(self, ticket: Ticket, request: SyncGroupRequest, now_ms: int) -> Outcome:
        turn = self._turn(now_ms)
        group = self.groups.get(request.group_id)
        if group is not None:
            rebalance.sync(group, ticket, request, turn)
        elif self.consumers.get(request.group_id) is not None:
            try:
                classic_members.sync(self.consumers, ticket, request, turn)
            except KafkaError as error:
                turn.answer(ticket, responses.not_synced(error.code))
        else:
            turn.answer(ticket, responses.not_synced(_not_there(request.group_id)))
        return self._finish(turn)

    def heartbeat_asked(self, ticket: Ticket, request: HeartbeatRequest, now_ms: int) -> Outcome:
        turn = self._turn(now_ms)
        group = self.groups.get(request.group_id)
        if group is None and self.consumers.get(request.group_id) is not None:
            error = classic_members.beat(self.consumers, request, turn)
        elif group is None:
            error = _not_there(request.group_id)
        else:
            error = group.member_error(request.member_id, request.group_instance_id)
            if error is ErrorCode.NONE and request.generation_id != group.generation:
                error = ErrorCode.ILLEGAL_GENERATION
            if error is ErrorCode.NONE:
                rebalance.keep_session(group, group.members[request.member_id], turn)
                if group.state is State.PREPARING_REBALANCE:
                    error = ErrorCode.REBALANCE_IN_PROGRESS
        turn.answer(ticket, responses.heartbeat(error))
        return self._finish(turn)

    def leave_asked(
        self, ticket: Ticket, request: LeaveGroupRequest, version: int, now_ms: int
    ) -> Outcome:
        turn = self._turn(now_ms)
        group = self.groups.get(request.group_id)
        if not request.group_id:
            turn.answer(ticket, LeaveGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID))
        elif group is not None:
            leave_group.leave(group, ticket, request, version, turn)
        elif self.consumers.get(request.group_id) is not None:
            classic_members.leave(self.consumers, ticket, request, version, turn)
        else:
            turn.answer(ticket, responses.nobody_left(request, version))
        return self._finish(turn, request.group_id)

    # -- offsets ---------------------------------------------------------------------------

    def commit_asked(
        self, ticket: Ticket, request: OffsetCommitRequest, version: int, now_ms: int
    ) -> Outcome:
        turn = self._turn(now_ms)
        group = self.administration.find(request.group_id)
        error = offset_requests.refused(group, request, version)
        if error is ErrorCode.NONE and isinstance(group, ClassicGroup):
            member = group.members.get(request.member_id)
            if member is not None:
                rebalance.keep_session(group, member, turn)
        offset_requests.commit(ticket, request, error, turn)
        return self._finish(turn)

    def transactional_commit_asked(
        self, ticket: Ticket, request: TxnOffsetCommitRequest, now_ms: int
    ) -> Outcome:
        """TxnOffsetCommit.  That the transaction is open, and its epoch the current one, has been
        seen to."""
        turn = self._turn(now_ms)
        group = self.administration.find(request.group_id)
        offset_requests.commit(
            ticket, request, offset_requests.refused_transactional(group, request), turn
        )
        return self._finish(turn)

    def transaction_ended(self, producer_id: int, is_committed: bool, now_ms: int) -> Outcome:
        """The marker that ends a transaction is committed in this partition."""
        self.replay_marker(producer_id, is_committed)
        return self._finish(self._turn(now_ms))

    def fetch_asked(
        self, request: OffsetFetchRequestGroup, *, require_stable: bool
    ) -> OffsetFetchResponseGroup:
        """OffsetFetch of one group.  Changes nothing and waits for nothing."""
        error = offset_requests.fetch_error(self.consumers.get(request.group_id), request)
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
            turn.answer(ticket, offset_requests.refusal(request, error))
            return self._finish(turn)
        records, response = offset_requests.delete(request, group.is_subscribed_to, self.offsets)
        if records:
            turn.write(offset_requests.OffsetsWritten(ticket, request, response), *records)
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

    def delete_groups_asked(
        self, ticket: Ticket, request: DeleteGroupsRequest, now_ms: int
    ) -> Outcome:
        """Of the groups of this partition."""
        turn = self._turn(now_ms)
        self.administration.delete(ticket, request, turn)
        return self._finish(turn)

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
                self.administration.expire(turn)
            elif deadline.kind >= Kind.CONSUMER_SESSION:
                self.consumers.time_is_up(deadline, turn)
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

    # -- writes ----------------------------------------------------------------------------

    def written(self, write: Write, base_offset: int, now_ms: int) -> Outcome:
        """Its records are committed from `base_offset` on."""
        turn = self._turn(now_ms)
        assert next(iter(self._under_way)) is write, "they are written in the order of the log"
        self._ended(write)
        # Those that something was taken from: nothing may be left of them.
        touched = set()
        for record_offset, (key, value) in enumerate(write.records, base_offset):
            if isinstance(key, OffsetCommitKey):
                self._apply_offset(key, value, record_offset, write.producer_id)
                if value is None:
                    touched.add(key.group)
        match write.purpose:
            case offset_requests.OffsetsWritten(ticket, _, response):
                turn.answer(ticket, response)
            case rebalance.Assigned() as assigned:
                rebalance.assigned(assigned, turn)
            case join_group.Replaced() as replaced:
                join_group.replaced(replaced, turn)
            case ConsumerGroupWritten() as purpose:
                self.consumers.written(purpose, turn)
            case GroupsDeleted() as deleted:
                for decision in deleted.decisions:
                    self.consumers.written(decision, turn)
                if deleted.ticket is not None:
                    turn.answer(deleted.ticket, deleted.response())
        return self._finish(turn, *sorted(touched))

    def write_failed(self, write: Write, error: ErrorCode, now_ms: int) -> Outcome:
        """Its records are not in the log, and never will be."""
        turn = self._turn(now_ms)
        self._ended(write)
        match write.purpose:
            case offset_requests.OffsetsWritten(ticket, request):
                refusal = offset_requests.refusal(request, told_as(error, of_offsets=True))
                turn.answer(ticket, refusal)
            case rebalance.Assigned() as assigned:
                rebalance.not_assigned(assigned, error, turn)
            case join_group.Replaced() as replaced:
                join_group.not_replaced(replaced, error, turn)
            case ConsumerGroupWritten() as purpose:
                self.consumers.not_written(purpose, error, turn)
                if purpose.replaced is not None and purpose.group_id not in self.consumers.groups:
                    self.administration.restore(purpose.replaced)
                    migration.reinstated(purpose.replaced, turn)
            case GroupsDeleted() as deleted:
                for decision in deleted.decisions:
                    self.consumers.not_written(decision, error, turn)
                for group in deleted.groups:
                    if isinstance(group, ClassicGroup):
                        self.administration.restore(group)
                if deleted.ticket is not None:
                    turn.answer(deleted.ticket, deleted.response(told_as(error)))
        return self._finish(turn, *(_groups_of(write)))

    def _ended(self, write: Write) -> None:
        assert write in self._under_way, "a write ends once"
        del self._under_way[write]

    # -- turns -----------------------------------------------------------------------------

    def _turn(self, now_ms: int) -> Turn:
        return Turn(now_ms, self.rules, self._deadlines)

    def _finish(self, turn: Turn, *group_ids: str) -> Outcome:
        for write in turn.writes:
            self._under_way[write] = None
        for group_id in group_ids:
            self._settle(group_id)
        return Outcome(turn.answers, turn.writes)

    def _apply_offset(
        self, key: OffsetCommitKey, value: Any, record_offset: int, producer_id: int
    ) -> None:
        self.offsets.apply(key, value, record_offset, producer_id)
        group_id = key.group
        if value is None:
            self._settle(group_id)
        elif group_id not in self.groups and group_id not in self.consumers.groups:
            # Whoever commits without being a member has a group all the same, a simple one.
            self.groups[group_id] = ClassicGroup(group_id)

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
        assert not self.groups.keys() & self.consumers.groups.keys()
        self.consumers.check(self._deadlines)
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
