"""The rebalance of a classic group, from one generation to the next.

    prepare ──▶ all members join, or time out ──▶ complete_join ──▶ members send SyncGroup
                                                                              │
    Stable, members get it ◀── assignment_written ◀── write ◀── leader's assignment

A member that does not join in time is removed.  When a member joins or leaves during a rebalance,
the rebalance starts over: members that wait in SyncGroup get REBALANCE_IN_PROGRESS, and a record of
the old generation that is still being written has no effect.
"""

from __future__ import annotations

from dataclasses import dataclass

from hightide.core.groups import responses
from hightide.core.groups.classic.classic_group import ClassicGroup, Member, Rebalance, State
from hightide.core.groups.deadlines import Deadline, Kind
from hightide.core.groups.group_events import GroupRebalanced, GroupRebalancing
from hightide.core.groups.turn import Ticket, Turn, client_error
from hightide.wire.errors import ErrorCode
from hightide.wire.messages.groups import SyncGroupRequest


@dataclass(frozen=True, slots=True)
class EmptyGroupWritten:
    """The record of a group that has become empty.  No request waits for it."""

    group: ClassicGroup


@dataclass(frozen=True, slots=True)
class AssignmentWritten:
    """The record of a generation with the leader's assignment."""

    group: ClassicGroup
    generation: int
    assignments: dict[str, bytes]


# -- sessions ------------------------------------------------------------------------------


def keep_session(
    group: ClassicGroup, member: Member, turn: Turn, timeout_ms: int | None = None
) -> None:
    """Extend the session of a member."""
    if timeout_ms is None:
        timeout_ms = member.session_timeout_ms
    turn.deadlines.set(Deadline(Kind.SESSION, group.id, member.id), turn.now_ms + timeout_ms)


def remove(group: ClassicGroup, member_id: str, turn: Turn) -> None:
    """Remove a member or a pending member id.  The caller decides whether the group rebalances."""
    member = group.members.get(member_id)
    if member is not None:
        # The client may be alive and just late.  Then it joins again as a new member.
        unknown = ErrorCode.UNKNOWN_MEMBER_ID
        if member.joining is not None:
            turn.answer(member.joining, responses.join_error(unknown))
        if member.syncing is not None:
            turn.answer(member.syncing, responses.sync_error(unknown))
    group.remove(member_id)
    turn.deadlines.cancel(Deadline(Kind.SESSION, group.id, member_id))


def session_ended(group: ClassicGroup, member_id: str, turn: Turn) -> None:
    if member_id in group.pending:
        remove(group, member_id, turn)
        complete_if_all_joined(group, turn)
        return
    member = group.members.get(member_id)
    # A member that waits in JoinGroup or SyncGroup cannot send heartbeats.  Its session starts
    # again with the response.
    if member is None or (member.is_waiting and not member.is_new):
        return
    remove(group, member_id, turn)
    member_left(group, f"the session of {member_id} expired", turn)


def member_left(group: ClassicGroup, reason: str, turn: Turn) -> None:
    match group.state:
        case State.STABLE | State.COMPLETING_REBALANCE:
            prepare(group, reason, turn)
        case State.PREPARING_REBALANCE:
            complete_if_all_joined(group, turn)


# -- joining -------------------------------------------------------------------------------


def prepare_or_complete(group: ClassicGroup, reason: str, turn: Turn) -> None:
    if group.can_rebalance:
        prepare(group, reason, turn)
    else:
        complete_if_all_joined(group, turn)


def prepare(group: ClassicGroup, reason: str, turn: Turn) -> None:
    """Start a rebalance: all members must join again."""
    group.last_rebalance = begun = Rebalance.begun(reason, turn.now_ms, group.generation)
    members = len(group.members)
    turn.events.append(GroupRebalancing(group.id, group.generation, members, begun.reason))
    if group.state is State.COMPLETING_REBALANCE:
        _withdraw_assignments(group, ErrorCode.REBALANCE_IN_PROGRESS, turn)
    group.awaiting_sync.clear()
    turn.deadlines.cancel(Deadline(Kind.SYNC, group.id))
    group.is_initial = group.state is State.EMPTY
    group.move_to(State.PREPARING_REBALANCE, turn.now_ms)
    if group.is_initial:
        delay_ms = turn.rules.initial_rebalance_delay_ms
        group.has_grown = False
        group.initial_remaining_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
        turn.deadlines.set(Deadline(Kind.JOIN, group.id), turn.now_ms + delay_ms)
    elif group.have_all_joined:
        complete_join(group, turn)
    else:
        _await_joins(group, turn)


def complete_if_all_joined(group: ClassicGroup, turn: Turn) -> None:
    """Begin the generation if all members have joined.

    The initial rebalance of a group waits in any case: more members may be about to join.
    """
    preparing = group.state is State.PREPARING_REBALANCE
    if preparing and not group.is_initial and group.have_all_joined:
        complete_join(group, turn)


def join_timed_out(group: ClassicGroup, turn: Turn) -> None:
    if group.state is not State.PREPARING_REBALANCE:
        return
    if group.is_initial and group.has_grown and group.initial_remaining_ms > 0:
        delay_ms = min(turn.rules.initial_rebalance_delay_ms, group.initial_remaining_ms)
        group.has_grown = False
        group.initial_remaining_ms -= delay_ms
        turn.deadlines.set(Deadline(Kind.JOIN, group.id), turn.now_ms + delay_ms)
        return
    complete_join(group, turn)


def complete_join(group: ClassicGroup, turn: Turn) -> None:
    """Begin a generation with the members that have joined.

    Static members stay even if they have not joined: they may be restarting, and keep their
    assignment until their sessions end.
    """
    turn.deadlines.cancel(Deadline(Kind.JOIN, group.id))
    for member in [*group.members.values()]:
        if member.joining is None and member.instance_id is None:
            remove(group, member.id, turn)
    if group.members and not group.elect_leader():
        _await_joins(group, turn)
        return
    group.begin_generation(turn.now_ms)
    took_ms = 0 if group.last_rebalance is None else turn.now_ms - group.last_rebalance.at_ms
    members = len(group.members)
    turn.events.append(GroupRebalanced(group.id, group.generation, members, took_ms))
    if group.state is State.EMPTY:
        group.is_stored = True
        turn.write(EmptyGroupWritten(group), group.record())
        return
    for member in group.members.values():
        if member.joining is not None:
            turn.answer(member.joining, responses.join_response(group, member))
        member.joining = None
        member.is_new = False
        member.assignment = b""
        keep_session(group, member, turn)
        group.awaiting_sync.add(member.id)
    at_ms = turn.now_ms + group.rebalance_timeout_ms
    turn.deadlines.set(Deadline(Kind.SYNC, group.id), at_ms)


def _await_joins(group: ClassicGroup, turn: Turn) -> None:
    # If no member joins, the same deadline is set again, so it must lie in the future.
    at_ms = turn.now_ms + max(1, group.rebalance_timeout_ms)
    turn.deadlines.set(Deadline(Kind.JOIN, group.id), at_ms)


# -- assignments ---------------------------------------------------------------------------


def sync(group: ClassicGroup, ticket: Ticket, request: SyncGroupRequest, turn: Turn) -> None:
    """Handle SyncGroup: a member asks for its assignment; the leader brings those of all."""
    error = _sync_error(group, request)
    if error is not ErrorCode.NONE:
        turn.answer(ticket, responses.sync_error(error))
        return
    member = group.members[request.member_id]
    group.awaiting_sync.discard(member.id)
    if not group.awaiting_sync:
        turn.deadlines.cancel(Deadline(Kind.SYNC, group.id))
    if group.state is State.STABLE:
        keep_session(group, member, turn)
        turn.answer(ticket, responses.sync_response(group, member))
        return
    if member.syncing is not None:
        # The client has sent SyncGroup again, so it does not read the first response.
        turn.answer(member.syncing, responses.sync_error(ErrorCode.REBALANCE_IN_PROGRESS))
    member.syncing = ticket
    # A generation has one assignment: a second one is ignored while the first is being written.
    if group.leader == member.id and group.assigning is None:
        sent = {assigned.member_id: assigned.assignment for assigned in request.assignments}
        assignments = {member_id: sent.get(member_id, b"") for member_id in group.members}
        group.assigning = group.generation
        group.is_stored = True
        turn.write(
            AssignmentWritten(group, group.generation, assignments), group.record(assignments)
        )


def _sync_error(group: ClassicGroup, request: SyncGroupRequest) -> ErrorCode:
    error = group.member_error(request.member_id, request.group_instance_id)
    if error is not ErrorCode.NONE:
        return error
    if request.generation_id != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    for requested, ours in (
        (request.protocol_type, group.protocol_type),
        (request.protocol_name, group.protocol),
    ):
        if requested is not None and ours is not None and requested != ours:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if group.state is State.PREPARING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def assignment_written(written: AssignmentWritten, turn: Turn) -> None:
    """Send the assignments, which are committed now."""
    group = written.group
    if group.assigning != written.generation:
        return  # Another rebalance has begun.
    group.assigning = None
    group.move_to(State.STABLE, turn.now_ms)
    for member in group.members.values():
        member.assignment = written.assignments[member.id]
        if member.syncing is not None:
            turn.answer(member.syncing, responses.sync_response(group, member))
            member.syncing = None
            keep_session(group, member, turn)


def assignment_failed(failed: AssignmentWritten, error: ErrorCode, turn: Turn) -> None:
    """Start over, since the assignment could not be written."""
    group = failed.group
    if group.assigning != failed.generation:
        return
    _withdraw_assignments(group, client_error(error), turn)
    prepare(group, f"the assignment could not be written: {error.name}", turn)


def sync_timed_out(group: ClassicGroup, turn: Turn) -> None:
    if not group.awaiting_sync:
        return
    late = sorted(group.awaiting_sync)
    for member_id in late:
        remove(group, member_id, turn)
    reason = f"{', '.join(late)} did not send SyncGroup in time"
    prepare(group, reason, turn)


def _withdraw_assignments(group: ClassicGroup, error: ErrorCode, turn: Turn) -> None:
    group.assigning = None
    for member in group.members.values():
        member.assignment = b""
        if member.syncing is not None:
            turn.answer(member.syncing, responses.sync_error(error))
            member.syncing = None
            keep_session(group, member, turn)
