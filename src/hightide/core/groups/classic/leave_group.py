"""LeaveGroup: members that leave, or that an administrator removes."""

from __future__ import annotations

from hightide.core.groups.classic.classic_group import ClassicGroup
from hightide.core.groups.classic.rebalance import member_left, remove
from hightide.core.groups.responses import BATCH_LEAVE_VERSION
from hightide.core.groups.turn import Ticket, Turn
from hightide.wire.errors import ErrorCode
from hightide.wire.messages.groups import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)


def identities(request: LeaveGroupRequest, version: int) -> list[MemberIdentity]:
    """Return the members that the request names."""
    if version < BATCH_LEAVE_VERSION:
        return [MemberIdentity(member_id=request.member_id)]
    return request.members


def leave_response(results: list[MemberResponse], version: int) -> LeaveGroupResponse:
    """Build the response from the results of the members."""
    if version < BATCH_LEAVE_VERSION:
        return LeaveGroupResponse(error_code=results[0].error_code)
    return LeaveGroupResponse(members=results)


def leave(
    group: ClassicGroup, ticket: Ticket, request: LeaveGroupRequest, version: int, turn: Turn
) -> None:
    removed = []
    results = []
    for identity in identities(request, version):
        error = _remove(group, identity, turn)
        if error is ErrorCode.NONE:
            name = identity.member_id or f"static member {identity.group_instance_id}"
            removed.append(f"{name} ({identity.reason})" if identity.reason else name)
        results.append(
            MemberResponse(
                member_id=identity.member_id,
                group_instance_id=identity.group_instance_id,
                error_code=error,
            )
        )
    turn.answer(ticket, leave_response(results, version))
    if removed:
        member_left(group, f"left: {', '.join(removed)}", turn)


def _remove(group: ClassicGroup, identity: MemberIdentity, turn: Turn) -> ErrorCode:
    member_id = identity.member_id
    if not member_id and identity.group_instance_id is not None:
        # An administrator names the instance only.
        known = group.static_members.get(identity.group_instance_id)
        if known is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        member_id = known
    elif member_id not in group.pending:
        error = group.member_error(member_id, identity.group_instance_id)
        if error is not ErrorCode.NONE:
            return error
    remove(group, member_id, turn)
    return ErrorCode.NONE
