"""Answers that are made in more than one place."""

from __future__ import annotations

from typing import Any

from hightide.core.groups.classic.classic_group import ClassicGroup, Member
from hightide.wire.errors import ErrorCode
from hightide.wire.messages.consumer_groups import ConsumerGroupHeartbeatResponse
from hightide.wire.messages.groups import (
    HeartbeatResponse,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberResponse,
    SyncGroupResponse,
)

UNKNOWN_MEMBER = ""
NO_GENERATION = -1
# Versions of LeaveGroup below this one name a single member, and have one error for all.
SEVERAL_LEAVE = 3


def not_joined(error: ErrorCode, member_id: str = UNKNOWN_MEMBER) -> JoinGroupResponse:
    return JoinGroupResponse(
        error_code=error,
        generation_id=NO_GENERATION,
        # Before version 7 null cannot be said, and is what an empty name means.
        protocol_name="",
        leader="",
        member_id=member_id,
        members=[],
    )


def joined(group: ClassicGroup, member: Member) -> JoinGroupResponse:
    return JoinGroupResponse(
        error_code=ErrorCode.NONE,
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol,
        leader=group.leader or "",
        member_id=member.id,
        members=group.for_leader() if group.leader == member.id else [],
    )


def not_synced(error: ErrorCode) -> SyncGroupResponse:
    return SyncGroupResponse(error_code=error, assignment=b"")


def synced(group: ClassicGroup, member: Member) -> SyncGroupResponse:
    return SyncGroupResponse(
        error_code=ErrorCode.NONE,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol,
        assignment=member.assignment,
    )


def heartbeat(error: ErrorCode) -> HeartbeatResponse:
    return HeartbeatResponse(error_code=error)


def nobody_left(request: LeaveGroupRequest, version: int) -> LeaveGroupResponse:
    """None of them is a member, since there is no such group."""
    unknown = ErrorCode.UNKNOWN_MEMBER_ID
    if version < SEVERAL_LEAVE:
        return LeaveGroupResponse(error_code=unknown)
    members = [
        MemberResponse(
            member_id=each.member_id, group_instance_id=each.group_instance_id, error_code=unknown
        )
        for each in request.members
    ]
    return LeaveGroupResponse(members=members)


def not_beaten(error: ErrorCode, detail: str) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(error_code=error, error_message=detail)


def instead_of(response: Any, error: ErrorCode) -> Any:
    """What is told if that cannot be: what it says was not written."""
    match response:
        case JoinGroupResponse(member_id=member_id):
            return not_joined(error, member_id)
        case SyncGroupResponse():
            return not_synced(error)
        case LeaveGroupResponse():
            return LeaveGroupResponse(error_code=error)
    return not_beaten(error, f"it could not be written: {error.meaning}")
