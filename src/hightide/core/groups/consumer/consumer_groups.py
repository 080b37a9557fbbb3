"""All groups of the newer protocol that a coordinator has, and what is being written of them.

A decision takes effect here at once, so that the next is made upon it, and is told when it is
written.  An answer that says nothing new waits for what is being written of its group as well: it
was made upon that.  What could not be written is undone; so that nothing is decided upon it, that
is told before any other fact.
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
    LEFT_FOR_NOW,
    ConsumerGroup,
    ConsumerMember,
    MemberState,
    Topic,
)
from hightide.core.groups.consumer.heartbeat import Beat
from hightide.core.groups.consumer.topic_pattern import PatternCompiler
from hightide.core.groups.deadlines import Deadline, Deadlines, Kind
from hightide.core.groups.migration import Conversion
from hightide.core.groups.responses import instead_of
from hightide.core.groups.turn import Answer, Ticket, Turn, told_as
from hightide.wire.errors import ErrorCode, KafkaError
from hightide.wire.messages.consumer_groups import ConsumerGroupHeartbeatResponse
from hightide.wire.records.consumer_offsets import ConsumerGroupKey, GroupRecord

_LATE = {
    Kind.CONSUMER_SESSION: "the session of {} has ended",
    Kind.REVOCATION: "{} did not give up its partitions in time",
    Kind.MEMBER_JOIN: "{} did not join again in time",
    Kind.MEMBER_SYNC: "{} did not ask for its assignment in time",
}


@dataclass(frozen=True, slots=True, eq=False)
class ConsumerGroupWritten:
    """A decision about a group, and the answers that wait for it."""

    group_id: str
    records: tuple[GroupRecord, ...]
    rebalance: Rebalance | None = None
    """Set if the group epoch grew with it."""
    replaced: ClassicGroup | None = None
    """The classic group in whose place it came."""
    founded: ClassicGroup | None = None
    """The classic group that came in its place."""
    answers: list[Answer] = field(default_factory=list)

    def applied_to(self, group: ConsumerGroup | None) -> ConsumerGroup | None:
        if not self.records:
            return group
        after = (group or ConsumerGroup(self.group_id)).with_records(self.records)
        if after is not None and self.rebalance is not None:
            after = replace(after, last_rebalance=self.rebalance)
        return after


class ConsumerGroups:
    """The groups, by id."""

    def __init__(self, classic: dict[str, ClassicGroup], compile_pattern: PatternCompiler) -> None:
        self.groups: dict[str, ConsumerGroup] = {}
        self.topics: Mapping[str, Topic] = {}
        self.compile_pattern = compile_pattern
        self._classic = classic
        # Groups that have not looked at the topics since these changed.
        self._outdated: set[str] = set()
        self._under_way: dict[str, list[ConsumerGroupWritten]] = {}
        # Groups of which something is under way, as they are without it.
        self._committed: dict[str, ConsumerGroup | None] = {}

    def get(self, group_id: str) -> ConsumerGroup | None:
        return self.groups.get(group_id)

    def replay(self, key: ConsumerGroupKey, record: GroupRecord) -> None:
        group = self.groups.get(key.group)
        # What is not there is not taken away: compaction leaves tombstones for a while.
        if group is not None or record.value is not None:
            self._put(key.group, (group or ConsumerGroup(key.group)).with_records([record]))

    def loaded(self, turn: Turn) -> None:
        self._outdated.update(self.groups)
        for group in self.groups.values():
            for member in group.members.values():
                self.keep_session(group.id, member, turn)
                self._await_revocation(group.id, None, member, turn)

    def topics_changed(self, topics: Mapping[str, Topic]) -> None:
        """All topics of the cluster.  Groups look at them with their next heartbeat."""
        self.topics = topics
        self._outdated.update(self.groups)

    # -- heartbeats ------------------------------------------------------------------------

    def beat(
        self,
        ticket: Ticket,
        beat: Beat,
        new_member_id: str,
        conversion: Conversion | None,
        turn: Turn,
    ) -> None:
        """A heartbeat, perhaps one for which a classic group changes its protocol."""
        request = beat.request
        epoch = request.member_epoch
        group = self.groups.get(request.group_id) if conversion is None else conversion.group
        if group is None:
            if epoch != heartbeat.JOIN:
                raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"no group {request.group_id}")
            group = ConsumerGroup(request.group_id)
        member_id = request.member_id or new_member_id
        if epoch in (heartbeat.LEAVE, LEFT_FOR_NOW):
            self._leave(ticket, group, beat, turn)
            return
        before, records = heartbeat.find(group, beat, member_id, turn.rules.consumer_max_size)
        after = self.step(group, beat, before, records, turn, conversion)
        interval_ms = turn.rules.consumer_heartbeat_interval_ms
        response = heartbeat.response(before, after.members[member_id], beat, interval_ms)
        self.answer(ticket, group.id, response, turn)

    def step(
        self,
        group: ConsumerGroup,
        beat: Beat,
        before: ConsumerMember,
        records: list[GroupRecord],
        turn: Turn,
        conversion: Conversion | None = None,
        said_why: str | None = None,
    ) -> ConsumerGroup:
        """What follows from what a member says, after the records that made it a member."""
        found = group.with_records(records)
        assert found is not None
        # A group that was classic has never looked at the topics.
        may_differ = conversion is not None or group.id in self._outdated
        decided = heartbeat.decide(found, beat, before, turn.rules, topics_may_differ=may_differ)
        self._outdated.discard(group.id)
        why = heartbeat.reason(group, before, beat) if decided else ""
        why = f"{why}: {said_why}" if said_why else why
        records = [*records, *decided]
        if conversion is None:
            after = self._decided(group.id, records, why, turn)
        else:
            records = [*conversion.records, *records]
            after = self._decided(group.id, records, why, turn, replaced=conversion.replaced)
            for each in conversion.group.members.values():
                self.keep_session(group.id, each, turn)
        assert after is not None
        member = after.members[before.id]
        self.keep_session(group.id, member, turn)
        self._await_revocation(group.id, before, member, turn)
        return after

    def _leave(self, ticket: Ticket, group: ConsumerGroup, beat: Beat, turn: Turn) -> None:
        request = beat.request
        member = group.members.get(request.member_id)
        if request.instance_id is not None:
            member = group.static_member(request.instance_id)
            if member is not None and member.id != request.member_id:
                raise KafkaError(ErrorCode.FENCED_INSTANCE_ID)
        if member is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"{request.member_id} is no member")
        if request.member_epoch == LEFT_FOR_NOW:
            self._decided(group.id, heartbeat.left_for_now(group, member), "", turn)
            self.keep_session(group.id, member, turn)
            turn.deadlines.cancel(Deadline(Kind.REVOCATION, group.id, member.id))
        else:
            self.remove(group, [member], f"{member.id} left", turn)
        response = ConsumerGroupHeartbeatResponse(
            member_id=member.id, member_epoch=request.member_epoch
        )
        self.answer(ticket, group.id, response, turn)

    def remove(
        self, group: ConsumerGroup, leaving: list[ConsumerMember], why: str, turn: Turn
    ) -> None:
        """Take out members, and with the last of the newer protocol change to the classic one."""
        gone = [each.id for each in leaving]
        if not migration.can_downgrade(group, gone, turn.rules):
            self._cancel(group.id, gone, turn)
            records = heartbeat.left(group, gone, self.topics, self.compile_pattern, turn.now_ms)
            self._decided(group.id, records, why, turn)
            return
        self._cancel(group.id, group.members, turn)
        classic = migration.downgraded(group, gone, turn.now_ms)
        records = [*group.tombstones(), classic.record()]
        self._decided(group.id, records, why, turn, founded=classic)
        self._classic[group.id] = classic
        for member in classic.members.values():
            rebalance.keep_session(classic, member, turn)
        rebalance.prepare(classic, f"{why}; all others speak the classic protocol", turn)

    def _cancel(self, group_id: str, member_ids: Iterable[str], turn: Turn) -> None:
        for member_id in member_ids:
            for kind in _LATE:
                turn.deadlines.cancel(Deadline(kind, group_id, member_id))

    def time_is_up(self, deadline: Deadline, turn: Turn) -> None:
        """Of one who did not do in time what he had to."""
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

    def _decided(
        self,
        group_id: str,
        records: list[GroupRecord],
        why: str,
        turn: Turn,
        *,
        replaced: ClassicGroup | None = None,
        founded: ClassicGroup | None = None,
    ) -> ConsumerGroup | None:
        before = self.groups.get(group_id)
        if not records:
            return before
        ours = tuple(each for each in records if isinstance(each.key, ConsumerGroupKey))
        after = (before or ConsumerGroup(group_id)).with_records(ours)
        known = before.epoch if before is not None else replaced.generation if replaced else 0
        cause = None
        if after is not None and after.epoch > known:
            cause = Rebalance(why, turn.now_ms, known)
        purpose = self._note(ConsumerGroupWritten(group_id, ours, cause, replaced, founded))
        turn.write(purpose, *records)
        return self.groups.get(group_id)

    def _note(self, purpose: ConsumerGroupWritten) -> ConsumerGroupWritten:
        """It takes effect, and may still have to be undone."""
        before = self.groups.get(purpose.group_id)
        self._committed.setdefault(purpose.group_id, before)
        self._under_way.setdefault(purpose.group_id, []).append(purpose)
        self._put(purpose.group_id, purpose.applied_to(before))
        return purpose

    def answer(self, ticket: Ticket, group_id: str, response: Any, turn: Turn) -> None:
        if under_way := self._under_way.get(group_id):
            under_way[-1].answers.append(Answer(ticket, response))
        else:
            turn.answer(ticket, response)

    def written(self, purpose: ConsumerGroupWritten, turn: Turn) -> None:
        group_id = purpose.group_id
        self._committed[group_id] = purpose.applied_to(self._committed[group_id])
        self._ended(purpose)
        turn.answers += purpose.answers

    def not_written(self, purpose: ConsumerGroupWritten, error: ErrorCode, turn: Turn) -> None:
        """The group is as if that had not been decided."""
        group_id = purpose.group_id
        group = self._committed[group_id]
        for other in self._under_way[group_id]:
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
            migration.withdrawn(purpose.founded, told_as(error), turn)
        for ticket, response in purpose.answers:
            turn.answer(ticket, instead_of(response, told_as(error)))

    def waiting(self) -> list[Answer]:
        return [
            each for writes in self._under_way.values() for one in writes for each in one.answers
        ]

    def _ended(self, purpose: ConsumerGroupWritten) -> None:
        under_way = self._under_way[purpose.group_id]
        under_way.remove(purpose)
        if not under_way:
            del self._under_way[purpose.group_id]
            del self._committed[purpose.group_id]

    def _put(self, group_id: str, group: ConsumerGroup | None) -> None:
        if group is None:
            self.groups.pop(group_id, None)
            self._outdated.discard(group_id)
        else:
            self.groups[group_id] = group

    def check(self, deadlines: Deadlines) -> None:
        """Assert what must hold between any two facts."""
        for group in self.groups.values():
            group.check()
            for member in group.members.values():
                session = Deadline(Kind.CONSUMER_SESSION, group.id, member.id)
                assert deadlines.get(session) is not None, "nobody would miss it"
                if member.state is MemberState.UNREVOKED_PARTITIONS:
                    revocation = Deadline(Kind.REVOCATION, group.id, member.id)
                    assert deadlines.get(revocation) is not None

    def forget(self, group_id: str) -> None:
        """A classic group has come in its place, as the log tells it."""
        self._put(group_id, None)

    def dissolve(self, group: ConsumerGroup) -> ConsumerGroupWritten:
        """Take an empty group out.  The records of the decision take it out of the log."""
        return self._note(ConsumerGroupWritten(group.id, tuple(group.tombstones())))

    def give_way(self, group: ConsumerGroup, turn: Turn) -> ClassicGroup:
        """An empty group is a classic one from now on."""
        classic = self._classic[group.id] = ClassicGroup(group.id)
        self._decided(group.id, group.tombstones(), "", turn, founded=classic)
        return classic
