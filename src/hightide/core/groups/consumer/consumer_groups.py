"""The groups of the consumer protocol of one coordinator, and their writes in flight.

A decision takes effect here at once, so that the next decision builds on it.  Its answer is sent
when it is committed.  An answer without a change waits for the group's writes in flight too: it was
computed from them.  A failed write is undone; the shell reports it before any other fact, so that
no decision builds on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hightide.core.groups import migration
from hightide.core.groups.classic import rebalance
from hightide.core.groups.classic.classic_group import ClassicGroup, Rebalance
from hightide.core.groups.consumer import heartbeat
from hightide.core.groups.consumer.consumer_group import (
    STATIC_LEAVE,
    ConsumerGroup,
    ConsumerMember,
    MemberState,
    Topic,
)
from hightide.core.groups.consumer.heartbeat import MemberHeartbeat
from hightide.core.groups.consumer.topic_pattern import PatternCompiler
from hightide.core.groups.deadlines import Deadline, Deadlines, Kind
from hightide.core.groups.group_events import GroupRebalancing
from hightide.core.groups.migration import Conversion
from hightide.core.groups.responses import error_response
from hightide.core.groups.turn import Answer, Ticket, Turn, client_error
from hightide.wire.errors import ErrorCode, KafkaError
from hightide.wire.messages.consumer_groups import ConsumerGroupHeartbeatResponse
from hightide.wire.records.consumer_offsets import ConsumerGroupKey, GroupRecord

_LATE = {
    Kind.CONSUMER_SESSION: "the session of {} expired",
    Kind.REVOCATION: "{} did not revoke its partitions in time",
    Kind.MEMBER_JOIN: "{} did not join again in time",
    Kind.MEMBER_SYNC: "{} did not send SyncGroup in time",
}


@dataclass(frozen=True, slots=True, eq=False)
class ConsumerGroupWritten:
    """A decision about a group that is being written, and the answers that wait for it."""

    group_id: str
    records: tuple[GroupRecord, ...]
    rebalance: Rebalance | None = None
    """Set if the decision increased the group epoch."""
    replaced: ClassicGroup | None = None
    """The classic group that this group replaces."""
    founded: ClassicGroup | None = None
    """The classic group that replaces this group."""
    answers: list[Answer] = field(default_factory=list)

    def applied_to(self, group: ConsumerGroup | None) -> ConsumerGroup | None:
        if not self.records:
            return group
        after = (group or ConsumerGroup(self.group_id)).with_records(self.records)
        if after is not None and self.rebalance is not None:
            after = replace(after, last_rebalance=self.rebalance)
        return after


class ConsumerGroups:
    """The consumer groups of a coordinator, by id."""

    def __init__(self, classic: dict[str, ClassicGroup], compile_pattern: PatternCompiler) -> None:
        self.groups: dict[str, ConsumerGroup] = {}
        self.topics: Mapping[str, Topic] = {}
        self.compile_pattern = compile_pattern
        self._classic = classic
        # Groups that have not resolved their subscriptions since the topics changed.
        self._outdated: set[str] = set()
        self._in_flight: dict[str, list[ConsumerGroupWritten]] = {}
        # Groups with writes in flight, as they are without them.
        self._committed: dict[str, ConsumerGroup | None] = {}

    def get(self, group_id: str) -> ConsumerGroup | None:
        return self.groups.get(group_id)

    def replay(self, key: ConsumerGroupKey, record: GroupRecord) -> None:
        group = self.groups.get(key.group)
        # A tombstone of an unknown group is ignored: compaction keeps tombstones for a while.
        if group is not None or record.value is not None:
            self._put(key.group, (group or ConsumerGroup(key.group)).with_records([record]))

    def loaded(self, turn: Turn) -> None:
        self._outdated.update(self.groups)
        for group in self.groups.values():
            for member in group.members.values():
                self.keep_session(group.id, member, turn)
                self._await_revocation(group.id, None, member, turn)

    def topics_changed(self, topics: Mapping[str, Topic]) -> None:
        """Set the topics of the cluster.  Groups resolve them with their next heartbeat."""
        self.topics = topics
        self._outdated.update(self.groups)

    def unmatched(self, group_id: str, expression: str | None) -> set[str]:
        """Return the expressions that a request about a group, which may bring one, resolves."""
        group = self.groups.get(group_id)
        if group is None:
            return {expression} if expression else set()
        members = group.members.values() if group_id in self._outdated else ()
        found = {member.topic_regex for member in members if member.topic_regex}
        if expression and expression not in group.expressions:
            found.add(expression)
        return found

    # -- heartbeats ------------------------------------------------------------------------

    def beat(
        self,
        ticket: Ticket,
        beat: MemberHeartbeat,
        new_member_id: str,
        conversion: Conversion | None,
        turn: Turn,
    ) -> None:
        """Handle a heartbeat, possibly one that converts a classic group."""
        request = beat.request
        epoch = request.member_epoch
        group = self.groups.get(request.group_id) if conversion is None else conversion.group
        if group is None:
            if epoch != heartbeat.JOIN:
                raise KafkaError(
                    ErrorCode.GROUP_ID_NOT_FOUND, f"group {request.group_id} not found"
                )
            group = ConsumerGroup(request.group_id)
        member_id = request.member_id or new_member_id
        if epoch in (heartbeat.LEAVE, STATIC_LEAVE):
            self._leave(ticket, group, beat, turn)
            return
        before, records = heartbeat.find_member(
            group, beat, member_id, turn.rules.consumer_max_size
        )
        after = self.step(group, beat, before, records, turn, conversion)
        interval_ms = turn.rules.consumer_heartbeat_interval_ms
        response = heartbeat.heartbeat_response(before, after.members[member_id], beat, interval_ms)
        self.answer(ticket, group.id, response, turn)

    def step(
        self,
        group: ConsumerGroup,
        beat: MemberHeartbeat,
        before: ConsumerMember,
        records: list[GroupRecord],
        turn: Turn,
        conversion: Conversion | None = None,
        client_reason: str | None = None,
    ) -> ConsumerGroup:
        """Decide what follows from a heartbeat, after the records that made its member."""
        found = group.with_records(records)
        assert found is not None
        # A converted group has never resolved its subscriptions.
        may_differ = conversion is not None or group.id in self._outdated
        decided = heartbeat.decide(found, beat, before, turn.rules, topics_may_differ=may_differ)
        self._outdated.discard(group.id)
        reason = heartbeat.reason(group, before, beat) if decided else ""
        reason = f"{reason}: {client_reason}" if client_reason else reason
        records = [*records, *decided]
        if conversion is None:
            after = self._write_decision(group.id, records, reason, turn)
        else:
            records = [*conversion.records, *records]
            after = self._write_decision(
                group.id, records, reason, turn, replaced=conversion.replaced
            )
            for other in conversion.group.members.values():
                self.keep_session(group.id, other, turn)
        assert after is not None
        member = after.members[before.id]
        self.keep_session(group.id, member, turn)
        self._await_revocation(group.id, before, member, turn)
        return after

    def _leave(
        self, ticket: Ticket, group: ConsumerGroup, beat: MemberHeartbeat, turn: Turn
    ) -> None:
        request = beat.request
        member = group.members.get(request.member_id)
        if request.instance_id is not None:
            member = group.static_member(request.instance_id)
            if member is not None and member.id != request.member_id:
                raise KafkaError(ErrorCode.FENCED_INSTANCE_ID)
        if member is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_MEMBER_ID,
                f"{request.member_id} is not a member of group {group.id}",
            )
        if request.member_epoch == STATIC_LEAVE:
            self._write_decision(group.id, heartbeat.static_member_left(group, member), "", turn)
            self.keep_session(group.id, member, turn)
            turn.deadlines.cancel(Deadline(Kind.REVOCATION, group.id, member.id))
        else:
            self.remove(group, [member], f"{member.id} left", turn)
        response = ConsumerGroupHeartbeatResponse(
            member_id=member.id, member_epoch=request.member_epoch
        )
        self.answer(ticket, group.id, response, turn)

    def remove(
        self, group: ConsumerGroup, leaving: list[ConsumerMember], reason: str, turn: Turn
    ) -> None:
        """Remove members; convert to the classic protocol if only its members stay."""
        member_ids = [member.id for member in leaving]
        if not migration.can_downgrade(group, member_ids, turn.rules):
            self._cancel(group.id, member_ids, turn)
            records = heartbeat.members_left(
                group, member_ids, self.topics, self.compile_pattern, turn.now_ms
            )
            self._write_decision(group.id, records, reason, turn)
            return
        self._cancel(group.id, group.members, turn)
        classic = migration.downgrade(group, member_ids, turn.now_ms)
        records = [*group.tombstones(), classic.record()]
        self._write_decision(group.id, records, reason, turn, founded=classic)
        self._classic[group.id] = classic
        for member in classic.members.values():
            rebalance.keep_session(classic, member, turn)
        rebalance.prepare(classic, f"{reason}; all other members use the classic protocol", turn)

    def _cancel(self, group_id: str, member_ids: Iterable[str], turn: Turn) -> None:
        for member_id in member_ids:
            for kind in _LATE:
                turn.deadlines.cancel(Deadline(kind, group_id, member_id))

    def timed_out(self, deadline: Deadline, turn: Turn) -> None:
        """Remove a member that has missed a deadline."""
        group = self.groups.get(deadline.group_id)
        member = group.members.get(deadline.member_id) if group else None
        if group is None or member is None:
            return
        is_revoking = member.state is MemberState.UNREVOKED_PARTITIONS
        if deadline.kind is not Kind.REVOCATION or is_revoking:
            self.remove(group, [member], _LATE[deadline.kind].format(member.id), turn)

    def keep_session(self, group_id: str, member: ConsumerMember, turn: Turn) -> None:
        timeout_ms = turn.rules.consumer_session_timeout_ms
        if member.classic is not None:
            timeout_ms = member.classic.session_timeout_ms
        at_ms = turn.now_ms + timeout_ms
        turn.deadlines.set(Deadline(Kind.CONSUMER_SESSION, group_id, member.id), at_ms)

    def _await_revocation(
        self, group_id: str, before: ConsumerMember | None, member: ConsumerMember, turn: Turn
    ) -> None:
        deadline = Deadline(Kind.REVOCATION, group_id, member.id)
        if member.state is not MemberState.UNREVOKED_PARTITIONS:
            turn.deadlines.cancel(deadline)
        elif before is None or before.revoking != member.revoking:
            turn.deadlines.set(deadline, turn.now_ms + max(1, member.rebalance_timeout_ms))

    # -- writes ----------------------------------------------------------------------------

    def _write_decision(
        self,
        group_id: str,
        records: list[GroupRecord],
        reason: str,
        turn: Turn,
        *,
        replaced: ClassicGroup | None = None,
        founded: ClassicGroup | None = None,
    ) -> ConsumerGroup | None:
        before = self.groups.get(group_id)
        if not records:
            return before
        ours = tuple(record for record in records if isinstance(record.key, ConsumerGroupKey))
        after = (before or ConsumerGroup(group_id)).with_records(ours)
        known = before.epoch if before is not None else replaced.generation if replaced else 0
        cause = None
        if after is not None and after.epoch > known:
            cause = Rebalance.begun(reason, turn.now_ms, known)
            members = len(after.members)
            turn.events.append(GroupRebalancing(group_id, known, members, cause.reason))
        purpose = self._apply_decision(
            ConsumerGroupWritten(group_id, ours, cause, replaced, founded)
        )
        turn.write(purpose, *records)
        return self.groups.get(group_id)

    def _apply_decision(self, purpose: ConsumerGroupWritten) -> ConsumerGroupWritten:
        """Apply a decision that may still have to be undone."""
        before = self.groups.get(purpose.group_id)
        self._committed.setdefault(purpose.group_id, before)
        self._in_flight.setdefault(purpose.group_id, []).append(purpose)
        self._put(purpose.group_id, purpose.applied_to(before))
        return purpose

    def answer(self, ticket: Ticket, group_id: str, response: Any, turn: Turn) -> None:
        if in_flight := self._in_flight.get(group_id):
            in_flight[-1].answers.append(Answer(ticket, response))
        else:
            turn.answer(ticket, response)

    def written(self, purpose: ConsumerGroupWritten, turn: Turn) -> None:
        group_id = purpose.group_id
        self._committed[group_id] = purpose.applied_to(self._committed[group_id])
        self._ended(purpose)
        turn.answers += purpose.answers

    def write_failed(self, purpose: ConsumerGroupWritten, error: ErrorCode, turn: Turn) -> None:
        """Undo a decision that could not be written."""
        group_id = purpose.group_id
        group = self._committed[group_id]
        for other in self._in_flight[group_id]:
            if other is not purpose:
                group = other.applied_to(group)
        self._ended(purpose)
        self._put(group_id, group)
        self._outdated.add(group_id)
        for member in group.members.values() if group else ():
            self.keep_session(group_id, member, turn)
            self._await_revocation(group_id, None, member, turn)
        if purpose.founded is not None:
            self._classic.pop(group_id, None)
            migration.withdraw_classic(purpose.founded, client_error(error), turn)
        for ticket, response in purpose.answers:
            turn.answer(ticket, error_response(response, client_error(error)))

    def waiting(self) -> list[Answer]:
        return [
            answer
            for writes in self._in_flight.values()
            for one in writes
            for answer in one.answers
        ]

    def _ended(self, purpose: ConsumerGroupWritten) -> None:
        in_flight = self._in_flight[purpose.group_id]
        in_flight.remove(purpose)
        if not in_flight:
            del self._in_flight[purpose.group_id]
            del self._committed[purpose.group_id]

    def _put(self, group_id: str, group: ConsumerGroup | None) -> None:
        if group is None:
            self.groups.pop(group_id, None)
            self._outdated.discard(group_id)
        else:
            self.groups[group_id] = group

    def check(self, deadlines: Deadlines) -> None:
        """Assert the invariants that hold between any two facts."""
        for group in self.groups.values():
            group.check()
            for member in group.members.values():
                session = Deadline(Kind.CONSUMER_SESSION, group.id, member.id)
                assert deadlines.get(session) is not None, "the member would never expire"
                if member.state is MemberState.UNREVOKED_PARTITIONS:
                    revocation = Deadline(Kind.REVOCATION, group.id, member.id)
                    assert deadlines.get(revocation) is not None

    def forget(self, group_id: str) -> None:
        """Drop a group that a classic group replaces in the log."""
        self._put(group_id, None)

    def dissolve(self, group: ConsumerGroup) -> ConsumerGroupWritten:
        """Delete an empty group; return the decision with its tombstones."""
        return self._apply_decision(ConsumerGroupWritten(group.id, tuple(group.tombstones())))

    def convert_empty(self, group: ConsumerGroup, turn: Turn) -> ClassicGroup:
        """Replace an empty group by an empty classic group."""
        classic = self._classic[group.id] = ClassicGroup(group.id)
        self._write_decision(group.id, group.tombstones(), "", turn, founded=classic)
        return classic
