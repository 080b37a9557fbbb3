"""How a classic group comes to its next generation.

    prepare ──▶ all members join, or the time is up ──▶ complete_join ──▶ they ask for their share
                                                                                  │
    Stable, shares are told ◀── assigned ◀── written ◀── assign: the leader's ────┘

Whoever does not come in time is out.  What is under way when somebody comes or goes is given up:
the members that wait for their share are told to join again, and a record of the old generation
that is still being written takes effect for nobody.
"""

from __future__ import annotations

from dataclasses import dataclass

from hightide.core.groups import responses
from hightide.core.groups.classic.classic_group import ClassicGroup, Member, Rebalance, State
from hightide.core.groups.deadlines import Deadline, Kind
from hightide.core.groups.turn import Ticket, Turn, told_as
from hightide.wire.errors import ErrorCode
from hightide.wire.messages.groups import SyncGroupRequest


@dataclass(frozen=True, slots=True)
class Stored:
    """A record that nobody waits for: of a group that has become empty."""

    group: ClassicGroup


@dataclass(frozen=True, slots=True)
class Assigned:
    """The record of a generation with what its leader has given to each."""

    group: ClassicGroup
    generation: int
    assignments: dict[str, bytes]


# -- sessions ------------------------------------------------------------------------------


def keep_session(
    group: ClassicGroup, member: Member, turn: Turn, timeout_ms: int | None = None
) -> None:
    """A sign of life."""
    if timeout_ms is None:
        timeout_ms = member.session_timeout_ms
    turn.deadlines.set(Deadline(Kind.SESSION, group.id, member.id), turn.now_ms + timeout_ms)


def remove(group: ClassicGroup, member_id: str, turn: Turn) -> None:
    """Take out a member, or an id that was given out.  What follows for the others comes after."""
    member = group.members.get(member_id)
    if member is not None:
        # It may be alive and just late.  Then it joins again as somebody new.
        unknown = ErrorCode.UNKNOWN_MEMBER_ID
        if member.joining is not None:
            turn.answer(member.joining, responses.not_joined(unknown))
        if member.syncing is not None:
            turn.answer(member.syncing, responses.not_synced(unknown))
    group.remove(member_id)
    turn.deadlines.cancel(Deadline(Kind.SESSION, group.id, member_id))


def session_ended(group: ClassicGroup, member_id: str, turn: Turn) -> None:
    if member_id in group.pending:
        remove(group, member_id, turn)
        complete_if_all_joined(group, turn)
        return
    member = group.members.get(member_id)
    # Who waits for the others cannot send heartbeats; the session begins anew with the answer.
    if member is None or (member.is_waiting and not member.is_new):
        return
    remove(group, member_id, turn)
    somebody_left(group, f"the session of {member_id} has ended", turn)


def somebody_left(group: ClassicGroup, reason: str, turn: Turn) -> None:
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
    """Call all members together."""
    group.last_rebalance = Rebalance(reason, turn.now_ms, group.generation)
    if group.state is State.COMPLETING_REBALANCE:
        _take_back(group, ErrorCode.REBALANCE_IN_PROGRESS, turn)
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
    """The first generation waits in any case: others may be about to come."""
    preparing = group.state is State.PREPARING_REBALANCE
    if preparing and not group.is_initial and group.have_all_joined:
        complete_join(group, turn)


def join_time_is_up(group: ClassicGroup, turn: Turn) -> None:
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
    """Begin a generation with those who have come.

    Static members stay though they have not come: they may be restarting, and what they have is
    kept for them until their sessions end.
    """
    turn.deadlines.cancel(Deadline(Kind.JOIN, group.id))
    for member in [*group.members.values()]:
        if member.joining is None and member.instance_id is None:
            remove(group, member.id, turn)
    if group.members and not group.elect_leader():
        _await_joins(group, turn)
        return
    group.begin_generation(turn.now_ms)
    if group.state is State.EMPTY:
        group.is_stored = True
        turn.write(Stored(group), group.record())
        return
    for member in group.members.values():
        if member.joining is not None:
            turn.answer(member.joining, responses.joined(group, member))
        member.joining = None
        member.is_new = False
        member.assignment = b""
        keep_session(group, member, turn)
        group.awaiting_sync.add(member.id)
    at_ms = turn.now_ms + group.rebalance_timeout_ms
    turn.deadlines.set(Deadline(Kind.SYNC, group.id), at_ms)


def _await_joins(group: ClassicGroup, turn: Turn) -> None:
    # If nobody comes the same is done again, so it must take some time.
    at_ms = turn.now_ms + max(1, group.rebalance_timeout_ms)
    turn.deadlines.set(Deadline(Kind.JOIN, group.id), at_ms)


# -- sharing out ---------------------------------------------------------------------------


def sync(group: ClassicGroup, ticket: Ticket, request: SyncGroupRequest, turn: Turn) -> None:
    """A member asks for its share; the leader brings those of all."""
    error = _sync_error(group, request)
    if error is not ErrorCode.NONE:
        turn.answer(ticket, responses.not_synced(error))
        return
    member = group.members[request.member_id]
    group.awaiting_sync.discard(member.id)
    if not group.awaiting_sync:
        turn.deadlines.cancel(Deadline(Kind.SYNC, group.id))
    if group.state is State.STABLE:
        keep_session(group, member, turn)
        turn.answer(ticket, responses.synced(group, member))
        return
    if member.syncing is not None:
        # It has asked again, so nobody reads the first answer.
        turn.answer(member.syncing, responses.not_synced(ErrorCode.REBALANCE_IN_PROGRESS))
    member.syncing = ticket
    # Once is enough: a second assignment for the generation would be one too many.
    if group.leader == member.id and group.assigning is None:
        given = {each.member_id: each.assignment for each in request.assignments}
        assignments = {each: given.get(each, b"") for each in group.members}
        group.assigning = group.generation
        group.is_stored = True
        turn.write(Assigned(group, group.generation, assignments), group.record(assignments))


def _sync_error(group: ClassicGroup, request: SyncGroupRequest) -> ErrorCode:
    error = group.member_error(request.member_id, request.group_instance_id)
    if error is not ErrorCode.NONE:
        return error
    if request.generation_id != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    for asked, ours in (
        (request.protocol_type, group.protocol_type),
        (request.protocol_name, group.protocol),
    ):
        if asked is not None and ours is not None and asked != ours:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if group.state is State.PREPARING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def assigned(written: Assigned, turn: Turn) -> None:
    """The shares are safe, so they can be told."""
    group = written.group
    if group.assigning != written.generation:
        return  # The group has moved on.
    group.assigning = None
    group.move_to(State.STABLE, turn.now_ms)
    for member in group.members.values():
        member.assignment = written.assignments[member.id]
        if member.syncing is not None:
            turn.answer(member.syncing, responses.synced(group, member))
            member.syncing = None
            keep_session(group, member, turn)


def not_assigned(failed: Assigned, error: ErrorCode, turn: Turn) -> None:
    """The shares could not be written, so there are none."""
    group = failed.group
    if group.assigning != failed.generation:
        return
    _take_back(group, told_as(error), turn)
    prepare(group, f"the assignment could not be written: {error.name}", turn)


def sync_time_is_up(group: ClassicGroup, turn: Turn) -> None:
    if not group.awaiting_sync:
        return
    late = sorted(group.awaiting_sync)
    for member_id in late:
        remove(group, member_id, turn)
    reason = f"{', '.join(late)} did not ask for their assignment in time"
    prepare(group, reason, turn)


def _take_back(group: ClassicGroup, error: ErrorCode, turn: Turn) -> None:
    group.assigning = None
    for member in group.members.values():
        member.assignment = b""
        if member.syncing is not None:
            turn.answer(member.syncing, responses.not_synced(error))
            member.syncing = None
            keep_session(group, member, turn)
