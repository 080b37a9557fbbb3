"""JoinGroup: which clients may join a classic group, and what follows for the other members.

    no member id, dynamic ──▶ gets an id and MEMBER_ID_REQUIRED, and joins with it (since version 4)
    no member id, static ───▶ new, or a known static member after a restart: the old member id is
                              fenced; if nothing else changes, there is no rebalance
    a member id ────────────▶ joins with the id it got, or joins again

A member that joins again in the same generation, with nothing changed, gets the same response: the
first one may have been lost.
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
from hightide.core.groups.request_limits import is_join_too_large
from hightide.core.groups.turn import Client, Ticket, Turn, client_error
from hightide.wire.errors import ErrorCode
from hightide.wire.messages.groups import JoinGroupRequest

MEMBER_ID_REQUIRED_VERSION = 4
SKIP_ASSIGNMENT_VERSION = 9


@dataclass(frozen=True, slots=True)
class JoinAttempt:
    """A JoinGroup request, with what the shell knows about its sender."""

    ticket: Ticket
    request: JoinGroupRequest
    version: int
    client: Client
    new_member_id: str
    """Used if the client has no member id."""

    @property
    def protocols(self) -> tuple[Protocol, ...]:
        return tuple(
            Protocol(protocol.name, protocol.metadata) for protocol in self.request.protocols
        )

    @property
    def rebalance_timeout_ms(self) -> int:
        timeout_ms = self.request.rebalance_timeout_ms
        # Version 0 has one timeout for session and rebalance.
        return self.request.session_timeout_ms if timeout_ms < 0 else timeout_ms

    def reason(self, event: str) -> str:
        """The event that causes a rebalance, with the reason that the client gives."""
        reason = self.request.reason
        return f"{event}: {reason}" if reason else event

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
class ReplacementWritten:
    """The record of a generation in which a static member has a new member id."""

    group: ClassicGroup
    generation: int
    join: JoinAttempt
    before: Member
    member: Member
    leader_before: str | None


def request_error(request: JoinGroupRequest, client: Client, rules: Rules) -> ErrorCode:
    """Return why no group accepts this request, or NONE."""
    if not request.group_id:
        return ErrorCode.INVALID_GROUP_ID
    least_ms, most_ms = rules.min_session_timeout_ms, rules.max_session_timeout_ms
    if not least_ms <= request.session_timeout_ms <= most_ms:
        return ErrorCode.INVALID_SESSION_TIMEOUT
    if is_join_too_large(request, client, rules):
        return ErrorCode.INVALID_REQUEST
    return ErrorCode.NONE


def join(group: ClassicGroup, attempt: JoinAttempt, turn: Turn) -> None:
    request = attempt.request
    member_id = request.member_id
    if not _has_room_for(group, request, turn):
        remove(group, member_id, turn)
        turn.answer(attempt.ticket, responses.join_error(ErrorCode.GROUP_MAX_SIZE_REACHED))
        complete_if_all_joined(group, turn)
    elif not group.supports(
        request.protocol_type, {protocol.name for protocol in request.protocols}
    ):
        error = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        turn.answer(attempt.ticket, responses.join_error(error, member_id))
    elif member_id:
        _join_with_id(group, attempt, turn)
    elif request.group_instance_id is not None:
        old_id = group.static_members.get(request.group_instance_id)
        if old_id is None:
            _add(group, attempt, attempt.new_member_id, turn)
        else:
            _replace(group, attempt, group.members[old_id], turn)
    elif attempt.version >= MEMBER_ID_REQUIRED_VERSION:
        _hand_out_id(group, attempt, turn)
    else:
        _add(group, attempt, attempt.new_member_id, turn)


def _has_room_for(group: ClassicGroup, request: JoinGroupRequest, turn: Turn) -> bool:
    max_size = turn.rules.max_size
    member = group.members.get(request.member_id)
    match group.state:
        case State.PREPARING_REBALANCE:
            if member is None and request.group_instance_id not in group.static_members:
                return group.staying_count < max_size
            # The limit may have been lowered: the members that join first stay.
            is_joining = member is not None and member.joining is not None
            return is_joining or group.joining_count < max_size
        case State.COMPLETING_REBALANCE | State.STABLE:
            return member is not None or len(group.members) < max_size
    return True


def _hand_out_id(group: ClassicGroup, attempt: JoinAttempt, turn: Turn) -> None:
    """Hand out a member id.

    Without this round trip, a client that gives up and retries leaves a member behind each time.
    A group has at most group.max.size ids that were handed out and have not joined.
    """
    if len(group.pending) >= turn.rules.max_size:
        error = ErrorCode.GROUP_MAX_SIZE_REACHED
        turn.answer(attempt.ticket, responses.join_error(error))
        return
    member_id = attempt.new_member_id
    group.pending.add(member_id)
    at_ms = turn.now_ms + attempt.request.session_timeout_ms
    turn.deadlines.set(Deadline(Kind.SESSION, group.id, member_id), at_ms)
    turn.answer(attempt.ticket, responses.join_error(ErrorCode.MEMBER_ID_REQUIRED, member_id))


def _join_with_id(group: ClassicGroup, attempt: JoinAttempt, turn: Turn) -> None:
    request = attempt.request
    member_id = request.member_id
    if member_id in group.pending and request.group_instance_id is None:
        _add(group, attempt, member_id, turn)
        return
    error = group.member_error(member_id, request.group_instance_id)
    if error is not ErrorCode.NONE:
        turn.answer(attempt.ticket, responses.join_error(error, member_id))
        return
    member = group.members[member_id]
    is_changed = member.protocols != attempt.protocols
    match group.state:
        case State.PREPARING_REBALANCE:
            _update(member, attempt, turn)
            complete_if_all_joined(group, turn)
        case State.COMPLETING_REBALANCE if is_changed:
            _update(member, attempt, turn)
            prepare(group, attempt.reason(f"{member_id} changed its protocols"), turn)
        case State.STABLE if is_changed or group.leader == member_id:
            _update(member, attempt, turn)
            who = "the leader" if group.leader == member_id else "member"
            prepare(group, attempt.reason(f"{who} {member_id} joined again"), turn)
        case _:
            turn.answer(attempt.ticket, responses.join_response(group, member))


def _add(group: ClassicGroup, attempt: JoinAttempt, member_id: str, turn: Turn) -> None:
    group.has_grown = True
    member = attempt.member(member_id)
    member.is_new = True
    group.add(member)
    keep_session(group, member, turn, turn.rules.new_member_join_timeout_ms)
    prepare_or_complete(group, attempt.reason(f"{member_id} joined"), turn)


def _update(member: Member, attempt: JoinAttempt, turn: Turn) -> None:
    if member.joining is not None:
        # The client has sent JoinGroup again, so it does not read the first response.
        again = responses.join_error(ErrorCode.REBALANCE_IN_PROGRESS, member.id)
        turn.answer(member.joining, again)
    member.joining = attempt.ticket
    member.protocols = attempt.protocols
    member.rebalance_timeout_ms = attempt.rebalance_timeout_ms
    member.session_timeout_ms = attempt.request.session_timeout_ms


def _replace(group: ClassicGroup, attempt: JoinAttempt, before: Member, turn: Turn) -> None:
    """Replace a static member that has restarted, and fence its old member id."""
    member = attempt.member(attempt.new_member_id)
    member.assignment = before.assignment
    leader_before = group.leader
    fenced = ErrorCode.FENCED_INSTANCE_ID
    if before.joining is not None:
        turn.answer(before.joining, responses.join_error(fenced, before.id))
    if before.syncing is not None:
        turn.answer(before.syncing, responses.sync_error(fenced))
    turn.deadlines.cancel(Deadline(Kind.SESSION, group.id, before.id))
    group.replace(before.id, member)
    keep_session(group, member, turn)
    restarted = f"static member {member.instance_id} restarted"
    if group.state is State.PREPARING_REBALANCE:
        complete_if_all_joined(group, turn)
    elif group.state is State.COMPLETING_REBALANCE:
        # The leader is computing an assignment for the old member id.
        prepare(group, attempt.reason(restarted), turn)
    elif group.selected_protocol() != group.protocol:
        prepare(group, attempt.reason(f"{restarted} with other protocols"), turn)
    else:
        before = replace(before, joining=None, syncing=None)
        purpose = ReplacementWritten(
            group, group.generation, attempt, before, member, leader_before
        )
        turn.write(purpose, group.record())


def replacement_written(written: ReplacementWritten, turn: Turn) -> None:
    """Send the new member id, which is committed now, unless a rebalance has begun."""
    group, member, attempt = written.group, written.member, written.join
    if not _is_current(written):
        return
    response = responses.join_response(group, member)
    if attempt.version >= SKIP_ASSIGNMENT_VERSION:
        response.skip_assignment = group.leader == member.id
    else:
        # The old leader id: a member that knew itself to be the leader would assign again.
        response.leader = written.leader_before or ""
        response.members = []
    member.joining = None
    turn.answer(attempt.ticket, response)
    keep_session(group, member, turn)


def replacement_failed(failed: ReplacementWritten, error: ErrorCode, turn: Turn) -> None:
    """Restore the old member, since the new member id could not be written."""
    group, member = failed.group, failed.member
    if not _is_current(failed):
        return
    turn.deadlines.cancel(Deadline(Kind.SESSION, group.id, member.id))
    group.replace(member.id, failed.before)
    keep_session(group, failed.before, turn)
    turn.answer(failed.join.ticket, responses.join_error(client_error(error)))


def _is_current(written: ReplacementWritten) -> bool:
    """Whether the member still waits for this write, and not for a rebalance."""
    group, member = written.group, written.member
    return (
        group.state is State.STABLE
        and group.generation == written.generation
        and group.members.get(member.id) is member
        and member.joining == written.join.ticket
    )
