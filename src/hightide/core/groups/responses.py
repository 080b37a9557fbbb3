"""Responses of the group APIs that more than one module sends."""

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
# Before this version, LeaveGroup names a single member and its response has a single error.
BATCH_LEAVE_VERSION = 3


def join_error(error: ErrorCode, member_id: str = UNKNOWN_MEMBER) -> JoinGroupResponse:
    return JoinGroupResponse(
        error_code=error,
        generation_id=NO_GENERATION,
        # Not None: before version 7 the field is not nullable.
        protocol_name="",
        leader="",
        member_id=member_id,
        members=[],
    )


def join_response(group: ClassicGroup, member: Member) -> JoinGroupResponse:
    return JoinGroupResponse(
        error_code=ErrorCode.NONE,
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol,
        leader=group.leader or "",
        member_id=member.id,
        members=group.for_leader() if group.leader == member.id else [],
    )


def sync_error(error: ErrorCode) -> SyncGroupResponse:
    return SyncGroupResponse(error_code=error, assignment=b"")


def sync_response(group: ClassicGroup, member: Member) -> SyncGroupResponse:
    return SyncGroupResponse(
        error_code=ErrorCode.NONE,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol,
        assignment=member.assignment,
    )


def heartbeat_response(error: ErrorCode) -> HeartbeatResponse:
    return HeartbeatResponse(error_code=error)


def unknown_members_response(request: LeaveGroupRequest, version: int) -> LeaveGroupResponse:
    """Build the response to a LeaveGroup for a group that does not exist."""
    unknown = ErrorCode.UNKNOWN_MEMBER_ID
    if version < BATCH_LEAVE_VERSION:
        return LeaveGroupResponse(error_code=unknown)
    members = [
        MemberResponse(
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            error_code=unknown,
        )
        for member in request.members
    ]
    return LeaveGroupResponse(members=members)


def consumer_heartbeat_error(error: ErrorCode, detail: str) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(error_code=error, error_message=detail)


def error_response(response: Any, error: ErrorCode) -> Any:
    """Build the error that replaces a response whose write failed."""
    match response:
        case JoinGroupResponse(member_id=member_id):
            return join_error(error, member_id)
        case SyncGroupResponse():
            return sync_error(error)
        case LeaveGroupResponse():
            return LeaveGroupResponse(error_code=error)
    return consumer_heartbeat_error(error, f"the change could not be written: {error.meaning}")
