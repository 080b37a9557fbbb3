"""All groups of the newer protocol that a coordinator has, and what is being written of them.

A decision takes effect here at once, so that the next is made upon it, and is told when it is
written.  An answer that says nothing new waits for what is being written of its group as well: it
was made upon that.  What could not be written is undone; so that nothing is decided upon it, that
is told before any other fact.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hightide.core.groups.classic import ClassicGroup
from hightide.core.groups.consumer import heartbeat
from hightide.core.groups.consumer.group import (
    LEFT_FOR_NOW,
    ConsumerGroup,
    ConsumerMember,
    MemberState,
    Topic,
)
from hightide.core.groups.consumer.heartbeat import Beat
from hightide.core.groups.deadlines import Deadline, Deadlines, Kind
from hightide.core.groups.turn import Answer, Ticket, Turn, told_as
from hightide.wire.errors import ErrorCode, KafkaError
from hightide.wire.messages.consumer_groups import ConsumerGroupHeartbeatResponse
from hightide.wire.records.consumer_offsets import ConsumerGroupKey, GroupRecord


@dataclass(frozen=True, slots=True, eq=False)
class ConsumerGroupWritten:
    """A decision about a group, and the answers that wait for it."""

    group_id: str
    records: tuple[GroupRecord, ...]
    answers: list[Answer] = field(default_factory=list)
    replaced: ClassicGroup | None = None
    """The empty classic group in whose place it came."""


class ConsumerGroups:
    """The groups, by id."""

    def __init__(self) -> None:
        self.groups: dict[str, ConsumerGroup] = {}
        self.topics: Mapping[str, Topic] = {}
        # Groups that have not looked at the topics since these changed.
        self._outdated: set[str] = set()
        self._under_way: dict[str, list[ConsumerGroupWritten]] = {}
        # Groups of which something is under way, as they are without it.
        self._committed: dict[str, ConsumerGroup | None] = {}

    def get(self, group_id: str) -> ConsumerGroup | None:
        return self.groups.get(group_id)

    def replay(self, key: ConsumerGroupKey, record: GroupRecord) -> None:
        group = self.groups.get(key.group, ConsumerGroup(key.group)).with_record(record)
        self._put(key.group, group)

    def loaded(self, turn: Turn) -> None:
        self._outdated.update(self.groups)
        for group in self.groups.values():
            for member in group.members.values():
                self._keep_session(group.id, member, turn)
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
        replaced: tuple[ClassicGroup | None, list[GroupRecord]],
        turn: Turn,
    ) -> None:
        """A heartbeat.  `replaced` is an empty classic group that goes if this one comes."""
        request = beat.request
        group = self.groups.get(request.group_id)
        epoch = request.member_epoch
        if group is None:
            if epoch != heartbeat.JOIN:
                raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"no group {request.group_id}")
            group = ConsumerGroup(request.group_id)
        member_id = request.member_id or new_member_id
        if epoch in (heartbeat.LEAVE, LEFT_FOR_NOW):
            self._leave(ticket, group, beat, turn)
            return
        before, records = heartbeat.find(group, beat, member_id, turn.rules.consumer_max_size)
        found = group.with_records(records)
        assert found is not None
        records += heartbeat.decide(
            found, beat, before, turn.rules, topics_may_differ=group.id in self._outdated
        )
        self._outdated.discard(group.id)
        after = self._decided(group.id, [*replaced[1], *records], turn, replaced[0])
        member = after.members[member_id]
        self._keep_session(group.id, member, turn)
        self._await_revocation(group.id, before, member, turn)
        interval_ms = turn.rules.consumer_heartbeat_interval_ms
        self._answer(ticket, group.id, heartbeat.response(before, member, beat, interval_ms), turn)

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
            self._decided(group.id, heartbeat.left_for_now(group, member), turn)
            self._keep_session(group.id, member, turn)
            turn.deadlines.cancel(Deadline(Kind.REVOCATION, group.id, member.id))
        else:
            self._remove(group, member, turn)
        response = ConsumerGroupHeartbeatResponse(
            member_id=member.id, member_epoch=request.member_epoch
        )
        self._answer(ticket, group.id, response, turn)

    def _remove(self, group: ConsumerGroup, member: ConsumerMember, turn: Turn) -> None:
        for kind in (Kind.CONSUMER_SESSION, Kind.REVOCATION):
            turn.deadlines.cancel(Deadline(kind, group.id, member.id))
        self._decided(group.id, heartbeat.left(group, member, self.topics), turn)

    def time_is_up(self, deadline: Deadline, turn: Turn) -> None:
        """A session has ended, or what had to be given up was not."""
        group = self.groups.get(deadline.group_id)
        member = group.members.get(deadline.member_id) if group else None
        if group is None or member is None:
            return
        is_revoking = member.state is MemberState.UNREVOKED_PARTITIONS
        if deadline.kind is Kind.CONSUMER_SESSION or is_revoking:
            self._remove(group, member, turn)

    def _keep_session(self, group_id: str, member: ConsumerMember, turn: Turn) -> None:
        at_ms = turn.now_ms + turn.rules.consumer_session_timeout_ms
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
        turn: Turn,
        replaced: ClassicGroup | None = None,
    ) -> ConsumerGroup:
        before = self.groups.get(group_id)
        ours = tuple(each for each in records if isinstance(each.key, ConsumerGroupKey))
        after = _with(before, group_id, ours)
        assert after is not None
        if records:
            purpose = ConsumerGroupWritten(group_id, ours, replaced=replaced)
            self._committed.setdefault(group_id, before)
            self._under_way.setdefault(group_id, []).append(purpose)
            self._put(group_id, after)
            turn.write(purpose, *records)
        return after

    def _answer(
        self, ticket: Ticket, group_id: str, response: ConsumerGroupHeartbeatResponse, turn: Turn
    ) -> None:
        if under_way := self._under_way.get(group_id):
            under_way[-1].answers.append(Answer(ticket, response))
        else:
            turn.answer(ticket, response)

    def written(self, purpose: ConsumerGroupWritten, turn: Turn) -> None:
        group_id = purpose.group_id
        committed = _with(self._committed[group_id], group_id, purpose.records)
        self._committed[group_id] = committed
        self._ended(purpose)
        turn.answers += purpose.answers

    def not_written(self, purpose: ConsumerGroupWritten, error: ErrorCode, turn: Turn) -> None:
        """The group is as if that had not been decided."""
        group_id = purpose.group_id
        group = self._committed[group_id]
        for other in self._under_way[group_id]:
            if other is not purpose:
                group = _with(group, group_id, other.records)
        self._ended(purpose)
        self._put(group_id, group)
        self._outdated.add(group_id)
        for member in group.members.values() if group else ():
            self._keep_session(group_id, member, turn)
            self._await_revocation(group_id, None, member, turn)
        for answer in purpose.answers:
            turn.answer(answer.ticket, refusal(told_as(error), "it could not be written"))

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

    def dissolve(self, group: ConsumerGroup) -> list[GroupRecord]:
        """Take an empty group out, and what takes it out of the log."""
        self._put(group.id, None)
        return group.tombstones()

    def restore(self, group: ConsumerGroup) -> None:
        """It could not be taken out of the log."""
        self.groups.setdefault(group.id, group)


def _with(
    group: ConsumerGroup | None, group_id: str, records: tuple[GroupRecord, ...]
) -> ConsumerGroup | None:
    return (group or ConsumerGroup(group_id)).with_records(records) if records else group


def refusal(error: ErrorCode, detail: str) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(error_code=error, error_message=detail)
