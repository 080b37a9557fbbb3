"""DescribeGroups and ListGroups: what can be seen of a group from outside."""

from __future__ import annotations

from collections.abc import Iterable

from hightide.core.groups.classic import ClassicGroup, State
from hightide.wire.errors import ErrorCode
from hightide.wire.messages.groups import (
    DescribedGroup,
    DescribedGroupMember,
    ListedGroup,
    ListGroupsRequest,
)

CLASSIC = "Classic"
# Before this version of DescribeGroups, a group that is not there is one that is dead.
NOT_FOUND_IS_TOLD = 6


def described(group_id: str, group: ClassicGroup | None, version: int) -> DescribedGroup:
    if group is None:
        is_told = version >= NOT_FOUND_IS_TOLD
        return DescribedGroup(
            error_code=ErrorCode.GROUP_ID_NOT_FOUND if is_told else ErrorCode.NONE,
            error_message=f"there is no group {group_id}" if is_told else None,
            group_id=group_id,
            group_state=State.DEAD.value,
            protocol_type="",
            protocol_data="",
            members=[],
        )
    # Before the work is shared out, what members offer and have does not fit together.
    is_stable = group.state is State.STABLE
    members = [
        DescribedGroupMember(
            member_id=member.id,
            group_instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            member_metadata=member.metadata(group.protocol) if is_stable else b"",
            member_assignment=member.assignment if is_stable else b"",
        )
        for member in group.members.values()
    ]
    return DescribedGroup(
        group_id=group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=(group.protocol or "") if is_stable else "",
        members=members,
    )


def listed(groups: Iterable[ClassicGroup], request: ListGroupsRequest) -> list[ListedGroup]:
    """The groups in one of the wanted states and of one of the wanted types; none means any."""
    states = {each.lower() for each in request.states_filter}
    types = {each.lower() for each in request.types_filter}
    return [
        ListedGroup(
            group_id=group.id,
            protocol_type=group.protocol_type or "",
            group_state=group.state.value,
            group_type=CLASSIC,
        )
        for group in groups
        if (not states or group.state.value.lower() in states)
        and (not types or CLASSIC.lower() in types)
    ]
