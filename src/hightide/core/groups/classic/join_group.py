"""JoinGroup: who may join a classic group, and what that means for the others.

    no member id, dynamic ──▶ is given one, and told to come again with it (from version 4 on)
    no member id, static ───▶ new, or the next incarnation of a member that is known: the old one is
                              fenced, and if nothing else changes the others need not even notice
    a member id ────────────▶ came back with the id it was given, or joins again

A member that asks again in the same generation with nothing new is told what it was told before:
its answer may have been lost.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from hightide.core.groups import responses
from hightide.core.groups.classic.classic_group import ClassicGroup, Member, Protocol, State
from hightide.core.groups.classic.rebalance import (
    complete_if_all_joined,
    keep_session,
    prepare,
    prepare_or_complete,
    remove,
)
from hightide.core.groups.deadlines import Deadline, Kind
from hightide.core.groups.group_rules import Rules
from hightide.core.groups.turn import Client, Ticket, Turn, told_as
from hightide.wire.errors import ErrorCode
from hightide.wire.messages.groups import JoinGroupRequest

MEMBER_ID_REQUIRED = 4
SKIP_ASSIGNMENT = 9


@dataclass(frozen=True, slots=True)
class Join:
    """A request to join, with what the shell knows of its sender."""

    ticket: Ticket
    request: JoinGroupRequest
    version: int
    client: Client
    new_member_id: str
    """For a sender that has none."""

    @property
    def protocols(self) -> tuple[Protocol, ...]:
        return tuple(Protocol(each.name, each.metadata) for each in self.request.protocols)

    @property
    def rebalance_timeout_ms(self) -> int:
        asked_ms = self.request.rebalance_timeout_ms
        # Version 0 has one timeout for both.
        return self.request.session_timeout_ms if asked_ms < 0 else asked_ms

    def why(self, what: str) -> str:
        reason = self.request.reason
        return f"{what}: {reason}" if reason else what

    def member(self, member_id: str) -> Member:
        return Member(
            member_id,
            self.request.group_instance_id,
            self.client.id,
            self.client.host,
            self.rebalance_timeout_ms,
            self.request.session_timeout_ms,
            self.request.protocol_type,
            self.protocols,
            joining=self.ticket,
        )


@dataclass(frozen=True, slots=True)
class Replaced:
    """The record of a generation in which a static member has got another member id."""

    group: ClassicGroup
    generation: int
    join: Join
    before: Member
    member: Member
    leader_before: str | None


def request_error(request: JoinGroupRequest, rules: Rules) -> ErrorCode:
    """What is wrong with a request, whatever its group is like."""
    if not request.group_id:
        return ErrorCode.INVALID_GROUP_ID
    least_ms, most_ms = rules.min_session_timeout_ms, rules.max_session_timeout_ms
    if not least_ms <= request.session_timeout_ms <= most_ms:
        return ErrorCode.INVALID_SESSION_TIMEOUT
    return ErrorCode.NONE


def join(group: ClassicGroup, asked: Join, turn: Turn) -> None:
    request = asked.request
    member_id = request.member_id
    if not _has_room_for(group, member_id, turn):
        remove(group, member_id, turn)
        turn.answer(asked.ticket, responses.not_joined(ErrorCode.GROUP_MAX_SIZE_REACHED))
        complete_if_all_joined(group, turn)
    elif not group.supports(request.protocol_type, {each.name for each in request.protocols}):
        error = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        turn.answer(asked.ticket, responses.not_joined(error, member_id))
    elif member_id:
        _join_with_id(group, asked, turn)
    elif request.group_instance_id is not None:
        old_id = group.static_members.get(request.group_instance_id)
        if old_id is None:
            _add(group, asked, asked.new_member_id, turn)
        else:
            _replace(group, asked, group.members[old_id], turn)
    elif asked.version >= MEMBER_ID_REQUIRED:
        _give_id(group, asked, turn)
    else:
        _add(group, asked, asked.new_member_id, turn)


def _has_room_for(group: ClassicGroup, member_id: str, turn: Turn) -> bool:
    most = turn.rules.max_size
    member = group.members.get(member_id)
    match group.state:
        case State.PREPARING_REBALANCE:
            # The limit may have been lowered: those who come first stay.
            is_joining = member is not None and member.joining is not None
            return is_joining or group.joining_count < most
        case State.COMPLETING_REBALANCE | State.STABLE:
            return member is not None or len(group.members) < most
    return True


def _give_id(group: ClassicGroup, asked: Join, turn: Turn) -> None:
    """Otherwise a client that gives up and tries again would leave a member behind each time."""
    member_id = asked.new_member_id
    group.pending.add(member_id)
    at_ms = turn.now_ms + asked.request.session_timeout_ms
    turn.deadlines.set(Deadline(Kind.SESSION, group.id, member_id), at_ms)
    turn.answer(asked.ticket, responses.not_joined(ErrorCode.MEMBER_ID_REQUIRED, member_id))


def _join_with_id(group: ClassicGroup, asked: Join, turn: Turn) -> None:
    request = asked.request
    member_id = request.member_id
    if member_id in group.pending and request.group_instance_id is None:
        _add(group, asked, member_id, turn)
        return
    error = group.member_error(member_id, request.group_instance_id)
    if error is not ErrorCode.NONE:
        turn.answer(asked.ticket, responses.not_joined(error, member_id))
        return
    member = group.members[member_id]
    is_changed = member.protocols != asked.protocols
    match group.state:
        case State.PREPARING_REBALANCE:
            _update(member, asked, turn)
            complete_if_all_joined(group, turn)
        case State.COMPLETING_REBALANCE if is_changed:
            _update(member, asked, turn)
            prepare(group, asked.why(f"{member_id} has changed what it offers"), turn)
        case State.STABLE if is_changed or group.leader == member_id:
            _update(member, asked, turn)
            who = "the leader" if group.leader == member_id else "member"
            prepare(group, asked.why(f"{who} {member_id} joined again"), turn)
        case _:
            turn.answer(asked.ticket, responses.joined(group, member))


def _add(group: ClassicGroup, asked: Join, member_id: str, turn: Turn) -> None:
    group.has_grown = True
    member = asked.member(member_id)
    member.is_new = True
    group.add(member)
    keep_session(group, member, turn, turn.rules.new_member_join_timeout_ms)
    prepare_or_complete(group, asked.why(f"{member_id} joined"), turn)


def _update(member: Member, asked: Join, turn: Turn) -> None:
    if member.joining is not None:
        # It has asked again, so nobody reads the first answer.
        again = responses.not_joined(ErrorCode.REBALANCE_IN_PROGRESS, member.id)
        turn.answer(member.joining, again)
    member.joining = asked.ticket
    member.protocols = asked.protocols
    member.rebalance_timeout_ms = asked.rebalance_timeout_ms
    member.session_timeout_ms = asked.request.session_timeout_ms


def _replace(group: ClassicGroup, asked: Join, before: Member, turn: Turn) -> None:
    """A static member has restarted.  Whoever had its instance id until now is fenced."""
    member = asked.member(asked.new_member_id)
    member.assignment = before.assignment
    leader_before = group.leader
    fenced = ErrorCode.FENCED_INSTANCE_ID
    if before.joining is not None:
        turn.answer(before.joining, responses.not_joined(fenced, before.id))
    if before.syncing is not None:
        turn.answer(before.syncing, responses.not_synced(fenced))
    turn.deadlines.cancel(Deadline(Kind.SESSION, group.id, before.id))
    group.replace(before.id, member)
    keep_session(group, member, turn)
    restarted = f"static member {member.instance_id} restarted"
    if group.state is State.PREPARING_REBALANCE:
        complete_if_all_joined(group, turn)
    elif group.state is State.COMPLETING_REBALANCE:
        # The leader is sharing out the work to an id that is gone.
        prepare(group, asked.why(restarted), turn)
    elif group.selected_protocol() != group.protocol:
        prepare(group, asked.why(f"{restarted} with other protocols"), turn)
    else:
        before = replace(before, joining=None, syncing=None)
        purpose = Replaced(group, group.generation, asked, before, member, leader_before)
        turn.write(purpose, group.record())


def replaced(written: Replaced, turn: Turn) -> None:
    """The new id is safe, so it can be told.  Nothing else has changed, unless meanwhile."""
    group, member, asked = written.group, written.member, written.join
    if not _is_current(written):
        return
    response = responses.joined(group, member)
    if asked.version >= SKIP_ASSIGNMENT:
        response.skip_assignment = group.leader == member.id
    else:
        # A leader that it does not know to be itself: the work is shared out already.
        response.leader = written.leader_before or ""
        response.members = []
    member.joining = None
    turn.answer(asked.ticket, response)
    keep_session(group, member, turn)


def not_replaced(failed: Replaced, error: ErrorCode, turn: Turn) -> None:
    """The member that was there is there again."""
    group, member = failed.group, failed.member
    if not _is_current(failed):
        return
    turn.deadlines.cancel(Deadline(Kind.SESSION, group.id, member.id))
    group.replace(member.id, failed.before)
    keep_session(group, failed.before, turn)
    turn.answer(failed.join.ticket, responses.not_joined(told_as(error)))


def _is_current(written: Replaced) -> bool:
    """Whether the member still waits for this.  If a rebalance has begun, it waits for that."""
    group, member = written.group, written.member
    return (
        group.state is State.STABLE
        and group.generation == written.generation
        and group.members.get(member.id) is member
        and member.joining == written.join.ticket
    )
