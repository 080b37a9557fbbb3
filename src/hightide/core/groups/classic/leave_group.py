"""LeaveGroup: members that go of their own accord, or are taken out by an administrator."""

from __future__ import annotations

from hightide.core.groups.classic.classic_group import ClassicGroup
from hightide.core.groups.classic.rebalance import remove, somebody_left
from hightide.core.groups.responses import SEVERAL_LEAVE
from hightide.core.groups.turn import Ticket, Turn
from hightide.wire.errors import ErrorCode
from hightide.wire.messages.groups import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)


def identities(request: LeaveGroupRequest, version: int) -> list[MemberIdentity]:
    """Who shall go."""
    if version < SEVERAL_LEAVE:
        return [MemberIdentity(member_id=request.member_id)]
    return request.members


def left(results: list[MemberResponse], version: int) -> LeaveGroupResponse:
    """The answer, with who has gone."""
    if version < SEVERAL_LEAVE:
        return LeaveGroupResponse(error_code=results[0].error_code)
    return LeaveGroupResponse(members=results)


def leave(
    group: ClassicGroup, ticket: Ticket, request: LeaveGroupRequest, version: int, turn: Turn
) -> None:
    gone = []
    results = []
    for each in identities(request, version):
        error = _remove(group, each, turn)
        if error is ErrorCode.NONE:
            name = each.member_id or f"static member {each.group_instance_id}"
            gone.append(f"{name} ({each.reason})" if each.reason else name)
        results.append(
            MemberResponse(
                member_id=each.member_id,
                group_instance_id=each.group_instance_id,
                error_code=error,
            )
        )
    turn.answer(ticket, left(results, version))
    if gone:
        somebody_left(group, f"left: {', '.join(gone)}", turn)


def _remove(group: ClassicGroup, identity: MemberIdentity, turn: Turn) -> ErrorCode:
    member_id = identity.member_id
    if not member_id and identity.group_instance_id is not None:
        # An administrator knows instances only.
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
